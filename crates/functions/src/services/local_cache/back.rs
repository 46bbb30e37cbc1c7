//! Write-back: dirty sectors are written to the drive in the order of their places, joined to long writes. They are
//! clean when the drive has flushed them.

use super::format::{self, mask};
use super::ops::{Kind, Stage};
use super::requests::{Job, Source, request};
use super::{DEVICE, DRIVE, LocalCache};
use sluice_command::Operation;
use sluice_nvme::Status;
use sluice_uif::{Buffer, Io, Part};

/// Batches at a time, and the most bytes of one.
const BATCHES: usize = 4;
const BATCH_MAX: u64 = 512 << 10;

/// Bytes that are written to the drive before it is flushed.
const FLUSH_BYTES: u64 = 32 << 20;

/// Most lines that are looked at for one batch.
const LOOKS: usize = 16;

/// Nanoseconds without a command of the host after which write-back has no limit.
pub(super) const IDLE_NS: u64 = 100_000_000;

/// Nanoseconds after which write-back is tried again after a failure.
const RETRY_NS: u64 = 1_000_000_000;

/// Nanoseconds after which lines that are in use are tried again.
const MOMENT_NS: u64 = 1_000_000;

/// Run of dirty sectors on its way to the drive.
#[derive(Debug)]
struct Batch {
    op: u32,
    buffer: Buffer,
    offset: u64,
    length: u64,
    /// Reads that are under way.
    left: u32,
    failed: Option<Status>,
    /// Sectors of each slot, and those of them that were not written meanwhile.
    entries: Vec<Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    slot: u32,
    sectors: u128,
    unchanged: u128,
}

#[derive(Debug, Default)]
pub(super) struct Back {
    batches: [Option<Batch>; BATCHES],
    /// Line from which the search goes on.
    cursor: u64,
    /// Sectors that were written to the drive since its last flush, and sectors of the present flush.
    listed: Vec<(u32, u128)>,
    flushing: Vec<(u32, u128)>,
    flushes: u64,
    is_flushing: bool,
    /// Whether the present flush makes writes of the host durable.
    covers_host: bool,
    /// Whether a flush is needed.
    wants_flush: bool,
    written: u64,
    /// Number of the next batches that are of one run each, after a read that failed.
    single: usize,
    /// Time of the next batch.
    next_ns: u64,
    /// Time until which nothing is written, after a failure.
    paused_until_ns: u64,
    /// Time of the last command of the host.
    pub(super) host_ns: u64,
}

impl Back {
    /// Requests a flush of the drive that begins from now on. Returns its number.
    pub(super) fn next_flush(&mut self) -> u64 {
        self.wants_flush = true;
        self.flushes + 1
    }

    /// Returns the number of the flush under way, if it makes writes of the host durable.
    pub(super) fn host_flush(&self) -> Option<u64> {
        (self.is_flushing && self.covers_host).then_some(self.flushes)
    }

    /// Handles a loss of the cache's device: it may have older data than a batch. Batches whose data is being read
    /// fail.
    pub(super) fn device_lost(&mut self, status: Status) {
        for batch in self.batches.iter_mut().flatten() {
            batch.entries.iter_mut().for_each(|entry| entry.unchanged = 0);
            if batch.left > 0 {
                batch.failed.get_or_insert(status);
            }
        }
    }

    /// Adds sectors that the drive has.
    pub(super) fn list(&mut self, slot: u32, sectors: u128) {
        self.listed.push((slot, sectors));
    }

    /// Notes a write into the cache: a batch under way does not have its data.
    pub(super) fn forget(&mut self, slot: u32, sectors: u128) {
        for entry in self.batches.iter_mut().flatten().flat_map(|batch| &mut batch.entries) {
            if entry.slot == slot {
                entry.unchanged &= !sectors;
            }
        }
    }

    pub(super) fn is_busy(&self) -> bool {
        self.is_flushing || self.batches.iter().any(Option::is_some)
    }
}

