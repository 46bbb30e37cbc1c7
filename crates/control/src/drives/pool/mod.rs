//! Namespaces that hosts create in drives' pools (Namespace Management): created, stored, and deleted for
//! good.
//!
//! The state lists a file before the file exists, and until it no longer exists. So whenever the daemon ends,
//! the next one can decide for every file whether a namespace owns it, and removes the others. Operations on
//! files run while other drives' changes are stored.

mod files;
mod notes;

pub(super) use files::{Bin, sweep};
pub(super) use notes::{check, first_block_size, has, note_attachment, note_deletion, of};

use super::{Drives, Entry, lock, storage};
use crate::state::Created;
use notes::of_mut;
use sluice_controller::Creation;
use sluice_spec::error::ApiError;
use sluice_spec::{DriveSpec, PoolSpec};
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::sync::Arc;

/// Returns the name of a new namespace's file. The random part makes it unique: no other program has or
/// creates such a file. The daemon may be killed between the note of the name and the creation. A file that
/// the next daemon finds under the name is thus its own.
fn file_name(drive: &str, nsid: u32, number: u64) -> String {
    let own = RandomState::new().hash_one((drive, nsid, number));
    format!("{drive}-{nsid}-{number}-{own:016x}.img")
}

impl Drives {
    /// Makes the namespace that a host creates, gives it to its drive, and stores it.
    pub(super) fn create_namespace(&self, entry: &Entry, creation: Creation) -> Result<(), ApiError> {
        let (spec, running) = (&entry.spec, entry.running.clone()?);
        let no_pool = || ApiError::conflict(format!("drive `{}` has no pool", spec.name));
        let pool = spec.pool.as_ref().ok_or_else(no_pool)?;
        let created = self.make_file(spec, pool, creation)?;
        running.create_namespace(spec, &created, creation)?;
        files::sync(pool, &created)?;
        // After a failed store the namespace may or may not be on the disk. Its file is removed once the
        // state is settled.
        let hosted = self.hosted(&spec.name);
        let mut hosted = lock(&hosted);
        let now = self.entry(&spec.name)?.running?;
        if !Arc::ptr_eq(&now, &running) {
            return Err(ApiError::conflict(format!("drive `{}` was opened anew meanwhile", spec.name)));
        }
        let mut next = hosted.state.clone();
        of_mut(&mut next, &spec.name).add(created);
        self.commit_hosted(&spec.name, &mut hosted, next)
    }

    /// Assigns a new namespace its number, and creates its file after the state lists it.
    fn make_file(&self, spec: &DriveSpec, pool: &PoolSpec, creation: Creation) -> Result<Created, ApiError> {
        let first =
            of(&lock(&self.hosted(&spec.name)).state, &spec.name).map_or(0, |pooled| pooled.numbers) + 1;
        let Some(folder) = &pool.folder else { return Ok(Created::of(creation, first, None)) };
        crate::listen::make_folder(folder, 0o700)?;
        let file = file_name(&spec.name, creation.nsid, first);
        self.make_expected(&spec.name, &file, &folder.join(&file))?;
        let identity = Some(storage::random()?);
        Ok(Created { identity, ..Created::of(creation, first, Some(file)) })
    }

    /// Creates a file that a sweep removes unless its namespace is stored.
    fn make_expected(&self, drive: &str, file: &str, path: &Path) -> Result<(), ApiError> {
        {
            let hosted = self.hosted(drive);
            let mut hosted = lock(&hosted);
            self.entry(drive)?;
            let mut next = hosted.state.clone();
            of_mut(&mut next, drive).expect(file);
            self.commit_hosted(drive, &mut hosted, next)?;
        }
        if files::make_new(path)? {
            return Ok(());
        }
        // The file belongs to another program, so it is not removed, whether or not that can be stored.
        let hosted = self.hosted(drive);
        let mut hosted = lock(&hosted);
        of_mut(&mut hosted.state, drive).leaving.retain(|it| it != file);
        self.settle_hosted(&mut hosted)?;
        Err(ApiError::conflict(format!("somebody has made {} just now", path.display())).hint("try again"))
    }

    /// Removes the file of a failed creation, so that a host which retries has at most one such file.
    pub(super) fn clear_up(&self, entry: &Entry) -> Result<(), ApiError> {
        // If the store failed, the namespace may be on the disk: settle the state first.
        self.settle_hosted(&mut lock(&self.hosted(&entry.spec.name)))?;
        self.sweep_pool(&entry.spec)
    }

    /// Removes the files that no namespace of a drive owns any more.
    pub(super) fn sweep_pool(&self, spec: &DriveSpec) -> Result<(), ApiError> {
        let hosted = self.hosted(&spec.name);
        let mut hosted = lock(&hosted);
        if of(&hosted.state, &spec.name).is_none_or(|pooled| pooled.leaving.is_empty()) {
            return Ok(());
        }
        // A file that a restart may find to be a namespace's must not be removed.
        if !hosted.is_settled() {
            self.settle_hosted(&mut hosted)?;
        }
        let mut next = hosted.state.clone();
        self.bin.take(sweep(spec, &mut next));
        self.commit_hosted(&spec.name, &mut hosted, next)
    }

    /// Deletes a namespace that a host has created, with its data. If the drive has a client, `force` is
    /// needed.
    pub fn delete_namespace(&self, name: &str, nsid: u32, force: bool) -> Result<(), ApiError> {
        // The thread for changes by hosts stores the deletion.
        let entry = self.entry(name)?;
        let running = entry.running.clone()?;
        if entry.spec.namespace(nsid).is_some() {
            return Err(ApiError::conflict(format!(
                "namespace {nsid} of drive `{name}` is not one that a host has created"
            ))
            .hint("change the drive itself, where it is declared"));
        }
        let status = running.status()?;
        if status.created.iter().all(|it| it.nsid != nsid) {
            return Err(ApiError::not_found(format!("drive `{name}` has no namespace {nsid}"))
                .hint(format!("`sluice drive show {name}` lists what it has")));
        }
        if status.connected && !force {
            return Err(ApiError::conflict(format!(
                "drive `{name}` has a client, which may use namespace {nsid}"
            ))
            .hint("detach it there first, or insist (--force)"));
        }
        running.delete_namespace(nsid)?;
        tracing::info!("namespace {nsid} of drive {name} deleted");
        Ok(())
    }
}
