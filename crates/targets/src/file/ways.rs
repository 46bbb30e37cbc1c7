//! Other paths to the storage of a block device, as far as the kernel reports them. These are the file below
//! a loop device, and other devices of the same disk. One drive claims all of them.

use super::error::FileErrorKind;
use rustix::fs::{FlockOperation, OFlags, flock, major, minor};
use rustix::io::Errno;
use sluice_handover::locks;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Maximum depth of stacked device mapper devices.
const DEPTH_MAX: u32 = 8;

/// Prefixes of disk names (`wwid`) that are unique. Other names contain serial numbers, which may be
/// arbitrary.
const UNIQUE: [&str; 4] = ["eui.", "naa.", "uuid.", "t10."];

/// File or device that has the same data.
#[derive(Debug, PartialEq, Eq)]
struct Way {
    path: PathBuf,
    /// Whether other drives may use other parts of it.
    is_part: bool,
}

/// Claims the other paths to a block device. They are free again when all returned files are dropped.
///
/// # Errors
/// Fails if another drive or program has one of them.
pub(super) fn claim(device: &File) -> Result<Vec<File>, FileErrorKind> {
    let meta = device.metadata().map_err(FileErrorKind::step("examined"))?;
    let node = format!("{}:{}", major(meta.rdev()), minor(meta.rdev()));
    let ways = find(Path::new("/sys"), &node);
    ways.into_iter().filter_map(|way| claim_one(way).transpose()).collect()
}

/// Claims one file or device. Returns none if it cannot be opened: it may be in another mount namespace, or
/// another user's.
fn claim_one(way: Way) -> Result<Option<File>, FileErrorKind> {
    let Ok(meta) = fs::metadata(&way.path) else { return Ok(None) };
    let mut options = File::options();
    if let Some(sent) = node(&way.path).and_then(|node| locks::take(node.as_fd())) {
        return Ok(Some(sent.into()));
    }
    options.read(true);
    if meta.file_type().is_block_device() {
        options.custom_flags(OFlags::EXCL.bits().cast_signed());
    } else if !meta.is_file() {
        return Ok(None);
    }
    let lock = if way.is_part {
        FlockOperation::NonBlockingLockShared
    } else {
        FlockOperation::NonBlockingLockExclusive
    };
    let opened = open_when_released(&options, &way.path).map_err(|error| Errno::from_io_error(&error));
    let claimed = opened.and_then(|file| match meta.is_file() {
        true => lock_when_released(&file, lock).map(|()| file).map_err(Some),
        // The claim is the kernel's. Only the lock makes the descriptor go along in an upgrade; others lock a device
        // for a moment to look at it.
        false => {
            let _ = flock(&file, lock);
            Ok(file)
        }
    });
    match claimed {
        Ok(file) => Ok(Some(file)),
        Err(Some(Errno::BUSY | Errno::WOULDBLOCK)) => Err(FileErrorKind::InUseBelow(way.path)),
        Err(_) => Ok(None),
    }
}

/// Opens a file or device. Waits while a process that has died may still have the device.
pub(super) fn open_when_released(options: &OpenOptions, path: &Path) -> io::Result<File> {
    let mut opened = None;
    locks::lock_when_released(|| match options.open(path) {
        Ok(file) => {
            opened = Some(file);
            Ok(true)
        }
        Err(error) if Errno::from_io_error(&error) == Some(Errno::BUSY) => Ok(false),
        Err(error) => Err(error),
    })?;
    opened.ok_or_else(|| Errno::BUSY.into())
}

/// Locks a file. Waits while a process that has died may still have the lock.
pub(super) fn lock_when_released(file: &File, lock: FlockOperation) -> Result<(), Errno> {
    let locked = locks::lock_when_released(|| match flock(file, lock) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error),
    })?;
    if locked { Ok(()) } else { Err(Errno::WOULDBLOCK) }
}

