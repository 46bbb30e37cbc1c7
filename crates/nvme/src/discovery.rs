//! The Discovery log page (Base 5.16.1.23).

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Header before the entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DiscoveryHeader {
    /// Number that changes with every change of the entries.
    pub generation: u64,
    /// Number of entries.
    pub records: u64,
    pub record_format: u16,
    reserved: [u8; 1006],
}

impl DiscoveryHeader {
    pub const SIZE: usize = 1024;

    pub fn new(generation: u64, records: u64) -> Self {
        Self { generation, records, ..Self::new_zeroed() }
    }
}

/// A subsystem at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DiscoveryEntry {
    /// Transport type: 3 is TCP.
    pub trtype: u8,
    /// Address family: 1 is IPv4, 2 is IPv6.
    pub adrfam: u8,
    /// Subsystem type: 2 is an NVM subsystem, 3 is this discovery subsystem.
    pub subtype: u8,
    /// Transport requirements. Bits 1:0 are 1 if a secure channel is required, 2 if it is not. Bit 2 means
    /// that SQ flow control can be disabled.
    pub treq: u8,
    pub portid: u16,
    pub cntlid: u16,
    /// Admin Max SQ Size.
    pub asqsz: u16,
    pub eflags: u16,
    reserved_12: [u8; 20],
    /// Port in decimal digits, padded with spaces.
    pub trsvcid: [u8; 32],
    reserved_64: [u8; 192],
    pub subnqn: [u8; 256],
    /// Address as text, padded with spaces.
    pub traddr: [u8; 256],
    /// Transport specific: the first byte is the security type, zero for none, 2 for TLS 1.3.
    pub tsas: [u8; 256],
}

impl DiscoveryEntry {
    pub const SIZE: usize = 1024;
    pub const TCP: u8 = 3;
    pub const IPV4: u8 = 1;
    pub const IPV6: u8 = 2;
    pub const NVM_SUBSYSTEM: u8 = 2;
    pub const THIS_DISCOVERY_SUBSYSTEM: u8 = 3;
    pub const SECURE_CHANNEL: u8 = 1;
    pub const NO_SECURE_CHANNEL: u8 = 2;
    pub const SQ_FLOW_CONTROL_OPTIONAL: u8 = 1 << 2;
    pub const TLS_1_3: u8 = 2;
}

const _: () = {
    assert!(size_of::<DiscoveryHeader>() == DiscoveryHeader::SIZE);
    assert!(size_of::<DiscoveryEntry>() == DiscoveryEntry::SIZE);
    assert!(core::mem::offset_of!(DiscoveryEntry, subnqn) == 256);
};
