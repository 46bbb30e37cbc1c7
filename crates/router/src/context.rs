//! The context of a classifier: read-only facts, and the steering that it may change.
//!
//! The layout is an ABI: programs are compiled against it and run by later versions of the daemon. A field
//! never moves and never changes its meaning. New fields use reserved bytes, which are zero until then, and
//! raise [`Context::VERSION`]. All integers are in the machine's byte order.

use crate::Leg;
use sluice_nvme::{Status, SubmissionEntry};
use std::ops::Range;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A command at a hook: 128 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct Context {
    /// Bytes 0 to 31. A program's writes here are dropped and counted.
    facts: Facts,
    /// Bytes 32 to 63.
    pub steering: Steering,
    /// Bytes 64 to 127: the entry as it was copied out of the submission queue, once. For a Flush that no
    /// host sent, such as that of a shutdown, an entry as a host would send it.
    entry: SubmissionEntry,
}

/// Read-only fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct Facts {
    /// Offset 0: [`Context::VERSION`].
    pub version: u16,
    /// Offset 2: the hook: 0 submission, 1 leg done, 2 before completion.
    pub hook: u8,
    /// Offset 3: number of the leg that is done; zero at the other hooks.
    pub leg: u8,
    /// Offset 4: status of the leg that is done, or that the command is about to complete with: the 15 bits
    /// of a completion entry's status field. Zero at submission.
    pub status: u16,
    /// Offset 6: the cookie of the command's last verdict; zero at submission.
    pub cookie: u16,
    /// Offset 8: submission queue identifier; zero or 65,535 for a command that no host put in an I/O queue.
    pub queue: u16,
    /// Offset 10: opcode.
    pub opcode: u8,
    /// Offset 11: legs in flight, bit n for leg n.
    pub in_flight: u8,
    /// Offset 12: NSID.
    pub nsid: u32,
    /// Offset 16: bytes of a logical block.
    pub block_size: u32,
    /// Offset 20: one for every step but the first of a command with several. A Compare is read chunk by
    /// chunk, a Dataset Management deallocates range by range, and the program runs for each step.
    pub further_step: u8,
    /// Offset 21: reserved.
    pub reserved: [u8; 3],
    /// Offset 24: logical blocks of the namespace.
    pub capacity: u64,
}

/// Target of a verdict's legs. To be read and written: changes apply to the legs that the verdict starts; at
/// the next hook the original is back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct Steering {
    /// Offset 32: first block of a leg. Anywhere in the namespace: a leg that would leave it, or the layer at
    /// its path, ends with LBA Out of Range instead of starting.
    pub slba: u64,
    /// Offset 40: logical blocks of a leg, one-based; zero if the command has none, as a Flush. May only be
    /// reduced. The command as a whole is a success only if successful legs transferred all of it, front to
    /// back.
    pub blocks: u32,
    /// Offset 44: blocks of the command, and of its data, before those of a leg. With it a command is
    /// transferred chunk by chunk, each from or to an address of its own.
    pub skip: u32,
    /// Offset 48: hints for the layers ([`Route::hints`](sluice_command::Route)).
    pub hints: u32,
    /// Offset 52: target for the layers ([`Route::target`](sluice_command::Route)).
    pub target: u8,
    /// Offset 53: Force Unit Access if not zero. Can be set, not cleared.
    pub fua: u8,
    /// Offset 54: reserved.
    pub reserved: [u8; 10],
}

/// Moment at which a classifier is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Submission: the command was checked and has not started.
    Submission,
    /// End of a leg for which an event was requested, with the leg's status.
    LegDone(Leg, Status),
    /// End of the last leg; the status is that of the completion entry.
    BeforeCompletion(Status),
}

impl Context {
    /// Version of this layout.
    pub const VERSION: u16 = 1;
    /// Bytes of the context.
    pub const SIZE: usize = 128;
    /// The bytes that a program may write.
    pub const WRITABLE: Range<usize> = 32..54;

    #[inline]
    pub fn new(hook: Hook, facts: Facts, steering: Steering, entry: &SubmissionEntry) -> Self {
        let (number, leg, status) = match hook {
            Hook::Submission => (0, 0, Status::SUCCESS),
            Hook::LegDone(leg, status) => (1, leg.number(), status),
            Hook::BeforeCompletion(status) => (2, 0, status),
        };
        let facts = Facts { version: Self::VERSION, hook: number, leg, status: status.0, ..facts };
        Self { facts, steering, entry: *entry }
    }

    #[inline]
    pub fn hook(&self) -> Hook {
        let status = Status(self.facts.status);
        match (self.facts.hook, Leg::new(self.facts.leg)) {
            (0, _) => Hook::Submission,
            (1, Some(leg)) => Hook::LegDone(leg, status),
            _ => Hook::BeforeCompletion(status),
        }
    }

    #[inline]
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    #[inline]
    pub fn entry(&self) -> &SubmissionEntry {
        &self.entry
    }

    /// Marks the context after a forbidden change by the program, for [`still_has`](Self::still_has).
    #[cold]
    pub(crate) fn overreach(&mut self) {
        self.facts.reserved = self.facts.reserved.map(|byte| !byte);
    }

    /// Returns whether these facts and this entry are unchanged. The comparison is by bytes, since one field
    /// by field costs more than the rest of a hook.
    #[inline]
    pub(crate) fn still_has(&self, facts: &Facts, entry: &SubmissionEntry) -> bool {
        self.facts.as_bytes() == facts.as_bytes() && self.entry.as_bytes() == entry.as_bytes()
    }
}

const _: () = {
    assert!(size_of::<Context>() == Context::SIZE);
    assert!(std::mem::offset_of!(Context, steering) == Context::WRITABLE.start);
    let steering = std::mem::offset_of!(Context, steering);
    assert!(steering + std::mem::offset_of!(Steering, reserved) == Context::WRITABLE.end);
    assert!(std::mem::offset_of!(Context, entry) == 64);
    assert!(std::mem::offset_of!(Facts, nsid) == 12);
    assert!(std::mem::offset_of!(Facts, capacity) == 24);
};
