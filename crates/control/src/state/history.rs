//! Persistent events of drives, one file per drive. They change with every reset of a guest; the state file
//! does not.

use super::{StateFile, create_private, read, remove_if_there};
use crate::listen::make_folder;
use sluice_controller::PersistentEventRecord;
use sluice_spec::error::ApiError;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

/// First bytes of each file.
const MAGIC: &[u8] = b"sluice history 1\n";

impl StateFile {
    fn histories(&self) -> PathBuf {
        self.folder.join("history")
    }

    /// Returns the stored events of a drive. A file that cannot be used is reported in the log, and the next
    /// store replaces it. It is no reason to refuse a drive.
    pub fn load_history(&self, drive: &str) -> PersistentEventRecord {
        let path = self.histories().join(drive);
        let bytes = match read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return PersistentEventRecord::default(),
            Err(error) => {
                tracing::warn!("drive {drive}: cannot read its history {}: {error}", path.display());
                return PersistentEventRecord::default();
            }
        };
        let events = bytes.strip_prefix(MAGIC).map(<[u8]>::to_vec);
        events.and_then(PersistentEventRecord::new).unwrap_or_else(|| {
            tracing::warn!("drive {drive}: {} is no history of a drive; it begins anew", path.display());
            PersistentEventRecord::default()
        })
    }

    /// Replaces the stored events of a drive. When this returns, the events survive a power cut.
    pub fn store_history(&self, drive: &str, record: &PersistentEventRecord) -> Result<(), ApiError> {
        let folder = self.histories();
        make_folder(&folder, 0o700)?;
        // No drive has a name that begins with a dot.
        let new = folder.join(format!(".{drive}"));
        let write = || -> io::Result<()> {
            // Open the folder before the rename: a daemon without a free descriptor then fails without any
            // change.
            let held = File::open(&folder)?;
            let mut file = create_private(&new)?;
            file.write_all(MAGIC)?;
            file.write_all(record.as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&new, folder.join(drive))?;
            held.sync_all()
        };
        write().map_err(|error| {
            ApiError::io("store what happened to a drive in", &folder, &error)
                .hint("make room on the disk or let the daemon's user write there")
        })
    }

    /// Removes the events of a deleted drive. A file that stays takes space, and a later drive of that name
    /// would show its events.
    pub fn forget_history(&self, drive: &str) {
        let path = self.histories().join(drive);
        // Sync the folder, so that a power cut does not bring the file back.
        let removed = remove_if_there(&path).and_then(|()| match File::open(self.histories()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            folder => folder?.sync_all(),
        });
        if let Err(error) = removed {
            tracing::warn!("the history {} of a drive that is gone may stay: {error}", path.display());
        }
    }
}
