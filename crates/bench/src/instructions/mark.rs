//! Where a thread that is counted stops: it sends itself a signal, which its tracer takes away.

use nix::sys::signal::{Signal, raise};

/// What a stop says of the way to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// It counts.
    Work,
    /// Nothing was to be done: it does not.
    Idle,
    /// Nothing was, and nothing will be.
    Over,
}

impl Mark {
    pub(super) fn of(signal: Signal) -> Option<Self> {
        [Self::Work, Self::Idle, Self::Over].into_iter().find(|mark| mark.signal() == signal)
    }

    /// Any that nobody else sends.
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
