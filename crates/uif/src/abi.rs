//! What daemon and function agree on: the layout of the rings and of the entries in them.
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
//! A function is told of the layers below it ([`kind::BELOW`]), then to start, and gets commands when it has
//! said that it is ready. Besides what it says of them it can ask those layers for something itself
//! ([`disposition::REQUEST`]), with data anywhere in the arena: the end of the arena is left to it.
//!
//! Tails are 16-bit numbers that count entries and wrap; entry n stands at position n modulo the size of
//! the ring. The daemon never has more commands out than the ring has entries beside [`OTHERS_MAX`], and every
//! command gets one reply. A function has other things to say besides, so each side shows its head, and nobody
//! writes over an entry that was not taken. (Version 1 has no heads, and nothing but commands and their
//! replies.)
//!
//! A side that goes to sleep writes the tail it has come to as its event index, issues a full barrier and
//! looks once more; who moves a tail past that index rings (adds 1 to an eventfd). It is the protocol of
//! the shadow doorbells, in `sluice_memory::doorbell`.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Of this page, of the entries, and of the handshake. A side that does not know the other's refuses it.
pub const VERSION: u32 = 2;

/// "sluiceUF", as bytes in memory.
pub const MAGIC: u64 = u64::from_le_bytes(*b"sluiceUF");

/// Bytes of a submission and of a reply.
pub const ENTRY_BYTES: usize = 64;

/// The most entries of a ring: half of what a tail counts before it wraps.
pub const ENTRIES_MAX: u16 = 1 << 15;

/// Requests of its own that a function has in flight, at most.
pub const REQUESTS_MAX: u16 = 64;

/// Bytes of data of such a request, at most: as many as a command of a host has. One with more is refused
/// (Invalid Field). Those without data may be longer.
pub const DATA_MAX: u32 = 1 << 20;

/// Entries of the daemon's that are no commands and may wait in the ring at a time: answers to requests, the
/// layers below, and the orders to start, to stop, and of an operator.
pub const OTHERS_MAX: u16 = REQUESTS_MAX + LAYERS_MAX as u16 + 3;

/// Layers below a function, at most.
pub const LAYERS_MAX: usize = 7;

/// Bytes that all options together may have.
pub const OPTIONS_MAX: usize = 4096;

/// Bytes of the words with which a function refuses.
pub const WORDS_MAX: usize = 192;

/// Bytes of the largest buffer of a Write Zeroes.
pub const SCRATCH_MAX: u32 = 1 << 20;

/// Bytes of the most memory that a function has for requests of its own.
pub const POOL_MAX: u32 = 4 << 20;

/// Bytes of the buffer of a [`kind::CONTROL`], for what is said and for the answer.
pub const CONTROL_BYTES: usize = 64 << 10;

/// Daemon to function, the first message of a SOCK_SEQPACKET socket. The first 12 bytes are the same in
/// every version. With it come the descriptors of the rings, the arena, the eventfd that wakes the function,
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

/// Function to daemon, the only answer. The first three fields and the words are the same in every version.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Welcome {
    pub magic: u64,
    pub version: u32,
    /// Zero if it serves; else the words say why not.
    pub refused: u32,
    pub words: [u8; WORDS_MAX],
    /// By operation: 0 skip, 1 before, 2 after.
    pub interests: [u8; 8],
    pub block_size: u32,
    pub scratch: u32,
    pub transforms: u32,
    /// Since version 2.
    pub pool: u32,
    /// Since version 2; version 1 ends before it.
    pub size: u64,
}

/// What stands at the beginning of the rings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Header {
    pub magic: u64,
    pub version: u32,
    /// Of each ring; a power of two.
    pub entries: u32,
    /// Bytes of the memory that data is in.
    pub arena_bytes: u64,
    pub reserved: [u64; 5],
}

/// Offsets in a side's page of indices.
pub mod index {
    /// The tail of the entries this side writes, 32 bits of which 16 count.
    pub const TAIL: usize = 0;
    /// The tail of the other side's entries that it is to ring for when it passes it, likewise. On a
    /// cache line of its own.
    pub const EVENT: usize = 64;
    /// How many of the other side's entries this side has taken, likewise. Since version 2.
    pub const HEAD: usize = 128;
}

