//! Opening a file or block device: everything that may block, on a control thread.

use std::fs::{self, File as OsFile, Metadata};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{
    AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed},
};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{
    Advice, AtFlags, FallocateFlags, FlockOperation, OFlags, SealFlags, StatxFlags, fadvise, fallocate,
    fcntl_get_seals, flock, statx,
};
use rustix::io::Errno;

use sluice_command::Storage;

use super::alignment::Alignment;
use super::device;
use super::error::{FileError, Trouble};
use super::format;
use super::lease::{self, Lease, Timing};
use super::shorten::shorten;
use super::storage;
use super::sync::Shared;
use super::ways;

/// How long a file that becomes shorter waits for writes behind its new end.
const WRITES_END: Duration = Duration::from_secs(5);

/// What a full file system means for a write.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum NoSpace {
    /// It fails with Capacity Exceeded.
    #[default]
    Fail,
    /// It waits until there is room.
    Park,
}

/// A file target, as configured.
#[derive(Debug, Clone)]
pub struct FileConfig {
    pub path: PathBuf,
    /// Bytes. Without it the file exists and has the size it has. With it the file is made if it does not
    /// exist, grown if it is shorter, and not touched if it is longer: the rest is not seen. A block device
    /// has at least so many.
    pub size: Option<u64>,
    pub no_space: NoSpace,
    /// The namespace's block size, bytes. Direct I/O is used where the file allows it in such units.
    pub block_size: u32,
    /// Only to be read, and so another's at the same time: it is neither made, grown nor locked.
    pub read_only: bool,
    /// It is raw, whatever it begins with. Otherwise a file that begins like an image of another format is refused.
    pub raw: bool,
}

/// An open and locked file, on its way to its reactor.
#[derive(Debug)]
pub struct FileSeed {
    pub(super) path: PathBuf,
    /// Data and fallocate go through this description of the file; it holds the lock.
    pub(super) data: OwnedFd,
    /// fdatasync goes through this one. The kernel reports a write-back error once for each open
    /// description, and a durable write on the same one would swallow what a Flush has to tell.
    pub(super) sync: OwnedFd,
    pub(super) lock: Arc<Lock>,
    pub(super) control: FileControl,
    pub(super) no_space: NoSpace,
    /// `None` for I/O through the page cache, which takes everything.
    pub(super) direct: Option<Alignment>,
    pub(super) kind: Kind,
    /// Bytes the file system likes to write at once.
    pub(super) optimal_write: u32,
    pub(super) punches: bool,
    pub(super) read_only: bool,
    pub(super) storage: Storage,
    pub(super) facts: Facts,
}

/// The lock of a file, given up when the last target on it goes.
#[derive(Debug)]
pub(super) struct Lock {
    file: OsFile,
    /// Other ways to the same storage.
    ways: Vec<OsFile>,
    /// What keeps other machines away from it.
    lease: Option<Lease>,
}

impl Lock {
    pub(super) fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // It would go with the last descriptor; the kernel may keep one a moment longer, and the next to open the file
        // need not wait for that. Nothing of this drive is in flight any more.
        for file in [&self.file].into_iter().chain(&self.ways) {
            let _ = flock(file, FlockOperation::Unlock);
        }
    }
}

/// What the kernel says about the device under a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Facts {
    /// Bytes at such a multiple that are written as a whole, beside what else is written at the same time.
    pub(super) atomic: u32,
    /// A finished write may be lost at a power cut until a flush.
    pub(super) volatile_cache: bool,
}

impl Facts {
    fn of(config: &FileConfig, kind: Kind, meta: &Metadata, is_direct: bool) -> Self {
        let physical = |device| device::physical_block(device).unwrap_or(512);
        let (atomic, device) = match kind {
            Kind::BlockDevice => (physical(meta.rdev()), Some(meta.rdev())),
            // The file system may have the blocks of its own in several places.
            Kind::Regular => (physical(meta.dev()).min(u32::try_from(meta.blksize()).unwrap_or(512)), None),
        };
        // A file system stores where data is later than the data.
        let is_stable = is_direct && device.is_some_and(device::writes_through);
        Self { atomic, volatile_cache: !config.read_only && !is_stable }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Regular,
    BlockDevice,
}

impl FileSeed {
    /// Opens, makes or grows, and locks the file. Blocks as long as the file system does.
    ///
    /// # Errors
    /// In words that name the file and say what to do.
    pub fn open(config: &FileConfig) -> Result<Self, FileError> {
        Self::open_leased(config, None)
    }

