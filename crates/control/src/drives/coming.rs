//! Drives that are being created. Their names and serial numbers are taken, while other changes proceed until
//! the drives are open. An open may take long: a key derivation takes as long as its header demands, or a
//! machine on the network does not respond.

use super::{DRIVES_MAX, Drives, Entry, lock, serial_taken};
use sluice_spec::DriveSpec;
use sluice_spec::error::ApiError;
use std::collections::BTreeMap;

/// A drive that is being created.
#[derive(Clone, Debug)]
pub(super) struct Coming {
    pub(super) name: String,
    pub(super) serial: String,
    pub(super) reactor: usize,
}

/// Reservation of a drive's name, serial number and reactor while the drive is created.
pub(super) struct Reservation<'a> {
    drives: &'a Drives,
    name: String,
    /// The reactor that the drive is opened on.
    pub(super) reactor: usize,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        lock(&self.drives.coming).retain(|coming| coming.name != self.name);
    }
}

impl Drives {
    /// Reserves the name, serial number and reactor of a drive.
    pub(super) fn reserve(&self, spec: &DriveSpec) -> Result<Reservation<'_>, ApiError> {
        self.reserve_if(spec, check_serial)
    }

    /// Reserves them for a declared drive. It is kept as failed if another drive has its serial number.
    pub(super) fn reserve_declared(&self, spec: &DriveSpec) -> Result<Reservation<'_>, ApiError> {
        self.reserve_if(spec, |_, _, _| Ok(()))
    }

    fn reserve_if(
        &self,
        spec: &DriveSpec,
        check: impl FnOnce(&DriveSpec, &BTreeMap<String, Entry>, &[Coming]) -> Result<(), ApiError>,
    ) -> Result<Reservation<'_>, ApiError> {
        let entries = lock(&self.entries);
        let mut coming = lock(&self.coming);
        check_free(&spec.name, &entries, &coming)?;
        check(spec, &entries, &coming)?;
        let (name, serial) = (spec.name.clone(), spec.serial());
        let reactor = self.place_beside(spec, &entries, &coming, &[]);
        coming.push(Coming { name: name.clone(), serial, reactor });
        drop((entries, coming));
        let reservation = Reservation { drives: self, name, reactor };
        // A daemon that stops waits for all reservations made before its check.
        self.may_change().map(|()| reservation)
    }

    /// Returns whether a drive of this name is being created.
    pub(super) fn is_coming(&self, name: &str) -> bool {
        lock(&self.coming).iter().any(|coming| coming.name == name)
    }
}

fn check_free(name: &str, entries: &BTreeMap<String, Entry>, coming: &[Coming]) -> Result<(), ApiError> {
    if coming.iter().any(|coming| coming.name == name) {
        return Err(still_coming(name));
    }
    if entries.contains_key(name) {
        return Err(ApiError::conflict(format!("there is a drive `{name}` already"))
            .hint("choose another name, or delete that one first"));
    }
    if entries.len() + coming.len() >= DRIVES_MAX {
        return Err(ApiError::conflict(format!("there are {DRIVES_MAX} drives already"))
            .hint("that is the most one daemon serves: start another with its own configuration"));
    }
    Ok(())
}

/// Checks that no other drive has the serial number, open or being created.
pub(super) fn check_serial(
    spec: &DriveSpec,
    entries: &BTreeMap<String, Entry>,
    coming: &[Coming],
) -> Result<(), ApiError> {
    let serial = spec.serial();
    let there = entries.values().map(|entry| (&entry.spec.name, entry.spec.serial()));
    let coming = coming.iter().map(|coming| (&coming.name, coming.serial.clone()));
    match there.chain(coming).find(|(name, other)| **name != spec.name && *other == serial) {
        Some((other, _)) => Err(serial_taken(other, &serial)),
        None => Ok(()),
    }
}

/// Returns the error for a change of a drive that is still being created.
pub(super) fn still_coming(name: &str) -> ApiError {
    ApiError::conflict(format!("drive `{name}` is being created")).hint("try again when it is there")
}

#[cfg(test)]
mod tests {
    use super::super::script::{DECLARED, Stage, spec};
    use super::super::tests::wait_for;
    use super::*;

    #[test]
    fn a_drive_that_takes_long_to_open_holds_up_no_other_change() {
        let stage = Stage::new();
        let drives = stage.start(DECLARED);
        stage.script.opening.store(false, std::sync::atomic::Ordering::SeqCst);
        *lock(&stage.script.hangs) = Some("late".to_owned());
        let hanging = lock(&stage.script.hang_open);
        std::thread::scope(|threads| {
            let late = threads.spawn(|| drives.create(spec("late")));
            wait_for(&stage.script.opening);
            drives.create(spec("other")).expect("another drive is created meanwhile");
            drives.delete("other", false).expect("and deleted");
            let twice = drives.create(spec("late")).expect_err("the name is taken");
            assert_eq!(twice.error, "drive `late` is being created");
            let serial = Some(spec("late").serial());
            let like =
                drives.create(DriveSpec { serial, ..spec("like") }).expect_err("so is its serial number");
            assert!(like.error.starts_with("drive `late` has the serial number"), "{like}");
            assert!(drives.show("late").is_err(), "it is not there before it is open");
            drop(hanging);
            late.join().expect("no panic").expect("it opens");
        });
        drives.show("late").expect("it is there");
        assert!(!drives.is_coming("late"));
    }

    #[test]
    fn a_classifier_of_a_drive_that_takes_long_to_open_is_not_swept_away() {
        let stage = Stage::new();
        let drives = stage.start(DECLARED);
        let object = stage.folder.path().join("a.o");
        std::fs::write(&object, "a program").expect("room");
        let classifier = serde_json::from_value(serde_json::json!({ "object": object })).ok();
        stage.script.opening.store(false, std::sync::atomic::Ordering::SeqCst);
        *lock(&stage.script.hangs) = Some("late".to_owned());
        let hanging = lock(&stage.script.hang_open);
        std::thread::scope(|threads| {
            let late = threads.spawn(|| drives.create(DriveSpec { classifier, ..spec("late") }));
            wait_for(&stage.script.opening);
            drives.create(spec("other")).expect("another drive is created meanwhile");
            drives.delete("other", false).expect("and deleted, which sweeps");
            drop(hanging);
            let view = late.join().expect("no panic").expect("it opens");
            assert!(view.classifier.is_some_and(|it| it.object.exists()), "its copy is there");
        });
        assert!(lock(&drives.saved).drives.iter().any(|drive| drive.classifier.is_some()));
    }

    #[test]
    fn a_drive_that_is_open_too_late_is_closed_again() {
        let stage = Stage::new();
        let drives = stage.start(DECLARED);
        stage.script.opening.store(false, std::sync::atomic::Ordering::SeqCst);
        *lock(&stage.script.hangs) = Some("late".to_owned());
        let hanging = lock(&stage.script.hang_open);
        std::thread::scope(|threads| {
            let late = threads.spawn(|| drives.create(spec("late")));
            wait_for(&stage.script.opening);
            let hurry = std::sync::atomic::AtomicBool::new(false);
            drives.drain(std::time::Instant::now(), &hurry).expect_err("it is under way");
            drop(hanging);
            late.join().expect("no panic").expect_err("the daemon stops");
        });
        assert!(!drives.saved().drives.iter().any(|drive| drive.name == "late"), "nothing of it is stored");
    }
}
