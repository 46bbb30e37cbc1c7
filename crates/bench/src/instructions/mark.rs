//! Stops of a counted thread: the thread sends itself a signal, which its tracer takes away.

use nix::sys::signal::{Signal, raise};

/// Meaning of a stop for the instructions before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// Work, which counts.
    Work,
    /// Turn without work, which does not count.
    Idle,
    /// Turn without work, after which no work will come.
    Over,
}

impl Mark {
    pub(super) fn of(signal: Signal) -> Option<Self> {
        [Self::Work, Self::Idle, Self::Over].into_iter().find(|mark| mark.signal() == signal)
    }

    /// Returns a signal that no other process sends.
    fn signal(self) -> Signal {
        match self {
            Self::Work => Signal::SIGSTOP,
            Self::Idle => Signal::SIGTSTP,
            Self::Over => Signal::SIGTTIN,
        }
    }

    pub(super) fn stop(self) {
        // A signal to oneself cannot fail.
        let _ = raise(self.signal());
    }
}
