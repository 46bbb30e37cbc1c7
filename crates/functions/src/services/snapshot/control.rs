//! Orders of an operator: creating, listing, deleting versions, and rolling back to them.

use super::drive::Snapshot;
use crate::store::left_out::{self, TO_LAST_DURABLE_POINT};
use crate::store::metadata_op::{Entry, MetadataOp};
use crate::store::table::Version;
use crate::store::{in_json, table_in_json, versions_in_json};
use sluice_uif::{Control, Io, Translation};
use std::time::{SystemTime, UNIX_EPOCH};

impl Snapshot {
    pub(super) fn execute(&mut self, text: &str, io: &mut Io<'_>) -> Control {
        let mut words = text.split_whitespace();
        let order = (words.next(), words.next(), words.next());
        match order {
            (Some("status"), None, _) => Control::Now(Ok(self.status())),
            (Some("list"), None, _) => Control::Now(self.list()),
            (Some(verb @ ("create" | "delete" | "rollback")), Some(name), None) => {
                match self.order(verb, name, io) {
                    Ok(()) => Control::Later,
                    Err(words) => Control::Now(Err(words)),
                }
            }
            _ if left_out::is_ordered(text) => self.reopen(io),
            _ => Control::Now(Err(format!(
                "the orders of snapshot are create NAME, list, delete NAME, rollback NAME, status, {TO_LAST_DURABLE_POINT}"
            ))),
        }
    }

    /// Opens a store that has lost blocks of its log, without the blocks after them.
    fn reopen(&mut self, io: &mut Io<'_>) -> Control {
        if self.work.is_some() || self.refusal.is_none() {
            return Control::Now(Err(left_out::NOTHING_LOST.into()));
        }
        (self.leaves_out, self.must_load, self.refusal) = (true, true, None);
        self.go_on(io);
        Control::Later
    }

    /// Begins an order that needs a quiet drive: all commands that a classifier sent past this function are
    /// done, and it sends none meanwhile.
    fn order(&mut self, verb: &str, name: &str, io: &mut Io<'_>) -> Result<(), String> {
        let work = self.work.as_ref().ok_or_else(|| self.why_not())?;
        if !io.is_quiet() {
            return Err(
                "this needs a quiet drive: use `sluice snapshot`, or `sluice function tell --quiesce`".into(),
            );
        }
        let entry = match verb {
            "create" => {
                work.table.may_create(name)?;
                let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
                Entry::Create(Version { name: name.to_owned(), created, epoch: 0 })
            }
            "delete" => {
                work.table.version(name)?;
                Entry::Delete(name.to_owned())
            }
            _ => {
                work.table.may_roll_back(name)?;
                Entry::Rollback(name.to_owned())
            }
        };
        self.announce(&entry, io);
        self.order = Some(entry);
        self.start_next_op(io);
        Ok(())
    }

    /// Returns whether an order is carried out. The drive may go on before the store has done its part: no
    /// command begins until then, because it is not certain yet which chunks may be written.
    pub(super) fn is_ordered(&self) -> bool {
        let entry = match &self.op {
            Some(MetadataOp::Append(append)) => Some(&append.entry),
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
        Ok(versions_in_json(work.table.versions()))
    }

    fn status(&self) -> String {
        let Some(work) = &self.work else {
            return format!("{{\"ready\":false,\"reason\":\"{}\"}}", in_json(&self.why_not()));
        };
        table_in_json(&work.table, self.shape)
    }
}
