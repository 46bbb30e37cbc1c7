//! Enable, disable, reset and shutdown, with nothing and with commands in flight.

use crate::host::{ADMIN_ENTRIES, CC_ENABLED, Host, MS, PAGE, create_cq, create_sq, entry, io as io_entry};
use crate::management::{attach, create, event, pair, wanted};
use crate::model::Model;
use sluice_command::{Characteristics, Operation};
use sluice_controller::Phase;
use sluice_controller::{Controller, DoorbellMode};
use sluice_memory::{Backing, Permissions, SharedRegion};
use sluice_nvme::Status;
use sluice_nvme::opcode::{admin, io};
use sluice_nvme::register::{self, csts};
use sluice_nvme::{FeatureId, SubmissionEntry};
use std::sync::atomic::Ordering;

const SHUTDOWN_NORMAL: u32 = 1 << 14;
const SHUTDOWN_ABRUPT: u32 = 2 << 14;

fn flush() -> SubmissionEntry {
    SubmissionEntry { nsid: 1, ..entry(io::FLUSH) }
}

/// Conformance: Base 3.1.3.1, CAP says what the controller can: queue entries, contiguous queues, stride, command sets, page sizes.
/// Conformance: Base 3.1.3.2, VS is the version of the specification.
#[test]
fn capabilities_and_version() {
    let host = Host::new(vec![Model::new(8).namespace(1)]);
    let (low, high) = (host.register(register::CAP), host.register(register::CAP + 4));
    assert_eq!(low & 0xffff, 4095, "MQES");
    assert_eq!(low >> 16 & 1, 1, "CQR");
    assert_ne!(low >> 24, 0, "TO");
    assert_eq!(high & 0xf, 0, "DSTRD");
    assert_eq!(high >> 5 & 0xff, 1, "CSS: the NVM command set");
    assert_eq!(high >> 16 & 0xff, 4 << 4, "MPSMIN: 4 KiB, MPSMAX: 64 KiB");
    assert_eq!(host.register(register::VS), 0x0002_0000);
    assert_eq!(host.csts(), 0);
    assert_eq!(host.controller.overview().phase, Phase::Disabled);
}

/// Conformance: Base 3.1.3.7, an NVM subsystem reset by NSSR resets every controller of the subsystem.
/// Conformance: Base 3.7.1, CSTS.NSSRO reports a subsystem reset.
#[test]
fn a_subsystem_reset_takes_everything_and_says_so_until_it_was_seen() {
    let model = Model::new(8);
    let mut host = Host::with_io(&model);
    let mut other = Controller::new(&mut host.controller.subsystem, 2).expect("a controller more");
    assert_eq!(host.register(register::CAP + 4) >> 4 & 1, 1, "NSSRS");
    let buffer = host.allocate(PAGE);
    model.disk().hold = true;
    host.submit(1, io_entry(io::READ, 0, 1, buffer));
    host.run();
    host.write_register(register::NSSR, register::SUBSYSTEM_RESET - 1);
    assert_eq!(host.csts(), csts::RDY, "that is another word");
    host.write_register(register::NSSR, register::SUBSYSTEM_RESET);
    host.run();
    assert!(!host.controller.is_quiescent(), "a command is with the target");
    assert_eq!(host.csts(), csts::NSSRO | csts::RDY, "the host's memory is still written to");
    assert_eq!((host.register(register::AQA), host.register(register::CC)), (0, 0));
    host.answer(1, &model, 1);
    model.disk().hold = false;
    host.run();
    assert!(host.controller.is_quiescent());
    assert_eq!(host.csts(), csts::NSSRO);
    other.turn(&mut host.controller.subsystem, &host.space, host.now_ns);
    let mut of_other = [0; 4];
    other.read_register(register::CSTS, &mut of_other);
    assert_eq!(u32::from_le_bytes(of_other), csts::NSSRO);
    host.configure_admin_queues();
    host.write_register(register::CC, CC_ENABLED);
    host.run();
    assert_eq!(host.csts(), csts::NSSRO | csts::RDY);
    host.write_register(register::CSTS, csts::NSSRO | csts::RDY);
    assert_eq!(host.csts(), csts::RDY);
    host.create_pair(1, 16);
    assert_eq!(host.io(io_entry(io::READ, 0, 1, buffer)), Status::SUCCESS);
    assert_eq!(host.reap_all(1), []);
    // A transport with properties in place of registers has no such register.
    host.write_register(register::CC, 0);
    host.run();
    host.controller.controller.set_doorbell_mode(DoorbellMode::Capsules);
    assert_eq!(host.register(register::CAP + 4) >> 4 & 1, 0, "NSSRS");
}

