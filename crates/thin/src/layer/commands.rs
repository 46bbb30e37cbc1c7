//! Commands that wait for extents, and deallocations.

use super::extents::{Note, Release};
use super::{BUSY, PLACE, Thin};
use crate::layout::EXTENT;
use crate::map::SHARED;
use sluice_command::{Command, Lane, Operation, Request, Ticket};
use sluice_nvme::Status;
use std::collections::VecDeque;
use std::ops::Range;

/// Extents of a Deallocate that are given back in one turn.
const RELEASED_AT_ONCE: u64 = 1024;

impl Thin {
    /// Begins a command, or one that has waited.
    pub(super) fn begin(&mut self, command: Command, lane: &mut Lane<'_>) {
        let request = lane.slot(&command).request;
        if self.must_wait(&request) {
            match self.is_broken {
                true => lane.finish(command, Status::WRITE_FAULT),
                false => self.waiting.push_back(lane.park(command)),
            }
        } else if request.operation == Operation::Deallocate {
            self.zero_edges(command, lane);
        } else {
            self.transfer(command, lane);
        }
    }

    /// Returns the extents that a request touches.
    fn touched(request: &Request) -> Range<u32> {
        match request.length {
            0 => 0..0,
            _ => (request.offset / EXTENT) as u32..((request.end() - 1) / EXTENT) as u32 + 1,
        }
    }

    /// Returns the extents that a Deallocate covers as a whole.
    pub(super) fn whole(request: &Request) -> Range<u64> {
        request.offset.div_ceil(EXTENT)..request.end() / EXTENT
    }

    /// Returns whether a request must wait for extents, and lists those extents.
    fn must_wait(&mut self, request: &Request) -> bool {
        if self.barrier.is_on() && request.operation.modifies() {
            return true;
        }
        let touched = Self::touched(request);
        match request.operation {
            Operation::Read | Operation::Flush => false,
            Operation::Write | Operation::WriteZeroes => {
                touched.fold(false, |waits, extent| self.waits_for(extent, request.operation) | waits)
            }
            // Zeros are written to the ends alone.
            Operation::Deallocate => {
                let whole = Self::whole(request);
                let ends = [touched.start, touched.end.saturating_sub(1)];
                let ends = ends.into_iter().filter(|extent| touched.contains(extent));
                ends.filter(|extent| !whole.contains(&u64::from(*extent)))
                    .fold(false, |waits, extent| self.waits_for(extent, Operation::WriteZeroes) | waits)
            }
        }
    }

    /// Returns whether a write must wait for this extent, and lists the extent then.
    fn waits_for(&mut self, extent: u32, operation: Operation) -> bool {
        let word = self.map.get(extent);
        let is_missing = word & PLACE == 0 && operation == Operation::Write;
        if word & BUSY == 0 && (is_missing || word & SHARED != 0) && !self.is_broken {
            self.map.set(extent, word | BUSY);
            self.growing.want(extent);
        }
        word & (BUSY | SHARED) != 0 || is_missing
    }

    /// Begins all waiting commands whose extents are there.
    pub(super) fn run_waiting(&mut self, lane: &mut Lane<'_>) {
        for _ in 0..self.waiting.len() {
            let Some(ticket) = self.waiting.pop_front() else { break };
            let Some(request) = lane.parked(ticket).map(|slot| slot.request) else { continue };
            if self.must_wait(&request) {
                self.waiting.push_back(ticket);
            } else if let Some(command) = lane.unpark(ticket) {
                self.begin(command, lane);
            }
        }
    }

