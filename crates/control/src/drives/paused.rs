//! Pauses of jobs, which survive a restart of the daemon, and of a function.
//!
//! The state file has the jobs that the operator has paused. A controller gets its pauses before its first
//! turn. A function that starts again begins with its jobs running, and the daemon pauses them within a second.
//! A pause belongs to one run: it is forgotten with the end of the run, so that no later run begins paused.

use super::jobs::{OF_CONTROLLER, SEPARATOR, drive_of_job};
use super::{Drives, JobState, lock};
use crate::state::Saved;
use sluice_jobs::{PaceChange, Verb};
use sluice_spec::error::ApiError;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Interval between two looks at paused jobs.
const LOOK: Duration = Duration::from_secs(1);

/// Looks in which a function may not list a job yet: it has to start, and to find work.
const MISSES_MAX: u32 = 10;

/// Returns the jobs of a drive's controller that are paused: the NSID and the name of each.
pub(super) fn of_controller(saved: &Saved, drive: &str) -> Vec<(u32, String)> {
    let own = saved.paused.iter().filter(|id| drive_of_job(id) == drive);
    let of_controller = own.filter_map(|id| parse(id)).filter(|(_, place, _)| *place == OF_CONTROLLER);
    of_controller.map(|(nsid, _, name)| (nsid, name.to_owned())).collect()
}

/// Forgets the pauses of a namespace's functions.
pub(super) fn forget_functions(saved: &mut Saved, drive: &str, nsid: u32) {
    let is_meant = |id: &str| {
        drive_of_job(id) == drive
            && parse(id).is_none_or(|(of, place, _)| of == nsid && place != OF_CONTROLLER)
    };
    saved.paused.retain(|id| !is_meant(id));
}

/// Returns the NSID, the place of the function, and the name of a job.
fn parse(id: &str) -> Option<(u32, usize, &str)> {
    let mut parts = id.split(SEPARATOR).skip(1);
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?, parts.next()?))
}

fn is_of_controller(id: &str) -> bool {
    parse(id).is_some_and(|(_, place, _)| place == OF_CONTROLLER)
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
            let mut misses = HashMap::new();
            while drives.upgrade().is_some_and(|drives| drives.pause_again(&mut misses)) {
                std::thread::sleep(LOOK);
            }
        };
        match std::thread::Builder::new().name("jobs".to_owned()).spawn(watch) {
            Ok(_) => *watches = true,
            Err(error) => tracing::error!("cannot start a thread: {error}: paused jobs may go on"),
        }
    }

    /// Pauses the jobs that the operator has paused and that run. Returns whether there are paused jobs.
    /// `misses` counts the looks at which a job was not listed.
    fn pause_again(&self, misses: &mut HashMap<String, u32>) -> bool {
        let ids = lock(&self.saved).paused.clone();
        for id in ids {
            let missed = match self.show_job(&id) {
                Ok(view) if view.state == JobState::Paused => {
                    misses.remove(&id);
                    continue;
                }
                Ok(_) => 0,
                Err(_) if self.is_running(drive_of_job(&id)) => {
                    misses.get(&id).map_or(1, |before| before + 1)
                }
                Err(_) => 0,
            };
            if let Err(problem) = self.pause_one(&id, missed) {
                tracing::debug!("job {id} is not paused yet: {}", problem.error);
            }
            misses.insert(id, missed);
        }
        let mut watches = lock(&self.watches_pauses);
        *watches = !lock(&self.saved).paused.is_empty();
        *watches
    }

    fn is_running(&self, drive: &str) -> bool {
        self.entry(drive).is_ok_and(|entry| entry.running.is_ok())
    }

    fn pause_one(&self, id: &str, missed: u32) -> Result<(), ApiError> {
        // The operator may give an order at the same time.
        let _change = self.change(drive_of_job(id))?;
        if !lock(&self.saved).paused.contains(id) {
            return Ok(());
        }
        let found = self.find_job(id);
        let state = found.as_ref().ok().map(|(_, view)| view.state);
        match next(is_of_controller(id), state, missed) {
            Next::Keep => Ok(()),
            Next::Forget => self.store(|saved| set(saved, id, false)),
            Next::Pause => {
                let (number, view) = found?;
                self.execute(number, view, Verb::Pause, PaceChange::default())?;
                tracing::info!("job {id} is paused again");
                Ok(())
            }
        }
    }
}

/// Effect of a look at a job that the operator has paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Keep,
    Pause,
    Forget,
}

/// Returns the effect of a look. `missed` counts the looks in a row at which the running drive did not list
/// the job.
fn next(is_of_controller: bool, state: Option<JobState>, missed: u32) -> Next {
    match state {
        Some(JobState::Paused) => Next::Keep,
        Some(JobState::Running) if !is_of_controller => Next::Pause,
        // The controller had its pauses before its first turn, so this is another run.
        Some(_) => Next::Forget,
        None if missed >= if is_of_controller { 1 } else { MISSES_MAX } => Next::Forget,
        None => Next::Keep,
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

    #[test]
    fn the_pauses_of_a_changed_stack_are_forgotten() {
        let ids = ["a:1:0:format", "a:1:1:resync", "a:1:2:check", "a:2:1:resync", "b:1:1:resync"];
        let mut saved = Saved { paused: ids.map(str::to_owned).into(), ..Saved::default() };
        forget_functions(&mut saved, "a", 1);
        assert_eq!(saved.paused, ["a:1:0:format", "a:2:1:resync", "b:1:1:resync"].map(str::to_owned).into());
    }

    #[test]
    fn a_pause_is_forgotten_with_its_run() {
        for state in [JobState::Done, JobState::Failed, JobState::Cancelled] {
            assert_eq!(next(true, Some(state), 0), Next::Forget);
            assert_eq!(next(false, Some(state), 0), Next::Forget);
        }
        assert_eq!(next(true, Some(JobState::Running), 0), Next::Forget, "a format that the host repeats");
        assert_eq!(next(false, Some(JobState::Running), 0), Next::Pause, "a function that started again");
        assert_eq!(next(false, Some(JobState::Paused), 0), Next::Keep);
        // A comparison does not survive a restart, so the next one is another.
        assert_eq!([0, 1].map(|missed| next(true, None, missed)), [Next::Keep, Next::Forget]);
        assert_eq!([9, 10].map(|missed| next(false, None, missed)), [Next::Keep, Next::Forget]);
    }
}
