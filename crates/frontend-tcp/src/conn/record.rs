//! Record of a connection, with which another process continues it between any two bytes.
//!
//! Queues, buffers and unprocessed bytes are in the memory of the connection, which is a file. The record has the
//! rest: the commands in their slots, the part of a PDU that has arrived, and the positions in the queues.

use super::connection::{Connection, Phase};
use super::memory::QueueMemory;
use super::receive::Payload;
use super::reclaim::Reclaim;
use super::slots::Slots;
use super::transmit::{Agreed, Transmit};
use crate::LIMITS;
use crate::auth::AuthState;
use crate::token::Owner;
use sluice_command::record::{Reader, RecordError, Writer};
use sluice_controller::{CannotHandOver, IO_QUEUES_MAX, QUEUE_ENTRIES_MAX};
use sluice_frontend::record::{HandOverError, Incoming, Outgoing};
use sluice_nvme::SubmissionEntry;
use sluice_nvme_tcp::{Decoder, Digests, UnfinishedPdu};
use sluice_reactor::{Io, TaskId};
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::AsFd;
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of a PDU's header, and of a text that is an address.
const HEAD_MAX: usize = 256;

impl Connection {
    pub(crate) fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// Starts no further receive, and cancels the one in flight. Messages to the host are still sent.
    pub(crate) fn quiesce(&mut self) {
        self.is_quiet = true;
        if self.receiving {
            self.cancel_receive();
        }
    }

    /// Checks that nothing is in flight on the socket, and that no response is under way.
    pub(crate) fn check_settled(&self) -> Result<(), CannotHandOver> {
        let is_settled = !self.receiving && !self.sending && self.transmit.is_idle();
        match () {
            () if self.is_encrypted() => Err(CannotHandOver("a host is connected over TLS")),
            () if self.phase != Phase::Open => Err(CannotHandOver("a connection of a host is ending")),
            () if self.auth.as_ref().is_some_and(|auth| !auth.is_at_rest()) => {
                Err(CannotHandOver("a host authenticates"))
            }
            () if !is_settled => Err(CannotHandOver("messages to hosts are under way")),
            () if !self.slots.may_be_handed_over() => Err(CannotHandOver("responses to hosts are under way")),
            () => Ok(()),
        }
    }

    /// Marks the connection as one that another process may have.
    pub(crate) fn lend(&mut self) {
        self.is_lent = true;
    }

    /// Lets the connection go on in this process.
    pub(crate) fn go_on(&mut self) {
        (self.is_quiet, self.is_lent) = (false, false);
    }

    /// Writes the record of a connection that has [settled](Self::check_settled).
    pub(crate) fn put(&self, part: &mut Writer, outgoing: &mut Outgoing) {
        outgoing.put(part, self.socket.as_fd());
        outgoing.put(part, self.memory.file());
        part.put(self.auth.is_some());
        part.put(self.qid);
        part.put((self.memory.entries() - 1) as u16);
        put_address(part, self.peer);
        part.put(self.agreed.digests.header);
        part.put(self.agreed.digests.data);
        part.put(self.agreed.alignment);
        part.option(self.agreed.sq_entries, Writer::put);
        let UnfinishedPdu { step, head, payload } = self.decoder.unfinished();
        part.put(step);
        part.bytes(&head);
        part.put(payload);
        part.put(self.staged.start as u32);
        part.put(self.staged.end as u32);
        part.option(self.payload, |part, payload| payload.put(part));
        part.option(self.held.as_ref(), |part, (entry, length)| {
            part.raw(entry.as_bytes());
            part.put(*length);
        });
        self.slots.put(part);
        part.put(self.transmit.head());
        part.put(self.sq_tail);
        part.put(self.sq_rung);
        part.put(self.cq_head);
        part.put(self.cq_phase);
    }

    /// Reads the record of a connection, which stays quiet until it [goes on](Self::go_on).
    pub(crate) fn read(
        part: &mut Reader<'_>,
        incoming: &Incoming,
        (io, task, owner): (Io, TaskId, Owner),
        authenticated: impl FnOnce(SocketAddr) -> Result<AuthState, HandOverError>,
        now_ns: u64,
    ) -> Result<Self, HandOverError> {
        let (socket, file) = (incoming.take(part)?, incoming.take(part)?);
        let is_authenticated = part.get()?;
        let qid = part.below(IO_QUEUES_MAX + 1, "queue identifier")?;
        let capsules = part.below(QUEUE_ENTRIES_MAX as u16, "size of a queue")?;
        if capsules == 0 {
            return Err(RecordError::Invalid("size of a queue").into());
        }
        let memory = QueueMemory::resume(qid, capsules, file)?;
        let peer = read_address(part)?;
        let digests = Digests { header: part.get()?, data: part.get()? };
        let alignment = part.get()?;
        let sq_entries: Option<u32> =
            part.option(|part| part.below(QUEUE_ENTRIES_MAX + 1, "size of a queue"))?;
        if sq_entries == Some(0) {
            return Err(RecordError::Invalid("size of a queue").into());
        }
        let agreed = Agreed { digests, alignment, sq_entries };
        let pdu =
            UnfinishedPdu { step: part.get()?, head: part.bytes(HEAD_MAX)?.to_vec(), payload: part.get()? };
        let decoder = Decoder::continued(LIMITS, digests, &pdu);
        let decoder = decoder.ok_or(RecordError::Invalid("unfinished PDU"))?;
        let staged = read_range(part)?;
        if !memory.has_staged(&staged) {
            return Err(RecordError::Invalid("staged bytes").into());
        }
        let payload = part.option(|part| Payload::read(part, &memory, capsules, pdu.payload))?;
        let held = part.option(read_held)?;
        let slots = Slots::read(capsules, part)?;
        let head = part.below(sq_entries.unwrap_or(1), "head of a queue")?;
        let mut position = || part.below(memory.entries(), "index of a queue");
        let (sq_tail, sq_rung, cq_head) = (position()?, position()?, position()?);
        let cq_phase = part.get()?;
        let auth = if is_authenticated { Some(Box::new(authenticated(peer)?)) } else { None };
        let mut reclaim = Reclaim::new();
        reclaim.note_receive(now_ns);
        Ok(Self {
            qid,
            peer,
            socket: io.register_file(socket)?,
            io,
            task,
            owner,
            phase: Phase::Open,
            memory,
            tls: None,
            agreed,
            decoder,
            staged,
            received_pieces: 0,
            direct: 0,
            receiving: false,
            sending: false,
            is_quiet: true,
            is_lent: true,
            payload,
            held,
            slots,
            transmit: Transmit::resume_at(head),
            reclaim,
            auth,
            sq_tail,
            sq_rung,
            cq_head,
            cq_phase,
        })
    }
}

