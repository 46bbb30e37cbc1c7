//! Features (Base 5.15, 5.27).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Feature identifier; open, since hosts may send any value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeatureId(pub u8);

impl FeatureId {
    pub const ARBITRATION: FeatureId = FeatureId(0x01);
    pub const POWER_MANAGEMENT: FeatureId = FeatureId(0x02);
    pub const TEMPERATURE_THRESHOLD: FeatureId = FeatureId(0x04);
    pub const ERROR_RECOVERY: FeatureId = FeatureId(0x05);
    pub const VOLATILE_WRITE_CACHE: FeatureId = FeatureId(0x06);
    pub const NUMBER_OF_QUEUES: FeatureId = FeatureId(0x07);
    pub const INTERRUPT_COALESCING: FeatureId = FeatureId(0x08);
    pub const INTERRUPT_VECTOR: FeatureId = FeatureId(0x09);
    pub const WRITE_ATOMICITY: FeatureId = FeatureId(0x0a);
    pub const ASYNC_EVENTS: FeatureId = FeatureId(0x0b);
    pub const TIMESTAMP: FeatureId = FeatureId(0x0e);
    pub const KEEP_ALIVE_TIMER: FeatureId = FeatureId(0x0f);
    pub const HOST_BEHAVIOR: FeatureId = FeatureId(0x16);
    pub const HOST_IDENTIFIER: FeatureId = FeatureId(0x81);
    pub const RESERVATION_NOTIFICATION_MASK: FeatureId = FeatureId(0x82);
    pub const RESERVATION_PERSISTENCE: FeatureId = FeatureId(0x83);
}

/// Value that Get Features is to return (CDW10 bits 10:8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Select(pub u8);

impl Select {
    pub const CURRENT: Select = Select(0);
    pub const DEFAULT: Select = Select(1);
    pub const SAVED: Select = Select(2);
    pub const SUPPORTED_CAPABILITIES: Select = Select(3);
}

/// Bits of dword 0 of the answer to [`Select::SUPPORTED_CAPABILITIES`].
pub mod capabilities {
    pub const SAVEABLE: u32 = 1 << 0;
    pub const NAMESPACE_SPECIFIC: u32 = 1 << 1;
    pub const CHANGEABLE: u32 = 1 << 2;
}

/// The Save bit of Set Features, CDW10 bit 31.
pub const SAVE: u32 = 1 << 31;

/// The value of Host Identifier: the data has 128 bits, not 64.
pub const EXTENDED_HOST_IDENTIFIER: u32 = 1 << 0;

/// The value of Reservation Persistence.
pub const PERSIST_THROUGH_POWER_LOSS: u32 = 1 << 0;

/// The data of the Timestamp feature (Base 5.27.1.11).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct TimestampData(pub u64);

impl TimestampData {
    const MILLISECONDS: u64 = (1 << 48) - 1;

    /// Creates the data; `milliseconds` wrap after 48 bits.
    pub fn new(milliseconds: u64, set_by_host: bool) -> Self {
        Self(milliseconds & Self::MILLISECONDS | u64::from(set_by_host) << 49)
    }

    /// Returns milliseconds since 1970-01-01, or since the last reset if no host has set them.
    pub fn milliseconds(self) -> u64 {
        self.0 & Self::MILLISECONDS
    }

    /// Returns Timestamp Origin: true if a host has set it since the last reset.
    pub fn set_by_host(self) -> bool {
        self.0 >> 49 & 7 == 1
    }
}

/// The data of the Host Behavior Support feature (Base 5.27.1.18).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct HostBehavior {
    /// Advanced Command Retry Enable.
    pub acre: u8,
    /// Extended Telemetry Data Area 4 Supported.
    pub etdas: u8,
    /// LBA Format Extension Enable.
    pub lbafee: u8,
    /// Host Dispersed Namespace Support.
    pub hdisns: u8,
    /// Copy Descriptor Formats Enable, a bit for each.
    pub cdfe: u16,
    reserved: [u8; 506],
}

impl HostBehavior {
    pub const SIZE: usize = 512;

    pub fn new(acre: u8, etdas: u8, cdfe: u16) -> Self {
        Self { acre, etdas, lbafee: 0, hdisns: 0, cdfe, reserved: [0; 506] }
    }
}

impl Default for HostBehavior {
    fn default() -> Self {
        Self::new(0, 0, 0)
    }
}

const _: () = assert!(size_of::<HostBehavior>() == HostBehavior::SIZE);
