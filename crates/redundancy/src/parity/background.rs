//! Background work: rebuilding of stale cells, and comparison, a few rows at a time.

use super::array::{End, Parity};
use super::geometry::Rect;
use super::ops::Kind;
use super::state::UNSYNCED;
use super::{OpId, ROWS_MAX};
use crate::Members;
use crate::parity::status::ArrayCheck;
use sluice_jobs::{Scheduler, State};
use std::ops::Range;

/// Number of jobs, and the number of each.
pub(super) const JOBS: usize = 2;
pub(super) const RESYNC: usize = 0;
pub(super) const CHECK: usize = 1;

/// Pause of a job after a failure, nanoseconds.
const PAUSE_NS: u64 = 1_000_000_000;

/// Region that is being rebuilt.
#[derive(Clone, Copy, Debug)]
struct Cursor {
    region: usize,
    targets: Members,
    /// Row up to which it was rebuilt.
    next: u64,
}

#[derive(Debug, Default)]
pub(super) struct Background {
    cursor: Option<Cursor>,
    /// Region at which the search for the next one begins.
    from: usize,
    /// Operation in flight, with its job and its members, if it rebuilds.
    op: Option<(OpId, usize, Members)>,
    pub(super) check: ArrayCheck,
    pub(super) rebuilt_bytes: u64,
    /// Cells that were written again because they could not be read, or were wrong.
    pub(super) repaired: u64,
    /// Reads whose rows did not belong together.
    pub(super) mismatches: u64,
    pub(super) jobs: Scheduler<JOBS>,
    now_ns: u64,
}

impl Background {
    /// Begins the current region anew, because members have changed.
    pub(super) fn restart(&mut self) {
        self.cursor = None;
    }

    /// Returns whether some rows of a region were rebuilt on a member, up to the end of the rows in the
    /// region.
    pub(super) fn is_rebuilt(&self, region: usize, member: Members, rows: &Range<u64>) -> bool {
        self.cursor.is_some_and(|cursor| {
            cursor.region == region && cursor.targets.covers(member) && rows.end <= cursor.next
        })
    }

    /// Returns the members that the operation in flight rebuilds.
    pub(super) fn targets(&self) -> Members {
        self.op.map_or(Members::NONE, |(_, _, targets)| targets)
    }
}

impl Parity {
    /// Begins the rebuilding anew from the first row of an operation that may leave a stale cell as it is.
    pub(super) fn rewind_to(&mut self, rows: &Range<u64>) {
        let Some(cursor) = &mut self.background.cursor else { return };
        let start = self.state.rows_of(cursor.region).start;
        if rows.start < cursor.next && rows.end > cursor.next {
            cursor.next = rows.start.max(start);
        }
    }

    /// Returns the members with something to rebuild, with the mark of parities that are not computed.
    pub(super) fn to_rebuild(&self) -> Members {
        self.state.stale().and(self.member_state.joined.with(UNSYNCED))
    }

    fn wants(&self, job: usize) -> bool {
        let rebuilds = !self.to_rebuild().is_empty();
        match job {
            RESYNC => rebuilds,
            _ if rebuilds && self.background.jobs.state(RESYNC) != State::Paused => false,
            _ => self.background.check.running,
        }
    }

    /// Returns the time at which the next rows begin, if there are some.
    pub(super) fn background_ns(&self) -> Option<u64> {
        let can = self.ready && self.background.op.is_none() && self.mode.is_settled();
        let is_idle = !self.background.jobs.are_active() && !self.background.check.running;
        if is_idle && self.to_rebuild().is_empty() {
            return None;
        }
        self.background.jobs.alarm_ns(|job| can && self.wants(job))
    }

    /// Begins the next rows of a job.
    pub(super) fn begin_background(&mut self, now_ns: u64) {
        self.background.now_ns = now_ns;
        if self.background.op.is_some() || !self.mode.is_settled() {
            return;
        }
        self.end_idle_jobs();
        while let Some((job, _)) = self.background.jobs.next(now_ns, |job| self.wants(job)) {
            let chosen = match job {
                RESYNC => self.next_rebuild(),
                _ => self.next_check(),
            };
            let Some((rows, targets)) = chosen else {
                self.end_idle_jobs();
                if self.wants(job) {
                    self.background.jobs.delay(job, now_ns + PAUSE_NS);
                }
                continue;
            };
            let length = rows.end - rows.start;
            self.background.jobs.begin(job, length, now_ns);
            if self.commands.were_busy() {
                let pace_ns = u128::from(length) * 1_000_000_000 / u128::from(self.config.rate.max(1));
                let pace_ns = u64::try_from(pace_ns).unwrap_or(u64::MAX);
                self.background.jobs.delay(job, now_ns.saturating_add(pace_ns));
            }
            let kind = if job == RESYNC { Kind::Rebuild } else { Kind::Check };
            let columns = 0..self.geometry().columns();
            let op = self.queue_op(kind, Rect { rows, columns }, None);
            self.background.op = Some((op, job, targets));
            return;
        }
    }

