//! Drafts of legal commands.

use super::{DriveNamespace, Scenario};
use crate::buffer::Direction;
use crate::{Action, Buffer, Tag, write_tag};
use sluice_controller::TRANSFER_MAX;
use sluice_nvme::{SubmissionEntry, opcode::io as opcode};

/// A command that is about to be submitted.
#[derive(Debug)]
pub(super) struct Draft {
    /// Index of the namespace.
    pub(super) namespace: usize,
    pub(super) entry: SubmissionEntry,
    pub(super) kind: Kind,
    pub(super) buffer: Buffer,
}

/// Kind of the command in the model.
#[derive(Debug)]
pub(super) enum Kind {
    Read {
        first: u64,
        blocks: u64,
    },
    Compare {
        first: u64,
        tags: Vec<Tag>,
    },
    /// Changes of blocks, or of their durability; a Dataset Management is several actions.
    Change(Vec<Action>),
}

impl Draft {
    pub(super) fn direction(&self) -> Direction {
        match self.kind {
            Kind::Read { .. } => Direction::ToHost,
            _ => Direction::FromHost,
        }
    }
}

/// CDW12 bits of Read and Write, and of Write Zeroes.
const FUA: u32 = 1 << 30;
const DEAC: u32 = 1 << 25;

/// Returns a source range of a Copy in descriptor format 0 (NVM Command Set 3.2.4).
fn source_range(first: u64, blocks: u64) -> [u8; 32] {
    let mut wire = [0; 32];
    wire[8..16].copy_from_slice(&first.to_le_bytes());
    wire[16..18].copy_from_slice(&(blocks as u16 - 1).to_le_bytes());
    wire
}

