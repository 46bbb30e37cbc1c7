//! The driver against a device of a few lines, whose doorbells are messages.

use crate::test_device::TestDevice;
use crate::{AsyncEvent, Controller, Deadline, Error, Namespace, QueueCount, QueueLayout, Settings, entry};
use sluice_nvme::opcode::admin;
use sluice_nvme::{Status, SubmissionEntry};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

fn started(settings: Settings) -> (Controller, Arc<TestDevice>) {
    let device = TestDevice::new(false);
    (Controller::start(device.clone(), settings).expect("a controller"), device)
}

fn layout(entries: u32) -> QueueLayout {
    QueueLayout { entries, max_transfer: 128 << 10 }
}

#[test]
fn from_reset_to_identified() {
    let (mut controller, _device) = started(Settings::default());
    assert_eq!(controller.identity().and_then(crate::identify::max_transfer), Some(128 << 10));
    assert_eq!(controller.capabilities().max_queue_entries(), 1024);
    assert_eq!(controller.set_queue_count(8).expect("set"), QueueCount { submission: 3, completion: 4 });
    let nsids = controller.active_namespaces().expect("a list");
    assert_eq!(nsids, (1..=1500).collect::<Vec<_>>());
}

#[test]
fn a_failed_command_keeps_its_status() {
    let (mut controller, _device) = started(Settings::default());
    let unknown = SubmissionEntry { opcode: admin::SANITIZE, ..SubmissionEntry::default() };
    assert_eq!(controller.command(unknown).expect("a completion").status(), Status::INVALID_OPCODE);
    assert_eq!(controller.admin(unknown).expect_err("refused").status(), Some(Status::INVALID_OPCODE));
}

#[test]
fn queues_come_and_go() {
    let (mut controller, device) = started(Settings::default());
    let before = device.mapped_ranges();
    for id in [1, 2, 1] {
        let mut queue = controller.create_queue_pair(id, layout(16), None).expect("a queue");
        let cid = queue.submit(entry::flush(1)).expect("room");
        queue.ring().expect("rung");
        let mut seen = Vec::new();
        queue.reap(|completion| seen.push(completion.cid));
        assert_eq!(seen, [cid]);
        controller.delete_queue_pair(queue).expect("deleted");
        assert_eq!(device.mapped_ranges(), before);
    }
    let lonely = controller.create_submission_queue(9, 4, 9).expect_err("no completion queue");
    assert_eq!(lonely.status(), Some(Status::COMPLETION_QUEUE_INVALID));
}

#[test]
fn a_reset_begins_anew() {
    let (mut controller, device) = started(Settings::default());
    let before = device.mapped_ranges();
    controller.request_async_event().expect("requested");
    for _ in 0..3 {
        controller.enable().expect("a controller");
        assert_eq!(device.mapped_ranges(), before);
        assert!(controller.poll_async_event().expect("a controller").is_none());
    }
    assert!(controller.identify_namespace(1).is_ok());
}

#[test]
fn shadow_doorbells_are_rung_where_the_controller_asks() {
    let (mut controller, device) = started(Settings::default());
    assert!(controller.has_shadow_doorbells());
    let mut queue = controller.create_queue_pair(1, layout(8), None).expect("a queue");
    let mut submit = |count| {
        let before = device.posts.load(Ordering::Relaxed);
        for _ in 0..count {
            queue.submit(entry::flush(1)).expect("room");
        }
        queue.ring().expect("rung");
        (device.posts.load(Ordering::Relaxed) - before, queue.reap(drop))
    };
    // Both event indexes are zero: the first tail is announced, and all is done when the message is.
    assert_eq!(submit(3), (1, 3));
    // The tail's event index was not moved, so the next tail is not announced, although it is in the shadow.
    // The first head is.
    assert_eq!(submit(2), (1, 0));
    // No doorbell is announced: neither event index is passed again.
    assert_eq!(submit(1), (0, 0));
    device.turn_shadow(1);
    // The commands in the shadow are reaped, and the event index is passed anew.
    assert_eq!(submit(1), (1, 4));
}

#[test]
fn without_shadow_doorbells_every_ring_is_a_message() {
    let settings = Settings { shadow_doorbells: false, ..Settings::default() };
    let (mut controller, device) = started(settings);
    assert!(!controller.has_shadow_doorbells());
    let mut queue = controller.create_queue_pair(1, layout(8), None).expect("a queue");
    for _ in 0..20 {
        let before = device.posts.load(Ordering::Relaxed);
        queue.submit(entry::flush(1)).expect("room");
        queue.ring().expect("rung");
        assert_eq!(queue.reap(drop), 1);
        queue.ring().expect("rung");
        queue.ring().expect("rung");
        assert_eq!(device.posts.load(Ordering::Relaxed) - before, 2);
    }
}

#[test]
fn events_wait_their_turn() {
    let (mut controller, device) = started(Settings::default());
    for _ in 0..2 {
        controller.request_async_event().expect("requested");
    }
    assert_eq!(controller.poll_async_event().expect("a controller"), None);
    device.raise(0x04_00_02);
    // An event that comes while a command is waited for is kept, and its identifier used again.
    controller.set_queue_count(1).expect("set");
    controller.set_queue_count(1).expect("set");
    device.raise(0x03_01_00);
    let deadline = Deadline::after(Duration::from_secs(10), "an asynchronous event");
    let events = [(); 2].map(|()| controller.wait_async_event(&deadline).expect("an event"));
    assert_eq!(events[0], AsyncEvent { kind: 2, info: 0, log_page: 4 });
    assert_eq!(events[1], AsyncEvent { kind: 0, info: 1, log_page: 3 });
}

#[test]
fn an_event_that_does_not_come_is_a_timeout() {
    let (mut controller, _device) = started(Settings::default());
    controller.request_async_event().expect("requested");
    let now = Deadline::after(Duration::ZERO, "an asynchronous event");
    let error = controller.wait_async_event(&now).expect_err("no event");
    assert_eq!(error.to_string(), "an asynchronous event did not happen in time");
}

#[test]
fn blocks_of_a_namespace() {
    let settings = Settings { shadow_doorbells: false, ..Settings::default() };
    let (mut controller, _device) = started(settings);
    let queue = controller.create_queue_pair(1, layout(16), None).expect("a queue");
    let mut namespace = Namespace::open(&mut controller, 1, queue).expect("a namespace");
    assert_eq!((namespace.block_size(), namespace.identity().nsze), (512, 100));
    namespace.read(0, &mut vec![0; 300 << 10]).expect("read");
    namespace.flush().expect("flushed");
    namespace.write_zeroes(0, 8, true).expect("written");
    namespace.deallocate(&[(0, 8), (16, 8)]).expect("deallocated");
    let error = namespace.write(0, &[0; 512]).expect_err("protected");
    assert_eq!(error.status(), Some(Status::NAMESPACE_WRITE_PROTECTED));
    assert!(matches!(namespace.read(0, &mut [0; 100]), Err(Error::Unsupported(_))));
    assert!(matches!(namespace.deallocate(&[]), Err(Error::Unsupported(_))));
}