/// Conformance: Base 3.1.3.9, ASQ and ACQ are read as they were written, in halves, too.
#[test]
fn addresses_of_admin_queues_are_read_back() {
    let mut host = Host::new(vec![Model::new(8).namespace(1)]);
    let addresses = [(register::ASQ, 0x0001_2345_6789_a000u64), (register::ACQ, 0x000f_edcb_a987_6000)];
    addresses.into_iter().for_each(|(offset, address)| host.write_register_64(offset, address));
    for (offset, address) in addresses {
        let halves = [host.register(offset), host.register(offset + 4)];
        assert_eq!(halves, [address as u32, (address >> 32) as u32]);
        host.write_register(offset + 4, 0x000c_0de0);
        let mut whole = [0; 8];
        host.controller.controller.read_register(offset, &mut whole);
        assert_eq!(u64::from_le_bytes(whole), 0x000c_0de0 << 32 | address & 0xffff_ffff);
    }
}

/// Conformance: Base 3.1.3.5, a command set, page size or arbitration that is not supported is not enabled.
#[test]
fn a_configuration_that_is_not_supported_is_fatal_and_can_be_corrected() {
    for cc in [
        CC_ENABLED | 1 << 4,  // Another command set.
        CC_ENABLED | 5 << 7,  // 128 KiB pages.
        CC_ENABLED | 2 << 11, // A reserved arbitration mechanism.
    ] {
        let mut host = Host::new(vec![Model::new(8).namespace(1)]);
        host.configure_admin_queues();
        host.write_register(register::CC, cc);
        host.run();
        assert_eq!(host.csts(), csts::CFS, "CC {cc:#x}");
        assert_eq!(host.controller.overview().phase, Phase::Fatal);
        host.write_register(register::CC, 0);
        host.run();
        assert_eq!(host.csts(), 0);
        host.enable();
    }
}

/// Conformance: Base 3.5, a controller whose admin queues cannot be used reports CSTS.CFS.
#[test]
fn admin_queues_that_cannot_be_are_fatal() {
    let mut host = Host::new(vec![Model::new(8).namespace(1)]);
    let nowhere = host.nowhere();
    for (offset, value) in [(register::ASQ, nowhere), (register::ACQ, nowhere)] {
        host.configure_admin_queues();
        host.write_register_64(offset, value);
        host.write_register(register::CC, CC_ENABLED);
        host.run();
        assert_eq!(host.csts(), csts::CFS);
        host.write_register(register::CC, 0);
        host.run();
    }
    host.configure_admin_queues();
    host.write_register(register::AQA, 0);
    host.write_register(register::CC, CC_ENABLED);
    host.run();
    assert_eq!(host.csts(), csts::CFS, "a queue of one entry");
}

/// Conformance: Base 3.5, doorbells mean nothing before CSTS.RDY is set.
#[test]
fn nothing_is_rung_before_it_is_ready() {
    let mut host = Host::new(vec![Model::new(8).namespace(1)]);
    host.ring_with(0, 5);
    host.ring_with(99 * 8, 1);
    host.enable();
    host.run();
    assert_eq!(host.take(0), None);
    assert_eq!(host.controller.overview().error_log_entries, 0);
}

/// Conformance: Base 3.7.2, after a reset no command of before is completed, and CSTS.RDY is cleared when the controller is done with them.
/// Conformance: Base 3.7.2, I/O queues are gone after a controller reset.
#[test]
fn disabling_waits_for_commands_in_flight_and_completes_none() {
    let model = Model::new(64);
    let mut host = Host::with_io(&model);
    model.disk().hold = true;
    host.submit(1, flush());
    host.submit(0, entry(admin::ASYNC_EVENT_REQUEST));
    host.run();
    host.write_register(register::CC, 0);
    host.run();
    assert_eq!(host.csts(), csts::RDY, "a command is still with its target");
    assert_eq!(host.controller.overview().phase, Phase::Resetting);
    assert!(!host.controller.is_quiescent());
    host.answer(1, &model, 1);
    host.run();
    assert_eq!(host.csts(), 0);
    assert!(host.controller.is_quiescent());
    assert_eq!((host.take(0), host.take(1)), (None, None));
    model.disk().hold = false;
    host.enable();
    host.create_pair(1, 8);
    assert!(host.io(flush()).is_success());
}

