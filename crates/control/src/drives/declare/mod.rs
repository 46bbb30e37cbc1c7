//! Drives as a file describes them: the differences, the changes that remove these, and the export of such a file.
//!
//! All changes are planned first. A change that cannot be made while the drive is in use is refused, and then
//! none is made.

mod apply;
mod compare;
mod export;

use super::{Drives, Entry, Origin, lock};
use crate::config::{Described, Served};
pub(super) use apply::take_back;
use compare::differences;
use serde::{Deserialize, Serialize};
use sluice_functions::QosLimits;
use sluice_spec::error::ApiError;
use sluice_spec::size::Size;
use sluice_spec::words::count;
use sluice_spec::{ClassifierSpec, DriveSpec, Fault, GroupSpec, NamespaceSpec, Place, UifSpec};
use std::collections::BTreeMap;
use std::path::PathBuf;
use utoipa::ToSchema;

/// A description of all drives, and the changes that the caller accepts.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ApplyRequest {
    /// Absolute path of the file, for messages and for relative paths in it.
    #[schema(value_type = String)]
    pub file: PathBuf,
    /// Text of the file, in the format of the configuration file.
    pub text: String,
    /// Whether created drives that are not in the text are deleted. Their files stay.
    #[serde(default)]
    pub prune: bool,
    /// Whether namespaces may become smaller; the data behind the new end is lost.
    #[serde(default)]
    pub shrink: bool,
    /// Whether drives with a client may be deleted.
    #[serde(default)]
    pub force: bool,
    /// Whether targets may be replaced by other storage, to which the operator has copied the data.
    #[serde(default)]
    pub different_storage: bool,
}

/// A change of a drive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlannedChange {
    pub drive: String,
    /// `create`, `change` or `delete`.
    pub kind: String,
    /// Description in words.
    pub text: String,
    /// Condition or option without which the change is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub needs: Option<String>,
}

/// A difference that an apply refuses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RefusedChange {
    pub drive: String,
    /// Reason, with the file, the line and the key.
    pub text: String,
    /// Remedy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub needs: Option<String>,
}

/// Changes that an apply would make, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Plan {
    pub changes: Vec<PlannedChange>,
    /// Created drives that are not in the text, and stay.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<String>,
    /// Differences for which an apply of the text is refused. It would make no change then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<RefusedChange>,
}

/// Changes that an apply has made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Applied {
    pub changes: Vec<PlannedChange>,
}

/// A change, as it is made.
#[derive(Clone, Debug, PartialEq)]
enum Step {
    Create(Box<DriveSpec>),
    Resize {
        nsid: u32,
        from: Size,
        to: Size,
    },
    Classify {
        was: Option<ClassifierSpec>,
        is: Option<ClassifierSpec>,
    },
    Attach {
        nsid: u32,
        below: usize,
        uif: Box<UifSpec>,
    },
    Detach {
        nsid: u32,
        at: usize,
        uif: Box<UifSpec>,
    },
    Move {
        nsid: u32,
        at: usize,
        was: Place,
        is: Place,
    },
    Limit {
        nsid: u32,
        number: usize,
        was: QosLimits,
        is: QosLimits,
    },
    Replace {
        nsid: u32,
        was: Box<NamespaceSpec>,
        is: Box<NamespaceSpec>,
    },
    /// Limits of a group; none before for a new one.
    Group {
        name: String,
        was: Option<QosLimits>,
        is: QosLimits,
    },
    /// A larger size of a thin pool.
    Grow {
        pool: String,
        from: Size,
        to: Size,
    },
    Delete,
}

impl Step {
    fn kind(&self) -> &'static str {
        match self {
            Self::Create(_) | Self::Group { was: None, .. } => "create",
            Self::Delete => "delete",
            _ => "change",
        }
    }

    fn is_shrink(&self) -> bool {
        matches!(self, Self::Resize { from, to, .. } if to < from)
    }

    /// Returns the position among the kinds of steps: steps that cannot be taken back come last.
    fn rank(&self) -> u8 {
        match self {
            Self::Group { .. } => 0,
            Self::Create(_) => 1,
            // A pool does not shrink.
            Self::Grow { .. } => 4,
            Self::Delete => 5,
            step => 2 + u8::from(step.is_shrink()),
        }
    }

    fn words(&self) -> String {
        let classifier = |it: &Option<ClassifierSpec>| {
            it.as_ref().map_or("none".to_owned(), |it| it.object.display().to_string())
        };
        match self {
            Self::Create(spec) => {
                let places: Vec<String> =
                    spec.namespaces.iter().map(NamespaceSpec::target_in_words).collect();
                let places = if places.is_empty() { "a pool".to_owned() } else { places.join(", ") };
                format!("{} on {places}", count(spec.namespaces.len(), "namespace"))
            }
            Self::Resize { nsid, from, to } => format!("namespace {nsid}: size {from} -> {to}"),
            Self::Classify { was, is } => format!("classifier {} -> {}", classifier(was), classifier(is)),
            Self::Attach { nsid, below, uif } => {
                format!("namespace {nsid}: attach {} below {}", uif.about(), count(*below, "function"))
            }
            Self::Detach { nsid, uif, .. } => format!("namespace {nsid}: detach {}", uif.about()),
            Self::Move { nsid, at, is, .. } => {
                format!("namespace {nsid}: function {} goes {}", at + 1, is.in_words())
            }
            Self::Limit { nsid, number, was, is } => {
                format!(
                    "namespace {nsid}: limits {number}: {} -> {}",
                    limits_in_words(was),
                    limits_in_words(is)
                )
            }
            Self::Replace { nsid, was, is } => {
                format!("namespace {nsid}: target {} -> {}", was.target_in_words(), is.target_in_words())
            }
            Self::Group { was: Some(was), is, .. } => {
                format!("{} -> {}", limits_in_words(was), limits_in_words(is))
            }
            Self::Group { was: None, is, .. } => limits_in_words(is),
            Self::Grow { from, to, .. } => format!("size {from} -> {to}"),
            Self::Delete => "its files stay".to_owned(),
        }
    }

    /// Returns the condition or option without which the step is refused.
    fn needs(&self) -> Option<String> {
        match self {
            Self::Replace { .. } => {
                Some("the same storage; or no other change, and --different-storage".to_owned())
            }
            step if step.is_shrink() => Some("--shrink".to_owned()),
            _ => None,
        }
    }
}

