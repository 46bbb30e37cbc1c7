//! What a block may hold, by what the host was told of its writes.

use std::collections::HashMap;

/// Writes to one block, and when.
#[derive(Clone, Copy, Debug)]
struct Written {
    tag: u64,
    issued: u64,
    /// When the host was told how it went, if it was.
    ended: Option<u64>,
    good: bool,
    /// It survives a power cut.
    durable: bool,
}

/// The reference model.
#[derive(Debug, Default)]
pub(super) struct History {
    now: u64,
    blocks: HashMap<u64, Vec<Written>>,
}

impl History {
    pub(super) fn issue(&mut self, blocks: impl Iterator<Item = u64>, tag: u64) -> u64 {
        self.now += 1;
        for block in blocks {
            let write = Written { tag, issued: self.now, ended: None, good: false, durable: false };
            self.blocks.entry(block).or_default().push(write);
        }
        self.now
    }

    pub(super) fn end(&mut self, blocks: impl Iterator<Item = u64>, tag: u64, good: bool, fua: bool) {
        self.now += 1;
        for block in blocks {
            let writes = self.blocks.get_mut(&block).expect("it was issued");
            let write = writes.iter_mut().find(|write| write.tag == tag).expect("it was issued");
            (write.ended, write.good, write.durable) = (Some(self.now), good, good && fua);
        }
    }

    /// A flush that was issued then has succeeded.
    pub(super) fn flushed(&mut self, issued: u64) {
        for write in self.blocks.values_mut().flatten() {
            write.durable |= write.good && write.ended.is_some_and(|ended| ended < issued);
        }
    }

    /// Panics if the block may not hold this; `cut`: the power was off since.
    pub(super) fn check(&self, block: u64, found: u64, cut: bool) {
        let Some(writes) = self.blocks.get(&block) else { return assert_eq!(found, 0, "block {block}") };
        let ended = match writes.iter().find(|write| write.tag == found) {
            Some(write) => write.ended,
            // As it was at the beginning.
            None => Some(0).filter(|_| found == 0).or_else(|| panic!("nobody wrote {found}")),
        };
        let counts = |write: &&Written| if cut { write.durable } else { write.good };
        for write in writes.iter().filter(counts) {
            let over = ended.is_some_and(|ended| ended < write.issued);
            assert!(!over, "block {block} has {found}, lost is {write:?}");
        }
    }

    /// Nobody is told any more of what was under way; what is found now is what there was.
    pub(super) fn settle(&mut self, found: impl Fn(u64) -> u64) {
        self.now += 1;
        for (block, writes) in &mut self.blocks {
            let tag = found(*block);
            writes.clear();
            let (issued, ended) = (self.now, Some(self.now));
            writes.push(Written { tag, issued, ended, good: true, durable: true });
        }
    }
}
