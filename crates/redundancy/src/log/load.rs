//! Reading of a log. No byte of it is trusted.

use super::format::{BLOCK, Head, Header};
use super::{LOG_IO_MAX, half_bytes, state_max};

/// Limit of the epoch. No log reaches so many checkpoints.
const EPOCH_MAX: u64 = 1 << 62;

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
    log_bytes: u64,
    headers: [Header; 2],
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Header(usize),
    /// State being read; `state` holds the bytes read so far.
    State {
        half: usize,
        head: Head,
        state: Vec<u8>,
    },
    Records {
        half: usize,
        head: Head,
        next: u32,
    },
    Over(Outcome),
}

impl Loader {
    pub(crate) fn new(log_bytes: u64) -> Self {
        Self { log_bytes, headers: [Header::Blank; 2], stage: Stage::Header(0) }
    }

    /// Returns the offset and length of the next read. None when the [outcome](Self::outcome) is known.
    pub(crate) fn next(&self) -> Option<(u64, usize)> {
        let half_bytes = half_bytes(self.log_bytes);
        match &self.stage {
            Stage::Header(half) => Some((*half as u64 * half_bytes, BLOCK)),
            Stage::State { half, head, state } => {
                let at = BLOCK + state.len();
                let left = (head.length as usize).next_multiple_of(BLOCK) - state.len();
                Some((*half as u64 * half_bytes + at as u64, left.min(LOG_IO_MAX)))
            }
            Stage::Records { half, head, next } => {
                let at = records_at(head.length) + u64::from(*next) * BLOCK as u64;
                let left = half_bytes.saturating_sub(at).min(LOG_IO_MAX as u64);
                Some((*half as u64 * half_bytes + at, left as usize))
            }
            Stage::Over(_) => None,
        }
    }

    pub(crate) fn outcome(&self) -> Option<&Outcome> {
        if let Stage::Over(outcome) = &self.stage { Some(outcome) } else { None }
    }

    /// Takes the bytes of the last read. `take` receives their parts, and returns whether a part is valid.
    pub(crate) fn read(&mut self, bytes: &[u8], take: &mut dyn FnMut(Piece<'_>) -> bool) {
        let stage = std::mem::replace(&mut self.stage, Stage::Over(Outcome::New));
        self.stage = match stage {
            Stage::Header(half) => {
                self.headers[half] = Head::read_header(bytes);
                if half == 0 { Stage::Header(1) } else { self.choose() }
            }
            Stage::State { half, head, state } => Self::read_state(half, head, state, bytes, take),
            Stage::Records { half, head, next } => self.read_records(half, head, next, bytes, take),
            over @ Stage::Over(_) => over,
        };
        if matches!(self.next(), Some((_, 0))) {
            // The half is full to its end.
            let Stage::Records { half, head, .. } = self.stage else { return };
            self.stage = end(half, &head);
        }
    }

    /// Chooses the half with the later header, when both headers were read.
    fn choose(&self) -> Stage {
        let over = |outcome| Stage::Over(outcome);
        let refused = |words: String| over(Outcome::Refused(words));
        let mut best: Option<(usize, Head)> = None;
        for (half, header) in self.headers.iter().enumerate() {
            match header {
                Header::Version(version) => {
                    return refused(format!(
                        "the log has version {version}, which is later than this program"
                    ));
                }
                Header::Valid(head) if best.is_none_or(|(_, other)| other.epoch < head.epoch) => {
                    best = Some((half, *head));
                }
                _ => {}
            }
        }
        let Some((half, head)) = best else {
            return match self.headers {
                [Header::Blank, Header::Blank] => over(Outcome::New),
                [Header::Broken, _] => over(Outcome::Damaged { epoch: 1, half: 0 }),
                [_, Header::Broken] => over(Outcome::Damaged { epoch: 1, half: 1 }),
                _ => refused("it holds something else than a log".into()),
            };
        };
        if head.epoch >= EPOCH_MAX {
            return refused("it holds a log that no program can have written".into());
        }
        // A disk whose sectors are whole does not tear a header. The broken header may have been the later
        // one.
        if matches!(self.headers[1 - half], Header::Broken | Header::Foreign) {
            return damaged(&head, 1 - half);
        }
        if head.length == 0 || u64::from(head.length) > state_max(self.log_bytes) {
            return damaged(&head, half);
        }
        Stage::State { half, head, state: Vec::new() }
    }

    fn read_state(
        half: usize,
        head: Head,
        mut state: Vec<u8>,
        bytes: &[u8],
        take: &mut dyn FnMut(Piece<'_>) -> bool,
    ) -> Stage {
        state.extend_from_slice(bytes);
        if state.len() < head.length as usize {
            return Stage::State { half, head, state };
        }
        state.truncate(head.length as usize);
        // The header is written after its state is durable, so a power cut cannot explain another state.
        if !head.is_of(&state) || !take(Piece::State(&state)) {
            return damaged(&head, half);
        }
        Stage::Records { half, head, next: 0 }
    }

    fn read_records(
        &self,
        half: usize,
        head: Head,
        mut next: u32,
        bytes: &[u8],
        take: &mut dyn FnMut(Piece<'_>) -> bool,
    ) -> Stage {
        for (number, block) in bytes.chunks_exact(BLOCK).enumerate() {
            let Some(record) = head.read_record(next, block) else {
                // A record is written after the previous one is durable.
                let mut later = bytes.chunks_exact(BLOCK).skip(number + 1).zip(next + 1..);
                let gap = later.any(|(block, next)| head.read_record(next, block).is_some());
                return if gap { damaged(&head, half) } else { end(half, &head) };
            };
            if !take(Piece::Record(record)) {
                return damaged(&head, half);
            }
            next += 1;
        }
        Stage::Records { half, head, next }
    }
}

fn end(half: usize, head: &Head) -> Stage {
    Stage::Over(Outcome::Loaded { id: head.id, epoch: head.epoch + 1, half: 1 - half })
}

fn damaged(newest: &Head, half: usize) -> Stage {
    Stage::Over(Outcome::Damaged { epoch: newest.epoch + 1, half })
}

/// Returns the offset of the records in a half whose state has `state_bytes` bytes.
pub(super) fn records_at(state_bytes: u32) -> u64 {
    (BLOCK + (state_bytes as usize).next_multiple_of(BLOCK)) as u64
}
