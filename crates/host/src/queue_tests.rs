//! Tests of queue pairs with a device that uses the same memory.

use crate::test_device::TestDevice;
use crate::{Deadline, DmaAllocator, DmaRange, Error, QueueLayout, QueuePair, entry};
use proptest::prelude::*;
use sluice_nvme::{CompletionEntry, SubmissionEntry};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Creates a queue pair of number 1 with mapped doorbells, and its device.
fn pair(entries: u32) -> (QueuePair, Arc<TestDevice>) {
    let device = TestDevice::new(true);
    let memory = DmaAllocator::new(device.clone());
    let layout = QueueLayout { entries, max_transfer: 8192 };
    let mut queue = QueuePair::new(1, layout, &memory, &device.doorbells()).expect("a queue");
    let (sq, cq) = (queue.submission().iova(), queue.completion().iova());
    device.attach(1, sq, cq, entries);
    (queue, device)
}

/// Builds a command that its completion identifies.
fn numbered(number: u32) -> SubmissionEntry {
    entry::read(1, number.into(), 1)
}

fn reap(queue: &mut QueuePair) -> Vec<CompletionEntry> {
    let mut found = Vec::new();
    let count = queue.reap(|completion| found.push(completion));
    assert_eq!(count, found.len());
    found
}

#[test]
fn nothing_reaches_the_device_before_the_doorbell() {
    let (mut queue, device) = pair(4);
    let cid = queue.submit(numbered(7)).expect("room");
    device.turn(1);
    assert!(reap(&mut queue).is_empty());
    queue.ring().expect("rung");
    device.turn(1);
    let [completion] = reap(&mut queue)[..] else { panic!("one completion") };
    assert_eq!((completion.cid, completion.dw0, completion.sq_head), (cid, 7, 1));
    assert_eq!(queue.in_flight(), 0);
}

/// Checks a lost device with mapped doorbells, where nothing else shows the loss.
#[test]
fn a_device_that_is_gone_is_not_waited_for() {
    let (mut queue, device) = pair(4);
    let deadline = Deadline::after(Duration::from_secs(10), "a command");
    let answered = queue.submit(numbered(1)).expect("room");
    queue.ring().expect("rung");
    device.turn(1);
    let lost = queue.submit(numbered(2)).expect("room");
    device.die();
    let mut others = Vec::new();
    let error = queue.wait(lost, &deadline, |other| others.push(other.cid)).expect_err("nobody answers");
    assert!(matches!(error, Error::Connection(sluice_vfio_user::Error::Closed)), "{error}");
    assert_eq!((others, queue.in_flight()), (vec![answered], 1));
}

/// Checks that completions from before the loss of the device count.
#[test]
fn the_last_answer_of_a_device_is_heard() {
    let (mut queue, device) = pair(4);
    let deadline = Deadline::after(Duration::from_secs(10), "a command");
    let cid = queue.submit(numbered(1)).expect("room");
    queue.ring().expect("rung");
    device.turn(1);
    device.die();
    assert_eq!(queue.wait(cid, &deadline, drop).expect("answered").cid, cid);
}

#[test]
fn a_full_queue_refuses_and_goes_on() {
    for entries in [2, 3, 8] {
        let (mut queue, device) = pair(entries);
        for round in 0..5 * entries {
            let cids: HashSet<u16> =
                (1..entries).map(|_| queue.submit(numbered(round)).expect("room")).collect();
            assert_eq!(cids.len() as u32, queue.depth());
            assert_eq!(queue.in_flight(), entries - 1);
            assert_eq!(queue.submit(numbered(round)), None);
            queue.ring().expect("rung");
            device.turn(1);
            assert_eq!(
                reap(&mut queue).iter().map(|completion| completion.cid).collect::<HashSet<_>>(),
                cids
            );
        }
    }
}

#[test]
fn the_phase_tells_new_from_old_on_every_round() {
    let (mut queue, device) = pair(3);
    for number in 0..20 {
        assert!(reap(&mut queue).is_empty());
        queue.submit(numbered(number)).expect("room");
        queue.ring().expect("rung");
        device.turn(1);
        assert_eq!(reap(&mut queue).iter().map(|completion| completion.dw0).collect::<Vec<_>>(), [number]);
    }
}

