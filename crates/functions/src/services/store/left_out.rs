//! Opening a store that has lost blocks of its log at its last durable point, by order of the operator.

use super::metadata_op::Entry;
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// Text of the order.
pub(crate) const TO_LAST_DURABLE_POINT: &str = "open at last durable point";

/// Answer to the order where it is not needed.
pub(crate) const NOTHING_LOST: &str =
    "the store is not refused for what it has lost, or is being loaded: nothing is left out";

/// Blocks of a log that are left out, with their readable content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeftOut {
    /// Numbers of the first and the last block.
    blocks: Option<(u64, u64)>,
    /// Chunks of the drive whose changes are among them.
    chunks: BTreeSet<u32>,
    /// Orders of an operator that are among them, as text.
    orders: Vec<String>,
}

impl LeftOut {
    /// Notes a block behind the first that is lost.
    pub(super) fn add(&mut self, first: u64, sequence: u64, entry: Option<Entry>) {
        self.blocks = Some((first, sequence));
        match entry {
            Some(Entry::Changes(changes)) => self.chunks.extend(changes.iter().map(|(logical, _)| logical)),
            Some(Entry::Create(version)) => self.orders.push(format!("create {}", version.name)),
            Some(Entry::Delete(name)) => self.orders.push(format!("delete {name}")),
            Some(Entry::Rollback(name)) => self.orders.push(format!("rollback {name}")),
            None => {}
        }
    }

    /// Returns whether any block is left out.
    pub(crate) fn is_some(&self) -> bool {
        self.blocks.is_some()
    }

    /// Describes the blocks for the operator and for the log; chunks have `chunk` bytes.
    pub(crate) fn describe(&self, chunk: u64) -> String {
        let Some((first, last)) = self.blocks else {
            return "the store is open, and nothing was left out".to_owned();
        };
        let mut message = format!(
            "the store is open as it was before block {first} of its log; blocks {first} to {last} are left out"
        );
        if let (Some(low), Some(high)) = (self.chunks.first(), self.chunks.last()) {
            let (low, high) = (u64::from(*low) * chunk, (u64::from(*high) + 1) * chunk);
            let count = self.chunks.len();
            let _ = write!(
                message,
                "; changes of {count} chunks of {chunk} bytes between bytes {low} and {high} are among them"
            );
        }
        if !self.orders.is_empty() {
            let _ = write!(message, "; so are the orders {}", self.orders.join(", "));
        }
        message += "; missing blocks say nothing of their changes";
        tracing::warn!("snapshot: {message}");
        message
    }
}