impl LocalCache {
    /// Returns whether dirty data is written to the drive without a limit.
    fn is_hurried(&self, now_ns: u64) -> bool {
        let is_idle = now_ns.saturating_sub(self.back.host_ns) >= IDLE_NS;
        let is_filling = self.slots.dirty().0 * 4 >= self.dirty_limit() * 3;
        is_idle || is_filling || self.is_ordered || self.is_through()
    }

    /// Begins batches, and a flush of the drive, as far as they are due.
    pub(super) fn write_back(&mut self, io: &mut Io<'_>) {
        if !self.is_open() {
            return;
        }
        let now_ns = io.now_ns();
        while now_ns >= self.back.paused_until_ns
            && (now_ns >= self.back.next_ns || self.is_hurried(now_ns))
            && let Some(number) = self.back.batches.iter().position(Option::is_none)
        {
            let Some(bytes) = self.begin_batch(number, io) else { break };
            let pause_ns = u128::from(bytes) * 1_000_000_000 / u128::from(self.settings.rate.max(1));
            self.back.next_ns = now_ns.max(self.back.next_ns).saturating_add(pause_ns as u64);
        }
        let is_due = self.back.written >= FLUSH_BYTES
            || !self.back.listed.is_empty()
                && self.back.batches.iter().all(Option::is_none)
                && (self.slots.lines.count() == 0 || self.is_ordered);
        let may = now_ns >= self.back.paused_until_ns && is_due;
        if !self.back.is_flushing && (self.back.wants_flush || may) {
            self.begin_drive_flush();
        }
    }

    fn begin_drive_flush(&mut self) {
        let back = &mut self.back;
        (back.is_flushing, back.wants_flush, back.written) = (true, false, 0);
        back.covers_host = self.drive_unflushed;
        back.flushes += 1;
        std::mem::swap(&mut back.listed, &mut back.flushing);
        self.drive_unflushed = false;
        let flush = request(Operation::Flush, 0, 0, false);
        self.queues.push(DRIVE, flush, Source::None, Job::DriveFlush);
    }

    /// Takes the end of a flush of the drive.
    pub(super) fn drive_flushed(&mut self, status: Status, io: &mut Io<'_>) {
        self.back.is_flushing = false;
        if status.is_success() {
            self.clean_flushed();
            self.list_again();
            return self.end_drive_waits(io);
        }
        self.drive_unflushed |= self.back.covers_host;
        self.drive_lost(io);
    }

    /// Handles a command of any kind that reports a loss.
    pub(super) fn drive_reports_loss(&mut self, io: &mut Io<'_>) {
        if !self.is_open() {
            self.owes_flush = true;
            return;
        }
        self.drive_unflushed |= self.back.is_flushing && self.back.covers_host;
        self.drive_lost(io);
    }

    /// Lists sectors that were listed again meanwhile, and are not covered by the flush that has ended.
    fn list_again(&mut self) {
        let batches = self.back.batches.iter().flatten().flat_map(|batch| &batch.entries);
        let under_way = batches.map(|entry| (entry.slot, entry.sectors));
        for (slot, sectors) in self.back.listed.iter().copied().chain(under_way) {
            self.slots.list(slot, sectors);
        }
        if self.slots.table.has_changes() {
            self.commit.request();
        }
    }

    fn clean_flushed(&mut self) {
        for (slot, sectors) in self.back.flushing.drain(..) {
            self.slots.unlist(slot, sectors);
            self.slots.clean(slot, sectors);
        }
    }

    /// Notes that the drive may have lost all writes that are not durable, also those since the flush began. Dirty
    /// sectors are written again.
    fn drive_lost(&mut self, io: &mut Io<'_>) {
        let back = &mut self.back;
        for (slot, sectors) in back.flushing.drain(..).chain(back.listed.drain(..)) {
            self.slots.unlist(slot, sectors);
            self.slots.revalidate(slot, sectors);
        }
        self.slots.drop_clean();
        for id in &self.ops.active {
            let op = &mut self.ops.list[*id as usize];
            op.is_drive_lost |= match op.kind {
                Kind::Read | Kind::Fill => true,
                // Requests that are below are executed after the loss.
                Kind::Write | Kind::Zero => op.stage == Stage::Below && op.left < op.sent,
                Kind::Flush | Kind::WriteBack => false,
            };
        }
        self.list_again();
        self.fail_drive_waits(io);
    }

