//! Reading of a log. No byte of it is trusted.

use super::format::{BLOCK, Head, Header, Magic};
use super::{halves, state_max};
use sluice_metadata::engine::{self, Content, Position, Reading, Step};

/// Limit of the epoch. No log reaches so many checkpoints.
const EPOCH_MAX: u64 = 1 << 62;

/// Rules of reading. An opening begins with a checkpoint, so no record is written again.
const READING: Reading = Reading { to_end: false, rewrites: false };

/// Result of reading a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Blank log.
    New,
    /// Log of ours whose content cannot be relied on. A checkpoint with this epoch, in this half, is later
    /// than the content.
    Damaged { epoch: u64, half: usize },
    /// Log that was loaded. The next checkpoint has this epoch, and goes to this half.
    Loaded { id: u64, epoch: u64, half: usize },
    /// Storage that must not be touched, with the reason as a message.
    Refused(String),
}

/// Part of a loaded log, in order.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Piece<'a> {
    State(&'a [u8]),
    Record(&'a [u8]),
}

/// Reader of a log.
#[derive(Debug)]
pub(crate) struct Loader {
    engine: engine::Loader,
    blocks: Blocks,
    outcome: Option<Outcome>,
}

/// Blocks of the log that were read.
#[derive(Debug)]
struct Blocks {
    magic: Magic,
    log_bytes: u64,
    headers: [Header; 2],
    /// Header that counts.
    head: Head,
    /// Bytes of the state that were read so far.
    state: Vec<u8>,
}

/// Blocks being read, and the receiver of their content.
struct Taking<'a> {
    blocks: &'a mut Blocks,
    take: &'a mut dyn FnMut(Piece<'_>) -> bool,
}

impl Loader {
    pub(crate) fn new(magic: Magic, log_bytes: u64) -> Self {
        let headers = [Header::Blank; 2];
        Self {
            engine: engine::Loader::new(halves(log_bytes), READING),
            blocks: Blocks { magic, log_bytes, headers, head: Head::default(), state: Vec::new() },
            outcome: None,
        }
    }

    /// Returns the offset and length of the next read. None when the [outcome](Self::outcome) is known.
    pub(crate) fn next(&self) -> Option<(u64, usize)> {
        match self.engine.step() {
            Step::Read { at, length } => Some((at, length)),
            _ => None,
        }
    }

    pub(crate) fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }

    /// Takes the bytes of the last read. `take` receives their parts, and returns whether a part is valid.
    pub(crate) fn read(&mut self, bytes: &[u8], take: &mut dyn FnMut(Piece<'_>) -> bool) {
        let mut content = Taking { blocks: &mut self.blocks, take };
        if let Err(outcome) = self.engine.done(bytes, &mut content) {
            self.outcome = Some(outcome);
        } else if self.engine.step() == Step::Done {
            let Position { half, generation: epoch, .. } = self.engine.position().after();
            self.outcome = Some(Outcome::Loaded { id: self.blocks.head.id, epoch, half });
        }
    }
}

impl Blocks {
    /// Returns the refusal of a log of a later version.
    fn later_version(&self) -> Option<Outcome> {
        let version = self.headers.iter().find_map(|header| match header {
            Header::Version(version) => Some(version),
            _ => None,
        })?;
        let words = format!("the log has version {version}, which is later than this program");
        Some(Outcome::Refused(words))
    }
}

impl Content for Taking<'_> {
    type Record<'a> = &'a [u8];
    type Stop = Outcome;

    fn header(&mut self, half: usize, block: &[u8]) -> Option<u64> {
        self.blocks.headers[half] = Head::read_header(self.blocks.magic, block);
        if let Header::Valid(head) = self.blocks.headers[half] { Some(head.epoch) } else { None }
    }

    fn no_header(&mut self) -> Outcome {
        self.blocks.later_version().unwrap_or_else(|| match self.blocks.headers {
            [Header::Blank, Header::Blank] => Outcome::New,
            [Header::Broken, _] => Outcome::Damaged { epoch: 1, half: 0 },
            [_, Header::Broken] => Outcome::Damaged { epoch: 1, half: 1 },
            _ => Outcome::Refused("it holds something else than a log".into()),
        })
    }

    fn begin(&mut self, log: &Position) -> Result<u64, Outcome> {
        if let Some(refused) = self.blocks.later_version() {
            return Err(refused);
        }
        let Header::Valid(head) = self.blocks.headers[log.half] else { return Err(self.no_header()) };
        if head.epoch >= EPOCH_MAX {
            return Err(Outcome::Refused("it holds a log that no program can have written".into()));
        }
        // A disk whose sectors are whole does not tear a header. The broken header may have been the later
        // one.
        if matches!(self.blocks.headers[1 - log.half], Header::Broken | Header::Foreign) {
            return Err(damaged(&head, 1 - log.half));
        }
        if head.length == 0 || u64::from(head.length) > state_max(self.blocks.log_bytes) {
            return Err(damaged(&head, log.half));
        }
        self.blocks.head = head;
        Ok(u64::from(head.length).div_ceil(BLOCK as u64))
    }

    fn body(&mut self, _: &Position, _: u64, blocks: &[u8]) -> Result<(), Outcome> {
        self.blocks.state.extend_from_slice(blocks);
        Ok(())
    }

    fn body_end(&mut self, log: &Position) -> Result<(), Outcome> {
        let Blocks { head, state, .. } = &mut *self.blocks;
        state.truncate(head.length as usize);
        // The header is written after its state is durable, so a power cut cannot explain another state.
        match head.is_of(state) && (self.take)(Piece::State(state)) {
            true => Ok(()),
            false => Err(damaged(head, log.half)),
        }
    }

    fn record<'a>(&self, log: &Position, block: &'a [u8]) -> Option<&'a [u8]> {
        self.blocks.head.read_record(self.blocks.magic, log.next as u32, block)
    }

    fn apply(&mut self, log: &Position, record: &[u8]) -> Result<(), Outcome> {
        match (self.take)(Piece::Record(record)) {
            true => Ok(()),
            false => Err(damaged(&self.blocks.head, log.half)),
        }
    }

    fn behind_end(&mut self, end: &Position, _: u64, _: &[u8]) -> Result<(), Outcome> {
        Err(damaged(&self.blocks.head, end.half))
    }
}

fn damaged(newest: &Head, half: usize) -> Outcome {
    Outcome::Damaged { epoch: newest.epoch + 1, half }
}
