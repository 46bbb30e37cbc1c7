//! Delay: a slower drive.

use crate::{Kind, OpenCx, Prepared};
use serde::{Deserialize, Serialize};
use sluice_command::{Aborted, Characteristics, Command, Lane, Layer, Operation, TURN_BYTES, Ticket};
use sluice_nvme::Status;
use sluice_options::Fault;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use utoipa::ToSchema;

/// Times for which commands are held, by operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DelayOptions {
    /// Microseconds for Read.
    pub read_us: u64,
    /// Microseconds for Write, Write Zeroes and Deallocate.
    pub write_us: u64,
    /// Microseconds for Flush.
    pub flush_us: u64,
}

impl DelayOptions {
    /// Maximum delay. A guest gives up on a command after half a minute, so a longer delay is a mistake of
    /// units.
    const DELAY_MAX_US: u64 = 60_000_000;
}

impl<L> Kind<L> for DelayOptions {
    const NAME: &'static str = "delay";
    const ABOUT: &'static str = "Holds commands for a time.";

    fn check(&self) -> Result<(), Fault> {
        let delays = [("read_us", self.read_us), ("write_us", self.write_us), ("flush_us", self.flush_us)];
        match delays.iter().find(|(_, delay)| *delay > Self::DELAY_MAX_US) {
            Some((key, _)) => Err(Fault::at_key(key, "more than a minute").hint("the unit is microseconds")),
            None => Ok(()),
        }
    }

    fn open(&self, cx: &OpenCx<'_>) -> Result<Prepared, Fault> {
        let ns = |us: u64| us.saturating_mul(1000);
        let config = DelayConfig {
            read_ns: ns(self.read_us),
            write_ns: ns(self.write_us),
            flush_ns: ns(self.flush_us),
            held_max: cx.commands_max,
        };
        Ok(Prepared::new(move |_| Delay::new(config)))
    }
}

/// Time for which a [`Delay`] holds commands, and their number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DelayConfig {
    pub read_ns: u64,
    /// Delay of Write, Write Zeroes and Deallocate.
    pub write_ns: u64,
    pub flush_ns: u64,
    /// Commands held at a time; a command beyond that is not delayed. As many as the drive's slab has is
    /// always enough.
    pub held_max: usize,
}

/// Layer that parks each command for its operation's delay, then forwards it.
#[derive(Debug)]
pub struct Delay {
    config: DelayConfig,
    /// Held commands; the next one due is on top.
    held: BinaryHeap<Reverse<Held>>,
    /// Commands that were ever held; keeps commands of the same time in their order.
    order: u64,
}

/// Parked command. Compared field by field: first by time, then by arrival.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Held {
    due_ns: u64,
    order: u64,
    ticket: u32,
}

impl Delay {
    pub fn new(config: DelayConfig) -> Self {
        Self { config, held: BinaryHeap::with_capacity(config.held_max), order: 0 }
    }

    fn delay_ns(&self, operation: Operation) -> u64 {
        match operation {
            Operation::Read => self.config.read_ns,
            Operation::Flush => self.config.flush_ns,
            Operation::Write | Operation::WriteZeroes | Operation::Deallocate => self.config.write_ns,
        }
    }
}

impl Layer for Delay {
    fn name(&self) -> &'static str {
        "delay"
    }

    fn characteristics(&self, below: &[Characteristics]) -> Characteristics {
        below[0].over()
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        let delay_ns = self.delay_ns(lane.slot(&command).request.operation);
        if delay_ns == 0 || self.held.len() >= self.config.held_max {
            return lane.forward(command);
        }
        let due_ns = lane.now_ns().saturating_add(delay_ns);
        let Ticket(ticket) = lane.park(command);
        self.held.push(Reverse(Held { due_ns, order: self.order, ticket }));
        self.order += 1;
    }

    fn abort(&mut self, which: Aborted, why: Status, lane: &mut Lane<'_>) {
        self.held.retain(|Reverse(held)| {
            let ticket = Ticket(held.ticket);
            let command = if lane.is_aborted(which, ticket) { lane.unpark(ticket) } else { None };
            let stays = command.is_none();
            command.into_iter().for_each(|command| lane.finish(command, why));
            stays
        });
    }

    fn deadline_ns(&self) -> Option<u64> {
        self.held.peek().map(|Reverse(next)| next.due_ns)
    }

    fn expire(&mut self, lane: &mut Lane<'_>) {
        // Other due commands go on with the next turn.
        let mut bytes = 0;
        while bytes < TURN_BYTES && self.deadline_ns().is_some_and(|due_ns| due_ns <= lane.now_ns()) {
            let Some(Reverse(held)) = self.held.pop() else { break };
            if let Some(command) = lane.unpark(Ticket(held.ticket)) {
                bytes += lane.slot(&command).request.length;
                lane.forward(command);
            }
        }
    }
}
