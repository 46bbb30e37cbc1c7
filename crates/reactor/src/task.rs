//! What a reactor polls.

use std::any::Any;
use std::sync::{Mutex, PoisonError};

/// Tasks that all reactors of a process can hold at once. The last value of the 16 bits is the reactors' own.
pub const MAX_TASKS: usize = u16::MAX as usize;

/// Names a task, on whichever reactor it is. Not used again while an operation of the task it named is in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId(pub(crate) u16);

impl TaskId {
    /// Position in tables that are indexed by task.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// What belongs to a reactor rather than to a task of it.
    pub(crate) const OWN: Self = Self(u16::MAX);

    /// A number that no task has, until it is [given back](Self::give_back).
    pub(crate) fn take() -> Option<Self> {
        // A panic ends the process, so nobody poisons it.
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

/// The numbers of tasks: those of all reactors, so that a task that moves has its own everywhere. Locked when a
/// task comes or goes.
static NUMBERS: Mutex<Numbers> = Mutex::new(Numbers { next: 0, free: Vec::new() });

struct Numbers {
    next: u16,
    free: Vec<TaskId>,
}

/// Something with work that is found by looking, polled by one reactor at a time: it may
/// [move](crate::TaskHandle::move_to) to another.
///
/// No method may block. All run on the reactor's thread, one at a time, with `now_ns` of the turn.
pub trait Task: Any + Send {
    /// One look at everything this task polls. Returns how much work it did; 0 is a spurious poll.
    fn turn(&mut self, now_ns: u64) -> usize;

    /// Asks the cache for what the next [`turn`](Task::turn) looks at first. Called while another task
    /// has its turn, where there are several: what other cores wrote is then underway.
    fn look_ahead(&self) {}

    /// An io_uring completion for a token this task pushed (any 64 bits); `result` is the kernel's (a negative errno
    /// on failure). `more` says that a multishot poll stays armed; when it is false the poll has ended,
    /// for whatever reason (the task may have moved), and a task that still wants it asks again.
    fn event(&mut self, token: u64, result: i32, more: bool, now_ns: u64);

    /// No work for a while: arm whatever wakes this task, then look once more.
    fn arm(&mut self, now_ns: u64) -> Arm;

    /// Woken (by an event, its time, or a mail): back to polling.
    ///
    /// Comes before the [`event`](Task::event) that woke the task. A task that is looked at on a timer
    /// stays armed during that look, and is disarmed after a [`turn`](Task::turn) that found work.
    fn disarm(&mut self) {}
}

/// What became of an attempt to put a task to sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arm {
    /// Found work: keep polling.
    Busy,
    /// An event will wake it, or this time (ns).
    Asleep { until: Option<u64> },
    /// Nothing can wake it (a mapped doorbell page): look again after a growing interval, doubling up
    /// to `poll_interval_max_ns`, and at this time (ns).
    Timed { until: Option<u64> },
}

impl Arm {
    /// The time at which it is woken at the latest.
    #[must_use]
    pub fn until(self) -> Option<u64> {
        match self {
            Self::Busy => None,
            Self::Asleep { until } | Self::Timed { until } => until,
        }
    }

    /// The same, but woken at `at_ns` at the latest.
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
