//! Orders of an operator, and the status.

use super::format::SECTOR;
use super::{Attach, LocalCache, Phase};
use crate::services::service::{Order, json, parse};
use serde::{Deserialize, Serialize};
use sluice_uif::{Control, Io};
use std::fmt;

/// Nanoseconds for which an order waits, and for which it waits while the drive is quiet.
const WAIT_NS: u64 = 30_000_000_000;
const QUIET_WAIT_NS: u64 = 3_000_000_000;

/// Order of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum CacheOrder {
    Status,
    Flush,
    Detach,
    Attach,
}

impl fmt::Display for CacheOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Status => "status",
            Self::Flush => "flush",
            Self::Detach => "detach",
            Self::Attach => "attach",
        })
    }
}

impl Order for CacheOrder {
    fn of_words(words: &[&str]) -> Option<Self> {
        match words {
            ["status"] => Some(Self::Status),
            ["flush"] => Some(Self::Flush),
            ["detach"] => Some(Self::Detach),
            ["attach"] => Some(Self::Attach),
            _ => None,
        }
    }
}

/// State of the cache, as `status` returns it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CacheStatus {
    /// `write-back` or `write-through`; `detaching` and `detached` after that order.
    pub(crate) state: String,
    pub(crate) size_bytes: u64,
    pub(crate) line_bytes: u64,
    pub(crate) used_bytes: u64,
    pub(crate) dirty_bytes: u64,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) bypassed: u64,
    pub(crate) cached_writes: u64,
    pub(crate) direct_writes: u64,
    pub(crate) written_back_bytes: u64,
    pub(crate) device_is_failing: bool,
    /// Reason for which the cache does not serve.
    pub(crate) error: Option<String>,
}

impl CacheStatus {
    /// Parses a status.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }
}

impl LocalCache {
    pub(super) fn status(&self) -> CacheStatus {
        let state = match (self.attach, self.is_open()) {
            (_, false) => "not ready".to_owned(),
            (Attach::Detaching, _) => "detaching".to_owned(),
            (Attach::Detached, _) => "detached".to_owned(),
            (Attach::Attached, _) => self.settings.mode.name().to_owned(),
        };
        let line = self.geometry.line;
        CacheStatus {
            state,
            size_bytes: u64::from(self.geometry.slots) * line,
            line_bytes: line,
            used_bytes: self.slots.used() as u64 * line,
            dirty_bytes: self.slots.dirty().1 * SECTOR,
            hits: self.counts.hits,
            misses: self.counts.misses,
            bypassed: self.counts.bypassed,
            cached_writes: self.counts.cached_writes,
            direct_writes: self.counts.direct_writes,
            written_back_bytes: self.counts.written_back,
            device_is_failing: self.is_failing,
            error: Some(self.error.clone()).filter(|error| !error.is_empty()),
        }
    }

    /// Executes an order. Some are answered when all dirty data is on the drive.
    pub(super) fn execute(&mut self, text: &str, io: &Io<'_>) -> Control {
        let order = match parse::<Self>(text) {
            Ok(order) => order,
            Err(why) => return Control::Now(Err(why)),
        };
        if order == CacheOrder::Status {
            return Control::Now(json(&self.status()));
        }
        if !matches!(self.phase, Phase::Open) {
            return Control::Now(Err(format!("the cache does not serve: {}", self.error)));
        }
        match order {
            CacheOrder::Attach => {
                self.attach = Attach::Attached;
                self.is_ordered = false;
                return Control::Now(json(&self.status()));
            }
            CacheOrder::Detach if self.attach == Attach::Attached => self.attach = Attach::Detaching,
            _ => {}
        }
        let wait_ns = if io.is_quiet() { QUIET_WAIT_NS } else { WAIT_NS };
        self.order = Some((order, io.now_ns().saturating_add(wait_ns)));
        self.is_ordered = true;
        Control::Later
    }

    /// Answers an order whose work is done.
    pub(super) fn answer_order(&mut self, io: &mut Io<'_>) {
        let is_clean = self.slots.dirty().0 == 0 && !self.back.is_busy();
        self.is_ordered &= !is_clean || self.order.is_some();
        let Some((order, until_ns)) = self.order else { return };
        if until_ns <= io.now_ns() {
            // It goes on without an answer, and a detach is answered when it is given again.
            self.order = None;
            let bytes = self.slots.dirty().1 * SECTOR;
            let why =
                format!("{bytes} dirty bytes are in the cache yet; it goes on, so give the order again");
            return io.answer(Err(why));
        }
        if !is_clean {
            return;
        }
        let table = &self.slots.table;
        if table.has_changes() || table.has_unflushed() || self.commit.is_busy() {
            return self.commit.request();
        }
        // Writes that began before the order may still put data into the cache.
        if order == CacheOrder::Detach && !self.ops.are_writes_over() {
            return;
        }
        if order == CacheOrder::Detach {
            self.attach = Attach::Detached;
            self.slots.drop_clean();
        }
        self.order = None;
        io.answer(json(&self.status()));
    }

    /// Answers an order whose work has failed.
    pub(super) fn fail_order(&mut self, why: &str, io: &mut Io<'_>) {
        let Some((order, _)) = self.order.take() else { return };
        self.is_ordered = false;
        if order == CacheOrder::Detach {
            self.attach = Attach::Attached;
        }
        let bytes = self.slots.dirty().1 * SECTOR;
        io.answer(Err(format!("{why}; {bytes} dirty bytes are in the cache, and it goes on with them")));
    }
}
