//! Opening of a file or block device. All calls that may block run here, on a control thread.

use sluice_handover::locks;
use std::fs::{self, File as OsFile, Metadata};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use rustix::fs::{
    Advice, AtFlags, FallocateFlags, FlockOperation, OFlags, SealFlags, StatxFlags, fadvise, fallocate,
    fcntl_get_seals, flock, statx,
};
use rustix::io::Errno;

use sluice_command::Storage;

use super::alignment::Alignment;
use super::control::FileControl;
use super::device;
use super::error::{FileError, FileErrorKind};
use super::format;
use super::lease::{self, Lease, Timing};
use super::storage;
use super::ways;

/// Effect of a full file system on a write.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum NoSpace {
    /// The write fails with Capacity Exceeded.
    #[default]
    Fail,
    /// The write waits until there is room.
    Park,
}

/// Configuration of a file target.
#[derive(Debug, Clone)]
pub struct FileConfig {
    pub path: PathBuf,
    /// Size in bytes. Without a size the file must exist, and keeps its size. With a size the file is made if
    /// it does not exist, and grown if it is shorter. A longer file is not touched, and its rest is not
    /// visible. A block device must have at least this size.
    pub size: Option<u64>,
    pub no_space: NoSpace,
    /// Block size of the namespace, bytes. Direct I/O is used where the file allows it in such units.
    pub block_size: u32,
    /// Whether the file is only read, and may be in use elsewhere at the same time. It is neither made, grown
    /// nor locked.
    pub read_only: bool,
    /// Whether the file is raw, whatever its first bytes. If not, a file that begins like an image of another
    /// format is refused.
    pub raw: bool,
}

/// An open and locked file, on its way to its reactor.
#[derive(Debug)]
pub struct PreparedFile {
    pub(super) path: PathBuf,
    /// Open file description for data and fallocate; it holds the lock.
    pub(super) data: OwnedFd,
    /// Open file description for fdatasync. The kernel reports a write-back error once for each open file
    /// description. A durable write on the same one would consume the error that a Flush has to report.
    pub(super) sync: OwnedFd,
    pub(super) lock: Arc<Lock>,
    pub(super) control: FileControl,
    pub(super) no_space: NoSpace,
    /// Alignment of direct I/O; `None` for I/O through the page cache, which has no requirements.
    pub(super) direct: Option<Alignment>,
    pub(super) kind: Kind,
    /// Preferred write size of the file system, bytes.
    pub(super) optimal_write: u32,
    pub(super) punches: bool,
    pub(super) read_only: bool,
    pub(super) storage: Storage,
    pub(super) properties: DeviceProperties,
    /// Bytes that the file may grow to under the target; none if its size changes with the namespace's.
    pub(super) reach: Option<u64>,
}

/// The lock of a file, released when the last target on the file is dropped.
#[derive(Debug)]
pub(super) struct Lock {
    pub(super) file: OsFile,
    /// Other files and devices with the same data.
    ways: Vec<OsFile>,
    /// Lease that keeps other machines away from the storage.
    lease: Option<Lease>,
}

impl Lock {
    pub(super) fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if locks::are_lent() {
            return;
        }
        // The lock would end with its last descriptor, which the kernel may keep for a moment. The explicit
        // unlock lets the next opener in at once. No command of this drive is in flight any more.
        for file in [&self.file].into_iter().chain(&self.ways) {
            let _ = flock(file, FlockOperation::Unlock);
        }
    }
}

/// Properties of the device under a file, from the kernel.
#[derive(Debug, Clone, Copy)]
pub(super) struct DeviceProperties {
    /// Unit in bytes of atomic writes at multiples of it, beside other writes at the same time.
    pub(super) atomic: u32,
    /// Whether a finished write may be lost at a power cut until a flush.
    pub(super) volatile_cache: bool,
}

impl DeviceProperties {
    fn of(config: &FileConfig, kind: Kind, meta: &Metadata, is_direct: bool) -> Self {
        let physical = |device| device::physical_block(device).unwrap_or(512);
        let (atomic, device) = match kind {
            Kind::BlockDevice => (physical(meta.rdev()), Some(meta.rdev())),
            // The file system may store a block of its own in several places.
            Kind::Regular => (physical(meta.dev()).min(u32::try_from(meta.blksize()).unwrap_or(512)), None),
        };
        // A file system stores the location of data later than the data.
        let is_stable = is_direct && device.is_some_and(device::writes_through);
        Self { atomic, volatile_cache: !config.read_only && !is_stable }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Regular,
    BlockDevice,
}

impl PreparedFile {
    /// Opens, makes or grows, and locks the file. Blocks as long as the file system does.
    ///
    /// # Errors
    /// Returns a message that names the file and the remedy.
    pub fn open(config: &FileConfig) -> Result<Self, FileError> {
        Self::open_leased(config, None)
    }

    /// Opens a file on a disk that several machines share, after taking the lease in the file or partition
    /// `lease`. Blocks for some seconds more.
    ///
    /// # Errors
    /// Fails as [`open`](Self::open) does; and if the lease is another daemon's, or cannot be taken.
    pub fn open_leased(config: &FileConfig, lease: Option<&Path>) -> Result<Self, FileError> {
        Self::open_timed(config, lease, Timing::USUAL)
    }