#[test]
fn a_host_that_does_not_wait_for_the_drain_is_served_after_it() {
    let model = Model::new(64);
    let mut host = Host::with_io(&model);
    model.disk().hold = true;
    host.submit(1, flush());
    host.run();
    host.write_register(register::CC, 0);
    host.configure_admin_queues();
    host.write_register(register::CC, CC_ENABLED);
    host.run();
    assert!(!host.controller.is_quiescent());
    assert_eq!(host.controller.overview().submission_queues, 0);
    host.answer(1, &model, 1);
    host.run();
    assert_eq!(host.csts(), csts::RDY);
    assert!(host.is_ready() && host.controller.is_quiescent());
    model.disk().hold = false;
    host.create_pair(1, 8);
    assert!(host.io(flush()).is_success());
}

/// Conformance: Base 3.7.2, a function level reset puts all properties back, the admin queue's too.
#[test]
fn a_reset_from_outside_waits_too() {
    let model = Model::new(64);
    let mut host = Host::with_io(&model);
    model.disk().hold = true;
    for _ in 0..10 {
        host.submit(1, flush());
    }
    host.run();
    host.submit(0, SubmissionEntry { cdw10: 1, ..entry(admin::DELETE_IO_SQ) });
    host.submit(0, entry(admin::ASYNC_EVENT_REQUEST));
    host.run();
    assert_eq!(host.controller.in_flight(), 12);
    host.controller.reset();
    host.controller.reset();
    for left in (0..10).rev() {
        assert!(!host.controller.is_quiescent());
        assert_eq!(host.controller.in_flight(), left + 1);
        host.answer(1, &model, 1);
        host.run();
    }
    assert!(host.controller.is_quiescent());
    assert_eq!((host.csts(), host.register(register::CC)), (0, 0));
    assert_eq!(host.register(register::ASQ), 0, "a power-on state, unlike after a disable");
}

/// Conformance: Base 5.7, a queue can be deleted while its commands wait, and they end with Aborted due to SQ Deletion.
#[test]
fn what_only_waits_in_a_layer_holds_up_no_reset_and_no_deletion() {
    let model = Model::new(64);
    for ends in ["deletion", "disable", "reset"] {
        let mut host = Host::with_io(&model);
        (model.disk().hold, model.disk().aborts) = (true, true);
        for _ in 0..10 {
            host.submit(1, flush());
        }
        host.run();
        match ends {
            "deletion" => {
                assert_eq!(host.delete_sq(1), Status::SUCCESS);
                let ended = host.reap_all(1);
                assert!(
                    ended.len() == 10 && ended.iter().all(|it| it.status() == Status::ABORTED_SQ_DELETION)
                );
            }
            "disable" => host.write_register(register::CC, 0),
            _ => host.controller.reset(),
        }
        host.run();
        assert_eq!((host.controller.is_quiescent(), host.controller.in_flight()), (true, 0), "{ends}");
        assert!(model.disk().parked.is_empty());
    }
}

/// Conformance: Base 3.6, a shutdown, normal or abrupt, makes everything durable before CSTS.SHST says that it is complete.
#[test]
fn a_shutdown_flushes_every_volatile_cache() {
    for (notification, aers) in [(SHUTDOWN_NORMAL, 0), (SHUTDOWN_ABRUPT, 2)] {
        let (cached, plain) = (Model::new(64), Model::with(Characteristics::target(1 << 20, 512)));
        let mut host = Host::enabled(vec![cached.namespace(1), plain.namespace(2)]);
        for _ in 0..aers {
            host.submit(0, entry(admin::ASYNC_EVENT_REQUEST));
        }
        host.run();
        cached.disk().hold = true;
        host.write_register(register::CC, CC_ENABLED | notification);
        host.run();
        assert_eq!(host.csts(), csts::RDY | csts::SHST_IN_PROGRESS);
        assert_eq!(host.controller.overview().phase, Phase::ShuttingDown);
        host.answer(1, &cached, 1);
        host.run();
        assert_eq!(host.csts(), csts::RDY | csts::SHST_COMPLETE);
        assert_eq!(host.controller.overview().phase, Phase::ShutDown);
        let operations: Vec<_> = cached.take_seen().iter().map(|request| request.operation).collect();
        assert_eq!(operations, [Operation::Flush]);
        assert!(plain.take_seen().is_empty());
    }
}

