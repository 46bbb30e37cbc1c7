//! Losses of acknowledged writes, and the Flushes that report them to hosts.

use crate::host::{CC_ENABLED, Host, entry, io as block};
use crate::model::Model;
use crate::shared::Pair;
use sluice_command::{Characteristics, Operation};
use sluice_controller::{PersistentRecord, Synced};
use sluice_nvme::opcode::io;
use sluice_nvme::register::{self, csts};
use sluice_nvme::{FeatureId, Status, SubmissionEntry};
use std::sync::{Arc, Mutex};

const OK: Status = Status::SUCCESS;

/// Status without retries, since a repeated Flush would succeed.
const TOLD: Status = Status(Status::WRITE_FAULT.0 | Status::DNR);

/// CC.SHN: a normal shutdown.
const SHUTDOWN_NORMAL: u32 = 1 << 14;

fn flush() -> SubmissionEntry {
    SubmissionEntry { nsid: 1, ..entry(io::FLUSH) }
}

/// Records that the subsystem has stored.
fn stored(host: &mut Host) -> Arc<Mutex<Vec<PersistentRecord>>> {
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keeps = Arc::clone(&kept);
    host.controller.subsystem.on_persist(move |what| keeps.lock().expect("nobody panicked").push(what));
    kept
}

#[test]
fn a_flush_that_fails_for_one_host_fails_once_for_each_other() {
    let model = Model::new(64);
    let mut pair = Pair::enabled(&model);
    let kept = stored(pair.host(0));
    model.disk().fails_with = Some(Status::WRITE_FAULT);
    assert_eq!(pair.host(0).io(flush()), TOLD);
    model.disk().fails_with = None;
    assert_eq!(pair.host(0).io(flush()), OK);
    assert_eq!(pair.host(1).io(flush()), TOLD, "its writes may be lost, too");
    assert_eq!(pair.host(1).io(flush()), OK);
    assert_eq!(
        *kept.lock().expect("nobody panicked"),
        [PersistentRecord::Losses(vec![1])],
        "it outlives the daemon"
    );
    // A Flush that failed for another reason proves no loss.
    model.disk().fails_with = Some(Status::NAMESPACE_NOT_READY);
    assert_eq!(pair.host(0).io(flush()), Status::NAMESPACE_NOT_READY);
    model.disk().fails_with = None;
    assert_eq!(pair.host(1).io(flush()), OK);
}

#[test]
fn a_loss_of_an_earlier_daemon_fails_the_first_flush_of_each_host() {
    let model = Model::new(64);
    let mut pair = Pair::enabled(&model);
    // The second host has ended together with that daemon.
    pair.host(0).controller.subsystem.resume_losses(&[1], 0b10);
    assert_eq!(pair.host(1).io(flush()), OK);
    for status in [TOLD, OK] {
        assert_eq!(pair.host(0).io(flush()), status);
    }
    // The Flush of a Set Features reports the loss, too.
    pair.host(0).controller.subsystem.resume_losses(&[0], 0);
    let disable = |pair: &mut Pair| pair.host(1).set_feature(FeatureId::VOLATILE_WRITE_CACHE, 0);
    assert_eq!((disable(&mut pair), disable(&mut pair)), (Err(TOLD), Ok(0)));
}

#[test]
fn the_flush_of_a_shutdown_that_fails_is_told_by_the_next() {
    let model = Model::new(64);
    let mut pair = Pair::enabled(&model);
    model.disk().fails_with = Some(Status::WRITE_FAULT);
    let host = pair.host(0);
    host.write_register(register::CC, CC_ENABLED | SHUTDOWN_NORMAL);
    host.run();
    assert_eq!(host.csts(), csts::RDY | csts::SHST_COMPLETE);
    model.disk().fails_with = None;
    assert_eq!(pair.host(1).io(flush()), TOLD);
    assert_eq!(pair.host(1).io(flush()), OK);
}

