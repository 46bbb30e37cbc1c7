//! A pool of memory that drives on several reactors share, extent by extent.
//!
//! The pool is a shared object: its home reactor has the owners of the extents. The map of a drive belongs to the
//! drive's [target](PooledMemory). A drive takes an extent when a write needs one, and gives the extent back when
//! all of it is deallocated, or with the drive.

mod extents;
mod target;
#[cfg(test)]
mod tests;

pub use target::{PoolPort, PooledMemory};

use extents::Extents;
use sluice_memory::Arena;
use sluice_reactor::ReactorHandle;
pub use sluice_shared::Refused as PoolRefused;
use sluice_shared::SharedObject;
use std::io;
use std::sync::Arc;

/// Bytes of an extent.
pub const EXTENT: u64 = 64 << 10;

/// Bytes of the smallest page of the machine.
const PAGE: u64 = 4096;

/// A pool of memory, for control threads.
#[derive(Debug)]
pub struct MemoryPool {
    object: SharedObject<Extents>,
    arena: Arc<Arena>,
}

/// Counters of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolStatus {
    /// Bytes of the pool.
    pub size: u64,
    /// Bytes that no drive has, neither in use nor as credit.
    pub free: u64,
    /// Namespaces and layers that use the pool.
    pub users: usize,
}

impl MemoryPool {
    /// Creates a pool of `size` bytes, rounded down to whole extents, on its home reactor. All of its memory is taken
    /// from the machine at once, so that no write faults a page in. Blocks.
    ///
    /// # Errors
    /// The machine has too little memory, or the reactor has ended.
    pub fn start(reactor: &ReactorHandle, size: u64) -> io::Result<Self> {
        let count = u32::try_from(size / EXTENT).map_err(|_| io::ErrorKind::InvalidInput)?;
        let length = u64::from(count) * EXTENT;
        let arena = Arena::new(usize::try_from(length).map_err(|_| io::ErrorKind::OutOfMemory)?)?;
        for page in (0..length).step_by(PAGE as usize) {
            arena.write(page, &[0]).map_err(|_| io::ErrorKind::InvalidInput)?;
        }
        let object = SharedObject::start(reactor, Extents::new(count))?;
        Ok(Self { object, arena: Arc::new(arena) })
    }

    /// Creates the port of a further user.
    ///
    /// # Errors
    /// The pool is removed, has too many users, or there is no descriptor left.
    pub fn connect(&self) -> Result<PoolPort, PoolRefused> {
        Ok(PoolPort { port: self.object.connect()?, arena: Arc::clone(&self.arena) })
    }

    /// Returns the pool's counters. Blocks.
    ///
    /// # Errors
    /// The home reactor does not answer.
    pub fn status(&self) -> io::Result<PoolStatus> {
        let free = self.object.read(Extents::free).map_err(io::Error::other)? as u64 * EXTENT;
        Ok(PoolStatus { size: self.arena.len() as u64, free, users: self.object.ports() })
    }

    /// Removes the pool. Blocks.
    ///
    /// # Errors
    /// The pool is in use, or is removed already.
    pub fn remove(&self) -> Result<(), PoolRefused> {
        self.object.remove()
    }
}
