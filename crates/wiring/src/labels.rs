//! Labels of the members of sets: compared before anything is opened, and raised when all members are locked.

use super::function::PreparedFunction;
use super::namespace::PreparedStack;
use super::target::PreparedTarget;
use sluice_handover::locks;
use sluice_metadata::{
    Assembly, Device, Error, Member, Place, Refusal, Role, SetKind, Shape, Verdict, form, judge, raise,
};
use sluice_spec::error::{ApiError, Kind};
use sluice_spec::{NamespaceSpec, PlaceSpec, SetSpec};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Labels of the sets in a stack that is being opened.
#[derive(Debug, Default)]
pub(super) struct Labels {
    sets: Vec<Set>,
}

/// Sets with labels that are open.
#[derive(Debug, Default)]
pub(super) struct OpenSets {
    /// Agreed labels of each set, and the paths of its devices.
    sets: Mutex<Vec<(Assembly, Vec<PathBuf>)>>,
}

impl OpenSets {
    fn lock(&self) -> MutexGuard<'_, Vec<(Assembly, Vec<PathBuf>)>> {
        // A panic ends the process, so the lock is never poisoned.
        self.sets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Raises the epochs of the sets.
    pub(super) fn raise(&self, drive: &str) {
        for (assembly, paths) in self.lock().iter_mut().filter(|(_, paths)| !paths.is_empty()) {
            let devices = paths.iter().map(|path| Device::open_owned(path)).collect::<Result<Vec<_>, _>>();
            if let Err(error) = devices.and_then(|devices| raise(assembly, &devices)) {
                let set = assembly.set;
                tracing::warn!(drive, "the labels of set {set} keep their epoch: {error}");
            }
        }
    }
}

/// A set whose members may have labels.
#[derive(Debug)]
pub(super) struct Set {
    kind: &'static str,
    /// Whether the members must have labels.
    is_wanted: bool,
    /// Index of the function in the stack.
    at: usize,
    shape: Shape,
    places: Vec<Place>,
    verdict: Verdict,
    read_only: bool,
}

impl Labels {
    /// Compares the labels of all sets in a stack, and in the layers of its functions. Returns the stack with
    /// the sizes that the labels give to its devices. Writes nothing.
    pub(super) fn examine(spec: &NamespaceSpec, drive: &str) -> Result<(NamespaceSpec, Self), ApiError> {
        for below in spec.stacks_below() {
            Self::check_all(&below, drive)?;
        }
        let (mut sized, mut labels) = (spec.clone(), Self::default());
        for set in Self::check(spec, drive)? {
            set.report(drive);
            if set.is_unlabelled() {
                continue;
            }
            if let Verdict::Labelled(assembly) = &set.verdict {
                sized.size_set(set.at, assembly.labels.iter().map(|label| label.data_bytes));
            }
            labels.sets.push(set);
        }
        Ok((sized, labels))
    }

    /// Compares the labels of the sets in a stack. Writes nothing.
    pub(super) fn check(spec: &NamespaceSpec, drive: &str) -> Result<Vec<Set>, ApiError> {
        spec.sets().iter().filter_map(|set| Set::examine(set, drive).transpose()).collect()
    }

    /// Compares the labels of the sets in a stack and in the layers of its functions.
    fn check_all(spec: &NamespaceSpec, drive: &str) -> Result<(), ApiError> {
        spec.stacks_below().try_for_each(|below| Self::check_all(&below, drive))?;
        Self::check(spec, drive).map(drop)
    }

    /// Labels new sets, and raises the epochs of others. All members are open, and locked.
    pub(super) fn take(self, stack: &mut PreparedStack) -> Result<OpenSets, ApiError> {
        let mut open = Vec::new();
        for set in self.sets {
            let (at, read_only) = (set.at, set.read_only);
            let paths: Vec<_> = set.places.iter().map(|place| place.path.clone()).collect();
            let assembly = set.store()?;
            let PreparedStack { target, functions, .. } = stack;
            let layers = match functions.get_mut(at) {
                Some(PreparedFunction::Uif(_, layers)) => layers.as_mut_slice(),
                _ => &mut [],
            };
            let targets = std::iter::once(target).chain(layers.iter_mut().map(|layer| &mut layer.target));
            for (target, label) in targets.zip(&assembly.labels) {
                if let PreparedTarget::File(prepared) = target {
                    prepared.identify(label.storage);
                }
            }
            // Labels of devices that are only read keep their epoch.
            open.push((assembly, if read_only { Vec::new() } else { paths }));
        }
        Ok(OpenSets { sets: Mutex::new(open) })
    }
}

