//! The control side of a file target.

use super::alignment::Alignment;
use super::error::{FileError, FileErrorKind};
use super::lease::Lease;
use super::open::{
    DeviceProperties, FileConfig, Kind, Lock, NoSpace, PreparedFile, direct_alignment, end_of, grow,
    open_again,
};
use super::shared_sync::Shared;
use super::shorten::shorten;
use sluice_command::Storage;
use std::fs::File as OsFile;
use std::sync::atomic::{
    AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed},
};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use std::{io, thread};

/// Timeout for writes behind the new end of a file that shrinks.
const WRITES_END: Duration = Duration::from_secs(5);

/// The control side of a file target: resizes the file, from any thread.
#[derive(Debug, Clone)]
pub struct FileControl {
    pub(super) config: Arc<FileConfig>,
    /// Descriptor without the lock, so that the lock does not outlive the drive.
    pub(super) file: Arc<OsFile>,
    pub(super) kind: Kind,
    pub(super) punches: bool,
    pub(super) optimal_write: u32,
    pub(super) storage: Storage,
    pub(super) properties: DeviceProperties,
    /// Block size of the namespace, bytes.
    pub(super) block_size: Arc<AtomicU32>,
    /// Number of writes behind the present end that are with the kernel.
    pub(super) beyond: Arc<AtomicUsize>,
    /// Size of the file in bytes; the target never reports more.
    pub(super) size: Arc<AtomicU64>,
    pub(super) syncs: Arc<Shared>,
    pub(super) lock: Weak<Lock>,
}

impl FileControl {
    /// Returns whether a lease keeps other machines away from the storage.
    pub fn has_lease(&self) -> bool {
        self.lock.upgrade().is_none_or(|lock| lock.lease().is_some())
    }

    /// Returns whether a flush has failed: finished writes may be lost, and no Flush succeeds any more.
    pub fn has_lost(&self) -> bool {
        self.syncs.has_lost()
    }

    /// Assembles the target, on its way to a reactor.
    pub(super) fn prepare(
        self,
        data: OsFile,
        sync: OsFile,
        direct: Option<Alignment>,
        lock: Arc<Lock>,
    ) -> PreparedFile {
        PreparedFile {
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
            properties: self.properties,
            reach: None,
            control: self,
        }
    }

    /// Opens another target on the same file, for another reactor at the same time. The lock is released when
    /// both have gone. Blocks.
    ///
    /// # Errors
    /// Returns a message that names the file, if it was replaced since, or if its writes may wait for room.
    /// Also if the kernel would not order overlapping commands of the two targets.
    pub fn open_clone(&self) -> Result<PreparedFile, FileError> {
        self.try_open_clone().map_err(|error| error.at(&self.config.path))
    }

    /// Opens another target on the same file, for bytes that no other target touches at the same time, and for hosts with
    /// blocks of this size. The layers above see `reach` bytes, which the file may [grow](Self::grow) to; commands behind its
    /// end fail. The lock is released when all have gone, with all of their I/O: after the death of the daemon, the kernel
    /// may still be executing some. Blocks.
    ///
    /// # Errors
    /// Returns a message that names the file, if it was replaced since.
    pub fn open_part(&self, block_size: u32, reach: u64) -> Result<PreparedFile, FileError> {
        self.try_open_part(block_size, reach).map_err(|error| error.at(&self.config.path))
    }

    fn try_open_part(&self, block_size: u32, reach: u64) -> Result<PreparedFile, FileErrorKind> {
        let lock = self.lock.upgrade().ok_or(FileErrorKind::Replaced)?;
        let data = lock.file.try_clone().map_err(FileErrorKind::step("opened"))?;
        let sync = open_again(&self.config, &self.file)?;
        let direct = direct_alignment(&data, self.config.block_size);
        let part = Self { block_size: Arc::new(AtomicU32::new(block_size)), ..self.clone() };
        Ok(PreparedFile { reach: Some(reach), ..part.prepare(data, sync, direct, lock) })
    }

    /// Opens the file for bytes that no target touches, past none of the caches.
    ///
    /// # Errors
    /// Returns a message that names the file, if it was replaced since.
    pub fn open_plain(&self) -> Result<OsFile, FileError> {
        open_again(&self.config, &self.file).map_err(|error| error.at(&self.config.path))
    }

    /// Makes finished writes durable, through a descriptor of [`open_plain`](Self::open_plain). One flush of the file is
    /// with the kernel at a time, also of its targets. After one that failed no Flush succeeds any more. Blocks.
    ///
    /// # Errors
    /// Finished writes may be lost, of this descriptor or of a target.
    pub fn flush_plain(&self, file: &OsFile) -> io::Result<()> {
        self.syncs.flush(|| file.sync_data())
    }

