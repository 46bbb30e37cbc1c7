//! Writes of the host, from their arrival to their end.

use crate::Members;
use crate::member_state::Fault;
use crate::mirror::{Mirror, Step};
use std::collections::VecDeque;
use std::ops::Range;

/// Maximum number of waiting writes that one pass looks at. The rest follows when one of these has ended.
const LOOKS: usize = 64;

/// Number of a write from [`Mirror::begin`] to [`Mirror::end`] or [`Step::Over`]. It is reused after that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WriteId(pub u32);

/// Result of the arrival of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// The write goes to these members now.
    Go(Members),
    /// The write waits for [`Step::Go`], or for [`Step::Over`] if it fails.
    Wait,
}

/// Result of a write that the members have completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The write is acknowledged.
    Good,
    /// The write fails. Its bytes are written or not, in the end alike on all members.
    Failed,
    /// The result follows with [`Step::Over`].
    Wait,
}

#[derive(Clone, Debug, Default)]
struct Write {
    bytes: Range<u64>,
    /// Members that the write went to.
    to: Members,
    /// Count of losses when the write was issued: see [`Mirror::has_lost_writes`].
    irreplaceable: u64,
    /// Count of failed flushes when the write was issued: see [`Mirror::flush_has_failed`].
    failed_flushes: u64,
    /// Count of acknowledged writes when this one arrived; `losses`: count of losses then.
    acknowledged: u64,
    losses: u64,
    /// Index in the list of active writes.
    place: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Writes {
    list: Vec<Write>,
    free: Vec<u32>,
    /// Writes in flight.
    active: Vec<u32>,
    /// Writes that wait for the log, for a piece that is copied, or for another write.
    waiting: VecDeque<u32>,
    /// Writes that have ended and wait for their acknowledgement.
    ending: VecDeque<u32>,
    /// Writes since the last call of [`were_busy`](Self::were_busy).
    count: u64,
    /// Writes that have succeeded so far.
    acknowledged: u64,
}

impl Writes {
    fn open(&mut self, bytes: Range<u64>, losses: u64) -> u32 {
        let write = Write { bytes, acknowledged: self.acknowledged, losses, ..Write::default() };
        let Some(id) = self.free.pop() else {
            self.list.push(write);
            return (self.list.len() - 1) as u32;
        };
        self.list[id as usize] = write;
        id
    }

    /// Frees the number of a write.
    fn close(&mut self, WriteId(id): WriteId) {
        self.free.push(id);
    }

    fn bytes(&self, id: u32) -> &Range<u64> {
        &self.list[id as usize].bytes
    }

    fn activate(&mut self, id: u32, to: Members) {
        let place = self.active.len();
        self.active.push(id);
        (self.list[id as usize].to, self.list[id as usize].place) = (to, place);
    }

    fn deactivate(&mut self, id: u32) {
        let place = self.list[id as usize].place;
        assert_eq!(self.active.swap_remove(place), id, "a write that is under way ends");
        if let Some(moved) = self.active.get(place) {
            self.list[*moved as usize].place = place;
        }
    }

    /// Returns the number of active writes in a range.
    pub(crate) fn count_in(&self, bytes: &Range<u64>) -> usize {
        self.active.iter().filter(|id| overlap(self.bytes(**id), bytes)).count()
    }

    /// Returns whether the host has written since the last call, or has writes in flight.
    pub(crate) fn were_busy(&mut self) -> bool {
        std::mem::take(&mut self.count) > 0 || !self.active.is_empty()
    }
}

pub(crate) fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

impl Mirror {
    /// Begins a write of the host: any command that changes these bytes. They must lie inside of the drive. A
    /// Flush has an empty range.
    pub fn begin(&mut self, bytes: Range<u64>) -> (WriteId, Begun) {
        self.writes.count += 1;
        let mut earlier = self.writes.waiting.iter();
        let queues = earlier.any(|other| overlap(self.writes.bytes(*other), &bytes));
        let id = self.writes.open(bytes, self.member_state.unflushed.losses);
        if !queues && let Some(to) = self.admit(id) {
            return (WriteId(id), Begun::Go(to));
        }
        self.writes.waiting.push_back(id);
        (WriteId(id), Begun::Wait)
    }

    /// Issues a write, if nothing holds it back.
    fn admit(&mut self, id: u32) -> Option<Members> {
        let bytes = self.writes.bytes(id).clone();
        let regions = self.set.regions.of(&bytes);
        if self.background.is_busy_in(&bytes) {
            return None;
        }
        if !self.set.regions.are_quiet(regions.clone()) && self.writes.count_in(&bytes) > 0 {
            return None;
        }
        if !self.is_marked(regions.clone()) {
            return None;
        }
        let (to, absent) = (self.member_state.joined, self.set.members.without(self.member_state.joined));
        if !absent.is_empty() {
            self.set.regions.make_stale(regions.clone(), absent);
        }
        self.set.regions.enter(regions);
        self.writes.activate(id, to);
        let (write, member_state) = (&mut self.writes.list[id as usize], &self.member_state);
        (write.irreplaceable, write.failed_flushes) =
            (member_state.irreplaceable, member_state.failed_flushes);
        Some(to)
    }

