//! Data transfer of a command capsule, as the transport needs it: length, direction and place.

use sluice_command::record::{Reader, RecordError, Writer};
use sluice_controller::{IN_CAPSULE_MAX, TRANSFER_MAX};
use sluice_nvme::fabrics::{self, Fctype};
use sluice_nvme::opcode::admin;
use sluice_nvme::{DataTransfer, SglDescriptor, SglType, Status, SubmissionEntry};

/// Direction of the data of a command (Base 3.3.3.1, opcode bits 1:0).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Direction {
    #[default]
    None,
    ToController,
    ToHost,
}

/// Data of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Transfer {
    pub(super) direction: Direction,
    /// Length in bytes.
    pub(super) length: u32,
    /// Offset of in-capsule data within the data of the capsule; None if the data is not in the capsule.
    pub(super) offset: Option<u32>,
}

/// Sub types of SGL descriptors in a capsule (Base 4.1.2, TCP Transport 3.2).
const SUB_TYPE_OFFSET: u8 = 1;
const SUB_TYPE_TRANSPORT: u8 = 0xa;

impl Transfer {
    /// Reads the data pointer of an entry that came with `in_capsule` bytes of data.
    ///
    /// # Errors
    /// Status to complete the command with.
    pub(super) fn of(entry: &SubmissionEntry, in_capsule: u32) -> Result<Self, Status> {
        let direction = direction(entry)?;
        if direction == Direction::None {
            return Ok(Self::default());
        }
        if entry.data_transfer() != DataTransfer::Sgl {
            return Err(Status::INVALID_FIELD);
        }
        let sgl = SglDescriptor::from_dptr(entry.dptr);
        let length = sgl.length;
        let offset = match (sgl.kind(), sgl.sub_type()) {
            (SglType::DATA_BLOCK, SUB_TYPE_OFFSET) => Some(in_capsule_offset(&sgl, direction, in_capsule)?),
            (SglType::TRANSPORT_DATA_BLOCK, SUB_TYPE_TRANSPORT) => None,
            _ => return Err(Status::SGL_TYPE_INVALID),
        };
        if length > TRANSFER_MAX {
            return Err(Status::INVALID_FIELD);
        }
        // Set Features has data or none, with one opcode.
        let direction = if length == 0 { Direction::None } else { direction };
        Ok(Self { direction, length, offset })
    }
}

impl Transfer {
    pub(super) fn put(&self, part: &mut Writer) {
        part.put(self.direction as u8);
        part.put(self.length);
        part.option(self.offset, Writer::put);
    }

    /// Reads the transfer of a command.
    ///
    /// # Errors
    /// No command has it.
    pub(super) fn read(part: &mut Reader<'_>) -> Result<Self, RecordError> {
        let direction = match part.get::<u8>()? {
            0 => Direction::None,
            1 => Direction::ToController,
            2 => Direction::ToHost,
            _ => return Err(RecordError::Invalid("direction")),
        };
        let length = part.below(TRANSFER_MAX + 1, "length of data")?;
        let offset = part.option(|part| part.below(IN_CAPSULE_MAX + 1, "offset of data"))?;
        match offset {
            Some(offset) if offset + length > IN_CAPSULE_MAX => Err(RecordError::Invalid("offset of data")),
            _ => Ok(Self { direction, length, offset }),
        }
    }
}

fn in_capsule_offset(sgl: &SglDescriptor, direction: Direction, in_capsule: u32) -> Result<u32, Status> {
    if direction != Direction::ToController {
        return Err(Status::SGL_TYPE_INVALID);
    }
    let offset = u32::try_from(sgl.address).ok().filter(|offset| *offset <= IN_CAPSULE_MAX);
    let offset = offset.ok_or(Status::SGL_OFFSET_INVALID)?;
    match offset.checked_add(sgl.length) {
        Some(end) if end <= in_capsule => Ok(offset),
        _ => Err(Status::SGL_DATA_LENGTH_INVALID),
    }
}

fn direction(entry: &SubmissionEntry) -> Result<Direction, Status> {
    let code = match entry.opcode {
        fabrics::OPCODE => Fctype::of(entry).0,
        opcode => opcode,
    };
    match code & 0b11 {
        0b00 => Ok(Direction::None),
        0b01 => Ok(Direction::ToController),
        0b10 => Ok(Direction::ToHost),
        _ => Err(Status::INVALID_OPCODE),
    }
}

