//! Log pages (Base 5.16).

use crate::Status;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Log page identifier; open, since hosts may send any value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogId(pub u8);

impl LogId {
    pub const SUPPORTED_LOG_PAGES: LogId = LogId(0x00);
    pub const ERROR_INFORMATION: LogId = LogId(0x01);
    pub const SMART_HEALTH: LogId = LogId(0x02);
    pub const FIRMWARE_SLOT: LogId = LogId(0x03);
    pub const CHANGED_NAMESPACE_LIST: LogId = LogId(0x04);
    pub const COMMAND_EFFECTS: LogId = LogId(0x05);
    pub const SELF_TEST: LogId = LogId(0x06);
    pub const ASYMMETRIC_NAMESPACE_ACCESS: LogId = LogId(0x0c);
    pub const PERSISTENT_EVENT: LogId = LogId(0x0d);
    pub const SANITIZE_STATUS: LogId = LogId(0x81);
    pub const FEATURE_EFFECTS: LogId = LogId(0x12);
    pub const MI_COMMAND_EFFECTS: LogId = LogId(0x13);
    pub const DISCOVERY: LogId = LogId(0x70);
    pub const RESERVATION_NOTIFICATION: LogId = LogId(0x80);
}

/// An entry of the Error Information log page (Base 5.16.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ErrorInformation {
    /// Number of the error, counted from one over the life of the controller; zero for no entry.
    pub error_count: u64,
    pub sq_id: u16,
    pub cid: u16,
    /// Status in bits 15:1.
    status_phase: u16,
    /// Byte of the submission queue entry in bits 7:0, bit of it in 10:8.
    pub parameter_location: u16,
    pub lba: u64,
    pub nsid: u32,
    pub vendor_log: u8,
    pub transport: u8,
    pub command_set: u8,
    pub opcode: u8,
    pub command_specific: u64,
    pub transport_specific: u16,
    reserved: [u8; 21],
    /// Version: one means that the fields `command_set` and `opcode` are valid.
    pub version: u8,
}

impl ErrorInformation {
    pub const SIZE: usize = 64;

    /// Value for a queue, a command or a parameter that the error is not about.
    pub const NOT_APPLICABLE: u16 = 0xffff;

    /// Creates an error that is not about a command, and not counted yet.
    pub fn new(status: Status) -> Self {
        Self {
            sq_id: Self::NOT_APPLICABLE,
            cid: Self::NOT_APPLICABLE,
            status_phase: status.0 << 1,
            parameter_location: Self::NOT_APPLICABLE,
            version: 1,
            ..Self::new_zeroed()
        }
    }

    pub fn status(&self) -> Status {
        Status(self.status_phase >> 1)
    }
}

/// The SMART / Health Information log page (Base 5.16.1.3). Counters are 128 bits wide, low half first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SmartHealth {
    pub critical_warning: u8,
    /// Temperature in kelvin.
    pub composite_temperature: [u8; 2],
    /// Spare in percent.
    pub available_spare: u8,
    /// Threshold in percent.
    pub available_spare_threshold: u8,
    pub percentage_used: u8,
    pub endurance_group_warning: u8,
    reserved_7: [u8; 25],
    /// Data read in thousands of 512 bytes, rounded up.
    pub data_units_read: [u64; 2],
    /// Data written in thousands of 512 bytes, rounded up.
    pub data_units_written: [u64; 2],
    pub host_read_commands: [u64; 2],
    pub host_write_commands: [u64; 2],
    /// Time in minutes.
    pub controller_busy_time: [u64; 2],
    pub power_cycles: [u64; 2],
    pub power_on_hours: [u64; 2],
    pub unsafe_shutdowns: [u64; 2],
    pub media_errors: [u64; 2],
    pub error_log_entries: [u64; 2],
    /// Time in minutes.
    pub warning_temperature_time: u32,
    /// Time in minutes.
    pub critical_temperature_time: u32,
    reserved_200: [u8; 312],
}

impl SmartHealth {
    pub const SIZE: usize = 512;
}

