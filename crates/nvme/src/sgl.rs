//! Scatter gather list descriptors (Base 4.1.2).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A 16-byte SGL descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct SglDescriptor {
    pub address: u64,
    pub length: u32,
    pub reserved: [u8; 3],
    /// Descriptor type in bits 7:4, sub type in bits 3:0.
    pub identifier: u8,
}

/// SGL descriptor type; open, since hosts may send any value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SglType(pub u8);

impl SglType {
    pub const DATA_BLOCK: SglType = SglType(0);
    pub const BIT_BUCKET: SglType = SglType(1);
    pub const SEGMENT: SglType = SglType(2);
    pub const LAST_SEGMENT: SglType = SglType(3);
    pub const KEYED_DATA_BLOCK: SglType = SglType(4);
    pub const TRANSPORT_DATA_BLOCK: SglType = SglType(5);
}

impl SglDescriptor {
    pub const SIZE: usize = 16;

    /// Returns the descriptor in the data pointer of an entry.
    pub fn from_dptr(dptr: [u64; 2]) -> Self {
        zerocopy::transmute!(dptr)
    }

    pub fn kind(&self) -> SglType {
        SglType(self.identifier >> 4)
    }

    pub fn sub_type(&self) -> u8 {
        self.identifier & 0xf
    }

    pub fn new(kind: SglType, address: u64, length: u32) -> Self {
        Self { address, length, reserved: [0; 3], identifier: kind.0 << 4 }
    }

    /// Describes data in a capsule, from the beginning of the capsule's data on (Base 4.1.2, sub type
    /// offset).
    pub fn in_capsule(length: u32) -> Self {
        const OFFSET: u8 = 1;
        let block = Self::new(SglType::DATA_BLOCK, 0, length);
        Self { identifier: block.identifier | OFFSET, ..block }
    }

    /// Describes data that the transport moves apart from the capsule (sub type transport specific).
    pub fn apart(length: u32) -> Self {
        const TRANSPORT: u8 = 0xa;
        let block = Self::new(SglType::TRANSPORT_DATA_BLOCK, 0, length);
        Self { identifier: block.identifier | TRANSPORT, ..block }
    }

    /// Returns the data pointer of an entry for this descriptor.
    pub fn to_dptr(self) -> [u64; 2] {
        zerocopy::transmute!(self)
    }
}

const _: () = assert!(size_of::<SglDescriptor>() == SglDescriptor::SIZE);
