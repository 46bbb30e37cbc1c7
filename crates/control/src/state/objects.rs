//! Copies of the object files of classifiers that were attached through the API. An attached classifier thus
//! exists after a restart, even if its original file changed or is gone.
//!
//! A copy is named after its content, and never changes.

use super::{Saved, StateFile, create_private, read, text};
use crate::listen::make_folder;
use crate::object_file;
use sluice_spec::error::ApiError;
use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{MutexGuard, PoisonError};

/// Maximum number of letters of a copy's name that come from its original.
const STEM_MAX: usize = 64;

/// A copy of an object file that is not removed, whether or not a drive uses it yet.
#[derive(Debug)]
pub struct KeptObject<'a> {
    pub path: PathBuf,
    state: &'a StateFile,
}

impl KeptObject<'_> {
    /// Returns the copy's path. From then on the copy stays only while a drive uses it.
    pub fn into_path(self) -> PathBuf {
        self.path.clone()
    }
}

impl Drop for KeptObject<'_> {
    fn drop(&mut self) {
        let mut kept = self.state.kept_objects();
        if let Some(at) = kept.iter().position(|path| *path == self.path) {
            kept.swap_remove(at);
        }
    }
}

impl StateFile {
    fn kept_objects(&self) -> MutexGuard<'_, Vec<PathBuf>> {
        self.kept_objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn objects(&self) -> PathBuf {
        self.folder.join("objects")
    }

    /// Copies an object file. When this returns, the copy survives a power cut.
    pub fn keep_object(&self, original: &Path) -> Result<KeptObject<'_>, ApiError> {
        // The original is read without the lock: its file system may not respond.
        let bytes = object_file::read(original)?;
        let folder = self.objects();
        let copy = KeptObject { path: folder.join(name(original, &bytes)), state: self };
        let mut kept = self.kept_objects();
        kept.push(copy.path.clone());
        let written = self.write_object(&folder, &copy.path, &bytes);
        drop(kept);
        written.map(|()| copy)
    }

    fn write_object(&self, folder: &Path, copy: &Path, bytes: &[u8]) -> Result<(), ApiError> {
        make_folder(folder, 0o700)?;
        let is_there = std::fs::read(copy).is_ok_and(|there| there == bytes);
        // An existing copy may be left from an attempt that failed before the copy was durable.
        let written = if is_there { Ok(()) } else { write(folder, copy, bytes) };
        let synced = written.and_then(|()| {
            [copy, folder, &self.folder].into_iter().try_for_each(|path| File::open(path)?.sync_all())
        });
        synced.map_err(|error| {
            ApiError::io("copy the classifier to", folder, &error)
                .hint("nothing was changed; make room on the disk or let the daemon's user write there")
        })
    }

    /// Removes copies that no change keeps, and that neither the state returned by `saved` nor the version
    /// before it refers to. A copy that stays takes space and does no harm, so failures are ignored.
    pub fn sweep(&self, saved: impl FnOnce() -> Saved) {
        // The lock is held throughout: a copy that is no longer kept is in the state by then.
        let kept = self.kept_objects();
        // The version that the next start finds may refer to other copies.
        if !self.is_settled() {
            return;
        }
        let previous = match read(&self.previous()) {
            Ok(bytes) => text::decode(&bytes).ok(),
            Err(error) => (error.kind() == io::ErrorKind::NotFound).then(Saved::default),
        };
        let Some(previous) = previous else { return };
        // Compare file names: the state folder may have had another path when the copy was made.
        let wanted = wanted(&saved()).chain(wanted(&previous)).chain(kept.iter().cloned());
        let wanted: HashSet<OsString> =
            wanted.filter_map(|path| path.file_name().map(ToOwned::to_owned)).collect();
        let Ok(entries) = std::fs::read_dir(self.objects()) else { return };
        for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
            if path.file_name().is_none_or(|name| !wanted.contains(name)) {
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

/// Writes a copy to another name and renames it, so that an existing copy is always complete.
fn write(folder: &Path, copy: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = folder.join("new");
    let mut file = create_private(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&new, copy)
}

fn wanted(saved: &Saved) -> impl Iterator<Item = PathBuf> + use<> {
    // An apply may go back to its state from before.
    let before = saved.applying.iter();
    let drives = saved.drives.iter().chain(before.clone().flat_map(|before| &before.drives));
    let classified = saved.classified.iter().chain(before.flat_map(|before| &before.classified));
    let created = drives.filter_map(|drive| drive.classifier.as_ref());
    let declared = classified.filter_map(|classified| classified.classifier.as_ref());
    created.chain(declared).map(|spec| spec.object.clone()).collect::<Vec<_>>().into_iter()
}

/// Returns the name of a copy, such as `observe-0123456789abcdef.o`. It begins with the original's name,
/// which people recognize.
fn name(original: &Path, bytes: &[u8]) -> String {
    let stem = original.file_stem().map(|stem| stem.to_string_lossy()).unwrap_or_default();
    // A copy of a copy gets the same name.
    let stem = match stem.rsplit_once('-') {
        Some((front, hash)) if hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_hexdigit()) => front,
        _ => &stem,
    };
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' };
    let stem: String = stem.chars().map(plain).take(STEM_MAX).collect();
    format!("{stem}-{}.o", object_file::digest(bytes))
}
