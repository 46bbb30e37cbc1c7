//! State behind an [`Io`](super::Io): the ring, and the tables of its files and operations.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use io_uring::squeue::Entry;
use io_uring::{opcode, types};
use rustix::event::PollFlags;
use sluice_memory::Segment;

use super::MAX_SEGMENTS;
use super::arena::Arena;
use super::commands::Commands;
use super::eager::Eager;
use super::files::{self, FileSlot, FileTable, Kept, Registration, Results, watch_entry};
use super::operations::{CANCEL, COMMANDS, Cancelled, NOTIFIER, Operation, OperationKind, Operations};
use super::ring::{RawCompletion, Ring};
use super::setup::Completing;
use crate::config::ReactorConfig;
use crate::counters::CounterCells;
use crate::task::TaskId;

/// A completion, for a task.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Completion {
    pub(crate) task: TaskId,
    pub(crate) token: u64,
    pub(crate) result: i32,
    /// The operation continues.
    pub(crate) more: bool,
    /// Not work: a task that sleeps stays asleep.
    pub(crate) quiet: bool,
    /// No event: the end of a signal to an eventfd that the task has dropped.
    pub(crate) silent: bool,
}

/// Number of the next reactor; no reactor has 0.
static NUMBERS: AtomicU32 = AtomicU32::new(1);

thread_local! {
    /// Ring of the reactor on this thread.
    static CORE: RefCell<Option<Core>> = const { RefCell::new(None) };
}

pub(super) struct Core {
    /// Distinguishes the reactor from others of the process.
    pub(super) number: u32,
    pub(super) ring: Ring,
    arena: Arena,
    pub(super) files: FileTable,
    pub(super) operations: Operations,
    pub(super) wakes: Vec<TaskId>,
    /// Opened for the first device that takes NVMe commands.
    pub(super) commands: Option<Box<Commands>>,
    /// Operations that were cancelled because their task moves, and start again on its next reactor.
    pub(super) interrupted: Vec<Operation>,
    /// Receives that are not in the ring yet.
    pub(super) eager: Eager,
    /// Number of stray files at the last search for them.
    strays: u64,
    notifier: OwnedFd,
}

impl Core {
    pub(super) fn open(config: &ReactorConfig, notifier: OwnedFd) -> io::Result<Self> {
        let number = NUMBERS.fetch_add(1, Relaxed);
        let ring = Ring::open(config.ring_entries, Completing::WhenAsked)?;
        let files = FileTable::register(&ring, config.max_files, number)?;
        let mut core = Self {
            number,
            ring,
            arena: Arena::new(),
            files,
            operations: Operations::default(),
            wakes: Vec::new(),
            commands: None,
            interrupted: Vec::new(),
            eager: Eager::default(),
            strays: 0,
            notifier,
        };
        core.poll_notifier();
        Ok(core)
    }

    /// Makes `core` that of this thread, or removes it. Returns the previous one.
    pub(super) fn put(core: Option<Self>) -> Option<Self> {
        CORE.replace(core)
    }

    /// Calls `act` with the ring of this thread. The thread is a reactor's, because only tasks have an
    /// [`Io`](super::Io).
    #[inline]
    pub(super) fn of_thread<T>(act: impl FnOnce(&mut Self) -> T) -> T {
        CORE.with_borrow_mut(|core| act(core.as_mut().expect("a task uses its ring where it is polled")))
    }

    /// Calls `act` with the ring of this thread if the thread is a reactor's: a task may be dropped on its
    /// way from one reactor to another.
    pub(super) fn of_thread_if_any<T>(act: impl FnOnce(&mut Self) -> T) -> Option<T> {
        // The thread-local of a thread that ends is gone.
        CORE.try_with(|core| core.borrow_mut().as_mut().map(act)).ok().flatten()
    }

    /// Returns the index at which a file is registered with this reactor.
    #[inline]
    pub(super) fn here(&self, file: &Registration) -> u32 {
        file.index_on(self.number).expect("a task's files are where it is")
    }

