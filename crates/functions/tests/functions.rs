//! Each function alone, over a target that notes its requests.

mod bench;

use bench::{BLOCK, Bench, SIZE};
use sluice_command::{Aborted, Characteristics, Command, Controllers, Lane, Layer, Operation};
use sluice_functions::{
    Delay, DelayConfig, Fault, Outcome, Pass, PassConfig, Range, RangeConfig, Rule, RuleCount, When,
};
use sluice_nvme::Status;
use std::num::NonZeroU64;

const OK: Status = Status::SUCCESS;

#[test]
fn pass_forwards_as_it_is_and_counts() {
    for watch in [false, true] {
        let pass = Pass::new(PassConfig { watch });
        let counters = pass.counters();
        let mut bench = Bench::new(pass, Status::COMPARE_FAILURE);
        assert_eq!(bench.read(512), [(0, Status::COMPARE_FAILURE)]);
        assert_eq!(bench.submit(Operation::Flush, 0, 0), [(1, Status::COMPARE_FAILURE)]);
        assert_eq!(bench.reached(), [512, 0]);
        let up = if watch { 2 } else { 0 };
        assert_eq!((counters.down(), counters.up(), counters.failed()), (2, up, up));
        let top = bench.stack.characteristics();
        assert_eq!(top, Characteristics { depth: 2, ..Characteristics::target(SIZE, BLOCK) });
    }
}

const DELAY: DelayConfig = DelayConfig { read_ns: 100, write_ns: 50, flush_ns: 0, held_max: 3 };

#[test]
fn delay_holds_each_operation_for_its_time() {
    let mut bench = Bench::new(Delay::new(DELAY), OK);
    assert_eq!(bench.stack.deadline_ns(), None);
    assert_eq!(bench.read(512), []);
    assert_eq!(bench.submit(Operation::Deallocate, 1024, 512), []);
    assert_eq!(bench.submit(Operation::Flush, 0, 0), [(2, OK)]);
    assert_eq!(bench.expire(), [(1, OK)]);
    assert_eq!(bench.now_ns, 50);
    assert_eq!(bench.expire(), [(0, OK)]);
    assert_eq!(bench.now_ns, 100);
    assert_eq!(bench.reached(), [0, 1024, 512]);
    assert_eq!(bench.stack.deadline_ns(), None);
}

#[test]
fn delay_keeps_the_order_of_the_same_time_and_holds_no_more_than_its_limit() {
    let mut bench = Bench::new(Delay::new(DELAY), OK);
    for block in 0..3 {
        assert_eq!(bench.read(block * 512), []);
    }
    assert_eq!(bench.read(4096), [(3, OK)], "the fourth finds no place and is not delayed");
    assert_eq!(bench.expire(), [(0, OK), (1, OK), (2, OK)]);
    assert_eq!(bench.reached(), [4096, 0, 512, 1024]);
}

#[test]
fn delay_lets_go_of_what_is_aborted() {
    let mut bench = Bench::new(Delay::new(DELAY), OK);
    for block in 0..3 {
        assert_eq!(bench.read(block * 512), []);
    }
    let second = Aborted { cid: Some(1), ..Aborted::of(Controllers::of_bits(1)) };
    assert_eq!(bench.abort(second), [(1, Status::ABORT_REQUESTED)]);
    assert_eq!(bench.expire(), [(0, OK), (2, OK)]);
    assert_eq!(bench.reached(), [0, 1024]);
}

/// Releases many commands that are due at the same moment: one turn has no time for all of them.
#[test]
fn delay_lets_a_few_mib_go_on_at_a_time() {
    let mut bench = Bench::new(Delay::new(DelayConfig { held_max: 64, ..DELAY }), OK);
    for _ in 0..10 {
        assert_eq!(bench.submit(Operation::WriteZeroes, 0, SIZE), []);
    }
    let at_once: Vec<usize> = (0..3).map(|_| bench.expire().len()).collect();
    assert_eq!((at_once, bench.now_ns), (vec![4, 4, 2], 50));
}

#[test]
fn a_fault_fails_before_or_after_the_work() {
    let before = Rule { bytes: Some(0..512), ..Rule::new(Outcome::Fail(Status::WRITE_FAULT)) };
    let after = Rule::new(Outcome::FailAfterwards(Status::INTERNAL_ERROR));
    let after = Rule { operations: vec![Operation::Write], bytes: Some(512..1024), ..after };
    let fault = Fault::new(0, vec![before, after]);
    let control = fault.control();
    let mut bench = Bench::new(fault, OK);
    assert_eq!(bench.write(0, 512), [(0, Status::WRITE_FAULT)]);
    assert_eq!(bench.write(512, 512), [(1, Status::INTERNAL_ERROR)]);
    assert_eq!(bench.read(512), [(2, OK)]);
    assert_eq!(bench.write(1024, 512), [(3, OK)]);
    assert_eq!(bench.reached(), [512, 512, 1024]);
    let one = RuleCount { matched: 1, hits: 1 };
    assert_eq!(control.counts(), [one, one]);

    control.arm(false);
    assert_eq!(bench.write(0, 512), [(4, OK)]);
    assert_eq!(control.counts(), [one, one]);
}