    /// Ends all commands that wait for one of these extents.
    pub(super) fn end_waiting_for(&mut self, extents: &[u32], why: Status, lane: &mut Lane<'_>) {
        let ends = |ticket: Ticket, lane: &Lane<'_>| {
            let request = lane.parked(ticket).map(|slot| slot.request);
            request.is_some_and(|request| {
                let touched = Self::touched(&request);
                extents.iter().any(|extent| touched.contains(extent))
            })
        };
        self.end_parked(ends, why, lane);
    }

    /// Ends waiting commands with this status.
    pub(super) fn end_parked(
        &mut self,
        ends: impl Fn(Ticket, &Lane<'_>) -> bool,
        why: Status,
        lane: &mut Lane<'_>,
    ) {
        self.waiting.retain(|ticket| {
            let command = if ends(*ticket, lane) { lane.unpark(*ticket) } else { None };
            let stays = command.is_none();
            command.into_iter().for_each(|command| lane.finish(command, why));
            stays
        });
    }

    /// Gives the whole extents of a Deallocate back.
    pub(super) fn begin_release(&mut self, command: Command, lane: &mut Lane<'_>) {
        let whole = Self::whole(&lane.slot(&command).request);
        if whole.is_empty() {
            return lane.finish(command, Status::SUCCESS);
        }
        if self.is_broken {
            return lane.finish(command, Status::WRITE_FAULT);
        }
        let ticket = lane.park(command);
        let (next, end) = (whole.start as u32, whole.end as u32);
        let (left, busy, is_stuck, gives_up, status) = (0, VecDeque::new(), false, None, Status::SUCCESS);
        self.releases.push_back(Release { ticket, next, end, left, busy, is_stuck, gives_up, status });
        self.step_releases(lane);
    }

    /// Continues the deallocations, and ends the durable ones.
    pub(super) fn step_releases(&mut self, lane: &mut Lane<'_>) {
        let mut work = 0;
        let mut releases = std::mem::take(&mut self.releases);
        for release in &mut releases {
            self.step_busy(release, &mut work);
            while release.next < release.end && work < RELEASED_AT_ONCE {
                let Some((extent, _)) = self.map.next(release.next).filter(|(at, _)| *at < release.end)
                else {
                    release.next = release.end;
                    break;
                };
                release.next = extent + 1;
                work += 1;
                if !self.release(extent, release) {
                    match release.gives_up {
                        Some(why) => release.status = why,
                        None => release.busy.push_back(extent),
                    }
                }
            }
        }
        releases.retain(|release| {
            let is_over = release.is_over();
            if is_over && let Some(command) = lane.unpark(release.ticket) {
                lane.finish(command, release.status);
            }
            !is_over
        });
        self.releases = releases;
    }

    /// Releases the extents that were busy, up to the first one that still is.
    fn step_busy(&mut self, release: &mut Release, work: &mut u64) {
        while !release.is_stuck
            && *work < RELEASED_AT_ONCE
            && let Some(&extent) = release.busy.front()
        {
            *work += 1;
            release.is_stuck = !self.release(extent, release);
            if !release.is_stuck {
                release.busy.pop_front();
            }
        }
    }

    /// Takes an extent from the volume. Returns false for one that is busy: its content may come from before the
    /// deallocation, and its mapping is on the way.
    fn release(&mut self, extent: u32, release: &mut Release) -> bool {
        let word = self.map.get(extent);
        if word & BUSY != 0 {
            return false;
        }
        if word != 0 {
            self.map.set(extent, BUSY);
            self.drain.push(Note::Map { extent, place: None, of: Some(release.ticket) });
            release.left += 1;
        }
        true
    }

    /// Ends these deallocations without the extents that are or become busy, which may be so for as long as the pool
    /// is full.
    pub(super) fn give_up_busy(
        &mut self,
        ends: impl Fn(Ticket, &Lane<'_>) -> bool,
        why: Status,
        lane: &mut Lane<'_>,
    ) {
        for release in self.releases.iter_mut().filter(|release| ends(release.ticket, lane)) {
            release.gives_up.get_or_insert(why);
            if !release.busy.is_empty() {
                release.busy.clear();
                release.status = why;
            }
        }
        self.step_releases(lane);
    }
}
