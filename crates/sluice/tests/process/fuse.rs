//! Messages of the FUSE protocol, as far as the [disk with a volatile cache](crate::volatile) has them.

use zerocopy::byteorder::native_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Operations of the FUSE protocol that the server carries out or does not answer.
pub(crate) mod operation {
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const FLUSH: u32 = 25;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const FALLOCATE: u32 = 43;
    pub(crate) const LSEEK: u32 = 46;
}

#[derive(Clone, Copy, Debug, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Head {
    pub(crate) length: U32,
    pub(crate) operation: U32,
    pub(crate) unique: U64,
    pub(crate) node: U64,
    pub(crate) uid: U32,
    pub(crate) gid: U32,
    pub(crate) pid: U32,
    pub(crate) padding: U32,
}

#[derive(Debug, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct ReplyHead {
    pub(crate) length: U32,
    pub(crate) error: [u8; 4],
    pub(crate) unique: U64,
}

/// Answer to INIT.
#[derive(Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Init {
    pub(crate) major: U32,
    pub(crate) minor: U32,
    pub(crate) readahead_max: U32,
    pub(crate) flags: U32,
    pub(crate) background_max: U16,
    pub(crate) congestion: U16,
    pub(crate) write_max: U32,
    pub(crate) time_granularity: U32,
    pub(crate) pages_max: U16,
    pub(crate) alignment: U16,
    pub(crate) reserved: [U32; 8],
}

#[derive(Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Attributes {
    pub(crate) valid: U64,
    pub(crate) valid_ns: U32,
    pub(crate) padding: U32,
    pub(crate) inode: U64,
    pub(crate) size: U64,
    pub(crate) blocks: U64,
    pub(crate) times: [U64; 3],
    pub(crate) times_ns: [U32; 3],
    pub(crate) mode: U32,
    pub(crate) links: U32,
    pub(crate) uid: U32,
    pub(crate) gid: U32,
    pub(crate) device: U32,
    pub(crate) block_size: U32,
    pub(crate) flags: U32,
}

/// Head of READ and WRITE.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Transfer {
    pub(crate) handle: U64,
    pub(crate) offset: U64,
    pub(crate) size: U32,
    pub(crate) kind: U32,
    pub(crate) owner: U64,
    pub(crate) flags: U32,
    pub(crate) padding: U32,
}

#[derive(Clone, Copy, Debug, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Fallocate {
    pub(crate) handle: U64,
    pub(crate) offset: U64,
    pub(crate) length: U64,
    pub(crate) mode: U32,
    pub(crate) padding: U32,
}
