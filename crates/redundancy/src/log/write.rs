//! Writes a log.

use super::format::{BLOCK, Head, RECORD_BYTES};
use super::load::records_at;
use super::{LOG_IO_MAX, half_bytes};

/// Writes one thing at a time; each write is to be durable when it is said to be done.
#[derive(Debug)]
pub(crate) struct Writer {
    half_bytes: u64,
    id: u64,
    /// Of the checkpoint that counts, or is being written.
    epoch: u64,
    half: usize,
    /// The next record's.
    number: u32,
    /// Of the last checkpoint.
    state: Vec<u8>,
    job: Job,
    /// What is being written, and where.
    buffer: Vec<u8>,
    at: u64,
    under_way: bool,
    /// Nothing but a checkpoint comes next.
    stale: bool,
    /// Which goes to the other half.
    switch: bool,
    /// The other half counts as long as this one has no header.
    fallback: bool,
    /// Nobody knows if this half has the header that was last written.
    doubtful: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Job {
    None,
    Record,
    /// Zeros in place of a header.
    Void,
    /// Bytes of the state that were written.
    State(usize),
    Header,
}

impl Writer {
    /// For a log whose next checkpoint goes to this half with this epoch.
    pub(crate) fn new(log_bytes: u64, id: u64, epoch: u64, half: usize) -> Self {
        Self {
            half_bytes: half_bytes(log_bytes),
            id,
            epoch,
            half,
            number: 0,
            state: Vec::new(),
            job: Job::None,
            buffer: Vec::with_capacity(LOG_IO_MAX),
            at: 0,
            under_way: false,
            stale: true,
            switch: false,
            fallback: true,
            doubtful: false,
        }
    }

    /// For a log in which nothing can be relied on: what is in the other half may be older than what was lost.
    pub(crate) fn after_damage(self) -> Self {
        Self { fallback: false, ..self }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.job == Job::None
    }

    /// False if a checkpoint comes next.
    pub(crate) fn has_room(&self) -> bool {
        let end = records_at(self.state.len() as u32) + (u64::from(self.number) + 1) * BLOCK as u64;
        !self.stale && end <= self.half_bytes
    }

    /// Begins a record of at most [`RECORD_BYTES`]. There is room for it, and nothing else under way.
    pub(crate) fn append(&mut self, record: &[u8]) {
        assert!(self.is_idle() && self.has_room() && record.len() <= RECORD_BYTES);
        self.buffer.clear();
        self.buffer.resize(BLOCK - RECORD_BYTES, 0);
        self.buffer.extend_from_slice(record);
        self.buffer.resize(BLOCK, 0);
        Head::record(self.id, self.epoch, self.number, record.len()).seal(&mut self.buffer);
        self.at =
            self.at_half() + records_at(self.state.len() as u32) + u64::from(self.number) * BLOCK as u64;
        self.job = Job::Record;
    }

    /// Begins a checkpoint: `fill` writes the state. Nothing else is under way.
    pub(crate) fn checkpoint(&mut self, fill: impl FnOnce(&mut Vec<u8>)) {
        assert!(self.is_idle());
        // One that failed is tried again where it was: it may be there, and then it counts.
        if self.switch {
            self.half = 1 - self.half;
            self.epoch = self.epoch.wrapping_add(1);
        }
        (self.stale, self.switch) = (true, false);
        self.state.clear();
        fill(&mut self.state);
        if self.doubtful && self.fallback {
            return self.write_void();
        }
        self.write_state(0);
    }

    /// The state of the checkpoint that was written last.
    pub(crate) fn state(&self) -> &[u8] {
        &self.state
    }

    /// What is to be written: where, and what. Nothing while a write is under way.
    pub(crate) fn next(&mut self) -> Option<u64> {
        if self.under_way || self.is_idle() {
            return None;
        }
        self.under_way = true;
        Some(self.at)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer
    }

    /// A write is done. Returns, when all of a record or checkpoint is, if it is durable.
    pub(crate) fn wrote(&mut self, good: bool) -> Option<bool> {
        self.under_way = false;
        let job = std::mem::replace(&mut self.job, Job::None);
        if !good {
            self.stale = true;
            self.doubtful |= job == Job::Header;
            return Some(false);
        }
        match job {
            Job::None => return None,
            Job::Record => self.number += 1,
            Job::Void => {
                self.doubtful = false;
                self.write_state(0);
                return None;
            }
            Job::State(written) => {
                self.write_state(written);
                return None;
            }
            Job::Header => {
                (self.stale, self.switch, self.number) = (false, true, 0);
                (self.fallback, self.doubtful) = (true, false);
            }
        }
        Some(true)
    }

    /// Begins a checkpoint where a header may be of another state: without that, what is in the other half is
    /// as good until this one is whole, and with it the half would be damaged.
    fn write_void(&mut self) {
        self.buffer.clear();
        self.buffer.resize(BLOCK, 0);
        (self.at, self.job) = (self.at_half(), Job::Void);
    }

    /// Goes on with a checkpoint; the header is the last.
    fn write_state(&mut self, written: usize) {
        let rest = &self.state[written..];
        let bytes = rest.len().min(LOG_IO_MAX);
        self.buffer.clear();
        self.buffer.extend_from_slice(&rest[..bytes]);
        if bytes == 0 {
            self.buffer.resize(BLOCK, 0);
            Head::header(self.id, self.epoch, &self.state).seal(&mut self.buffer);
            (self.at, self.job) = (self.at_half(), Job::Header);
            return;
        }
        self.buffer.resize(bytes.next_multiple_of(BLOCK), 0);
        self.at = self.at_half() + (BLOCK + written) as u64;
        self.job = Job::State(written + bytes);
    }

    fn at_half(&self) -> u64 {
        self.half as u64 * self.half_bytes
    }
}
