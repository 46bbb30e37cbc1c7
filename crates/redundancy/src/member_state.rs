//! The state of the members, and how they are lost and rejoin.

use crate::Members;
use crate::mirror::{Mirror, Step};
use crate::regions::Region;
use std::ops::Range;

/// Bounds of the delay before a lost member is tried again, nanoseconds. It doubles each time, until a copy
/// succeeds.
const REJOIN_MIN_NS: u64 = 1_000_000_000;
const REJOIN_MAX_NS: u64 = 60_000_000_000;

#[derive(Debug, Default)]
pub(crate) struct MemberState {
    /// Members that have everything, except in dirty regions.
    pub(crate) current: Members,
    /// Members that get writes.
    pub(crate) joined: Members,
    /// Member that is read, and copied from.
    pub(crate) source: usize,
    pub(crate) losses: u64,
    pub(crate) source_errors: u64,
    /// Times that a member without a replacement lost writes.
    pub(crate) irreplaceable: u64,
    /// Flushes that failed on a member without a replacement.
    pub(crate) failed_flushes: u64,
    flush: Flush,
    /// Time at which the lost members are tried again.
    rejoin_ns: Option<u64>,
    patience_ns: u64,
    /// Whether a member was lost since the last call that has the time.
    just_lost: bool,
    /// Acknowledged writes that may be lost, for which a Flush of the host has to fail.
    pub(crate) unflushed: Unflushed,
}

/// Count of losses of acknowledged writes before a Flush made them durable.
#[derive(Debug, Default)]
pub(crate) struct Unflushed {
    pub(crate) losses: u64,
    /// Losses of these that a Flush has reported.
    told: u64,
}

impl Unflushed {
    /// Ends a Flush that arrived after so many losses. Returns whether all losses were reported before, so
    /// that it may succeed.
    pub(crate) fn are_told(&mut self, losses: u64) -> bool {
        let all = self.told == self.losses;
        self.told = self.told.max(losses);
        all
    }
}

/// Flush of all joined members.
#[derive(Debug, Default)]
struct Flush {
    left: Members,
    failed: Members,
    /// Members that become current when the flush succeeds.
    arriving: Members,
}

/// Consequence of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Members were lost, and the others go on.
    Survived,
    /// No member is left to go on with.
    Fatal,
}

impl MemberState {
    pub(crate) fn is_flushing(&self) -> bool {
        !self.flush.left.is_empty()
    }

    /// Returns the members that were fully copied to, and are not current yet.
    pub(crate) fn arriving(&self, mirror: &Mirror) -> Members {
        self.joined.without(self.current).without(mirror.set.regions.behind())
    }

    /// Resets the rejoin delay, because a copy has succeeded.
    pub(crate) fn is_well(&mut self) {
        self.patience_ns = 0;
    }
}

impl Mirror {
    /// Derives the state of each member from the log that was read.
    pub(crate) fn open(&mut self, size: u64) -> Result<(), String> {
        self.check_shape(size, self.set.regions.region_bytes())?;
        let newest = self.set.newest().without(self.set.out);
        let dirty = self.set.regions.list.iter().fold(Members::NONE, |all, region| all.with(region.wanted));
        let Some(source) = newest.without(dirty).lowest().or(newest.lowest()) else {
            return Err("all members that have everything were taken out".into());
        };
        if !self.config.promotes && source != 0 {
            return Err(format!(
                "member {source} is newer than member 0, which the drive would be read from"
            ));
        }
        let others = self.set.members.without(Members::one(source));
        // The source is right by definition, whatever its bits in the log: the others may differ from it there.
        if dirty.contains(source) {
            self.mark_each(|mask| if mask.contains(source) { others } else { mask });
        }
        for region in self.set.regions.list.iter_mut().filter(|region| region.stale.contains(source)) {
            region.stale = others;
        }
        self.member_state.source = source;
        self.member_state.joined = self.set.members.without(self.set.out);
        self.set.regions.resize(size, others);
        let current = newest.iter().filter(|member| !dirty.contains(*member) || *member == source);
        self.member_state.current = current.fold(Members::NONE, |all, member| all.with(Members::one(member)));
        if !self.member_state.current.covers(newest) {
            // The dirty members lack writes until they were copied to: no later start takes them for a source.
            self.outdate();
        }
        Ok(())
    }

    /// Discards the contents of members whose storage is not the one in the log: they are copied to.
    ///
    /// # Errors
    /// Returns a message if no member is left that has everything.
    pub(crate) fn lose_replaced(&mut self, replaced: Members) -> Result<(), String> {
        let left = self.set.newest().without(self.set.out).without(replaced);
        if replaced.is_empty() {
            return Ok(());
        }
        if left.is_empty() || !self.config.promotes && replaced.contains(0) {
            return Err(format!(
                "members {replaced:?} are not the storage that the log knows by these numbers, or are not there to be \
                 looked at"
            ));
        }
        let generation = self.set.highest() + 1;
        left.iter().for_each(|member| self.set.generations[member] = generation);
        for region in &mut self.set.regions.list {
            (region.wanted, region.stale) = (region.wanted.with(replaced), region.stale.with(replaced));
        }
        self.set.regions.make_stale(0..usize::MAX, replaced);
        self.member_state.losses += replaced.iter().count() as u64;
        Ok(())
    }