/// Opens a file or device so that it can be identified, and no more.
pub(super) fn node(path: &Path) -> Option<File> {
    File::options().read(true).custom_flags(OFlags::PATH.bits().cast_signed()).open(path).ok()
}

/// Returns a loop device whose data is in this file, if there is one.
pub(super) fn loop_device_over(file: &File) -> Option<PathBuf> {
    let own = file.metadata().ok()?;
    let is_own =
        |path: &Path| fs::metadata(path).is_ok_and(|it| (it.dev(), it.ino()) == (own.dev(), own.ino()));
    let all = fs::read_dir("/sys/block").ok()?.flatten();
    let mut over = all
        .filter(|disk| text(&disk.path(), "loop/backing_file").is_some_and(|path| is_own(Path::new(&path))));
    over.next().map(|disk| Path::new("/dev").join(disk.file_name()))
}

fn find(sys: &Path, node: &str) -> Vec<Way> {
    let Ok(device) = fs::canonicalize(sys.join("dev/block").join(node)) else { return Vec::new() };
    let mut ways = Vec::new();
    below(&device, false, DEPTH_MAX, &mut ways);
    ways.extend(paths(sys, &device).map(|path| Way { path, is_part: false }));
    ways
}

fn text(device: &Path, name: &str) -> Option<String> {
    let text = fs::read_to_string(device.join(name)).ok()?;
    Some(text.trim().to_owned()).filter(|it| !it.is_empty())
}

/// Returns the disk of a partition, and its number there; or the disk itself.
fn disk(device: &Path) -> (&Path, Option<String>) {
    match (text(device, "partition"), device.parent()) {
        (Some(number), Some(disk)) => (disk, Some(number)),
        _ => (device, None),
    }
}

/// Collects the files below a loop device, or below a device mapper device over loop devices. The kernel
/// itself excludes other sharing.
fn below(device: &Path, is_part: bool, depth: u32, ways: &mut Vec<Way>) {
    let (disk, partition) = disk(device);
    let is_part = is_part || partition.is_some();
    if let Some(path) = text(disk, "loop/backing_file") {
        ways.push(Way { path: path.into(), is_part });
    }
    let slaves = fs::read_dir(disk.join("slaves")).into_iter().flatten().flatten();
    for slave in slaves.filter_map(|slave| fs::canonicalize(slave.path()).ok()).take_while(|_| depth > 0) {
        below(&slave, true, depth - 1, ways);
    }
}

/// Returns the nodes of the other devices that have the same name for their disk.
fn paths(sys: &Path, device: &Path) -> impl Iterator<Item = PathBuf> {
    let (own, partition) = disk(device);
    let name = |disk: &Path| text(disk, "wwid").or_else(|| text(disk, "device/wwid"));
    let own_name = name(own).filter(|name| UNIQUE.iter().any(|prefix| name.starts_with(prefix)));
    let all = fs::read_dir(sys.join("block")).into_iter().flatten().flatten();
    let disks = all.filter_map(|disk| fs::canonicalize(disk.path()).ok());
    let others = disks.filter(move |disk| own_name.is_some() && disk != own && name(disk) == own_name);
    let of_partition = move |other: PathBuf| match &partition {
        None => Some(other),
        Some(number) => {
            let parts = fs::read_dir(other).into_iter().flatten().flatten().map(|part| part.path());
            parts.into_iter().find(|part| text(part, "partition").as_ref() == Some(number))
        }
    };
    let others: Vec<PathBuf> = others.filter_map(of_partition).collect();
    others.into_iter().filter_map(|other| Some(Path::new("/dev").join(other.file_name()?)))
}

#[cfg(test)]
mod tests {
    use super::super::tests::Folder;
    use super::*;
    use std::os::unix::fs::symlink;

    /// A folder like /sys.
    struct Sys(Folder);

