//! io_uring, as tasks use it.
//!
//! Everything is asynchronous: a method here only queues the operation. All operations of a turn are
//! submitted at its end with one system call, and [`Task::event`](crate::Task::event) delivers each result.

mod arena;
mod commands;
mod core;
mod eager;
mod files;
mod moving;
mod operations;
mod ring;
mod setup;

use std::any::Any;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use io_uring::{opcode, types};
use rustix::event::PollFlags;
use rustix::fs::FallocateFlags;
use sluice_memory::Segment;

pub(crate) use self::core::Completion;
use self::core::{Core, iovec};
use crate::config::ReactorConfig;
use crate::counters::CounterCells;
use crate::task::TaskId;
pub use commands::{CommandFile, try_nvme};
pub use files::{FileSlot, Results};
pub(crate) use moving::TaskIoState;
use operations::{Cancelled, Operation, OperationKind};

/// Segments one read or write takes at most, the kernel's UIO_MAXIOV.
pub const MAX_SEGMENTS: usize = 1024;

/// Result of a receive that ended because its task moved: nothing was received, and the task may start it
/// again.
pub const INTERRUPTED: i32 = -libc::EINTR;

/// Guarantees of a write beyond its completion.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WriteFlags {
    /// The data is on stable storage when the write completes (RWF_DSYNC), as FUA requires.
    pub dsync: bool,
}

/// The io_uring of the reactor that a task is on. Cheap to clone; used only where the task is polled.
///
/// # Memory and operations
///
/// [`read`](Io::read) and [`write`](Io::write) give the kernel the memory behind the segments until the
/// operation's [`event`](crate::Task::event). That the memory stays valid that long is the invariant of
/// [`Segment`]: the command that holds the segment is not finished before. The list itself is copied.
///
/// # Moving
///
/// When the task moves, its files move too, and operations in flight are cancelled or waited for: see the
/// results of [`poll`](Io::poll) and [`receive`](Io::receive).
#[derive(Clone, Debug)]
pub struct Io {
    /// Task whose files are registered.
    task: TaskId,
}

impl Io {
    /// Opens the ring of this thread. `notifier` wakes the thread from sleep.
    pub(crate) fn open(config: &ReactorConfig, notifier: BorrowedFd<'_>) -> io::Result<Self> {
        let core = Core::open(config, notifier.try_clone_to_owned()?)?;
        assert!(Core::put(Some(core)).is_none(), "a thread is one reactor");
        Ok(Self { task: TaskId::OWN })
    }

    /// Closes the ring of this thread; with operations in flight the ring is leaked.
    pub(crate) fn close(leak: bool) {
        let core = Core::put(None);
        if leak {
            std::mem::forget(core);
        }
    }

    /// Returns the same ring for a task.
    pub(crate) fn of(&self, task: TaskId) -> Self {
        Self { task }
    }

    /// Registers a file with the ring, which saves the kernel a look-up per operation. The slot owns the
    /// file; dropping the slot unregisters and closes the file when its operations are done.
    ///
    /// # Errors
    /// ENFILE when `max_files` are registered, otherwise the kernel's error.
    pub fn register_file(&self, file: OwnedFd) -> io::Result<FileSlot> {
        Core::of_thread(|core| core.register(file, self.task))
    }

    /// Keeps `memory` until the file's operations are done, even when its owner is dropped before.
    pub fn keep(&self, file: &FileSlot, memory: Arc<dyn Any + Send + Sync>) {
        Core::of_thread(|core| core.keep(file, memory));
    }

    /// Passes the result of each operation on the file to `to` as well, also when its owner is dropped before. `to` is
    /// dropped when no operation can end any more.
    pub fn report(&self, file: &FileSlot, to: Arc<dyn Results>) {
        Core::of_thread(|core| core.report(file, to));
    }

    /// Waits for `events` on `fd`, again and again until [`cancel`](Io::cancel)led: a multishot poll.
    ///
    /// The result is the set of events (`PollFlags`). The poll is edge-triggered: read until EAGAIN. The poll
    /// is submitted at once, so the descriptor may be closed afterwards; the poll keeps the file open.
    pub fn poll(&self, fd: BorrowedFd<'_>, events: PollFlags, task: TaskId, token: u64) {
        let entry = opcode::PollAdd::new(types::Fd(fd.as_raw_fd()), u32::from(events.bits())).multi(true);
        Core::of_thread(|core| {
            core.start(
                entry.build(),
                Operation::new(task, token, OperationKind::Poll(u32::from(events.bits()))),
            );
            core.submit();
        });
    }

