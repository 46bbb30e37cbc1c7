//! `sluice bench instructions`: what a command costs, as a number that is the same every time.
//!
//! There may be no performance counter, and times depend on the machine and the hour. So a child
//! process runs a controller and a host on one thread, and we step through its turns one instruction at
//! a time. Of the controller its turn is counted: from the doorbell to the completion entry, without
//! the reactor, the socket and the interrupt. Of the host its turn as in a flat-out measurement.

mod child;
pub(super) mod classifier;
mod loopback;
mod scenario;
mod tracer;

pub use scenario::{Classifier, Function, Operation, Scenario, Side, Target};

use crate::cli::table::Table;
use crate::problem::Problem;
use clap::{Args, Subcommand};
use scenario::{BATCHES, CALLED, CLASSIFIERS, FUNCTIONS, OPERATIONS, TARGETS};
use serde::Serialize;
use sluice_controller::FETCH_MAX;
use std::process::Command;
use tracer::Tracee;

/// `sluice bench instructions`
#[derive(Debug, Args)]
pub struct InstructionArgs {
    #[command(subcommand)]
    child: Option<Hidden>,
    /// Turns with so many commands
    #[arg(long, value_delimiter = ',', value_name = "COMMANDS", default_values_t = BATCHES)]
    batch: Vec<u32>,
    /// Only this side of the queue
    #[arg(long, value_enum)]
    side: Option<Side>,
    /// Only commands that do this
    #[arg(long, value_enum)]
    operation: Option<Operation>,
    /// Only on this target
    #[arg(long, value_enum)]
    target: Option<Target>,
    /// Only under this function, which is counted on the null target, for reads
    #[arg(long, value_enum)]
    function: Option<Function>,
    /// Only with this classifier, which is counted on the null target, for reads
    #[arg(long, value_enum)]
    classifier: Option<Classifier>,
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
    /// Of one command: the mean over some turns.
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
        None => count_all(&arguments.plan()).map(Some),
    }
}

fn count_all(scenarios: &[Scenario]) -> Result<Counts, Problem> {
    if let Some(impossible) = scenarios.iter().find(|scenario| !scenario.is_possible()) {
        return Err(Problem::invalid(format!("a turn cannot have {} commands", impossible.batch))
            .hint(format!("use 1 to {FETCH_MAX}")));
    }
    let mut counts = Vec::with_capacity(scenarios.len());
    for (index, scenario) in scenarios.iter().enumerate() {
        super::progress(index, scenarios.len(), scenario);
        counts.push(Count { scenario: *scenario, instructions: count(scenario)? });
    }
    Ok(Counts { counts })
}

impl InstructionArgs {
    /// Every operation on every target, every function over the target that does nothing, and the host;
    /// less what nobody asked for.
    fn plan(&self) -> Vec<Scenario> {
        let base = Scenario {
            side: Side::Controller,
            target: Target::Null,
            function: Function::None,
            classifier: Classifier::None,
            operation: Operation::Read,
            batch: 1,
        };
        let plain = TARGETS
            .into_iter()
            .flat_map(|target| OPERATIONS.map(|operation| Scenario { target, operation, ..base }));
        let functions = FUNCTIONS.map(|function| Scenario { function, ..base });
        let classifiers = CLASSIFIERS.map(|classifier| Scenario { classifier, ..base });
        // The host does not care what is behind the drive.
        let host = Scenario { side: Side::Host, ..base };
        let calls = CALLED.map(|classifier| Scenario { side: Side::Call, classifier, ..base });
        let all = plain.chain(functions).chain(classifiers).chain(calls).chain([host]);
        let batches = |scenario| self.batch.iter().map(move |&batch| Scenario { batch, ..scenario });
        all.flat_map(batches).filter(|scenario| self.wants(scenario)).collect()
    }

    fn wants(&self, scenario: &Scenario) -> bool {
        self.side.is_none_or(|side| side == scenario.side)
            && self.operation.is_none_or(|operation| operation == scenario.operation)
            && self.target.is_none_or(|target| target == scenario.target)
            && self.function.is_none_or(|function| function == scenario.function)
            && self.classifier.is_none_or(|classifier| classifier == scenario.classifier)
    }
}

/// Instructions of one call of a classifier: a native one by a pointer to a function, and one in eBPF.
pub(super) fn count_calls(classifier: Classifier) -> Result<f64, Problem> {
    let (target, function, operation) = (Target::Null, Function::None, Operation::Read);
    let batch = classifier::commands().len() as u32;
    count(&Scenario { side: Side::Call, target, function, classifier, operation, batch })
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
    Ok(instructions as f64 / f64::from(turns * scenario.batch))
}

impl Counts {
    fn get(&self, wanted: Scenario) -> Option<f64> {
        let found = self.counts.iter().find(|count| count.scenario == wanted);
        found.map(|count| count.instructions)
    }

    /// Of the controller.
    fn turn(&self, target: Target, function: Function, operation: Operation, batch: u32) -> Option<f64> {
        let classifier = Classifier::None;
        self.get(Scenario { side: Side::Controller, target, function, classifier, operation, batch })
    }

    fn called(&self, classifier: Classifier, batch: u32) -> Option<f64> {
        let (target, function, operation) = (Target::Null, Function::None, Operation::Read);
        self.get(Scenario { side: Side::Call, target, function, classifier, operation, batch })
    }

    fn host(&self, batch: u32) -> Option<f64> {
        let (target, function, operation) = (Target::Null, Function::None, Operation::Read);
        let classifier = Classifier::None;
        self.get(Scenario { side: Side::Host, target, function, classifier, operation, batch })
    }

