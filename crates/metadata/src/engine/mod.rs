//! One checkpoint and the log of its changes: the engine of functions that keep state on a disk.
//!
//! The storage has two *halves*. A half has a header, a *body* (the whole state), and a *log*: one block for
//! each record. The header of the higher *generation* counts. Records follow its body, until the half is full
//! or a write fails. Then the next checkpoint goes to the other half, its header last. A power cut at any
//! moment leaves the state before an operation or the state after it.
//!
//! The engine does no I/O. [`Loader`] and [`Writer`] return one [`Step`] at a time, and their user reports its
//! end. The engine has the order of the steps, the choice of the half, the end of the log, and the rules after
//! a failure. A format of a user has the rest: the content of blocks, their checksums and magic numbers
//! ([`Content`] for reading, [`Source`] for writing). No byte of a block is interpreted here.
//!
//! The log of a redundant set and the store of `snapshot` use the engine. Both formats are older than it, and
//! their disks stay readable. Their differences are parameters:
//!
//! | | log of a redundant set | store of `snapshot` |
//! |---|---|---|
//! | first record | behind the body | behind [room](Halves::reserved) for the largest body |
//! | [durability](Rules::flushes) | each write has Force Unit Access | writes, then a flush |
//! | [zeros over headers](Rules::voids) | over one that may have been written | before and after every checkpoint |
//! | [search behind the end](Reading::to_end) | in the same read | in the whole half |
//! | [records written again](Reading::rewrites) | no: an opening begins with a checkpoint | yes |

mod load;
mod write;

pub use load::{Content, Loader, Reading};
pub use write::{Rules, Source, Writer};

#[cfg(test)]
mod tests;

/// Bytes of a block, the unit of headers, bodies and records.
pub const BLOCK: usize = 4096;

/// Maximum bytes of one step.
pub const IO_MAX: usize = 16 * BLOCK;

/// Step that the user of the engine executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Read {
        at: u64,
        length: usize,
    },
    Write {
        at: u64,
        length: usize,
    },
    /// Flush: all earlier writes are durable after it.
    Flush,
    /// End of the operation.
    Done,
}

/// Location of the two halves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Halves {
    /// Offset of the first half.
    pub at: u64,
    /// Blocks of a half. The second half follows the first.
    pub blocks: u64,
    /// Blocks that a body takes at least: the log begins behind them.
    pub reserved: u64,
}

impl Halves {
    /// Returns the offset of a half, which begins with its header.
    pub fn header_at(&self, half: usize) -> u64 {
        self.block_at(half, 0)
    }

    /// Returns the offset of a block of the body.
    pub fn body_at(&self, half: usize, number: u64) -> u64 {
        self.block_at(half, 1 + number)
    }

    /// Returns the offset of a record, behind a body of `body` blocks.
    pub fn record_at(&self, half: usize, body: u64, number: u64) -> u64 {
        self.block_at(half, 1 + body.max(self.reserved) + number)
    }

    /// Returns the number of records of a half with a body of `body` blocks.
    pub fn room(&self, body: u64) -> u64 {
        self.blocks.saturating_sub(1 + body.max(self.reserved))
    }

    /// Returns the offset behind both halves.
    pub fn end(&self) -> u64 {
        self.block_at(2, 0)
    }

    fn block_at(&self, half: usize, number: u64) -> u64 {
        self.at + (half as u64 * self.blocks + number) * BLOCK as u64
    }
}

/// Position at which a log continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    pub half: usize,
    /// Generation of the checkpoint that the log follows.
    pub generation: u64,
    /// Number of the next record, from 0.
    pub next: u64,
}

impl Position {
    /// Returns the beginning of a log.
    pub fn first(half: usize, generation: u64) -> Self {
        Self { half, generation, next: 0 }
    }

    /// Returns the beginning of the log after this one, in the other half.
    pub fn after(&self) -> Self {
        Self::first(1 - self.half, self.generation + 1)
    }
}
