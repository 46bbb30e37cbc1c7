//! Properties of a generic device in sysfs.

use super::error::ErrorKind;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A device below `/sys`.
#[derive(Debug)]
pub(super) struct SysfsDevice {
    folder: PathBuf,
    /// Name of the namespace: `0n1`.
    name: String,
    pub(super) number: u64,
}

/// Limits of the kernel's block layer for a namespace, which hold for passthrough, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// Bytes of one command.
    pub(super) transfer: usize,
    /// Contiguous segments of memory of one command.
    pub(super) segments: usize,
    /// Commands at a time.
    pub(super) commands: usize,
}

/// Limits for a kernel that reports none.
const CAUTIOUS: Limits = Limits { transfer: 64 << 10, segments: 17, commands: 32 };

impl SysfsDevice {
    pub(super) fn of(path: &Path) -> Result<Self, ErrorKind> {
        let meta = fs::metadata(path).map_err(ErrorKind::step("found"))?;
        if !meta.file_type().is_char_device() {
            return Err(ErrorKind::NotGeneric);
        }
        let number = meta.rdev();
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        let folder = PathBuf::from(format!("/sys/dev/char/{major}:{minor}"));
        let folder = folder.canonicalize().map_err(ErrorKind::step("found in /sys"))?;
        let class = fs::read_link(folder.join("subsystem")).ok();
        let is_generic =
            class.and_then(|class| Some(class.file_name()? == "nvme-generic")).unwrap_or_default();
        let name = folder.file_name().and_then(|name| name.to_str()?.strip_prefix("ng"));
        match name {
            Some(name) if is_generic => Ok(Self { name: name.to_owned(), folder, number }),
            _ => Err(ErrorKind::NotGeneric),
        }
    }

    /// Returns the block device of the same namespace.
    pub(super) fn block_device(&self) -> PathBuf {
        PathBuf::from(format!("/dev/nvme{}", self.name))
    }

    /// Returns the device of the namespace's controller.
    ///
    /// # Errors
    /// The namespace belongs to a subsystem that may have several controllers.
    pub(super) fn controller(&self) -> Result<PathBuf, ErrorKind> {
        let parent = self.folder.join("device").canonicalize().map_err(ErrorKind::step("found in /sys"))?;
        let class = fs::read_link(parent.join("subsystem")).ok();
        let is_controller = class.and_then(|class| Some(class.file_name()? == "nvme")).unwrap_or_default();
        match parent.file_name() {
            Some(name) if is_controller => Ok(Path::new("/dev").join(name)),
            _ => Err(ErrorKind::ManyControllers),
        }
    }

    /// Returns true unless the controller is a PCI device, which keeps its power when the kernel resets it. A
    /// subsystem with several controllers does not report their transports.
    pub(super) fn is_on_fabric(&self) -> bool {
        let transport = fs::read_to_string(self.folder.join("device/transport"));
        transport.map_or(true, |transport| transport.trim() != "pcie")
    }

    pub(super) fn limits(&self) -> Limits {
        let queue = PathBuf::from(format!("/sys/block/nvme{}/queue", self.name));
        let number =
            |name: &str| -> Option<usize> { fs::read_to_string(queue.join(name)).ok()?.trim().parse().ok() };
        Limits {
            transfer: number("max_hw_sectors_kb").map_or(CAUTIOUS.transfer, |kib| kib.saturating_mul(1024)),
            segments: number("max_segments").unwrap_or(CAUTIOUS.segments),
            commands: number("nr_requests").unwrap_or(CAUTIOUS.commands),
        }
    }
}
