//! Messages between a port and the home, as two words of a ring.

use crate::Unit;
use crate::ring::Words;

/// Message of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Requests `need` units for waiting commands, and up to `extra` more as credit.
    Take {
        need: u32,
        extra: u32,
    },
    GiveBack(Unit),
    /// Change that the home makes durable, in the object's own form.
    Note(u64),
    /// Answers a recall. `kept` if waiting commands need the port's credit.
    Recalled {
        round: u32,
        kept: bool,
    },
}

/// Message of the home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Grant(Unit),
    /// Ends the answer to a [`Request::Take`].
    Settled {
        refused: bool,
    },
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

impl Request {
    pub(crate) fn words(self) -> Words {
        match self {
            Self::Take { need, extra } => [0, pair(need, extra)],
            Self::GiveBack(unit) => [1, unit],
            Self::Note(word) => [3, word],
            Self::Recalled { round, kept } => [2, pair(round, kept.into())],
        }
    }

    pub(crate) fn from_words([kind, value]: Words) -> Self {
        let (low, high) = (value as u32, (value >> 32) as u32);
        match kind {
            0 => Self::Take { need: low, extra: high },
            1 => Self::GiveBack(value),
            3 => Self::Note(value),
            _ => Self::Recalled { round: low, kept: high != 0 },
        }
    }
}

impl Answer {
    pub(crate) fn words(self) -> Words {
        match self {
            Self::Grant(unit) => [0, unit],
            Self::Settled { refused } => [1, refused.into()],
        }
    }

    pub(crate) fn from_words([kind, value]: Words) -> Self {
        match kind {
            0 => Self::Grant(value),
            _ => Self::Settled { refused: value != 0 },
        }
    }
}
