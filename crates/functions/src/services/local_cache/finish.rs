//! Ends of reads and writes: their effect on the slots, and the flushes that they wait for.

use super::format::{self, mask};
use super::ops::{Kind, LinePart, NO_SLOT, Route, Stage};
use super::requests::{Job, Source, request};
use super::{Attach, DEVICE, LocalCache};
use sluice_command::Operation;
use sluice_nvme::Status;
use sluice_uif::{Io, Part};

/// Bytes of a page, the unit of memory for data.
const PAGE: usize = 4096;

/// Bytes of data for the cache that are being written into it at a time.
const FILLING_MAX: usize = 1 << 20;

/// Times that a read is sent after failures of the cache's device.
const TRIES_MAX: u8 = 2;

/// Next step of a command whose requests are back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Finish(Status),
    /// The command waits for a flush or for the table, or begins anew.
    Wait,
    /// The data of a read goes into the cache.
    Fill,
}

impl LocalCache {
    /// Takes a request of a command back.
    pub(super) fn piece_done(&mut self, id: u32, layer: u8, status: Status, io: &mut Io<'_>) {
        if !self.note_piece(id, layer, status) {
            return;
        }
        match self.settle(id, io) {
            Next::Finish(status) => self.finish(id, status, io),
            Next::Fill => self.fill_later(id, io),
            Next::Wait => {}
        }
    }

    /// Notes the end of a request of a command. Returns whether it was the last.
    pub(super) fn note_piece(&mut self, id: u32, layer: u8, status: Status) -> bool {
        let op = self.op(id);
        op.left -= 1;
        if !status.is_success() {
            op.failed[usize::from(layer)].get_or_insert(status);
        }
        op.left == 0
    }

    /// Decides how a command goes on whose requests are back.
    pub(super) fn settle(&mut self, id: u32, io: &mut Io<'_>) -> Next {
        let [drive, device] = self.op(id).failed;
        if device.is_some_and(|status| !status.is_of_host()) {
            self.note_device_failure(io);
        }
        let op = self.op(id);
        // The request that reports a loss is not executed. A part of a write that the drive has acknowledged is lost.
        let is_lost = drive.is_some_and(|status| status.same_code(Status::WRITES_LOST));
        if is_lost || op.kind != Kind::Read && op.is_drive_lost {
            self.begin_again(id);
            return Next::Wait;
        }
        match self.op(id).kind {
            Kind::Read => self.settle_read(id, drive, device),
            Kind::Write => self.settle_write(id, drive, device),
            _ => self.settle_zero(id, drive),
        }
    }

    fn settle_read(&mut self, id: u32, drive: Option<Status>, device: Option<Status>) -> Next {
        if let Some(status) = device {
            for index in 0..self.op(id).parts.len() {
                let slot = self.op(id).parts[index].slot;
                if slot != NO_SLOT {
                    // The drive has all that is not dirty.
                    let it = self.slots.get_mut(slot);
                    it.valid &= it.dirty;
                }
            }
            self.op(id).tries += u8::from(!status.same_code(Status::WRITES_LOST));
            if status.is_of_host() || self.op(id).tries >= TRIES_MAX {
                return Next::Finish(status);
            }
            self.begin_again(id);
            return Next::Wait;
        }
        if let Some(status) = drive {
            return Next::Finish(status);
        }
        let misses = self.op(id).parts.iter().any(|part| part.mask != 0);
        let op = self.op(id);
        let wants = misses && !op.is_sequential && !op.is_drive_lost && self.fills();
        if wants { Next::Fill } else { Next::Finish(Status::SUCCESS) }
    }

