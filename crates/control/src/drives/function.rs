//! The functions of drives that have a status.

use super::{Drives, lock};
use serde::{Deserialize, Serialize};
use sluice_functions::host::UifStatus;
use sluice_spec::error::ApiError;
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// A function behind the function SDK, with its status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FunctionView {
    /// Number of the function, counted from 1 over all functions of the drive that are listed.
    pub number: usize,
    pub nsid: u32,
    /// Name, program or socket of the function.
    pub function: String,
    /// Whether the function is running or connected.
    pub up: bool,
    /// Whether the function accepts commands.
    #[serde(default)]
    pub ready: bool,
    /// Status that the function gives to commands while it does not accept them, in the specification's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
    /// ID of the process that the daemon started for the function.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Times that the function was started, or connected to.
    pub starts: u64,
    /// Commands sent to the function; a command that is sent again counts again.
    pub sent: u64,
    /// Replies of the function to commands.
    pub replies: u64,
    /// Requests that the function sent to the layers below on its own behalf.
    #[serde(default)]
    pub requests: u64,
    /// Replies to no command: late, repeated or invented. They were dropped.
    pub stray: u64,
    /// Replies that were invalid. Their commands failed.
    pub invalid: u64,
    /// Times that the function ended or disconnected, or was ended.
    pub deaths: u64,
    /// Times that the function was ended because it did not reply in time.
    pub timeouts: u64,
    /// Commands that failed because the function was not running.
    pub failed: u64,
    /// Times that a command waited for a buffer or a slot of the ring.
    pub waits: u64,
    /// Times that the function slept and was woken.
    pub rings: u64,
    /// Commands that wait now.
    pub waiting: u64,
    /// Metrics of the function itself.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metrics: BTreeMap<String, u64>,
}

/// Maximum number of metrics of a function.
const METRICS_MAX: usize = 64;

/// Maximum length of a metric's name, bytes.
const METRIC_NAME_MAX: usize = 64;

/// Parses the metrics of a function: `name value` lines. The function is untrusted, so lines of any other
/// form are skipped.
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
    /// Returns the functions of a drive that have a status.
    pub fn functions(&self, name: &str) -> Result<Vec<FunctionView>, ApiError> {
        Ok(self.entry(name)?.running?.functions())
    }

    /// Sends a text to a function, and returns its reply. With `quiesce` no command of the drive is in flight
    /// meanwhile.
    pub fn tell_function(
        &self,
        name: &str,
        number: usize,
        text: &str,
        quiesce: bool,
    ) -> Result<String, ApiError> {
        // A drive is not opened, resized or deleted while it is quiesced.
        let _change = if quiesce { Some(self.change(name)?) } else { None };
        let running = self.entry(name)?.running?;
        if !running.has_function(number) {
            return Err(no_function(name, number));
        }
        running.tell_function(number, text, quiesce)
    }

    /// Returns the status of all drives' functions, each with its drive's name.
    pub fn function_metrics(&self) -> Vec<(String, FunctionView)> {
        let names: Vec<String> = lock(&self.entries).keys().cloned().collect();
        let of = |name: String| {
            let functions = self.functions(&name).unwrap_or_default();
            functions.into_iter().map(move |function| (name.clone(), function))
        };
        names.into_iter().flat_map(of).collect()
    }

    /// Ends the process of one function, or of all functions of a drive, and starts it again. Commands wait
    /// meanwhile.
    pub fn restart_functions(
        &self,
        name: &str,
        number: Option<usize>,
    ) -> Result<Vec<FunctionView>, ApiError> {
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
                Err(ApiError::conflict(format!("drive `{name}` has no function in a process to restart"))
                    .hint("place = \"process\" gives a function a process of its own"))
            }
        }
    }
}

pub(super) fn no_function(name: &str, number: usize) -> ApiError {
    ApiError::not_found(format!("drive `{name}` has no function {number}"))
        .hint(format!("`sluice function show {name}` lists them"))
}
