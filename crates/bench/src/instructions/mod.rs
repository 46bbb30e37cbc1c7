//! `sluice bench instructions`: the cost of a command, as a number that is the same every time.
//!
//! There may be no performance counter, and times depend on the machine and the hour. So a child process runs
//! a controller and a host on one thread, and this process steps through its turns one instruction at a time.
//! Of the controller its turn is counted: from the doorbell to the completion entry, without the reactor, the
//! socket and the interrupt. Of the host its turn is counted as in a flat-out measurement.
//!
//! Over NVMe/TCP either side is a reactor in the child, and its whole turns with work are counted, except for
//! the kernel's part. The two take turns (`lockstep`). Layers that are driven directly have one reactor alone.

mod child;
pub(super) mod classifier;
mod counts;
mod halt;
mod lockstep;
mod loopback;
mod mark;
mod pool;
mod scenario;
mod tcp;
mod tracer;

pub use counts::{Count, Counts};
pub use scenario::{Classifier, Function, Operation, Scenario, Side, Target, Transport};

use super::program;
use clap::{Args, Subcommand};
use scenario::{
    BATCHES, CALLED, CLASSIFIERS, DRIVEN, FUNCTIONS, OPERATIONS, POOLED, SIDES, TARGETS, TRANSFERS,
};
use sluice_spec::error::ApiError;
use std::process::Command;
use tracer::Process;

/// `sluice bench instructions`
#[derive(Debug, Args)]
pub struct InstructionArgs {
    #[command(subcommand)]
    child: Option<Hidden>,
    /// Commands in a turn; over NVMe/TCP and directly, commands in flight
    #[arg(long, value_delimiter = ',', value_name = "COMMANDS", default_values_t = BATCHES)]
    batch: Vec<u32>,
    /// Loads over NVMe/TCP; the smallest count is used, because the network may bring in parts what was sent
    /// together
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    runs: u32,
    /// Only over this transport
    #[arg(long, value_enum)]
    transport: Option<Transport>,
    /// Only this side of the queue
    #[arg(long, value_enum)]
    side: Option<Side>,
    /// Only this kind of commands
    #[arg(long, value_enum)]
    operation: Option<Operation>,
    /// Only on this target
    #[arg(long, value_enum)]
    target: Option<Target>,
    /// Only under this function: mirror and replicate are driven directly, others are counted on the null target, for reads
    #[arg(long, value_enum)]
    function: Option<Function>,
    /// Only with this classifier, which is counted on the null target, for reads
    #[arg(long, value_enum)]
    classifier: Option<Classifier>,
    /// Turns of controllers that measure how long commands take, and nothing else
    #[arg(long)]
    latency: bool,
    /// Turns of controllers that trace one command of 512, and nothing else
    #[arg(long)]
    trace: bool,
}

#[derive(Debug, Subcommand)]
enum Hidden {
    /// The process that is counted
    #[command(hide = true)]
    Child(Scenario),
}

/// Counts everything; returns `None` in the counted process itself.
pub fn run(arguments: &InstructionArgs) -> Result<Option<Counts>, ApiError> {
    match &arguments.child {
        Some(Hidden::Child(scenario)) => child::run(scenario).map(|()| None),
        None => count_all(&arguments.plan(), arguments.runs).map(Some),
    }
}

fn count_all(scenarios: &[Scenario], runs: u32) -> Result<Counts, ApiError> {
    if let Some(impossible) = scenarios.iter().find(|scenario| !scenario.is_possible()) {
        return Err(impossible.impossible());
    }
    let mut counts = Vec::with_capacity(scenarios.len());
    for (index, scenario) in scenarios.iter().enumerate() {
        super::progress(index, scenarios.len(), scenario);
        counts.push(count(scenario, runs)?);
    }
    Ok(Counts { counts })
}

