//! Targets of drives: their state, their pause, and their replacement under the hosts of the drive.

mod maintenance;

pub use maintenance::{BACK_S, FirmwareOrder, MaintenanceView};

pub(super) use self::maintenance::CHANGE_LIMIT;
use super::events::EventKind;
use super::storage::{Why, is_same_file};
use super::{DeviceView, Drives, Entry, Origin, Running, Store};
use crate::state::{PausedTarget, Replaced, Saved};
use serde::{Deserialize, Serialize};
use sluice_spec::error::ApiError;
use sluice_spec::size::Size;
use sluice_spec::{AnaStateName, DriveSpec, FunctionSpec, NamespaceSpec, TargetKind, TargetSpec};
use std::sync::Arc;
use std::time::{Duration, Instant};
use utoipa::ToSchema;

/// Time that the pause of a target waits for the commands that are in it. They go on later, too.
const IDLE_LIMIT: Duration = Duration::from_secs(2);

/// Interval between two looks at the target.
const LOOK: Duration = Duration::from_millis(2);

/// State of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum TargetState {
    Ready,
    /// Some of its paths are lost.
    Degraded,
    /// Target without a connection: its commands wait or fail.
    Lost,
    /// The operator has paused it: its commands wait.
    Paused,
    /// Target of a drive that is not open.
    Closed,
}

impl TargetState {
    /// Returns the name of the state.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Degraded => "degraded",
            Self::Lost => "lost",
            Self::Paused => "paused",
            Self::Closed => "closed",
        }
    }
}

/// The target of a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TargetView {
    pub drive: String,
    pub nsid: u32,
    pub target: TargetKind,
    /// Place of its data, in words.
    pub place: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Size>,
    pub state: TargetState,
    /// Whether nothing is in a paused target any more, so that its data stays as it is and can be copied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle: Option<bool>,
    /// Seconds after which commands of a paused target fail, if they do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fail_after_s: Option<u32>,
}

impl Drives {
    /// Returns the targets of a drive's namespaces.
    pub fn targets(&self, name: &str) -> Result<Vec<TargetView>, ApiError> {
        let entry = self.entry(name)?;
        let devices = entry.running.as_ref().map_or_else(|_| Vec::new(), |running| running.devices());
        let saved = self.saved();
        let view = |(nsid, namespace): (u32, &NamespaceSpec)| {
            let paused = find_paused(&saved, name, nsid);
            let state = match (&entry.running, paused) {
                (Err(_), _) => TargetState::Closed,
                (Ok(_), Some(_)) => TargetState::Paused,
                (Ok(_), None) => state_of(namespace, nsid, &devices),
            };
            let running = entry.running.as_ref().ok();
            TargetView {
                idle: running
                    .filter(|_| paused.is_some())
                    .and_then(|running| running.is_target_idle(nsid).ok()),
                drive: name.to_owned(),
                nsid,
                target: namespace.target,
                place: namespace.target_in_words(),
                size: running.and_then(|running| running.target_size(nsid).ok()),
                state,
                fail_after_s: paused.and_then(|paused| paused.fail_after_s),
            }
        };
        Ok(entry.spec.numbered().map(view).collect())
    }

    /// Pauses the target of a namespace: nothing reaches it any more, and commands wait. With `fail_after_s` they
    /// fail after that time. A pause survives a restart.
    pub fn pause_target(
        &self,
        name: &str,
        nsid: u32,
        fail_after_s: Option<u32>,
    ) -> Result<TargetView, ApiError> {
        let _only = self.change(name)?;
        let (entry, running) = self.paused_or_not(name, nsid, false)?;
        let limit = fail_after_s.map(|seconds| Duration::from_secs(seconds.into()));
        let paused = PausedTarget { drive: name.to_owned(), nsid, fail_after_s };
        self.store_and_do(
            name,
            |saved| saved.paused_targets.push(paused),
            || running.pause_target(&entry.spec, nsid, limit),
        )?;
        self.show_absence(&entry.spec, running.as_ref(), nsid, Some(AnaStateName::Inaccessible))?;
        let began = Instant::now();
        while !running.is_target_idle(nsid)? && began.elapsed() < IDLE_LIMIT {
            std::thread::sleep(LOOK);
        }
        tracing::info!("the target of namespace {nsid} of drive {name} is paused");
        self.events.note(EventKind::TargetPaused, name, format!("the target of namespace {nsid} is paused"));
        self.target(name, nsid)
    }

