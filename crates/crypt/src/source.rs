//! Sources of secrets.

use crate::SecretBytes;
use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, geteuid, getpid, pidfd_getfd, pidfd_open};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

/// Place of a key or a passphrase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// File that no other user may access.
    File(PathBuf),
    /// Credential that systemd passed to this process, by its name.
    Credential(String),
    /// Descriptor that this process was started with, see [`Given`].
    Descriptor(i32),
}

impl Source {
    /// Returns the source of the options `key_file`, `credential` and `key_fd`, of which exactly one is set.
    ///
    /// # Errors
    /// None is set, several are, or a value is invalid; in words.
    pub fn of(
        key_file: Option<&str>,
        credential: Option<&str>,
        key_fd: Option<&str>,
    ) -> Result<Self, String> {
        match (key_file, credential, key_fd) {
            (Some(path), None, None) => Ok(Self::File(path.into())),
            (None, Some(name), None) => Ok(Self::Credential(name.to_owned())),
            (None, None, Some(number)) => match number.parse() {
                Ok(number) => Ok(Self::Descriptor(number)),
                Err(_) => Err(format!("key_fd is the number of a descriptor, not {number}")),
            },
            _ => {
                Err("exactly one of the options key_file, credential and key_fd says where the key is"
                    .to_owned())
            }
        }
    }

    /// Reads all of the secret.
    ///
    /// # Errors
    /// It does not exist, it is too long, or other users may access it; in words.
    pub fn read(&self, given: &Given) -> Result<SecretBytes, String> {
        match self {
            Self::File(path) => {
                read(path, true).map_err(|what| format!("key file {}: {what}", path.display()))
            }
            Self::Credential(name) => credential(name).map_err(|what| format!("credential {name}: {what}")),
            Self::Descriptor(number) => match given.0.get(number) {
                Some(secret) => SecretBytes::copy_of(secret).map_err(no_memory),
                None => Err(format!(
                    "key_fd {number}: this process was not told of it: start it with --key-fd {number}"
                )),
            },
        }
    }
}

/// Secrets from the descriptors that a process was started with. Each descriptor is read once, at the start:
/// a pipe is empty after that, and the process may have given up the right to read.
#[derive(Debug, Default)]
pub struct Given(BTreeMap<i32, SecretBytes>);

impl Given {
    /// Reads these descriptors to their ends.
    ///
    /// # Errors
    /// One of them is not open, or has too much; in words.
    pub fn read(numbers: &[i32]) -> Result<Self, String> {
        let each = numbers.iter().map(|&number| {
            let secret = duplicate(number).map_err(|error| error.to_string()).and_then(whole);
            Ok((number, secret.map_err(|what| format!("--key-fd {number}: {what}"))?))
        });
        each.collect::<Result<_, _>>().map(Self)
    }
}

/// Duplicates a descriptor of this process, by its number. Where pidfd_getfd() is forbidden the descriptor is
/// opened by its name, which only works for a file that this process could open itself.
fn duplicate(number: i32) -> io::Result<OwnedFd> {
    let itself = pidfd_open(getpid(), PidfdFlags::empty());
    match itself.and_then(|itself| pidfd_getfd(itself, number, PidfdGetfdFlags::empty())) {
        Ok(copy) => Ok(copy),
        Err(rustix::io::Errno::BADF) => Err(rustix::io::Errno::BADF.into()),
        Err(_) => Ok(openat(
            CWD,
            format!("/proc/self/fd/{number}"),
            OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
        )?),
    }
}

fn credential(name: &str) -> Result<SecretBytes, String> {
    let folder = std::env::var_os("CREDENTIALS_DIRECTORY")
        .ok_or("systemd passed none to this process: add LoadCredential= to its unit")?;
    let mut parts = Path::new(name).components();
    match (parts.next(), parts.next()) {
        // The folder of a credential is closed to other users, and systemd sets the file's mode.
        (Some(Component::Normal(name)), None) => read(&Path::new(&folder).join(name), false),
        _ => Err("this is not a name".to_owned()),
    }
}

