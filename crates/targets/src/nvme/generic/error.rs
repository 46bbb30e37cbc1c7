//! Reasons why a device of the kernel cannot be a drive, with advice.

use super::super::error::ErrorKind as NvmeErrorKind;
use crate::remote::Incompatible;
use std::path::PathBuf;
use std::{error, fmt, io};

/// An error of a device that cannot be used, or of a range that cannot be opened.
#[derive(Debug)]
pub struct GenericError {
    pub(super) path: PathBuf,
    pub(super) kind: ErrorKind,
}

#[derive(Debug)]
pub(super) enum ErrorKind {
    /// Not the character device of a namespace.
    NotGeneric,
    /// Another process has the device, or it is mounted.
    InUse,
    /// The namespace, or the range of it.
    Namespace(NvmeErrorKind),
    /// The kernel does not take NVMe commands on io_uring.
    NoCommands(io::Error),
    /// Permission of this process to send NVMe commands is missing.
    NotAllowed(io::Error),
    /// Admin commands are possible with a single controller only.
    ManyControllers,
    /// A system call failed; the first field names the step.
    Step(&'static str, io::Error),
}

impl ErrorKind {
    pub(super) fn step(name: &'static str) -> impl Fn(io::Error) -> ErrorKind {
        move |error| ErrorKind::Step(name, error)
    }
}

impl From<NvmeErrorKind> for ErrorKind {
    fn from(error: NvmeErrorKind) -> Self {
        ErrorKind::Namespace(error)
    }
}

impl From<Incompatible> for ErrorKind {
    fn from(incompatible: Incompatible) -> Self {
        ErrorKind::Namespace(incompatible.into())
    }
}

impl GenericError {
    /// Returns whether another drive or process has the device: trying again later can help.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        matches!(self.kind, ErrorKind::InUse | ErrorKind::Namespace(NvmeErrorKind::Taken { .. }))
    }
}

impl fmt::Display for GenericError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NVMe device {}: ", self.path.display())?;
        match &self.kind {
            ErrorKind::NotGeneric => f.write_str(
                "this is not the generic device of an NVMe namespace; use /dev/ng0n1 or the like, or, for \
                 /dev/nvme0n1 and other block devices, target = \"file\"",
            ),
            ErrorKind::InUse => f.write_str(
                "it is in use by another process, or its block device is mounted; end that use, or give \
                 the drive a range of its own with first_block and blocks",
            ),
            ErrorKind::Namespace(error) => write!(f, "{error}"),
            ErrorKind::NoCommands(error) => write!(
                f,
                "this kernel does not take NVMe commands on io_uring ({error}); Linux 5.19 or newer is \
                 needed, or target = \"file\" with the block device"
            ),
            ErrorKind::NotAllowed(error) => write!(
                f,
                "the daemon may not send it commands ({error}); let its user read and write the device, \
                 and before Linux 6.2 give it CAP_SYS_ADMIN, or use target = \"file\" with the block device"
            ),
            ErrorKind::ManyControllers => f.write_str(
                "it may be reached through several controllers, so that an admin command has no \
                 single destination; take `admin` out of passthrough",
            ),
            ErrorKind::Step(step, error) => write!(f, "it cannot be {step}: {error}{}", advice(error)),
        }
    }
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "; let the daemon's user read and write it",
        io::ErrorKind::NotFound => "; see `nvme list` for what there is, and that its module is loaded",
        _ => "",
    }
}

impl error::Error for GenericError {}
