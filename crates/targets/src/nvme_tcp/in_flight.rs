//! Commands on a connection, and the PDUs that the controller may send for each.

use super::chunk::Chunk;
use sluice_command::Ticket;
use sluice_nvme::opcode::io;
use sluice_nvme::{Status, SubmissionEntry};
use sluice_nvme_tcp::{Data, Fes, R2t, Violation};

/// Offsets of fields in C2HData and R2T.
const FLAGS: u32 = 1;
const CCCID: u32 = 8;

/// A command of the drive, or the remaining part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Remaining {
    pub(super) ticket: Ticket,
    /// Bytes that earlier chunks have moved.
    pub(super) done: u64,
    /// Time of the first loss of a connection with the command, or of the first refusal for the access state.
    /// The success of a chunk clears it.
    pub(super) since_ns: Option<u64>,
}

/// Data of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DataKind {
    /// No data.
    None,
    /// Data that is received into the memory of the drive's command.
    Read,
    /// Data in the memory of the drive's command.
    Write,
    /// Zeros.
    Zeros,
    /// Data that the command itself contains.
    Bytes([u8; 16]),
}

/// Data that the controller has requested with an R2T.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    pub(super) ttag: u16,
    /// Next byte to send, and end of the requested data, from the beginning of the command's data.
    pub(super) next: u32,
    pub(super) end: u32,
}

/// A chunk of a command on the connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlight {
    pub(super) remaining: Remaining,
    /// Bytes of the drive's command in this chunk.
    pub(super) bytes: u64,
    pub(super) data_kind: DataKind,
    pub(super) in_capsule: bool,
    /// Bytes of its data.
    pub(super) length: u32,
    /// Bytes of data that were received, or requested by the controller.
    progress: u32,
    pub(super) grant: Option<Grant>,
    /// Set if a data digest was wrong.
    pub(super) is_damaged: bool,
    /// Set once its capsule is being sent. The controller must send nothing for the command before.
    pub(super) is_sent: bool,
    /// Sends in progress that name its memory.
    pub(super) pins: u16,
    /// Status of a completed command that is still pinned.
    pub(super) answer: Option<Status>,
    pub(super) entry: SubmissionEntry,
    pub(super) since_ns: u64,
    /// Count of acknowledged writes at the time it was sent.
    pub(super) mark: u64,
}

impl InFlight {
    pub(super) fn new(remaining: Remaining, chunk: &Chunk, now_ns: u64, mark: u64) -> Self {
        Self {
            remaining,
            bytes: chunk.bytes,
            data_kind: chunk.data_kind,
            in_capsule: chunk.in_capsule,
            length: chunk.length,
            progress: if chunk.in_capsule { chunk.length } else { 0 },
            grant: None,
            is_damaged: false,
            is_sent: false,
            pins: 0,
            answer: None,
            entry: chunk.entry,
            since_ns: now_ns,
            mark,
        }
    }

    /// Returns whether the controller has the command, and has not completed it.
    pub(super) fn is_there(&self) -> bool {
        self.is_sent && self.answer.is_none()
    }

    /// Returns whether the controller may have the command, and the command changes blocks.
    pub(super) fn may_change(&self) -> bool {
        self.is_sent && !matches!(self.entry.opcode, io::READ | io::FLUSH)
    }

    /// Checks a C2HData PDU; returns the offset of its data in the command's.
    pub(super) fn expect_data(&mut self, data: &Data) -> Result<u32, Violation> {
        if self.data_kind != DataKind::Read || !self.is_there() {
            return Err(Violation::field(CCCID));
        }
        let end = data.offset.checked_add(data.length).filter(|end| *end <= self.length);
        let (true, Some(end)) = (data.offset == self.progress, end) else {
            return Err(Violation { fes: Fes::DATA_OUT_OF_RANGE, fei: 0 });
        };
        // If the last PDU does not complete the data, a response has to give the reason.
        let is_all = end == self.length;
        if is_all && !data.last || !is_all && data.success {
            return Err(Violation::field(FLAGS));
        }
        self.progress = end;
        Ok(data.offset)
    }

    /// Checks an R2T: data is requested in order, and not before all of the last requested data is sent.
    pub(super) fn expect_r2t(&mut self, r2t: &R2t) -> Result<(), Violation> {
        let is_write = matches!(self.data_kind, DataKind::Write | DataKind::Zeros | DataKind::Bytes(_));
        if !is_write || self.in_capsule || !self.is_there() {
            return Err(Violation::field(CCCID));
        }
        if self.grant.is_some() {
            return Err(Violation { fes: Fes::DATA_LIMIT_EXCEEDED, fei: 0 });
        }
        let end = r2t.offset.checked_add(r2t.length).filter(|end| *end <= self.length);
        let (true, Some(end)) = (r2t.offset == self.progress && r2t.length > 0, end) else {
            return Err(Violation { fes: Fes::DATA_OUT_OF_RANGE, fei: 0 });
        };
        self.progress = end;
        self.grant = Some(Grant { ttag: r2t.ttag, next: r2t.offset, end });
        Ok(())
    }

