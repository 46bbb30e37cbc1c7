//! Reload of the configuration file: drives are added and removed, and classifiers replaced. All other
//! changes need a restart.

use super::storage::Why;
use super::{DRIVES_MAX, Drives, Entry, Origin, lock, merge, no_room, persist};
use crate::config::{Config, load};
use serde::{Deserialize, Serialize};
use sluice_spec::DriveSpec;
use sluice_spec::error::ApiError;
use std::path::Path;
use utoipa::ToSchema;

/// Result of a reload.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Reloaded {
    /// Drives that are newly declared. A drive that cannot be opened is also among the refused.
    pub added: Vec<String>,
    /// Drives that are no longer declared.
    pub removed: Vec<String>,
    /// Drives whose classifier was replaced, attached or detached.
    #[serde(default)]
    pub classified: Vec<String>,
    /// Changes that were not made, each with its reason.
    pub refused: Vec<ApiError>,
}

impl Reloaded {
    /// Logs the result, one line for each refused change.
    pub fn log(&self) {
        let list = |names: &[String]| match names {
            [] => "none".to_owned(),
            names => names.join(", "),
        };
        tracing::info!(
            "reloaded; drives added: {}; removed: {}; classified anew: {}",
            list(&self.added),
            list(&self.removed),
            list(&self.classified)
        );
        for problem in &self.refused {
            tracing::warn!("not reloaded: {}", problem.in_one_line());
        }
    }
}

impl Drives {
    /// Reads the configuration file again, opens newly declared drives, ends drives that are no longer
    /// declared, and replaces classifiers. Any other difference is refused, and needs a restart.
    ///
    /// # Errors
    /// There is no file, or the file has a fault. Nothing is changed then.
    pub fn reload(&self) -> Result<Reloaded, ApiError> {
        if self.config_file == Path::new("") {
            return Err(ApiError::conflict("the daemon was started without a configuration file")
                .hint("drives are created and deleted with `sluice drive` instead"));
        }
        self.apply(&load(&self.config_file)?)
    }

    pub(super) fn apply(&self, config: &Config) -> Result<Reloaded, ApiError> {
        let _only = lock(&self.reloads);
        self.may_change()?;
        let declared = self.take_declared(config)?;
        let mut outcome = Reloaded::default();
        let tables = [
            ("daemon", self.is_as_started(config)),
            ("tcp", self.tcp == config.tcp),
            ("metrics", self.metrics == config.metrics),
            ("page", self.page == config.page),
        ];
        outcome.refused.extend(self.reload_groups(config));
        outcome.refused.extend(self.reload_shared(config));
        outcome.refused.extend(tables.iter().filter(|(_, as_started)| !as_started).map(|(table, _)| {
            ApiError::conflict(format!("[{table}] is not what it was"))
                .hint("restart the daemon to apply that")
        }));
        // Removed drives go first. Names stay unique either way, but new drives may need the files and serial
        // numbers of old ones.
        let gone = |entry: &&Entry| {
            entry.origin == Origin::Declared && !declared.iter().any(|spec| spec.name == entry.spec.name)
        };
        let gone: Vec<String> =
            lock(&self.entries).values().filter(gone).map(|entry| entry.spec.name.clone()).collect();
        for name in gone {
            match self.withdraw(&name) {
                Ok(()) => outcome.removed.push(name),
                Err(problem) => outcome.refused.push(problem),
            }
        }
        for spec in declared {
            self.declare(spec, &mut outcome);
        }
        outcome.refused.extend(self.end_groups());
        Ok(outcome)
    }

    /// Replaces the list of declared drives, and returns their specifications with the changes that were made
    /// through the API. No drive is created meanwhile.
    fn take_declared(&self, config: &Config) -> Result<Vec<DriveSpec>, ApiError> {
        let mut known = lock(&self.declared);
        merge::check_names(config, &self.saved())?;
        // A record that the file has overruled would else apply again if the file returns to its former text.
        self.store(|saved| merge::forget_classifiers(config, saved))?;
        known.clone_from(&config.drives);
        Ok(merge::declared(config, &self.saved()))
    }

