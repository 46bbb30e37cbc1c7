//! Applies a plan: all of it, or nothing.
//!
//! The state from before is stored first. If a step fails, the steps before it are taken back. If the daemon ends
//! in the middle, the next one goes back to the state from before.

use super::super::creation::in_use;
use super::super::{Drives, lock, persist};
use super::{Applied, ApplyRequest, Step, Steps};
use crate::config::Described;
use crate::state::{Applying, Saved};
use sluice_spec::error::ApiError;
use sluice_spec::{DriveSpec, GroupSpec, Place};
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Goes back to the state from before an apply that has not ended.
pub(in super::super) fn take_back(saved: &mut Saved) {
    let Some(applying) = saved.applying.take() else { return };
    for name in applying.take_back(saved) {
        persist::forget(saved, &name);
    }
    let names: Vec<&str> = applying.names.iter().map(String::as_str).collect();
    tracing::warn!(
        "the daemon ended while it applied a file, and none of that is kept: {} as before",
        names.join(", ")
    );
    applying.missing.iter().for_each(|path| remove_unused(path));
}

/// Removes a file that was made for a change that is taken back, unless something was written to it.
fn remove_unused(path: &Path) {
    let is_unused = path.symlink_metadata().is_ok_and(|found| found.is_file() && found.blocks() == 0);
    if is_unused && let Err(error) = std::fs::remove_file(path) {
        tracing::warn!("{}, made for a change that was taken back, stays: {error}", path.display());
    }
}

impl Drives {
    /// Makes the drives as a text describes them. When this returns, all changes are made and stored.
    ///
    /// # Errors
    /// A fault of the text, or a change that cannot be made. Nothing has changed then, unless the problem
    /// names a step that could not be taken back.
    pub fn apply_file(&self, request: &ApplyRequest) -> Result<Applied, ApiError> {
        let _only = lock(&self.reloads);
        self.may_change()?;
        self.check_file(&request.file)?;
        let described = Described::read(&request.text, &request.file, &self.served())?;
        let mut planned = self.plan(&described, request)?;
        if !planned.refused.is_empty() {
            return Err(planned.refused.swap_remove(0).1);
        }
        if planned.steps.is_empty() {
            return Ok(Applied::default());
        }
        self.check_deleted(&planned, request.force)?;
        if let [(drive, step @ Step::Replace { .. })] = planned.steps.as_slice() {
            // The replacement is stored as a whole by itself. A daemon that is killed does not go back, since hosts may have
            // written to the new target.
            let about = |problem: ApiError| problem.about(&subject(drive, step));
            self.make(drive, step, request.different_storage).map_err(about)?;
            return Ok(Applied { changes: planned.changes() });
        }
        let names: BTreeSet<String> = planned.steps.iter().map(|(drive, _)| drive.clone()).collect();
        let missing = missing(&planned);
        let saved = self.saved();
        let changes_groups = planned.steps.iter().any(|(_, step)| matches!(step, Step::Group { .. }));
        let groups = changes_groups.then(|| saved.groups.clone());
        let before = Applying { groups, ..Applying::of(&saved, names, missing) };
        self.store(|saved| saved.applying = Some(Box::new(before.clone())))?;
        let (deletes, steps): (Vec<_>, Vec<_>) =
            planned.steps.iter().partition(|(_, step)| *step == Step::Delete);
        for (done, (drive, step)) in steps.iter().enumerate() {
            if let Err(problem) = self.make(drive, step, request.different_storage) {
                let problem = problem.about(&subject(drive, step));
                return Err(self.undo(&steps[..done], &before, problem));
            }
        }
        let deleted: Vec<&String> = deletes.iter().map(|(drive, _)| drive).collect();
        if let Err(problem) = self.commit_applied(&deleted) {
            return Err(self.undo(&steps, &before, problem));
        }
        for name in deleted {
            self.end_deleted(name);
        }
        self.sweep_objects();
        let changes = planned.changes();
        tracing::info!("{} applied: {} changes", request.file.display(), changes.len());
        Ok(Applied { changes })
    }

