//! The protocol by which a lease is taken, renewed and lost. It has no I/O and no clock: a thread has both,
//! and passes the results.
//!
//! A holder may use the storage for [`EXPIRE`](Timing::expire_ns) after the beginning of the read before the
//! last claim that it has written. Another daemon takes the lease when it has seen the same claim for longer
//! than that. It writes its own claim, waits, and reads again: of two claims, the later one is read. Each
//! daemon measures all times by its own clock.

use super::block::{Claim, Content};

const SECOND_NS: u64 = 1_000_000_000;

/// Times of the protocol, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Timing {
    /// Interval between the beginnings of two renewals.
    pub(in super::super) renew_ns: u64,
    /// Time that a holder may go without a renewal.
    pub(in super::super) expire_ns: u64,
    /// Time that a claim stands still before another daemon takes the lease.
    pub(in super::super) still_ns: u64,
    /// Maximum from the beginning of the read that shows a lease to be free to the end of the write that
    /// claims it.
    pub(in super::super) latency_ns: u64,
    /// Time that a claim has to stand before it is a lease.
    pub(in super::super) settle_ns: u64,
}

impl Timing {
    /// Times for clocks that are at most a tenth fast or slow: `still` is longer than `expire`, and `settle`
    /// than `latency`, by more than that.
    pub(in super::super) const USUAL: Self = Self {
        renew_ns: 2 * SECOND_NS,
        expire_ns: 10 * SECOND_NS,
        still_ns: 20 * SECOND_NS,
        latency_ns: SECOND_NS,
        settle_ns: 2 * SECOND_NS,
    };
}

/// Next action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Read,
    Write(Claim),
    /// Nothing before this time.
    Wait(u64),
    /// Another daemon has the lease, and renews it.
    Taken(Claim),
    /// The block holds something else, and is not written to.
    Other,
    /// The lease was held, and is lost for good.
    Lost(Loss),
}

/// Reason why a lease was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    /// No renewal has succeeded in time.
    Late,
    /// The block has another's claim, or something else.
    Overwritten(Content),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// Checks whether the claim of another daemon stands still. `seen` is that claim, and the time when it
    /// was first seen.
    Watching {
        seen: Option<(Claim, u64)>,
        wake_ns: u64,
    },
    /// Writes a claim. The read that showed the lease to be free began at `read_ns`.
    Claiming {
        read_ns: u64,
    },
    /// Waits until other claims would have been seen. The read before the claim began at `read_ns`.
    Settling {
        until_ns: u64,
        read_ns: u64,
    },
    Held {
        renew_ns: u64,
    },
    /// Writes the next claim, after a read that returned the own one.
    Renewing {
        read_ns: u64,
    },
    Stopped(Step),
}

/// Daemon that takes a lease, or has it.
#[derive(Debug)]
pub(super) struct Party {
    timing: Timing,
    claim: Claim,
    state: State,
    until_ns: Option<u64>,
}

impl Party {
    pub(super) fn new(timing: Timing, holder: u128, name: String) -> Self {
        let claim = Claim { holder, counter: 0, name, held: true };
        Self { timing, claim, state: State::Watching { seen: None, wake_ns: 0 }, until_ns: None }
    }

    /// Returns the time until which the lease is held at least; none before it is held, and after it was
    /// lost.
    pub(super) fn until_ns(&self) -> Option<u64> {
        self.until_ns
    }

    pub(super) fn next(&mut self, now_ns: u64) -> Step {
        if self.until_ns.is_some_and(|until_ns| until_ns <= now_ns) {
            self.lose(Loss::Late);
        }
        let due = |at_ns: u64| if at_ns > now_ns { Step::Wait(at_ns) } else { Step::Read };
        match &self.state {
            State::Watching { wake_ns, .. } => due(*wake_ns),
            State::Settling { until_ns, .. } => due(*until_ns),
            State::Held { renew_ns } => due(*renew_ns),
            State::Claiming { .. } | State::Renewing { .. } => Step::Write(self.claim.clone()),
            State::Stopped(step) => step.clone(),
        }
    }

