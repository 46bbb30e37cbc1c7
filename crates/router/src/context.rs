//! What a classifier is told, and what it may change.
//!
//! The layout is an ABI: programs are compiled against it and run by later versions of the daemon. A
//! field never moves and never changes its meaning; what is new takes reserved bytes, which are zero
//! until then, and raises [`Context::VERSION`]. All integers are in the machine's byte order.

use crate::Leg;
use sluice_nvme::{Status, SubmissionEntry};
use std::ops::Range;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// One command at one hook: 128 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct Context {
    /// Bytes 0 to 31. Whatever a program writes here is dropped and counted.
    facts: Facts,
    /// Bytes 32 to 63.
    pub steering: Steering,
    /// Bytes 64 to 127: the entry as it was copied out of the submission queue, once. Of a Flush that
    /// no host sent, such as that of a shutdown, an entry as a host would send it.
    entry: SubmissionEntry,
}

/// What is so. To be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct Facts {
    /// 0: [`Context::VERSION`].
    pub version: u16,
    /// 2: the hook: 0 submission, 1 leg done, 2 before completion.
    pub hook: u8,
    /// 3: which leg is done; zero at the other hooks.
    pub leg: u8,
    /// 4: status of the leg that is done, or that the command is about to complete with: the 15 bits of
    /// a completion entry's status field. Zero at submission.
    pub status: u16,
    /// 6: the cookie of the command's last verdict; zero at submission.
    pub cookie: u16,
    /// 8: submission queue identifier; zero or 65,535 for a command that no host put in an I/O queue.
    pub queue: u16,
    /// 10: opcode.
    pub opcode: u8,
    /// 11: legs in flight, bit n for leg n.
    pub in_flight: u8,
    /// 12: NSID.
    pub nsid: u32,
    /// 16: bytes of a logical block.
    pub block_size: u32,
    /// 20: one for every step but the first of a command that takes several: a Compare is read piece by
    /// piece, a Dataset Management deallocates range by range, and each is asked about by itself.
    pub further_step: u8,
    /// 21
    pub reserved: [u8; 3],
    /// 24: logical blocks of the namespace.
    pub capacity: u64,
}

/// Where the legs of a verdict go. To be read and written: what is changed holds for the legs that the
/// verdict starts; at the next hook the original is back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct Steering {
    /// 32: the block that a leg begins at. Anywhere in the namespace: a leg that would leave it, or the
    /// layer at its path, ends with LBA Out of Range instead of starting.
    pub slba: u64,
    /// 40: logical blocks of a leg, one-based; zero if the command has none, as a Flush. Only downwards.
    /// The command as a whole is a success only if good legs transferred all of it, front to back.
    pub blocks: u32,
    /// 44: blocks of the command, and of its data, that come before those of a leg. With it a command is
    /// transferred piece by piece, each from or to a place of its own.
    pub skip: u32,
    /// 48: for the layers ([`Route::hints`](sluice_command::Route)).
    pub hints: u32,
    /// 52: for the layers ([`Route::target`](sluice_command::Route)).
    pub target: u8,
    /// 53: Force Unit Access if not zero. Can be set, not cleared.
    pub fua: u8,
    /// 54
    pub reserved: [u8; 10],
}

/// When a classifier is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// The command was checked and has not started.
    Submission,
    /// A leg that was asked for has ended, with this status.
    LegDone(Leg, Status),
    /// All legs are back; this is what the completion entry is going to say.
    BeforeCompletion(Status),
}

impl Context {
    /// The layout as it stands here.
    pub const VERSION: u16 = 1;
    /// Bytes.
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

    /// A program wanted to change what it may not: leaves a trace of it for [`still_has`](Self::still_has).
    #[cold]
    pub(crate) fn overreach(&mut self) {
        self.facts.reserved = self.facts.reserved.map(|byte| !byte);
    }

    /// True if these facts and this entry are what is still in here. Compared as bytes, since field by
    /// field costs more than the rest of a hook.
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