    fn end_drive_waits(&mut self, io: &mut Io<'_>) {
        let number = self.back.flushes;
        for index in (0..self.ops.active.len()).rev() {
            let id = self.ops.active[index];
            if matches!(self.op(id).stage, Stage::Drive(needed) if needed <= number)
                && let Some(status) = self.wait_for_device(id)
            {
                self.finish(id, status, io);
            }
        }
    }

    /// Fails all commands that wait for the drive: a later flush does not cover writes that are lost.
    fn fail_drive_waits(&mut self, io: &mut Io<'_>) {
        let (is_owed, status) = (self.drive_unflushed, Status::WRITE_FAULT);
        let was_reported = self.fail_flushes(|stage| matches!(stage, Stage::Drive(_)), status, io);
        for index in (0..self.ops.active.len()).rev() {
            let id = self.ops.active[index];
            if matches!(self.op(id).stage, Stage::Drive(_)) {
                self.finish(id, status, io);
            }
        }
        self.drive_unflushed = true;
        self.owes_flush |= is_owed && !was_reported;
        self.back_failed("the drive may have lost writes", io);
    }

    /// Fails the Flushes of hosts in some stages. Returns whether one of them began after all acknowledged writes.
    pub(super) fn fail_flushes(
        &mut self,
        is_in: impl Fn(Stage) -> bool,
        status: Status,
        io: &mut Io<'_>,
    ) -> bool {
        let mut was_reported = false;
        for index in (0..self.ops.active.len()).rev() {
            let id = self.ops.active[index];
            let op = &self.ops.list[id as usize];
            if op.kind == Kind::Flush && is_in(op.stage) {
                was_reported |= op.acknowledged == self.acknowledged;
                self.finish(id, status, io);
            }
        }
        was_reported
    }

    /// Handles a failure of write-back: it is tried again after a while.
    fn back_failed(&mut self, why: &str, io: &mut Io<'_>) {
        self.counts.back_errors += 1;
        self.back.paused_until_ns = io.now_ns().saturating_add(RETRY_NS);
        self.fail_order(why, io);
    }

    /// Begins a batch with this number. Returns its bytes; none if there is nothing to be written now.
    fn begin_batch(&mut self, number: usize, io: &mut Io<'_>) -> Option<u64> {
        if self.slots.lines.count() == 0 {
            return None;
        }
        for _ in 0..LOOKS {
            let lines = &self.slots.lines;
            let line = lines.next(self.back.cursor).or_else(|| lines.next(0))?;
            self.back.cursor = line + 1;
            if let Some(bytes) = self.begin_batch_at(number, line, io) {
                return Some(bytes);
            }
        }
        None
    }

    /// Returns the slot of a line whose dirty sectors can be written now, and these sectors.
    fn writable(&self, line: u64) -> Option<(u32, u128)> {
        let slot = self.slots.of_line(line)?;
        let it = self.slots.get(slot);
        let sectors = self.slots.to_write_back(slot);
        (sectors != 0 && it.writers == 0).then_some((slot, sectors))
    }

