//! State from before a change of several drives, in the format of the state file.

use super::{Arranged, Classified, Limited, PausedTarget, Replaced, Resized, Saved, SavedGroup};
use serde::{Deserialize, Serialize};
use sluice_spec::DriveSpec;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// State of the drives that an apply changes, from before.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Applying {
    /// Names of the drives that are changed.
    pub names: BTreeSet<String>,
    /// Files that did not exist before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<PathBuf>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drives: Vec<DriveSpec>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resized: Vec<Resized>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classified: Vec<Classified>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub arranged: Vec<Arranged>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limited: Vec<Limited>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replaced: Vec<Replaced>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paused_targets: Vec<PausedTarget>,
    /// All groups, if groups are changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<Vec<SavedGroup>>,
}

impl Applying {
    /// Notes the present state of these drives.
    pub fn of(saved: &Saved, names: BTreeSet<String>, missing: Vec<PathBuf>) -> Self {
        Self {
            missing,
            drives: saved.drives.iter().filter(|it| names.contains(&it.name)).cloned().collect(),
            resized: saved.resized.iter().filter(|it| names.contains(&it.drive)).cloned().collect(),
            classified: saved.classified.iter().filter(|it| names.contains(&it.drive)).cloned().collect(),
            arranged: saved.arranged.iter().filter(|it| names.contains(&it.drive)).cloned().collect(),
            limited: saved.limited.iter().filter(|it| names.contains(&it.drive)).cloned().collect(),
            replaced: saved.replaced.iter().filter(|it| names.contains(&it.drive)).cloned().collect(),
            paused_targets: saved
                .paused_targets
                .iter()
                .filter(|it| names.contains(&it.drive))
                .cloned()
                .collect(),
            groups: None,
            names,
        }
    }

    /// Restores everything in `saved`, and returns the names of drives that were created meanwhile.
    pub fn take_back(&self, saved: &mut Saved) -> Vec<String> {
        saved.paused_targets.retain(|it| !self.names.contains(&it.drive));
        saved.paused_targets.extend_from_slice(&self.paused_targets);
        if let Some(groups) = &self.groups {
            saved.groups.clone_from(groups);
        }
        self.take_drives_back(saved)
    }

    /// Restores the records of drives alone, for a daemon that has taken pauses and groups back step by step: operators
    /// may have changed those meanwhile.
    pub fn take_drives_back(&self, saved: &mut Saved) -> Vec<String> {
        let is_new = |name: &&String| !self.drives.iter().any(|drive| drive.name == **name);
        let created: Vec<String> = saved.drives.iter().map(|drive| drive.name.clone()).collect();
        let created =
            self.names.iter().filter(is_new).filter(|name| created.contains(name)).cloned().collect();
        let is_own = |name: &String| self.names.contains(name);
        saved.drives.retain(|it| !is_own(&it.name));
        saved.drives.extend_from_slice(&self.drives);
        saved.resized.retain(|it| !is_own(&it.drive));
        saved.resized.extend_from_slice(&self.resized);
        saved.classified.retain(|it| !is_own(&it.drive));
        saved.classified.extend_from_slice(&self.classified);
        saved.arranged.retain(|it| !is_own(&it.drive));
        saved.arranged.extend_from_slice(&self.arranged);
        saved.limited.retain(|it| !is_own(&it.drive));
        saved.limited.extend_from_slice(&self.limited);
        saved.replaced.retain(|it| !is_own(&it.drive));
        saved.replaced.extend_from_slice(&self.replaced);
        created
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drive(name: &str, size: &str) -> DriveSpec {
        let text = format!(r#"{{"name": "{name}", "namespaces": [{{"target": "null", "size": "{size}"}}]}}"#);
        serde_json::from_str(&text).expect("a drive")
    }

    #[test]
    fn drives_are_as_before_and_others_as_they_are() {
        let before = Saved { drives: vec![drive("a", "1MiB"), drive("b", "1MiB")], ..Saved::default() };
        let names = ["a", "new", "gone"].map(str::to_owned).into();
        let applying = Applying::of(&before, names, Vec::new());
        let stored = serde_json::to_string(&applying).expect("JSON");
        assert_eq!(serde_json::from_str::<Applying>(&stored).expect("a record"), applying);
        let mut now = Saved {
            drives: vec![drive("a", "2MiB"), drive("b", "2MiB"), drive("new", "1MiB")],
            ..Saved::default()
        };
        assert_eq!(applying.take_back(&mut now), ["new"]);
        assert_eq!(now.drives, [drive("b", "2MiB"), drive("a", "1MiB")]);
    }
}
