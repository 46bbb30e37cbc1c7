//! Orders and status of a store, as operators write and read them.

use super::layout::Shape;
use super::left_out::TO_LAST_DURABLE_POINT;
use super::table::{Table, Version};
use crate::services::service::{Item, Metric, Order};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Order for a drive whose state can be frozen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case", deny_unknown_fields)]
pub enum StoreOrder {
    /// Returns the [`StoreStatus`].
    Status,
    /// Returns the versions, as a list of [`VersionStatus`].
    List,
    Create {
        name: String,
    },
    Delete {
        name: String,
    },
    Rollback {
        name: String,
    },
    /// Opens a store that has lost blocks of its log without the blocks after them.
    OpenAtLastDurablePoint,
}

impl Order for StoreOrder {
    fn of_words(words: &[&str]) -> Option<Self> {
        let owned = |name: &str| name.to_owned();
        Some(match words {
            ["status"] => Self::Status,
            ["list"] => Self::List,
            ["create", name] => Self::Create { name: owned(name) },
            ["delete", name] => Self::Delete { name: owned(name) },
            ["rollback", name] => Self::Rollback { name: owned(name) },
            _ if words.iter().copied().eq(TO_LAST_DURABLE_POINT.split(' ')) => Self::OpenAtLastDurablePoint,
            _ => return None,
        })
    }
}

impl fmt::Display for StoreOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status => f.write_str("status"),
            Self::List => f.write_str("list"),
            Self::Create { name } => write!(f, "create {name}"),
            Self::Delete { name } => write!(f, "delete {name}"),
            Self::Rollback { name } => write!(f, "rollback {name}"),
            Self::OpenAtLastDurablePoint => f.write_str(TO_LAST_DURABLE_POINT),
        }
    }
}

/// Orders for people.
pub(crate) const ORDERS: &[Item] = &[
    Item { name: "create NAME", about: "Creates a version; needs a quiet drive." },
    Item { name: "list", about: "Lists the versions, in JSON." },
    Item { name: "delete NAME", about: "Deletes a version; needs a quiet drive." },
    Item { name: "rollback NAME", about: "Goes back to a version; needs a quiet drive." },
    Item { name: "status", about: "Returns the fill level of the store, in JSON." },
    Item {
        name: TO_LAST_DURABLE_POINT,
        about: "Opens a store that has lost blocks of its log without the blocks after them.",
    },
];

/// Metrics for people.
pub(crate) const METRICS: &[Metric] = &[
    Metric { name: "store_chunks", about: "Chunks of the store." },
    Metric { name: "store_chunks_free", about: "Free chunks of the store." },
    Metric { name: "store_low", about: "1 while more than 80 % of the chunks are in use." },
    Metric { name: "chunks_mapped", about: "Chunks of the drive that are in the store." },
    Metric { name: "versions", about: "Versions of the drive." },
    Metric { name: "copies_total", about: "Chunks that were copied before a write." },
    Metric { name: "capacity_exceeded_total", about: "Commands that failed because no chunk was free." },
    Metric { name: "commits_total", about: "Blocks that were written to the log." },
    Metric { name: "checkpoints_total", about: "Checkpoints that were written." },
    Metric { name: "metadata_failures_total", about: "Writes of metadata that failed." },
];

/// Status of a store, or of a version of its drive. Keys that do not apply are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreStatus {
    pub ready: bool,
    /// Reason why the store is not ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Version that the drive reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    #[serde(flatten)]
    pub level: Option<Level>,
}

/// Fill level of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Level {
    /// Bytes of the drive.
    pub size: u64,
    /// Bytes of a chunk.
    pub chunk: u64,
    /// Bytes of the drive that have a chunk.
    pub mapped: u64,
    /// Bytes of all chunks.
    pub store: u64,
    /// Bytes of the free chunks.
    pub free: u64,
    /// Whether more than 80 % are in use.
    pub low: bool,
    /// Number of versions.
    pub versions: u64,
}

/// A version in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionStatus {
    pub name: String,
    /// Seconds since 1970.
    pub created: u64,
}

impl StoreStatus {
    /// Returns the status of a store that is not ready.
    pub(crate) fn refused(reason: String) -> Self {
        Self { reason: Some(reason), ..Self::default() }
    }

    /// Returns the status of a store of that shape.
    pub(crate) fn of(table: &Table, Shape { size, chunk }: Shape) -> Self {
        let (all, free) = table.room();
        let level = Level {
            size,
            chunk,
            mapped: table.mapped() * chunk,
            store: all * chunk,
            free: free * chunk,
            low: free * 5 < all,
            versions: table.versions().len() as u64,
        };
        Self { ready: true, level: Some(level), ..Self::default() }
    }

    /// Returns the status of a drive that is a version.
    pub(crate) fn of_version(name: &str, ready: bool) -> Self {
        Self { ready, version: Some(name.to_owned()), ..Self::default() }
    }
}

impl VersionStatus {
    pub(crate) fn of(version: &Version) -> Self {
        Self { name: version.name.clone(), created: version.created }
    }
}

/// Formats an answer.
pub(crate) fn json(answer: &impl Serialize) -> Result<String, String> {
    serde_json::to_string(answer).map_err(|error| error.to_string())
}