    impl Sys {
        /// Adds a device with these attributes. A partition's name begins with its disk's and a slash.
        fn add(&self, name: &str, node: &str, attributes: &[(&str, &str)]) {
            let root = self.0.path();
            let device = root.join("devices").join(name);
            for (attribute, value) in attributes {
                let path = device.join(attribute);
                fs::create_dir_all(path.parent().expect("a folder")).expect("room");
                fs::write(path, format!("{value}\n")).expect("room");
            }
            fs::create_dir_all(&device).expect("room");
            fs::create_dir_all(root.join("block")).expect("room");
            fs::create_dir_all(root.join("dev/block")).expect("room");
            symlink(&device, root.join("dev/block").join(node)).expect("room");
            if !name.contains('/') {
                symlink(&device, root.join("block").join(name)).expect("room");
            }
        }

        fn has_below(&self, upper: &str, lower: &str) {
            let slaves = self.0.path().join("devices").join(upper).join("slaves");
            fs::create_dir_all(&slaves).expect("room");
            symlink(self.0.path().join("devices").join(lower), slaves.join(lower.replace('/', "!")))
                .expect("room");
        }

        fn find(&self, node: &str) -> Vec<(String, bool)> {
            let ways = find(self.0.path(), node);
            ways.into_iter().map(|way| (way.path.display().to_string(), way.is_part)).collect()
        }
    }

    fn way(path: &str, is_part: bool) -> (String, bool) {
        (path.to_owned(), is_part)
    }

    #[test]
    fn a_disk_is_found_by_its_other_paths() {
        let sys = Sys(Folder::on_disk());
        for (name, node) in [("sda", "8:0"), ("sdb", "8:16")] {
            sys.add(name, node, &[("device/wwid", "naa.5000c500a1b2c3d4")]);
        }
        sys.add("sda/sda2", "8:2", &[("partition", "2")]);
        sys.add("sdb/sdb1", "8:17", &[("partition", "1")]);
        sys.add("sdb/sdb2", "8:18", &[("partition", "2")]);
        sys.add("sdc", "8:32", &[("device/wwid", "naa.5000c500a1b2c3d5")]);
        assert_eq!(sys.find("8:0"), [way("/dev/sdb", false)]);
        assert_eq!(sys.find("8:2"), [way("/dev/sdb2", false)]);
        assert_eq!(sys.find("8:17"), []);
        assert_eq!(sys.find("8:32"), []);
        assert_eq!(sys.find("9:9"), []);
    }

    #[test]
    fn a_name_that_others_may_have_says_nothing() {
        let sys = Sys(Folder::on_disk());
        for (name, node) in [("nvme0n1", "259:0"), ("nvme1n1", "259:1")] {
            sys.add(name, node, &[("wwid", "nvme.1b36-31-51454d55-00000001")]);
        }
        assert_eq!(sys.find("259:0"), []);
    }

    #[test]
    fn the_file_below_is_found_through_partitions_and_volumes() {
        let sys = Sys(Folder::on_disk());
        sys.add("loop0", "7:0", &[("loop/backing_file", "/images/one")]);
        sys.add("loop0/loop0p1", "259:4", &[("partition", "1")]);
        sys.add("loop1", "7:1", &[("loop/backing_file", "/images/other")]);
        sys.add("dm-0", "253:0", &[("dm/uuid", "LVM-x")]);
        sys.add("dm-1", "253:1", &[("dm/uuid", "LVM-y")]);
        sys.has_below("dm-0", "loop0/loop0p1");
        sys.has_below("dm-0", "loop1");
        sys.has_below("dm-1", "dm-0");
        assert_eq!(sys.find("7:0"), [way("/images/one", false)]);
        assert_eq!(sys.find("259:4"), [way("/images/one", true)]);
        for node in ["253:0", "253:1"] {
            let mut found = sys.find(node);
            found.sort();
            assert_eq!(found, [way("/images/one", true), way("/images/other", true)]);
        }
    }
}
