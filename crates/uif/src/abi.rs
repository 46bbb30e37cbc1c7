//! Contract between daemon and function: the layout of the rings and of the entries in them.
//!
//! All numbers are little-endian. The memory of the rings, from its beginning:
//!
//! | page | written by | content |
//! |---|---|---|
//! | 0 | daemon, once | [`Header`] |
//! | 1 | daemon | its [indices](index): tail of the submissions, event index and head of the replies |
//! | 2 | function | its [indices](index): tail of the replies, event index and head of the submissions |
//! | 3 on | daemon | submissions, [`Header::entries`] of 64 bytes |
//! | after them | function | replies, as many of 64 bytes |
//!
//! A function is sent the layers below it ([`kind::BELOW`]), then [`kind::START`], and gets commands after it
//! has replied [`disposition::READY`]. Besides its replies to commands it can send requests to these layers
//! ([`disposition::REQUEST`]), with data anywhere in the arena: the end of the arena is left to it.
//!
//! Tails are 16-bit numbers that count entries and wrap; entry n stands at position n modulo the size of the
//! ring. The daemon never has more commands out than the ring has entries beside [`OTHERS_MAX`], and every
//! command gets one reply. A function has other entries to send, too. So each side publishes its head, and
//! neither side overwrites an entry that was not taken. (Version 1 has no heads, and nothing but commands and
//! their replies.)
//!
//! A side that goes to sleep writes the tail it has come to as its event index, issues a full barrier and
//! looks once more. The side that moves a tail past that index signals the eventfd (adds 1). It is the
//! protocol of the shadow doorbells, in `sluice_memory::doorbell`.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Version of this page, of the entries, and of the handshake. A side refuses a version that it does not
/// support.
pub const VERSION: u32 = 2;

/// "sluiceUF", as bytes in memory.
pub const MAGIC: u64 = u64::from_le_bytes(*b"sluiceUF");

/// Bytes of a submission and of a reply.
pub const ENTRY_BYTES: usize = 64;

/// Most entries of a ring: half of what a tail counts before it wraps.
pub const ENTRIES_MAX: u16 = 1 << 15;

/// Most requests of its own that a function has in flight.
pub const REQUESTS_MAX: u16 = 64;

/// Most bytes of data of such a request: as many as a command of a host has. A longer one is refused (Invalid
/// Field). Requests without data may be longer.
pub const DATA_MAX: u32 = 1 << 20;

/// Entries of the daemon that are no commands and may wait in the ring at a time. They are answers to
/// requests, the layers below, and the orders to start, to stop, and of an operator.
pub const OTHERS_MAX: u16 = REQUESTS_MAX + LAYERS_MAX as u16 + 3;

/// Most layers below a function.
pub const LAYERS_MAX: usize = 7;

/// Most bytes of all options together.
pub const OPTIONS_MAX: usize = 4096;

/// Bytes of the text with which a function refuses.
pub const WORDS_MAX: usize = 192;

/// Most bytes of the buffer of a Write Zeroes.
pub const SCRATCH_MAX: u32 = 1 << 20;

/// Most bytes of memory that a function has for requests of its own.
pub const POOL_MAX: u32 = 4 << 20;

/// Bytes of the buffer of a [`kind::CONTROL`], for the order and for the answer.
pub const CONTROL_BYTES: usize = 64 << 10;

/// First message of a SOCK_SEQPACKET socket, from daemon to function. The first 12 bytes are the same in
/// every version. With it come four descriptors: the rings, the arena, the eventfd that wakes the function,
/// and the one that wakes the daemon. After it comes the text of the options: `key=value`, each with a zero
/// byte behind it.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Hello {
    pub magic: u64,
    pub version: u32,
    /// Bytes of text that follow.
    pub options: u32,
    pub rings_bytes: u64,
    pub arena_bytes: u64,
}

/// Only answer, from function to daemon. The first three fields and the words are the same in every version.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Welcome {
    pub magic: u64,
    pub version: u32,
    /// Zero if the function serves; otherwise the words give the reason.
    pub refused: u32,
    pub words: [u8; WORDS_MAX],
    /// Interest by operation: 0 skip, 1 before, 2 after.
    pub interests: [u8; 8],
    pub block_size: u32,
    pub scratch: u32,
    pub transforms: u32,
    /// Since version 2.
    pub pool: u32,
    /// Since version 2; version 1 ends before it.
    pub size: u64,
}

/// Beginning of the rings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Header {
    pub magic: u64,
    pub version: u32,
    /// Entries of each ring; a power of two.
    pub entries: u32,
    /// Bytes of the memory that data is in.
    pub arena_bytes: u64,
    pub reserved: [u64; 5],
}

/// Offsets in a side's page of indices.
pub mod index {
    /// Tail of the entries that this side writes: 32 bits of which 16 count.
    pub const TAIL: usize = 0;
    /// Tail of the other side's entries at which this side is to be signalled, in the same form. On a cache
    /// line of its own.
    pub const EVENT: usize = 64;
    /// Number of the other side's entries that this side has taken, in the same form. Since version 2.
    pub const HEAD: usize = 128;
}

