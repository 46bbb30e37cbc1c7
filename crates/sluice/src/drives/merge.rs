//! What the configuration declares and what the state file remembers, put together at the start.

use super::Origin;
use crate::config::Config;
use crate::problem::Problem;
use crate::spec::DriveSpec;
use crate::state::{Resized, Saved};

/// The drives there shall be, the declared ones first.
///
/// Two drives of one name are refused: neither may silently stand for the other. A size that was given
/// through the API counts for as long as the configuration says what it said then.
pub(super) fn merge(config: &Config, saved: &mut Saved) -> Result<Vec<(DriveSpec, Origin)>, Problem> {
    if let Some(twice) = saved.drives.iter().find(|drive| config.drives.iter().any(|d| d.name == drive.name))
    {
        return Err(clash(config, &twice.name));
    }
    saved.resized.retain(|resized| still_counts(config, resized));
    let declared = config.drives.iter().map(|drive| (with_sizes(drive.clone(), saved), Origin::Declared));
    let created = saved.drives.iter().map(|drive| (drive.clone(), Origin::Created));
    Ok(declared.chain(created).collect())
}

fn clash(config: &Config, name: &str) -> Problem {
    Problem::conflict(format!(
        "{} declares the drive `{name}`, and another of that name was created through the API",
        config.file.display()
    ))
    .hint(format!(
        "rename the declared one; or start without it, run `sluice drive delete {name}`, and declare it again"
    ))
}

fn still_counts(config: &Config, resized: &Resized) -> bool {
    let drive = config.drives.iter().find(|drive| drive.name == resized.drive);
    let Some(namespace) = drive.and_then(|drive| drive.namespace(resized.nsid)) else { return false };
    if namespace.size != resized.declared {
        tracing::info!(
            "{} has a new size for namespace {} of drive {}: it replaces the {} given through the API",
            config.file.display(),
            resized.nsid,
            resized.drive,
            resized.size
        );
    }
    namespace.size == resized.declared
}

fn with_sizes(mut drive: DriveSpec, saved: &Saved) -> DriveSpec {
    for resized in &saved.resized {
        if resized.drive == drive.name
            && let Some(namespace) = drive.namespace_mut(resized.nsid)
        {
            namespace.size = Some(resized.size);
        }
    }
    drive
}
