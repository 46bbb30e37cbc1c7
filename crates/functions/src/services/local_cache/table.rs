//! Blocks of the table of dirty sectors: which are to be written, and which copy of each is durable.

use std::collections::VecDeque;

/// State of a block of the table.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Block {
    /// Count of its writes, and the copy that was written last.
    pub(super) sequence: u64,
    pub(super) copy: u8,
    /// Whether it differs from the slots.
    is_changed: bool,
    /// Whether it is being written.
    is_busy: bool,
    /// Whether a write failed, so that both contents are possible.
    is_uncertain: bool,
    /// Whether the last write may be in a cache of the device.
    is_unflushed: bool,
}

#[derive(Debug, Default)]
pub(super) struct Table {
    blocks: Vec<Block>,
    changed: VecDeque<u32>,
    /// Changes so far, and those of them that were taken.
    pushed: u64,
    taken: u64,
    unflushed: Vec<u32>,
    busy: u32,
    uncertain: u32,
}

impl Table {
    pub(super) fn new(blocks: u32) -> Self {
        let room = blocks as usize;
        Self {
            blocks: vec![Block::default(); room],
            changed: VecDeque::with_capacity(room),
            pushed: 0,
            taken: 0,
            unflushed: Vec::with_capacity(room),
            busy: 0,
            uncertain: 0,
        }
    }

    /// Notes the copy and the count of a block that was read.
    pub(super) fn load(&mut self, block: u32, copy: u8, sequence: u64) {
        let it = &mut self.blocks[block as usize];
        (it.copy, it.sequence) = (copy, sequence);
        // A process that ended may have written it without a flush.
        it.is_unflushed = true;
        self.unflushed.push(block);
    }

    pub(super) fn get(&self, block: u32) -> Block {
        self.blocks[block as usize]
    }

    /// Returns whether the content of a block on the disk is certain.
    pub(super) fn is_certain(&self, block: u32) -> bool {
        let it = self.get(block);
        !(it.is_busy || it.is_uncertain)
    }

    /// Returns whether an earlier content of a block may be on the disk.
    pub(super) fn is_uncertain(&self, block: u32) -> bool {
        self.get(block).is_uncertain
    }

    /// Returns whether that is so for any block.
    pub(super) fn has_uncertain(&self) -> bool {
        self.uncertain > 0
    }

    /// Returns whether a block waits to be written.
    pub(super) fn has_waiting(&self) -> bool {
        !self.changed.is_empty()
    }

    fn set_uncertain(&mut self, block: u32, is_uncertain: bool) {
        let it = &mut self.blocks[block as usize];
        let before = std::mem::replace(&mut it.is_uncertain, is_uncertain);
        self.uncertain = self.uncertain + u32::from(is_uncertain) - u32::from(before);
    }

    pub(super) fn has_changes(&self) -> bool {
        !self.changed.is_empty() || self.busy > 0
    }

    pub(super) fn has_unflushed(&self) -> bool {
        !self.unflushed.is_empty()
    }

    /// Notes that a block differs from the slots.
    pub(super) fn change(&mut self, block: u32) {
        let it = &mut self.blocks[block as usize];
        if !std::mem::replace(&mut it.is_changed, true) {
            self.changed.push_back(block);
            self.pushed += 1;
        }
    }

    /// Returns the number of changes so far, and the number of taken ones.
    pub(super) fn changes(&self) -> (u64, u64) {
        (self.pushed, self.taken)
    }

    /// Takes a changed block that is about to be written. Returns the copy and the count of the write.
    pub(super) fn take(&mut self) -> Option<(u32, u8, u64)> {
        let block = self.changed.pop_front()?;
        self.taken += 1;
        let it = &mut self.blocks[block as usize];
        (it.is_changed, it.is_busy) = (false, true);
        it.sequence += 1;
        self.busy += 1;
        Some((block, 1 - it.copy, it.sequence))
    }

    /// Ends a write of a block, or gives it up before it was sent.
    pub(super) fn put(&mut self, block: u32, end: End) {
        let it = &mut self.blocks[block as usize];
        it.is_busy = false;
        self.busy -= 1;
        match end {
            End::Written => {
                it.copy = 1 - it.copy;
                it.is_unflushed = true;
                self.unflushed.push(block);
                self.set_uncertain(block, false);
            }
            End::Failed => {
                self.set_uncertain(block, true);
                self.change(block);
            }
            End::Unsent => self.change(block),
        }
    }

    /// Notes that the writes of a block are durable. Returns the block; none if those of all blocks are.
    pub(super) fn flushed(&mut self) -> Option<u32> {
        let block = self.unflushed.pop()?;
        self.blocks[block as usize].is_unflushed = false;
        Some(block)
    }

    /// Notes that the writes since the last flush may be lost: they are written again, in the same copy.
    pub(super) fn lost(&mut self) {
        for block in std::mem::take(&mut self.unflushed) {
            let it = &mut self.blocks[block as usize];
            if it.is_unflushed {
                it.copy = 1 - it.copy;
            }
            it.is_unflushed = false;
            self.set_uncertain(block, true);
            self.change(block);
        }
    }
}

/// End of a write of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Written,
    Failed,
    Unsent,
}