    fn poll_notifier(&mut self) {
        let notifier = types::Fd(self.notifier.as_raw_fd());
        let entry = opcode::PollAdd::new(notifier, u32::from(PollFlags::IN.bits())).multi(true).build();
        self.ring.push(entry.user_data(NOTIFIER));
    }

    pub(super) fn start(&mut self, entry: Entry, operation: Operation) {
        let user_data = self.operations.begin(operation);
        self.ring.push(entry.user_data(user_data));
    }

    /// Starts an operation on the file registered with `index`, which `kind` names too.
    pub(super) fn start_on(
        &mut self,
        index: u32,
        entry: Entry,
        task: TaskId,
        token: u64,
        kind: OperationKind,
    ) {
        self.files.begin(index);
        self.start(entry, Operation::new(task, token, kind));
    }

    pub(super) fn cancel(&mut self, by: Cancelled, fits: impl Fn(&Operation) -> bool) {
        self.hand_matching_to_ring(&fits);
        for user_data in self.operations.cancel(by, fits) {
            self.ring.push(opcode::AsyncCancel::new(user_data).build().user_data(CANCEL));
        }
    }

    pub(super) fn register(&mut self, file: OwnedFd, owner: TaskId) -> io::Result<FileSlot> {
        self.retire_strays();
        self.files.insert(&self.ring, file, owner).map(FileSlot)
    }

    pub(super) fn keep(&mut self, file: &FileSlot, memory: Kept) {
        let index = self.here(&file.0);
        self.files.keep(index, memory);
    }

    pub(super) fn report(&mut self, file: &FileSlot, to: Arc<dyn Results>) {
        let index = self.here(&file.0);
        self.files.report(index, to);
    }

    pub(super) fn retire(&mut self, index: u32) {
        self.hand_matching_to_ring(|operation| operation.kind == OperationKind::Receive(index));
        if self.files.retire(&self.ring, index) {
            let fits = |operation: &Operation| matches!(operation.kind, OperationKind::Signal(i) | OperationKind::Watch(i) if i == index);
            self.cancel(Cancelled::ByTask, fits);
        }
    }

    /// Retires files whose owner was dropped on a thread that is not this reactor's.
    pub(super) fn retire_strays(&mut self) {
        let strays = files::strays();
        if std::mem::replace(&mut self.strays, strays) == strays {
            return;
        }
        self.files.strays().into_iter().for_each(|index| self.retire(index));
        if let Some(commands) = &mut self.commands {
            for index in commands.files.strays() {
                commands.files.retire(&commands.ring, index);
            }
        }
    }

    pub(super) fn watch(&mut self, index: u32, task: TaskId, token: u64) {
        self.files.begin_watch(index);
        self.push_watch(Operation::new(task, token, OperationKind::Watch(index)), index);
    }

    fn push_watch(&mut self, operation: Operation, index: u32) {
        self.files.begin(index);
        self.start(watch_entry(index), operation);
    }

    pub(super) fn signal(&mut self, index: u32, task: TaskId, token: u64) {
        if self.files.begin_signal(index) {
            self.push_signal(Operation::new(task, token, OperationKind::Signal(index)), index);
        }
    }

    fn push_signal(&mut self, operation: Operation, index: u32) {
        self.files.begin(index);
        let entry = self.files.signal_entry(index);
        self.start(entry, operation);
    }

    /// Copies a list to memory that stays until the kernel has read it.
    pub(super) fn iovecs(&mut self, segments: &[Segment]) -> (*const libc::iovec, u32) {
        self.copy(segments.iter().take(MAX_SEGMENTS).map(iovec))
    }

    fn copy(&mut self, list: impl ExactSizeIterator<Item = libc::iovec>) -> (*const libc::iovec, u32) {
        if !self.arena.has_room(list.len()) {
            self.submit();
        }
        self.arena.copy(list)
    }

    /// Returns a receive of the socket with this index, into a list of at most `MAX_SEGMENTS`.
    pub(super) fn receive_entry(
        &mut self,
        index: u32,
        list: impl ExactSizeIterator<Item = libc::iovec>,
    ) -> Entry {
        let (list, count) = self.copy(list);
        opcode::Readv::new(types::Fixed(index), list, count).build()
    }

