//! Pauses of jobs, which survive a restart of the daemon, and of a function.
//!
//! The state file has the jobs that the operator has paused. A controller gets its pauses before its first
//! turn. A function that starts again begins with its jobs running, and the daemon pauses them within a second.

use super::jobs::{OF_CONTROLLER, SEPARATOR, drive_of_job};
use super::{Drives, JobState, lock};
use crate::state::Saved;
use sluice_jobs::{PaceChange, Verb};
use sluice_spec::error::ApiError;
use std::sync::Arc;
use std::time::Duration;

/// Interval between two looks at paused jobs.
const LOOK: Duration = Duration::from_secs(1);

/// Returns the jobs of a drive's controller that are paused: the NSID and the name of each.
pub(super) fn of_controller(saved: &Saved, drive: &str) -> Vec<(u32, String)> {
    let parse = |id: &String| {
        let mut parts = id.split(SEPARATOR);
        let is_own = parts.next() == Some(drive);
        let (nsid, place) = (parts.next()?.parse().ok()?, parts.next()?.parse::<usize>().ok()?);
        let name = parts.next()?.to_owned();
        (is_own && place == OF_CONTROLLER).then_some((nsid, name))
    };
    saved.paused.iter().filter_map(parse).collect()
}

fn set(saved: &mut Saved, id: &str, is_paused: bool) {
    saved.paused.retain(|other| other != id);
    saved.paused.extend(is_paused.then(|| id.to_owned()));
}

impl Drives {
    /// Stores that a job was paused, or that its pause is over. Call it during a change of the drive.
    pub(super) fn note_pause(self: &Arc<Self>, id: &str, verb: Verb) -> Result<(), ApiError> {
        match verb {
            Verb::Pause => {
                self.store(|saved| set(saved, id, true))?;
                self.keep_pauses();
                Ok(())
            }
            Verb::Resume | Verb::Cancel => self.store(|saved| set(saved, id, false)),
            Verb::Pace => Ok(()),
        }
    }

    /// Starts a thread that pauses jobs again when their functions have started again. The thread runs as long
    /// as there are paused jobs.
    pub fn keep_pauses(self: &Arc<Self>) {
        let mut watches = lock(&self.watches_pauses);
        if *watches || lock(&self.saved).paused.is_empty() {
            return;
        }
        let drives = Arc::downgrade(self);
        let watch = move || {
            while drives.upgrade().is_some_and(|drives| drives.pause_again()) {
                std::thread::sleep(LOOK);
            }
        };
        match std::thread::Builder::new().name("jobs".to_owned()).spawn(watch) {
            Ok(_) => *watches = true,
            Err(error) => tracing::error!("cannot start a thread: {error}: paused jobs may go on"),
        }
    }

    /// Pauses the jobs that the operator has paused and that run. Returns whether there are paused jobs.
    fn pause_again(&self) -> bool {
        let ids = lock(&self.saved).paused.clone();
        for id in ids {
            if let Err(problem) = self.pause_one(&id) {
                tracing::debug!("job {id} is not paused yet: {}", problem.error);
            }
        }
        let mut watches = lock(&self.watches_pauses);
        *watches = !lock(&self.saved).paused.is_empty();
        *watches
    }

    fn pause_one(&self, id: &str) -> Result<(), ApiError> {
        if self.show_job(id)?.state == JobState::Paused {
            return Ok(());
        }
        // The operator may give an order at the same time.
        let _change = self.change(drive_of_job(id))?;
        let (number, view) = self.find_job(id)?;
        if !lock(&self.saved).paused.contains(id) {
            return Ok(());
        }
        match view.state {
            JobState::Paused => Ok(()),
            JobState::Running => {
                self.execute(number, view, Verb::Pause, PaceChange::default())?;
                tracing::info!("job {id} is paused again");
                Ok(())
            }
            // Its next run is another job.
            JobState::Done | JobState::Failed | JobState::Cancelled => {
                self.store(|saved| set(saved, id, false))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_controller_gets_its_own_pauses() {
        let ids = ["a:1:0:format", "a:1:1:resync", "b:0:0:sanitize", "a:x:0:format", "a"];
        let saved = Saved { paused: ids.map(str::to_owned).into(), ..Saved::default() };
        assert_eq!(of_controller(&saved, "a"), [(1, "format".to_owned())]);
        assert_eq!(of_controller(&saved, "b"), [(0, "sanitize".to_owned())]);
        assert_eq!(of_controller(&saved, "c"), []);
    }
}
