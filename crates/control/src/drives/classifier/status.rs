//! Status of a classifier, as the API shows it.

use serde::{Deserialize, Serialize};
use sluice_classifier::TraceRecord;
use utoipa::ToSchema;

/// A drive's classifier, with its status. Counters count from its attachment, over all namespaces of the
/// drive.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClassifierStatus {
    /// The object file. If it was attached through the API, this is a copy in the daemon's state folder.
    pub object: String,
    /// Digest of the object file: the XXH3 of its bytes.
    #[serde(default)]
    pub digest: String,
    /// The section of the object file that holds the program.
    pub section: String,
    /// Errors after which the classifier is detached from a namespace, if there is such a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errors_max: Option<u64>,
    /// Whether the program reads the machine's clock as it is, instead of in steps of 4 ms.
    #[serde(default)]
    pub precise_clock: bool,
    /// Namespaces that the classifier was detached from because of its errors; their commands take the first
    /// path.
    pub detached: Vec<u32>,
    /// Instructions, as the object file counts them.
    pub instructions: usize,
    /// Whether the program runs as machine code, not interpreted.
    pub compiled: bool,
    /// Notes for the program's author.
    pub notes: Vec<String>,
    pub hooks: HookCounts,
    /// Commands that failed because of the classifier, by error.
    pub errors: Vec<ErrorCount>,
    /// Hook calls that requested something without permission; the request was refused.
    pub overreached: u64,
    /// Times that the program ended without a verdict.
    pub traps: u64,
    /// Reason and source line of the last such end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_trap: Option<String>,
    /// Counters that the program increments, by index.
    pub counters: Vec<u64>,
    /// Last trace lines of the program, the oldest first.
    pub trace: Vec<TraceLine>,
    /// Trace lines that were dropped because the buffer was full.
    pub trace_dropped: u64,
}

/// Number of calls of a classifier, by hook.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HookCounts {
    pub submission: u64,
    pub leg_done: u64,
    pub before_completion: u64,
}

/// Number of commands that failed for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorCount {
    pub error: String,
    pub commands: u64,
}

/// A trace line of a classifier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TraceLine {
    /// Nanoseconds of the machine's monotonic clock.
    pub when_ns: u64,
    pub text: String,
}

impl From<&TraceRecord> for TraceLine {
    fn from(record: &TraceRecord) -> Self {
        let text = String::from_utf8_lossy(&record.text);
        Self { when_ns: record.when_ns, text: text.trim_end_matches('\0').to_owned() }
    }
}
