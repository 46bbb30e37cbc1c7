//! DMA_MAP, DMA_UNMAP, DMA_READ and DMA_WRITE: access of the device to the client's memory.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Payload of DMA_MAP: the client maps a range of its memory for the device. With a file descriptor the
/// server maps `size` bytes from `offset` of that file; without one it can only send DMA_READ and DMA_WRITE.
/// The reply has no payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DmaMap {
    /// Size of this structure in bytes.
    pub argsz: u32,
    /// Flags [`DmaMap::READ`] and [`DmaMap::WRITE`].
    pub flags: u32,
    /// Offset of the range in the file, in bytes.
    pub offset: u64,
    /// First address of the range for the device.
    pub address: u64,
    /// Size in bytes.
    pub size: u64,
}

impl DmaMap {
    pub const SIZE: usize = 32;
    /// Permission for the device to read the range.
    pub const READ: u32 = 1;
    /// Permission for the device to write the range.
    pub const WRITE: u32 = 2;
}

/// Payload of DMA_UNMAP: the client unmaps a range. The reply carries the same structure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DmaUnmap {
    /// Size of the client's room for a reply, in bytes.
    pub argsz: u32,
    /// Flags [`DmaUnmap::GET_DIRTY_BITMAP`] and [`DmaUnmap::ALL`].
    pub flags: u32,
    pub address: u64,
    /// Size in bytes.
    pub size: u64,
}

impl DmaUnmap {
    pub const SIZE: usize = 24;
    /// Request for a bitmap of the written pages in the reply.
    pub const GET_DIRTY_BITMAP: u32 = 1;
    /// Flag for all maps; address and size are zero.
    pub const ALL: u32 = 2;
}

/// Payload of DMA_READ and DMA_WRITE, from server to client. The data of a write follows, as does the data of
/// the reply to a read; the reply to either repeats this structure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DmaAccess {
    pub address: u64,
    /// Number of bytes.
    pub count: u64,
}

impl DmaAccess {
    pub const SIZE: usize = 16;
}

const _: () = assert!(size_of::<DmaMap>() == DmaMap::SIZE);
const _: () = assert!(size_of::<DmaUnmap>() == DmaUnmap::SIZE);
const _: () = assert!(size_of::<DmaAccess>() == DmaAccess::SIZE);
