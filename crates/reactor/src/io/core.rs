//! What is behind an [`Io`](super::Io): the ring and the tables that say what is in it.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use io_uring::squeue::Entry;
use io_uring::{opcode, types};
use rustix::event::PollFlags;
use sluice_memory::Segment;

use super::MAX_SEGMENTS;
use super::arena::Arena;
use super::commands::Commands;
use super::eager::Eager;
use super::files::{self, FileSlot, FileTable, Kept, Registration, signal_entry, watch_entry};
use super::operations::{BELL, CANCEL, COMMANDS, Cancelled, Kind, Operation, Operations};
use super::ring::{RawCompletion, Ring};
use super::setup::Completing;
use crate::config::ReactorConfig;
use crate::counters::CounterCells;
use crate::task::TaskId;

/// One completion, for a task.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Completion {
    pub(crate) task: TaskId,
    pub(crate) token: u64,
    pub(crate) result: i32,
    /// The operation goes on.
    pub(crate) more: bool,
    /// Not work: a task that sleeps goes on sleeping.
    pub(crate) quiet: bool,
}

/// Numbers of reactors; none is 0.
static NUMBERS: AtomicU32 = AtomicU32::new(1);

thread_local! {
    /// What the reactor of this thread has.
    static OF_THREAD: RefCell<Option<Core>> = const { RefCell::new(None) };
}

pub(super) struct Core {
    /// Tells the reactor from others of the process.
    pub(super) number: u32,
    pub(super) ring: Ring,
    arena: Arena,
    pub(super) files: FileTable,
    pub(super) operations: Operations,
    pub(super) wakes: Vec<TaskId>,
    /// Opened for the first device that takes NVMe commands.
    pub(super) commands: Option<Box<Commands>>,
    /// What was ended since its task is about to move, and is to begin again where that goes.
    pub(super) interrupted: Vec<Operation>,
    /// What is not in the ring yet.
    pub(super) eager: Eager,
    /// How many files had been dropped elsewhere when it was looked for them last.
    strays: u64,
    bell: OwnedFd,
}

