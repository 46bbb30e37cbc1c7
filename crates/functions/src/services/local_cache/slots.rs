//! Slots of the cache: the lines in them, and their sectors.
//!
//! Only lines without dirty sectors leave, and only when the table on the disk does not name their slot.

use super::dirty::DirtyLines;
use super::format::{Entry, Geometry, NO_LINE, SLOTS_OF_BLOCK, is_whole, mask};
use super::table::Table;
use crate::eviction::{Entries, Head, Queues, count_use};
use std::collections::HashMap;

#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) line: u64,
    /// Sectors that reads take from the slot.
    pub(super) valid: u128,
    /// Sectors that the table is to name: the drive does not have them, or not durable.
    pub(super) dirty: u128,
    /// Sectors that the table names, as it was written last.
    pub(super) written: u128,
    /// Dirty sectors in the block of the table that was made last, which may be on the disk or not.
    imaged: u128,
    /// Whether the slot is named by a content of the table that a power cut may leave.
    is_named: bool,
    /// Dirty sectors that the drive has, but perhaps not durable.
    pub(super) pending: u128,
    /// Commands that use the slot, and those of them that write into it.
    pub(super) pins: u32,
    pub(super) writers: u32,
    pub(super) uses: u8,
    /// Sectors that are on their way to the drive, or wait for its flush.
    pub(super) listed: u128,
}

const EMPTY: Slot = Slot {
    line: NO_LINE,
    valid: 0,
    dirty: 0,
    written: 0,
    imaged: 0,
    is_named: false,
    pending: 0,
    pins: 0,
    writers: 0,
    uses: 0,
    listed: 0,
};

impl Slot {
    fn is_clean(&self) -> bool {
        self.dirty | self.listed == 0 && self.pins == 0 && !self.is_named
    }
}