    pub(super) fn submit(&mut self) {
        self.ring.submit();
        if self.ring.is_drained() {
            // The kernel has read every list.
            self.arena.clear();
        }
    }

    pub(super) fn count(&mut self, counters: &CounterCells) {
        let (tries, vain) = self.eager.take_tries();
        counters.syscalls.add(self.ring.take_enters() + tries);
        counters.vain_receives.add(vain);
    }

    pub(super) fn reap(&mut self, is_idle: bool, out: &mut Vec<Completion>) {
        if !self.eager.is_empty() {
            self.try_receives(is_idle, out);
        }
        while let Some(raw) = self.ring.next_completion() {
            match raw.user_data {
                CANCEL => {}
                NOTIFIER if raw.more => {}
                // The kernel may end a poll at any time.
                NOTIFIER => self.poll_notifier(),
                COMMANDS => self.commands.iter_mut().for_each(|commands| commands.watched = false),
                _ => out.extend(self.on_completion(raw)),
            }
        }
        while let Some(raw) = self.commands.as_mut().and_then(|commands| commands.ring.next_completion()) {
            out.extend(self.on_completion(raw));
        }
    }

    /// Accounts for a completion; returns the event for its task, if there is one.
    pub(super) fn on_completion(&mut self, raw: RawCompletion) -> Option<Completion> {
        let RawCompletion { user_data, mut result, mut more } = raw;
        let operation = self.operations.complete(user_data, more)?;
        if operation.is_interrupted() && !more {
            (result, more) = self.interrupt(operation, result);
        }
        let mut silent = false;
        let quiet = match operation.kind {
            OperationKind::Memory => false,
            // A task may cancel its poll when it is woken, and poll again when it goes to sleep. The end of
            // the earlier poll would wake it again and again.
            OperationKind::Poll(_) => operation.cancelled == Cancelled::ByTask && !more,
            OperationKind::File(index) | OperationKind::Receive(index) | OperationKind::Send(index) => {
                self.files.reported(index, result);
                self.files.end(&self.ring, index);
                false
            }
            OperationKind::Command(index) => {
                self.commands.iter_mut().for_each(|commands| commands.end(index));
                false
            }
            OperationKind::Signal(index) => {
                silent = !self.on_signal_end(operation, index, result)?;
                true
            }
            OperationKind::Watch(index) => {
                if !raw.more {
                    self.on_watch_end(operation, index, result);
                }
                false
            }
        };
        Some(Completion { task: operation.task, token: operation.token, result, more, quiet, silent })
    }

    /// Restarts a watch, which the kernel may end at any time, unless it was cancelled or cannot work.
    fn on_watch_end(&mut self, operation: Operation, index: u32, result: i32) {
        let goes_on = operation.cancelled != Cancelled::ByTask && result >= 0;
        if goes_on && !self.files.is_retired(index) && !self.resume_after_move(operation) {
            self.push_watch(Operation::new(operation.task, operation.token, operation.kind), index);
        }
        self.files.end(&self.ring, index);
    }

    /// Ends a signal; returns whether its task receives an event for it. None if the signal goes on, here or elsewhere.
    fn on_signal_end(&mut self, operation: Operation, index: u32, result: i32) -> Option<bool> {
        let unsent = operation.is_interrupted() && result < 0;
        let mut again = self.files.end_signal(index, unsent);
        let elsewhere = again && self.resume_after_move(operation);
        if elsewhere {
            again = false;
            self.files.end_signal(index, false);
        } else if again {
            self.push_signal(Operation::new(operation.task, operation.token, operation.kind), index);
        }
        let is_reported = !unsent && !self.files.is_retired(index);
        self.files.end(&self.ring, index);
        (!again && !elsewhere).then_some(is_reported)
    }
}

/// Returns a segment as the kernel's `iovec`.
pub(super) fn iovec(segment: &Segment) -> libc::iovec {
    libc::iovec { iov_base: segment.pointer().cast(), iov_len: segment.len() as usize }
}
