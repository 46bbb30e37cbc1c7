//! `sluice bench clients`: many clients on one daemon, each with a drive of its own.
//!
//! A table has, for each number of clients, the time to make a drive and to attach a client, the memory of each,
//! and the I/O of all together. The daemon is a process of its own, and drives are made by its API. A client is a
//! thread with a connection, a controller and a queue pair, and sleeps until its interrupt as a guest does.

use super::cell::{Drives, Mix, QueueDepth, Target};
use super::client::{Client, Doorbells, Stream, trouble};
use super::cores::Cores;
use super::daemon::Daemon;
use super::histogram::Histogram;
use super::idle::{memory_bytes, raise_descriptor_limit};
use super::machine::Machine;
use super::report::Latency;
use super::tcp::shape;
use clap::Args;
use quanta::Clock;
use serde::Serialize;
use sluice_api::client::Client as Api;
use sluice_host::{Deadline, Interrupt};
use sluice_spec::DriveSpec;
use sluice_spec::error::ApiError;
use sluice_spec::table::Table;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// `sluice bench clients`
#[derive(Debug, Args)]
pub struct ClientArgs {
    /// Clients, each with a drive: a row for each number
    #[arg(long, value_delimiter = ',', value_name = "CLIENTS", default_value = "1,8,32,128")]
    clients: Vec<Drives>,
    /// Target of each drive: null, memory:SIZE
    #[arg(long, default_value = "null")]
    target: Target,
    /// Seconds of I/O on all drives
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = super::args::seconds)]
    time: Duration,
    /// Commands that each client has in flight, random reads and writes of 4 KiB
    #[arg(long, value_name = "COMMANDS", default_value = "8")]
    queue_depth: QueueDepth,
    /// Way in which doorbells reach the reactor
    #[arg(long, value_enum, default_value = "trapped")]
    doorbells: Doorbells,
}

/// Results of the measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Clients {
    machine: Machine,
    target: Target,
    doorbells: Doorbells,
    queue_depth: QueueDepth,
    seconds: f64,
    rows: Vec<Row>,
}

#[derive(Clone, Debug, Serialize)]
struct Row {
    clients: u32,
    /// Time of a request that makes a drive, until its answer.
    create: Latency,
    /// Time from the connection until the first command has ended.
    attach: Latency,
    /// Memory that each drive adds to the daemon: made, attached, and after I/O.
    created_bytes: u64,
    attached_bytes: u64,
    used_bytes: u64,
    commands_per_s: f64,
    latency: Latency,
    /// Commands of the worst served client, divided by those of the best served.
    fairness: f64,
}

/// Pause before memory is measured.
const SETTLE: Duration = Duration::from_secs(1);

/// Time limit of a command.
const PATIENCE: Duration = Duration::from_secs(20);

pub fn run(arguments: &ClientArgs) -> Result<Clients, ApiError> {
    raise_descriptor_limit();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| ApiError::internal(format!("no runtime: {error}")))?;
    let mut rows = Vec::new();
    for (index, clients) in arguments.clients.iter().enumerate() {
        super::progress(index, arguments.clients.len(), &format_args!("{clients} clients"));
        rows.push(row(clients.0, arguments, &runtime)?);
    }
    Ok(Clients {
        machine: Machine::of_this(Cores::choose()),
        target: arguments.target.clone(),
        doorbells: arguments.doorbells,
        queue_depth: arguments.queue_depth,
        seconds: arguments.time.as_secs_f64(),
        rows,
    })
}

