//! Asynchronous events: their reports, their order, and their masks.

use crate::host::{ADMIN_ENTRIES, Host, PAGE, entry, get_log};
use crate::model::Model;
use sluice_controller::DoorbellMode;
use sluice_nvme::opcode::admin;
use sluice_nvme::{Cns, FeatureId, LogId, Status, SubmissionEntry};

const INVALID_DOORBELL_REGISTER: u32 = 0x0001_0000;
const INVALID_DOORBELL_VALUE: u32 = 0x0001_0100;
const NAMESPACE_CHANGED: u32 = 0x0004_0002;
const TEMPERATURE: u32 = 0x0002_0101;

fn host() -> Host {
    Host::enabled(vec![Model::new(64).namespace(1), Model::new(64).namespace(2)])
}

/// Sends an Asynchronous Event Request and returns its CID.
fn request(host: &mut Host) -> u16 {
    let cid = host.submit(0, entry(admin::ASYNC_EVENT_REQUEST));
    host.run();
    cid
}

/// Returns the events reported since the last call.
fn events(host: &mut Host) -> Vec<u32> {
    host.run();
    let completions = host.reap_all(0);
    assert!(completions.iter().all(|completion| completion.status().is_success()));
    completions.iter().map(|completion| completion.dw0).collect()
}

fn ring_unknown_doorbell(host: &mut Host) {
    host.ring_with(99 * 8, 0);
}

fn ring_impossible_tail(host: &mut Host) {
    host.ring_with(0, ADMIN_ENTRIES);
}

/// Reads a log page while events may come in between.
fn read_log(host: &mut Host, log: LogId, retain: bool) {
    let ask = get_log(log, 64);
    let entry = SubmissionEntry { cdw10: ask.cdw10 | u32::from(retain) << 15, ..ask };
    assert!(host.admin_read(entry, 64).is_ok());
}

/// Conformance: Base 5.2, an Asynchronous Event Request is completed when there is an event, and not before.
/// Conformance: Base 5.2, a write to a doorbell that is not there is an error event.
#[test]
fn a_request_waits_for_an_event() {
    let mut host = host();
    let cid = request(&mut host);
    assert_eq!(host.take(0), None);
    assert_eq!(host.controller.overview().event_requests, 1);
    ring_unknown_doorbell(&mut host);
    host.run();
    let completion = host.reap(0).expect("the event");
    assert_eq!((completion.cid, completion.dw0), (cid, INVALID_DOORBELL_REGISTER));
    assert_eq!(host.controller.overview().event_requests, 0);
}

/// Conformance: Base 5.2, an event for which there is no request waits for one.
/// Conformance: Base 5.2, a doorbell value that cannot be is an error event.
#[test]
fn an_event_waits_for_a_request() {
    let mut host = host();
    ring_impossible_tail(&mut host);
    assert_eq!(events(&mut host), []);
    request(&mut host);
    assert_eq!(events(&mut host), [INVALID_DOORBELL_VALUE]);
}

/// Conformance: Base 5.2, reading the event's log page with RAE cleared clears it, and with RAE set does not.
#[test]
fn a_read_log_page_clears_an_event_that_waits() {
    let mut host = host();
    ring_unknown_doorbell(&mut host);
    read_log(&mut host, LogId::ERROR_INFORMATION, true);
    read_log(&mut host, LogId::SMART_HEALTH, false);
    request(&mut host);
    assert_eq!(events(&mut host), [INVALID_DOORBELL_REGISTER], "retained, and another page's");
    read_log(&mut host, LogId::ERROR_INFORMATION, false);

    ring_unknown_doorbell(&mut host);
    read_log(&mut host, LogId::ERROR_INFORMATION, false);
    request(&mut host);
    assert_eq!(events(&mut host), []);
}

/// Conformance: Base 5.2, a type of event that was reported is masked until its log page is read.
#[test]
fn a_reported_type_is_masked_until_its_page_is_read() {
    let mut host = host();
    for _ in 0..4 {
        request(&mut host);
    }
    ring_unknown_doorbell(&mut host);
    assert_eq!(events(&mut host), [INVALID_DOORBELL_REGISTER]);
    ring_impossible_tail(&mut host);
    assert_eq!(events(&mut host), [], "an error event is unread");
    read_log(&mut host, LogId::ERROR_INFORMATION, true);
    assert_eq!(events(&mut host), [], "and still is");
    read_log(&mut host, LogId::ERROR_INFORMATION, false);
    assert_eq!(events(&mut host), [], "the page told of the second too");
    ring_impossible_tail(&mut host);
    assert_eq!(events(&mut host), [INVALID_DOORBELL_VALUE]);
}

