//! Extents on their way into the volume, and out of it.

use super::{BUSY, GROWING_MAX, IDLE_NS, OnFull, PLACE, RETRY_NS, Thin, stage};
use crate::layout::EXTENT;
use sluice_command::{Command, Frame, Lane, Operation, Request, Ticket};
use sluice_nvme::Status;
use std::collections::VecDeque;

/// Change of the map that the home makes durable.
#[derive(Clone, Copy, Debug)]
pub(super) struct Note {
    pub(super) extent: u32,
    /// Extent of the pool; none if the volume has none any more.
    pub(super) place: Option<u32>,
    /// Deallocation that the note belongs to.
    pub(super) of: Option<Ticket>,
}

impl Note {
    fn word(self) -> u64 {
        u64::from(self.extent) | u64::from(self.place.map_or(0, |place| place + 1)) << 32
    }
}

/// Deallocation in progress.
#[derive(Clone, Copy, Debug)]
pub(super) struct Release {
    pub(super) ticket: Ticket,
    /// Remaining extents.
    pub(super) next: u32,
    pub(super) end: u32,
    /// Notes that are not acknowledged.
    pub(super) left: u32,
}

/// Extents that are being allocated or copied.
#[derive(Debug)]
pub(super) struct Growing {
    /// Extents of the volume for which there is no extent of the pool yet.
    wanted: VecDeque<u32>,
    /// Extents that are being zeroed or copied.
    started: usize,
    /// Free parts of the memory for copies.
    buffers: Vec<u32>,
    /// Extents of the volume and of the pool, with their content written; and those for which the device is flushed.
    written: Vec<(u32, u32)>,
    flushing: Vec<(u32, u32)>,
    is_flushing: bool,
}

impl Default for Growing {
    fn default() -> Self {
        Self {
            wanted: VecDeque::new(),
            started: 0,
            buffers: (0..GROWING_MAX as u32).collect(),
            written: Vec::new(),
            flushing: Vec::new(),
            is_flushing: false,
        }
    }
}

impl Growing {
    pub(super) fn want(&mut self, extent: u32) {
        self.wanted.push_back(extent);
    }

    pub(super) fn is_idle(&self) -> bool {
        self.wanted.is_empty() && self.started == 0 && self.written.is_empty() && !self.is_flushing
    }
}

/// Numbers of a frame: the extent of the volume, and the extent of the pool with the part of the memory.
fn numbers(frame: &Frame) -> (u32, u32, u32) {
    (frame.data[0] as u32, frame.data[1] as u32, (frame.data[1] >> 32) as u32)
}

impl Thin {
    /// Returns whether there is something to do without an answer of the home.
    pub(super) fn has_work(&self) -> bool {
        !self.outbox.is_empty()
            || !self.leaving.is_empty()
            || self.releases.iter().any(|release| release.next < release.end)
    }

    fn offset(&self, place: u32) -> u64 {
        self.parts.data_at + u64::from(place) * EXTENT
    }

    /// Continues all that can continue.
    pub(super) fn pump(&mut self, lane: &mut Lane<'_>) {
        if self.waiting.is_empty() && !self.growing.wanted.is_empty() {
            self.drop_wanted();
        }
        self.start_growing(lane);
        self.begin_flush(lane);
        self.begin_drain();
        self.send();
        let allocates = std::mem::take(&mut self.allocates);
        if allocates {
            self.port.refill();
        }
        if self.port.finish() || allocates {
            self.idle_ns = Some(lane.now_ns() + IDLE_NS);
        }
    }

    /// Forgets extents that no command waits for.
    fn drop_wanted(&mut self) {
        for extent in std::mem::take(&mut self.growing.wanted) {
            self.map.set(extent, self.map.get(extent) & !BUSY);
        }
        self.retry_ns = None;
    }

    /// Takes extents of the pool for the listed extents of the volume, and writes their content.
    fn start_growing(&mut self, lane: &mut Lane<'_>) {
        while self.growing.started < GROWING_MAX && !self.is_broken {
            let Some(&extent) = self.growing.wanted.front() else { return };
            let Some(unit) = self.port.take() else {
                if self.retry_ns.is_none() {
                    self.port.request(1);
                }
                return;
            };
            let place = unit as u32;
            self.allocates = true;
            if self.offset(place) + EXTENT > lane.size_below(0) {
                // The pool has grown, and this layer does not reach the new part yet.
                self.leaving.push(place);
                return self.refused(lane);
            }
            self.growing.wanted.pop_front();
            self.growing.started += 1;
            self.grow(extent, place, lane);
        }
    }

    fn grow(&mut self, extent: u32, place: u32, lane: &mut Lane<'_>) {
        let old = (self.map.get(extent) & PLACE).checked_sub(1);
        let (Some(old), Some(memory)) = (old, &self.memory) else {
            let request = Request {
                operation: Operation::WriteZeroes,
                deallocate: true,
                offset: self.offset(place),
                length: EXTENT,
                ..Request::default()
            };
            return lane.originate(0, request, None, stage::ZEROED, [extent.into(), place.into()]);
        };
        let Some(buffer) = self.growing.buffers.pop() else { return };
        let segment = memory.segment(buffer as usize * EXTENT as usize, EXTENT as u32);
        let request = Request { offset: self.offset(old), length: EXTENT, ..Request::default() };
        let data = [extent.into(), u64::from(place) | u64::from(buffer) << 32];
        lane.originate(0, request, Some(segment), stage::READ, data);
    }