impl Payload {
    fn put(self, part: &mut Writer) {
        part.put(self.slot);
        part.put(self.start as u64);
        part.put(self.at as u64);
        part.put(self.in_capsule);
    }

    /// Reads where the payload of a PDU goes, of which `left` bytes are missing.
    fn read(part: &mut Reader<'_>, memory: &QueueMemory, slots: u16, left: u32) -> Result<Self, RecordError> {
        let slot = part.below(slots, "slot")?;
        let (start, at) = (part.get::<u64>()? as usize, part.get::<u64>()? as usize);
        let end = at.checked_add(left as usize).ok_or(RecordError::Invalid("place of data"))?;
        if start > at || !memory.has_data(&(start..end)) {
            return Err(RecordError::Invalid("place of data"));
        }
        Ok(Self { slot, at, start, in_capsule: part.get()? })
    }
}

fn read_held(part: &mut Reader<'_>) -> Result<(SubmissionEntry, u32), RecordError> {
    let entry = SubmissionEntry::read_from_bytes(part.raw(SubmissionEntry::SIZE)?);
    let entry = entry.map_err(|_| RecordError::Invalid("command"))?;
    Ok((entry, part.below(LIMITS.in_capsule_max + 1, "length of data")?))
}

fn read_range(part: &mut Reader<'_>) -> Result<Range<usize>, RecordError> {
    Ok(part.get::<u32>()? as usize..part.get::<u32>()? as usize)
}

/// Writes an address as text.
pub(crate) fn put_address(part: &mut Writer, address: SocketAddr) {
    part.bytes(address.to_string().as_bytes());
}

pub(crate) fn read_address(part: &mut Reader<'_>) -> Result<SocketAddr, RecordError> {
    let text = std::str::from_utf8(part.bytes(HEAD_MAX)?).ok();
    text.and_then(|text| text.parse().ok()).ok_or(RecordError::Invalid("address"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(write: impl FnOnce(&mut Writer)) -> Vec<u8> {
        let mut part = Writer::new(0);
        write(&mut part);
        part.finish()
    }

    #[test]
    fn addresses_come_back_from_a_record() {
        for text in ["10.0.0.1:4420", "[fe80::1%3]:65535", "[::ffff:10.0.0.1]:1"] {
            let address: SocketAddr = text.parse().expect("an address");
            let bytes = bytes(|part| put_address(part, address));
            assert_eq!(read_address(&mut Reader::new(&bytes, 0)), Ok(address));
        }
        for text in [&b"10.0.0.1"[..], b"", b"\xff\xff"] {
            let bytes = bytes(|part| part.bytes(text));
            assert_eq!(read_address(&mut Reader::new(&bytes, 0)), Err(RecordError::Invalid("address")));
        }
    }

    /// Checks where data of a PDU may go: into the buffers of commands, for all of its missing bytes.
    #[test]
    fn data_goes_where_data_of_commands_is() {
        let memory = QueueMemory::new(1, 8).expect("memory");
        let (begin, end) = (memory.inline(0), memory.pool() + super::super::memory::POOL);
        for (slot, start, at, left, is_good) in [
            (0, begin, begin, 0, true),
            (7, begin, begin + 100, 50, true),
            (8, begin, begin, 0, false),
            (0, begin - 1, begin, 0, false),
            (0, begin + 1, begin, 0, false),
            (0, end - 100, end - 60, 60, true),
            (0, end - 100, end - 60, 61, false),
            (0, begin, usize::MAX, 1, false),
        ] {
            let payload = Payload { slot, at, start, in_capsule: slot == 7 };
            let bytes = bytes(|part| payload.put(part));
            let read = Payload::read(&mut Reader::new(&bytes, 0), &memory, 8, left);
            let expected = format!("{payload:?}");
            assert_eq!(read.ok().map(|read| format!("{read:?}")), is_good.then_some(expected), "{payload:?}");
        }
    }

    #[test]
    fn a_command_that_waits_for_a_slot_has_little_data() {
        let entry = SubmissionEntry { cid: 5, ..SubmissionEntry::default() };
        for (length, is_good) in
            [(0, true), (LIMITS.in_capsule_max, true), (LIMITS.in_capsule_max + 1, false)]
        {
            let bytes = bytes(|part| {
                part.raw(entry.as_bytes());
                part.put(length);
            });
            let read = read_held(&mut Reader::new(&bytes, 0)).ok();
            assert_eq!(read, is_good.then_some((entry, length)));
        }
        let range = bytes(|part| {
            part.put(3u32);
            part.put(70u32);
        });
        assert_eq!(read_range(&mut Reader::new(&range, 0)), Ok(3..70));
    }
}
