//! A namespace: its target, the functions over it, and the router before them.

use super::classifier::Heirs;
use super::drive::in_words;
use super::function::{FunctionControl, FunctionSeed, Held};
use super::power::Losses;
use super::target::{TargetControl, TargetSeed};
use super::twin::Stateless;
use sluice_command::{NodeId, Stack, StackBuilder};
use sluice_control::drives::{DeviceView, Remembered, new_identity};
use sluice_control::state::Created;
use sluice_controller::{Attachment, Namespace, NamespaceConfig, ReservationRecord};
use sluice_reactor::{Io, TaskId};
use sluice_router::{Classifier, RouterBuilder};
use sluice_spec::problem::Problem;
use sluice_spec::size::Size;
use sluice_spec::{DriveSpec, NamespaceSpec, Way};
use std::path::Path;
use std::sync::Arc;

/// A namespace whose targets are open, on its way to its reactor.
#[allow(missing_debug_implementations)] // Of layers that are built once and never printed.
pub struct NamespaceSeed {
    config: NamespaceConfig,
    /// The first path.
    whole: StackSeed,
    /// Path 1 and so on.
    paths: Vec<PathSeed>,
    /// The drive's name.
    drive: String,
    /// Something besides the host counts in its blocks.
    fixed_block_size: bool,
    /// With the errors after which it is detached.
    classifier: Option<(Box<dyn Classifier>, Option<u64>)>,
    ana_group: u32,
    /// Those that persist.
    reservations: Option<ReservationRecord>,
    /// A host has created it, for several controllers at a time or not.
    created: Option<bool>,
    /// Hosts have said so.
    attachment: Option<Attachment>,
}

/// A target, and the functions over it.
pub(super) struct StackSeed {
    pub(super) target: TargetSeed,
    /// Topmost first, as users write them.
    pub(super) functions: Vec<FunctionSeed>,
}

/// Where layers are built.
pub(super) struct Site<'a> {
    pub(super) task: TaskId,
    pub(super) io: &'a Io,
    pub(super) nsid: u32,
}

/// What the control side keeps of a target, and of those functions over it that are more than a layer.
#[derive(Debug)]
pub struct StackControl {
    pub(super) target: TargetControl,
    pub(super) functions: Vec<Arc<FunctionControl>>,
    /// Of functions over it that are no more than layers, but have layers below them.
    pub(super) layers: Vec<StackControl>,
    /// Its functions as they were declared, but for those behind the function SDK, as far as they can be in two places.
    pub(super) stateless: Vec<Option<Stateless>>,
    /// A layer that is still there, at this place, although its function could not be attached.
    pub(super) leftover: Option<usize>,
}

impl StackControl {
    /// The NVMe devices behind it, and behind the layers of its functions.
    pub(super) fn devices(&self, nsid: u32) -> Vec<DeviceView> {
        let below = self.functions.iter().flat_map(|function| &function.layers).chain(&self.layers);
        let below = below.flat_map(|stack| stack.devices(nsid));
        self.target.devices(nsid).into_iter().chain(below).collect()
    }

    /// The controllers behind it, likewise, with their power identifiers.
    pub(super) fn peers(&self) -> Vec<(String, Option<String>)> {
        let below = self.functions.iter().flat_map(|function| &function.layers).chain(&self.layers);
        self.target.peer().into_iter().chain(below.flat_map(StackControl::peers)).collect()
    }

    /// True if acknowledged writes may be lost, and no host may have been told.
    pub(super) fn is_in_doubt(&self) -> bool {
        // Functions over a target may have another copy, and say so themselves.
        let has_lost = self.functions.is_empty() && self.target.has_lost();
        has_lost
            || self.uifs().iter().any(|function| function.uif.has_unreported_loss())
            || self.layers.iter().any(StackControl::is_in_doubt)
    }

    /// The functions behind the function SDK: after each, those in the layers below it.
    pub(super) fn uifs(&self) -> Vec<&Arc<FunctionControl>> {
        let mut found = Vec::new();
        for function in &self.functions {
            found.push(function);
            found.extend(function.layers.iter().flat_map(Self::uifs));
        }
        found
    }