    /// Handles the failure of some members in a write that went to the members `to`.
    pub(crate) fn take_faults(&mut self, failed: Members, to: Members) -> Fault {
        let source = Members::one(self.member_state.source);
        let good = to.without(failed);
        if failed.covers(source) {
            self.member_state.source_errors += 1;
            if !self.config.promotes || good.and(self.member_state.current).is_empty() {
                // The other members may have the write. If they differ from the source now, they are copied
                // to.
                return Fault::Fatal;
            }
        }
        failed.iter().for_each(|member| self.lose(member));
        Fault::Survived
    }

    /// Removes a member from the joined ones, until it is tried again.
    pub fn lose(&mut self, member: usize) {
        let gone = Members::one(member);
        let left = self.member_state.current.without(gone);
        if !self.member_state.joined.covers(gone) || left.is_empty() {
            return;
        }
        let was_current = self.member_state.current.covers(gone);
        self.member_state.joined = self.member_state.joined.without(gone);
        self.member_state.current = left;
        self.member_state.losses += 1;
        self.member_state.just_lost = true;
        if member == self.member_state.source {
            self.promote(gone);
        }
        // The durable part of its last writes is unknown.
        self.set.regions.make_dirty_stale(gone);
        if was_current {
            self.outdate();
        }
        self.restart_copy();
    }

    /// Handles a member that works, and cannot read these bytes: they are copied to it again. Returns false if no
    /// other member has everything.
    pub fn is_unreadable(&mut self, member: usize, bytes: &Range<u64>) -> bool {
        let one = Members::one(member);
        if self.member_state.current.without(one).is_empty() || !self.member_state.joined.covers(one) {
            return false;
        }
        self.lose(member);
        for number in self.set.regions.of(bytes) {
            let wanted = self.set.regions.list[number].wanted;
            self.mark(number..number + 1, wanted.with(one));
        }
        self.set.regions.make_stale(self.set.regions.of(bytes), one);
        self.journal.make_barrier();
        self.bring_back(one, false);
        true
    }

    /// Handles a member that reports the loss of acknowledged writes before its next read. The member is lost
    /// until it was copied to. If no other member has everything, the host's next Flush fails, and the others
    /// get the remaining contents.
    pub fn has_lost_writes(&mut self, member: usize) {
        let is_irreplaceable = !self.config.promotes && member == self.member_state.source;
        if is_irreplaceable || self.member_state.current == Members::one(member) {
            self.member_state.unflushed.losses += 1;
            // Writes in flight may have reached the member before the loss, so they fail, too.
            self.member_state.irreplaceable += 1;
            return self.flush_has_failed();
        }
        self.lose(member);
    }

    /// Makes the current members newer than the others.
    fn outdate(&mut self) {
        let generation = self.set.highest() + 1;
        for member in self.member_state.current.iter() {
            self.set.generations[member] = generation;
            self.note_member(member);
        }
        self.journal.make_barrier();
    }

    /// Replaces the lost source by another member. Dirty regions are now dirty for the old source.
    fn promote(&mut self, gone: Members) {
        self.member_state.source = self.member_state.current.lowest().expect("somebody is left");
        let source = Members::one(self.member_state.source);
        self.mark_each(|mask| if mask.is_empty() { mask } else { mask.with(gone).without(source) });
        for region in &mut self.set.regions.list {
            region.stale = region.stale.and(region.wanted);
        }
    }

    /// Tries the lost members again, when their delay has passed.
    pub(crate) fn rejoin_lost(&mut self, now_ns: u64) {
        let lost = self.set.members.without(self.member_state.joined).without(self.set.out);
        if lost.is_empty() {
            self.member_state.rejoin_ns = None;
            return;
        }
        if std::mem::take(&mut self.member_state.just_lost) || self.member_state.rejoin_ns.is_none() {
            let patience_ns = (self.member_state.patience_ns * 2).clamp(REJOIN_MIN_NS, REJOIN_MAX_NS);
            self.member_state.patience_ns = patience_ns;
            self.member_state.rejoin_ns = Some(now_ns + patience_ns);
        }
        if self.member_state.rejoin_ns.is_some_and(|rejoin_ns| rejoin_ns <= now_ns) {
            self.member_state.rejoin_ns = None;
            self.member_state.joined = self.member_state.joined.with(lost);
        }
    }

    pub(crate) fn rejoin_ns(&self) -> Option<u64> {
        self.member_state.rejoin_ns
    }

    /// Returns the members that may serve a read of these bytes, because they have all of them. The source is
    /// one.
    pub fn readers(&self, bytes: &Range<u64>) -> Members {
        let regions = &self.set.regions.list[self.set.regions.of(bytes)];
        let others = self.set.members.without(Members::one(self.member_state.source));
        let lacks = |region: &Region| if region.doubtful { others } else { region.stale };
        let lacking = regions.iter().fold(Members::NONE, |all, region| all.with(lacks(region)));
        self.member_state.current.without(lacking)
    }

