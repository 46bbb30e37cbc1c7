//! `sluice bench classifier`: the cost of one call of a classifier, in eBPF beside the same in Rust.
//!
//! Both receive the same commands, in turns, so that the ratio is of the same machine at the same hour. The
//! native classifier is called by a pointer to a function, the program as the router calls it.

use super::instructions::classifier::{INSTRUCTIONS, Native, Windows, commands, decide, ebpf_window};
use super::instructions::{Classifier as Kind, count_calls};
use clap::Args;
use quanta::Clock;
use serde::Serialize;
use sluice_router::{Context, Verdict};
use sluice_spec::error::ApiError;
use sluice_spec::table::Table;
use std::hint::black_box;

/// Calls between two readings of the clock.
const CALLS: usize = 100_000;

/// `sluice bench classifier`
#[derive(Debug, Args)]
pub struct CallArgs {
    /// Rounds of a hundred thousand calls of each; the median counts
    #[arg(long, default_value_t = 51, value_parser = clap::value_parser!(u32).range(1..=9999))]
    rounds: u32,
}

/// Cost of a call.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Cost {
    pub ns: f64,
    pub instructions: f64,
}

/// Costs of both classifiers, and the ratio of their times.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Calls {
    /// Instructions of the program, as its object file counts them.
    pub program_instructions: usize,
    pub native: Cost,
    pub ebpf: Cost,
    /// Time in eBPF divided by the native time: the median over the rounds.
    pub ratio: f64,
}

/// Measures times, then counts instructions.
pub fn run(arguments: &CallArgs) -> Result<Calls, ApiError> {
    let (mut windows, native) = (Windows::new(), black_box(decide as Native));
    let mut program = ebpf_window()?;
    let clock = Clock::new();
    let mut rounds = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..arguments.rounds {
        let native = time(&clock, |context| native(&mut windows, context));
        let ebpf = time(&clock, |context| program.classify(context).unwrap_or(Verdict::hold()));
        rounds.iter_mut().zip([native, ebpf, ebpf / native]).for_each(|(all, one)| all.push(one));
    }
    let [native, ebpf, ratio] = rounds.map(median);
    Ok(Calls {
        program_instructions: INSTRUCTIONS,
        native: Cost { ns: native, instructions: count_calls(Kind::NativeWindow)? },
        ebpf: Cost { ns: ebpf, instructions: count_calls(Kind::EbpfWindow)? },
        ratio,
    })
}

/// Returns the nanoseconds of a call.
fn time(clock: &Clock, mut call: impl FnMut(&mut Context) -> Verdict) -> f64 {
    let mut commands = commands();
    let start = clock.now();
    for _ in 0..CALLS / commands.len() {
        for command in &mut commands {
            black_box(call(black_box(command)));
        }
    }
    clock.now().duration_since(start).as_nanos() as f64 / CALLS as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

impl Calls {
    pub fn text(&self) -> String {
        let mut table = Table::new(&["CLASSIFIER", "NS", "INSTRUCTIONS"]);
        for (name, cost) in [("native", self.native), ("eBPF", self.ebpf)] {
            let cells = [name.to_owned(), format!("{:.1}", cost.ns), format!("{:.1}", cost.instructions)];
            table.row(cells.into());
        }
        format!(
            "One call of a classifier of {} instructions, and of a Rust function that does the same.\n\n{}\n\
             eBPF takes {:.2} times as long, and {:.2} times the instructions.\n",
            self.program_instructions,
            table.text(),
            self.ratio,
            self.ebpf.instructions / self.native.instructions
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_of_rounds_and_the_rest_of_medians() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        let cost = |ns, instructions| Cost { ns, instructions };
        let calls =
            Calls { program_instructions: 56, native: cost(4.0, 40.0), ebpf: cost(8.0, 100.0), ratio: 2.1 };
        let expected = "\
One call of a classifier of 56 instructions, and of a Rust function that does the same.

CLASSIFIER   NS  INSTRUCTIONS
native      4.0          40.0
eBPF        8.0         100.0

eBPF takes 2.10 times as long, and 2.50 times the instructions.
";
        assert_eq!(calls.text(), expected);
    }
}
