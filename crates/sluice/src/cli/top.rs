//! `sluice top`: drives and reactors at work, from the API alone.

use super::converse;
use super::latency::in_us;
use clap::Args;
use console::Term;
use serde::Serialize;
use sluice_api::client::Client;
use sluice_api::{DriveList, JobList, LatencyList, ReactorList};
use sluice_control::drives::{DriveLatency, DriveView, JobState, JobView, LatencyView, ReactorCounters};
use sluice_spec::error::ApiError;
use sluice_spec::output::Output;
use sluice_spec::table::Table;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Shortest and longest interval in seconds.
const SECONDS: std::ops::RangeInclusive<f64> = 0.2..=3600.0;

/// Switches to the other screen of the terminal without a cursor, and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// Moves the cursor to the first cell; clears the rest of the line; clears the rest of the screen.
const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_REST: &str = "\x1b[J";

#[derive(Debug, Args)]
pub(super) struct TopArgs {
    /// Seconds between two looks
    #[arg(short, long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    interval: f64,
    /// Show one interval, and end, as without a terminal
    #[arg(long)]
    once: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    match SECONDS.contains(&seconds) {
        true => Ok(seconds),
        false => Err(format!("not between {} and {} seconds", SECONDS.start(), SECONDS.end())),
    }
}

/// Answers of the daemon at one moment.
struct Look {
    at: Instant,
    drives: Vec<DriveView>,
    latency: Vec<DriveLatency>,
    reactors: Vec<ReactorCounters>,
    jobs: Vec<JobView>,
}

/// Work in an interval.
#[derive(Serialize)]
struct Interval {
    seconds: f64,
    drives: Vec<DriveWork>,
    reactors: Vec<ReactorWork>,
}

/// Work of a drive in an interval.
#[derive(Serialize)]
struct DriveWork {
    drive: String,
    state: &'static str,
    reactor: usize,
    iops: f64,
    read_mb_s: f64,
    write_mb_s: f64,
    /// Latency of all commands that completed in the interval, nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    p50_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    p99_ns: Option<u64>,
    in_flight: u32,
    errors: u64,
    jobs: Vec<String>,
}

/// Work of a reactor in an interval.
#[derive(Serialize)]
struct ReactorWork {
    reactor: usize,
    core: Option<usize>,
    /// Part of the interval with work, and without work but awake; percent.
    busy: f64,
    spin: f64,
}

pub(super) fn run(arguments: &TopArgs, client: &Client, output: Output) -> Result<(), ApiError> {
    let pause = Duration::from_secs_f64(arguments.interval);
    let is_live = !arguments.once && output.is_table() && std::io::stdout().is_terminal();
    converse(async {
        let before = look(client).await?;
        if !is_live {
            tokio::time::sleep(pause).await;
            return output.answer(&difference(&before, &look(client).await?), text);
        }
        output.raw(ENTER.as_bytes())?;
        let outcome = tokio::select! {
            outcome = follow(before, pause, client, output) => outcome,
            interrupted = tokio::signal::ctrl_c() => interrupted.map_err(|error| ApiError::internal(error.to_string())),
        };
        output.raw(LEAVE.as_bytes())?;
        outcome
    })
}

/// Shows an interval after the other, until the daemon does not answer any more.
async fn follow(mut before: Look, pause: Duration, client: &Client, output: Output) -> Result<(), ApiError> {
    let term = Term::stdout();
    loop {
        tokio::time::sleep(pause).await;
        let now = look(client).await?;
        let (rows, columns) = term.size();
        let text = text(&difference(&before, &now)) + "\nend with Ctrl-C\n";
        output.raw(screen(&text, rows.into(), columns.into()).as_bytes())?;
        before = now;
    }
}

/// Returns the first lines of a text, each cut to the columns of the screen, over the previous text.
fn screen(text: &str, rows: usize, columns: usize) -> String {
    let cut = |line: &str| line.chars().take(columns).collect::<String>() + CLEAR_LINE;
    let lines: Vec<String> = text.lines().take(rows).map(cut).collect();
    format!("{HOME}{}{CLEAR_REST}", lines.join("\r\n"))
}

async fn look(client: &Client) -> Result<Look, ApiError> {
    let at = Instant::now();
    let drives = client.get::<DriveList>("/v1/drives").await?.drives;
    let latency = client.get::<LatencyList>("/v1/latency").await?.drives;
    let reactors = client.get::<ReactorList>("/v1/reactors").await?.reactors;
    let jobs = client.get::<JobList>("/v1/jobs").await?.jobs;
    Ok(Look { at, drives, latency, reactors, jobs })
}