    /// Waits for readability of a registered file, again and again until the slot is dropped. Meant for an
    /// eventfd that the peer writes: each write is an event, and the eventfd need not be read. A reader uses
    /// non-blocking reads, because the peer could make others block. Unlike a [`poll`](Io::poll) a watch is
    /// started again if the kernel ends it; a negative result means that it cannot be.
    pub fn watch(&self, file: &FileSlot, task: TaskId, token: u64) {
        Core::of_thread(|core| core.watch(core.here(&file.0), task, token));
    }

    /// Cancels the operation that runs under `token`. The operation's event is delivered nevertheless:
    /// -ECANCELED, or its result if it was quicker. The event of a poll neither wakes a sleeping task nor
    /// counts as work.
    pub fn cancel(&self, task: TaskId, token: u64) {
        let fits = |operation: &Operation| (operation.task, operation.token) == (task, token);
        Core::of_thread(|core| core.cancel(Cancelled::ByTask, fits));
    }

    /// Adds 1 to an eventfd.
    ///
    /// The write goes through the ring because the peer chooses the eventfd's flags: one that is full and
    /// blocking would hold a direct write for ever. Here it holds one worker of the kernel, and no more:
    /// requests while a signal is in flight become one further signal. The event is delivered when no signal
    /// is in flight any more; it neither wakes a sleeping task nor counts as work.
    pub fn signal(&self, eventfd: &FileSlot, task: TaskId, token: u64) {
        Core::of_thread(|core| core.signal(core.here(&eventfd.0), task, token));
    }

    /// Reads into `segments` (the first [`MAX_SEGMENTS`] of them) from byte `offset`. The result is the
    /// number of bytes, which can be less than requested.
    pub fn read(&self, file: &FileSlot, segments: &[Segment], offset: u64, task: TaskId, token: u64) {
        Core::of_thread(|core| {
            let index = core.here(&file.0);
            let fd = types::Fixed(index);
            let entry = match segments {
                [one] => opcode::Read::new(fd, one.pointer(), one.len()).offset(offset).build(),
                many => {
                    let (list, count) = core.iovecs(many);
                    opcode::Readv::new(fd, list, count).offset(offset).build()
                }
            };
            core.start_on(index, entry, task, token, OperationKind::File(index));
        });
    }

    /// Writes from `segments` (the first [`MAX_SEGMENTS`] of them) to byte `offset`. The result is the number
    /// of bytes, which can be less than requested.
    pub fn write(
        &self,
        file: &FileSlot,
        segments: &[Segment],
        offset: u64,
        flags: WriteFlags,
        task: TaskId,
        token: u64,
    ) {
        let rw_flags = if flags.dsync { libc::RWF_DSYNC } else { 0 };
        Core::of_thread(|core| {
            let index = core.here(&file.0);
            let fd = types::Fixed(index);
            let entry = match segments {
                [one] => {
                    let write = opcode::Write::new(fd, one.pointer(), one.len());
                    write.offset(offset).rw_flags(rw_flags).build()
                }
                many => {
                    let (list, count) = core.iovecs(many);
                    opcode::Writev::new(fd, list, count).offset(offset).rw_flags(rw_flags).build()
                }
            };
            core.start_on(index, entry, task, token, OperationKind::File(index));
        });
    }

    /// Receives from a connected stream socket, which must be a blocking one, into `segments` (the first
    /// [`MAX_SEGMENTS`] of them), as soon as there is data. The result is the number of bytes; 0 is the end
    /// of the stream, and [`INTERRUPTED`] means that the task moved.
    ///
    /// With `soon`, data is expected within microseconds, and the reactor tries to receive while it polls.
    /// For a large transfer that arrives in small parts this makes many receives out of few.
    pub fn receive(&self, socket: &FileSlot, segments: &[Segment], soon: bool, task: TaskId, token: u64) {
        Core::of_thread(|core| {
            if soon && core.receive_eagerly(&socket.0, segments, task, token) {
                return;
            }
            let index = core.here(&socket.0);
            let entry = core.receive_entry(index, segments.iter().take(MAX_SEGMENTS).map(iovec));
            core.start_on(index, entry, task, token, OperationKind::Receive(index));
        });
    }