    pub(super) fn open_timed(
        config: &FileConfig,
        lease: Option<&Path>,
        timing: Timing,
    ) -> Result<Self, FileError> {
        open(config, lease, timing).map_err(|error| error.at(&config.path))
    }

    /// Returns the size of the drive in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.control.size.load(Relaxed)
    }

    /// Replaces the number of the storage by the one that its label has.
    pub fn identify(&mut self, id: u128) {
        (self.storage.id, self.control.storage.id) = (id, id);
    }

    /// Returns whether I/O bypasses the page cache.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.direct.is_some()
    }

    /// Returns the handle with which the control side resizes the file.
    #[must_use]
    pub fn control(&self) -> FileControl {
        self.control.clone()
    }
}

fn open(config: &FileConfig, lease: Option<&Path>, timing: Timing) -> Result<PreparedFile, FileErrorKind> {
    let kind = kind_of(config)?;
    let data = open_data(config, kind)?;
    let ways = if config.read_only { Vec::new() } else { claim(kind, &data)? };
    let lease = lease.map(|lease| Lease::take(lease, &config.path, timing)).transpose()?;
    check_format(config, kind, &data)?;
    if !config.read_only && takes_no_writes(kind, &data)? {
        return Err(FileErrorKind::ReadOnly);
    }
    let sync = open_again(config, &data)?;
    // The storage is examined before it is grown.
    let storage = storage::of(&data, kind);
    let size = size_of(config, kind, &data)?;
    let direct = direct_alignment(&data, config.block_size);
    if direct.is_none() {
        drop_clean_pages(&data);
    }
    let meta = data.metadata().map_err(FileErrorKind::step("examined"))?;
    let punches = kind == Kind::BlockDevice || punches_holes(&data, meta.len());
    let file = sync.try_clone().map_err(FileErrorKind::step("opened"))?;
    let held = Arc::new(Lock { file: data.try_clone().map_err(FileErrorKind::step("opened"))?, ways, lease });
    let control = FileControl {
        config: Arc::new(config.clone()),
        file: Arc::new(file),
        kind,
        punches,
        optimal_write: u32::try_from(meta.blksize()).unwrap_or(0),
        storage,
        properties: DeviceProperties::of(config, kind, &meta, direct.is_some()),
        block_size: Arc::new(AtomicU32::new(config.block_size)),
        beyond: Arc::default(),
        size: Arc::new(AtomicU64::new(size)),
        syncs: Arc::default(),
        lock: Arc::downgrade(&held),
    };
    Ok(control.prepare(data, sync, direct, held))
}

/// Determines the kind of the file before it is opened: opening a FIFO or a tape has side effects.
pub(super) fn kind_of(config: &FileConfig) -> Result<Kind, FileErrorKind> {
    match fs::metadata(&config.path) {
        Ok(meta) if meta.file_type().is_block_device() => Ok(Kind::BlockDevice),
        Ok(meta) if meta.is_file() => Ok(Kind::Regular),
        Ok(_) => Err(FileErrorKind::NotAFile),
        Err(error) if error.kind() == io::ErrorKind::NotFound => match config.size {
            Some(_) if !config.read_only => Ok(Kind::Regular),
            _ => Err(FileErrorKind::Missing),
        },
        Err(error) => Err(FileErrorKind::Step("examined", error)),
    }
}

fn open_data(config: &FileConfig, kind: Kind) -> Result<OsFile, FileErrorKind> {
    if kind == Kind::BlockDevice && !config.read_only {
        // The kernel's claim belongs to the other process's open file description.
        let node = ways::node(&config.path);
        if let Some(sent) = node.and_then(|node| locks::take(node.as_fd())) {
            return Ok(sent.into());
        }
    }
    let mut options = OsFile::options();
    options.read(true).write(!config.read_only).mode(0o600);
    match kind {
        _ if config.read_only => &mut options,
        Kind::Regular => options.create(config.size.is_some()).truncate(false),
        // The kernel refuses this while the device is mounted, part of a RAID, or in use by another drive.
        Kind::BlockDevice => options.custom_flags(OFlags::EXCL.bits().cast_signed()),
    };
    ways::open_when_released(&options, &config.path).map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::BUSY) => FileErrorKind::InUse,
        _ => FileErrorKind::Step("opened", error),
    })
}

/// Returns whether a file that was opened for writing would fail all writes.
fn takes_no_writes(kind: Kind, data: &OsFile) -> Result<bool, FileErrorKind> {
    Ok(match kind {
        Kind::BlockDevice => {
            device::is_read_only(data.metadata().map_err(FileErrorKind::step("examined"))?.rdev())
        }
        // Files in memory can be sealed; other files have no seals.
        Kind::Regular => fcntl_get_seals(data)
            .is_ok_and(|seals| seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE)),
    })
}