    /// Returns the status of a completed command. Success with less data than the command has is an error.
    pub(super) fn outcome(&self, status: Status) -> Status {
        match status.is_success() {
            true if self.is_damaged => Status::TRANSIENT_TRANSPORT_ERROR,
            true if self.progress < self.length || self.grant.is_some() => Status::DATA_TRANSFER_ERROR,
            _ => status,
        }
    }
}

/// All commands on a connection, by CID. The lower byte of a CID is a slot of the table. The upper byte
/// changes with each command in the slot, so that an answer to an earlier command matches nothing.
#[derive(Debug)]
pub(super) struct InFlightTable {
    slots: Vec<TableSlot>,
    free: Vec<u8>,
}

#[derive(Debug, Default)]
struct TableSlot {
    turn: u8,
    flight: Option<InFlight>,
}

impl InFlightTable {
    /// Creates a table for `depth` commands, at most 256.
    pub(super) fn new(depth: u32) -> Self {
        let depth = depth.min(256) as usize;
        let slots = std::iter::repeat_with(TableSlot::default).take(depth).collect();
        Self { slots, free: (0..depth).rev().map(|slot| slot as u8).collect() }
    }

    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Returns the number of commands.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Adds a command, and returns its CID.
    ///
    /// # Panics
    /// If there is no room.
    pub(super) fn begin(&mut self, mut flight: InFlight) -> u16 {
        let index = self.free.pop().expect("there is room");
        let slot = &mut self.slots[usize::from(index)];
        slot.turn = slot.turn.wrapping_add(1);
        let cid = u16::from(slot.turn) << 8 | u16::from(index);
        flight.entry.cid = cid;
        slot.flight = Some(flight);
        cid
    }

    pub(super) fn get_mut(&mut self, cid: u16) -> Option<&mut InFlight> {
        let slot = self.slots.get_mut(usize::from(cid as u8))?;
        slot.flight.as_mut().filter(|flight| flight.entry.cid == cid)
    }

    pub(super) fn get(&self, cid: u16) -> Option<&InFlight> {
        let slot = self.slots.get(usize::from(cid as u8))?;
        slot.flight.as_ref().filter(|flight| flight.entry.cid == cid)
    }

    pub(super) fn end(&mut self, cid: u16) -> Option<InFlight> {
        self.get(cid)?;
        self.free.push(cid as u8);
        self.slots[usize::from(cid as u8)].flight.take()
    }

    /// Removes all commands that will not be completed, the oldest first.
    pub(super) fn end_all(&mut self) -> Vec<InFlight> {
        let mut all: Vec<InFlight> = self.slots.iter_mut().filter_map(|slot| slot.flight.take()).collect();
        self.free = (0..self.slots.len()).rev().map(|slot| slot as u8).collect();
        all.sort_by_key(|flight| flight.since_ns);
        all
    }

    /// Returns the time at which the oldest command was sent.
    pub(super) fn oldest_ns(&self) -> Option<u64> {
        self.slots.iter().filter_map(|slot| slot.flight.as_ref()).map(|flight| flight.since_ns).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flight(data_kind: DataKind) -> InFlight {
        let remaining = Remaining { ticket: Ticket(1), done: 0, since_ns: None };
        let entry = SubmissionEntry::default();
        InFlight::new(
            remaining,
            &Chunk { entry, bytes: 512, length: 512, data_kind, in_capsule: false },
            0,
            0,
        )
    }

    #[test]
    fn nothing_is_said_of_what_was_not_sent() {
        let data = Data { cccid: 0, ttag: 0, offset: 0, length: 512, last: true, success: false };
        let r2t = R2t { cccid: 0, ttag: 1, offset: 0, length: 512 };
        let (mut read, mut write) = (flight(DataKind::Read), flight(DataKind::Write));
        assert_eq!(read.expect_data(&data), Err(Violation::field(CCCID)));
        assert_eq!(write.expect_r2t(&r2t), Err(Violation::field(CCCID)));
        (read.is_sent, write.is_sent) = (true, true);
        assert_eq!(read.expect_data(&data), Ok(0));
        assert_eq!(write.expect_r2t(&r2t), Ok(()));
    }
}