/// Reads a regular file; `alone` requires that only root and this user may access it.
fn read(path: &Path, alone: bool) -> Result<SecretBytes, String> {
    // Non-blocking, so as not to wait for the other end of a pipe.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let file =
        openat(CWD, path, flags, Mode::empty()).map_err(|error| format!("cannot be opened: {error}"))?;
    let facts = fstat(&file).map_err(|error| error.to_string())?;
    if FileType::from_raw_mode(facts.st_mode) != FileType::RegularFile {
        return Err("it is not a file; a pipe is given to a function's process with --key-fd".to_owned());
    }
    if alone && facts.st_mode & 0o077 != 0 {
        return Err(format!("others may use it (mode {:03o}): chmod 600 it", facts.st_mode & 0o777));
    }
    if alone && facts.st_uid != 0 && facts.st_uid != geteuid().as_raw() {
        return Err(format!("it is user {}'s, who may read it: chown it", facts.st_uid));
    }
    whole(file)
}

fn whole(file: OwnedFd) -> Result<SecretBytes, String> {
    match SecretBytes::read(File::from(file)) {
        Ok(Some(secret)) if secret.is_empty() => Err("it is empty".to_owned()),
        Ok(Some(secret)) => Ok(secret),
        Ok(None) => Err(format!("it has more than {} bytes", SecretBytes::MAX)),
        Err(error) => Err(format!("cannot be read: {error}")),
    }
}

fn no_memory(error: io::Error) -> String {
    format!("there is no memory for a key: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pipe::pipe;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::PermissionsExt;

    fn error_of(path: &Path) -> String {
        let message = Source::File(path.into()).read(&Given::default()).expect_err("something is wrong");
        message.replace(path.parent().expect("a folder").to_str().expect("text"), "DIR")
    }

    #[test]
    fn a_file_is_its_owners_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("key");
        std::fs::write(&path, [7; 32]).expect("room on the disk");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).expect("it is ours");
        assert_eq!(error_of(&path), "key file DIR/key: others may use it (mode 640): chmod 600 it");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o400)).expect("it is ours");
        let secret = Source::File(path.clone()).read(&Given::default()).expect("it may be used now");
        assert_eq!(*secret, [7; 32]);
        std::fs::remove_file(&path).expect("it is ours");
        assert!(error_of(&path).contains("cannot be opened"));
        assert!(error_of(folder.path().join("..").as_path()).contains("is not a file"));
    }

    #[test]
    fn a_file_of_another_user_is_refused() {
        if !geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("key");
        std::fs::write(&path, [7; 32]).expect("room on the disk");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("it is ours");
        std::os::unix::fs::chown(&path, Some(4242), None).expect("root may");
        assert_eq!(error_of(&path), "key file DIR/key: it is user 4242's, who may read it: chown it");
    }

    #[test]
    fn a_pipe_is_read_once_and_kept() {
        let (reader, writer) = pipe().expect("descriptors");
        rustix::io::write(&writer, b"correct horse").expect("room in the pipe");
        drop(writer);
        let number = reader.as_raw_fd();
        let given = Given::read(&[number]).expect("it is open");
        for _ in 0..2 {
            assert_eq!(*Source::Descriptor(number).read(&given).expect("it was given"), *b"correct horse");
        }
        let message = Source::Descriptor(999).read(&given).expect_err("it was not given");
        assert!(message.contains("start it with --key-fd 999"), "{message}");
        let message = Given::read(&[9999]).expect_err("it is not open");
        assert!(message.starts_with("--key-fd 9999: "), "{message}");
    }

    #[test]
    fn exactly_one_source() {
        let parsed = Source::of(None, None, Some("3"));
        assert_eq!(parsed, Ok(Source::Descriptor(3)));
        assert!(Source::of(None, None, Some("three")).is_err_and(|message| message.contains("not three")));
        assert!(Source::of(None, None, None).is_err() && Source::of(Some("/a"), Some("b"), None).is_err());
        for name in ["", "..", "a/b", "/etc/passwd"] {
            assert!(Source::Credential(name.to_owned()).read(&Given::default()).is_err(), "{name}");
        }
    }
}