/// Conformance: Base 3.6.1, only a reset makes a controller that was shut down usable again.
#[test]
fn a_shutdown_waits_for_commands_in_flight() {
    let model = Model::new(64);
    let mut host = Host::with_io(&model);
    let buffer = host.allocate(PAGE);
    model.disk().hold = true;
    let cid = host.submit(1, io_entry(io::WRITE, 0, 1, buffer));
    host.run();
    host.write_register(register::CC, CC_ENABLED | SHUTDOWN_NORMAL);
    host.run();
    host.answer(1, &model, 1);
    host.run();
    assert_eq!(host.csts() & csts::SHST_MASK, csts::SHST_IN_PROGRESS);
    assert_eq!(host.reap(1).map(|completion| completion.cid), Some(cid));
    host.answer(1, &model, 1);
    host.run();
    assert_eq!(host.csts() & csts::SHST_MASK, csts::SHST_COMPLETE);
    // Only a reset brings it back (Base 3.6.1).
    model.disk().hold = false;
    host.write_register(register::CC, 0);
    host.run();
    assert_eq!(host.csts(), 0);
    host.enable();
}

/// Conformance: Base 3.6, a controller that is not enabled can be shut down.
#[test]
fn a_shutdown_of_what_is_not_enabled_is_complete() {
    let mut host = Host::new(vec![Model::new(8).namespace(1)]);
    host.write_register(register::CC, SHUTDOWN_NORMAL);
    host.run();
    assert_eq!(host.csts(), csts::SHST_COMPLETE);
    host.write_register(register::CC, 0);
    host.enable();
}

/// Conformance: Base 3.1.3.3, INTMS and INTMC mask and unmask the pin's interrupt.
/// Conformance: PCIe 3.5, the pin is asserted while there are completions that the host has not released.
#[test]
fn interrupts_of_the_pin_follow_the_mask_and_the_heads() {
    let mut host = Host::enabled(vec![Model::new(8).namespace(1)]);
    assert!(!host.controller.controller.intx_asserted());
    host.submit(0, SubmissionEntry { cdw10: 1, ..entry(admin::GET_FEATURES) });
    host.run();
    assert!(host.controller.controller.intx_asserted());
    host.write_register(register::INTMS, 1);
    assert!(!host.controller.controller.intx_asserted());
    assert_eq!(host.register(register::INTMC), 1);
    host.write_register(register::INTMC, 1);
    assert!(host.controller.controller.intx_asserted());
    host.reap(0);
    assert!(!host.controller.controller.intx_asserted());
}

#[test]
fn a_host_that_uses_queues_whose_memory_went_away_is_told_so() {
    let model = Model::new(64);
    let mut host = Host::with_io(&model);
    let removed = host.space.unmap_all();
    assert!(!host.controller.uses(&removed), "no command is in flight");
    host.controller.forget_memory(&removed);
    drop(removed);
    for _ in 0..30 {
        host.now_ns += 100 * MS;
        host.run();
    }
    assert_eq!(host.csts(), csts::RDY, "nobody asked for them");
    host.ring_with(8, 1);
    host.run();
    host.now_ns += 100 * MS;
    host.run();
    assert_eq!(host.csts(), csts::RDY, "it may come back");
    for _ in 0..10 {
        host.now_ns += 100 * MS;
        host.run();
    }
    assert_eq!(host.csts(), csts::RDY | csts::CFS);
    assert!(model.take_seen().is_empty(), "nothing is fetched from memory that is gone");
    host.write_register(register::CC, 0);
    host.run();
    assert_eq!(host.csts(), 0);
}

#[test]
fn nobody_stays_awake_for_a_completion_queue_that_is_away() {
    let mut host = Host::with_io(&Model::new(64));
    let (memory, address) = (SharedRegion::new("apart", PAGE).expect("memory"), host.nowhere());
    let backing = Backing::File { fd: memory.fd().try_clone_to_owned().expect("a descriptor"), offset: 0 };
    host.space.map(address, PAGE as u64, Permissions::READ_WRITE, backing).expect("a map");
    assert_eq!(host.admin(create_cq(2, 16, address)).status(), Status::SUCCESS);
    assert_eq!(host.create_sq(2, 16, 2), Status::SUCCESS);
    let removed = host.space.unmap(address, PAGE as u64).expect("it was mapped");
    host.controller.forget_memory(&removed);
    host.put(2, flush());
    host.ring(2);
    for _ in 0..10 {
        host.run();
        assert!(!host.controller.arm(), "there is nothing that could be done");
        assert_eq!(host.csts(), csts::RDY);
        host.now_ns += 100 * MS;
    }
    host.run();
    assert_eq!(host.csts(), csts::RDY | csts::CFS);
}

