//! What the front-end's own completions are for: bits 47:40 are all ones, other values there are the
//! controller's.

const OWNER: u64 = 0xff;

/// What completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Receive,
    Send,
}

/// An operation on the connection of a queue. There is one of each kind at most, and a connection does not
/// go before they are over; so the queue names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) kind: Kind,
    pub(super) qid: u16,
}

impl Token {
    pub(super) const fn raw(self) -> u64 {
        OWNER << 40 | (self.kind as u64) << 32 | self.qid as u64
    }

    /// `None` if the token is the controller's.
    pub(super) fn of(raw: u64) -> Option<Token> {
        let kind = match raw >> 32 & 0xff {
            0 => Kind::Receive,
            1 => Kind::Send,
            _ => return None,
        };
        (raw >> 40 == OWNER).then_some(Token { kind, qid: raw as u16 })
    }
}
