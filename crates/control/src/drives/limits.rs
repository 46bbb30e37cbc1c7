//! Limits of the namespaces of drives, changed while a drive is in use.

use super::{Drives, Entry, Origin, lock};
use crate::state::{Limited, Saved};
use serde::{Deserialize, Serialize};
use sluice_functions::QosLimits;
use sluice_spec::error::ApiError;
use sluice_spec::{DriveSpec, FunctionSpec, NamespaceSpec};
use utoipa::ToSchema;

/// A function with limits, and the commands over them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LimitsView {
    pub nsid: u32,
    /// Number of the function among those of the namespace with limits, counted from 1, topmost first.
    pub number: usize,
    pub limits: QosLimits,
    /// Group whose limits apply, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Part of the group's limits that the namespace gets in any case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guarantee: Option<QosLimits>,
    /// Commands that wait now.
    pub waiting: u64,
    /// Commands that have waited since the drive was opened.
    pub waited: u64,
}

/// Returns the limits of a namespace's functions, topmost first.
pub(super) fn limits_of(namespace: &NamespaceSpec) -> impl Iterator<Item = QosLimits> {
    namespace.functions.iter().filter_map(FunctionSpec::limits)
}

/// Sets the limits of a function of a drive's specification.
pub(super) fn set(drive: &mut DriveSpec, nsid: u32, number: usize, limits: QosLimits) {
    let namespace = drive.namespace_mut(nsid);
    let found = namespace.into_iter().flat_map(|it| &mut it.functions).filter_map(FunctionSpec::limits_mut);
    found.skip(number.saturating_sub(1)).take(1).for_each(|it| *it = limits);
}

impl Drives {
    /// Returns the limits of a drive, with the commands over them.
    pub fn limits(&self, name: &str) -> Result<Vec<LimitsView>, ApiError> {
        let entry = self.entry(name)?;
        let of = |(nsid, namespace): (u32, &NamespaceSpec)| {
            let waits = entry.running.as_ref().map_or_else(|_| Vec::new(), |running| running.waits(nsid));
            views(nsid, namespace, |index| waits.get(index).copied().unwrap_or_default())
        };
        Ok(entry.spec.numbered().flat_map(of).collect())
    }

    /// Returns the limits of all drives, each with its drive's name.
    pub fn all_limits(&self) -> Vec<(String, LimitsView)> {
        let names: Vec<String> = lock(&self.entries).keys().cloned().collect();
        let of = |name: String| {
            let limits = self.limits(&name).unwrap_or_default();
            limits.into_iter().map(move |limits| (name.clone(), limits))
        };
        names.into_iter().flat_map(of).collect()
    }

    /// Sets the limits of a function. They apply at once, and after a restart.
    pub fn set_limits(
        &self,
        name: &str,
        nsid: u32,
        number: usize,
        limits: QosLimits,
    ) -> Result<Vec<LimitsView>, ApiError> {
        limits.check()?;
        let _only = self.change(name)?;
        let entry = self.entry(name)?;
        let namespace = entry
            .spec
            .namespace(nsid)
            .ok_or_else(|| ApiError::not_found(format!("drive `{name}` has no namespace {nsid}")))?;
        let index = number.checked_sub(1).filter(|index| *index < limits_of(namespace).count());
        let index = index.ok_or_else(|| has_none(name, nsid, number))?;
        let running = entry.running.clone()?;
        let declared = lock(&self.declared).iter().find(|declared| declared.name == name).cloned();
        self.store_and_do(
            name,
            |saved| note(saved, &entry, declared.as_ref(), (nsid, number), limits),
            || running.set_limits(nsid, index, limits),
        )?;
        self.amend(name, |entry| set(&mut entry.spec, nsid, number, limits));
        tracing::info!("drive {name}: namespace {nsid} has new limits");
        self.limits(name)
    }
}

fn views(
    nsid: u32,
    namespace: &NamespaceSpec,
    waits: impl Fn(usize) -> sluice_functions::QosWaits,
) -> Vec<LimitsView> {
    let limited = namespace.functions.iter().filter(|function| function.limits().is_some()).enumerate();
    let view = |(index, function): (usize, &FunctionSpec)| {
        let (group, guarantee) = match function {
            FunctionSpec::Qos(options) => (options.group.clone(), options.guarantee),
            _ => (None, None),
        };
        let limits = function.limits().unwrap_or_default();
        let waits = waits(index);
        let (waiting, waited) = (waits.waiting, waits.total);
        LimitsView { nsid, number: index + 1, limits, group, guarantee, waiting, waited }
    };
    limited.map(view).collect()
}

