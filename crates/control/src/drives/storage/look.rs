//! Examination of files and block devices: labels, and identities stored with them.

use rustix::fs::{
    AtFlags, CWD, FileType, FlockOperation, Statx, StatxFlags, XattrFlags, flock, getxattr, setxattr, statx,
};
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The extended attribute with the identity of a file. Tools that copy files need not copy it.
const IDENTITY: &str = "user.sluice.identity";

/// Length of an identity, letters.
const IDENTITY_LETTERS: usize = 32;

/// A file or block device at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// Label that stays the same as long as the file or device does, even across a boot, as far as that can
    /// be determined.
    pub(super) label: String,
    /// Device number of the storage, or of the device that holds it.
    pub(super) device: String,
    pub(super) identity: Option<String>,
}

/// Examines a path without opening it, since an open has side effects on FIFOs and tapes. Returns none if
/// there is no file or block device.
pub(super) fn look(path: &Path) -> io::Result<Option<Found>> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let stat = match statx(CWD, path, AtFlags::empty(), wanted) {
        Ok(stat) => stat,
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    match FileType::from_raw_mode(stat.stx_mode.into()) {
        FileType::RegularFile => Ok(Some(Found {
            label: label_of_file(&stat),
            device: format!("{}:{}", stat.stx_dev_major, stat.stx_dev_minor),
            identity: identity(path),
        })),
        FileType::BlockDevice => {
            let device = format!("{}:{}", stat.stx_rdev_major, stat.stx_rdev_minor);
            let label = label_of_device(&Path::new("/sys/dev/block").join(&device));
            Ok(Some(Found { label, device, identity: None }))
        }
        _ => Ok(None),
    }
}

/// Returns the label of a file. Inode numbers are reused, so the birth time is part of it.
fn label_of_file(stat: &Statx) -> String {
    match stat.stx_mask & StatxFlags::BTIME.bits() {
        0 => format!("inode {}", stat.stx_ino),
        _ => format!("inode {}, made {}.{:09}", stat.stx_ino, stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec),
    }
}

/// Returns a device's permanent name from its folder in sysfs, if its driver provides one.
fn label_of_device(folder: &Path) -> String {
    let read = |name: &str| {
        let text = std::fs::read_to_string(folder.join(name)).ok()?;
        let text = text.trim();
        (!text.is_empty()).then(|| text.to_owned())
    };
    if let (Some(number), Ok(real)) = (read("partition"), folder.canonicalize())
        && let Some(disk) = real.parent()
    {
        return format!("partition {number} of {}", label_of_device(disk));
    }
    let names = ["dm/uuid", "md/uuid", "wwid", "device/wwid", "serial", "device/serial", "loop/backing_file"];
    let named = names.iter().find_map(|name| Some(format!("{name} {}", read(name)?)));
    named.unwrap_or_else(|| "block device".to_owned())
}

fn identity(path: &Path) -> Option<String> {
    let mut bytes = [0; IDENTITY_LETTERS + 1];
    let length = getxattr(path, IDENTITY, &mut bytes).ok()?;
    let text = std::str::from_utf8(&bytes[..length]).ok()?;
    let is_one = text.len() == IDENTITY_LETTERS && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_one.then(|| text.to_owned())
}

/// Stores an identity with a file. Not every file system supports that, so the state holds it, too.
pub(super) fn mark(path: &Path, identity: &str) {
    if let Err(error) = setxattr(path, IDENTITY, identity.as_bytes(), XattrFlags::empty()) {
        tracing::debug!("{} cannot carry its identity: {error}", path.display());
    }
}

/// Returns a new random identity.
pub(super) fn new_identity() -> io::Result<String> {
    let mut bytes = [0; IDENTITY_LETTERS / 2];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}

/// Returns whether a drive has the file open, and so holds its lock.
fn is_open(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockExclusive).is_err())
}

/// A file that was created for an operation that may still fail.
#[derive(Clone, Debug)]
pub(super) struct Made {
    /// Path of the file, with links resolved.
    path: PathBuf,
    label: String,
}

/// Creates an empty file durably.
pub(super) fn make(path: &Path, identity: &str) -> io::Result<Made> {
    let file = File::options().write(true).create(true).truncate(false).mode(0o600).open(path)?;
    mark(path, identity);
    let path = path.canonicalize()?;
    file.sync_all()?;
    if let Some(folder) = path.parent() {
        File::open(folder)?.sync_all()?;
    }
    let label = look(&path)?.map(|found| found.label).unwrap_or_default();
    Ok(Made { path, label })
}

impl Made {
    pub(super) fn label(&self) -> &str {
        &self.label
    }

    /// Removes the file, unless its name belongs to another file by now, or a drive has it open.
    pub(super) fn remove(&self) {
        let is_it = look(&self.path).ok().flatten().is_some_and(|found| found.label == self.label);
        if is_it
            && !is_open(&self.path)
            && let Err(error) = std::fs::remove_file(&self.path)
        {
            tracing::warn!("{}, made for an order that failed, stays: {error}", self.path.display());
        }
    }
}
