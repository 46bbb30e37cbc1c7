//! Background work of all drives, as jobs with an identifier.

use super::{Drives, lock};
use serde::{Deserialize, Serialize};
use sluice_jobs::{Order, Pace, PaceChange, Priority, Report, State, Verb};
use sluice_spec::error::ApiError;
use std::sync::Arc;
use std::time::Duration;
use utoipa::ToSchema;

/// Time limit for the jobs of a drive whose function is slow; after it, the last known ones are returned.
const LIST_LIMIT: Duration = Duration::from_millis(500);

/// Number in the place of a function's, for work that a host ordered from the controller.
pub const OF_CONTROLLER: usize = 0;

/// Separator in an identifier. No name of a drive or job contains it.
pub(super) const SEPARATOR: char = ':';

/// Jobs of a function, or of the controller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FunctionJobs {
    /// Number of the function, counted from 1 over all functions of the drive, or [`OF_CONTROLLER`].
    pub number: usize,
    pub nsid: u32,
    /// Name of the function.
    pub function: String,
    pub reports: Vec<Report>,
}

/// State of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    /// The job goes on by itself.
    #[default]
    Running,
    /// An operator has paused the job.
    Paused,
    /// The job was cancelled before its end.
    Cancelled,
    /// The job has come to its end.
    Done,
    /// The job has failed.
    Failed,
}

impl JobState {
    /// Returns whether the job has work left that it goes on with, now or when it is resumed.
    pub fn is_active(self) -> bool {
        matches!(self, Self::Running | Self::Paused)
    }

    /// Returns the name of the state.
    pub fn word(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Cancelled => "cancelled",
            Self::Done => "done",
            Self::Failed => "failed",
        }
    }
}

/// Weight of a job among those of its function that are due at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum PriorityName {
    Low,
    #[default]
    Normal,
    High,
}

/// Limits of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PaceView {
    /// Maximum rate in MiB per second, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mib_s: Option<u32>,
    /// Maximum share of the time in which a step of the job is in flight, percent, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<u8>,
    #[serde(default)]
    pub priority: PriorityName,
}

/// Background work of a drive.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobView {
    /// Identifier, the same after a restart of the daemon: drive, NSID, number of the function in the
    /// namespace, and name of the job.
    pub id: String,
    pub drive: String,
    pub nsid: u32,
    /// Name of the function whose job it is.
    pub function: String,
    /// Name of the job within its function.
    pub job: String,
    pub state: JobState,
    /// Bytes that are done in this run.
    pub done: u64,
    /// Bytes of the whole run; 0 if it is unknown. The number grows if hosts add work.
    pub total: u64,
    /// Rate now, bytes per second.
    pub bytes_s: u64,
    /// Seconds until the end at this rate, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eta_s: Option<u64>,
    pub pace: PaceView,
    /// Further facts, in a sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// Orders that the job accepts now: `pause`, `resume`, `cancel`, `pace`.
    #[serde(default)]
    pub accepts: Vec<String>,
}

impl JobView {
    /// Creates the view of a job of the `place`th function of its namespace. Returns none for a job that has
    /// never run.
    fn new(drive: &str, function: &FunctionJobs, place: usize, report: Report) -> Option<Self> {
        let Report { name, state, done, total, bytes_s, pace, detail, accepts } = report;
        let state = match state {
            State::Idle => return None,
            State::Running => JobState::Running,
            State::Paused => JobState::Paused,
            State::Cancelled => JobState::Cancelled,
            State::Done => JobState::Done,
            State::Failed => JobState::Failed,
        };
        let runs = state == JobState::Running;
        Some(Self {
            id: format!("{drive}{SEPARATOR}{}{SEPARATOR}{place}{SEPARATOR}{name}", function.nsid),
            drive: drive.to_owned(),
            nsid: function.nsid,
            function: function.function.clone(),
            job: name,
            state,
            done,
            total,
            bytes_s,
            eta_s: total.saturating_sub(done).checked_div(bytes_s).filter(|_| runs),
            pace: pace.into(),
            detail,
            accepts: accepts.into_iter().map(|verb| verb.word().to_owned()).collect(),
        })
    }
}

impl From<Pace> for PaceView {
    fn from(Pace { mib_s, share, priority }: Pace) -> Self {
        let priority = match priority {
            Priority::Low => PriorityName::Low,
            Priority::Normal => PriorityName::Normal,
            Priority::High => PriorityName::High,
        };
        Self { mib_s, share, priority }
    }
}

impl From<PriorityName> for Priority {
    fn from(name: PriorityName) -> Self {
        match name {
            PriorityName::Low => Self::Low,
            PriorityName::Normal => Self::Normal,
            PriorityName::High => Self::High,
        }
    }
}

/// Returns the jobs of a drive, each with the number of its function in the drive.
fn views(drive: &str, functions: Vec<FunctionJobs>) -> Vec<(usize, JobView)> {
    let mut found = Vec::new();
    let of_controller = |function: &FunctionJobs| function.number == OF_CONTROLLER;
    for (index, function) in functions.iter().enumerate() {
        let counts = |it: &&FunctionJobs| !of_controller(it) && it.nsid == function.nsid;
        let place = match of_controller(function) {
            true => OF_CONTROLLER,
            false => functions[..=index].iter().filter(counts).count(),
        };
        let view = |report: &Report| JobView::new(drive, function, place, report.clone());
        found.extend(function.reports.iter().filter_map(view).map(|view| (function.number, view)));
    }
    found
}

