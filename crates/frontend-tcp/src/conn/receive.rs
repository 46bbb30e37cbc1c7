//! Receive path: bytes become capsules and data. Data is checked against the R2T that requested it.

use super::capsule::Transfer;
use super::close_reason::CloseReason;
use super::connection::{Connection, Context, Phase};
use super::execute;
use super::slots::{Outcome, Stage};
use sluice_nvme::{Status, SubmissionEntry};
use sluice_nvme_tcp::{Data, Event, Fes, Pdu, Place, Violation};

/// Payload of the current PDU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Payload {
    pub(super) slot: u16,
    /// Offset of the next byte.
    pub(super) at: usize,
    /// Offset of the first byte.
    pub(super) start: usize,
    /// Set for in-capsule data.
    pub(super) in_capsule: bool,
}

/// Offsets of fields in H2CData.
const FLAGS: u32 = 1;
const CCCID: u32 = 8;
const TTAG: u32 = 10;

impl From<Violation> for CloseReason {
    fn from(violation: Violation) -> Self {
        CloseReason::Violation(violation)
    }
}

impl Connection {
    /// Processes all staged bytes, as long as capsules find slots and the host has not left the queue. Returns the
    /// number of PDUs.
    pub(crate) fn take_staged(&mut self, context: &mut Context<'_>) -> Result<usize, CloseReason> {
        let mut work = 0;
        while self.phase == Phase::Open {
            if let Some((entry, length)) = self.held.take() {
                if !self.admit(entry, length, context)? {
                    self.held = Some((entry, length));
                    break;
                }
                work += 1;
                continue;
            }
            if self.staged.is_empty() && !self.next_record()? {
                break;
            }
            let waiting = self.staged.len();
            let from = self.staged.start;
            let (count, event) = match self.decoder.place() {
                Place::Here(room) => {
                    let count = room.len().min(waiting);
                    match &self.tls {
                        None => self.memory.read(self.memory.staging() + from, &mut room[..count]),
                        Some(stream) => room[..count].copy_from_slice(&stream.content()[from..from + count]),
                    }
                    (count, self.decoder.filled(count)?)
                }
                Place::Payload(left) => {
                    let count = waiting.min(left as usize);
                    let payload = self.payload.as_mut().ok_or(Violation::SEQUENCE)?;
                    match &self.tls {
                        None => self.memory.copy_within(self.memory.staging() + from, payload.at, count),
                        Some(stream) => self.memory.write(payload.at, &stream.content()[from..from + count]),
                    }
                    payload.at += count;
                    (count, self.decoder.filled(count)?)
                }
            };
            self.staged.start += count;
            if let Some(event) = event {
                work += 1;
                self.handle(event, context)?;
            }
        }
        self.received_pieces += work;
        Ok(work)
    }

    /// Accounts for `count` bytes of payload that were received directly to their final place.
    pub(super) fn take_payload(
        &mut self,
        count: usize,
        context: &mut Context<'_>,
    ) -> Result<(), CloseReason> {
        if let Some(payload) = &mut self.payload {
            payload.at += count;
        }
        match self.decoder.filled(count)? {
            Some(event) => self.handle(event, context),
            None => Ok(()),
        }
    }

    fn handle(&mut self, event: Event, context: &mut Context<'_>) -> Result<(), CloseReason> {
        match event {
            Event::Pdu(Pdu::Command(entry, length)) => self.held = Some((entry, length)),
            Event::Pdu(Pdu::Data(data)) => self.expect_data(&data)?,
            Event::Pdu(Pdu::Terminated(violation)) => return Err(CloseReason::GivenUp(violation)),
            Event::Pdu(_) => return Err(Violation::SEQUENCE.into()),
            Event::End { digest } => self.end_payload(digest, context),
        }
        Ok(())
    }

    /// Gives a capsule a slot. Returns false if it must wait for a response that is being sent.
    ///
    /// # Errors
    /// No slot will become free: the host has more commands outstanding than its queue allows.
    fn admit(
        &mut self,
        entry: SubmissionEntry,
        length: u32,
        context: &mut Context<'_>,
    ) -> Result<bool, CloseReason> {
        let Some(number) = self.slots.take(&entry) else {
            // A host may receive a response before this side has the completion of the send.
            return if self.slots.answering > 0 { Ok(false) } else { Err(Violation::SEQUENCE.into()) };
        };
        let slot = self.slots.slot_mut(number);
        match Transfer::of(&entry, length) {
            Ok(transfer) => slot.transfer = transfer,
            Err(status) => slot.refused = Some(status),
        }
        if length == 0 {
            execute::execute(self, number, context);
        } else {
            let start = self.memory.inline(number);
            self.payload = Some(Payload { slot: number, at: start, start, in_capsule: true });
        }
        Ok(true)
    }

    /// Checks an H2CData PDU: it must belong to an R2T, and continue its data in order.
    fn expect_data(&mut self, data: &Data) -> Result<(), Violation> {
        let slot = self.slots.get(data.ttag).filter(|slot| slot.stage == Stage::Requested);
        let slot = slot.ok_or(Violation::field(TTAG))?;
        if slot.entry.cid != data.cccid {
            return Err(Violation::field(CCCID));
        }
        let end = data.offset.checked_add(data.length).filter(|end| *end <= slot.transfer.length);
        let (true, Some(end)) = (data.offset == slot.received, end) else {
            return Err(Violation { fes: Fes::DATA_OUT_OF_RANGE, fei: 0 });
        };
        if data.last != (end == slot.transfer.length) {
            return Err(Violation::field(FLAGS));
        }
        let start = self.slots.data(data.ttag, &self.memory) + data.offset as usize;
        self.payload = Some(Payload { slot: data.ttag, at: start, start, in_capsule: false });
        Ok(())
    }

    /// Handles the end of the payload of a PDU.
    fn end_payload(&mut self, digest: Option<u32>, context: &mut Context<'_>) {
        let Some(payload) = self.payload.take() else { return };
        let length = payload.at - payload.start;
        let wrong = digest.is_some_and(|digest| digest != self.memory.digest(payload.start, length));
        let slot = self.slots.slot_mut(payload.slot);
        if wrong {
            // The connection goes on: the host may send the command again (TCP Transport 3.3.1.1).
            slot.refused = slot.refused.or(Some(Status::TRANSIENT_TRANSPORT_ERROR));
        }
        if payload.in_capsule {
            return execute::execute(self, payload.slot, context);
        }
        slot.received += length as u32;
        if slot.received < slot.transfer.length {
            return;
        }
        match slot.refused {
            Some(status) => self.answer(payload.slot, Outcome::failed(status)),
            None => execute::proceed(self, payload.slot),
        }
    }
}
