//! Reasons why a device cannot be a drive, with advice.

use super::Address;
use crate::remote::Incompatible;
use std::{error, fmt};

/// An error of a device that cannot be driven, or of a range that cannot be opened.
#[derive(Debug)]
pub struct NvmeError {
    pub(super) address: Address,
    pub(super) kind: ErrorKind,
}

#[derive(Debug)]
pub(super) enum ErrorKind {
    /// The device, or the connection to it, failed.
    Device(sluice_host::Error),
    /// The device or namespace cannot be used as a target.
    Incompatible(Incompatible),
    /// The range is not inside the namespace.
    Range { namespace: u32, blocks: u64 },
    /// Another drive has some of the blocks.
    Taken { first: u64, blocks: u64 },
    /// The device has no queue pair or interrupt left.
    NoQueue { granted: u32 },
    /// Another device answers at the address of this one.
    Replaced,
    /// Another process answers, while the one before still exists.
    StillThere,
    /// The thread that drives the device cannot be started, or has ended.
    NoThread,
    /// A reset by order is in progress.
    Resetting,
}

impl From<sluice_host::Error> for ErrorKind {
    fn from(error: sluice_host::Error) -> Self {
        ErrorKind::Device(error)
    }
}

impl From<Incompatible> for ErrorKind {
    fn from(incompatible: Incompatible) -> Self {
        ErrorKind::Incompatible(incompatible)
    }
}

impl NvmeError {
    /// Returns whether another drive has the range: trying again later can help.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        matches!(self.kind, ErrorKind::Taken { .. } | ErrorKind::NoQueue { .. })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::VfioUser(path) => write!(f, "{}", path.display()),
            Address::Pci(address) => f.write_str(address),
        }
    }
}

impl fmt::Display for NvmeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NVMe device {}: {}", self.address, self.kind)?;
        match (&self.kind, &self.address) {
            (ErrorKind::Device(sluice_host::Error::Setup(_)), _) => Ok(()),
            (ErrorKind::Device(_), Address::VfioUser(_)) => {
                f.write_str("; see that its server runs, and that no other client is connected")
            }
            (ErrorKind::Device(_), Address::Pci(_)) => f.write_str("; see the kernel's log for the device"),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ErrorKind::Device(error) => write!(f, "{error}"),
            ErrorKind::Incompatible(incompatible) => incompatible.fmt(f),
            ErrorKind::Range { namespace, blocks } => write!(
                f,
                "the range is not inside namespace {namespace}, which has {blocks} blocks; \
                 change first_block or blocks"
            ),
            ErrorKind::Taken { first, blocks } => write!(
                f,
                "another drive has some of these blocks: {blocks} from {first} on; give each its own range"
            ),
            ErrorKind::NoQueue { granted } => {
                write!(f, "all of its {granted} queue pairs are taken by other drives")
            }
            ErrorKind::Replaced => f.write_str(
                "another device, namespace or format answers there than before; \
                 close the drive and open it again if that is meant",
            ),
            ErrorKind::StillThere => f.write_str(
                "another server answers there than before, which has not ended and may still be at work; end that one",
            ),
            ErrorKind::Resetting => f.write_str("it is being reset: try again when that is over"),
            ErrorKind::NoThread => f.write_str("there is no thread to drive it; see the daemon's log"),
        }
    }
}

impl error::Error for NvmeError {}
