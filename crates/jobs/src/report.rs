//! State of a job, for people and programs.

use crate::{Pace, Verb};
use serde::{Deserialize, Serialize};

/// State of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The job has never run since the start.
    #[default]
    Idle,
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

impl State {
    /// Returns the name of the state.
    pub fn word(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Cancelled => "cancelled",
            Self::Done => "done",
            Self::Failed => "failed",
        }
    }

    /// Returns whether the job has work left that it goes on with, now or when it is resumed.
    pub fn is_active(self) -> bool {
        matches!(self, Self::Running | Self::Paused)
    }
}

/// Job of a function, as it reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Name of the job, unique within its function.
    pub name: String,
    pub state: State,
    /// Bytes that are done, and bytes of the whole run.
    pub done: u64,
    pub total: u64,
    /// Rate now, bytes per second.
    pub bytes_s: u64,
    pub pace: Pace,
    /// Further facts, in a sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// Orders that the job accepts now.
    #[serde(default)]
    pub accepts: Vec<Verb>,
}
