//! Flushes of the members: for the host, for the journal, and for regions that were rebuilt.

use super::array::{End, Fault, Parity, Step};
use crate::Members;

/// Nanoseconds after which changes are flushed without a host's order.
const TICK_NS: u64 = 2_000_000_000;

#[derive(Debug, Default)]
pub(super) struct Flushes {
    /// Host's commands that wait for the next flush, and commands that wait for the one in flight.
    waiting: Vec<u32>,
    riding: Vec<u32>,
    /// Members that are still flushing.
    left: Members,
    is_fatal: bool,
    pub(super) tick_ns: Option<u64>,
}

impl Flushes {
    pub(super) fn are_idle(&self) -> bool {
        self.left.is_empty()
    }
}

impl Parity {
    /// Flushes for a command of the host.
    pub(super) fn flush_for(&mut self, command: u32) {
        self.flushes.waiting.push(command);
        self.flush_if_idle();
    }

    pub(super) fn flush_if_idle(&mut self) {
        if self.flushes.are_idle() {
            self.flush_members();
        }
    }

    /// Begins a flush of all joined members.
    pub(super) fn flush_members(&mut self) {
        let Self { flushes, state, ops, .. } = self;
        std::mem::swap(&mut flushes.waiting, &mut flushes.riding);
        (flushes.left, flushes.is_fatal) = (self.member_state.joined, false);
        state.begin_flush();
        // A flush does not cover the writes that end after its begin.
        ops.rows_written().for_each(|rows| state.touch(state.regions_of(rows)));
        self.ring.begin_flush();
        self.steps.extend(flushes.left.iter().map(|member| Step::Flush { member }));
    }

    /// Ends a [`Step::Flush`] of a member.
    pub fn flushed(&mut self, member: usize, outcome: Result<(), Fault>) {
        let one = Members::one(member).and(self.flushes.left);
        if one.is_empty() || self.halted {
            return;
        }
        self.flushes.left = self.flushes.left.without(one);
        if outcome.is_err() && !self.lose(member) {
            self.flushes.is_fatal = true;
        }
        if !self.flushes.left.is_empty() {
            return;
        }
        let is_good = !self.flushes.is_fatal;
        let marks = self.state.marks;
        self.state.end_flush(is_good);
        self.ring.end_flush(is_good);
        if self.state.marks != marks {
            // Until the log has it, the loss of another member would be one too many.
            self.notes.want();
        }
        let mut riding = std::mem::take(&mut self.flushes.riding);
        let end = if is_good { End::Good } else { End::WriteFailed };
        riding.drain(..).for_each(|command| self.commands.part_done(command, end));
        self.flushes.riding = riding;
        self.run_commands();
        if !is_good {
            // The journal has everything that may be missing on the member, and is replayed.
            return self.halt("a member cannot be flushed, and no other parity is left".to_owned());
        }
        if self.opening.is_replayed() {
            return self.open_with_tail();
        }
        if !self.flushes.waiting.is_empty() {
            self.flush_members();
        }
    }

    /// Flushes periodically, and stores the tail of the journal.
    pub(super) fn tick(&mut self, now_ns: u64) {
        let is_full = self.ring.is_filling() || self.has_many_changes();
        let wants_flush = self.ring.is_unflushed() || self.state.is_settling();
        if is_full && self.ring.can_trim() {
            self.notes.want();
        } else if is_full && wants_flush {
            self.flush_if_idle();
        }
        if !wants_flush && !self.ring.can_trim() && self.state.pending.is_empty() {
            self.flushes.tick_ns = None;
            return;
        }
        if *self.flushes.tick_ns.get_or_insert(now_ns + TICK_NS) > now_ns {
            return;
        }
        self.flushes.tick_ns = Some(now_ns + TICK_NS);
        // Under a steady load each tick flushes. Until the tail is stored, a member lacks the batches that it missed.
        if self.ring.can_trim() && !self.ring.missing().is_empty() {
            self.notes.want();
        }
        match wants_flush && self.flushes.are_idle() {
            true => self.flush_members(),
            false => self.notes.want(),
        }
    }
}
