//! A namespace: its target, the functions over it, and the router before them.

use super::classifier::BackgroundChannels;
use super::clone_stack::Stateless;
use super::drive::in_words;
use super::function::{FunctionControl, Held, PreparedFunction};
use super::labels::{Labels, OpenSets};
use super::pause;
use super::power::Losses;
use super::shared::Pools;
use super::target::{PreparedTarget, TargetControl};
use sluice_command::{NodeId, Stack, StackBuilder};
use sluice_control::drives::{DeviceView, Remembered, new_identity};
use sluice_control::state::Created;
use sluice_controller::{Attachment, Namespace, NamespaceConfig, ReservationRecord};
use sluice_functions::{CacheCounters, QosControl};
use sluice_reactor::{Io, TaskId, now_ns};
use sluice_router::{Classifier, RouterBuilder};
use sluice_spec::error::ApiError;
use sluice_spec::size::Size;
use sluice_spec::{DriveSpec, FunctionSpec, NamespaceSpec, Way};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A namespace whose targets are open, on its way to its reactor.
#[allow(missing_debug_implementations)] // Of layers that are built once and never printed.
pub struct PreparedNamespace {
    config: NamespaceConfig,
    /// Stack of the first path.
    whole: PreparedStack,
    /// Further paths, from path 1 on.
    paths: Vec<PreparedPath>,
    /// Name of the drive.
    drive: String,
    /// Whether a translation cache, besides the host, depends on the block size.
    fixed_block_size: bool,
    /// Classifier, with the number of errors after which it is detached.
    classifier: Option<(Box<dyn Classifier>, Option<u64>)>,
    ana_group: u32,
    /// Reservations that persist.
    reservations: Option<ReservationRecord>,
    /// Whether several controllers may share the namespace; `None` if no host has created it.
    created: Option<bool>,
    /// Attachment to controllers, if hosts have changed it.
    attachment: Option<Attachment>,
}

/// A target, and the functions over it.
pub(super) struct PreparedStack {
    pub(super) target: PreparedTarget,
    /// Functions, topmost first, in the order of the configuration.
    pub(super) functions: Vec<PreparedFunction>,
    /// Time limit for commands of a paused target; none if it is not paused.
    pub(super) pause: Option<Option<Duration>>,
}

/// Place in which layers are built.
pub(super) struct Site<'a> {
    pub(super) task: TaskId,
    pub(super) io: &'a Io,
    pub(super) nsid: u32,
}

/// Controls of a target, and of those functions over it that are more than a layer.
#[derive(Debug)]
pub struct StackControl {
    pub(super) target: TargetControl,
    pub(super) functions: Vec<Arc<FunctionControl>>,
    /// Controls of the layers below those functions over the target that are only layers.
    pub(super) layers: Vec<StackControl>,
    /// Controls of limits of the functions over the target, topmost first.
    pub(super) limits: Vec<QosControl>,
    /// Counters of caches over the target, topmost first.
    pub(super) caches: Vec<Arc<CacheCounters>>,
    /// Functions as they were declared, without those behind the function SDK; `None` for a function that
    /// cannot work in two places.
    pub(super) stateless: Vec<Option<Stateless>>,
    /// Whether the operator has paused the target.
    pub(super) paused: bool,
    /// Whether another process may go on with instances of its own of the functions that are only layers.
    pub(super) restarts: bool,
    /// Sets with labels, whose first member is the target.
    pub(super) labelled: OpenSets,
    /// Index of a layer that is still in the stack although its function could not be attached.
    pub(super) leftover: Option<usize>,
}

impl StackControl {
    /// Returns the NVMe devices behind the target, and behind the layers of its functions.
    pub(super) fn devices(&self, nsid: u32) -> Vec<DeviceView> {
        let below = self.functions.iter().flat_map(|function| &function.layers).chain(&self.layers);
        let below = below.flat_map(|stack| stack.devices(nsid));
        self.target.devices(nsid).into_iter().chain(below).collect()
    }

    /// Returns the controllers behind the target, and behind the layers of its functions, with their power
    /// identifiers.
    pub(super) fn peers(&self) -> Vec<(String, Option<String>)> {
        let below = self.functions.iter().flat_map(|function| &function.layers).chain(&self.layers);
        self.target.peer().into_iter().chain(below.flat_map(StackControl::peers)).collect()
    }

    /// Returns whether acknowledged writes may be lost without a report to any host.
    pub(super) fn is_in_doubt(&self) -> bool {
        // Functions over a target may have another copy, and report losses themselves.
        let has_lost = self.functions.is_empty() && self.target.has_lost();
        has_lost
            || self.uifs().iter().any(|function| function.uif.has_unreported_loss())
            || self.layers.iter().any(StackControl::is_in_doubt)
    }