    /// Returns whether the log marks these regions for all members but the source. If not, requests that
    /// mark.
    fn is_marked(&mut self, regions: Range<usize>) -> bool {
        let others = self.set.members.without(Members::one(self.member_state.source));
        let mut marked = true;
        self.set.regions.keep(regions.clone());
        for number in regions {
            let region = &self.set.regions.list[number];
            marked &= region.durable.covers(others);
            let wanted = region.wanted;
            if !wanted.covers(others) {
                self.mark(number..number + 1, wanted.with(others));
            }
        }
        marked
    }

    /// Ends a write that was issued; it failed on the members `failed`.
    pub fn end(&mut self, write: WriteId, failed: Members) -> Ended {
        self.end_for(write, failed, false)
    }

    /// Ends a write as [`end`](Self::end) does. A write that the host gave up fails on all its members,
    /// and none of them is lost.
    pub fn end_for(&mut self, WriteId(id): WriteId, failed: Members, is_given_up: bool) -> Ended {
        let Write { bytes, to, .. } = self.writes.list[id as usize].clone();
        let failed = if is_given_up { to } else { failed };
        let regions = self.set.regions.of(&bytes);
        self.writes.deactivate(id);
        self.set.regions.leave(regions.clone());
        self.background.left(&bytes);
        let survived = failed.is_empty() || self.take_faults(failed, to) == Fault::Survived;
        let good = survived && !self.may_be_gone(id);
        let good = match bytes.is_empty() {
            true => self.flush_is_good(id, survived, is_given_up),
            false if good => true,
            // The source may or may not have the write; the others must become equal to it.
            false => self.make_stale(regions),
        };
        self.look_at_waiting();
        if good && !self.journal.is_past_barrier() {
            self.writes.ending.push_back(id);
            return Ended::Wait;
        }
        self.is_over(WriteId(id), good);
        if good { Ended::Good } else { Ended::Failed }
    }

    /// Returns whether a Flush succeeds. It fails while losses are unreported, and reports the losses before
    /// its arrival. It covers no write that was acknowledged since its arrival, so the next Flush fails for
    /// the later losses.
    fn flush_is_good(&mut self, id: u32, survived: bool, is_given_up: bool) -> bool {
        let write = &self.writes.list[id as usize];
        if survived {
            // A Flush that failed for another reason, as when its host gave it up, does not report an earlier
            // loss.
            return self.member_state.unflushed.are_told(write.losses);
        }
        if write.acknowledged != self.writes.acknowledged && !is_given_up {
            self.member_state.unflushed.losses += 1;
        }
        self.flush_has_failed();
        false
    }

    /// Frees a write whose result goes to the host now. If a flush of the source failed since the write was
    /// issued, the write may be lost: the next Flush fails.
    pub(crate) fn is_over(&mut self, write: WriteId, good: bool) {
        let Write { bytes, failed_flushes, .. } = &self.writes.list[write.0 as usize];
        if good && !bytes.is_empty() {
            self.member_state.unflushed.losses +=
                u64::from(*failed_flushes != self.member_state.failed_flushes);
            self.writes.acknowledged += 1;
        }
        self.writes.close(write);
    }

    /// Returns whether the source lost writes since this one was issued: this one may be among them.
    fn may_be_gone(&self, id: u32) -> bool {
        let write = &self.writes.list[id as usize];
        !write.bytes.is_empty() && write.irreplaceable != self.member_state.irreplaceable
    }

    /// Makes the other members stale in the regions of a failed write, which the log already marks as dirty.
    fn make_stale(&mut self, regions: Range<usize>) -> bool {
        let others = self.set.members.without(Members::one(self.member_state.source));
        self.set.regions.make_stale(regions.clone(), others);
        self.background.is_stale_again(&regions);
        false
    }

    /// Reconsiders waiting writes, because something that they may have waited for has changed.
    pub(crate) fn look_at_waiting(&mut self) {
        let broken = self.journal.is_broken();
        while let Some(id) = self.writes.ending.front().copied()
            && (broken || self.journal.is_past_barrier())
        {
            self.writes.ending.pop_front();
            let good = self.journal.is_past_barrier() && !self.may_be_gone(id);
            self.steps.push_back(Step::Over { write: WriteId(id), good });
        }
        let looks = if broken { usize::MAX } else { LOOKS };
        for _ in 0..self.writes.waiting.len().min(looks) {
            let Some(id) = self.writes.waiting.pop_front() else { break };
            let regions = self.set.regions.of(self.writes.bytes(id));
            let unmarked = broken && !self.is_marked(regions);
            match self.admit(id).filter(|_| !unmarked) {
                Some(to) => self.steps.push_back(Step::Go { write: WriteId(id), to }),
                None if unmarked => self.steps.push_back(Step::Over { write: WriteId(id), good: false }),
                None => self.writes.waiting.push_back(id),
            }
        }
    }
}
