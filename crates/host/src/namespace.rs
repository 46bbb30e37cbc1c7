//! Blocks of a namespace, one command at a time: for tests, and for callers without a time limit.

use crate::controller::success;
use crate::{Controller, Deadline, DmaBuffer, Error, QueuePair, entry, identify};
use sluice_nvme::identify::IdentifyNamespace;
use sluice_nvme::{CompletionEntry, SubmissionEntry};
use std::time::Duration;

/// Bytes that one command moves at most, unless the controller allows less.
const MAX_TRANSFER: usize = 128 << 10;

const IMPOSSIBLE: Error = Error::Protocol("a namespace with impossible blocks");

/// A namespace behind a queue pair of its own. Every call sends as many commands as the length needs
/// and waits for each; data goes through one buffer.
#[derive(Debug)]
pub struct Namespace {
    nsid: u32,
    identity: Box<IdentifyNamespace>,
    /// Bytes of a block.
    block_size: usize,
    queue: QueuePair,
    buffer: DmaBuffer,
    timeout: Duration,
}

impl Namespace {
    /// Opens an active namespace. The queue pair has room for transfers of 128 KiB, or of what the
    /// controller allows if that is less.
    pub fn open(controller: &mut Controller, nsid: u32, queue: QueuePair) -> Result<Self, Error> {
        let identity = Box::new(controller.identify_namespace(nsid)?);
        let limit = controller.identity().and_then(identify::max_transfer);
        let length = limit.map_or(MAX_TRANSFER, |limit| limit.min(MAX_TRANSFER));
        let block_size = identify::block_size(&identity).ok_or(IMPOSSIBLE)? as usize;
        if block_size > length || identify::lba_format(&identity).ms != 0 {
            return Err(Error::Unsupported("a namespace with metadata, or blocks over 128 KiB"));
        }
        let buffer = controller.memory().allocate(length)?;
        Ok(Self { nsid, identity, block_size, queue, buffer, timeout: controller.settings().timeout })
    }

    pub fn identity(&self) -> &IdentifyNamespace {
        &self.identity
    }

    /// Returns the bytes of a block.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    pub fn queue(&mut self) -> &mut QueuePair {
        &mut self.queue
    }

    pub fn into_queue(self) -> QueuePair {
        self.queue
    }

    /// Reads from a block on; the length is a multiple of the block size.
    pub fn read(&mut self, slba: u64, data: &mut [u8]) -> Result<(), Error> {
        let mut slba = slba;
        let step = self.step();
        for chunk in data.chunks_mut(step) {
            let blocks = self.blocks(chunk.len())?;
            self.transfer(entry::read(self.nsid, slba, blocks), chunk.len())?;
            self.buffer.region().read(0, chunk);
            slba += u64::from(blocks);
        }
        Ok(())
    }

    /// Writes from a block on; the length is a multiple of the block size.
    pub fn write(&mut self, slba: u64, data: &[u8]) -> Result<(), Error> {
        self.send(slba, data, entry::write)
    }

    /// Writes with Force Unit Access.
    pub fn write_fua(&mut self, slba: u64, data: &[u8]) -> Result<(), Error> {
        self.send(slba, data, |nsid, slba, blocks| entry::with_fua(entry::write(nsid, slba, blocks)))
    }

    /// Compares data with the blocks; the status is Compare Failure if they differ.
    pub fn compare(&mut self, slba: u64, data: &[u8]) -> Result<(), Error> {
        self.send(slba, data, entry::compare)
    }

    pub fn flush(&mut self) -> Result<(), Error> {
        self.command(entry::flush(self.nsid)).and_then(success).map(drop)
    }

    /// Writes zeros to some blocks, or deallocates them if that reads as zeros too.
    pub fn write_zeroes(&mut self, slba: u64, blocks: u32, deallocate: bool) -> Result<(), Error> {
        let entry = entry::write_zeroes(self.nsid, slba, blocks, deallocate);
        self.command(entry).and_then(success).map(drop)
    }

    /// Deallocates at most 256 ranges, each a first block and a number of blocks.
    pub fn deallocate(&mut self, ranges: &[(u64, u32)]) -> Result<(), Error> {
        if !(1..=256).contains(&ranges.len()) {
            return Err(Error::Unsupported("Dataset Management of no range or of more than 256"));
        }
        // Context attributes, length, starting LBA (NVM Command Set 3.2.3).
        let range = |&(slba, blocks): &(u64, u32)| u128::from(blocks) << 32 | u128::from(slba) << 64;
        let bytes: Vec<u8> = ranges.iter().flat_map(|ends| range(ends).to_le_bytes()).collect();
        self.buffer.region().write(0, &bytes);
        self.transfer(entry::deallocate(self.nsid, ranges.len() as u32), bytes.len())
    }

    /// Sends an entry as it is and waits for it, whatever its status.
    pub fn command(&mut self, entry: SubmissionEntry) -> Result<CompletionEntry, Error> {
        let cid = self.queue.submit(entry).ok_or(Error::QueueFull)?;
        self.finish(cid)
    }

    /// Sends data in as many commands as it needs.
    fn send(
        &mut self,
        slba: u64,
        data: &[u8],
        command: impl Fn(u32, u64, u32) -> SubmissionEntry,
    ) -> Result<(), Error> {
        let mut slba = slba;
        for chunk in data.chunks(self.step()) {
            let blocks = self.blocks(chunk.len())?;
            self.buffer.region().write(0, chunk);
            self.transfer(command(self.nsid, slba, blocks), chunk.len())?;
            slba += u64::from(blocks);
        }
        Ok(())
    }

    /// Sends a command with data in the buffer, and waits for it.
    fn transfer(&mut self, entry: SubmissionEntry, length: usize) -> Result<(), Error> {
        let data = self.buffer.range(0, length as u32);
        let cid = self.queue.submit_prp(entry, data).ok_or(Error::QueueFull)?;
        success(self.finish(cid)?).map(drop)
    }

    fn finish(&mut self, cid: u16) -> Result<CompletionEntry, Error> {
        let deadline = Deadline::after(self.timeout, "the completion of an I/O command");
        self.queue.wait(cid, &deadline, drop)
    }

    /// Returns the bytes of as many whole blocks as one command moves; one block at least.
    fn step(&self) -> usize {
        self.buffer.len() - self.buffer.len() % self.block_size()
    }

    fn blocks(&self, length: usize) -> Result<u32, Error> {
        if length.is_multiple_of(self.block_size()) {
            Ok((length / self.block_size()) as u32)
        } else {
            Err(Error::Unsupported("a length that is not a multiple of the block size"))
        }
    }
}
