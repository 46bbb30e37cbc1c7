//! io_uring, as tasks see it.
//!
//! Everything is asynchronous: a method here only notes the operation, all that a turn noted is
//! submitted at its end with one system call, and [`Task::event`](crate::Task::event) brings the result.

mod arena;
mod files;
mod ledger;
mod ring;
mod setup;

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use io_uring::squeue::Entry;
use io_uring::{opcode, types};
use rustix::event::PollFlags;
use rustix::fs::FallocateFlags;
use sluice_memory::Segment;

use crate::config::ReactorConfig;
use crate::counters::CounterCells;
use crate::task::TaskId;
use arena::Arena;
pub use files::FileSlot;
use files::FileTable;
use ledger::Ledger;
use ring::Ring;
pub(crate) use ring::{Completion, Owner};

/// Segments one read or write takes at most, the kernel's UIO_MAXIOV.
pub const MAX_SEGMENTS: usize = 1024;

/// Tokens have 48 bits; the rest of the 64 names the task.
const TOKEN_MASK: u64 = (1 << 48) - 1;

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

/// Everything behind an [`Io`].
struct Core {
    ring: Ring,
    arena: Arena,
    files: FileTable,
    ledger: Ledger,
    wakes: Vec<TaskId>,
}

impl std::fmt::Debug for Io {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Io").finish_non_exhaustive()
    }
}

impl Io {
    pub(crate) fn open(config: &ReactorConfig) -> io::Result<Self> {
        let ring = Ring::open(config.ring_entries)?;
        let files = FileTable::register(&ring, config.max_files)?;
        let core = Core { ring, arena: Arena::new(), files, ledger: Ledger::default(), wakes: Vec::new() };
        Ok(Self(Rc::new(RefCell::new(core))))
    }

    /// Registers a file with the ring, which saves the kernel a look-up per operation. The slot owns the
    /// file; dropping it unregisters and closes it when its operations are done.
    ///
    /// # Errors
    /// ENFILE when `max_files` are registered, else what the kernel says.
    pub fn register_file(&self, file: OwnedFd) -> io::Result<FileSlot> {
        let mut core = self.0.borrow_mut();
        let Core { ring, files, .. } = &mut *core;
        let index = files.insert(ring, &file)?;
        drop(core);
        Ok(FileSlot::new(self.clone(), index, file))
    }

    /// Waits for `events` on `fd`, again and again until [`cancel`](Io::cancel)led: a multishot poll.
    ///
    /// The result is the set of events (`PollFlags`). It is edge-triggered: read until EAGAIN. Submitted
    /// at once, so the descriptor may be closed afterwards; the poll keeps the file open.
    pub fn poll(&self, fd: BorrowedFd<'_>, events: PollFlags, task: TaskId, token: u64) {
        let entry = opcode::PollAdd::new(types::Fd(fd.as_raw_fd()), u32::from(events.bits())).multi(true);
        let mut core = self.0.borrow_mut();
        core.ledger.begin_poll(task, token);
        core.push(entry.build(), user_data(task, token));
        core.submit();
    }

    /// Asks for the end of what runs under `token`. Its event comes nevertheless: -ECANCELED, or its
    /// result if it was quicker.
    pub fn cancel(&self, task: TaskId, token: u64) {
        self.0.borrow_mut().cancel(user_data(task, token));
    }

    /// Adds 1 to an eventfd.
    ///
    /// The write goes through the ring because the peer chooses the eventfd's flags: one that is full
    /// and blocking would hold a direct write for ever, here it holds a kernel worker, and only one:
    /// signals sent while an earlier one has not gone out are merged with each other. The event comes when
    /// the last of them is done; it neither wakes a sleeping task nor counts as work.
    pub fn signal(&self, eventfd: &FileSlot, task: TaskId, token: u64) {
        let mut core = self.0.borrow_mut();
        if core.files.begin_signal(eventfd.index(), task, token) {
            core.push_signal(eventfd.index());
        }
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
        core.start(entry, task, token);
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
        core.start(entry, task, token);
    }

    /// Brings the file's data to stable storage. The result is 0.
    pub fn fdatasync(&self, file: &FileSlot, task: TaskId, token: u64) {
        let entry = opcode::Fsync::new(types::Fixed(file.index())).flags(types::FsyncFlags::DATASYNC);
        self.0.borrow_mut().start(entry.build(), task, token);
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
        let entry = opcode::Fallocate::new(types::Fixed(file.index()), len).offset(offset);
        self.0.borrow_mut().start(entry.mode(mode.bits().cast_signed()).build(), task, token);
    }