    /// Refuses the configuration file of the daemon itself: its drives would be created, and declared at the
    /// next start.
    fn check_file(&self, file: &Path) -> Result<(), ApiError> {
        let real = |path: &Path| path.canonicalize().ok();
        match self.config_file != Path::new("")
            && real(file).is_some_and(|it| Some(it) == real(&self.config_file))
        {
            false => Ok(()),
            true => {
                Err(ApiError::conflict(format!("{} is the configuration file of the daemon", file.display()))
                    .hint("`sluice reload` makes the daemon read it again"))
            }
        }
    }

    /// Refuses to delete drives that have a client.
    fn check_deleted(&self, planned: &Steps, force: bool) -> Result<(), ApiError> {
        for (name, _) in planned.steps.iter().filter(|(_, step)| *step == Step::Delete) {
            let running = self.entry(name)?.running.ok();
            let is_connected = running.is_some_and(|it| it.status().is_ok_and(|status| status.connected));
            if is_connected && !force {
                return Err(in_use(name));
            }
        }
        Ok(())
    }

    /// Makes a step. With `may_differ`, a target may be replaced by other storage.
    fn make(&self, drive: &str, step: &Step, may_differ: bool) -> Result<(), ApiError> {
        match step {
            Step::Create(spec) => self.create(DriveSpec::clone(spec)).map(drop),
            Step::Resize { nsid, from, to } => self.resize(drive, *nsid, *to, to < from).map(drop),
            Step::Classify { was, is } => match (was, is) {
                (_, None) => self.detach_classifier(drive),
                (None, Some(is)) => self.attach_classifier(drive, is.clone()).map(drop),
                (Some(_), Some(is)) => self.replace_classifier(drive, is.clone(), false).map(drop),
            },
            Step::Attach { nsid, below, uif } => {
                self.attach_function(drive, *nsid, *below, uif.as_ref().clone()).map(drop)
            }
            Step::Detach { nsid, at, .. } => {
                self.detach_function(drive, self.number_of(drive, *nsid, *at)?).map(drop)
            }
            Step::Move { nsid, at, is, .. } => self.move_at(drive, *nsid, *at, *is),
            Step::Limit { nsid, number, is, .. } => self.set_limits(drive, *nsid, *number, *is).map(drop),
            Step::Replace { nsid, is, .. } => {
                self.replace_target(drive, *nsid, is.target_spec(), may_differ).map(drop)
            }
            Step::Group { name, is, .. } => {
                self.set_group(GroupSpec { name: name.clone(), limits: *is }).map(drop)
            }
            Step::Grow { pool, to, .. } => self.grow_shared(pool, Some(*to)).map(drop),
            Step::Delete => Ok(()),
        }
    }

    fn move_at(&self, drive: &str, nsid: u32, at: usize, place: Place) -> Result<(), ApiError> {
        self.move_function(drive, self.number_of(drive, nsid, at)?, place).map(drop)
    }

    /// Returns the number of the function at this index of a namespace's stack.
    fn number_of(&self, drive: &str, nsid: u32, at: usize) -> Result<usize, ApiError> {
        let mut spec = self.entry(drive)?.spec;
        let mut numbers =
            (1..).take_while(|number| spec.uif_mut(*number).is_some()).collect::<Vec<_>>().into_iter();
        let found = numbers.find(|number| spec.place_of(*number) == Some((nsid, at)));
        found.ok_or_else(|| ApiError::conflict("the functions of the drive were changed meanwhile"))
    }

