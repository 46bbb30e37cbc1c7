//! What a classifier does, as the API shows it.

use serde::{Deserialize, Serialize};
use sluice_classifier::TraceRecord;
use utoipa::ToSchema;

/// A drive's classifier, and how it is doing. What is counted is counted since it was attached, over all
/// namespaces of the drive.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClassifierStatus {
    /// The object file. One that came through the API is a copy in the daemon's state folder.
    pub object: String,
    /// What tells this object file from others: the XXH3 of its bytes.
    #[serde(default)]
    pub digest: String,
    /// The section of the object that the program is in.
    pub section: String,
    /// Errors after which it is detached from a namespace, if there is such a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errors_max: Option<u64>,
    /// Namespaces that it was detached from because of its errors; their commands take the first path.
    pub detached: Vec<u32>,
    /// Instructions, as the object file counts them.
    pub instructions: usize,
    /// It runs as machine code, not interpreted.
    pub compiled: bool,
    /// What its author may want to know.
    pub notes: Vec<String>,
    pub hooks: HookCounts,
    /// Commands that failed because of it, by what it did wrong.
    pub errors: Vec<ErrorCount>,
    /// Hooks at which it asked for what it may not have, and did not get it.
    pub overreached: u64,
    /// Times it ended without a verdict.
    pub traps: u64,
    /// How it did that last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_trap: Option<String>,
    /// The counters it counts up itself, by index.
    pub counters: Vec<u64>,
    /// What it said last, the oldest first.
    pub trace: Vec<TraceLine>,
    /// What it said and nobody heard, because there was no room.
    pub trace_dropped: u64,
}

/// How often a classifier was called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HookCounts {
    pub submission: u64,
    pub leg_done: u64,
    pub before_completion: u64,
}

/// Commands that failed for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorCount {
    pub error: String,
    pub commands: u64,
}

/// Something that a classifier said.
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
