//! What an operator wants: versions made, listed, deleted, gone back to.

use super::drive::Snapshot;
use crate::store::chore::Entry;
use crate::store::table::Version;
use sluice_uif::{Control, Io, Translation};
use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

impl Snapshot {
    pub(super) fn obey(&mut self, text: &str, io: &mut Io<'_>) -> Control {
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
            _ => Control::Now(Err(
                "snapshot knows: create NAME, list, delete NAME, rollback NAME, status".into()
            )),
        }
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
        let everything = (0, self.shape.size);
        let entry = match verb {
            "create" => {
                work.table.may_create(name)?;
                io.translate(Translation::Protect { from: everything.0, length: everything.1 });
                let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
                Entry::Create(Version { name: name.to_owned(), created, epoch: 0 })
            }
            "delete" => {
                work.table.version(name)?;
                Entry::Delete(name.to_owned())
            }
            _ => {
                work.table.may_roll_back(name)?;
                io.translate(Translation::Forget { from: everything.0, length: everything.1 });
                Entry::Rollback(name.to_owned())
            }
        };
        self.order = Some(entry);
        self.next_chore(io);
        Ok(())
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
            return format!("{{\"ready\":false,\"reason\":\"{}\"}}", self.why_not().escape_default());
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
