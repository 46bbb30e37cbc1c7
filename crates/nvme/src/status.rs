//! Status codes (Base 3.3.3.2.1; NVM Command Set 3.1.2).

use core::fmt;
use zerocopy::FromZeros;

/// The 15-bit status field of a completion: SC in bits 7:0, SCT in 10:8, CRD in 12:11, More in 13,
/// Do Not Retry in 14.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, FromZeros)]
#[repr(transparent)]
pub struct Status(pub u16);

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $sct:literal, $sc:literal, $dnr:literal;)*) => {
        impl Status {
            $($(#[$doc])* pub const $name: Status = Status($sct << 8 | $sc | ($dnr << 14));)*

            /// Every constant with its name.
            pub const ALL: &[(&str, Status)] = &[$((stringify!($name), Status::$name)),*];

            /// Returns the constant's name, for messages.
            pub fn name(self) -> Option<&'static str> {
                match self.0 & 0x7ff {
                    $(v if v == ($sct << 8 | $sc) => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

// Name = SCT, SC, DNR. DNR is set where the same command would fail again.
statuses! {
    SUCCESS = 0, 0x00, 0;
    INVALID_OPCODE = 0, 0x01, 1;
    INVALID_FIELD = 0, 0x02, 1;
    CID_CONFLICT = 0, 0x03, 1;
    DATA_TRANSFER_ERROR = 0, 0x04, 0;
    ABORTED_POWER_LOSS = 0, 0x05, 0;
    INTERNAL_ERROR = 0, 0x06, 0;
    ABORT_REQUESTED = 0, 0x07, 0;
    ABORTED_SQ_DELETION = 0, 0x08, 0;
    ABORTED_FAILED_FUSED = 0, 0x09, 0;
    ABORTED_MISSING_FUSED = 0, 0x0a, 1;
    INVALID_NAMESPACE = 0, 0x0b, 1;
    COMMAND_SEQUENCE_ERROR = 0, 0x0c, 1;
    INVALID_SGL_SEGMENT = 0, 0x0d, 1;
    INVALID_SGL_COUNT = 0, 0x0e, 1;
    SGL_DATA_LENGTH_INVALID = 0, 0x0f, 1;
    SGL_METADATA_LENGTH_INVALID = 0, 0x10, 1;
    SGL_TYPE_INVALID = 0, 0x11, 1;
    INVALID_USE_OF_CMB = 0, 0x12, 1;
    PRP_OFFSET_INVALID = 0, 0x13, 1;
    ATOMIC_WRITE_UNIT_EXCEEDED = 0, 0x14, 1;
    OPERATION_DENIED = 0, 0x15, 1;
    SGL_OFFSET_INVALID = 0, 0x16, 1;
    HOST_IDENTIFIER_INCONSISTENT_FORMAT = 0, 0x18, 1;
    KEEP_ALIVE_TIMEOUT_EXPIRED = 0, 0x19, 0;
    KEEP_ALIVE_TIMEOUT_INVALID = 0, 0x1a, 1;
    ABORTED_PREEMPT = 0, 0x1b, 0;
    SANITIZE_FAILED = 0, 0x1c, 1;
    SANITIZE_IN_PROGRESS = 0, 0x1d, 0;
    NAMESPACE_WRITE_PROTECTED = 0, 0x20, 1;
    COMMAND_INTERRUPTED = 0, 0x21, 0;
    TRANSIENT_TRANSPORT_ERROR = 0, 0x22, 0;
    LBA_OUT_OF_RANGE = 0, 0x80, 1;
    CAPACITY_EXCEEDED = 0, 0x81, 1;
    NAMESPACE_NOT_READY = 0, 0x82, 0;
    RESERVATION_CONFLICT = 0, 0x83, 1;
    FORMAT_IN_PROGRESS = 0, 0x84, 0;

    COMPLETION_QUEUE_INVALID = 1, 0x00, 1;
    INVALID_QUEUE_IDENTIFIER = 1, 0x01, 1;
    INVALID_QUEUE_SIZE = 1, 0x02, 1;
    ABORT_LIMIT_EXCEEDED = 1, 0x03, 0;
    AER_LIMIT_EXCEEDED = 1, 0x05, 0;
    INVALID_FIRMWARE_SLOT = 1, 0x06, 1;
    INVALID_FIRMWARE_IMAGE = 1, 0x07, 1;
    INVALID_INTERRUPT_VECTOR = 1, 0x08, 1;
    INVALID_LOG_PAGE = 1, 0x09, 1;
    INVALID_FORMAT = 1, 0x0a, 1;
    INVALID_QUEUE_DELETION = 1, 0x0c, 1;
    FEATURE_NOT_SAVEABLE = 1, 0x0d, 1;
    FEATURE_NOT_CHANGEABLE = 1, 0x0e, 1;
    FEATURE_NOT_NAMESPACE_SPECIFIC = 1, 0x0f, 1;
    NAMESPACE_INSUFFICIENT_CAPACITY = 1, 0x15, 1;
    NAMESPACE_IDENTIFIER_UNAVAILABLE = 1, 0x16, 1;
    NAMESPACE_ALREADY_ATTACHED = 1, 0x18, 1;
    NAMESPACE_IS_PRIVATE = 1, 0x19, 1;
    NAMESPACE_NOT_ATTACHED = 1, 0x1a, 1;
    THIN_PROVISIONING_NOT_SUPPORTED = 1, 0x1b, 1;
    CONTROLLER_LIST_INVALID = 1, 0x1c, 1;
    SELF_TEST_IN_PROGRESS = 1, 0x1d, 0;
    ANA_GROUP_IDENTIFIER_INVALID = 1, 0x24, 1;
    NAMESPACE_ATTACHMENT_LIMIT_EXCEEDED = 1, 0x27, 1;
    COMMAND_SET_NOT_SUPPORTED = 1, 0x29, 1;
    CONFLICTING_ATTRIBUTES = 1, 0x80, 1;
    INVALID_PROTECTION_INFORMATION = 1, 0x81, 1;
    WRITE_TO_READ_ONLY_RANGE = 1, 0x82, 1;
    COMMAND_SIZE_LIMIT_EXCEEDED = 1, 0x83, 1;
    INCOMPATIBLE_NAMESPACE = 1, 0x85, 1;
    OVERLAPPING_RANGE = 1, 0x87, 1;

    WRITE_FAULT = 2, 0x80, 0;
    UNRECOVERED_READ_ERROR = 2, 0x81, 0;
    COMPARE_FAILURE = 2, 0x85, 1;
    ACCESS_DENIED = 2, 0x86, 1;
    DEALLOCATED_OR_UNWRITTEN = 2, 0x87, 1;

    INTERNAL_PATH_ERROR = 3, 0x00, 0;
    ASYMMETRIC_ACCESS_PERSISTENT_LOSS = 3, 0x01, 0;
    ASYMMETRIC_ACCESS_INACCESSIBLE = 3, 0x02, 0;
    ASYMMETRIC_ACCESS_TRANSITION = 3, 0x03, 0;
}

impl Status {
    pub const DNR: u16 = 1 << 14;

    /// Vendor specific status, only between layers of a drive: the target has lost acknowledged writes. The
    /// command was not carried out. No host, program or function receives it.
    pub const WRITES_LOST: Self = Self(7 << 8 | 0x01);

    pub const MORE: u16 = 1 << 13;

    #[inline]
    pub fn is_success(self) -> bool {
        self.0 & 0x7ff == 0
    }

    /// Returns the status code type.
    pub fn sct(self) -> u8 {
        (self.0 >> 8 & 7) as u8
    }

    /// Returns the status code.
    pub fn sc(self) -> u8 {
        self.0 as u8
    }

    /// Returns whether both have the same code, with any DNR, More and CRD.
    pub fn same_code(self, other: Status) -> bool {
        (self.0 ^ other.0) & 0x7ff == 0
    }

    /// Returns the status with a Command Retry Delay (CRD): 1 to 3 for CRDT1 to CRDT3, 0 for none.
    #[must_use]
    pub fn with_retry_delay(self, crd: u16) -> Self {
        const SHIFT: u32 = 11;
        Self(self.0 & !(3 << SHIFT) | (crd & 3) << SHIFT)
    }

    /// Returns whether a host gave the command up: by Abort, by deleting its queue, or by a reset; or whether it
    /// waited so long that the host submits it again. The layer that ended the command has not failed.
    pub fn is_of_host(self) -> bool {
        [Self::ABORT_REQUESTED, Self::ABORTED_SQ_DELETION, Self::COMMAND_INTERRUPTED]
            .into_iter()
            .any(|status| self.same_code(status))
    }

    /// Converts the status of a device or a peer to one for the layers above. Layers of a drive use some
    /// codes to report that a host gave a command up, or that writes are lost. Such codes become Internal
    /// Error: no peer may send them.
    #[inline]
    pub fn of_peer(self) -> Self {
        match self.is_success() || !(self.is_of_host() || self.same_code(Self::WRITES_LOST)) {
            true => self,
            false => Self::INTERNAL_ERROR,
        }
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "Status(sct {:#x}, sc {:#04x})", self.sct(), self.sc()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_cannot_send_the_statuses_between_layers() {
        for code in [Status::ABORT_REQUESTED, Status::ABORTED_SQ_DELETION, Status::WRITES_LOST] {
            assert_eq!(Status(code.0 | Status::DNR).of_peer(), Status::INTERNAL_ERROR);
        }
        for own in [Status::SUCCESS, Status(Status::WRITE_FAULT.0 | Status::DNR), Status::LBA_OUT_OF_RANGE] {
            assert_eq!(own.of_peer(), own);
        }
    }
}
