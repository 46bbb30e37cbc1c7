//! One run, with what it cost.

use super::cores;
use super::floor::Floor;
use super::server::Server;
use super::tally::Tally;
use crate::drives::ReactorCounters;
use serde::Serialize;
use std::time::Duration;

/// What a thread got of its core that counts as having had it.
const WHOLE_CORE: f64 = 0.97;

/// Where processor time and counters are read.
pub(super) struct Meter<'a> {
    pid: Option<u32>,
    /// What the names of the threads that serve begin with.
    threads: &'static str,
    /// Ours; another process tells no counters.
    server: Option<&'a Server>,
}

/// What a [`Meter`] shows.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    server_cpu_ns: Option<u64>,
    host_cpu_ns: Option<u64>,
    counters: Option<ReactorCounters>,
}

impl<'a> Meter<'a> {
    pub(super) fn new(pid: Option<u32>, threads: &'static str, server: Option<&'a Server>) -> Self {
        Self { pid, threads, server }
    }

    pub(super) fn read(&self) -> Reading {
        Reading {
            server_cpu_ns: self.pid.map(|pid| cores::threads_cpu_ns(pid, self.threads)),
            host_cpu_ns: Some(cores::thread_cpu_ns()),
            counters: self.server.map(Server::counters),
        }
    }
}

#[cfg(test)]
impl Reading {
    /// A meter that shows nothing but the processor time of the host.
    pub(super) fn of_host(cpu_ns: u64) -> Self {
        Self { host_cpu_ns: Some(cpu_ns), ..Self::default() }
    }
}

/// One run of a load, and of the floor before it.
#[derive(Clone, Debug)]
pub struct Run {
    pub tally: Tally,
    pub floor: Option<Floor>,
    /// Processor time of whoever serves, in nanoseconds, if that is known.
    pub server_cpu_ns: Option<u64>,
    /// Processor time of the host, in nanoseconds, if there is one.
    pub host_cpu_ns: Option<u64>,
    pub work: Option<Work>,
    /// From before to after, the last commands included.
    wall: Duration,
    slept: Duration,
}

/// What the reactor counted in a run.
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
            server_cpu_ns: server_cpu.map(|(before, after)| after.saturating_sub(before)),
            host_cpu_ns: host_cpu.map(|(before, after)| after.saturating_sub(before)),
            slept: counters.as_ref().map_or(Duration::ZERO, |(before, after)| {
                Duration::from_nanos(after.sleep_ns.saturating_sub(before.sleep_ns))
            }),
            work: counters.as_ref().map(|(before, after)| Work::between(before, after)),
            wall,
        }
    }

    /// The same run, of a load that needs no host.
    pub fn without_host(self) -> Self {
        Self { host_cpu_ns: None, ..self }
    }

    /// The same run, beside one of the floor.
    pub fn beside(self, floor: Option<Floor>) -> Self {
        Self { floor, ..self }
    }

    /// Nanoseconds of a processor for each command.
    pub fn per_command(&self, cpu_ns: u64) -> f64 {
        cpu_ns as f64 / self.tally.commands.max(1) as f64
    }

    /// The share of its core that the reactor had while it did not sleep of its own will; none if
    /// nobody knows.
    pub fn reactor_share(&self) -> Option<f64> {
        self.work?;
        let had = Duration::from_nanos(self.server_cpu_ns?) + self.slept;
        Some(had.as_secs_f64() / self.wall.as_secs_f64())
    }

    /// The share of its core that the host had, if there is one.
    pub fn host_share(&self) -> Option<f64> {
        Some(Duration::from_nanos(self.host_cpu_ns?).as_secs_f64() / self.wall.as_secs_f64())
    }

    /// True if both threads really had their cores, and those of the floor too, as far as is known.
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
}
