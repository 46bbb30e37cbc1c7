//! Changes that hosts made to drives, one file per drive. Hosts of one drive fill neither the file of another
//! drive nor the state file of the operator.
//!
//! The state file lists the drives that have such a file. A listed file that is missing is a loss. A file
//! that is not listed is left from an interrupted change.

use super::replace::{Failure, Replacer, Version};
use super::{
    Formatted, Formatting, Pooled, Reserved, Sanitized, Saved, StateFile, Uncorrectable, read, text,
};
use serde::{Deserialize, Serialize};
use sluice_spec::error::ApiError;
use std::collections::BTreeMap;
use std::io;

/// Suffix of the name of such a file.
const SUFFIX: &str = ".state";

/// Changes that hosts made to one drive and that outlive the daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostState {
    /// Namespaces whose block size a host changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub formatted: Vec<Formatted>,
    /// Namespaces whose format a host started and that has not ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub formatting: Vec<Formatting>,
    /// Namespaces with blocks that a host marked by Write Uncorrectable.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uncorrectable: Vec<Uncorrectable>,
    /// The sanitize operation that a host started last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sanitized: Vec<Sanitized>,
    /// Reservations that persist through power loss.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reserved: Vec<Reserved>,
    /// Namespaces created by hosts, and attachments of namespaces.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<Pooled>,
}

impl HostState {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Saved {
    /// Moves the records of hosts out of a state of the single-file format, and returns them by drive.
    pub fn take_hosts(&mut self) -> BTreeMap<String, HostState> {
        let mut hosts: BTreeMap<String, HostState> = BTreeMap::new();
        for it in self.formatted.drain(..) {
            hosts.entry(it.drive.clone()).or_default().formatted.push(it);
        }
        for it in self.formatting.drain(..) {
            hosts.entry(it.drive.clone()).or_default().formatting.push(it);
        }
        for it in self.uncorrectable.drain(..) {
            hosts.entry(it.drive.clone()).or_default().uncorrectable.push(it);
        }
        for it in self.sanitized.drain(..) {
            hosts.entry(it.drive.clone()).or_default().sanitized.push(it);
        }
        for it in self.reserved.drain(..) {
            hosts.entry(it.drive.clone()).or_default().reserved.push(it);
        }
        for it in self.pools.drain(..) {
            hosts.entry(it.drive.clone()).or_default().pools.push(it);
        }
        hosts
    }
}

/// The file of one drive's hosts.
#[derive(Debug)]
pub struct HostFile {
    drive: String,
    replacer: Replacer,
}

impl HostFile {
    /// Returns the state that was stored last; none if the file does not exist.
    ///
    /// # Errors
    /// The file cannot be used; the error describes why, and how to proceed.
    pub fn load(&mut self) -> Result<Option<HostState>, ApiError> {
        let current = self.replacer.current.clone();
        let found = match read(&current) {
            Ok(bytes) => text::decode_hosts(&bytes).map(|state| (Version::of(&bytes), Some(state))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok((Version::None, None)),
            Err(error) => Err(error.to_string()),
        };
        match found {
            Ok((version, state)) => {
                self.replacer.found(version);
                Ok(state)
            }
            Err(why) => Err(self.damaged(&why)),
        }
    }

    /// Replaces the stored state, as [`StateFile::store`] does. With `owed`, the new state applies even if it
    /// cannot be stored now.
    ///
    /// # Errors
    /// Same as [`StateFile::store`].
    pub fn store(&mut self, state: &HostState, owed: bool) -> Result<(), ApiError> {
        let (drive, current) = (&self.drive, &self.replacer.current);
        let what = format!("store what hosts of drive `{drive}` did in");
        let current = current.clone();
        self.replacer.put(&text::encode_hosts(state), owed).map_err(|failure| match failure {
            Failure::Unchanged(error) => ApiError::io(&what, &current, &error)
                .hint("nothing was changed; make room on the disk or let the daemon's user write there"),
            Failure::Unknown(error) => ApiError::io(&what, &current, &error).hint(
                "this change was not made, but a restart may make it: mend the disk of the state folder before the \
                 daemon is restarted; it tries each second",
            ),
        })
    }

    pub fn is_settled(&self) -> bool {
        self.replacer.is_settled()
    }

    /// Removes the file, and the files that were created beside it. The state file must not list it any more.
    pub fn remove(&mut self) {
        if let Err(error) = self.replacer.remove() {
            tracing::warn!(
                "the file {} of a drive that is gone may stay: {error}",
                self.replacer.current.display()
            );
        }
    }

    /// Returns the error for a missing file that the state file lists.
    pub fn missing(&mut self) -> ApiError {
        self.damaged("it is missing")
    }

    fn damaged(&mut self, why: &str) -> ApiError {
        self.replacer.lost();
        let (drive, current, previous) =
            (&self.drive, self.replacer.current.display(), self.replacer.previous.display());
        let is_whole = |bytes: Vec<u8>| text::decode_hosts(&bytes).is_ok();
        let bring = match read(&self.replacer.previous).is_ok_and(is_whole) {
            true => format!(
                "the version before the last change is whole; to go back to it: mv {previous} {current}"
            ),
            false => "restore it from a backup".to_owned(),
        };
        ApiError::internal(format!(
            "the file {current} cannot be used: {why}. Reservations and all else that hosts left at drive `{drive}` are \
             not known"
        ))
        .hint(format!(
            "{bring}, and restart; to go on without it, `sluice drive open {drive} --adopt`"
        ))
    }
}

impl StateFile {
    /// Returns the file of a drive's hosts, whether or not it exists.
    pub fn host_file(&self, drive: &str) -> HostFile {
        let name = format!("{drive}{SUFFIX}");
        HostFile { drive: drive.to_owned(), replacer: self.replacer_of_hosts(&name) }
    }

    /// Returns the drives with a file of their hosts' changes.
    pub fn drives_with_host_files(&self) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.hosts_folder()) else { return Vec::new() };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        names.filter_map(|name| name.strip_suffix(SUFFIX).map(str::to_owned)).collect()
    }

    /// Returns whether a file holds any record, or cannot be read.
    pub(super) fn has_host_records(&self) -> bool {
        let is_used = |drive: String| match self.host_file(&drive).load() {
            Ok(state) => state.is_some_and(|state| !state.is_empty()),
            Err(_) => true,
        };
        self.drives_with_host_files().into_iter().any(is_used)
    }
}