impl Core {
    pub(super) fn open(config: &ReactorConfig, bell: OwnedFd) -> io::Result<Self> {
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
            bell,
        };
        core.listen_to_bell();
        Ok(core)
    }

    /// Makes it that of this thread, or none. Returns the one before.
    pub(super) fn put(core: Option<Self>) -> Option<Self> {
        OF_THREAD.replace(core)
    }

    /// Does something with the ring of this thread, which is a reactor's: whoever has an [`Io`](super::Io) is a task.
    #[inline]
    pub(super) fn of_thread<T>(act: impl FnOnce(&mut Self) -> T) -> T {
        OF_THREAD.with_borrow_mut(|core| act(core.as_mut().expect("a task uses its ring where it is polled")))
    }

    /// The same, if it is a reactor's: what is dropped may be on its way from one to another.
    pub(super) fn of_thread_if_any<T>(act: impl FnOnce(&mut Self) -> T) -> Option<T> {
        // A thread that ends has none any more.
        OF_THREAD.try_with(|core| core.borrow_mut().as_mut().map(act)).ok().flatten()
    }

    /// Where a file is registered here.
    #[inline]
    pub(super) fn here(&self, file: &Registration) -> u32 {
        file.index_on(self.number).expect("a task's files are where it is")
    }

    fn listen_to_bell(&mut self) {
        let bell = types::Fd(self.bell.as_raw_fd());
        let entry = opcode::PollAdd::new(bell, u32::from(PollFlags::IN.bits())).multi(true).build();
        self.ring.push(entry.user_data(BELL));
    }

    pub(super) fn start(&mut self, entry: Entry, operation: Operation) {
        let user_data = self.operations.begin(operation);
        self.ring.push(entry.user_data(user_data));
    }

    /// Starts an operation on the file registered with the index that `kind` has.
    pub(super) fn start_on(&mut self, index: u32, entry: Entry, task: TaskId, token: u64, kind: Kind) {
        self.files.begin(index);
        self.start(entry, Operation::new(task, token, kind));
    }

    pub(super) fn cancel(&mut self, by: Cancelled, fits: impl Fn(&Operation) -> bool) {
        self.give_to_ring_what(&fits);
        for user_data in self.operations.cancel(by, fits) {
            self.ring.push(opcode::AsyncCancel::new(user_data).build().user_data(CANCEL));
        }
    }

    pub(super) fn register(&mut self, file: OwnedFd, owner: TaskId) -> io::Result<FileSlot> {
        self.look_for_strays();
        self.files.insert(&self.ring, file, owner).map(FileSlot)
    }

    pub(super) fn keep(&mut self, file: &FileSlot, memory: Kept) {
        let index = self.here(&file.0);
        self.files.keep(index, memory);
    }

    pub(super) fn retire(&mut self, index: u32) {
        self.give_to_ring_what(|operation| operation.kind == Kind::Receive(index));
        if self.files.retire(&self.ring, index) {
            let fits = |operation: &Operation| matches!(operation.kind, Kind::Signal(i) | Kind::Watch(i) if i == index);
            self.cancel(Cancelled::ByTask, fits);
        }
    }

    /// Lets go of files whose owner was dropped where it could not tell.
    pub(super) fn look_for_strays(&mut self) {
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
        self.push_watch(Operation::new(task, token, Kind::Watch(index)), index);
    }

    fn push_watch(&mut self, operation: Operation, index: u32) {
        self.files.begin(index);
        self.start(watch_entry(index), operation);
    }

    pub(super) fn signal(&mut self, index: u32, task: TaskId, token: u64) {
        if self.files.begin_signal(index) {
            self.push_signal(Operation::new(task, token, Kind::Signal(index)), index);
        }
    }

    fn push_signal(&mut self, operation: Operation, index: u32) {
        self.files.begin(index);
        self.start(signal_entry(index), operation);
    }

    /// Copies a list to where it stays until the kernel has read it.
    pub(super) fn iovecs(&mut self, segments: &[Segment]) -> (*const libc::iovec, u32) {
        self.copy(segments.iter().take(MAX_SEGMENTS).map(iovec))
    }

    fn copy(&mut self, list: impl ExactSizeIterator<Item = libc::iovec>) -> (*const libc::iovec, u32) {
        if !self.arena.has_room(list.len()) {
            self.submit();
        }
        self.arena.copy(list)
    }

    /// A receive of the socket with this index, into a list of at most `MAX_SEGMENTS`.
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
                BELL if raw.more => {}
                // The kernel may end a poll at any time.
                BELL => self.listen_to_bell(),
                COMMANDS => self.commands.iter_mut().for_each(|commands| commands.watched = false),
                _ => out.extend(self.settle(raw)),
            }
        }
        while let Some(raw) = self.commands.as_mut().and_then(|commands| commands.ring.next_completion()) {
            out.extend(self.settle(raw));
        }
    }

    /// Accounts for a completion; what its task is to hear of it.
    pub(super) fn settle(&mut self, raw: RawCompletion) -> Option<Completion> {
        let RawCompletion { user_data, mut result, mut more } = raw;
        let operation = self.operations.complete(user_data, more)?;
        if operation.is_interrupted() && !more {
            (result, more) = self.interrupt(operation, result);
        }
        let quiet = match operation.kind {
            Kind::Memory => false,
            // Whoever takes a poll back when it is woken, and asks for another when it goes to sleep, would be woken by
            // the end of the one before, again and again.
            Kind::Poll(_) => operation.cancelled == Cancelled::ByTask && !more,
            Kind::File(index) | Kind::Receive(index) | Kind::Send(index) => {
                self.files.end(&self.ring, index);
                false
            }
            Kind::Command(index) => {
                self.commands.iter_mut().for_each(|commands| commands.end(index));
                false
            }
            Kind::Signal(index) => {
                if !self.settle_signal(operation, index, result) {
                    return None;
                }
                true
            }
            Kind::Watch(index) => {
                if !raw.more {
                    self.settle_watch(operation, index, result);
                }
                false
            }
        };
        Some(Completion { task: operation.task, token: operation.token, result, more, quiet })
    }

    /// The kernel may end a poll at any time; one that was cancelled, or never will do, stays ended.
    fn settle_watch(&mut self, operation: Operation, index: u32, result: i32) {
        let goes_on = operation.cancelled != Cancelled::ByTask && result >= 0;
        if goes_on && !self.files.is_retired(index) && !self.goes_on_elsewhere(operation) {
            self.push_watch(Operation::new(operation.task, operation.token, operation.kind), index);
        }
        self.files.end(&self.ring, index);
    }

    /// True if the task is to hear of the end of this signal.
    fn settle_signal(&mut self, operation: Operation, index: u32, result: i32) -> bool {
        let unsent = operation.is_interrupted() && result < 0;
        let mut again = self.files.end_signal(index, unsent);
        let elsewhere = again && self.goes_on_elsewhere(operation);
        if elsewhere {
            again = false;
            self.files.end_signal(index, false);
        } else if again {
            self.push_signal(Operation::new(operation.task, operation.token, operation.kind), index);
        }
        let heard = !again && !elsewhere && !unsent && !self.files.is_retired(index);
        self.files.end(&self.ring, index);
        heard
    }
}

/// A segment, as the kernel wants it.
pub(super) fn iovec(segment: &Segment) -> libc::iovec {
    libc::iovec { iov_base: segment.pointer().cast(), iov_len: segment.len() as usize }
}
