//! Records of drives that may have acknowledged writes which no Flush has made durable, one file per drive.
//! Drives whose data is on other controllers, and drives for hosts on the network, have such a record. The
//! record exists before the drive is opened, and is marked clean when the drive is synced and closed in an
//! orderly stop.

use super::{StateFile, create_private, read, remove_if_there};
use crate::listen::make_folder;
use serde::{Deserialize, Serialize};
use sluice_controller::{PowerCounts, Synced};
use sluice_spec::error::ApiError;
use sluice_spec::paths::boot_id;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

/// State of a drive when it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unflushed {
    /// The kernel's boot ID at that time.
    pub boot: Option<String>,
    /// The power identifier that hosts get, in hexadecimal.
    pub power: Option<String>,
    /// Whether the drive was synced when it was closed.
    #[serde(default)]
    pub clean: bool,
    /// NSIDs of namespaces with losses that hosts have not been notified of; zero for all namespaces.
    #[serde(default)]
    pub untold: BTreeSet<u32>,
    /// NSIDs of namespaces that may have such a loss, as long as the doubt lasts.
    #[serde(default)]
    pub doubtful: BTreeSet<u32>,
    /// Power cycles and unsafe shutdowns in the SMART log when the drive is opened.
    #[serde(default)]
    pub power_cycles: u64,
    #[serde(default)]
    pub unsafe_shutdowns: u64,
    /// Controllers that hold the drive's data, with the power identifier of each, in hexadecimal. An entry
    /// without identifier belongs to a controller that gave none or was not connected.
    pub peers: BTreeMap<String, Option<String>>,
}

impl Unflushed {
    /// Returns the record of a drive that had none until now.
    fn begun() -> Self {
        Self { boot: boot_id(), ..Self::default() }
    }

    /// Returns the NSIDs of all namespaces whose losses, certain or possible, hosts must be notified of.
    pub fn owed(&self) -> BTreeSet<u32> {
        &self.untold | &self.doubtful
    }

    pub fn counts(&self) -> PowerCounts {
        PowerCounts { cycles: self.power_cycles, unsafe_shutdowns: self.unsafe_shutdowns }
    }

    pub fn note_counts(&mut self, counts: PowerCounts) {
        (self.power_cycles, self.unsafe_shutdowns) = (counts.cycles, counts.unsafe_shutdowns);
    }

    /// Returns the record of a drive whose file cannot be read. It makes each host get a notification.
    fn unknown() -> Self {
        Self { untold: BTreeSet::from([0]), ..Self::default() }
    }
}

impl StateFile {
    fn unflushed(&self) -> PathBuf {
        self.folder.join("unflushed")
    }

    /// Returns the stored record of a drive. A file that cannot be read counts as a loss.
    pub fn load_unflushed(&self, drive: &str) -> Option<Unflushed> {
        let path = self.unflushed().join(drive);
        match read(&path) {
            Ok(bytes) => Some(serde_json::from_slice(&bytes).unwrap_or_else(|_| Unflushed::unknown())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                tracing::warn!("drive {drive}: cannot read {}: {error}", path.display());
                Some(Unflushed::unknown())
            }
        }
    }

    /// Replaces the stored record of a drive. When this returns, the record survives a power cut.
    pub fn store_unflushed(&self, drive: &str, unflushed: &Unflushed) -> Result<(), ApiError> {
        let folder = self.unflushed();
        make_folder(&folder, 0o700)?;
        let text = serde_json::to_vec(unflushed).expect("plain text");
        // No drive has a name that begins with a dot.
        let new = folder.join(format!(".{drive}"));
        let write = || -> io::Result<()> {
            // Open the folder before the rename: an error after it would leave the outcome unknown.
            let directory = File::open(&folder)?;
            let mut file = create_private(&new)?;
            file.write_all(&text)?;
            file.sync_all()?;
            std::fs::rename(&new, folder.join(drive))?;
            directory.sync_all()?;
            // The folder itself may be new.
            File::open(&self.folder)?.sync_all()
        };
        write().map_err(|error| {
            ApiError::io("store which writes may be unflushed in", &folder, &error)
                .hint("make room on the disk or let the daemon's user write there")
        })
    }

    /// Stores that the drive was synced when it was closed. If the store fails, a later Flush fails without
    /// need, or the next daemon does not notify hosts of a loss. The failure is logged.
    pub fn note_synced(&self, drive: &str, synced: &Synced) {
        let stored = self.load_unflushed(drive);
        if stored.is_none() && synced.unreported.is_empty() {
            return;
        }
        let mut unflushed = stored.unwrap_or_else(Unflushed::begun);
        unflushed.untold = synced.unreported.iter().copied().collect();
        unflushed.doubtful = BTreeSet::new();
        unflushed.note_counts(synced.power);
        if synced.is_durable {
            (unflushed.clean, unflushed.peers) = (true, BTreeMap::new());
        }
        if let Err(problem) = self.store_unflushed(drive, &unflushed) {
            tracing::warn!("drive {drive}: {problem}");
        }
    }

    /// Stores that writes of namespaces may be lost while hosts are connected; the next daemon notifies the
    /// hosts. When this returns, the record survives a power cut.
    pub fn note_losses(&self, drive: &str, nsids: &[u32]) -> Result<(), ApiError> {
        let mut unflushed = self.load_unflushed(drive).unwrap_or_else(Unflushed::begun);
        unflushed.untold.extend(nsids);
        self.store_unflushed(drive, &unflushed)
    }

    /// Stores that these namespaces, and no others, may have such losses. When this returns, the record
    /// survives a power cut.
    pub fn note_doubts(&self, drive: &str, nsids: &BTreeSet<u32>) -> Result<(), ApiError> {
        let mut unflushed = self.load_unflushed(drive).unwrap_or_else(Unflushed::begun);
        unflushed.doubtful.clone_from(nsids);
        self.store_unflushed(drive, &unflushed)
    }

    /// Restores the former record of a drive that could not be opened. If the store fails, a later Flush
    /// fails without need.
    pub fn restore_unflushed(&self, drive: &str, before: Option<&Unflushed>) {
        let Some(before) = before else { return self.forget_unflushed(drive) };
        if let Err(problem) = self.store_unflushed(drive, before) {
            tracing::warn!("drive {drive}: {problem}");
        }
    }

    /// Removes the record of a deleted drive.
    pub fn forget_unflushed(&self, drive: &str) {
        let path = self.unflushed().join(drive);
        if let Err(error) = remove_if_there(&path) {
            tracing::warn!("{} stays: {error}", path.display());
        }
    }
}
