//! What the front-end's own completions are for: bits 47:40 say that it is this front-end's.

const OWNER: u64 = 0xfe;

/// What completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Receive,
    Send,
}

/// An operation on the connection of a controller's queue. There is one of each kind at most, and a connection does not
/// go before they are over; so the queue names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    pub(super) kind: Kind,
    /// Which of the drive's controllers for hosts.
    pub(super) controller: u8,
    pub(super) qid: u16,
}

impl Token {
    pub(super) const fn raw(self) -> u64 {
        OWNER << 40 | (self.kind as u64) << 32 | (self.controller as u64) << 16 | self.qid as u64
    }

    /// `None` if the token is somebody else's.
    pub(crate) fn of(raw: u64) -> Option<Token> {
        let kind = match raw >> 32 & 0xff {
            0 => Kind::Receive,
            1 => Kind::Send,
            _ => return None,
        };
        (raw >> 40 == OWNER).then_some(Token { kind, controller: (raw >> 16) as u8, qid: raw as u16 })
    }
}