/// Changes in their order, each with its drive.
#[derive(Debug, Default)]
struct Steps {
    steps: Vec<(String, Step)>,
    kept: Vec<String>,
    /// Differences that no step removes.
    refused: Vec<(String, ApiError)>,
}

impl Steps {
    fn changes(&self) -> Vec<PlannedChange> {
        let change = |(drive, step): &(String, Step)| PlannedChange {
            drive: drive.clone(),
            kind: step.kind().to_owned(),
            text: step.words(),
            needs: step.needs(),
        };
        self.steps.iter().map(change).collect()
    }
}

impl Steps {
    /// Refuses other storage beside further changes. Hosts write to it at once, so it is never taken back.
    fn check_alone(&mut self, described: &Described<'_>) {
        let is_replacement = |(_, step): &&(String, Step)| matches!(step, Step::Replace { .. });
        let Some((drive, Step::Replace { nsid, .. })) = self.steps.iter().find(is_replacement) else {
            return;
        };
        if self.steps.len() == 1 {
            return;
        }
        let index = described.config.drives.iter().position(|spec| spec.name == *drive).unwrap_or_default();
        let fault = Fault::at_key(
            "target",
            "other storage is put in place by an apply without any other change",
        )
        .hint("apply the other changes first, or leave --different-storage out if the storage is the same");
        let fault = fault.inside("namespaces", *nsid as usize - 1).inside("drive", index);
        self.refused.push((drive.clone(), described.fault(fault)));
    }
}

impl Drives {
    /// Returns the changes that [`apply`](Self::apply_file) would make.
    ///
    /// # Errors
    /// A fault of the text, or a change that cannot be made, with its line.
    pub fn diff(&self, request: &ApplyRequest) -> Result<Plan, ApiError> {
        let described = Described::read(&request.text, &request.file, &self.served())?;
        let planned = self.plan(&described, request)?;
        let changes = planned.changes();
        let refused = |(drive, problem): (String, ApiError)| RefusedChange {
            drive,
            text: problem.error,
            needs: problem.hint,
        };
        let Steps { kept, refused: all, .. } = planned;
        Ok(Plan { changes, kept, refused: all.into_iter().map(refused).collect() })
    }

    /// Returns the parts of the configuration with which the daemon was started, besides drives.
    fn served(&self) -> Served {
        Served {
            daemon: self.settings.clone(),
            tcp: self.tcp.clone(),
            metrics: self.metrics.clone(),
            page: self.page.clone(),
            shared: self.shared_specs(),
            groups: self.group_specs(),
        }
    }

    /// Plans all changes.
    fn plan(&self, described: &Described<'_>, request: &ApplyRequest) -> Result<Steps, ApiError> {
        let entries: BTreeMap<String, Entry> = lock(&self.entries).clone();
        let mut planned = Steps::default();
        planned.steps.extend(self.plan_groups(&described.groups));
        self.plan_pools(described, &mut planned);
        for (index, spec) in described.config.drives.iter().enumerate() {
            let at = |fault: Fault| described.fault(fault.inside("drive", index));
            match entries.get(&spec.name) {
                None => planned.steps.push((spec.name.clone(), Step::Create(Box::new(spec.clone())))),
                Some(entry) => {
                    let (steps, refused) = self.plan_drive(entry, spec, request);
                    let refused = refused.into_iter().map(|fault| (spec.name.clone(), at(fault)));
                    planned.refused.extend(refused);
                    planned.steps.extend(steps.into_iter().map(|step| (spec.name.clone(), step)));
                }
            }
        }
        let is_described = |name: &str| described.config.drives.iter().any(|spec| spec.name == name);
        for entry in entries.values().filter(|entry| !is_described(&entry.spec.name)) {
            let name = entry.spec.name.clone();
            match (entry.origin, request.prune) {
                (Origin::Created, true) => planned.steps.push((name, Step::Delete)),
                (Origin::Created, false) => planned.kept.push(name),
                (Origin::Declared, _) => {}
            }
        }
        if request.different_storage {
            planned.check_alone(described);
        }
        self.check_unique(described, &entries, &planned)?;
        planned.steps.sort_by_key(|(_, step)| step.rank());
        Ok(planned)
    }

