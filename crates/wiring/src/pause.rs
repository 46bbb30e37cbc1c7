//! Pause of a target under its hosts, and its replacement by another one.

use super::drive::{WiredDrive, closed, gone, in_words};
use super::labels;
use super::namespace::Site;
use super::power::Losses;
use super::target::{PreparedTarget, TargetControl};
use sluice_command::{Insertion, NodeId, StackBuilder, StackError, Storage};
use sluice_control::drives::{Store, differs};
use sluice_control::state::Unflushed;
use sluice_controller::{EditStackError, Subsystem};
use sluice_frontend::Drive;
use sluice_spec::error::ApiError;
use sluice_spec::size::Size;
use sluice_spec::{AnaStateName, DriveSpec, NamespaceSpec};
use sluice_targets::Paused;
use std::time::{Duration, Instant};

/// Time limit for commands that are with the kernel or a device when their target is replaced.
const CLEAR_LIMIT: Duration = Duration::from_secs(10);

/// Interval between two looks at the target.
const LOOK: Duration = Duration::from_millis(2);

/// Adds the layer of a pause over a target. Commands fail `limit` after `now_ns`, if there is a limit.
pub(super) fn add(
    stack: &mut StackBuilder,
    target: NodeId,
    limit: Option<Duration>,
    now_ns: u64,
) -> Result<NodeId, StackError> {
    let fail_at_ns = limit.map(|limit| now_ns.saturating_add(limit.as_nanos() as u64));
    stack.add(Box::new(Paused::new(fail_at_ns)), &[target])
}

impl WiredDrive {
    /// Pauses the target of a namespace. Commands that are in the target go on.
    pub(super) fn pause(
        &self,
        spec: &NamespaceSpec,
        nsid: u32,
        limit: Option<Duration>,
    ) -> Result<(), ApiError> {
        if self.query(move |drive| position(drive.subsystem(), nsid).is_some())? {
            // A reset that failed has left it there.
            return Ok(());
        }
        self.clear_up(nsid)?;
        // From here on, no queue group gets layers of its own.
        self.set_paused(nsid, true)?;
        let at = spec.functions.len();
        let paused = self.execute(move |drive, now_ns| {
            let build = |target, stack: &mut StackBuilder| add(stack, target, limit, now_ns);
            drive.subsystem_mut().pause_target(nsid, at, build)
        });
        let paused = paused.and_then(|done| {
            done.map_err(|error| match error {
                EditStackError::Build(error) => in_words(&error),
                EditStackError::Refused(why) => in_words(&why),
            })
        });
        if paused.is_err() {
            self.set_paused(nsid, false)?;
        }
        paused
    }

    /// Returns whether nothing is in a paused target any more.
    pub(super) fn is_clear(&self, nsid: u32) -> Result<bool, ApiError> {
        self.query(move |drive| {
            let subsystem = drive.subsystem();
            position(subsystem, nsid).is_some_and(|at| subsystem.is_target_idle(nsid, at + 1))
        })
    }

    /// Lets the commands of a paused target go on.
    pub(super) fn end_pause(&self, nsid: u32) -> Result<(), ApiError> {
        let ended = self.execute(move |drive, now_ns| {
            let subsystem = drive.subsystem_mut();
            let at = position(subsystem, nsid).ok_or_else(closed)?;
            subsystem.resume_target(nsid, at, now_ns).map_err(|why| ApiError::conflict(why.to_string()))
        });
        ended??;
        self.set_paused(nsid, false)
    }

    /// Ends the commands that wait at a paused target, with the status of its ANA state.
    pub(super) fn end_parked(&self, nsid: u32, state: AnaStateName) -> Result<(), ApiError> {
        let Some(status) = state.state().refusal() else { return Ok(()) };
        self.execute(move |drive, now_ns| {
            let subsystem = drive.subsystem_mut();
            if let Some(at) = position(subsystem, nsid) {
                subsystem.refuse_parked(nsid, at, status, now_ns);
            }
        })
    }

    fn set_paused(&self, nsid: u32, is_paused: bool) -> Result<(), ApiError> {
        let mut stacks = self.stacks_mut();
        let stack = stacks.get_mut(nsid as usize - 1).and_then(|stacks| stacks.first_mut());
        stack.ok_or_else(closed)?.paused = is_paused;
        Ok(())
    }

