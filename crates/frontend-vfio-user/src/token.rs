//! Tokens of the port's own completions: what the bits of a [`FrontendToken`] mean.

use sluice_frontend::{EVENT_BITS, FRONTENDS_MAX, FrontendToken};

/// Kind of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Connection of a client that waits to be accepted.
    Listener,
    /// Bytes from the client, or the end of its connection.
    Message,
    /// Room in the client's socket.
    Room,
    /// Arrival of the last signal at the eventfd of an interrupt.
    Signal,
    /// Signal on the client's eventfd that unmasks INTx.
    Unmask,
}

impl Kind {
    const ALL: [Kind; 5] = [Kind::Listener, Kind::Message, Kind::Room, Kind::Signal, Kind::Unmask];
}

/// Token of a port. The epoch distinguishes the polls of one client from those of the next: events of
/// the former may still be under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    /// Number of the port in its task, below [`PORTS_MAX`].
    pub(crate) port: u8,
    pub(super) kind: Kind,
    pub(super) epoch: u32,
}

/// Ports that a task can have.
pub(crate) const PORTS_MAX: usize = FRONTENDS_MAX;

const _: () = assert!(Kind::ALL.len() << 32 <= 1 << EVENT_BITS, "the bits hold the kind and the epoch");

impl Token {
    pub(super) const fn raw(self) -> u64 {
        let event = (self.kind as u64) << 32 | self.epoch as u64;
        FrontendToken { frontend: self.port, event }.raw()
    }

    /// Parses a token. Returns `None` if no kind has its number.
    pub(crate) fn of(token: FrontendToken) -> Option<Token> {
        let kind = *Kind::ALL.get((token.event >> 32) as usize)?;
        Some(Token { port: token.frontend, kind, epoch: token.event as u32 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive_48_bits() {
        for (position, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, position);
            let token = Token { port: PORTS_MAX as u8 - 1, kind, epoch: 0xfedc_ba98 };
            assert!(token.raw() < 1 << 48);
            assert_eq!(FrontendToken::of(token.raw()).and_then(Token::of), Some(token));
        }
    }

    #[test]
    fn a_token_of_no_kind_is_none() {
        let event = (Kind::ALL.len() as u64) << 32;
        assert_eq!(Token::of(FrontendToken { frontend: 0, event }), None);
    }
}
