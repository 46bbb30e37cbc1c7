//! Thin pools on their files and block devices: opened, grown, and used by drives.

use super::target::file_problem;
use sluice_control::drives::VolumeView;
use sluice_handover::locks;
use sluice_spec::error::{ApiError, Kind};
use sluice_spec::size::Size;
use sluice_spec::{OnFull, SharedSpec};
use sluice_targets::{FileConfig, FileControl, NoSpace, PoolRefused, PreparedFile};
use sluice_thin::{Device, EXTENT, Error, PoolUse, Storage, ThinPool, ThinPort, VolumeControl, VolumeUse};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Time that a starting daemon waits for a device in use, and the interval of the attempts.
pub(super) const START_LIMIT: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Time that the space of a pool is waited for while it writes.
const USAGE_LIMIT: Duration = Duration::from_millis(100);

/// Bytes of a block of a pool's device, the smallest of all namespaces.
const BLOCK_SIZE: u32 = 512;

/// An open thin pool.
#[derive(Debug)]
pub(super) struct ThinDisk {
    name: String,
    pool: ThinPool,
    device: FileControl,
    start: Growth,
}

/// Bytes of a device at the start, and the reason for which they are fewer than described.
#[derive(Debug)]
pub(super) struct Growth {
    pub(super) size: Size,
    pub(super) problem: Option<String>,
}

impl Growth {
    /// Returns the state of a pool of `size` bytes whose device ends at `end`, after `grown`. The growth of a pool that is
    /// lent is not attempted.
    fn of(size: Size, end: u64, is_made: bool, grown: Result<(), ApiError>) -> Result<Self, ApiError> {
        let is_short = end < size.0;
        let problem = match grown {
            // A growth that was noted and is not possible yet costs the further space alone.
            Err(error) if is_made && is_short => {
                Some(format!("{}; `sluice shared grow` tries again", error.in_one_line()))
            }
            Err(error) => return Err(error),
            Ok(()) => {
                is_short.then(|| "the growth was not finished; `sluice shared grow` tries again".to_owned())
            }
        };
        let size = if is_short { Size(end / EXTENT * EXTENT) } else { size };
        Ok(Self { size, problem })
    }
}

/// The device of a pool for the pool's own thread. Its flushes take turns with those of the volumes' targets: a failed one
/// fails all later ones of both.
#[derive(Debug)]
struct PoolDevice {
    device: Device,
    control: FileControl,
}

impl Storage for PoolDevice {
    fn read(&mut self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.device.read(at, bytes)
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.device.write(at, bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.control.flush_plain(&self.device.0)
    }

    fn reserve(&mut self, bytes: u64) -> io::Result<()> {
        self.device.reserve(bytes)
    }
}

impl ThinDisk {
    /// Opens the device of a pool, and the pool on it. Waits up to `limit` for a device in use. A file is made or grown only
    /// if the pool can be on it. Blocks.
    pub(super) fn start(spec: &SharedSpec, limit: Duration) -> Result<Self, ApiError> {
        let path: PathBuf = spec.path.clone().unwrap_or_default();
        let refused = |error: Error| does_not_open(spec, &path, &error);
        let is_empty = path.metadata().is_ok_and(|found| found.is_file() && found.len() == 0);
        let is_new = !locks::are_lent() && (is_empty || !path.exists());
        if is_new {
            ThinPool::check_new(spec.size.0).map_err(refused)?;
        }
        // A file that is there keeps its size until its content is known.
        let device = open_free(&device_config(&path, is_new.then_some(spec.size)), limit)?;
        let control = device.control();
        let metadata = control.open_plain().map_err(|error| file_problem(&error))?;
        let is_lent = locks::are_lent();
        let is_made = is_lent || ThinPool::examine(&metadata, spec.size.0, false).map_err(refused)?;
        let grown = if is_lent { Ok(()) } else { control.grow(spec.size.0) };
        let end = control.end().map_err(|error| file_problem(&error))?;
        let start = Growth::of(spec.size, end, is_made, grown.map_err(|error| file_problem(&error)))?;
        let Growth { size, problem } = &start;
        if let Some(problem) = problem {
            tracing::error!("pool {} has {size}, and not {}: {problem}", spec.name, spec.size);
        }
        control.grow(size.0).map_err(|error| file_problem(&error))?;
        let storage = PoolDevice { device: Device(metadata), control: control.clone() };
        // Another process may go on with a pool that is lent. It has the same size there.
        let pool = match is_lent {
            true => ThinPool::start_lent(storage, size.0, device),
            false => ThinPool::start(storage, size.0, device),
        };
        let (name, pool) = (spec.name.clone(), pool.map_err(refused)?);
        Ok(Self { name, pool, device: control, start })
    }

    /// Returns the bytes of the device at the start, and the reason for which they are fewer than described.
    pub(super) fn start_size(&self) -> &Growth {
        &self.start
    }

