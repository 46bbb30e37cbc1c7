//! `sluice bench instructions`: what a command costs, as a number that is the same every time.
//!
//! There may be no performance counter, and times depend on the machine and the hour. So a child
//! process runs a controller and a host on one thread, and we step through its turns one instruction at
//! a time. Only the turn of the controller is counted: from the doorbell to the completion entry,
//! without the reactor, the socket and the interrupt.

mod child;
mod loopback;
mod scenario;
mod tracer;

pub use scenario::{Function, Operation, Scenario, Target};

use crate::cli::table::Table;
use crate::problem::Problem;
use clap::{Args, Subcommand};
use scenario::{BATCHES, RING};
use serde::Serialize;
use std::process::Command;
use tracer::Tracee;

/// `sluice bench instructions`
#[derive(Debug, Args)]
pub struct InstructionArgs {
    #[command(subcommand)]
    child: Option<Hidden>,
    /// Only turns with so many commands
    #[arg(long, value_name = "COMMANDS")]
    batch: Option<u32>,
}

#[derive(Debug, Subcommand)]
enum Hidden {
    /// The process that is counted
    #[command(hide = true)]
    Child(Scenario),
}

/// One count.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Count {
    #[serde(flatten)]
    pub scenario: Scenario,
    /// Instructions of a command: the mean over one round of the ring.
    pub instructions: f64,
}

/// All counts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Counts {
    pub counts: Vec<Count>,
}

/// Counts everything; `None` in the counted process itself.
pub fn run(arguments: &InstructionArgs) -> Result<Option<Counts>, Problem> {
    match &arguments.child {
        Some(Hidden::Child(scenario)) => child::run(scenario).map(|()| None),
        None => count_all(arguments.batch).map(Some),
    }
}

fn count_all(batch: Option<u32>) -> Result<Counts, Problem> {
    let scenarios = plan(batch);
    if let Some(impossible) = scenarios.iter().find(|scenario| !scenario.is_possible()) {
        return Err(Problem::invalid(format!("a turn cannot have {} commands here", impossible.batch))
            .hint(format!("use a power of two below {RING}")));
    }
    let mut counts = Vec::with_capacity(scenarios.len());
    for (index, scenario) in scenarios.iter().enumerate() {
        super::progress(index, scenarios.len(), scenario);
        counts.push(Count { scenario: *scenario, instructions: count(scenario)? });
    }
    Ok(Counts { counts })
}

/// Every operation on every target, and every function over the one that does nothing.
fn plan(batch: Option<u32>) -> Vec<Scenario> {
    let batches = batch.map_or(BATCHES.to_vec(), |batch| vec![batch]);
    let plain = [Target::Null, Target::Memory].into_iter().flat_map(|target| {
        [Operation::Read, Operation::Write, Operation::Flush]
            .map(|operation| (target, Function::None, operation))
    });
    let functions = [Function::Pass, Function::PassWatching, Function::Delay, Function::Fault]
        .map(|function| (Target::Null, function, Operation::Read));
    let cell = |(target, function, operation)| {
        batches.iter().map(move |&batch| Scenario { target, function, operation, batch })
    };
    plain.chain(functions).flat_map(cell).collect()
}

/// Instructions of one command.
fn count(scenario: &Scenario) -> Result<f64, Problem> {
    let program = std::env::current_exe()
        .map_err(|error| Problem::internal(format!("cannot find this program: {error}")))?;
    let mut command = Command::new(program);
    command.args(["bench", "instructions", "child"]).args(scenario.arguments());
    let tracee = Tracee::start(command)?;
    let nothing = tracee.count()?;
    let (mut instructions, mut turns) = (0, 0);
    while tracee.run_on()? {
        instructions += tracee.count()? - nothing;
        turns += 1;
    }
    if turns != scenario.turns() {
        return Err(Problem::internal(format!("{turns} turns were counted, not {}", scenario.turns())));
    }
    Ok(instructions as f64 / f64::from(RING))
}

impl Counts {
    fn get(&self, target: Target, function: Function, operation: Operation, batch: u32) -> Option<f64> {
        let found = self
            .counts
            .iter()
            .find(|Count { scenario, .. }| *scenario == Scenario { target, function, operation, batch });
        found.map(|count| count.instructions)
    }

    fn batches(&self) -> Vec<u32> {
        let mut batches: Vec<u32> = self.counts.iter().map(|count| count.scenario.batch).collect();
        batches.sort_unstable();
        batches.dedup();
        batches
    }

    /// What a function adds to a command.
    fn added(&self, function: Function, batch: u32) -> Option<f64> {
        let over = |function| self.get(Target::Null, function, Operation::Read, batch);
        Some(over(function)? - over(Function::None)?)
    }

    pub fn text(&self) -> String {
        format!(
            "Instructions of one command, by how many are in a turn; reads and writes of 4 KiB.\n\n{}\n\
             Instructions that a function adds to a command (read, null target).\n\n{}",
            self.commands().text(),
            self.functions().text()
        )
    }

    fn commands(&self) -> Table {
        let mut table = Table::new(&titles(&["TARGET", "COMMAND"], &self.batches()));
        for target in [Target::Null, Target::Memory] {
            for operation in [Operation::Read, Operation::Write, Operation::Flush] {
                let numbers = self.batches().into_iter();
                let numbers = numbers.map(|batch| self.get(target, Function::None, operation, batch));
                table.row(row(&[target.word(), operation.word()], numbers));
            }
        }
        table
    }

    fn functions(&self) -> Table {
        let mut table = Table::new(&titles(&["FUNCTION"], &self.batches()));
        for function in [Function::Pass, Function::PassWatching, Function::Delay, Function::Fault] {
            let numbers = self.batches().into_iter().map(|batch| self.added(function, batch));
            table.row(row(&[function.word()], numbers));
        }
        table
    }
}

fn titles(first: &[&str], batches: &[u32]) -> Vec<String> {
    let first = first.iter().map(|title| (*title).to_owned());
    first.chain(batches.iter().map(|batch| format!("{batch}-A-TURN"))).collect()
}

fn row(words: &[&str], numbers: impl Iterator<Item = Option<f64>>) -> Vec<String> {
    let words = words.iter().map(|word| (*word).to_owned());
    words
        .chain(numbers.map(|number| number.map_or("-".to_owned(), |number| format!("{number:.1}"))))
        .collect()
}