    /// Continues with a command of the layer itself.
    pub(super) fn resume_own(&mut self, command: Command, frame: Frame, lane: &mut Lane<'_>) {
        let status = lane.slot(&command).status;
        lane.discard(command);
        if frame.stage == stage::FLUSHED {
            return self.flushed(status, lane);
        }
        let (extent, place, buffer) = numbers(&frame);
        if frame.stage == stage::READ && status.is_success() {
            return self.write_copy(extent, place, buffer, lane);
        }
        if frame.stage != stage::ZEROED {
            self.growing.buffers.push(buffer);
        }
        self.growing.started -= 1;
        match status.is_success() {
            true => self.growing.written.push((extent, place)),
            false => self.fail(&[(extent, place)], status, lane),
        }
    }

    fn write_copy(&mut self, extent: u32, place: u32, buffer: u32, lane: &mut Lane<'_>) {
        let Some(memory) = &self.memory else { return };
        let segment = memory.segment(buffer as usize * EXTENT as usize, EXTENT as u32);
        let operation = Operation::Write;
        let request = Request { operation, offset: self.offset(place), length: EXTENT, ..Request::default() };
        let data = [extent.into(), u64::from(place) | u64::from(buffer) << 32];
        lane.originate(0, request, Some(segment), stage::COPIED, data);
    }

    fn begin_flush(&mut self, lane: &mut Lane<'_>) {
        if self.growing.is_flushing || self.growing.written.is_empty() {
            return;
        }
        self.growing.is_flushing = true;
        std::mem::swap(&mut self.growing.written, &mut self.growing.flushing);
        let request = Request { operation: Operation::Flush, ..Request::default() };
        lane.originate(0, request, None, stage::FLUSHED, [0; 2]);
    }

    fn flushed(&mut self, status: Status, lane: &mut Lane<'_>) {
        self.growing.is_flushing = false;
        let mut flushed = std::mem::take(&mut self.growing.flushing);
        if self.is_broken || !status.is_success() {
            let status = if self.is_broken { Status::WRITE_FAULT } else { status };
            self.fail(&flushed, status, lane);
        } else {
            for &(extent, place) in &flushed {
                let is_copy = self.map.get(extent) & PLACE != 0;
                let note = Note { extent, place: Some(place), of: None };
                if is_copy {
                    // Reads go to the copy from now on. Earlier ones end before the other extent can be free.
                    self.map.set(extent, (place + 1) | BUSY);
                    self.drain.push(note);
                } else {
                    self.outbox.push_back(note);
                }
            }
        }
        flushed.clear();
        self.growing.flushing = flushed;
    }

    /// Gives up extents whose content could not be written.
    fn fail(&mut self, grown: &[(u32, u32)], status: Status, lane: &mut Lane<'_>) {
        let extents: Vec<u32> = grown.iter().map(|(extent, _)| *extent).collect();
        for (extent, place) in grown {
            self.map.set(*extent, self.map.get(*extent) & !BUSY);
            self.leaving.push(*place);
        }
        self.end_waiting_for(&extents, status, lane);
    }

    /// Handles a pool without a free extent.
    pub(super) fn refused(&mut self, lane: &mut Lane<'_>) {
        if self.growing.wanted.is_empty() || self.port.credit() > 0 && self.leaving.is_empty() {
            return;
        }
        if self.parts.on_full == OnFull::Park {
            self.retry_ns = Some(lane.now_ns() + RETRY_NS);
            return;
        }
        let wanted: Vec<u32> = self.growing.wanted.iter().copied().collect();
        self.drop_wanted();
        self.end_waiting_for(&wanted, Status::CAPACITY_EXCEEDED, lane);
    }

    /// Ends the epoch for notes that take an extent away, and sends them when all earlier commands have ended.
    fn begin_drain(&mut self) {
        loop {
            if !self.draining.is_empty() {
                if self.in_flight[1 - self.epoch] > 0 {
                    return;
                }
                self.outbox.extend(self.draining.drain(..));
            }
            if self.drain.is_empty() || self.in_flight[1 - self.epoch] > 0 {
                return;
            }
            std::mem::swap(&mut self.drain, &mut self.draining);
            self.epoch = 1 - self.epoch;
        }
    }

    /// Sends notes, and extents that were not used, as far as the ring has room.
    fn send(&mut self) {
        while let Some(note) = self.outbox.front()
            && self.port.note(note.word()).is_ok()
        {
            self.sent.extend(self.outbox.pop_front());
        }
        while let Some(place) = self.leaving.pop() {
            if self.port.give_back(place.into()).is_err() {
                return self.leaving.push(place);
            }
        }
    }

    /// Applies the changes that are durable. Returns their number.
    pub(super) fn take_acknowledgements(&mut self, lane: &mut Lane<'_>) -> usize {
        let mut count = 0;
        while self.acknowledged < self.port.noted() {
            self.acknowledged += 1;
            count += 1;
            let Some(Note { extent, place, of }) = self.sent.pop_front() else { continue };
            self.map.set(extent, place.map_or(0, |place| place + 1));
            for release in self.releases.iter_mut().filter(|release| Some(release.ticket) == of) {
                release.left -= 1;
            }
        }
        if count > 0 {
            self.run_waiting(lane);
        }
        count
    }

    /// Ends everything that needs a change of the map: no change is made durable any more.
    #[cold]
    pub(super) fn break_off(&mut self, lane: &mut Lane<'_>) {
        self.is_broken = true;
        (self.retry_ns, self.idle_ns) = (None, None);
        self.growing.wanted.clear();
        self.outbox.clear();
        // These have no acknowledgement.
        self.sent.clear();
        self.drain.clear();
        self.draining.clear();
        self.end_parked(|_, _| true, Status::WRITE_FAULT, lane);
        for release in std::mem::take(&mut self.releases) {
            if let Some(command) = lane.unpark(release.ticket) {
                lane.finish(command, Status::WRITE_FAULT);
            }
        }
    }
}
