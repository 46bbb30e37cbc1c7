//! The functions of drives, as far as there is something to see of them.

use super::{Drives, lock};
use serde::{Deserialize, Serialize};
use sluice_functions::uif::UifStatus;
use sluice_spec::problem::Problem;
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// A function behind the function SDK, and how it is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FunctionView {
    /// Counted from 1, over all functions of the drive that are listed.
    pub number: usize,
    pub nsid: u32,
    /// Its name, its program or its socket.
    pub function: String,
    /// It is there.
    pub up: bool,
    /// It can be sent commands.
    #[serde(default)]
    pub ready: bool,
    /// Why it cannot, by its own word: the status of its commands, in the specification's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
    /// Of the process that the daemon started for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Times that it was started, or connected to.
    pub starts: u64,
    /// Commands that it was sent, each time that it was.
    pub sent: u64,
    /// Its answers to them.
    pub replies: u64,
    /// What it asked the layers below for itself.
    #[serde(default)]
    pub requests: u64,
    /// Replies to nothing that it had been sent: late, repeated or invented. They were dropped.
    pub stray: u64,
    /// Replies that made no sense. Their commands failed.
    pub invalid: u64,
    /// Times that it went, or was ended.
    pub deaths: u64,
    /// Those of them because it did not answer in time.
    pub timeouts: u64,
    /// Commands that failed because it was not there.
    pub failed: u64,
    /// Times that a command waited for a buffer or a place in the ring.
    pub waits: u64,
    /// Times that it slept and was woken.
    pub rings: u64,
    /// Commands that wait now.
    pub waiting: u64,
    /// What it counts itself.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metrics: BTreeMap<String, u64>,
}

/// Things that a function may count.
const METRICS_MAX: usize = 64;

/// Letters of the name of one.
const METRIC_NAME_MAX: usize = 64;

/// What a function says that it counts: `name value` lines. It may be anything; what is no such line is left out.
pub fn metrics(lines: &str) -> BTreeMap<String, u64> {
    let is_name = |name: &str| {
        name.len() <= METRIC_NAME_MAX
            && name.starts_with(|c: char| c.is_ascii_alphabetic())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let metric = |line: &str| {
        let (name, value) = line.split_once(' ')?;
        Some((name.to_owned(), value.parse().ok()?)).filter(|(name, _)| is_name(name))
    };
    lines.lines().filter_map(metric).take(METRICS_MAX).collect()
}

impl FunctionView {
    pub fn new(number: usize, nsid: u32, function: String, status: UifStatus) -> Self {
        let UifStatus { up, ready, refusal, process, starts, sent, replies, requests, .. } = status;
        let UifStatus { stray, invalid, deaths, timeouts, failed, waits, rings, waiting, .. } = status;
        Self {
            number,
            nsid,
            function,
            up,
            ready,
            refusal: refusal.map(|status| {
                status.name().map_or_else(|| format!("{status:?}"), |name| name.to_lowercase())
            }),
            pid: process,
            starts,
            sent,
            replies,
            requests,
            stray,
            invalid,
            deaths,
            timeouts,
            failed,
            waits,
            rings,
            waiting,
            metrics: BTreeMap::new(),
        }
    }
}

impl Drives {
    /// The functions of a drive that there is something to see of.
    pub fn functions(&self, name: &str) -> Result<Vec<FunctionView>, Problem> {
        Ok(self.entry(name)?.running?.functions())
    }

    /// Tells a function something, and returns what it says to that. With `quiesce` no command of the drive is
    /// in flight meanwhile.
    pub fn tell_function(
        &self,
        name: &str,
        number: usize,
        text: &str,
        quiesce: bool,
    ) -> Result<String, Problem> {
        // A drive is not opened, resized or deleted while it is quiet.
        let _change = if quiesce { Some(self.change(name)?) } else { None };
        let running = self.entry(name)?.running?;
        if !running.has_function(number) {
            return Err(no_function(name, number));
        }
        running.tell_function(number, text, quiesce)
    }

    /// What the functions of all drives count, with the drive's name and the function's number.
    pub fn function_metrics(&self) -> Vec<(String, FunctionView)> {
        let names: Vec<String> = lock(&self.entries).keys().cloned().collect();
        let of = |name: String| {
            let functions = self.functions(&name).unwrap_or_default();
            functions.into_iter().map(move |function| (name.clone(), function))
        };
        names.into_iter().flat_map(of).collect()
    }

    /// Ends the processes of a drive's functions, or of one of them, and starts them again. Their commands
    /// wait meanwhile.
    pub fn restart_functions(&self, name: &str, number: Option<usize>) -> Result<Vec<FunctionView>, Problem> {
        let running = self.entry(name)?.running?;
        let functions = running.functions();
        let numbers: Vec<usize> = functions.iter().map(|function| function.number).collect();
        let chosen: Vec<usize> = match number {
            Some(number) if !numbers.contains(&number) => {
                return Err(no_function(name, number));
            }
            Some(number) => vec![number],
            None => numbers,
        };
        let mut restarted = false;
        for number in chosen {
            restarted |= running.restart_function(number);
        }
        match restarted {
            true => Ok(running.functions()),
            false => {
                Err(Problem::conflict(format!("drive `{name}` has no function in a process to restart"))
                    .hint("place = \"process\" gives a function a process of its own"))
            }
        }
    }
}

pub(super) fn no_function(name: &str, number: usize) -> Problem {
    Problem::not_found(format!("drive `{name}` has no function {number}"))
        .hint(format!("`sluice function show {name}` lists them"))
}