#[test]
fn a_log_page_that_could_not_be_sent_was_not_read() {
    let mut host = host();
    request(&mut host);
    assert!(host.controller.subsystem.resize(2, 32 * 512));
    assert_eq!(events(&mut host), [NAMESPACE_CHANGED]);
    let astray = SubmissionEntry { dptr: [host.nowhere(), 0], ..get_log(LogId::CHANGED_NAMESPACE_LIST, 64) };
    assert_eq!(host.admin(astray).status(), Status::DATA_TRANSFER_ERROR);
    let list = host.log(LogId::CHANGED_NAMESPACE_LIST, 8).expect("a page");
    assert_eq!(list, [2, 0, 0, 0, 0, 0, 0, 0]);
}

/// Conformance: Base 5.2, types of events are masked each by itself.
/// Conformance: Base 5.27.1.3, a temperature beyond its threshold is an event.
#[test]
fn types_do_not_mask_each_other() {
    let mut host = host();
    for _ in 0..3 {
        request(&mut host);
    }
    ring_unknown_doorbell(&mut host);
    assert_eq!(events(&mut host), [INVALID_DOORBELL_REGISTER]);
    assert!(host.controller.subsystem.resize(1, 128 * 512));
    assert_eq!(events(&mut host), [NAMESPACE_CHANGED]);
    let cid = host.submit(
        0,
        SubmissionEntry {
            cdw10: u32::from(FeatureId::TEMPERATURE_THRESHOLD.0),
            cdw11: 300,
            ..entry(admin::SET_FEATURES)
        },
    );
    host.run();
    let completions = host.reap_all(0);
    assert_eq!(completions.len(), 2);
    assert_eq!((completions[0].cid, completions[1].dw0), (cid, TEMPERATURE));
}

#[test]
fn the_same_event_waits_once() {
    let mut host = host();
    for _ in 0..1000 {
        ring_unknown_doorbell(&mut host);
        ring_impossible_tail(&mut host);
    }
    for _ in 0..4 {
        request(&mut host);
    }
    assert_eq!(events(&mut host), [INVALID_DOORBELL_REGISTER]);
    assert_eq!(host.controller.overview().error_log_entries, 2000);
}

/// Conformance: Base 5.2, a change of a namespace is a notice, and the namespace is in the Changed Namespace List.
#[test]
fn the_host_is_told_of_a_new_size_and_sees_it() {
    let mut host = host();
    request(&mut host);
    assert!(host.controller.subsystem.resize(2, 4096 * 512));
    assert_eq!(events(&mut host), [NAMESPACE_CHANGED]);
    let list = host.log(LogId::CHANGED_NAMESPACE_LIST, PAGE).expect("a page");
    assert_eq!(list[..8], [2, 0, 0, 0, 0, 0, 0, 0]);
    let namespace = host.identify(Cns::NAMESPACE, 2).expect("a page");
    assert_eq!(namespace[..8], 4096u64.to_le_bytes());
    request(&mut host);
    assert!(host.controller.subsystem.resize(2, 64 * 512));
    assert_eq!(events(&mut host), [NAMESPACE_CHANGED], "the page was read, so that the next is told");
}

/// Conformance: Base 5.27.1.8, events that the host has turned off are not reported.
#[test]
fn what_is_configured_off_is_not_reported() {
    let mut host = host();
    assert!(host.controller.subsystem.resize(1, 128 * 512));
    assert_eq!(host.set_feature(FeatureId::ASYNC_EVENTS, 0), Ok(0));
    assert!(host.controller.subsystem.resize(2, 128 * 512));
    assert_eq!(host.set_feature(FeatureId::TEMPERATURE_THRESHOLD, 1), Ok(0));
    request(&mut host);
    assert_eq!(events(&mut host), [], "neither what waited nor what came after");
    let list = host.log(LogId::CHANGED_NAMESPACE_LIST, 8).expect("a page");
    assert_eq!(list, [1, 0, 0, 0, 2, 0, 0, 0], "the list is kept all the same");
    ring_unknown_doorbell(&mut host);
    assert_eq!(events(&mut host), [INVALID_DOORBELL_REGISTER], "errors are always reported");
}

