//! One daemon for each folder and socket.

use crate::problem::Problem;
use rustix::fs::{FlockOperation, flock};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The right to be the only one, held until dropped or the process ends, however it ends.
#[derive(Debug)]
pub struct Exclusive {
    /// The lock goes with the file description. The file itself stays: to unlink it would let a third
    /// daemon lock a new one of the same name beside us.
    _file: File,
}

impl Exclusive {
    /// Takes the lock file at `path`, for what is called `what` in messages.
    pub fn take(path: &Path, what: &str) -> Result<Self, Problem> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file = options.open(path).map_err(|error| {
            Problem::io("open the lock file", path, &error).hint("let the daemon's user write to this folder")
        })?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => note_owner(&mut file).map_err(|error| Problem::io("write", path, &error))?,
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(taken(&mut file, what)),
            Err(error) => return Err(Problem::io("lock", path, &error.into())),
        }
        Ok(Self { _file: file })
    }
}

/// Only for people who look, and for the message of the one who comes second.
fn note_owner(file: &mut File) -> std::io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}

fn taken(file: &mut File, what: &str) -> Problem {
    let mut owner = String::new();
    // Whoever locked it may not have written its number yet.
    let known = file.take(16).read_to_string(&mut owner).is_ok() && !owner.trim().is_empty();
    let who = if known { format!("process {}", owner.trim()) } else { "another process".to_owned() };
    Problem::conflict(format!("{what} is in use by {who}"))
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
}
