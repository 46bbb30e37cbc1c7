//! What an operator wants: versions made, listed, deleted, gone back to.

use super::drive::Snapshot;
use crate::store::chore::{Chore, Entry};
use crate::store::in_json;
use crate::store::load::{LeftOut, TO_LAST_DURABLE_POINT};
use crate::store::table::Version;
use sluice_uif::{Control, Io, Translation};
use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

impl Snapshot {
    pub(super) fn obey(&mut self, text: &str, io: &mut Io<'_>) -> Control {
        let mut words = text.split_whitespace();
        let order = (words.next(), words.next(), words.next());
        if text.split_whitespace().eq(TO_LAST_DURABLE_POINT.split_whitespace()) {
            return match self.open_at_last_durable_point(io) {
                Ok(()) => Control::Later,
                Err(words) => Control::Now(Err(words)),
            };
        }
        match order {
            (Some("status"), None, _) => Control::Now(Ok(self.status())),
            (Some("list"), None, _) => Control::Now(self.list()),
            (Some(verb @ ("create" | "delete" | "rollback")), Some(name), None) => {
                match self.order(verb, name, io) {
                    Ok(()) => Control::Later,
                    Err(words) => Control::Now(Err(words)),
                }
            }
            _ => Control::Now(Err(format!(
                "snapshot knows: create NAME, list, delete NAME, rollback NAME, status, {TO_LAST_DURABLE_POINT}"
            ))),
        }
    }

    /// Opens a store that has lost blocks of its log, without those that came after them.
    fn open_at_last_durable_point(&mut self, io: &mut Io<'_>) -> Result<(), String> {
        if self.work.is_some() || self.refusal.is_none() {
            return Err(
                "the store has not lost anything that it once had durable, and nothing is left out".into()
            );
        }
        (self.leaves_out, self.unloaded, self.refusal) = (true, true, None);
        self.go_on(io);
        Ok(())
    }

    /// The store is open. What was left out is gone with the next checkpoint, and hosts are told by their next Flush.
    pub(super) fn say_left_out(&mut self, left_out: &LeftOut, io: &mut Io<'_>) {
        if !std::mem::take(&mut self.leaves_out) {
            return;
        }
        let Some(words) = self.in_words(left_out) else {
            return io.answer(Ok("the store is open, and nothing was left out".to_owned()));
        };
        tracing::warn!("snapshot: {words}");
        (self.mend, self.unflushed) = (true, true);
        io.answer(Ok(words));
    }

    fn in_words(&self, left_out: &LeftOut) -> Option<String> {
        let (first, last) = left_out.blocks?;
        let (chunk, count) = (self.shape.chunk, left_out.chunks.len());
        let mut words = format!(
            "the store is open as it was before block {first} of its log; blocks {first} to {last} are left out"
        );
        if let (Some(low), Some(high)) = (left_out.chunks.first(), left_out.chunks.last()) {
            let (low, high) = (u64::from(*low) * chunk, (u64::from(*high) + 1) * chunk);
            let _ = write!(
                words,
                "; changes of {count} chunks of {chunk} bytes between bytes {low} and {high} are among them"
            );
        }
        if !left_out.orders.is_empty() {
            let _ = write!(words, "; so are the orders {}", left_out.orders.join(", "));
        }
        words += "; missing blocks say nothing of their changes";
        Some(words)
    }

    /// Begins with what needs a quiet drive: whatever a classifier sent past this function is over, and it
    /// sends nothing meanwhile.
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
        self.next_chore(io);
        Ok(())
    }

    /// True while an order is carried out. The drive may go on before the store has done its part: no command
    /// begins until then, because nobody knows yet what may be written where.
    pub(super) fn is_ordered(&self) -> bool {
        let entry = match &self.chore {
            Some(Chore::Append(append)) => Some(&append.entry),
            _ => None,
        };
        self.order.is_some() || entry.is_some_and(|entry| !matches!(entry, Entry::Changes(_)))
    }

    /// What a classifier may not do any more, because of an order.
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
        let mut json = String::from("[");
        for (version, between) in
            work.table.versions().iter().zip(std::iter::once("").chain(std::iter::repeat(",")))
        {
            let Version { name, created, .. } = version;
            // A name has nothing that JSON would want escaped.
            let _ = write!(json, "{between}{{\"name\":\"{name}\",\"created\":{created}}}");
        }
        Ok(json + "]")
    }

    fn status(&self) -> String {
        let Some(work) = &self.work else {
            return format!("{{\"ready\":false,\"reason\":\"{}\"}}", in_json(&self.why_not()));
        };
        let (all, free) = work.table.room();
        let chunk = self.shape.chunk;
        format!(
            "{{\"ready\":true,\"size\":{},\"chunk\":{chunk},\"mapped\":{},\"store\":{},\"free\":{},\"low\":{},\"versions\":{}}}",
            self.shape.size,
            work.table.mapped() * chunk,
            all * chunk,
            free * chunk,
            free * 5 < all,
            work.table.versions().len(),
        )
    }
}