/// Bits of the critical warning, and of Asynchronous Event Configuration that enable its events.
pub mod critical_warning {
    pub const SPARE: u8 = 1 << 0;
    pub const TEMPERATURE: u8 = 1 << 1;
    pub const RELIABILITY: u8 = 1 << 2;
    pub const READ_ONLY: u8 = 1 << 3;
    pub const BACKUP: u8 = 1 << 4;
}

/// The Firmware Slot Information log page (Base 5.16.1.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FirmwareSlot {
    /// Active slot in bits 2:0, the one after the next reset in 6:4.
    pub active: u8,
    reserved_1: [u8; 7],
    /// Revisions in ASCII; a slot of zeros is empty.
    pub revisions: [[u8; 8]; 7],
    reserved_64: [u8; 448],
}

impl FirmwareSlot {
    pub const SIZE: usize = 512;
}

/// The Device Self-test log page (Base 5.16.1.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SelfTestLog {
    /// Type of the running test: 0 for none, 1 short, 2 extended.
    pub current: u8,
    /// Progress of the test in percent.
    pub completion: u8,
    reserved: [u8; 2],
    /// Results, the newest first.
    pub results: [SelfTestResult; Self::RESULTS],
}

impl SelfTestLog {
    pub const SIZE: usize = 564;
    pub const RESULTS: usize = 20;
}

/// A test that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SelfTestResult {
    /// Result in bits 3:0, type of the test in 7:4.
    pub status: u8,
    /// Segment that failed.
    pub segment: u8,
    /// Flags of the valid fields below.
    valid: u8,
    reserved: u8,
    power_on_hours: [u8; 8],
    nsid: [u8; 4],
    failing_lba: [u8; 8],
    status_code_type: u8,
    status_code: u8,
    vendor: [u8; 2],
}

impl SelfTestResult {
    pub const SIZE: usize = 28;

    /// Value of [`status`](Self::status) of an entry without a result.
    pub const UNUSED: u8 = 0xf;

    pub fn set_power_on_hours(&mut self, hours: u64) {
        self.power_on_hours = hours.to_le_bytes();
    }

    pub fn set_namespace(&mut self, nsid: u32) {
        self.valid |= 1 << 0;
        self.nsid = nsid.to_le_bytes();
    }

    /// Sets the first block of a range that could not be read, and its status.
    pub fn set_failure(&mut self, lba: u64, status: Status) {
        self.valid |= 1 << 1 | 1 << 2 | 1 << 3;
        self.failing_lba = lba.to_le_bytes();
        (self.status_code_type, self.status_code) = (status.sct(), status.sc());
    }
}

/// The Sanitize Status log page (Base 5.16.1.25).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SanitizeStatus {
    /// Progress of the running operation in 65,536ths; 65,535 if none runs.
    pub progress: u16,
    /// Status, see [`sstat`].
    pub status: u16,
    /// Command dword 10 of the last operation.
    pub cdw10: u32,
    /// Estimates in seconds for an overwrite, a block erase and a cryptographic erase, then the same without
    /// deallocating; all ones for an unknown duration.
    estimates: [u32; 6],
    reserved: [u8; 480],
}

impl SanitizeStatus {
    pub const SIZE: usize = 512;

    /// Creates the status of a drive that was never sanitized.
    pub fn new() -> Self {
        Self { progress: u16::MAX, estimates: [u32::MAX; 6], ..Self::new_zeroed() }
    }
}

impl Default for SanitizeStatus {
    fn default() -> Self {
        Self::new()
    }
}

/// Sanitize Status: state of the last operation in bits 2:0, completed overwrite passes in 7:3.
pub mod sstat {
    pub const COMPLETED: u16 = 1;
    pub const IN_PROGRESS: u16 = 2;
    pub const FAILED: u16 = 3;
    pub const PASSES_SHIFT: u16 = 3;
    /// Flag of a drive that was not written since.
    pub const GLOBAL_DATA_ERASED: u16 = 1 << 8;
}

/// The Reservation Notification log page (Base 5.16.1); of zeros if there is no notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReservationNotification {
    /// Number of the log page, counted from one over the life of the controller.
    pub count: u64,
    /// Type of the notification: 1 Registration Preempted, 2 Reservation Released, 3 Reservation Preempted.
    pub kind: u8,
    /// Number of further pages to read.
    pub available: u8,
    reserved_10: [u8; 2],
    pub nsid: u32,
    reserved_16: [u8; 48],
}

