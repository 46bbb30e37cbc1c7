//! io_uring, as tasks see it.
//!
//! Everything is asynchronous: a method here only notes the operation, all that a turn noted is
//! submitted at its end with one system call, and [`Task::event`](crate::Task::event) brings the result.

mod arena;
mod commands;
mod core;
mod files;
mod operations;
mod ring;
mod setup;

use std::any::Any;
use std::cell::RefCell;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use io_uring::{opcode, types};
use rustix::event::PollFlags;
use rustix::fs::FallocateFlags;
use sluice_memory::Segment;

pub(crate) use self::core::Completion;
use self::core::Core;
use crate::config::ReactorConfig;
use crate::counters::CounterCells;
use crate::task::TaskId;
pub use commands::{CommandFile, try_nvme};
pub use files::FileSlot;
use operations::{Kind, Operation};

/// Segments one read or write takes at most, the kernel's UIO_MAXIOV.
pub const MAX_SEGMENTS: usize = 1024;

/// What a write promises beyond having been done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WriteFlags {
    /// The data is on stable storage when the write completes (RWF_DSYNC): what FUA asks for.
    pub dsync: bool,
}

/// The io_uring of a reactor. Cheap to clone; stays on the reactor's thread.
///
/// # Memory and operations
///
/// [`read`](Io::read) and [`write`](Io::write) give the kernel the memory behind the segments until the
/// operation's [`event`](crate::Task::event). That the memory stays valid that long is the invariant of
/// [`Segment`]: the command that holds it is not finished before. The list itself is copied.
#[derive(Clone)]
pub struct Io(Rc<RefCell<Core>>);

impl std::fmt::Debug for Io {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Io").finish_non_exhaustive()
    }
}

impl Io {
    /// Opens a ring that `bell` wakes when it is asleep.
    pub(crate) fn open(config: &ReactorConfig, bell: BorrowedFd<'_>) -> io::Result<Self> {
        Ok(Self(Rc::new(RefCell::new(Core::open(config, bell.try_clone_to_owned()?)?))))
    }

    /// Registers a file with the ring, which saves the kernel a look-up per operation. The slot owns the
    /// file; dropping it unregisters and closes it when its operations are done.
    ///
    /// # Errors
    /// ENFILE when `max_files` are registered, else what the kernel says.
    pub fn register_file(&self, file: OwnedFd) -> io::Result<FileSlot> {
        let index = self.0.borrow_mut().register(&file)?;
        Ok(FileSlot::new(self.clone(), index, file))
    }

    /// Has memory of its owner's stay until the file's operations are done, also when the owner goes before.
    pub fn keep(&self, file: &FileSlot, memory: Rc<dyn Any>) {
        self.0.borrow_mut().keep(file.index(), memory);
    }

    /// Waits for `events` on `fd`, again and again until [`cancel`](Io::cancel)led: a multishot poll.
    ///
    /// The result is the set of events (`PollFlags`). It is edge-triggered: read until EAGAIN. Submitted
    /// at once, so the descriptor may be closed afterwards; the poll keeps the file open.
    pub fn poll(&self, fd: BorrowedFd<'_>, events: PollFlags, task: TaskId, token: u64) {
        let entry = opcode::PollAdd::new(types::Fd(fd.as_raw_fd()), u32::from(events.bits())).multi(true);
        let mut core = self.0.borrow_mut();
        core.start(entry.build(), Operation { task, token, kind: Kind::Poll });
        core.submit();
    }

    /// Waits for something to read in a registered file, again and again until the slot is dropped. For
    /// an eventfd that the peer writes: each write is an event, and it is never read, because the peer
    /// could make that block. Unlike a [`poll`](Io::poll) it is started again if the kernel ends it; a
    /// negative result says that it cannot be.
    pub fn watch(&self, file: &FileSlot, task: TaskId, token: u64) {
        self.0.borrow_mut().watch(file.index(), task, token);
    }

    /// Asks for the end of what runs under `token`. Its event comes nevertheless: -ECANCELED, or its
    /// result if it was quicker.
    pub fn cancel(&self, task: TaskId, token: u64) {
        self.0.borrow_mut().cancel(|operation| (operation.task, operation.token) == (task, token));
    }

    /// Adds 1 to an eventfd.
    ///
    /// The write goes through the ring because the peer chooses the eventfd's flags: one that is full
    /// and blocking would hold a direct write for ever. Here it holds one worker of the kernel, and no
    /// more: what is asked for while a signal is on its way becomes one further signal. The event comes
    /// when none is on its way any more; it neither wakes a sleeping task nor counts as work.
    pub fn signal(&self, eventfd: &FileSlot, task: TaskId, token: u64) {
        self.0.borrow_mut().signal(eventfd.index(), task, token);
    }

    /// Reads into `segments` (the first [`MAX_SEGMENTS`] of them) from byte `offset`. The result is the
    /// number of bytes, which can be less than asked.
    pub fn read(&self, file: &FileSlot, segments: &[Segment], offset: u64, task: TaskId, token: u64) {
        let mut core = self.0.borrow_mut();
        let fd = types::Fixed(file.index());
        let entry = match segments {
            [one] => opcode::Read::new(fd, one.pointer(), one.len()).offset(offset).build(),
            many => {
                let (list, count) = core.iovecs(many);
                opcode::Readv::new(fd, list, count).offset(offset).build()
            }
        };
        core.start_on(file, entry, task, token);
    }

