//! The reactor as code on its own thread sees it.

use std::any::Any;
use std::sync::Arc;

use crate::config::ReactorConfig;
use crate::counters::CounterCells;
use crate::io::Io;
use crate::moving::PendingMoves;
use crate::task::{MAX_TASKS, Task, TaskId};
use crate::tasks::Tasks;
use crate::watch::{Absence, Watch};

/// The parts of a reactor that a mail has access to.
pub struct Local {
    pub(crate) io: Io,
    pub(crate) tasks: Tasks,
    pub(crate) pending_moves: PendingMoves,
    pub(crate) now_ns: u64,
    /// Present if turns are watched.
    pub(crate) watch: Option<Watch>,
}

impl std::fmt::Debug for Local {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Local").field("now_ns", &self.now_ns).finish_non_exhaustive()
    }
}

impl Local {
    pub(crate) fn new(io: Io, config: &ReactorConfig, counters: Arc<CounterCells>, now_ns: u64) -> Self {
        let watch = config.watch.then(|| Watch::new(now_ns));
        let (tasks, pending_moves) = (Tasks::new(&config.idle, counters), PendingMoves::default());
        Self { io, tasks, pending_moves, now_ns, watch }
    }

    /// Returns the reactor's io_uring, for a task.
    #[must_use]
    pub fn io(&self, task: TaskId) -> Io {
        self.io.of(task)
    }

    /// Returns the time of this turn, ns of CLOCK_MONOTONIC.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Returns the absences of turns from their processor since the last call, up to a limit; empty unless
    /// turns are watched.
    pub fn take_absences(&mut self) -> Vec<Absence> {
        self.watch.as_mut().map(Watch::take_absences).unwrap_or_default()
    }

    /// Adds a task, which is polled from the next turn on. `make` runs on this thread, with the task's
    /// number.
    ///
    /// # Panics
    /// There are [`MAX_TASKS`] tasks: the configuration bounds their number long before.
    pub fn add(&mut self, make: impl FnOnce(TaskId, Io) -> Box<dyn Task>) -> TaskId {
        let Some(id) = TaskId::take() else { panic!("there are {MAX_TASKS} tasks") };
        let task = make(id, self.io(id));
        self.tasks.insert(id, task, self.now_ns);
        id
    }

    /// Removes a task and returns it, if none of its operations is in flight.
    ///
    /// Otherwise the kernel may still write to memory that the task's commands hold, and the result is
    /// `None`. The task is never polled again, its polls and signals are cancelled, and its events are
    /// dropped and counted. The task is freed after its last completion. A task that must finish its work
    /// does so before it is removed.
    pub fn remove(&mut self, id: TaskId) -> Option<Box<dyn Task>> {
        self.tasks.remove(id, &self.io)
    }

    /// Returns a task for reading. Does not wake it.
    #[must_use]
    pub fn task<T: Task>(&self, id: TaskId) -> Option<&T> {
        let task: &dyn Any = self.tasks.get(id)?;
        task.downcast_ref()
    }

    /// Returns a task for changing. The task is woken, so that it finds the change.
    pub fn task_mut<T: Task>(&mut self, id: TaskId) -> Option<&mut T> {
        self.wake(id);
        let task: &mut dyn Any = self.tasks.get_mut(id)?;
        task.downcast_mut()
    }

    /// Returns a task to polling.
    pub fn wake(&mut self, id: TaskId) {
        self.tasks.wake(id, self.now_ns);
    }
}
