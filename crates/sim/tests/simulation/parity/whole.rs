//! Check that no read shows a part of a write.

use sluice_command::Operation;
use sluice_sim::Tag;
use std::collections::BTreeMap;

/// Change of some blocks.
#[derive(Clone, Copy, Debug)]
struct Change {
    first: u64,
    blocks: u64,
    began: u64,
    ended: Option<u64>,
    /// Whether it must never be seen in part.
    is_whole: bool,
}

impl Change {
    fn covers(&self, block: u64) -> bool {
        (self.first..self.first + self.blocks).contains(&block)
    }

    fn is_before(&self, other: &Self) -> bool {
        self.ended.is_some_and(|ended| ended < other.began)
    }
}

/// All changes of a drive. Each block that was written shows its write.
#[derive(Debug, Default)]
pub(super) struct Whole {
    /// Most blocks of a write that is whole.
    limit: u64,
    /// Writes by their first tags.
    writes: BTreeMap<u64, Change>,
    zeros: Vec<Change>,
    now: u64,
    /// First tag of the write in each slot of the host.
    slots: BTreeMap<usize, u64>,
}

impl Whole {
    pub(super) fn new(limit: u64) -> Self {
        Self { limit, ..Self::default() }
    }

    pub(super) fn begin(&mut self, slot: usize, operation: Operation, first: u64, tags: &[Tag]) {
        self.now += 1;
        let blocks = tags.len() as u64;
        let is_whole = blocks <= self.limit && operation == Operation::Write;
        let change = Change { first, blocks, began: self.now, ended: None, is_whole };
        match operation {
            Operation::Write => {
                self.writes.insert(tags[0].0, change);
                self.slots.insert(slot, tags[0].0);
            }
            // It is never known which of them a block of zeros shows: each counts for ever.
            Operation::WriteZeroes | Operation::Deallocate => self.zeros.push(change),
            Operation::Read | Operation::Flush => {}
        }
    }

    pub(super) fn end(&mut self, slot: usize) {
        self.now += 1;
        if let Some(tag) = self.slots.remove(&slot) {
            self.writes.get_mut(&tag).expect("it began").ended = Some(self.now);
        }
    }

    /// Ends everything under way, for better or worse. Later writes are whole up to this limit.
    pub(super) fn crash(&mut self, limit: u64) {
        self.limit = limit;
        for slot in self.slots.keys().copied().collect::<Vec<_>>() {
            self.end(slot);
        }
    }

    fn write_of(&self, tag: Tag) -> Option<(u64, Change)> {
        self.writes.range(..=tag.0).next_back().map(|(first, change)| (*first, *change))
    }

    /// Checks the blocks of a read.
    pub(super) fn check(&self, first: u64, found: &[Tag]) {
        for (block, tag) in (first..).zip(found).filter(|(_, tag)| **tag != Tag::ZERO) {
            let (first_tag, write) = self.write_of(*tag).expect("it was written");
            assert_eq!(block, write.first + (tag.0 - first_tag), "{tag:?} is at its place");
            if !write.is_whole {
                continue;
            }
            for (other, shown) in (first..).zip(found).filter(|(other, _)| write.covers(*other)) {
                let problem = self.problem((block, &write), (other, *shown));
                assert!(problem.is_none(), "{write:?} is torn: block {other} shows {shown:?}: {problem:?}");
            }
        }
    }

    /// Returns the reason why a block cannot show this beside a block of the write.
    fn problem(&self, (block, write): (u64, &Change), (other, shown): (u64, Tag)) -> Option<String> {
        if shown == Tag::ZERO {
            let mut later = self.zeros.iter().filter(|zeros| zeros.covers(other) && !zeros.is_before(write));
            return later.next().is_none().then(|| "no zeros were written after it".to_owned());
        }
        let (_, change) = self.write_of(shown).expect("it was written");
        if change.began == write.began {
            return None;
        }
        let is_older = change.is_before(write);
        let is_mixed = change.is_whole && change.covers(block);
        (is_older || is_mixed).then(|| format!("{change:?}"))
    }
}

/// Checks the check itself, with writes that are whole and writes that are torn.
#[test]
fn a_torn_write_is_found() {
    let torn = |found: &[u64]| {
        let tags = |first: u64, count: u64| (first..first + count).map(Tag).collect::<Vec<_>>();
        let mut whole = Whole::new(8);
        whole.begin(0, Operation::Write, 0, &tags(10, 4));
        whole.end(0);
        whole.begin(0, Operation::Write, 0, &tags(20, 4));
        whole.begin(1, Operation::Write, 2, &tags(30, 4));
        let found: Vec<Tag> = found.iter().copied().map(Tag).collect();
        std::panic::catch_unwind(|| whole.check(0, &found)).is_err()
    };
    for good in
        [[10, 11, 12, 13, 0, 0], [20, 21, 22, 23, 0, 0], [20, 21, 30, 31, 32, 33], [10, 11, 30, 31, 32, 33]]
    {
        assert!(!torn(&good), "{good:?}");
    }
    for bad in
        [[20, 11, 12, 13, 0, 0], [20, 21, 22, 31, 32, 33], [20, 21, 30, 31, 0, 0], [21, 20, 22, 23, 0, 0]]
    {
        assert!(torn(&bad), "{bad:?}");
    }
}
