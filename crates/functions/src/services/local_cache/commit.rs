//! Cycles of the table: a flush of the cache's device, then writes of the blocks that have changed.
//!
//! The content of the blocks is fixed before the flush, so that the data in all sectors that they name is durable
//! before they are written. The next flush makes the blocks durable. A block has two copies, which are written in
//! turns, and a copy is overwritten only when the other one is durable.

use super::format::{self, BLOCK};
use super::ops::Stage;
use super::requests::{Job, Source, request};
use super::table::End;
use super::{DEVICE, LocalCache};
use sluice_command::Operation;
use sluice_nvme::Status;
use sluice_uif::{Buffer, Io, Part};

/// Most blocks that one cycle writes.
const IMAGES_MAX: usize = 32;

/// Nanoseconds for which no new line is put into a device that has failed, and after which it is tried again.
pub(super) const RETRY_NS: u64 = 1_000_000_000;

#[derive(Debug)]
struct Image {
    block: u32,
    copy: u8,
    buffer: Buffer,
}

#[derive(Debug, Default)]
pub(super) struct Commit {
    /// Cycles that were begun, and the last one that is needed.
    started: u64,
    needed: u64,
    is_flushing: bool,
    images: Vec<Option<Image>>,
    /// Images that are being written.
    left: u32,
    /// Changes of the table that earlier cycles have taken.
    taken: u64,
}

impl Commit {
    /// Requests a cycle that begins from now on. Returns its number.
    pub(super) fn next(&mut self) -> u64 {
        self.needed = self.needed.max(self.started + 1);
        self.started + 1
    }

    pub(super) fn is_busy(&self) -> bool {
        self.is_flushing || self.left > 0
    }

    /// Requests cycles after which all changes of the table are durable.
    pub(super) fn request(&mut self) {
        self.needed = self.needed.max(self.started + 2);
    }
}

impl LocalCache {
    /// Begins a cycle if one is needed.
    pub(super) fn begin_cycle(&mut self, io: &mut Io<'_>) {
        if self.commit.is_busy() || self.commit.needed <= self.commit.started || !self.is_open() {
            return;
        }
        self.commit.started += 1;
        self.commit.is_flushing = true;
        self.commit.taken = self.slots.table.changes().1;
        self.device_unflushed = false;
        self.commit.images.clear();
        // A block without a buffer is not taken: commands count the blocks that were.
        while self.commit.images.len() < IMAGES_MAX
            && self.slots.table.has_waiting()
            && let Some(buffer) = io.buffer(BLOCK)
        {
            let Some((block, copy, sequence)) = self.slots.table.take() else {
                io.release(buffer);
                break;
            };
            let slots = &mut self.slots;
            let entries = self.geometry.slots_of(block).map(|slot| slots.image(slot));
            format::write_block(io.bytes(&buffer), self.geometry.id, block, sequence, entries);
            self.commit.images.push(Some(Image { block, copy, buffer }));
        }
        self.counts.cycles += 1;
        self.queues.push(DEVICE, request(Operation::Flush, 0, 0, false), Source::None, Job::DeviceFlush);
    }

    /// Takes the end of the flush of a cycle.
    pub(super) fn device_flushed(&mut self, status: Status, io: &mut Io<'_>) {
        self.commit.is_flushing = false;
        if !status.is_success() {
            return self.device_lost(io);
        }
        self.slots.table_flushed(&self.geometry);
        self.end_device_waits(io);
        for (number, image) in (0..).zip(&self.commit.images) {
            let Some(Image { block, copy, buffer }) = image else { continue };
            let Some(part) = Part::of(buffer, 0, BLOCK) else { continue };
            let at = self.geometry.block_at(*block, *copy);
            let write = request(Operation::Write, at, BLOCK as u64, false);
            self.queues.push(DEVICE, write, Source::Part(part), Job::Table(number));
            self.commit.left += 1;
        }
        if self.commit.left == 0 {
            self.cycle_over(io);
        }
    }

