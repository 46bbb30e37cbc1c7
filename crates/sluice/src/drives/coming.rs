//! Drives that are being created: their names and serial numbers are taken, and other changes go on until they are open.
//! To open one may take long: a key is derived for as long as its header says, a machine on the network does not answer.

use super::{Drives, lock};
use crate::problem::Problem;
use crate::spec::DriveSpec;

/// A drive on its way.
#[derive(Clone, Debug)]
pub(super) struct Coming {
    pub(super) name: String,
    pub(super) serial: String,
    pub(super) reactor: usize,
}

/// Holds what a drive takes while it is created.
pub(super) struct Reservation<'a> {
    drives: &'a Drives,
    name: String,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        lock(&self.drives.coming).retain(|coming| coming.name != self.name);
    }
}

impl Drives {
    /// Takes name and serial number of a drive. To be called by who holds the changes.
    pub(super) fn reserve(&self, spec: &DriveSpec, reactor: usize) -> Result<Reservation<'_>, Problem> {
        let (name, serial) = (spec.name.clone(), spec.serial());
        self.check_serial(spec)?;
        let mut coming = lock(&self.coming);
        if let Some(other) = coming.iter().find(|other| other.serial == serial) {
            return Err(super::serial_taken(&other.name, &serial));
        }
        coming.push(Coming { name: name.clone(), serial, reactor });
        Ok(Reservation { drives: self, name })
    }

    /// A drive of this name is being created.
    pub(super) fn is_coming(&self, name: &str) -> bool {
        lock(&self.coming).iter().any(|coming| coming.name == name)
    }
}

/// A change of a drive that is not open yet.
pub(super) fn still_coming(name: &str) -> Problem {
    Problem::conflict(format!("drive `{name}` is being created")).hint("try again when it is there")
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
