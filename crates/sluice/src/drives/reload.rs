//! The configuration file, read again: drives and their classifiers come and go with it, everything else waits
//! for a restart.

use super::storage::Why;
use super::{DRIVES_MAX, Drives, Entry, Origin, kept, lock, merge, no_room};
use crate::config::{Config, load};
use crate::problem::Problem;
use crate::spec::DriveSpec;
use serde::{Deserialize, Serialize};
use std::path::Path;
use utoipa::ToSchema;

/// What became of the differences between the file and the daemon.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Reloaded {
    /// Drives that are declared now; one that cannot be opened is also among the refused.
    pub added: Vec<String>,
    /// Drives that no longer are.
    pub removed: Vec<String>,
    /// Drives that have another classifier now, or none any more.
    #[serde(default)]
    pub classified: Vec<String>,
    /// What stays as it was.
    pub refused: Vec<Problem>,
}

impl Reloaded {
    /// Says so in the log, line by line.
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
    /// Reads the configuration file again, opens the drives that it declares now, ends those that it no longer
    /// does, and puts their classifiers in the place of others. What differs in any other way is refused, and
    /// stays as it is until a restart.
    ///
    /// # Errors
    /// If there is no file, or something is wrong with it. Nothing has changed then.
    pub fn reload(&self) -> Result<Reloaded, Problem> {
        if self.config_file == Path::new("") {
            return Err(Problem::conflict("the daemon was started without a configuration file")
                .hint("drives are created and deleted with `sluice drive` instead"));
        }
        self.apply(&load(&self.config_file)?)
    }

    pub(super) fn apply(&self, config: &Config) -> Result<Reloaded, Problem> {
        let _only = self.change()?;
        merge::check_names(config, &self.saved())?;
        // Else the classifiers of which the file has a newer word would be back when it says again what it said then.
        self.store(|saved| merge::forget_classifiers(config, saved))?;
        lock(&self.declared).clone_from(&config.drives);
        let declared = merge::declared(config, &self.saved());
        let mut outcome = Reloaded::default();
        let tables = [("daemon", self.is_as_started(config)), ("tcp", self.tcp == config.tcp)];
        outcome.refused.extend(tables.iter().filter(|(_, as_started)| !as_started).map(|(table, _)| {
            Problem::conflict(format!("[{table}] is not what it was"))
                .hint("restart the daemon to apply that")
        }));
        // First those that go: their names are taken already, but their files and serials may be wanted.
        let gone = |entry: &&Entry| {
            entry.origin == Origin::Declared && !declared.iter().any(|spec| spec.name == entry.spec.name)
        };
        let gone: Vec<Entry> = lock(&self.entries).values().filter(gone).cloned().collect();
        for entry in gone {
            match self.withdraw(&entry) {
                Ok(()) => outcome.removed.push(entry.spec.name),
                Err(problem) => outcome.refused.push(problem),
            }
        }
        for spec in declared {
            self.declare(spec, &mut outcome);
        }
        Ok(outcome)
    }

    /// Whether `[daemon]` says what it said; the command line's word for the API's socket counts still.
    fn is_as_started(&self, config: &Config) -> bool {
        let mut settings = config.daemon.clone();
        settings.api.clone_from(&self.settings.api);
        settings == self.settings
    }

    /// Ends a drive that is no longer declared, and forgets its sizes. Not one with a client.
    fn withdraw(&self, entry: &Entry) -> Result<(), Problem> {
        let name = &entry.spec.name;
        if let Ok(running) = &entry.running
            && running.status()?.connected
        {
            return Err(Problem::conflict(format!(
                "drive `{name}` is no longer declared, but has a client, which would not survive its end"
            ))
            .hint("shut the virtual machine down and reload again"));
        }
        self.store(|saved| {
            saved.resized.retain(|resized| resized.drive != *name);
            saved.classified.retain(|classified| classified.drive != *name);
            saved.arranged.retain(|arranged| arranged.drive != *name);
            kept::forget(saved, name);
        })?;
        tracing::info!("drive {name} is no longer declared");
        self.end(entry.clone())
    }

    /// Opens a drive if it is new, and sees whether it is what it was if not.
    fn declare(&self, spec: DriveSpec, outcome: &mut Reloaded) {
        let name = spec.name.clone();
        let (known, full) = {
            let entries = lock(&self.entries);
            (entries.get(&name).cloned(), entries.len() >= DRIVES_MAX)
        };
        match known {
            Some(entry) if entry.spec == spec => {
                let changed = entry.running.is_ok().then(|| self.check_storage(&spec, None));
                outcome.refused.extend(changed.and_then(Result::err));
            }
            Some(entry) if is_classified_anew(&entry.spec, &spec) => match self.classify_anew(&entry, spec) {
                Ok(()) => outcome.classified.push(name),
                Err(problem) => outcome.refused.push(problem.about(&format!("drive `{name}`"))),
            },
            Some(_) => outcome.refused.push(
                Problem::conflict(format!("drive `{name}` is not declared as it was")).hint(
                    "restart the daemon to apply that; `sluice drive resize` gives a new size, and \
                     `sluice function` moves, attaches and detaches functions",
                ),
            ),
            None if self.is_coming(&name) => outcome.refused.push(super::coming::still_coming(&name)),
            None if full => outcome.refused.push(no_room(&name)),
            None => {
                let reactor = self.place(&spec, &[]);
                let entry = self.open_entry(spec, Origin::Declared, reactor);
                // Like at the start it is there, as failed, and can be tried again.
                outcome.refused.extend(entry.running.as_ref().err().cloned());
                lock(&self.entries).insert(name.clone(), entry);
                outcome.added.push(name);
            }
        }
    }

    /// Gives a drive the classifier that the file names now, or none. One that could not be opened, perhaps
    /// for its classifier, is tried again.
    fn classify_anew(&self, entry: &Entry, spec: DriveSpec) -> Result<(), Problem> {
        if entry.running.is_ok() {
            return self.exchange_classifier(entry, spec.classifier, false, |_| ());
        }
        let running = self.try_again(&spec, entry.reactor, Why::KNOWN);
        let opened = running.clone().map(drop);
        self.amend(&entry.spec.name, |entry| (entry.spec, entry.running) = (spec, running));
        opened
    }
}

/// Whether a drive has another classifier and is the same in everything else.
fn is_classified_anew(was: &DriveSpec, is: &DriveSpec) -> bool {
    let alike = DriveSpec { classifier: is.classifier.clone(), ..was.clone() };
    was.classifier != is.classifier && alike == *is
}
