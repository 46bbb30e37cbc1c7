//! Reasons why a file cannot be a drive, with advice.

use super::lease::Refusal;
use std::path::{Path, PathBuf};
use std::{error, fmt, io};

/// Failure to open, lock, make or resize a file or block device.
#[derive(Debug)]
pub struct FileError {
    path: PathBuf,
    kind: FileErrorKind,
}

#[derive(Debug)]
pub(super) enum FileErrorKind {
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

impl FileErrorKind {
    pub(super) fn at(self, path: &Path) -> FileError {
        FileError { path: path.to_owned(), kind: self }
    }

    pub(super) fn step(name: &'static str) -> impl Fn(io::Error) -> FileErrorKind {
        move |error| FileErrorKind::Step(name, error)
    }
}

impl FileError {
    /// Returns whether the file is in use elsewhere, so that a later attempt may succeed.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        matches!(
            self.kind,
            FileErrorKind::InUse
                | FileErrorKind::InUseAbove(_)
                | FileErrorKind::InUseBelow(_)
                | FileErrorKind::Lease(_, Refusal::Taken(_))
        )
    }

    /// Returns the error of the system call that failed, if one did.
    #[must_use]
    pub fn io_error(&self) -> Option<&io::Error> {
        match &self.kind {
            FileErrorKind::Step(_, error) | FileErrorKind::Lease(_, Refusal::Step(_, error)) => Some(error),
            _ => None,
        }
    }

    /// Returns whether the file is of an unexpected kind: no file or device, or an image of another format.
    #[must_use]
    pub fn is_unfit(&self) -> bool {
        matches!(self.kind, FileErrorKind::NotAFile | FileErrorKind::Format(_))
    }

    /// Returns whether the file does not exist.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(self.kind, FileErrorKind::Missing)
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match &self.kind {
            FileErrorKind::Missing => write!(f, "{path} does not exist; give a size to have it made"),
            FileErrorKind::InUse => write!(
                f,
                "{path} is in use by another drive or program; stop that one (`fuser -v {path}` names it) \
                 or use another file"
            ),
            FileErrorKind::InUseAbove(device) => write!(
                f,
                "{path} is in use by another drive or program, perhaps as {device}, which has its data there; stop that one \
                 (`fuser -v {path} {device}` names it) or use another file",
                device = device.display()
            ),
            FileErrorKind::InUseBelow(other) => write!(
                f,
                "{path} has the same data as {other}, which is in use by another drive or program; stop that one (`fuser -v \
                 {other}` names it) or use another device",
                other = other.display()
            ),
            FileErrorKind::NotAFile => {
                write!(f, "{path} is neither a file nor a block device; use one that is")
            }
            FileErrorKind::Format(format) => write!(
                f,
                "{path} is a {format} image, and would be served as raw bytes; convert it \
                 (`qemu-img convert -O raw {path} NEW`), or say format = \"raw\" if raw bytes are meant"
            ),
            FileErrorKind::TooSmall { size } => {
                write!(f, "{path} has {size} bytes, less than one block; give a size to have it grown")
            }
            FileErrorKind::NotGrown { size, wanted } => write!(
                f,
                "{path} has {size} bytes, not {wanted}, and is not grown because it is only read; ask for less"
            ),
            FileErrorKind::DeviceTooSmall { size, wanted } => write!(
                f,
                "the block device {path} has {size} bytes, not {wanted}; make it larger first, or ask for less"
            ),
            FileErrorKind::Replaced => {
                write!(f, "{path} was replaced while it was being opened; try again when nobody renames it")
            }
            FileErrorKind::NotDirect => write!(
                f,
                "{path} is written through the page cache, where commands that overlap are kept apart by one reactor; \
                 use a file system with direct I/O, or a block device"
            ),
            FileErrorKind::Parks => {
                write!(f, "writes to {path} wait for room, on one reactor; set on_full to \"fail\"")
            }
            FileErrorKind::NotAtomic => write!(
                f,
                "blocks of {path} are larger than what its device writes at once, and commands that overlap are kept apart \
                 by one reactor; use blocks of 512 bytes"
            ),
            FileErrorKind::Writing => write!(
                f,
                "the kernel has not finished writes to {path} behind the new end; try again when its disk is less busy"
            ),
            FileErrorKind::ReadOnly => {
                write!(f, "{path} takes no writes; make it writable, or set read_only = true to have it read")
            }
            FileErrorKind::Lease(lease, refusal) => write_refusal(f, &path, &lease.display(), refusal),
            FileErrorKind::Step(step, error) => {
                write!(f, "{path} cannot be {step}: {error}{}", advice(error))
            }
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
        match &self.kind {
            FileErrorKind::Step(_, error) | FileErrorKind::Lease(_, Refusal::Step(_, error)) => Some(error),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use FileErrorKind as Kind;
    use std::error::Error as _;

    /// Checks what other crates decide by, and that each message names the file and the remedy.
    #[test]
    fn each_reason_has_its_class_and_its_words() {
        let io = || io::Error::from_raw_os_error(libc::EIO);
        let lease = |refusal| Kind::Lease("/the/lease".into(), refusal);
        // Whether it is in use, is unfit, is missing, and has an error of the system.
        let (plain, in_use, unfit) = ([false; 4], [true, false, false, false], [false, true, false, false]);
        let (missing, failed) = ([false, false, true, false], [false, false, false, true]);
        for (kind, class, words) in [
            (Kind::Missing, missing, "give a size"),
            (Kind::InUse, in_use, "`fuser -v /a/file`"),
            (Kind::InUseAbove("/dev/loop7".into()), in_use, "`fuser -v /a/file /dev/loop7`"),
            (Kind::InUseBelow("/b/file".into()), in_use, "`fuser -v /b/file`"),
            (Kind::NotAFile, unfit, "neither a file nor a block device"),
            (Kind::Format("qcow"), unfit, "format = \"raw\""),
            (Kind::TooSmall { size: 7 }, plain, "has 7 bytes"),
            (Kind::NotGrown { size: 7, wanted: 9 }, plain, "has 7 bytes, not 9"),
            (Kind::DeviceTooSmall { size: 7, wanted: 9 }, plain, "has 7 bytes, not 9"),
            (Kind::Replaced, plain, "was replaced"),
            (Kind::NotDirect, plain, "through the page cache"),
            (Kind::Parks, plain, "on_full to \"fail\""),
            (Kind::NotAtomic, plain, "blocks of 512 bytes"),
            (Kind::Writing, plain, "try again"),
            (Kind::ReadOnly, plain, "read_only = true"),
            (lease(Refusal::Taken("host b".to_owned())), in_use, "/the/lease is held by host b"),
            (lease(Refusal::Other), plain, "dd if=/dev/zero of=/the/lease"),
            (lease(Refusal::Lost), plain, "/the/lease is lost"),
            (lease(Refusal::Step("read", io())), failed, "/the/lease cannot be read: Input"),
            (Kind::Step("opened", io()), failed, "cannot be opened: Input"),
        ] {
            let error = kind.at(Path::new("/a/file"));
            let found = [error.is_in_use(), error.is_unfit(), error.is_missing(), error.io_error().is_some()];
            assert_eq!(found, class, "{error}");
            assert_eq!(error.source().is_some(), class[3], "{error}");
            let text = error.to_string();
            assert!(text.contains("/a/file") && text.contains(words), "{text}");
        }
        for (errno, words) in [
            (libc::EACCES, "let the daemon's user read and write it"),
            (libc::ENOSPC, "make room"),
            (libc::EROFS, "read-only file system"),
        ] {
            let error = FileErrorKind::step("grown")(io::Error::from_raw_os_error(errno));
            let text = error.at(Path::new("/a/file")).to_string();
            assert!(text.contains("cannot be grown") && text.contains(words), "{text}");
        }
    }
}