    /// Takes a member out, by an operator's order. It is not tried again, and none of its contents is relied
    /// on.
    ///
    /// # Errors
    /// Returns a message if no other member has everything.
    pub fn take_out(&mut self, member: usize) -> Result<(), String> {
        let gone = Members::one(member);
        if self.member_state.current.without(gone).is_empty() || !self.set.members.contains(member) {
            return Err(format!("no other member has everything that member {member} has"));
        }
        // The copy to it ends, and an operator can resume it.
        let was_copied = self.copied_to().and(gone);
        self.background.cancelled = self.background.cancelled.with(was_copied);
        self.lose(member);
        self.set.out = self.set.out.with(gone);
        self.note_member(member);
        self.forget(gone);
        Ok(())
    }

    /// Takes the destinations of a copy out, by an operator's order. The log keeps the regions that they lack.
    pub(crate) fn leave_out(&mut self, gone: Members) {
        let left = self.member_state.current.without(gone);
        let was_current = std::mem::replace(&mut self.member_state.current, left) != left;
        self.member_state.joined = self.member_state.joined.without(gone);
        self.set.out = self.set.out.with(gone);
        // The durable part of their last writes is unknown.
        self.set.regions.make_dirty_stale(gone);
        gone.iter().for_each(|member| self.note_member(member));
        if was_current {
            self.outdate();
        }
        self.journal.make_barrier();
        self.restart_copy();
    }

    /// Tries members again that are lost or were taken out. With `whole`, everything is copied to them.
    pub fn bring_back(&mut self, members: Members, whole: bool) {
        let members = members.and(self.set.members).without(Members::one(self.member_state.source));
        for member in members.and(self.set.out).iter() {
            self.set.out = self.set.out.without(Members::one(member));
            self.background.cancelled = self.background.cancelled.without(Members::one(member));
            self.note_member(member);
        }
        if whole {
            let left = self.member_state.current.without(members);
            if std::mem::replace(&mut self.member_state.current, left) != left {
                self.outdate();
            }
            self.forget(members);
            self.restart_copy();
        }
        self.member_state.joined = self.member_state.joined.with(members);
        self.member_state.is_well();
    }

    fn forget(&mut self, members: Members) {
        self.mark_each(|mask| mask.with(members));
        self.set.regions.make_stale(0..usize::MAX, members);
        self.journal.make_barrier();
    }

    /// Flushes all joined members, if a region becomes clean or a member current by that.
    pub(crate) fn begin_flush(&mut self) {
        let arriving = self.member_state.arriving(self);
        if arriving.is_empty() && self.set.regions.idle().next().is_none() {
            return;
        }
        let left = self.member_state.joined;
        self.member_state.flush = Flush { left, failed: Members::NONE, arriving };
        self.steps.extend(left.iter().map(|member| Step::Flush { member }));
    }

    /// Ends a [`Step::Flush`] of a member.
    pub fn flushed(&mut self, member: usize, good: bool) {
        let flush = &mut self.member_state.flush;
        let one = Members::one(member).and(flush.left);
        flush.left = flush.left.without(one);
        flush.failed = flush.failed.with(if good { Members::NONE } else { one });
        if one.is_empty() || !flush.left.is_empty() {
            return;
        }
        let (failed, arriving) = (flush.failed, flush.arriving);
        if !failed.is_empty() && self.take_faults(failed, self.member_state.joined) == Fault::Fatal {
            self.member_state.unflushed.losses += 1;
            return self.flush_has_failed();
        }
        self.settle(arriving.without(failed));
    }

    /// Handles a failed flush of a source that has no replacement. Writes since the last good flush may be
    /// lost on the source and be present elsewhere, and a later flush does not bring them back. The host
    /// reads the source, so the other members must become equal to it, wherever the log marks a possible
    /// difference. That begins after the next good flush, because contents copied earlier may be lost by the
    /// next failure.
    pub(crate) fn flush_has_failed(&mut self) {
        self.member_state.failed_flushes += 1;
        self.set.regions.doubt_dirty();
    }

    /// Completes a good flush: idle regions become clean, and members that have everything become current.
    fn settle(&mut self, arriving: Members) {
        let others = self.set.members.without(Members::one(self.member_state.source));
        if self.set.regions.make_doubtful_stale(others) {
            self.restart_copy();
        }
        let idle: Vec<usize> = self.set.regions.idle().collect();
        for number in idle {
            let stale = self.set.regions.list[number].stale;
            self.mark(number..number + 1, stale);
        }
        for member in arriving.and(self.member_state.joined).and(self.member_state.arriving(self)).iter() {
            self.member_state.current = self.member_state.current.with(Members::one(member));
            self.set.generations[member] = self.set.highest();
            self.note_member(member);
        }
    }
}
