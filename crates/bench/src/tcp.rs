//! `sluice bench tcp`: a host and a controller over NVMe/TCP on this machine's loopback, with a processor
//! each.
//!
//! Both are in this process, wired as in the daemon. The host is the `nvme-tcp` target, driven
//! directly on a reactor of its own; the controller is a drive on the other reactor.
//!
//! Beside each figure stands the rate of the machine itself with the same bytes at the same time
//! (`loopback`). Another column has the rate of a strong peer with its own host on such a
//! machine when it was quiet. If connections are encrypted, that column has the rate of plain connections in
//! the same minute.

use super::args::seconds;
use super::cell::{BlockSize, Drives, Mix, Pattern, QueueDepth, Queues, Shape, Target};
use super::cores::Cores;
use super::direct::Direct;
use super::histogram::Histogram;
use super::loopback::Exchange;
use super::machine::Machine;
use super::server::Server;
use super::tally::{Tally, median};
use clap::Args;
use quanta::Clock;
use serde::Serialize;
use sluice_control::drives::ReactorCounters;
use sluice_spec::error::ApiError;
use sluice_spec::table::Table;
use sluice_spec::{NvmeTcpSpec, PolicyName};
use std::path::PathBuf;
use std::time::Duration;

/// `sluice bench tcp`
#[derive(Debug, Args)]
pub struct TcpArgs {
    /// Seconds of a run
    #[arg(long, value_name = "SECONDS", default_value = "0.5", value_parser = seconds)]
    time: Duration,
    /// Runs; the median counts
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=999))]
    runs: u32,
    /// Encrypt the connections; a run of plain ones before each of theirs shows the cost
    #[arg(long)]
    tls: bool,
}

/// Results of the measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Tcp {
    machine: Machine,
    rows: Vec<Row>,
}

#[derive(Clone, Debug, Serialize)]
struct Row {
    target: Target,
    #[serde(flatten)]
    shape: Shape,
    /// Commands a second: the median of the runs, then the slowest and the fastest run.
    rate: f64,
    slowest: f64,
    fastest: f64,
    /// Microseconds, of all runs together.
    p50_us: f64,
    p99_us: f64,
    /// Entries into the kernel for a command, by the host's reactor and the controller's. Looks at a socket
    /// that found nothing do not count.
    host_syscalls: f64,
    controller_syscalls: f64,
    /// Looks at a socket that found nothing, by either reactor, for a command: they replace turns that do
    /// nothing at all.
    vain_receives: f64,
    /// Exchanges of the same bytes a second, without NVMe: the median. Then the median of the commands' share
    /// of it in each run.
    floor: f64,
    of_floor: f64,
    /// Commands a second of the peer.
    #[serde(skip_serializing_if = "Option::is_none")]
    peer: Option<f64>,
    /// Commands a second of the plain connections in between, if connections are encrypted.
    #[serde(skip_serializing_if = "Option::is_none")]
    plain: Option<f64>,
}

/// Blocks, depth, mix and target of each row, with the peer's thousands of commands a second (SPDK 26.09-pre).
const CELLS: [(&str, u32, u32, Mix, Option<f64>); 14] = [
    ("null", 4 << 10, 1, Mix::READ, Some(57.5)),
    ("null", 4 << 10, 32, Mix::READ, Some(516.0)),
    ("null", 4 << 10, 128, Mix::READ, Some(709.0)),
    ("null", 4 << 10, 1, Mix::WRITE, None),
    ("null", 4 << 10, 32, Mix::WRITE, Some(737.0)),
    ("null", 4 << 10, 128, Mix::WRITE, None),
    ("memory", 4 << 10, 1, Mix::READ, Some(43.0)),
    ("memory", 4 << 10, 32, Mix::READ, Some(363.0)),
    ("memory", 4 << 10, 128, Mix::READ, Some(471.0)),
    ("memory", 4 << 10, 1, Mix::WRITE, None),
    ("memory", 4 << 10, 32, Mix::WRITE, Some(372.0)),
    ("memory", 4 << 10, 128, Mix::WRITE, None),
    ("memory", 128 << 10, 32, Mix::READ, Some(3.8e6 / 131_072.0)),
    ("memory", 128 << 10, 32, Mix::WRITE, Some(4.2e6 / 131_072.0)),
];