    /// Opens a file of which several machines have the disk, when the lease in the file or partition `lease` is taken.
    /// Blocks for some seconds more.
    ///
    /// # Errors
    /// The same; and the lease is another daemon's, or cannot be taken.
    pub fn open_leased(config: &FileConfig, lease: Option<&Path>) -> Result<Self, FileError> {
        Self::open_timed(config, lease, Timing::USUAL)
    }

    pub(super) fn open_timed(
        config: &FileConfig,
        lease: Option<&Path>,
        timing: Timing,
    ) -> Result<Self, FileError> {
        open(config, lease, timing).map_err(|trouble| trouble.at(&config.path))
    }

    /// Bytes of the drive.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.control.size.load(Relaxed)
    }

    /// True if the page cache is not used.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.direct.is_some()
    }

    /// What the control side keeps, to resize the file.
    #[must_use]
    pub fn control(&self) -> FileControl {
        self.control.clone()
    }
}

fn open(config: &FileConfig, lease: Option<&Path>, timing: Timing) -> Result<FileSeed, Trouble> {
    let kind = kind_of(config)?;
    let data = open_data(config, kind)?;
    let ways = if config.read_only { Vec::new() } else { claim(kind, &data)? };
    let lease = lease.map(|lease| Lease::take(lease, &config.path, timing)).transpose()?;
    check_format(config, kind, &data)?;
    if !config.read_only && takes_no_writes(kind, &data)? {
        return Err(Trouble::ReadOnly);
    }
    let sync = open_again(config, &data)?;
    // Before it is grown.
    let storage = storage::of(&data, kind);
    let size = size_of(config, kind, &data)?;
    let direct = direct_alignment(&data, config.block_size);
    if direct.is_none() {
        drop_clean_pages(&data);
    }
    let meta = data.metadata().map_err(Trouble::step("examined"))?;
    let punches = kind == Kind::BlockDevice || punches_holes(&data, meta.len());
    let file = sync.try_clone().map_err(Trouble::step("opened"))?;
    let held = Arc::new(Lock { file: data.try_clone().map_err(Trouble::step("opened"))?, ways, lease });
    let control = FileControl {
        config: Arc::new(config.clone()),
        file: Arc::new(file),
        kind,
        punches,
        optimal_write: u32::try_from(meta.blksize()).unwrap_or(0),
        storage,
        facts: Facts::of(config, kind, &meta, direct.is_some()),
        block_size: Arc::new(AtomicU32::new(config.block_size)),
        beyond: Arc::default(),
        size: Arc::new(AtomicU64::new(size)),
        syncs: Arc::default(),
        lock: Arc::downgrade(&held),
    };
    Ok(control.seed(data, sync, direct, held))
}

/// Looks before opening: opening a FIFO or a tape does things.
pub(super) fn kind_of(config: &FileConfig) -> Result<Kind, Trouble> {
    match fs::metadata(&config.path) {
        Ok(meta) if meta.file_type().is_block_device() => Ok(Kind::BlockDevice),
        Ok(meta) if meta.is_file() => Ok(Kind::Regular),
        Ok(_) => Err(Trouble::NotAFile),
        Err(error) if error.kind() == io::ErrorKind::NotFound => match config.size {
            Some(_) if !config.read_only => Ok(Kind::Regular),
            _ => Err(Trouble::Missing),
        },
        Err(error) => Err(Trouble::Step("examined", error)),
    }
}

fn open_data(config: &FileConfig, kind: Kind) -> Result<OsFile, Trouble> {
    let mut options = OsFile::options();
    options.read(true).write(!config.read_only).mode(0o600);
    match kind {
        _ if config.read_only => &mut options,
        Kind::Regular => options.create(config.size.is_some()).truncate(false),
        // Refused while it is mounted, part of a RAID, or another's drive.
        Kind::BlockDevice => options.custom_flags(OFlags::EXCL.bits().cast_signed()),
    };
    options.open(&config.path).map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::BUSY) => Trouble::InUse,
        _ => Trouble::Step("opened", error),
    })
}

/// True if it was opened for writing and none would succeed.
fn takes_no_writes(kind: Kind, data: &OsFile) -> Result<bool, Trouble> {
    Ok(match kind {
        Kind::BlockDevice => device::is_read_only(data.metadata().map_err(Trouble::step("examined"))?.rdev()),
        // Files in memory can be sealed; others have no seals.
        Kind::Regular => fcntl_get_seals(data)
            .is_ok_and(|seals| seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE)),
    })
}

