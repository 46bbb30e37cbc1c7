//! `sluice-bench`: the program behind `sluice bench`, apart from the daemon, which has no ptrace in it.
#![forbid(unsafe_code)]

use clap::{CommandFactory, Parser};
use sluice_bench::{BenchArgs, Report};
use sluice_spec::error::ApiError;
use sluice_spec::output::{Form, Output};
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

/// Measure speed, idleness and the cost of a command
#[derive(Debug, Parser)]
#[command(
    name = "sluice bench",
    bin_name = "sluice bench",
    display_name = "sluice-bench",
    version,
    max_term_width = 100
)]
struct Cli {
    #[command(flatten)]
    bench: BenchArgs,

    /// Form of the answers
    #[arg(short, long, global = true, value_enum, default_value_t, value_name = "FORM")]
    output: Form,
}

fn main() -> ExitCode {
    sluice_reactor::end_with_a_panic();
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let outcome = match &words[..] {
        [command, folder] if command == "manual" => write_manual(Path::new(folder)),
        _ => run(&Cli::parse()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("error: {problem}");
            ExitCode::FAILURE
        }
    }
}

/// Writes the manual pages into a folder. Packaging uses this command; help does not list it.
fn write_manual(folder: &Path) -> Result<(), ApiError> {
    clap_mangen::generate_to(Cli::command(), folder)
        .map_err(|error| ApiError::io("write the manual into", folder, &error))
}

fn run(cli: &Cli) -> Result<(), ApiError> {
    match sluice_bench::run(&cli.bench)? {
        Some(report) => Output::new(cli.output).answer(&report, Report::text),
        None => Ok(()),
    }
}
