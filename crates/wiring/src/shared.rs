//! Shared objects of the daemon, and its groups.

use super::thin_pool::{START_LIMIT, ThinDisk, volume_view};
use super::{OneReactor, reactor_of};
use sluice_control::drives::SharedView;
use sluice_functions::{Devices, Groups};
use sluice_handover::locks;
use sluice_memory::machine;
use sluice_spec::error::{ApiError, Kind};
use sluice_spec::size::Size;
use sluice_spec::words::nearest;
use sluice_spec::{SharedKind, SharedSpec};
use sluice_targets::{MemoryPool, PoolPort, PoolRefused};
use std::slice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Pools of memory and of devices, which live as long as the daemon, groups with common limits, and devices that drives share.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pools {
    pools: Arc<[Pool]>,
    pub(super) groups: Groups,
    pub(super) devices: Devices,
}

#[derive(Debug)]
struct Pool {
    /// Description with the present size.
    spec: Mutex<SharedSpec>,
    /// The pool, or the reason for which it does not open. Locked for a moment only.
    of: Mutex<Result<Of, ApiError>>,
    /// Held while a pool is opened again or grown.
    changes: Mutex<()>,
}

#[derive(Clone, Debug)]
enum Of {
    Memory(Arc<MemoryPool>),
    Thin(Arc<ThinDisk>),
}

/// Locks a mutex. A panic cannot poison it, since a panic ends the process.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    fn spec(&self) -> SharedSpec {
        lock(&self.spec).clone()
    }

    fn of(&self) -> Result<Of, ApiError> {
        lock(&self.of).clone()
    }

    fn thin(&self) -> Result<Arc<ThinDisk>, ApiError> {
        match self.of()? {
            Of::Thin(disk) => Ok(disk),
            Of::Memory(_) => Err(other_kind(&self.spec().name, "thin")),
        }
    }

    fn view(&self) -> Result<SharedView, ApiError> {
        let SharedSpec { name, kind, size, reactor, .. } = self.spec();
        let mut view = SharedView { name, kind, reactor, size, ..SharedView::default() };
        match self.of() {
            Ok(Of::Memory(pool)) => {
                let status = pool.status().map_err(|error| {
                    let words = format!("shared object `{}` does not reply: {error}", view.name);
                    ApiError::internal(words)
                })?;
                (view.size, view.free, view.users) = (Size(status.size), Size(status.free), status.users);
            }
            Ok(Of::Thin(disk)) => {
                let usage = disk.usage()?;
                (view.size, view.free, view.users) = (Size(usage.size), Size(usage.free), usage.users);
                view.volumes = usage.volumes.into_iter().map(volume_view).collect();
                let short =
                    disk.start_size().problem.clone().filter(|_| self.spec().size <= disk.start_size().size);
                (view.bad, view.problem) = (Size(usage.bad), usage.failure.or(short));
            }
            Err(problem) => view.problem = Some(problem.in_one_line()),
        }
        Ok(view)
    }
}

impl Pools {
    /// Starts the pools on their home reactors. A thin pool that does not open is noted, and can be opened again. Blocks.
    pub(super) fn start(specs: &[SharedSpec], reactors: &[OneReactor]) -> Result<Self, ApiError> {
        let start = |spec: &SharedSpec| {
            let of = match spec.kind {
                // The first drive opens it, when all drives of the other process are at rest.
                SharedKind::Thin if locks::are_lent() => Err(lent(&spec.name)),
                SharedKind::Thin => start_thin(spec, START_LIMIT),
                SharedKind::MemoryPool => Ok(start_memory(spec, reactors)?),
            };
            if let Err(problem) = &of
                && !locks::are_lent()
            {
                tracing::error!("{}", problem.in_one_line());
            }
            let spec = SharedSpec { size: present_size(spec.size, &of), ..spec.clone() };
            Ok(Pool { spec: Mutex::new(spec), of: Mutex::new(of), changes: Mutex::default() })
        };
        let pools = specs.iter().map(start).collect::<Result<_, ApiError>>()?;
        Ok(Self { pools, ..Self::default() })
    }

    /// Creates the port of a further namespace.
    pub(super) fn connect(&self, name: &str) -> Result<PoolPort, ApiError> {
        let Of::Memory(pool) = self.find(name)?.of()? else { return Err(other_kind(name, "memory-pool")) };
        pool.connect().map_err(|error| {
            let words = format!("shared object `{name}`: {error}");
            match error {
                PoolRefused::TooManyPorts => ApiError::new(Kind::Conflict, words),
                _ => ApiError::internal(words),
            }
        })
    }

    fn find(&self, name: &str) -> Result<&Pool, ApiError> {
        self.pools.iter().find(|pool| lock(&pool.spec).name == name).ok_or_else(|| {
            let problem = ApiError::not_found(format!("there is no shared object `{name}`"));
            let names: Vec<String> = self.pools.iter().map(|pool| pool.spec().name).collect();
            match nearest(name, names.iter().map(String::as_str)) {
                Some(meant) => problem.hint(format!("did you mean `{meant}`?")),
                None => problem
                    .hint("declare it with [[shared]] in the configuration file and start the daemon again"),
            }
        })
    }

