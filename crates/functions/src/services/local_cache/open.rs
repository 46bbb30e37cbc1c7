//! Opening: the superblock and the table are read, or a new cache is made on a blank device.

use super::format::{self, BLOCK, Found, Geometry, NO_LINE, PAIR, SUPERBLOCKS, Superblock};
use super::requests::{Job, Source, request};
use super::slots::Slots;
use super::{DEVICE, LocalCache, Phase, commit};
use sluice_command::{Operation, Storage};
use sluice_nvme::Status;
use sluice_uif::{Buffer, Io, Part};

/// Blocks of the table in one request.
const BLOCKS_AT_ONCE: u32 = 32;

/// Request of an opening that is to be sent, or is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Superblocks,
    /// Write of the blocks of an empty table, from this one on.
    Format(u32),
    /// Flush of the empty table.
    Formatted,
    /// Read of blocks of the table, from this one on.
    Table(u32),
    /// Flush of the table that was read: a process that ended may have left it in a cache.
    Flush,
    Store,
}

#[derive(Debug)]
pub(super) struct Opening {
    step: Step,
    superblock: Superblock,
    /// Copy of the superblock that counts.
    copy: u8,
    slots: Slots,
    buffer: Option<Buffer>,
    /// End of the dirty data.
    needed: u64,
}

/// Identity of the cache as its superblock has it.
#[derive(Debug, Default)]
pub(super) struct Identity {
    superblock: Superblock,
    /// Copy of the superblock that counts.
    copy: u8,
    /// Whether the number of the drive's storage was known when the cache was opened, or later.
    is_checked: bool,
    /// Memory of a superblock that is being written.
    buffer: Option<Buffer>,
}

/// Reason to refuse a cache.
pub(super) const OTHER_DRIVE: &str =
    "the cache has writes of another drive, which are not on it yet; give that drive back to it first";

/// Reason to refuse a drive that may be another one.
pub(super) const UNKNOWN_DRIVE: &str = "the cache has dirty data, and it is not known yet whether the drive is the right one; start it when the drive is there";

/// Reason to refuse a drive with larger blocks.
pub(super) const LARGER_BLOCKS: &str = "the cache has dirty data in smaller blocks than the drive; give the drive its former block size, and order `flush`";

fn is_known(id: u128) -> bool {
    id != 0 && id != Storage::UNSEEN.id
}

/// Returns whether two numbers are of different storage.
fn differ(one: u128, other: u128) -> bool {
    is_known(one) && is_known(other) && one != other
}

impl LocalCache {
    pub(super) fn begin_open(&mut self, io: &mut Io<'_>) {
        let (step, superblock, slots) = (Step::Superblocks, Superblock::default(), Slots::default());
        self.phase =
            Phase::Opening(Box::new(Opening { step, superblock, copy: 1, slots, buffer: None, needed: 0 }));
        self.send_open(io);
    }

    fn send_open(&mut self, io: &mut Io<'_>) {
        let Phase::Opening(opening) = &mut self.phase else { return };
        let geometry = opening.superblock.geometry;
        let blocks = |first: u32| BLOCKS_AT_ONCE.min(geometry.blocks() - first) as usize;
        let (operation, at, length) = match opening.step {
            Step::Superblocks => (Operation::Read, 0, SUPERBLOCKS),
            Step::Format(first) => (Operation::Write, geometry.block_at(first, 0), blocks(first) * PAIR),
            Step::Table(first) => (Operation::Read, geometry.block_at(first, 0), blocks(first) * PAIR),
            Step::Flush | Step::Formatted => (Operation::Flush, 0, 0),
            Step::Store => (Operation::Write, u64::from(1 - opening.copy) * BLOCK as u64, BLOCK),
        };
        if operation == Operation::Flush {
            return self.queues.push(DEVICE, request(operation, 0, 0, false), Source::None, Job::Open);
        }
        let Some(buffer) = io.buffer(length) else { return self.open_failed(Status::INTERNAL_ERROR, io) };
        match opening.step {
            Step::Format(first) => {
                for (block, pair) in (first..).zip(io.bytes(&buffer).chunks_exact_mut(PAIR)) {
                    let (even, odd) = pair.split_at_mut(BLOCK);
                    let empty = geometry.slots_of(block).map(|_| format::Entry { line: NO_LINE, dirty: 0 });
                    format::write_block(even, geometry.id, block, 1, empty);
                    odd.fill(0);
                }
            }
            Step::Store => format::write_superblock(io.bytes(&buffer), &opening.superblock),
            _ => {}
        }
        let part = Part::of(&buffer, 0, length);
        opening.buffer = Some(buffer);
        if let Some(part) = part {
            let request = request(operation, at, length as u64, operation == Operation::Write);
            self.queues.push(DEVICE, request, Source::Part(part), Job::Open);
        }
    }