fn row(clients: u32, arguments: &ClientArgs, runtime: &tokio::runtime::Runtime) -> Result<Row, ApiError> {
    let daemon = Daemon::start(0)?;
    let memory = |before: u64| -> Result<u64, ApiError> {
        sleep(SETTLE);
        Ok(memory_bytes(daemon.pid())?.saturating_sub(before))
    };
    let api = Api::new(daemon.api());
    // The first drive makes what all drives share.
    let mut first = Host::connect(&make(&api, "first", arguments, runtime)?, arguments, 0)?;
    first.first_command()?;
    let before = memory(0)?;
    let (mut create, mut attach) = (Histogram::default(), Histogram::default());
    let mut sockets = Vec::new();
    for number in 0..clients {
        let start = Instant::now();
        sockets.push(make(&api, &format!("d{number}"), arguments, runtime)?);
        create.record(start.elapsed().as_nanos() as u64, 1);
    }
    let created_bytes = memory(before)? / u64::from(clients);
    let mut hosts = Vec::new();
    for (seed, socket) in (1..).zip(&sockets) {
        let start = Instant::now();
        let mut host = Host::connect(socket, arguments, seed)?;
        host.first_command()?;
        attach.record(start.elapsed().as_nanos() as u64, 1);
        hosts.push(host);
    }
    let attached_bytes = memory(before)? / u64::from(clients);
    let loads = load_all(&mut hosts, arguments.time)?;
    let used_bytes = memory(before)? / u64::from(clients);
    let mut latencies = Histogram::default();
    loads.iter().for_each(|load| latencies.merge(&load.latencies));
    let counts = loads.iter().map(|load| load.latencies.count());
    let (least, most) = (counts.clone().min().unwrap_or(0), counts.max().unwrap_or(0));
    let seconds = loads.iter().map(|load| load.elapsed.as_secs_f64()).fold(0.0, f64::max);
    Ok(Row {
        clients,
        create: Latency::of(&create),
        attach: Latency::of(&attach),
        created_bytes,
        attached_bytes,
        used_bytes,
        commands_per_s: latencies.count() as f64 / seconds,
        latency: Latency::of(&latencies),
        fairness: least as f64 / most.max(1) as f64,
    })
}

/// Makes a drive. Returns its socket.
fn make(
    api: &Api,
    name: &str,
    arguments: &ClientArgs,
    runtime: &tokio::runtime::Runtime,
) -> Result<PathBuf, ApiError> {
    let spec = spec(name, &arguments.target)?;
    let made: serde_json::Value = runtime.block_on(api.post("/v1/drives", &spec))?;
    let socket = made["socket"].as_str().ok_or_else(|| ApiError::internal("a drive without a socket"))?;
    Ok(PathBuf::from(socket))
}

fn spec(name: &str, target: &Target) -> Result<DriveSpec, ApiError> {
    let namespace = match target {
        Target::Null(_) | Target::Memory(_) => target.namespace(Path::new("")),
        Target::File(_) | Target::Daemon(_) | Target::Through(..) => None,
    };
    let namespace = namespace.ok_or_else(|| ApiError::invalid("drives of clients are null or memory"))?;
    let spec = serde_json::json!({ "name": name, "namespaces": [namespace] });
    serde_json::from_value(spec).map_err(|error| ApiError::internal(error.to_string()))
}

/// A client with a queue pair.
struct Host {
    /// Dropped after its queue pair.
    stream: Stream,
    interrupt: Interrupt,
    _client: Client,
}

/// Result of a client's I/O.
struct Load {
    latencies: Histogram,
    elapsed: Duration,
}

impl Host {
    fn connect(socket: &Path, arguments: &ClientArgs, seed: u64) -> Result<Self, ApiError> {
        let mut client = Client::connect(socket, arguments.doorbells)?;
        let controller = &mut client.controller;
        controller.set_queue_count(1).map_err(|error| trouble(&error))?;
        let interrupt = controller.interrupt(1).map_err(|error| trouble(&error))?;
        let shape = shape(4096, arguments.queue_depth.0, Mix(50));
        let stream = client.open_stream(1, &shape, seed, Some(1))?;
        Ok(Self { stream, interrupt, _client: client })
    }

    /// Executes one command.
    fn first_command(&mut self) -> Result<(), ApiError> {
        self.stream.submit(0);
        self.finish(&mut |_| ())
    }