    /// Plans new groups, and new limits of groups that are there. Other groups stay.
    fn plan_groups(&self, described: &[GroupSpec]) -> Vec<(String, Step)> {
        let present = self.group_specs();
        let step = |GroupSpec { name, limits }: &GroupSpec| {
            let was = present.iter().find(|group| group.name == *name).map(|group| group.limits);
            let group = Step::Group { name: name.clone(), was, is: *limits };
            (was != Some(*limits)).then(|| (format!("group {name}"), group))
        };
        described.iter().filter_map(step).collect()
    }

    /// Plans the growth of thin pools. Other pools stay.
    fn plan_pools(&self, described: &Described<'_>, planned: &mut Steps) {
        let present = self.shared_specs();
        for (index, spec) in described.shared.iter().enumerate() {
            let now = present.iter().find(|now| now.name == spec.name);
            let Some(now) = now.filter(|now| now.size < spec.size) else { continue };
            let name = format!("pool {}", spec.name);
            match self.engine.plan_growth(&spec.name, Some(spec.size)) {
                Ok(to) => {
                    planned.steps.push((name, Step::Grow { pool: spec.name.clone(), from: now.size, to }));
                }
                Err(problem) => {
                    let fault = Fault::at_key("size", problem.error);
                    let fault = problem.hint.into_iter().fold(fault, Fault::hint);
                    planned.refused.push((name, described.fault(fault.inside("shared", index))));
                }
            }
        }
    }

    /// Plans the changes of a drive that is there. Returns them with the refused differences.
    fn plan_drive(&self, entry: &Entry, spec: &DriveSpec, request: &ApplyRequest) -> (Vec<Step>, Vec<Fault>) {
        let sizes = entry.running.as_ref().ok().and_then(|running| running.status().ok()).map(|it| it.sizes);
        let (steps, mut refused) = differences(&entry.spec, spec, &sizes.unwrap_or_default());
        // A lost target is replaced also under a drive that could not be opened.
        let is_possible = |step: &Step| matches!(step, Step::Replace { .. });
        if let (false, Err(problem)) = (steps.iter().all(is_possible), &entry.running) {
            let words = format!("the drive is not open, so it cannot be changed: {}", problem.error);
            let hint = format!("`sluice drive open {}` tries again", entry.spec.name);
            refused.push(Fault::at_key("name", words).hint(hint));
        }
        for step in &steps {
            if let Step::Resize { nsid, from, to } = step
                && to < from
                && !request.shrink
            {
                let words = format!("{to} is less than the {from} that the namespace has");
                let hint = "what lies behind is lost: to do it all the same, say so (--shrink)";
                let fault = Fault::at_key("size", words).hint(hint);
                refused.push(fault.inside("namespaces", *nsid as usize - 1));
            }
        }
        (steps, refused)
    }

    /// Checks that no drive that stays has the serial number or the NQN of one that is described.
    fn check_unique(
        &self,
        described: &Described<'_>,
        entries: &BTreeMap<String, Entry>,
        planned: &Steps,
    ) -> Result<(), ApiError> {
        let is_described = |name: &str| described.config.drives.iter().any(|spec| spec.name == name);
        let goes =
            |name: &str| planned.steps.iter().any(|(drive, step)| drive == name && *step == Step::Delete);
        let stays: Vec<&DriveSpec> = entries
            .values()
            .map(|entry| &entry.spec)
            .filter(|spec| !is_described(&spec.name) && !goes(&spec.name))
            .collect();
        for (index, spec) in described.config.drives.iter().enumerate() {
            let fault = |key, what: &str, other: &str| {
                let words = format!("`{what}` is that of drive `{other}`, which is not in this file");
                described.fault(Fault::at_key(key, words).hint("choose another").inside("drive", index))
            };
            if let Some(other) = stays.iter().find(|other| other.serial() == spec.serial()) {
                return Err(fault("serial", &spec.serial(), &other.name));
            }
            let nqn = spec.subnqn();
            let has_same = |other: &&&DriveSpec| other.tcp.is_some() && other.subnqn() == nqn;
            if let Some(other) = stays.iter().find(has_same).filter(|_| spec.tcp.is_some()) {
                return Err(fault("tcp", &nqn, &other.name));
            }
        }
        Ok(())
    }
}

/// Formats limits as a user writes them.
fn limits_in_words(limits: &QosLimits) -> String {
    let value = serde_json::to_value(limits).unwrap_or_default();
    let pairs = value.as_object().into_iter().flatten();
    let words: Vec<String> =
        pairs.map(|(key, value)| format!("{key} {}", value.to_string().trim_matches('"'))).collect();
    if words.is_empty() { "no limits".to_owned() } else { words.join(", ") }
}

#[cfg(test)]
mod tests;