    /// Returns an open thin pool.
    pub(super) fn thin(&self, name: &str) -> Result<Arc<ThinDisk>, ApiError> {
        let pool = self.find(name)?;
        match pool.thin() {
            // A drive is tried again by itself while something is in use.
            Err(problem) if problem.kind == Kind::InUse => {
                self.retry(name)?;
                pool.thin()
            }
            found => found,
        }
    }

    /// Opens a thin pool again that did not open. Blocks.
    pub(super) fn retry(&self, name: &str) -> Result<(), ApiError> {
        self.retry_for(name, Duration::ZERO)
    }

    /// Opens a thin pool again, and waits up to `limit` for a device in use. Blocks.
    fn retry_for(&self, name: &str, limit: Duration) -> Result<(), ApiError> {
        let pool = self.find(name)?;
        let _only = lock(&pool.changes);
        if pool.of().is_ok() {
            return Ok(());
        }
        let of = start_thin(&pool.spec(), limit);
        lock(&pool.of).clone_from(&of);
        let mut spec = lock(&pool.spec);
        spec.size = present_size(spec.size, &of);
        of.map(drop)
    }

    /// Brings a pool to rest whose drives are suspended, for another process.
    pub(super) fn settle(&self, name: &str) -> Result<(), ApiError> {
        match self.find(name)?.of() {
            Ok(Of::Thin(disk)) => disk.settle(),
            Ok(Of::Memory(_)) => Err(other_kind(name, "thin")),
            // It has no drives.
            Err(_) => Ok(()),
        }
    }

    /// Opens the thin pools that no drive has opened, after another process has given them up. Blocks.
    pub(super) fn open_rest(&self) {
        for name in self.pools.iter().filter(|pool| pool.of().is_err()).map(|pool| pool.spec().name) {
            if let Err(problem) = self.retry_for(&name, START_LIMIT) {
                tracing::error!("{}", problem.in_one_line());
            }
        }
    }

    /// Returns the size that a thin pool would be grown to. Changes nothing. Blocks.
    pub(super) fn plan_growth(&self, name: &str, size: Option<Size>) -> Result<Size, ApiError> {
        let pool = self.find(name)?;
        let (now, wanted) = (pool.spec().size, pool.thin()?.plan_growth(size)?);
        match wanted < now {
            true => {
                Err(ApiError::conflict(format!("the pool `{name}` of {now} only grows, and not to {wanted}"))
                    .hint("name a larger size; to give space back, move its volumes to a smaller pool"))
            }
            false => Ok(wanted),
        }
    }

    /// Grows a thin pool under running drives. Blocks.
    pub(super) fn grow(&self, name: &str, size: Size) -> Result<(), ApiError> {
        let pool = self.find(name)?;
        let _only = lock(&pool.changes);
        pool.thin()?.grow(size)?;
        let mut spec = lock(&pool.spec);
        spec.size = spec.size.max(size);
        Ok(())
    }

    /// Returns the pools with their use. Blocks until their reactors have replied.
    pub(super) fn views(&self) -> Result<Vec<SharedView>, ApiError> {
        self.pools.iter().map(Pool::view).collect()
    }
}

fn start_memory(spec: &SharedSpec, reactors: &[OneReactor]) -> Result<Of, ApiError> {
    check_room(slice::from_ref(spec), machine::available_memory())?;
    let pool = MemoryPool::start(&reactor_of(reactors, spec.reactor)?, spec.size.0);
    let pool = pool.map_err(|error| {
        let words = format!("the pool `{}` of {} cannot start: {error}", spec.name, spec.size);
        ApiError::internal(words).hint("make the pool smaller: all of its memory is taken at the start")
    })?;
    Ok(Of::Memory(Arc::new(pool)))
}

fn start_thin(spec: &SharedSpec, limit: Duration) -> Result<Of, ApiError> {
    ThinDisk::start(spec, limit).map(|disk| Of::Thin(Arc::new(disk)))
}

/// Returns the bytes of a pool's device: a growth may have been noted without being possible.
fn present_size(described: Size, of: &Result<Of, ApiError>) -> Size {
    match of {
        Ok(Of::Thin(disk)) => disk.start_size().size,
        _ => described,
    }
}

fn lent(name: &str) -> ApiError {
    ApiError::new(Kind::InUse, format!("the pool `{name}` is still with another process of this daemon"))
        .hint("try again in a moment")
}

fn other_kind(name: &str, kind: &str) -> ApiError {
    ApiError::invalid(format!("shared object `{name}` is of another type, and not \"{kind}\""))
        .hint("`sluice shared list` shows the types")
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
