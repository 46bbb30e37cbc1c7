//! Histograms of how long commands take.

use crate::host::{Host, entry, get_log, io as io_entry};
use crate::model::Model;
use sluice_controller::{LatencyCells, LatencyClock, bucket_of};
use sluice_nvme::opcode::io;
use sluice_nvme::{LogId, Status, SubmissionEntry};
use std::sync::Arc;

const MS: u64 = 1_000_000;

fn flush() -> SubmissionEntry {
    SubmissionEntry { nsid: 1, ..entry(io::FLUSH) }
}

/// Returns the commands of each operation: reads, writes, flushes, and others.
fn counted(cells: &LatencyCells) -> [u64; 4] {
    let sums = LatencyCells::sums([cells]);
    std::array::from_fn(|index| sums[index].counts.iter().sum())
}

#[test]
fn a_command_takes_the_time_from_its_fetch_to_its_completion() {
    let model = Model::new(64);
    let mut host = Host::with_io(&model);
    let (clock, time) = LatencyClock::mock();
    let cells = Arc::new(LatencyCells::default());
    time.increment(MS);
    host.controller.subsystem.measure_latency(clock, Arc::clone(&cells));
    model.disk().hold = true;
    let buffer = host.allocate(4096);
    host.submit(1, io_entry(io::READ, 0, 1, buffer));
    host.run();
    for (entry, ns) in [(io_entry(io::READ, 0, 1, buffer), 2 * MS), (flush(), MS)] {
        time.increment(ns);
        host.now_ns += ns;
        host.submit(1, entry);
        host.run();
    }
    time.increment(3 * MS);
    host.answer(1, &model, 3);
    host.run();
    assert_eq!(host.reap_all(1).len(), 3);
    let sums = LatencyCells::sums([&*cells]);
    assert_eq!((sums[0].counts[bucket_of(6 * MS)], sums[0].counts[bucket_of(4 * MS)]), (1, 1));
    assert_eq!((sums[0].sum_ns, sums[2].sum_ns), (10 * MS, 3 * MS));
    assert_eq!(counted(&cells), [2, 0, 1, 0]);
}

#[test]
fn every_io_command_counts_once_and_no_other_does() {
    let model = Model::new(64);
    let mut host = Host::with_io(&model);
    let (clock, time) = LatencyClock::mock();
    let cells = Arc::new(LatencyCells::default());
    time.increment(MS);
    let buffer = host.allocate(4096);
    assert_eq!(host.io(io_entry(io::WRITE, 0, 1, buffer)), Status::SUCCESS, "before the measurement");
    host.controller.subsystem.measure_latency(clock, Arc::clone(&cells));
    // After a millisecond each command is timed.
    let io = |host: &mut Host, entry| {
        host.now_ns += MS;
        host.io(entry)
    };
    assert_eq!(io(&mut host, io_entry(io::WRITE, 0, 1, buffer)), Status::SUCCESS);
    assert_eq!(io(&mut host, io_entry(io::COMPARE, 0, 1, buffer)), Status::SUCCESS);
    assert_eq!(io(&mut host, io_entry(io::VERIFY, 0, 1, 0)), Status::SUCCESS);
    assert!(!io(&mut host, io_entry(io::READ, 64, 1, buffer)).is_success(), "behind the end");
    assert!(!io(&mut host, io_entry(0x7f, 0, 1, buffer)).is_success(), "no such command");
    assert_eq!(io(&mut host, flush()), Status::SUCCESS);
    assert!(host.admin_read(get_log(LogId::SMART_HEALTH, 512), 512).is_ok());
    assert_eq!(counted(&cells), [1, 1, 1, 3]);
    // The drive counts a command for a namespace that does not exist, and no namespace does.
    let nowhere = SubmissionEntry { nsid: 9, ..io_entry(io::READ, 0, 1, buffer) };
    assert!(!io(&mut host, nowhere).is_success());
    assert_eq!(counted(&cells), [2, 1, 1, 3]);
    let namespaces = LatencyCells::namespaces([&*cells]);
    let [(1, counts, times)] = &namespaces[..] else { panic!("{namespaces:?}") };
    assert_eq!((counts.commands, counts.errors), (6, 2));
    assert_eq!(times.iter().map(|time| time.counts.iter().sum::<u64>()).sum::<u64>(), 6);
    assert_eq!(LatencyCells::queues([&*cells])[0].counts.commands, 7);
}