    /// Returns whether `[daemon]` is unchanged. The API socket of the command line still has precedence.
    fn is_as_started(&self, config: &Config) -> bool {
        let mut settings = config.daemon.clone();
        settings.api.clone_from(&self.settings.api);
        settings == self.settings
    }

    /// Ends a drive that is no longer declared, and removes its records. A drive with a client is refused.
    fn withdraw(&self, name: &str) -> Result<(), ApiError> {
        let _only = self.change(name)?;
        let entry = self.entry(name)?;
        if let Ok(running) = &entry.running
            && running.status()?.connected
        {
            return Err(ApiError::conflict(format!(
                "drive `{name}` is no longer declared, but has a client, which would not survive its end"
            ))
            .hint("shut the virtual machine down and reload again"));
        }
        self.store_without_hosted(name, |saved| {
            saved.resized.retain(|resized| resized.drive != *name);
            saved.classified.retain(|classified| classified.drive != *name);
            saved.limited.retain(|limited| limited.drive != *name);
            saved.arranged.retain(|arranged| arranged.drive != *name);
            saved.replaced.retain(|replaced| replaced.drive != *name);
            persist::forget(saved, name);
        })?;
        tracing::info!("drive {name} is no longer declared");
        self.end(entry)
    }

    /// Opens a drive if it is new, else checks whether its declaration is unchanged.
    fn declare(&self, spec: DriveSpec, outcome: &mut Reloaded) {
        let name = spec.name.clone();
        let _only = match self.change(&name) {
            Ok(only) => only,
            Err(problem) => return outcome.refused.push(problem),
        };
        match self.entry(&name).ok() {
            Some(entry) if entry.spec == spec => {
                let changed = entry.running.is_ok().then(|| self.check_storage(&spec, None));
                outcome.refused.extend(changed.and_then(Result::err));
            }
            Some(entry) if is_classified_anew(&entry.spec, &spec) => match self.classify_anew(&entry, spec) {
                Ok(()) => outcome.classified.push(name),
                Err(problem) => outcome.refused.push(problem.about(&format!("drive `{name}`"))),
            },
            Some(_) => outcome.refused.push(
                ApiError::conflict(format!("drive `{name}` is not declared as it was")).hint(
                    "restart the daemon to apply that; `sluice drive resize` gives a new size, `sluice drive limit` new limits, and \
                     `sluice function` moves, attaches and detaches functions",
                ),
            ),
            None => self.open_declared(spec, outcome),
        }
    }

    fn open_declared(&self, spec: DriveSpec, outcome: &mut Reloaded) {
        let name = spec.name.clone();
        let is_full = || lock(&self.entries).len() >= DRIVES_MAX;
        let reserved = match self.reserve_declared(&spec) {
            Ok(reserved) => reserved,
            Err(_) if is_full() => return outcome.refused.push(no_room(&name)),
            Err(problem) => return outcome.refused.push(problem),
        };
        let entry = self.open_entry(spec, Origin::Declared, reserved.reactor);
        // As at the start, a drive that failed is listed as failed, and can be opened again.
        outcome.refused.extend(entry.running.as_ref().err().cloned());
        lock(&self.entries).insert(name.clone(), entry);
        outcome.added.push(name);
    }

    /// Replaces the classifier of a drive by that of the file, or by none. A drive that is not open is
    /// opened, since its former classifier may have been the reason.
    fn classify_anew(&self, entry: &Entry, spec: DriveSpec) -> Result<(), ApiError> {
        if entry.running.is_ok() {
            return self.exchange_classifier(entry, spec.classifier, false, |_| ());
        }
        let running = self.try_again(&spec, entry.reactor, Why::KNOWN);
        let opened = running.clone().map(drop);
        self.amend(&entry.spec.name, |entry| (entry.spec, entry.running) = (spec, running));
        opened
    }
}

/// Returns whether a drive has another classifier and is the same in everything else.
fn is_classified_anew(was: &DriveSpec, is: &DriveSpec) -> bool {
    let alike = DriveSpec { classifier: is.classifier.clone(), ..was.clone() };
    was.classifier != is.classifier && alike == *is
}

#[cfg(test)]
mod tests;
