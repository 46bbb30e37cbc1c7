//! Writing of a log.

use super::format::{BLOCK, Head, RECORD_BYTES};
use super::load::records_at;
use super::{LOG_IO_MAX, half_bytes};

/// Writer of one record or checkpoint at a time. Each write must be durable when it is reported as done.
#[derive(Debug)]
pub(crate) struct Writer {
    half_bytes: u64,
    id: u64,
    /// Epoch of the checkpoint that is valid, or is being written.
    epoch: u64,
    half: usize,
    /// Number of the next record.
    number: u32,
    /// State of the last checkpoint.
    state: Vec<u8>,
    job: Job,
    /// Bytes that are being written; `at` is their offset.
    buffer: Vec<u8>,
    at: u64,
    under_way: bool,
    /// Whether a checkpoint must come next.
    stale: bool,
    /// Whether the next checkpoint goes to the other half.
    switch: bool,
    /// Whether the other half is valid as long as this one has no header.
    fallback: bool,
    /// Whether this half may or may not have the header that was last written.
    doubtful: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Job {
    None,
    Record,
    /// Zeros in place of a header.
    Void,
    /// Number of bytes of the state that were written.
    State(usize),
    Header,
}

impl Writer {
    /// Creates the writer of a log whose next checkpoint goes to this half with this epoch.
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

    /// Drops the fallback of a log that cannot be relied on: the other half may be older than the lost
    /// content.
    pub(crate) fn after_damage(self) -> Self {
        Self { fallback: false, ..self }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.job == Job::None
    }

    /// Returns whether the half has room for a record; if not, a checkpoint must come next.
    pub(crate) fn has_room(&self) -> bool {
        let end = records_at(self.state.len() as u32) + (u64::from(self.number) + 1) * BLOCK as u64;
        !self.stale && end <= self.half_bytes
    }

    /// Begins a record of at most [`RECORD_BYTES`]. The half must have room, and no write may be in flight.
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

    /// Begins a checkpoint: `fill` writes the state. No write may be in flight.
    pub(crate) fn checkpoint(&mut self, fill: impl FnOnce(&mut Vec<u8>)) {
        assert!(self.is_idle());
        // A failed checkpoint is retried in the same half: its header may be there, and would then be valid.
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

    /// Returns the state of the checkpoint that was written last.
    pub(crate) fn state(&self) -> &[u8] {
        &self.state
    }

    /// Returns the offset at which [`bytes`](Self::bytes) are to be written. None while a write is in flight.
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

    /// Ends a write. Returns, when a whole record or checkpoint has ended, whether it is durable.
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

    /// Begins a checkpoint in a half that may have the header of another state, with zeros over that header.
    /// Without the zeros, a crash before the new header could leave a half whose header and state disagree,
    /// which is damage. With them, the other half is valid until this one is complete.
    fn write_void(&mut self) {
        self.buffer.clear();
        self.buffer.resize(BLOCK, 0);
        (self.at, self.job) = (self.at_half(), Job::Void);
    }

    /// Continues a checkpoint; the header is written last.
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