    fn end_idle_jobs(&mut self) {
        let absent = self.state.members.without(self.member_state.joined);
        if self.to_rebuild().is_empty() && absent.is_empty() {
            self.background.jobs.finish(RESYNC);
        }
        if !self.background.check.running {
            self.background.jobs.finish(CHECK);
        }
    }

    /// Returns the rows of the next operation. It is never larger than the budget of a job.
    fn rows_from(&self, from: u64, end: u64) -> Range<u64> {
        const { assert!(ROWS_MAX <= sluice_jobs::STEP_MIN) };
        from..(from + ROWS_MAX).min(self.geometry().chunk_end(from, end))
    }

    fn next_rebuild(&mut self) -> Option<(Range<u64>, Members)> {
        let members = self.member_state.joined.with(UNSYNCED);
        let is_done = |cursor: &Cursor| cursor.next >= self.state.rows_of(cursor.region).end;
        if self.background.cursor.as_ref().is_none_or(is_done) {
            let count = self.state.regions.len();
            let is_stale = |number: &usize| !self.state.regions[*number].stale.and(members).is_empty();
            let from = self.background.from.min(count);
            let region = (from..count).chain(0..from).find(is_stale)?;
            let targets = self.state.regions[region].stale.and(members);
            let next = self.state.rows_of(region).start;
            self.background.cursor = Some(Cursor { region, targets, next });
            self.background.from = region + 1;
        }
        let cursor = self.background.cursor.as_ref()?;
        let end = self.state.rows_of(cursor.region).end;
        Some((self.rows_from(cursor.next, end), cursor.targets))
    }

    fn next_check(&mut self) -> Option<(Range<u64>, Members)> {
        if self.member_state.joined != self.state.members || !self.state.stale().is_empty() {
            // A missing member cannot be compared, so the result would be no proof.
            self.background.check.running = false;
            self.background.jobs.fail(CHECK);
            return None;
        }
        let at = self.background.check.done;
        if at >= self.config.size {
            self.background.check.running = false;
            return None;
        }
        Some((self.rows_from(at, self.config.size), Members::NONE))
    }

    /// Starts a comparison of all cells with the parities.
    pub fn check(&mut self) {
        self.background.check = ArrayCheck { running: true, ..ArrayCheck::default() };
        self.background.jobs.start(CHECK);
    }

    /// Notes the result of a comparison.
    pub(super) fn compared(&mut self, id: OpId, is_equal: bool) {
        let start = self.ops.list[id as usize].rect.rows.start;
        let first = self.geometry().drive_offset(start, 0);
        let check = &mut self.background.check;
        if !is_equal && check.done == start {
            check.different += 1;
            check.first = check.first.or(Some(first));
        }
    }

    /// Ends a background operation.
    pub(super) fn background_done(&mut self, id: OpId, end: End) {
        let Some((_, job, targets)) = self.background.op.take_if(|(op, _, _)| *op == id) else { return };
        let rows = self.ops.list[id as usize].rect.rows.clone();
        let (length, now_ns) = (rows.end - rows.start, self.background.now_ns);
        if job == CHECK {
            self.background.jobs.end(CHECK, length, now_ns);
            let check = &mut self.background.check;
            if check.done == rows.start {
                check.unreadable += u64::from(end != End::Good);
                check.done = rows.end;
            }
            return;
        }
        let is_good = end == End::Good;
        self.background.jobs.end(RESYNC, if is_good { length } else { 0 }, now_ns);
        let cursor = self.background.cursor.as_mut();
        let Some(cursor) = cursor.filter(|it| it.next == rows.start && it.targets == targets) else { return };
        if !is_good {
            self.background.cursor = None;
            return self.background.jobs.delay(RESYNC, now_ns + PAUSE_NS);
        }
        cursor.next = rows.end;
        self.background.rebuilt_bytes += length;
        let region = cursor.region;
        if rows.end >= self.state.rows_of(region).end {
            self.background.cursor = None;
            self.region_is_rebuilt(region, targets);
        }
    }
}
