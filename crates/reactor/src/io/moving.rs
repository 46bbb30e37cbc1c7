//! io_uring state of a task that moves: its files, and the operations in flight that have no end of their
//! own.
//!
//! Polls, receives, sends and signals are cancelled; reads and writes are waited for. A cancelled poll
//! reports its events as ready, so that the task looks, and polls again on the new reactor. Watches and
//! signals are started again there automatically. A cancelled send sent nothing; a cancelled receive returns
//! [`INTERRUPTED`].

use std::io;

use rustix::event::PollFlags;

use super::commands::Commands;
use super::core::Core;
use super::files::{MovedFile, StaleFile};
use super::operations::{Cancelled, Operation, OperationKind};
use super::{INTERRUPTED, Io};
use crate::task::TaskId;

/// Files and operations that a task takes to another reactor.
#[derive(Debug, Default)]
pub(crate) struct TaskIoState {
    files: Vec<MovedFile>,
    /// Operations to start again, with the indices that the files had here.
    devices: Vec<MovedFile>,
    /// Begins again, with the indices that files had.
    again: Vec<Operation>,
}

/// Files that a task had on this reactor, to be released when they are registered with the next one.
#[derive(Debug)]
pub(crate) struct StaleFiles {
    files: Vec<StaleFile>,
    devices: Vec<StaleFile>,
}

impl TaskIoState {
    pub(crate) fn stale_files(&self) -> StaleFiles {
        let left = |packed: &[MovedFile]| packed.iter().map(MovedFile::left).collect();
        StaleFiles { files: left(&self.files), devices: left(&self.devices) }
    }
}

impl Io {
    /// Cancels the operations of a task that need not end by themselves.
    pub(crate) fn pack(&self, task: TaskId) {
        Core::of_thread(|core| core.pack(task));
    }

    /// Takes the files and interrupted operations of a task that has nothing in flight any more.
    pub(crate) fn take_state(&self, task: TaskId) -> TaskIoState {
        Core::of_thread(|core| {
            let (again, others) =
                std::mem::take(&mut core.interrupted).into_iter().partition(|it| it.task == task);
            core.interrupted = others;
            core.operations.stay(task);
            let devices = core.commands.as_ref().map_or_else(Vec::new, |commands| commands.files.pack(task));
            TaskIoState { files: core.files.pack(task), devices, again }
        })
    }

    /// Registers the files of a task that arrives with this ring, and starts its interrupted operations
    /// again.
    ///
    /// # Errors
    /// A file cannot be registered: then none is.
    pub(crate) fn unpack(&self, state: &TaskIoState, task: TaskId) -> io::Result<()> {
        Core::of_thread(|core| core.unpack(state, task))
    }

    /// Releases the files of a task that has them on another reactor now.
    pub(crate) fn release(&self, left: StaleFiles) {
        Core::of_thread(|core| {
            core.files.leave(&core.ring, left.files);
            if let Some(commands) = &mut core.commands {
                commands.files.leave(&commands.ring, left.devices);
            }
        });
    }
}

impl Core {
    fn pack(&mut self, task: TaskId) {
        self.cancel(Cancelled::ForMove, |operation| {
            let goes_on = operation.cancelled != Cancelled::ByTask;
            operation.task == task && operation.is_endless() && goes_on
        });
    }

    fn unpack(&mut self, state: &TaskIoState, task: TaskId) -> io::Result<()> {
        self.retire_strays();
        self.register_all(state, task)?;
        for operation in &state.again {
            let (OperationKind::Watch(index) | OperationKind::Signal(index)) = operation.kind else {
                continue;
            };
            // MovedFile files are sorted by index.
            let Ok(at) = state.files.binary_search_by_key(&index, |packed| packed.index) else { continue };
            let here = self.here(&state.files[at].file);
            match operation.kind {
                OperationKind::Watch(_) => self.watch(here, task, operation.token),
                _ => self.signal(here, task, operation.token),
            }
        }
        Ok(())
    }

    fn register_all(&mut self, state: &TaskIoState, task: TaskId) -> io::Result<()> {
        let files = self.files.unpack(&self.ring, &state.files, task)?;
        if !state.devices.is_empty() {
            let commands = self.commands();
            let unpack = |it: &mut Commands| it.files.unpack(&it.ring, &state.devices, task);
            match commands.and_then(unpack) {
                Ok(devices) => devices.place(self.number),
                Err(error) => {
                    self.files.unregister_all(&self.ring, files);
                    return Err(error);
                }
            }
        }
        files.place(self.number);
        Ok(())
    }

    /// Returns the result and the `more` flag that the task receives for an operation that was cancelled
    /// because it moves.
    pub(super) fn interrupt(&self, operation: Operation, result: i32) -> (i32, bool) {
        let ended = [-libc::ECANCELED, -libc::EINTR].contains(&result);
        match operation.kind {
            OperationKind::Poll(events) if ended => (events.cast_signed(), false),
            OperationKind::Watch(_) if ended => (i32::from(PollFlags::IN.bits().cast_signed()), true),
            OperationKind::Send(_) if ended => (0, false),
            OperationKind::Receive(_) if ended => (INTERRUPTED, false),
            _ => (result, false),
        }
    }

    /// Returns whether an operation that has ended continues on the task's next reactor, and stores it for
    /// that.
    pub(super) fn resume_after_move(&mut self, operation: Operation) -> bool {
        let elsewhere = operation.cancelled == Cancelled::ForMove;
        if elsewhere {
            self.interrupted.push(operation);
        }
        elsewhere
    }
}