/// Duration of the load before the first run of a cell.
const WARM_UP: Duration = Duration::from_millis(100);

pub fn run(arguments: &TcpArgs) -> Result<Tcp, ApiError> {
    let cores = Cores::choose();
    let mut controller = Server::start(&cores)?;
    let host = Server::start(&Cores { reactor: cores.host, host: cores.reactor })?;
    let clock = Clock::new();
    let mut rows = Vec::new();
    for cells in CELLS.chunk_by(|a, b| a.0 == b.0) {
        let target: Target = cells[0].0.parse().map_err(|words: String| ApiError::internal(words))?;
        let kinds = if arguments.tls { &[false, true][..] } else { &[false] };
        let mut links = Vec::new();
        for &tls in kinds {
            let (address, nqn, tls_keys) = controller.serve(&target, tls)?;
            links.push(host.open_remote(remote(address, nqn, tls_keys))?);
            if let (Target::Memory(_), Some(link)) = (&target, links.last()) {
                link.write_everything(&clock)?;
            }
        }
        for &(_, bytes, depth, mix, peer) in cells {
            let shape = shape(bytes, depth, mix);
            super::progress(rows.len(), CELLS.len(), &format_args!("{target}: {shape}"));
            let peer = peer.filter(|_| !arguments.tls).map(|thousands| thousands * 1000.0);
            let servers = (&host, &controller);
            rows.push(Row { peer, ..measure(&target, shape, servers, &links, &clock, (arguments, &cores))? });
        }
        drop(links);
        controller.close_all()?;
    }
    Ok(Tcp { machine: Machine::of_this(cores), rows })
}

pub(super) fn remote(address: String, subnqn: String, tls_keys: Option<PathBuf>) -> NvmeTcpSpec {
    NvmeTcpSpec {
        address,
        addresses: Vec::new(),
        policy: PolicyName::RoundRobin,
        subnqn,
        size: None,
        namespace: 1,
        hostnqn: None,
        digests: Vec::new(),
        dhchap: None,
        tls_keys,
        timeout_s: 10,
        keep_alive_s: 5,
        fast_io_fail_s: None,
        ctrl_loss_s: 0,
    }
}

pub(super) fn shape(bytes: u32, depth: u32, mix: Mix) -> Shape {
    Shape {
        block_size: BlockSize(bytes),
        queue_depth: QueueDepth(depth),
        queues: Queues(1),
        pattern: Pattern::Random,
        mix,
        drives: Drives(1),
    }
}

/// Results of the runs of one kind of connection.
struct Runs {
    rates: Vec<f64>,
    /// Floor after each run.
    floors: Vec<f64>,
    calls: [u64; 2],
    vain: u64,
    commands: u64,
    latencies: Histogram,
}

impl Runs {
    fn new(clock: &Clock) -> Self {
        Self {
            rates: Vec::new(),
            floors: Vec::new(),
            calls: [0; 2],
            vain: 0,
            commands: 0,
            latencies: Histogram::of_ticks(clock),
        }
    }

    /// Adds a run, with the counters of the reactors before and after it.
    fn add(&mut self, tally: &Tally, before: [ReactorCounters; 2], after: [ReactorCounters; 2]) {
        for n in 0..2 {
            let vain = after[n].vain_receives - before[n].vain_receives;
            self.calls[n] += after[n].syscalls - before[n].syscalls - vain;
            self.vain += vain;
        }
        self.commands += tally.commands;
        self.rates.push(tally.rate());
        self.latencies.merge(&tally.latencies);
    }

    fn rate(&self) -> f64 {
        median(self.rates.clone()).unwrap_or(0.0)
    }