    /// Takes a request of the opening back.
    pub(super) fn open_done(&mut self, status: Status, io: &mut Io<'_>) {
        let Phase::Opening(mut opening) = std::mem::replace(&mut self.phase, Phase::Closed) else { return };
        let buffer = opening.buffer.take();
        if !status.is_success() {
            buffer.into_iter().for_each(|buffer| io.release(buffer));
            if status.same_code(Status::WRITES_LOST) {
                // The table is read as it is now. An earlier process may have acknowledged writes that are lost.
                self.owes_flush = true;
                return self.begin_open(io);
            }
            return self.open_failed(status, io);
        }
        let next = match &buffer {
            Some(buffer) => self.open_step(&mut opening, io.bytes(buffer)),
            None => self.open_step(&mut opening, &[]),
        };
        buffer.into_iter().for_each(|buffer| io.release(buffer));
        match next {
            Ok(Some(step)) => {
                opening.step = step;
                self.phase = Phase::Opening(opening);
                self.send_open(io);
            }
            Ok(None) => self.opened(*opening, io),
            Err(why) => self.refuse(&why, io),
        }
    }

    /// Returns the step after the one that is done; none at the end.
    fn open_step(&self, opening: &mut Opening, bytes: &[u8]) -> Result<Option<Step>, String> {
        let next = match opening.step {
            Step::Superblocks => self.superblock_found(opening, bytes)?,
            Step::Format(first) => match first + BLOCKS_AT_ONCE {
                next if next < opening.superblock.geometry.blocks() => Step::Format(next),
                _ => Step::Formatted,
            },
            Step::Table(first) => {
                self.take_table(opening, first, bytes)?;
                match first + BLOCKS_AT_ONCE {
                    next if next < opening.superblock.geometry.blocks() => Step::Table(next),
                    _ => Step::Flush,
                }
            }
            Step::Formatted => Step::Store,
            Step::Flush => {
                opening.slots.end_load();
                opening.slots.table_flushed(&opening.superblock.geometry);
                let before = opening.superblock.storage;
                if opening.slots.dirty().0 > 0 {
                    self.check_drive(opening)?;
                }
                if before == self.drive.id || !is_known(self.drive.id) {
                    return Ok(None);
                }
                opening.superblock.storage = self.drive.id;
                opening.superblock.sequence += 1;
                Step::Store
            }
            Step::Store => {
                opening.copy = 1 - opening.copy;
                return Ok(None);
            }
        };
        Ok(Some(next))
    }

    /// Checks that the dirty data can be written to the drive.
    fn check_drive(&self, opening: &Opening) -> Result<(), String> {
        let before = opening.superblock.storage;
        if differ(before, self.drive.id) {
            return Err(OTHER_DRIVE.to_owned());
        }
        if is_known(before) && !is_known(self.drive.id) {
            return Err(UNKNOWN_DRIVE.to_owned());
        }
        if opening.needed > self.drive.size {
            let (needed, size) = (opening.needed, self.drive.size);
            return Err(format!(
                "the cache has dirty data up to byte {needed}, and the drive has {size}; make it as large again"
            ));
        }
        if !opening.slots.has_whole_blocks(self.drive.block_size.into()) {
            return Err(LARGER_BLOCKS.to_owned());
        }
        Ok(())
    }

    fn superblock_found(&self, opening: &mut Opening, bytes: &[u8]) -> Result<Step, String> {
        let (found, copy) = format::read_superblocks(bytes);
        opening.copy = copy;
        match found {
            Found::Good(superblock) if superblock.geometry.end() > self.device.size => {
                Err("the cache's device has become smaller".to_owned())
            }
            Found::Good(superblock) => {
                let lines = self.drive.size.div_ceil(superblock.geometry.line);
                opening.slots = Slots::new(&superblock.geometry, lines);
                opening.superblock = superblock;
                Ok(Step::Table(0))
            }
            Found::Later(version) => {
                Err(format!("the cache has version {version}, which is later than this program"))
            }
            Found::Other => Err("the cache's device holds something else; to begin a new cache there, \
                 overwrite its first 8 KiB with zeros"
                .to_owned()),
            Found::Blank => {
                let geometry = self.new_geometry();
                if u64::from(geometry.slots) < format::SLOTS_MIN {
                    let least = (format::SLOTS_MIN + 2) * geometry.line;
                    return Err(format!("the cache's device needs {least} bytes at least"));
                }
                let lines = self.drive.size.div_ceil(geometry.line);
                opening.slots = Slots::new(&geometry, lines);
                opening.superblock = Superblock { geometry, sequence: 1, storage: self.drive.id };
                (0..geometry.blocks()).for_each(|block| opening.slots.table.load(block, 0, 1));
                opening.slots.table_flushed(&geometry);
                Ok(Step::Format(0))
            }
        }
    }

