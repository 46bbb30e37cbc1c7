//! Extents that are taken from the pool, zeroed or copied, and flushed.

use super::extents::Note;
use super::{BUSY, GROWING_MAX, OnFull, PLACE, RETRY_NS, Thin, stage};
use crate::layout::EXTENT;
use sluice_command::{Command, Frame, Lane, Operation, Request};
use sluice_nvme::Status;
use std::collections::VecDeque;

/// Extents of the pool that are tried for one extent of a volume, before the device counts as failed.
const TRIES_MAX: usize = 4;

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
    /// Extents of the volume, with extents of the pool that the device did not write for them.
    suspects: Vec<(u32, u32)>,
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
            suspects: Vec::new(),
        }
    }
}

impl Growing {
    pub(super) fn want(&mut self, extent: u32) {
        self.wanted.push_back(extent);
    }

    pub(super) fn wants(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// Takes the extents of the pool that the device did not write for this extent of the volume.
    fn suspects_of(&mut self, extent: u32) -> Vec<u32> {
        self.suspects.extract_if(.., |(of, _)| *of == extent).map(|(_, place)| place).collect()
    }

    /// Gives up everything that was not begun.
    pub(super) fn give_up(&mut self) {
        self.wanted.clear();
        self.suspects.clear();
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
    /// Forgets extents that no command waits for.
    pub(super) fn drop_wanted(&mut self) {
        for extent in std::mem::take(&mut self.growing.wanted) {
            self.map.set(extent, self.map.get(extent) & !BUSY);
            self.give_back_suspects(extent);
        }
        self.retry_ns = None;
        self.extents_changed();
    }

    /// Takes extents of the pool for the listed extents of the volume, and writes their content.
    pub(super) fn start_growing(&mut self, lane: &mut Lane<'_>) {
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
        let Some(old) = old else {
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
        let segment = self.memory.segment(buffer as usize * EXTENT as usize, EXTENT as u32);
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
            true => {
                let bad = self.growing.suspects_of(extent).into_iter().map(Note::Bad);
                self.outbox.extend(bad);
                self.growing.written.push((extent, place));
            }
            false if frame.stage == stage::READ => self.fail(&[(extent, place)], status, lane),
            false => self.try_another(extent, place, status, lane),
        }
    }

    /// Takes another extent of the pool after one that the device did not write. The first one is bad if the device
    /// writes another one, and free if it writes none.
    #[cold]
    fn try_another(&mut self, extent: u32, place: u32, status: Status, lane: &mut Lane<'_>) {
        let tries = self.growing.suspects.iter().filter(|(of, _)| *of == extent).count() + 1;
        if self.is_broken || tries == TRIES_MAX || status == Status::CAPACITY_EXCEEDED {
            self.give_back_suspects(extent);
            return self.fail(&[(extent, place)], status, lane);
        }
        self.growing.suspects.push((extent, place));
        self.growing.wanted.push_front(extent);
    }

    fn give_back_suspects(&mut self, extent: u32) {
        if !self.is_broken {
            let suspects = self.growing.suspects_of(extent).into_iter().map(Note::Suspect);
            self.outbox.extend(suspects);
        }
    }

    fn write_copy(&mut self, extent: u32, place: u32, buffer: u32, lane: &mut Lane<'_>) {
        let segment = self.memory.segment(buffer as usize * EXTENT as usize, EXTENT as u32);
        let operation = Operation::Write;
        let request = Request { operation, offset: self.offset(place), length: EXTENT, ..Request::default() };
        let data = [extent.into(), u64::from(place) | u64::from(buffer) << 32];
        lane.originate(0, request, Some(segment), stage::COPIED, data);
    }

    pub(super) fn begin_flush(&mut self, lane: &mut Lane<'_>) {
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
                let note = Note::Map { extent, place: Some(place), of: None };
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
            if !self.is_broken {
                self.outbox.push_back(Note::Suspect(*place));
            }
        }
        self.extents_changed();
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
}
