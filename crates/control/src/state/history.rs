//! What has happened to drives, a file for each: it changes with every reset of a guest, and the state file does not.

use super::{StateFile, create_private, read, remove_if_there};
use crate::listen::make_folder;
use sluice_controller::PersistentEventRecord;
use sluice_spec::problem::Problem;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

/// What a file begins with.
const MAGIC: &[u8] = b"sluice history 1\n";

impl StateFile {
    fn histories(&self) -> PathBuf {
        self.folder.join("history")
    }

    /// What was stored of a drive last. No drive is refused for what has happened to it: a file that cannot be used is
    /// reported, and replaced by the next.
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

    /// Replaces what is stored of a drive. When this returns, it survives a power cut.
    pub fn store_history(&self, drive: &str, record: &PersistentEventRecord) -> Result<(), Problem> {
        let folder = self.histories();
        make_folder(&folder, 0o700)?;
        // No drive has a name that begins with a dot.
        let new = folder.join(format!(".{drive}"));
        let write = || -> io::Result<()> {
            // Before the rename: a daemon that is out of descriptors has changed nothing then.
            let held = File::open(&folder)?;
            let mut file = create_private(&new)?;
            file.write_all(MAGIC)?;
            file.write_all(record.as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&new, folder.join(drive))?;
            held.sync_all()
        };
        write().map_err(|error| {
            Problem::io("store what happened to a drive in", &folder, &error)
                .hint("make room on the disk or let the daemon's user write there")
        })
    }

    /// The drive is gone. A file that stays takes room; a later drive of that name would show what is in it.
    pub fn forget_history(&self, drive: &str) {
        let path = self.histories().join(drive);
        // Synced, so that a power cut does not bring it back.
        let removed = remove_if_there(&path).and_then(|()| match File::open(self.histories()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            folder => folder?.sync_all(),
        });
        if let Err(error) = removed {
            tracing::warn!("the history {} of a drive that is gone may stay: {error}", path.display());
        }
    }
}
