//! `sluice bench idle`: the cost of drives that no host uses, and the time until they are awake again.
//!
//! The daemon is a process of its own with many drives, as users run it. Each drive is enabled by a host that
//! has its queues and its interrupts and sends nothing, as many virtual machines do most of the time.

use super::cell::{Drives, Queues};
use super::client::{Client, Doorbells, trouble};
use super::cores::{Cores, process_cpu_ns};
use super::daemon::Daemon;
use super::histogram::Histogram;
use super::machine::Machine;
use super::report::Latency;
use clap::Args;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;
use sluice_host::{Deadline, Interrupt, QueueLayout, QueuePair, entry};
use sluice_spec::error::ApiError;
use sluice_spec::table::pairs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// `sluice bench idle`
#[derive(Debug, Args)]
pub struct IdleArgs {
    /// Drives, each with a host
    #[arg(long, default_value = "100")]
    drives: Drives,
    /// I/O queue pairs of each
    #[arg(long, value_name = "PAIRS", default_value = "2")]
    queues: Queues,
    /// Seconds to watch
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    time: u32,
    /// Way in which doorbells reach the reactor
    #[arg(long, value_enum, default_value = "trapped")]
    doorbells: Doorbells,
}

/// Results of the measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Idle {
    machine: Machine,
    drives: u32,
    queues: u32,
    doorbells: Doorbells,
    seconds: u32,
    /// Processor time of all threads of the daemon, in percent of one processor.
    cpu_percent: f64,
    /// Latency of the first command on some of the drives, until its interrupt.
    wake: Latency,
    /// Memory of the daemon without drives.
    daemon_bytes: u64,
    /// Memory that each drive adds, without memory of the host, such as its queues.
    bytes_per_drive: u64,
}

/// Pause before the watch begins, in which everything comes to rest.
const SETTLE: Duration = Duration::from_secs(2);

/// Number of drives that are woken in the end.
const WOKEN: usize = 20;

/// Time limit of a command.
const PATIENCE: Duration = Duration::from_secs(5);

/// A host that does nothing.
struct Host {
    client: Client,
    queue: QueuePair,
    interrupt: Interrupt,
    /// The other queues, and the admin queue's interrupt.
    _rest: (Vec<QueuePair>, Vec<Interrupt>),
}

pub fn run(arguments: &IdleArgs) -> Result<Idle, ApiError> {
    raise_descriptor_limit();
    let daemon_bytes = {
        let empty = Daemon::start(0)?;
        sleep(SETTLE);
        memory_bytes(empty.pid())?
    };
    let daemon = Daemon::start(arguments.drives.0)?;
    let connect = |socket: &PathBuf| Host::connect(socket, arguments);
    let mut hosts = daemon.sockets().iter().map(connect).collect::<Result<Vec<_>, _>>()?;
    sleep(SETTLE);
    let (before, start) = (process_cpu_ns(daemon.pid()), Instant::now());
    sleep(Duration::from_secs(arguments.time.into()));
    let used_ns = process_cpu_ns(daemon.pid()).saturating_sub(before);
    let cpu_percent = used_ns as f64 / start.elapsed().as_nanos() as f64 * 100.0;
    let bytes = memory_bytes(daemon.pid())?.saturating_sub(daemon_bytes);
    let wake = wake_some(&mut hosts)?;
    Ok(Idle {
        machine: Machine::of_this(Cores::choose()),
        drives: arguments.drives.0,
        queues: arguments.queues.0,
        doorbells: arguments.doorbells,
        seconds: arguments.time,
        cpu_percent,
        wake,
        daemon_bytes,
        bytes_per_drive: bytes / u64::from(arguments.drives.0),
    })
}

impl Host {
    fn connect(socket: &Path, arguments: &IdleArgs) -> Result<Self, ApiError> {
        let mut client = Client::connect(socket, arguments.doorbells)?;
        let controller = &mut client.controller;
        let mut open = || {
            controller.set_queue_count(arguments.queues.0)?;
            let mut interrupts = vec![controller.interrupt(0)?];
            let mut queues = Vec::new();
            for id in 1..=arguments.queues.0 as u16 {
                interrupts.push(controller.interrupt(id)?);
                queues.push(controller.create_queue_pair(id, QueueLayout::default(), Some(id))?);
            }
            Ok((queues, interrupts))
        };
        let (mut queues, mut interrupts) = open().map_err(|error: sluice_host::Error| trouble(&error))?;
        match (queues.pop(), interrupts.pop()) {
            (Some(queue), Some(interrupt)) => {
                Ok(Self { client, queue, interrupt, _rest: (queues, interrupts) })
            }
            _ => Err(ApiError::internal("a host without a queue")),
        }
    }