    /// Takes blocks of the table, from this one on.
    fn take_table(&self, opening: &mut Opening, first: u32, bytes: &[u8]) -> Result<(), String> {
        let geometry: Geometry = opening.superblock.geometry;
        for (block, pair) in (first..geometry.blocks()).zip(bytes.chunks_exact(PAIR)) {
            let Some((copy, sequence)) = format::read_pair(pair, geometry.id, block) else {
                return Err(format!("block {block} of the cache's table is damaged: dirty data may be lost"));
            };
            opening.slots.table.load(block, copy, sequence);
            let content = pair.get(usize::from(copy) * BLOCK..).unwrap_or_default();
            let content = content.get(..BLOCK).unwrap_or_default();
            for (slot, entry) in geometry.slots_of(block).zip(format::entries(content)) {
                if entry.dirty == 0 {
                    continue;
                }
                let end = format::runs(entry.dirty).map(|run| run.end).max().unwrap_or_default();
                let end = entry.line.checked_mul(geometry.line).and_then(|first| first.checked_add(end));
                let Some(end) = end.filter(|_| {
                    format::mask(0, geometry.line) | entry.dirty == format::mask(0, geometry.line)
                }) else {
                    return Err(format!("block {block} of the cache's table names sectors that cannot be"));
                };
                opening.needed = opening.needed.max(end);
                if !opening.slots.load(slot, entry.line, entry.dirty) {
                    return Err(format!("two slots of the cache have line {}", entry.line));
                }
            }
        }
        Ok(())
    }

    fn opened(&mut self, opening: Opening, io: &mut Io<'_>) {
        let Opening { superblock, slots, copy, .. } = opening;
        self.geometry = superblock.geometry;
        self.identity = Identity { superblock, copy, is_checked: is_known(self.drive.id), buffer: None };
        self.slots = slots;
        (self.back, self.commit) = Default::default();
        (self.drive_unflushed, self.device_unflushed) = (true, true);
        self.error.clear();
        self.phase = Phase::Open;
        let (lines, sectors) = self.slots.dirty();
        if lines > 0 {
            tracing::info!("local-cache has {sectors} dirty sectors in {lines} lines");
        }
        self.is_announced = true;
        io.ready(Status::SUCCESS);
        self.admit(io);
    }

    /// Returns whether a drive that could not be seen when the cache was opened is not that of its dirty data.
    pub(super) fn is_other_drive(&self) -> bool {
        !self.identity.is_checked
            && differ(self.identity.superblock.storage, self.drive.id)
            && self.slots.dirty().0 > 0
    }

    /// Stores the number of the drive's storage, if it is another one with the same data.
    pub(super) fn store_identity(&mut self, io: &mut Io<'_>) {
        let id = self.drive.id;
        self.identity.is_checked |= is_known(id);
        let is_stored = !is_known(id) || self.identity.superblock.storage == id;
        if is_stored || self.identity.buffer.is_some() {
            return;
        }
        let Some(buffer) = io.buffer(BLOCK) else { return };
        let superblock = &mut self.identity.superblock;
        (superblock.storage, superblock.sequence) = (id, superblock.sequence + 1);
        format::write_superblock(io.bytes(&buffer), superblock);
        let at = u64::from(1 - self.identity.copy) * BLOCK as u64;
        if let Some(part) = Part::of(&buffer, 0, BLOCK) {
            let write = request(Operation::Write, at, BLOCK as u64, true);
            self.queues.push(DEVICE, write, Source::Part(part), Job::Identity);
        }
        self.identity.buffer = Some(buffer);
    }

    pub(super) fn identity_stored(&mut self, status: Status, io: &mut Io<'_>) {
        self.identity.buffer.take().into_iter().for_each(|buffer| io.release(buffer));
        if status.is_success() {
            self.identity.copy = 1 - self.identity.copy;
            return self.store_identity(io);
        }
        tracing::warn!("local-cache cannot store the number of its drive: {status:?}");
        self.identity.superblock.storage = 0;
        self.note_device_failure(io);
    }

    pub(super) fn is_storing(&self) -> bool {
        self.identity.buffer.is_some()
    }

    fn open_failed(&mut self, status: Status, io: &mut Io<'_>) {
        tracing::error!("local-cache cannot use the cache's device: {status:?}");
        self.phase = Phase::Failed { again_ns: io.now_ns().saturating_add(commit::RETRY_NS) };
        self.fail_waiting(io);
        if !std::mem::replace(&mut self.is_announced, true) {
            io.ready(Status::NAMESPACE_NOT_READY);
        }
    }
}
