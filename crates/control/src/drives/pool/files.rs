//! The files of created namespaces.
//!
//! A removed file loses its name at once. Its bytes are freed later, in another thread: freeing a large file
//! may take long.

use super::notes::{of, of_mut};
use crate::state::{Created, HostState};
use rustix::fs::OFlags;
use sluice_spec::error::ApiError;
use sluice_spec::{DriveSpec, PoolSpec};
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Channel to a thread that closes removed files.
#[derive(Debug)]
pub(in crate::drives) struct Bin(Sender<Vec<File>>);

impl Bin {
    pub(in crate::drives) fn start() -> Result<Self, ApiError> {
        let (sender, files): (_, Receiver<Vec<File>>) = channel();
        std::thread::Builder::new()
            .name("freed".to_owned())
            .spawn(move || files.into_iter().for_each(drop))
            .map_err(|error| ApiError::internal(format!("cannot start a thread: {error}")))?;
        Ok(Self(sender))
    }

    pub(in crate::drives) fn take(&self, files: Vec<File>) {
        // The thread receives files as long as the sender exists.
        drop(self.0.send(files));
    }
}

/// Removes the files that no namespace of a drive owns, and drops them from the list once they are gone.
/// Returns the removed files, whose bytes are freed when they are dropped.
pub(in crate::drives) fn sweep(spec: &DriveSpec, saved: &mut HostState) -> Vec<File> {
    let mut removed = Vec::new();
    let Some(folder) = spec.pool.as_ref().and_then(|pool| pool.folder.as_deref()) else { return removed };
    if of(saved, &spec.name).is_none_or(|pooled| pooled.leaving.is_empty()) {
        return removed;
    }
    of_mut(saved, &spec.name).leaving.retain(|file| {
        let path = folder.join(file);
        // O_PATH opens no device and reads no data: the descriptor keeps a file of any type alive.
        let flags = OFlags::PATH | OFlags::NOFOLLOW;
        let held = File::options().read(true).custom_flags(flags.bits().cast_signed()).open(&path);
        let is_gone = remove(&path);
        removed.extend(held.ok().filter(|_| is_gone));
        !is_gone
    });
    removed
}

/// Removes a file. Returns whether it is gone.
fn remove(path: &Path) -> bool {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!("{} is not removed, and takes room: {error}", path.display());
            false
        }
        _ => true,
    }
}

/// Creates a file. Returns false if one of that name exists.
pub(super) fn make_new(path: &Path) -> Result<bool, ApiError> {
    match File::options().write(true).create_new(true).mode(0o600).open(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(ApiError::io("make the namespace", path, &error)),
    }
}

/// Makes a new file durable, before the state requires it to exist.
pub(super) fn sync(pool: &PoolSpec, created: &Created) -> Result<(), ApiError> {
    let (Some(folder), Some(file)) = (&pool.folder, &created.file) else { return Ok(()) };
    let sync = |path: &Path| File::open(path).and_then(|file| file.sync_all());
    let synced = sync(&folder.join(file)).and_then(|()| sync(folder));
    synced.map_err(|error| ApiError::io("make a namespace durable in", folder, &error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drives::script::spec;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_file_loses_its_name_first_and_its_bytes_later() {
        let folder = tempfile::tempdir().expect("a folder");
        let pool =
            format!(r#"{{"target": "file", "size": "1MiB", "folder": "{}"}}"#, folder.path().display());
        let pool = Some(serde_json::from_str(&pool).expect("a pool"));
        let spec = DriveSpec { pool, ..spec("a") };
        let mut saved = HostState::default();
        assert!(sweep(&spec, &mut saved).is_empty());
        std::fs::write(folder.path().join("large"), [7; 5000]).expect("room");
        std::fs::write(folder.path().join("other"), [7; 10]).expect("room");
        // A folder cannot be removed as a file, so it stays in the list.
        std::fs::create_dir(folder.path().join("folder")).expect("room");
        for name in ["large", "gone", "folder"] {
            of_mut(&mut saved, "a").expect(name);
        }
        let removed = sweep(&spec, &mut saved);
        assert_eq!(of_mut(&mut saved, "a").leaving, ["folder"]);
        let [held] = removed.as_slice() else { panic!("one was there") };
        let meta = held.metadata().expect("it is held");
        assert_eq!((meta.nlink(), meta.len()), (0, 5000), "its bytes are there until it is closed");
        assert!(!folder.path().join("large").exists() && folder.path().join("other").exists());
    }

    #[test]
    fn a_file_that_somebody_has_is_left_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("it");
        assert_eq!(make_new(&path), Ok(true));
        std::fs::write(&path, "theirs").expect("room");
        assert_eq!(make_new(&path), Ok(false));
        // The target of a symbolic link is not created, either.
        std::os::unix::fs::symlink(folder.path().join("nowhere"), folder.path().join("link"))
            .expect("a link");
        assert_eq!(make_new(&folder.path().join("link")), Ok(false));
        assert_eq!(std::fs::read(&path).expect("it is there"), b"theirs");
        assert!(make_new(&folder.path().join("no/folder")).is_err());
    }
}