/// Conformance: Base 5.2, more outstanding requests than AERL says are refused with Asynchronous Event Request Limit Exceeded.
#[test]
fn four_requests_may_be_outstanding() {
    let mut host = host();
    for _ in 0..4 {
        request(&mut host);
    }
    let completion = host.admin(entry(admin::ASYNC_EVENT_REQUEST));
    assert_eq!(completion.status(), Status::AER_LIMIT_EXCEEDED);
    assert_eq!(host.controller.overview().in_flight, 0);
    assert_eq!(host.controller.overview().event_requests, 4);
    // They have not taken the completion queue's slots.
    for _ in 0..2 * ADMIN_ENTRIES {
        assert!(host.get_feature(FeatureId::ARBITRATION).is_ok());
    }
}

#[test]
fn an_event_waits_for_a_slot_in_the_completion_queue() {
    let mut host = host();
    request(&mut host);
    let get = SubmissionEntry { cdw10: u32::from(FeatureId::ARBITRATION.0), ..entry(admin::GET_FEATURES) };
    for _ in 1..ADMIN_ENTRIES {
        host.submit(0, get);
        host.run();
    }
    ring_unknown_doorbell(&mut host);
    host.run();
    let full: Vec<_> = std::iter::from_fn(|| host.take(0)).collect();
    assert_eq!(full.len(), ADMIN_ENTRIES as usize - 1);
    assert!(full.iter().all(|completion| completion.dw0 == 0));
    host.run();
    assert_eq!(host.take(0), None);
    host.release(0);
    assert_eq!(events(&mut host), [INVALID_DOORBELL_REGISTER]);
}

fn abort(sq: u16, cid: u16) -> SubmissionEntry {
    SubmissionEntry { cdw10: u32::from(cid) << 16 | u32::from(sq), ..entry(admin::ABORT) }
}

/// Conformance: Base 5.1, a command that is aborted is completed with Command Abort Requested, before the Abort.
#[test]
fn a_request_can_be_aborted() {
    let mut host = host();
    let first = request(&mut host);
    let second = request(&mut host);
    let abort_cid = host.submit(0, abort(0, first));
    host.run();
    let completions = host.reap_all(0);
    let outcomes: Vec<_> = completions.iter().map(|c| (c.cid, c.status(), c.dw0)).collect();
    assert_eq!(outcomes, [(first, Status::ABORT_REQUESTED, 0), (abort_cid, Status::SUCCESS, 0)]);
    ring_unknown_doorbell(&mut host);
    host.run();
    assert_eq!(host.reap(0).map(|completion| completion.cid), Some(second));
}

/// Conformance: Base 5.1, an Abort says in dword 0 that it did not abort.
#[test]
fn what_cannot_be_aborted_is_not() {
    let model = Model::new(64);
    let mut host = Host::with_io(&model);
    model.disk().hold = true;
    let cid = host.submit(1, SubmissionEntry { nsid: 1, ..entry(sluice_nvme::opcode::io::FLUSH) });
    host.run();
    const NOT_ABORTED: u32 = 1;
    assert_eq!(host.dw0(abort(1, cid)), Ok(NOT_ABORTED), "it is with the target");
    assert_eq!(host.dw0(abort(0, 4711)), Ok(NOT_ABORTED), "there is no such command");
    assert_eq!(host.dw0(abort(2, cid)), Err(Status::INVALID_FIELD), "there is no such queue");
    host.answer(1, &model, 1);
    host.run();
    let completion = host.reap(1).expect("the flush");
    assert_eq!((completion.cid, completion.status()), (cid, Status::SUCCESS));
}

