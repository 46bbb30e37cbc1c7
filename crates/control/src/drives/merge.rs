//! Merges the declared drives of the configuration with the stored state at the start.

use super::limits::limits_of;
use super::{Origin, limits};
use crate::config::Config;
use crate::state::{Arranged, Classified, Formatted, HostState, Limited, Pooled, Replaced, Resized, Saved};
use sluice_functions::QosLimits;
use sluice_spec::error::ApiError;
use sluice_spec::size::Size;
use sluice_spec::{DriveSpec, Layout, TargetSpec};

/// Returns the drives to open, the declared ones first.
///
/// Two drives of one name are refused: neither may silently replace the other. A size that was set through
/// the API applies as long as the configuration has the same size as then.
pub(super) fn merge(config: &Config, saved: &mut Saved) -> Result<Vec<(DriveSpec, Origin)>, ApiError> {
    check_names(config, saved)?;
    saved.resized.retain(|resized| {
        let counts = still_counts(config, resized);
        if !counts {
            tell(config, resized);
        }
        counts
    });
    saved.arranged.retain(|arranged| {
        let (now, drive) = (layout(config, arranged), &arranged.drive);
        let counts = now.as_ref() == Some(&arranged.declared);
        if now.is_some() && !counts {
            let file = config.file.display();
            tracing::info!("{file} has a new word on the functions of drive {drive}: it replaces what was said through the API");
        }
        counts
    });
    saved.replaced.retain(|replaced| {
        let now = declared_target(config, replaced);
        let counts = now.as_ref() == Some(&replaced.declared);
        if now.is_some() && !counts {
            let (file, nsid, drive) = (config.file.display(), replaced.nsid, &replaced.drive);
            tracing::warn!("{file} has another target for namespace {nsid} of drive {drive}: it is used in place of the one that was put there through the API");
        }
        counts
    });
    saved.limited.retain(|limited| {
        let (now, drive) = (declared_limits(config, limited), &limited.drive);
        let counts = now == Some(limited.declared);
        if now.is_some() && !counts {
            let file = config.file.display();
            tracing::info!(
                "{file} has new limits for drive {drive}: they replace those given through the API"
            );
        }
        counts
    });
    saved.classified.retain(|classified| is_declared(config, &classified.drive));
    forget_classifiers(config, saved);
    let declared = declared(config, saved).into_iter().map(|drive| (drive, Origin::Declared));
    let created = saved.drives.iter().map(|drive| (drive.clone(), Origin::Created));
    Ok(declared.chain(created).collect())
}

/// Removes block sizes set by hosts where the configuration has changed since.
pub(super) fn forget_formats(config: &Config, hosted: &mut HostState) {
    let pools = std::mem::take(&mut hosted.pools);
    hosted.formatted.retain(|formatted| formatted_still_counts(config, &pools, formatted));
    hosted.pools = pools;
}

/// Removes classifiers set through the API where the configuration has changed since.
pub(super) fn forget_classifiers(config: &Config, saved: &mut Saved) {
    saved.classified.retain(|classified| {
        let counts = !is_declared(config, &classified.drive) || is_unchanged(config, classified);
        if !counts {
            tracing::info!(
                "{} has a new word on the classifier of drive {}: it replaces what was said through the API",
                config.file.display(),
                classified.drive
            );
        }
        counts
    });
}

fn is_declared(config: &Config, name: &str) -> bool {
    config.drives.iter().any(|drive| drive.name == name)
}

/// Checks that no drive is both declared and created.
pub(super) fn check_names(config: &Config, saved: &Saved) -> Result<(), ApiError> {
    let twice = saved.drives.iter().find(|drive| is_declared(config, &drive.name));
    twice.map_or(Ok(()), |twice| Err(clash(config, &twice.name)))
}

/// Returns the declared drives, with the sizes, functions and classifiers that were set since.
pub(super) fn declared(config: &Config, saved: &Saved) -> Vec<DriveSpec> {
    let counting: Vec<&Resized> =
        saved.resized.iter().filter(|resized| still_counts(config, resized)).collect();
    let classified = |drive: &DriveSpec| {
        saved.classified.iter().find(|it| it.drive == drive.name && is_unchanged(config, it))
    };
    let one = |drive: &DriveSpec| {
        let mut drive = with_sizes(with_targets(drive.clone(), config, saved), &counting);
        with_layouts(&mut drive, config, saved);
        with_limits(&mut drive, config, saved);
        if let Some(classified) = classified(&drive) {
            drive.classifier.clone_from(&classified.classifier);
        }
        drive
    };
    config.drives.iter().map(one).collect()
}

