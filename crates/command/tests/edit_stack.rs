//! Stacks whose layers are inserted and removed, against a plain list.

use sluice_command::{
    Busy, Characteristics, Command, Frame, Lane, Layer, Limits, NodeId, Operation, Origin, Request, Slab,
    Stack, StackBuilder, StackError,
};
use sluice_nvme::{Status, SubmissionEntry};
use std::sync::{Arc, Mutex};

const SIZE: u64 = 1 << 20;

/// Layers that a command passed, on its way down and up again.
type Seen = Arc<Mutex<Vec<u32>>>;

/// A layer that records every command; one with a second layer below it sends a child there first.
struct Note {
    number: u32,
    seen: Seen,
    is_wide: bool,
    leaves: bool,
}

impl Layer for Note {
    fn name(&self) -> &'static str {
        "note"
    }

    fn characteristics(&self, below: &[Characteristics]) -> Characteristics {
        let fan_out = below.iter().map(|below| below.fan_out).max().unwrap_or(0);
        let depth = below.iter().map(|below| below.depth).max().unwrap_or(0) + 1;
        Characteristics { fan_out: fan_out + 2 * u32::from(self.is_wide), depth, ..below[0] }
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        self.seen.lock().expect("not poisoned").push(self.number);
        match self.is_wide {
            true => lane.fork(command, 2, 0, [0; 2], |child, parent, slot| {
                slot.request = parent.request;
                // The child goes first, so that the rest of the stack is recorded last.
                1 - child as usize
            }),
            false => lane.forward_with(0, command, 0, [0; 2]),
        }
    }

    fn resume(&mut self, command: Command, _frame: Frame, lane: &mut Lane<'_>) {
        self.seen.lock().expect("not poisoned").push(self.number);
        let status = lane.slot(&command).status;
        lane.finish(command, status);
    }

    fn leave(&mut self, _lane: &mut Lane<'_>) -> bool {
        self.leaves
    }
}

/// A target that finishes at once.
struct Target(u64);

impl Layer for Target {
    fn name(&self) -> &'static str {
        "target"
    }

    fn characteristics(&self, _below: &[Characteristics]) -> Characteristics {
        Characteristics::target(self.0, 512)
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        lane.finish(command, Status::SUCCESS);
    }

    fn resized(&mut self, size: u64) {
        self.0 = size;
    }
}

/// Sends a command through; returns the layers that it passed on its way down.
fn met(stack: &mut Stack, slab: &mut Slab, seen: &Seen) -> Vec<u32> {
    seen.lock().expect("not poisoned").clear();
    let command = slab.admit(&SubmissionEntry::default(), Origin::default()).expect("room");
    slab.slot_mut(&command).request =
        Request { operation: Operation::Deallocate, length: 512, ..Request::default() };
    stack.submit(stack.root(), command, slab, 0);
    let mut done = Vec::new();
    stack.run_completions(slab, 0, &mut done);
    let [command] = done.try_into().expect("it comes back once");
    assert_eq!(slab.slot(&command).status, Status::SUCCESS);
    slab.release(command);
    assert_eq!(slab.live().count(), 0);
    let seen = seen.lock().expect("not poisoned");
    let (down, up) = seen.split_at(seen.len() / 2);
    assert!(up.iter().rev().eq(down), "back as it came: {seen:?}");
    down.to_vec()
}

fn insert(stack: &mut Stack, at: usize, number: u32, seen: &Seen) -> Result<(), StackError> {
    let note = Note { number, seen: Arc::clone(seen), is_wide: number.is_multiple_of(3), leaves: true };
    let build = |under: NodeId, builder: &mut StackBuilder| {
        let mut below = vec![under];
        if note.is_wide {
            let aside = builder.add(Box::new(Target(SIZE)), &[])?;
            builder.fix(aside);
            below.push(aside);
        }
        builder.add(Box::new(note), &below)
    };
    stack.insert(at, build, |_| Ok(()))
}

#[test]
fn layers_that_come_and_go_are_met_in_their_order() {
    let mut state = 1u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let seen = Seen::default();
    let mut stack = Stack::of(Box::new(Target(SIZE)));
    let mut slab = Slab::new(Limits::new(4, 0)).expect("a slab");
    let mut model: Vec<u32> = Vec::new();
    let mut size = SIZE;
    for number in 0..2000 {
        if random(2) == 0 {
            let at = random(model.len() + 1);
            match insert(&mut stack, at, number, &seen) {
                Ok(()) => model.insert(at, number),
                Err(error) => assert_eq!((error, model.len()), (StackError::TooDeep { depth: 9 }, 7)),
            }
            assert!(slab.make_room(stack.characteristics().fan_out, stack.reserve()));
        } else if !model.is_empty() {
            let at = random(model.len());
            stack.take_out(at, &mut slab, 0).expect("nothing is under way");
            model.remove(at);
        }
        if random(10) == 0 {
            size = SIZE / 2 + random(1000) as u64 * 512;
            stack.resize(size);
        }
        assert_eq!(met(&mut stack, &mut slab, &seen), model);
        assert_eq!((stack.characteristics().size, stack.target_size()), (size, size));
        assert_eq!(usize::from(stack.characteristics().depth), model.len() + 1);
    }
    assert!(stack.chain().iter().all(|node| *node < NodeId(64)), "places are used again");
}