    /// Copies the data of a read that the cache does not have, and writes it there in the background.
    pub(super) fn fill(&mut self, id: u32, data: &[u8], io: &mut Io<'_>) {
        let (bytes, line_bytes) = (self.op(id).bytes.clone(), self.geometry.line);
        let first_line = bytes.start / line_bytes;
        if self.op(id).is_drive_lost {
            return;
        }
        for index in 0..self.op(id).parts.len() {
            let LinePart { mask: missing, .. } = self.op(id).parts[index];
            let line = first_line + index as u64;
            // Another read may have brought them meanwhile.
            let slot = self.slots.of_line(line);
            let has = slot.map_or(0, |slot| {
                let it = self.slots.get(slot);
                it.valid | it.dirty
            });
            let Some(run) = format::runs(missing & !has).next() else { continue };
            let length = (run.end - run.start) as usize;
            let at = (line * line_bytes + run.start - bytes.start) as usize;
            let Some(data) = data.get(at..at + length) else { continue };
            let taken = length.next_multiple_of(PAGE);
            if self.filling + taken > FILLING_MAX {
                return;
            }
            let Some(buffer) = io.buffer(length) else { return };
            let Some(slot) = slot.or_else(|| self.slots.allocate(line)) else {
                return io.release(buffer);
            };
            io.bytes(&buffer)[..length].copy_from_slice(data);
            let Some(part) = Part::of(&buffer, 0, length) else { return io.release(buffer) };
            let of_drive = request(Operation::Write, line * line_bytes + run.start, length as u64, false);
            let fill = self.ops.open(Kind::Fill, of_drive, None);
            self.ops.active.push(fill);
            self.slots.get_mut(slot).pins += 1;
            let op = self.op(fill);
            (op.stage, op.buffer) = (Stage::Below, Some(buffer));
            op.parts.push(LinePart { slot, mask: mask(run.start, run.end), route: Route::Cache });
            let offset = self.geometry.slot_at(slot) + run.start;
            let write = request(Operation::Write, offset, length as u64, false);
            self.queues.push(DEVICE, write, Source::Part(part), Job::Fill(fill));
            self.filling += taken;
            self.device_unflushed = true;
        }
    }

    /// Takes the end of a write of data that was read.
    pub(super) fn fill_done(&mut self, id: u32, status: Status, io: &mut Io<'_>) {
        let op = self.op(id);
        let part = op.parts.first().copied();
        let is_drive_lost = op.is_drive_lost;
        if let Some(buffer) = op.buffer.take() {
            self.filling -= buffer.len().next_multiple_of(PAGE);
            io.release(buffer);
        }
        match part {
            Some(part) if status.is_success() => {
                self.counts.fills += 1;
                if !is_drive_lost && self.attach != Attach::Detached {
                    self.slots.get_mut(part.slot).valid |= part.mask;
                }
            }
            _ => self.note_device_failure(io),
        }
        self.close(id);
    }

    fn settle_write(&mut self, id: u32, drive: Option<Status>, device: Option<Status>) -> Next {
        let is_through = self.op(id).parts.iter().any(|part| part.route == Route::Both);
        if let Some(status) = device.filter(|_| !is_through) {
            for index in 0..self.op(id).parts.len() {
                let LinePart { slot, mask, route } = self.op(id).parts[index];
                if route == Route::Cache {
                    let clean = mask & !self.slots.get(slot).dirty;
                    self.slots.invalidate(slot, clean);
                }
            }
            if status.is_of_host() {
                return Next::Finish(status);
            }
            self.go_direct(id);
            return Next::Wait;
        }
        let mut is_pending = false;
        for index in 0..self.op(id).parts.len() {
            let LinePart { slot, mask, route } = self.op(id).parts[index];
            if slot == NO_SLOT {
                continue;
            }
            match route {
                Route::Cache => {
                    self.slots.write(slot, mask);
                    self.device_unflushed = true;
                }
                _ if drive.is_some() => {
                    // Either content is possible on the drive. Dirty sectors will be written there again.
                    let it = self.slots.get(slot);
                    let (clean, dirty) = (mask & !it.dirty, mask & it.valid & it.dirty);
                    self.slots.invalidate(slot, clean);
                    self.slots.unpend(slot, dirty);
                }
                Route::Both if device.is_none() && self.attach != Attach::Detached => {
                    self.device_unflushed = true;
                    self.slots.get_mut(slot).valid |= mask;
                    is_pending |= self.pend(slot, mask);
                }
                _ => {
                    self.slots.invalidate(slot, mask);
                    is_pending |= self.pend(slot, mask);
                }
            }
        }
        let passed = self.op(id).parts.iter().any(|part| part.route != Route::Cache);
        self.drive_unflushed |= passed;
        self.acknowledged += 1;
        match drive {
            Some(status) => Next::Finish(status),
            None => self.answer_write(id, is_pending),
        }
    }

    /// Notes that the drive has these sectors: they are clean after its next flush. Returns whether the table may
    /// name some of them, so that a restart would bring old data back.
    fn pend(&mut self, slot: u32, mask: u128) -> bool {
        let pending = self.slots.pend(slot, mask);
        if pending != 0 {
            self.back.list(slot, pending);
            self.slots.list(slot, pending);
        }
        pending != 0 || self.slots.is_named(slot)
    }