/// Makes it this drive's alone; what else leads to its data.
pub(super) fn claim(kind: Kind, data: &OsFile) -> Result<Vec<OsFile>, Trouble> {
    lock(data)?;
    match kind {
        Kind::BlockDevice => ways::claim(data),
        Kind::Regular => Ok(Vec::new()),
    }
}

/// Looks whether a file or partition can have a lease, and leaves it as it is.
///
/// # Errors
/// In words that name it.
pub fn probe_lease(lease: &Path) -> Result<(), FileError> {
    lease::look(lease).map_err(|trouble| trouble.at(lease))
}

/// The lock belongs to this open description, and goes with its last descriptor.
fn lock(data: &OsFile) -> Result<(), Trouble> {
    match flock(data, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => {
            Err(ways::loop_device_over(data).map_or(Trouble::InUse, Trouble::InUseAbove))
        }
        Err(error) => Err(Trouble::Step("locked", error.into())),
    }
}

/// A second open description of the same file.
fn open_again(config: &FileConfig, first: &OsFile) -> Result<OsFile, Trouble> {
    let mut options = OsFile::options();
    let second =
        options.read(true).write(!config.read_only).open(&config.path).map_err(Trouble::step("opened"))?;
    let inode = |file: &OsFile| file.metadata().map(|meta| (meta.dev(), meta.ino()));
    let examined = Trouble::step("examined");
    match inode(first).map_err(&examined)? == inode(&second).map_err(&examined)? {
        true => Ok(second),
        false => Err(Trouble::Replaced),
    }
}

/// Refuses a regular file that begins like an image of another format, unless it is said to be raw. The content of a
/// block device is a guest's business more often than not.
pub(super) fn check_format(config: &FileConfig, kind: Kind, data: &OsFile) -> Result<(), Trouble> {
    if config.raw || kind == Kind::BlockDevice {
        return Ok(());
    }
    match format::recognize(data).map_err(Trouble::step("read"))? {
        Some(format) => Err(Trouble::Format(format)),
        None => Ok(()),
    }
}

/// Bytes at the end that fill no block.
pub(super) fn tail_of(size: u64, block_size: u32) -> u64 {
    size % u64::from(block_size)
}

