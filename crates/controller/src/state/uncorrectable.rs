//! Uncorrectable ranges, and their changes that wait or are being persisted.

use sluice_command::{Command, Slot};
use std::collections::VecDeque;
use std::ops::Range;

/// Uncorrectable ranges of a namespace.
pub const UNCORRECTABLE_RANGES_MAX: usize = 512;

/// Uncorrectable ranges of a namespace, in bytes, ordered and with a gap between any two.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct UncorrectableRanges(pub(crate) Vec<Range<u64>>);

impl UncorrectableRanges {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn overlap(&self, range: &Range<u64>) -> bool {
        let at = self.0.partition_point(|existing| existing.end <= range.start);
        self.0.get(at).is_some_and(|existing| existing.start < range.end)
    }

    pub(crate) fn add(&mut self, range: Range<u64>) {
        let (mut start, mut end) = (range.start, range.end);
        self.0.retain(|existing| {
            let joins = existing.start <= end && start <= existing.end;
            if joins {
                (start, end) = (start.min(existing.start), end.max(existing.end));
            }
            !joins
        });
        let at = self.0.partition_point(|existing| existing.end < start);
        self.0.insert(at, start..end);
    }

    pub(crate) fn remove(&mut self, range: &Range<u64>) {
        let left = |existing: Range<u64>| {
            let (before, after) =
                (existing.start..existing.end.min(range.start), existing.start.max(range.end)..existing.end);
            [before, after].into_iter().filter(|part| part.start < part.end)
        };
        self.0 = std::mem::take(&mut self.0).into_iter().flat_map(left).collect();
    }
}

/// Changes of uncorrectable ranges, one after the other.
#[derive(Debug, Default)]
pub(crate) struct UncorrectableUpdates {
    pub(crate) waiting: VecDeque<Step>,
    pub(crate) persisting: Option<Persisting>,
}

#[derive(Debug)]
pub(crate) enum Step {
    /// Command whose end adds or removes ranges.
    Command(Command),
    /// End of the namespace, or of its old blocks, at this byte.
    Truncate { nsid: u32, end: u64 },
}

/// Commands whose change is being persisted. They share one record, since the [rate is
/// limited](crate::state::persist).
#[derive(Debug)]
pub(crate) struct Persisting {
    pub(crate) commands: Vec<Command>,
    pub(crate) nsid: u32,
    /// Ranges of the namespace if persisting fails, and if it succeeds.
    pub(crate) before: UncorrectableRanges,
    pub(crate) after: UncorrectableRanges,
}

impl Drop for UncorrectableUpdates {
    fn drop(&mut self) {
        let persisting = self.persisting.take().into_iter().flat_map(|persisting| persisting.commands);
        let waiting = self.waiting.drain(..).filter_map(|step| match step {
            Step::Command(command) => Some(command),
            Step::Truncate { .. } => None,
        });
        persisting.chain(waiting).for_each(std::mem::forget);
    }
}

/// Returns the bytes of a command's request.
pub(crate) fn bytes(slot: &Slot) -> Range<u64> {
    slot.request.offset..slot.request.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with a list of blocks, for reproducible pseudo-random numbers.
    #[test]
    fn ranges_follow_a_model_of_blocks() {
        let (mut ranges, mut model, mut state) = (UncorrectableRanges::default(), [false; 64], 1u64);
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..20_000 {
            let start = random(64);
            let end = start + random(64 - start) + 1;
            let marked = random(2) == 0;
            match marked {
                true => ranges.add(start..end),
                false => ranges.remove(&(start..end)),
            }
            model[start as usize..end as usize].fill(marked);
            for block in 0..64 {
                assert_eq!(ranges.overlap(&(block..block + 1)), model[block as usize], "{ranges:?}");
            }
            assert!(ranges.0.windows(2).all(|two| two[0].end < two[1].start), "{ranges:?}");
            assert!(ranges.0.iter().all(|existing| existing.start < existing.end), "{ranges:?}");
        }
    }
}
