//! Request of a command, after it was checked.

use zerocopy::{FromZeros, Immutable, IntoBytes, transmute_ref};

/// Operation of a layer. The controller turns the commands of the NVM command set into these: a Compare
/// becomes a read into private memory, a Dataset Management one deallocate for each range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, FromZeros)]
#[repr(u8)]
pub enum Operation {
    #[default]
    Read,
    Write,
    /// Makes all operations durable that finished before. Offset and length are zero.
    Flush,
    WriteZeroes,
    Deallocate,
}

impl Operation {
    /// Returns whether the operation changes the result of a later read.
    pub fn modifies(self) -> bool {
        matches!(self, Operation::Write | Operation::WriteZeroes | Operation::Deallocate)
    }
}

/// An operation on a range of bytes.
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
    /// Returns whether data is moved to or from the host.
    pub fn has_data(&self) -> bool {
        matches!(self.operation, Operation::Read | Operation::Write)
    }

    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.length)
    }
}

/// Source of a command, and so the destination of its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, FromZeros, Immutable, IntoBytes)]
#[repr(C)]
pub struct Origin {
    /// Submission queue identifier. With the next two fields it is read as one word: see [`stream`](Self::stream).
    pub sq: u16,
    /// Number of the namespace in the drive, counted from zero.
    pub namespace: u8,
    /// Number of the controller in the drive, counted from zero.
    pub controller: u8,
    /// Command identifier.
    pub cid: u16,
    /// The opcode as submitted: a Compare is still a Compare when its read returns.
    pub opcode: u8,
    /// Flag of a command that is passed to a device as the host wrote it
    /// ([`Layer::pass`](crate::Layer::pass)). The command's request then contains its blocks and the nearest
    /// operation. So the command is kept inside of its namespace, steered and write protected like any other.
    /// The data is as long as the entry requires.
    pub raw: bool,
    /// Flag of a command whose end a host waits for: the host has preempted the registration of the command's
    /// host.
    pub awaited: bool,
    /// Flag of a command that was under way when a fused operation claimed its blocks; the fused operation
    /// waits for its end.
    pub ahead: bool,
    /// Flag of a command whose data is in memory that only the client reaches, and is copied through bounce
    /// buffers.
    pub carried: bool,
    /// Flag of a command that has a [stamp](crate::Slot::stamp).
    pub timed: bool,
    /// Generation of the queue that the command came from; a queue that was deleted and created anew has
    /// another one.
    pub epoch: u32,
}

impl Origin {
    /// Origin of a command that a layer made itself: no queue has this identifier.
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
        timed: false,
        epoch: 0,
    };

    /// Returns queue, namespace and controller as one number: bits 0 to 15, 16 to 23, and 24 to 31.
    #[inline(always)]
    pub fn stream(&self) -> u32 {
        // One load, where a sum of the fields takes seven instructions.
        let bytes: &[u8; 16] = transmute_ref!(self);
        u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    /// Value in place of a controller: the command is the subsystem's own.
    pub const SUBSYSTEM: u8 = u8::MAX;

    /// Value in place of a submission queue: the controller or the subsystem made the command itself, and no
    /// host receives its status.
    pub const INTERNAL_SQ: u16 = u16::MAX;

    /// Returns true unless a layer made the command itself, or that of which it is a child.
    pub fn is_host(&self) -> bool {
        self.sq != Self::LAYER.sq
    }

    /// Returns whether the subsystem made the command itself. The daemon gets the status of such a Flush at the
    /// end of a drive.
    pub fn is_of_subsystem(&self) -> bool {
        (self.sq, self.controller) == (Self::INTERNAL_SQ, Self::SUBSYSTEM)
    }
}

/// Path of a command in the router, and the classifier's values for the layers there. Children have their
/// parent's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, FromZeros)]
pub struct Route {
    /// The command's path; of a leg, the leg's number too.
    pub path: u8,
    /// The classifier's choice, for layers that offer one.
    pub target: u8,
    /// The router's program that decides on the command; zero if there is none, or none any more.
    pub program: u16,
    /// The classifier's hints, whose meaning is defined between the classifier and the layers.
    pub hints: u32,
}