/// Brings the file to the size asked for; what the drive has then.
fn size_of(config: &FileConfig, kind: Kind, data: &OsFile) -> Result<u64, Trouble> {
    let mut size = end_of(data).map_err(Trouble::step("measured"))?;
    if let Some(wanted) = config.size {
        if size < wanted && config.read_only {
            return Err(Trouble::NotGrown { size, wanted });
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
    if size == 0 { Err(Trouble::TooSmall { size }) } else { Ok(size) }
}

fn grow(file: &OsFile, kind: Kind, size: u64, wanted: u64) -> Result<(), Trouble> {
    match kind {
        Kind::Regular => file.set_len(wanted).map_err(Trouble::step("grown")),
        Kind::BlockDevice => Err(Trouble::DeviceTooSmall { size, wanted }),
    }
}

/// Bytes, of a file as of a block device.
pub(super) fn end_of(mut file: &OsFile) -> io::Result<u64> {
    file.seek(SeekFrom::End(0))
}

/// Turns direct I/O on, if the kernel says how it wants to be asked and takes the namespace's blocks.
fn direct_alignment(data: &OsFile, block_size: u32) -> Option<Alignment> {
    let stat = statx(data, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    let known = stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
    let alignment = Alignment { memory: stat.stx_dio_mem_align, unit: stat.stx_dio_offset_align };
    if !known || !alignment.suits(block_size) {
        return None;
    }
    rustix::fs::fcntl_setfl(data, rustix::fs::fcntl_getfl(data).ok()? | OFlags::DIRECT).ok()?;
    Some(alignment)
}

/// Drops clean pages of the file from the page cache, so that reads find what the disk has. After a write-back that failed
/// there may be pages with data that the disk does not have, which count as clean. A file system without a page cache
/// has none.
pub(super) fn drop_clean_pages(data: &OsFile) {
    let _ = fadvise(data, 0, None, Advice::DontNeed);
}

/// Tries a hole behind the end, where it changes nothing.
fn punches_holes(data: &OsFile, size: u64) -> bool {
    fallocate(data, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, size, 4096).is_ok()
}

/// The control side of a file target: changes the file's size, from any thread.
#[derive(Debug, Clone)]
pub struct FileControl {
    config: Arc<FileConfig>,
    /// Without the lock, so that it does not outlive the drive.
    file: Arc<OsFile>,
    kind: Kind,
    punches: bool,
    optimal_write: u32,
    storage: Storage,
    pub(super) facts: Facts,
    /// Of the namespace, bytes.
    pub(super) block_size: Arc<AtomicU32>,
    /// Writes behind the present end that the kernel has.
    pub(super) beyond: Arc<AtomicUsize>,
    /// What the file has; the target never claims more.
    pub(super) size: Arc<AtomicU64>,
    pub(super) syncs: Arc<Shared>,
    lock: Weak<Lock>,
}

impl FileControl {
    /// True if a flush has failed: finished writes may be lost, and no Flush succeeds any more.
    pub fn has_lost(&self) -> bool {
        self.syncs.has_lost()
    }

    /// The file on its way to a reactor.
    fn seed(self, data: OsFile, sync: OsFile, direct: Option<Alignment>, lock: Arc<Lock>) -> FileSeed {
        FileSeed {
            path: self.config.path.clone(),
            data: data.into(),
            sync: sync.into(),
            lock,
            no_space: self.config.no_space,
            direct,
            kind: self.kind,
            optimal_write: self.optimal_write,
            punches: self.punches,
            read_only: self.config.read_only,
            storage: self.storage,
            facts: self.facts,
            control: self,
        }
    }

    /// Another target on the same file, for another reactor at the same time: the lock is given up when both have gone.
    /// Blocks.
    ///
    /// # Errors
    /// In words that name the file: it was replaced since; the kernel would not keep commands of the two apart that
    /// overlap; or writes may wait for room in it.
    pub fn twin(&self) -> Result<FileSeed, FileError> {
        self.try_twin().map_err(|trouble| trouble.at(&self.config.path))
    }

    fn try_twin(&self) -> Result<FileSeed, Trouble> {
        let [data, sync] = [(); 2].map(|()| open_again(&self.config, &self.file));
        let (data, sync) = (data?, sync?);
        let direct = direct_alignment(&data, self.config.block_size).ok_or(Trouble::NotDirect)?;
        if direct.unit.max(self.facts.atomic) < self.block_size.load(Relaxed) {
            return Err(Trouble::NotAtomic);
        }
        match self.config.no_space {
            NoSpace::Fail => {
                let lock = self.lock.upgrade().ok_or(Trouble::Replaced)?;
                Ok(self.clone().seed(data, sync, Some(direct), lock))
            }
            NoSpace::Park => Err(Trouble::Parks),
        }
    }

    /// Bytes that a resize to less would cut off: a file may be longer than what is seen of it. Blocks.
    ///
    /// # Errors
    /// In words that name the file.
    pub fn held(&self) -> Result<u64, FileError> {
        match self.kind {
            Kind::Regular => {
                end_of(&self.file).map_err(|error| Trouble::Step("measured", error).at(&self.config.path))
            }
            Kind::BlockDevice => Ok(self.size.load(Relaxed)),
        }
    }

    /// Makes the file `size` bytes long. Blocks. The drive learns of it by
    /// [`Layer::resized`](sluice_command::Layer::resized): afterwards if it grows, before if it shrinks.
    /// A block device is only looked at: it must have that many bytes already.
    ///
    /// # Errors
    /// In words that name the file and say what to do.
    pub fn resize(&self, size: u64) -> Result<(), FileError> {
        self.try_resize(size).map_err(|trouble| trouble.at(&self.config.path))
    }

    /// Makes the file shorter, when nothing is written any more behind its new end.
    fn cut_off(&self, size: u64, wanted: u64) -> Result<(), Trouble> {
        let start = Instant::now();
        while self.beyond.load(Acquire) > 0 {
            if start.elapsed() > WRITES_END {
                return Err(Trouble::Writing);
            }
            thread::sleep(Duration::from_millis(1));
        }
        let shortened = shorten(&self.file, size, wanted);
        if shortened.is_err() {
            // What is gone is zeros.
            let _ = self.file.set_len(size);
        }
        shortened.map_err(Trouble::step("resized"))
    }

    fn try_resize(&self, wanted: u64) -> Result<(), Trouble> {
        if let Some(lock) = self.lock.upgrade() {
            lock.lease().map_or(Ok(()), Lease::check)?;
        }
        let size = end_of(&self.file).map_err(Trouble::step("measured"))?;
        match self.kind {
            Kind::Regular if wanted < size => self.cut_off(size, wanted)?,
            Kind::Regular => self.file.set_len(wanted).map_err(Trouble::step("resized"))?,
            Kind::BlockDevice if size < wanted => return Err(Trouble::DeviceTooSmall { size, wanted }),
            Kind::BlockDevice => {}
        }
        self.size.store(wanted, Relaxed);
        Ok(())
    }
}
