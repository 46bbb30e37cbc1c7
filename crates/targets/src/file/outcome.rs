//! Classification of the kernel's result of one operation.

use sluice_command::Operation;
use sluice_nvme::Status;

/// Result of an operation, in terms of the next action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Number of bytes that were moved; success for an operation that moves none.
    Moved(u32),
    /// Nothing was done, and the same operation can be retried.
    Again,
    /// The file system is full.
    Full,
    /// The kernel cannot move these bytes directly.
    Misaligned,
    /// The file system does not support the operation.
    Unsupported,
    Failed(Status),
}

impl Outcome {
    /// Classifies a completion's result: bytes, or a negated errno.
    pub(super) fn of(result: i32, operation: Operation) -> Self {
        if result >= 0 {
            return Outcome::Moved(result.cast_unsigned());
        }
        match -result {
            errno if is_interrupted(errno.into()) => Outcome::Again,
            libc::ENOSPC | libc::EDQUOT => Outcome::Full,
            libc::EINVAL => Outcome::Misaligned,
            libc::EOPNOTSUPP | libc::ENOSYS | libc::ENODEV if moves_no_data(operation) => {
                Outcome::Unsupported
            }
            libc::EROFS | libc::EPERM if operation.modifies() => {
                Outcome::Failed(Status::NAMESPACE_WRITE_PROTECTED)
            }
            // The host's memory is not mapped any more.
            libc::EFAULT => Outcome::Failed(Status::DATA_TRANSFER_ERROR),
            // The file exceeds a limit of the process (RLIMIT_FSIZE) or of the file system.
            libc::EFBIG if operation != Operation::Read => Outcome::Failed(Status::CAPACITY_EXCEEDED),
            libc::ENOMEM | libc::ENOBUFS => Outcome::Failed(Status::INTERNAL_ERROR),
            _ => Outcome::Failed(media_error(operation)),
        }
    }
}

/// Returns whether an operation with this errno was interrupted, and is to be repeated.
pub(super) fn is_interrupted(errno: i64) -> bool {
    [libc::EINTR, libc::EAGAIN, libc::ECANCELED].map(i64::from).contains(&errno)
}

fn moves_no_data(operation: Operation) -> bool {
    matches!(operation, Operation::WriteZeroes | Operation::Deallocate)
}

/// Returns whether the flush of a write with FUA may have failed, and not the write.
pub(super) fn may_be_a_flush(status: Status) -> bool {
    [Status::WRITE_FAULT, Status::NAMESPACE_WRITE_PROTECTED, Status::CAPACITY_EXCEEDED].contains(&status)
}

/// Returns the status of data that cannot be read or written (NVM Command Set, 3.1.2).
pub(super) fn media_error(operation: Operation) -> Status {
    match operation {
        Operation::Read => Status::UNRECOVERED_READ_ERROR,
        _ => Status::WRITE_FAULT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_keep_their_meaning() {
        let read = |errno: i32| Outcome::of(-errno, Operation::Read);
        let write = |errno: i32| Outcome::of(-errno, Operation::Write);
        assert_eq!(read(libc::EIO), Outcome::Failed(Status::UNRECOVERED_READ_ERROR));
        assert_eq!(write(libc::EIO), Outcome::Failed(Status::WRITE_FAULT));
        assert_eq!(write(libc::ENOSPC), Outcome::Full);
        assert_eq!(write(libc::EDQUOT), Outcome::Full);
        for errno in [libc::EROFS, libc::EPERM] {
            assert_eq!(write(errno), Outcome::Failed(Status::NAMESPACE_WRITE_PROTECTED));
            assert_eq!(read(errno), Outcome::Failed(Status::UNRECOVERED_READ_ERROR));
            assert_eq!(Outcome::of(-errno, Operation::Flush), Outcome::Failed(Status::WRITE_FAULT));
        }
        assert_eq!(write(libc::EFBIG), Outcome::Failed(Status::CAPACITY_EXCEEDED));
        assert_eq!(read(libc::EFAULT), Outcome::Failed(Status::DATA_TRANSFER_ERROR));
        assert_eq!(write(libc::EINTR), Outcome::Again);
        assert_eq!(Outcome::of(-libc::EOPNOTSUPP, Operation::Deallocate), Outcome::Unsupported);
        assert_eq!(Outcome::of(-libc::EOPNOTSUPP, Operation::Write), Outcome::Failed(Status::WRITE_FAULT));
        assert_eq!(Outcome::of(4096, Operation::Read), Outcome::Moved(4096));
    }

    /// Checks each operation with each errno that has a meaning, and one that has none.
    #[test]
    fn each_errno_has_one_outcome_for_each_operation() {
        use Operation::{Deallocate, Flush, Read, Write, WriteZeroes};
        let (protected, capacity) = (Status::NAMESPACE_WRITE_PROTECTED, Status::CAPACITY_EXCEEDED);
        for operation in [Read, Write, Flush, WriteZeroes, Deallocate] {
            let (is_read, is_range) = (operation == Read, matches!(operation, WriteZeroes | Deallocate));
            let media = if is_read { Status::UNRECOVERED_READ_ERROR } else { Status::WRITE_FAULT };
            let modifies = !matches!(operation, Read | Flush);
            let of_range = if is_range { Outcome::Unsupported } else { Outcome::Failed(media) };
            for (errno, outcome) in [
                (libc::EINTR, Outcome::Again),
                (libc::EAGAIN, Outcome::Again),
                (libc::ECANCELED, Outcome::Again),
                (libc::ENOSPC, Outcome::Full),
                (libc::EDQUOT, Outcome::Full),
                (libc::EINVAL, Outcome::Misaligned),
                (libc::EOPNOTSUPP, of_range),
                (libc::ENOSYS, of_range),
                (libc::ENODEV, of_range),
                (libc::EROFS, Outcome::Failed(if modifies { protected } else { media })),
                (libc::EPERM, Outcome::Failed(if modifies { protected } else { media })),
                (libc::EFAULT, Outcome::Failed(Status::DATA_TRANSFER_ERROR)),
                (libc::EFBIG, Outcome::Failed(if is_read { media } else { capacity })),
                (libc::ENOMEM, Outcome::Failed(Status::INTERNAL_ERROR)),
                (libc::ENOBUFS, Outcome::Failed(Status::INTERNAL_ERROR)),
                (libc::EIO, Outcome::Failed(media)),
            ] {
                assert_eq!(Outcome::of(-errno, operation), outcome, "{operation:?} with {errno}");
            }
            assert_eq!(Outcome::of(0, operation), Outcome::Moved(0));
        }
        for (status, may_be) in [
            (Status::WRITE_FAULT, true),
            (protected, true),
            (capacity, true),
            (Status::UNRECOVERED_READ_ERROR, false),
            (Status::INTERNAL_ERROR, false),
            (Status::DATA_TRANSFER_ERROR, false),
        ] {
            assert_eq!(may_be_a_flush(status), may_be, "{status:?}");
        }
    }
}
