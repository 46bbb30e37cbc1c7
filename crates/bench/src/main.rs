//! `sluice-bench`: the program behind `sluice bench`, apart from the daemon, which has no ptrace in it.
#![forbid(unsafe_code)]

use clap::{Parser, ValueEnum};
use sluice_bench::{BenchArgs, Report};
use sluice_spec::problem::Problem;
use std::io::Write;
use std::process::ExitCode;

/// Measure speed, idleness and the cost of a command
#[derive(Debug, Parser)]
#[command(name = "sluice bench", version, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    bench: BenchArgs,

    /// Form of the output
    #[arg(short, long, global = true, value_enum, default_value_t, value_name = "FORM")]
    output: Form,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum Form {
    /// Table for people
    #[default]
    Table,
    /// JSON for programs
    Json,
}

fn main() -> ExitCode {
    end_with_a_panic();
    let cli = Cli::parse();
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("error: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<(), Problem> {
    let Some(report) = sluice_bench::run(&cli.bench)? else { return Ok(()) };
    let text = match cli.output {
        Form::Table => report.text(),
        Form::Json => json(&report)?,
    };
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| Problem::internal(format!("cannot write the report: {error}")))
}

fn json(report: &Report) -> Result<String, Problem> {
    let text = serde_json::to_string_pretty(report);
    text.map(|text| text + "\n")
        .map_err(|error| Problem::internal(format!("cannot write the report: {error}")))
}

/// Ends the process at a panic, in every profile: nothing may unwind past memory that a kernel or a device still
/// writes to.
fn end_with_a_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
}
