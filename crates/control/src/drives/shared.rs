//! Shared objects: grown under running drives, and opened again.

use super::storage::Insist;
use super::{Drives, SharedView, VolumeView, lock};
use crate::config::Config;
use crate::state::{GrownPool, Saved, StateFile};
use sluice_spec::error::{ApiError, Kind};
use sluice_spec::size::Size;
use sluice_spec::{DriveSpec, SharedKind, SharedSpec};
use std::path::Path;
use std::sync::MutexGuard;

/// Returns whether an operator has grown this pool.
fn is_grown(grown: &GrownPool, spec: &SharedSpec) -> bool {
    spec.kind == SharedKind::Thin && spec.name == grown.name && spec.path.as_ref() == Some(&grown.path)
}

/// Returns the shared objects with the sizes that apply. A pool only grows: a smaller size in the file does not count.
fn effective(declared: &[SharedSpec], saved: &Saved) -> Vec<SharedSpec> {
    let of = |spec: &SharedSpec| {
        let grown = saved.grown.iter().find(|grown| is_grown(grown, spec));
        let size = grown.map_or(spec.size, |grown| grown.size.max(spec.size));
        SharedSpec { size, ..spec.clone() }
    };
    declared.iter().map(of).collect()
}

/// Reads the shared objects of a daemon before it starts them, with the sizes that apply.
///
/// # Errors
/// The state cannot be read.
pub fn shared_at_start(config: &Config, state: &StateFile) -> Result<Vec<SharedSpec>, ApiError> {
    Ok(effective(&config.shared, &state.load()?))
}

/// Reads the state in a folder, and returns the shared objects with the sizes that apply. Changes no file.
///
/// # Errors
/// The state cannot be read.
pub fn foresee_shared(config: &Config, state: &Path) -> Result<Vec<SharedSpec>, ApiError> {
    Ok(effective(&config.shared, &StateFile::peek(state)?))
}

/// Removes sizes that the configuration has reached. Returns the shared objects with the sizes that apply.
pub(super) fn merge(config: &Config, saved: &mut Saved) -> Vec<SharedSpec> {
    let is_reached =
        |grown: &GrownPool| config.shared.iter().any(|spec| is_grown(grown, spec) && spec.size >= grown.size);
    saved.grown.retain(|grown| !is_reached(grown));
    effective(&config.shared, saved)
}

/// Returns the names of the pools that a drive uses. The layers of functions are in no pool.
pub(super) fn pools_of(drive: &DriveSpec) -> impl Iterator<Item = &str> {
    drive.namespaces.iter().filter_map(|namespace| namespace.shared.as_deref())
}

impl Drives {
    /// Returns the shared objects.
    pub fn shared(&self) -> Result<Vec<SharedView>, ApiError> {
        self.engine.shared()
    }

    /// Returns the descriptions of the shared objects, as they are now.
    pub fn shared_specs(&self) -> Vec<SharedSpec> {
        lock(&self.shared).clone()
    }

    /// Opens the thin pools that no drive has opened, after another process has given them up.
    pub fn open_shared(&self) {
        self.engine.open_shared();
    }

