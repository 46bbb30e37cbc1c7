//! Creates files once, and recognizes storage behind a known name.
//!
//! Before a drive is opened, each of its locations is examined. A file that a drive had open before is not
//! created again unless the operator insists. Storage has a random identity, which is part of its namespace's
//! identifiers. Hosts thus see another namespace where there is other data.

mod look;

use super::{Drives, lock};
use crate::state::{Identified, KnownStorage, Saved, Storage};
use look::{Found, Made, look, make, mark, new_identity};
use sluice_spec::error::ApiError;
use sluice_spec::{DriveSpec, Location, NamespaceSpec};
use std::path::{Path, PathBuf};

/// Reason why a drive is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// The drive is declared, or was created before. The operator may insist on some actions.
    Known(Insist),
    /// The drive is created now, even if another had its name before.
    Created,
}

/// Actions that the operator insists on when a drive is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Insist {
    /// Whether missing files that the drive had open before are created again, empty.
    pub make_anew: bool,
    /// Whether files that were served under another state are used without that state.
    pub adopt: bool,
}

impl Why {
    /// A known drive, for which the operator insists on nothing.
    pub(super) const KNOWN: Self = Self::Known(Insist { make_anew: false, adopt: false });

    fn makes_anew(self) -> bool {
        matches!(self, Self::Created | Self::Known(Insist { make_anew: true, .. }))
    }

    pub(super) fn adopts(self) -> bool {
        matches!(self, Self::Created | Self::Known(Insist { adopt: true, .. }))
    }
}

/// Storage of a drive, ready to be opened.
#[derive(Debug, Default)]
pub(super) struct Settled {
    drive: String,
    storage: Storage,
    former: Storage,
    made: Vec<Made>,
    /// Files that the drive had open before. A guest may have written the signature of an image format into
    /// them.
    raw: Vec<PathBuf>,
    /// UUIDs of namespaces, by NSID.
    pub(super) uuids: Vec<(u32, [u8; 16])>,
}

impl Settled {
    /// Notes the storage in the state.
    pub(super) fn note(&self, saved: &mut Saved) {
        saved.note_storage(&self.storage);
    }

    /// Returns the specification for the open: a file that the drive has served as raw stays raw.
    pub(super) fn spec(&self, spec: &DriveSpec) -> DriveSpec {
        spec.with_raw(&self.raw)
    }

    /// Returns whether no file was created, and no record is new.
    fn is_as_before(&self) -> bool {
        let Storage { known, identified, .. } = &self.storage;
        self.made.is_empty()
            && known.iter().all(|it| self.former.known.contains(it))
            && identified.iter().all(|it| self.former.identified.contains(it))
    }

    /// Keeps the identities that a namespace had `before` its storage was replaced: hosts see the same namespace.
    pub(super) fn keep_identities(&mut self, nsid: u32, before: &[String]) {
        let mut identified = self.storage.identified.iter_mut();
        if let Some(identified) = identified.find(|it| it.nsid == nsid && it.identities != before) {
            let now = std::mem::replace(&mut identified.identities, before.to_vec());
            identified.replaced_by = Some(now);
        }
    }

    /// Removes the files that were created.
    pub(super) fn remove_made(&self) {
        self.made.iter().for_each(Made::remove);
    }
}

/// Begins the records of storage, once. Storage that drives name now may have been open under an older
/// daemon, so its identifiers do not change.
pub(super) fn note_older<'a>(specs: impl Iterator<Item = &'a DriveSpec>, saved: &mut Saved) {
    if saved.storage.is_some() {
        return;
    }
    let began_empty = *saved == Saved::default();
    let older = |spec: &'a DriveSpec| {
        let known = |location: Location| KnownStorage {
            drive: spec.name.clone(),
            location: location.name,
            label: None,
            device: None,
            identity: None,
        };
        spec.locations().into_iter().map(known)
    };
    let known = specs.flat_map(older).collect();
    saved.note_storage(&Storage { known, ..Storage::default() });
    if let Some(storage) = &mut saved.storage {
        storage.began_empty = began_empty;
    }
}

