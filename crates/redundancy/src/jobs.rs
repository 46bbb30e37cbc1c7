//! Background work of a set as jobs: the copy to members that lack something, and the comparison.

use crate::{Check, Members, Mirror};
use sluice_jobs::{PaceChange, Report, State, Verb};

/// Number of jobs, and the number of each.
pub(crate) const JOBS: usize = 2;
pub(crate) const RESYNC: usize = 0;
pub(crate) const CHECK: usize = 1;

/// Name of the copy, which an order may name.
pub const RESYNC_JOB: &str = "resync";

const NAMES: [&str; JOBS] = [RESYNC_JOB, "check"];

impl Mirror {
    /// Returns the jobs that run, are paused, or have ended since the start.
    pub fn jobs(&self) -> Vec<Report> {
        let known = [RESYNC, CHECK].into_iter().filter(|job| self.background.jobs.state(*job) != State::Idle);
        known.map(|job| self.job(job)).collect()
    }

    /// Executes an order for a job, and returns its report. A cancelled copy is durable when
    /// [`is_noted`](Self::is_noted) returns true.
    ///
    /// # Errors
    /// Returns a message if there is no such job, or it cannot do that now.
    pub fn order_job(
        &mut self,
        verb: Verb,
        name: &str,
        change: PaceChange,
        now_ns: u64,
    ) -> Result<Report, String> {
        let (job, left) = self.background.jobs.execute(verb, name, change, &NAMES, now_ns)?;
        match (job, left) {
            (RESYNC, Some(Verb::Cancel)) => self.cancel_copy()?,
            (RESYNC, Some(Verb::Resume)) => self.resume_copy()?,
            (_, Some(Verb::Cancel)) => {
                self.background.check.running = false;
                self.background.jobs.cancel(CHECK);
            }
            (_, Some(_)) => {
                self.background.check.running = true;
                self.background.jobs.go_on(CHECK);
            }
            (_, None) => {}
        }
        Ok(self.job(job))
    }

    /// Ends the copy, and takes its destinations out. Unlike [`take_out`](Self::take_out) this keeps the list
    /// of regions that they lack. A later copy goes on with those.
    fn cancel_copy(&mut self) -> Result<(), String> {
        if self.journal.is_broken() {
            return Err("the log cannot be written: mend it first".to_owned());
        }
        let gone = self.to_copy().without(Members::one(self.member_state.source));
        if gone.is_empty() {
            return Err("nothing is left to be copied".to_owned());
        }
        self.background.cancelled = self.background.cancelled.with(gone);
        self.leave_out(gone);
        self.background.jobs.cancel(RESYNC);
        self.look_at_waiting();
        Ok(())
    }

    fn resume_copy(&mut self) -> Result<(), String> {
        // Members that an operator has taken out by another order stay out.
        let out = self.background.cancelled.and(self.set.out);
        if out.is_empty() {
            return Err("no member is out of the set by a cancelled copy".to_owned());
        }
        self.bring_back(out, false);
        self.background.jobs.go_on(RESYNC);
        Ok(())
    }

    fn job(&self, job: usize) -> Report {
        let (left, detail) = match job {
            RESYNC => (self.left_to_copy(), self.about_copy()),
            _ => self.about_check(),
        };
        self.background.jobs.report(job, NAMES[job], left, detail)
    }

    /// Returns the members that the copy goes to, or went to.
    pub(crate) fn copied_to(&self) -> Members {
        match self.background.jobs.state(RESYNC) {
            State::Cancelled => self.background.cancelled.and(self.set.out),
            _ if self.to_copy().is_empty() => self.lost(),
            _ => self.to_copy(),
        }
    }

    /// Returns the members that were lost, and are tried again.
    fn lost(&self) -> Members {
        self.set.members.without(self.member_state.joined).without(self.set.out)
    }

    fn left_to_copy(&self) -> u64 {
        let to = self.copied_to();
        let stale = self.set.regions.count(|region| !region.stale.and(to).is_empty());
        stale.saturating_sub(self.copied_of_region())
    }

    fn about_copy(&self) -> String {
        let (source, to) = (self.member_state.source, self.copied_to());
        match self.background.jobs.state(RESYNC) {
            State::Running | State::Paused if !self.to_copy().is_empty() => {
                format!("from member {source} to {to:?}")
            }
            State::Running | State::Paused if !to.is_empty() => format!("waits for {to:?}, which is lost"),
            State::Cancelled if !to.is_empty() => {
                format!("{to:?} is out of sync until this is resumed, and gets no writes")
            }
            _ => String::new(),
        }
    }

    fn about_check(&self) -> (u64, String) {
        let Check { done, different, unreadable, .. } = self.background.check;
        let left = self.config.size.saturating_sub(done);
        (left, format!("{different} pieces differ, {unreadable} cannot be read"))
    }
}
