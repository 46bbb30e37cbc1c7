//! Replaces a state file. A returned result is true even after a restart.
//!
//! After an error past the rename, the next start may find the new version. So the former version is put back
//! before the error is returned. If that fails, too, the file is *unsettled*: its versions in memory and on
//! the disk may differ, until a later store succeeds.
//!
//! No step past the rename opens a file, so a daemon without a free descriptor can still put the former
//! version back.

use super::remove_if_there;
use std::fmt::Debug;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The steps of a store. Tests make single steps fail.
pub trait Disk: Debug + Send + Sync {
    /// Creates or empties a file that only the daemon's user can read.
    fn create(&self, path: &Path) -> io::Result<File>;
    fn write(&self, file: &mut File, bytes: &[u8]) -> io::Result<()>;
    fn sync(&self, file: &File) -> io::Result<()>;
    fn link(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn remove(&self, path: &Path) -> io::Result<()>;
    fn sync_folder(&self, folder: &File) -> io::Result<()>;
}

/// The file system.
#[derive(Debug)]
pub struct FileSystem;

impl Disk for FileSystem {
    fn create(&self, path: &Path) -> io::Result<File> {
        super::create_private(path)
    }

    fn write(&self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        file.write_all(bytes)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_all()
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::hard_link(from, to)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        remove_if_there(path)
    }

    fn sync_folder(&self, folder: &File) -> io::Result<()> {
        folder.sync_all()
    }
}

/// A version of the file, identified by its length and checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    /// No file exists.
    None,
    Bytes {
        length: usize,
        checksum: u64,
    },
}

impl Version {
    pub(super) fn of(bytes: &[u8]) -> Self {
        Self::Bytes { length: bytes.len(), checksum: twox_hash::XxHash3_64::oneshot(bytes) }
    }
}

/// Reason why a version was not stored.
#[derive(Debug)]
pub(super) enum Failure {
    /// The former version is on the disk.
    Unchanged(io::Error),
    /// The next start may find either version.
    Unknown(io::Error),
}

/// The state file, and its versions on the disk.
#[derive(Debug)]
pub(super) struct Replacer {
    pub(super) current: PathBuf,
    pub(super) previous: PathBuf,
    new: PathBuf,
    spare: PathBuf,
    /// The folder of the file, open from the start.
    folder: Arc<File>,
    disk: Arc<dyn Disk>,
    /// The version that the next start must find.
    wanted: Version,
    /// The version that the next start finds; none if it is uncertain.
    on_disk: Option<Version>,
    /// The content of the previous version's file; none if it is uncertain.
    before: Option<Version>,
}

impl Replacer {
    /// Returns a replacer of the file `name` in the folder `path`.
    pub(super) fn new(path: &Path, name: &str, folder: Arc<File>, disk: Arc<dyn Disk>) -> Self {
        let [current, previous, new, spare] =
            ["", ".previous", ".new", ".spare"].map(|suffix| path.join(format!("{name}{suffix}")));
        let (wanted, on_disk) = (Version::None, Some(Version::None));
        Self { current, previous, new, spare, folder, disk, wanted, on_disk, before: None }
    }

    /// Notes the version that was found at the start.
    pub(super) fn found(&mut self, version: Version) {
        (self.wanted, self.on_disk) = (version, Some(version));
    }

    /// Notes that the file cannot be used, or is missing. No former version can be put back.
    pub(super) fn lost(&mut self) {
        (self.wanted, self.on_disk, self.before) = (Version::None, None, None);
    }

    /// Removes the file, and the files that were created beside it.
    pub(super) fn remove(&mut self) -> io::Result<()> {
        self.lost();
        for path in [&self.current, &self.previous, &self.new, &self.spare] {
            self.disk.remove(path)?;
        }
        self.disk.sync_folder(&self.folder)?;
        self.on_disk = Some(Version::None);
        Ok(())
    }

    /// Returns whether the next start finds the version that it must find.
    pub(super) fn is_settled(&self) -> bool {
        self.on_disk == Some(self.wanted)
    }

    /// Replaces the file. With `owed`, the new version applies from now on, even if it cannot be stored now.
    pub(super) fn put(&mut self, bytes: &[u8], owed: bool) -> Result<(), Failure> {
        let version = Version::of(bytes);
        if owed {
            self.wanted = version;
        }
        let error = match self.replace(bytes, version) {
            Ok(()) => {
                self.wanted = version;
                return Ok(());
            }
            Err(error) => error,
        };
        if !self.is_settled() && self.before == Some(self.wanted) {
            self.put_back();
        }
        match (self.is_settled(), owed) {
            (true, true) => Ok(()),
            (true, false) => Err(Failure::Unchanged(error)),
            (false, _) => Err(Failure::Unknown(error)),
        }
    }

    fn replace(&mut self, bytes: &[u8], version: Version) -> io::Result<()> {
        let mut file = self.disk.create(&self.new)?;
        self.disk.write(&mut file, bytes)?;
        self.disk.sync(&file)?;
        drop(file);
        // An unsettled file may hold a version that must not be put back later.
        if self.is_settled() {
            self.keep_current()?;
        }
        self.on_disk = None;
        self.disk.rename(&self.new, &self.current)?;
        self.disk.sync_folder(&self.folder)?;
        self.on_disk = Some(version);
        Ok(())
    }

    /// Makes the current version the previous one. The version gets a second name first, so that no moment is
    /// without it.
    fn keep_current(&mut self) -> io::Result<()> {
        if self.wanted != Version::None {
            self.disk.remove(&self.spare)?;
            self.disk.link(&self.current, &self.spare)?;
            self.before = None;
            self.disk.rename(&self.spare, &self.previous)?;
        }
        self.before = Some(self.wanted);
        Ok(())
    }

    /// Puts the previous version back in place of the current one. Opens no file and writes no data.
    fn put_back(&mut self) {
        self.on_disk = None;
        let put_back = || match self.wanted {
            Version::None => self.disk.remove(&self.current),
            Version::Bytes { .. } => {
                self.disk.remove(&self.spare)?;
                self.disk.link(&self.previous, &self.spare)?;
                self.disk.rename(&self.spare, &self.current)
            }
        };
        if put_back().and_then(|()| self.disk.sync_folder(&self.folder)).is_ok() {
            self.on_disk = Some(self.wanted);
        }
    }
}

#[cfg(test)]
mod tests;