/// Checks whether the storage of a drive would be refused. Returns the specification for the open. Changes
/// nothing.
pub(super) fn foresee(spec: &DriveSpec, saved: &Saved) -> Result<DriveSpec, ApiError> {
    let began_empty = saved.storage.as_ref().is_some_and(|storage| storage.began_empty);
    let mut raw = Vec::new();
    for location in spec.locations() {
        let known = saved.known_storage(&spec.name, &location.name);
        let (Some(path), Some(known)) = (&location.path, known) else { continue };
        let found = look(path).map_err(|error| ApiError::io("examine", path, &error))?;
        match (&found, &known.label) {
            (Some(found), None) if began_empty && found.identity.is_some() => {
                return Err(is_of_another_state(&spec.name, path));
            }
            (Some(found), Some(_)) if is_same(known, found) => raw.push(path.clone()),
            (None, Some(_)) if !path.exists() => return Err(is_missing(&spec.name, &location, path, known)),
            _ => {}
        }
    }
    Ok(spec.with_raw(&raw))
}

impl Drives {
    /// Examines the storage of a drive that is about to be opened, and creates missing files where that is
    /// allowed.
    pub(super) fn settle_storage(&self, spec: &DriveSpec, why: Why) -> Result<Settled, ApiError> {
        let saved = lock(&self.saved).clone();
        let mut settled = Settled {
            drive: spec.name.clone(),
            former: if why == Why::Created { Storage::default() } else { saved.storage_of(&spec.name) },
            ..Settled::default()
        };
        let done = settle(spec, why, &saved, &mut settled);
        done.inspect_err(|_| settled.remove_made())?;
        Ok(settled)
    }

    /// Examines the storage of a drive like [`Self::settle_storage`], and stores the records of it.
    pub(super) fn settle_and_store(&self, spec: &DriveSpec, why: Why) -> Result<Settled, ApiError> {
        let settled = self.settle_storage(spec, why)?;
        self.store(|saved| settled.note(saved)).inspect_err(|_| settled.remove_made())?;
        Ok(settled)
    }

    /// Reverts the preparation of storage after a failure: removes created files and restores the former
    /// records.
    pub(super) fn unsettle(&self, settled: &Settled) {
        if settled.is_as_before() {
            return;
        }
        settled.remove_made();
        let forgotten = self.store(|saved| {
            saved.forget_storage(&settled.drive);
            saved.note_storage(&settled.former);
        });
        if let Err(problem) = forgotten {
            let drive = &settled.drive;
            tracing::warn!("drive {drive}: files that nothing came of stay remembered: {problem}");
        }
    }

    /// Checks that the paths of a running drive, or of one of its namespaces, still name the files that it
    /// has open.
    pub(super) fn check_storage(&self, spec: &DriveSpec, nsid: Option<u32>) -> Result<(), ApiError> {
        let saved = lock(&self.saved).clone();
        let locations = spec.locations().into_iter().filter(|it| nsid.is_none_or(|nsid| nsid == it.nsid));
        for location in locations {
            let known = saved.known_storage(&spec.name, &location.name);
            let (Some(path), Some(label)) = (&location.path, known.and_then(|it| it.label.as_ref())) else {
                continue;
            };
            let found = look(path).map_err(|error| ApiError::io("examine", path, &error))?;
            if found.as_ref().is_none_or(|found| found.label != *label) {
                return Err(names_another(&spec.name, path, found.is_some()));
            }
        }
        Ok(())
    }
}

fn names_another(drive: &str, path: &Path, is_there: bool) -> ApiError {
    let path = path.display();
    let words = match is_there {
        true => format!("{path} names another file than the one that drive `{drive}` has open"),
        false => format!("{path} does not exist any more; drive `{drive}` still has the file open"),
    };
    ApiError::conflict(words)
        .hint("bring the former file back to its name, or restart the daemon to use what is there")
}

