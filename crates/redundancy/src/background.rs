//! Background copy and comparison, a piece at a time, beside the host's writes.

use crate::Members;
use crate::jobs::{CHECK, JOBS, RESYNC};
use crate::mirror::{Mirror, Step};
use crate::writes::overlap;
use sluice_jobs::{Scheduler, State};
use std::ops::Range;

/// Pause of the copy after the source could not be read, nanoseconds.
const PAUSE_NS: u64 = 1_000_000_000;

/// Comparison of the contents of all members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Check {
    pub running: bool,
    /// Bytes that were compared or skipped: the whole drive at the end. Stale regions are skipped.
    pub done: u64,
    /// Pieces that differ.
    pub different: u64,
    /// Pieces that could not be read.
    pub unreadable: u64,
    /// Offset of the first piece that differs, bytes.
    pub first: Option<u64>,
}

#[derive(Debug, Default)]
pub(crate) struct Background {
    piece: Option<Piece>,
    region: Option<Copying>,
    /// Region at which the search for the next copy starts.
    cursor: usize,
    pub(crate) check: Check,
    pub(crate) copied_bytes: u64,
    pub(crate) jobs: Scheduler<JOBS>,
    /// Members that a cancelled copy has left out.
    pub(crate) cancelled: Members,
}

/// Range of bytes that is closed to writes.
#[derive(Debug)]
struct Piece {
    bytes: Range<u64>,
    /// Members that are copied to; none if the piece is compared.
    to: Members,
    /// Writes that are still in flight in the piece.
    writes: usize,
    asked: bool,
}

/// Region that is being copied.
#[derive(Debug)]
struct Copying {
    number: usize,
    to: Members,
    /// Offset on the drive up to which the region was copied, bytes.
    next: u64,
    /// Whether the copy starts again, because members or contents have changed since it began.
    again: bool,
}

impl Background {
    /// Returns whether the range overlaps the piece in progress, so that no write may go there now.
    pub(crate) fn is_busy_in(&self, bytes: &Range<u64>) -> bool {
        self.piece.as_ref().is_some_and(|piece| overlap(&piece.bytes, bytes))
    }

    /// Removes an ended write from the count of the piece that it overlaps.
    pub(crate) fn left(&mut self, bytes: &Range<u64>) {
        if let Some(piece) = self.piece.as_mut().filter(|piece| overlap(&piece.bytes, bytes)) {
            piece.writes = piece.writes.saturating_sub(1);
        }
    }

    /// Restarts the copy of a region that is stale again.
    pub(crate) fn is_stale_again(&mut self, regions: &Range<usize>) {
        if let Some(region) = &mut self.region {
            region.again |= regions.contains(&region.number);
        }
    }
}

impl Mirror {
    /// Returns the current copy rate in bytes per second; zero if there is nothing to copy.
    pub(crate) fn copied_bytes_s(&self) -> u64 {
        if self.to_copy().is_empty() { 0 } else { self.background.jobs.bytes_s(RESYNC) }
    }

    /// Returns the members that get writes and have regions to be copied.
    pub(crate) fn to_copy(&self) -> Members {
        self.set.regions.behind().and(self.member_state.joined)
    }

    /// Returns the bytes of the current region that are copied already.
    pub(crate) fn copied_of_region(&self) -> u64 {
        let region = self.background.region.as_ref().filter(|region| !region.again);
        region.map_or(0, |region| region.next - self.set.regions.bytes(region.number).start)
    }

    /// Restarts the copy of the current region, because members or regions have changed.
    pub(crate) fn restart_copy(&mut self) {
        if let Some(region) = &mut self.background.region {
            region.again = true;
        }
    }

    /// Adapts to a new size of the drive. The comparison ends at the new size. A piece that was not issued
    /// yet is dropped, because it may lie beyond the end.
    pub(crate) fn is_resized(&mut self, size: u64) {
        let background = &mut self.background;
        background.check.done = background.check.done.min(size);
        if let Some(piece) = background.piece.take_if(|piece| !piece.asked) {
            background.jobs.abandon(if piece.to.is_empty() { CHECK } else { RESYNC });
        }
    }