/// Flushes in a batch with a command of several steps, before and after a loss: each has one completion entry.
#[test]
fn flushes_of_one_batch_are_completed_once_each() {
    const COMMANDS: [u8; 5] = [io::FLUSH, io::READ, io::COMPARE, io::FLUSH, io::READ];
    let model = Model::new(64);
    let mut pair = Pair::enabled(&model);
    let host = pair.host(0);
    let buffer = host.allocate(512);
    for owed in [false, true] {
        if owed {
            host.controller.subsystem.resume_losses(&[1], 0);
        }
        let data = |opcode| SubmissionEntry { nsid: 1, ..block(opcode, 0, 1, buffer) };
        let batch =
            COMMANDS.map(|opcode| host.put(1, if opcode == io::FLUSH { flush() } else { data(opcode) }));
        host.ring(1);
        host.run();
        let mut ended: Vec<(u16, Status)> = Vec::new();
        ended.extend(host.reap_all(1).iter().map(|it| (it.cid, it.status())));
        ended.sort_unstable_by_key(|(cid, _)| *cid);
        // One Flush reports the loss: the first that comes back.
        let first = if owed { TOLD } else { OK };
        let expected = [first, OK, OK, OK, OK];
        assert_eq!(ended, batch.iter().copied().zip(expected).collect::<Vec<_>>());
    }
}

/// Returns the outcome of a sync: durability, and the losses that not all hosts were notified of.
#[test]
fn a_drive_that_ends_says_what_it_owes() {
    let sync = |host: &mut Host| {
        host.controller.subsystem.sync(host.now_ns);
        host.run();
        let synced = host.controller.subsystem.synced().expect("it is over");
        Synced { power: Default::default(), ..synced }
    };
    let ended = |is_durable, unreported: &[u32]| Synced {
        is_durable,
        unreported: unreported.to_vec(),
        ..Synced::default()
    };
    let model = Model::new(64);
    let mut host = Host::with_io(&model);
    assert_eq!(sync(&mut host), ended(true, &[]));
    model.disk().fails_with = Some(Status::WRITE_FAULT);
    assert_eq!(sync(&mut host), ended(false, &[1]));
    model.disk().fails_with = None;
    assert_eq!(sync(&mut host), ended(true, &[]));
    // One host is there at the begin of the end, and one comes no more.
    host.controller.subsystem.resume_losses(&[1], 0);
    assert_eq!(sync(&mut host), ended(true, &[1]), "no host was told");
    assert_eq!(host.io(flush()), TOLD);
    host.controller.subsystem.note_hosts_at_end();
    assert_eq!(sync(&mut host), ended(true, &[]));
}

#[test]
fn a_drive_that_ends_owes_a_loss_to_the_host_that_was_not_notified() {
    let model = Model::new(64);
    let mut pair = Pair::enabled(&model);
    let host = pair.host(0);
    host.controller.subsystem.resume_losses(&[1], 0);
    assert_eq!(host.io(flush()), TOLD);
    host.controller.subsystem.note_hosts_at_end();
    host.controller.subsystem.sync(host.now_ns);
    host.run();
    let synced = host.controller.subsystem.synced().expect("it is over");
    assert_eq!(synced.unreported, [1], "the other host is enabled and was not notified");
}

/// Checks that a sync flushes each namespace with a volatile cache, and that its end reports a loss.
#[test]
fn a_sync_flushes_each_namespace_with_a_cache() {
    let plain = Model::with(Characteristics::target(1 << 15, 512));
    let (first, last) = (Model::new(64), Model::new(64));
    let mut host = Host::enabled(vec![first.namespace(1), plain.namespace(2), last.namespace(3)]);
    for status in [None, Some(Status::WRITE_FAULT)] {
        last.disk().fails_with = status;
        let subsystem = &mut host.controller.subsystem;
        subsystem.sync(host.now_ns);
        subsystem.turn(&host.space, host.now_ns);
        let operations = |model: &Model| model.take_seen().iter().map(|it| it.operation).collect::<Vec<_>>();
        // A flush that fails is repeated.
        let repeats = if status.is_some() { 2 } else { 1 };
        assert_eq!(operations(&first), [Operation::Flush]);
        assert_eq!(operations(&plain), []);
        assert_eq!(operations(&last), vec![Operation::Flush; repeats]);
        assert_eq!(subsystem.synced().map(|synced| synced.is_durable), Some(status.is_none()));
        assert_eq!(subsystem.end_sync(host.now_ns), status.is_none());
        assert!(subsystem.end_sync(host.now_ns), "it has ended");
    }
}