    /// Sends to a connected stream socket, which must be a blocking one, as soon as there is room. The result
    /// is the number of bytes, which can be less than requested: zero if the task moved.
    pub fn send(&self, socket: &FileSlot, segments: &[Segment], task: TaskId, token: u64) {
        Core::of_thread(|core| {
            let index = core.here(&socket.0);
            let (list, count) = core.iovecs(segments);
            let entry = opcode::Writev::new(types::Fixed(index), list, count).build();
            core.start_on(index, entry, task, token, OperationKind::Send(index));
        });
    }

    /// Writes the file's data to stable storage. The result is 0.
    pub fn fdatasync(&self, file: &FileSlot, task: TaskId, token: u64) {
        Core::of_thread(|core| {
            let index = core.here(&file.0);
            let entry = opcode::Fsync::new(types::Fixed(index)).flags(types::FsyncFlags::DATASYNC);
            core.start_on(index, entry.build(), task, token, OperationKind::File(index));
        });
    }

    /// Calls fallocate(2) on `len` bytes from `offset`. The result is 0.
    pub fn fallocate(
        &self,
        file: &FileSlot,
        mode: FallocateFlags,
        offset: u64,
        len: u64,
        task: TaskId,
        token: u64,
    ) {
        Core::of_thread(|core| {
            let index = core.here(&file.0);
            let entry = opcode::Fallocate::new(types::Fixed(index), len)
                .offset(offset)
                .mode(mode.bits().cast_signed());
            core.start_on(index, entry.build(), task, token, OperationKind::File(index));
        });
    }

    /// Has the kernel allocate the pages of this memory on a kernel thread, as if all of it were written; its
    /// contents stay. The result is 0. Memory that is unmapped meanwhile causes an error and nothing else.
    pub fn populate(&self, address: *const u8, length: usize, task: TaskId, token: u64) {
        let length = libc::off_t::try_from(length).unwrap_or(libc::off_t::MAX);
        let entry = opcode::Madvise::new(address.cast(), length, libc::MADV_POPULATE_WRITE).build();
        Core::of_thread(|core| core.start(entry, Operation::new(task, token, OperationKind::Memory)));
    }

    /// Returns a task to polling with the reactor's next turn.
    pub fn wake(&self, task: TaskId) {
        Core::of_thread(|core| core.wakes.push(task));
    }

    /// Returns the number of a task's operations that have not completed, polls and signals included.
    #[must_use]
    pub fn in_flight(&self, task: TaskId) -> u32 {
        Core::of_thread(|core| core.operations.in_flight(task))
    }

    /// Cancels the operations of a task that need not end by themselves: polls, signals, and operations that
    /// wait for the peer of a socket.
    pub(crate) fn cancel_endless(&self, task: TaskId) {
        let fits = |operation: &Operation| operation.task == task && operation.is_endless();
        Core::of_thread(|core| core.cancel(Cancelled::ByTask, fits));
    }

    /// Takes all completions there are. `is_idle` is true after a turn without work.
    pub(crate) fn reap(&self, is_idle: bool, out: &mut Vec<Completion>) {
        Core::of_thread(|core| core.reap(is_idle, out));
    }

    pub(crate) fn has_wakes(&self) -> bool {
        Core::of_thread(|core| !core.wakes.is_empty())
    }

    pub(crate) fn take_wakes(&self, out: &mut Vec<TaskId>) {
        Core::of_thread(|core| {
            if !core.wakes.is_empty() {
                std::mem::swap(&mut core.wakes, out);
            }
        });
    }

    /// Submits the queued operations, if any, and lets the kernel finish the work that it has deferred to
    /// this thread.
    pub(crate) fn submit(&self, counters: &CounterCells) {
        Core::of_thread(|core| {
            if core.ring.needs_enter() {
                core.submit();
            }
            if let Some(commands) = &mut core.commands {
                commands.submit(counters);
            }
            core.count(counters);
        });
    }

    /// Sleeps until a completion, or for `timeout`.
    pub(crate) fn wait(&self, timeout: Option<Duration>, counters: &CounterCells) {
        Core::of_thread(|core| {
            core.hand_all_to_ring();
            if core.watch_commands(counters) {
                core.ring.wait(timeout);
                core.count(counters);
            }
        });
    }
}
