//! The table of registered files, and the signals on their way to eventfds among them.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use io_uring::squeue::Entry;
use io_uring::{opcode, types};
use rustix::process::{Resource, getrlimit};

use super::Io;
use super::ring::Ring;
use crate::task::TaskId;

/// A file registered with a reactor's ring. Dropping it unregisters and closes the file; operations
/// that were pushed before still use it to their end.
pub struct FileSlot {
    io: Io,
    index: u32,
    file: OwnedFd,
}

impl FileSlot {
    pub(super) fn new(io: Io, index: u32, file: OwnedFd) -> Self {
        Self { io, index, file }
    }

    pub(super) fn index(&self) -> u32 {
        self.index
    }
}

impl AsFd for FileSlot {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for FileSlot {
    fn drop(&mut self) {
        // The table holds the file itself until it is swept.
        self.io.retire(self.index);
    }
}

impl std::fmt::Debug for FileSlot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileSlot").field("index", &self.index).field("file", &self.file).finish()
    }
}

/// A write of 1 to an eventfd.
pub(super) fn signal_entry(slot: u32) -> Entry {
    static ONE: u64 = 1;
    let bytes = std::ptr::from_ref(&ONE).cast::<u8>();
    opcode::Write::new(types::Fixed(slot), bytes, size_of::<u64>() as u32).build()
}

/// What to do when a signal has gone out.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AfterSignal {
    /// Others were asked for meanwhile: send one for all of them.
    Again,
    /// Tell this task.
    Done { task: TaskId, token: u64 },
    /// The file is gone, and so is who asked.
    Retired,
}

#[derive(Clone, Copy)]
struct Signal {
    task: TaskId,
    token: u64,
    in_flight: bool,
    again: bool,
    retired: bool,
}

impl Signal {
    const IDLE: Self = Self { task: TaskId(0), token: 0, in_flight: false, again: false, retired: false };
}

pub(super) struct FileTable {
    capacity: u32,
    /// Indices below `signals.len()` that are free.
    free: Vec<u32>,
    /// By index; as long as the highest index used so far.
    signals: Vec<Signal>,
    /// Dropped by their owner, still named by entries that were not submitted.
    retired: Vec<u32>,
}

impl FileTable {
    pub(super) fn register(ring: &Ring, limit: u32) -> io::Result<Self> {
        let open_files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let capacity = limit.min(u32::try_from(open_files).unwrap_or(u32::MAX)).max(1);
        ring.submitter().register_files_sparse(capacity)?;
        Ok(Self { capacity, free: Vec::new(), signals: Vec::new(), retired: Vec::new() })
    }

    pub(super) fn insert(&mut self, ring: &Ring, file: &OwnedFd) -> io::Result<u32> {
        let index = self.reserve()?;
        let registered = ring.submitter().register_files_update(index, &[file.as_raw_fd()]);
        if let Err(error) = registered {
            self.free.push(index);
            return Err(error);
        }
        Ok(index)
    }

    fn reserve(&mut self) -> io::Result<u32> {
        if let Some(index) = self.free.pop() {
            return Ok(index);
        }
        let index = self.signals.len() as u32;
        if index >= self.capacity {
            return Err(io::Error::from_raw_os_error(libc::ENFILE));
        }
        self.signals.push(Signal::IDLE);
        Ok(index)
    }

    /// The owner has let go. True if a signal is still on its way and must be cancelled.
    pub(super) fn retire(&mut self, index: u32) -> bool {
        self.retired.push(index);
        let signal = &mut self.signals[index as usize];
        signal.retired = signal.in_flight;
        signal.in_flight
    }

    /// Unregisters what was retired. Call when no entry waits for submission; the kernel itself keeps
    /// the files of operations that run.
    pub(super) fn sweep(&mut self, ring: &Ring) {
        while let Some(index) = self.retired.pop() {
            if let Err(error) = ring.submitter().register_files_update(index, &[-1]) {
                // The kernel lacks memory; the next file in this slot replaces the old one.
                tracing::warn!(index, %error, "a file could not be unregistered");
            }
            if !self.signals[index as usize].retired {
                self.free.push(index);
            }
        }
    }

    /// True if a write must be pushed; false if one under way will be followed by another.
    pub(super) fn begin_signal(&mut self, index: u32, task: TaskId, token: u64) -> bool {
        let signal = &mut self.signals[index as usize];
        signal.task = task;
        signal.token = token;
        signal.again = signal.in_flight;
        !std::mem::replace(&mut signal.in_flight, true)
    }

    pub(super) fn end_signal(&mut self, index: u32) -> AfterSignal {
        let signal = &mut self.signals[index as usize];
        if signal.retired {
            *signal = Signal::IDLE;
            // Unless the sweep is still to come, which then frees the index.
            if !self.retired.contains(&index) {
                self.free.push(index);
            }
            return AfterSignal::Retired;
        }
        if std::mem::take(&mut signal.again) {
            return AfterSignal::Again;
        }
        signal.in_flight = false;
        AfterSignal::Done { task: signal.task, token: signal.token }
    }
}