/// Returns whether the configuration has the same classifier for the drive as when another was attached.
fn is_unchanged(config: &Config, classified: &Classified) -> bool {
    let drive = config.drives.iter().find(|drive| drive.name == classified.drive);
    drive.is_some_and(|drive| drive.classifier == classified.declared)
}

fn clash(config: &Config, name: &str) -> ApiError {
    ApiError::conflict(format!(
        "{} declares the drive `{name}`, and another of that name was created through the API",
        config.file.display()
    ))
    .hint(format!(
        "rename the declared one; or start without it, run `sluice drive delete {name}`, and declare it again"
    ))
}

/// Returns the layout of functions in the configuration, for a namespace that was changed through the
/// API. None if the namespace is no longer declared.
fn layout(config: &Config, arranged: &Arranged) -> Option<Layout> {
    let drive = config.drives.iter().find(|drive| drive.name == arranged.drive)?;
    Some(drive.namespace(arranged.nsid)?.layout())
}

fn with_layouts(drive: &mut DriveSpec, config: &Config, saved: &Saved) {
    for arranged in &saved.arranged {
        if arranged.drive == drive.name
            && layout(config, arranged).as_ref() == Some(&arranged.declared)
            && let Some(namespace) = drive.namespace_mut(arranged.nsid)
        {
            namespace.set_layout(arranged.layout.clone());
        }
    }
}

/// Returns the target in the configuration, for a namespace whose target was replaced through the API. None if the
/// namespace is no longer declared.
fn declared_target(config: &Config, replaced: &Replaced) -> Option<TargetSpec> {
    let drive = config.drives.iter().find(|drive| drive.name == replaced.drive)?;
    Some(drive.namespace(replaced.nsid)?.target_spec())
}

fn with_targets(mut drive: DriveSpec, config: &Config, saved: &Saved) -> DriveSpec {
    for replaced in &saved.replaced {
        if replaced.drive == drive.name
            && declared_target(config, replaced).as_ref() == Some(&replaced.declared)
            && let Some(namespace) = drive.namespace_mut(replaced.nsid)
        {
            namespace.set_target(replaced.target.clone());
        }
    }
    drive
}

/// Returns the limits in the configuration, for a namespace whose limits were changed through the API.
fn declared_limits(config: &Config, limited: &Limited) -> Option<QosLimits> {
    let drive = config.drives.iter().find(|drive| drive.name == limited.drive)?;
    limits_of(drive.namespace(limited.nsid)?).nth(limited.number.checked_sub(1)?)
}

fn with_limits(drive: &mut DriveSpec, config: &Config, saved: &Saved) {
    for limited in &saved.limited {
        if limited.drive == drive.name && declared_limits(config, limited) == Some(limited.declared) {
            limits::set(drive, limited.nsid, limited.number, limited.limits);
        }
    }
}

/// Returns the size in the configuration, for a namespace that was resized through the API. None if the
/// namespace is no longer declared.
fn named_size(config: &Config, resized: &Resized) -> Option<Option<Size>> {
    let drive = config.drives.iter().find(|drive| drive.name == resized.drive)?;
    Some(drive.namespace(resized.nsid)?.size)
}

fn still_counts(config: &Config, resized: &Resized) -> bool {
    named_size(config, resized) == Some(resized.declared)
}

/// Returns whether a block size set by a host still applies. It does if the configuration has the same block
/// size as then, or does not declare the drive, which then was created through the API.
fn formatted_still_counts(config: &Config, pools: &[Pooled], formatted: &Formatted) -> bool {
    let Some(drive) = config.drives.iter().find(|drive| drive.name == formatted.drive) else { return true };
    let mut created = pools.iter().filter(|it| it.drive == formatted.drive);
    if created.any(|pooled| pooled.namespace(formatted.nsid).is_some()) {
        return true;
    }
    let counts = drive.namespace(formatted.nsid).is_some_and(|now| now.block_size == formatted.declared);
    if !counts {
        tracing::warn!(
            "{} has a new block size for namespace {} of drive {}: it replaces the {} that a host formatted it with",
            config.file.display(),
            formatted.nsid,
            formatted.drive,
            formatted.block_size
        );
    }
    counts
}

/// Logs that the configuration replaces a size, if it still declares the namespace.
fn tell(config: &Config, resized: &Resized) {
    if named_size(config, resized).is_some() {
        tracing::info!(
            "{} has a new size for namespace {} of drive {}: it replaces the {} given through the API",
            config.file.display(),
            resized.nsid,
            resized.drive,
            resized.size
        );
    }
}

fn with_sizes(mut drive: DriveSpec, given: &[&Resized]) -> DriveSpec {
    for resized in given {
        if resized.drive == drive.name
            && let Some(namespace) = drive.namespace_mut(resized.nsid)
        {
            namespace.size = Some(resized.size);
        }
    }
    drive
}
