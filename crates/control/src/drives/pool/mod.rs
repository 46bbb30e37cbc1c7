//! The namespaces that hosts make of drives' pools (Namespace Management): made, stored, and gone for good.
//!
//! A file is known to the state before it exists, and until it does not any more. So whenever the daemon ends, the next
//! one knows of every file whether it is a namespace's, and removes those that are not. What is done to files is done
//! while other drives' changes are stored.

mod files;
mod notes;

pub(super) use files::{Bin, sweep};
pub(super) use notes::{check, first_block_size, has, note_attachment, note_deletion, of};

use super::{Drives, Entry, lock, storage};
use crate::state::Created;
use notes::of_mut;
use sluice_controller::Creation;
use sluice_spec::problem::Problem;
use sluice_spec::{DriveSpec, PoolSpec};
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::sync::Arc;

/// The name of a new namespace's file. Nobody else has one like it, nor makes one between the note that it is to be and
/// the moment it is, when the daemon may be killed: what the next finds of that name is ours.
fn file_name(drive: &str, nsid: u32, number: u64) -> String {
    let own = RandomState::new().hash_one((drive, nsid, number));
    format!("{drive}-{nsid}-{number}-{own:016x}.img")
}

impl Drives {
    /// Makes the namespace that a host creates, hands it to its drive, and stores that it is there.
    pub(super) fn create_namespace(&self, entry: &Entry, creation: Creation) -> Result<(), Problem> {
        let (spec, running) = (&entry.spec, entry.running.clone()?);
        let no_pool = || Problem::conflict(format!("drive `{}` has no pool", spec.name));
        let pool = spec.pool.as_ref().ok_or_else(no_pool)?;
        let created = self.make_file(spec, pool, creation)?;
        running.create_namespace(spec, &created, creation)?;
        files::sync(pool, &created)?;
        // What cannot be stored may be, for all that is known: its file goes when the state says again that it does.
        let hosted = self.hosted(&spec.name);
        let mut hosted = lock(&hosted);
        let now = self.entry(&spec.name)?.running?;
        if !Arc::ptr_eq(&now, &running) {
            return Err(Problem::conflict(format!("drive `{}` was opened anew meanwhile", spec.name)));
        }
        let mut next = hosted.state.clone();
        of_mut(&mut next, &spec.name).add(created);
        self.commit_hosted(&spec.name, &mut hosted, next)
    }

    /// Gives a new namespace its number, and makes its file, which the state knows before.
    fn make_file(&self, spec: &DriveSpec, pool: &PoolSpec, creation: Creation) -> Result<Created, Problem> {
        let first =
            of(&lock(&self.hosted(&spec.name)).state, &spec.name).map_or(0, |pooled| pooled.numbers) + 1;
        let Some(folder) = &pool.folder else { return Ok(Created::of(creation, first, None)) };
        crate::listen::make_folder(folder, 0o700)?;
        let file = file_name(&spec.name, creation.nsid, first);
        self.make_expected(&spec.name, &file, &folder.join(&file))?;
        let identity = Some(storage::random()?);
        Ok(Created { identity, ..Created::of(creation, first, Some(file)) })
    }

    /// Makes a file that is removed if nothing comes of it.
    fn make_expected(&self, drive: &str, file: &str, path: &Path) -> Result<(), Problem> {
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
        // It is somebody's, and stays: whether or not that can be stored.
        let hosted = self.hosted(drive);
        let mut hosted = lock(&hosted);
        of_mut(&mut hosted.state, drive).leaving.retain(|it| it != file);
        self.settle_hosted(&mut hosted)?;
        Err(Problem::conflict(format!("somebody has made {} just now", path.display())).hint("try again"))
    }

    /// Removes what a creation that failed has left: a host that tries again and again has only one file at a time.
    pub(super) fn clear_up(&self, entry: &Entry) -> Result<(), Problem> {
        // The namespace may be stored, for all that is known, if that is what failed.
        self.settle_hosted(&mut lock(&self.hosted(&entry.spec.name)))?;
        self.sweep_pool(&entry.spec)
    }

    /// Removes the files that no namespace of a drive has any more.
    pub(super) fn sweep_pool(&self, spec: &DriveSpec) -> Result<(), Problem> {
        let hosted = self.hosted(&spec.name);
        let mut hosted = lock(&hosted);
        if of(&hosted.state, &spec.name).is_none_or(|pooled| pooled.leaving.is_empty()) {
            return Ok(());
        }
        // No file goes that a restart may find to be a namespace's.
        if !hosted.is_settled() {
            self.settle_hosted(&mut hosted)?;
        }
        let mut next = hosted.state.clone();
        self.bin.take(sweep(spec, &mut next));
        self.commit_hosted(&spec.name, &mut hosted, next)
    }

    /// Deletes a namespace that a host has created, with what is in it. One of a drive with a client goes only by
    /// `force`.
    pub fn delete_namespace(&self, name: &str, nsid: u32, force: bool) -> Result<(), Problem> {
        // What it changes is stored by who remembers what hosts do.
        let entry = self.entry(name)?;
        let running = entry.running.clone()?;
        if entry.spec.namespace(nsid).is_some() {
            return Err(Problem::conflict(format!(
                "namespace {nsid} of drive `{name}` is not one that a host has created"
            ))
            .hint("change the drive itself, where it is declared"));
        }
        let status = running.status()?;
        if status.created.iter().all(|it| it.nsid != nsid) {
            return Err(Problem::not_found(format!("drive `{name}` has no namespace {nsid}"))
                .hint(format!("`sluice drive show {name}` lists what it has")));
        }
        if status.connected && !force {
            return Err(Problem::conflict(format!(
                "drive `{name}` has a client, which may use namespace {nsid}"
            ))
            .hint("detach it there first, or insist (--force)"));
        }
        running.delete_namespace(nsid)?;
        tracing::info!("namespace {nsid} of drive {name} deleted");
        Ok(())
    }
}
