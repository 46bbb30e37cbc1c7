//! Creation and deletion of drives by orders.

use super::storage::{Settled, Why};
use super::{DriveView, Drives, Entry, Origin, Remembered, drain, lock, persist};
use crate::state::KeptObject;
use sluice_spec::DriveSpec;
use sluice_spec::error::ApiError;

impl Drives {
    /// Creates a new drive: opens and stores it.
    pub fn create(&self, mut spec: DriveSpec) -> Result<DriveView, ApiError> {
        spec.check()?;
        let reserved = self.reserve(&spec)?;
        let original = spec.classifier.as_ref().map(|classifier| classifier.object.clone());
        let (classifier, kept) = self.keep_object(spec.classifier.take())?;
        spec.classifier = classifier;
        let created = self.create_reserved(spec, reserved.reactor);
        let Some((original, copy)) = original.zip(kept.map(KeptObject::into_path)) else { return created };
        created.map_err(|problem| {
            self.sweep_objects();
            problem.naming(&original, &copy)
        })
    }

    /// Creates a drive whose name is reserved.
    fn create_reserved(&self, spec: DriveSpec, reactor: usize) -> Result<DriveView, ApiError> {
        // The drive is new, even if another had its name before.
        let settled = self.settle_storage(&spec, Why::Created)?;
        let created = self.create_settled(spec, reactor, &settled);
        created.inspect_err(|_| settled.remove_made())
    }

    /// Creates a drive whose files exist.
    fn create_settled(
        &self,
        spec: DriveSpec,
        reactor: usize,
        settled: &Settled,
    ) -> Result<DriveView, ApiError> {
        let remembered = Remembered { uuids: settled.uuids.clone(), ..Remembered::default() };
        let running = self.open_engine(&spec, reactor, remembered)?;
        let name = spec.name.clone();
        if let Err(problem) = self.store_created(&spec, settled) {
            return Err(drain::end_one(&name, running).err().unwrap_or(problem));
        }
        self.state.forget_history(&name);
        tracing::info!("drive {name} created, on reactor {reactor}");
        let entry = Entry { spec, origin: Origin::Created, reactor, moved: false, running: Ok(running) };
        let view = self.view(&entry);
        lock(&self.entries).insert(name, entry);
        Ok(view)
    }

    /// Stores a drive that is open, unless the configuration file meanwhile declares a drive of its name.
    fn store_created(&self, spec: &DriveSpec, settled: &Settled) -> Result<(), ApiError> {
        self.may_change()?;
        let declared = lock(&self.declared);
        if declared.iter().any(|other| other.name == spec.name) {
            return Err(self.is_declared(&spec.name));
        }
        self.store_without_hosted(&spec.name, |saved| {
            persist::forget(saved, &spec.name);
            settled.note(saved);
            saved.drives.push(spec.clone());
        })
    }

    /// Ends a drive and removes its records; its files stay. A drive with a client is refused without
    /// `force`, because the virtual machine does not survive the end of its drive.
    pub fn delete(&self, name: &str, force: bool) -> Result<(), ApiError> {
        let _only = self.change(name)?;
        let entry = self.entry(name)?;
        if entry.origin == Origin::Declared {
            return Err(self.is_declared(name));
        }
        if let (Ok(running), false) = (&entry.running, force)
            && running.status()?.connected
        {
            return Err(in_use(name));
        }
        self.store_without_hosted(name, |saved| {
            saved.drives.retain(|drive| drive.name != name);
            persist::forget(saved, name);
        })?;
        self.sweep_objects();
        tracing::info!("drive {name} deleted");
        self.end(entry)
    }

    /// Ends a drive whose records are removed. The drive stays listed until its end, since commands may wait
    /// for the result of a store.
    pub(super) fn end(&self, entry: Entry) -> Result<(), ApiError> {
        let name = &entry.spec.name;
        let running = entry.running.ok();
        let ended = running.clone().map_or(Ok(()), |running| drain::end_one(name, running));
        // The entry is dropped without the lock: dropping it may take long.
        let gone = lock(&self.entries).remove(name);
        drop(gone);
        running.into_iter().for_each(drain::let_go);
        if let Err(problem) = self.forget(name) {
            tracing::warn!(
                "what the hosts of drive {name} did in its last moments stays remembered: {problem}"
            );
        }
        ended
    }
}

pub(super) fn in_use(name: &str) -> ApiError {
    ApiError::conflict(format!("drive `{name}` has a client, which would not survive it"))
        .hint("shut the virtual machine down first, or insist (--force)")
}
