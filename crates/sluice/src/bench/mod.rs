//! `sluice bench`: how fast a drive is, what it costs when nobody uses it, and what one command costs.

pub mod instructions;

use crate::problem::Problem;
use clap::{Args, Subcommand};
use serde::Serialize;
use std::fmt::Display;

/// `sluice bench`
#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Count the instructions of a command: the same number in every run
    Instructions(instructions::InstructionArgs),
}

/// What was found out.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Report {
    Instructions(instructions::Counts),
}

/// Measures. `None` if there is nothing to tell, as in the processes that a benchmark starts.
pub fn run(arguments: &BenchArgs) -> Result<Option<Report>, Problem> {
    match &arguments.what {
        What::Instructions(arguments) => Ok(instructions::run(arguments)?.map(Report::Instructions)),
    }
}

impl Report {
    /// For people.
    pub fn text(&self) -> String {
        match self {
            Self::Instructions(counts) => counts.text(),
        }
    }
}

/// Says on standard error what comes next.
fn progress(index: usize, count: usize, what: &impl Display) {
    eprintln!("[{}/{count}] {what}", index + 1);
}
