//! Identity of the storage of a file or block device, which distinguishes it from other storage of the same
//! name.

use super::open::Kind;
use rustix::fs::{AtFlags, SeekFrom, StatxFlags, fstatfs, seek, statx};
use rustix::io::Errno;
use sluice_command::Storage;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// File systems whose inodes have the same number after each mount: ext4, XFS, btrfs, tmpfs, F2FS, ZFS, overlayfs.
const STABLE: [u64; 7] =
    [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0xf2f5_2010, 0x2fc1_2fc1, 0x794c_7630];

/// Returns the identity of the storage at a path.
///
/// # Errors
/// The path leads to no file that can be read.
pub fn storage_at(path: &Path) -> io::Result<Storage> {
    let meta = path.metadata()?;
    match meta.is_file() {
        true => Ok(of_inode(&File::open(path)?)),
        false => Ok(of_device(&meta)),
    }
}

/// Examines an open file before it is grown.
pub(super) fn of(file: &File, kind: Kind) -> Storage {
    match kind {
        Kind::Regular => Storage { is_new: is_hole(file), ..of_inode(file) },
        Kind::BlockDevice => file.metadata().map(|meta| of_device(&meta)).unwrap_or_default(),
    }
}

/// Returns whether a file has no data: it was just made, or never written to.
fn is_hole(file: &File) -> bool {
    seek(file, SeekFrom::Data(0)) == Err(Errno::NXIO)
}

/// Identifies a file by its inode and birth time. Its device number would change after a restart of the
/// machine.
fn of_inode(file: &File) -> Storage {
    let flags = StatxFlags::INO | StatxFlags::BTIME;
    let is_stable = fstatfs(file).is_ok_and(|found| STABLE.contains(&(found.f_type as u64 & 0xffff_ffff)));
    let Some(stat) = statx(file, c"", AtFlags::EMPTY_PATH, flags).ok().filter(|_| is_stable) else {
        return Storage::default();
    };
    let born = if stat.stx_mask & StatxFlags::BTIME.bits() == 0 {
        [0; 2]
    } else {
        [stat.stx_btime.tv_sec.cast_unsigned(), stat.stx_btime.tv_nsec.into()]
    };
    let name = [stat.stx_ino, born[0], born[1]].map(u64::to_le_bytes);
    Storage::named(name.as_flattened())
}

/// Identifies a device by its name in the kernel (`wwid`, or the UUID of the device mapper). Partitions and
/// other devices have none.
fn of_device(meta: &Metadata) -> Storage {
    let (major, minor) = (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
    let device = Path::new("/sys/dev/block").join(format!("{major}:{minor}"));
    let names = ["wwid", "device/wwid", "dm/uuid"].map(|name| std::fs::read(device.join(name)));
    let name = names.into_iter().flatten().find(|name| !name.trim_ascii().is_empty());
    name.map_or_else(Storage::default, |name| Storage::named(name.trim_ascii()))
}
