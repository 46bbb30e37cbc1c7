//! A namespace: its target, the functions over it, and the router before them.

use super::drive::in_words;
use super::target::{TargetControl, TargetSeed};
use crate::problem::Problem;
use crate::size::Size;
use crate::spec::{DelaySpec, DriveSpec, FaultSpec, FunctionSpec, OperationName, OutcomeName};
use sluice_command::{Layer, Operation, Stack, StackBuilder};
use sluice_controller::{COMMANDS_MAX, Namespace, NamespaceConfig};
use sluice_functions::{Delay, DelayConfig, Fault, Outcome, Pass, PassConfig, Rule, When};
use sluice_reactor::{Io, TaskId};
use sluice_router::RouterBuilder;
use std::num::NonZeroU64;

/// A namespace whose target is open, on its way to its reactor.
pub(crate) struct NamespaceSeed {
    config: NamespaceConfig,
    target: TargetSeed,
    /// Topmost first, as users write them.
    functions: Vec<FunctionSpec>,
}

impl NamespaceSeed {
    /// Opens the target. May block.
    pub(crate) fn open(drive: &DriveSpec, nsid: u32) -> Result<(Self, TargetControl), Problem> {
        let unknown = || Problem::not_found(format!("there is no namespace {nsid}"));
        let spec = drive.namespace(nsid).ok_or_else(unknown)?;
        let config = NamespaceConfig { nsid, block_size: spec.block_size, uuid: drive.namespace_uuid(nsid) };
        let opened = TargetSeed::open(&spec.target()?, spec.block_size)
            .map_err(|problem| problem.about(&about(drive, nsid)))?;
        let (target, control) = opened;
        Ok((Self { config, target, functions: spec.functions.clone() }, control))
    }

    /// Builds what belongs to the reactor, on its thread.
    pub(super) fn build(self, task: TaskId, io: &Io) -> Result<Namespace, Problem> {
        let config = self.config.clone();
        let router = RouterBuilder::new(self.build_stack(task, io)?).build();
        Namespace::new(config, router).map_err(|error| in_words(&error))
    }

    /// Builds the layers alone, on the thread of their reactor.
    pub(crate) fn build_stack(self, task: TaskId, io: &Io) -> Result<Stack, Problem> {
        let mut stack = StackBuilder::new();
        let target = self.target.build(task, io, self.config.nsid, stack.next_id());
        let mut top = stack.add(target?, &[]).map_err(|error| in_words(&error))?;
        for function in self.functions.iter().rev() {
            top = stack.add(layer(function)?, &[top]).map_err(|error| in_words(&error))?;
        }
        Ok(stack.build())
    }
}

fn about(drive: &DriveSpec, nsid: u32) -> String {
    format!("namespace {nsid} of drive `{}`", drive.name)
}

fn layer(function: &FunctionSpec) -> Result<Box<dyn Layer>, Problem> {
    Ok(match function {
        FunctionSpec::Pass(pass) => Box::new(Pass::new(PassConfig { watch: pass.watch })),
        FunctionSpec::Delay(delay) => Box::new(Delay::new(delay_config(*delay))),
        FunctionSpec::Fault(fault) => Box::new(Fault::new(fault.seed, vec![rule(fault)?])),
    })
}

fn delay_config(delay: DelaySpec) -> DelayConfig {
    let ns = |us: u64| us.saturating_mul(1000);
    DelayConfig {
        read_ns: ns(delay.read_us),
        write_ns: ns(delay.write_us),
        flush_ns: ns(delay.flush_us),
        held_max: COMMANDS_MAX as usize,
    }
}

fn rule(fault: &FaultSpec) -> Result<Rule, Problem> {
    let every = fault.every.and_then(NonZeroU64::new).map(When::Every);
    let bytes = fault.from.unwrap_or_default().0..fault.to.unwrap_or(Size::MAX).0;
    Ok(Rule {
        operations: fault.operations.iter().copied().map(operation).collect(),
        bytes: (fault.from.is_some() || fault.to.is_some()).then_some(bytes),
        skip: fault.skip,
        when: every.or(fault.chance.map(When::Chance)).unwrap_or_default(),
        limit: fault.limit.and_then(NonZeroU64::new),
        outcome: outcome(fault)?,
    })
}

fn outcome(fault: &FaultSpec) -> Result<Outcome, Problem> {
    Ok(match fault.outcome {
        OutcomeName::Fail => Outcome::Fail(fault.nvme_status()?),
        OutcomeName::FailAfterwards => Outcome::FailAfterwards(fault.nvme_status()?),
        OutcomeName::Short => Outcome::Short(fault.moved.unwrap_or_default().0),
        OutcomeName::Hang => Outcome::Hang,
    })
}

fn operation(name: OperationName) -> Operation {
    match name {
        OperationName::Read => Operation::Read,
        OperationName::Write => Operation::Write,
        OperationName::Flush => Operation::Flush,
        OperationName::WriteZeroes => Operation::WriteZeroes,
        OperationName::Deallocate => Operation::Deallocate,
    }
}
