//! Commands spoiled in exactly one way, and the status that the specification requires for each.

use super::Scenario;
use super::admin::NN;
use super::draft::{Draft, Kind};
use crate::Guest;
use sluice_controller::TRANSFER_MAX;
use sluice_nvme::{NSID_ALL, SglDescriptor, SglType, Status, opcode::io as opcode};

/// Opcodes that are not supported: unused, reserved, vendor specific, and optional ones.
const NO_COMMANDS: [u8; 9] = [0x03, 0x06, 0x07, 0x0a, 0x0f, 0x7f, 0x80, 0xc1, 0xff];

impl Scenario<'_> {
    /// Spoils the draft; returns the status with which the controller must answer.
    pub(super) fn spoil(&mut self, draft: &mut Draft) -> Status {
        // Not every command can be spoiled in every way; any one can in the last three.
        for _ in 0..8 {
            let spoiled = match self.random.below(5) {
                0 => self.spoil_range(draft),
                1 => self.spoil_length(draft),
                2 => self.spoil_prp(draft),
                3 => self.spoil_sgl(draft),
                _ => None,
            };
            if let Some(status) = spoiled {
                draft.buffer.describe(&mut draft.entry);
                return status;
            }
        }
        draft.buffer.describe(&mut draft.entry);
        match self.random.below(3) {
            0 => self.spoil_opcode(draft),
            1 => self.spoil_nsid(draft),
            _ => self.spoil_flags(draft),
        }
    }

    fn spoil_opcode(&mut self, draft: &mut Draft) -> Status {
        draft.entry.opcode = *self.random.pick(&NO_COMMANDS);
        Status::INVALID_OPCODE
    }

    fn spoil_nsid(&mut self, draft: &mut Draft) -> Status {
        let actives: Vec<u32> = self.drive.namespaces.iter().map(|namespace| namespace.nsid).collect();
        loop {
            let nsid = match self.random.below(4) {
                0 => 0,
                1 => NSID_ALL,
                2 => self.random.next_u64() as u32,
                _ => self.random.below(8) as u32,
            };
            if !actives.contains(&nsid) {
                draft.entry.nsid = nsid;
                // An NSID in the range of namespaces is inactive, any other invalid (Base 3.2.1.5).
                return if (1..=NN).contains(&nsid) {
                    Status::INVALID_FIELD
                } else {
                    Status::INVALID_NAMESPACE
                };
            }
        }
    }

    /// Sets a fused operation or the reserved form of the data pointer (Base 3.3.3.1).
    fn spoil_flags(&mut self, draft: &mut Draft) -> Status {
        // The first of two fused commands would wait for its second.
        let (flags, status) = *self.random.pick(&[
            (0xc0, Status::INVALID_FIELD),
            (2, Status::ABORTED_MISSING_FUSED),
            (3, Status::INVALID_FIELD),
        ]);
        draft.entry.flags |= flags;
        status
    }

    fn spoil_range(&mut self, draft: &mut Draft) -> Option<Status> {
        let all = self.drive.namespaces[draft.namespace].blocks;
        let blocks = u64::from(draft.entry.blocks());
        let first = match self.random.below(3) {
            0 => all - self.random.below(blocks),
            1 => u64::MAX - self.random.below(blocks + 1),
            _ => self.random.between(all, u64::MAX),
        };
        match draft.entry.opcode {
            opcode::READ | opcode::WRITE | opcode::COMPARE | opcode::WRITE_ZEROES | opcode::VERIFY => {
                draft.entry.cdw10 = first as u32;
                draft.entry.cdw11 = (first >> 32) as u32;
            }
            opcode::DATASET_MANAGEMENT => self.spoil_one_range(draft, all),
            _ => return None,
        }
        Some(Status::LBA_OUT_OF_RANGE)
    }

    /// Moves one range of a Dataset Management, so that it ends one block too far.
    fn spoil_one_range(&mut self, draft: &mut Draft, all: u64) {
        let ranges = u64::from(draft.entry.cdw10 & 0xff) + 1;
        let at = self.random.below(ranges) as usize * 16;
        let blocks = self.random.between(1, all);
        let (low, slba) = (blocks << 32, all - blocks + 1);
        draft.buffer.write(&self.host.guest, at, &[low.to_le_bytes(), slba.to_le_bytes()].concat());
    }

    /// Makes the transfer longer than MDTS, where the namespace has so many blocks.
    fn spoil_length(&mut self, draft: &mut Draft) -> Option<Status> {
        let namespace = &self.drive.namespaces[draft.namespace];
        let most = u64::from(TRANSFER_MAX / namespace.block_size);
        let moves_data = matches!(draft.entry.opcode, opcode::READ | opcode::WRITE | opcode::COMPARE);
        if !moves_data || namespace.blocks <= most {
            return None;
        }
        let blocks = self.random.between(most + 1, namespace.blocks.min(1 << 16));
        draft.entry.cdw10 = self.random.below(namespace.blocks - blocks + 1) as u32;
        draft.entry.cdw12 = draft.entry.cdw12 & 0xffff_0000 | (blocks as u32 - 1);
        Some(Status::INVALID_FIELD)
    }

    /// Spoils PRP entries (Base 4.1.1).
    fn spoil_prp(&mut self, draft: &mut Draft) -> Option<Status> {
        let pages = draft.buffer.prp_pages()?;
        let list = draft.buffer.prp_list().to_vec();
        let in_page = self.random.between(1, 4095);
        let [prp1, prp2] = draft.buffer.dptr_mut();
        match self.random.below(8) {
            // The offset of PRP1 has its two low bits clear.
            0 => *prp1 |= self.random.between(1, 3),
            1 if pages == 2 => *prp2 |= in_page,
            // A list consists of quadwords.
            2 if pages > 2 => *prp2 |= self.random.between(1, 7),
            3 if pages > 2 => self.host.guest.write(*self.random.pick(&list), &in_page.to_le_bytes()),
            4 => return Some(point_into_hole(prp1)),
            5 if pages > 1 => return Some(point_into_hole(prp2)),
            6 if pages > 2 => {
                self.host.guest.write(*self.random.pick(&list), &Guest::HOLE.to_le_bytes());
                return Some(Status::DATA_TRANSFER_ERROR);
            }
            7 if matches!(draft.kind, Kind::Read { .. }) => {
                *prp1 = Guest::READ_ONLY | *prp1 & 0xfff;
                return Some(Status::DATA_TRANSFER_ERROR);
            }
            _ => return None,
        }
        Some(Status::PRP_OFFSET_INVALID)
    }

    /// Spoils SGL descriptors (Base 4.1.2).
    fn spoil_sgl(&mut self, draft: &mut Draft) -> Option<Status> {
        let mut descriptors = draft.buffer.descriptors().to_vec();
        let last = descriptors.len().checked_sub(1)?;
        let any = self.random.below(descriptors.len() as u64) as usize;
        let status = match self.random.below(6) {
            0 => {
                // Keyed and transport data blocks are not for PCIe; the others are reserved.
                let kind = SglType(*self.random.pick(&[4, 5, 6, 9, 15]));
                descriptors[any] =
                    SglDescriptor::new(kind, descriptors[any].address, descriptors[any].length);
                Status::SGL_TYPE_INVALID
            }
            1 => {
                descriptors[any].identifier |= self.random.between(1, 15) as u8;
                Status::SGL_TYPE_INVALID
            }
            2 => {
                descriptors[last].length -= self.random.between(1, descriptors[last].length.into()) as u32;
                Status::SGL_DATA_LENGTH_INVALID
            }
            3 if descriptors[any].kind() == SglType::DATA_BLOCK => {
                descriptors[any].address = Guest::HOLE;
                Status::DATA_TRANSFER_ERROR
            }
            4 => {
                // A segment descriptor that is not the last of its segment.
                let kind = *self.random.pick(&[SglType::SEGMENT, SglType::LAST_SEGMENT]);
                descriptors.insert(any, SglDescriptor::new(kind, Guest::HOLE, 16));
                return self.in_one_segment(draft, &descriptors, Status::INVALID_SGL_COUNT);
            }
            _ => return Some(self.spoil_segment(draft)),
        };
        draft.buffer.describe_by(&mut self.host.guest, &mut self.random, &descriptors);
        Some(status)
    }

    /// Describes the buffer by these descriptors, if they fit one segment: only then the flaw is inside of a
    /// segment.
    fn in_one_segment(
        &mut self,
        draft: &mut Draft,
        descriptors: &[SglDescriptor],
        status: Status,
    ) -> Option<Status> {
        let pointer = draft.buffer.describe_by(&mut self.host.guest, &mut self.random, descriptors);
        let is_whole = pointer.length as usize == size_of_val(descriptors);
        if !is_whole {
            // Back to a legal description; another flaw is tried.
            let legal = draft.buffer.descriptors().to_vec();
            draft.buffer.describe_by(&mut self.host.guest, &mut self.random, &legal);
        }
        is_whole.then_some(status)
    }

    /// Spoils the pointer to the first segment.
    fn spoil_segment(&mut self, draft: &mut Draft) -> Status {
        let legal = draft.buffer.descriptors().to_vec();
        let mut pointer = draft.buffer.describe_by(&mut self.host.guest, &mut self.random, &legal);
        let status = match self.random.below(4) {
            0 => {
                pointer.length = 0;
                Status::INVALID_SGL_SEGMENT
            }
            1 => {
                pointer.length += self.random.between(1, 15) as u32;
                Status::INVALID_SGL_SEGMENT
            }
            2 => {
                pointer.address |= self.random.between(1, 7);
                Status::INVALID_SGL_SEGMENT
            }
            _ => {
                pointer.address = Guest::HOLE;
                Status::DATA_TRANSFER_ERROR
            }
        };
        *draft.buffer.dptr_mut() = pointer.to_dptr();
        status
    }
}

/// Points an entry into a hole of the memory, at the same offset in the page.
fn point_into_hole(prp: &mut u64) -> Status {
    *prp = Guest::HOLE | *prp & 0xfff;
    Status::DATA_TRANSFER_ERROR
}