    fn of_floor(&self) -> f64 {
        let shares = self.rates.iter().zip(&self.floors).map(|(rate, floor)| rate / floor);
        median(shares.collect()).unwrap_or(0.0)
    }
}

/// Measures the last of the links, in turns with the others.
fn measure(
    target: &Target,
    shape: Shape,
    (host, controller): (&Server, &Server),
    links: &[Direct],
    clock: &Clock,
    (arguments, cores): (&TcpArgs, &Cores),
) -> Result<Row, ApiError> {
    let exchange = Exchange::of(&shape);
    let counters = || [host, controller].map(Server::counters);
    let mut all: Vec<Runs> = links.iter().map(|_| Runs::new(clock)).collect();
    for link in links {
        link.flat_out(&shape, clock, WARM_UP)?;
    }
    for _ in 0..arguments.runs {
        for (link, runs) in links.iter().zip(&mut all) {
            let before = counters();
            let tally = link.flat_out(&shape, clock, arguments.time)?;
            let after = counters();
            if tally.failed > 0 {
                let failed = format!("{} commands failed ({target}: {shape})", tally.failed);
                return Err(ApiError::internal(failed));
            }
            runs.add(&tally, before, after);
            let floor = exchange.measure(arguments.time / 2, cores);
            let in_words = |error| ApiError::internal(format!("the floor cannot be measured: {error}"));
            runs.floors.push(floor.map_err(in_words)?);
        }
    }
    let runs = all.pop().ok_or_else(|| ApiError::internal("there is no connection"))?;
    let per_command = |calls: u64| calls as f64 / runs.commands.max(1) as f64;
    let us = |share| runs.latencies.quantile(share) as f64 / 1000.0;
    Ok(Row {
        target: target.clone(),
        shape,
        rate: runs.rate(),
        slowest: runs.rates.iter().copied().fold(f64::INFINITY, f64::min),
        fastest: runs.rates.iter().copied().fold(0.0, f64::max),
        p50_us: us(0.5),
        p99_us: us(0.99),
        host_syscalls: per_command(runs.calls[0]),
        controller_syscalls: per_command(runs.calls[1]),
        vain_receives: per_command(runs.vain),
        floor: median(runs.floors.clone()).unwrap_or(0.0),
        of_floor: runs.of_floor(),
        peer: None,
        plain: all.first().map(Runs::rate),
    })
}

impl Tcp {
    pub fn text(&self) -> String {
        let is_beside_plain = self.rows.iter().any(|row| row.plain.is_some());
        let (beside, of_beside) = if is_beside_plain { ("PLAIN", "OF-PLAIN") } else { ("PEER", "OF-PEER") };
        let mut table = Table::new(&[
            "TARGET",
            "COMMANDS",
            "KCMD/S",
            "SLOWEST",
            "FASTEST",
            "GB/S",
            "P50-US",
            "P99-US",
            "CALLS/CMD",
            "LOOKS",
            "FLOOR",
            "OF-FLOOR",
            beside,
            of_beside,
        ]);
        for row in &self.rows {
            let thousands = |rate: f64| format!("{:.1}", rate / 1000.0);
            let bytes = row.rate * f64::from(row.shape.block_size.0);
            let calls = format!("{:.2}+{:.2}", row.host_syscalls, row.controller_syscalls);
            let dash = || "-".to_owned();
            let beside = row.plain.or(row.peer);
            table.row(vec![
                row.target.to_string(),
                row.shape.to_string(),
                thousands(row.rate),
                thousands(row.slowest),
                thousands(row.fastest),
                format!("{:.2}", bytes / 1e9),
                format!("{:.1}", row.p50_us),
                format!("{:.1}", row.p99_us),
                calls,
                format!("{:.2}", row.vain_receives),
                thousands(row.floor),
                format!("{:.2}", row.of_floor),
                beside.map_or_else(dash, thousands),
                beside.map_or_else(dash, |rate| format!("{:.2}", row.rate / rate)),
            ]);
        }
        format!("{}\n{}", self.machine.text(), table.text())
    }
}
