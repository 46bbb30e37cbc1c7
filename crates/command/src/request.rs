//! What a command asks for, after it was checked.

use zerocopy::FromZeros;

/// What a layer is asked to do. The controller turns the commands of the NVM command set into these:
/// a Compare becomes a read into private memory, a Dataset Management one deallocate for each range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, FromZeros)]
#[repr(u8)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, FromZeros)]
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
    /// True if data is moved to or from the host.
    pub fn has_data(&self) -> bool {
        matches!(self.operation, Operation::Read | Operation::Write)
    }

    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.length)
    }
}

/// Where a command came from, and so where its completion goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, FromZeros)]
pub struct Origin {
    /// Submission queue identifier.
    pub sq: u16,
    /// Command identifier.
    pub cid: u16,
    /// Which of the drive's namespaces, counted from zero.
    pub namespace: u8,
    /// Which of the drive's controllers, counted from zero.
    pub controller: u8,
    /// The opcode as it came: a Compare is still a Compare when its read returns.
    pub opcode: u8,
    /// It goes on to a device as the host wrote it ([`Layer::pass`](crate::Layer::pass)). Its request then
    /// says which blocks it concerns, and how, as the nearest operation there is: so it is kept inside of
    /// its namespace, steered and write protected like any other. Its data is as long as its entry says.
    pub raw: bool,
    /// Somebody waits for its end: a host that has preempted its host's registration.
    pub awaited: bool,
    /// It was under way when a fused operation claimed its blocks, which waits for its end.
    pub ahead: bool,
    /// Its data is in memory that only its client reaches, and goes by way of ours.
    pub carried: bool,
    /// The life of the queue the command came from; a queue that was deleted and created anew is
    /// another one.
    pub epoch: u32,
}

impl Origin {
    /// Of a command that a layer made itself: no queue has this identifier.
    pub const LAYER: Self = Self {
        sq: u16::MAX - 1,
        cid: 0,
        namespace: 0,
        controller: Self::SUBSYSTEM,
        opcode: 0,
        raw: false,
        awaited: false,
        ahead: false,
        carried: false,
        epoch: 0,
    };

    /// In place of a controller: the command is the subsystem's own.
    pub const SUBSYSTEM: u8 = u8::MAX;

    /// In place of a submission queue: the controller or the subsystem made the command itself, and no host gets its
    /// status.
    pub const INTERNAL: u16 = u16::MAX;

    /// True unless a layer made the command itself, or that of which it is a child.
    pub fn is_host(&self) -> bool {
        self.sq != Self::LAYER.sq
    }
}

/// Which way the router sent a command, and what its classifier has to say to the layers there. Children
/// have their parent's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, FromZeros)]
pub struct Route {
    /// The path it took; of a leg, the leg's number too.
    pub path: u8,
    /// The classifier's choice, for layers that offer one.
    pub target: u8,
    /// Which of the router's programs has the command in its hands; zero if none has, or none any more.
    pub program: u16,
    /// The classifier's hints, whose meaning is between it and the layers.
    pub hints: u32,
}
