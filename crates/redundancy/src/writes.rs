//! Writes of the host, from their arrival to their end.

use crate::Members;
use crate::mirror::{Mirror, Step};
use crate::standing::Fault;
use std::collections::VecDeque;
use std::ops::Range;

/// Writes that wait which are looked at in one go: what is beyond follows when one of these went.
const LOOKS: usize = 64;

/// A write, from [`Mirror::begin`] to [`Mirror::end`] or [`Step::Over`]. Then the number is free for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WriteId(pub u32);

/// What becomes of a write that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// It goes to these members now.
    Go(Members),
    /// [`Step::Go`] will say so, or [`Step::Over`] that it failed.
    Wait,
}

/// What becomes of a write that was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It is acknowledged.
    Good,
    /// It fails. What it wrote is there or not, in time on all members alike.
    Failed,
    /// [`Step::Over`] will say which.
    Wait,
}

#[derive(Clone, Debug, Default)]
struct Write {
    bytes: Range<u64>,
    /// Where it went.
    to: Members,
    /// The losses that were there when it went: see [`Mirror::has_lost_writes`].
    irreplaceable: u64,
    /// The flushes that had failed when it went: see [`Mirror::flush_has_failed`].
    failed_flushes: u64,
    /// The writes that were acknowledged when it arrived, and the losses that there were.
    acknowledged: u64,
    losses: u64,
    /// In the list of those that are under way.
    place: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Writes {
    list: Vec<Write>,
    free: Vec<u32>,
    /// Under way.
    active: Vec<u32>,
    /// For the log, for a piece that is copied, or for another write.
    waiting: VecDeque<u32>,
    /// Done, and not yet to be acknowledged.
    ending: VecDeque<u32>,
    /// Since somebody asked.
    count: u64,
    /// All that succeeded so far.
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

    /// The number is free.
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

    /// Those under way in a range.
    pub(crate) fn count_in(&self, bytes: &Range<u64>) -> usize {
        self.active.iter().filter(|id| overlap(self.bytes(**id), bytes)).count()
    }

    /// True if the host has written since this was last asked, or does now.
    pub(crate) fn were_busy(&mut self) -> bool {
        std::mem::take(&mut self.count) > 0 || !self.active.is_empty()
    }
}

pub(crate) fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

impl Mirror {
    /// A write of the host arrives: these bytes change, whatever it is called. They lie inside of the drive. A
    /// Flush changes none.
    pub fn begin(&mut self, bytes: Range<u64>) -> (WriteId, Begun) {
        self.writes.count += 1;
        let mut earlier = self.writes.waiting.iter();
        let queues = earlier.any(|other| overlap(self.writes.bytes(*other), &bytes));
        let id = self.writes.open(bytes, self.standing.unflushed.losses);
        if !queues && let Some(to) = self.admit(id) {
            return (WriteId(id), Begun::Go(to));
        }
        self.writes.waiting.push_back(id);
        (WriteId(id), Begun::Wait)
    }

    /// Lets a write go, if it can.
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
        let (to, absent) = (self.standing.joined, self.set.members.without(self.standing.joined));
        if !absent.is_empty() {
            self.set.regions.make_stale(regions.clone(), absent);
        }
        self.set.regions.enter(regions);
        self.writes.activate(id, to);
        let (write, standing) = (&mut self.writes.list[id as usize], &self.standing);
        (write.irreplaceable, write.failed_flushes) = (standing.irreplaceable, standing.failed_flushes);
        Some(to)
    }

    /// True if the log says that the members may differ in these regions; else it will.
    fn is_marked(&mut self, regions: Range<usize>) -> bool {
        let others = self.set.members.without(Members::one(self.standing.source));
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

    /// A write that went is done, on these of its members without success.
    pub fn end(&mut self, write: WriteId, failed: Members) -> Ended {
        self.end_for(write, failed, false)
    }

    /// The same. A write that the host gave up fails on all its members, and none is the worse for it.
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
            // Nobody knows what the source has; the others are to have the same.
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

    /// The end of a Flush. It fails for all that was lost and not told, and tells what was lost before it arrived: it says
    /// nothing about writes that were acknowledged since, so the next one fails for those.
    fn flush_is_good(&mut self, id: u32, survived: bool, is_given_up: bool) -> bool {
        let write = &self.writes.list[id as usize];
        if survived {
            // One that failed anyway, perhaps because its host gave it up, tells nobody of an earlier loss.
            return self.standing.unflushed.are_told(write.losses);
        }
        if write.acknowledged != self.writes.acknowledged && !is_given_up {
            self.standing.unflushed.losses += 1;
        }
        self.flush_has_failed();
        false
    }

    /// The host is told of a write now. If a flush of the source failed since it went, that may have lost it: the next
    /// Flush tells.
    pub(crate) fn is_over(&mut self, write: WriteId, good: bool) {
        let Write { bytes, failed_flushes, .. } = &self.writes.list[write.0 as usize];
        if good && !bytes.is_empty() {
            self.standing.unflushed.losses += u64::from(*failed_flushes != self.standing.failed_flushes);
            self.writes.acknowledged += 1;
        }
        self.writes.close(write);
    }

    /// True if the source lost writes since this one went: its part there may be among them.
    fn may_be_gone(&self, id: u32) -> bool {
        let write = &self.writes.list[id as usize];
        !write.bytes.is_empty() && write.irreplaceable != self.standing.irreplaceable
    }

    /// A write fails: the others are copied to in these regions, which the log knows to be dirty.
    fn make_stale(&mut self, regions: Range<usize>) -> bool {
        let others = self.set.members.without(Members::one(self.standing.source));
        self.set.regions.make_stale(regions.clone(), others);
        self.background.is_stale_again(&regions);
        false
    }

    /// Something has changed that writes may have waited for.
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