    /// Lets the commands of a paused target go on.
    pub fn resume_target(&self, name: &str, nsid: u32) -> Result<TargetView, ApiError> {
        let _only = self.change(name)?;
        let (entry, running) = self.paused_or_not(name, nsid, true)?;
        let maintained = super::lock(&self.maintained);
        if let Some(device) =
            running.devices().iter().find(|it| it.nsid == nsid && maintained.contains(&it.device))
        {
            return Err(ApiError::conflict(format!("the controller of {} is being reset", device.device))
                .hint("try again when that is over"));
        }
        running.resume_target(nsid)?;
        drop(maintained);
        // The pause comes back after a restart if this is never stored, which is safe.
        self.note_owed(|saved| forget(saved, name, nsid));
        self.show_absence(&entry.spec, running.as_ref(), nsid, None)?;
        self.resumed(name, nsid);
        self.target(name, nsid)
    }

    /// Puts another target in the place of a namespace's present one. Commands wait meanwhile and go on there. Hosts
    /// see the same namespace. Its data is that of the new target, which must be the same storage, unless the
    /// operator insists on `different_storage`.
    pub fn replace_target(
        &self,
        name: &str,
        nsid: u32,
        target: TargetSpec,
        different_storage: bool,
    ) -> Result<TargetView, ApiError> {
        let _only = self.change(name)?;
        let entry = self.entry(name)?;
        let spec = self.replacement(&entry, nsid, target)?;
        let was = namespace_of(&entry.spec, nsid)?;
        let may_differ =
            different_storage || is_same_file(&self.saved(), name, was, namespace_of(&spec, nsid)?);
        match &entry.running {
            Ok(running) => self.replace_running(&entry, running, &spec, nsid, may_differ)?,
            Err(_) => self.replace_closed(&entry, &spec, nsid, may_differ)?,
        }
        let place = namespace_of(&spec, nsid)?.target_in_words();
        tracing::info!("namespace {nsid} of drive {name} is on {place} now");
        let text = format!("namespace {nsid} is on {place} now, and was on {}", was.target_in_words());
        self.events.note(EventKind::TargetReplaced, name, text);
        self.target(name, nsid)
    }

    /// Returns the description of the drive with the new target.
    fn replacement(&self, entry: &Entry, nsid: u32, mut target: TargetSpec) -> Result<DriveSpec, ApiError> {
        target.check_storage()?;
        let was = namespace_of(&entry.spec, nsid)?;
        check_replaceable(was)?;
        let now = entry.running.as_ref().ok().map(|running| running.target_size(nsid)).transpose()?;
        if target.target == TargetKind::File {
            let known = now.or(was.size);
            if let (Some(size), Some(known)) = (target.size, known)
                && size < known
            {
                return Err(ApiError::conflict(format!(
                    "{size} is less than the {known} of namespace {nsid}"
                ))
                .hint("the namespace keeps its size: name a target of that size, or a larger one"));
            }
            let is_there = target.path.as_ref().is_some_and(|path| path.exists());
            if target.size.is_none() && !is_there {
                let path = target.path.clone().unwrap_or_default();
                return Err(ApiError::invalid(format!("{} does not exist", path.display()))
                    .hint("name a file that has the data; to begin with an empty one, give its size"));
            }
            // The rest of a larger file is not visible.
            target.size = target.size.or(known);
        }
        let mut spec = entry.spec.clone();
        if let Some(namespace) = spec.namespace_mut(nsid) {
            namespace.set_target(target);
        }
        spec.check()?;
        Ok(spec)
    }

