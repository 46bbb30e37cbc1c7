//! PDUs to the controller: all of a turn in one send.

use super::chunk::ZEROS;
use super::in_flight::{DataKind, InFlight, InFlightTable};
use sluice_command::Lane;
use sluice_memory::{Segment, SegmentList, SharedRegion};
use sluice_nvme_tcp::{DIGEST_SIZE, Data, Digest, Digests, encode};
use std::collections::VecDeque;

/// Segments after which no PDU is added to a send; the last one may add as many again.
const SEGMENTS_MAX: usize = 512;

/// Bytes of headers and of copied data in one send: always enough for the data of one command. Linux's target
/// checks one digest over all data of a command, and so needs it in one PDU.
pub(super) const OUTBOX: usize = (1 << 20) + (64 << 10);

/// A PDU to send, of the command with this CID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Item {
    /// The capsule.
    Capsule(u16),
    /// Data that an R2T requested.
    Data(u16),
}

/// Negotiated format of PDUs.
#[derive(Clone, Copy, Debug)]
pub(super) struct PduFormat {
    pub(super) digests: Digests,
    /// Alignment of data in a PDU.
    pub(super) alignment: u8,
    /// Bytes of data in an H2CData PDU at most.
    pub(super) data_max: u32,
}

/// Memory of a connection as far as it is for sending.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outbox<'a> {
    pub(super) region: &'a SharedRegion,
    /// Offset of headers and copies: [`OUTBOX`] bytes.
    pub(super) at: usize,
    /// Offset of [`ZEROS`] zeros.
    pub(super) zeros: usize,
}

/// PDUs to send, and the send in progress.
#[derive(Debug)]
pub(super) struct Transmit {
    format: PduFormat,
    queue: VecDeque<Item>,
    segments: Vec<Segment>,
    /// Segments that are sent already.
    sent: usize,
    /// Commands whose memory is being sent.
    pinned: Vec<u16>,
    /// Bytes of the outbox in use.
    used: usize,
    /// Set if the last segment ends at the used end of the outbox.
    is_open: bool,
    part: SegmentList,
    /// Bytes of data that were copied.
    pub(super) copied: u64,
}

impl Transmit {
    /// Creates the state for `depth` commands.
    pub(super) fn new(format: PduFormat, depth: u32) -> Self {
        let depth = depth as usize;
        Self {
            format,
            queue: VecDeque::with_capacity(2 * depth),
            segments: Vec::with_capacity(SEGMENTS_MAX + sluice_memory::MAX_SEGMENTS + 3),
            sent: 0,
            pinned: Vec::with_capacity(2 * depth),
            used: 0,
            is_open: false,
            part: SegmentList::new(),
            copied: 0,
        }
    }

    pub(super) fn push(&mut self, item: Item) {
        self.queue.push_back(item);
    }

    /// Returns whether no PDU was sent in part.
    pub(super) fn is_between_pdus(&self) -> bool {
        self.segments.is_empty()
    }