fn settle(spec: &DriveSpec, why: Why, saved: &Saved, settled: &mut Settled) -> Result<(), ApiError> {
    let drive = &spec.name;
    let locations = spec.locations();
    let began_empty = saved.storage.as_ref().is_some_and(|storage| storage.began_empty);
    for location in &locations {
        if settled.storage.known.iter().any(|it| it.location == location.name) {
            continue;
        }
        let known = match why {
            Why::Created => None,
            _ => saved.known_storage(drive, &location.name),
        };
        // The records began without any state, so a file that was used before belongs to a missing state.
        let is_strange = began_empty && known.is_some_and(|known| known.label.is_none()) && !why.adopts();
        let found = settle_one(drive, location, known, why, is_strange, &mut settled.made)?;
        if let (Some(path), Some(known), Some(found)) = (&location.path, known, &found)
            && known.label.is_some()
            && known.identity == found.identity
        {
            settled.raw.push(path.clone());
        }
        settled.storage.known.extend(found);
    }
    for (nsid, _) in spec.numbered() {
        identify(spec, nsid, why, saved, &locations, settled)?;
    }
    Ok(())
}

/// Examines the storage at a location, and creates a file if that is allowed. Returns none if the storage
/// cannot be examined; the target then reports the error.
fn settle_one(
    drive: &str,
    location: &Location,
    known: Option<&KnownStorage>,
    why: Why,
    is_strange: bool,
    made: &mut Vec<Made>,
) -> Result<Option<KnownStorage>, ApiError> {
    let new = |label: Option<String>, device: Option<String>, identity: Option<String>| KnownStorage {
        drive: drive.to_owned(),
        location: location.name.clone(),
        label,
        device,
        identity,
    };
    let Some(path) = &location.path else {
        // For storage on the network, the peer's own identifiers show a change.
        return match known {
            Some(known) => Ok(Some(known.clone())),
            None => Ok(Some(new(None, None, Some(random()?)))),
        };
    };
    match look(path).map_err(|error| ApiError::io("examine", path, &error))? {
        Some(found) if is_strange && found.identity.is_some() => Err(is_of_another_state(drive, path)),
        Some(found) => {
            let identity = identity_of(drive, location, path, &found, known)?;
            Ok(Some(new(Some(found.label), Some(found.device), identity)))
        }
        None if path.exists() => Ok(None),
        None => {
            let was_there = known.filter(|known| known.label.is_some());
            if let Some(known) = was_there.filter(|_| !location.may_make || !why.makes_anew()) {
                return Err(is_missing(drive, location, path, known));
            }
            if !location.may_make {
                return Ok(None);
            }
            let identity = random()?;
            let file = make(path, &identity).map_err(|error| ApiError::io("make", path, &error))?;
            let label = Some(file.label().to_owned());
            made.push(file);
            let device = look(path).ok().flatten().map(|found| found.device);
            Ok(Some(new(label, device, Some(identity))))
        }
    }
}

/// Returns whether the found storage is the known one: by its identity, or by its label if it carries no
/// identity.
fn is_same(known: &KnownStorage, found: &Found) -> bool {
    match &found.identity {
        Some(_) => found.identity == known.identity,
        None => known.label.as_ref().is_none_or(|label| *label == found.label),
    }
}

/// Returns whether two targets are known to be the same file: by the identity that the file carries, or by its label.
pub(super) fn is_same_file(saved: &Saved, drive: &str, was: &NamespaceSpec, is: &NamespaceSpec) -> bool {
    let (Some(was), Some(is)) = (&was.path, &is.path) else { return false };
    let known = saved.known_storage(drive, &was.display().to_string());
    let found = look(is).ok().flatten();
    let (Some(known), Some(found)) = (known, found) else { return false };
    match (&known.identity, &found.identity) {
        (Some(known), Some(found)) => known == found,
        _ => known.label.as_ref() == Some(&found.label) && was == is,
    }
}

