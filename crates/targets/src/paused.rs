//! A layer over a target that is paused: commands wait in it, and nothing reaches the target but the Flush at the end of
//! the drive.
//!
//! The controller answers a command that waits for longer than its host is going to, with Command Interrupted. So
//! a pause may be longer than the time-out of the host.

use sluice_command::{Aborted, Characteristics, Command, Controllers, Lane, Layer, Operation, Slot, Ticket};
use sluice_nvme::Status;
use std::collections::VecDeque;

/// Layer that parks every command until it is taken out of its stack.
#[derive(Debug, Default)]
pub struct Paused {
    /// Waiting commands, in the order of their arrival.
    waiting: VecDeque<Ticket>,
    /// Time from which on commands fail instead.
    fail_at_ns: Option<u64>,
}

impl Paused {
    /// Kind of the layer.
    pub const NAME: &'static str = "paused";

    /// Creates the layer. Commands wait for as long as it is there, or fail from `fail_at_ns` on.
    #[must_use]
    pub fn new(fail_at_ns: Option<u64>) -> Self {
        let waiting = VecDeque::with_capacity(sluice_command::handover::COMMANDS_MAX);
        Self { waiting, fail_at_ns }
    }

    fn has_failed(&self, now_ns: u64) -> bool {
        self.fail_at_ns.is_some_and(|at_ns| at_ns <= now_ns)
    }

    fn end(&mut self, ends: impl Fn(Ticket, &Lane<'_>) -> bool, why: Status, lane: &mut Lane<'_>) {
        self.waiting.retain(|ticket| {
            let command = if ends(*ticket, lane) { lane.unpark(*ticket) } else { None };
            let stays = command.is_none();
            command.into_iter().for_each(|command| lane.finish(command, why));
            stays
        });
    }
}

/// Returns whether a command is the Flush with which a drive ends. It changes no data.
fn is_at_end(slot: &Slot) -> bool {
    slot.request.operation == Operation::Flush && slot.origin.is_of_subsystem()
}

impl Layer for Paused {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn characteristics(&self, below: &[Characteristics]) -> Characteristics {
        Characteristics { passthrough: below[0].passthrough, ..below[0].over() }
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        if is_at_end(lane.slot(&command)) {
            // Nothing that was acknowledged before the pause is lost with the daemon.
            return lane.forward(command);
        }
        if self.has_failed(lane.now_ns()) {
            return lane.finish(command, Status::INTERNAL_PATH_ERROR);
        }
        let ticket = lane.park(command);
        self.waiting.push_back(ticket);
    }

    /// Interrupts a command that its host wrote for the device, since it cannot be forwarded later.
    fn pass(&mut self, command: Command, lane: &mut Lane<'_>) {
        lane.finish(command, Status::COMMAND_INTERRUPTED);
    }

    fn end_waiting(&mut self, of: Controllers, why: Status, lane: &mut Lane<'_>) {
        self.end(|ticket, lane| lane.is_of(of, ticket), why, lane);
    }

    fn abort(&mut self, which: Aborted, why: Status, lane: &mut Lane<'_>) {
        self.end(|ticket, lane| lane.is_aborted(which, ticket), why, lane);
    }

    fn deadline_ns(&self) -> Option<u64> {
        self.fail_at_ns.filter(|_| !self.waiting.is_empty())
    }

    fn expire(&mut self, lane: &mut Lane<'_>) {
        if self.has_failed(lane.now_ns()) {
            self.end(|_, _| true, Status::INTERNAL_PATH_ERROR, lane);
        }
    }