    /// Opens a volume, with a target on the pool's device. Blocks.
    pub(super) fn open_volume(
        &self,
        volume: &str,
        size: Size,
        on_full: OnFull,
        block_size: u32,
    ) -> Result<(PreparedFile, ThinPort, VolumeControl), ApiError> {
        let device =
            self.device.open_part(block_size, self.pool.reach()).map_err(|error| file_problem(&error))?;
        let on_full = match on_full {
            OnFull::Fail => sluice_thin::OnFull::Fail,
            OnFull::Park => sluice_thin::OnFull::Park,
        };
        let opened = self.pool.open(volume, size.0, on_full);
        let (port, control) = opened.map_err(|error| volume_problem(&self.name, &error))?;
        Ok((device, port, control))
    }

    /// Returns the bytes that the device would have with the pool grown to `size`, or to all of the device. Changes
    /// nothing. Blocks.
    pub(super) fn plan_growth(&self, size: Option<Size>) -> Result<Size, ApiError> {
        let end = self.device.end().map_err(|error| file_problem(&error))?;
        let size = size.map_or(end / EXTENT * EXTENT, |size| size.0);
        self.pool.check_size(size).map_err(|error| {
            volume_problem(&self.name, &error)
                .hint("make a larger pool on another file, and copy its volumes there")
        })?;
        if size > end && !self.device.is_growable() {
            return Err(ApiError::invalid(format!(
                "shared object `{}`: its block device has {}, and not {}",
                self.name,
                Size(end),
                Size(size)
            ))
            .hint("make the device larger first, or leave the size out to take all of it"));
        }
        Ok(Size(size))
    }

    /// Grows the device, and then the pool. Blocks.
    pub(super) fn grow(&self, size: Size) -> Result<(), ApiError> {
        self.device.grow(size.0).map_err(|error| file_problem(&error))?;
        self.pool.grow(size.0).map_err(|error| volume_problem(&self.name, &error))
    }

    /// Brings the pool to rest, for another process.
    pub(super) fn settle(&self) -> Result<(), ApiError> {
        self.pool.settle().map_err(|error| volume_problem(&self.name, &error))
    }

    /// Returns the volumes with the bytes that only they have. Waits for the thread of the pool. Blocks.
    pub(super) fn volumes(&self) -> Result<Vec<VolumeView>, ApiError> {
        let usage = self.pool.usage(true).map_err(|error| volume_problem(&self.name, &error))?;
        Ok(usage.volumes.into_iter().map(volume_view).collect())
    }

    /// Makes a volume with the content of another one. Blocks.
    pub(super) fn clone_volume(&self, from: &str, to: &str) -> Result<(), ApiError> {
        self.pool.clone_volume(to, from).map_err(|error| volume_problem(&self.name, &error))
    }

    /// Deletes a volume. Blocks.
    pub(super) fn delete_volume(&self, volume: &str) -> Result<(), ApiError> {
        self.pool.delete_volume(volume).map_err(|error| volume_problem(&self.name, &error))
    }

    pub(super) fn usage(&self) -> Result<PoolUse, ApiError> {
        self.pool.recent_usage(USAGE_LIMIT).map_err(|error| volume_problem(&self.name, &error))
    }
}

fn device_config(path: &Path, size: Option<Size>) -> FileConfig {
    FileConfig {
        path: path.to_owned(),
        size: size.map(|size| size.0),
        no_space: NoSpace::Fail,
        block_size: BLOCK_SIZE,
        read_only: false,
        // The pool is recognized by its superblock.
        raw: true,
    }
}

/// Opens the device of a pool. The kernel keeps it locked while it executes I/O of a daemon that was killed, so a device
/// in use is waited for. Blocks.
fn open_free(config: &FileConfig, limit: Duration) -> Result<PreparedFile, ApiError> {
    let began = Instant::now();
    loop {
        match PreparedFile::open(config).map_err(|error| file_problem(&error)) {
            Err(problem) if problem.kind == Kind::InUse && began.elapsed() < limit => {
                thread::sleep(LOOK_EVERY);
            }
            opened => return opened,
        }
    }
}

fn does_not_open(spec: &SharedSpec, path: &Path, error: &Error) -> ApiError {
    let words = format!("the pool `{}` on {} does not open: {error}", spec.name, path.display());
    let problem =
        ApiError::new(if matches!(error, Error::Io(_)) { Kind::Internal } else { Kind::Invalid }, words);
    match error {
        Error::Io(_) => problem.hint("`dmesg` shows errors of the device"),
        _ => problem.hint(format!("check path and size of [[shared]] `{}`; nothing was written", spec.name)),
    }
}

/// Checks what is on the file or device of a pool. Changes nothing. `is_free` if no daemon runs that may use it.
pub(super) fn examine(spec: &SharedSpec, is_free: bool) -> Result<(), ApiError> {
    let path: PathBuf = spec.path.clone().unwrap_or_default();
    let refused = |error: Error| does_not_open(spec, &path, &error);
    if !path.exists() {
        ThinPool::check_new(spec.size.0).map_err(refused)?;
        let folder = path.parent().unwrap_or(Path::new("/"));
        return sluice_spec::paths::is_writable_folder(folder);
    }
    device_config(&path, Some(spec.size)).probe(is_free).map_err(|error| file_problem(&error))?;
    let file = File::open(&path).map_err(|error| ApiError::io("open", &path, &error))?;
    // The metadata of a pool that a daemon changes is read in parts of different ages.
    ThinPool::examine(&file, spec.size.0, is_free).map(drop).map_err(refused)
}

pub(super) fn volume_view(volume: VolumeUse) -> VolumeView {
    let VolumeUse { name, size, allocated, exclusive, is_open } = volume;
    let exclusive = exclusive.map(Size);
    VolumeView { name, size: Size(size), allocated: Size(allocated), exclusive, in_use: is_open }
}

/// Converts an error of a pool, whose message includes the volume.
pub(super) fn volume_problem(pool: &str, error: &Error) -> ApiError {
    let words = format!("shared object `{pool}`: {error}");
    match error {
        Error::InUse(_) => ApiError::new(Kind::InUse, words)
            .hint("`sluice drive list` shows the drives: each volume has one namespace"),
        Error::Busy(_) => ApiError::new(Kind::InUse, words)
            .hint("`sluice drive show` shows its commands; a device that does not answer is in the log"),
        Error::NoVolume(_) => {
            ApiError::not_found(words).hint(format!("`sluice shared volume list {pool}` shows what there is"))
        }
        Error::Impossible(_) => ApiError::invalid(words),
        Error::Port(PoolRefused::TooManyPorts) => {
            ApiError::new(Kind::Conflict, words).hint("delete drives of the pool first")
        }
        Error::Failed(_) => ApiError::internal(words)
            .hint("mend its device, and start the daemon again; acknowledged writes are kept"),
        _ => ApiError::internal(words),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    use sluice_spec::SharedKind;
    use std::os::fd::AsRawFd;

    fn start(file: &File, size: u64) -> Result<ThinDisk, ApiError> {
        let path = Some(PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd())));
        let (name, kind, size) = ("pool".to_owned(), SharedKind::Thin, Size(size));
        ThinDisk::start(&SharedSpec { name, kind, size, path, reactor: 0 }, START_LIMIT)
    }

