//! Shared objects of the daemon, and its groups.

use super::target::file_problem;
use super::{OneReactor, reactor_of};
use sluice_control::drives::{SharedView, VolumeView};
use sluice_functions::{Devices, Groups};
use sluice_memory::machine;
use sluice_spec::error::{ApiError, Kind};
use sluice_spec::size::Size;
use sluice_spec::{OnFull, SharedKind, SharedSpec};
use sluice_targets::{FileConfig, FileControl, MemoryPool, NoSpace, PoolPort, PoolRefused, PreparedFile};
use sluice_thin::{Device, Error, ThinPool, ThinPort, VolumeControl, VolumeUse};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{slice, thread};

/// Pools of memory and of devices, which live as long as the daemon, groups with common limits, and devices that drives share.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pools {
    pools: Arc<[Pool]>,
    pub(super) groups: Groups,
    pub(super) devices: Devices,
}

#[derive(Debug)]
struct Pool {
    spec: SharedSpec,
    of: Of,
}

#[derive(Debug)]
enum Of {
    Memory(MemoryPool),
    Device(ThinPool, FileControl),
}

/// Time that a device in use is waited for, and the interval of the attempts.
const IN_USE_LIMIT: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Bytes of a block of a pool's device, the smallest of all namespaces.
const BLOCK_SIZE: u32 = 512;

impl Pools {
    /// Starts the pools on their home reactors. Blocks.
    pub(super) fn start(specs: &[SharedSpec], reactors: &[OneReactor]) -> Result<Self, ApiError> {
        let start = |spec: &SharedSpec| {
            if spec.kind == SharedKind::Thin {
                let of = start_thin(spec)?;
                return Ok(Pool { spec: spec.clone(), of });
            }
            check_room(slice::from_ref(spec), machine::available_memory())?;
            let pool = MemoryPool::start(&reactor_of(reactors, spec.reactor)?, spec.size.0);
            let pool = pool.map_err(|error| {
                let words = format!("the pool `{}` of {} cannot start: {error}", spec.name, spec.size);
                ApiError::internal(words)
                    .hint("make the pool smaller: all of its memory is taken at the start")
            })?;
            Ok(Pool { spec: spec.clone(), of: Of::Memory(pool) })
        };
        let pools = specs.iter().map(start).collect::<Result<_, ApiError>>()?;
        Ok(Self { pools, ..Self::default() })
    }

    /// Creates the port of a further namespace.
    pub(super) fn connect(&self, name: &str) -> Result<PoolPort, ApiError> {
        let Of::Memory(pool) = &self.find(name)?.of else { return Err(other_kind(name, "memory-pool")) };
        pool.connect().map_err(|error| {
            let words = format!("shared object `{name}`: {error}");
            match error {
                PoolRefused::TooManyPorts => ApiError::new(Kind::Conflict, words),
                _ => ApiError::internal(words),
            }
        })
    }

    fn find(&self, name: &str) -> Result<&Pool, ApiError> {
        self.pools.iter().find(|pool| pool.spec.name == name).ok_or_else(|| {
            ApiError::not_found(format!("there is no shared object `{name}`"))
                .hint("declare it with [[shared]] in the configuration file and start the daemon again")
        })
    }

    /// Opens a volume of a thin pool, with a target on the pool's device. Blocks.
    pub(super) fn open_volume(
        &self,
        pool: &str,
        volume: &str,
        size: Size,
        on_full: OnFull,
        block_size: u32,
    ) -> Result<(PreparedFile, ThinPort, VolumeControl), ApiError> {
        let Of::Device(thin, device) = &self.find(pool)?.of else { return Err(other_kind(pool, "thin")) };
        let device = device.open_part(block_size).map_err(|error| file_problem(&error))?;
        let on_full = match on_full {
            OnFull::Fail => sluice_thin::OnFull::Fail,
            OnFull::Park => sluice_thin::OnFull::Park,
        };
        let opened = thin.open(volume, size.0, on_full);
        let (port, control) = opened.map_err(|error| volume_problem(pool, &error))?;
        Ok((device, port, control))
    }