/// Returns a new random identity.
pub fn random() -> Result<String, ApiError> {
    new_identity().map_err(|error| ApiError::internal(format!("the kernel gives no random numbers: {error}")))
}

fn is_missing(drive: &str, location: &Location, path: &Path, known: &KnownStorage) -> ApiError {
    let was = known.label.as_deref().unwrap_or_default();
    let device = known.device.as_deref().unwrap_or("unknown");
    let path = path.display();
    let had =
        format!("{path} does not exist, but drive `{drive}` has had it open ({was}, on device {device})");
    let back = format!("mount its file system or bring the file back, then `sluice drive open {drive}`");
    match location.may_make {
        true => ApiError::conflict(format!("{had}: a new, empty file is not made in its place"))
            .hint(format!("{back}; to begin with an empty file, `sluice drive open {drive} --make-anew`")),
        false => ApiError::conflict(had).hint(back),
    }
}

fn is_of_another_state(drive: &str, path: &Path) -> ApiError {
    ApiError::conflict(format!(
        "{} has been served before, but the state folder was empty when this daemon began: reservations and all else \
         that hosts left there are not known",
        path.display()
    ))
    .hint(format!(
        "bring the former state folder back and restart; to go on without it, `sluice drive open {drive} --adopt`"
    ))
}

/// Returns the identity of existing storage. A new identity is also stored with the file.
fn identity_of(
    drive: &str,
    location: &Location,
    path: &Path,
    found: &Found,
    known: Option<&KnownStorage>,
) -> Result<Option<String>, ApiError> {
    let identity = match (&found.identity, known) {
        (Some(identity), _) => Some(identity.clone()),
        (None, Some(known)) if is_same(known, found) => known.identity.clone(),
        (None, _) => {
            let identity = random()?;
            if !location.read_only {
                mark(path, &identity);
            }
            Some(identity)
        }
    };
    if let Some(known) = known.filter(|known| known.label.is_some() && known.identity != identity) {
        tracing::warn!(
            "drive {drive}: {} is other storage than it was ({}, now {}): hosts see another namespace",
            path.display(),
            known.label.as_deref().unwrap_or_default(),
            found.label
        );
    }
    Ok(identity)
}

/// Computes the identifiers of a namespace.
fn identify(
    spec: &DriveSpec,
    nsid: u32,
    why: Why,
    saved: &Saved,
    locations: &[Location],
    settled: &mut Settled,
) -> Result<(), ApiError> {
    let drive = &spec.name;
    let own: Vec<&Location> = locations.iter().filter(|it| it.nsid == nsid && it.is_content).collect();
    let of = |location: &&Location| {
        let known = settled.storage.known.iter().find(|it| it.location == location.name);
        known.and_then(|known| known.identity.clone())
    };
    let now: Vec<String> = own.iter().filter_map(of).collect();
    let before = saved.identified(drive, nsid).filter(|_| why != Why::Created);
    // A set with copies keeps its data when a member is replaced, so it keeps its identities.
    let (mut identities, replaced_by) = match before {
        Some(before) if spec.has_copies(nsid) => (before.identities.clone(), None),
        Some(before) if before.replaced_by.as_ref() == Some(&now) => (before.identities.clone(), Some(now)),
        _ => (now, None),
    };
    if !own.is_empty() {
        let identities = identities.clone();
        settled.storage.identified.push(Identified { drive: drive.clone(), nsid, identities, replaced_by });
    }
    if spec.is_in_memory(nsid) {
        identities.push(random()?);
    }
    settled.uuids.push((nsid, spec.namespace_uuid(nsid, &identities)));
    Ok(())
}

#[cfg(test)]
mod tests;