fn difference(before: &Look, now: &Look) -> Interval {
    let seconds = now.at.duration_since(before.at).as_secs_f64().max(f64::EPSILON);
    let drives = now.drives.iter().map(|drive| drive_work(drive, before, now, seconds)).collect();
    let reactors = now.reactors.iter().map(|reactor| {
        let earlier = before.reactors.iter().find(|other| other.reactor == reactor.reactor);
        let percent = |of: fn(&ReactorCounters) -> u64| {
            of(reactor).saturating_sub(earlier.map_or(0, of)) as f64 / seconds / 1e7
        };
        let (busy, spin) = (percent(|it| it.busy_ns), percent(|it| it.spin_ns));
        ReactorWork { reactor: reactor.reactor, core: reactor.core, busy, spin }
    });
    Interval { seconds, drives, reactors: reactors.collect() }
}

fn drive_work(drive: &DriveView, before: &Look, now: &Look, seconds: f64) -> DriveWork {
    // A drive that was opened in the interval begins at zero.
    let earlier = before.drives.iter().find(|other| other.name == drive.name).map(|other| other.counters);
    let earlier = earlier.filter(|earlier| earlier.commands <= drive.counters.commands).unwrap_or_default();
    let counters = &drive.counters;
    let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
    let latency = latency(&drive.name, before, now);
    let runs = |job: &&JobView| job.drive == drive.name && job.state == JobState::Running;
    let percent = |job: &JobView| (u128::from(job.done) * 100).checked_div(job.total.into()).unwrap_or(0);
    DriveWork {
        drive: drive.name.clone(),
        state: drive.state.as_str(),
        reactor: drive.reactor,
        iops: rate(counters.commands, earlier.commands),
        read_mb_s: rate(counters.bytes_read, earlier.bytes_read) / 1e6,
        write_mb_s: rate(counters.bytes_written, earlier.bytes_written) / 1e6,
        p50_ns: latency.quantile_ns(0.5),
        p99_ns: latency.quantile_ns(0.99),
        in_flight: drive.in_flight,
        errors: counters.errors.saturating_sub(earlier.errors),
        jobs: now.jobs.iter().filter(runs).map(|job| format!("{} {} %", job.job, percent(job))).collect(),
    }
}

/// Returns the latency of all commands of a drive in the interval.
fn latency(drive: &str, before: &Look, now: &Look) -> LatencyView {
    let of = |look: &Look| {
        let found = look.latency.iter().find(|latency| latency.drive == drive);
        LatencyView::sum(found.into_iter().flat_map(|latency| &latency.operations))
    };
    of(now).since(&of(before))
}

fn text(interval: &Interval) -> String {
    let titles = [
        "DRIVE",
        "STATE",
        "REACTOR",
        "IOPS",
        "READ-MB/S",
        "WRITE-MB/S",
        "P50-US",
        "P99-US",
        "IN-FLIGHT",
        "ERRORS",
        "JOBS",
    ];
    let mut drives = Table::new(&titles);
    for drive in &interval.drives {
        let jobs = if drive.jobs.is_empty() { "-".to_owned() } else { drive.jobs.join(", ") };
        drives.row(vec![
            drive.drive.clone(),
            drive.state.to_owned(),
            drive.reactor.to_string(),
            format!("{:.0}", drive.iops),
            format!("{:.1}", drive.read_mb_s),
            format!("{:.1}", drive.write_mb_s),
            in_us(drive.p50_ns),
            in_us(drive.p99_ns),
            drive.in_flight.to_string(),
            drive.errors.to_string(),
            jobs,
        ]);
    }
    let mut reactors = Table::new(&["REACTOR", "CORE", "BUSY-%", "SPIN-%"]);
    for reactor in &interval.reactors {
        reactors.row(vec![
            reactor.reactor.to_string(),
            reactor.core.map_or_else(|| "any".to_owned(), |core| core.to_string()),
            format!("{:.1}", reactor.busy),
            format!("{:.1}", reactor.spin),
        ]);
    }
    format!("{}\n{}", reactors.text(), drives.text())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_screen_is_as_large_as_the_terminal() {
        assert_eq!(screen("abcd\nef\ngh\n", 2, 3), "\x1b[Habc\x1b[K\r\nef\x1b[K\x1b[J");
    }

    #[test]
    fn intervals_are_limited() {
        assert_eq!(seconds("0.5"), Ok(0.5));
        assert!(["0", "-1", "nan", "1e9", "x"].iter().all(|text| seconds(text).is_err()));
    }

    #[test]
    fn a_reactor_is_busy_for_its_part_of_the_interval() {
        let look = |at, busy_ns, spin_ns| {
            let reactors = vec![ReactorCounters { busy_ns, spin_ns, ..ReactorCounters::default() }];
            Look { at, drives: Vec::new(), latency: Vec::new(), reactors, jobs: Vec::new() }
        };
        let began = Instant::now();
        let interval =
            difference(&look(began, 5, 0), &look(began + Duration::from_secs(2), 500_000_005, 1_000_000_000));
        let reactor = &interval.reactors[0];
        assert!((reactor.busy - 25.0).abs() < 0.01 && (reactor.spin - 50.0).abs() < 0.01);
    }
}