    /// Keeps the queue busy for this time.
    fn load(&mut self, time: Duration) -> Result<Load, ApiError> {
        let mut latencies = Histogram::default();
        let (clock, start) = (Clock::new(), Instant::now());
        let mut record = |begun| latencies.record(clock.delta_as_nanos(begun, clock.raw()), 1);
        while start.elapsed() < time {
            while self.stream.submit(clock.raw()) {}
            self.turn(&mut record)?;
        }
        self.finish(&mut record)?;
        Ok(Load { latencies, elapsed: start.elapsed() })
    }

    /// Waits for the commands in flight.
    fn finish(&mut self, each: &mut impl FnMut(u64)) -> Result<(), ApiError> {
        while !self.stream.is_idle() {
            self.turn(each)?;
        }
        Ok(())
    }

    /// Rings the doorbells, and takes completions or sleeps until there are some. `each` gets the time at which a command
    /// began.
    fn turn(&mut self, each: &mut impl FnMut(u64)) -> Result<(), ApiError> {
        self.stream.queue.ring().map_err(|error| trouble(&error))?;
        let (mut reaped, mut failed) = (0, None);
        self.stream.reap(|completion, begun| {
            reaped += 1;
            each(begun);
            failed = Some(completion.status()).filter(|status| !status.is_success()).or(failed);
        });
        if let Some(status) = failed {
            return Err(ApiError::internal(format!("a client's command failed: {status:?}")));
        }
        if reaped == 0 {
            let deadline = Deadline::after(PATIENCE, "a client's command");
            self.interrupt.wait(&deadline).map_err(|error| trouble(&error))?;
        }
        Ok(())
    }
}

/// Runs the I/O of all clients at the same time.
fn load_all(hosts: &mut [Host], time: Duration) -> Result<Vec<Load>, ApiError> {
    let barrier = Barrier::new(hosts.len());
    std::thread::scope(|scope| {
        let start = |host| {
            let barrier = &barrier;
            scope.spawn(move || {
                barrier.wait();
                Host::load(host, time)
            })
        };
        let threads: Vec<_> = hosts.iter_mut().map(start).collect();
        let ended = threads.into_iter().map(|thread| thread.join());
        ended.map(|load| load.unwrap_or_else(|_| Err(ApiError::internal("a client panicked")))).collect()
    })
}

impl Clients {
    pub fn text(&self) -> String {
        let mut table = Table::new(&[
            "CLIENTS",
            "CREATE-MS",
            "SLOWEST",
            "ATTACH-MS",
            "SLOWEST",
            "KIB-CREATED",
            "KIB-ATTACHED",
            "KIB-USED",
            "KCMD/S",
            "P50-US",
            "P99-US",
            "MAX-US",
            "FAIRNESS",
        ]);
        let ms = |ns: u64| format!("{:.2}", ns as f64 / 1e6);
        let us = |ns: u64| format!("{:.0}", ns as f64 / 1e3);
        let kib = |bytes: u64| format!("{}", bytes >> 10);
        for row in &self.rows {
            table.row(vec![
                row.clients.to_string(),
                ms(row.create.p50_ns),
                ms(row.create.max_ns),
                ms(row.attach.p50_ns),
                ms(row.attach.max_ns),
                kib(row.created_bytes),
                kib(row.attached_bytes),
                kib(row.used_bytes),
                format!("{:.1}", row.commands_per_s / 1e3),
                us(row.latency.p50_ns),
                us(row.latency.p99_ns),
                us(row.latency.max_ns),
                format!("{:.2}", row.fairness),
            ]);
        }
        let how = format!(
            "{} drives, {} doorbells, {} commands of 4 KiB in flight each, {} s\n",
            self.target,
            self.doorbells.word(),
            self.queue_depth,
            self.seconds
        );
        format!("{}\n{how}{}", self.machine.text(), table.text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drives_are_of_null_or_memory_targets() {
        let of =
            |target: &str| spec("a", &target.parse().expect("a target")).map(|spec| spec.namespaces.len());
        assert_eq!((of("null"), of("memory:16MiB")), (Ok(1), Ok(1)));
        let refused = of("file:disk.img").expect_err("a file is one drive's").to_string();
        assert!(refused.contains("null or memory"), "{refused}");
    }
}