impl Set {
    /// Compares the labels of a set. Returns none if its members are not to be examined, or cannot have any.
    fn examine(spec: &SetSpec, drive: &str) -> Result<Option<Self>, ApiError> {
        if spec.labels == Some(false) {
            return Ok(None);
        }
        let places = match &spec.places {
            Ok(places) => places,
            Err(why) if spec.labels == Some(true) => {
                let words = format!("the {} cannot have labels: {why}", spec.kind);
                return Err(ApiError::invalid(words).hint("remove `labels = true`"));
            }
            Err(_) => return Ok(None),
        };
        let Some(kind) = SetKind::named(spec.kind) else { return Ok(None) };
        let shape = Shape { kind, chunk: spec.chunk };
        let found = match looked_at(places) {
            // The target reports in its own words that it cannot be opened.
            Err(Error::NotStorage(_) | Error::Io(_, "examine" | "open", _)) if spec.labels.is_none() => {
                return Ok(None);
            }
            found => found.map_err(problem)?,
        };
        let verdict = judge(&shape, &found).map_err(|refusal| refused(spec, places, refusal))?;
        let is_wanted = spec.labels == Some(true);
        if matches!(verdict, Verdict::Unlabelled) && is_wanted {
            return Err(lacks_labels(spec, places, drive));
        }
        let read_only = places.iter().any(|place| place.read_only);
        if let Verdict::Labelled(assembly) = &verdict
            && read_only
            && let Some((place, _)) = places.iter().zip(&assembly.stale).find(|(_, stale)| **stale)
        {
            // Nothing can be copied to it, and its label cannot be renewed.
            let words =
                format!("{} is an older copy of a member of set {}", place.path.display(), assembly.set);
            return Err(ApiError::conflict(words)
                .hint("nothing was written; remove `read_only` to have it copied to"));
        }
        Ok(Some(Self { kind: spec.kind, is_wanted, at: spec.at, shape, places: found, verdict, read_only }))
    }

    /// Returns whether the set has no labels, and is to get none.
    fn is_unlabelled(&self) -> bool {
        !self.is_wanted && !matches!(self.verdict, Verdict::Labelled(_))
    }

    /// Writes warnings about the set to the log.
    fn report(&self, drive: &str) {
        match &self.verdict {
            Verdict::Labelled(assembly) => report_stale(assembly, &self.places, drive),
            Verdict::Fresh | Verdict::Unlabelled if self.is_unlabelled() => self.warn(drive),
            Verdict::Fresh | Verdict::Unlabelled => {}
        }
    }

    fn warn(&self, drive: &str) {
        let paths: Vec<_> = self.places.iter().map(|place| place.path.display().to_string()).collect();
        let (kind, paths) = (self.kind, paths.join(", "));
        tracing::warn!(
            drive,
            "the members of the {kind} have no labels, so a wrong path is not noticed: {paths} \
             (`sluice member adopt --config FILE --drive {drive}` labels them)"
        );
    }

    /// Stores the labels of the set. Returns them.
    fn store(self) -> Result<Assembly, ApiError> {
        let open = |place: &Place| Device::open_owned(&place.path);
        let devices = || self.places.iter().map(open).collect::<Result<Vec<_>, _>>().map_err(problem);
        match self.verdict {
            // Another process may go on with the set, and has raised the epoch when it flushed.
            Verdict::Labelled(assembly) if self.read_only || locks::are_lent() => Ok(assembly),
            Verdict::Labelled(mut assembly) => {
                raise(&mut assembly, &devices()?).map_err(problem)?;
                Ok(assembly)
            }
            Verdict::Fresh | Verdict::Unlabelled => {
                let devices = devices()?;
                let member = |(device, place): (_, &Place)| Member {
                    device,
                    role: place.role,
                    data_bytes: place.size.unwrap_or_default(),
                    storage: 0,
                };
                let members: Vec<_> = devices.iter().zip(&self.places).map(member).collect();
                form(&self.shape, &members).map_err(problem)
            }
        }
    }
}

