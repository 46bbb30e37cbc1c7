//! Ensures that one daemon at a time uses a folder or socket.

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::process::geteuid;
use sluice_handover::locks;
use sluice_spec::error::ApiError;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// An exclusive lock, held until it is dropped or the process ends for any reason.
#[derive(Debug)]
pub struct Exclusive {
    /// File description that holds the lock. The file is never unlinked: another daemon could then lock a new
    /// file of the same name while this lock is held.
    _file: OwnedFd,
}

impl Exclusive {
    /// Takes the lock file at `path`. `what` names the locked object in messages.
    pub fn take(path: &Path, what: &str) -> Result<Self, ApiError> {
        let mut file = open_own(path).map_err(|error| {
            let is_link = error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error());
            let hint = match is_link || error.kind() == ErrorKind::InvalidData {
                true => "find out who placed it there, and remove it",
                false => "let the daemon's user write to this folder",
            };
            ApiError::io("open the lock file", path, &error).hint(hint)
        })?;
        if let Some(lock) = locks::take(file.as_fd()) {
            note_owner(&mut file).map_err(|error| ApiError::io("write", path, &error))?;
            return Ok(Self { _file: lock });
        }
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => note_owner(&mut file).map_err(|error| ApiError::io("write", path, &error))?,
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(taken(&mut file, what)),
            Err(error) => return Err(ApiError::io("lock", path, &error.into())),
        }
        Ok(Self { _file: file.into() })
    }
}

/// Opens or creates the lock file. Refuses a symbolic link, and a file that has several names or another
/// owner. Another user may have placed it there, so that the daemon overwrites the file behind it.
fn open_own(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    // An open of a pipe or a terminal could block the daemon.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = options.custom_flags(flags.bits().cast_signed()).open(path)?;
    let found = file.metadata()?;
    let refused = |why: String| Err(io::Error::new(ErrorKind::InvalidData, why));
    if !found.is_file() {
        return refused("it is not a regular file".to_owned());
    }
    if found.nlink() != 1 {
        return refused(format!("it has {} names", found.nlink()));
    }
    if found.uid() != geteuid().as_raw() {
        return refused(format!("it belongs to user {}", found.uid()));
    }
    file.set_permissions(Permissions::from_mode(0o600))?;
    Ok(file)
}

/// Writes the process ID, for administrators and for the error message of a second daemon.
fn note_owner(file: &mut File) -> std::io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}

fn taken(file: &mut File, what: &str) -> ApiError {
    let mut owner = String::new();
    // The owner of the lock may not have written its process ID yet.
    let known = file.take(16).read_to_string(&mut owner).is_ok() && !owner.trim().is_empty();
    let who = if known { format!("process {}", owner.trim()) } else { "another process".to_owned() };
    ApiError::conflict(format!("{what} is in use by {who}"))
        .hint("a daemon is running there already: stop it, or configure another place for this one")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_refused_until_the_first_is_gone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("lock");
        let first = Exclusive::take(&path, "the state folder /s").expect("nobody has it");
        let problem = Exclusive::take(&path, "the state folder /s").expect_err("the first has it");
        assert_eq!(problem.error, format!("the state folder /s is in use by process {}", std::process::id()));
        assert!(problem.hint.is_some());
        drop(first);
        Exclusive::take(&path, "the state folder /s").expect("free again");
    }

    #[test]
    fn nothing_but_a_file_of_our_own_is_written_to() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("theirs"), "precious").expect("room on the disk");
        std::os::unix::fs::symlink(at("theirs"), at("link")).expect("room on the disk");
        std::os::unix::fs::symlink(at("nowhere"), at("dangling")).expect("room on the disk");
        std::fs::hard_link(at("theirs"), at("name")).expect("room on the disk");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, at("pipe"), mode).expect("room on the disk");
        for name in ["link", "dangling", "name", "pipe"] {
            let problem = Exclusive::take(&at(name), "the API socket").expect_err("not a file of ours alone");
            assert!(problem.error.contains(name), "{problem}");
            assert!(problem.hint.is_some_and(|hint| hint.contains("remove it")));
        }
        assert_eq!(std::fs::read(at("theirs")).expect("it is there"), b"precious");
        assert!(!at("nowhere").exists());
    }

    #[test]
    fn others_cannot_lock_the_file_that_they_may_not_open() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("lock");
        std::fs::write(&path, "").expect("room on the disk");
        std::fs::set_permissions(&path, Permissions::from_mode(0o666)).expect("it is ours");
        let _taken = Exclusive::take(&path, "the API socket").expect("nobody has it");
        assert_eq!(crate::listen::mode_of(&path).expect("it is there"), 0o600);
    }
}
