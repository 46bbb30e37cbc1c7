//! Opens drives later that failed because something was in use, or another machine did not respond.
//!
//! The kernel keeps the locks of a killed daemon while a write of that daemon is in progress. A slow device
//! may take minutes for the write. Another process may serve the storage, and end. After a power cut,
//! machines start in any order.

use super::{Drives, Entry, Why, lock};
use sluice_spec::error::{ApiError, Kind};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Interval between two checks for failed drives.
const LOOK: Duration = Duration::from_secs(1);

/// Initial and maximum time between two attempts.
const FIRST: Duration = Duration::from_secs(1);
const MOST: Duration = Duration::from_secs(30);

/// The next attempt to open a drive, and the pause before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Try {
    at: Instant,
    pause: Duration,
}

/// Attempts for the failed drives, by name.
#[derive(Debug, Default)]
pub(super) struct Tries(BTreeMap<String, Try>);

impl Drives {
    /// Starts a thread that opens failed drives again if the failure may be temporary. The attempts become
    /// rarer with time.
    pub fn heed_failures(self: &Arc<Self>) -> Result<(), ApiError> {
        let drives = Arc::downgrade(self);
        let heed = move || {
            let mut tries = Tries::default();
            loop {
                std::thread::sleep(LOOK);
                let Some(drives) = drives.upgrade() else { return };
                if drives.is_ending() {
                    return;
                }
                drives.retry_failed(&mut tries, Instant::now());
            }
        };
        std::thread::Builder::new()
            .name("retry".to_owned())
            .spawn(heed)
            .map(drop)
            .map_err(|error| ApiError::internal(format!("cannot start a thread: {error}")))
    }

    /// Opens the failed drives whose next attempt is due.
    pub(super) fn retry_failed(&self, tries: &mut Tries, now: Instant) {
        let may_pass = |entry: &Entry| entry.running.as_ref().is_err_and(may_pass);
        let entries = lock(&self.entries);
        tries.0.retain(|name, _| entries.get(name).is_some_and(may_pass));
        let failed = entries.iter().filter(|(_, entry)| may_pass(entry)).map(|(name, _)| name.clone());
        let failed: Vec<String> = failed.collect();
        drop(entries);
        for name in failed {
            let next = tries.0.entry(name.clone()).or_insert_with(|| {
                tracing::warn!(
                    "drive {name} is tried again now and then, until what it needs is there and free"
                );
                Try { at: now + FIRST, pause: FIRST }
            });
            if now >= next.at {
                next.pause = (next.pause * 2).min(MOST);
                next.at = now + next.pause;
                self.retry(&name);
            }
        }
    }

    /// Opens a failed drive, unless a change of it is in progress.
    fn retry(&self, name: &str) {
        let Some(_only) = self.changes.try_begin(name) else { return };
        let Ok(entry) = self.entry(name) else { return };
        if self.may_change().is_err() || entry.running.is_ok() {
            return;
        }
        match self.try_again(&entry.spec, entry.reactor, Why::KNOWN) {
            Ok(running) => {
                self.amend(name, |entry| entry.running = Ok(running));
                tracing::info!("drive {name} is open: what it needs was in use or did not answer before");
            }
            Err(problem) if may_pass(&problem) => {}
            Err(problem) => {
                tracing::error!("drive {name} is not open: {}", problem.in_one_line());
                self.amend(name, |entry| entry.running = Err(problem));
            }
        }
    }
}

/// Returns whether the reason of a failure may disappear without a change of the drive.
fn may_pass(problem: &ApiError) -> bool {
    matches!(problem.kind, Kind::InUse | Kind::Unreachable)
}

#[cfg(test)]
mod tests {
    use super::super::script::{DECLARED, Stage};
    use super::*;
    use crate::drives::DriveState;
    use std::sync::atomic::Ordering::SeqCst;

    /// Covers a restart while the device still completes a write of the killed daemon.
    #[test]
    fn a_drive_whose_storage_was_in_use_is_opened_when_that_is_free() {
        let stage = Stage::new();
        let drives = stage.start(DECLARED);
        let in_use = ApiError::new(Kind::InUse, "another process serves it");
        drives.amend("fixed", |entry| entry.running = Err(in_use));
        stage.script.lingering.store(3, SeqCst);
        let state = || drives.show("fixed").expect("it is known").state;
        let (mut tries, start) = (Tries::default(), Instant::now());
        let mut opened = Vec::new();
        for second in 0..40 {
            let before = stage.script.lingering.load(SeqCst);
            drives.retry_failed(&mut tries, start + Duration::from_secs(second));
            if stage.script.lingering.load(SeqCst) != before || state() == DriveState::Ready {
                opened.push(second);
            }
            if state() == DriveState::Ready {
                break;
            }
        }
        assert_eq!(opened, [1, 3, 7, 15], "more and more rarely");
        drives.retry_failed(&mut tries, start);
        assert!(tries.0.is_empty());
    }

    #[test]
    fn a_drive_that_failed_for_another_reason_is_left() {
        let stage = Stage::new();
        lock(&stage.script.refuse_open).push("fixed".to_owned());
        let drives = stage.start(DECLARED);
        let mut tries = Tries::default();
        lock(&stage.script.refuse_open).clear();
        for second in 0..9 {
            drives.retry_failed(&mut tries, Instant::now() + Duration::from_secs(second));
        }
        assert_eq!(drives.show("fixed").expect("it is known").state, DriveState::Failed);
    }
}
