//! Tests of long operations, which are executed in parts and completely.

use super::*;
use sluice_command::{Limits, NodeId, Origin, Slab, Stack};
use sluice_memory::SharedRegion;
use sluice_nvme::SubmissionEntry;
use sluice_reactor::{Arm, ReactorConfig, ReactorHandle, Task};

const SIZE: u64 = 3 * PART + 4096;

/// Creates a drive, and starts a Deallocate of all of it.
fn deallocating() -> (Stack, Slab, Vec<Command>) {
    let target = Memory::new(SIZE).expect("memory");
    let mut slab = Slab::new(Limits::new(4, 0)).expect("memory");
    let mut stack = Stack::of(Box::new(target));
    let command = slab.admit(&SubmissionEntry::default(), Origin::default()).expect("room");
    let operation = Operation::Deallocate;
    slab.slot_mut(&command).request = Request { operation, length: SIZE, ..Request::default() };
    let mut done = Vec::new();
    stack.submit(stack.root(), command, &mut slab, 0);
    stack.run_completions(&mut slab, 0, &mut done);
    (stack, slab, done)
}

/// Runs turns until a command is done; returns how many.
fn turns(stack: &mut Stack, slab: &mut Slab, done: &mut Vec<Command>) -> usize {
    let mut turns = 0;
    while done.is_empty() {
        assert_eq!(stack.deadline_ns(), Some(0), "there is more to do at once");
        stack.expire(slab, 0);
        stack.run_completions(slab, 0, done);
        turns += 1;
    }
    turns
}

#[test]
fn a_whole_drive_is_deallocated_in_parts() {
    let (mut stack, mut slab, mut done) = deallocating();
    assert_eq!(turns(&mut stack, &mut slab, &mut done), 4);
    assert_eq!(stack.deadline_ns(), None);
    for command in done {
        assert_eq!(slab.slot(&command).status, Status::SUCCESS);
        slab.release(command);
    }
}

#[test]
fn the_parts_are_all_of_it() {
    let mut target = Memory::new(SIZE).expect("memory");
    let ones = [0, PART, SIZE - 1];
    for at in ones {
        target.arena.write(at, &[1]).expect("inside");
    }
    target.zeroing.push_back(Zeroing { ticket: Ticket(7), offset: 0, length: SIZE });
    let status = std::iter::repeat_with(|| target.zero_next()).flatten().next();
    assert_eq!(status, Some((Ticket(7), Status::SUCCESS)));
    for at in ones {
        let mut byte = [1];
        target.arena.read(at, &mut byte).expect("inside");
        assert_eq!(byte, [0]);
    }
}

#[test]
fn one_that_is_aborted_ends_with_the_part_that_is_done() {
    let (mut stack, mut slab, mut done) = deallocating();
    stack.expire(&mut slab, 0);
    let all = Aborted::of(sluice_command::Controllers::of_bits(1));
    stack.abort(all, Status::ABORT_REQUESTED, &mut slab, 0);
    stack.run_completions(&mut slab, 0, &mut done);
    assert_eq!((done.len(), stack.deadline_ns()), (1, None));
    for command in done {
        assert_eq!(slab.slot(&command).status, Status::ABORT_REQUESTED);
        slab.release(command);
    }
}

#[test]
fn a_drive_made_smaller_meanwhile_has_no_such_range() {
    let (mut stack, mut slab, mut done) = deallocating();
    stack.resize(PART);
    turns(&mut stack, &mut slab, &mut done);
    for command in done {
        assert_eq!(slab.slot(&command).status, Status::LBA_OUT_OF_RANGE);
        slab.release(command);
    }
}

/// The part of a controller that a stack needs around it.
struct Host {
    stack: Stack,
    slab: Slab,
    done: Vec<Command>,
    /// Bytes of the commands that were done at once.
    moved: Vec<u64>,
}

impl Host {
    fn settle(&mut self, now_ns: u64) {
        self.stack.run_completions(&mut self.slab, now_ns, &mut self.done);
        let mut moved = 0;
        for command in self.done.drain(..) {
            let slot = self.slab.slot(&command);
            assert_eq!(slot.status, Status::SUCCESS);
            moved += slot.request.length;
            self.slab.release(command);
        }
        self.moved.push(moved);
    }
}

impl Task for Host {
    fn turn(&mut self, now_ns: u64) -> usize {
        if self.stack.deadline_ns().is_some() {
            self.stack.expire(&mut self.slab, now_ns);
            self.settle(now_ns);
        }
        0
    }

    fn event(&mut self, token: u64, result: i32, _more: bool, now_ns: u64) {
        self.stack.event(NodeId(0), Ticket(token as u32), result, &mut self.slab, now_ns);
        self.settle(now_ns);
    }

    fn arm(&mut self, _now_ns: u64) -> Arm {
        Arm::Asleep { until: self.stack.deadline_ns() }
    }
}

/// Queues as many writes for one page as a drive has commands.
#[test]
fn what_waited_for_one_page_is_not_all_moved_at_once() {
    const LENGTH: u64 = 1 << 20;
    const COUNT: u64 = 30;
    let reactor = ReactorHandle::start(ReactorConfig::default()).expect("io_uring works here");
    let build = |task, io: Io| -> Box<dyn Task> {
        let target = Memory::new(2 * Arena::HUGE_PAGE as u64).expect("memory").with_pages_from(io, task, 0);
        let slab = Slab::new(Limits::new(COUNT as u32, 0)).expect("memory");
        Box::new(Host { stack: Stack::of(Box::new(target)), slab, done: Vec::new(), moved: Vec::new() })
    };
    let task = reactor.call(move |local| local.add(build)).expect("an answer");
    let data = SharedRegion::new("host", LENGTH as usize).expect("memory");
    let write_all = move |local: &mut sluice_reactor::Local| {
        let Host { stack, slab, .. } = local.task_mut(task).expect("the host is there");
        for _ in 0..COUNT {
            let command = slab.admit(&SubmissionEntry::default(), Origin::default()).expect("room");
            let slot = slab.slot_mut(&command);
            // The range is on two pages.
            let offset = Arena::HUGE_PAGE as u64 - LENGTH / 2;
            slot.request =
                Request { operation: Operation::Write, offset, length: LENGTH, ..Request::default() };
            slot.data.push(data.segment(0, LENGTH as u32)).expect("one segment");
            stack.submit(stack.root(), command, slab, 0);
        }
        let host: &mut Host = local.task_mut(task).expect("the host is there");
        host.settle(0);
        data
    };
    let _data = reactor.call(write_all).expect("an answer");
    let moved = loop {
        let moved = reactor.call(move |local| local.task::<Host>(task).map(|host| host.moved.clone()));
        let moved = moved.expect("an answer").expect("the host is there");
        if moved.iter().sum::<u64>() == COUNT * LENGTH {
            break moved;
        }
        std::thread::yield_now();
    };
    assert!(moved.iter().all(|bytes| *bytes <= TURN_BYTES), "{moved:?}");
    reactor.call(move |local| drop(local.remove(task))).expect("an answer");
    reactor.stop();
}
