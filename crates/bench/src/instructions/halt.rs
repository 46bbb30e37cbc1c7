//! A task that stops its reactor at the beginning of each turn, for a tracer.

use super::super::server::Server;
use super::mark::Mark;
use sluice_reactor::{Arm, Counters, ReactorHandle, Task};
use sluice_spec::error::ApiError;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

/// Phase of the count, shared by two reactors and the thread that sends the load.
#[derive(Clone, Debug, Default)]
pub(super) struct Phase(Arc<AtomicU8>);

const BEFORE: u8 = 0;
const COUNTED: u8 = 1;
const OVER: u8 = 2;
/// Value when both reactors have seen the end.
const SEEN: u8 = OVER + 2;

impl Phase {
    pub(super) fn begin(&self) {
        self.0.store(COUNTED, Ordering::Release);
    }

    /// Waits until both reactors have seen the end: later work is not to be counted.
    pub(super) fn end(&self) {
        self.0.store(OVER, Ordering::Release);
        while self.get() < SEEN {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn get(&self) -> u8 {
        self.0.load(Ordering::Acquire)
    }
}

/// Adds the task to a reactor, which then ends with the process. The first task has the first turn. So the
/// work of the others in their turns, and later submissions, lie between the same two stops.
pub(super) fn plant(server: &Server, phase: &Phase) -> Result<(), ApiError> {
    let (reactor, phase) = (server.reactor()?.clone(), phase.clone());
    let halt = Halt { reactor, phase, seen: None, is_over: false };
    server.on_reactor(|local| local.add(|_, _| Box::new(halt))).map(|_| ())
}

/// Returns the entries into the kernel without looks at a socket that found nothing: the number of such looks
/// depends on the time that the other side takes.
pub(super) fn asked_for(counters: &Counters) -> u64 {
    counters.syscalls - counters.vain_receives
}

struct Halt {
    reactor: ReactorHandle,
    phase: Phase,
    /// Number of events up to the last stop.
    seen: Option<u64>,
    is_over: bool,
}

impl Halt {
    /// Returns a number that grows with any work: by tasks, for them, and by the kernel.
    fn happened(&self) -> u64 {
        let counters = self.reactor.counters();
        counters.commands + counters.events + asked_for(&counters)
    }

    fn stop(&mut self) {
        let happened = self.happened();
        let is_idle = self.seen == Some(happened);
        self.seen = Some(happened);
        self.is_over = is_idle && self.phase.get() >= OVER;
        if self.is_over {
            self.phase.0.fetch_add(1, Ordering::AcqRel);
        }
        match (is_idle, self.is_over) {
            (false, _) => Mark::Work.stop(),
            (true, false) => Mark::Idle.stop(),
            (true, true) => Mark::Over.stop(),
        }
    }
}

impl Task for Halt {
    fn turn(&mut self, _now_ns: u64) -> usize {
        if self.phase.get() != BEFORE && !self.is_over {
            if self.seen.is_none() {
                // The cost of the stop itself lies between these two.
                self.stop();
            }
            self.stop();
        }
        0
    }

    fn event(&mut self, _token: u64, _result: i32, _more: bool, _now_ns: u64) {}

    fn arm(&mut self, _now_ns: u64) -> Arm {
        Arm::Busy
    }
}
