//! What code on the reactor's own thread sees.

use std::any::Any;
use std::sync::Arc;

use crate::config::ReactorConfig;
use crate::counters::CounterCells;
use crate::io::Io;
use crate::moving::Departures;
use crate::task::{MAX_TASKS, Task, TaskId};
use crate::tasks::Tasks;
use crate::watch::{Absence, Watch};

/// A reactor from inside: what a mail gets to work with.
pub struct Local {
    pub(crate) io: Io,
    pub(crate) tasks: Tasks,
    pub(crate) departures: Departures,
    pub(crate) now_ns: u64,
    /// If turns are watched.
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
        let (tasks, departures) = (Tasks::new(&config.idle, counters), Departures::default());
        Self { io, tasks, departures, now_ns, watch }
    }

    /// The reactor's io_uring, for a task.
    #[must_use]
    pub fn io(&self, task: TaskId) -> Io {
        self.io.of(task)
    }

    /// The time of this turn, ns of CLOCK_MONOTONIC.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// When turns were kept from their processor since the last call, if turns are watched, as far as that is remembered.
    pub fn take_absences(&mut self) -> Vec<Absence> {
        self.watch.as_mut().map(Watch::take_absences).unwrap_or_default()
    }

    /// Adds a task, which is polled from the next turn on. It is made on this thread, and knows its number from
    /// the start.
    ///
    /// # Panics
    /// When there are [`MAX_TASKS`] tasks: the configuration bounds their number long before.
    pub fn add(&mut self, make: impl FnOnce(TaskId, Io) -> Box<dyn Task>) -> TaskId {
        let Some(id) = TaskId::take() else { panic!("there are {MAX_TASKS} tasks") };
        let task = make(id, self.io(id));
        self.tasks.insert(id, task, self.now_ns);
        id
    }

    /// Removes a task and returns it, if nothing of it is in flight.
    ///
    /// Else the kernel may still write to memory the task's commands hold: the task is never polled
    /// again, its polls and signals are cancelled, its events are dropped and counted, and it is freed after its
    /// last completion; `None`. A task that must finish its work does so before it is removed.
    pub fn remove(&mut self, id: TaskId) -> Option<Box<dyn Task>> {
        self.tasks.remove(id, &self.io)
    }

    /// A task, to look at. Does not wake it.
    #[must_use]
    pub fn task<T: Task>(&self, id: TaskId) -> Option<&T> {
        let task: &dyn Any = self.tasks.get(id)?;
        task.downcast_ref()
    }

    /// A task, to change. It is woken, so that it looks at what was changed.
    pub fn task_mut<T: Task>(&mut self, id: TaskId) -> Option<&mut T> {
        self.wake(id);
        let task: &mut dyn Any = self.tasks.get_mut(id)?;
        task.downcast_mut()
    }

    /// Puts a task back to polling.
    pub fn wake(&mut self, id: TaskId) {
        self.tasks.wake(id, self.now_ns);
    }
}
