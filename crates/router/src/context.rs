//! The context of a classifier: read-only facts, and the steering that it may change.
//!
//! The layout is an ABI: programs are compiled against it and run by later versions of the daemon. A field
//! never moves and never changes its meaning. New fields use reserved bytes, which are zero until then, and
//! raise [`Context::VERSION`]. All integers are in the machine's byte order.

use crate::Leg;
use sluice_nvme::{Status, SubmissionEntry};
use std::fmt;
use std::mem::offset_of;
use std::ops::Range;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, transmute, transmute_ref};

/// A command at a hook: 128 bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct Context {
    /// Bytes 0 to 31, which are [`Facts`]. A program's writes here are dropped and counted.
    facts: FactWords,
    /// Bytes 32 to 63.
    pub steering: Steering,
    /// Bytes 64 to 127: the entry as it was copied out of the submission queue, once. For a Flush that no
    /// host sent, such as that of a shutdown, an entry as a host would send it.
    entry: SubmissionEntry,
}

/// The bytes of [`Facts`], eight at a time. A copy field by field costs more than the rest of a hook.
pub(crate) type FactWords = [u64; size_of::<Facts>() / 8];

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

    /// Creates the context of a hook.
    pub fn new(hook: Hook, facts: Facts, steering: Steering, entry: &SubmissionEntry) -> Self {
        let (cookie, in_flight) = (facts.cookie, facts.in_flight);
        Self::of_submission(transmute!(facts), steering, entry).at_hook(hook, cookie, in_flight)
    }

    /// Creates the context of a submission hook.
    #[inline]
    pub(crate) fn of_submission(facts: FactWords, steering: Steering, entry: &SubmissionEntry) -> Self {
        Self { facts, steering, entry: *entry }
    }

    /// Returns the same for another hook.
    pub(crate) fn at_hook(self, hook: Hook, cookie: u16, in_flight: u8) -> Self {
        let (number, leg, status) = match hook {
            Hook::Submission => (0, 0, Status::SUCCESS),
            Hook::LegDone(leg, status) => (1, leg.number(), status),
            Hook::BeforeCompletion(status) => (2, 0, status),
        };
        let (version, status) = (Self::VERSION, status.0);
        let facts = Facts { version, hook: number, leg, status, cookie, in_flight, ..*self.facts() };
        Self { facts: transmute!(facts), ..self }
    }

    #[inline]
    pub fn hook(&self) -> Hook {
        let facts = self.facts();
        let status = Status(facts.status);
        match (facts.hook, Leg::new(facts.leg)) {
            (0, _) => Hook::Submission,
            (1, Some(leg)) => Hook::LegDone(leg, status),
            _ => Hook::BeforeCompletion(status),
        }
    }

    #[inline]
    pub fn facts(&self) -> &Facts {
        transmute_ref!(&self.facts)
    }

    #[inline]
    pub fn entry(&self) -> &SubmissionEntry {
        &self.entry
    }

    /// Marks the context after a forbidden change by the program.
    // In the steering, so that one comparison covers an unchanged context.
    #[cold]
    pub(crate) fn overreach(&mut self) {
        self.steering.reserved[0] = 1;
    }

    /// Returns whether the program made a forbidden change.
    #[inline]
    pub(crate) fn has_overreached(&self) -> bool {
        self.steering.reserved != [0; 10]
    }

    /// Returns whether the facts, the entry and the reserved bytes are those of another context.
    pub(crate) fn differs_in_steering_alone(&self, other: &Self) -> bool {
        (self.facts, self.entry, self.steering.reserved)
            == (other.facts, other.entry, other.steering.reserved)
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all = f.debug_struct("Context");
        all.field("facts", self.facts())
            .field("steering", &self.steering)
            .field("entry", &self.entry)
            .finish()
    }
}

impl Steering {
    /// Returns the steering of a command before its program runs.
    #[inline]
    pub(crate) fn of_command(slba: u64, blocks: u32, fua: bool) -> Self {
        transmute!([slba, u64::from(blocks), u64::from(fua) << shift_of(offset_of!(Self, fua)), 0])
    }

    /// Returns the bytes, eight at a time.
    #[inline]
    pub(crate) fn words(&self) -> [u64; 4] {
        transmute!(*self)
    }
}

impl Facts {
    /// Returns the facts of a namespace, for every command of it.
    pub(crate) fn of_namespace(nsid: u32, block_size: u32, capacity: u64) -> FactWords {
        transmute!(Self { version: Context::VERSION, nsid, block_size, capacity, ..Self::default() })
    }

    /// Returns the facts of a namespace with those of a command's step.
    #[inline]
    pub(crate) fn of_step(of_namespace: &FactWords, queue: u16, opcode: u8, further_step: bool) -> FactWords {
        let [first, second, third, capacity] = *of_namespace;
        let second = second | u64::from(queue) | u64::from(opcode) << shift_of(offset_of!(Self, opcode));
        let third = third | u64::from(further_step) << shift_of(offset_of!(Self, further_step));
        [first, second, third, capacity]
    }
}

/// Returns the bits before the byte at an offset within its eight bytes.
const fn shift_of(offset: usize) -> u32 {
    8 * (offset as u32 % 8)
}

const _: () = {
    assert!(size_of::<Context>() == Context::SIZE);
    assert!(offset_of!(Context, steering) == Context::WRITABLE.start);
    let steering = offset_of!(Context, steering);
    assert!(steering + offset_of!(Steering, reserved) == Context::WRITABLE.end);
    assert!(offset_of!(Context, entry) == 64);
    assert!(offset_of!(Facts, nsid) == 12);
    assert!(offset_of!(Facts, capacity) == 24);
};
