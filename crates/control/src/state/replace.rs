//! Replaces a state file, and answers only what is true after a restart.
//!
//! After an error past the rename, the new version may be found by the next start. So the former version is put back
//! before the error is returned. Where that fails, too, the file is *unsettled*: the versions of it in memory and on
//! the disk may differ, until a later store succeeds.
//!
//! Nothing past the rename opens a file: a daemon without a free descriptor puts the former version back all the same.

use super::remove_if_there;
use std::fmt::Debug;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The steps of storing. The tests have one of them fail.
pub trait Disk: Debug + Send + Sync {
    /// Creates a file that only the daemon's user can read, or empties it.
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

/// A version of the file, told from others by its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    /// There is no file.
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

/// Why a version was not stored.
#[derive(Debug)]
pub(super) enum Failure {
    /// The version before is on the disk.
    Unchanged(io::Error),
    /// Which version the next start finds is not known.
    Unknown(io::Error),
}

/// The state file, and which versions of it are on the disk.
#[derive(Debug)]
pub(super) struct Replacer {
    pub(super) current: PathBuf,
    pub(super) previous: PathBuf,
    new: PathBuf,
    spare: PathBuf,
    /// The folder, open from the start.
    folder: Arc<File>,
    disk: Arc<dyn Disk>,
    /// The version that the next start is to find.
    wanted: Version,
    /// The version that it finds; none if that is not known.
    on_disk: Option<Version>,
    /// The content of the previous version's file, if it is known.
    before: Option<Version>,
}

impl Replacer {
    /// Replaces the file of this name in a folder.
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

    /// Notes that the file cannot be used, or is missing. There is no version to go back to.
    pub(super) fn lost(&mut self) {
        (self.wanted, self.on_disk, self.before) = (Version::None, None, None);
    }

    /// Removes the file, and those that were made beside it.
    pub(super) fn remove(&mut self) -> io::Result<()> {
        self.lost();
        for path in [&self.current, &self.previous, &self.new, &self.spare] {
            self.disk.remove(path)?;
        }
        self.disk.sync_folder(&self.folder)?;
        self.on_disk = Some(Version::None);
        Ok(())
    }

    /// Returns true if the next start finds the version that it is to find.
    pub(super) fn is_settled(&self) -> bool {
        self.on_disk == Some(self.wanted)
    }

    /// Replaces the file. With `owed` this version is the one to be found from now on, whether or not it can be stored
    /// now.
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
        // An unsettled file may have a version that is not to be gone back to.
        if self.is_settled() {
            self.keep_current()?;
        }
        self.on_disk = None;
        self.disk.rename(&self.new, &self.current)?;
        self.disk.sync_folder(&self.folder)?;
        self.on_disk = Some(version);
        Ok(())
    }

    /// Makes the current version the previous one. It has a second name first, so that it is there at each moment.
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

    /// Puts the previous version back in place of the current one. Opens nothing and writes no data.
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
