//! What a task that moves takes along of the ring: its files, and what was under way and has no end of its own.
//!
//! Polls, receives, sends and signals are ended; reads and writes are waited for. A poll that was ended says that there
//! may be something, so that whoever asked for it looks, and asks again where it is then. Watches and signals begin
//! again by themselves. Of a send nothing was sent; a receive says that it was [`INTERRUPTED`].

use std::io;

use rustix::event::PollFlags;

use super::commands::Commands;
use super::core::Core;
use super::files::{Left, Packed};
use super::operations::{Cancelled, Kind, Operation};
use super::{INTERRUPTED, Io};
use crate::task::TaskId;

/// What a task takes along.
#[derive(Debug, Default)]
pub(crate) struct Luggage {
    files: Vec<Packed>,
    /// Devices, which are registered with the ring for commands.
    devices: Vec<Packed>,
    /// Begins again, with the indices that files had.
    again: Vec<Operation>,
}

/// The files that a task had here, for when it has them elsewhere.
#[derive(Debug)]
pub(crate) struct LeftBehind {
    files: Vec<Left>,
    devices: Vec<Left>,
}

impl Luggage {
    pub(crate) fn left_behind(&self) -> LeftBehind {
        let left = |packed: &[Packed]| packed.iter().map(Packed::left).collect();
        LeftBehind { files: left(&self.files), devices: left(&self.devices) }
    }
}

impl Io {
    /// Ends what a task has under way and need not end by itself.
    pub(crate) fn pack(&self, task: TaskId) {
        Core::of_thread(|core| core.pack(task));
    }

    /// Takes the luggage of a task that has nothing in flight any more.
    pub(crate) fn take_luggage(&self, task: TaskId) -> Luggage {
        Core::of_thread(|core| {
            let (again, others) =
                std::mem::take(&mut core.interrupted).into_iter().partition(|it| it.task == task);
            core.interrupted = others;
            core.operations.stay(task);
            let devices = core.commands.as_ref().map_or_else(Vec::new, |commands| commands.files.pack(task));
            Luggage { files: core.files.pack(task), devices, again }
        })
    }

    /// A task is here: its files are registered with this ring, and what was ended begins again.
    ///
    /// # Errors
    /// A file cannot be registered: then none is.
    pub(crate) fn unpack(&self, luggage: &Luggage, task: TaskId) -> io::Result<()> {
        Core::of_thread(|core| core.unpack(luggage, task))
    }

    /// A task has its files elsewhere now.
    pub(crate) fn release(&self, left: LeftBehind) {
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

    fn unpack(&mut self, luggage: &Luggage, task: TaskId) -> io::Result<()> {
        self.look_for_strays();
        self.register_all(luggage, task)?;
        for operation in &luggage.again {
            let (Kind::Watch(index) | Kind::Signal(index)) = operation.kind else { continue };
            // They are packed in the order of their places.
            let Ok(at) = luggage.files.binary_search_by_key(&index, |packed| packed.index) else { continue };
            let here = self.here(&luggage.files[at].file);
            match operation.kind {
                Kind::Watch(_) => self.watch(here, task, operation.token),
                _ => self.signal(here, task, operation.token),
            }
        }
        Ok(())
    }

    fn register_all(&mut self, luggage: &Luggage, task: TaskId) -> io::Result<()> {
        let files = self.files.unpack(&self.ring, &luggage.files, task)?;
        if !luggage.devices.is_empty() {
            let commands = self.commands();
            let unpack = |it: &mut Commands| it.files.unpack(&it.ring, &luggage.devices, task);
            match commands.and_then(unpack) {
                Ok(devices) => devices.settle(self.number),
                Err(error) => {
                    self.files.turn_away(&self.ring, files);
                    return Err(error);
                }
            }
        }
        files.settle(self.number);
        Ok(())
    }

    /// An operation that was cancelled because its task moves has ended: what the task hears.
    pub(super) fn interrupt(&self, operation: Operation, result: i32) -> (i32, bool) {
        let ended = [-libc::ECANCELED, -libc::EINTR].contains(&result);
        match operation.kind {
            Kind::Poll(events) if ended => (events.cast_signed(), false),
            Kind::Watch(_) if ended => (i32::from(PollFlags::IN.bits().cast_signed()), true),
            Kind::Send(_) if ended => (0, false),
            Kind::Receive(_) if ended => (INTERRUPTED, false),
            _ => (result, false),
        }
    }

    /// Whether what has ended goes on where its task goes, and not here.
    pub(super) fn goes_on_elsewhere(&mut self, operation: Operation) -> bool {
        let elsewhere = operation.cancelled == Cancelled::ForMove;
        if elsewhere {
            self.interrupted.push(operation);
        }
        elsewhere
    }
}
