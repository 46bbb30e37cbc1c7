//! `sluice bench tail`: the time of the slowest commands over NVMe/TCP, at every depth.
//!
//! As in [`tcp`](super::tcp), host and controller are in this process, on loopback, with a processor each.
//! The same host can measure another server, such as the kernel's nvmet.
//!
//! Both reactors record (`absence`) when they were kept from their processors, or when a processor
//! itself stood still. A second figure leaves out slow commands that were in flight at such a time. The
//! absences of another server are not known. So its slow commands are only left out if they met an absence of
//! the host, or a standstill of a processor.

use super::absence::Watch;
use super::args::seconds;
use super::cell::{Mix, QueueDepth, Shape, Target};
use super::cores::Cores;
use super::direct::Direct;
use super::machine::Machine;
use super::server::Server;
use super::tcp::{remote, shape};
use clap::Args;
use quanta::Clock;
use serde::Serialize;
use sluice_spec::error::ApiError;
use sluice_spec::table::Table;
use std::time::Duration;

/// `sluice bench tail`
#[derive(Debug, Args)]
pub struct TailArgs {
    /// Seconds of each depth
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    seconds: Duration,
    /// Commands in flight
    #[arg(long, value_delimiter = ',', value_name = "COMMANDS", default_value = "1,2,4,8,16,32,64,128,256")]
    queue_depth: Vec<QueueDepth>,
    /// Target of Sluice's controller: null, memory or memory:SIZE
    #[arg(long, default_value = "memory")]
    target: Target,
    /// Reads, writes, or a share of reads such as 70%
    #[arg(long, default_value = "read")]
    mix: Mix,
    /// Address of another server beside Sluice's. With anything but reads, the data of its namespace is
    /// overwritten
    #[arg(long, value_name = "ADDRESS", requires = "peer_nqn")]
    peer: Option<String>,
    /// Name of that server's subsystem; its namespace 1 is used
    #[arg(long, value_name = "NQN", requires = "peer")]
    peer_nqn: Option<String>,
}

/// Results of the measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Tail {
    machine: Machine,
    rows: Vec<Row>,
}

/// Times in microseconds.
#[derive(Clone, Debug, Serialize)]
struct Row {
    server: String,
    #[serde(flatten)]
    shape: Shape,
    /// Commands a second.
    rate: f64,
    p50_us: f64,
    p99_us: f64,
    p9999_us: f64,
    max_us: f64,
    /// Times without slow commands that were in flight while a reactor was kept from its processor.
    own_p9999_us: f64,
    own_max_us: f64,
    /// Commands that were left out for that, and commands that were recorded as slow.
    excused: u64,
    slow: u64,
    /// Absences of reactors: their number, the longest, and their share of the time of all reactors.
    absences: usize,
    absence_max_us: f64,
    absent_share: f64,
    /// Standstills of a processor: their number and the longest, if they could be detected.
    #[serde(skip_serializing_if = "Option::is_none")]
    standstills: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    standstill_max_us: Option<f64>,
}

/// Duration of the load before a depth is measured, which also gives the limit of slow commands.
const WARM_UP: Duration = Duration::from_millis(300);

/// Multiple of the median with which a command is recorded as slow.
const SLOW: u64 = 5;

pub fn run(arguments: &TailArgs) -> Result<Tail, ApiError> {
    let cores = Cores::choose();
    let mut controller = Server::start_watched(&cores)?;
    let host = Server::start_watched(&Cores { reactor: cores.host, host: cores.reactor })?;
    let clock = Clock::new();
    let (address, nqn, _) = controller.serve(&arguments.target, false)?;
    let mut servers = vec![("sluice", address, nqn)];
    if let (Some(address), Some(nqn)) = (&arguments.peer, &arguments.peer_nqn) {
        servers.push(("peer", address.clone(), nqn.clone()));
    }
    let mut rows = Vec::new();
    let count = servers.len() * arguments.queue_depth.len();
    for (server, address, nqn) in servers {
        let direct = host.open_remote(remote(address, nqn, None))?;
        if server == "sluice" && matches!(arguments.target, Target::Memory(_)) {
            direct.write_everything(&clock)?;
        }
        for depth in &arguments.queue_depth {
            let shape = shape(4 << 10, depth.0, arguments.mix);
            super::progress(rows.len(), count, &format_args!("{server}: {shape}"));
            let watched = if server == "sluice" { &[&host, &controller][..] } else { &[&host] };
            let watched = (watched, &cores);
            rows.push(measure(server, shape, &direct, watched, &clock, arguments.seconds)?);
        }
    }
    Ok(Tail { machine: Machine::of_this(cores), rows })
}

