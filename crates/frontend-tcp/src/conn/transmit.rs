//! Send path: all PDUs that a turn has produced go out in one send.

use super::capsule::Direction;
use super::memory::QueueMemory;
use super::slots::{Slot, Slots, Stage};
use sluice_memory::Segment;
use sluice_nvme::CompletionEntry;
use sluice_nvme_tcp::{Data, Digests, R2t, encode};
use std::collections::VecDeque;

/// Segments of one send. The kernel takes more, but the length of a turn grows with the list.
const SEGMENTS_MAX: usize = 512;

/// Largest number of segments of an item.
const SEGMENTS_OF_ITEM: usize = 3;

/// Offset of the bytes after the data (digest and response) within a capsule's headers. The C2HData header
/// comes first.
const BEHIND_DATA: usize = encode::HEAD_MAX;

/// PDUs to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Item {
    /// R2T for the command in this slot.
    R2t(u16),
    /// Response to the command in this slot, with its data if it has some.
    Answer(u16),
}

/// Parameters that were negotiated for a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Agreed {
    pub(crate) digests: Digests,
    /// Alignment of data in PDUs to the host, in bytes.
    pub(crate) alignment: u8,
    /// Entries of the host's submission queue. None if SQ flow control is disabled, so that completions have
    /// no SQHD.
    pub(crate) sq_entries: Option<u32>,
}

/// PDUs that are queued, and PDUs that are being sent.
#[derive(Debug, Default)]
pub(super) struct Transmit {
    queue: VecDeque<Item>,
    /// Items being sent.
    items: Vec<Item>,
    segments: Vec<Segment>,
    /// Segments that are sent already.
    sent: usize,
    /// Head of the host's submission queue.
    head: u32,
    /// Set once nothing more may be queued.
    is_ending: bool,
}

impl Transmit {
    pub(super) fn push(&mut self, item: Item) {
        if !self.is_ending {
            self.queue.push_back(item);
        }
    }

    /// Returns whether nothing is queued or being sent.
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.segments.is_empty()
    }

    /// Ignores items from now on. Queued items are still sent.
    pub(super) fn finish(&mut self) {
        self.is_ending = true;
    }

    /// Discards all queued items, and appends `last` to the segments being sent. Over TLS, close_notify
    /// follows these segments.
    pub(super) fn end(&mut self, last: Option<Segment>) {
        self.queue.clear();
        self.segments.extend(last);
        self.is_ending = true;
    }

    /// Returns the segments to send next: the rest of the last ones, or new ones for as many items as fit.
    pub(super) fn prepare(&mut self, slots: &Slots, memory: &QueueMemory, agreed: &Agreed) -> &[Segment] {
        if self.segments.is_empty() {
            while self.segments.len() + SEGMENTS_OF_ITEM <= SEGMENTS_MAX {
                let Some(item) = self.queue.pop_front() else { break };
                match item {
                    Item::R2t(number) => self.put_r2t(number, slots.slot(number), memory, agreed),
                    Item::Answer(number) => self.put_answer(number, slots, memory, agreed),
                }
                self.items.push(item);
            }
        }
        &self.segments[self.sent..]
    }

    /// Records that `bytes` of the last segments were sent. Calls `done` for each item once all of them are.
    pub(super) fn sent(&mut self, bytes: usize, mut done: impl FnMut(Item)) {
        let mut left = bytes as u32;
        while left > 0 && self.sent < self.segments.len() {
            let segment = &mut self.segments[self.sent];
            if segment.len() > left {
                *segment = segment.slice(left, segment.len() - left);
                return;
            }
            left -= segment.len();
            self.sent += 1;
        }
        if self.sent == self.segments.len() {
            self.sent = 0;
            self.segments.clear();
            self.items.drain(..).for_each(&mut done);
        }
    }

    fn put_r2t(&mut self, number: u16, slot: &Slot, memory: &QueueMemory, agreed: &Agreed) {
        let r2t = R2t { cccid: slot.entry.cid, ttag: number, offset: 0, length: slot.transfer.length };
        let head = encode::r2t(r2t, agreed.digests);
        self.put_head(memory.heads(number), &[head.as_bytes()], memory);
    }

    fn put_answer(&mut self, number: u16, slots: &Slots, memory: &QueueMemory, agreed: &Agreed) {
        let slot = slots.slot(number);
        debug_assert_eq!(slot.stage, Stage::Answering);
        let has_data = slot.transfer.direction == Direction::ToHost && slot.outcome.status.is_success();
        // Without SQ flow control there is no SQHD to report. The SUCCESS flag of C2HData then replaces the
        // response.
        let plain = slot.outcome.dw0 == 0 && slot.outcome.dw1 == 0 && slot.outcome.status.0 == 0;
        let success = has_data && plain && agreed.sq_entries.is_none();
        let mut digest = None;
        if has_data {
            let length = slot.transfer.length;
            let data = Data { cccid: slot.entry.cid, ttag: 0, offset: 0, length, last: true, success };
            let head = encode::c2h_data(data, agreed.digests, agreed.alignment);
            self.put_head(memory.heads(number), &[head.as_bytes()], memory);
            let at = slots.data(number, memory);
            self.segments.push(memory.segment(at, length as usize));
            digest = agreed.digests.data.then(|| memory.digest(at, length as usize).to_le_bytes());
        }
        let head = self.advance_head(agreed);
        let response = (!success).then(|| {
            let outcome = &slot.outcome;
            let mut entry = CompletionEntry::new(outcome.dw0, head, 0, slot.entry.cid, outcome.status, false);
            entry.dw1 = outcome.dw1;
            encode::capsule_resp(&entry, agreed.digests)
        });
        let digest = digest.as_ref().map_or(&[][..], |digest| digest);
        let response = response.as_ref().map_or(&[][..], |head| head.as_bytes());
        self.put_head(memory.heads(number) + BEHIND_DATA, &[digest, response], memory);
    }

    /// Returns the head of the host's submission queue.
    pub(super) fn head(&self) -> u32 {
        self.head
    }

    pub(super) fn resume_at(head: u32) -> Self {
        Self { head, ..Self::default() }
    }

    /// Returns SQHD of the next completion.
    fn advance_head(&mut self, agreed: &Agreed) -> u16 {
        let Some(entries) = agreed.sq_entries else { return u16::MAX };
        self.head = (self.head + 1) % entries;
        self.head as u16
    }

    /// Writes pieces one after the other, as one segment.
    fn put_head(&mut self, at: usize, pieces: &[&[u8]], memory: &QueueMemory) {
        let mut end = at;
        for piece in pieces {
            memory.write(end, piece);
            end += piece.len();
        }
        if end > at {
            self.segments.push(memory.segment(at, end - at));
        }
    }
}

#[cfg(test)]
mod tests;