#[test]
fn completions_of_nothing_are_counted_and_dropped() {
    let (mut queue, device) = pair(8);
    let cid = queue.submit(numbered(1)).expect("room");
    for stray in [cid, cid, 6, 7, u16::MAX] {
        device.complete(1, stray);
    }
    let mut seen = Vec::new();
    assert_eq!(queue.reap(|completion| seen.push(completion.cid)), 5);
    assert_eq!((seen, queue.strays(), queue.in_flight()), (vec![cid], 4, 0));
    let cids: HashSet<u16> = (0..7).map(|_| queue.submit(numbered(2)).expect("room")).collect();
    assert_eq!(cids.len(), 7);
}

#[test]
fn data_pointers() {
    let (mut queue, device) = pair(4);
    let data = DmaRange { iova: 0x5000_0800, length: 8192 };
    let cid = queue.submit_prp(numbered(1), data).expect("room");
    let prp = queue.lists().prp(cid, data).expect("it fits");
    assert_eq!(prp, [0x5000_0800, queue.lists().iova(cid)]);
    let ranges = [data, DmaRange { iova: 0x6000_0000, length: 512 }];
    let cid = queue.submit_sgl(numbered(2), &ranges).expect("room");
    let sgl = queue.lists().sgl(cid, &ranges).expect("it fits");

    let written = [device.entry(1, 0), device.entry(1, 1)];
    assert_eq!((written[0].dptr, written[0].flags), (prp, 0));
    assert_eq!((written[1].dptr, written[1].flags, written[1].cid), (sgl.to_dptr(), 0x40, cid));
}

#[test]
fn impossible_sizes_are_refused() {
    let device = TestDevice::new(true);
    let memory = DmaAllocator::new(device.clone());
    for entries in [0, 1, 65_537] {
        let layout = QueueLayout { entries, max_transfer: 4096 };
        assert!(QueuePair::new(1, layout, &memory, &device.doorbells()).is_err());
    }
}

#[test]
fn dropping_a_queue_takes_its_memory_back() {
    let (queue, device) = pair(4);
    assert_eq!(device.mapped_ranges(), 1);
    drop(queue);
    assert_eq!(device.mapped_ranges(), 0);
}

/// Runs the device concurrently with the host.
#[test]
fn a_device_on_another_core() {
    const COMMANDS: u32 = 100_000;
    let (mut queue, device) = pair(32);
    let stop = Arc::new(AtomicBool::new(false));
    let worker = std::thread::spawn({
        let (device, stop) = (device.clone(), stop.clone());
        move || {
            while !stop.load(Ordering::Relaxed) {
                device.turn(1);
                std::thread::yield_now();
            }
        }
    });
    let mut numbers = [0; 32];
    let (mut sent, mut done) = (0, 0);
    while done < COMMANDS {
        let reaped = queue.reap(|completion| {
            assert_eq!(completion.dw0, numbers[usize::from(completion.cid)]);
            done += 1;
        });
        while sent < COMMANDS
            && let Some(cid) = queue.submit(numbered(sent))
        {
            numbers[usize::from(cid)] = sent;
            sent += 1;
        }
        queue.ring().expect("rung");
        if reaped == 0 {
            std::thread::yield_now();
        }
    }
    stop.store(true, Ordering::Relaxed);
    worker.join().expect("joined");
    assert_eq!((queue.in_flight(), queue.strays()), (0, 0));
}

proptest! {
    /// Submits, rings, works and reaps in any order. Every command completes once, in order, and as many are
    /// in flight as were accepted.
    #[test]
    fn every_command_comes_back_once(entries in 2u32..20, steps in prop::collection::vec(0u8..8, 1..400)) {
        let (mut queue, device) = pair(entries);
        let (mut accepted, mut finished) = (0, 0);
        for step in steps {
            match step {
                0..4 => {
                    let room = accepted - finished < entries - 1;
                    let cid = queue.submit(numbered(accepted));
                    prop_assert_eq!(cid.is_some(), room);
                    accepted += u32::from(room);
                }
                4 => queue.ring().expect("rung"),
                5 => device.turn(1),
                _ => for completion in reap(&mut queue) {
                    prop_assert_eq!(completion.dw0, finished);
                    finished += 1;
                }
            }
            prop_assert_eq!(queue.in_flight(), accepted - finished);
        }
        queue.ring().expect("rung");
        device.turn(1);
        prop_assert_eq!(reap(&mut queue).len() as u32, accepted - finished);
        prop_assert_eq!(queue.strays(), 0);
    }
}
