//! What is behind an [`Io`](super::Io): the ring and the tables that say what is in it.

use std::any::Any;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;

use io_uring::squeue::Entry;
use io_uring::{opcode, types};
use rustix::event::PollFlags;
use sluice_memory::Segment;

use super::MAX_SEGMENTS;
use super::arena::Arena;
use super::commands::Commands;
use super::files::{FileSlot, FileTable, signal_entry, watch_entry};
use super::operations::{BELL, CANCEL, COMMANDS, Kind, Operation, Operations};
use super::ring::{RawCompletion, Ring};
use super::setup::Completing;
use crate::config::ReactorConfig;
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

pub(super) struct Core {
    pub(super) ring: Ring,
    arena: Arena,
    files: FileTable,
    pub(super) operations: Operations,
    pub(super) wakes: Vec<TaskId>,
    /// Opened for the first device that takes NVMe commands.
    pub(super) commands: Option<Box<Commands>>,
    bell: OwnedFd,
}

impl Core {
    pub(super) fn open(config: &ReactorConfig, bell: OwnedFd) -> io::Result<Self> {
        let ring = Ring::open(config.ring_entries, Completing::WhenAsked)?;
        let files = FileTable::register(&ring, config.max_files)?;
        let (arena, operations) = (Arena::new(), Operations::default());
        let mut core = Self { ring, arena, files, operations, wakes: Vec::new(), commands: None, bell };
        core.listen_to_bell();
        Ok(core)
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

    pub(super) fn start_on(&mut self, file: &FileSlot, entry: Entry, task: TaskId, token: u64) {
        self.files.begin(file.index());
        self.start(entry, Operation { task, token, kind: Kind::File(file.index()) });
    }

    pub(super) fn start_stream(&mut self, socket: &FileSlot, entry: Entry, task: TaskId, token: u64) {
        self.files.begin(socket.index());
        self.start(entry, Operation { task, token, kind: Kind::Stream(socket.index()) });
    }

    pub(super) fn cancel(&mut self, fits: impl Fn(&Operation) -> bool) {
        for user_data in self.operations.find(fits) {
            self.ring.push(opcode::AsyncCancel::new(user_data).build().user_data(CANCEL));
        }
    }

    pub(super) fn register(&mut self, file: &OwnedFd) -> io::Result<u32> {
        self.files.insert(&self.ring, file)
    }

    pub(super) fn keep(&mut self, index: u32, memory: Rc<dyn Any>) {
        self.files.keep(index, memory);
    }

    pub(super) fn retire(&mut self, index: u32) {
        if self.files.retire(&self.ring, index) {
            self.cancel(|operation| matches!(operation.kind, Kind::Signal(i) | Kind::Watch(i) if i == index));
        }
    }

    pub(super) fn watch(&mut self, index: u32, task: TaskId, token: u64) {
        self.files.begin_watch(index);
        self.push_watch(Operation { task, token, kind: Kind::Watch(index) }, index);
    }

    fn push_watch(&mut self, operation: Operation, index: u32) {
        self.files.begin(index);
        self.start(watch_entry(index), operation);
    }

    pub(super) fn signal(&mut self, index: u32, task: TaskId, token: u64) {
        if self.files.begin_signal(index) {
            self.push_signal(Operation { task, token, kind: Kind::Signal(index) }, index);
        }
    }

    fn push_signal(&mut self, operation: Operation, index: u32) {
        self.files.begin(index);
        self.start(signal_entry(index), operation);
    }

    /// Copies a list to where it stays until the kernel has read it.
    pub(super) fn iovecs(&mut self, segments: &[Segment]) -> (*const libc::iovec, u32) {
        let segments = &segments[..segments.len().min(MAX_SEGMENTS)];
        if !self.arena.has_room(segments.len()) {
            self.submit();
        }
        self.arena.copy(segments)
    }

    pub(super) fn submit(&mut self) {
        self.ring.submit();
        if self.ring.is_drained() {
            // The kernel has read every list.
            self.arena.clear();
        }
    }

    pub(super) fn reap(&mut self, out: &mut Vec<Completion>) {
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
    fn settle(&mut self, raw: RawCompletion) -> Option<Completion> {
        let RawCompletion { user_data, result, more } = raw;
        let operation = self.operations.complete(user_data, more)?;
        let quiet = match operation.kind {
            Kind::Poll | Kind::Memory => false,
            Kind::File(index) | Kind::Stream(index) => {
                self.files.end(&self.ring, index);
                false
            }
            Kind::Command(index) => {
                self.commands.iter_mut().for_each(|commands| commands.end(index));
                false
            }
            Kind::Signal(index) => {
                if !self.settle_signal(operation, index) {
                    return None;
                }
                true
            }
            Kind::Watch(index) => {
                if !more {
                    self.settle_watch(operation, index, result);
                }
                false
            }
        };
        Some(Completion { task: operation.task, token: operation.token, result, more, quiet })
    }

    /// The kernel may end a poll at any time; one that was cancelled, or never will do, stays ended.
    fn settle_watch(&mut self, operation: Operation, index: u32, result: i32) {
        if result >= 0 && !self.files.is_retired(index) {
            self.push_watch(operation, index);
        }
        self.files.end(&self.ring, index);
    }

    /// True if the task is to hear of the end of this signal.
    fn settle_signal(&mut self, operation: Operation, index: u32) -> bool {
        let again = self.files.end_signal(index);
        if again {
            self.push_signal(operation, index);
        }
        let heard = !again && !self.files.is_retired(index);
        self.files.end(&self.ring, index);
        heard
    }
}
