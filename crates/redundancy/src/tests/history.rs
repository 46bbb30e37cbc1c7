//! Possible contents of a part of a block, by the results that the host received for its writes.

use std::collections::HashMap;

/// Write to one part, with its times.
#[derive(Clone, Copy, Debug)]
struct Written {
    tag: u64,
    issued: u64,
    /// Time at which the host received the result, if it has.
    ended: Option<u64>,
    good: bool,
    /// Whether the write survives a power cut.
    durable: bool,
    /// Whether the members have flushed the write before the host received the result of the flush. A power
    /// cut of all members and the log may lose it.
    flushed: bool,
    /// Whether storage without a replacement lost the write before it was durable.
    lost: bool,
}

impl Written {
    /// Returns whether the host may rely on the write.
    fn counts(&self) -> bool {
        self.durable || self.good && !self.lost
    }
}

/// Reference model.
#[derive(Debug, Default)]
pub(super) struct History {
    now: u64,
    parts: HashMap<u64, Vec<Written>>,
    /// End times of acknowledged writes that were lost since, until a Flush fails for them.
    owed: Vec<u64>,
    /// Whether all storage lost its power, with no write since.
    is_durable: bool,
}

impl History {
    /// Sets the initial content of the storage.
    pub(super) fn begin(&mut self, found: impl IntoIterator<Item = u64>) {
        for (part, tag) in (0..).zip(found) {
            self.parts.insert(part, vec![durable(tag, 0)]);
        }
    }

    pub(super) fn issue(&mut self, parts: impl Iterator<Item = u64>, tag: u64) -> u64 {
        self.now += 1;
        let (ended, issued) = (None, self.now);
        let write = Written { tag, issued, ended, good: false, durable: false, flushed: false, lost: false };
        for part in parts {
            self.is_durable = false;
            self.parts.entry(part).or_default().push(write);
        }
        self.now
    }

    pub(super) fn end(&mut self, parts: impl Iterator<Item = u64>, tag: u64, good: bool, fua: bool) {
        self.now += 1;
        let mut lost = false;
        for part in parts {
            let writes = self.parts.get_mut(&part).expect("it was issued");
            let write = writes.iter_mut().find(|write| write.tag == tag).expect("it was issued");
            (write.ended, write.good) = (Some(self.now), good);
            write.durable = good && fua && !write.lost;
            lost |= good && write.lost;
        }
        self.owed.extend(lost.then_some(self.now));
    }

    /// Ends a Flush that was issued at `issued`.
    pub(super) fn flushed(&mut self, issued: u64, good: bool) {
        if !good {
            return self.owed.retain(|ended| *ended > issued);
        }
        let owed: Vec<_> = self.owed.iter().filter(|ended| **ended < issued).collect();
        assert!(owed.is_empty(), "a Flush of {issued} succeeded for writes that are lost: {owed:?}");
        for writes in self.parts.values_mut() {
            let mut newest = 0;
            for write in writes.iter_mut() {
                write.durable |= write.counts() && write.ended.is_some_and(|ended| ended < issued);
                newest = newest.max(if write.durable { write.issued } else { 0 });
            }
            // Writes that had ended before do not come back in any case.
            writes.retain(|write| write.ended.is_none_or(|ended| ended >= newest));
        }
    }

    /// Notes that the members have completed a Flush that was issued at `issued`, before the log has.
    pub(super) fn is_flushed(&mut self, issued: u64) {
        for write in self.parts.values_mut().flatten() {
            write.flushed |= write.counts() && write.ended.is_some_and(|ended| ended < issued);
        }
    }

    /// Forgets each Flush that the members have completed and whose result the host has not received.
    pub(super) fn forget_flushes(&mut self) {
        self.parts.values_mut().flatten().for_each(|write| write.flushed = false);
    }

    /// Loses the writes that were not durable on the storage that the host relies on. The writes in `waiting`
    /// have not reached it. A Flush has to report the loss to the host.
    pub(super) fn lose_unflushed(&mut self, waiting: &[u64]) {
        let mut owed = Vec::new();
        let may_be = |write: &&mut Written| {
            !write.durable && !write.flushed && !write.lost && !waiting.contains(&write.tag)
        };
        for write in self.parts.values_mut().flatten().filter(may_be) {
            write.lost = true;
            owed.extend(write.ended.filter(|_| write.good));
        }
        owed.sort_unstable();
        owed.dedup();
        self.owed.extend(owed);
    }

    /// Restarts the set, after a power cut of all storage if `cut`. The layer above fails the first Flush of
    /// a host that was connected before.
    pub(super) fn restart(&mut self, cut: bool) {
        self.forget_flushes();
        if cut {
            self.lose_unflushed(&[]);
            self.is_durable = true;
        }
        self.owed.clear();
    }

    /// Accepts other content, because an operator chose the right storage and the host is informed.
    pub(super) fn is_ordered(&mut self) {
        self.lose_unflushed(&[]);
        self.owed.clear();
    }

    /// Panics if the part may not hold this tag.
    pub(super) fn check(&self, part: u64, found: u64) {
        let writes = &self.parts[&part];
        let Some(write) = writes.iter().find(|write| write.tag == found) else {
            panic!("part {part}: nothing wrote {found:#x}, but {writes:?}")
        };
        for later in writes.iter().filter(|write| write.counts()) {
            let over = write.ended.is_some_and(|ended| ended < later.issued);
            assert!(!over, "part {part} has {found:#x}, lost is {later:?}");
        }
    }

    /// Takes the content that an idle host reads as current: no other content comes back, unless this one is
    /// lost.
    pub(super) fn settle(&mut self, found: impl Fn(u64) -> u64) {
        self.now += 1;
        let now = self.now;
        for (part, writes) in &mut self.parts {
            let tag = found(*part);
            let mut write = *writes.iter().find(|write| write.tag == tag).expect("it was checked");
            if self.is_durable || write.durable {
                *writes = vec![durable(tag, now)];
                continue;
            }
            writes.retain(|write| write.tag != tag);
            for older in writes.iter_mut() {
                older.good &= older.durable;
                older.ended = Some(older.ended.unwrap_or(now - 1));
            }
            (write.issued, write.ended, write.good, write.lost) = (now, Some(now), true, false);
            writes.push(write);
        }
    }

    /// Takes this content as durable: it survives a power cut.
    pub(super) fn settle_durably(&mut self, found: impl Fn(u64) -> u64) {
        self.now += 1;
        for (part, writes) in &mut self.parts {
            *writes = vec![durable(found(*part), self.now)];
        }
    }
}

fn durable(tag: u64, now: u64) -> Written {
    Written { tag, issued: now, ended: Some(now), good: true, durable: true, flushed: false, lost: false }
}