#[test]
fn a_timed_command_counts_for_many_and_counters_are_exact() {
    let model = Model::new(64);
    let mut host = Host::with_io(&model);
    let (clock, time) = LatencyClock::mock();
    let cells = Arc::new(LatencyCells::default());
    host.controller.subsystem.measure_latency(clock, Arc::clone(&cells));
    let buffer = host.allocate(4096);
    for round in 0..20 {
        // Slots that had a stamp are used again: its time would be a long one.
        time.increment(MS);
        for index in 0..40 {
            let opcode = if index % 8 == round % 8 { io::WRITE } else { io::READ };
            host.submit(1, io_entry(opcode, 0, 1, buffer));
        }
        host.run();
        assert_eq!(host.reap_all(1).len(), 40);
    }
    let sums = LatencyCells::sums([&*cells]);
    assert_eq!(sums.iter().map(|sum| sum.sum_ns).sum::<u64>(), 0, "no command took any time");
    let timed = |cells| counted(cells).iter().sum::<u64>();
    assert!((800 - 126..=800).contains(&timed(&cells)), "{}", timed(&cells));
    let before = timed(&cells);
    host.now_ns += MS;
    assert_eq!(host.io(flush()), Status::SUCCESS);
    assert_eq!((timed(&cells), counted(&cells)[2]), (before + 1, 1), "the first after a pause");
    let namespaces = LatencyCells::namespaces([&*cells]);
    let queues = LatencyCells::queues([&*cells]);
    for counts in [namespaces[0].1, queues[0].counts] {
        assert_eq!((counts.commands, counts.errors), (801, 0));
        assert_eq!((counts.bytes_read, counts.bytes_written), (700 * 512, 100 * 512));
    }
}

#[test]
fn a_slow_command_is_noted_with_its_blocks() {
    let model = Model::new(64);
    let mut host = Host::with_io(&model);
    let (clock, time) = LatencyClock::mock();
    let cells = Arc::new(LatencyCells::new(2 * MS));
    time.increment(MS);
    host.controller.subsystem.measure_latency(clock, Arc::clone(&cells));
    let buffer = host.allocate(4096);
    let take = |host: &mut Host, slba: u64, ns: u64| {
        model.disk().hold = true;
        host.submit(1, io_entry(io::READ, slba, 3, buffer));
        host.run();
        time.increment(ns);
        model.disk().hold = false;
        host.answer(1, &model, 1);
        host.run();
        assert_eq!(host.reap_all(1).len(), 1);
    };
    take(&mut host, 1, 2 * MS - 1);
    assert_eq!((cells.slow(), cells.take_slowest()), (0, None));
    take(&mut host, 2, 5 * MS);
    take(&mut host, 3, 4 * MS);
    let slowest = cells.take_slowest().expect("two were slow");
    assert_eq!((slowest.ns, slowest.opcode, slowest.nsid), (5 * MS, io::READ, 1));
    assert_eq!((slowest.slba, slowest.blocks, slowest.sq), (2, 3, 1));
    assert_eq!((cells.slow(), cells.take_slowest()), (2, None));
}

#[test]
fn failures_of_a_batch_are_logged_in_their_order() {
    for measured in [false, true] {
        let model = Model::new(64);
        let mut host = Host::with_io(&model);
        if measured {
            host.controller.subsystem.measure_latency(LatencyClock::mock().0, Arc::default());
        }
        let buffer = host.allocate(4096);
        let bad = |host: &mut Host, slba| host.submit(1, io_entry(io::READ, slba, 1, buffer));
        let ids: Vec<u16> = [1, 64, 2, 65, 3].map(|slba| bad(&mut host, slba)).into();
        host.run();
        assert_eq!(host.reap_all(1).len(), 5);
        let log = host.admin_read(get_log(LogId::ERROR_INFORMATION, 128), 128).expect("a log");
        let [newest, before] = [0, 64].map(|at| u16::from_le_bytes([log[at + 10], log[at + 11]]));
        assert_eq!([before, newest], [ids[1], ids[3]], "{measured}");
    }
}
