//! Groups of namespaces with common limits: declared, or created through the API.

use super::{Drives, Origin, lock};
use crate::config::Config;
use crate::state::{Saved, SavedGroup};
use serde::{Deserialize, Serialize};
use sluice_functions::{GroupRefused, GroupStatus, QosLimits};
use sluice_spec::GroupSpec;
use sluice_spec::error::ApiError;
use sluice_spec::words::nearest;
use utoipa::ToSchema;

/// A group with its use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GroupView {
    pub name: String,
    pub origin: Origin,
    pub limits: QosLimits,
    /// Open namespaces that are in the group.
    pub members: usize,
    /// Commands of these that wait now.
    pub waiting: u64,
    /// Commands that have waited, of the namespaces that are open now.
    pub waited: u64,
}

/// Removes changes of groups that the configuration has overruled.
pub(super) fn merge(config: &Config, saved: &mut Saved) {
    saved.groups.retain(|group| {
        let now = config.groups.iter().find(|declared| declared.name == group.name);
        let counts = now.map(|declared| declared.limits) == group.declared;
        if !counts {
            let (file, name) = (config.file.display(), &group.name);
            tracing::info!(
                "{file} has new limits for group {name}: they replace those given through the API"
            );
        }
        counts
    });
}

/// Returns all groups with the limits that apply.
fn effective(declared: &[GroupSpec], saved: &Saved) -> Vec<(String, QosLimits)> {
    let changed = |name: &str| saved.groups.iter().find(|group| group.name == name);
    let of = |group: &GroupSpec| {
        (group.name.clone(), changed(&group.name).map_or(group.limits, |changed| changed.limits))
    };
    let created = saved.groups.iter().filter(|group| group.declared.is_none());
    let created = created.map(|group| (group.name.clone(), group.limits));
    declared.iter().map(of).chain(created).collect()
}

impl Drives {
    /// Creates all groups in the engine, before a drive is opened.
    pub(super) fn open_groups(&self) -> Result<(), ApiError> {
        let declared = lock(&self.declared_groups);
        for (name, limits) in effective(&declared, &self.saved()) {
            self.engine.set_group(&name, limits).map_err(|why| refused(&name, &why))?;
        }
        Ok(())
    }

    /// Applies the groups of the configuration, before its drives are opened. Returns the refused changes.
    pub(super) fn reload_groups(&self, config: &Config) -> Vec<ApiError> {
        let mut declared = lock(&self.declared_groups);
        if let Err(problem) = self.store(|saved| merge(config, saved)) {
            return vec![problem];
        }
        declared.clone_from(&config.groups);
        let all = effective(&declared, &self.saved()).into_iter();
        let set = |(name, limits): (String, QosLimits)| {
            self.engine.set_group(&name, limits).err().map(|why| refused(&name, &why))
        };
        all.filter_map(set).collect()
    }

    /// Removes groups that the configuration does not declare any more, after its drives have ended. Returns the
    /// refused changes.
    pub(super) fn end_groups(&self) -> Vec<ApiError> {
        let declared = lock(&self.declared_groups);
        let known = effective(&declared, &self.saved());
        let is_gone = |group: &GroupStatus| !known.iter().any(|(name, _)| *name == group.name);
        let gone = self.engine.groups().into_iter().filter(is_gone);
        let end = |GroupStatus { name, .. }: GroupStatus| {
            self.engine.remove_group(&name).err().map(|why| refused(&name, &why))
        };
        gone.filter_map(end).collect()
    }

    /// Returns all groups, by name.
    pub fn groups(&self) -> Vec<GroupView> {
        let declared = lock(&self.declared_groups);
        self.engine.groups().into_iter().map(|status| view(&declared, status)).collect()
    }

    /// Returns the descriptions of all groups, by name.
    pub(super) fn group_specs(&self) -> Vec<GroupSpec> {
        let spec = |GroupView { name, limits, .. }| GroupSpec { name, limits };
        self.groups().into_iter().map(spec).collect()
    }

    /// Returns a group.
    pub fn group(&self, name: &str) -> Result<GroupView, ApiError> {
        let all = self.groups();
        let found = all.iter().find(|group| group.name == name).cloned();
        found.ok_or_else(|| unknown(name, &all))
    }

    /// Creates a group, or changes its limits. They apply at once, and after a restart.
    pub fn set_group(&self, spec: GroupSpec) -> Result<GroupView, ApiError> {
        spec.check()?;
        self.may_change()?;
        let declared = lock(&self.declared_groups);
        let GroupSpec { name, limits } = spec;
        let before = self.engine.groups().into_iter().find(|group| group.name == name);
        self.engine.set_group(&name, limits).map_err(|why| refused(&name, &why))?;
        let in_file = declared.iter().find(|group| group.name == name).map(|group| group.limits);
        let stored = self.store(|saved| {
            saved.groups.retain(|group| group.name != name);
            saved.groups.push(SavedGroup { name: name.clone(), declared: in_file, limits });
        });
        drop(declared);
        if let Err(problem) = stored {
            // A change that is not stored is not made.
            let undone = match before {
                Some(before) => self.engine.set_group(&name, before.limits),
                None => self.engine.remove_group(&name),
            };
            undone.map_err(|why| refused(&name, &why))?;
            return Err(problem);
        }
        tracing::info!("group {name} has new limits");
        self.group(&name)
    }

    /// Deletes a group without members.
    pub fn delete_group(&self, name: &str) -> Result<(), ApiError> {
        let GroupView { origin, limits, .. } = self.group(name)?;
        self.may_change()?;
        let declared = lock(&self.declared_groups);
        if origin == Origin::Declared {
            let file = self.config_file.display();
            let problem = format!("group `{name}` is declared in {file}, and would be back after a restart");
            return Err(ApiError::conflict(problem)
                .hint(format!("remove its [[group]] from {file} and run `sluice reload`")));
        }
        self.engine.remove_group(name).map_err(|why| refused(name, &why))?;
        let stored = self.store(|saved| saved.groups.retain(|group| group.name != name));
        drop(declared);
        stored.inspect_err(|_| drop(self.engine.set_group(name, limits)))
    }
}

fn unknown(name: &str, all: &[GroupView]) -> ApiError {
    let problem = ApiError::not_found(format!("there is no group `{name}`"));
    match nearest(name, all.iter().map(|group| group.name.as_str())) {
        Some(meant) => problem.hint(format!("did you mean `{meant}`?")),
        None => problem.hint("`sluice group list` shows what there is"),
    }
}

fn view(declared: &[GroupSpec], status: GroupStatus) -> GroupView {
    let GroupStatus { name, limits, members, waits } = status;
    let is_declared = declared.iter().any(|group| group.name == name);
    let origin = if is_declared { Origin::Declared } else { Origin::Created };
    GroupView { name, origin, limits, members, waiting: waits.waiting, waited: waits.total }
}

fn refused(name: &str, why: &GroupRefused) -> ApiError {
    let problem = ApiError::conflict(format!("group `{name}`: {why}"));
    match why {
        GroupRefused::InUse(_) => problem.hint("delete or change the drives of its members first"),
        GroupRefused::Guaranteed(..) => problem.hint("make the guarantees of its members smaller first"),
        GroupRefused::Unknown | GroupRefused::TooMany => problem,
    }
}
