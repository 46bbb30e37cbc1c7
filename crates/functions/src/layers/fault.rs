//! Fault: deliberate errors, by rules.

use super::fault_rule::ActiveRule;
use crate::counter::Counter;
use crate::{Outcome, Random, Rule};
use sluice_command::{Characteristics, Command, Frame, Lane, Layer, Operation, Ticket};
use sluice_nvme::Status;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Layer that forwards commands except the ones hit by a rule. The first rule that hits decides.
#[derive(Debug)]
pub struct Fault {
    rules: Vec<ActiveRule>,
    random: Random,
    /// Commands that hang.
    held: Vec<Ticket>,
    /// Block size of the layer below, as last reported.
    block_size: Cell<u64>,
    control: Arc<Control>,
}

/// Stages of the frames of commands that were hit.
mod stage {
    /// The layer below was done; `data[0]` is the status that the command gets nevertheless.
    pub(super) const DONE: u8 = 0;
    /// The one child has moved the first part of the data.
    pub(super) const CUT: u8 = 1;
}

impl Fault {
    /// Most commands that hang at a time. A further one is failed with Internal Error instead.
    pub const HELD_MAX: usize = 4096;

    /// Creates the layer. `seed` decides the chances of all rules.
    pub fn new(seed: u64, rules: Vec<Rule>) -> Self {
        let hangs = rules.iter().any(|rule| rule.outcome == Outcome::Hang);
        Self {
            control: Arc::new(Control::new(rules.len())),
            rules: rules.into_iter().map(ActiveRule::new).collect(),
            random: Random::new(seed),
            held: Vec::with_capacity(if hangs { Self::HELD_MAX } else { 0 }),
            block_size: Cell::new(1),
        }
    }

    /// Returns the switch and the counters, for any thread.
    pub fn control(&self) -> FaultControl {
        FaultControl(Arc::clone(&self.control))
    }

    /// Returns the outcome of the first rule that hits, if one does.
    fn verdict(&mut self, command: &Command, lane: &Lane<'_>) -> Option<Outcome> {
        let request = &lane.slot(command).request;
        for (rule, count) in self.rules.iter_mut().zip(&self.control.rules) {
            let outcome = rule.hit(request, &mut self.random);
            count.matched.set(rule.matched());
            count.hits.set(rule.hits());
            if outcome.is_some() {
                return outcome;
            }
        }
        None
    }

    fn cut(&self, command: Command, bytes: u64, lane: &mut Lane<'_>) {
        let request = lane.slot(&command).request;
        let bytes = bytes - bytes % self.block_size.get();
        match request.operation {
            Operation::Read | Operation::Write if bytes < request.length => {}
            _ => return lane.forward(command),
        }
        if bytes == 0 {
            return lane.finish(command, shortage(request.operation));
        }
        // A child takes the shorter request, so that the command itself is unchanged when it returns.
        lane.fork(command, 1, stage::CUT, [0; 2], |_, whole, part| {
            part.request = whole.request;
            part.request.length = bytes;
            let kept = whole.data.slice(0, bytes as usize, &mut part.data);
            kept.expect("a part of a list has no more segments than the list");
            0
        });
    }

    fn hold(&mut self, command: Command, lane: &mut Lane<'_>) {
        if self.held.len() == Self::HELD_MAX {
            return lane.finish(command, Status::INTERNAL_ERROR);
        }
        self.held.push(lane.park(command));
        self.control.held.set(self.held.len() as u64);
    }
}

/// Returns the status of a short transfer, which is never a success.
fn shortage(operation: Operation) -> Status {
    match operation {
        Operation::Read => Status::UNRECOVERED_READ_ERROR,
        _ => Status::WRITE_FAULT,
    }
}

impl Layer for Fault {
    fn name(&self) -> &'static str {
        "fault"
    }

    fn characteristics(&self, below: &[Characteristics]) -> Characteristics {
        let below = below[0];
        self.block_size.set(u64::from(below.block_size));
        let child = u32::from(self.rules.iter().any(ActiveRule::shortens));
        Characteristics { fan_out: below.fan_out + child, ..below.over() }
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        if !self.control.armed.load(Ordering::Relaxed) {
            return lane.forward(command);
        }
        match self.verdict(&command, lane) {
            None => lane.forward(command),
            Some(Outcome::Fail(status)) => lane.finish(command, status),
            Some(Outcome::FailAfterwards(status)) => {
                lane.forward_with(0, command, stage::DONE, [u64::from(status.0), 0]);
            }
            Some(Outcome::Short(bytes)) => self.cut(command, bytes, lane),
            Some(Outcome::Hang) => self.hold(command, lane),
        }
    }

    fn resume(&mut self, command: Command, frame: Frame, lane: &mut Lane<'_>) {
        let slot = lane.slot(&command);
        let status = match frame.stage {
            stage::CUT if slot.status.is_success() => shortage(slot.request.operation),
            stage::CUT => slot.status,
            _ => Status(frame.data[0] as u16),
        };
        lane.finish(command, status);
    }

    fn deadline_ns(&self) -> Option<u64> {
        // A release is due at once; its caller wakes the reactor.
        (self.control.release.load(Ordering::Acquire) != KEEP).then_some(0)
    }

    fn expire(&mut self, lane: &mut Lane<'_>) {
        let release = self.control.release.swap(KEEP, Ordering::AcqRel);
        if release == KEEP {
            return;
        }
        for ticket in self.held.drain(..) {
            let Some(command) = lane.unpark(ticket) else { continue };
            match release {
                GO_ON => lane.forward(command),
                status => lane.finish(command, Status(status as u16)),
            }
        }
        self.control.held.set(0);
    }
}

/// Values of [`Control::release`]: these two, or a status to finish with.
const KEEP: u32 = u32::MAX;
const GO_ON: u32 = u32::MAX - 1;

#[derive(Debug)]
struct Control {
    armed: AtomicBool,
    release: AtomicU32,
    held: Counter,
    rules: Box<[Counts]>,
}

#[derive(Debug, Default)]
struct Counts {
    matched: Counter,
    hits: Counter,
}

impl Control {
    fn new(rules: usize) -> Self {
        let rules = (0..rules).map(|_| Counts::default()).collect();
        Self { armed: AtomicBool::new(true), release: AtomicU32::new(KEEP), held: Counter::default(), rules }
    }
}

/// Switch and counters of a [`Fault`], for any thread.
#[derive(Clone, Debug)]
pub struct FaultControl(Arc<Control>);

/// Counters of one rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCount {
    pub matched: u64,
    pub hits: u64,
}

impl FaultControl {
    /// Arms or disarms the layer. While it is disarmed every command passes and no rule counts. It starts
    /// armed.
    pub fn arm(&self, armed: bool) {
        self.0.armed.store(armed, Ordering::Relaxed);
    }

    /// Forwards the commands that hang to the layer below. Takes effect in the reactor's next turn, for which
    /// the caller wakes the reactor.
    pub fn release(&self) {
        self.0.release.store(GO_ON, Ordering::Release);
    }

    /// Finishes the commands that hang with this status. Takes effect like [`release`](Self::release).
    pub fn drop_held(&self, status: Status) {
        self.0.release.store(u32::from(status.0), Ordering::Release);
    }

    /// Returns the number of commands that hang now.
    pub fn held(&self) -> u64 {
        self.0.held.get()
    }

    /// Returns the counters of the rules, in their order.
    pub fn counts(&self) -> Vec<RuleCount> {
        let count = |counts: &Counts| RuleCount { matched: counts.matched.get(), hits: counts.hits.get() };
        self.0.rules.iter().map(count).collect()
    }
}