    fn leave(&mut self, lane: &mut Lane<'_>) -> bool {
        for ticket in std::mem::take(&mut self.waiting) {
            if let Some(command) = lane.unpark(ticket) {
                lane.forward(command);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Null;
    use sluice_command::{Limits, NodeId, Origin, Request, Slab, Stack, StackBuilder, StackError};
    use sluice_nvme::SubmissionEntry;

    const SIZE: u64 = 1 << 20;

    /// A stack of one target with commands in flight.
    struct Bench {
        stack: Stack,
        slab: Slab,
        cid: u16,
    }

    impl Bench {
        fn new() -> Self {
            let slab = Slab::new(Limits::new(8, 0)).expect("memory");
            Self { stack: Stack::of(Box::new(Null::new(SIZE))), slab, cid: 0 }
        }

        fn pause(&mut self, fail_at_ns: Option<u64>) {
            let build = |under: NodeId, stack: &mut StackBuilder| {
                stack.add(Box::new(Paused::new(fail_at_ns)), &[under])
            };
            self.stack.insert::<StackError>(0, build, |_| Ok(())).expect("there is room");
        }

        fn resume(&mut self) {
            let at = self.stack.position(Paused::NAME).expect("it is paused");
            self.stack.take_out(at, &mut self.slab, 0).expect("it only waits");
        }

        /// Submits a command.
        fn submit(&mut self, now_ns: u64) {
            self.submit_from(Origin { sq: 1, ..Origin::default() }, now_ns);
        }

        fn submit_from(&mut self, origin: Origin, now_ns: u64) {
            let origin = Origin { cid: self.cid, ..origin };
            self.cid += 1;
            let command = self.slab.admit(&SubmissionEntry::default(), origin).expect("room");
            let request = Request { operation: Operation::Flush, ..Request::default() };
            self.slab.slot_mut(&command).request = request;
            self.stack.submit(self.stack.root(), command, &mut self.slab, now_ns);
        }

        /// Returns the identifiers and statuses of the commands that are done.
        fn done(&mut self) -> Vec<(u16, Status)> {
            let mut done = Vec::new();
            self.stack.run_completions(&mut self.slab, 0, &mut done);
            let ended = |command: &Command| {
                let slot = self.slab.slot(command);
                (slot.origin.cid, slot.status)
            };
            let ended = done.iter().map(ended).collect();
            done.into_iter().for_each(|command| self.slab.release(command));
            ended
        }
    }

    #[test]
    fn commands_wait_and_go_on_in_their_order() {
        let mut bench = Bench::new();
        bench.pause(None);
        (0..3).for_each(|_| bench.submit(0));
        assert_eq!(bench.done(), []);
        assert_eq!(bench.stack.deadline_ns(), None);
        bench.resume();
        assert_eq!(bench.done(), [0, 1, 2].map(|cid| (cid, Status::SUCCESS)));
        bench.submit(0);
        assert_eq!(bench.done(), [(3, Status::SUCCESS)]);
        assert_eq!(bench.stack.position(Paused::NAME), None);
    }

    #[test]
    fn the_flush_at_the_end_of_a_drive_passes_a_pause() {
        let mut bench = Bench::new();
        bench.pause(None);
        let internal = Origin { sq: Origin::INTERNAL_SQ, ..Origin::default() };
        bench.submit_from(internal, 0);
        bench.submit_from(Origin { controller: Origin::SUBSYSTEM, ..internal }, 0);
        bench.submit_from(Origin::LAYER, 0);
        assert_eq!(bench.done(), [(1, Status::SUCCESS)], "the others wait");
        bench.resume();
        assert_eq!(bench.done(), [0, 2].map(|cid| (cid, Status::SUCCESS)));
    }

    #[test]
    fn the_flush_at_the_end_of_a_drive_passes_a_pause_whose_time_is_over() {
        let mut bench = Bench::new();
        bench.pause(Some(0));
        let internal = Origin { sq: Origin::INTERNAL_SQ, ..Origin::default() };
        bench.submit_from(internal, 1);
        bench.submit_from(Origin { controller: Origin::SUBSYSTEM, ..internal }, 1);
        let mut done = bench.done();
        done.sort_by_key(|(cid, _)| *cid);
        assert_eq!(done, [(0, Status::INTERNAL_PATH_ERROR), (1, Status::SUCCESS)]);
    }

    #[test]
    fn an_aborted_command_ends_and_others_stay() {
        let mut bench = Bench::new();
        bench.pause(None);
        (0..3).for_each(|_| bench.submit(0));
        let which = Aborted { sq: Some(1), cid: Some(1), ..Aborted::of(Controllers::of_bits(1)) };
        bench.stack.abort(which, Status::COMMAND_INTERRUPTED, &mut bench.slab, 0);
        assert_eq!(bench.done(), [(1, Status::COMMAND_INTERRUPTED)]);
        bench.stack.end_waiting(Controllers::of_bits(2), Status::INTERNAL_ERROR, &mut bench.slab, 0);
        assert_eq!(bench.done(), [], "they are of another controller");
        bench.resume();
        assert_eq!(bench.done(), [0, 2].map(|cid| (cid, Status::SUCCESS)));
    }

    #[test]
    fn commands_fail_from_the_given_time_on() {
        let mut bench = Bench::new();
        bench.pause(Some(100));
        bench.submit(0);
        assert_eq!(bench.stack.deadline_ns(), Some(100));
        bench.stack.expire(&mut bench.slab, 99);
        assert_eq!(bench.done(), []);
        bench.stack.expire(&mut bench.slab, 100);
        assert_eq!(bench.done(), [(0, Status::INTERNAL_PATH_ERROR)]);
        bench.submit(101);
        assert_eq!(bench.done(), [(1, Status::INTERNAL_PATH_ERROR)]);
        assert_eq!(bench.stack.deadline_ns(), None, "nothing waits");
    }
}