impl Entries for Vec<Slot> {
    fn head(&mut self, number: u32) -> Head<'_> {
        match &mut self[number as usize] {
            slot if !slot.is_clean() => Head::Held,
            Slot { line: NO_LINE, .. } => Head::Empty,
            Slot { line, uses, .. } => Head::Named { name: *line, uses },
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Slots {
    list: Vec<Slot>,
    by_line: HashMap<u64, u32>,
    free: Vec<u32>,
    queues: Queues,
    pub(super) lines: DirtyLines,
    pub(super) table: Table,
    dirty_slots: u64,
    dirty_sectors: u64,
}

impl Slots {
    pub(super) fn new(geometry: &Geometry, lines: u64) -> Self {
        let count = geometry.slots as usize;
        Self {
            list: vec![EMPTY; count],
            by_line: HashMap::with_capacity(count),
            free: (0..geometry.slots).rev().collect(),
            queues: Queues::new(count),
            lines: DirtyLines::new(lines),
            table: Table::new(geometry.blocks()),
            dirty_slots: 0,
            dirty_sectors: 0,
        }
    }

    pub(super) fn get(&self, slot: u32) -> &Slot {
        &self.list[slot as usize]
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> &mut Slot {
        &mut self.list[slot as usize]
    }

    pub(super) fn of_line(&self, line: u64) -> Option<u32> {
        self.by_line.get(&line).copied()
    }

    /// Returns the number of slots with dirty sectors, and the number of such sectors.
    pub(super) fn dirty(&self) -> (u64, u64) {
        (self.dirty_slots, self.dirty_sectors)
    }

    pub(super) fn used(&self) -> usize {
        self.by_line.len()
    }

    /// Notes that a line is used.
    pub(super) fn touch(&mut self, slot: u32) {
        count_use(&mut self.get_mut(slot).uses);
    }

    /// Puts a line with dirty sectors into its slot, as the table has it. Returns false if that cannot be.
    pub(super) fn load(&mut self, slot: u32, line: u64, dirty: u128) -> bool {
        if self.by_line.insert(line, slot).is_some() {
            return false;
        }
        *self.get_mut(slot) = Slot { line, valid: dirty, written: dirty, is_named: true, ..EMPTY };
        self.set_dirty_mask(slot, dirty);
        self.queues.add_used(slot);
        true
    }

    /// Ends loading: slots with a line are not free.
    pub(super) fn end_load(&mut self) {
        let list = &self.list;
        self.free.retain(|slot| list[*slot as usize].line == NO_LINE);
    }

    /// Returns a slot for a line that has none; none if no slot can be given up.
    pub(super) fn allocate(&mut self, line: u64) -> Option<u32> {
        let slot = self.free.pop().or_else(|| self.evict())?;
        *self.get_mut(slot) = Slot { line, ..EMPTY };
        self.by_line.insert(line, slot);
        self.queues.add(line, slot);
        Some(slot)
    }

    /// Returns whether the slot can get another line: nothing uses it, and no table on the disk names it.
    pub(super) fn is_clean(&self, slot: u32) -> bool {
        self.get(slot).is_clean()
    }

    /// Removes a clean line. Its slot keeps its place in the queue, and is the next that is free there.
    pub(super) fn remove(&mut self, slot: u32) {
        let line = self.get(slot).line;
        self.by_line.remove(&line);
        *self.get_mut(slot) = EMPTY;
    }

    fn evict(&mut self) -> Option<u32> {
        let slot = self.queues.take(&mut self.list, false)?;
        self.remove(slot);
        Some(slot)
    }

    /// Notes a write into the slot: these sectors are valid and dirty.
    pub(super) fn write(&mut self, slot: u32, mask: u128) {
        let it = self.get_mut(slot);
        it.valid |= mask;
        it.pending &= !mask;
        let dirty = it.dirty | mask;
        self.set_dirty_mask(slot, dirty);
    }

    /// Notes that reads take these sectors from the drive.
    pub(super) fn invalidate(&mut self, slot: u32, mask: u128) {
        self.get_mut(slot).valid &= !mask;
        self.note_line(slot);
    }

    /// Notes that the drive has these sectors, not durable yet. Returns the dirty ones among them.
    pub(super) fn pend(&mut self, slot: u32, mask: u128) -> u128 {
        let it = self.get_mut(slot);
        let mask = mask & it.dirty;
        it.pending |= mask;
        self.note_line(slot);
        mask
    }

    /// Adds sectors to those on their way to the drive.
    pub(super) fn list(&mut self, slot: u32, mask: u128) {
        self.get_mut(slot).listed |= mask;
        self.note_line(slot);
    }

    pub(super) fn unlist(&mut self, slot: u32, mask: u128) {
        self.get_mut(slot).listed &= !mask;
        self.note_line(slot);
    }

    /// Notes that the drive does not have these sectors for certain.
    pub(super) fn unpend(&mut self, slot: u32, mask: u128) {
        self.get_mut(slot).pending &= !mask;
        self.note_line(slot);
    }

    /// Notes that the drive has the pending ones of these sectors, durable. Returns their number.
    pub(super) fn clean(&mut self, slot: u32, mask: u128) -> u64 {
        let it = self.get_mut(slot);
        let clean = mask & it.pending & it.dirty;
        it.pending &= !clean;
        let dirty = it.dirty & !clean;
        self.set_dirty_mask(slot, dirty);
        clean.count_ones().into()
    }

    fn set_dirty_mask(&mut self, slot: u32, dirty: u128) {
        let it = &mut self.list[slot as usize];
        let before = std::mem::replace(&mut it.dirty, dirty);
        let is_changed = dirty != it.written;
        self.dirty_sectors =
            self.dirty_sectors - u64::from(before.count_ones()) + u64::from(dirty.count_ones());
        self.dirty_slots = self.dirty_slots - u64::from(before != 0) + u64::from(dirty != 0);
        if is_changed {
            self.table.change(slot / SLOTS_OF_BLOCK);
        }
        self.note_line(slot);
    }

    /// Returns the sectors that are to be written to the drive.
    pub(super) fn to_write_back(&self, slot: u32) -> u128 {
        let it = self.get(slot);
        it.dirty & it.valid & !it.pending & !it.listed
    }

    fn note_line(&mut self, slot: u32) {
        let is_dirty = self.to_write_back(slot) != 0;
        let line = self.get(slot).line;
        if line != NO_LINE {
            self.lines.set(line, is_dirty);
        }
    }

    /// Returns whether a restart would find all dirty ones of these sectors.
    pub(super) fn is_stored(&self, slot: u32, mask: u128) -> bool {
        let it = self.get(slot);
        let block = slot / SLOTS_OF_BLOCK;
        let stored = match self.table.is_certain(block) {
            true => it.written,
            // The older copy may be the one that a restart reads.
            false if self.table.is_uncertain(block) => 0,
            false => it.written & it.imaged,
        };
        mask & it.dirty & !stored == 0
    }

    /// Returns whether the table on the disk may name sectors of the slot.
    pub(super) fn is_named(&self, slot: u32) -> bool {
        self.get(slot).is_named
    }

    /// Returns the entry of a slot for a block of the table that is about to be written.
    pub(super) fn image(&mut self, slot: u32) -> Entry {
        let it = self.get_mut(slot);
        it.imaged = it.dirty;
        it.is_named |= it.dirty != 0;
        Entry { line: if it.dirty == 0 { NO_LINE } else { it.line }, dirty: it.dirty }
    }

    /// Notes that all writes of the table so far are durable.
    pub(super) fn table_flushed(&mut self, geometry: &Geometry) {
        while let Some(block) = self.table.flushed() {
            let is_certain = self.table.is_certain(block);
            for slot in geometry.slots_of(block) {
                let it = self.get_mut(slot);
                it.is_named = it.written != 0 || !is_certain && it.imaged != 0;
            }
        }
    }

    /// Drops all sectors that are not dirty, after writes may be lost.
    pub(super) fn drop_clean(&mut self) {
        self.list.iter_mut().for_each(|slot| slot.valid &= slot.dirty);
    }

    /// Drops the dirty sectors that the table does not name, after a loss of the cache's device. Their writes are not
    /// acknowledged, and their slots may have data of another line. The drive may have later data of the other dirty
    /// sectors: they are written there again.
    pub(super) fn device_lost(&mut self) {
        for slot in 0..self.list.len() as u32 {
            let Slot { valid, dirty, written, pending, .. } = *self.get(slot);
            self.drop_sectors(slot, dirty & !written);
            if pending & valid != 0 {
                self.unpend(slot, valid);
            }
        }
    }

    /// Drops all sectors behind the end of the drive.
    pub(super) fn shrink(&mut self, line_bytes: u64, size: u64) {
        for slot in 0..self.list.len() as u32 {
            let line = self.get(slot).line;
            if line != NO_LINE {
                let rest = size.saturating_sub(line.saturating_mul(line_bytes)).min(line_bytes);
                self.drop_sectors(slot, !mask(0, rest));
            }
        }
    }

    fn drop_sectors(&mut self, slot: u32, dropped: u128) {
        let it = self.get_mut(slot);
        it.valid &= !dropped;
        it.pending &= !dropped;
        let dirty = it.dirty & !dropped;
        if dirty != it.dirty {
            self.set_dirty_mask(slot, dirty);
        }
    }

    /// Returns whether all dirty sectors are whole blocks of so many bytes.
    pub(super) fn has_whole_blocks(&self, block_size: u64) -> bool {
        self.list.iter().all(|slot| is_whole(slot.dirty, block_size))
    }

    /// Makes sectors valid again that the drive may have lost: their slot has the last data that was acknowledged.
    pub(super) fn revalidate(&mut self, slot: u32, mask: u128) {
        let it = self.get_mut(slot);
        it.valid |= mask & it.dirty & it.pending;
        self.unpend(slot, mask);
    }
}