    /// Returns whether nothing waits to be sent.
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.segments.is_empty()
    }

    /// Returns the segments to send next: the unsent ones, or new ones for as many PDUs as fit. They are
    /// empty if there is nothing to send.
    pub(super) fn prepare(
        &mut self,
        in_flight: &mut InFlightTable,
        outbox: Outbox<'_>,
        lane: &Lane<'_>,
    ) -> &[Segment] {
        if self.segments.is_empty() {
            while self.segments.len() <= SEGMENTS_MAX
                && let Some(&item) = self.queue.front()
                && self.add(item, in_flight, outbox, lane)
            {
                self.queue.pop_front();
            }
        }
        &self.segments[self.sent..]
    }

    /// Adds a PDU, or several; false if something of it has to wait for the next send.
    fn add(
        &mut self,
        item: Item,
        in_flight: &mut InFlightTable,
        outbox: Outbox<'_>,
        lane: &Lane<'_>,
    ) -> bool {
        match item {
            Item::Capsule(cid) => {
                let Some(flight) = in_flight.get_mut(cid) else { return true };
                let length = if flight.in_capsule { flight.length } else { 0 };
                if !self.has_room(flight, length, lane) {
                    return false;
                }
                let PduFormat { digests, alignment, .. } = self.format;
                let head = encode::capsule_cmd(&flight.entry, digests, alignment, length);
                self.put(head.as_bytes(), outbox);
                self.put_data(flight, 0, length, outbox, lane);
                self.pin(flight);
                flight.is_sent = true;
                true
            }
            Item::Data(cid) => {
                // A command that was completed before needs no more data.
                while let Some(flight) = in_flight.get_mut(cid)
                    && flight.answer.is_none()
                    && let Some(grant) = flight.grant
                {
                    let length = (grant.end - grant.next).min(self.format.data_max);
                    if self.segments.len() > SEGMENTS_MAX || !self.has_room(flight, length, lane) {
                        return false;
                    }
                    let last = grant.next + length == grant.end;
                    let PduFormat { digests, alignment, .. } = self.format;
                    let (ttag, offset) = (grant.ttag, grant.next);
                    let data = Data { cccid: cid, ttag, offset, length, last, success: false };
                    self.put(encode::h2c_data(data, digests, alignment).as_bytes(), outbox);
                    self.put_data(flight, offset, length, outbox, lane);
                    self.pin(flight);
                    let next = super::in_flight::Grant { next: grant.next + length, ..grant };
                    flight.grant = (!last).then_some(next);
                }
                true
            }
        }
    }

    /// Returns whether data is sent from a copy. Data must not change between its digest and the send, and a
    /// bit bucket has no memory.
    fn copies(&self, flight: &InFlight, lane: &Lane<'_>) -> bool {
        match flight.data_kind {
            DataKind::Write => {
                self.format.digests.data
                    || lane.parked(flight.remaining.ticket).is_some_and(|slot| slot.data.has_bit_bucket())
            }
            DataKind::Bytes(_) => true,
            DataKind::None | DataKind::Read | DataKind::Zeros => false,
        }
    }

    /// Returns whether the outbox has room for a PDU of the command with `length` bytes of data.
    fn has_room(&self, flight: &InFlight, length: u32, lane: &Lane<'_>) -> bool {
        let copied = if self.copies(flight, lane) { length as usize } else { 0 };
        self.used + encode::HEAD_MAX + copied + DIGEST_SIZE <= OUTBOX
    }

    fn pin(&mut self, flight: &mut InFlight) {
        flight.pins += 1;
        self.pinned.push(flight.entry.cid);
    }

    /// Appends bytes to the outbox. They extend the last segment if that ends where they begin.
    fn put(&mut self, bytes: &[u8], outbox: Outbox<'_>) {
        outbox.region.write(outbox.at + self.used, bytes);
        self.extend(bytes.len(), outbox);
    }

    /// Appends a segment for bytes that were written to the outbox.
    fn extend(&mut self, length: usize, outbox: Outbox<'_>) {
        let before = if self.is_open { self.segments.pop().map_or(0, |last| last.len() as usize) } else { 0 };
        let start = outbox.at + self.used - before;
        self.segments.push(outbox.region.segment(start, (before + length) as u32));
        self.used += length;
        self.is_open = true;
    }

    /// Appends the data of a PDU, with its digest.
    fn put_data(&mut self, flight: &InFlight, offset: u32, length: u32, outbox: Outbox<'_>, lane: &Lane<'_>) {
        if length == 0 {
            return;
        }
        let (from, bytes) = (flight.remaining.done as usize + offset as usize, length as usize);
        let at = outbox.at + self.used;
        match flight.data_kind {
            DataKind::None | DataKind::Read => return,
            DataKind::Zeros => {
                self.segments.push(outbox.region.segment(outbox.zeros, length.min(ZEROS as u32)));
                self.is_open = false;
            }
            DataKind::Bytes(own) => self.put(&own[offset as usize..][..bytes], outbox),
            DataKind::Write => {
                let Some(slot) = lane.parked(flight.remaining.ticket) else { return };
                if self.copies(flight, lane) {
                    outbox.region.gather(at, &slot.data, from, bytes);
                    self.extend(bytes, outbox);
                    self.copied += u64::from(length);
                } else {
                    slot.data.slice(from, bytes, &mut self.part).expect("a piece lies in its command");
                    self.segments.extend_from_slice(self.part.as_slice());
                    self.is_open = false;
                }
            }
        }
        if self.format.digests.data {
            let source = if flight.data_kind == DataKind::Zeros { outbox.zeros } else { at };
            let digest = digest_of(outbox.region, source, bytes);
            self.put(&digest.to_le_bytes(), outbox);
        }
    }

    /// Records that bytes of the last segments were sent. After the last of them, `unpin` gets each command
    /// whose memory was named.
    pub(super) fn sent(&mut self, bytes: usize, unpin: impl FnMut(u16)) {
        let mut left = bytes;
        while left > 0 && self.sent < self.segments.len() {
            let segment = &mut self.segments[self.sent];
            let length = segment.len() as usize;
            if length > left {
                *segment = segment.slice(left as u32, (length - left) as u32);
                return;
            }
            left -= length;
            self.sent += 1;
        }
        if self.sent == self.segments.len() {
            self.segments.clear();
            (self.sent, self.used, self.is_open) = (0, 0, false);
            self.pinned.drain(..).for_each(unpin);
        }
    }
}

/// Returns the digest of bytes in the connection's own memory.
fn digest_of(region: &SharedRegion, at: usize, length: usize) -> u32 {
    const STEP: usize = 4096;
    let (mut digest, mut chunk) = (Digest::new(), [0; STEP]);
    for offset in (0..length).step_by(STEP) {
        let chunk = &mut chunk[..STEP.min(length - offset)];
        region.read(at + offset, chunk);
        digest.add(chunk);
    }
    digest.value()
}
