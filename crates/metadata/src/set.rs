//! Comparison of the labels of a set's members, before the set is opened. Writes nothing.

use crate::copies::Found;
use crate::device::{Device, Error};
use crate::label::{Label, Role, SetKind, UNIT};
use crate::{AREA_BYTES, Shape, Uuid};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// A device in the place of a member, as it was found.
#[derive(Clone, Debug)]
pub struct Place {
    pub path: PathBuf,
    /// Role that the configuration gives it.
    pub role: Role,
    /// Bytes of data that the configuration gives it.
    pub size: Option<u64>,
    pub found: Found,
    /// Length of the device.
    pub bytes: u64,
    /// Whether there is no such file yet, or one without any data.
    pub is_fresh: bool,
}

/// Result of a comparison.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// No member has a label.
    Unlabelled,
    /// No member has a label or any data.
    Fresh,
    Labelled(Assembly),
}

/// A set with labels that agree.
#[derive(Clone, Debug)]
pub struct Assembly {
    pub set: Uuid,
    /// Labels, in the order of the places.
    pub labels: Vec<Label>,
    /// Whether the member in each place is outdated and has to be copied to.
    pub stale: Vec<bool>,
    pub epoch: u64,
}

/// Reason why a set must not be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub error: String,
    pub hint: String,
}

impl Refusal {
    fn new(error: String, hint: impl Into<String>) -> Self {
        Self { error, hint: hint.into() }
    }
}

const HINT: &str = "nothing was written; `sluice member inspect` shows each label: bring the right device back, or \
                    correct the paths";

impl Place {
    /// Examines the device in a place. A label counts only where a guest cannot have written it: behind the
    /// configured size.
    ///
    /// # Errors
    /// The device cannot be read.
    pub fn look(path: &Path, role: Role, size: Option<u64>) -> Result<Self, Error> {
        let (path, found) = (path.to_owned(), Found::Missing);
        let device = match Device::open(&path) {
            Ok(device) => device,
            Err(Error::Io(_, _, error)) if error.kind() == ErrorKind::NotFound => {
                return Ok(Self { path, role, size, found, bytes: 0, is_fresh: true });
            }
            Err(error) => return Err(error),
        };
        let (bytes, is_fresh) = (device.bytes()?, device.is_hole());
        let is_behind = size.is_none_or(|size| (bytes / UNIT * UNIT).saturating_sub(size) >= AREA_BYTES);
        let found = if is_behind { device.found()? } else { found };
        Ok(Self { path, role, size, found, bytes, is_fresh })
    }

    fn label(&self) -> Option<&Label> {
        match &self.found {
            Found::Label(label) => Some(label),
            _ => None,
        }
    }

    fn name(&self) -> std::path::Display<'_> {
        self.path.display()
    }
}

/// Compares the labels of all members with each other and with the configuration.
///
/// # Errors
/// The set must not be opened.
pub fn judge(shape: &Shape, places: &[Place]) -> Result<Verdict, Refusal> {
    for place in places {
        check_readable(place)?;
    }
    let labels: Vec<&Label> = places.iter().filter_map(Place::label).collect();
    let Some(latest) = reference(&labels) else {
        let is_fresh = places.iter().all(|place| place.is_fresh);
        return Ok(if is_fresh { Verdict::Fresh } else { Verdict::Unlabelled });
    };
    check_shape(shape, places, latest)?;
    let current = latest.epoch;
    let mut assembly = Assembly { set: latest.set, labels: Vec::new(), stale: Vec::new(), epoch: current };
    for place in places {
        let label = check_place(place, latest)?;
        let is_late = label.epoch != current && label.next_epoch != current
            || latest.expected(place.role) != Some(label.member);
        if is_late && !can_be_late(shape.kind, label) {
            return Err(is_older(place, label, latest));
        }
        assembly.labels.push(label.clone());
        assembly.stale.push(is_late);
    }
    let has_source = places.iter().zip(&assembly.stale).any(|(it, stale)| it.role != Role::Log && !stale);
    if !has_source {
        let (set, log) = (latest.set, latest.member);
        return Err(Refusal::new(
            format!("each member of set {set} is an older copy than its log, {log}"),
            HINT,
        ));
    }
    Ok(Verdict::Labelled(assembly))
}

/// Returns whether the device of an outdated label can be used, because it is copied to.
fn can_be_late(kind: SetKind, label: &Label) -> bool {
    match label.role {
        // A new log has no entries, and the function does not serve before an order.
        Role::Log => label.epoch == 0,
        // The host reads the primary, so it is never copied to.
        Role::Data(0) if kind == SetKind::Replicate => false,
        Role::Data(_) => kind.is_redundant(),
    }
}