fn measure(
    server: &str,
    shape: Shape,
    direct: &Direct,
    (watched, cores): (&[&Server], &Cores),
    clock: &Clock,
    time: Duration,
) -> Result<Row, ApiError> {
    let slow_ns = direct.flat_out(&shape, clock, WARM_UP)?.latencies.quantile(0.5) * SLOW;
    let watch = Watch::start(watched, cores, clock)?;
    let tally = direct.flat_out_noting(&shape, clock, time, slow_ns)?;
    let absences = watch.end()?;
    if tally.failed > 0 {
        return Err(ApiError::internal(format!("{} commands failed ({server}: {shape})", tally.failed)));
    }
    let mut own = tally.latencies.clone();
    let excused: Vec<_> = tally.slow.iter().filter(|span| absences.excuse(**span)).collect();
    excused.iter().for_each(|(from, to)| own.take_out(to - from));
    let us = |ns: u64| ns as f64 / 1000.0;
    Ok(Row {
        server: server.to_owned(),
        shape,
        rate: tally.rate(),
        p50_us: us(tally.latencies.quantile(0.5)),
        p99_us: us(tally.latencies.quantile(0.99)),
        p9999_us: us(tally.latencies.quantile(0.9999)),
        max_us: us(tally.latencies.largest()),
        own_p9999_us: us(own.quantile(0.9999)),
        own_max_us: us(own.quantile(1.0)),
        excused: excused.len() as u64,
        slow: tally.slow.len() as u64,
        absences: absences.count,
        absence_max_us: us(absences.longest_ns),
        absent_share: absences.total_ns as f64 / (watched.len() as f64 * tally.elapsed.as_nanos() as f64),
        standstills: absences.standstills.map(|(count, _)| count),
        standstill_max_us: absences.standstills.map(|(_, longest_ns)| us(longest_ns)),
    })
}

impl Tail {
    pub fn text(&self) -> String {
        let mut table = Table::new(&[
            "SERVER",
            "COMMANDS",
            "KCMD/S",
            "P50-US",
            "P99-US",
            "P99.99-US",
            "OF-P50",
            "MAX-US",
            "OWN-P99.99",
            "OF-P50",
            "OWN-MAX",
            "EXCUSED",
            "OF-SLOW",
            "ABSENCES",
            "LONGEST-US",
            "OF-TIME",
            "STANDSTILLS",
            "LONGEST-US",
        ]);
        for row in &self.rows {
            let us = |us: f64| format!("{us:.1}");
            let of_median = |us: f64| format!("{:.1}", us / row.p50_us.max(0.001));
            table.row(vec![
                row.server.clone(),
                row.shape.to_string(),
                format!("{:.1}", row.rate / 1000.0),
                us(row.p50_us),
                us(row.p99_us),
                us(row.p9999_us),
                of_median(row.p9999_us),
                us(row.max_us),
                us(row.own_p9999_us),
                of_median(row.own_p9999_us),
                us(row.own_max_us),
                row.excused.to_string(),
                row.slow.to_string(),
                row.absences.to_string(),
                us(row.absence_max_us),
                format!("{:.2} %", 100.0 * row.absent_share),
                row.standstills.map_or_else(|| "?".to_owned(), |count| count.to_string()),
                row.standstill_max_us.map_or_else(|| "?".to_owned(), us),
            ]);
        }
        format!("{}\n{}", self.machine.text(), table.text())
    }
}
