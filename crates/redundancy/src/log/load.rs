//! Finds out what a log holds. Trusts none of it.

use super::format::{BLOCK, Head, Header};
use super::{LOG_IO_MAX, half_bytes, state_max};

/// No log lives to have so many checkpoints.
const EPOCH_MAX: u64 = 1 << 62;

/// What a log turned out to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Blank.
    New,
    /// Ours, and nothing in it can be relied on. A checkpoint with this epoch, in this half, is later than
    /// what is there.
    Damaged { epoch: u64, half: usize },
    /// Loaded: the next checkpoint has this epoch, and goes to this half.
    Loaded { id: u64, epoch: u64, half: usize },
    /// It is not to be touched, in words.
    Refused(String),
}

/// A part of what was loaded, in order.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Piece<'a> {
    State(&'a [u8]),
    Record(&'a [u8]),
}

/// Reads a log.
#[derive(Debug)]
pub(crate) struct Loader {
    log_bytes: u64,
    headers: [Header; 2],
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Header(usize),
    /// `state` has what was read so far.
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

    /// What is to be read: from where, how many bytes. None when it is [over](Self::outcome).
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

    /// What was asked for. `take` is shown what it means, and says whether that can be.
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
            // A half that is full to its end.
            let Stage::Records { half, head, .. } = self.stage else { return };
            self.stage = end(half, &head);
        }
    }

    /// Both headers were read: the half with the later one counts.
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
        // A header is not torn on any disk whose sectors are whole. The one that is broken may have been later.
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
        // The header is written when its state is durable: that this is another one is no power cut.
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
                // A record is written when the one before is durable.
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

/// Where the records of a half begin whose state has so many bytes.
pub(super) fn records_at(state_bytes: u32) -> u64 {
    (BLOCK + (state_bytes as usize).next_multiple_of(BLOCK)) as u64
}
