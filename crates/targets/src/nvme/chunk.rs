//! A chunk: a command, or the part of it that one command of the device can carry.

use super::buffers::{BUFFER_BYTES, Buffer};
use super::confine::Partition;
use super::dma_maps::{DmaMaps, MappingSet};
use super::in_flight::{InFlight, Remaining};
use super::pointer::{Pointer, translate};
use super::port::Link;
use crate::remote::{BLOCKS_MAX, NamespaceInfo};
use sluice_command::{Operation, Request, Slot};
use sluice_host::entry;
use sluice_memory::SegmentList;
use sluice_nvme::{PAGE_SIZE, Status, SubmissionEntry};

/// Bytes that one Dataset Management command deallocates at most.
const DEALLOCATE_MAX: u64 = 1 << 30;

/// The next command for the device, on behalf of a command of the drive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunk {
    request: Request,
    nsid: u32,
    slba: u64,
    blocks: u64,
    block_shift: u32,
    pub(super) data_kind: DataKind,
}

/// Source of the data pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DataKind {
    /// No data.
    None,
    /// The command's own data, or a buffer.
    Data,
    /// A page of zeros to write, since the device has no Write Zeroes.
    Zeros,
    /// A list with one range.
    Deallocate,
}

/// A chunk that was submitted to the device.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) cid: u16,
    pub(super) flight: InFlight,
}

/// Scratch memory for a data pointer.
#[derive(Debug)]
pub(super) struct Scratch<'a> {
    pub(super) pages: &'a mut Vec<u64>,
    pub(super) part: &'a mut SegmentList,
}

impl Chunk {
    /// Returns the chunk after the first `done` bytes of a request.
    ///
    /// # Errors
    /// Those of [`Partition::locate`], which keeps each request in its range.
    pub(super) fn next(
        request: &Request,
        done: u64,
        info: &NamespaceInfo,
        range: &Partition,
        size: u64,
    ) -> Result<Self, Status> {
        let transfer = info.transfer_max as u64;
        let blocks = BLOCKS_MAX << range.block_shift;
        let (data_kind, most) = match request.operation {
            Operation::Flush => (DataKind::None, 0),
            Operation::Read | Operation::Write => (DataKind::Data, transfer),
            // A device that limits transfers may limit Write Zeroes likewise (NVM Command Set 3.2.8, WZSL).
            Operation::WriteZeroes if info.write_zeroes => (DataKind::None, transfer),
            Operation::WriteZeroes => (DataKind::Zeros, transfer),
            Operation::Deallocate => (DataKind::Deallocate, DEALLOCATE_MAX),
        };
        if request.end() > size {
            return Err(Status::LBA_OUT_OF_RANGE);
        }
        let left = request.length.saturating_sub(done);
        let most = if data_kind == DataKind::Deallocate { most } else { most.min(blocks) };
        let (slba, blocks) = range.locate(request.offset.saturating_add(done), left.min(most))?;
        let deallocate = request.deallocate && info.zeroes_deallocate;
        let request = Request { deallocate, ..*request };
        Ok(Self { request, nsid: range.nsid, slba, blocks, block_shift: range.block_shift, data_kind })
    }

    pub(super) fn bytes(&self) -> u64 {
        self.blocks << self.block_shift
    }

    /// Returns the entry without CID and data pointer, for the present number of blocks.
    pub(super) fn entry(&self) -> SubmissionEntry {
        let (nsid, slba, blocks) = (self.nsid, self.slba, self.blocks as u32);
        let fua = |entry| if self.request.fua { entry::with_fua(entry) } else { entry };
        match (self.request.operation, self.data_kind) {
            (Operation::Flush, _) => entry::flush(nsid),
            (Operation::Read, _) => fua(entry::read(nsid, slba, blocks)),
            (Operation::Write, _) | (_, DataKind::Zeros) => fua(entry::write(nsid, slba, blocks)),
            (Operation::WriteZeroes, _) => {
                fua(entry::write_zeroes(nsid, slba, blocks, self.request.deallocate))
            }
            (Operation::Deallocate, _) => entry::deallocate(nsid, 1),
        }
    }

    /// Returns the one range of the list for Dataset Management.
    pub(super) fn deallocated(&self) -> [u8; 16] {
        (u128::from(self.blocks) << 32 | u128::from(self.slba) << 64).to_le_bytes()
    }

    /// Submits the chunk to the queue. Returns none if there is no buffer for data that needs one.
    pub(super) fn send(
        mut self,
        slot: &Slot,
        remaining: Remaining,
        link: &mut Link,
        maps: &mut DmaMaps,
        scratch: Scratch<'_>,
    ) -> Option<Sent> {
        let (cid, set, buffer) = match self.data_kind {
            DataKind::None => (self.push(link, &Pointer::Nothing)?, 0, None),
            DataKind::Zeros => {
                let pages = (self.bytes() as usize).div_ceil(PAGE_SIZE);
                let pointer = Pointer::Repeated(link.buffers.zeros(), pages);
                (self.push(link, &pointer)?, 0, None)
            }
            DataKind::Deallocate => (self.push(link, &Pointer::Bytes(&self.deallocated()))?, 0, None),
            DataKind::Data => self.send_data(slot, remaining, link, maps, scratch)?,
        };
        let flight = InFlight { remaining, bytes: self.bytes(), maps: set, buffer, since_ns: 0, mark: 0 };
        Some(Sent { cid, flight })
    }

    /// Submits a chunk with data: in the host's memory if that is mapped for the device, else in a buffer.
    fn send_data(
        &mut self,
        slot: &Slot,
        remaining: Remaining,
        link: &mut Link,
        maps: &mut DmaMaps,
        Scratch { pages, part }: Scratch<'_>,
    ) -> Option<(u16, MappingSet, Option<Buffer>)> {
        let (done, bytes) = (remaining.done as usize, self.bytes() as usize);
        let data = if bytes == slot.data.len_bytes() {
            &slot.data
        } else {
            slot.data.slice(done, bytes, part).expect("a piece lies in its command");
            &*part
        };
        if let Some((pointer, set)) = translate(data, slot.origin.controller, maps, pages) {
            return Some((self.push(link, &pointer)?, set, None));
        }
        let buffer = link.buffers.take()?;
        self.blocks = self.blocks.min((BUFFER_BYTES >> self.block_shift) as u64);
        let bytes = self.bytes() as usize;
        if self.request.operation == Operation::Write {
            link.buffers.gather(&slot.data, done, &buffer, bytes);
        }
        let pointer = Pointer::Span(link.buffers.range(&buffer, bytes));
        match self.push(link, &pointer) {
            Some(cid) => Some((cid, 0, Some(buffer))),
            None => {
                link.buffers.give_back(buffer);
                None
            }
        }
    }

    fn push(&self, link: &mut Link, pointer: &Pointer<'_>) -> Option<u16> {
        link.queue.submit_with(self.entry(), |slot, lists| pointer.write(slot, lists))
    }
}
