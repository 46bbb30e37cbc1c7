//! The namespaces that hosts make of drives' pools (Namespace Management): made, stored, and gone for good.
//!
//! A file is known to the state before it exists, and until it does not any more. So whenever the daemon ends, the next
//! one knows of every file whether it is a namespace's, and removes those that are not.

use super::{Drives, Entry, Saved};
use crate::problem::Problem;
use crate::spec::{DriveSpec, PoolSpec};
use crate::state::{Created, Pooled};
use sluice_controller::{Attachment, Creation};
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// How many names of files are tried that somebody else has.
const NAMES_MAX: u64 = 1_000;

/// What is remembered of a drive's pool.
pub(super) fn of<'a>(saved: &'a Saved, drive: &str) -> Option<&'a Pooled> {
    saved.pools.iter().find(|it| it.drive == drive)
}

fn of_mut<'a>(saved: &'a mut Saved, drive: &str) -> &'a mut Pooled {
    let at = saved.pools.iter().position(|it| it.drive == drive).unwrap_or_else(|| {
        saved.pools.push(Pooled { drive: drive.to_owned(), ..Pooled::default() });
        saved.pools.len() - 1
    });
    &mut saved.pools[at]
}

/// The block size that a namespace was given at first, if the drive has it.
pub(super) fn first_block_size(spec: &DriveSpec, saved: &Saved, nsid: u32) -> Option<u32> {
    let declared = spec.namespace(nsid).map(|namespace| namespace.block_size);
    declared.or_else(|| Some(of(saved, &spec.name)?.namespace(nsid)?.block_size))
}

/// If a drive has a namespace, whoever made it.
pub(super) fn has(spec: &DriveSpec, saved: &Saved, nsid: u32) -> bool {
    first_block_size(spec, saved, nsid).is_some()
}

/// If a drive can have what hosts made of it.
pub(super) fn check(spec: &DriveSpec, saved: &Saved) -> Result<(), Problem> {
    let created = of(saved, &spec.name).map_or(&[][..], |pooled| &pooled.created);
    let name = &spec.name;
    if let Some(first) = created.first().filter(|_| spec.pool.is_none()) {
        let nsid = first.nsid;
        return Err(Problem::conflict(format!("a host has created namespace {nsid} of drive `{name}` in a pool that the drive does not have any more"))
            .hint("give the drive its pool back; a host can delete the namespace then (nvme delete-ns)"));
    }
    if let Some(twice) = created.iter().find(|it| spec.namespace(it.nsid).is_some()) {
        let nsid = twice.nsid;
        return Err(Problem::conflict(format!(
            "a host has created namespace {nsid} of drive `{name}`, which the configuration declares now"
        ))
        .hint("take it out of the configuration; a host can delete its own then (nvme delete-ns)"));
    }
    Ok(())
}

/// Removes what no namespace of a drive has, and forgets it when it is gone.
pub(super) fn sweep(spec: &DriveSpec, saved: &mut Saved) {
    let Some(folder) = spec.pool.as_ref().and_then(|pool| pool.folder.as_deref()) else { return };
    if of(saved, &spec.name).is_none_or(|pooled| pooled.leaving.is_empty()) {
        return;
    }
    of_mut(saved, &spec.name).leaving.retain(|file| !remove(&folder.join(file)));
}

/// Whether it is gone.
fn remove(path: &Path) -> bool {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!("{} is not removed, and takes room: {error}", path.display());
            false
        }
        _ => true,
    }
}

pub(super) fn note_deletion(saved: &mut Saved, drive: &str, nsids: &[u32]) {
    of_mut(saved, drive).remove(nsids);
    // What was said of them is not said of whatever has their NSIDs next.
    saved.formatted.retain(|it| it.drive != drive || !nsids.contains(&it.nsid));
    saved.uncorrectable.retain(|it| it.drive != drive || !nsids.contains(&it.nsid));
    saved.reserved.retain(|it| it.drive != drive || !nsids.contains(&it.nsid));
}

pub(super) fn note_attachment(saved: &mut Saved, drive: &str, nsid: u32, attachment: &Attachment) {
    of_mut(saved, drive).attach(nsid, attachment);
}

impl Drives {
    /// Gives a new namespace its number, and makes its file, which the state knows before.
    fn make_file(
        &self,
        saved: &mut Saved,
        spec: &DriveSpec,
        pool: &PoolSpec,
        creation: Creation,
    ) -> Result<Created, Problem> {
        let first = of(saved, &spec.name).map_or(0, |pooled| pooled.numbers) + 1;
        let Some(folder) = &pool.folder else { return Ok(Created::of(creation, first, None)) };
        crate::listen::make_folder(folder, 0o700)?;
        // Drives may share a folder. What is there is somebody's that the state does not know of.
        for number in first..first + NAMES_MAX {
            let file = format!("{}-{}-{number}.img", spec.name, creation.nsid);
            if folder.join(&file).symlink_metadata().is_ok() {
                continue;
            }
            let mut next = saved.clone();
            of_mut(&mut next, &spec.name).expect(&file);
            self.state.store(&next)?;
            if make_new(&folder.join(&file))? {
                *saved = next;
                return Ok(Created::of(creation, number, Some(file)));
            }
        }
        Err(Problem::conflict(format!(
            "{} has files of all names that a namespace could have",
            folder.display()
        ))
        .hint("they are of namespaces that the daemon does not know: move them away"))
    }

    /// Deletes a namespace that a host has created, with what is in it. One of a drive with a client goes only by
    /// `force`.
    pub fn delete_namespace(&self, name: &str, nsid: u32, force: bool) -> Result<(), Problem> {
        // What it changes is stored by who remembers what hosts do, who takes the lock of changes.
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

    /// Makes the namespace that a host creates, hands it to its drive, and stores that it is there.
    pub(super) fn create_namespace(
        &self,
        saved: &mut Saved,
        entry: &Entry,
        creation: Creation,
    ) -> Result<(), Problem> {
        let (spec, running) = (&entry.spec, entry.running.clone()?);
        let no_pool = || Problem::conflict(format!("drive `{}` has no pool", spec.name));
        let pool = spec.pool.as_ref().ok_or_else(no_pool)?;
        let created = self.make_file(saved, spec, pool, creation)?;
        let made = running.create_namespace(spec, &created, creation).and_then(|()| sync(pool, &created));
        let mut next = saved.clone();
        let stored = made.and_then(|()| {
            of_mut(&mut next, &spec.name).add(created);
            self.state.store(&next)
        });
        // What could not be stored may be, for all that is known: its file goes when the state says again that it does.
        stored.map(|()| *saved = next)
    }
}

/// Makes it durable that the file is there, before the state says that it has to be.
fn sync(pool: &PoolSpec, created: &Created) -> Result<(), Problem> {
    let (Some(folder), Some(file)) = (&pool.folder, &created.file) else { return Ok(()) };
    let sync = |path: &Path| File::open(path).and_then(|file| file.sync_all());
    let synced = sync(&folder.join(file)).and_then(|()| sync(folder));
    synced.map_err(|error| Problem::io("make a namespace durable in", folder, &error))
}

/// Makes a file that nobody has. False if somebody has one of that name.
fn make_new(path: &Path) -> Result<bool, Problem> {
    match File::options().write(true).create_new(true).mode(0o600).open(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(Problem::io("make the namespace", path, &error)),
    }
}
