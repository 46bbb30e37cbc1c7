//! State that the owner and a remote task share without mail between reactors.

use sluice_reactor::{ReactorHandle, TaskId};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, fence};

#[derive(Debug, Default)]
pub(super) struct Signals {
    /// Recall of the group by the owner.
    recalled: AtomicBool,
    /// Mark of a remote task that sleeps, or that is about to after one last check for work.
    asleep: AtomicBool,
    interrupts: AtomicU64,
}

/// Calls of the remote task.
impl Signals {
    #[inline]
    pub(super) fn is_recalled(&self) -> bool {
        self.recalled.load(Relaxed)
    }

    /// Marks the task as asleep. Only a check after this call shows reliably that no work is left.
    pub(super) fn fall_asleep(&self) {
        self.asleep.store(true, Relaxed);
        fence(SeqCst);
    }

    pub(super) fn wake_up(&self) {
        self.asleep.store(false, Relaxed);
    }

    /// Stores the number of interrupts that the task has signalled since it received its group.
    #[inline]
    pub(super) fn count(&self, interrupts: u64) {
        self.interrupts.store(interrupts, Relaxed);
    }
}

/// Handle of a remote task for other reactors.
#[derive(Clone, Debug)]
pub struct RemoteHandle {
    pub(super) reactor: ReactorHandle,
    pub(super) task: TaskId,
    pub(super) signals: Arc<Signals>,
}

impl RemoteHandle {
    /// Returns the reactor of the task, which runs there until it ends.
    pub fn reactor(&self) -> &ReactorHandle {
        &self.reactor
    }

    pub fn task(&self) -> TaskId {
        self.task
    }

    pub(super) fn recall(&self) {
        self.signals.recalled.store(true, Relaxed);
        self.wake();
    }

    /// Wakes the task if it sleeps, after a doorbell was stored. A task that is awake reads the doorbell
    /// itself.
    pub(super) fn notify_doorbell(&self) {
        fence(SeqCst);
        if self.signals.asleep.swap(false, Relaxed) {
            self.wake();
        }
    }

    fn wake(&self) {
        let task = self.task;
        // A wake-up of a task that has ended has no effect.
        self.reactor.mail_always(move |local| local.wake(task));
    }

    pub(super) fn interrupts(&self) -> u64 {
        self.signals.interrupts.load(Relaxed)
    }
}