/// Conformance: Base 5.1, an I/O command that only waits is completed with Command Abort Requested, before the Abort.
#[test]
fn an_io_command_that_waits_can_be_aborted() {
    let model = Model::new(64);
    let mut host = Host::with_io(&model);
    (model.disk().hold, model.disk().aborts) = (true, true);
    let flush = SubmissionEntry { nsid: 1, ..entry(sluice_nvme::opcode::io::FLUSH) };
    let [first, second] = [(); 2].map(|()| host.submit(1, flush));
    host.run();
    assert_eq!(host.dw0(abort(1, first)), Ok(0));
    let completion = host.reap(1).expect("it was completed before");
    assert_eq!((completion.cid, completion.status()), (first, Status::ABORT_REQUESTED));
    assert_eq!(host.take(1), None, "no other was meant");
    // A command that has ended cannot be aborted any more.
    host.answer(1, &model, 1);
    host.run();
    assert_eq!(host.reap(1).map(|it| (it.cid, it.status())), Some((second, Status::SUCCESS)));
    assert_eq!(host.dw0(abort(1, second)), Ok(1));
}

/// Conformance: NVM 3.2.3, a Dataset Management that is aborted in one of its ranges begins no other.
#[test]
fn a_deallocation_of_many_ranges_ends_with_the_one_that_is_aborted() {
    let model = Model::new(64);
    let mut host = Host::with_io(&model);
    (model.disk().hold, model.disk().aborts) = (true, true);
    let buffer = host.allocate(crate::host::PAGE);
    let ranges: Vec<u8> = (0..4u64).flat_map(|at| [1 << 32, at].map(u64::to_le_bytes)).flatten().collect();
    host.write(buffer, &ranges);
    let entry =
        SubmissionEntry { nsid: 1, cdw10: 3, cdw11: 4, ..entry(sluice_nvme::opcode::io::DATASET_MANAGEMENT) };
    let cid = host.submit(1, SubmissionEntry { dptr: [buffer, 0], ..entry });
    host.run();
    host.answer(1, &model, 1);
    host.run();
    assert_eq!(model.disk().seen.len(), 2, "one is done, and one under way");
    assert_eq!(host.dw0(abort(1, cid)), Ok(0));
    assert_eq!(host.reap(1).map(|it| it.status()), Some(Status::ABORT_REQUESTED));
    assert_eq!(model.disk().seen.len(), 2);
}

/// Conformance: Base 3.7.2, a controller reset drops Asynchronous Event Requests and what was pending.
#[test]
fn a_reset_forgets_requests_events_and_masks() {
    let mut host = host();
    request(&mut host);
    ring_unknown_doorbell(&mut host);
    assert_eq!(events(&mut host), [INVALID_DOORBELL_REGISTER]);
    request(&mut host);
    ring_unknown_doorbell(&mut host);
    assert!(host.controller.subsystem.resize(1, 128 * 512));
    host.write_register(sluice_nvme::register::CC, 0);
    host.run();
    assert_eq!(host.controller.overview().event_requests, 0);
    assert!(host.controller.is_quiescent());
    host.enable();
    request(&mut host);
    assert_eq!(events(&mut host), []);
    ring_impossible_tail(&mut host);
    assert_eq!(events(&mut host), [INVALID_DOORBELL_VALUE]);
}

#[test]
fn a_bad_tail_stops_its_own_queue_only() {
    let model = Model::new(64);
    let mut host = Host::new(vec![model.namespace(1)]);
    host.controller.controller.set_doorbell_mode(DoorbellMode::Mapped);
    host.enable();
    host.create_pair(1, 16);
    host.create_pair(2, 16);
    request(&mut host);
    let flush = SubmissionEntry { nsid: 1, ..entry(sluice_nvme::opcode::io::FLUSH) };
    host.ring_with(8, 16);
    assert_eq!(events(&mut host), [INVALID_DOORBELL_VALUE]);
    host.put(1, flush);
    host.ring(1);
    host.run();
    assert_eq!(host.take(1), None, "the queue is broken");
    assert!(host.execute(2, flush).status().is_success());
    read_log(&mut host, LogId::ERROR_INFORMATION, false);
    request(&mut host);
    assert_eq!(events(&mut host), [], "told once");
    assert_eq!(host.delete_sq(1), Status::SUCCESS);
    assert_eq!(host.create_sq(1, 16, 1), Status::SUCCESS);
    assert!(host.execute(1, flush).status().is_success(), "a new queue works again");
}
