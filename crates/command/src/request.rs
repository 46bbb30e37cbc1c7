//! What a command asks for, after it was checked.

/// What a layer is asked to do. The controller turns the commands of the NVM command set into these:
/// a Compare becomes a read into private memory, a Dataset Management one deallocate for each range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Operation {
    #[default]
    Read,
    Write,
    /// Everything finished before is durable afterwards. Offset and length are zero.
    Flush,
    WriteZeroes,
    Deallocate,
}

impl Operation {
    /// True if the operation changes what a later read returns.
    pub fn modifies(self) -> bool {
        matches!(self, Operation::Write | Operation::WriteZeroes | Operation::Deallocate)
    }
}

/// One operation on a range of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Request {
    pub operation: Operation,
    /// Force Unit Access: durable when finished (writes), from durable media (reads).
    pub fua: bool,
    /// Write Zeroes may leave the range deallocated (NVM Command Set 3.2.8, DEAC).
    pub deallocate: bool,
    /// Bytes from the start of the layer.
    pub offset: u64,
    /// Bytes. Data of reads and writes is exactly as long.
    pub length: u64,
}

impl Request {
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.length)
    }
}

/// Where a command came from, and so where its completion goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Origin {
    /// Submission queue identifier.
    pub sq: u16,
    /// Command identifier.
    pub cid: u16,
    /// Which of the drive's namespaces, counted from zero.
    pub namespace: u16,
    /// The opcode as it came: a Compare is still a Compare when its read returns.
    pub opcode: u8,
    /// The life of the queue the command came from; a queue that was deleted and created anew is
    /// another one.
    pub epoch: u32,
}

/// What the router keeps on a command between two hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Route {
    /// The path of its leg: further steps of a command take the same.
    pub path: u8,
    /// The classifier asked to be called before the completion is written.
    pub before_completion: bool,
    /// The classifier's own 16 bits, handed back at the next hook.
    pub cookie: u16,
}