    /// Replaces a target of an open drive.
    fn replace_running(
        &self,
        entry: &Entry,
        running: &Arc<dyn Running>,
        spec: &DriveSpec,
        nsid: u32,
        may_differ: bool,
    ) -> Result<(), ApiError> {
        let (name, former) = (&entry.spec.name, self.saved());
        let mut settled = self.settle_storage(spec, Why::KNOWN)?;
        settled.keep_identities(nsid, former.identities(name, nsid).unwrap_or_default());
        let was_paused = find_paused(&former, name, nsid).is_some();
        let began = Instant::now();
        if !was_paused {
            self.pause_for_a_moment(entry, running.as_ref(), nsid).inspect_err(|_| settled.remove_made())?;
        }
        let declared = self.declared(name);
        let store: Store<'_> = &mut || {
            self.begin_account(spec)?;
            self.store(|saved| {
                settled.note(saved);
                forget(saved, name, nsid);
                remember(saved, entry, declared.as_ref(), spec, nsid);
            })
        };
        let described = settled.spec(spec);
        let mut replace = || running.replace_target(&described, nsid, may_differ, store);
        let replaced = match was_paused {
            true => replace(),
            // The new target may be reached after a long time, and hosts have seen the Change state since the pause.
            false => {
                let limit = self.change_limit.saturating_sub(began.elapsed());
                self.while_changing(entry, running.as_ref(), nsid, limit, replace)
            }
        };
        if let Err(problem) = replaced {
            self.unsettle(&settled);
            let back = self.take_back(name, &former);
            if !was_paused {
                self.end_moment(&entry.spec, running.as_ref(), nsid)?;
            }
            return back.and(Err(problem));
        }
        self.amend(name, |entry| entry.spec = spec.clone());
        if let Err(problem) = self.add_peers(spec, running.as_ref()) {
            tracing::warn!(
                "drive {name}: after a crash of this daemon, hosts get one failed Flush: {problem}"
            );
        }
        self.end_moment(spec, running.as_ref(), nsid)?;
        if was_paused {
            self.resumed(name, nsid);
        }
        Ok(())
    }

    /// Replaces a target of a drive that is not open, and opens it.
    fn replace_closed(
        &self,
        entry: &Entry,
        spec: &DriveSpec,
        nsid: u32,
        may_differ: bool,
    ) -> Result<(), ApiError> {
        if !may_differ {
            return Err(differs().about(&format!("drive `{}` is not open", entry.spec.name)));
        }
        let (name, former) = (&entry.spec.name, self.saved());
        let mut settled = self.settle_storage(spec, Why::KNOWN)?;
        settled.keep_identities(nsid, former.identities(name, nsid).unwrap_or_default());
        let declared = self.declared(name);
        let stored = self.store(|saved| {
            settled.note(saved);
            forget(saved, name, nsid);
            remember(saved, entry, declared.as_ref(), spec, nsid);
        });
        let opened = stored.and_then(|()| self.try_again(spec, entry.reactor, Why::KNOWN));
        match opened {
            Ok(running) => {
                self.amend(name, |entry| (entry.spec, entry.running) = (spec.clone(), Ok(running)));
                Ok(())
            }
            Err(problem) => {
                self.unsettle(&settled);
                self.take_back(name, &former).and(Err(problem))
            }
        }
    }

    /// Returns a drive whose target is paused, or is not.
    fn paused_or_not(
        &self,
        name: &str,
        nsid: u32,
        is_paused: bool,
    ) -> Result<(Entry, Arc<dyn Running>), ApiError> {
        let entry = self.entry(name)?;
        namespace_of(&entry.spec, nsid)?;
        let is_now = find_paused(&self.saved(), name, nsid).is_some();
        if is_now != is_paused {
            let word = if is_now { "paused already" } else { "not paused" };
            return Err(ApiError::conflict(format!(
                "the target of namespace {nsid} of drive `{name}` is {word}"
            )));
        }
        let running = entry.running.clone()?;
        Ok((entry, running))
    }

    /// Pauses a target for the time of an operation.
    fn pause_for_a_moment(&self, entry: &Entry, running: &dyn Running, nsid: u32) -> Result<(), ApiError> {
        running.pause_target(&entry.spec, nsid, None)?;
        self.show_absence(&entry.spec, running, nsid, Some(AnaStateName::Change))
            .inspect_err(|_| drop(running.resume_target(nsid)))
    }

    /// Lets the commands of a target go on that was paused for the time of an operation.
    fn end_moment(&self, spec: &DriveSpec, running: &dyn Running, nsid: u32) -> Result<(), ApiError> {
        running.resume_target(nsid)?;
        self.show_absence(spec, running, nsid, None)
    }

    fn resumed(&self, name: &str, nsid: u32) {
        tracing::info!("the target of namespace {nsid} of drive {name} goes on");
        self.events.note(EventKind::TargetResumed, name, format!("the target of namespace {nsid} goes on"));
    }

    fn target(&self, name: &str, nsid: u32) -> Result<TargetView, ApiError> {
        let found = self.targets(name)?.into_iter().find(|view| view.nsid == nsid);
        found.ok_or_else(|| no_namespace(name, nsid))
    }
}

/// Returns the problem for a target that is not the same storage as the one before.
pub fn differs() -> ApiError {
    ApiError::conflict(
        "it is not known to be the same storage as the target before: its data may be other data",
    )
    .hint("copy the data there first, while the target is paused, and insist (--different-storage)")
}

fn no_namespace(name: &str, nsid: u32) -> ApiError {
    ApiError::not_found(format!("drive `{name}` has no namespace {nsid}"))
        .hint(format!("`sluice target list {name}` lists what it has"))
}