    /// Writes from `segments` (the first [`MAX_SEGMENTS`] of them) to byte `offset`. The result is the
    /// number of bytes, which can be less than asked.
    pub fn write(
        &self,
        file: &FileSlot,
        segments: &[Segment],
        offset: u64,
        flags: WriteFlags,
        task: TaskId,
        token: u64,
    ) {
        let mut core = self.0.borrow_mut();
        let fd = types::Fixed(file.index());
        let rw_flags = if flags.dsync { libc::RWF_DSYNC } else { 0 };
        let entry = match segments {
            [one] => {
                opcode::Write::new(fd, one.pointer(), one.len()).offset(offset).rw_flags(rw_flags).build()
            }
            many => {
                let (list, count) = core.iovecs(many);
                opcode::Writev::new(fd, list, count).offset(offset).rw_flags(rw_flags).build()
            }
        };
        core.start_on(file, entry, task, token);
    }

    /// Receives from a connected stream socket, which must be a blocking one, into `segments` (the first
    /// [`MAX_SEGMENTS`] of them), as soon as there is something. The result is the number of bytes; 0 is the
    /// end of the stream.
    pub fn receive(&self, socket: &FileSlot, segments: &[Segment], task: TaskId, token: u64) {
        let mut core = self.0.borrow_mut();
        let (list, count) = core.iovecs(segments);
        let entry = opcode::Readv::new(types::Fixed(socket.index()), list, count).build();
        core.start_stream(socket, entry, task, token);
    }

    /// Sends to a connected stream socket, which must be a blocking one, as soon as there is room. The
    /// result is the number of bytes, which can be less than asked.
    pub fn send(&self, socket: &FileSlot, segments: &[Segment], task: TaskId, token: u64) {
        let mut core = self.0.borrow_mut();
        let (list, count) = core.iovecs(segments);
        let entry = opcode::Writev::new(types::Fixed(socket.index()), list, count).build();
        core.start_stream(socket, entry, task, token);
    }

    /// Brings the file's data to stable storage. The result is 0.
    pub fn fdatasync(&self, file: &FileSlot, task: TaskId, token: u64) {
        let entry = opcode::Fsync::new(types::Fixed(file.index())).flags(types::FsyncFlags::DATASYNC);
        self.0.borrow_mut().start_on(file, entry.build(), task, token);
    }

    /// fallocate(2) on `len` bytes from `offset`. The result is 0.
    pub fn fallocate(
        &self,
        file: &FileSlot,
        mode: FallocateFlags,
        offset: u64,
        len: u64,
        task: TaskId,
        token: u64,
    ) {
        let entry = opcode::Fallocate::new(types::Fixed(file.index()), len)
            .offset(offset)
            .mode(mode.bits().cast_signed());
        self.0.borrow_mut().start_on(file, entry.build(), task, token);
    }

    /// Has the kernel take the pages of this memory from the machine, on a thread of its own, as if all of it were
    /// written; its contents stay. The result is 0. Memory that is gone meanwhile makes an error and nothing else.
    pub fn populate(&self, address: *const u8, length: usize, task: TaskId, token: u64) {
        let length = libc::off_t::try_from(length).unwrap_or(libc::off_t::MAX);
        let entry = opcode::Madvise::new(address.cast(), length, libc::MADV_POPULATE_WRITE).build();
        self.0.borrow_mut().start(entry, Operation { task, token, kind: Kind::Memory });
    }

    /// Puts a task back to polling with the reactor's next turn.
    pub fn wake(&self, task: TaskId) {
        self.0.borrow_mut().wakes.push(task);
    }

    /// Operations of a task that have not completed, polls and signals included.
    #[must_use]
    pub fn in_flight(&self, task: TaskId) -> u32 {
        self.0.borrow().operations.in_flight(task)
    }

    /// Cancels what a task has in flight that need not end by itself: polls, signals, and what waits for the
    /// peer of a socket.
    pub(crate) fn cancel_endless(&self, task: TaskId) {
        let ends = |kind| matches!(kind, Kind::File(_) | Kind::Command(_) | Kind::Memory);
        let endless = |operation: &Operation| !ends(operation.kind);
        self.0.borrow_mut().cancel(|operation| operation.task == task && endless(operation));
    }

    /// Takes all completions there are out of the ring.
    pub(crate) fn reap(&self, out: &mut Vec<Completion>) {
        self.0.borrow_mut().reap(out);
    }

    pub(crate) fn has_wakes(&self) -> bool {
        !self.0.borrow().wakes.is_empty()
    }

    pub(crate) fn take_wakes(&self, out: &mut Vec<TaskId>) {
        let mut core = self.0.borrow_mut();
        if !core.wakes.is_empty() {
            std::mem::swap(&mut core.wakes, out);
        }
    }

    /// Submits what was noted, if anything was, and lets the kernel finish what it has deferred to us.
    pub(crate) fn submit(&self, counters: &CounterCells) {
        let mut core = self.0.borrow_mut();
        if core.ring.needs_enter() {
            core.submit();
        }
        if let Some(commands) = &mut core.commands {
            commands.submit(counters);
        }
        counters.syscalls.add(core.ring.take_enters());
    }

    /// Sleeps until a completion, or for `timeout`.
    pub(crate) fn wait(&self, timeout: Option<Duration>, counters: &CounterCells) {
        let mut core = self.0.borrow_mut();
        if !core.watch_commands(counters) {
            return;
        }
        core.ring.wait(timeout);
        counters.syscalls.add(core.ring.take_enters());
    }

    fn retire(&self, index: u32) {
        self.0.borrow_mut().retire(index);
    }
}