#[test]
fn a_layer_that_is_not_accepted_leaves_nothing() {
    let seen = Seen::default();
    let mut stack = Stack::of(Box::new(Target(SIZE)));
    let mut slab = Slab::new(Limits::new(4, 0)).expect("a slab");
    for _ in 0..1000 {
        let refused = stack.insert(
            0,
            |under, builder| {
                let aside = builder.add(Box::new(Target(SIZE)), &[])?;
                let note = Note { number: 1, seen: Arc::clone(&seen), is_wide: true, leaves: true };
                builder.add(Box::new(note), &[under, aside])
            },
            |insertion| Err(StackError::TooDeep { depth: insertion.layer.depth.into() }),
        );
        assert_eq!(refused, Err(StackError::TooDeep { depth: 2 }));
    }
    assert_eq!(met(&mut stack, &mut slab, &seen), []);
    assert!(insert(&mut stack, 2, 1, &seen).is_err(), "there is no such place");
}

#[test]
fn a_layer_that_cannot_leave_or_is_the_target_stays() {
    let seen = Seen::default();
    let mut stack = Stack::of(Box::new(Target(SIZE)));
    let mut slab = Slab::new(Limits::new(4, 0)).expect("a slab");
    let note = Note { number: 1, seen: Arc::clone(&seen), is_wide: false, leaves: false };
    let inserted: Result<(), StackError> =
        stack.insert(0, |under, builder| builder.add(Box::new(note), &[under]), |_| Ok(()));
    inserted.expect("it is accepted");
    assert_eq!([0, 1, 2].map(|at| stack.take_out(at, &mut slab, 0)), [Err(Busy); 3]);
    assert_eq!(met(&mut stack, &mut slab, &seen), [1]);
}

/// A target that parks the commands until they are aborted.
struct Slow(Vec<sluice_command::Ticket>);

impl Layer for Slow {
    fn name(&self) -> &'static str {
        "slow"
    }

    fn characteristics(&self, _below: &[Characteristics]) -> Characteristics {
        Characteristics::target(SIZE, 512)
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        self.0.push(lane.park(command));
    }

    fn abort(&mut self, _which: sluice_command::Aborted, why: Status, lane: &mut Lane<'_>) {
        for ticket in self.0.drain(..) {
            if let Some(command) = lane.unpark(ticket) {
                lane.finish(command, why);
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.0.is_empty()
    }
}

#[test]
fn a_target_is_replaced_when_nothing_is_in_it() {
    let seen = Seen::default();
    let mut stack = Stack::of(Box::new(Slow(Vec::new())));
    insert(&mut stack, 0, 1, &seen).expect("there is room");
    let mut slab = Slab::new(Limits::new(4, 0)).expect("a slab");
    assert!(slab.make_room(stack.characteristics().fan_out, stack.reserve()));
    let command = slab.admit(&SubmissionEntry::default(), Origin::default()).expect("room");
    slab.slot_mut(&command).request =
        Request { operation: Operation::Deallocate, length: 512, ..Request::default() };
    stack.submit(stack.root(), command, &mut slab, 0);
    let mut done = Vec::new();
    stack.run_completions(&mut slab, 0, &mut done);
    assert!(done.is_empty() && !stack.is_idle(1, &slab) && !stack.is_idle(0, &slab));
    let all = sluice_command::Aborted::of(sluice_command::Controllers::of_bits(1));
    stack.abort_below(1, all, Status::COMMAND_INTERRUPTED, &mut slab, 0);
    stack.run_completions(&mut slab, 0, &mut done);
    let [command] = std::mem::take(&mut done).try_into().expect("it ends once");
    assert_eq!(slab.slot(&command).status, Status::COMMAND_INTERRUPTED);
    slab.release(command);
    assert!(stack.is_idle(1, &slab));
    let refused = stack.exchange::<StackError>(
        1,
        |builder| builder.add(Box::new(Target(SIZE / 2)), &[]),
        |it| {
            assert_eq!((it.under.size, it.layer.size), (SIZE, SIZE / 2));
            Err(StackError::TooManyLayers)
        },
    );
    assert_eq!(refused, Err(StackError::TooManyLayers));
    assert_eq!(stack.names().collect::<Vec<_>>(), ["note", "slow"]);
    stack
        .exchange::<StackError>(1, |builder| builder.add(Box::new(Target(2 * SIZE)), &[]), |_| Ok(()))
        .expect("it is accepted");
    assert_eq!(stack.names().collect::<Vec<_>>(), ["note", "target"]);
    assert_eq!((stack.target_size(), stack.characteristics().size), (2 * SIZE, 2 * SIZE));
    assert_eq!(met(&mut stack, &mut slab, &seen), [1]);
}