    /// Returns the nanoseconds that one read takes until its interrupt.
    fn wake(&mut self) -> Result<u64, ApiError> {
        let data = self.client.controller.memory().allocate(4096).map_err(|error| trouble(&error))?;
        let blocks = 4096 / self.client.geometry.block_size;
        let deadline = Deadline::after(PATIENCE, "a command on an idle drive");
        let start = Instant::now();
        let read = entry::read(self.client.geometry.nsid, 0, blocks);
        let cid = self.queue.submit_prp(read, data.range(0, 4096));
        let cid = cid.ok_or_else(|| ApiError::internal("a queue that is full without a command"))?;
        self.queue.ring().map_err(|error| trouble(&error))?;
        let completion = self.queue.wait_for_interrupt(cid, &self.interrupt, &deadline, drop);
        let elapsed = start.elapsed();
        match completion.map_err(|error| trouble(&error))?.status() {
            status if status.is_success() => Ok(elapsed.as_nanos() as u64),
            status => Err(ApiError::internal(format!("a read on an idle drive failed: {status:?}"))),
        }
    }
}

/// Wakes drives from all over, one after the other, each when the others are asleep again.
fn wake_some(hosts: &mut [Host]) -> Result<Latency, ApiError> {
    let mut latencies = Histogram::default();
    let step = (hosts.len() / WOKEN).max(1);
    for host in hosts.iter_mut().step_by(step).take(WOKEN) {
        sleep(Duration::from_millis(100));
        latencies.record(host.wake()?, 1);
    }
    Ok(Latency::of(&latencies))
}

/// Raises the limit of descriptors: a hundred hosts in one process need more than the usual limit.
pub(super) fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    // Too low a limit shows when a descriptor is needed, and that error names it.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// Returns the memory of a process in bytes. Pages shared with others count in part, and memory of its hosts
/// does not count.
pub(super) fn memory_bytes(pid: u32) -> Result<u64, ApiError> {
    let path = format!("/proc/{pid}/smaps");
    let text = std::fs::read_to_string(&path).map_err(|error| ApiError::io("read", path.as_ref(), &error))?;
    Ok(own_kib(&text) << 10)
}

/// Sums up `Pss` of all mappings but those of the host's memory.
fn own_kib(smaps: &str) -> u64 {
    let (mut sum, mut lent) = (0, false);
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        match (words.next(), words.next()) {
            (Some("Pss:"), Some(kib)) if !lent => sum += kib.parse().unwrap_or(0),
            (Some(first), _) if !first.ends_with(':') => lent = line.contains("memfd:sluice-host"),
            _ => {}
        }
    }
    sum
}

impl Idle {
    pub fn text(&self) -> String {
        let kib = |bytes: u64| format!("{:.0} KiB", bytes as f64 / 1024.0);
        let micro = |ns: u64| format!("{:.0} us", ns as f64 / 1e3);
        let limits = format!("{} of {} woken", WOKEN.min(self.drives as usize), self.drives);
        self.machine.text()
            + "\n"
            + &pairs(&[
                ("drives", format!("{}, {} queue pairs each", self.drives, self.queues)),
                ("doorbells", self.doorbells.word().to_owned()),
                ("processor", format!("{:.3} % of one, over {} s", self.cpu_percent, self.seconds)),
                ("first command", format!("median {}, {limits}", micro(self.wake.p50_ns))),
                ("slowest", micro(self.wake.max_ns)),
                ("memory per drive", kib(self.bytes_per_drive)),
                ("memory without drives", kib(self.daemon_bytes)),
            ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_the_host_is_not_the_daemons() {
        let smaps = "\
            55d0c0000000-55d0c0100000 r-xp 00000000 08:01 1234   /usr/bin/sluice\n\
            Size:               1024 kB\n\
            Pss:                 100 kB\n\
            Pss_Dirty:            40 kB\n\
            VmFlags: rd ex mr mw me sd\n\
            7f0000000000-7f0000001000 rw-s 00000000 00:01 77   /memfd:sluice-host (deleted)\n\
            Pss:                   2 kB\n\
            7f0000002000-7f0000003000 rw-s 00000000 00:01 78   /memfd:sluice-doorbells (deleted)\n\
            Pss:                   4 kB\n\
            7f0000004000-7f0000005000 rw-p 00000000 00:00 0\n\
            Pss:                   8 kB\n";
        assert_eq!(own_kib(smaps), 112);
    }
}
