//! Qos: limits for commands and bytes a second. Commands over a limit wait in order.
//!
//! A layer claims units of its own budget and of its group's. While a limit is not reached it claims several units at
//! once, its *credit*, so that a command costs a subtraction. At the limit each waiting line claims for its first
//! command alone, and forwards that when its slots are due.

mod bucket;
mod group;
mod limits;
mod line;

pub use group::{GroupRefused, GroupStatus, Groups, Member, QosControl, QosWaits};
pub use limits::{QosLimits, QosOptions};

use line::{Line, Views, Waiting};
use sluice_command::{
    Aborted, Characteristics, Command, Controllers, Lane, Layer, Operation, TURN_BYTES, Ticket,
};
use sluice_nvme::Status;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Classes of commands, each with its line. The class of a Read and of a Write is the number of the operation.
const READ: usize = Operation::Read as usize;
const WRITE: usize = Operation::Write as usize;
const _: () = assert!(READ == 0 && WRITE == 1);

/// Longest time until waiting commands follow a change of the limits.
const LOOK_NS: u64 = 50_000_000;

/// Time after which unused credit is given back.
const LAPSE_NS: u64 = 10_000_000;

/// Layer that holds commands over the limits of its namespace and its group.
#[derive(Debug)]
pub struct Qos {
    changes: Arc<AtomicU64>,
    /// Number of changes when the limits were read last.
    seen: u64,
    lines: [Line; 2],
    views: Views,
    /// Time of the next call; [`u64::MAX`] for never.
    deadline_ns: u64,
}

/// Returns the class of an operation and whether its bytes count; none if it always passes. A Flush covers finished
/// writes alone, so it passes waiting writes.
fn class_of(operation: Operation) -> Option<(usize, bool)> {
    match operation {
        Operation::Read => Some((READ, true)),
        Operation::Write | Operation::WriteZeroes => Some((WRITE, true)),
        Operation::Deallocate => Some((WRITE, false)),
        Operation::Flush => None,
    }
}

impl Qos {
    /// Creates a layer with room for this many waiting commands. There may be more if a layer above divides commands.
    #[must_use]
    pub fn new(member: Arc<Member>, held_max: usize) -> Self {
        Self {
            changes: Arc::clone(&member.changes),
            // Read with the first command.
            seen: u64::MAX,
            lines: [Line::new(READ, held_max), Line::new(WRITE, held_max)],
            views: Views::new(member),
            deadline_ns: u64::MAX,
        }
    }

    /// Creates a layer in no group, whose limits have begun at this time.
    #[must_use]
    pub fn alone(limits: QosLimits, since_ns: u64, held_max: usize) -> Self {
        Self::new(Member::alone(limits, since_ns), held_max)
    }

    /// Reads the limits again if some have changed, and claims anew. Limits that are being written are
    /// read later.
    fn follow_changes(&mut self, now_ns: u64) {
        let changes = self.changes.load(Ordering::Acquire);
        if changes == self.seen {
            return;
        }
        let Some(new) = self.views.read() else { return };
        self.lines.iter_mut().for_each(|line| line.give_back(&self.views));
        self.views.replace(new);
        self.seen = changes;
        self.lines.iter_mut().for_each(|line| line.claim_first(&self.views, now_ns));
    }

    #[cold]
    fn submit_slowly(&mut self, command: Command, lane: &mut Lane<'_>) {
        let (request, now_ns) = (lane.slot(&command).request, lane.now_ns());
        let Some((class, has_bytes)) = class_of(request.operation) else { return lane.forward(command) };
        let bytes = if has_bytes { request.length } else { 0 };
        self.follow_changes(now_ns);
        let line = &mut self.lines[class];
        if line.spend(bytes) {
            return lane.forward(command);
        }
        if line.admit(&self.views, bytes, now_ns) {
            lane.forward(command);
        } else {
            let Ticket(ticket) = lane.park(command);
            line.push(&self.views, Waiting { ticket, bytes });
        }
        self.plan(now_ns);
    }

    /// Sets the time of the next call.
    fn plan(&mut self, now_ns: u64) {
        let of = |line: &Line| match line.due_ns() {
            Some(due_ns) => due_ns.min(now_ns.saturating_add(LOOK_NS)),
            None if line.has_credit(&self.views) => line.lapse_ns(),
            None => u64::MAX,
        };
        self.deadline_ns = self.lines.iter().map(of).min().unwrap_or(u64::MAX);
    }

    /// Ends waiting commands that are chosen by their tickets.
    fn end(&mut self, why: Status, lane: &mut Lane<'_>, is_chosen: impl Fn(&Lane<'_>, Ticket) -> bool) {
        let now_ns = lane.now_ns();
        for line in &mut self.lines {
            line.retain(&self.views, now_ns, |waiting| {
                let ticket = Ticket(waiting.ticket);
                let command = if is_chosen(lane, ticket) { lane.unpark(ticket) } else { None };
                let stays = command.is_none();
                command.into_iter().for_each(|command| lane.finish(command, why));
                stays
            });
        }
        self.plan(now_ns);
    }
}

impl Layer for Qos {
    fn name(&self) -> &'static str {
        "qos"
    }

    fn characteristics(&self, below: &[Characteristics]) -> Characteristics {
        below[0].over()
    }

    #[inline]
    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        let request = &lane.slot(&command).request;
        let class = request.operation as usize;
        if class <= WRITE
            && self.changes.load(Ordering::Relaxed) == self.seen
            && self.lines[class].spend(request.length)
        {
            return lane.forward(command);
        }
        self.submit_slowly(command, lane);
    }

    fn end_waiting(&mut self, of: Controllers, why: Status, lane: &mut Lane<'_>) {
        self.end(why, lane, |lane, ticket| lane.is_of(of, ticket));
    }

    fn abort(&mut self, which: Aborted, why: Status, lane: &mut Lane<'_>) {
        self.end(why, lane, |lane, ticket| lane.is_aborted(which, ticket));
    }

    fn deadline_ns(&self) -> Option<u64> {
        (self.deadline_ns != u64::MAX).then_some(self.deadline_ns)
    }

    fn expire(&mut self, lane: &mut Lane<'_>) {
        let now_ns = lane.now_ns();
        self.follow_changes(now_ns);
        // Other due commands go on with the next turn.
        let mut bytes = 0;
        for line in &mut self.lines {
            while bytes < TURN_BYTES
                && let Some(waiting) = line.take_due(&self.views, now_ns)
            {
                bytes += waiting.bytes;
                lane.unpark(Ticket(waiting.ticket)).into_iter().for_each(|command| lane.forward(command));
            }
            line.lapse(&self.views, now_ns);
        }
        self.plan(now_ns);
    }

    fn leave(&mut self, lane: &mut Lane<'_>) -> bool {
        for line in &mut self.lines {
            line.give_back(&self.views);
            for waiting in line.drain(&self.views) {
                lane.unpark(Ticket(waiting.ticket)).into_iter().for_each(|command| lane.forward(command));
            }
        }
        self.deadline_ns = u64::MAX;
        true
    }
}

impl Drop for Qos {
    fn drop(&mut self) {
        // Other members of the group have the units.
        self.lines.iter_mut().for_each(|line| line.give_back(&self.views));
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