    /// Returns the answer to a write that succeeded, or has it wait.
    fn answer_write(&mut self, id: u32, is_pending: bool) -> Next {
        let fua = self.op(id).request.fua;
        if is_pending {
            self.wait_for_drive(id);
            return Next::Wait;
        }
        if !self.is_stored(id) {
            let cycle = self.commit.next();
            self.op(id).stage = Stage::Tables(cycle);
            return Next::Wait;
        }
        if fua && self.op(id).parts.iter().any(|part| part.route == Route::Cache) {
            let cycle = self.commit.next();
            self.op(id).stage = Stage::Device(cycle, 0);
            return Next::Wait;
        }
        Next::Finish(Status::SUCCESS)
    }

    /// Returns whether a restart would find all that a write has put into the cache.
    pub(super) fn is_stored(&self, id: u32) -> bool {
        let mut parts = self.ops.list[id as usize].parts.iter().filter(|part| part.route == Route::Cache);
        parts.all(|part| self.slots.is_stored(part.slot, part.mask))
    }

    /// Sends a write to the drive, because the cache's device has failed.
    pub(super) fn go_direct(&mut self, id: u32) {
        self.op(id).is_direct = true;
        self.counts.fallbacks += 1;
        self.begin_again(id);
    }

    /// Has a command wait for a flush of the drive, and then for the table.
    pub(super) fn wait_for_drive(&mut self, id: u32) {
        self.op(id).stage = Stage::Drive(self.back.next_flush());
    }

    fn settle_zero(&mut self, id: u32, failed: Option<Status>) -> Next {
        let bytes = self.op(id).bytes.clone();
        let lines = bytes.end.div_ceil(self.geometry.line) - bytes.start / self.geometry.line;
        let mut is_pending = false;
        if lines <= self.slots.used() as u64 {
            for (line, sectors) in self.lines(&bytes) {
                is_pending |= self.zero_line(line, sectors, failed.is_some());
            }
        } else {
            for slot in 0..self.geometry.slots {
                let line = self.slots.get(slot).line;
                let first = line.saturating_mul(self.geometry.line);
                if first < bytes.end && first + self.geometry.line > bytes.start {
                    let from = bytes.start.max(first) - first;
                    let to = bytes.end.min(first + self.geometry.line) - first;
                    is_pending |= self.zero_line(line, mask(from, to), failed.is_some());
                }
            }
        }
        self.drive_unflushed = true;
        self.acknowledged += 1;
        match failed {
            Some(status) => Next::Finish(status),
            None if is_pending => {
                self.wait_for_drive(id);
                Next::Wait
            }
            None => Next::Finish(Status::SUCCESS),
        }
    }

    /// Drops zeroed sectors of a line. Returns whether some are dirty.
    fn zero_line(&mut self, line: u64, sectors: u128, has_failed: bool) -> bool {
        let Some(slot) = self.slots.of_line(line) else { return false };
        if has_failed {
            let it = self.slots.get(slot);
            let (clean, dirty) = (sectors & !it.dirty, sectors & it.valid & it.dirty);
            self.slots.invalidate(slot, clean);
            self.slots.unpend(slot, dirty);
            return false;
        }
        self.slots.invalidate(slot, sectors);
        self.pend(slot, sectors)
    }

    /// Begins an active Flush. Returns its status if nothing is to be flushed.
    pub(super) fn begin_flush(&mut self, id: u32) -> Option<Status> {
        if std::mem::take(&mut self.owes_flush) {
            return Some(Status::WRITE_FAULT);
        }
        self.op(id).acknowledged = self.acknowledged;
        if self.drive_unflushed {
            self.wait_for_drive(id);
            return None;
        }
        if let Some(number) = self.back.host_flush() {
            self.op(id).stage = Stage::Drive(number);
            return None;
        }
        self.wait_for_device(id)
    }

    /// Has a command wait until all that the table should name now is durable. Returns its status if it is so.
    pub(super) fn wait_for_device(&mut self, id: u32) -> Option<Status> {
        let table = &self.slots.table;
        let has_changes = table.has_changes();
        let is_needed =
            self.device_unflushed || self.commit.is_busy() || has_changes || table.has_unflushed();
        if !is_needed {
            return Some(Status::SUCCESS);
        }
        // Acknowledged writes are in the table already, unless it is uncertain which copy a restart reads. Sectors that
        // are clean now do not concern a Flush.
        let waits = has_changes && (self.ops.list[id as usize].kind != Kind::Flush || table.has_uncertain());
        let changes = if waits { table.changes().0 } else { 0 };
        self.op(id).stage = Stage::Device(self.commit.next(), changes);
        None
    }
}