fn looked_at(places: &[PlaceSpec]) -> Result<Vec<Place>, Error> {
    let look = |(index, place): (usize, &PlaceSpec)| {
        let role = if place.is_log { Role::Log } else { Role::Data(index) };
        Place::look(&place.path, role, place.size.map(|size| size.0))
    };
    places.iter().enumerate().map(look).collect()
}

fn refused(spec: &SetSpec, places: &[PlaceSpec], refusal: Refusal) -> ApiError {
    let mut hint = refusal.hint;
    if spec.labels.is_none() && places.iter().any(|place| place.size.is_none()) {
        hint.push_str("; if a guest has written labels into its own disk, set labels = false");
    }
    ApiError::conflict(refusal.error).hint(hint)
}

fn lacks_labels(spec: &SetSpec, places: &[PlaceSpec], drive: &str) -> ApiError {
    let paths = paths(places);
    ApiError::conflict(format!("labels = true, and no member of the {} has one: {paths}", spec.kind)).hint(format!(
        "nothing was written; if the paths are right, `sluice member adopt --config FILE --drive {drive}` labels them"
    ))
}

fn report_stale(assembly: &Assembly, places: &[Place], drive: &str) {
    let labels = assembly.labels.iter().zip(places).zip(&assembly.stale);
    for ((label, place), _) in labels.filter(|(_, stale)| **stale) {
        let (path, set, role, member) = (place.path.display(), assembly.set, label.role, label.member);
        let (epoch, last) = (label.epoch, assembly.epoch);
        tracing::warn!(
            drive,
            "{path} is an older copy of {role}, {member}, of set {set}: it has epoch {epoch}, and the set has {last}; \
             everything is copied to it"
        );
    }
}

fn paths(places: &[PlaceSpec]) -> String {
    places.iter().map(|place| place.path.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// Converts a failure of an access to a member's device, with its remedy.
pub fn problem(error: Error) -> ApiError {
    let words = error.to_string();
    let found = match &error {
        Error::InUse(_) => ApiError::new(Kind::InUse, words),
        Error::Io(_, _, io) => ApiError::internal(words).limited_by(io),
        Error::NotStorage(_) | Error::NoRoom { .. } | Error::NotBlank(_) | Error::Impossible(_) => {
            ApiError::conflict(words)
        }
    };
    match error.hint() {
        Some(hint) => found.hint(hint),
        None => found,
    }
}

/// Returns the problem for a resize of a namespace whose members have labels.
pub(super) fn keeps_size(drive: &str, nsid: u32) -> ApiError {
    ApiError::conflict(format!(
        "namespace {nsid} of drive `{drive}` cannot be resized: labels lie behind the data of its members"
    ))
    .hint("move the data to a new drive with larger members")
}

/// Returns the problem for a target that is a member of a set with labels.
pub(super) fn is_member(drive: &str, nsid: u32) -> ApiError {
    ApiError::conflict(format!("the target of namespace {nsid} of drive `{drive}` is a member of a set with labels"))
        .hint("stop the daemon, and give the new storage its label: `sluice member replace`, docs/howto/replace-a-disk.md")
}

/// Checks that the function which the namespace shall have at index `at` can be attached to a drive in use: its
/// members have no labels, and shall have none.
pub(super) fn may_attach(spec: &NamespaceSpec, at: usize, drive: &str) -> Result<(), ApiError> {
    let sets = Labels::check(spec, drive)?;
    match sets.iter().find(|set| set.at == at && !set.is_unlabelled()) {
        Some(set) => {
            let words = format!("a {} with labels cannot be attached to a drive in use", set.kind);
            Err(ApiError::invalid(words).hint("declare it with the drive, or leave labels out"))
        }
        None => Ok(()),
    }
}
