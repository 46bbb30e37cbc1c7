//! The Persistent Event Log page (Base 5.16.1.14).

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Header of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LogHeader {
    pub log: u8,
    reserved_1: [u8; 3],
    pub events: U32,
    /// Bytes of the page, including this header.
    pub length: U64,
    pub revision: u8,
    reserved_17: u8,
    /// Bytes of this header after this field.
    pub header_length: U16,
    /// Time, in the form of the Timestamp feature.
    pub timestamp: U64,
    pub power_on_hours: [u8; 16],
    pub power_cycles: U64,
    pub pci_vendor: U16,
    pub pci_subsystem_vendor: U16,
    pub serial: [u8; 20],
    pub model: [u8; 40],
    pub subnqn: [u8; 256],
    /// Number of contexts that were established.
    pub generation: U16,
    /// Context, see [`reporting_context`].
    pub reporting_context: U32,
    reserved_378: [u8; 102],
    /// Bitmap of the event types that are ever recorded.
    pub supported: [u8; 32],
}

impl LogHeader {
    pub const SIZE: usize = 512;
    pub const REVISION: u8 = 3;
    /// Value of `header_length`.
    pub const LENGTH: u16 = Self::SIZE as u16 - 20;
}

/// Reporting Context Information; the port's identifier is in bits 15:0.
pub mod reporting_context {
    /// Flag of a context that was established through a port of the NVM subsystem.
    pub const SUBSYSTEM_PORT: u32 = 1 << 16;
    /// Flag of a context that existed when the command arrived.
    pub const EXISTS: u32 = 1 << 18;
}

/// Action on the context, in Log Specific Parameter bits 1:0.
pub mod action {
    pub const READ: u8 = 0;
    pub const ESTABLISH_AND_READ: u8 = 1;
    pub const RELEASE: u8 = 2;
    pub const ESTABLISH_AND_READ_HEADER: u8 = 3;
}

/// Header before the data of each event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct EventHeader {
    /// Event type, see [`event`].
    pub kind: u8,
    pub revision: u8,
    /// Bytes of this header after this field.
    pub header_length: u8,
    pub additional: u8,
    pub controller: U16,
    /// Time, in the form of the Timestamp feature.
    pub timestamp: U64,
    pub port: U16,
    reserved: [u8; 4],
    pub vendor_length: U16,
    /// Bytes of vendor-specific information and data.
    pub length: U16,
}

impl EventHeader {
    pub const SIZE: usize = 24;
    /// Value of `header_length`.
    pub const LENGTH: u8 = Self::SIZE as u8 - 3;
    pub const REVISION: u8 = 1;

    /// Creates the header of an event of this type with `length` bytes of data.
    pub fn new(kind: u8, controller: u16, timestamp: u64, length: u16) -> Self {
        let (revision, header_length) = (Self::REVISION, Self::LENGTH);
        let (controller, timestamp) = (U16::new(controller), U64::new(timestamp));
        let rest = Self::new_zeroed();
        Self { kind, revision, header_length, controller, timestamp, length: U16::new(length), ..rest }
    }
}

/// Event types.
pub mod event {
    /// Event with a SMART / Health Information log page.
    pub const SMART_SNAPSHOT: u8 = 0x01;
    pub const FIRMWARE_COMMIT: u8 = 0x02;
    pub const TIMESTAMP_CHANGE: u8 = 0x03;
    pub const POWER_ON_OR_RESET: u8 = 0x04;
    pub const HARDWARE_ERROR: u8 = 0x05;
    pub const CHANGE_NAMESPACE: u8 = 0x06;
    pub const FORMAT_START: u8 = 0x07;
    pub const FORMAT_COMPLETION: u8 = 0x08;
    pub const SANITIZE_START: u8 = 0x09;
    pub const SANITIZE_COMPLETION: u8 = 0x0a;
    pub const SET_FEATURE: u8 = 0x0b;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct FirmwareCommit {
    pub old_revision: [u8; 8],
    pub new_revision: [u8; 8],
    pub action: u8,
    pub slot: u8,
    pub status_type: u8,
    pub status_code: u8,
    pub vendor_code: U16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct TimestampChange {
    /// Time, in the form of the Timestamp feature.
    pub previous: U64,
    pub since_reset_ms: U64,
}

/// Event of one controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PowerOnOrReset {
    pub firmware: [u8; 8],
    pub controller: U16,
    pub firmware_activation: u8,
    /// Bit 0: an operation was under way.
    pub in_progress: u8,
    reserved: [u8; 12],
    pub power_cycles: U32,
    pub power_on_ms: U64,
    /// Time, in the form of the Timestamp feature.
    pub timestamp: U64,
}

impl PowerOnOrReset {
    pub const SIZE: usize = 44;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct HardwareError {
    pub code: U16,
    reserved: [u8; 2],
}

impl HardwareError {
    pub const UNSAFE_SHUTDOWN: u16 = 0x08;
}

/// Fields of a host's command that created or deleted a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ChangeNamespace {
    pub cdw10: U32,
    reserved_4: [u8; 4],
    pub nsze: U64,
    reserved_16: [u8; 8],
    pub ncap: U64,
    pub flbas: u8,
    pub dps: u8,
    pub nmic: u8,
    reserved_35: u8,
    pub anagrpid: U32,
    pub nvmsetid: U16,
    reserved_42: [u8; 2],
    pub nsid: U32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct FormatStart {
    pub nsid: U32,
    /// FNA of Identify.
    pub attributes: u8,
    reserved: [u8; 3],
    pub cdw10: U32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct FormatCompletion {
    pub nsid: U32,
    pub smallest_progress: u8,
    /// Bit 0: it failed. Bit 1: it is not complete.
    pub outcome: u8,
    pub information: U16,
    pub status: U32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SanitizeStart {
    /// SANICAP of Identify.
    pub capabilities: U32,
    pub cdw10: U32,
    pub cdw11: U32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SanitizeCompletion {
    /// Progress, in the form of the Sanitize Status log page.
    pub progress: U16,
    pub status: U16,
    pub information: U16,
    reserved: [u8; 2],
}

/// Event without data of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SetFeature {
    /// Dwords of the command in bits 2:0.
    pub layout: U32,
    pub cdw10: U32,
    pub cdw11: U32,
}

impl SetFeature {
    pub const TWO_DWORDS: u32 = 2;
}

const _: () = {
    assert!(size_of::<LogHeader>() == LogHeader::SIZE);
    assert!(size_of::<EventHeader>() == EventHeader::SIZE);
    assert!(size_of::<FirmwareCommit>() == 22);
    assert!(size_of::<TimestampChange>() == 16);
    assert!(size_of::<PowerOnOrReset>() == PowerOnOrReset::SIZE);
    assert!(size_of::<HardwareError>() == 4);
    assert!(size_of::<FormatStart>() == 12);
    assert!(size_of::<FormatCompletion>() == 12);
    assert!(size_of::<SanitizeStart>() == 12);
    assert!(size_of::<SanitizeCompletion>() == 8);
    assert!(size_of::<SetFeature>() == 12);
};
