//! `sluice job`: the background work of drives.

use super::converse;
use super::job_follow::follow;
use clap::{Args, Subcommand, ValueEnum};
use sluice_api::client::{Client, segment};
use sluice_api::{JobList, PaceRequest};
use sluice_control::drives::{JobView, PaceView, PriorityName};
use sluice_spec::error::ApiError;
use sluice_spec::output::Output;
use sluice_spec::size::Size;
use sluice_spec::table::{Table, pairs};

#[derive(Debug, Subcommand)]
pub(super) enum JobCommand {
    /// List the jobs that run, are paused, or have ended since the daemon started
    List,
    /// Show one job
    Show {
        /// Identifier, as `list` prints it
        id: String,
        /// Show its progress until it ends; fails if it is cancelled
        #[arg(long)]
        follow: bool,
    },
    /// Pause a job until it is resumed, also over restarts of the daemon
    Pause { id: String },
    /// Resume a job that is paused or was cancelled; it goes on where it was
    Resume {
        id: String,
        /// Show its progress until it ends; fails if it is cancelled
        #[arg(long)]
        follow: bool,
    },
    /// Cancel a job; a resync leaves its members out of the set
    Cancel { id: String },
    /// Limit a job; a limit that is not given stays
    Pace {
        id: String,
        #[command(flatten)]
        limits: Limits,
    },
}

#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub(super) struct Limits {
    /// Maximum rate in MiB per second; 0 for no limit
    #[arg(long, value_name = "NUMBER")]
    mib_s: Option<u32>,
    /// Maximum share of the time in which the job has work in flight; 100 for no limit
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(1..=100))]
    share: Option<u8>,
    /// Weight among the jobs of the same function
    #[arg(long, value_enum)]
    priority: Option<PriorityWord>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PriorityWord {
    Low,
    Normal,
    High,
}

impl From<PriorityWord> for PriorityName {
    fn from(word: PriorityWord) -> Self {
        match word {
            PriorityWord::Low => Self::Low,
            PriorityWord::Normal => Self::Normal,
            PriorityWord::High => Self::High,
        }
    }
}

/// Returns the API path of a job.
pub(super) fn path_of(id: &str) -> String {
    format!("/v1/jobs/{}", segment(id))
}

pub(super) fn run(command: JobCommand, client: &Client, output: Output) -> Result<(), ApiError> {
    match command {
        JobCommand::List => output.answer(&converse(client.get::<JobList>("/v1/jobs"))?, list),
        JobCommand::Show { id, follow: true } => follow(&id, client, output),
        JobCommand::Show { id, .. } => output.answer(&converse(client.get::<JobView>(&path_of(&id)))?, one),
        JobCommand::Pause { id } => output.answer(&order(client, &id, "pause")?, one),
        JobCommand::Resume { id, follow: is_followed } => {
            let job = order(client, &id, "resume")?;
            if is_followed { follow(&id, client, output) } else { output.answer(&job, one) }
        }
        JobCommand::Cancel { id } => output.answer(&order(client, &id, "cancel")?, one),
        JobCommand::Pace { id, limits: Limits { mib_s, share, priority } } => {
            let request = PaceRequest { mib_s, share, priority: priority.map(Into::into) };
            let path = format!("{}/pace", path_of(&id));
            output.answer(&converse(client.post::<JobView>(&path, &request))?, one)
        }
    }
}

fn order(client: &Client, id: &str, verb: &str) -> Result<JobView, ApiError> {
    converse(client.post(&format!("{}/{verb}", path_of(id)), &()))
}

fn list(list: &JobList) -> String {
    let titles = ["ID", "FUNCTION", "STATE", "DONE", "OF", "PERCENT", "A SECOND", "LEFT"];
    let mut table = Table::new(&titles);
    for job in &list.jobs {
        table.row(vec![
            job.id.clone(),
            job.function.clone(),
            job.state.word().to_owned(),
            Size(job.done).to_string(),
            Size(job.total).to_string(),
            percent(job).to_string(),
            rate(job),
            left(job),
        ]);
    }
    table.text()
}

/// Returns the text of one job.
pub(super) fn one(job: &JobView) -> String {
    let mut lines = vec![
        ("id", job.id.clone()),
        ("function", job.function.clone()),
        ("state", job.state.word().to_owned()),
        ("progress", progress(job)),
        ("rate", rate(job)),
        ("left", left(job)),
        ("pace", pace(job.pace)),
    ];
    if !job.detail.is_empty() {
        lines.push(("detail", job.detail.clone()));
    }
    lines.push(("accepts", job.accepts.join(", ")));
    pairs(&lines)
}

/// Returns the progress of a job. The number of bytes of work that ended under an earlier daemon is not known.
fn progress(job: &JobView) -> String {
    match job.total {
        0 if job.state.is_active() => "unknown".to_owned(),
        _ => format!("{} of {} ({} %)", Size(job.done), Size(job.total), percent(job)),
    }
}

/// Returns the share of the job that is done, percent: 100 only at the end.
pub(super) fn percent(job: &JobView) -> u64 {
    let share = u128::from(job.done) * 100 / u128::from(job.total.max(1));
    match job.total {
        0 if !job.state.is_active() => 100,
        _ => u64::try_from(share).unwrap_or(100).min(100),
    }
}

/// Returns the rate in whole MiB per second, which are exact enough.
pub(super) fn rate(job: &JobView) -> String {
    format!("{} MiB/s", job.bytes_s >> 20)
}

fn left(job: &JobView) -> String {
    let Some(seconds) = job.eta_s else { return "-".to_owned() };
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (hours, minutes, _) => format!("{hours} h {minutes} min"),
    }
}

fn pace(PaceView { mib_s, share, priority }: PaceView) -> String {
    let mib_s = mib_s.map(|mib_s| format!("{mib_s} MiB/s"));
    let share = share.map(|share| format!("{share} % of the time"));
    let limits: Vec<String> = mib_s.into_iter().chain(share).collect();
    let limits = if limits.is_empty() { "no limit".to_owned() } else { limits.join(", ") };
    let priority = match priority {
        PriorityName::Low => "low",
        PriorityName::Normal => "normal",
        PriorityName::High => "high",
    };
    format!("{limits}, priority {priority}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_control::drives::JobState;

    #[test]
    fn a_job_is_at_a_hundred_percent_when_it_is_over() {
        let job = |done, total, state| JobView { done, total, state, ..JobView::default() };
        assert_eq!(percent(&job(0, 0, JobState::Running)), 0);
        assert_eq!(percent(&job(0, 0, JobState::Done)), 100);
        assert_eq!(percent(&job(999, 1000, JobState::Running)), 99);
        assert_eq!(percent(&job(u64::MAX, u64::MAX, JobState::Done)), 100);
    }

    #[test]
    fn times_and_limits_have_their_units() {
        let job = |eta_s| JobView { eta_s, ..JobView::default() };
        let texts = [None, Some(0), Some(61), Some(3600 * 30 + 119)].map(|eta_s| left(&job(eta_s)));
        assert_eq!(texts, ["-", "0 s", "1 min 1 s", "30 h 1 min"]);
        assert_eq!(pace(PaceView::default()), "no limit, priority normal");
        let limited = PaceView { mib_s: Some(5), share: Some(20), priority: PriorityName::Low };
        assert_eq!(pace(limited), "5 MiB/s, 20 % of the time, priority low");
    }
}