#[test]
fn queues_whose_memory_comes_back_go_on() {
    let model = Model::new(64);
    let mut host = Host::with_io(&model);
    model.disk().hold = true;
    let buffer = host.allocate(PAGE);
    host.submit(1, io_entry(io::READ, 0, 1, buffer));
    host.run();
    let removed = host.space.unmap_all();
    host.controller.forget_memory(&removed);
    // It finishes while its completion queue is unmapped, and so does nothing else.
    host.answer(1, &model, 1);
    host.put(1, flush());
    host.ring(1);
    host.run();
    assert!(!host.controller.uses(&removed));
    drop(removed);
    assert_eq!(host.reap(1), None);
    host.map_memory();
    host.controller.controller.find_memory(&host.space);
    model.disk().hold = false;
    host.run();
    let done: Vec<_> = host.reap_all(1).iter().map(|entry| entry.status()).collect();
    assert_eq!(done, [Status::SUCCESS; 2]);
    host.now_ns += 5000 * MS;
    host.run();
    assert_eq!(host.csts(), csts::RDY);
}

#[test]
fn memory_of_a_command_in_flight_is_in_use() {
    let model = Model::new(64);
    let mut host = Host::with_io(&model);
    let buffer = host.allocate(PAGE);
    model.disk().hold = true;
    host.submit(1, io_entry(io::READ, 0, 1, buffer));
    host.run();
    let removed = host.space.unmap_all();
    assert!(host.controller.uses(&removed));
    host.answer(1, &model, 1);
    host.run();
    assert!(!host.controller.uses(&removed));
}

#[test]
fn a_controller_may_be_dropped_with_requests_waiting() {
    let model = Model::new(64);
    let mut host = Host::with_io(&model);
    host.submit(0, entry(admin::ASYNC_EVENT_REQUEST));
    model.disk().hold = true;
    host.submit(1, flush());
    host.run();
    host.submit(0, SubmissionEntry { cdw10: 1, ..entry(admin::DELETE_IO_SQ) });
    host.run();
    assert_eq!(host.controller.in_flight(), 3);
    drop(host);
    assert_eq!(model.disk().parked.len(), 1);
}

#[test]
fn a_finished_compare_uses_no_memory_any_more() {
    for slba in [0, 64] {
        let model = Model::new(64);
        let mut host = Host::with_io(&model);
        let buffer = host.allocate(PAGE);
        for mapped in [buffer, host.nowhere()] {
            let compare = SubmissionEntry { dptr: [buffer, mapped], ..io_entry(io::COMPARE, slba, 16, 0) };
            host.io(compare);
        }
        // It takes the slot that the Compare had, and keeps it.
        host.submit(0, entry(admin::ASYNC_EVENT_REQUEST));
        host.run();
        let removed = host.space.unmap_all();
        assert!(!host.controller.uses(&removed));
    }
}

#[test]
fn an_armed_controller_has_nothing_to_do() {
    let model = Model::new(64);
    let mut host = Host::with_io(&model);
    host.run();
    assert!(!host.controller.arm());
    host.put(1, flush());
    assert!(!host.controller.arm(), "it was not rung");
    host.ring(1);
    assert!(host.controller.arm());
    model.disk().hold = true;
    host.run();
    assert!(!host.controller.arm(), "the command is with its target");
    host.answer(1, &model, 1);
    assert!(host.controller.arm(), "the target has answered");
    host.run();
    assert!(!host.controller.arm());
    host.write_register(register::CC, 0);
    assert!(host.controller.arm(), "the drain is done");
    host.run();
    assert!(!host.controller.arm());
}

#[test]
fn a_fatal_controller_sleeps_whatever_waits() {
    let mut host = Host::with_io(&Model::new(64));
    host.submit(0, entry(admin::ASYNC_EVENT_REQUEST));
    assert_eq!(host.set_feature(FeatureId::KEEP_ALIVE_TIMER, 1000), Ok(0));
    host.now_ns += 1000 * MS;
    host.run();
    assert_eq!(host.csts(), csts::RDY | csts::CFS);
    host.submit(1, flush());
    host.ring_with(99 * 8, 1);
    host.run();
    assert!(!host.controller.arm());
}

