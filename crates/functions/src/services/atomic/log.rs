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

/// Counters of the live entries by place. Each counter is for many places.
const COUNTERS: u64 = 4096;

/// Most counters that are looked at for a command, before all slots are.
const LOOKS: u64 = 64;

/// Number of live entries by place, so that a command where none is looks at no slot.
#[derive(Debug, Default)]
struct Places {
    /// A place has this power of two of bytes, so that no entry has more than two.
    shift: u32,
    counts: Vec<u16>,
}

impl Places {
    fn new(limit: u64) -> Self {
        let shift = limit.next_power_of_two().trailing_zeros();
        Self { shift, counts: vec![0; COUNTERS as usize] }
    }

    fn of(&self, bytes: &Range<u64>) -> Range<u64> {
        match bytes.is_empty() {
            true => 0..0,
            false => bytes.start >> self.shift..((bytes.end - 1) >> self.shift) + 1,
        }
    }

    fn change(&mut self, bytes: &Range<u64>, change: impl Fn(u16) -> u16) {
        for place in self.of(bytes) {
            let count = &mut self.counts[(place % COUNTERS) as usize];
            *count = change(*count);
        }
    }

    /// Returns whether an entry may lie on these bytes.
    fn may_have(&self, bytes: &Range<u64>) -> bool {
        let mut places = self.of(bytes);
        places.end - places.start > LOOKS || places.any(|place| self.counts[(place % COUNTERS) as usize] > 0)
    }
}

/// Slots with the live entries, and the order in which they end.
#[derive(Debug, Default)]
pub(super) struct Log {
    places: Places,
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
            places: Places::new(geometry.limit),
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
        self.places.change(bytes, |count| count + 1);
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
        let mut live = self.slots.iter().flatten();
        self.used() > 0
            && self.places.may_have(bytes)
            && live.any(|live| live.bytes.start < bytes.end && bytes.start < live.bytes.end)
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
            if let Some(live) = slot.take_if(|live| live.sequence < watermark) {
                self.places.change(&live.bytes, |count| count.saturating_sub(1));
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

    /// Compares with a look at all entries, on places that share counters and on long commands.
    #[test]
    fn an_entry_overlaps_what_its_bytes_do() {
        let mut log = Log::new(&Geometry { id: 1, limit: 12288, slots: 64 }, 0);
        let mut random = sluice_sim::Random::new(1);
        let mut live: Vec<(u64, Range<u64>)> = Vec::new();
        let (mut found, mut kept) = (0, 0);
        for _ in 0..20_000 {
            let start = 512 * random.below(128) + random.below(3) * (COUNTERS << 14);
            let length =
                if random.one_in(20) { 512 * random.between(1, 8192) } else { 512 * random.between(1, 24) };
            let bytes = start..start + length;
            let overlaps = live.iter().any(|(_, of)| of.start < bytes.end && bytes.start < of.end);
            assert_eq!(log.overlaps(&bytes), overlaps, "{bytes:?}");
            found += u64::from(overlaps);
            if length <= 12288
                && random.one_in(3)
                && let Some(entry) = log.take(&bytes)
            {
                live.push((entry.sequence, bytes));
                kept += 1;
            }
            if random.one_in(30) {
                let watermark = log.next - random.below(8).min(log.next);
                log.retire(watermark.max(log.watermark));
                live.retain(|(sequence, _)| *sequence >= log.watermark);
            }
        }
        assert!(found > 1000 && kept > 1000);
        log.retire(log.next);
        assert!(log.places.counts.iter().all(|count| *count == 0));
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
