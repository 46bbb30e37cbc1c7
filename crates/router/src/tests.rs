//! The router with a scripted classifier over two paths.

use crate::{Classifier, Facts, Hook, Path, Router, RouterBuilder, Verdict};
use sluice_command::{
    Characteristics, Command, Lane, Layer, Limits, NodeId, Operation, Origin, Request, Slab, StackBuilder,
};
use sluice_nvme::{Status, SubmissionEntry};
use std::cell::RefCell;
use std::rc::Rc;

const SIZE: u64 = 1 << 20;

/// Notes its name for every command, and forwards it or, at the bottom, finishes it.
struct Noting {
    name: &'static str,
    notes: Rc<RefCell<Vec<&'static str>>>,
    ends_with: Option<Status>,
}

impl Layer for Noting {
    fn name(&self) -> &'static str {
        self.name
    }

    fn characteristics(&self, below: &[Characteristics]) -> Characteristics {
        below.first().map_or(Characteristics::target(SIZE, 512), |below| below.over())
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        self.notes.borrow_mut().push(self.name);
        match self.ends_with {
            Some(status) => lane.finish(command, status),
            None => lane.forward(command),
        }
    }
}

/// Answers with what it was told to, hook by hook, and keeps what it was asked.
struct Scripted {
    verdicts: Vec<Verdict>,
    asked: Rc<RefCell<Vec<(Hook, u16)>>>,
}

impl Classifier for Scripted {
    fn classify(&mut self, facts: &Facts<'_>) -> Verdict {
        self.asked.borrow_mut().push((facts.hook, facts.cookie));
        self.verdicts.remove(0)
    }
}

/// A function over a target; the first path is through both, the second to the target alone.
struct Bench {
    router: Router,
    slab: Slab,
    notes: Rc<RefCell<Vec<&'static str>>>,
    asked: Rc<RefCell<Vec<(Hook, u16)>>>,
}

impl Bench {
    fn new(verdicts: Vec<Verdict>, ends_with: Status) -> Self {
        let (notes, asked) = (Rc::default(), Rc::default());
        let layer = |name, ends_with| Box::new(Noting { name, notes: Rc::clone(&notes), ends_with });
        let mut stack = StackBuilder::new();
        let target = stack.add(layer("target", Some(ends_with)), &[]).expect("a stack");
        stack.add(layer("function", None), &[target]).expect("a stack");
        let classifier = Scripted { verdicts, asked: Rc::clone(&asked) };
        let builder = RouterBuilder::new(stack.build()).path(target).expect("two paths");
        let router = builder.classifier(Box::new(classifier)).build();
        Self { router, slab: Slab::new(Limits::new(4, 0)).expect("memory"), notes, asked }
    }

    fn submit(&mut self, offset: u64) -> Command {
        let entry = SubmissionEntry::default();
        let command = self.slab.admit(&entry, Origin::default()).expect("room");
        self.slab.slot_mut(&command).request =
            Request { operation: Operation::Read, offset, length: 512, ..Request::default() };
        self.router.submit(command, &entry, &mut self.slab, 0);
        self.settle()
    }

    fn settle(&mut self) -> Command {
        let mut done = Vec::new();
        self.router.settle(&mut self.slab, 0, &mut done);
        assert_eq!(done.len(), 1, "one command went in");
        done.remove(0)
    }

    fn status(&mut self, command: Command) -> Status {
        let status = self.slab.slot(&command).status;
        self.slab.release(command);
        status
    }

    fn notes(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.notes.borrow_mut())
    }
}

#[test]
fn a_verdict_chooses_the_path_and_further_steps_keep_it() {
    for (path, walked) in [(Path::FIRST, &["function", "target"][..]), (Path(1), &["target"])] {
        let mut bench = Bench::new(vec![Verdict::send(path)], Status::SUCCESS);
        let command = bench.submit(0);
        assert_eq!(bench.notes(), walked);
        bench.router.resubmit(command, &mut bench.slab, 0);
        let command = bench.settle();
        assert_eq!(bench.notes(), walked, "the second step");
        assert_eq!(bench.asked.borrow().len(), 1, "a further step asks nobody");
        assert_eq!(bench.status(command), Status::SUCCESS);
    }
}

#[test]
fn a_path_that_is_not_there_fails_the_command_and_is_counted() {
    let mut bench = Bench::new(vec![Verdict::send(Path(2))], Status::SUCCESS);
    let command = bench.submit(0);
    assert_eq!(bench.status(command), Status::INTERNAL_ERROR);
    assert_eq!((bench.router.counters().impossible, bench.notes().len()), (1, 0));
}

#[test]
fn a_command_can_be_finished_at_once() {
    let mut bench = Bench::new(vec![Verdict::complete(Status::CAPACITY_EXCEEDED)], Status::SUCCESS);
    let command = bench.submit(0);
    assert_eq!(bench.status(command), Status::CAPACITY_EXCEEDED);
    assert_eq!(bench.notes().len(), 0);
}

#[test]
fn an_address_is_checked_after_the_verdict() {
    let mut bench = Bench::new(vec![Verdict::send(Path(1)); 2], Status::SUCCESS);
    for (offset, status) in [(SIZE - 512, Status::SUCCESS), (SIZE, Status::LBA_OUT_OF_RANGE)] {
        let command = bench.submit(offset);
        assert_eq!(bench.status(command), status);
    }
}

#[test]
fn the_last_hook_sees_the_status_and_its_cookie_and_may_change_the_status() {
    let first = Verdict::send(Path::FIRST).and_call_before_completion(0xbeef);
    let last = Verdict::complete(Status::SUCCESS);
    let mut bench = Bench::new(vec![first, last], Status::WRITE_FAULT);
    let command = bench.submit(0);
    assert_eq!(bench.status(command), Status::SUCCESS);
    let asked = [(Hook::Submission, 0), (Hook::BeforeCompletion(Status::WRITE_FAULT), 0xbeef)];
    assert_eq!(*bench.asked.borrow(), asked);
}

#[test]
fn nothing_can_be_sent_before_completion() {
    let first = Verdict::send(Path::FIRST).and_call_before_completion(0);
    let mut bench = Bench::new(vec![first, Verdict::send(Path::FIRST)], Status::SUCCESS);
    let command = bench.submit(0);
    assert_eq!(bench.status(command), Status::INTERNAL_ERROR);
    assert_eq!(bench.router.counters().impossible, 1);
}

#[test]
fn there_are_only_so_many_paths() {
    let mut stack = StackBuilder::new();
    let target = Noting { name: "target", notes: Rc::default(), ends_with: Some(Status::SUCCESS) };
    stack.add(Box::new(target), &[]).expect("a stack");
    let mut builder = RouterBuilder::new(stack.build());
    for _ in 1..Router::PATHS_MAX {
        builder = builder.path(NodeId(0)).expect("room");
    }
    assert!(builder.path(NodeId(0)).is_err());
}
