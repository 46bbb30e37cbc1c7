//! Reasons why a file cannot be a drive, with advice.

use super::lease::Refusal;
use std::path::{Path, PathBuf};
use std::{error, fmt, io};

/// Failure to open, lock, make or resize a file or block device.
#[derive(Debug)]
pub struct FileError {
    path: PathBuf,
    what: Trouble,
}

#[derive(Debug)]
pub(super) enum Trouble {
    /// The file does not exist, and no size was given to make it with.
    Missing,
    /// Another drive or program has the file open.
    InUse,
    /// Another drive or program has the file open, perhaps as this loop device over it.
    InUseAbove(PathBuf),
    /// Another drive or program has this file or device, which has the same data.
    InUseBelow(PathBuf),
    /// The path is neither a regular file nor a block device.
    NotAFile,
    /// The file begins like an image of this format.
    Format(&'static str),
    /// The file is smaller than one block.
    TooSmall { size: u64 },
    /// A file that is only read is smaller than configured.
    NotGrown { size: u64, wanted: u64 },
    /// A block device is smaller than configured.
    DeviceTooSmall { size: u64, wanted: u64 },
    /// The file was replaced while it was being opened.
    Replaced,
    /// Commands on the file go through the page cache.
    NotDirect,
    /// Writes wait until there is room.
    Parks,
    /// Blocks of the drive are larger than the units that the device writes atomically.
    NotAtomic,
    /// Writes behind the new end do not complete in time.
    Writing,
    /// The device, or a file that was sealed, takes no writes.
    ReadOnly,
    /// The lease in this file cannot be taken.
    Lease(PathBuf, Refusal),
    /// A system call failed; the string names the step.
    Step(&'static str, io::Error),
}

impl Trouble {
    pub(super) fn at(self, path: &Path) -> FileError {
        FileError { path: path.to_owned(), what: self }
    }

    pub(super) fn step(name: &'static str) -> impl Fn(io::Error) -> Trouble {
        move |error| Trouble::Step(name, error)
    }
}

impl FileError {
    /// Returns whether the file is in use elsewhere, so that a later attempt may succeed.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        matches!(
            self.what,
            Trouble::InUse
                | Trouble::InUseAbove(_)
                | Trouble::InUseBelow(_)
                | Trouble::Lease(_, Refusal::Taken(_))
        )
    }

    /// Returns the error of the system call that failed, if one did.
    #[must_use]
    pub fn io_error(&self) -> Option<&io::Error> {
        match &self.what {
            Trouble::Step(_, error) | Trouble::Lease(_, Refusal::Step(_, error)) => Some(error),
            _ => None,
        }
    }

    /// Returns whether the file is of an unexpected kind: no file or device, or an image of another format.
    #[must_use]
    pub fn is_unfit(&self) -> bool {
        matches!(self.what, Trouble::NotAFile | Trouble::Format(_))
    }

    /// Returns whether the file does not exist.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(self.what, Trouble::Missing)
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match &self.what {
            Trouble::Missing => write!(f, "{path} does not exist; give a size to have it made"),
            Trouble::InUse => write!(
                f,
                "{path} is in use by another drive or program; stop that one (`fuser -v {path}` names it) \
                 or use another file"
            ),
            Trouble::InUseAbove(device) => write!(
                f,
                "{path} is in use by another drive or program, perhaps as {device}, which has its data there; stop that one \
                 (`fuser -v {path} {device}` names it) or use another file",
                device = device.display()
            ),
            Trouble::InUseBelow(other) => write!(
                f,
                "{path} has the same data as {other}, which is in use by another drive or program; stop that one (`fuser -v \
                 {other}` names it) or use another device",
                other = other.display()
            ),
            Trouble::NotAFile => write!(f, "{path} is neither a file nor a block device; use one that is"),
            Trouble::Format(format) => write!(
                f,
                "{path} is a {format} image, and would be served as raw bytes; convert it \
                 (`qemu-img convert -O raw {path} NEW`), or say format = \"raw\" if raw bytes are meant"
            ),
            Trouble::TooSmall { size } => {
                write!(f, "{path} has {size} bytes, less than one block; give a size to have it grown")
            }
            Trouble::NotGrown { size, wanted } => write!(
                f,
                "{path} has {size} bytes, not {wanted}, and is not grown because it is only read; ask for less"
            ),
            Trouble::DeviceTooSmall { size, wanted } => write!(
                f,
                "the block device {path} has {size} bytes, not {wanted}; make it larger first, or ask for less"
            ),
            Trouble::Replaced => {
                write!(f, "{path} was replaced while it was being opened; try again when nobody renames it")
            }
            Trouble::NotDirect => write!(
                f,
                "{path} is written through the page cache, where commands that overlap are kept apart by one reactor; \
                 use a file system with direct I/O, or a block device"
            ),
            Trouble::Parks => {
                write!(f, "writes to {path} wait for room, on one reactor; set on_full to \"fail\"")
            }
            Trouble::NotAtomic => write!(
                f,
                "blocks of {path} are larger than what its device writes at once, and commands that overlap are kept apart \
                 by one reactor; use blocks of 512 bytes"
            ),
            Trouble::Writing => write!(
                f,
                "the kernel has not finished writes to {path} behind the new end; try again when its disk is less busy"
            ),
            Trouble::ReadOnly => {
                write!(f, "{path} takes no writes; make it writable, or set read_only = true to have it read")
            }
            Trouble::Lease(lease, refusal) => write_refusal(f, &path, &lease.display(), refusal),
            Trouble::Step(step, error) => write!(f, "{path} cannot be {step}: {error}{}", advice(error)),
        }
    }
}

fn write_refusal(
    f: &mut fmt::Formatter<'_>,
    path: &dyn fmt::Display,
    lease: &dyn fmt::Display,
    refusal: &Refusal,
) -> fmt::Result {
    match refusal {
        Refusal::Taken(name) => write!(
            f,
            "{path} is in use: its lease {lease} is held by {name}; stop that daemon, or use other storage"
        ),
        Refusal::Other => write!(
            f,
            "{path} cannot be used: its lease {lease} begins with something that is no lease; name the right file or \
             partition, or if nobody needs its first 4096 bytes: `dd if=/dev/zero of={lease} bs=4096 count=1 conv=notrunc`"
        ),
        Refusal::Lost => write!(
            f,
            "{path} cannot be changed: its lease {lease} is lost; restart the daemon, or delete and create the drive"
        ),
        Refusal::Step(step, error) => write!(
            f,
            "{path} cannot be used: its lease {lease} cannot be {step}: {error}; it is a file or partition of 4096 bytes or \
             more that all daemons see, and is not made by any of them"
        ),
    }
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "; let the daemon's user read and write it, or set read_only = true if it may read it"
        }
        io::ErrorKind::StorageFull => "; make room in its file system",
        io::ErrorKind::ReadOnlyFilesystem => {
            "; it lies in a read-only file system: set read_only = true to have it read"
        }
        _ => "",
    }
}

impl error::Error for FileError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match &self.what {
            Trouble::Step(_, error) | Trouble::Lease(_, Refusal::Step(_, error)) => Some(error),
            _ => None,
        }
    }
}