    /// Returns the pools with their use. Blocks until their reactors have replied.
    pub(super) fn views(&self) -> Result<Vec<SharedView>, ApiError> {
        let view = |Pool { spec, of }: &Pool| {
            let silent = |error: &dyn std::fmt::Display| {
                ApiError::internal(format!("shared object `{}` does not reply: {error}", spec.name))
            };
            let (size, free, users, volumes) = match of {
                Of::Memory(pool) => {
                    let status = pool.status().map_err(|error| silent(&error))?;
                    (status.size, status.free, status.users, Vec::new())
                }
                Of::Device(pool, _) => {
                    let usage = pool.usage(false).map_err(|error| silent(&error))?;
                    let volumes = usage.volumes.into_iter().map(volume_view).collect();
                    (usage.size, usage.free, usage.users, volumes)
                }
            };
            Ok(SharedView {
                name: spec.name.clone(),
                kind: spec.kind,
                reactor: spec.reactor,
                size: Size(size),
                free: Size(free),
                users,
                volumes,
            })
        };
        self.pools.iter().map(view).collect()
    }
}

/// Opens the device of a thin pool, and the pool on it. Blocks.
fn start_thin(spec: &SharedSpec) -> Result<Of, ApiError> {
    let path: PathBuf = spec.path.clone().unwrap_or_default();
    let config = FileConfig {
        path: path.clone(),
        size: Some(spec.size.0),
        no_space: NoSpace::Fail,
        block_size: BLOCK_SIZE,
        read_only: false,
        // The pool is recognized by its superblock.
        raw: true,
    };
    let device = open_free(&config)?;
    let control = device.control();
    let metadata = control.open_plain().map_err(|error| file_problem(&error))?;
    let size = device.size();
    let pool = ThinPool::start(Device(metadata), size, device).map_err(|error| {
        let words = format!("the pool `{}` on {} does not open: {error}", spec.name, path.display());
        ApiError::internal(words)
    })?;
    Ok(Of::Device(pool, control))
}

/// Opens the device of a pool. The kernel keeps it locked while it executes I/O of a daemon that was killed, so a device
/// in use is waited for. Blocks.
fn open_free(config: &FileConfig) -> Result<PreparedFile, ApiError> {
    let began = Instant::now();
    loop {
        match PreparedFile::open(config).map_err(|error| file_problem(&error)) {
            Err(problem) if problem.kind == Kind::InUse && began.elapsed() < IN_USE_LIMIT => {
                thread::sleep(LOOK_EVERY);
            }
            opened => return opened,
        }
    }
}

fn volume_view(volume: VolumeUse) -> VolumeView {
    let VolumeUse { name, size, allocated, is_open, .. } = volume;
    VolumeView { name, size: Size(size), allocated: Size(allocated), in_use: is_open }
}

fn other_kind(name: &str, kind: &str) -> ApiError {
    ApiError::invalid(format!("shared object `{name}` is of another type, and not \"{kind}\""))
}

/// Converts an error of a pool, whose message includes the volume.
pub(super) fn volume_problem(pool: &str, error: &Error) -> ApiError {
    let words = format!("shared object `{pool}`: {error}");
    match error {
        Error::InUse(_) => ApiError::new(Kind::InUse, words),
        Error::NoVolume(_) => ApiError::not_found(words),
        Error::Impossible(_) => ApiError::invalid(words),
        Error::Port(PoolRefused::TooManyPorts) => ApiError::new(Kind::Conflict, words),
        _ => ApiError::internal(words),
    }
}

/// Checks that pools fit the memory of the machine: the kernel would end the daemon when it writes to their pages.
/// Memory of an unknown size has room.
pub(super) fn check_room(specs: &[SharedSpec], memory: Option<u64>) -> Result<(), ApiError> {
    let mut left = memory.unwrap_or(u64::MAX);
    for SharedSpec { name, size, .. } in specs.iter().filter(|spec| spec.kind == SharedKind::MemoryPool) {
        left = left.checked_sub(size.0).ok_or_else(|| {
            let left = left >> 20;
            ApiError::invalid(format!(
                "the pool `{name}` of {size} does not fit the memory of this machine, which has room for {left} MiB"
            ))
            .hint("make the pool smaller: all of its memory is taken at the start")
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(name: &str, size: u64) -> SharedSpec {
        let (kind, path) = (SharedKind::MemoryPool, None);
        SharedSpec { name: name.to_owned(), kind, size: Size(size), path, reactor: 0 }
    }

    #[test]
    fn pools_that_do_not_fit_the_machine_together_are_refused() {
        let pools = [pool("first", 3 << 30), pool("second", 2 << 30)];
        assert!(check_room(&pools, Some(5 << 30)).is_ok());
        assert!(check_room(&pools, None).is_ok());
        let refused = check_room(&pools, Some((5 << 30) - 1)).expect_err("a byte is missing");
        assert_eq!(
            refused.error,
            "the pool `second` of 2GiB does not fit the memory of this machine, which has room for 2047 MiB"
        );
    }
}