/// From the daemon: a command, or what else [`kind`] says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Submission {
    /// Comes back with the reply: the number of the command's slot in the low half, its generation in the
    /// high half, so that a late reply is nobody else's. Of a request that is done: the function's.
    pub tag: u64,
    /// One of [`operation`].
    pub operation: u8,
    /// Of [`flag`].
    pub flags: u8,
    /// One of [`kind`].
    pub kind: u8,
    /// Of a command that is back: what the function gave it. Of a layer below: its number.
    pub stage: u8,
    /// Of what was below and is back: how it went, as in a completion entry.
    pub status: u16,
    pub reserved: u16,
    /// Bytes, from the start of the layer. Of a layer below: its size.
    pub offset: u64,
    /// Bytes of the layer; data of a read or write is exactly as long. Of a layer below: its block size.
    pub length: u64,
    /// Where the command's data is in the arena, bytes.
    pub data_offset: u32,
    /// Bytes. Of a control: of the text; its buffer has [`CONTROL_BYTES`].
    pub data_length: u32,
    /// The function's own, as it left them; zero at first.
    pub cookie: [u64; 2],
    pub reserved2: u64,
}

/// Values of [`Submission::kind`].
pub mod kind {
    /// A command that the layer below has not seen.
    pub const COMMAND: u8 = 0;
    /// A command that was sent below and is back.
    pub const RETURNED: u8 = 1;
    /// A request of the function's own is done. From here on: since version 2.
    pub const DONE: u8 = 2;
    /// A layer below, and how large it is. `cookie` has the number of its storage, the low half first; zeros if there is
    /// none. No reply.
    pub const BELOW: u8 = 3;
    /// Those were all. Replied to with READY, when the function can take commands.
    pub const START: u8 = 4;
    /// An operator wants something, in UTF-8. The text of the answer comes in the same buffer.
    pub const CONTROL: u8 = 5;
    /// No more requests of its own: the function is about to end. No reply.
    pub const STOP: u8 = 6;
}

/// What becomes of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Reply {
    /// The submission's.
    pub tag: u64,
    /// One of [`disposition`].
    pub disposition: u8,
    /// What is sent below: one of [`operation`].
    pub operation: u8,
    /// Of [`flag`].
    pub flags: u8,
    /// Of a command that is to return: comes back with it.
    pub stage: u8,
    /// Of a command that is finished.
    pub status: u16,
    /// Of what is sent below: which layer. Always the first, 0, in version 1.
    pub layer: u8,
    pub reserved: u8,
    /// What is sent below, bytes.
    pub offset: u64,
    /// Bytes; of a read or write at most the data's. Of a control: of the text.
    pub length: u64,
    /// Comes back with a command that returns. Of a translation: where the target is, bytes, and
    /// whether writes may go there unasked (1).
    pub cookie: [u64; 2],
    /// Of a request: where its data is in the arena, bytes.
    pub data_offset: u64,
    pub reserved2: u64,
}

/// Values of [`Reply::disposition`].
pub mod disposition {
    /// The command has its status. Data of a read that succeeded goes to the host.
    pub const FINISH: u8 = 0;
    /// It goes below, and its status there is its own.
    pub const FORWARD: u8 = 1;
    /// It goes below, and comes back to the function.
    pub const FORWARD_AND_RETURN: u8 = 2;
    /// No command, but a request of the function's own. The tag, any number, comes back with
    /// [`kind::DONE`](super::kind::DONE). From here on: since version 2.
    pub const REQUEST: u8 = 3;
    /// No command: the function has started, or it cannot (the status).
    pub const READY: u8 = 4;
    /// No command, but an entry for the translation cache: `operation` is one of
    /// [`translation`](super::translation). No answer.
    pub const TRANSLATE: u8 = 5;
}

/// Values of `operation` of a translation. Ranges are of the function's layer.
pub mod translation {
    pub const INSERT: u8 = 0;
    pub const FORGET: u8 = 1;
    /// Writes ask again.
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
    /// Write Zeroes may deallocate.
    pub const DEALLOCATE: u8 = 2;
    /// Of a [`kind::CONTROL`](super::kind::CONTROL): no command of the drive is in flight, on any of its
    /// paths, and none begins until the control is answered.
    pub const QUIET: u8 = 4;
    /// Of a [`kind::BELOW`](super::kind::BELOW): nothing was ever written to the layer.
    pub const NEW: u8 = 8;
}