    /// Raises the epochs of all labelled sets, after the last command of the drive. So copies of members that
    /// were made while it was open are older ones.
    pub(super) fn raise_epochs(&self, drive: &str) {
        self.labelled.raise(drive);
        let below = self.functions.iter().flat_map(|function| &function.layers).chain(&self.layers);
        below.for_each(|stack| stack.raise_epochs(drive));
    }

    /// Returns the functions behind the function SDK, each followed by those in the layers below it.
    pub(super) fn uifs(&self) -> Vec<&Arc<FunctionControl>> {
        let mut found = Vec::new();
        for function in &self.functions {
            found.push(function);
            found.extend(function.layers.iter().flat_map(Self::uifs));
        }
        found
    }

    /// Returns the IDs of the processes that the daemon started for these functions.
    pub fn processes(&self) -> Vec<u32> {
        self.uifs().iter().filter_map(|function| function.uif.status().process).collect()
    }
}

/// A further path.
enum PreparedPath {
    /// Entry into the whole stack, below this number of its functions; true if the path reaches blocks beyond
    /// the namespace.
    Below(usize, bool),
    Own(Box<PreparedStack>),
}

/// Controls of a namespace: of the first path, then of other paths with a target of their own.
pub type StackControls = Vec<StackControl>;

impl PreparedNamespace {
    /// Opens the targets and the functions. May block.
    pub fn open(drive: &DriveSpec, nsid: u32) -> Result<(Self, StackControls), ApiError> {
        Self::open_after(drive, nsid, Losses::default(), &Pools::default())
    }

    /// Opens the targets and the functions, with the losses that an earlier daemon has left. May block.
    pub(super) fn open_after(
        drive: &DriveSpec,
        nsid: u32,
        losses: Losses<'_>,
        pools: &Pools,
    ) -> Result<(Self, StackControls), ApiError> {
        let unknown = || ApiError::not_found(format!("there is no namespace {nsid}"));
        let spec = drive.namespace(nsid).ok_or_else(unknown)?;
        let config =
            NamespaceConfig { nsid, block_size: spec.block_size, uuid: drive.namespace_uuid(nsid, &[]) };
        let open = |spec: &NamespaceSpec| {
            PreparedStack::open(spec, &drive.name, losses, pools)
                .map_err(|problem| problem.about(&about(drive, nsid)))
        };
        let (whole, control) = open(spec)?;
        let (mut paths, mut controls) = (Vec::new(), vec![control]);
        for path in &spec.paths {
            paths.push(match path.way(spec)? {
                Way::Below(functions) => PreparedPath::Below(functions, path.beyond),
                Way::Own(own) => {
                    let (stack, control) =
                        open(&own).map_err(|it| it.about(&format!("path `{}`", path.name)))?;
                    controls.push(control);
                    PreparedPath::Own(Box::new(stack))
                }
            });
        }
        let drive = drive.name.clone();
        // A translation cache is filled in blocks of the configured size.
        let fixed_block_size = controls.iter().flat_map(StackControl::uifs).any(|it| it.cache.is_filled());
        let ana_group = spec.ana_group.unwrap_or(1);
        Ok((
            Self {
                config,
                whole,
                paths,
                drive,
                fixed_block_size,
                ana_group,
                classifier: None,
                reservations: None,
                created: None,
                attachment: None,
            },
            controls,
        ))
    }

    /// Opens a namespace that a host has created, or creates it if `new_size` is given. May block.
    pub(super) fn created(
        drive: &DriveSpec,
        created: &Created,
        new_size: Option<Size>,
    ) -> Result<Self, ApiError> {
        let Created { nsid, number, block_size, .. } = *created;
        let pool = drive.pool.as_ref().ok_or_else(|| ApiError::conflict("the drive has no pool"))?;
        // Memory is allocated anew, and a file keeps its size.
        let size = new_size.or_else(|| created.file.is_none().then_some(created.size));
        let spec = pool.namespace(created.file.as_deref(), block_size, size);
        if let (None, Some(path)) = (new_size, &spec.path)
            && !path.exists()
        {
            return Err(is_missing(drive, nsid, path));
        }
        let opened = PreparedStack::open(&spec, &drive.name, Losses::default(), &Pools::default());
        let (whole, _) = opened.map_err(|problem| problem.about(&about(drive, nsid)))?;
        // A namespace in memory is a new one each time.
        let identity = match &created.file {
            Some(_) => created.identity.clone(),
            None => Some(new_identity()?),
        };
        let uuid = drive.created_uuid(nsid, number, identity.as_deref());
        let config = NamespaceConfig { nsid, block_size, uuid };
        Ok(Self {
            config,
            whole,
            paths: Vec::new(),
            drive: drive.name.clone(),
            fixed_block_size: false,
            classifier: None,
            ana_group: created.ana_group,
            reservations: None,
            created: Some(created.shared),
            attachment: None,
        })
    }

