//! Check without side effects whether a file could be opened as a target now.

use std::fs::{self, File as OsFile};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, OFlags, access};
use rustix::process::{Resource, getrlimit};

use super::error::{FileError, FileErrorKind};
use super::open::{FileConfig, Kind, check_format, claim, end_of, kind_of, tail_of};

/// Result of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileProbe {
    /// Identity of the file, equal for all its names: device and inode, or the path of a file that is yet to
    /// be made.
    pub identity: FileIdentity,
    /// Bytes at the end of the file that fill no block, and are not visible.
    pub tail: u64,
}

/// Identity that distinguishes files.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum FileIdentity {
    Inode { device: u64, inode: u64 },
    Missing(PathBuf),
}

impl FileConfig {
    /// Checks whether [`PreparedFile::open`](super::PreparedFile::open) would succeed. The file is neither made,
    /// grown nor kept. Blocks as long as the file system does. With `locks`, a file that is in use counts as
    /// a failure.
    ///
    /// # Errors
    /// Fails with the errors of opening the file, in the same words.
    pub fn probe(&self, locks: bool) -> Result<FileProbe, FileError> {
        probe(self, locks).map_err(|error| error.at(&self.path))
    }
}

fn probe(config: &FileConfig, locks: bool) -> Result<FileProbe, FileErrorKind> {
    let kind = kind_of(config)?;
    let Ok(found) = fs::metadata(&config.path) else { return probe_missing(config) };
    let data = match open_to_look(config, kind, locks)? {
        Some(data) => data,
        // The device is in use, so no more can be checked.
        None => OsFile::open(&config.path).map_err(FileErrorKind::step("opened"))?,
    };
    if locks && !config.read_only {
        drop(claim(kind, &data)?);
    }
    check_format(config, kind, &data)?;
    let size = end_of(&data).map_err(FileErrorKind::step("measured"))?;
    let wanted = config.size.unwrap_or(size);
    match kind {
        _ if wanted <= size => {}
        _ if config.read_only => return Err(FileErrorKind::NotGrown { size, wanted }),
        Kind::BlockDevice => return Err(FileErrorKind::DeviceTooSmall { size, wanted }),
        Kind::Regular => fits(&config.path, wanted)?,
    }
    if wanted < u64::from(config.block_size) {
        return Err(FileErrorKind::TooSmall { size });
    }
    let identity = match kind {
        Kind::Regular => FileIdentity::Inode { device: found.dev(), inode: found.ino() },
        // Two nodes may name one device.
        Kind::BlockDevice => FileIdentity::Inode { device: u64::MAX, inode: found.rdev() },
    };
    Ok(FileProbe { identity, tail: if config.size.is_none() { tail_of(size, config.block_size) } else { 0 } })
}

/// Opens the file as its target would. `None` for a block device that is in use elsewhere, if that is no
/// failure.
fn open_to_look(config: &FileConfig, kind: Kind, locks: bool) -> Result<Option<OsFile>, FileErrorKind> {
    let mut options = OsFile::options();
    options.read(true).write(!config.read_only);
    let exclusive = kind == Kind::BlockDevice && !config.read_only;
    let flags = if exclusive { OFlags::NONBLOCK | OFlags::EXCL } else { OFlags::NONBLOCK };
    match options.custom_flags(flags.bits().cast_signed()).open(&config.path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error()) => match locks {
            true => Err(FileErrorKind::InUse),
            false => Ok(None),
        },
        Err(error) => Err(FileErrorKind::Step("opened", error)),
    }
}

/// Checks a file that is yet to be made: whether its folder allows that.
fn probe_missing(config: &FileConfig) -> Result<FileProbe, FileErrorKind> {
    let folder = folder_of(&config.path);
    let folder = fs::canonicalize(folder).map_err(FileErrorKind::step("made"))?;
    let name = config.path.file_name().ok_or(FileErrorKind::NotAFile)?;
    access(&folder, Access::WRITE_OK | Access::EXEC_OK)
        .map_err(|errno| FileErrorKind::Step("made", errno.into()))?;
    let wanted = config.size.unwrap_or_default();
    if wanted < u64::from(config.block_size) {
        return Err(FileErrorKind::TooSmall { size: wanted });
    }
    fits(&config.path, wanted)?;
    Ok(FileProbe { identity: FileIdentity::Missing(folder.join(name)), tail: 0 })
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Checks that a file in this folder can be so long, with an unnamed file that is gone when it is closed.
fn fits(path: &Path, wanted: u64) -> Result<(), FileErrorKind> {
    // A file that grows beyond the limit ends the process by a signal.
    if getrlimit(Resource::Fsize).current.is_some_and(|limit| limit < wanted) {
        return Err(FileErrorKind::Step("grown", rustix::io::Errno::FBIG.into()));
    }
    let mut options = OsFile::options();
    options.read(true).write(true).mode(0o600).custom_flags(OFlags::TMPFILE.bits().cast_signed());
    match options.open(folder_of(path)) {
        Ok(unnamed) => unnamed.set_len(wanted).map_err(FileErrorKind::step("grown")),
        // Some file systems have no unnamed files.
        Err(_) => Ok(()),
    }
}
