//! `sluice bench cipher`: the processor time of encryption, byte by byte, beside the bare cipher.
//!
//! The same reactor does all the work, in turns, several times around. The cipher works on a buffer that
//! stays in the caches. Commands go through the layers of a stack on null, without a controller and a host.
//! For a function in a process, the processor time of both counts, polling included.

use super::args::seconds;
use super::cell::{BlockSize, Drives, Mix, Pattern, QueueDepth, Queues, Shape, Target};
use super::cores::{Cores, thread_cpu_ns};
use super::direct::Direct;
use super::machine::Machine;
use super::server::{KEY, Server};
use super::tally::median;
use clap::Args;
use quanta::Clock;
use serde::Serialize;
use sluice_crypt::Xts;
use sluice_spec::error::ApiError;
use sluice_spec::table::Table;
use std::time::{Duration, Instant};

/// `sluice bench cipher`
#[derive(Debug, Args)]
pub struct CipherArgs {
    /// Seconds of a run
    #[arg(long, value_name = "SECONDS", default_value = "0.05", value_parser = seconds)]
    time: Duration,
    /// Runs; the median counts
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=999))]
    runs: u32,
}

/// Results of the measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Cipher {
    machine: Machine,
    rows: Vec<Row>,
}

#[derive(Clone, Debug, Serialize)]
struct Row {
    /// Stack of the row; `None` for the cipher alone.
    target: Option<String>,
    #[serde(flatten)]
    shape: Shape,
    /// Processor time: the median, as is the ratio, which is taken run by run.
    ns_per_byte: f64,
    of_cipher: f64,
}

/// Stacks that are measured beside the cipher.
const STACKS: [&str; 4] =
    ["pass@daemon:null", "pass@process:null", "encrypt@daemon:null", "encrypt@process:null"];

/// Bytes of a sector.
const SECTOR: usize = 512;

pub fn run(arguments: &CipherArgs) -> Result<Cipher, ApiError> {
    let cores = Cores::choose();
    let server = Server::start(&cores)?;
    let open = |name: &str| {
        let target: Target = name.parse().map_err(|words: String| ApiError::internal(words))?;
        Ok((name.to_owned(), server.open_directly(&target)?))
    };
    let stacks = STACKS.into_iter().map(open).collect::<Result<Vec<_>, ApiError>>()?;
    let shapes = [4 << 10, 128 << 10].map(|bytes| [Mix::READ, Mix::WRITE].map(|mix| shape(bytes, mix)));
    let mut rows = Vec::new();
    for (index, shape) in shapes.as_flattened().iter().enumerate() {
        super::progress(index, shapes.as_flattened().len(), shape);
        rows.extend(measure(&server, &stacks, shape, arguments)?);
    }
    drop(stacks);
    Ok(Cipher { machine: Machine::of_this(cores), rows })
}

fn shape(bytes: u32, mix: Mix) -> Shape {
    Shape {
        block_size: BlockSize(bytes),
        queue_depth: QueueDepth(32),
        queues: Queues(1),
        pattern: Pattern::Random,
        mix,
        drives: Drives(1),
    }
}

/// Returns the cipher's row and those of the stacks.
fn measure(
    server: &Server,
    stacks: &[(String, Direct)],
    shape: &Shape,
    arguments: &CipherArgs,
) -> Result<Vec<Row>, ApiError> {
    let clock = Clock::new();
    let mut runs = Vec::new();
    for _ in 0..arguments.runs {
        let mut run = vec![bare(server, shape, arguments.time)?];
        for (_, stack) in stacks {
            run.push(through(server, stack, shape, &clock, arguments.time)?);
        }
        runs.push(run);
    }
    let names = std::iter::once(None).chain(stacks.iter().map(|(name, _)| Some(name.clone())));
    let rows = names.enumerate().filter_map(|(n, target)| {
        let ns_per_byte = median(runs.iter().map(|run| run[n]).collect())?;
        let of_cipher = median(runs.iter().map(|run| run[n] / run[0]).collect())?;
        Some(Row { target, shape: *shape, ns_per_byte, of_cipher })
    });
    Ok(rows.collect())
}

/// Returns the nanoseconds for each byte of the cipher on the reactor's thread.
fn bare(server: &Server, shape: &Shape, time: Duration) -> Result<f64, ApiError> {
    let (bytes, writes) = (shape.block_size.0 as usize, shape.mix.writes());
    server.on_reactor(move |_| {
        let cipher = Xts::new(&KEY).expect("of 64 bytes");
        let mut data = vec![0; bytes];
        let (start, mut rounds, before) = (Instant::now(), 0u32, thread_cpu_ns());
        while start.elapsed() < time {
            for (number, sector) in (0..).zip(data.chunks_exact_mut(SECTOR)) {
                match writes {
                    true => cipher.encrypt(number, sector),
                    false => cipher.decrypt(number, sector),
                }
            }
            rounds += 1;
        }
        (thread_cpu_ns() - before) as f64 / (f64::from(rounds) * bytes as f64)
    })
}

/// Returns the nanoseconds for each byte through a stack: of the reactor, and of the function's process.
fn through(
    server: &Server,
    stack: &Direct,
    shape: &Shape,
    clock: &Clock,
    time: Duration,
) -> Result<f64, ApiError> {
    let used = || server.cpu_ns().unwrap_or(0) + stack.process_cpu_ns();
    let before = used();
    let tally = stack.flat_out(shape, clock, time)?;
    let bytes = tally.commands.max(1) as f64 * f64::from(shape.block_size.0);
    Ok(used().saturating_sub(before) as f64 / bytes)
}

impl Cipher {
    pub fn text(&self) -> String {
        let mut table = Table::new(&["THROUGH", "COMMANDS", "NS/BYTE", "OF-CIPHER"]);
        for row in &self.rows {
            let name = row.target.clone().unwrap_or_else(|| "the cipher alone".to_owned());
            let numbers = [format!("{:.3}", row.ns_per_byte), format!("{:.2}", row.of_cipher)];
            table.row([name, row.shape.to_string()].into_iter().chain(numbers).collect());
        }
        format!("{}\n{}", self.machine.text(), table.text())
    }
}