    /// Applies the stored identifiers, and the stored changes by hosts: reservations, the controllers that
    /// are attached, and another block size. Layers keep the block size with which they were opened.
    pub(super) fn remember(&mut self, remembered: &Remembered) {
        let nsid = self.config.nsid;
        if let Some((_, block_size)) = remembered.block_sizes.iter().find(|(of, _)| *of == nsid) {
            self.config.block_size = *block_size;
        }
        if let Some((_, uuid)) = remembered.uuids.iter().find(|(of, _)| *of == nsid) {
            self.config.uuid = *uuid;
        }
        let reserved = remembered.reservations.iter().find(|(of, _)| *of == nsid);
        self.reservations = reserved.map(|(_, record)| record.clone());
        let paused = remembered.paused_targets.iter().find(|(of, _)| *of == nsid);
        self.whole.pause = paused.map(|(_, seconds)| seconds.map(|it| Duration::from_secs(it.into())));
        self.attachment = remembered.pooled.attachment(nsid);
    }

    /// Attaches a program, which decides on all commands from the first on.
    pub(super) fn classify(&mut self, classifier: Box<dyn Classifier>, errors_max: Option<u64>) {
        self.classifier = Some((classifier, errors_max));
    }

    /// Builds the objects that belong to the reactor, on its thread.
    pub(super) fn build(
        mut self,
        task: TaskId,
        io: &Io,
        channels: BackgroundChannels,
    ) -> Result<Namespace, ApiError> {
        let (config, drive) = (self.config.clone(), std::mem::take(&mut self.drive));
        let (classifier, reservations) = (self.classifier.take(), self.reservations.take());
        let BackgroundChannels { retired, detached, .. } = channels;
        let (fixed_block_size, ana_group) = (self.fixed_block_size, self.ana_group);
        let (created, attachment) = (self.created, self.attachment.take());
        // Without a thread that receives it, the program is dropped here.
        let retire = move |program| drop(retired.send(program));
        let name = drive.clone();
        let tell = move || drop(detached.send(name.clone()));
        let (stack, paths) = self.build_paths(task, io)?;
        let legs = paths.len() as u32 + 1;
        let mut router = RouterBuilder::new(stack).drive(drive).on_retired(retire).on_detached(tell);
        for (entry, beyond) in paths {
            let further = if beyond { router.path_beyond(entry) } else { router.path(entry) };
            router = further.map_err(|error| in_words(&error))?;
        }
        // A verdict can start a leg on every path at once.
        router = router.legs(legs).map_err(|error| in_words(&error))?;
        if let Some((classifier, errors_max)) = classifier {
            router = router.classifier(classifier);
            router = errors_max.into_iter().fold(router, RouterBuilder::errors_max);
        }
        let namespace = Namespace::new(config, router.build()).map_err(|error| in_words(&error))?;
        let mut namespace = namespace.in_ana_group(ana_group);
        if let Some(record) = reservations {
            namespace = namespace.reserved(&record);
        }
        if let Some(shared) = created {
            namespace = namespace.created(shared);
        }
        if let Some(attachment) = attachment {
            namespace = namespace.attached_to(attachment);
        }
        if fixed_block_size {
            namespace = namespace.fix_block_size();
        }
        // An erasure through the first path does not reach data that a program sent down further paths.
        Ok(if legs > 1 { namespace.forbid_erasing() } else { namespace })
    }

    /// Builds the layers alone, on the thread of their reactor.
    pub fn build_stack(self, task: TaskId, io: &Io) -> Result<Stack, ApiError> {
        self.build_paths(task, io).map(|(stack, _)| stack)
    }