impl Scenario<'_> {
    pub(super) fn draft_any(&mut self) -> Draft {
        let namespace = self.random.below(self.drive.namespaces.len() as u64) as usize;
        let (first, blocks) = self.any_range(namespace);
        match self.random.below(20) {
            0..7 => self.draft_read(namespace, first, blocks),
            7..14 => self.draft_write(namespace, first, blocks),
            14..15 => match self.random.one_in(3) {
                true => self.draft_verify(namespace, first, blocks),
                false => self.draft_zeroes(namespace, first, blocks),
            },
            15..16 => self.draft_deallocate(namespace),
            16..18 => self.draft_compare(namespace, first, blocks),
            _ => self.draft_flush(namespace),
        }
    }

    fn any_range(&mut self, namespace: usize) -> (u64, u64) {
        let DriveNamespace { block_size, blocks: all, .. } = self.drive.namespaces[namespace];
        let most = match self.random.one_in(32) {
            true => u64::from(TRANSFER_MAX / block_size).min(all),
            false => self.blocks_max(namespace),
        };
        let blocks = self.random.between(1, most);
        (self.random.below(all - blocks + 1), blocks)
    }

    fn entry(&self, namespace: usize, opcode: u8, first: u64, blocks: u64) -> SubmissionEntry {
        SubmissionEntry {
            opcode,
            nsid: self.drive.namespaces[namespace].nsid,
            cdw10: first as u32,
            cdw11: (first >> 32) as u32,
            cdw12: (blocks as u32).saturating_sub(1),
            ..SubmissionEntry::default()
        }
    }

    pub(super) fn draft_read(&mut self, namespace: usize, first: u64, blocks: u64) -> Draft {
        let mut entry = self.entry(namespace, opcode::READ, first, blocks);
        entry.cdw12 |= if self.random.one_in(4) { FUA } else { 0 };
        let buffer = self.new_buffer(namespace, blocks, Direction::ToHost);
        Draft { namespace, entry, kind: Kind::Read { first, blocks }, buffer }
    }

    fn draft_write(&mut self, namespace: usize, first: u64, blocks: u64) -> Draft {
        let fua = self.random.one_in(4);
        let tags = match self.random.one_in(8) {
            true => vec![Tag::ZERO; blocks as usize],
            false => self.new_tags(blocks),
        };
        let mut entry = self.entry(namespace, opcode::WRITE, first, blocks);
        entry.cdw12 |= if fua { FUA } else { 0 };
        let buffer = self.full_buffer(namespace, &tags);
        Draft { namespace, entry, kind: Kind::Change(vec![Action::Write { first, tags, fua }]), buffer }
    }

    fn draft_zeroes(&mut self, namespace: usize, first: u64, blocks: u64) -> Draft {
        let fua = self.random.one_in(4);
        let mut entry = self.entry(namespace, opcode::WRITE_ZEROES, first, blocks);
        entry.cdw12 |= if fua { FUA } else { 0 } | if self.random.one_in(2) { DEAC } else { 0 };
        let tags = vec![Tag::ZERO; blocks as usize];
        let kind = Kind::Change(vec![Action::Write { first, tags, fua }]);
        Draft { namespace, entry, kind, buffer: Buffer::none() }
    }

    /// Drafts a Verify, which succeeds on blocks that can be read.
    fn draft_verify(&mut self, namespace: usize, first: u64, blocks: u64) -> Draft {
        let entry = self.entry(namespace, opcode::VERIFY, first, blocks);
        Draft { namespace, entry, kind: Kind::Change(Vec::new()), buffer: Buffer::none() }
    }

    /// Drafts a Copy of the present contents. None unless they are certain, and there is room beside the
    /// sources.
    pub(super) fn draft_copy(&mut self, namespace: usize) -> Option<Draft> {
        let all = self.drive.namespaces[namespace].blocks;
        let most = self.blocks_max(namespace);
        let count = self.random.between(1, 4);
        let mut ranges: Vec<(u64, u64)> = (0..count).map(|_| self.any_range(namespace)).collect();
        ranges.retain(|(_, blocks)| *blocks <= most);
        let blocks: u64 = ranges.iter().map(|(_, blocks)| blocks).sum();
        if blocks == 0 || blocks > all {
            return None;
        }
        let to = self.random.below(all - blocks + 1);
        if ranges.iter().any(|&(first, count)| first < to + blocks && to < first + count) {
            return None;
        }
        let fua = self.random.one_in(4);
        let model = &self.models[namespace];
        let tags: Option<Vec<Tag>> = ranges
            .iter()
            .flat_map(|&(first, count)| first..first + count)
            .map(|block| model.known(block))
            .collect();
        let mut entry = self.entry(namespace, opcode::COPY, to, 0);
        entry.cdw12 = (ranges.len() as u32 - 1) | if fua { FUA } else { 0 };
        let wire: Vec<u8> = ranges.iter().flat_map(|&(first, count)| source_range(first, count)).collect();
        let length = wire.len() as u32;
        let action = Action::Write { first: to, tags: tags?, fua };
        let buffer = Buffer::any(&mut self.host.guest, &mut self.random, length, Direction::FromHost);
        buffer.write(&self.host.guest, 0, &wire);
        Some(Draft { namespace, entry, kind: Kind::Change(vec![action]), buffer })
    }

    fn draft_flush(&mut self, namespace: usize) -> Draft {
        let entry = self.entry(namespace, opcode::FLUSH, 0, 0);
        Draft { namespace, entry, kind: Kind::Change(vec![Action::Flush]), buffer: Buffer::none() }
    }

    /// Drafts a Compare with the present contents, as far as they are certain, or with others.
    fn draft_compare(&mut self, namespace: usize, first: u64, blocks: u64) -> Draft {
        let entry = self.entry(namespace, opcode::COMPARE, first, blocks);
        let model = &self.models[namespace];
        let there = |block| model.candidates(block).last().copied().unwrap_or(Tag::ZERO);
        let mut tags: Vec<Tag> = (first..first + blocks).map(there).collect();
        if self.random.one_in(4) {
            let different = self.random.below(blocks) as usize;
            tags[different] = self.new_tags(1)[0];
        }
        let buffer = self.full_buffer(namespace, &tags);
        Draft { namespace, entry, kind: Kind::Compare { first, tags }, buffer }
    }

    /// Drafts a Dataset Management of some ranges, most of them with the Deallocate attribute.
    fn draft_deallocate(&mut self, namespace: usize) -> Draft {
        let count = self.random.between(1, 8);
        let ranges: Vec<(u64, u64)> = (0..count).map(|_| self.any_range(namespace)).collect();
        let deallocate = !self.random.one_in(4);
        let mut entry = self.entry(namespace, opcode::DATASET_MANAGEMENT, 0, 0);
        entry.cdw10 = count as u32 - 1;
        entry.cdw11 = if deallocate { 1 << 2 } else { self.random.below(4) as u32 };
        let mut bytes = Vec::new();
        for (first, blocks) in &ranges {
            let attributes = self.random.next_u64() as u32;
            bytes.extend(attributes.to_le_bytes());
            bytes.extend((*blocks as u32).to_le_bytes());
            bytes.extend(first.to_le_bytes());
        }
        let length = bytes.len() as u32;
        let buffer = Buffer::any(&mut self.host.guest, &mut self.random, length, Direction::FromHost);
        buffer.write(&self.host.guest, 0, &bytes);
        let action = |(first, blocks)| Action::Deallocate { first, blocks };
        let actions = if deallocate { ranges.into_iter().map(action).collect() } else { Vec::new() };
        Draft { namespace, entry, kind: Kind::Change(actions), buffer }
    }

    fn new_buffer(&mut self, namespace: usize, blocks: u64, direction: Direction) -> Buffer {
        let length = blocks as u32 * self.drive.namespaces[namespace].block_size;
        Buffer::any(&mut self.host.guest, &mut self.random, length, direction)
    }

    /// Returns a buffer with blocks of these tags.
    fn full_buffer(&mut self, namespace: usize, tags: &[Tag]) -> Buffer {
        let buffer = self.new_buffer(namespace, tags.len() as u64, Direction::FromHost);
        let mut block = vec![0; self.drive.namespaces[namespace].block_size as usize];
        for (number, &tag) in tags.iter().enumerate() {
            write_tag(tag, &mut block);
            buffer.write(&self.host.guest, number * block.len(), &block);
        }
        buffer
    }
}
