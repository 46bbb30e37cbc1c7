//! Writing of a log.

use super::format::{BLOCK, Head, Magic, RECORD_BYTES, VERSION};
use super::{LOG_IO_MAX, halves};
use sluice_metadata::engine::{self, Position, Rules, Source, Step};

/// Rules of writing: each write has Force Unit Access, and the full half is the fallback of the next one.
const RULES: Rules = Rules { flushes: false, voids: false };

/// Writer of one record or checkpoint at a time. Each write must be durable when it is reported as done.
#[derive(Debug)]
pub(crate) struct Writer {
    engine: engine::Writer,
    blocks: Blocks,
    /// Buffer of the bytes that are being written, which are the first `length`.
    buffer: Vec<u8>,
    length: usize,
    /// Offset of the next write, if it is not in flight.
    at: Option<u64>,
}

/// Content of the blocks to write.
#[derive(Debug)]
struct Blocks {
    magic: Magic,
    /// Version of the last checkpoint, and of its records.
    version: u32,
    id: u64,
    /// State of the last checkpoint.
    state: Vec<u8>,
    /// Bytes of the last record.
    record: Vec<u8>,
}

impl Source for Blocks {
    fn header(&mut self, log: &Position, block: &mut [u8]) {
        Head::header(self.magic, self.version, self.id, log.generation, &self.state).seal(block);
    }

    fn body(&mut self, _: &Position, number: u64, buffer: &mut [u8]) -> usize {
        let rest = self.state.get(number as usize * BLOCK..).unwrap_or_default();
        let bytes = rest.len().min(buffer.len());
        let end = bytes.next_multiple_of(BLOCK);
        buffer[..bytes].copy_from_slice(&rest[..bytes]);
        buffer[bytes..end].fill(0);
        end / BLOCK
    }

    fn record(&mut self, log: &Position, block: &mut [u8]) {
        block[BLOCK - RECORD_BYTES..][..self.record.len()].copy_from_slice(&self.record);
        let (number, length) = (log.next as u32, self.record.len());
        Head::record(self.magic, self.version, self.id, log.generation, number, length).seal(block);
    }
}

impl Writer {
    /// Creates the writer of a log whose next checkpoint goes to this half with this epoch.
    pub(crate) fn new(magic: Magic, log_bytes: u64, id: u64, epoch: u64, half: usize) -> Self {
        Self {
            engine: engine::Writer::new(halves(log_bytes), RULES, Position::first(half, epoch)),
            blocks: Blocks {
                magic,
                version: VERSION,
                id,
                state: Vec::new(),
                record: Vec::with_capacity(RECORD_BYTES),
            },
            buffer: vec![0; LOG_IO_MAX],
            length: 0,
            at: None,
        }
    }

    /// Drops the fallback of a log that cannot be relied on: the other half may be older than the lost
    /// content.
    pub(crate) fn after_damage(self) -> Self {
        Self { engine: self.engine.after_damage(), ..self }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.engine.is_idle()
    }

    /// Returns whether the half has room for a record; if not, a checkpoint must come next.
    pub(crate) fn has_room(&self) -> bool {
        self.engine.has_room()
    }

    /// Begins a record of at most [`RECORD_BYTES`]. The half must have room, and no write may be in flight.
    pub(crate) fn append(&mut self, record: &[u8]) {
        assert!(record.len() <= RECORD_BYTES);
        self.blocks.record.clear();
        self.blocks.record.extend_from_slice(record);
        self.engine.append(false);
        self.advance();
    }

    /// Begins a checkpoint: `fill` writes the state. No write may be in flight.
    pub(crate) fn checkpoint(&mut self, fill: impl FnOnce(&mut Vec<u8>)) {
        self.engine.checkpoint();
        self.blocks.state.clear();
        fill(&mut self.blocks.state);
        self.advance();
    }

    /// Sets the version of the checkpoints from the next one on. Call right before one begins.
    pub(crate) fn set_version(&mut self, version: u32) {
        self.blocks.version = version;
    }

    /// Returns the state of the checkpoint that was written last.
    pub(crate) fn state(&self) -> &[u8] {
        &self.blocks.state
    }

    /// Returns the offset at which [`bytes`](Self::bytes) are to be written. None while a write is in flight.
    pub(crate) fn next(&mut self) -> Option<u64> {
        self.at.take()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[..self.length]
    }

    /// Ends a write. Returns, when a whole record or checkpoint has ended, whether it is durable.
    pub(crate) fn wrote(&mut self, good: bool) -> Option<bool> {
        if self.is_idle() {
            return None;
        }
        if good {
            return self.advance().then_some(true);
        }
        self.engine.failed();
        Some(false)
    }

    /// Prepares the next write. Returns whether the record or checkpoint is done.
    fn advance(&mut self) -> bool {
        let Step::Write { at, length } = self.engine.next(&mut self.blocks, &mut self.buffer) else {
            return true;
        };
        (self.at, self.length) = (Some(at), length);
        false
    }
}