#[test]
fn a_range_is_all_there_is_to_those_above() {
    let mut bench = Bench::new(Range::new(RangeConfig { from: 8192, size: None }), OK);
    assert_eq!(bench.stack.characteristics().size, SIZE - 8192);
    assert_eq!(bench.write(512, 1024), [(0, OK)]);
    assert_eq!(bench.submit(Operation::Deallocate, 4096, 4096), [(1, OK)]);
    assert_eq!(bench.submit(Operation::Flush, 0, 0), [(2, OK)]);
    assert_eq!(bench.read(SIZE - 8192 - 512), [(3, OK)]);
    assert_eq!(bench.reached(), [8704, 12288, 0, SIZE - 512]);
    // Beyond its end is beyond the end below.
    assert_eq!(bench.read(SIZE - 8192), [(4, Status::LBA_OUT_OF_RANGE)]);

    let size =
        |from, size| Bench::new(Range::new(RangeConfig { from, size }), OK).stack.characteristics().size;
    assert_eq!((size(4096, Some(8192)), size(SIZE - 4096, Some(8192))), (8192, 4096));
    assert_eq!((size(SIZE, None), size(SIZE + 4096, Some(4096))), (0, 0));
}

#[test]
fn fewer_bytes_than_asked_is_an_error() {
    let mut bench = Bench::new(Fault::new(0, vec![Rule::new(Outcome::Short(1500))]), OK);
    assert_eq!(bench.stack.characteristics().fan_out, 1);
    assert_eq!(bench.write(512, 2048), [(0, Status::WRITE_FAULT)]);
    assert_eq!(bench.submit(Operation::Read, 0, 4096), [(1, Status::UNRECOVERED_READ_ERROR)]);
    let moved: Vec<(u64, u64)> =
        bench.log.lock().expect("not poisoned").iter().map(|r| (r.offset, r.length)).collect();
    assert_eq!(moved, [(512, 1024), (0, 1024)], "whole blocks, from the start");
    bench.log.lock().expect("not poisoned").clear();
    assert_eq!(bench.write(0, 1024), [(2, OK)], "not longer than what is moved");
    assert_eq!(bench.submit(Operation::WriteZeroes, 0, 4096), [(3, OK)], "no data to cut");
    assert_eq!(bench.submit(Operation::Flush, 0, 0), [(4, OK)]);

    let mut bench = Bench::new(Fault::new(0, vec![Rule::new(Outcome::Short(511))]), OK);
    assert_eq!(bench.read(0), [(0, Status::UNRECOVERED_READ_ERROR)]);
    assert!(bench.reached().is_empty(), "less than a block is nothing");
}

#[test]
fn a_short_transfer_that_fails_below_keeps_that_status() {
    let rule = Rule::new(Outcome::Short(512));
    let mut bench = Bench::new(Fault::new(0, vec![rule]), Status::CAPACITY_EXCEEDED);
    assert_eq!(bench.write(0, 1024), [(0, Status::CAPACITY_EXCEEDED)]);
}

#[test]
fn what_hangs_goes_on_when_released_and_fails_when_dropped() {
    let fault = Fault::new(0, vec![Rule { skip: 1, ..Rule::new(Outcome::Hang) }]);
    let control = fault.control();
    let mut bench = Bench::new(fault, OK);
    assert_eq!(bench.read(0), [(0, OK)]);
    assert_eq!((bench.read(512), bench.read(1024)), (vec![], vec![]));
    assert_eq!((control.held(), bench.stack.deadline_ns()), (2, None));
    control.release();
    assert_eq!(bench.expire(), [(1, OK), (2, OK)]);
    assert_eq!((control.held(), bench.stack.deadline_ns()), (0, None));

    assert_eq!(bench.read(2048), []);
    control.drop_held(Status::ABORT_REQUESTED);
    assert_eq!(bench.expire(), [(3, Status::ABORT_REQUESTED)]);
    assert_eq!(bench.reached(), [0, 512, 1024]);
}

#[test]
fn the_first_rule_that_hits_decides() {
    let second = NonZeroU64::new(2).expect("two");
    let rules = vec![
        Rule { when: When::Every(second), ..Rule::new(Outcome::Fail(Status::WRITE_FAULT)) },
        Rule { limit: Some(second), ..Rule::new(Outcome::Fail(Status::INTERNAL_ERROR)) },
    ];
    let mut bench = Bench::new(Fault::new(0, rules), OK);
    let statuses: Vec<Status> = (0..6).map(|_| bench.read(0)[0].1).collect();
    let (first, second) = (Status::WRITE_FAULT, Status::INTERNAL_ERROR);
    assert_eq!(statuses, [first, second, first, second, first, OK]);
}

/// Layer that computes its ranges wrongly.
struct Astray(u64);

impl Layer for Astray {
    fn name(&self) -> &'static str {
        "astray"
    }

    fn characteristics(&self, below: &[Characteristics]) -> Characteristics {
        below[0].over()
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        lane.slot_mut(&command).request.offset += self.0;
        lane.forward_with(0, command, 3, [0; 2]);
    }
}

#[test]
fn the_lane_lets_nobody_leave_what_lies_below() {
    for (by, status) in
        [(0, OK), (512, Status::LBA_OUT_OF_RANGE), (u64::MAX - SIZE, Status::LBA_OUT_OF_RANGE)]
    {
        let mut bench = Bench::new(Astray(by), OK);
        assert_eq!(bench.write(SIZE - 512, 512), [(0, status)]);
        assert_eq!(bench.reached().len(), usize::from(status == OK));
    }
}
