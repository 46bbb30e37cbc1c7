//! The state of a set, for people and for programs.

use crate::{Check, Members, Mirror};
use std::fmt;

/// State of a set, with its counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    pub members: Members,
    /// Members that have everything.
    pub current: Members,
    /// Members that get writes: the current ones, and the ones being copied to.
    pub joined: Members,
    /// Members to which a region has to be copied.
    pub stale: Members,
    /// Members that an operator took out.
    pub out: Members,
    /// Member that is read, and copied from.
    pub source: usize,
    pub generation: u64,
    /// Bytes of the drive.
    pub size: u64,
    /// Bytes of the regions in which members may differ.
    pub dirty_bytes: u64,
    /// Bytes of the regions that have to be copied.
    pub stale_bytes: u64,
    pub copied_bytes: u64,
    /// Copy rate now, bytes per second.
    pub copied_bytes_s: u64,
    /// Times that a member was lost.
    pub losses: u64,
    /// Times that the source could not be read or written.
    pub source_errors: u64,
    /// Whether the log cannot be written now: writes to regions that it does not mark as dirty fail.
    pub log_is_broken: bool,
    /// Whether the log was damaged when it was read: everything is copied.
    pub log_was_damaged: bool,
    pub check: Check,
}

impl Mirror {
    pub fn status(&self) -> Status {
        let regions = &self.set.regions;
        Status {
            members: self.set.members,
            current: self.member_state.current,
            joined: self.member_state.joined,
            stale: regions.list.iter().fold(Members::NONE, |stale, region| stale.with(region.stale)),
            out: self.set.out,
            source: self.member_state.source,
            generation: self.set.highest(),
            size: self.config.size,
            dirty_bytes: regions.count(|region| !region.wanted.is_empty()),
            stale_bytes: regions.count(|region| !region.stale.is_empty()),
            copied_bytes: self.background.copied_bytes,
            copied_bytes_s: self.copied_bytes_s(),
            losses: self.member_state.losses,
            source_errors: self.member_state.source_errors,
            log_is_broken: self.journal.is_broken(),
            log_was_damaged: self.damaged,
            check: self.background.check,
        }
    }
}

impl Status {
    /// Returns the state of the set in a word or two. It is "in sync" if all members are equal but for writes
    /// in flight.
    pub fn state(&self) -> &'static str {
        let missing = self.members.without(self.current);
        match () {
            () if missing.is_empty() && self.stale.is_empty() => "in sync",
            () if missing.is_empty() => "resyncing",
            () if !missing.and(self.joined).is_empty() => "resyncing",
            () if self.out.covers(missing) => "out",
            () => "degraded",
        }
    }

    /// Returns the state of one member in a word or two.
    pub fn state_of(&self, member: usize) -> &'static str {
        let one = Members::one(member);
        match () {
            () if self.out.covers(one) => "out",
            () if self.current.covers(one) && !self.stale.covers(one) => "in sync",
            () if self.joined.covers(one) => "resyncing",
            () => "lost",
        }
    }

    fn log(&self) -> &'static str {
        match (self.log_is_broken, self.log_was_damaged) {
            (true, _) => "broken",
            (_, true) => "was damaged",
            _ => "good",
        }
    }

    /// Counts the numbers under names in the manner of Prometheus.
    pub fn count(&self, count: &mut dyn FnMut(&str, u64)) {
        count("degraded", u64::from(self.current != self.members));
        count("dirty_bytes", self.dirty_bytes);
        count("stale_bytes", self.stale_bytes);
        count("resync_bytes_total", self.copied_bytes);
        count("resync_bytes_per_second", self.copied_bytes_s);
        count("losses_total", self.losses);
        count("source_errors_total", self.source_errors);
        count("check_different_pieces", self.check.different);
        count("check_unreadable_pieces", self.check.unreadable);
        count("log_broken", self.log_is_broken.into());
    }
}

/// JSON object.
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (state, log) = (self.state(), self.log());
        let states: Vec<_> =
            self.members.iter().map(|member| format!("{:?}", self.state_of(member))).collect();
        let (states, source) = (states.join(","), self.source);
        let Self { size, copied_bytes_s, .. } = self;
        let Self { generation, dirty_bytes, stale_bytes, copied_bytes, losses, source_errors, .. } = self;
        write!(f, r#"{{"state":"{state}","generation":{generation},"dirty_bytes":{dirty_bytes},"#)?;
        write!(
            f,
            r#""members":[{states}],"source":{source},"bytes":{size},"resync_bytes_s":{copied_bytes_s},"#
        )?;
        write!(f, r#""stale_bytes":{stale_bytes},"resync_bytes":{copied_bytes},"losses":{losses},"#)?;
        write!(f, r#""source_errors":{source_errors},"log":"{log}","check":{{"#)?;
        let Check { running, done, different, unreadable, first } = self.check;
        let first = first.map_or_else(|| "null".to_owned(), |first| first.to_string());
        write!(f, r#""running":{running},"bytes":{done},"different":{different},"#)?;
        write!(f, r#""unreadable":{unreadable},"first_different":{first}}}}}"#)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_metric_is_its_own_number() {
        let members = [0, 1, 2].into_iter().fold(Members::NONE, |all, member| all.with(Members::one(member)));
        let check = Check { running: true, done: 1, different: 2, unreadable: 3, first: Some(4) };
        let status = Status {
            members,
            current: members,
            joined: members,
            dirty_bytes: 5,
            stale_bytes: 6,
            copied_bytes: 7,
            copied_bytes_s: 8,
            losses: 9,
            source_errors: 10,
            generation: 11,
            size: 12,
            check,
            ..Status::default()
        };
        let count = |status: &Status| {
            let mut counted = Vec::new();
            status.count(&mut |name, value| counted.push(format!("{name} {value}")));
            counted
        };
        let expected = [
            "degraded 0",
            "dirty_bytes 5",
            "stale_bytes 6",
            "resync_bytes_total 7",
            "resync_bytes_per_second 8",
            "losses_total 9",
            "source_errors_total 10",
            "check_different_pieces 2",
            "check_unreadable_pieces 3",
            "log_broken 0",
        ];
        assert_eq!(count(&status), expected);
        // A member that has everything acknowledged may differ in a region of which a write ended with an error.
        let stale = Status { stale: Members::one(1), joined: members, ..status };
        assert_eq!(
            (stale.state(), stale.state_of(1), stale.state_of(2)),
            ("resyncing", "resyncing", "in sync")
        );
        let ill = Status { current: members.without(Members::one(2)), log_is_broken: true, ..status };
        let counted = count(&ill);
        assert!(counted[0] == "degraded 1" && counted[9] == "log_broken 1", "{counted:?}");
        let json = status.to_string();
        let expected = r#"{"state":"in sync","generation":11,"dirty_bytes":5,"members":["in sync","in sync","in sync"],"source":0,"bytes":12,"resync_bytes_s":8,"stale_bytes":6,"resync_bytes":7,"losses":9,"source_errors":10,"log":"good","check":{"running":true,"bytes":1,"different":2,"unreadable":3,"first_different":4}}"#;
        assert_eq!(json, expected);
    }
}