/// Entry from the daemon: a command, or another [`kind`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Submission {
    /// Tag that the reply repeats: the number of the command's slot in the low half, its generation in the
    /// high half, so that a late reply matches no other command. Of a request that is done: the function's
    /// tag.
    pub tag: u64,
    /// Code of [`operation`].
    pub operation: u8,
    /// Bits of [`flag`].
    pub flags: u8,
    /// Code of [`kind`].
    pub kind: u8,
    /// Stage of the function's reply, for a command that returns; number of a layer below.
    pub stage: u8,
    /// Status from below of a command that returns, as in a completion entry.
    pub status: u16,
    pub reserved: u16,
    /// Bytes, from the start of the layer. Of a layer below: its size.
    pub offset: u64,
    /// Bytes of the layer; data of a read or write is exactly as long. Of a layer below: its block size.
    pub length: u64,
    /// Offset of the command's data in the arena, in bytes.
    pub data_offset: u32,
    /// Bytes of data. Of a control: of the text; its buffer has [`CONTROL_BYTES`]. Of a layer below: of the unit
    /// that is never torn; zero if it is unknown.
    pub data_length: u32,
    /// Values of the function's last reply to the command; zero at first.
    pub cookie: [u64; 2],
    pub reserved2: u64,
}

/// Values of [`Submission::kind`].
pub mod kind {
    /// Command that the layer below has not seen.
    pub const COMMAND: u8 = 0;
    /// Command that was sent below and returns.
    pub const RETURNED: u8 = 1;
    /// End of a request of the function's own. From here on: since version 2.
    pub const DONE: u8 = 2;
    /// Layer below, with its size. `cookie` has the number of its storage, the low half first; zeros if there
    /// is none. No reply.
    pub const BELOW: u8 = 3;
    /// End of the layers. The function replies READY when it can take commands.
    pub const START: u8 = 4;
    /// Order of an operator, in UTF-8. The text of the answer comes in the same buffer.
    pub const CONTROL: u8 = 5;
    /// Announcement that the function is about to end: it sends no more requests of its own. No reply.
    pub const STOP: u8 = 6;
}

/// Entry from the function: its answer to a command, or another [`disposition`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Reply {
    /// Tag of the submission.
    pub tag: u64,
    /// Code of [`disposition`].
    pub disposition: u8,
    /// Operation to send below: one of [`operation`].
    pub operation: u8,
    /// Bits of [`flag`].
    pub flags: u8,
    /// Stage of a command that is to return; repeated then.
    pub stage: u8,
    /// Status of a command that is finished.
    pub status: u16,
    /// Layer below to send to. Always the first, 0, in version 1.
    pub layer: u8,
    pub reserved: u8,
    /// Offset below, in bytes.
    pub offset: u64,
    /// Length in bytes; of a read or write at most that of the data. Of a control: of the text.
    pub length: u64,
    /// Values that are repeated with a command that returns. Of a translation: the target in bytes, and
    /// whether writes may go there directly (1).
    pub cookie: [u64; 2],
    /// Offset of a request's data in the arena, in bytes.
    pub data_offset: u64,
    pub reserved2: u64,
}

/// Values of [`Reply::disposition`].
pub mod disposition {
    /// The command has its status. Data of a read that succeeded goes to the host.
    pub const FINISH: u8 = 0;
    /// The command goes below, and its status there is its own.
    pub const FORWARD: u8 = 1;
    /// The command goes below, and returns to the function.
    pub const FORWARD_AND_RETURN: u8 = 2;
    /// Request of the function's own instead of a command. The tag, any number, comes back with
    /// [`kind::DONE`](super::kind::DONE). From here on: since version 2.
    pub const REQUEST: u8 = 3;
    /// Report that the function has started, or cannot start (the status).
    pub const READY: u8 = 4;
    /// Entry for the translation cache: `operation` is one of [`translation`](super::translation). No answer.
    pub const TRANSLATE: u8 = 5;
}

/// Values of `operation` of a translation. Ranges are of the function's layer.
pub mod translation {
    pub const INSERT: u8 = 0;
    pub const FORGET: u8 = 1;
    /// Removal of the permission to write directly.
    pub const PROTECT: u8 = 2;
}

/// Values of `operation`.
pub mod operation {
    pub const READ: u8 = 0;
    pub const WRITE: u8 = 1;
    pub const FLUSH: u8 = 2;
    pub const WRITE_ZEROES: u8 = 3;
    pub const DEALLOCATE: u8 = 4;
    pub const COUNT: usize = 5;
}

/// Bits of `flags`.
pub mod flag {
    /// Force Unit Access.
    pub const FUA: u8 = 1;
    /// Permission of a Write Zeroes to deallocate.
    pub const DEALLOCATE: u8 = 2;
    /// Quiet drive for a [`kind::CONTROL`](super::kind::CONTROL): no command of the drive is in flight, on
    /// any of its paths, and none begins until the control is answered.
    pub const QUIET: u8 = 4;
    /// New layer of a [`kind::BELOW`](super::kind::BELOW): nothing was ever written to the layer.
    pub const NEW: u8 = 8;
}
