//! Classifiers of drives: attached, replaced and detached under load, and stored.

mod detached;
mod maps;
mod status;

pub(super) use detached::still_detached;
pub use maps::{ENTRIES_MAX, MapDump, MapEntry, MapKindName, MapView, to_hex};
pub use status::{ClassifierStatus, ErrorCount, HookCounts, TraceLine};

use super::{Drives, Entry, Origin, Running};
use crate::state::{Classified, KeptObject, Saved};
use sluice_classifier::Map;
use sluice_spec::ClassifierSpec;
use sluice_spec::error::ApiError;
use std::sync::Arc;

/// Kind of a change of a drive's classifier.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    /// Attach to a drive without a classifier.
    Attach,
    /// Replacement of a classifier. The new one takes over the maps of the old one unless `fresh_maps` is
    /// set.
    Replace { fresh_maps: bool },
    /// Removal of a classifier.
    Detach,
}

impl Drives {
    /// Attaches a classifier to a drive.
    ///
    /// The object file is copied, so that later changes of the file have no effect.
    pub fn attach_classifier(&self, name: &str, spec: ClassifierSpec) -> Result<ClassifierStatus, ApiError> {
        self.change_classifier(name, Some(spec), Change::Attach)?;
        self.show_classifier(name)
    }

    /// Replaces the classifier of a drive. Commands in flight finish with the one they began with.
    pub fn replace_classifier(
        &self,
        name: &str,
        spec: ClassifierSpec,
        fresh_maps: bool,
    ) -> Result<ClassifierStatus, ApiError> {
        self.change_classifier(name, Some(spec), Change::Replace { fresh_maps })?;
        self.show_classifier(name)
    }

    /// Detaches the classifier of a drive. Commands take the first path from then on.
    pub fn detach_classifier(&self, name: &str) -> Result<(), ApiError> {
        self.change_classifier(name, None, Change::Detach)
    }

    pub fn show_classifier(&self, name: &str) -> Result<ClassifierStatus, ApiError> {
        self.entry(name)?.running?.classifier()?.ok_or_else(|| has_none(name))
    }

    fn change_classifier(
        &self,
        name: &str,
        spec: Option<ClassifierSpec>,
        change: Change,
    ) -> Result<(), ApiError> {
        if let Some(spec) = &spec {
            spec.check()?;
        }
        let _only = self.change(name)?;
        let entry = self.entry(name)?;
        entry.running.as_ref().map_err(Clone::clone)?;
        check_change(&entry, change)?;
        let original = spec.as_ref().map(|spec| spec.object.clone());
        let (spec, kept) = self.keep_object(spec)?;
        let fresh_maps = change != Change::Replace { fresh_maps: false };
        let declared = self.declared(name).map(|declared| declared.classifier);
        let note = |saved: &mut Saved| remember(saved, &entry, declared, spec.as_ref());
        let changed = self.exchange_classifier(&entry, spec.clone(), fresh_maps, note);
        drop(kept);
        changed.map_err(|problem| {
            self.sweep_objects();
            match (original, &spec) {
                (Some(original), Some(copy)) => problem.naming(&original, &copy.object),
                _ => problem,
            }
        })
    }

    /// Replaces a classifier by another, or by none, after the state that `note` changes is stored.
    pub(super) fn exchange_classifier(
        &self,
        entry: &Entry,
        spec: Option<ClassifierSpec>,
        fresh_maps: bool,
        note: impl FnOnce(&mut Saved),
    ) -> Result<(), ApiError> {
        let name = &entry.spec.name;
        if spec.is_some() && entry.spec.pool.is_some() {
            return Err(ApiError::conflict(format!("drive `{name}` has a pool"))
                .hint("a namespace that a host creates would go without the classifier"));
        }
        let running = entry.running.clone()?;
        let ready = running.prepare_classifier(spec.as_ref(), fresh_maps)?;
        let note = |saved: &mut Saved| {
            saved.detached.retain(|detached| detached.drive != *name);
            note(saved);
        };
        self.store_and_do(name, note, ready)?;
        self.sweep_objects();
        tell(name, entry.spec.classifier.as_ref(), spec.as_ref());
        self.amend(name, |entry| entry.spec.classifier = spec);
        Ok(())
    }

