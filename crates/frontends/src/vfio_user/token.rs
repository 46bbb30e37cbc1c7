//! Tokens of the front-end's own completions.
//!
//! A token has 48 bits. Bits 47:40 name its owner: all ones is the front-end, other values belong to the
//! device and are passed on as they are.

/// Owner in bits 47:40 for the front-end itself.
const OWNER: u64 = 0xff;

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

/// Token of the front-end. The epoch distinguishes the polls of one client from those of the next: events of
/// the former may still be under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    /// Number of the port in its task, below [`PORTS_MAX`].
    pub(crate) port: u8,
    pub(super) kind: Kind,
    pub(super) epoch: u32,
}

/// Ports that a task can have.
pub(crate) const PORTS_MAX: usize = 1 << (8 - KIND_BITS);

/// Bits of the kind, in the byte that holds the kind and the port.
const KIND_BITS: u32 = 3;

impl Token {
    pub(super) const fn raw(self) -> u64 {
        let what = (self.port as u64) << KIND_BITS | self.kind as u64;
        OWNER << 40 | what << 32 | self.epoch as u64
    }

    /// Parses a token. Returns `None` if the token belongs to the device.
    pub(crate) fn of(raw: u64) -> Option<Token> {
        let what = (raw >> 32) as u8;
        let kind = *Kind::ALL.get(usize::from(what & ((1 << KIND_BITS) - 1)))?;
        let port = what >> KIND_BITS;
        (raw >> 40 == OWNER).then_some(Token { port, kind, epoch: raw as u32 })
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
            assert_eq!(Token::of(token.raw()), Some(token));
        }
    }

    #[test]
    fn tokens_of_the_device_are_left_alone() {
        for raw in [0, 0x7fff_ffff_ffff, 0xfe << 40, 0xff << 40 | 0xff << 32] {
            assert_eq!(Token::of(raw), None);
        }
    }
}
