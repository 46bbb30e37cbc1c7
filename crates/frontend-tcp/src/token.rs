//! Tokens of socket operations: what the bits of a [`FrontendToken`] mean.

use sluice_frontend::FrontendToken;

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
    pub(crate) kind: Kind,
    pub(crate) owner: Owner,
    pub(crate) qid: u16,
}

/// Controller that a connection belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    /// Number of the front-end in its drive.
    pub(crate) frontend: u8,
    /// Index among the controllers of the front-end.
    pub(crate) controller: u8,
}

impl Token {
    pub(crate) const fn raw(self) -> u64 {
        let event = (self.kind as u64) << 32 | (self.owner.controller as u64) << 16 | self.qid as u64;
        FrontendToken { frontend: self.owner.frontend, event }.raw()
    }

    /// Parses a token. Returns `None` if no kind has its number.
    pub(crate) fn of(token: FrontendToken) -> Option<Token> {
        let kind = match token.event >> 32 {
            0 => Kind::Receive,
            1 => Kind::Send,
            _ => return None,
        };
        let owner = Owner { frontend: token.frontend, controller: (token.event >> 16) as u8 };
        Some(Token { kind, owner, qid: token.event as u16 })
    }
}