    /// Waits until no other order changes a pool, and no upgrade is under way. None begins before the guard is dropped.
    fn order_pool(&self) -> Result<MutexGuard<'_, ()>, ApiError> {
        let only = lock(&self.pool_orders);
        self.may_change().map(|()| only)
    }

    fn shared_view(&self, name: &str) -> Result<SharedView, ApiError> {
        let found = self.engine.shared()?.into_iter().find(|shared| shared.name == name);
        found.ok_or_else(|| ApiError::not_found(format!("there is no shared object `{name}`")))
    }

    /// Grows a thin pool under running drives to `size`, or to all of its file or device. Writes that wait for space
    /// continue. The size is stored first: a daemon that is killed in between grows the pool at its next start.
    ///
    /// # Errors
    /// The pool cannot have that size. Nothing has changed then.
    pub fn grow_shared(&self, name: &str, size: Option<Size>) -> Result<SharedView, ApiError> {
        let _only = self.order_pool()?;
        let size = self.engine.plan_growth(name, size)?;
        let found = self.shared_specs().into_iter().find(|spec| spec.name == name);
        let spec = found.ok_or_else(|| ApiError::not_found(format!("there is no shared object `{name}`")))?;
        let spec = SharedSpec { size, ..spec };
        spec.check(self.reactors)?;
        let before = self.saved().grown;
        self.store(|saved| {
            saved.grown.retain(|grown| !is_grown(grown, &spec));
            let (name, path) = (name.to_owned(), spec.path.clone().unwrap_or_default());
            saved.grown.push(GrownPool { name, path, size });
        })?;
        if let Err(problem) = self.engine.grow_shared(name, size) {
            self.store(|saved| saved.grown = before)?;
            return Err(problem);
        }
        lock(&self.shared).iter_mut().filter(|it| it.name == name).for_each(|it| it.size = size);
        tracing::info!("pool {name} has grown to {size}");
        self.shared_view(name)
    }

    /// Returns the volumes of a thin pool.
    pub fn volumes(&self, pool: &str) -> Result<Vec<VolumeView>, ApiError> {
        self.engine.volumes(pool)
    }

    /// Makes a volume of a thin pool with the content of another one. If a drive uses the other one, its writes wait for a
    /// moment.
    ///
    /// # Errors
    /// There is no such volume, or one of the new name, or no room.
    pub fn clone_volume(&self, pool: &str, from: &str, to: &str) -> Result<VolumeView, ApiError> {
        let _only = self.order_pool()?;
        self.engine.clone_volume(pool, from, to)?;
        tracing::info!("pool {pool}: volume {} is a clone of {}", to.escape_debug(), from.escape_debug());
        let made = self.engine.volumes(pool)?.into_iter().find(|volume| volume.name == to);
        made.ok_or_else(|| {
            ApiError::conflict(format!("volume `{}` was deleted meanwhile", to.escape_debug()))
        })
    }

    /// Deletes a volume of a thin pool.
    ///
    /// # Errors
    /// A drive uses it, open or not.
    pub fn delete_volume(&self, pool: &str, volume: &str) -> Result<(), ApiError> {
        let _only = self.order_pool()?;
        let has = |drive: &DriveSpec| {
            let mut namespaces = drive.namespaces.iter();
            namespaces.any(|it| it.shared.as_deref() == Some(pool) && it.volume.as_deref() == Some(volume))
        };
        let user = lock(&self.entries).values().find(|entry| has(&entry.spec)).map(|it| it.spec.name.clone());
        if let Some(drive) = user {
            let volume = volume.escape_debug();
            return Err(ApiError::new(Kind::InUse, format!("volume `{volume}` is that of drive `{drive}`"))
                .hint(format!("`sluice drive delete {drive}` first, which keeps the volume")));
        }
        self.engine.delete_volume(pool, volume)?;
        tracing::info!("pool {pool}: volume {} deleted", volume.escape_debug());
        Ok(())
    }

    /// Opens a thin pool that did not open, and the drives that failed without it.
    ///
    /// # Errors
    /// The pool does not open, or one of the drives.
    pub fn retry_shared(&self, name: &str) -> Result<SharedView, ApiError> {
        let _only = self.order_pool()?;
        self.engine.retry_shared(name)?;
        let is_failed =
            |entry: &&super::Entry| entry.running.is_err() && pools_of(&entry.spec).any(|pool| pool == name);
        let failed: Vec<String> =
            lock(&self.entries).values().filter(is_failed).map(|entry| entry.spec.name.clone()).collect();
        let opened: Vec<_> = failed.iter().map(|drive| self.open(drive, Insist::default())).collect();
        opened.into_iter().find_map(Result::err).map_or(Ok(()), Err)?;
        self.shared_view(name)
    }

    /// Grows the thin pools that the configuration declares larger. Returns the refused changes.
    pub(super) fn reload_shared(&self, config: &Config) -> Vec<ApiError> {
        let present = self.shared_specs();
        let change = |spec: &SharedSpec| {
            let now = present.iter().find(|now| now.name == spec.name);
            match now {
                Some(now) if now == spec => None,
                Some(now) if *now == (SharedSpec { size: now.size, ..spec.clone() }) => {
                    let is_smaller = spec.kind == SharedKind::Thin && spec.size < now.size;
                    // A pool that was grown by an operator stays as it is.
                    let grown = (!is_smaller).then(|| self.grow_shared(&spec.name, Some(spec.size)));
                    grown.and_then(Result::err)
                }
                _ => Some(
                    ApiError::new(Kind::Conflict, format!("[[shared]] `{}` is not what it was", spec.name))
                        .hint("restart the daemon to apply that"),
                ),
            }
        };
        config.shared.iter().filter_map(change).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::script::{MIB, Stage};
    use super::super::{ApplyRequest, lock};
    use super::*;
    use std::sync::atomic::Ordering::SeqCst;

    const POOL: &str = "[[shared]]\nname = \"a\"\ntype = \"thin\"\npath = \"/a\"\nsize = \"1MiB\"\n";

    #[test]
    fn a_growth_that_is_not_stored_is_not_made_and_one_that_fails_is_not_stored() {
        let stage = Stage::new();
        let drives = stage.start(POOL);
        let sizes = || {
            let stored = drives.saved().grown.iter().map(|it| it.size.0 / MIB).collect::<Vec<_>>();
            let made = lock(&stage.script.grown).get("a").map(|size| size.0 / MIB);
            (drives.shared_specs()[0].size.0 / MIB, stored, made)
        };
        let grow = |size: u64| drives.grow_shared("a", Some(Size(size * MIB)));
        stage.break_disk();
        grow(2).expect_err("it is not stored");
        assert_eq!(sizes(), (1, vec![], None));
        stage.mend_disk();
        stage.script.refuse_growth.store(true, SeqCst);
        assert_eq!(grow(2).expect_err("it does not grow").error, "the file system is full");
        assert_eq!(sizes(), (1, vec![], None));
        stage.script.refuse_growth.store(false, SeqCst);
        grow(2).expect("it grows");
        assert_eq!(sizes(), (2, vec![2], Some(2)));
        grow(2000).expect_err("it is too large");
        assert_eq!(sizes(), (2, vec![2], Some(2)));
        // A file that makes a drive, too, is applied as a whole or not at all.
        let text = POOL.replace("1MiB", "3MiB")
            + "[[drive]]\nname = \"d\"\n[[drive.namespace]]\ntarget = \"memory\"\nsize = \"1MiB\"\n";
        let request = ApplyRequest { file: "/b.toml".into(), text, ..ApplyRequest::default() };
        stage.script.refuse_growth.store(true, SeqCst);
        let refused = drives.apply_file(&request).expect_err("the pool does not grow");
        assert!(refused.error.contains("the file system is full; nothing was changed"), "{refused}");
        assert_eq!((sizes(), drives.list().len()), ((2, vec![2], Some(2)), 0));
        stage.script.refuse_growth.store(false, SeqCst);
        drives.apply_file(&request).expect("it grows");
        assert_eq!((sizes(), drives.list().len()), ((3, vec![3], Some(3)), 1));
        // The next daemon has the size, and forgets it when the file has it.
        drop(drives);
        assert_eq!(stage.start(POOL).shared_specs()[0].size, Size(3 * MIB));
        let drives = stage.start(&POOL.replace("1MiB", "4MiB"));
        assert_eq!((drives.shared_specs()[0].size, drives.saved().grown.len()), (Size(4 * MIB), 0));
    }

    fn pool(name: &str, path: &str, size: u64) -> SharedSpec {
        let (kind, path) = (SharedKind::Thin, Some(path.into()));
        SharedSpec { name: name.to_owned(), kind, size: Size(size), path, reactor: 0 }
    }

    #[test]
    fn the_larger_size_of_a_pool_applies_until_the_file_has_it() {
        let grown = GrownPool { name: "a".to_owned(), path: "/a".into(), size: Size(200) };
        let mut saved = Saved { grown: vec![grown.clone()], ..Saved::default() };
        let sizes = |saved: &mut Saved, specs: Vec<SharedSpec>| {
            let config = Config { shared: specs, ..Config::default() };
            merge(&config, saved).iter().map(|spec| spec.size.0).collect::<Vec<_>>()
        };
        let others = [pool("a", "/other", 100), pool("b", "/a", 100)];
        assert_eq!(sizes(&mut saved, others.to_vec()), [100, 100]);
        assert_eq!(sizes(&mut saved, Vec::new()), [0; 0]);
        assert_eq!(sizes(&mut saved, vec![pool("a", "/a", 100)]), [200]);
        assert_eq!(saved.grown, [grown]);
        assert_eq!(sizes(&mut saved, vec![pool("a", "/a", 300)]), [300]);
        assert!(saved.grown.is_empty(), "the file has said it");
    }
}
