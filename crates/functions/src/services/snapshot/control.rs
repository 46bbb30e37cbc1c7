//! Orders of an operator: creating, listing, deleting versions, and rolling back to them.

use super::drive::Snapshot;
use crate::services::service::parse;
use crate::store::left_out::NOTHING_LOST;
use crate::store::metadata_op::{Entry, MetadataOp};
use crate::store::table::Version;
use crate::store::{StoreOrder, StoreStatus, VersionStatus, json};
use sluice_uif::{Control, Io, Translation};
use std::time::{SystemTime, UNIX_EPOCH};

impl Snapshot {
    pub(super) fn execute(&mut self, text: &str, io: &mut Io<'_>) -> Control {
        let entry = match parse::<Self>(text) {
            Err(words) => return Control::Now(Err(words)),
            Ok(StoreOrder::Status) => return Control::Now(json(&self.status())),
            Ok(StoreOrder::List) => return Control::Now(self.list()),
            Ok(StoreOrder::OpenAtLastDurablePoint) => return self.reopen(io),
            Ok(StoreOrder::Create { name }) => Entry::Create(Version { name, created: now(), epoch: 0 }),
            Ok(StoreOrder::Delete { name }) => Entry::Delete(name),
            Ok(StoreOrder::Rollback { name }) => Entry::Rollback(name),
        };
        self.order(entry, io).map_or_else(|words| Control::Now(Err(words)), |()| Control::Later)
    }

    /// Opens a store that has lost blocks of its log, without the blocks after them.
    fn reopen(&mut self, io: &mut Io<'_>) -> Control {
        if self.work.is_some() || self.refusal.is_none() {
            return Control::Now(Err(NOTHING_LOST.into()));
        }
        (self.leaves_out, self.must_load, self.refusal) = (true, true, None);
        self.go_on(io);
        Control::Later
    }

    /// Begins an order that needs a quiet drive: all commands that a classifier sent past this function are
    /// done, and it sends none meanwhile.
    fn order(&mut self, entry: Entry, io: &mut Io<'_>) -> Result<(), String> {
        let work = self.work.as_ref().ok_or_else(|| self.why_not())?;
        if !io.is_quiet() {
            return Err(
                "this needs a quiet drive: use `sluice snapshot`, or `sluice function tell --quiesce`".into(),
            );
        }
        match &entry {
            Entry::Create(version) => work.table.may_create(&version.name)?,
            Entry::Delete(name) => drop(work.table.version(name)?),
            Entry::Rollback(name) => drop(work.table.may_roll_back(name)?),
            Entry::Changes(_) => {}
        }
        self.announce(&entry, io);
        self.order = Some(entry);
        self.start_next_op(io);
        Ok(())
    }

    /// Returns whether an order is carried out. The drive may go on before the store has done its part: no
    /// command begins until then, because it is not certain yet which chunks may be written.
    pub(super) fn is_ordered(&self) -> bool {
        let entry = match &self.op {
            Some(MetadataOp::Write(write)) => write.entry.as_ref(),
            _ => None,
        };
        self.order.is_some() || entry.is_some_and(|entry| !matches!(entry, Entry::Changes(_)))
    }

    /// Sends the classifier the restrictions of an order.
    pub(super) fn announce(&self, entry: &Entry, io: &mut Io<'_>) {
        let (from, length) = (0, self.shape.size);
        match entry {
            Entry::Create(_) => io.translate(Translation::Protect { from, length }),
            Entry::Rollback(_) => io.translate(Translation::Forget { from, length }),
            Entry::Changes(_) | Entry::Delete(_) => {}
        }
    }

    fn why_not(&self) -> String {
        self.refusal.clone().unwrap_or_else(|| "the store is being loaded".to_owned())
    }

    fn list(&self) -> Result<String, String> {
        let work = self.work.as_ref().ok_or_else(|| self.why_not())?;
        json(&work.table.versions().iter().map(VersionStatus::of).collect::<Vec<_>>())
    }

    fn status(&self) -> StoreStatus {
        let status = self.work.as_ref().map(|work| StoreStatus::of(&work.table, self.shape));
        status.unwrap_or_else(|| StoreStatus::refused(self.why_not()))
    }
}

/// Returns the seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
