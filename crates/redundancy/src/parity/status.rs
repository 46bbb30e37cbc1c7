//! The state of an array, for people and for programs, and orders for its jobs.

use super::array::Parity;
use super::background::{CHECK, JOBS, RESYNC};
use super::state::UNSYNCED;
use crate::Members;
use sluice_jobs::{PaceChange, Report, State, Verb};
use std::fmt;

const NAMES: [&str; JOBS] = ["resync", "check"];

/// Comparison of all cells with the parities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArrayCheck {
    pub running: bool,
    /// Bytes of each member that were compared.
    pub done: u64,
    /// Comparisons of some rows with another result than the parities.
    pub different: u64,
    /// Rows that could not be read.
    pub unreadable: u64,
    /// Offset on the drive of the first stripe that differs.
    pub first: Option<u64>,
}

/// State of an array, with its counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArrayStatus {
    pub members: Members,
    pub parities: usize,
    /// Members behind those of the array, for another parity.
    pub spares: usize,
    /// Whether the number of parities is being changed.
    pub changing: bool,
    /// Members that get writes.
    pub joined: Members,
    /// Members that lack something in a region.
    pub stale: Members,
    /// Members that an operator took out.
    pub out: Members,
    /// Whether the log does not have yet that members have everything.
    pub settling: bool,
    /// Whether parities are still to be computed.
    pub unsynced: bool,
    /// Bytes of the drive.
    pub size: u64,
    /// Bytes of the regions of a member in which cells have to be rebuilt.
    pub stale_bytes: u64,
    pub rebuilt_bytes: u64,
    /// Rate of rebuilding now, bytes of each member per second.
    pub rebuilt_bytes_s: u64,
    pub losses: u64,
    pub repaired: u64,
    pub mismatches: u64,
    /// Whether the log cannot be written now.
    pub log_is_broken: bool,
    pub check: ArrayCheck,
}

impl Parity {
    pub fn status(&self) -> ArrayStatus {
        let state = &self.state;
        let stale = state.regions.iter().enumerate().filter(|(_, region)| !region.stale.is_empty());
        let stale_bytes =
            stale.map(|(number, _)| state.rows_of(number)).map(|rows| rows.end - rows.start).sum();
        let background = &self.background;
        ArrayStatus {
            members: Members::first(self.geometry().members),
            parities: self.geometry().parities,
            spares: self.spares(),
            changing: self.is_changing(),
            joined: self.member_state.joined,
            stale: state.lacking().without(UNSYNCED),
            settling: self.notes.safe_marks != state.marks || state.is_settling(),
            out: state.out,
            unsynced: state.lacking().covers(UNSYNCED),
            size: self.size(),
            stale_bytes,
            rebuilt_bytes: background.rebuilt_bytes,
            rebuilt_bytes_s: if stale_bytes == 0 { 0 } else { background.jobs.bytes_s(RESYNC) },
            losses: self.member_state.losses,
            repaired: background.repaired,
            mismatches: background.mismatches,
            log_is_broken: self.notes.is_broken() || self.batches.are_broken(),
            check: background.check,
        }
    }

    /// Returns whether nothing is under way, and everything is durable: for tests.
    pub fn is_quiet(&self) -> bool {
        self.ops.are_idle()
            && self.flushes.are_idle()
            && !self.ring.is_unflushed()
            && !self.state.is_settling()
    }

    /// Returns the jobs that run, are paused, or have ended since the start.
    pub fn jobs(&self) -> Vec<Report> {
        let known = [RESYNC, CHECK].into_iter().filter(|job| self.background.jobs.state(*job) != State::Idle);
        known.map(|job| self.job(job)).collect()
    }

