//! The trait of everything that a reactor polls.

use std::any::Any;
use std::sync::{Mutex, PoisonError};

/// Tasks that all reactors of a process can hold at once. The last value of the 16 bits is reserved for the
/// reactors.
pub const MAX_TASKS: usize = u16::MAX as usize;

/// Identifies a task, on whichever reactor it is. Not reused while an operation of the task is in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId(pub(crate) u16);

impl TaskId {
    /// Returns the position in tables that are indexed by task.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// Identifier for resources of a reactor itself rather than of a task.
    pub(crate) const OWN: Self = Self(u16::MAX);

    /// Reserves a number that no task has, until it is [given back](Self::give_back).
    pub(crate) fn take() -> Option<Self> {
        // A panic ends the process, so the lock is never poisoned.
        let mut numbers = NUMBERS.lock().unwrap_or_else(PoisonError::into_inner);
        numbers.free.pop().or_else(|| {
            let next = numbers.next;
            (usize::from(next) < MAX_TASKS).then(|| {
                numbers.next += 1;
                Self(next)
            })
        })
    }

    pub(crate) fn give_back(self) {
        NUMBERS.lock().unwrap_or_else(PoisonError::into_inner).free.push(self);
    }
}

/// Numbers of the tasks of all reactors, so that a task that moves keeps its number. Locked when a task is
/// added or removed.
static NUMBERS: Mutex<Numbers> = Mutex::new(Numbers { next: 0, free: Vec::new() });

struct Numbers {
    next: u16,
    free: Vec<TaskId>,
}

/// A unit of work that is found by polling, on one reactor at a time: it may
/// [move](crate::TaskHandle::move_to) to another.
///
/// No method may block. All run on the reactor's thread, one at a time, with `now_ns` of the turn.
pub trait Task: Any + Send {
    /// Polls everything that this task polls, once. Returns how much work it did; 0 is a spurious poll.
    fn turn(&mut self, now_ns: u64) -> usize;

    /// Prefetches the memory that the next [`turn`](Task::turn) reads first. Called while another task has
    /// its turn, where there are several, so that lines written by other cores arrive meanwhile.
    fn look_ahead(&self) {}

    /// Handles an io_uring completion for a token that this task pushed (any 64 bits). `result` is the
    /// kernel's (a negative errno on failure). `more` means that a multishot poll stays armed. When it is
    /// false the poll has ended, for whatever reason (the task may have moved), and a task that still needs
    /// it polls again.
    fn event(&mut self, token: u64, result: i32, more: bool, now_ns: u64);

    /// Arms everything that wakes this task, then looks for work once more. Called after a while without
    /// work.
    fn arm(&mut self, now_ns: u64) -> Arm;

    /// Returns to polling; called when an event, a deadline or a mail has woken the task.
    ///
    /// Called before the [`event`](Task::event) that woke the task. A task that is polled on a timer stays
    /// armed during that poll, and is disarmed after a [`turn`](Task::turn) that found work.
    fn disarm(&mut self) {}
}

/// Result of an attempt to put a task to sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arm {
    /// Found work: keep polling.
    Busy,
    /// An event will wake it, or this deadline (ns).
    Asleep { until: Option<u64> },
    /// Nothing can wake it (a mapped doorbell page): it is polled after a growing interval, doubling up to
    /// `poll_interval_max_ns`, and at this time (ns).
    Timed { until: Option<u64> },
}

impl Arm {
    /// Returns the time at which the task is woken at the latest.
    #[must_use]
    pub fn until(self) -> Option<u64> {
        match self {
            Self::Busy => None,
            Self::Asleep { until } | Self::Timed { until } => until,
        }
    }

    /// Returns the same result, but with a wake-up at `at_ns` at the latest.
    #[must_use]
    pub fn no_later_than(self, at_ns: Option<u64>) -> Self {
        let until = [self.until(), at_ns].into_iter().flatten().min();
        match self {
            Self::Busy => Self::Busy,
            Self::Asleep { .. } => Self::Asleep { until },
            Self::Timed { .. } => Self::Timed { until },
        }
    }
}
