//! Tokens of socket operations. Bits 47:40 mark them as those of this front-end.

const OWNER: u64 = 0xfe;

/// Kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Receive,
    Send,
}

/// Operation on the connection of a queue. A connection has at most one of each kind in flight, and outlives
/// both. So the queue identifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    pub(super) kind: Kind,
    /// Index among the drive's TCP controllers.
    pub(super) controller: u8,
    pub(super) qid: u16,
}

impl Token {
    pub(super) const fn raw(self) -> u64 {
        OWNER << 40 | (self.kind as u64) << 32 | (self.controller as u64) << 16 | self.qid as u64
    }

    /// Reads a token. Returns `None` if it is not one of this front-end.
    pub(crate) fn of(raw: u64) -> Option<Token> {
        let kind = match raw >> 32 & 0xff {
            0 => Kind::Receive,
            1 => Kind::Send,
            _ => return None,
        };
        (raw >> 40 == OWNER).then_some(Token { kind, controller: (raw >> 16) as u8, qid: raw as u16 })
    }
}