#[test]
fn an_event_without_a_slot_keeps_nobody_awake() {
    let mut host = Host::enabled(vec![Model::new(8).namespace(1)]);
    host.submit(0, entry(admin::ASYNC_EVENT_REQUEST));
    host.run();
    for _ in 1..ADMIN_ENTRIES {
        host.submit(0, entry(admin::KEEP_ALIVE));
        host.run();
    }
    host.ring_with(99 * 8, 1);
    host.run();
    assert!(!host.controller.arm());
    host.take(0);
    host.release(0);
    assert!(host.controller.arm());
}

#[test]
fn a_client_that_left_cannot_ring_the_next_ones_doorbells() {
    let model = Model::new(64);
    let mut host = Host::new(vec![model.namespace(1)]);
    host.controller.controller.set_doorbell_mode(DoorbellMode::Mapped);
    let lent = host.controller.controller.doorbells();
    let fd = lent.fd().try_clone_to_owned().expect("a descriptor");
    let kept = SharedRegion::from_fd(fd, 0, lent.len()).expect("the first client's mapping");
    host.controller.controller.set_doorbell_mode(DoorbellMode::Trapped);
    host.controller.controller.set_doorbell_mode(DoorbellMode::Mapped);
    kept.atomic_u32(0x1000).store(7, Ordering::Relaxed);
    assert_eq!(host.controller.controller.doorbells().atomic_u32(0x1000).load(Ordering::Relaxed), 0);
    // A host without commands of its own sees none of those.
    let lent = host.controller.controller.doorbells();
    let fd = lent.fd().try_clone_to_owned().expect("a descriptor");
    let kept = SharedRegion::from_fd(fd, 0, lent.len()).expect("the second client's mapping");
    host.controller.controller.set_doorbell_mode(DoorbellMode::Trapped);
    kept.atomic_u32(0x1000).store(7, Ordering::Relaxed);
    assert_eq!(host.controller.controller.doorbells().atomic_u32(0x1000).load(Ordering::Relaxed), 0);
}

/// Tests that a host that resets its controller, because its writes wait for too long, is not locked out
/// until there is room.
#[test]
fn a_write_that_waits_for_room_ends_when_its_host_begins_anew() {
    let (mut pair, daemon) = pair();
    assert_eq!(create(&mut pair, &daemon, &wanted(8)), Ok(2));
    assert_eq!(attach(&mut pair, &daemon, 2, &[1, 2], true), Status::SUCCESS);
    event(&mut pair, 1);
    let model = daemon.disk(2);
    model.disk().hold = true;
    for host in [0, 1] {
        let buffer = pair.host(host).allocate(PAGE);
        pair.host(host).submit(1, SubmissionEntry { nsid: 2, ..io_entry(io::WRITE, 0, 1, buffer) });
    }
    pair.run();
    pair.host(0).write_register(register::CC, 0);
    pair.run();
    assert_eq!(pair.host(0).csts(), csts::RDY, "the disk may have it");
    model.disk().full = true;
    pair.run();
    assert_eq!(pair.host(0).csts(), 0);
    pair.host(1).answer(2, &model, 1);
    pair.run();
    assert_eq!(
        pair.host(1).reap(1).map(|it| it.status()),
        Some(Status::SUCCESS),
        "another's goes on waiting"
    );
}

/// Checks that a command counts if its submission queue is unmapped, and not if it waits in a mapped queue.
#[test]
fn a_host_waits_for_the_unmapped_submission_queue_alone() {
    let mut host = Host::with_io(&Model::new(64));
    let (memory, address) = (SharedRegion::new("apart", PAGE).expect("memory"), host.nowhere());
    let backing = Backing::File { fd: memory.fd().try_clone_to_owned().expect("a descriptor"), offset: 0 };
    host.space.map(address, PAGE as u64, Permissions::READ_WRITE, backing).expect("a map");
    assert_eq!(host.create_cq(2, 16), Status::SUCCESS);
    assert_eq!(host.admin(create_sq(2, 16, 2, address)).status(), Status::SUCCESS);
    // Completion queue 1 is full, so the last entry of submission queue 1 stays there.
    for _ in 0..64 {
        host.submit(1, flush());
        host.run();
    }
    let removed = host.space.unmap(address, PAGE as u64).expect("it was mapped");
    host.controller.forget_memory(&removed);
    let pass = |host: &mut Host, count: u32| {
        for _ in 0..count {
            host.now_ns += 100 * MS;
            host.run();
        }
        host.csts()
    };
    assert_eq!(pass(&mut host, 30), csts::RDY, "the unmapped queue has no entry");
    host.ring_with(2 * 8, 1);
    assert_eq!(pass(&mut host, 12), csts::RDY | csts::CFS);
}
