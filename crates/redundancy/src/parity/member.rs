//! The members: which are written, which are read, and how they are lost and rejoin.

use super::array::{Fault, Parity};
use super::state::UNSYNCED;
use crate::Members;
use std::ops::Range;

/// Bounds of the delay before a lost member is tried again, nanoseconds. It doubles each time, until a region
/// was rebuilt.
const REJOIN_MIN_NS: u64 = 1_000_000_000;
const REJOIN_MAX_NS: u64 = 60_000_000_000;

#[derive(Debug, Default)]
pub(super) struct MemberState {
    /// Members that get writes.
    pub(super) joined: Members,
    pub(super) losses: u64,
    /// Time at which the lost members are tried again.
    pub(super) rejoin_ns: Option<u64>,
    patience_ns: u64,
    just_lost: bool,
}

impl MemberState {
    /// Resets the delay, because a region was rebuilt.
    pub(super) fn is_well(&mut self) {
        self.patience_ns = 0;
    }
}

impl Parity {
    /// Returns whether a member has the current content of these rows.
    pub(super) fn is_readable(&self, member: usize, rows: &Range<u64>) -> bool {
        self.member_state.joined.contains(member) && self.has_content(Members::one(member), rows)
    }

    /// Returns whether the parities of these rows are computed.
    pub(super) fn is_synced(&self, rows: &Range<u64>) -> bool {
        self.has_content(UNSYNCED, rows)
    }

    fn has_content(&self, member: Members, rows: &Range<u64>) -> bool {
        self.state.regions_of(rows).all(|number| {
            let region = &self.state.regions[number];
            region.stale.and(member).is_empty() || self.background.is_rebuilt(number, member, rows)
        })
    }

    /// Returns the members that lack something, or may do so after a restart, with the mark of parities that are
    /// not computed.
    pub(super) fn lacking(&self) -> Members {
        let changes = self.ops.missing().with(self.ring.missing());
        let lacking = self.state.lacking().with(self.state.unsettled(self.notes.safe_marks)).with(changes);
        // A member that was given up may have missed something before.
        lacking.and(self.state.members.with(UNSYNCED))
    }

    /// Returns the members that lack something.
    pub(super) fn incomplete(&self) -> Members {
        self.state.members.without(self.member_state.joined).with(self.lacking()).without(UNSYNCED)
    }

    /// Returns whether the array can go on without a member.
    fn can_lose(&self, member: usize) -> bool {
        let all = self.incomplete().with(Members::one(member));
        all.iter().count() <= self.geometry().parities && self.lacking().and(UNSYNCED).is_empty()
    }

    /// Handles a failed read of a member.
    pub(super) fn note_fault(&mut self, member: usize, fault: Fault) {
        match fault {
            Fault::Media | Fault::GivenUp => {}
            Fault::Device => drop(self.lose(member)),
            Fault::LostWrites => {
                if !self.lose(member) {
                    self.halt(format!("member {member} has lost writes, and no other parity is left"));
                }
            }
        }
    }

    /// Handles a failed write of a member. Returns false if the array cannot go on.
    pub(super) fn write_failed(&mut self, member: usize, _: Fault) -> bool {
        self.lose(member)
    }

    /// Removes a member from the joined ones, until it is tried again. Returns false if it is needed.
    pub(super) fn lose(&mut self, member: usize) -> bool {
        let gone = Members::one(member);
        if !self.member_state.joined.covers(gone) {
            return true;
        }
        if !self.can_lose(member) {
            return false;
        }
        self.member_state.joined = self.member_state.joined.without(gone);
        self.member_state.losses += 1;
        self.member_state.just_lost = true;
        // The durable part of its last writes is unknown.
        self.state.make_recent_stale(gone);
        self.background.restart();
        true
    }

    /// Handles a member that reports the loss of acknowledged writes.
    pub fn has_lost_writes(&mut self, member: usize) {
        self.note_fault(member, Fault::LostWrites);
    }

    /// Tries the lost members again, when their delay has passed.
    pub(super) fn rejoin_lost(&mut self, now_ns: u64) {
        let state = &mut self.member_state;
        let lost = self.state.members.without(state.joined).without(self.state.out);
        if lost.is_empty() {
            state.rejoin_ns = None;
            return;
        }
        if std::mem::take(&mut state.just_lost) || state.rejoin_ns.is_none() {
            state.patience_ns = (state.patience_ns * 2).clamp(REJOIN_MIN_NS, REJOIN_MAX_NS);
            state.rejoin_ns = Some(now_ns + state.patience_ns);
        }
        if state.rejoin_ns.is_some_and(|rejoin_ns| rejoin_ns <= now_ns) {
            state.rejoin_ns = None;
            state.joined = state.joined.with(lost);
            self.background.restart();
        }
    }

    /// Takes a member out, by an operator's order. It is not tried again, and none of its content is relied
    /// on.
    ///
    /// # Errors
    /// Returns a message if the array cannot go on without the member.
    pub fn take_out(&mut self, member: usize) -> Result<(), String> {
        let gone = Members::one(member);
        if !self.state.members.contains(member) {
            return Err(format!("there is no member {member}; they are {:?}", self.state.members));
        }
        if !self.can_lose(member) {
            return Err(format!(
                "member {member} is needed: others lack something, or the parities are not computed yet"
            ));
        }
        self.lose(member);
        self.state.out = self.state.out.with(gone);
        self.state.make_stale(0..self.state.regions.len(), gone);
        self.note_out();
        Ok(())
    }

    /// Tries members again that are lost or were taken out. With `whole`, everything is written to them anew.
    ///
    /// # Errors
    /// Returns a message if the array cannot go on without what a member has.
    pub fn bring_back(&mut self, members: Members, whole: bool) -> Result<(), String> {
        let members = members.and(self.state.members);
        let lost = members.without(self.member_state.joined);
        let rebuilt = if whole { lost.with(members.and(self.incomplete())) } else { Members::NONE };
        if !members.and(self.state.out).is_empty() {
            self.state.out = self.state.out.without(members);
            self.note_out();
        }
        self.state.make_stale(0..self.state.regions.len(), rebuilt);
        self.member_state.joined = self.member_state.joined.with(members);
        self.member_state.is_well();
        self.background.restart();
        Ok(())
    }

    /// Has the parities of the whole array computed again from the data.
    ///
    /// # Errors
    /// Returns a message if a member lacks something.
    pub fn recompute(&mut self) -> Result<(), String> {
        let lacking = self.incomplete();
        if !lacking.is_empty() {
            return Err(format!("members {lacking:?} lack something, which only the parities have"));
        }
        self.state.make_stale(0..self.state.regions.len(), UNSYNCED);
        self.notes.want();
        self.background.restart();
        Ok(())
    }
}
