//! The table of registered files, and the signals on their way to eventfds among them.

use std::any::Any;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::rc::Rc;

use io_uring::squeue::Entry;
use io_uring::{opcode, types};
use rustix::event::PollFlags;
use rustix::process::{Resource, getrlimit};

use super::Io;

/// A file registered with a reactor's ring. Dropping it unregisters and closes the file when the
/// operations that were started on it are done.
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
        // The kernel's table has the file for itself; our descriptor may be closed now.
        self.io.retire(self.index);
    }
}

impl std::fmt::Debug for FileSlot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileSlot").field("index", &self.index).field("file", &self.file).finish()
    }
}

/// A write of 1 to an eventfd.
pub(super) fn signal_entry(index: u32) -> Entry {
    static ONE: u64 = 1;
    let bytes = std::ptr::from_ref(&ONE).cast::<u8>();
    opcode::Write::new(types::Fixed(index), bytes, size_of::<u64>() as u32).build()
}

/// A multishot poll for something to read.
pub(super) fn watch_entry(index: u32) -> Entry {
    let events = u32::from(PollFlags::IN.bits());
    opcode::PollAdd::new(types::Fixed(index), events).multi(true).build()
}

/// A ring, as far as a table of files concerns it.
pub(super) trait Registers {
    /// Makes room for so many files.
    fn register_sparse(&self, count: u32) -> io::Result<()>;
    /// Puts a file in its place, or none (-1).
    fn register_at(&self, index: u32, file: RawFd) -> io::Result<()>;
}

#[derive(Debug, Default)]
struct Use {
    /// Operations from the call that starts them to their completion. The kernel looks a file up when
    /// it carries an operation out, which for some is after they were submitted.
    in_flight: u32,
    /// The owner has let go.
    retired: bool,
    /// A signal is on its way; `again` if another was asked for meanwhile.
    signal: bool,
    again: bool,
    /// A poll was started that ends only when it is cancelled.
    watched: bool,
    /// Memory that operations on the file may still name.
    kept: Option<Rc<dyn Any>>,
}

pub(super) struct FileTable {
    capacity: u32,
    /// Indices below `uses.len()` that are free.
    free: Vec<u32>,
    /// By index; as long as the highest index used so far.
    uses: Vec<Use>,
}

impl FileTable {
    pub(super) fn register(ring: &impl Registers, limit: u32) -> io::Result<Self> {
        let open_files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let capacity = limit.min(u32::try_from(open_files).unwrap_or(u32::MAX)).max(1);
        ring.register_sparse(capacity)?;
        Ok(Self { capacity, free: Vec::new(), uses: Vec::new() })
    }

    pub(super) fn insert(&mut self, ring: &impl Registers, file: &OwnedFd) -> io::Result<u32> {
        let index = self.reserve()?;
        if let Err(error) = ring.register_at(index, file.as_raw_fd()) {
            self.free.push(index);
            return Err(error);
        }
        Ok(index)
    }

    fn reserve(&mut self) -> io::Result<u32> {
        if let Some(index) = self.free.pop() {
            return Ok(index);
        }
        let index = self.uses.len() as u32;
        if index >= self.capacity {
            return Err(io::Error::from_raw_os_error(libc::ENFILE));
        }
        self.uses.push(Use::default());
        Ok(index)
    }

    fn of(&mut self, index: u32) -> &mut Use {
        &mut self.uses[index as usize]
    }

    /// An operation on the file starts.
    pub(super) fn begin(&mut self, index: u32) {
        self.of(index).in_flight += 1;
    }

    /// An operation on the file is over.
    pub(super) fn end(&mut self, ring: &impl Registers, index: u32) {
        self.of(index).in_flight -= 1;
        self.unregister_if_done(ring, index);
    }

    /// The owner has let go. True if a signal or a poll is on its way, which might never end by itself.
    pub(super) fn retire(&mut self, ring: &impl Registers, index: u32) -> bool {
        self.of(index).retired = true;
        self.unregister_if_done(ring, index);
        self.of(index).signal || self.of(index).watched
    }

    pub(super) fn begin_watch(&mut self, index: u32) {
        self.of(index).watched = true;
    }

    pub(super) fn keep(&mut self, index: u32, memory: Rc<dyn Any>) {
        self.of(index).kept = Some(memory);
    }

    pub(super) fn is_retired(&mut self, index: u32) -> bool {
        self.of(index).retired
    }

    fn unregister_if_done(&mut self, ring: &impl Registers, index: u32) {
        if self.of(index).in_flight > 0 || !self.of(index).retired {
            return;
        }
        if let Err(error) = ring.register_at(index, -1) {
            // The kernel lacks memory; the next file with this index replaces this one.
            tracing::warn!(index, %error, "a file could not be unregistered");
        }
        *self.of(index) = Use::default();
        self.free.push(index);
    }

    /// True if a write must be pushed; false if the one under way will be followed by another.
    pub(super) fn begin_signal(&mut self, index: u32) -> bool {
        let state = self.of(index);
        state.again = state.signal;
        !std::mem::replace(&mut state.signal, true)
    }

    /// A write is done; true if another must follow it, for those who asked meanwhile.
    pub(super) fn end_signal(&mut self, index: u32) -> bool {
        let state = self.of(index);
        state.signal = std::mem::take(&mut state.again) && !state.retired;
        state.signal
    }
}