    fn begin_batch_at(&mut self, number: usize, line: u64, io: &mut Io<'_>) -> Option<u64> {
        let line_bytes = self.geometry.line;
        let (slot, sectors) = self.writable(line)?;
        let run = format::runs(sectors).next()?;
        let offset = line * line_bytes + run.start;
        let mut parts = vec![(slot, run.clone())];
        let (mut next, mut end) = (line + 1, run.end);
        let mut length = run.end - run.start;
        let most = if self.back.single == 0 { BATCH_MAX } else { 0 };
        while end == line_bytes && length < most {
            let Some((slot, sectors)) = self.writable(next) else { break };
            let Some(run) = format::runs(sectors).next().filter(|run| run.start == 0) else { break };
            length += run.end;
            end = run.end;
            parts.push((slot, run));
            next += 1;
        }
        let write = request(Operation::Write, offset, length, false);
        let op = self.ops.open(Kind::WriteBack, write, None);
        let is_blocked = self.ops.is_blocked(op, usize::MAX, self.is_through());
        let buffer = if is_blocked { None } else { io.buffer(length as usize) };
        let Some(buffer) = buffer else {
            self.ops.close(op);
            return None;
        };
        self.op(op).stage = Stage::Below;
        self.ops.active.push(op);
        let mut at = 0;
        let mut entries = Vec::with_capacity(parts.len());
        for (slot, run) in parts {
            let length = run.end - run.start;
            let Some(part) = Part::of(&buffer, at, length as usize) else { break };
            let from = self.geometry.slot_at(slot) + run.start;
            let read = request(Operation::Read, from, length, false);
            self.queues.push(DEVICE, read, Source::Part(part), Job::BatchRead(number as u32));
            self.slots.get_mut(slot).pins += 1;
            let sectors = mask(run.start, run.end);
            self.slots.list(slot, sectors);
            entries.push(Entry { slot, sectors, unchanged: sectors });
            at += length as usize;
        }
        // The last line may have another run.
        self.back.cursor = next - 1;
        self.back.single = self.back.single.saturating_sub(1);
        let left = entries.len() as u32;
        self.back.batches[number] = Some(Batch { op, buffer, offset, length, left, failed: None, entries });
        Some(length)
    }

    /// Takes the end of a read of dirty data.
    pub(super) fn batch_read(&mut self, number: u32, status: Status, io: &mut Io<'_>) {
        let Some(Some(batch)) = self.back.batches.get_mut(number as usize) else { return };
        batch.left -= 1;
        if !status.is_success() {
            batch.failed.get_or_insert(status);
        }
        if batch.left > 0 {
            return;
        }
        if batch.failed.is_some() {
            // Of several runs one may be unreadable, and the others go to the drive.
            if batch.entries.len() > 1 {
                self.back.single = batch.entries.len();
                self.back.cursor = batch.offset / self.geometry.line;
            }
            self.counts.device_errors += 1;
            return self.end_batch(number, false, "dirty data cannot be read from the cache", io);
        }
        let (offset, length) = (batch.offset, batch.length);
        let Some(part) = Part::of(&batch.buffer, 0, length as usize) else { return };
        let write = request(Operation::Write, offset, length, false);
        self.queues.push(DRIVE, write, Source::Part(part), Job::BatchWrite(number));
    }

    /// Takes the end of a write of dirty data to the drive.
    pub(super) fn batch_written(&mut self, number: u32, status: Status, io: &mut Io<'_>) {
        self.end_batch(number, status.is_success(), "dirty data cannot be written to the drive", io);
    }

    fn end_batch(&mut self, number: u32, is_good: bool, why: &str, io: &mut Io<'_>) {
        let Some(batch) = self.back.batches.get_mut(number as usize).and_then(Option::take) else { return };
        for Entry { slot, sectors, unchanged } in batch.entries {
            self.slots.get_mut(slot).pins -= 1;
            let pending = if is_good { self.slots.pend(slot, unchanged) } else { 0 };
            self.slots.unlist(slot, sectors & !pending);
            if pending != 0 {
                self.back.list(slot, pending);
            }
        }
        io.release(batch.buffer);
        self.ops.close(batch.op);
        if is_good {
            self.back.written += batch.length;
            self.counts.written_back += batch.length;
        } else {
            self.back_failed(why, io);
        }
    }

    /// Returns the time at which write-back goes on.
    pub(super) fn back_alarm_ns(&self, now_ns: u64) -> Option<u64> {
        let has_work = self.slots.lines.count() > 0 || !self.back.listed.is_empty();
        if !has_work || self.back.batches.iter().all(Option::is_some) {
            return None;
        }
        let idle_ns = self.back.host_ns.saturating_add(IDLE_NS);
        let due_ns = if self.is_hurried(now_ns) { now_ns } else { self.back.next_ns.min(idle_ns) };
        // Lines that are in use are tried again after a moment.
        Some(due_ns.max(self.back.paused_until_ns).max(now_ns + MOMENT_NS))
    }
}
