//! Differences between a drive and its description, as changes that can be made while the drive is in use.

use super::Step;
use crate::object_file;
use sluice_spec::size::Size;
use sluice_spec::{ClassifierSpec, DriveSpec, Fault, FunctionSpec, NamespaceSpec, UifSpec};

/// Keys of a drive that cannot be changed while the drive is open.
const DRIVE_KEYS: [&str; 9] =
    ["serial", "doorbells", "reactor", "host_timeout_s", "absence", "vfio_user", "tcp", "pool", "namespaces"];

/// Keys of a namespace that cannot be changed while the drive is open.
const NAMESPACE_KEYS: [&str; 13] = [
    "target",
    "size",
    "path",
    "on_full",
    "format",
    "lease",
    "read_only",
    "nvme",
    "nvme_tcp",
    "shared",
    "block_size",
    "ana_group",
    "functions",
];

/// Keys of a namespace that describe its target.
const TARGET_KEYS: [&str; 4] = ["target", "path", "nvme", "nvme_tcp"];

/// Returns the changes that make a drive as `is` describes it, and the differences that no change removes while the drive
/// is open, at their keys. `sizes` are those of its namespaces.
pub(super) fn differences(was: &DriveSpec, is: &DriveSpec, sizes: &[Size]) -> (Vec<Step>, Vec<Fault>) {
    let (mut now, mut steps) = (was.clone(), Vec::new());
    if !is_same_classifier(was.classifier.as_ref(), is.classifier.as_ref()) {
        let (was, is) = (was.classifier.clone(), is.classifier.clone());
        steps.push(Step::Classify { was, is });
    }
    now.classifier.clone_from(&is.classifier);
    for (nsid, (now, is)) in (1..).zip(now.namespaces.iter_mut().zip(&is.namespaces)) {
        let size = sizes.get(nsid as usize - 1).copied();
        layout(nsid, now, is, &mut steps);
        limit(nsid, now, is, &mut steps);
        replace(nsid, now, is, size, &mut steps);
        resize(nsid, now, is, size, &mut steps);
    }
    (steps, remaining(&now, is))
}

/// Returns whether two programs are the same. A drive that was created has a copy of the object file.
fn is_same_classifier(was: Option<&ClassifierSpec>, is: Option<&ClassifierSpec>) -> bool {
    let (Some(was), Some(is)) = (was, is) else { return was.is_none() && is.is_none() };
    let alike = ClassifierSpec { object: is.object.clone(), ..was.clone() } == *is;
    let digest =
        |spec: &ClassifierSpec| object_file::read(&spec.object).ok().map(|it| object_file::digest(&it));
    alike && (was.object == is.object || digest(was).is_some_and(|digest| Some(digest) == self::digest(is)))
}

fn digest(spec: &ClassifierSpec) -> Option<String> {
    object_file::read(&spec.object).ok().map(|bytes| object_file::digest(&bytes))
}

/// Plans a new size. A description without a size leaves the present one.
fn resize(nsid: u32, now: &mut NamespaceSpec, is: &NamespaceSpec, size: Option<Size>, steps: &mut Vec<Step>) {
    if is.target != now.target || differing(now, is, &TARGET_KEYS).is_some() {
        return;
    }
    if let (Some(from), Some(to)) = (now.size.or(size), is.size)
        && from != to
    {
        steps.push(Step::Resize { nsid, from, to });
    }
    now.size = is.size;
}

/// Plans new limits of functions that stay in their places.
fn limit(nsid: u32, now: &mut NamespaceSpec, is: &NamespaceSpec, steps: &mut Vec<Step>) {
    if now.functions.len() != is.functions.len() {
        return;
    }
    let mut number = 0;
    for (now, is) in now.functions.iter_mut().zip(&is.functions) {
        let (Some(was), Some(limits)) = (now.limits(), is.limits()) else { continue };
        number += 1;
        if was != limits && with_limits(now, is) == *is {
            steps.push(Step::Limit { nsid, number, was, is: limits });
            now.clone_from(is);
        }
    }
}

/// Returns a function with the limits of another one.
fn with_limits(function: &FunctionSpec, other: &FunctionSpec) -> FunctionSpec {
    let mut same = function.clone();
    if let (Some(limits), Some(is)) = (same.limits_mut(), other.limits()) {
        *limits = is;
    }
    same
}

/// Plans another target. Its size is that of the present one: another size is another change.
fn replace(
    nsid: u32,
    now: &mut NamespaceSpec,
    is: &NamespaceSpec,
    size: Option<Size>,
    steps: &mut Vec<Step>,
) {
    if differing(now, is, &TARGET_KEYS).is_none() {
        return;
    }
    let can_be = now.target_spec().check_storage().is_ok() && is.target_spec().check_storage().is_ok();
    let has_same_size = is.size.is_none_or(|is| now.size.or(size).is_none_or(|was| was == is));
    if can_be && has_same_size {
        let was = now.clone();
        now.set_target(is.target_spec());
        steps.push(Step::Replace { nsid, was: Box::new(was), is: Box::new(now.clone()) });
    }
}

