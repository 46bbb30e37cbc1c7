//! `sluice bench`: the speed of a drive, its cost when no host uses it, and the cost of one command.
//!
//! A measurement goes through these files: `args` (the command line) → `measure` (cell by cell) → `server`
//! (one reactor with drives) and `client` (queue pairs to them) → `runs` (one slice after the other) → `wait`
//! and `line` (the distance of the processors) → `load` (keeps the queues busy) beside `floor` (the limit of
//! the machine) → `run` and `tally` (the results) → `groups` (the runs that belong together) → `report`.
#![forbid(unsafe_code)]

mod absence;
pub mod args;
pub mod calls;
pub mod cell;
pub mod cipher;
pub mod client;
pub mod clients;
pub mod cores;
pub mod daemon;
mod direct;
pub mod floor;
pub mod grid;
pub mod groups;
pub mod histogram;
pub mod idle;
pub mod instructions;
pub mod line;
pub mod load;
mod loopback;
pub mod machine;
pub mod measure;
mod program;
pub mod report;
pub mod run;
mod runs;
pub mod scratch;
pub mod server;
pub mod tail;
pub mod tally;
pub mod tcp;
pub mod wait;
pub mod workload;

pub use args::BenchArgs;

use args::Other;
use serde::Serialize;
use sluice_spec::error::ApiError;
use std::fmt::Display;

/// Result of a benchmark.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Report {
    Cells(report::Cells),
    Instructions(instructions::Counts),
    Calls(calls::Calls),
    Idle(idle::Idle),
    Clients(clients::Clients),
    Cipher(cipher::Cipher),
    Tcp(tcp::Tcp),
    Tail(tail::Tail),
}

/// Runs a benchmark. Returns `None` if there is no result, as in the processes that a benchmark starts.
pub fn run(arguments: &BenchArgs) -> Result<Option<Report>, ApiError> {
    match &arguments.other {
        None => measure::run(&arguments.cells.plan()?).map(Report::Cells).map(Some),
        Some(Other::Instructions(arguments)) => Ok(instructions::run(arguments)?.map(Report::Instructions)),
        Some(Other::Classifier(arguments)) => calls::run(arguments).map(Report::Calls).map(Some),
        Some(Other::Idle(arguments)) => idle::run(arguments).map(Report::Idle).map(Some),
        Some(Other::Clients(arguments)) => clients::run(arguments).map(Report::Clients).map(Some),
        Some(Other::Cipher(arguments)) => cipher::run(arguments).map(Report::Cipher).map(Some),
        Some(Other::Tcp(arguments)) => tcp::run(arguments).map(Report::Tcp).map(Some),
        Some(Other::Tail(arguments)) => tail::run(arguments).map(Report::Tail).map(Some),
    }
}

impl Report {
    /// Formats the result for people.
    pub fn text(&self) -> String {
        match self {
            Self::Cells(cells) => cells.text(),
            Self::Instructions(counts) => counts.text(),
            Self::Calls(calls) => calls.text(),
            Self::Idle(idle) => idle.text(),
            Self::Clients(clients) => clients.text(),
            Self::Cipher(cipher) => cipher.text(),
            Self::Tcp(tcp) => tcp.text(),
            Self::Tail(tail) => tail.text(),
        }
    }
}

/// Writes the next step to standard error.
fn progress(index: usize, count: usize, what: &impl Display) {
    eprintln!("[{}/{count}] {what}", index + 1);
}
