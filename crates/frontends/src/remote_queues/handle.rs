//! What home and an outpost know of each other without a mail.

use sluice_reactor::{ReactorHandle, TaskId};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, fence};

#[derive(Debug, Default)]
pub(super) struct Signals {
    /// Home wants the group back.
    recalled: AtomicBool,
    /// The outpost sleeps, or has looked for the last time before it does.
    asleep: AtomicBool,
    interrupts: AtomicU64,
}

/// As the outpost.
impl Signals {
    #[inline]
    pub(super) fn is_recalled(&self) -> bool {
        self.recalled.load(Relaxed)
    }

    /// Only a look after this tells that there is nothing to do.
    pub(super) fn fall_asleep(&self) {
        self.asleep.store(true, Relaxed);
        fence(SeqCst);
    }

    pub(super) fn wake_up(&self) {
        self.asleep.store(false, Relaxed);
    }

    /// How often it has interrupted since it got its group.
    #[inline]
    pub(super) fn count(&self, interrupts: u64) {
        self.interrupts.store(interrupts, Relaxed);
    }
}

/// An outpost as others see it.
#[derive(Clone, Debug)]
pub struct RemoteHandle {
    pub(super) reactor: ReactorHandle,
    pub(super) task: TaskId,
    pub(super) signals: Arc<Signals>,
}

impl RemoteHandle {
    /// Where it is, for as long as it is there.
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

    /// A doorbell was stored: the outpost sees it, or is woken.
    pub(super) fn notify_doorbell(&self) {
        fence(SeqCst);
        if self.signals.asleep.swap(false, Relaxed) {
            self.wake();
        }
    }

    fn wake(&self) {
        let task = self.task;
        // One that is gone has nothing to look at.
        self.reactor.mail_always(move |local| local.wake(task));
    }

    pub(super) fn interrupts(&self) -> u64 {
        self.signals.interrupts.load(Relaxed)
    }
}
