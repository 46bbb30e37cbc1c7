//! What the kernel's answer to a command means.

use sluice_nvme::Status;

/// An answer, in terms of what to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// What the device said, as it said it.
    Device(Status),
    /// The command was not carried out, or not to its end: it can be sent again if it may be repeated, and
    /// else has this status.
    Again(Status),
    /// There is no device any more.
    Gone,
    /// The kernel did not send it.
    Refused(Status),
}

impl Answer {
    /// Of a completion's result: a status, or a negated errno.
    pub(super) fn of(result: i32) -> Self {
        match result {
            // 15 bits, as in a completion queue entry without its phase.
            0.. => Answer::Device(Status(result as u16 & 0x7fff).of_peer()),
            _ => Self::of_errno(-result),
        }
    }

    /// True if the kernel says that it has lost the connection to the controller, or has ended it: host path error, or
    /// aborted by the host (Base, Path Related Status).
    pub(super) fn is_of_path(self) -> bool {
        match self {
            Self::Device(status) => [Status(3 << 8 | 0x70), Status(3 << 8 | 0x71)]
                .iter()
                .any(|of_path| status.same_code(*of_path)),
            Self::Again(_) | Self::Gone => true,
            Self::Refused(_) => false,
        }
    }

    fn of_errno(errno: i32) -> Self {
        match errno {
            libc::EAGAIN => Answer::Again(Status::INTERNAL_ERROR),
            // The controller was reset under it.
            libc::EINTR | libc::ECANCELED => Answer::Again(Status::INTERNAL_ERROR),
            libc::ENODEV | libc::ENXIO | libc::EIO | libc::ESHUTDOWN => Answer::Gone,
            // The host's memory is not there any more.
            libc::EFAULT => Answer::Refused(Status::DATA_TRANSFER_ERROR),
            libc::EACCES | libc::EPERM => Answer::Refused(Status::OPERATION_DENIED),
            _ => Answer::Refused(Status::INTERNAL_ERROR),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_connection_is_told_from_a_device_that_fails() {
        for result in [0x370, 0x4371, -libc::EINTR, -libc::ENODEV] {
            assert!(Answer::of(result).is_of_path(), "{result:#x}");
        }
        for result in [0, 0x280, 0x302, 0x360, -libc::EFAULT] {
            assert!(!Answer::of(result).is_of_path(), "{result:#x}");
        }
    }

    #[test]
    fn a_status_is_the_devices_own() {
        assert_eq!(Answer::of(0), Answer::Device(Status::SUCCESS));
        assert_eq!(Answer::of(0x4281), Answer::Device(Status(0x4281)));
        assert_eq!(Answer::of(-libc::EFAULT), Answer::Refused(Status::DATA_TRANSFER_ERROR));
        assert_eq!(Answer::of(-libc::ENODEV), Answer::Gone);
        assert_eq!(Answer::of(-libc::EINTR), Answer::Again(Status::INTERNAL_ERROR));
        assert_eq!(Answer::of(i32::MIN + 1), Answer::Refused(Status::INTERNAL_ERROR));
    }
}