    /// Executes an order for a job, and returns its report.
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
        if (verb, name) == (Verb::Cancel, NAMES[RESYNC]) {
            return Err(
                "rebuilding is not cancelled; pause it, or take the member out with `fail N`".to_owned()
            );
        }
        let (job, left) = self.background.jobs.execute(verb, name, change, &NAMES, now_ns)?;
        match (job, left) {
            (CHECK, Some(Verb::Cancel)) => {
                self.background.check.running = false;
                self.background.jobs.cancel(CHECK);
            }
            (CHECK, Some(_)) => {
                self.background.check.running = true;
                self.background.jobs.go_on(CHECK);
            }
            _ => {}
        }
        Ok(self.job(job))
    }

    fn job(&self, job: usize) -> Report {
        let status = self.status();
        let ArrayCheck { done, different, unreadable, .. } = status.check;
        let (left, detail) = match job {
            RESYNC if status.unsynced => (status.stale_bytes, "computes parities".to_owned()),
            RESYNC => (status.stale_bytes, format!("rebuilds {:?}", status.stale)),
            _ => (
                self.config.size.saturating_sub(done),
                format!("{different} rows differ, {unreadable} cannot be read"),
            ),
        };
        self.background.jobs.report(job, NAMES[job], left, detail)
    }
}

impl ArrayStatus {
    /// Returns the state of the array in a word or two.
    pub fn state(&self) -> &'static str {
        let missing = self.members.without(self.joined);
        match () {
            () if missing.is_empty() && self.stale.is_empty() && !self.unsynced && !self.settling => {
                "in sync"
            }
            () if missing.is_empty() => "resyncing",
            () if self.out.covers(missing) => "out",
            () => "degraded",
        }
    }

    /// Returns the state of one member in a word or two.
    pub fn state_of(&self, member: usize) -> &'static str {
        match () {
            () if self.out.contains(member) => "out",
            () if !self.joined.contains(member) => "lost",
            () if self.stale.contains(member) => "resyncing",
            () => "in sync",
        }
    }

    /// Counts the numbers under names in the manner of Prometheus.
    pub fn count(&self, count: &mut dyn FnMut(&str, u64)) {
        count("degraded", u64::from(self.joined != self.members || !self.stale.is_empty()));
        count("stale_bytes", self.stale_bytes);
        count("resync_bytes_total", self.rebuilt_bytes);
        count("resync_bytes_per_second", self.rebuilt_bytes_s);
        count("losses_total", self.losses);
        count("repairs_total", self.repaired);
        count("mismatches_total", self.mismatches);
        count("check_different_pieces", self.check.different);
        count("check_unreadable_pieces", self.check.unreadable);
        count("log_broken", self.log_is_broken.into());
    }
}

/// JSON object.
impl fmt::Display for ArrayStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (state, parities) = (self.state(), self.parities);
        let states: Vec<_> =
            self.members.iter().map(|member| format!("{:?}", self.state_of(member))).collect();
        let (states, log) = (states.join(","), if self.log_is_broken { "broken" } else { "good" });
        let Self {
            spares,
            changing,
            size,
            stale_bytes,
            rebuilt_bytes,
            rebuilt_bytes_s,
            losses,
            repaired,
            mismatches,
            ..
        } = self;
        write!(f, r#"{{"state":"{state}","members":[{states}],"parity":{parities},"spares":{spares},"#)?;
        write!(f, r#""changing":{changing},"bytes":{size},"#)?;
        write!(f, r#""stale_bytes":{stale_bytes},"resync_bytes":{rebuilt_bytes},"#)?;
        write!(f, r#""resync_bytes_s":{rebuilt_bytes_s},"losses":{losses},"repairs":{repaired},"#)?;
        write!(f, r#""mismatches":{mismatches},"log":"{log}","check":{{"#)?;
        let ArrayCheck { running, done, different, unreadable, first } = self.check;
        let first = first.map_or_else(|| "null".to_owned(), |first| first.to_string());
        write!(f, r#""running":{running},"bytes":{done},"different":{different},"#)?;
        write!(f, r#""unreadable":{unreadable},"first_different":{first}}}}}"#)
    }
}
