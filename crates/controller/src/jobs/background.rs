//! Format NVM and Sanitize as jobs of an operator: listed, paused, resumed and paced.
//!
//! NVMe leaves no room for a cancel. A Format NVM ends with its own completion, and a namespace that is half
//! erased has neither its old data nor the requested format (Base 5.14). A sanitize operation cannot be aborted
//! once it has started, and goes on after resets and power cycles (Base 5.24).

use crate::model::Subsystem;
use crate::model::erasing::bytes_of;
use crate::state::background::{ALL_NAMESPACES, BackgroundJob};
use crate::state::erasure::{ERASE, Erasure, Purpose};
use crate::state::sanitize::{SanitizeRecord, SanitizeState};
use sluice_jobs::{PaceChange, Report, State, Verb};

const FORMAT: &str = "format";
const SANITIZE: &str = "sanitize";

impl Subsystem {
    /// Returns the jobs that hosts ordered: the one under way, the last format of each namespace, and the last
    /// sanitize operation.
    pub fn background_jobs(&self) -> Vec<BackgroundJob> {
        let running = self.jobs().erasure.as_ref().map(|erasure| job(self, erasure));
        let mut jobs: Vec<_> = running.into_iter().collect();
        let ended = self.jobs().ended.iter().cloned();
        let ended = ended.chain(self.jobs().sanitize.last.and_then(ended_sanitize));
        for job in ended {
            if jobs.iter().all(|before| before.nsid != job.nsid) {
                jobs.push(job);
            }
        }
        jobs
    }

    /// Executes an order for a job that a host ordered.
    ///
    /// # Errors
    /// Returns a message if no such job runs, or NVMe does not allow the order.
    pub fn order_background_job(
        &mut self,
        nsid: u32,
        verb: Verb,
        name: &str,
        change: PaceChange,
        now_ns: u64,
    ) -> Result<(), String> {
        let runs = self.jobs().erasure.as_ref().is_some_and(|it| (nsid_of(it), name_of(it)) == (nsid, name));
        let Some(erasure) = self.jobs_mut().erasure.as_mut().filter(|_| runs) else {
            return Err(format!("the job {name} does not run"));
        };
        if verb == Verb::Cancel {
            return Err(refusal(erasure).to_owned());
        }
        erasure.jobs.execute(verb, name, change, &[name], now_ns)?;
        self.make_due(now_ns);
        Ok(())
    }

    /// Pauses a job that an earlier daemon has left paused. Call it before the first turn. A job that is not
    /// under way any more is left out.
    pub fn pause_background_job(&mut self, nsid: u32, name: &str) {
        let none = PaceChange::default();
        if let Err(why) = self.order_background_job(nsid, Verb::Pause, name, none, 0) {
            tracing::debug!(nsid, "not paused again: {why}");
        }
    }
}

/// Keeps the report of an erasure that has ended, for the operator.
pub(crate) fn note_end(subsystem: &mut Subsystem, erasure: &Erasure, state: State) {
    let mut ended = job(subsystem, erasure);
    let report = &mut ended.report;
    (report.state, report.bytes_s) = (state, 0);
    report.accepts.clear();
    if state == State::Done {
        report.done = report.total;
    }
    subsystem.jobs_mut().ended.retain(|before| before.nsid != ended.nsid);
    subsystem.jobs_mut().ended.push(ended);
}

/// Returns the reason why the job is not cancelled.
fn refusal(erasure: &Erasure) -> &'static str {
    match erasure.purpose {
        Purpose::Format { .. } => {
            "a Format NVM cannot be cancelled: the namespace would have neither its old data nor the \
             requested format, and the host waits for its command; pause it, or let it end"
        }
        Purpose::Sanitize(_) => {
            "a sanitize operation cannot be cancelled: NVMe requires that it goes on to its end, over resets \
             and restarts; pause it, or let it end"
        }
    }
}

fn job(subsystem: &Subsystem, erasure: &Erasure) -> BackgroundJob {
    let (done, total) = erasure.progress(|nsid| bytes_of(subsystem, nsid));
    let [done, total] = [done.min(total), total].map(|bytes| u64::try_from(bytes).unwrap_or(u64::MAX));
    let mut report = erasure.jobs.report(ERASE, name_of(erasure), 0, detail(erasure));
    (report.done, report.total) = (done, total);
    report.accepts.retain(|verb| *verb != Verb::Cancel);
    BackgroundJob { nsid: nsid_of(erasure), report }
}

fn nsid_of(erasure: &Erasure) -> u32 {
    match erasure.purpose {
        Purpose::Format { nsid, .. } => nsid,
        Purpose::Sanitize(_) => ALL_NAMESPACES,
    }
}

fn name_of(erasure: &Erasure) -> &'static str {
    match erasure.purpose {
        Purpose::Format { .. } => FORMAT,
        Purpose::Sanitize(_) => SANITIZE,
    }
}

fn detail(erasure: &Erasure) -> String {
    match erasure.purpose {
        Purpose::Format { block_size, .. } => {
            format!("Format NVM by a host, to blocks of {block_size} bytes")
        }
        Purpose::Sanitize(_) => "Sanitize by a host, of all namespaces".to_owned(),
    }
}

/// Returns the last sanitize operation of an earlier daemon, if it has ended. The number of its bytes is not
/// stored.
fn ended_sanitize(record: SanitizeRecord) -> Option<BackgroundJob> {
    let state = match record.state {
        SanitizeState::Running => return None,
        SanitizeState::Done => State::Done,
        SanitizeState::Failed | SanitizeState::GivenUp => State::Failed,
    };
    let detail = "Sanitize by a host, of all namespaces".to_owned();
    let report = Report { name: SANITIZE.to_owned(), state, detail, ..Report::default() };
    Some(BackgroundJob { nsid: ALL_NAMESPACES, report })
}
