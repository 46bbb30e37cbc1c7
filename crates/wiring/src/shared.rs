//! Shared objects of the daemon, and its groups.

use super::{OneReactor, reactor_of};
use sluice_control::drives::SharedView;
use sluice_functions::{Devices, Groups};
use sluice_memory::machine;
use sluice_spec::error::{ApiError, Kind};
use sluice_spec::size::Size;
use sluice_spec::{SharedKind, SharedSpec};
use sluice_targets::{MemoryPool, PoolPort, PoolRefused};
use std::slice;
use std::sync::Arc;

/// Pools of memory, which live as long as the daemon, groups with common limits, and devices that drives share.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pools {
    pools: Arc<[Pool]>,
    pub(super) groups: Groups,
    pub(super) devices: Devices,
}

#[derive(Debug)]
struct Pool {
    spec: SharedSpec,
    pool: MemoryPool,
}

impl Pools {
    /// Starts the pools on their home reactors. Blocks.
    pub(super) fn start(specs: &[SharedSpec], reactors: &[OneReactor]) -> Result<Self, ApiError> {
        let start = |spec: &SharedSpec| {
            let SharedKind::MemoryPool = spec.kind;
            check_room(slice::from_ref(spec), machine::available_memory())?;
            let pool = MemoryPool::start(&reactor_of(reactors, spec.reactor)?, spec.size.0);
            let pool = pool.map_err(|error| {
                let words = format!("the pool `{}` of {} cannot start: {error}", spec.name, spec.size);
                ApiError::internal(words)
                    .hint("make the pool smaller: all of its memory is taken at the start")
            })?;
            Ok(Pool { spec: spec.clone(), pool })
        };
        let pools = specs.iter().map(start).collect::<Result<_, ApiError>>()?;
        Ok(Self { pools, ..Self::default() })
    }

    /// Creates the port of a further namespace.
    pub(super) fn connect(&self, name: &str) -> Result<PoolPort, ApiError> {
        let found = self.pools.iter().find(|pool| pool.spec.name == name).ok_or_else(|| {
            ApiError::not_found(format!("there is no shared object `{name}`"))
                .hint("declare it with [[shared]] in the configuration file and start the daemon again")
        })?;
        found.pool.connect().map_err(|error| {
            let words = format!("shared object `{name}`: {error}");
            match error {
                PoolRefused::TooManyPorts => ApiError::new(Kind::Conflict, words),
                _ => ApiError::internal(words),
            }
        })
    }

    /// Returns the pools with their use. Blocks until their reactors have replied.
    pub(super) fn views(&self) -> Result<Vec<SharedView>, ApiError> {
        let view = |Pool { spec, pool }: &Pool| {
            let status = pool.status().map_err(|error| {
                ApiError::internal(format!("shared object `{}` does not reply: {error}", spec.name))
            })?;
            Ok(SharedView {
                name: spec.name.clone(),
                kind: spec.kind,
                reactor: spec.reactor,
                size: Size(status.size),
                free: Size(status.free),
                users: status.users,
            })
        };
        self.pools.iter().map(view).collect()
    }
}

/// Checks that pools fit the memory of the machine: the kernel would end the daemon when it writes to their pages.
/// Memory of an unknown size has room.
pub(super) fn check_room(specs: &[SharedSpec], memory: Option<u64>) -> Result<(), ApiError> {
    let mut left = memory.unwrap_or(u64::MAX);
    for SharedSpec { name, size, .. } in specs {
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
        SharedSpec { name: name.to_owned(), kind: SharedKind::MemoryPool, size: Size(size), reactor: 0 }
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
