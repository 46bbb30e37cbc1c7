//! Counts of a program's runs: written by the reactor that runs it, read by any thread.

use sluice_ebpf::Trap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Calls of a program, by hook.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hooks {
    pub submission: u64,
    pub leg_done: u64,
    pub before_completion: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Tally {
    hooks: [AtomicU64; 3],
    traps: AtomicU64,
    /// Last end without a verdict. The program's thread never waits for the lock: while another thread reads,
    /// the value before stays.
    last_trap: Mutex<Option<Trap>>,
}

impl Tally {
    /// Counts a run at this hook, by its number in the context.
    #[inline]
    pub(crate) fn called(&self, hook: u8) {
        if let Some(count) = self.hooks.get(usize::from(hook)) {
            // One thread writes, so no read-modify-write is needed.
            count.store(count.load(Relaxed) + 1, Relaxed);
        }
    }

    #[cold]
    pub(crate) fn trapped(&self, trap: Trap) {
        self.traps.fetch_add(1, Relaxed);
        if let Ok(mut last) = self.last_trap.try_lock() {
            *last = Some(trap);
        }
    }

    pub(crate) fn hooks(&self) -> Hooks {
        let [submission, leg_done, before_completion] = &self.hooks;
        Hooks {
            submission: submission.load(Relaxed),
            leg_done: leg_done.load(Relaxed),
            before_completion: before_completion.load(Relaxed),
        }
    }

    pub(crate) fn traps(&self) -> u64 {
        self.traps.load(Relaxed)
    }

    pub(crate) fn last_trap(&self) -> Option<Trap> {
        // A panic ends the process, so the mutex is never poisoned.
        self.last_trap.lock().ok().and_then(|last| *last)
    }
}
