//! The state of the array on its way into the log.

use super::NOTES_BYTES;
use super::array::{Parity, Step};
use super::ring::Place;
use super::state::{CHANGES_MAX, Change, State};
use crate::Members;
use crate::log::{Magic, VERSION, Writer};

/// Version of the log of an array whose Q is on the last member.
const VERSION_LAST_Q: u32 = 3;

/// Log of an array.
pub(super) const MAGIC: Magic = Magic::of(b"sluicePL", b"sluicePR", VERSION_LAST_Q);

/// Attempts to write the log before a failure is an error.
const TRIES: u32 = 3;

/// Delay between two attempts, nanoseconds.
const RETRY_NS: u64 = 500_000_000;

/// Writer of the state, and its progress.
#[derive(Debug, Default)]
pub(super) struct Notes {
    /// Identifier of the log.
    pub(super) id: u64,
    writer: Option<Writer>,
    /// Whether changes are to be written soon.
    is_wanted: bool,
    /// Whether a checkpoint is due.
    whole: bool,
    /// Numbers of wishes: made, in flight, durable.
    made: u64,
    issuing: u64,
    safe: u64,
    /// Wish that an operator waits for.
    barrier: u64,
    tail: Place,
    /// Count of changed masks in the write in flight, and in the log.
    issuing_marks: u64,
    pub(super) safe_marks: u64,
    failures: u32,
    pub(super) retry_ns: Option<u64>,
}

impl Notes {
    pub(super) fn open(&mut self, id: u64, epoch: u64, half: usize, was_damaged: bool) {
        let writer = Writer::new(MAGIC, NOTES_BYTES, id, epoch, half);
        self.id = id;
        self.writer = Some(if was_damaged { writer.after_damage() } else { writer });
    }

    /// Requests a write of all changes.
    pub(super) fn want(&mut self) {
        self.is_wanted = true;
        self.made += 1;
    }

    /// Requests a checkpoint.
    pub(super) fn want_whole(&mut self) {
        self.whole = true;
        self.want();
    }

    pub(super) fn is_broken(&self) -> bool {
        self.failures >= TRIES
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.writer.as_ref().map_or(&[], Writer::bytes)
    }
}

impl Parity {
    /// Returns the bytes for a [`Step::WriteLog`].
    pub fn log_bytes(&self) -> &[u8] {
        self.notes.bytes()
    }

    /// Notes the members that an operator took out, and waits for that.
    pub(super) fn note_out(&mut self) {
        self.state.pending.push(Change::out(self.state.out));
        self.notes.want();
        self.notes.barrier = self.notes.made;
    }

    /// Stores the whole state with its new shape, and waits for that.
    pub(super) fn note_shape(&mut self) {
        self.notes.want_whole();
        self.notes.barrier = self.notes.made;
    }

    /// Returns whether the order of an operator is durable.
    pub fn is_noted(&self) -> bool {
        self.notes.safe >= self.notes.barrier
    }

    /// Returns whether the changes that wait hardly fit into a record.
    pub(super) fn has_many_changes(&self) -> bool {
        self.state.pending.len() > CHANGES_MAX / 2
    }

    /// Returns the next write of the state, if it is due.
    pub(super) fn note_step(&mut self, now_ns: u64) -> Option<Step> {
        let flushed = self.ring.flushed();
        let notes = &mut self.notes;
        let writer = notes.writer.as_mut()?;
        if writer.is_idle() && notes.is_wanted && notes.retry_ns.is_none_or(|retry_ns| retry_ns <= now_ns) {
            (notes.is_wanted, notes.retry_ns, notes.issuing) = (false, None, notes.made);
            (notes.tail, self.state.tail) = (flushed, flushed);
            notes.issuing_marks = self.state.marks;
            self.state.pending.push(Change::tail(flushed));
            let is_whole = notes.whole || !writer.has_room() || self.state.pending.len() > CHANGES_MAX;
            match is_whole {
                true => {
                    let q_is_last = self.state.geometry.q_is_last;
                    writer.set_version(if q_is_last { VERSION_LAST_Q } else { VERSION });
                    writer.checkpoint(|bytes| self.state.write(bytes));
                }
                false => writer.append(State::bytes_of(&self.state.pending)),
            }
            self.state.pending.clear();
            notes.whole = false;
        }
        writer.next().map(|offset| Step::WriteLog { offset })
    }

    /// Ends a [`Step::WriteLog`]: `good` if it is durable.
    pub fn log_written(&mut self, good: bool, now_ns: u64) {
        if self.halted {
            return;
        }
        let notes = &mut self.notes;
        let Some(writer) = &mut notes.writer else { return };
        match writer.wrote(good) {
            None => {}
            Some(true) => {
                (notes.safe, notes.failures) = (notes.issuing, 0);
                notes.safe_marks = notes.issuing_marks;
                self.ring.trimmed(self.notes.tail);
                self.is_open();
            }
            Some(false) => {
                // The part of the failed write that reached the log is unknown.
                notes.failures += 1;
                notes.want_whole();
                notes.retry_ns = Some(now_ns + if notes.is_broken() { RETRY_NS } else { 0 });
                if notes.is_broken() && !self.ready {
                    self.refuse("the log cannot be written".to_owned());
                }
            }
        }
    }

    /// Returns the members that an operator took out.
    pub fn out(&self) -> Members {
        self.state.out
    }
}
