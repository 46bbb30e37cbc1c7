//! Slots of the log in memory: which entries a restart would write to their places again.

use super::format::{Entry, Geometry};
use std::ops::Range;

/// Entry that a restart would write again.
#[derive(Clone, Debug)]
struct Live {
    sequence: u64,
    bytes: Range<u64>,
    /// Number of the end of the write to its place, counted over all entries; none before that end.
    placed: Option<u64>,
}

/// Slots with the live entries, and the order in which they end.
#[derive(Debug, Default)]
pub(super) struct Log {
    slots: Vec<Option<Live>>,
    free: Vec<u32>,
    /// Sequence number of the next entry.
    next: u64,
    /// Sequence number before which no entry is live, as the superblock has it.
    watermark: u64,
    /// Number of entries that are at their places, and the number of them that are durable there.
    placed: u64,
    flushed: u64,
}

impl Log {
    /// Creates the slots of a log without live entries.
    pub(super) fn new(geometry: &Geometry, watermark: u64) -> Self {
        Self {
            slots: (0..geometry.slots).map(|_| None).collect(),
            free: (0..geometry.slots).rev().collect(),
            next: watermark,
            watermark,
            placed: 0,
            flushed: 0,
        }
    }

    /// Returns the number of live entries.
    pub(super) fn used(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns whether half of the slots are in use.
    pub(super) fn is_filling(&self) -> bool {
        self.free.len() * 2 <= self.slots.len()
    }

    pub(super) fn has_slot(&self) -> bool {
        !self.free.is_empty()
    }

    /// Takes a slot for a write to these bytes.
    pub(super) fn take(&mut self, bytes: &Range<u64>) -> Option<Entry> {
        let slot = self.free.pop()?;
        let sequence = self.next;
        self.next += 1;
        self.slots[slot as usize] = Some(Live { sequence, bytes: bytes.clone(), placed: None });
        Some(Entry { sequence, slot, offset: bytes.start, length: (bytes.end - bytes.start) as u32 })
    }

    /// Notes that nothing more of this entry is under way: its data is at its place, or never goes there.
    pub(super) fn placed(&mut self, slot: u32) {
        if let Some(Some(live)) = self.slots.get_mut(slot as usize) {
            self.placed += 1;
            live.placed = Some(self.placed);
        }
    }

    /// Returns whether a restart would write to these bytes.
    pub(super) fn overlaps(&self, bytes: &Range<u64>) -> bool {
        let live = self.slots.iter().flatten();
        self.used() > 0
            && live.clone().any(|live| live.bytes.start < bytes.end && bytes.start < live.bytes.end)
    }

    /// Begins a flush of the data. Returns the number for [`end_flush`](Self::end_flush).
    pub(super) fn begin_flush(&self) -> u64 {
        self.placed
    }

    /// Ends a flush with success.
    pub(super) fn end_flush(&mut self, begun: u64) {
        self.flushed = self.flushed.max(begun);
    }

    /// Returns the lowest sequence number of a live entry that is not durable at its place.
    pub(super) fn durable_before(&self) -> u64 {
        self.lowest(|live| live.placed.is_some_and(|number| number <= self.flushed))
    }

    /// Returns whether a flush, and a write of the superblock after it, would free a slot.
    pub(super) fn can_advance(&self) -> bool {
        self.lowest(|live| live.placed.is_some()) > self.watermark
    }

    /// Leaves one sequence number out, so that a log without live entries can have another watermark.
    pub(super) fn skip(&mut self) {
        self.next += 1;
    }

    fn lowest(&self, is_over: impl Fn(&Live) -> bool) -> u64 {
        let open = self.slots.iter().flatten().filter(|live| !is_over(live));
        open.map(|live| live.sequence).min().unwrap_or(self.next)
    }

    /// Sets the watermark that the superblock has now, and frees the slots of the entries before it.
    pub(super) fn retire(&mut self, watermark: u64) {
        self.watermark = watermark;
        for (number, slot) in (0..).zip(&mut self.slots) {
            if slot.as_ref().is_some_and(|live| live.sequence < watermark) {
                *slot = None;
                self.free.push(number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log() -> Log {
        Log::new(&Geometry { id: 1, limit: 4096, slots: 4 }, 100)
    }

    #[test]
    fn a_slot_is_free_again_when_its_data_and_all_before_it_are_durable() {
        let mut log = log();
        let [first, second] = [0..4096, 8192..9216].map(|bytes| log.take(&bytes).expect("there is room"));
        assert_eq!((first.sequence, second.sequence, second.length), (100, 101, 1024));
        log.placed(second.slot);
        let begun = log.begin_flush();
        log.end_flush(begun);
        assert!(!log.can_advance(), "the first holds the second");
        assert_eq!((log.durable_before(), log.used()), (100, 2));
        log.placed(first.slot);
        assert!(log.can_advance());
        assert_eq!(log.durable_before(), 100, "the flush had begun before");
        let begun = log.begin_flush();
        log.end_flush(begun);
        assert_eq!(log.durable_before(), 102);
        assert!(log.overlaps(&(0..512)), "the superblock does not have it yet");
        log.retire(102);
        assert_eq!((log.used(), log.can_advance(), log.overlaps(&(0..512))), (0, false, false));
    }

    #[test]
    fn a_full_log_has_no_slot_and_entries_overlap_their_bytes_only() {
        let mut log = log();
        for entry in 0..4u64 {
            assert!(log.has_slot());
            log.take(&(entry * 4096..entry * 4096 + 1024)).expect("there is room");
            assert_eq!(log.is_filling(), entry >= 1);
        }
        assert!(!log.has_slot() && log.take(&(0..512)).is_none());
        for (bytes, overlaps) in [(512..1024, true), (1024..4096, false), (4000..4097, true)] {
            assert_eq!(log.overlaps(&bytes), overlaps, "{bytes:?}");
        }
    }
}
