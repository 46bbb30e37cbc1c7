//! The configuration file that makes the drives of a daemon on another machine.

use super::super::{Drives, Entry, lock};
use crate::config::{Exported, Tcp, write};
use sluice_spec::error::ApiError;

/// Comment at the top of the file.
const ABOUT: &str = "# Drives of a daemon, as `sluice export` found them. Secrets of hosts are in it; files and keys that it names are not.\n";

impl Drives {
    /// Returns a configuration file that makes the same drives.
    pub fn export(&self) -> Result<String, ApiError> {
        let entries: Vec<Entry> = lock(&self.entries).values().cloned().collect();
        let shared = self.shared_specs();
        let drives: Vec<_> = entries.into_iter().map(|entry| entry.spec).collect();
        let names_reactor = drives.iter().any(|drive| drive.reactor.is_some())
            || shared.iter().any(|shared| shared.reactor > 0);
        let is_remote = drives.iter().any(|drive| drive.tcp.is_some());
        let exported = Exported {
            cores: if names_reactor { self.settings.cores.clone() } else { Vec::new() },
            tcp: if is_remote { self.tcp.clone() } else { Tcp::default() },
            shared,
            groups: self.group_specs(),
            drives,
        };
        Ok(format!("{ABOUT}\n{}", write(&exported)?))
    }
}
