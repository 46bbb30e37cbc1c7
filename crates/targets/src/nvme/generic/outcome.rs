//! Meaning of the kernel's result of a command.

use sluice_nvme::Status;

/// A result of a command, by the next step that it requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// A status of the device, unchanged.
    Device(Status),
    /// The command was not executed, or not completely. A repeatable command is sent again; any other fails
    /// with this status.
    Retry(Status),
    /// The device is gone.
    Gone,
    /// The kernel did not send the command.
    Refused(Status),
}

impl Outcome {
    /// Decodes a completion's result: a status, or a negated errno.
    pub(super) fn of(result: i32) -> Self {
        match result {
            // The 15 bits of a completion queue entry without its phase.
            0.. => Outcome::Device(Status(result as u16 & 0x7fff).of_peer()),
            _ => Self::of_errno(-result),
        }
    }

    /// Returns whether the kernel has lost the connection to the controller, or has ended it: Host Path
    /// Error, or Command Aborted By Host (Base, Path Related Status).
    pub(super) fn is_of_path(self) -> bool {
        match self {
            Self::Device(status) => [Status(3 << 8 | 0x70), Status(3 << 8 | 0x71)]
                .iter()
                .any(|of_path| status.same_code(*of_path)),
            Self::Retry(_) | Self::Gone => true,
            Self::Refused(_) => false,
        }
    }

    fn of_errno(errno: i32) -> Self {
        match errno {
            libc::EAGAIN => Outcome::Retry(Status::INTERNAL_ERROR),
            // The controller was reset during the command.
            libc::EINTR | libc::ECANCELED => Outcome::Retry(Status::INTERNAL_ERROR),
            libc::ENODEV | libc::ENXIO | libc::EIO | libc::ESHUTDOWN => Outcome::Gone,
            // The host's memory is gone.
            libc::EFAULT => Outcome::Refused(Status::DATA_TRANSFER_ERROR),
            libc::EACCES | libc::EPERM => Outcome::Refused(Status::OPERATION_DENIED),
            _ => Outcome::Refused(Status::INTERNAL_ERROR),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_connection_is_told_from_a_device_that_fails() {
        for result in [0x370, 0x4371, -libc::EINTR, -libc::ENODEV] {
            assert!(Outcome::of(result).is_of_path(), "{result:#x}");
        }
        for result in [0, 0x280, 0x302, 0x360, -libc::EFAULT] {
            assert!(!Outcome::of(result).is_of_path(), "{result:#x}");
        }
    }

    #[test]
    fn a_status_is_the_devices_own() {
        assert_eq!(Outcome::of(0), Outcome::Device(Status::SUCCESS));
        assert_eq!(Outcome::of(0x4281), Outcome::Device(Status(0x4281)));
        assert_eq!(Outcome::of(-libc::EFAULT), Outcome::Refused(Status::DATA_TRANSFER_ERROR));
        assert_eq!(Outcome::of(-libc::ENODEV), Outcome::Gone);
        assert_eq!(Outcome::of(-libc::EINTR), Outcome::Retry(Status::INTERNAL_ERROR));
        assert_eq!(Outcome::of(i32::MIN + 1), Outcome::Refused(Status::INTERNAL_ERROR));
    }
}
