//! A host that is at work beside malicious ones.

use crate::common::{Daemon, namespace, wait_for};
use crate::function::Verified;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;

/// A thread that repeats some work, and panics when it fails.
pub(crate) struct Neighbour {
    rounds: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Neighbour {
    /// Starts the thread. `work` gets the number of its earlier calls.
    pub(crate) fn start(mut work: impl FnMut(u64) + Send + 'static) -> Self {
        let (rounds, over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (counted, is_over) = (Arc::clone(&rounds), Arc::clone(&over));
        let thread = std::thread::spawn(move || {
            while !is_over.load(Relaxed) {
                work(counted.fetch_add(1, Relaxed));
            }
        });
        Self { rounds, over, thread }
    }

    /// Starts a guest on this drive of 16 MiB, which checks its reads.
    pub(crate) fn on(daemon: &Daemon, drive: &str) -> Self {
        let mut controller = daemon.host(drive);
        let verified = Verified::new(namespace(&mut controller, 1));
        // The controller is kept, because the queues are gone with it.
        let mut host = (verified, controller);
        Self::start(move |_| {
            let host = &mut host;
            host.0.work(10).expect("every command succeeds");
            host.0.is_right();
        })
    }

    /// Waits until the work was repeated, which shows that it goes on.
    pub(crate) fn goes_on(&self) {
        let now = self.rounds.load(Relaxed);
        wait_for("a neighbour's I/O", || self.rounds.load(Relaxed) > now + 1);
    }

    /// Stops the thread, and checks that no work failed.
    pub(crate) fn end(self) {
        self.over.store(true, Relaxed);
        self.thread.join().expect("every command succeeds, and its data is right");
    }
}