    /// Takes the block of a read that began at `began_ns`.
    pub(super) fn read(&mut self, began_ns: u64, now_ns: u64, content: Content) {
        match std::mem::replace(&mut self.state, State::Claiming { read_ns: began_ns }) {
            State::Watching { seen, .. } => self.watch(seen, (began_ns, now_ns), content),
            // Other daemons count from the time the claim was written, not from this one. A daemon that stood
            // still begins anew.
            State::Settling { read_ns, .. }
                if self.is_own(&content) && now_ns < read_ns + self.timing.expire_ns =>
            {
                self.until_ns = Some(read_ns + self.timing.expire_ns);
                self.state = State::Held { renew_ns: now_ns };
            }
            State::Settling { .. } => self.watch(None, (began_ns, now_ns), content),
            State::Held { .. } if self.is_own(&content) => {
                self.claim.counter += 1;
                self.state = State::Renewing { read_ns: began_ns };
            }
            State::Held { .. } => self.lose(Loss::Overwritten(content)),
            other => self.state = other,
        }
    }

    /// Checks the claim of another daemon: one that stands still for long enough is dead.
    fn watch(&mut self, seen: Option<(Claim, u64)>, (began_ns, now_ns): (u64, u64), content: Content) {
        let claim = match content {
            Content::Other => return self.state = State::Stopped(Step::Other),
            Content::Blank => return self.claim.counter += 1,
            Content::Claim(claim) => claim,
        };
        let is_dead = |since_ns: u64| began_ns >= since_ns + self.timing.still_ns;
        match seen {
            _ if !claim.held => self.claim.counter += 1,
            Some((before, since_ns)) if before == claim && is_dead(since_ns) => self.claim.counter += 1,
            Some((before, _)) if before.holder == claim.holder && before != claim => {
                self.state = State::Stopped(Step::Taken(claim));
            }
            seen => {
                let seen = seen.filter(|(before, _)| *before == claim).unwrap_or((claim, now_ns));
                self.state = State::Watching { seen: Some(seen), wake_ns: now_ns + self.timing.renew_ns / 2 };
            }
        }
    }

    /// Ends a write of the claim. `holder` is for another attempt, because a failed claim may stay in the
    /// block.
    pub(super) fn written(&mut self, now_ns: u64, good: bool, holder: u128) {
        match self.state {
            State::Claiming { read_ns } if good && now_ns <= read_ns + self.timing.latency_ns => {
                self.state = State::Settling { until_ns: now_ns + self.timing.settle_ns, read_ns };
            }
            State::Claiming { .. } => {
                self.claim = Claim { holder, counter: 0, ..self.claim.clone() };
                self.state = State::Watching { seen: None, wake_ns: now_ns + self.timing.renew_ns / 2 };
            }
            State::Renewing { read_ns } => {
                let in_time = self.until_ns.is_some_and(|until_ns| now_ns < until_ns);
                match (in_time, good) {
                    (false, _) => return self.lose(Loss::Late),
                    (true, true) => self.until_ns = Some(read_ns + self.timing.expire_ns),
                    (true, false) => {}
                }
                self.state = State::Held { renew_ns: now_ns.max(read_ns + self.timing.renew_ns) };
            }
            _ => {}
        }
    }

    /// Schedules another read after one that has failed.
    pub(super) fn unread(&mut self, now_ns: u64) {
        let again_ns = now_ns + self.timing.renew_ns / 2;
        match &mut self.state {
            State::Watching { wake_ns, .. } => *wake_ns = again_ns,
            State::Settling { until_ns, .. } => *until_ns = again_ns,
            State::Held { renew_ns } => *renew_ns = again_ns,
            _ => {}
        }
    }

    /// Gives the lease back. Returns the claim to write, if the block holds the own claim.
    pub(super) fn release(&mut self, now_ns: u64, content: &Content) -> Option<Claim> {
        let holds = self.until_ns.take().is_some_and(|until_ns| now_ns < until_ns);
        let released = Claim { held: false, counter: self.claim.counter + 1, ..self.claim.clone() };
        (holds && self.is_own(content)).then_some(released)
    }

    fn is_own(&self, content: &Content) -> bool {
        matches!(content, Content::Claim(claim) if claim.holder == self.claim.holder && claim.held)
    }

    fn lose(&mut self, loss: Loss) {
        self.until_ns = None;
        self.state = State::Stopped(Step::Lost(loss));
    }
}
