//! A path that leads beyond the namespace: a leg there may reach the whole layer, and nothing more.

use crate::{Context, Leg, Router, RouterBuilder, Verdict};
use sluice_command::{
    Characteristics, Command, Lane, Layer, Limits, Operation, Origin, Request, Slab, StackBuilder,
};
use sluice_nvme::{Status, SubmissionEntry};
use std::sync::{Arc, Mutex};

const BLOCK: u64 = 512;
/// Blocks of the namespace; the layer below its function has twice as many.
const BLOCKS: u64 = 64;

type Seen = Arc<Mutex<Vec<Request>>>;

/// Layer that answers at once, and records its requests.
struct Store(Seen);

impl Layer for Store {
    fn name(&self) -> &'static str {
        "store"
    }

    fn characteristics(&self, _below: &[Characteristics]) -> Characteristics {
        Characteristics::target(2 * BLOCKS * BLOCK, BLOCK as u32)
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        self.0.lock().expect("not poisoned").push(lane.slot(&command).request);
        lane.finish(command, Status::SUCCESS);
    }
}

/// A function with half the size of the layer below.
struct Half;

impl Layer for Half {
    fn name(&self) -> &'static str {
        "half"
    }

    fn characteristics(&self, below: &[Characteristics]) -> Characteristics {
        Characteristics { size: below[0].size / 2, ..below[0].over() }
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        lane.forward(command);
    }
}

/// Returns the result of a command whose program sends it to this block down this path.
fn sent(path: u8, slba: u64, beyond: bool) -> (Status, Vec<Request>, u64) {
    let seen = Seen::default();
    let mut stack = StackBuilder::new();
    let store = stack.add(Box::new(Store(Arc::clone(&seen))), &[]).expect("a stack");
    stack.add(Box::new(Half), &[store]).expect("a stack");
    let builder = RouterBuilder::new(stack.build());
    let builder = if beyond { builder.path_beyond(store) } else { builder.path(store) };
    let program = move |context: &mut Context| {
        context.steering.slba = slba;
        Verdict::send(Leg::new(path).expect("a leg"))
    };
    let mut router = builder.expect("room for a path").classifier(Box::new(program)).build();
    router.set_format(1, BLOCK as u32);
    let status = run(&mut router);
    let seen = seen.lock().expect("not poisoned").clone();
    (status, seen, router.counters().overreached)
}

fn run(router: &mut Router) -> Status {
    let mut slab = Slab::new(Limits::new(1, router.characteristics().fan_out)).expect("memory");
    let origin = Origin { sq: 1, cid: 1, ..Origin::default() };
    let command = slab.admit(&SubmissionEntry::default(), origin).expect("room");
    let request = Request { operation: Operation::WriteZeroes, length: 8 * BLOCK, ..Request::default() };
    slab.slot_mut(&command).request = request;
    router.submit(command, &mut slab, 0);
    let mut done = Vec::new();
    router.run_completions(&mut slab, 0, &mut done);
    let command = done.pop().expect("it is over");
    let status = slab.slot(&command).status;
    slab.release(command);
    status
}

#[test]
fn a_leg_beyond_the_namespace_needs_a_path_that_leads_there() {
    for (path, slba, beyond) in [(1, 2 * BLOCKS - 8, true), (1, BLOCKS, true), (0, BLOCKS - 8, true)] {
        let (status, seen, overreached) = sent(path, slba, beyond);
        assert_eq!((status, overreached), (Status::SUCCESS, 0), "block {slba} of path {path}");
        assert_eq!((seen.len(), seen[0].offset), (1, slba * BLOCK));
    }
    let outside = [
        (1, 2 * BLOCKS - 7, true),
        (1, u64::MAX, true),
        (0, BLOCKS - 7, true),
        (0, BLOCKS, true),
        (1, BLOCKS - 7, false),
    ];
    for (path, slba, beyond) in outside {
        let (status, seen, _) = sent(path, slba, beyond);
        assert_eq!((status, seen.len()), (Status::LBA_OUT_OF_RANGE, 0), "block {slba} of path {path}");
    }
}