    #[test]
    fn a_growth_that_was_not_finished_is_reported_and_one_that_is_not_durable_is_an_error() {
        let (whole, short) = (16 * EXTENT, 8 * EXTENT);
        let failed = || Err(ApiError::internal("it is not durable"));
        let of = |end, is_made, grown| {
            Growth::of(Size(whole), end, is_made, grown).map(|it| (it.size.0, it.problem.unwrap_or_default()))
        };
        assert_eq!(of(whole, true, Ok(())), Ok((whole, String::new())));
        assert_eq!(of(2 * whole, true, Ok(())), Ok((whole, String::new())));
        // A pool that is lent: its growth is not attempted.
        let (size, problem) = of(short + 512, true, Ok(())).expect("it opens");
        assert_eq!(size, short);
        assert!(problem.contains("not finished; `sluice shared grow`"), "{problem}");
        let (size, problem) = of(short, true, failed()).expect("it opens");
        assert!(size == short && problem.contains("not durable; `sluice shared grow`"), "{problem}");
        // The device has its size, and loses it perhaps with the power.
        of(whole, true, failed()).expect_err("its end is not durable");
        of(short, false, failed()).expect_err("there is no pool");
    }

    /// Checks a daemon that was killed between a growth's note and the growth, and whose file cannot grow any more.
    #[test]
    fn a_pool_whose_file_cannot_grow_opens_with_its_present_size() {
        const MIB: u64 = 1 << 20;
        let file = File::from(memfd_create("pool", MemfdFlags::ALLOW_SEALING).expect("memory"));
        ftruncate(&file, 8 * MIB).expect("room");
        let present = start(&file, 8 * MIB).expect("it is made").usage().expect("an answer").size;
        let grown = start(&file, 12 * MIB).expect("the growth is finished");
        assert_eq!(grown.usage().expect("an answer").size, present + 4 * MIB);
        assert_eq!((grown.start_size().size, &grown.start_size().problem), (Size(12 * MIB), &None));
        drop(grown);
        fcntl_add_seals(&file, SealFlags::GROW).expect("it can be sealed");
        let disk = start(&file, 16 * MIB).expect("it opens");
        assert_eq!(disk.usage().expect("an answer").size, present + 4 * MIB);
        assert_eq!(disk.start_size().size, Size(12 * MIB));
        assert!(disk.start_size().problem.as_ref().is_some_and(|words| words.contains("grown")));
        disk.grow(Size(16 * MIB)).expect_err("it still cannot");
        // A pool is not made smaller than it is described.
        let file = File::from(memfd_create("pool", MemfdFlags::ALLOW_SEALING).expect("memory"));
        ftruncate(&file, 8 * MIB).expect("room");
        fcntl_add_seals(&file, SealFlags::GROW).expect("it can be sealed");
        start(&file, 16 * MIB).expect_err("it cannot be made");
    }
}