    /// Starts a background comparison of all members. Differences are counted, and not repaired.
    pub fn check(&mut self) {
        self.background.check = Check { running: true, ..Check::default() };
        self.background.jobs.start(CHECK);
    }

    /// Returns whether a job has work. A comparison waits for copies, unless they are paused.
    fn wants(&self, job: usize) -> bool {
        let copies = !self.to_copy().is_empty();
        match job {
            RESYNC => copies,
            _ if copies && self.background.jobs.state(RESYNC) != State::Paused => false,
            _ => self.background.check.running,
        }
    }

    /// Returns the time at which the next piece begins, if there is one.
    pub(crate) fn piece_ns(&self) -> Option<u64> {
        if self.is_background_idle() {
            return None;
        }
        let can = self.ready && self.background.piece.is_none();
        self.background.jobs.alarm_ns(|job| can && self.wants(job))
    }

    pub(crate) fn begin_piece(&mut self, now_ns: u64) {
        if self.background.piece.is_none() {
            self.choose_piece(now_ns);
        }
        let Some(piece) = self.background.piece.as_mut().filter(|piece| piece.writes == 0 && !piece.asked)
        else {
            return;
        };
        piece.asked = true;
        let (offset, length, to) = (piece.bytes.start, piece.bytes.end - piece.bytes.start, piece.to);
        let (from, members) = (self.member_state.source, self.member_state.joined);
        self.steps.push_back(match to {
            Members::NONE => Step::Compare { members, offset, length },
            _ => Step::Copy { from, to, offset, length },
        });
    }

    /// Returns whether no job has work, or a state that has to change. This is the usual case of a write.
    fn is_background_idle(&self) -> bool {
        let idle = self.to_copy().is_empty() && !self.background.check.running;
        idle && !self.background.jobs.are_active()
    }

    fn choose_piece(&mut self, now_ns: u64) {
        if self.is_background_idle() {
            return;
        }
        self.end_idle_jobs();
        while let Some((job, budget)) = self.background.jobs.next(now_ns, |job| self.wants(job)) {
            let chosen = match job {
                RESYNC => self.next_copy(budget),
                _ => self.next_comparison(budget).map(|bytes| (bytes, Members::NONE)),
            };
            let Some((bytes, to)) = chosen else {
                self.end_idle_jobs();
                continue;
            };
            let length = bytes.end - bytes.start;
            self.background.jobs.begin(job, length, now_ns);
            if self.writes.were_busy() {
                let pace_ns = u128::from(length) * 1_000_000_000 / u128::from(self.config.rate.max(1));
                let pace_ns = u64::try_from(pace_ns).unwrap_or(u64::MAX);
                self.background.jobs.delay(job, now_ns.saturating_add(pace_ns));
            }
            let writes = self.writes.count_in(&bytes);
            self.background.piece = Some(Piece { bytes, to, writes, asked: false });
            return;
        }
    }

    /// Ends the jobs that have no work left. A copy goes on when its lost member is back, and is cancelled if
    /// an operator took the member out.
    fn end_idle_jobs(&mut self) {
        let absent = self.set.members.without(self.member_state.joined);
        match self.to_copy().is_empty() {
            true if absent.is_empty() => self.background.jobs.finish(RESYNC),
            true if self.set.out.covers(absent) => self.background.jobs.cancel(RESYNC),
            _ => {}
        }
        if !self.background.check.running {
            self.background.jobs.finish(CHECK);
        }
    }