impl InstructionArgs {
    /// Returns the requested scenarios out of all. These are every operation on every target, every function
    /// and classifier over the null target, and the host. Over NVMe/TCP and directly, they are the operations
    /// that move data.
    fn plan(&self) -> Vec<Scenario> {
        let base = Scenario::PLAIN;
        let with = |operations: &'static [Operation], base| {
            let each =
                move |target| operations.iter().map(move |&operation| Scenario { target, operation, ..base });
            TARGETS.into_iter().flat_map(each)
        };
        let functions = FUNCTIONS.map(|function| Scenario { function, ..base });
        let classifiers = CLASSIFIERS.map(|classifier| Scenario { classifier, ..base });
        let calls = CALLED.map(|classifier| Scenario { side: Side::Call, classifier, ..base });
        // The work of the host does not depend on the storage behind the drive.
        let host = Scenario { side: Side::Host, ..base };
        let sides = SIDES.map(|side| Scenario { transport: Transport::Tcp, side, ..base });
        let remote = sides.into_iter().flat_map(|base| with(&TRANSFERS, base));
        let driven = Scenario { transport: Transport::Direct, side: Side::Host, ..base };
        let pooled = POOLED.map(|(target, operation)| Scenario { target, operation, ..driven });
        let driven = DRIVEN.map(|function| Scenario { function, ..driven });
        let direct = driven.into_iter().flat_map(|base| with(&TRANSFERS, base));
        let all = with(&OPERATIONS, base).chain(functions).chain(classifiers).chain(calls).chain([host]);
        let batches = |scenario| self.batch.iter().map(move |&batch| Scenario { batch, ..scenario });
        all.chain(remote)
            .chain(direct)
            .chain(pooled)
            .flat_map(batches)
            .map(|scenario| Scenario { latency: self.latency, trace: self.trace, ..scenario })
            .filter(|scenario| self.wants(scenario))
            .collect()
    }

    fn wants(&self, scenario: &Scenario) -> bool {
        self.transport.is_none_or(|transport| transport == scenario.transport)
            && self.side.is_none_or(|side| side == scenario.side)
            && self.operation.is_none_or(|operation| operation == scenario.operation)
            && self.target.is_none_or(|target| target == scenario.target)
            && self.function.is_none_or(|function| function == scenario.function)
            && self.classifier.is_none_or(|classifier| classifier == scenario.classifier)
            && (!(self.latency || self.trace) || scenario.side == Side::Controller)
            && (!self.latency || scenario.transport != Transport::Direct)
            && (!self.trace || scenario.transport == Transport::Pcie)
    }
}

/// Counts the instructions of one call of a classifier: a native one by a pointer to a function, or one in
/// eBPF.
pub(super) fn count_calls(classifier: Classifier) -> Result<f64, ApiError> {
    let batch = classifier::commands().len() as u32;
    count(&Scenario { side: Side::Call, classifier, batch, ..Scenario::PLAIN }, 1)
        .map(|count| count.instructions)
}

/// Counts the instructions and entries into the kernel of one command.
fn count(scenario: &Scenario, runs: u32) -> Result<Count, ApiError> {
    let (instructions, syscalls) = match scenario.transport {
        Transport::Pcie => (count_turns(scenario)?, None),
        Transport::Tcp | Transport::Direct => {
            let loads = (0..runs).map(|_| lockstep::instructions(child(scenario)?));
            let loads: Vec<u64> = loads.collect::<Result<_, _>>()?;
            let least = loads.into_iter().min().ok_or_else(|| ApiError::internal("there was no run"))?;
            (least, Some(lockstep::syscalls(child(scenario)?)?))
        }
    };
    let per_command = |sum: u64| sum as f64 / f64::from(scenario.commands());
    let (instructions, syscalls) = (per_command(instructions), syscalls.map(per_command));
    Ok(Count { scenario: *scenario, instructions, syscalls })
}

fn child(scenario: &Scenario) -> Result<Process, ApiError> {
    let mut command = Command::new(program::own()?);
    command.args(["instructions", "child"]).args(scenario.arguments());
    Process::start(command)
}

/// Counts the instructions of a process of one thread, which stops before and after each turn.
fn count_turns(scenario: &Scenario) -> Result<u64, ApiError> {
    let process = child(scenario)?;
    let thread = process.main_thread()?;
    let (nothing, _) = thread.count()?;
    let (mut instructions, mut turns) = (0, 0);
    while thread.run_on()?.is_some() {
        instructions += thread.count()?.0 - nothing;
        turns += 1;
    }
    if turns != scenario.turns() {
        return Err(ApiError::internal(format!("{turns} turns were counted, not {}", scenario.turns())));
    }
    Ok(instructions)
}
