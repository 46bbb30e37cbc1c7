//! `sluice snapshot`: sends orders to the function `snapshot` of a drive, with a subcommand for each.

use super::converse;
use super::function::which;
use super::job_follow::follow;
use clap::{Args, Subcommand};
use sluice_api::client::{Client, segment};
use sluice_api::{ControlAnswer, ControlRequest, FunctionList, JobList};
use sluice_control::drives::{FunctionView, JobView};
use sluice_functions::{StoreOrder, StoreStatus, VersionStatus};
use sluice_spec::error::ApiError;
use sluice_spec::output::Output;
use sluice_spec::size::Size;
use sluice_spec::table::Table;

#[derive(Debug, Subcommand)]
pub(super) enum SnapshotCommand {
    /// Freeze the current state of a drive as a version with a name
    Create {
        drive: String,
        name: String,
        #[command(flatten)]
        of: Of,
    },
    /// Show the versions of a drive
    List {
        drive: String,
        #[command(flatten)]
        of: Of,
    },
    /// Delete a version; the chunks that only it has are freed in the background
    Delete {
        drive: String,
        name: String,
        #[command(flatten)]
        of: Of,
        /// Show the progress until all chunks are free; fails if that is cancelled
        #[arg(long)]
        follow: bool,
    },
    /// Set a drive back to the data of a version; the version stays
    Rollback {
        drive: String,
        name: String,
        #[command(flatten)]
        of: Of,
    },
    /// Show how full the store of a drive is
    Status {
        drive: String,
        #[command(flatten)]
        of: Of,
    },
}

#[derive(Debug, Args)]
pub(super) struct Of {
    /// Number of the namespace; needed if several have versions
    #[arg(long, value_name = "NSID")]
    namespace: Option<u32>,
}

pub(super) fn run(command: SnapshotCommand, client: &Client, output: Output) -> Result<(), ApiError> {
    let named = |name: &String| name.clone();
    let (drive, of, order, quiesce) = match &command {
        SnapshotCommand::Create { drive, name, of } => {
            (drive, of, StoreOrder::Create { name: named(name) }, true)
        }
        SnapshotCommand::Delete { drive, name, of, .. } => {
            (drive, of, StoreOrder::Delete { name: named(name) }, true)
        }
        SnapshotCommand::Rollback { drive, name, of } => {
            (drive, of, StoreOrder::Rollback { name: named(name) }, true)
        }
        SnapshotCommand::List { drive, of } => (drive, of, StoreOrder::List, false),
        SnapshotCommand::Status { drive, of } => (drive, of, StoreOrder::Status, false),
    };
    let text = order.to_string();
    let path = format!("/v1/drives/{}/functions", segment(drive));
    let list = converse(client.get::<FunctionList>(&path))?;
    let number = which(drive, &list, Some("snapshot"), of.namespace)?;
    let path = format!("{path}/{number}/control");
    let ControlAnswer { answer } = converse(client.post(&path, &ControlRequest { text, quiesce }))?;
    let said = |_| ApiError::internal(format!("the function said {answer}"));
    match command {
        SnapshotCommand::List { .. } => {
            output.answer(&serde_json::from_str::<Vec<VersionStatus>>(&answer).map_err(said)?, |it| table(it))
        }
        SnapshotCommand::Status { .. } => {
            output.answer(&serde_json::from_str::<StoreStatus>(&answer).map_err(said)?, status)
        }
        SnapshotCommand::Delete { follow: true, .. } => follow(
            &job_of(client, drive, list.functions.iter().find(|it| it.number == number))?,
            client,
            output,
        ),
        // A change that succeeded prints nothing.
        _ => Ok(()),
    }
}

/// Returns the identifier of the deletion of a function.
fn job_of(client: &Client, drive: &str, function: Option<&FunctionView>) -> Result<String, ApiError> {
    let list = converse(client.get::<JobList>("/v1/jobs"))?;
    let is_it = |job: &&JobView| {
        job.drive == drive && job.job == "delete" && function.is_some_and(|it| it.nsid == job.nsid)
    };
    let found = list.jobs.iter().find(is_it).map(|job| job.id.clone());
    found.ok_or_else(|| ApiError::not_found("the version is deleted; the daemon has no job of it"))
}

fn table(versions: &[VersionStatus]) -> String {
    let mut table = Table::new(&["NAME", "CREATED"]);
    for version in versions {
        table.row(vec![version.name.clone(), utc(version.created)]);
    }
    table.text()
}

/// Fields of the status that are a number of bytes.
const BYTES: [&str; 5] = ["size", "chunk", "mapped", "store", "free"];

fn status(status: &StoreStatus) -> String {
    let status = serde_json::to_value(status).unwrap_or_default();
    let mut table = Table::new(&["WHAT", "VALUE"]);
    for (what, value) in status.as_object().into_iter().flatten() {
        let value = match value.as_u64() {
            Some(bytes) if BYTES.contains(&what.as_str()) => Size(bytes).to_string(),
            _ => value.to_string().trim_matches('"').to_owned(),
        };
        table.row(vec![what.clone(), value]);
    }
    table.text()
}

/// Converts seconds since 1970 into a date of the Gregorian calendar and a time, UTC.
fn utc(seconds: u64) -> String {
    let (mut day, time) = (seconds / 86_400, seconds % 86_400);
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    // The limit bounds the loop: no clock is further off than a few thousand years.
    while year < 9999 && day >= 365 + u64::from(is_leap(year)) {
        day -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let days = [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while month < 11 && day >= days[month] {
        day -= days[month];
        month += 1;
    }
    let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
    format!("{year}-{:02}-{:02} {hour:02}:{minute:02}:{second:02} UTC", month + 1, day + 1)
}

#[cfg(test)]
mod tests {
    use super::{status, utc};

    #[test]
    fn bytes_have_their_unit_and_counts_have_none() {
        let said = r#"{"ready":true,"size":67108864,"chunk":65536,"mapped":0,"store":512,"free":512,"low":false,"versions":3}"#;
        let text = status(&serde_json::from_str(said).expect("a status"));
        let line = |what: &str| {
            text.lines().find(|line| line.starts_with(what)).map(|line| line.split_whitespace().last())
        };
        assert_eq!(line("size"), Some(Some("64MiB")));
        assert_eq!(line("free"), Some(Some("512B")));
        assert_eq!(line("versions"), Some(Some("3")));
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(utc(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(utc(951_782_399), "2000-02-28 23:59:59 UTC");
        assert_eq!(utc(951_782_400), "2000-02-29 00:00:00 UTC");
        assert_eq!(utc(1_798_761_599), "2026-12-31 23:59:59 UTC");
    }
}