    /// Of those, the processes that the daemon started.
    pub fn processes(&self) -> Vec<u32> {
        self.uifs().iter().filter_map(|function| function.uif.status().process).collect()
    }
}

/// A further path.
enum PathSeed {
    /// Into the whole stack, below so many of its functions; with all that is there, or not.
    Below(usize, bool),
    Own(Box<StackSeed>),
}

/// What the control side keeps of a namespace: its first path's, and those of others.
pub type StackControls = Vec<StackControl>;

impl NamespaceSeed {
    /// Opens the targets and the functions. May block.
    pub fn open(drive: &DriveSpec, nsid: u32) -> Result<(Self, StackControls), Problem> {
        Self::open_after(drive, nsid, Losses::default())
    }

    /// The same, after a daemon that has left something.
    pub(super) fn open_after(
        drive: &DriveSpec,
        nsid: u32,
        losses: Losses<'_>,
    ) -> Result<(Self, StackControls), Problem> {
        let unknown = || Problem::not_found(format!("there is no namespace {nsid}"));
        let spec = drive.namespace(nsid).ok_or_else(unknown)?;
        let config =
            NamespaceConfig { nsid, block_size: spec.block_size, uuid: drive.namespace_uuid(nsid, &[]) };
        let open = |spec: &NamespaceSpec| {
            StackSeed::open(spec, &drive.name, losses).map_err(|problem| problem.about(&about(drive, nsid)))
        };
        let (whole, control) = open(spec)?;
        let (mut paths, mut controls) = (Vec::new(), vec![control]);
        for path in &spec.paths {
            paths.push(match path.way(spec)? {
                Way::Below(functions) => PathSeed::Below(functions, path.beyond),
                Way::Own(own) => {
                    let (stack, control) =
                        open(&own).map_err(|it| it.about(&format!("path `{}`", path.name)))?;
                    controls.push(control);
                    PathSeed::Own(Box::new(stack))
                }
            });
        }
        let drive = drive.name.clone();
        // A translation cache is filled in the blocks that the drive was given.
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

    /// Opens one that a host has created, or makes it if it is new. May block.
    pub(super) fn created(
        drive: &DriveSpec,
        created: &Created,
        new_size: Option<Size>,
    ) -> Result<Self, Problem> {
        let Created { nsid, number, block_size, .. } = *created;
        let pool = drive.pool.as_ref().ok_or_else(|| Problem::conflict("the drive has no pool"))?;
        // What is in memory is made anew, and a file has the size it has.
        let size = new_size.or_else(|| created.file.is_none().then_some(created.size));
        let spec = pool.namespace(created.file.as_deref(), block_size, size);
        if let (None, Some(path)) = (new_size, &spec.path)
            && !path.exists()
        {
            return Err(is_missing(drive, nsid, path));
        }
        let opened = StackSeed::open(&spec, &drive.name, Losses::default());
        let (whole, _) = opened.map_err(|problem| problem.about(&about(drive, nsid)))?;
        // In memory it is another one each time.
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

    /// Its identifiers; and what hosts have done to it: blocks of another size, while the layers go on with those that they were given;
    /// reservations; and the controllers that have it.
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
        self.attachment = remembered.pooled.attachment(nsid);
    }

    /// Its commands are decided on by this program from the first on.
    pub(super) fn classify(&mut self, classifier: Box<dyn Classifier>, errors_max: Option<u64>) {
        self.classifier = Some((classifier, errors_max));
    }

    /// Builds what belongs to the reactor, on its thread.
    pub(super) fn build(mut self, task: TaskId, io: &Io, heirs: Heirs) -> Result<Namespace, Problem> {
        let (config, drive) = (self.config.clone(), std::mem::take(&mut self.drive));
        let (classifier, reservations) = (self.classifier.take(), self.reservations.take());
        let Heirs { retired, detached, .. } = heirs;
        let (fixed_block_size, ana_group) = (self.fixed_block_size, self.ana_group);
        let (created, attachment) = (self.created, self.attachment.take());
        // Without a thread that takes it, it is dropped here.
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
        // What a program sent down further paths is not reached through the first.
        Ok(if legs > 1 { namespace.forbid_erasing() } else { namespace })
    }

    /// Builds the layers alone, on the thread of their reactor.
    pub fn build_stack(self, task: TaskId, io: &Io) -> Result<Stack, Problem> {
        self.build_paths(task, io).map(|(stack, _)| stack)
    }

    /// The layers, and where path 1 and the others enter them; and if that leads beyond the namespace.
    fn build_paths(self, task: TaskId, io: &Io) -> Result<(Stack, Vec<(NodeId, bool)>), Problem> {
        let at = Site { task, io, nsid: self.config.nsid };
        let mut stack = StackBuilder::new();
        // Of each path with a target of its own the top; the others are looked up in the whole stack.
        let mut tops = Vec::new();
        for path in self.paths {
            tops.push(match path {
                PathSeed::Own(seed) => Ok(*seed.build(&mut stack, &at)?.last()),
                PathSeed::Below(functions, beyond) => Err((functions, beyond)),
            });
        }
        // Last, because the layer that was added last is the root.
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

    /// Below so many of its functions, of which it has as many.
    fn below(&self, functions: usize) -> NodeId {
        self.0[self.0.len() - 1 - functions]
    }
}

impl StackSeed {
    /// `losses` are of targets right below what is above it.
    pub(super) fn open(
        spec: &NamespaceSpec,
        drive: &str,
        losses: Losses<'_>,
    ) -> Result<(Self, StackControl), Problem> {
        let at_target = spec.functions.iter().fold(losses, Losses::below);
        let (seed, target) = TargetSeed::open(&spec.target()?, spec.block_size, at_target)?;
        let mut above = losses;
        let opened = spec.functions.iter().map(|function| {
            let opened = FunctionSeed::open(function, drive, spec.block_size, above);
            above = above.below(function);
            opened
        });
        let (functions, controls): (Vec<_>, Vec<_>) =
            opened.collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
        let stateless = functions.iter().filter(|function| !matches!(function, FunctionSeed::Uif(..)));
        let stateless = stateless.map(Stateless::of).collect();
        let mut control =
            StackControl { target, functions: Vec::new(), layers: Vec::new(), stateless, leftover: None };
        for Held { function, layers } in controls {
            control.functions.extend(function.map(Arc::new));
            control.layers.extend(layers);
        }
        Ok((Self { target: seed, functions }, control))
    }

    fn build(self, stack: &mut StackBuilder, at: &Site<'_>) -> Result<Chain, Problem> {
        let mut top = self.target.add(stack, at)?;
        let mut chain = vec![top];
        for function in self.functions.into_iter().rev() {
            top = function.build(top, stack, at)?;
            chain.push(top);
        }
        Ok(Chain(chain))
    }

    /// Builds the stack of a namespace that has no other path.
    pub(super) fn build_alone(self, at: &Site<'_>) -> Result<Stack, Problem> {
        let mut stack = StackBuilder::new();
        self.build(&mut stack, at)?;
        Ok(stack.build())
    }

    /// Builds a stack beside that of a namespace: what becomes of the namespace's size is none of its
    /// business. Returns its top.
    pub(super) fn build_aside(self, stack: &mut StackBuilder, at: &Site<'_>) -> Result<NodeId, Problem> {
        let chain = self.build(stack, at)?;
        stack.fix(chain.0[0]);
        Ok(*chain.last())
    }
}

/// The file of a namespace that a host has created is not there.
fn is_missing(drive: &DriveSpec, nsid: u32, path: &Path) -> Problem {
    let (path, name) = (path.display(), &drive.name);
    Problem::conflict(format!(
        "{path}, with namespace {nsid} that a host of drive `{name}` has created, does not exist"
    ))
    .hint(format!(
        "mount the file system of the pool's folder or bring the file back, then `sluice drive open {name}`"
    ))
}

fn about(drive: &DriveSpec, nsid: u32) -> String {
    format!("namespace {nsid} of drive `{}`", drive.name)
}