    fn batches(&self) -> Vec<u32> {
        let mut batches: Vec<u32> = self.counts.iter().map(|count| count.scenario.batch).collect();
        batches.sort_unstable();
        batches.dedup();
        batches
    }

    /// What a function adds to a command.
    fn added(&self, function: Function, batch: u32) -> Option<f64> {
        let over = |function| self.turn(Target::Null, function, Operation::Read, batch);
        Some(over(function)? - over(Function::None)?)
    }

    /// What a classifier adds to a command.
    fn decided(&self, classifier: Classifier, batch: u32) -> Option<f64> {
        let (target, function, operation) = (Target::Null, Function::None, Operation::Read);
        let with = Scenario { side: Side::Controller, target, function, classifier, operation, batch };
        Some(self.get(with)? - self.turn(target, function, operation, batch)?)
    }

    pub fn text(&self) -> String {
        format!(
            "Instructions of one command, by how many are in a turn; reads and writes of 4 KiB.\n\n{}\n\
             Instructions that a function adds to a command (read, null target).\n\n{}\n\
             Instructions that a classifier adds to a command (read, null target).\n\n{}\n\
             Instructions of one call of a classifier, by how many calls are counted.\n\n{}\n\
             Instructions of the host that measures, for one command.\n\n{}",
            self.commands().text(),
            self.functions().text(),
            self.classifiers().text(),
            self.calls().text(),
            self.hosts().text()
        )
    }

    fn commands(&self) -> Table {
        let mut table = Table::new(&titles(&["TARGET", "COMMAND"], &self.batches()));
        for (target, operation) in TARGETS.into_iter().flat_map(|target| OPERATIONS.map(|it| (target, it))) {
            let count = |batch| self.turn(target, Function::None, operation, batch);
            add_row(&mut table, &[target.word(), operation.word()], self.batches().into_iter().map(count));
        }
        table
    }

    fn functions(&self) -> Table {
        let mut table = Table::new(&titles(&["FUNCTION"], &self.batches()));
        for function in FUNCTIONS {
            let added = |batch| self.added(function, batch);
            add_row(&mut table, &[function.word()], self.batches().into_iter().map(added));
        }
        table
    }

    fn classifiers(&self) -> Table {
        let mut table = Table::new(&titles(&["CLASSIFIER"], &self.batches()));
        for classifier in CLASSIFIERS {
            let added = |batch| self.decided(classifier, batch);
            add_row(&mut table, &[classifier.word()], self.batches().into_iter().map(added));
        }
        table
    }

    fn calls(&self) -> Table {
        let mut table = Table::new(&titles(&["CLASSIFIER"], &self.batches()));
        for classifier in CALLED {
            let called = |batch| self.called(classifier, batch);
            add_row(&mut table, &[classifier.word()], self.batches().into_iter().map(called));
        }
        table
    }

    fn hosts(&self) -> Table {
        let mut table = Table::new(&titles(&["SIDE"], &self.batches()));
        add_row(&mut table, &["host"], self.batches().into_iter().map(|batch| self.host(batch)));
        table
    }
}

fn titles(first: &[&str], batches: &[u32]) -> Vec<String> {
    let first = first.iter().map(|title| (*title).to_owned());
    first.chain(batches.iter().map(|batch| format!("{batch}-A-TURN"))).collect()
}

/// Adds a row, if there is any number in it.
fn add_row(table: &mut Table, words: &[&str], numbers: impl Iterator<Item = Option<f64>>) {
    let numbers: Vec<Option<f64>> = numbers.collect();
    if numbers.iter().any(Option::is_some) {
        let cell = |number: Option<f64>| number.map_or("-".to_owned(), |number| format!("{number:.1}"));
        let words = words.iter().map(|word| (*word).to_owned());
        table.row(words.chain(numbers.into_iter().map(cell)).collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: Scenario = Scenario {
        side: Side::Controller,
        target: Target::Null,
        function: Function::None,
        classifier: Classifier::None,
        operation: Operation::Read,
        batch: 8,
    };

    #[test]
    fn functions_and_classifiers_are_told_by_what_they_add() {
        let count = |scenario, instructions| Count { scenario, instructions };
        let counts = vec![
            count(Scenario { batch: 1, ..READ }, 500.0),
            count(READ, 400.25),
            count(Scenario { function: Function::Pass, ..READ }, 450.5),
            count(Scenario { classifier: Classifier::Ebpf, ..READ }, 600.0),
            count(Scenario { side: Side::Call, classifier: Classifier::EbpfWindow, ..READ }, 70.0),
            count(Scenario { side: Side::Host, ..READ }, 60.0),
        ];
        let expected = "\
Instructions of one command, by how many are in a turn; reads and writes of 4 KiB.

TARGET  COMMAND  1-A-TURN  8-A-TURN
null    read        500.0     400.2

Instructions that a function adds to a command (read, null target).

FUNCTION  1-A-TURN  8-A-TURN
pass             -      50.2

Instructions that a classifier adds to a command (read, null target).

CLASSIFIER  1-A-TURN  8-A-TURN
ebpf               -     199.8

Instructions of one call of a classifier, by how many calls are counted.

CLASSIFIER   1-A-TURN  8-A-TURN
ebpf-window         -      70.0

Instructions of the host that measures, for one command.

SIDE  1-A-TURN  8-A-TURN
host         -      60.0
";
        assert_eq!(Counts { counts }.text(), expected);
    }
}
