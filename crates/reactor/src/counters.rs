//! Counters of a reactor. One thread writes, any thread reads.

use crate::task::TaskId;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::watch::{WatchCells, Watched};

/// A snapshot of a reactor's counters, all since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Turns of the loop.
    pub turns: u64,
    /// Turns in which a task found work or something completed.
    pub busy_turns: u64,
    /// Work that tasks reported: commands, where the task is a controller.
    pub commands: u64,
    /// Completions of io_uring that were delivered to tasks.
    pub events: u64,
    /// Completions that arrived for a task already removed.
    pub stray_events: u64,
    /// Polls of a task that found nothing.
    pub spurious_polls: u64,
    /// Mails run.
    pub mails: u64,
    /// Number of times that the thread went to sleep.
    pub sleeps: u64,
    /// Number of times that a single task was put to sleep.
    pub task_sleeps: u64,
    /// Number of times that a sleeping task went back to polling.
    pub wakes: u64,
    /// Number of times that a task was put to sleep for a deadline that had passed again and again, and was
    /// delayed. A value other than zero is a fault of the task.
    pub overdue: u64,
    /// Calls of io_uring_enter, including those with a sleep, and of recvmsg.
    pub syscalls: u64,
    /// Calls of recvmsg among these that found nothing, in turns without other work.
    pub vain_receives: u64,
    /// The longest turn, ns; up to sixteen turns that find nothing count as one.
    pub longest_turn_ns: u64,
    /// Time spent in turns that found work, ns; up to sixteen idle turns before each are included.
    pub busy_ns: u64,
    /// Time spent in turns that found nothing, ns.
    pub spin_ns: u64,
    /// Time spent asleep, ns.
    pub sleep_ns: u64,
    /// The spin time now in force, ns: less than configured while the core is shared.
    pub spin_budget_ns: u64,
    /// Zeroes unless turns are watched.
    pub watched: Watched,
}

/// A counter with one writer: adding is a load and a store, not a locked instruction.
#[derive(Debug, Default)]
pub(crate) struct Cell(AtomicU64);

impl Cell {
    pub(crate) fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    pub(crate) fn raise_to(&self, value: u64) {
        if value > self.get() {
            self.set(value);
        }
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// The cells behind [`Counters`], away from cache lines that other threads write.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct CounterCells {
    pub(crate) turns: Cell,
    pub(crate) busy_turns: Cell,
    pub(crate) commands: Cell,
    pub(crate) events: Cell,
    pub(crate) stray_events: Cell,
    pub(crate) spurious_polls: Cell,
    pub(crate) mails: Cell,
    pub(crate) sleeps: Cell,
    pub(crate) task_sleeps: Cell,
    pub(crate) wakes: Cell,
    pub(crate) overdue: Cell,
    pub(crate) syscalls: Cell,
    pub(crate) vain_receives: Cell,
    pub(crate) longest_turn_ns: Cell,
    pub(crate) busy_ns: Cell,
    pub(crate) spin_ns: Cell,
    pub(crate) sleep_ns: Cell,
    pub(crate) spin_budget_ns: Cell,
    pub(crate) watched: WatchCells,
    /// Index of the task that has its turn, or had it last; that of [`TaskId::OWN`] where no task can cause a
    /// stop.
    pub(crate) task: Cell,
    /// The kernel's number of the reactor's thread.
    pub(crate) thread: Cell,
}

/// Progress of a reactor: two equal values, some time apart, mean that the reactor has stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Turns since it started.
    pub turns: u64,
    /// Index of the task that has its turn, or had it last. None while the reactor sleeps or runs mails.
    pub task: Option<usize>,
    /// The kernel's number of the reactor's thread.
    pub thread: u32,
}

impl CounterCells {
    pub(crate) fn progress(&self) -> Progress {
        let task = self.task.get() as usize;
        Progress {
            turns: self.turns.get(),
            task: (task != TaskId::OWN.index()).then_some(task),
            thread: self.thread.get() as u32,
        }
    }

    /// Records that no task is running.
    pub(crate) fn clear_task(&self) {
        self.task.set(TaskId::OWN.index() as u64);
    }

    pub(crate) fn snapshot(&self) -> Counters {
        Counters {
            turns: self.turns.get(),
            busy_turns: self.busy_turns.get(),
            commands: self.commands.get(),
            events: self.events.get(),
            stray_events: self.stray_events.get(),
            spurious_polls: self.spurious_polls.get(),
            mails: self.mails.get(),
            sleeps: self.sleeps.get(),
            task_sleeps: self.task_sleeps.get(),
            wakes: self.wakes.get(),
            overdue: self.overdue.get(),
            syscalls: self.syscalls.get(),
            vain_receives: self.vain_receives.get(),
            longest_turn_ns: self.longest_turn_ns.get(),
            busy_ns: self.busy_ns.get(),
            spin_ns: self.spin_ns.get(),
            sleep_ns: self.sleep_ns.get(),
            spin_budget_ns: self.spin_budget_ns.get(),
            watched: self.watched.snapshot(),
        }
    }
}
