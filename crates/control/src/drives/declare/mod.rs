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
use sluice_spec::error::ApiError;
use sluice_spec::size::Size;
use sluice_spec::words::count;
use sluice_spec::{ClassifierSpec, DriveSpec, Fault, NamespaceSpec, Place, UifSpec};
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
}

/// A change of a drive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlannedChange {
    pub drive: String,
    /// `create`, `change` or `delete`.
    pub kind: String,
    /// Description in words.
    pub text: String,
}

/// Changes that an apply would make, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Plan {
    pub changes: Vec<PlannedChange>,
    /// Created drives that are not in the text, and stay.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<String>,
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
    Resize { nsid: u32, from: Size, to: Size },
    Classify { was: Option<ClassifierSpec>, is: Option<ClassifierSpec> },
    Attach { nsid: u32, below: usize, uif: Box<UifSpec> },
    Detach { nsid: u32, at: usize, uif: Box<UifSpec> },
    Move { nsid: u32, at: usize, was: Place, is: Place },
    Delete,
}

impl Step {
    fn kind(&self) -> &'static str {
        match self {
            Self::Create(_) => "create",
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
            Self::Create(_) => 0,
            Self::Delete => 3,
            step => 1 + u8::from(step.is_shrink()),
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
            Self::Delete => "its files stay".to_owned(),
        }
    }
}

/// Changes in their order, each with its drive.
#[derive(Debug, Default)]
struct Steps {
    steps: Vec<(String, Step)>,
    kept: Vec<String>,
}

impl Steps {
    fn changes(&self) -> Vec<PlannedChange> {
        let change = |(drive, step): &(String, Step)| PlannedChange {
            drive: drive.clone(),
            kind: step.kind().to_owned(),
            text: step.words(),
        };
        self.steps.iter().map(change).collect()
    }
}

impl Drives {
    /// Returns the changes that [`apply`](Self::apply_file) would make.
    ///
    /// # Errors
    /// A fault of the text, or a change that cannot be made, with its line.
    pub fn diff(&self, request: &ApplyRequest) -> Result<Plan, ApiError> {
        let described = Described::read(&request.text, &request.file, &self.served())?;
        let Steps { steps, kept } = self.plan(&described, request)?;
        Ok(Plan { changes: Steps { steps, kept: Vec::new() }.changes(), kept })
    }

    /// Returns the parts of the configuration with which the daemon was started, besides drives.
    fn served(&self) -> Served {
        Served {
            daemon: self.settings.clone(),
            tcp: self.tcp.clone(),
            metrics: self.metrics.clone(),
            page: self.page.clone(),
            shared: self.shared.clone(),
            groups: self.group_specs(),
        }
    }

    /// Plans all changes.
    fn plan(&self, described: &Described<'_>, request: &ApplyRequest) -> Result<Steps, ApiError> {
        let entries: BTreeMap<String, Entry> = lock(&self.entries).clone();
        let mut planned = Steps::default();
        for (index, spec) in described.config.drives.iter().enumerate() {
            let at = |fault: Fault| described.fault(fault.inside("drive", index));
            match entries.get(&spec.name) {
                None => planned.steps.push((spec.name.clone(), Step::Create(Box::new(spec.clone())))),
                Some(entry) => {
                    let steps = self.plan_drive(entry, spec, request).map_err(at)?;
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
        self.check_unique(described, &entries, &planned)?;
        planned.steps.sort_by_key(|(_, step)| step.rank());
        Ok(planned)
    }

    /// Plans the changes of a drive that is there.
    fn plan_drive(
        &self,
        entry: &Entry,
        spec: &DriveSpec,
        request: &ApplyRequest,
    ) -> Result<Vec<Step>, Fault> {
        let sizes = entry.running.as_ref().ok().and_then(|running| running.status().ok()).map(|it| it.sizes);
        let steps = differences(&entry.spec, spec, &sizes.unwrap_or_default())?;
        if let (Some(_), Err(problem)) = (steps.first(), &entry.running) {
            let words = format!("the drive is not open, so it cannot be changed: {}", problem.error);
            return Err(Fault::at_key("name", words)
                .hint(format!("`sluice drive open {}` tries again", entry.spec.name)));
        }
        for step in &steps {
            if let Step::Resize { nsid, from, to } = step
                && to < from
                && !request.shrink
            {
                let words = format!("{to} is less than the {from} that the namespace has");
                let hint = "what lies behind is lost: to do it all the same, say so (--shrink)";
                return Err(Fault::at_key("size", words).hint(hint).inside("namespaces", *nsid as usize - 1));
            }
        }
        Ok(steps)
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

#[cfg(test)]
mod tests;