    /// Copies the object file of a classifier into the state folder. The copy stays while the second result
    /// lives.
    pub(super) fn keep_object(
        &self,
        spec: Option<ClassifierSpec>,
    ) -> Result<(Option<ClassifierSpec>, Option<KeptObject<'_>>), ApiError> {
        let Some(spec) = spec else { return Ok((None, None)) };
        let copy = self.state.keep_object(&spec.object)?;
        Ok((Some(ClassifierSpec { object: copy.path.clone(), ..spec }), Some(copy)))
    }

    /// Removes copies that no drive uses any more.
    pub(super) fn sweep_objects(&self) {
        self.state.sweep(|| self.saved());
    }

    /// Returns the maps of a drive's classifier.
    pub fn list_maps(&self, name: &str) -> Result<Vec<MapView>, ApiError> {
        Ok(self.maps(name)?.iter().map(MapView::from).collect())
    }

    /// Returns a page of a map: at most `limit` entries. `from` is zero, or the position that an earlier page
    /// gave as `next`.
    pub fn dump_map(&self, name: &str, map: &str, from: usize, limit: usize) -> Result<MapDump, ApiError> {
        Ok(maps::dump(&self.map(name, map)?, from, limit))
    }

    /// Returns an element of a map by its key in hexadecimal.
    pub fn get_map_entry(&self, name: &str, map: &str, key: &str) -> Result<MapEntry, ApiError> {
        maps::get(&*self.map(name, map)?, key)
    }

    /// Inserts or replaces an element, key and value in hexadecimal.
    pub fn set_map_entry(&self, name: &str, map: &str, key: &str, value: &str) -> Result<(), ApiError> {
        maps::set(&*self.map(name, map)?, key, value)
    }

    pub fn remove_map_entry(&self, name: &str, map: &str, key: &str) -> Result<(), ApiError> {
        maps::remove(&*self.map(name, map)?, key)
    }

    fn maps(&self, name: &str) -> Result<Vec<Arc<Map>>, ApiError> {
        let running: Arc<dyn Running> = self.entry(name)?.running?;
        running.maps().ok_or_else(|| has_none(name))
    }

    fn map(&self, name: &str, map: &str) -> Result<Arc<Map>, ApiError> {
        maps::find(&self.maps(name)?, map)
    }
}

fn check_change(entry: &Entry, change: Change) -> Result<(), ApiError> {
    let name = &entry.spec.name;
    match (&entry.spec.classifier, change) {
        (Some(there), Change::Attach) => {
            Err(ApiError::conflict(format!("drive `{name}` has the classifier {}", there.object.display()))
                .hint(format!("`sluice classifier replace {name}` puts another in its place")))
        }
        (None, Change::Replace { .. } | Change::Detach) => Err(has_none(name)),
        _ => Ok(()),
    }
}

fn has_none(name: &str) -> ApiError {
    ApiError::not_found(format!("drive `{name}` has no classifier"))
        .hint(format!("`sluice classifier attach {name} OBJECT` gives it one"))
}

/// Notes a classifier, or its absence: in the spec of a created drive, in a separate record of a declared
/// one.
fn remember(
    saved: &mut Saved,
    entry: &Entry,
    declared: Option<Option<ClassifierSpec>>,
    spec: Option<&ClassifierSpec>,
) {
    let (drive, classifier) = (&entry.spec.name, spec.cloned());
    if entry.origin == Origin::Created {
        if let Some(created) = saved.drives.iter_mut().find(|created| created.name == *drive) {
            created.classifier = classifier;
        }
        return;
    }
    let before = saved.classified.extract_if(.., |it| it.drive == *drive).last();
    // A classifier that the file does not have now may be declared again, unchanged.
    let declared = declared
        .unwrap_or_else(|| before.map_or_else(|| entry.spec.classifier.clone(), |before| before.declared));
    saved.classified.push(Classified { drive: drive.clone(), declared, classifier });
}

fn tell(name: &str, was: Option<&ClassifierSpec>, is: Option<&ClassifierSpec>) {
    match (was, is) {
        (None, Some(is)) => tracing::info!("drive {name} has the classifier {}", is.object.display()),
        (_, Some(is)) => tracing::info!("drive {name} has another classifier: {}", is.object.display()),
        (_, None) => tracing::info!("drive {name} has no classifier any more"),
    }
}

#[cfg(test)]
mod tests;