    /// Takes a step back.
    fn unmake(&self, drive: &str, step: &Step, before: &Applying) -> Result<(), ApiError> {
        let missing = &before.missing;
        match step {
            Step::Create(_) => {
                self.delete(drive, true)?;
                missing.iter().for_each(|path| remove_unused(path));
                Ok(())
            }
            Step::Resize { nsid, from, to } => self.resize(drive, *nsid, *from, from < to).map(drop),
            Step::Classify { was, is } => {
                self.make(drive, &Step::Classify { was: is.clone(), is: was.clone() }, false)
            }
            Step::Attach { nsid, below, uif } => {
                self.make(drive, &Step::Detach { nsid: *nsid, at: *below, uif: uif.clone() }, false)
            }
            Step::Detach { nsid, at, uif } => {
                self.make(drive, &Step::Attach { nsid: *nsid, below: *at, uif: uif.clone() }, false)
            }
            Step::Move { nsid, at, was, .. } => self.move_at(drive, *nsid, *at, *was),
            Step::Limit { nsid, number, was, .. } => self.set_limits(drive, *nsid, *number, *was).map(drop),
            Step::Replace { nsid, was, .. } => {
                // The same storage has all data. Other storage is never taken back.
                self.replace_target(drive, *nsid, was.target_spec(), false)?;
                missing.iter().for_each(|path| remove_unused(path));
                // A replacement lets a paused target go on.
                let paused = before.paused_targets.iter().find(|it| it.drive == drive && it.nsid == *nsid);
                paused.map_or(Ok(()), |it| self.pause_target(drive, *nsid, it.fail_after_s).map(drop))
            }
            Step::Group { name, was: Some(was), .. } => {
                self.set_group(GroupSpec { name: name.clone(), limits: *was }).map(drop)
            }
            Step::Group { name, was: None, .. } => self.delete_group(name),
            Step::Grow { .. } => Err(ApiError::conflict("a pool does not shrink")),
            Step::Delete => Ok(()),
        }
    }

    /// Takes steps back, the last one first. Returns the problem with the outcome.
    fn undo(&self, steps: &[&(String, Step)], before: &Applying, mut problem: ApiError) -> ApiError {
        let mut left = Vec::new();
        for (drive, step) in steps.iter().rev() {
            if let Err(why) = self.unmake(drive, step, before) {
                left.push(format!("{} ({})", subject(drive, step), why.error));
            }
        }
        // A daemon that stops makes no changes any more, and the next one goes back.
        let is_left = !left.is_empty() && self.is_ending();
        let stored = self.store(|saved| {
            if is_left {
                return;
            }
            saved.applying = None;
            // A record with the same meaning as before may be another one now.
            if left.is_empty() {
                before.take_drives_back(saved);
            }
        });
        if let Err(why) = stored {
            left.push(why.error);
        }
        self.sweep_objects();
        let outcome = match left.as_slice() {
            [] => "nothing was changed".to_owned(),
            _ if is_left => "the next start goes back to what was before".to_owned(),
            left => format!("this could not be taken back: {}", left.join("; ")),
        };
        problem.error = format!("{}; {outcome}", problem.error);
        problem
    }

    /// Ends an apply in the state, together with the records of the drives that it deletes.
    fn commit_applied(&self, deleted: &[&String]) -> Result<(), ApiError> {
        self.store(|saved| {
            saved.applying = None;
            for name in deleted {
                saved.drives.retain(|drive| drive.name != **name);
                persist::forget(saved, name);
            }
        })
    }

    /// Ends a drive whose records are removed.
    fn end_deleted(&self, name: &str) {
        let ended = self.change(name).and_then(|_only| self.end(self.entry(name)?));
        match ended {
            Ok(()) => tracing::info!("drive {name} deleted"),
            Err(problem) => tracing::warn!("drive {name} is deleted: {}", problem.in_one_line()),
        }
    }
}

/// Formats a step for a message.
fn subject(drive: &str, step: &Step) -> String {
    match step {
        Step::Group { name, .. } => format!("group `{name}`: {}", step.words()),
        Step::Grow { pool, .. } => format!("pool `{pool}`: {}", step.words()),
        step => format!("drive `{drive}`: {}", step.words()),
    }
}

/// Returns the files that the steps would make.
fn missing(planned: &Steps) -> Vec<PathBuf> {
    let of = |step: &Step| match step {
        Step::Create(spec) => spec.locations(),
        _ => Vec::new(),
    };
    let made = |step: &Step| match step {
        Step::Replace { is, .. } if is.size.is_some() => is.path.clone(),
        _ => None,
    };
    let places = planned.steps.iter().flat_map(|(_, step)| of(step)).filter(|place| place.may_make);
    let made = planned.steps.iter().filter_map(|(_, step)| made(step));
    places.filter_map(|place| place.path).chain(made).filter(|path| !path.exists()).collect()
}
