//! Thin pools on their files and block devices: opened, grown, and used by drives.

use super::target::file_problem;
use sluice_control::drives::VolumeView;
use sluice_handover::locks;
use sluice_spec::error::{ApiError, Kind};
use sluice_spec::size::Size;
use sluice_spec::{OnFull, SharedSpec};
use sluice_targets::{FileConfig, FileControl, NoSpace, PoolRefused, PreparedFile};
use sluice_thin::{Device, EXTENT, Error, PoolUse, ThinPool, ThinPort, VolumeControl, VolumeUse};
use std::fs::File;
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
        if locks::are_lent() {
            // Another process may go on with the pool. It has the same size there.
            let pool = ThinPool::start_lent(Device(metadata), spec.size.0, device).map_err(refused)?;
            return Ok(Self { name: spec.name.clone(), pool, device: control });
        }
        ThinPool::examine(&metadata, spec.size.0, false).map_err(refused)?;
        control.grow(spec.size.0).map_err(|error| file_problem(&error))?;
        let pool = ThinPool::start(Device(metadata), spec.size.0, device).map_err(refused)?;
        Ok(Self { name: spec.name.clone(), pool, device: control })
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
    ThinPool::examine(&file, spec.size.0, is_free).map_err(refused)
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
