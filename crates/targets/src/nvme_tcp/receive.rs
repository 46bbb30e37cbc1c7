//! Received PDUs: bytes become data and completions, each checked against the commands.

use super::in_flight::DataKind;
use super::queue::{CloseReason, Queue};
use super::transmit::Item;
use sluice_command::Lane;
use sluice_nvme::Status;
use sluice_nvme_tcp::{Digest, Event, Pdu, Place, Violation};

/// Offsets of the CID field in a response, and of CCCID in R2T and C2HData.
const RESPONSE_CID: u32 = 20;
const CCCID: u32 = 8;

/// Bytes of data that are worth a receive of their own.
const LARGE: u32 = 16 << 10;

/// The payload of the present PDU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Payload {
    pub(super) cid: u16,
    /// Offset of the next byte, and of the first, in the data of the command on the wire.
    pub(super) at: u32,
    start: u32,
}

impl Queue {
    /// Processes received bytes: payload in its final place, then the content of the inbox.
    pub(super) fn take(&mut self, bytes: usize, lane: &Lane<'_>) -> Result<(), CloseReason> {
        if let Some(stream) = &mut self.tls {
            stream.received(bytes);
            while self.next_record()? {
                self.take_staged(lane)?;
            }
            return Ok(());
        }
        let direct = self.direct.min(bytes);
        self.staged = 0..bytes - direct;
        if direct > 0 {
            self.advance(direct, lane)?;
        }
        self.take_staged(lane)
    }

    /// Stages the content of the next record of an encrypted connection. Returns false if there is none.
    fn next_record(&mut self) -> Result<bool, CloseReason> {
        let Some(stream) = &mut self.tls else { return Ok(false) };
        if self.staged.is_empty() {
            stream.take_all();
            self.staged = 0..stream.advance().map_err(CloseReason::Tls)?;
        }
        Ok(!self.staged.is_empty())
    }

    fn take_staged(&mut self, lane: &Lane<'_>) -> Result<(), CloseReason> {
        while !self.staged.is_empty() {
            let (from, waiting) = (self.staged.start, self.staged.len());
            let count = match self.decoder.place() {
                Place::Here(room) => {
                    let count = room.len().min(waiting);
                    match &self.tls {
                        None => self.memory.read(from, &mut room[..count]),
                        Some(stream) => room[..count].copy_from_slice(&stream.content()[from..from + count]),
                    }
                    count
                }
                Place::Payload(left) => {
                    let count = waiting.min(left as usize);
                    self.copy(from, count, lane);
                    count
                }
            };
            self.staged.start += count;
            self.advance(count, lane)?;
        }
        Ok(())
    }

    /// Returns the missing bytes of the present payload.
    pub(super) fn payload_left(&mut self) -> Option<usize> {
        match self.decoder.place() {
            Place::Payload(left) => Some(left as usize),
            Place::Here(_) => None,
        }
    }

    /// Copies payload from the inbox to its final place. That of a termination request has none.
    fn copy(&mut self, from: usize, count: usize, lane: &Lane<'_>) {
        let Some(payload) = &self.payload else { return };
        let Some(flight) = self.in_flight.get(payload.cid) else { return };
        let Some(slot) = lane.parked(flight.remaining.ticket) else { return };
        let to = flight.remaining.done as usize + payload.at as usize;
        match &self.tls {
            None => drop(self.memory.scatter(from, &slot.data, to, count)),
            Some(stream) => drop(slot.data.copy_from(to, &stream.content()[from..from + count])),
        }
        self.tally.bytes_copied += count as u64;
    }

    /// Advances the decoder by bytes at its present destination.
    fn advance(&mut self, count: usize, lane: &Lane<'_>) -> Result<(), CloseReason> {
        if let (Some(payload), Place::Payload(_)) = (&mut self.payload, self.decoder.place()) {
            payload.at += count as u32;
        }
        match self.decoder.filled(count)? {
            None => Ok(()),
            Some(Event::Pdu(pdu)) => self.handle(pdu),
            Some(Event::End { digest }) => self.end_payload(digest, lane),
        }
    }

    fn handle(&mut self, pdu: Pdu) -> Result<(), CloseReason> {
        match pdu {
            Pdu::Response(entry) => {
                let is_read =
                    self.in_flight.get(entry.cid).is_some_and(|flight| flight.data_kind == DataKind::Read);
                self.expects_large &= is_read;
                let answered = self.answer(entry.cid, status_of(entry.status()));
                answered.ok_or(Violation::field(RESPONSE_CID))?;
            }
            Pdu::Data(data) => {
                let flight = self.in_flight.get_mut(data.cccid).ok_or(Violation::field(CCCID))?;
                let start = flight.expect_data(&data)?;
                self.expects_large = data.length >= LARGE;
                self.payload = Some(Payload { cid: data.cccid, at: start, start });
                self.is_success = data.success;
                self.tally.bytes += u64::from(data.length);
            }
            Pdu::R2t(r2t) => {
                let flight = self.in_flight.get_mut(r2t.cccid).ok_or(Violation::field(CCCID))?;
                flight.expect_r2t(&r2t)?;
                self.tally.bytes += u64::from(r2t.length);
                self.transmit.push(Item::Data(r2t.cccid));
            }
            Pdu::Terminated(violation) => return Err(CloseReason::Terminated(violation)),
            Pdu::IcReq(_) | Pdu::IcResp(_) | Pdu::Command(..) => return Err(Violation::SEQUENCE.into()),
        }
        Ok(())
    }

    /// Handles the end of a PDU's payload.
    fn end_payload(&mut self, digest: Option<u32>, lane: &Lane<'_>) -> Result<(), CloseReason> {
        let Some(payload) = self.payload.take() else { return Ok(()) };
        if let Some(digest) = digest
            && self.digest(&payload, lane) != Some(digest)
            && let Some(flight) = self.in_flight.get_mut(payload.cid)
        {
            // A wrong digest does not end the connection: the command may be sent again (TCP Transport
            // 3.3.1.1).
            flight.is_damaged = true;
        }
        if std::mem::take(&mut self.is_success) {
            self.answer(payload.cid, Status::SUCCESS);
        }
        Ok(())
    }

    /// Returns the digest of the received payload. The host may have changed the payload since, which affects
    /// only that host.
    fn digest(&self, payload: &Payload, lane: &Lane<'_>) -> Option<u32> {
        const STEP: usize = 4096;
        let flight = self.in_flight.get(payload.cid)?;
        let slot = lane.parked(flight.remaining.ticket)?;
        let base = flight.remaining.done as usize;
        let (mut digest, mut chunk) = (Digest::new(), [0; STEP]);
        for offset in (payload.start..payload.at).step_by(STEP) {
            let chunk = &mut chunk[..STEP.min((payload.at - offset) as usize)];
            slot.data.copy_to(base + offset as usize, chunk);
            digest.add(chunk);
        }
        Some(digest.value())
    }
}

/// Returns the status of a command for the target. Command Interrupted stays: the target submits the command
/// again.
fn status_of(answer: Status) -> Status {
    if answer.same_code(Status::COMMAND_INTERRUPTED) { answer } else { answer.of_peer() }
}