impl ReservationNotification {
    pub const SIZE: usize = 64;

    pub fn new(count: u64, kind: u8, available: u8, nsid: u32) -> Self {
        Self { count, kind, available, nsid, ..Self::new_zeroed() }
    }
}

/// The first bytes of the Asymmetric Namespace Access log page (Base 5.16.1.13).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AnaHeader {
    /// Number of changes of the log page.
    pub changes: u64,
    /// Number of descriptors that follow.
    pub groups: u16,
    reserved_10: [u8; 6],
}

impl AnaHeader {
    pub const SIZE: usize = 16;

    pub fn new(changes: u64, groups: u16) -> Self {
        Self { changes, groups, ..Self::new_zeroed() }
    }
}

/// The descriptor of an ANA group; its NSIDs follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AnaGroup {
    /// ANAGRPID.
    pub group: u32,
    pub namespaces: u32,
    pub changes: u64,
    /// State in bits 3:0.
    pub state: u8,
    reserved_17: [u8; 15],
}

impl AnaGroup {
    pub const SIZE: usize = 32;

    pub fn new(group: u32, namespaces: u32, changes: u64, state: u8) -> Self {
        Self { group, namespaces, changes, state, ..Self::new_zeroed() }
    }
}

/// Entries of the Changed Namespace List; if more have changed, there is a single entry for all.
pub const CHANGED_NAMESPACES: usize = 1024;

/// Bits of an entry of the Supported Log Pages page (Base 5.16.1.1).
pub mod supported {
    pub const LSUPP: u32 = 1 << 0;
    /// Flag for an offset that may be an index (CDW14.OT).
    pub const IOS: u32 = 1 << 1;
}

/// Bits of an entry of the Commands Supported and Effects page (Base 5.16.1.6). The bits of a feature (Base
/// 5.16.1.18) are the same.
pub mod effects {
    /// Support of the command or feature.
    pub const SUPPORTED: u32 = 1 << 0;
    /// Logical Block Content Change, or User Data Content Change.
    pub const DATA_CHANGES: u32 = 1 << 1;
    /// Namespace Capability Change.
    pub const NAMESPACE_CAPABILITY: u32 = 1 << 2;
    /// Namespace Inventory Change.
    pub const NAMESPACE_INVENTORY: u32 = 1 << 3;
    /// Controller Capability Change.
    pub const CONTROLLER_CAPABILITY: u32 = 1 << 4;
    /// Command Submission and Execution: no other command may be submitted to the namespace meanwhile.
    pub const ALONE_IN_NAMESPACE: u32 = 1 << 16;
    /// Command Submission and Execution: no other command may be submitted to any namespace of the subsystem
    /// meanwhile.
    pub const ALONE: u32 = 2 << 16;
    /// Scope of one namespace.
    pub const SCOPE_NAMESPACE: u32 = 1 << 20;
    /// Scope of one controller.
    pub const SCOPE_CONTROLLER: u32 = 1 << 21;
    /// Scope of the NVM subsystem.
    pub const SCOPE_SUBSYSTEM: u32 = 1 << 25;
}

const _: () = {
    assert!(size_of::<ErrorInformation>() == ErrorInformation::SIZE);
    assert!(size_of::<SmartHealth>() == SmartHealth::SIZE);
    assert!(core::mem::offset_of!(SmartHealth, data_units_read) == 32);
    assert!(core::mem::offset_of!(SmartHealth, warning_temperature_time) == 192);
    assert!(size_of::<FirmwareSlot>() == FirmwareSlot::SIZE);
    assert!(size_of::<SanitizeStatus>() == SanitizeStatus::SIZE);
    assert!(size_of::<SelfTestLog>() == SelfTestLog::SIZE);
    assert!(size_of::<SelfTestResult>() == SelfTestResult::SIZE);
    assert!(size_of::<AnaHeader>() == AnaHeader::SIZE);
    assert!(size_of::<AnaGroup>() == AnaGroup::SIZE);
    assert!(size_of::<ReservationNotification>() == ReservationNotification::SIZE);
};