    /// Returns the next range to copy, and its destinations.
    fn next_copy(&mut self, budget: u64) -> Option<(Range<u64>, Members)> {
        if self.background.region.as_ref().is_none_or(|region| region.again) {
            self.background.region = None;
            let behind = self.to_copy();
            if behind.is_empty() {
                return None;
            }
            let number = self.set.regions.next_stale(self.background.cursor, behind)?;
            let to = self.set.regions.list[number].stale.and(self.member_state.joined);
            let next = self.set.regions.bytes(number).start;
            self.background.cursor = number + 1;
            self.background.region = Some(Copying { number, to, next, again: false });
        }
        let region = self.background.region.as_ref()?;
        Some((self.piece_at(region.next, region.number, budget), region.to))
    }

    /// Returns the next range to compare. Regions that are stale are skipped.
    fn next_comparison(&mut self, budget: u64) -> Option<Range<u64>> {
        while self.background.check.running {
            if self.member_state.joined != self.set.members {
                // A missing member cannot be compared, so the result would be no proof.
                self.background.check.running = false;
                self.background.jobs.fail(CHECK);
                return None;
            }
            let at = self.background.check.done;
            let number = (at / self.set.regions.region_bytes()) as usize;
            // After a resize, the end may lie inside of the last region, and before the last compared byte.
            let Some(region) = self.set.regions.list.get(number).filter(|_| at < self.config.size) else {
                self.background.check.running = false;
                break;
            };
            if region.stale.is_empty() {
                return Some(self.piece_at(at, number, budget));
            }
            self.background.check.done = self.set.regions.bytes(number).end;
        }
        None
    }

    fn piece_at(&self, at: u64, region: usize, budget: u64) -> Range<u64> {
        let end = self.set.regions.bytes(region).end;
        at..(at + self.config.piece_bytes.min(budget)).min(end).max(at)
    }

    /// Ends a [`Step::Copy`]. `failed` are the members on which it failed, the source included if it cannot
    /// be read.
    pub fn copied(&mut self, failed: Members, now_ns: u64) {
        let Some(piece) = self.background.piece.take() else { return };
        if failed.contains(self.member_state.source) {
            // The copy goes on with other regions after a pause.
            self.member_state.source_errors += 1;
            self.background.region = None;
            self.background.jobs.end(RESYNC, 0, now_ns);
            self.background.jobs.delay(RESYNC, now_ns + PAUSE_NS);
        } else {
            failed.iter().for_each(|member| self.lose(member));
            self.piece_is_copied(&piece, now_ns);
        }
        self.look_at_waiting();
    }

    fn piece_is_copied(&mut self, piece: &Piece, now_ns: u64) {
        let Some(region) = self.background.region.as_mut().filter(|region| !region.again) else {
            return self.background.jobs.end(RESYNC, 0, now_ns);
        };
        let length = piece.bytes.end - piece.bytes.start;
        self.background.copied_bytes += length;
        self.background.jobs.end(RESYNC, length, now_ns);
        self.member_state.is_well();
        region.next = piece.bytes.end;
        let (number, to) = (region.number, region.to);
        if region.next < self.set.regions.bytes(number).end {
            return;
        }
        self.background.region = None;
        self.set.regions.is_copied(number, to);
    }

    /// Ends a [`Step::Compare`]: whether the members are equal, or `None` if one cannot be read.
    pub fn compared(&mut self, equal: Option<bool>, now_ns: u64) {
        let Some(piece) = self.background.piece.take() else { return };
        self.background.jobs.end(CHECK, piece.bytes.end - piece.bytes.start, now_ns);
        let check = &mut self.background.check;
        // The comparison may have begun anew, or the drive may have shrunk, since this piece was issued.
        if check.done != piece.bytes.start {
            return self.look_at_waiting();
        }
        check.done = piece.bytes.end.min(self.config.size);
        check.unreadable += u64::from(equal.is_none() && piece.bytes.end <= self.config.size);
        if equal == Some(false) {
            check.different += 1;
            check.first = check.first.or(Some(piece.bytes.start));
        }
        self.look_at_waiting();
    }
}