    fn try_open_clone(&self) -> Result<PreparedFile, FileErrorKind> {
        let [data, sync] = [(); 2].map(|()| open_again(&self.config, &self.file));
        let (data, sync) = (data?, sync?);
        let direct = direct_alignment(&data, self.config.block_size).ok_or(FileErrorKind::NotDirect)?;
        if direct.unit.max(self.properties.atomic) < self.block_size.load(Relaxed) {
            return Err(FileErrorKind::NotAtomic);
        }
        match self.config.no_space {
            NoSpace::Fail => {
                let lock = self.lock.upgrade().ok_or(FileErrorKind::Replaced)?;
                Ok(self.clone().prepare(data, sync, Some(direct), lock))
            }
            NoSpace::Park => Err(FileErrorKind::Parks),
        }
    }

    /// Returns the size of the file in bytes; a resize to less cuts bytes off. A file may be longer than its
    /// visible part. Blocks.
    ///
    /// # Errors
    /// Returns a message that names the file.
    pub fn held(&self) -> Result<u64, FileError> {
        match self.kind {
            Kind::Regular => end_of(&self.file)
                .map_err(|error| FileErrorKind::Step("measured", error).at(&self.config.path)),
            Kind::BlockDevice => Ok(self.size.load(Relaxed)),
        }
    }

    /// Makes the file `size` bytes long. Blocks. The caller informs the drive by
    /// [`Layer::resized`](sluice_command::Layer::resized): afterwards if it grows, before if it shrinks. A
    /// block device is only measured: it must have that many bytes already.
    ///
    /// # Errors
    /// Returns a message that names the file and the remedy.
    pub fn resize(&self, size: u64) -> Result<(), FileError> {
        self.try_resize(size).map_err(|error| error.at(&self.config.path))
    }

    /// Makes the file at least `size` bytes long, of which all are visible to [parts](Self::open_part) then. A block device
    /// must have that many bytes already. Blocks.
    ///
    /// # Errors
    /// Returns a message that names the file and the remedy. Nothing has changed then.
    pub fn grow(&self, size: u64) -> Result<(), FileError> {
        self.try_grow(size).map_err(|error| error.at(&self.config.path))
    }

    fn try_grow(&self, wanted: u64) -> Result<(), FileErrorKind> {
        let size = end_of(&self.file).map_err(FileErrorKind::step("measured"))?;
        if size < wanted {
            grow(&self.file, self.kind, size, wanted)?;
            // The size is durable before anything is written behind the former end.
            self.file.sync_all().map_err(FileErrorKind::step("grown"))?;
        }
        self.size.fetch_max(wanted, Relaxed);
        Ok(())
    }

    /// Returns whether [`grow`](Self::grow) makes the file larger, as it does with a regular file.
    #[must_use]
    pub fn is_growable(&self) -> bool {
        self.kind == Kind::Regular
    }

    /// Returns the bytes of the file or device, visible or not. Blocks.
    ///
    /// # Errors
    /// Returns a message that names the file.
    pub fn end(&self) -> Result<u64, FileError> {
        end_of(&self.file).map_err(|error| FileErrorKind::Step("measured", error).at(&self.config.path))
    }

    /// Shortens the file, once no write behind its new end is in flight.
    fn cut_off(&self, size: u64, wanted: u64) -> Result<(), FileErrorKind> {
        let start = Instant::now();
        while self.beyond.load(Acquire) > 0 {
            if start.elapsed() > WRITES_END {
                return Err(FileErrorKind::Writing);
            }
            thread::sleep(Duration::from_millis(1));
        }
        let shortened = shorten(&self.file, size, wanted);
        if shortened.is_err() {
            // The bytes that were cut off become zeros.
            let _ = self.file.set_len(size);
        }
        shortened.map_err(FileErrorKind::step("resized"))
    }

    fn try_resize(&self, wanted: u64) -> Result<(), FileErrorKind> {
        if let Some(lock) = self.lock.upgrade() {
            lock.lease().map_or(Ok(()), Lease::check)?;
        }
        let size = end_of(&self.file).map_err(FileErrorKind::step("measured"))?;
        match self.kind {
            Kind::Regular if wanted < size => self.cut_off(size, wanted)?,
            Kind::Regular => self.file.set_len(wanted).map_err(FileErrorKind::step("resized"))?,
            Kind::BlockDevice if size < wanted => return Err(FileErrorKind::DeviceTooSmall { size, wanted }),
            Kind::BlockDevice => {}
        }
        self.size.store(wanted, Relaxed);
        Ok(())
    }
}
