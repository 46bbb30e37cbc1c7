//! A namespace: its target, the functions over it, and the router before them.

use super::classifier::Retired;
use super::drive::in_words;
use super::target::{TargetControl, TargetSeed};
use crate::problem::Problem;
use crate::size::Size;
use crate::spec::{
    DelaySpec, DriveSpec, FaultSpec, FunctionSpec, NamespaceSpec, OperationName, OutcomeName, Way,
};
use sluice_command::{Layer, NodeId, Operation, Stack, StackBuilder};
use sluice_controller::{COMMANDS_MAX, Namespace, NamespaceConfig};
use sluice_functions::{Delay, DelayConfig, Fault, Outcome, Pass, PassConfig, Rule, When};
use sluice_reactor::{Io, TaskId};
use sluice_router::{Classifier, RouterBuilder};
use std::num::NonZeroU64;

/// A namespace whose targets are open, on its way to its reactor.
pub(crate) struct NamespaceSeed {
    config: NamespaceConfig,
    /// The first path.
    whole: StackSeed,
    /// Path 1 and so on.
    paths: Vec<PathSeed>,
    /// The drive's name.
    drive: String,
    /// With the errors after which it is detached.
    classifier: Option<(Box<dyn Classifier>, Option<u64>)>,
}

/// A target, and the functions over it.
struct StackSeed {
    target: TargetSeed,
    /// Topmost first, as users write them.
    functions: Vec<FunctionSpec>,
}

/// A further path.
enum PathSeed {
    /// Into the whole stack, below so many of its functions.
    Below(usize),
    Own(StackSeed),
}

/// What the control side keeps of a namespace's targets: that of the first path, and those of others.
pub(crate) type TargetControls = Vec<TargetControl>;

impl NamespaceSeed {
    /// Opens the targets. May block.
    pub(crate) fn open(drive: &DriveSpec, nsid: u32) -> Result<(Self, TargetControls), Problem> {
        let unknown = || Problem::not_found(format!("there is no namespace {nsid}"));
        let spec = drive.namespace(nsid).ok_or_else(unknown)?;
        let config = NamespaceConfig { nsid, block_size: spec.block_size, uuid: drive.namespace_uuid(nsid) };
        let open = |spec: &NamespaceSpec| {
            StackSeed::open(spec).map_err(|problem| problem.about(&about(drive, nsid)))
        };
        let (whole, control) = open(spec)?;
        let (mut paths, mut controls) = (Vec::new(), vec![control]);
        for path in &spec.paths {
            paths.push(match path.way(spec)? {
                Way::Below(functions) => PathSeed::Below(functions),
                Way::Own(own) => {
                    let (stack, control) =
                        open(&own).map_err(|it| it.about(&format!("path `{}`", path.name)))?;
                    controls.push(control);
                    PathSeed::Own(stack)
                }
            });
        }
        let drive = drive.name.clone();
        Ok((Self { config, whole, paths, drive, classifier: None }, controls))
    }

    /// Its commands are decided on by this program from the first on.
    pub(super) fn classify(&mut self, classifier: Box<dyn Classifier>, errors_max: Option<u64>) {
        self.classifier = Some((classifier, errors_max));
    }

    /// Builds what belongs to the reactor, on its thread.
    pub(super) fn build(mut self, task: TaskId, io: &Io, retired: Retired) -> Result<Namespace, Problem> {
        let (config, drive) = (self.config.clone(), std::mem::take(&mut self.drive));
        let classifier = self.classifier.take();
        // Without a thread that takes it, it is dropped here.
        let retire = move |program| drop(retired.send(program));
        let (stack, paths) = self.build_paths(task, io)?;
        let legs = paths.len() as u32 + 1;
        let mut router = RouterBuilder::new(stack).drive(drive).on_retired(retire);
        for entry in paths {
            router = router.path(entry).map_err(|error| in_words(&error))?;
        }
        // A verdict can start a leg on every path at once.
        router = router.legs(legs).map_err(|error| in_words(&error))?;
        if let Some((classifier, errors_max)) = classifier {
            router = router.classifier(classifier);
            router = errors_max.into_iter().fold(router, RouterBuilder::errors_max);
        }
        Namespace::new(config, router.build()).map_err(|error| in_words(&error))
    }

    /// Builds the layers alone, on the thread of their reactor.
    pub(crate) fn build_stack(self, task: TaskId, io: &Io) -> Result<Stack, Problem> {
        self.build_paths(task, io).map(|(stack, _)| stack)
    }

    /// The layers, and where path 1 and the others enter them.
    fn build_paths(self, task: TaskId, io: &Io) -> Result<(Stack, Vec<NodeId>), Problem> {
        let nsid = self.config.nsid;
        let mut stack = StackBuilder::new();
        // Of each path with a target of its own the top; the others are looked up in the whole stack.
        let mut tops = Vec::new();
        for path in self.paths {
            tops.push(match path {
                PathSeed::Own(seed) => Ok(*seed.build(&mut stack, task, io, nsid)?.last()),
                PathSeed::Below(functions) => Err(functions),
            });
        }
        // Last, because the layer that was added last is the root.
        let whole = self.whole.build(&mut stack, task, io, nsid)?;
        let entry = |top: Result<NodeId, usize>| top.unwrap_or_else(|functions| whole.below(functions));
        Ok((stack.build(), tops.into_iter().map(entry).collect()))
    }
}

/// The layers of one target, the target first.
struct Chain(Vec<NodeId>);

impl Chain {
    fn last(&self) -> &NodeId {
        self.0.last().expect("a chain has a target")
    }

    /// Below so many of its functions, of which it has as many.
    fn below(&self, functions: usize) -> NodeId {
        self.0[self.0.len() - 1 - functions]
    }
}

impl StackSeed {
    fn open(spec: &NamespaceSpec) -> Result<(Self, TargetControl), Problem> {
        let (target, control) = TargetSeed::open(&spec.target()?, spec.block_size)?;
        Ok((Self { target, functions: spec.functions.clone() }, control))
    }

    fn build(self, stack: &mut StackBuilder, task: TaskId, io: &Io, nsid: u32) -> Result<Chain, Problem> {
        let target = self.target.build(task, io, nsid, stack.next_id())?;
        let mut top = stack.add(target, &[]).map_err(|error| in_words(&error))?;
        let mut chain = vec![top];
        for function in self.functions.iter().rev() {
            top = stack.add(layer(function)?, &[top]).map_err(|error| in_words(&error))?;
            chain.push(top);
        }
        Ok(Chain(chain))
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