    /// Builds the layers. Returns them with the entry of each further path, and whether that path leads
    /// beyond the namespace.
    fn build_paths(self, task: TaskId, io: &Io) -> Result<(Stack, Vec<(NodeId, bool)>), ApiError> {
        let at = Site { task, io, nsid: self.config.nsid };
        let mut stack = StackBuilder::new();
        // The top of each path with a target of its own; entries of other paths are looked up in the whole
        // stack.
        let mut tops = Vec::new();
        for path in self.paths {
            tops.push(match path {
                PreparedPath::Own(prepared) => Ok(*prepared.build(&mut stack, &at)?.last()),
                PreparedPath::Below(functions, beyond) => Err((functions, beyond)),
            });
        }
        // The whole stack is built last, because the layer that was added last is the root.
        let whole = self.whole.build(&mut stack, &at)?;
        let entry = |top: Result<NodeId, (usize, bool)>| match top {
            Ok(top) => (top, false),
            Err((functions, beyond)) => (whole.below(functions), beyond),
        };
        Ok((stack.build(), tops.into_iter().map(entry).collect()))
    }
}

/// The layers of one target, the target first.
struct Chain(Vec<NodeId>);

impl Chain {
    fn last(&self) -> &NodeId {
        self.0.last().expect("a chain has a target")
    }

    /// Returns the layer below the topmost `functions` functions; the chain has at least as many.
    fn below(&self, functions: usize) -> NodeId {
        self.0[self.0.len() - 1 - functions]
    }
}

impl PreparedStack {
    /// Opens the target and its functions. `losses` applies to targets right below the layer above this
    /// stack.
    pub(super) fn open(
        spec: &NamespaceSpec,
        drive: &str,
        losses: Losses<'_>,
        pools: &Pools,
    ) -> Result<(Self, StackControl), ApiError> {
        let (spec, labels) = Labels::examine(spec, drive)?;
        let at_target = spec.functions.iter().fold(losses, Losses::below);
        let (prepared, target) = PreparedTarget::open(&spec.target()?, spec.block_size, at_target, pools)?;
        let mut above = losses;
        let opened = spec.functions.iter().map(|function| {
            let opened = PreparedFunction::open(function, drive, spec.block_size, above, pools);
            above = above.below(function);
            opened
        });
        let (functions, controls): (Vec<_>, Vec<_>) =
            opened.collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
        let stateless = functions.iter().filter(|function| !matches!(function, PreparedFunction::Uif(..)));
        let stateless = stateless.map(Stateless::of).collect();
        let restarts = spec.functions.iter().all(|function| match function {
            FunctionSpec::Uif(_) => true,
            layer => layer.shape().restarts || layer.shape().is_stateless,
        });
        let mut prepared = Self { target: prepared, functions, pause: None };
        let labelled = labels.take(&mut prepared)?;
        let mut control = StackControl {
            target,
            functions: Vec::new(),
            layers: Vec::new(),
            limits: Vec::new(),
            caches: Vec::new(),
            stateless,
            restarts,
            leftover: None,
            paused: false,
            labelled,
        };
        for Held { function, layers, limits, cached } in controls {
            control.caches.extend(cached);
            control.limits.extend(limits);
            control.functions.extend(function.map(Arc::new));
            control.layers.extend(layers);
        }
        Ok((prepared, control))
    }

    fn build(self, stack: &mut StackBuilder, at: &Site<'_>) -> Result<Chain, ApiError> {
        let mut top = self.target.add(stack, at)?;
        if let Some(limit) = self.pause {
            top = pause::add(stack, top, limit, now_ns()).map_err(|error| in_words(&error))?;
        }
        // A path that enters the stack at its target enters the layer of a pause.
        let mut chain = vec![top];
        for function in self.functions.into_iter().rev() {
            top = function.build(top, stack, at)?;
            chain.push(top);
        }
        Ok(Chain(chain))
    }

    /// Builds the stack of a namespace that has no other path.
    pub(super) fn build_alone(self, at: &Site<'_>) -> Result<Stack, ApiError> {
        let mut stack = StackBuilder::new();
        self.build(&mut stack, at)?;
        Ok(stack.build())
    }

    /// Builds a stack beside that of a namespace; a resize of the namespace does not affect it. Returns its
    /// top.
    pub(super) fn build_aside(self, stack: &mut StackBuilder, at: &Site<'_>) -> Result<NodeId, ApiError> {
        let chain = self.build(stack, at)?;
        stack.fix(chain.0[0]);
        Ok(*chain.last())
    }
}

/// Returns the problem for a missing file of a namespace that a host has created.
fn is_missing(drive: &DriveSpec, nsid: u32, path: &Path) -> ApiError {
    let (path, name) = (path.display(), &drive.name);
    ApiError::conflict(format!(
        "{path}, with namespace {nsid} that a host of drive `{name}` has created, does not exist"
    ))
    .hint(format!(
        "mount the file system of the pool's folder or bring the file back, then `sluice drive open {name}`"
    ))
}

fn about(drive: &DriveSpec, nsid: u32) -> String {
    format!("namespace {nsid} of drive `{}`", drive.name)
}