fn has_none(name: &str, nsid: u32, number: usize) -> ApiError {
    let problem = match number {
        1 => format!("namespace {nsid} of drive `{name}` has no function with limits"),
        _ => format!("namespace {nsid} of drive `{name}` has no function with limits of number {number}"),
    };
    ApiError::not_found(problem)
        .hint("declare one: functions = [ { kind = \"qos\" } ]; it may have no limit at first")
}

/// Notes new limits: in the spec of a created drive, in a separate record of a declared one.
fn note(
    saved: &mut Saved,
    entry: &Entry,
    declared: Option<&DriveSpec>,
    (nsid, number): (u32, usize),
    limits: QosLimits,
) {
    let drive = &entry.spec.name;
    if entry.origin == Origin::Created {
        let created = saved.drives.iter_mut().find(|created| created.name == *drive);
        return created.into_iter().for_each(|created| set(created, nsid, number, limits));
    }
    let is_it = |it: &Limited| it.drive == *drive && it.nsid == nsid && it.number == number;
    let before = saved.limited.extract_if(.., |it| is_it(it)).last();
    let nth = |spec: &DriveSpec| limits_of(spec.namespace(nsid)?).nth(number - 1);
    // A drive that the file does not declare now may be declared again, unchanged.
    let declared =
        declared.and_then(nth).or(before.map(|before| before.declared)).or_else(|| nth(&entry.spec));
    let declared = declared.unwrap_or_default();
    saved.limited.push(Limited { drive: drive.clone(), nsid, number, declared, limits });
}

#[cfg(test)]
mod tests {
    use super::super::script::{DECLARED, Stage};
    use super::super::tests::apply;
    use super::*;
    use crate::drives::Reloaded;

    fn iops(limit: u64) -> QosLimits {
        QosLimits { iops: Some(limit), ..QosLimits::default() }
    }

    fn limited(limit: u64) -> String {
        format!(
            "{DECLARED}functions = [ {{ kind = \"pass\" }}, {{ kind = \"qos\", limits = {{ iops = {limit} }} }} ]\n"
        )
    }

    fn now(drives: &Drives) -> Option<u64> {
        drives.limits("fixed").expect("it is there")[0].limits.iops
    }

    #[test]
    fn limits_given_through_the_api_count_until_the_file_has_others() {
        let stage = Stage::new();
        let drives = stage.start(&limited(5));
        assert_eq!(now(&drives), Some(5));
        drives.set_limits("fixed", 1, 1, iops(7)).expect("there is a function with limits");
        assert_eq!(apply(&drives, &limited(5)).expect("nothing is wrong"), Reloaded::default());
        assert_eq!(apply(&drives, &limited(6)).expect("the rest is done").refused.len(), 1);
        assert_eq!(now(&drives), Some(7), "a changed declaration waits for a restart");
        drop(drives);
        assert_eq!(now(&stage.start(&limited(5))), Some(7));
        assert_eq!(now(&stage.start(&limited(6))), Some(6));
        assert_eq!(now(&stage.start(&limited(5))), Some(5), "the file has overruled it");
    }

    #[test]
    fn limits_that_cannot_be_set_or_stored_are_not_set() {
        let stage = Stage::new();
        let drives = stage.start(&limited(5));
        let refused = |nsid, number, limit| {
            drives.set_limits("fixed", nsid, number, iops(limit)).expect_err("not possible").error
        };
        assert!(refused(2, 1, 7).contains("has no namespace 2"));
        assert!(refused(1, 2, 7).contains("of number 2") && refused(1, 0, 7).contains("of number 0"));
        assert!(refused(1, 1, 0).contains("nothing would ever pass"));
        stage.break_disk();
        refused(1, 1, 7);
        assert_eq!(now(&drives), Some(5));
        stage.mend_disk();
        assert!(drives.set_limits("fixed", 1, 1, iops(7)).is_ok());
    }
}
