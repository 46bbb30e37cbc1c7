//! DMA_MAP, DMA_UNMAP, DMA_READ and DMA_WRITE: the client's memory as the device sees it.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// DMA_MAP: the client lends a range of its memory. With a file descriptor the server maps `size` bytes
/// from `offset` of that file; without one it can only ask with DMA_READ and DMA_WRITE. The reply has
/// no payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DmaMap {
    /// Size of this structure in bytes.
    pub argsz: u32,
    /// [`DmaMap::READ`] and [`DmaMap::WRITE`].
    pub flags: u32,
    /// Where the range begins in the file, in bytes.
    pub offset: u64,
    /// Where the range begins for the device.
    pub address: u64,
    /// In bytes.
    pub size: u64,
}

impl DmaMap {
    pub const SIZE: usize = 32;
    /// The device may read the range.
    pub const READ: u32 = 1;
    /// The device may write the range.
    pub const WRITE: u32 = 2;
}

/// DMA_UNMAP: the client takes a range back. The reply carries the same structure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DmaUnmap {
    /// Size of the reply this client has room for, in bytes.
    pub argsz: u32,
    /// [`DmaUnmap::GET_DIRTY_BITMAP`] and [`DmaUnmap::ALL`].
    pub flags: u32,
    pub address: u64,
    /// In bytes.
    pub size: u64,
}

impl DmaUnmap {
    pub const SIZE: usize = 24;
    /// The reply shall say which pages were written.
    pub const GET_DIRTY_BITMAP: u32 = 1;
    /// Every map there is; address and size are zero.
    pub const ALL: u32 = 2;
}

/// DMA_READ and DMA_WRITE, from server to client. The data of a write follows, as does the data of the
/// reply to a read; the reply to either repeats this structure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DmaAccess {
    pub address: u64,
    /// In bytes.
    pub count: u64,
}

impl DmaAccess {
    pub const SIZE: usize = 16;
}

const _: () = assert!(size_of::<DmaMap>() == DmaMap::SIZE);
const _: () = assert!(size_of::<DmaUnmap>() == DmaUnmap::SIZE);
const _: () = assert!(size_of::<DmaAccess>() == DmaAccess::SIZE);
