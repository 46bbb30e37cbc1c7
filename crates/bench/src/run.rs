//! A run, with its cost.

use super::cores;
use super::floor::Floor;
use super::groups::Line;
use super::server::Server;
use super::tally::Tally;
use serde::Serialize;
use sluice_control::drives::ReactorCounters;
use std::time::Duration;

/// Share of its core with which a thread counts as having had it.
const WHOLE_CORE: f64 = 0.97;

/// Source of processor times and counters.
pub(super) enum Meter<'a> {
    /// Reactor of this process, whose numbers are complete and exact.
    Ours(&'a Server),
    /// Another process, if its ID is known: all its threads, to within a tick of the kernel.
    Theirs(Option<u32>),
}

/// Values of a `Meter`.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    server_cpu_ns: Option<u64>,
    host_cpu_ns: Option<u64>,
    counters: Option<ReactorCounters>,
}

impl Meter<'_> {
    pub(super) fn read(&self) -> Reading {
        let host_cpu_ns = Some(cores::thread_cpu_ns());
        match self {
            // The counters are read after the processor time. That query wakes the reactor, so the counters
            // then have all of its sleep.
            Self::Ours(server) => {
                let server_cpu_ns = server.cpu_ns();
                Reading { server_cpu_ns, host_cpu_ns, counters: Some(server.counters()) }
            }
            Self::Theirs(pid) => {
                let server_cpu_ns = pid.map(cores::process_cpu_ns);
                Reading { server_cpu_ns, host_cpu_ns, counters: None }
            }
        }
    }
}

#[cfg(test)]
impl Reading {
    /// Returns the reading of a meter with nothing but the processor time of the host.
    pub(super) fn of_host(cpu_ns: u64) -> Self {
        Self { host_cpu_ns: Some(cpu_ns), ..Self::default() }
    }
}

/// A run of a load, and of the floor before and after it.
#[derive(Clone, Debug)]
pub struct Run {
    pub tally: Tally,
    pub floor: Option<Floor>,
    /// Distance of the processors, if it was probed.
    pub line: Option<Line>,
    /// Processor time of the serving reactor or process, in nanoseconds, if it is known.
    pub server_cpu_ns: Option<u64>,
    /// Processor time of the host, in nanoseconds, if there is one.
    pub host_cpu_ns: Option<u64>,
    pub work: Option<Work>,
    /// Time from before to after, the last commands included.
    wall: Duration,
    slept: Duration,
}

/// Counters of the reactor in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Work {
    /// Turns of the loop.
    pub turns: u64,
    /// Turns that found work.
    pub busy_turns: u64,
    /// Looks at a drive that found nothing.
    pub spurious_polls: u64,
    /// Entries into the kernel.
    pub syscalls: u64,
    /// Times the reactor went to sleep.
    pub sleeps: u64,
    /// Times a single drive went to sleep.
    pub drive_sleeps: u64,
}

impl Run {
    pub fn new(tally: Tally, before: Reading, after: Reading, wall: Duration) -> Self {
        let counters = before.counters.zip(after.counters);
        let host_cpu = before.host_cpu_ns.zip(after.host_cpu_ns);
        let server_cpu = before.server_cpu_ns.zip(after.server_cpu_ns);
        Self {
            tally,
            floor: None,
            line: None,
            server_cpu_ns: server_cpu.map(|(before, after)| after.saturating_sub(before)),
            host_cpu_ns: host_cpu.map(|(before, after)| after.saturating_sub(before)),
            slept: counters.as_ref().map_or(Duration::ZERO, |(before, after)| {
                Duration::from_nanos(after.sleep_ns.saturating_sub(before.sleep_ns))
            }),
            work: counters.as_ref().map(|(before, after)| Work::between(before, after)),
            wall,
        }
    }

    /// Returns the run as that of a load that needs no host.
    pub fn without_host(self) -> Self {
        Self { host_cpu_ns: None, ..self }
    }

    /// Returns the run with one of the floor beside it.
    pub fn beside(self, floor: Option<Floor>) -> Self {
        Self { floor, ..self }
    }

    /// Returns the run with the distance of the processors.
    pub fn at(self, line: Option<Line>) -> Self {
        Self { line, ..self }
    }

    /// Returns the share of its core that the reactor had while it did not sleep of its own will; `None` if
    /// it is not known.
    pub fn reactor_share(&self) -> Option<f64> {
        self.work?;
        let had = Duration::from_nanos(self.server_cpu_ns?) + self.slept;
        Some(had.as_secs_f64() / self.wall.as_secs_f64())
    }

    /// Returns the share of its core that the host had, if there is a host.
    pub fn host_share(&self) -> Option<f64> {
        Some(Duration::from_nanos(self.host_cpu_ns?).as_secs_f64() / self.wall.as_secs_f64())
    }

    /// Returns whether both threads really had their cores, and those of the floor too, as far as is known.
    pub fn had_cores(&self) -> bool {
        let floor = self.floor.map(|floor| floor.core_share);
        let shares = [self.host_share(), self.reactor_share(), floor];
        shares.into_iter().flatten().all(|share| share >= WHOLE_CORE)
    }
}

impl Work {
    fn between(before: &ReactorCounters, after: &ReactorCounters) -> Self {
        Self {
            turns: after.turns - before.turns,
            busy_turns: after.busy_turns - before.busy_turns,
            spurious_polls: after.spurious_polls - before.spurious_polls,
            syscalls: after.syscalls - before.syscalls,
            sleeps: after.sleeps - before.sleeps,
            drive_sleeps: after.drive_sleeps - before.drive_sleeps,
        }
    }

    /// Adds up the work of two runs.
    pub fn plus(self, other: Self) -> Self {
        Self {
            turns: self.turns + other.turns,
            busy_turns: self.busy_turns + other.busy_turns,
            spurious_polls: self.spurious_polls + other.spurious_polls,
            syscalls: self.syscalls + other.syscalls,
            sleeps: self.sleeps + other.sleeps,
            drive_sleeps: self.drive_sleeps + other.drive_sleeps,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::histogram::Histogram;
    use super::*;

    /// Returns a run of a second in which the host had this share of its core, and each command took 5 us.
    pub(in super::super) fn run(commands: u64, floor: f64, host_share: f64) -> Run {
        let mut latencies = Histogram::default();
        latencies.record(5_000, 100);
        let wall = Duration::from_secs(1);
        let tally = Tally { commands, elapsed: wall, latencies, shares: vec![3, 4], ..Tally::default() };
        let after = Reading::of_host((host_share * 1e9) as u64);
        let run = Run::new(tally, Reading::of_host(0), after, wall);
        run.beside(Some(Floor { rate: floor, core_share: 1.0 }))
    }

    #[test]
    fn a_core_is_had_by_who_is_hardly_ever_kept_from_it() {
        assert!(run(1, 1.0, 0.97).had_cores());
        assert!(!run(1, 1.0, 0.96).had_cores());
        let floor = Floor { rate: 1.0, core_share: 0.5 };
        assert!(!run(1, 1.0, 1.0).beside(Some(floor)).had_cores());
        assert!(run(1, 1.0, 0.5).without_host().had_cores());
    }
}