    /// Puts a task back to polling with the reactor's next turn.
    pub fn wake(&self, task: TaskId) {
        self.0.borrow_mut().wakes.push(task);
    }

    /// Operations of a task that have not completed, polls included and signals not.
    #[must_use]
    pub fn in_flight(&self, task: TaskId) -> u32 {
        self.0.borrow().ledger.in_flight(task)
    }

    pub(crate) fn ring_bell(&self, bell: BorrowedFd<'_>) {
        let entry = opcode::PollAdd::new(types::Fd(bell.as_raw_fd()), u32::from(PollFlags::IN.bits()));
        let mut core = self.0.borrow_mut();
        core.push(entry.multi(true).build(), Owner::Bell.user_data());
        core.submit();
    }

    /// Cancels every poll of a task.
    pub(crate) fn cancel_polls(&self, task: TaskId) {
        let mut core = self.0.borrow_mut();
        for token in core.ledger.polls(task) {
            core.cancel(user_data(task, token));
        }
    }

    /// Takes completions out of the ring, all that are there. Those of the ring's own housekeeping are
    /// dealt with; `out` gets the rest.
    pub(crate) fn reap(&self, out: &mut Vec<Completion>) {
        let mut core = self.0.borrow_mut();
        core.ring.reap(out);
        if !out.is_empty() {
            out.retain_mut(|completion| core.settle(completion));
        }
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
        counters.syscalls.add(core.ring.take_enters());
    }

    /// Sleeps until a completion, or for `timeout`.
    pub(crate) fn wait(&self, timeout: Option<Duration>, counters: &CounterCells) {
        let mut core = self.0.borrow_mut();
        core.submit();
        core.ring.wait(timeout);
        counters.syscalls.add(core.ring.take_enters());
    }

    fn retire(&self, index: u32) {
        let mut core = self.0.borrow_mut();
        if core.files.retire(index) {
            core.cancel(Owner::Signal { slot: index }.user_data());
        }
    }
}

impl Core {
    fn push(&mut self, entry: Entry, user_data: u64) {
        self.ring.push(entry.user_data(user_data));
    }

    fn start(&mut self, entry: Entry, task: TaskId, token: u64) {
        self.ledger.begin(task);
        self.push(entry, user_data(task, token));
    }

    fn cancel(&mut self, target: u64) {
        let entry = opcode::AsyncCancel2::new(types::CancelBuilder::user_data(target).all()).build();
        self.push(entry, Owner::Cancel.user_data());
    }

    fn push_signal(&mut self, slot: u32) {
        self.push(files::signal_entry(slot), Owner::Signal { slot }.user_data());
    }

    /// Copies a list to where it stays until the kernel has read it.
    fn iovecs(&mut self, segments: &[Segment]) -> (*const libc::iovec, u32) {
        let segments = &segments[..segments.len().min(MAX_SEGMENTS)];
        if !self.arena.has_room(segments.len()) {
            self.submit();
        }
        self.arena.copy(segments)
    }

    fn submit(&mut self) {
        self.ring.submit();
        if self.ring.is_drained() {
            // The kernel has read every list, and no entry names a retired file any more.
            self.arena.clear();
            self.files.sweep(&self.ring);
        }
    }

    /// Accounts for a completion. False if no task is to hear of it.
    fn settle(&mut self, completion: &mut Completion) -> bool {
        match completion.owner {
            Owner::Task { id, token } => {
                self.ledger.end(id, token, completion.more);
                true
            }
            Owner::Signal { slot } => self.settle_signal(slot, completion),
            Owner::Bell => !completion.more,
            Owner::Cancel => false,
        }
    }

    fn settle_signal(&mut self, slot: u32, completion: &mut Completion) -> bool {
        match self.files.end_signal(slot) {
            files::AfterSignal::Again => {
                self.push_signal(slot);
                false
            }
            files::AfterSignal::Done { task, token } => {
                completion.owner = Owner::Task { id: task, token };
                completion.quiet = true;
                true
            }
            files::AfterSignal::Retired => false,
        }
    }
}

fn user_data(task: TaskId, token: u64) -> u64 {
    debug_assert!(token <= TOKEN_MASK, "a token has 48 bits");
    Owner::Task { id: task, token }.user_data()
}
