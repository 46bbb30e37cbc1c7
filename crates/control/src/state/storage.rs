//! Storage that drives have opened, in the format of the state file.

use super::Saved;
use serde::{Deserialize, Serialize};

/// Storage of all drives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Storage {
    /// Whether no state was stored yet when these records began.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub began_empty: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub known: Vec<KnownStorage>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub identified: Vec<Identified>,
}

/// A file, block device or remote namespace at a location that a drive names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownStorage {
    pub drive: String,
    /// Name of the location; of a file, its path.
    pub location: String,
    /// Inode and birth time, or the permanent name of a device. None if a daemon without such records may
    /// have opened the storage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Device number of the storage, or of the device that holds it. The number may change at the next boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Random identity. None for storage older than these records: the identifiers of its namespace do not
    /// contain it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
}

/// Identities of storage from which the identifiers of a namespace are computed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identified {
    pub drive: String,
    pub nsid: u32,
    pub identities: Vec<String>,
    /// Identities of the storage that stands for the one of `identities` since a replacement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced_by: Option<Vec<String>>,
}

impl Saved {
    /// Returns the record of the storage at a location of a drive.
    pub fn known_storage(&self, drive: &str, location: &str) -> Option<&KnownStorage> {
        self.storage.as_ref()?.known.iter().find(|it| it.drive == drive && it.location == location)
    }

    pub fn identities(&self, drive: &str, nsid: u32) -> Option<&[String]> {
        self.identified(drive, nsid).map(|it| it.identities.as_slice())
    }

    /// Returns the record of the storage behind a namespace.
    pub fn identified(&self, drive: &str, nsid: u32) -> Option<&Identified> {
        self.storage.as_ref()?.identified.iter().find(|it| it.drive == drive && it.nsid == nsid)
    }

    /// Returns all records of a drive's storage.
    pub fn storage_of(&self, drive: &str) -> Storage {
        let Some(storage) = &self.storage else { return Storage::default() };
        Storage {
            began_empty: storage.began_empty,
            known: storage.known.iter().filter(|it| it.drive == drive).cloned().collect(),
            identified: storage.identified.iter().filter(|it| it.drive == drive).cloned().collect(),
        }
    }

    /// Removes all records of a drive's storage.
    pub fn forget_storage(&mut self, drive: &str) {
        if let Some(storage) = &mut self.storage {
            storage.known.retain(|it| it.drive != drive);
            storage.identified.retain(|it| it.drive != drive);
        }
    }

    /// Adds records of storage; each replaces the former record of the same location or namespace.
    pub fn note_storage(&mut self, new: &Storage) {
        if new.known.is_empty() && self.storage.is_none() {
            return;
        }
        let storage = self.storage.get_or_insert_default();
        for known in &new.known {
            let is_same = |it: &&mut KnownStorage| it.drive == known.drive && it.location == known.location;
            match storage.known.iter_mut().find(is_same) {
                Some(former) => former.clone_from(known),
                None => storage.known.push(known.clone()),
            }
        }
        for identified in &new.identified {
            let is_same = |it: &&mut Identified| it.drive == identified.drive && it.nsid == identified.nsid;
            match storage.identified.iter_mut().find(is_same) {
                Some(former) => former.clone_from(identified),
                None => storage.identified.push(identified.clone()),
            }
        }
    }
}