/// Claims the file for this drive alone. Returns the other files and devices with its data, claimed as well, or
/// the descriptor with the lock that another process had.
pub(super) fn claim(kind: Kind, data: &OsFile) -> Result<Vec<OsFile>, FileErrorKind> {
    if let (Kind::Regular, Some(kept)) = (kind, locks::take(data.as_fd())) {
        return Ok(vec![kept.into()]);
    }
    lock(data)?;
    match kind {
        Kind::BlockDevice => ways::claim(data),
        Kind::Regular => Ok(Vec::new()),
    }
}

/// Checks whether a file or partition can hold a lease, without changing it.
///
/// # Errors
/// Returns a message that names the file.
pub fn probe_lease(lease: &Path) -> Result<(), FileError> {
    lease::look(lease).map_err(|error| error.at(lease))
}

/// Locks the file. The lock belongs to this open file description, and ends with its last descriptor.
fn lock(data: &OsFile) -> Result<(), FileErrorKind> {
    match ways::lock_when_released(data, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => {
            Err(ways::loop_device_over(data).map_or(FileErrorKind::InUse, FileErrorKind::InUseAbove))
        }
        Err(error) => Err(FileErrorKind::Step("locked", error.into())),
    }
}

/// Opens a second file description of the same file.
pub(super) fn open_again(config: &FileConfig, first: &OsFile) -> Result<OsFile, FileErrorKind> {
    let mut options = OsFile::options();
    let second = options
        .read(true)
        .write(!config.read_only)
        .open(&config.path)
        .map_err(FileErrorKind::step("opened"))?;
    let inode = |file: &OsFile| file.metadata().map(|meta| (meta.dev(), meta.ino()));
    let examined = FileErrorKind::step("examined");
    match inode(first).map_err(&examined)? == inode(&second).map_err(&examined)? {
        true => Ok(second),
        false => Err(FileErrorKind::Replaced),
    }
}

/// Refuses a regular file that begins like an image of another format, unless it is configured as raw. A
/// block device is not checked: its content belongs to a guest more often than not.
pub(super) fn check_format(config: &FileConfig, kind: Kind, data: &OsFile) -> Result<(), FileErrorKind> {
    if config.raw || kind == Kind::BlockDevice {
        return Ok(());
    }
    match format::recognize(data).map_err(FileErrorKind::step("read"))? {
        Some(format) => Err(FileErrorKind::Format(format)),
        None => Ok(()),
    }
}

/// Returns the number of bytes at the end that fill no block.
pub(super) fn tail_of(size: u64, block_size: u32) -> u64 {
    size % u64::from(block_size)
}

/// Grows the file to the configured size. Returns the size of the drive.
fn size_of(config: &FileConfig, kind: Kind, data: &OsFile) -> Result<u64, FileErrorKind> {
    let mut size = end_of(data).map_err(FileErrorKind::step("measured"))?;
    if let Some(wanted) = config.size {
        if size < wanted && config.read_only {
            return Err(FileErrorKind::NotGrown { size, wanted });
        }
        if size < wanted {
            grow(data, kind, size, wanted)?;
        }
        size = wanted;
    }
    let tail = tail_of(size, config.block_size);
    if tail > 0 {
        let path = config.path.display();
        tracing::warn!(
            "{path} has {size} bytes, which is no multiple of blocks of {} bytes: its last {tail} bytes are not seen; \
             lengthen it (`truncate -s %{}`), or give the size that is meant",
            config.block_size,
            config.block_size
        );
    }
    size -= tail;
    if size == 0 { Err(FileErrorKind::TooSmall { size }) } else { Ok(size) }
}

pub(super) fn grow(file: &OsFile, kind: Kind, size: u64, wanted: u64) -> Result<(), FileErrorKind> {
    match kind {
        Kind::Regular => file.set_len(wanted).map_err(FileErrorKind::step("grown")),
        Kind::BlockDevice => Err(FileErrorKind::DeviceTooSmall { size, wanted }),
    }
}

/// Returns the size of a file or block device in bytes.
pub(super) fn end_of(mut file: &OsFile) -> io::Result<u64> {
    file.seek(SeekFrom::End(0))
}

/// Turns direct I/O on, if the kernel reports its alignment and that suits the namespace's blocks.
pub(super) fn direct_alignment(data: &OsFile, block_size: u32) -> Option<Alignment> {
    let stat = statx(data, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    let known = stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
    let alignment = Alignment { memory: stat.stx_dio_mem_align, unit: stat.stx_dio_offset_align };
    if !known || !alignment.suits(block_size) {
        return None;
    }
    rustix::fs::fcntl_setfl(data, rustix::fs::fcntl_getfl(data).ok()? | OFlags::DIRECT).ok()?;
    Some(alignment)
}

/// Drops clean pages of the file from the page cache, so that reads return the disk's data. After a failed
/// write-back, pages whose data is not on the disk may count as clean. A file system without a page cache has
/// none.
pub(super) fn drop_clean_pages(data: &OsFile) {
    let _ = fadvise(data, 0, None, Advice::DontNeed);
}

/// Punches a hole behind the end, where that changes nothing. Returns whether it succeeds.
fn punches_holes(data: &OsFile, size: u64) -> bool {
    fallocate(data, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, size, 4096).is_ok()
}
