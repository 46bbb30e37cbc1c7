//! Data structures of the reservation commands (Base 7.2 to 7.5).

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// The first 24 bytes of a Reservation Status data structure (Base 7.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReportHeader {
    /// GEN: number of changes of registrations.
    generation: [u8; 4],
    /// RTYPE; zero without a reservation.
    pub rtype: u8,
    /// REGSTRT: number of registrants that follow.
    registrants: [u8; 2],
    reserved_7: [u8; 2],
    /// PTPLS.
    pub persists: u8,
    reserved_10: [u8; 14],
}

impl ReportHeader {
    pub const SIZE: usize = 24;

    pub fn new(generation: u32, rtype: u8, registrants: u16, persists: bool) -> Self {
        Self {
            generation: generation.to_le_bytes(),
            rtype,
            registrants: registrants.to_le_bytes(),
            persists: persists.into(),
            ..Self::new_zeroed()
        }
    }

    pub fn generation(&self) -> u32 {
        u32::from_le_bytes(self.generation)
    }

    pub fn registrants(&self) -> u16 {
        u16::from_le_bytes(self.registrants)
    }
}

/// A Registered Controller data structure, which follows the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ShortRegistrant {
    pub cntlid: u16,
    /// RCSTS bit 0: the host holds the reservation.
    pub status: u8,
    reserved_3: [u8; 5],
    pub host: [u8; 8],
    pub key: u64,
}

impl ShortRegistrant {
    pub const SIZE: usize = 24;

    pub fn new(cntlid: u16, holds: bool, host: [u8; 8], key: u64) -> Self {
        Self { cntlid, status: holds.into(), host, key, ..Self::new_zeroed() }
    }
}

/// A Registered Controller extended data structure. The first begins at byte 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ExtendedRegistrant {
    pub cntlid: u16,
    /// RCSTS bit 0: the host holds the reservation.
    pub status: u8,
    reserved_3: [u8; 5],
    pub key: u64,
    pub host: [u8; 16],
    reserved_32: [u8; 32],
}

impl ExtendedRegistrant {
    pub const SIZE: usize = 64;

    pub fn new(cntlid: u16, holds: bool, host: [u8; 16], key: u64) -> Self {
        Self { cntlid, status: holds.into(), host, key, ..Self::new_zeroed() }
    }
}

const _: () = {
    assert!(size_of::<ReportHeader>() == ReportHeader::SIZE);
    assert!(size_of::<ShortRegistrant>() == ShortRegistrant::SIZE);
    assert!(size_of::<ExtendedRegistrant>() == ExtendedRegistrant::SIZE);
};