fn namespace_of(spec: &DriveSpec, nsid: u32) -> Result<&NamespaceSpec, ApiError> {
    spec.namespace(nsid).ok_or_else(|| no_namespace(&spec.name, nsid))
}

/// Refuses a namespace whose target cannot be replaced by any other.
fn check_replaceable(namespace: &NamespaceSpec) -> Result<(), ApiError> {
    namespace.target_spec().check_storage().map_err(|_| {
        ApiError::conflict(format!(
            "the data of a {} target is in the daemon alone",
            namespace.target.as_str()
        ))
        .hint("create another drive, and copy the data in the guest")
    })?;
    match namespace.functions.iter().find_map(why_kept) {
        None => Ok(()),
        Some((kind, remedy)) => Err(ApiError::conflict(format!(
            "`{kind}` recognizes the storage below it, and would take another target for a new member"
        ))
        .hint(remedy)),
    }
}

/// Returns the kind of a function that has storage beside its target and recognizes it, with the remedy. A function
/// without a state works on any copy.
fn why_kept(function: &FunctionSpec) -> Option<(String, &'static str)> {
    let has_state = match function {
        FunctionSpec::Uif(uif) => !uif.layers.is_empty(),
        layer => !layer.layers().is_empty() && !layer.shape().is_stateless,
    };
    let kind = function.name();
    let remedy = if kind.starts_with("replicate") || kind.starts_with("mirror") || kind.starts_with("parity")
    {
        "its own orders take a member out and copy to another: `sluice function tell`, docs/howto/replace-a-disk.md"
    } else {
        "stop the daemon, copy the target and all other storage of the function, and name the new places in the configuration"
    };
    has_state.then_some((kind, remedy))
}

fn state_of(namespace: &NamespaceSpec, nsid: u32, devices: &[DeviceView]) -> TargetState {
    // The devices of the layers below functions come after those of the target.
    let count = match &namespace.nvme_tcp {
        Some(nvme_tcp) => nvme_tcp.addresses.len().max(1),
        None => usize::from(namespace.nvme.is_some()),
    };
    let own = devices.iter().filter(|device| device.nsid == nsid).take(count);
    match own.filter(|device| device.connected).count() {
        connected if connected == count => TargetState::Ready,
        0 => TargetState::Lost,
        _ => TargetState::Degraded,
    }
}

fn find_paused<'a>(saved: &'a Saved, drive: &str, nsid: u32) -> Option<&'a PausedTarget> {
    saved.paused_targets.iter().find(|it| it.drive == drive && it.nsid == nsid)
}

/// Returns the NSIDs of a drive whose targets are paused, each with the seconds after which commands fail.
pub(super) fn paused(drive: &str, saved: &Saved) -> Vec<(u32, Option<u32>)> {
    let own = saved.paused_targets.iter().filter(|it| it.drive == drive);
    own.map(|it| (it.nsid, it.fail_after_s)).collect()
}

fn forget(saved: &mut Saved, drive: &str, nsid: u32) {
    saved.paused_targets.retain(|it| it.drive != drive || it.nsid != nsid);
}

/// Notes a new target: in the spec of a created drive, in a separate record of a declared one.
fn remember(saved: &mut Saved, entry: &Entry, declared: Option<&DriveSpec>, spec: &DriveSpec, nsid: u32) {
    let (Some(was), Some(is)) = (entry.spec.namespace(nsid), spec.namespace(nsid)) else { return };
    let (drive, target) = (entry.spec.name.clone(), is.target_spec());
    if entry.origin == Origin::Created {
        let created = saved.drives.iter_mut().find(|created| created.name == drive);
        if let Some(namespace) = created.and_then(|created| created.namespace_mut(nsid)) {
            namespace.set_target(target);
        }
        return;
    }
    let before = saved.replaced.extract_if(.., |it| it.drive == drive && it.nsid == nsid).last();
    // A namespace that the file does not declare now may be declared again, unchanged.
    let declared = match declared.and_then(|declared| declared.namespace(nsid)) {
        Some(namespace) => namespace.target_spec(),
        None => before.map_or_else(|| was.target_spec(), |before| before.declared),
    };
    // The size of the new target counts, not one that was given to the target before.
    saved.resized.retain(|it| it.drive != drive || it.nsid != nsid);
    if declared != target {
        saved.replaced.push(Replaced { drive, nsid, declared, target });
    }
}

#[cfg(test)]
mod tests;