/// Refuses a label that cannot be interpreted. It is never taken for none.
fn check_readable(place: &Place) -> Result<(), Refusal> {
    let path = place.name();
    match &place.found {
        Found::Damaged => Err(Refusal::new(
            format!("{path} has a damaged label: neither of its two copies is whole"),
            "nothing was written; find out which disk it is, and bring back a good copy of it",
        )),
        Found::Unsupported(why) => Err(Refusal::new(
            format!("{path} has a label with {why}, which this version does not support"),
            "nothing was written; use the version of Sluice that made the label",
        )),
        Found::Label(_) | Found::Missing => Ok(()),
    }
}

/// Returns the latest label of the set that most members belong to; in doubt, of the set of the first one.
fn reference<'a>(labels: &[&'a Label]) -> Option<&'a Label> {
    let votes = |set: Uuid| labels.iter().filter(|label| label.set == set).count();
    let most = labels.iter().map(|label| votes(label.set)).max()?;
    let set = labels.iter().find(|label| votes(label.set) == most)?.set;
    let own = labels.iter().filter(|label| label.set == set);
    own.copied().max_by_key(|label| (label.epoch, label.sequence))
}

/// Compares the set as its labels describe it with the configuration.
fn check_shape(shape: &Shape, places: &[Place], latest: &Label) -> Result<(), Refusal> {
    let count = places.iter().filter(|place| place.role != Role::Log).count();
    let is_same = latest.kind == shape.kind && latest.chunk == shape.chunk && latest.members.len() == count;
    if is_same {
        return Ok(());
    }
    let words = |name: &str, count: usize, chunk: u64| match chunk {
        0 => format!("a {name} of {count} members"),
        _ => format!("a {name} of {count} members with chunks of {chunk} bytes"),
    };
    let is = words(latest.kind.name(), latest.members.len(), latest.chunk);
    let wanted = words(shape.kind.name(), count, shape.chunk);
    let (set, member) = (latest.set, latest.member);
    Err(Refusal::new(
        format!(
            "set {set}, to which {} {member} belongs, is {is}; the configuration has {wanted}",
            latest.role
        ),
        "nothing was written; correct the configuration",
    ))
}

/// Compares the label in a place with the latest one of the set. Returns it.
fn check_place<'a>(place: &'a Place, latest: &Label) -> Result<&'a Label, Refusal> {
    let (path, role, set) = (place.name(), place.role, latest.set);
    let expected = latest.expected(role).unwrap_or_default();
    let Some(label) = place.label() else {
        if latest.epoch == 0 {
            return Err(Refusal::new(
                format!(
                    "the labels of set {set} are not complete: {path} has none yet, and is {role}, {expected}"
                ),
                "nothing was written; run `sluice member adopt` again, which was interrupted",
            ));
        }
        let bytes = place.bytes;
        let hint = match latest.kind.is_redundant() {
            true => format!("{HINT}; a new disk is made {role} by `sluice member replace`"),
            false => HINT.to_owned(),
        };
        return Err(Refusal::new(
            format!(
                "{path}, {bytes} bytes long, has no label, and belongs in the place of {role}, {expected}, of set \
                 {set}: it is another device, or was truncated"
            ),
            hint,
        ));
    };
    let is = format!("{path} is {}, {}, of set {}", label.role, label.member, label.set);
    if label.set != set {
        return Err(Refusal::new(format!("{is}, and not {role}, {expected}, of set {set}"), HINT));
    }
    if label.role != role {
        return Err(Refusal::new(format!("{is}, and is in the place of {role}, {expected}"), HINT));
    }
    match place.size {
        Some(size) if size != label.data_bytes => Err(Refusal::new(
            format!("{is}, with {} bytes of data; the configuration has {size}", label.data_bytes),
            "nothing was written; correct the size",
        )),
        _ => Ok(label),
    }
}

fn is_older(place: &Place, label: &Label, latest: &Label) -> Refusal {
    let (path, role, set) = (place.name(), place.role, latest.set);
    let (number, last) = (label.epoch, latest.epoch);
    let mut words = format!(
        "{path} is an older copy of {role}, {}, of set {set}: it has epoch {number}, and {}, {}, has epoch {last}",
        label.member, latest.role, latest.member
    );
    if let Some(expected) = latest.expected(role).filter(|expected| *expected != label.member) {
        words.push_str(&format!("; {role} is {expected} now"));
    }
    Refusal::new(words, HINT)
}