    /// Puts the target that `spec` describes in the place of the present one, which is paused.
    pub(super) fn replace(
        &self,
        spec: &DriveSpec,
        nsid: u32,
        may_differ: bool,
        store: Store<'_>,
    ) -> Result<(), ApiError> {
        let namespace = spec.namespace(nsid).ok_or_else(closed)?;
        let (was, is_labelled) = {
            let stacks = self.stacks();
            let stack = stacks.get(nsid as usize - 1).and_then(|stacks| stacks.first()).ok_or_else(closed)?;
            (stack.target.peer(), !stack.labelled.is_empty())
        };
        if is_labelled {
            return Err(labels::is_member(&self.name, nsid));
        }
        let (prepared, control) = self.open_other(spec, namespace, was, may_differ)?;
        self.clear(nsid)?;
        store()?;
        // Other paths and the layers of functions keep their sizes.
        let is_fixed =
            !namespace.paths.is_empty() || namespace.functions.iter().any(|it| !it.layers().is_empty());
        self.swap(nsid, prepared, Allowed { differs: may_differ, grows: !is_fixed })?;
        let former = {
            let mut stacks = self.stacks_mut();
            let stack = stacks.get_mut(nsid as usize - 1).and_then(|stacks| stacks.first_mut());
            std::mem::replace(&mut stack.ok_or_else(closed)?.target, control)
        };
        if former.owes_flush_error() {
            // No Flush of the new target fails for a loss of the former one.
            self.change(move |drive, now_ns| drive.subsystem_mut().lose_writes(nsid, now_ns))?;
        }
        Ok(())
    }

    /// Opens the new target. If it is the same storage at another address, it finds by its power identifier whether
    /// writes that the former target has acknowledged are lost.
    fn open_other(
        &self,
        spec: &DriveSpec,
        namespace: &NamespaceSpec,
        was: Option<(String, Option<String>)>,
        may_differ: bool,
    ) -> Result<(PreparedTarget, TargetControl), ApiError> {
        let former = Unflushed { peers: was.into_iter().collect(), ..Unflushed::default() };
        let losses = Losses::of(spec, Some(&former).filter(|_| !may_differ));
        let losses = namespace.functions.iter().fold(losses, Losses::below);
        PreparedTarget::open(&namespace.target()?, namespace.block_size, losses, &self.pools)
            .map_err(|problem| problem.about("the new target"))
    }

    /// Ends the commands that wait in a paused target, and waits for the others.
    fn clear(&self, nsid: u32) -> Result<(), ApiError> {
        let began = Instant::now();
        loop {
            let is_clear = self.execute(move |drive, now_ns| {
                let subsystem = drive.subsystem_mut();
                let at = position(subsystem, nsid).ok_or_else(closed)?;
                Ok::<_, ApiError>(subsystem.clear_target(nsid, at + 1, now_ns))
            })??;
            if is_clear {
                return Ok(());
            }
            if began.elapsed() > CLEAR_LIMIT {
                return Err(ApiError::conflict(format!(
                    "commands of namespace {nsid} of drive `{}` may still be carried out by its present target",
                    self.name
                ))
                .hint("a lost connection ends within its keep-alive time: try again, or cut the target off"));
            }
            std::thread::sleep(LOOK);
        }
    }

    fn swap(&self, nsid: u32, prepared: PreparedTarget, allowed: Allowed) -> Result<(), ApiError> {
        self.recall_queues(None)?;
        let task = self.task.id();
        let swapped = self.task.call(move |local| {
            let io = local.io(task);
            let subsystem = local.task_mut::<Drive>(task).filter(|drive| drive.is_whole())?.subsystem_mut();
            let at = position(subsystem, nsid)? + 1;
            let site = Site { task, io: &io, nsid };
            let build = |stack: &mut StackBuilder| prepared.add(stack, &site);
            Some(subsystem.replace_target(nsid, at, build, |it| check(it, allowed)))
        });
        swapped.map_err(gone)?.ok_or_else(closed)?.map_err(|error| match error {
            EditStackError::Build(problem) => problem,
            EditStackError::Refused(why) => {
                ApiError::conflict(format!("the target of namespace {nsid} cannot be replaced: {why}"))
            }
        })
    }
}

/// Differences of a new target that are allowed.
#[derive(Clone, Copy, Debug)]
struct Allowed {
    /// Other storage.
    differs: bool,
    /// More bytes.
    grows: bool,
}

/// Checks that two targets are the same storage, and of the same size, unless they may differ.
fn check(Insertion { under: was, layer: is }: &Insertion, allowed: Allowed) -> Result<(), ApiError> {
    if is.size > was.size && !allowed.grows {
        let (has, needs) = (Size(is.size), Size(was.size));
        return Err(ApiError::conflict(format!("the new target has {has}, and the present one {needs}"))
            .hint("other paths or layers of the namespace keep their size: name a target of the same size"));
    }
    let is_known = ![0, Storage::UNSEEN.id].contains(&was.storage.id);
    let is_same = is_known && was.storage.id == is.storage.id;
    if allowed.differs || is_same { Ok(()) } else { Err(differs()) }
}

/// Returns the position of the layer of a pause.
fn position(subsystem: &Subsystem, nsid: u32) -> Option<usize> {
    let mut namespaces = subsystem.namespaces();
    let namespace = namespaces.find(|namespace| namespace.nsid() == nsid)?;
    namespace.router().stack().position(Paused::NAME)
}