impl Drives {
    /// Returns the jobs of all drives, in the order of the drives' names.
    pub fn jobs(&self, limit: Duration) -> Vec<JobView> {
        let names: Vec<String> = lock(&self.entries).keys().cloned().collect();
        names.iter().flat_map(|name| self.jobs_of(name, limit)).map(|(_, view)| view).collect()
    }

    /// Returns the jobs of all drives for an operator, who waits for slow functions.
    pub fn list_jobs(&self) -> Vec<JobView> {
        self.jobs(LIST_LIMIT)
    }

    pub(super) fn jobs_of(&self, drive: &str, limit: Duration) -> Vec<(usize, JobView)> {
        let Ok(entry) = self.entry(drive) else { return Vec::new() };
        entry.running.map(|running| views(drive, running.jobs(limit))).unwrap_or_default()
    }

    /// Returns one job.
    pub fn show_job(&self, id: &str) -> Result<JobView, ApiError> {
        Ok(self.find_job(id)?.1)
    }

    pub(super) fn find_job(&self, id: &str) -> Result<(usize, JobView), ApiError> {
        let drive = drive_of_job(id);
        let found = self.jobs_of(drive, LIST_LIMIT).into_iter().find(|(_, view)| view.id == id);
        found.ok_or_else(|| {
            ApiError::not_found(format!("there is no job `{}`", id.escape_debug()))
                .hint("`sluice job list` shows the jobs; a job that ended before the daemon started is gone")
        })
    }

    /// Executes an order for a job, and returns the job.
    pub fn order_job(
        self: &Arc<Self>,
        id: &str,
        verb: Verb,
        change: PaceChange,
    ) -> Result<JobView, ApiError> {
        // No function is attached, detached or moved meanwhile, so the number stays that of this function.
        let _change = match self.entry(drive_of_job(id)) {
            Ok(_) => Some(self.change(drive_of_job(id))?),
            Err(_) => None,
        };
        let (number, view) = self.find_job(id)?;
        self.execute(number, view, verb, change)?;
        self.note_pause(id, verb)?;
        tracing::info!("job {id}: {}", verb.word());
        self.show_job(id)
    }
}

impl Drives {
    pub(super) fn execute(
        &self,
        number: usize,
        view: JobView,
        verb: Verb,
        change: PaceChange,
    ) -> Result<(), ApiError> {
        if number == OF_CONTROLLER {
            let running = self.entry(&view.drive)?.running?;
            return running.order_controller(view.nsid, verb, &view.job, change);
        }
        let order = Order::Do(verb, view.job, change);
        self.tell_function(&view.drive, number, &order.text(), false).map(drop)
    }
}

/// Returns the name of the drive in a job's identifier.
pub fn drive_of_job(id: &str) -> &str {
    id.split(SEPARATOR).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(name: &str, state: State) -> Report {
        Report {
            name: name.to_owned(),
            state,
            done: 10,
            total: 110,
            bytes_s: 20,
            pace: Pace::default(),
            detail: String::new(),
            accepts: vec![Verb::Pause],
        }
    }

    #[test]
    fn an_identifier_counts_the_functions_of_its_namespace() {
        let of =
            |number, nsid, reports| FunctionJobs { number, nsid, function: "mirror".to_owned(), reports };
        let functions = vec![
            of(OF_CONTROLLER, 1, vec![report("format", State::Paused)]),
            of(OF_CONTROLLER, 0, vec![report("sanitize", State::Failed)]),
            of(1, 1, vec![report("resync", State::Idle)]),
            of(2, 1, vec![report("resync", State::Running), report("check", State::Done)]),
            of(3, 2, vec![report("resync", State::Paused)]),
        ];
        let views = views("disk", functions);
        let ids: Vec<_> = views.iter().map(|(number, view)| (*number, view.id.as_str())).collect();
        let (hosts, functions) = ids.split_at(2);
        assert_eq!(hosts, [(0, "disk:1:0:format"), (0, "disk:0:0:sanitize")]);
        assert_eq!(functions, [(2, "disk:1:2:resync"), (2, "disk:1:2:check"), (3, "disk:2:1:resync")]);
        let etas: Vec<_> = views.iter().map(|(_, view)| view.eta_s).collect();
        assert_eq!(etas, [None, None, Some(5), None, None], "only what runs has an end");
        assert_eq!(drive_of_job(&views[2].1.id), "disk");
    }

    #[test]
    fn a_job_without_a_rate_has_no_end_in_sight() {
        let reports = vec![Report { bytes_s: 0, ..report("resync", State::Running) }];
        let functions = vec![FunctionJobs { nsid: 1, number: 1, reports, ..FunctionJobs::default() }];
        assert_eq!(views("disk", functions)[0].1.eta_s, None);
    }
}
