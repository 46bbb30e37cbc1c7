//! Output of programs: counters, and a bounded ring of trace records.
//!
//! One program writes; any thread may read.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::insn::Size;
use crate::speculation::clamp;
use crate::words::Words;

/// Counters of a program.
pub const COUNTERS: usize = 64;
/// Records that wait to be read; further ones are counted and dropped.
pub const TRACE_RECORDS: usize = 256;
/// Bytes of a record's text; longer ones are cut.
pub const TRACE_BYTES: usize = 48;
/// Bytes of a record: time, length, text.
const RECORD_BYTES: usize = 16 + TRACE_BYTES;

/// Counters by index.
#[derive(Debug)]
pub struct Counters([AtomicU64; COUNTERS]);

impl Default for Counters {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; COUNTERS])
    }
}

impl Counters {
    /// Returns the value of a counter; zero for one that does not exist.
    pub fn get(&self, index: usize) -> u64 {
        self.0.get(index).map_or(0, |counter| counter.load(Ordering::Relaxed))
    }

    /// Returns all counters.
    pub fn all(&self) -> Vec<u64> {
        (0..COUNTERS).map(|index| self.get(index)).collect()
    }

    /// Adds one to a counter. Only the program's own thread writes, so no read-modify-write is needed.
    pub(crate) fn count(&self, index: u64) -> Option<()> {
        let index = usize::try_from(index).ok().filter(|index| *index < self.0.len())?;
        let counter = self.0.get(clamp(index, self.0.len()))?;
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        Some(())
    }

    /// Returns the address of the counters, for generated code.
    pub(crate) fn base(&self) -> *mut u8 {
        self.0.as_ptr().cast_mut().cast()
    }
}

/// Record of the trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceRecord {
    pub when_ns: u64,
    pub text: Vec<u8>,
}

/// Ring of trace records.
#[derive(Debug)]
pub struct Trace {
    records: Words,
    written: AtomicU64,
    read: AtomicU64,
    dropped: AtomicU64,
}

impl Default for Trace {
    fn default() -> Self {
        Self {
            records: Words::new(RECORD_BYTES * TRACE_RECORDS),
            written: AtomicU64::new(0),
            read: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        }
    }
}

impl Trace {
    /// Takes the oldest record.
    pub fn pop(&self) -> Option<TraceRecord> {
        loop {
            let read = self.read.load(Ordering::Relaxed);
            if read == self.written.load(Ordering::Acquire) {
                return None;
            }
            let record = self.record(read)?;
            // The writer does not touch a record until `read` has passed it: the record is whole if no other
            // thread took it.
            let took = self.read.compare_exchange(read, read + 1, Ordering::Release, Ordering::Relaxed);
            if took.is_ok() {
                return Some(record);
            }
        }
    }

    /// Returns the number of records that found the ring full.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Appends a record. Only the program's own thread does.
    pub(crate) fn push(&self, when_ns: u64, text: &[u8]) {
        let written = self.written.load(Ordering::Relaxed);
        if written - self.read.load(Ordering::Acquire) >= TRACE_RECORDS as u64 {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let text = text.get(..TRACE_BYTES).unwrap_or(text);
        let at = Self::place(written);
        self.records.store(at, Size::B8, when_ns);
        self.records.store(at + 8, Size::B8, text.len() as u64);
        self.records.write(at + 16, text);
        self.written.store(written + 1, Ordering::Release);
    }

    fn place(number: u64) -> usize {
        number as usize % TRACE_RECORDS * RECORD_BYTES
    }

    fn record(&self, number: u64) -> Option<TraceRecord> {
        let at = Self::place(number);
        let when_ns = self.records.load(at, Size::B8)?;
        let len = self.records.load(at + 8, Size::B8)? as usize;
        let mut text = vec![0; len.min(TRACE_BYTES)];
        self.records.read(at + 16, &mut text)?;
        Some(TraceRecord { when_ns, text })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_ring_drops_and_counts() {
        let trace = Trace::default();
        for i in 0..TRACE_RECORDS as u64 + 3 {
            trace.push(i, b"text that is much longer than a record of the ring can be");
        }
        assert_eq!(trace.dropped(), 3);
        for i in 0..TRACE_RECORDS as u64 {
            let record = trace.pop().expect("it is there");
            assert_eq!((record.when_ns, record.text.len()), (i, TRACE_BYTES));
        }
        assert_eq!(trace.pop(), None);
        trace.push(7, b"after");
        assert_eq!(trace.pop(), Some(TraceRecord { when_ns: 7, text: b"after".to_vec() }));
    }
}