/// Returns whether an admin command exists on memory-based transports only (Base 3.1.3.4).
pub(super) fn is_of_memory_transport(opcode: u8) -> bool {
    matches!(
        opcode,
        admin::DELETE_IO_SQ
            | admin::CREATE_IO_SQ
            | admin::DELETE_IO_CQ
            | admin::CREATE_IO_CQ
            | admin::DOORBELL_BUFFER_CONFIG
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_nvme::opcode::io;

    fn entry(opcode: u8, kind: SglType, sub_type: u8, address: u64, length: u32) -> SubmissionEntry {
        let mut sgl = SglDescriptor::new(kind, address, length);
        sgl.identifier |= sub_type;
        SubmissionEntry { opcode, flags: 1 << 6, dptr: sgl.to_dptr(), ..SubmissionEntry::default() }
    }

    #[test]
    fn data_is_in_the_capsule_or_sent_apart() {
        let inside = entry(io::WRITE, SglType::DATA_BLOCK, SUB_TYPE_OFFSET, 0, 4096);
        let expected = Transfer { direction: Direction::ToController, length: 4096, offset: Some(0) };
        assert_eq!(Transfer::of(&inside, 4096), Ok(expected));
        let apart = entry(io::READ, SglType::TRANSPORT_DATA_BLOCK, SUB_TYPE_TRANSPORT, 0, 1 << 20);
        let expected = Transfer { direction: Direction::ToHost, length: 1 << 20, offset: None };
        assert_eq!(Transfer::of(&apart, 0), Ok(expected));
        let nothing = entry(io::FLUSH, SglType::TRANSPORT_DATA_BLOCK, SUB_TYPE_TRANSPORT, 0, 77);
        assert_eq!(Transfer::of(&nothing, 0), Ok(Transfer::default()));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let (block, apart) = (SglType::DATA_BLOCK, SglType::TRANSPORT_DATA_BLOCK);
        let cases = [
            (entry(io::WRITE, block, SUB_TYPE_OFFSET, 0, 4097), Status::SGL_DATA_LENGTH_INVALID),
            (entry(io::WRITE, block, SUB_TYPE_OFFSET, 1, 4096), Status::SGL_DATA_LENGTH_INVALID),
            (entry(io::WRITE, block, SUB_TYPE_OFFSET, 1, u32::MAX), Status::SGL_DATA_LENGTH_INVALID),
            (entry(io::WRITE, block, SUB_TYPE_OFFSET, u64::MAX, 1), Status::SGL_OFFSET_INVALID),
            (entry(io::READ, block, SUB_TYPE_OFFSET, 0, 512), Status::SGL_TYPE_INVALID),
            (entry(io::READ, block, 0, 0, 512), Status::SGL_TYPE_INVALID),
            (entry(io::READ, apart, 0, 0, 512), Status::SGL_TYPE_INVALID),
            (entry(io::READ, SglType::SEGMENT, 0, 0, 512), Status::SGL_TYPE_INVALID),
            (entry(io::READ, apart, SUB_TYPE_TRANSPORT, 0, TRANSFER_MAX + 1), Status::INVALID_FIELD),
            (entry(0x83, apart, SUB_TYPE_TRANSPORT, 0, 1), Status::INVALID_OPCODE),
        ];
        for (entry, status) in cases {
            assert_eq!(Transfer::of(&entry, 4096), Err(status), "{entry:?}");
        }
        let prp = SubmissionEntry { opcode: io::READ, ..SubmissionEntry::default() };
        assert_eq!(Transfer::of(&prp, 0), Err(Status::INVALID_FIELD));
    }

    /// Checks the record of a command's data: data in a capsule lies in the buffer of its slot.
    #[test]
    fn data_of_a_record_has_limits() {
        use Direction::{None as Nothing, ToController, ToHost};
        for (direction, length, offset, is_good) in [
            (Nothing, 0, None, true),
            (ToHost, TRANSFER_MAX, None, true),
            (ToController, TRANSFER_MAX + 1, None, false),
            (ToController, IN_CAPSULE_MAX, Some(0), true),
            (ToController, 0, Some(IN_CAPSULE_MAX), true),
            (ToController, 0, Some(IN_CAPSULE_MAX + 1), false),
            (ToController, 512, Some(IN_CAPSULE_MAX - 512), true),
            (ToController, 513, Some(IN_CAPSULE_MAX - 512), false),
            (ToController, IN_CAPSULE_MAX, Some(1), false),
        ] {
            let transfer = Transfer { direction, length, offset };
            let mut part = Writer::new(0);
            transfer.put(&mut part);
            let read = Transfer::read(&mut Reader::new(&part.finish(), 0)).ok();
            assert_eq!(read, is_good.then_some(transfer), "{transfer:?}");
        }
        let mut part = Writer::new(0);
        part.put(3u8);
        part.put(0u32);
        part.option(None::<u32>, Writer::put);
        assert!(Transfer::read(&mut Reader::new(&part.finish(), 0)).is_err(), "no direction");
    }
}