    /// Handles a loss: writes to the device since its last flush may be lost.
    pub(super) fn device_lost(&mut self, io: &mut Io<'_>) {
        tracing::error!("local-cache: the cache's device may have lost writes");
        self.note_device_failure(io);
        if !self.is_open() {
            self.owes_flush = true;
            return;
        }
        if self.commit.left == 0 {
            for Image { block, buffer, .. } in self.commit.images.drain(..).flatten() {
                self.slots.table.put(block, End::Unsent);
                io.release(buffer);
            }
        }
        self.slots.table.lost();
        self.slots.drop_clean();
        self.slots.device_lost();
        self.back.device_lost(Status::WRITES_LOST);
        self.device_unflushed = true;
        let waits = |stage| matches!(stage, Stage::Drive(_) | Stage::Device(..));
        let was_reported = self.fail_flushes(waits, Status::WRITE_FAULT, io);
        for index in (0..self.ops.active.len()).rev() {
            let id = self.ops.active[index];
            let op = self.op(id);
            match op.stage {
                Stage::Tables(_) => self.go_direct(id),
                Stage::Device(..) => self.finish(id, Status::WRITE_FAULT, io),
                // Requests that are below are executed after the loss: reads may return data of other lines.
                Stage::Below if op.is_cached_read() || op.is_cached_write() && op.left < op.sent => {
                    op.failed[usize::from(DEVICE)].get_or_insert(Status::WRITES_LOST);
                }
                _ => {}
            }
        }
        self.owes_flush |= !was_reported;
        self.fail_order("the cache's device has failed", io);
    }

    /// Ends the commands that waited for this flush.
    fn end_device_waits(&mut self, io: &mut Io<'_>) {
        let (cycle, taken) = (self.commit.started, self.commit.taken);
        for index in (0..self.ops.active.len()).rev() {
            let id = self.ops.active[index];
            match self.op(id).stage {
                Stage::Device(needed, changes) if needed <= cycle && changes <= taken => {
                    self.finish(id, Status::SUCCESS, io);
                }
                // Its changes are in this cycle, or in a later one.
                Stage::Device(..) => drop(self.commit.next()),
                _ => {}
            }
        }
    }

    /// Takes the end of the write of a block.
    pub(super) fn table_written(&mut self, number: u32, status: Status, io: &mut Io<'_>) {
        let image = self.commit.images.get_mut(number as usize).and_then(Option::take);
        let Some(Image { block, buffer, .. }) = image else { return };
        self.commit.left -= 1;
        if status.is_success() {
            self.slots.table.put(block, End::Written);
            for (slot, entry) in self.geometry.slots_of(block).zip(format::entries(io.bytes(&buffer))) {
                let it = self.slots.get_mut(slot);
                it.written = entry.dirty;
                if it.dirty != entry.dirty {
                    self.slots.table.change(block);
                }
            }
        } else {
            self.slots.table.put(block, End::Failed);
            self.note_device_failure(io);
            self.fail_device_waits(io);
        }
        io.release(buffer);
        if self.commit.left == 0 {
            self.cycle_over(io);
        }
    }

    /// Fails the commands that need a change of the table which could not be written.
    fn fail_device_waits(&mut self, io: &mut Io<'_>) {
        let taken = self.commit.taken;
        for index in (0..self.ops.active.len()).rev() {
            let id = self.ops.active[index];
            if let Stage::Device(_, changes) = self.op(id).stage
                && changes > taken
            {
                self.finish(id, Status::WRITE_FAULT, io);
            }
        }
        self.fail_order("the cache's device has failed", io);
    }

    /// Continues the writes that waited for the table.
    fn cycle_over(&mut self, io: &mut Io<'_>) {
        let cycle = self.commit.started;
        for index in (0..self.ops.active.len()).rev() {
            let id = self.ops.active[index];
            let Stage::Tables(needed) = self.op(id).stage else { continue };
            if needed > cycle {
                continue;
            }
            if self.is_stored(id) {
                match self.op(id).request.fua {
                    true => self.op(id).stage = Stage::Device(self.commit.next(), 0),
                    false => self.finish(id, Status::SUCCESS, io),
                }
            } else if self.is_failing {
                self.go_direct(id);
            } else {
                self.op(id).stage = Stage::Tables(self.commit.next());
            }
        }
        if self.slots.table.has_changes() && !self.is_failing {
            self.commit.request();
        }
    }

    /// Notes that the cache's device has failed: for a while no line is put there.
    pub(super) fn note_device_failure(&mut self, io: &mut Io<'_>) {
        self.counts.device_errors += 1;
        if !std::mem::replace(&mut self.is_failing, true) {
            tracing::error!("local-cache: the cache's device fails; writes go to the drive");
        }
        self.failing_until_ns = io.now_ns().saturating_add(RETRY_NS);
    }
}