/// Plans functions that are attached, detached and moved. Other functions stay as they are, but for their limits.
fn layout(nsid: u32, now: &mut NamespaceSpec, is: &NamespaceSpec, steps: &mut Vec<Step>) {
    if !now.paths.is_empty() || !is.paths.is_empty() || now.functions == is.functions {
        return;
    }
    let pairs = common(&now.functions, &is.functions);
    let is_uif = |function: &FunctionSpec| matches!(function, FunctionSpec::Uif(_));
    let goes = |at: &usize| !pairs.iter().any(|(was, _)| was == at);
    let comes = |at: &usize| !pairs.iter().any(|(_, is)| is == at);
    let going: Vec<usize> = (0..now.functions.len()).filter(goes).collect();
    let coming: Vec<usize> = (0..is.functions.len()).filter(comes).collect();
    let can_go = going.iter().all(|at| is_uif(&now.functions[*at]));
    if !can_go || !coming.iter().all(|at| is_uif(&is.functions[*at])) {
        return;
    }
    for at in going.into_iter().rev() {
        if let FunctionSpec::Uif(uif) = now.functions.remove(at) {
            steps.push(Step::Detach { nsid, at, uif: Box::new(uif) });
        }
    }
    for below in coming {
        if let FunctionSpec::Uif(uif) = &is.functions[below] {
            now.functions.insert(below, is.functions[below].clone());
            steps.push(Step::Attach { nsid, below, uif: Box::new(uif.clone()) });
        }
    }
    for (at, (now, is)) in now.functions.iter_mut().zip(&is.functions).enumerate() {
        if let (FunctionSpec::Uif(now), FunctionSpec::Uif(is)) = (now, is)
            && now.place != is.place
        {
            steps.push(Step::Move { nsid, at, was: now.place, is: is.place });
            now.place = is.place;
        }
    }
}

/// Returns whether two functions are the same, wherever they run.
fn is_alike(was: &FunctionSpec, is: &FunctionSpec) -> bool {
    match (was, is) {
        (FunctionSpec::Uif(was), FunctionSpec::Uif(is)) => UifSpec { place: is.place, ..was.clone() } == *is,
        _ => with_limits(was, is) == *is,
    }
}

/// Returns the indexes of the functions of the longest common subsequence. There are only a few functions.
fn common(was: &[FunctionSpec], is: &[FunctionSpec]) -> Vec<(usize, usize)> {
    let mut lengths = vec![vec![0; is.len() + 1]; was.len() + 1];
    for i in (0..was.len()).rev() {
        for j in (0..is.len()).rev() {
            lengths[i][j] = match is_alike(&was[i], &is[j]) {
                true => 1 + lengths[i + 1][j + 1],
                false => lengths[i + 1][j].max(lengths[i][j + 1]),
            };
        }
    }
    let (mut i, mut j, mut pairs) = (0, 0, Vec::new());
    while i < was.len() && j < is.len() {
        if is_alike(&was[i], &is[j]) {
            pairs.push((i, j));
            (i, j) = (i + 1, j + 1);
        } else if lengths[i + 1][j] >= lengths[i][j + 1] {
            i += 1;
        } else {
            j += 1;
        }
    }
    pairs
}

/// Returns the keys that differ.
fn remaining(was: &DriveSpec, is: &DriveSpec) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (index, (was, is)) in was.namespaces.iter().zip(&is.namespaces).enumerate() {
        let mut keys = all_differing(was, is, &NAMESPACE_KEYS);
        if keys.is_empty() && was != is {
            keys.push("paths");
        }
        let fault = |key: &'static str| {
            let hint = match key {
                "functions" => remedy_of_functions(was, is),
                "size" if keys.iter().any(|key| TARGET_KEYS.contains(key)) => {
                    "first apply the other target with the present size, and then the size"
                }
                _ => REMEDY,
            };
            Fault::at_key(key, UNCHANGEABLE).hint(hint).inside("namespaces", index)
        };
        faults.extend(keys.iter().copied().map(fault));
    }
    let mut keys = all_differing(was, is, &DRIVE_KEYS);
    let has_same_count = was.namespaces.len() == is.namespaces.len();
    keys.retain(|key| *key != "namespaces" || !has_same_count);
    if keys.is_empty() && faults.is_empty() && was != is {
        keys.push("name");
    }
    faults.extend(keys.into_iter().map(|key| Fault::at_key(key, UNCHANGEABLE).hint(REMEDY)));
    faults
}

/// Returns the remedy for functions that differ.
fn remedy_of_functions(was: &NamespaceSpec, is: &NamespaceSpec) -> &'static str {
    let mut all = was.functions.iter().chain(&is.functions);
    let is_changed =
        |function: &&FunctionSpec| !(was.functions.contains(function) && is.functions.contains(function));
    let changed = all.find(is_changed).map(|function| (function.name(), function.layers().len()));
    match changed {
        Some((name, _)) if name == "cache" => {
            "a cache gets its size when its drive is opened: delete the drive and apply again, its files stay"
        }
        Some((name, _)) if name == "mirror" || name == "replicate" => {
            "its members change by its own orders (`sluice function tell`), and in the configuration before a restart"
        }
        Some((_, layers)) if layers > 0 => {
            "the layers of a function are opened with its drive: delete the drive and apply again, its files stay"
        }
        _ => REMEDY,
    }
}

const UNCHANGEABLE: &str = "this cannot be changed while the drive is there";

const REMEDY: &str = "delete the drive and apply again, its files stay; a drive of the daemon's configuration file is changed there";

fn all_differing(
    was: &impl serde::Serialize,
    is: &impl serde::Serialize,
    keys: &[&'static str],
) -> Vec<&'static str> {
    let (Ok(was), Ok(is)) = (serde_json::to_value(was), serde_json::to_value(is)) else { return Vec::new() };
    keys.iter().filter(|key| was.get(**key) != is.get(**key)).copied().collect()
}

fn differing(
    was: &impl serde::Serialize,
    is: &impl serde::Serialize,
    keys: &[&'static str],
) -> Option<&'static str> {
    all_differing(was, is, keys).first().copied()
}
