//! What a part of a block may hold, by what the host was told of its writes.

use std::collections::HashMap;

/// A write to one part, and when.
#[derive(Clone, Copy, Debug)]
struct Written {
    tag: u64,
    issued: u64,
    /// When the host was told how it went, if it was.
    ended: Option<u64>,
    good: bool,
    /// It survives a power cut.
    durable: bool,
    /// The members have flushed it, and the host was not told yet: a power cut of all, with the log, may take it.
    flushed: bool,
    /// Storage that nothing takes the place of lost it before it was durable.
    lost: bool,
}

impl Written {
    /// The host may rely on it.
    fn counts(&self) -> bool {
        self.durable || self.good && !self.lost
    }
}

/// The reference model.
#[derive(Debug, Default)]
pub(super) struct History {
    now: u64,
    parts: HashMap<u64, Vec<Written>>,
    /// When acknowledged writes ended that were lost since, until a Flush fails for them.
    owed: Vec<u64>,
    /// All storage lost its power, and no write came since.
    is_durable: bool,
}

impl History {
    /// The storage begins with this content.
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

    /// A Flush that was issued then has ended.
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
            // What was over before does not come back, whatever happens.
            writes.retain(|write| write.ended.is_none_or(|ended| ended >= newest));
        }
    }

    /// The members are done with a Flush that was issued then, and the log is not.
    pub(super) fn is_flushed(&mut self, issued: u64) {
        for write in self.parts.values_mut().flatten() {
            write.flushed |= write.counts() && write.ended.is_some_and(|ended| ended < issued);
        }
    }

    /// Forgets each Flush that the members have done and the host was not told of.
    pub(super) fn forget_flushes(&mut self) {
        self.parts.values_mut().flatten().for_each(|write| write.flushed = false);
    }

    /// The storage that the host relies on lost writes that were not durable, but for these, which have not reached it.
    /// A Flush has to tell the host.
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

    /// Everything begins anew, after a power cut of all storage if it is `cut`. The layer above fails the first Flush
    /// of a host that was there before.
    pub(super) fn restart(&mut self, cut: bool) {
        self.forget_flushes();
        if cut {
            self.lose_unflushed(&[]);
            self.is_durable = true;
        }
        self.owed.clear();
    }

    /// An operator says which storage is right: the host may find another content, and was told.
    pub(super) fn is_ordered(&mut self) {
        self.lose_unflushed(&[]);
        self.owed.clear();
    }

    /// Panics if the part may not hold this.
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

    /// Nothing is under way, and the host finds this: no other content comes back, unless this is lost.
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

    /// The same for content that survives a power cut, whatever it is.
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
