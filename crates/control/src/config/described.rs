//! A configuration that a running daemon is to have: parts that the text leaves out are those of the daemon.

use super::file::{Config, faulty, shape};
use super::locate::Document;
use super::{Metrics, Page, Settings, Tcp};
use sluice_spec::error::ApiError;
use sluice_spec::{Fault, GroupSpec, SharedKind, SharedSpec};
use std::path::{Path, PathBuf};

/// Parts of its configuration with which a daemon was started, besides drives.
#[derive(Clone, Debug, Default)]
pub struct Served {
    pub daemon: Settings,
    pub tcp: Tcp,
    pub metrics: Metrics,
    pub page: Page,
    pub shared: Vec<SharedSpec>,
    /// Groups as they are now.
    pub groups: Vec<GroupSpec>,
}

/// The text of a configuration file with the drives that it describes.
pub struct Described<'a> {
    document: Document<'a>,
    file: PathBuf,
    pub config: Config,
    /// Groups that the text describes, the first of those of `config`.
    pub groups: Vec<GroupSpec>,
    /// Shared objects that the text describes. A thin pool may be larger than that of the daemon.
    pub shared: Vec<SharedSpec>,
}

impl std::fmt::Debug for Described<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Described").field(&self.file).finish()
    }
}

impl<'a> Described<'a> {
    /// Reads the text of the file `file`, for a daemon that was started with `served`.
    ///
    /// # Errors
    /// The first fault of the text. A part besides drives that differs from the daemon's is one.
    pub fn read(text: &'a str, file: &Path, served: &Served) -> Result<Self, ApiError> {
        let (document, mut config) = shape(text, file)?;
        let differs = config.differs(served);
        let Config { daemon, tcp, metrics, page, shared, groups, .. } = &mut config;
        daemon.clone_from(&served.daemon);
        tcp.clone_from(&served.tcp);
        (*metrics, *page) = (served.metrics.clone(), served.page.clone());
        let given_shared = std::mem::replace(shared, served.shared.clone());
        let given = groups.clone();
        let is_given = |name: &str| given.iter().any(|group| group.name == name);
        groups.extend(served.groups.iter().filter(|group| !is_given(&group.name)).cloned());
        let described = Self { document, file: file.to_owned(), config, groups: given, shared: given_shared };
        match differs.into_iter().chain(described.config.faults()).next() {
            Some(fault) => Err(described.fault(fault)),
            None => Ok(described),
        }
    }

    /// Returns the problem for a fault, with the file, the line and the key.
    pub fn fault(&self, fault: Fault) -> ApiError {
        faulty(&self.document, &self.file, fault)
    }
}

impl Config {
    /// Returns a fault for each part besides drives that is given, and is not that of the daemon.
    fn differs(&self, served: &Served) -> Vec<Fault> {
        let words = "the running daemon has another value";
        let fault = |key| Fault::at_key(key, words).hint("change its configuration file, and restart it");
        let daemon = self.daemon.given().filter(|key| !self.daemon.has_same(&served.daemon, key));
        let mut faults: Vec<Fault> = daemon.map(|key| fault(key).under("daemon")).collect();
        let tables = [
            ("tcp", self.tcp == served.tcp || self.tcp == Tcp::default()),
            ("metrics", self.metrics == served.metrics || self.metrics == Metrics::default()),
            ("page", self.page == served.page || self.page == Page::default()),
        ];
        faults.extend(tables.iter().filter(|(_, is_same)| !is_same).map(|(table, _)| fault(table)));
        for (index, shared) in self.shared.iter().enumerate() {
            let now = served.shared.iter().find(|now| {
                shared.kind == SharedKind::Thin && **now == SharedSpec { size: now.size, ..shared.clone() }
            });
            if let Some(now) = now.filter(|now| shared.size < now.size) {
                let words = format!("{} is less than the {} that the pool has", shared.size, now.size);
                let hint = format!("a pool only grows: say size = \"{}\"", now.size);
                faults.push(Fault::at_key("size", words).hint(hint).inside("shared", index));
            } else if now.is_none() && !served.shared.contains(shared) {
                let words = format!("the running daemon has no such object `{}`", shared.name);
                let fault = Fault::at_key("name", words);
                faults.push(
                    fault
                        .hint("declare it in its configuration file, and restart it")
                        .inside("shared", index),
                );
            }
        }
        faults
    }
}
