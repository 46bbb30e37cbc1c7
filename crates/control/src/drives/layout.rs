//! Functions of drives: moved, attached and detached under load, and stored.

use super::function::no_function;
use super::storage::Why;
use super::{Drives, Entry, FunctionView, Origin, Store, paused};
use crate::state::{Arranged, Saved};
use sluice_spec::error::ApiError;
use sluice_spec::words::count;
use sluice_spec::{DriveSpec, FunctionSpec, Place, UifSpec};

impl Drives {
    /// Moves a function to another place. Its commands in flight complete in the old place; later commands go
    /// to the new one.
    pub fn move_function(
        &self,
        name: &str,
        number: usize,
        place: Place,
    ) -> Result<Vec<FunctionView>, ApiError> {
        let _only = self.change(name)?;
        let entry = self.entry(name)?;
        let running = entry.running.clone()?;
        let mut spec = entry.spec.clone();
        let (nsid, uif) = spec.uif_mut(number).ok_or_else(|| no_function(name, number))?;
        if uif.place == place {
            let (function, place) = (uif.about(), place.in_words());
            return Err(ApiError::conflict(format!("the function {function} of drive `{name}` is {place}")));
        }
        uif.place = place;
        let uif = uif.clone();
        spec.check()?;
        // Either place is valid after a restart, so the move is stored first.
        let go = |store: Store<'_>| store().and_then(|()| running.move_function(number, &uif));
        self.arrange(&entry, spec, nsid, go)?;
        tracing::info!("the function {} of drive {name} is {} now", uif.about(), place.in_words());
        Ok(running.functions())
    }

    /// Attaches a function to a namespace, below `below` of the functions that it has.
    pub fn attach_function(
        &self,
        name: &str,
        nsid: u32,
        below: usize,
        uif: UifSpec,
    ) -> Result<Vec<FunctionView>, ApiError> {
        let _only = self.change(name)?;
        let entry = self.entry(name)?;
        let running = entry.running.clone()?;
        let mut spec = entry.spec.clone();
        let about = uif.about();
        let namespace = spec.namespace_mut(nsid).ok_or_else(|| {
            ApiError::not_found(format!("drive `{name}` has no namespace {nsid}"))
                .hint(format!("`sluice drive show {name}` lists what it has"))
        })?;
        let functions = namespace.functions.len();
        if !namespace.attach(below, FunctionSpec::Uif(uif)) {
            return Err(ApiError::invalid(format!(
                "namespace {nsid} of drive `{name}` has {}",
                count(functions, "function")
            ))
            .hint(format!("below = 0 is over all of them, and below = {functions} under all")));
        }
        spec.check()?;
        let settled = self.settle_and_store(&spec, Why::KNOWN)?;
        let attach = |store: Store<'_>| running.attach_function(&spec, nsid, below, store);
        self.arrange(&entry, spec.clone(), nsid, attach).inspect_err(|_| self.unsettle(&settled))?;
        tracing::info!("drive {name} has the function {about} now");
        Ok(running.functions())
    }

    /// Detaches a function. The commands of its namespace bypass it from then on.
    pub fn detach_function(&self, name: &str, number: usize) -> Result<Vec<FunctionView>, ApiError> {
        let _only = self.change(name)?;
        let entry = self.entry(name)?;
        let running = entry.running.clone()?;
        let was = entry.spec.clone();
        let mut spec = was.clone();
        let (_, uif) = spec.uif_mut(number).ok_or_else(|| no_function(name, number))?;
        let about = uif.about();
        let (nsid, at) = was.place_of(number).ok_or_else(|| {
            ApiError::conflict(format!(
                "the function {about} of drive `{name}` stands below another function, or on a path of its own"
            ))
            .hint("only those of a namespace's own stack can be detached; the configuration can do without others")
        })?;
        if let Some(namespace) = spec.namespace_mut(nsid) {
            namespace.detach(at)?;
        }
        spec.check()?;
        let detach = |store: Store<'_>| running.detach_function(&was, nsid, at, store);
        self.arrange(&entry, spec, nsid, detach)?;
        tracing::info!("drive {name} does not have the function {about} any more");
        Ok(running.functions())
    }

    /// Makes a change of a namespace's functions, which stores the new layout in its course.
    fn arrange(
        &self,
        entry: &Entry,
        spec: DriveSpec,
        nsid: u32,
        change: impl FnOnce(Store<'_>) -> Result<(), ApiError>,
    ) -> Result<(), ApiError> {
        let (former, declared) = (self.saved(), self.declared(&entry.spec.name));
        let changed =
            change(&mut || self.store(|saved| remember(saved, entry, declared.as_ref(), &spec, nsid)));
        changed.or_else(|problem| self.take_back(&entry.spec.name, &former).and(Err(problem)))?;
        self.amend(&entry.spec.name, |entry| entry.spec = spec);
        Ok(())
    }
}

/// Notes the functions of a namespace: in the spec of a created drive, in a separate record of a declared
/// one.
fn remember(saved: &mut Saved, entry: &Entry, declared: Option<&DriveSpec>, spec: &DriveSpec, nsid: u32) {
    let (Some(was), Some(is)) = (entry.spec.namespace(nsid), spec.namespace(nsid)) else { return };
    let (drive, layout) = (&entry.spec.name, is.layout());
    if was.functions.len() != is.functions.len() {
        // The identifier of a job counts the functions, so it may now be that of another one.
        paused::forget_functions(saved, drive, nsid);
    }
    if entry.origin == Origin::Created {
        let created = saved.drives.iter_mut().find(|created| created.name == *drive);
        if let Some(namespace) = created.and_then(|created| created.namespace_mut(nsid)) {
            namespace.set_layout(layout);
        }
        return;
    }
    let before = saved.arranged.extract_if(.., |it| it.drive == *drive && it.nsid == nsid).last();
    // A namespace that the file does not declare now may be declared again, unchanged.
    let declared = match declared.and_then(|declared| declared.namespace(nsid)) {
        Some(namespace) => namespace.layout(),
        None => before.map_or_else(|| was.layout(), |before| before.declared),
    };
    // A layout equal to that of the configuration needs no record.
    if declared != layout {
        saved.arranged.push(Arranged { drive: drive.clone(), nsid, declared, layout });
    }
}

#[cfg(test)]
mod tests;
