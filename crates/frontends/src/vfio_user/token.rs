//! What the front-end's own completions are for.
//!
//! A token has 48 bits. Bits 47:40 name its owner: all ones is the front-end, other values belong to
//! the device and are passed on as they are.

/// The owner in bits 47:40 that is the front-end itself.
const OWNER: u64 = 0xff;

/// What completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Somebody wants to connect.
    Listener,
    /// The client sent something, or is gone.
    Message,
    /// The client's socket has room again.
    Room,
    /// An interrupt is on its way.
    Signal,
    /// The client's eventfd that unmasks INTx was signalled.
    Unmask,
}

impl Kind {
    const ALL: [Kind; 5] = [Kind::Listener, Kind::Message, Kind::Room, Kind::Signal, Kind::Unmask];
}

/// A token of the front-end. The epoch tells the polls of one client from those of the next, whose
/// events may still be under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    /// Which of the task's ports, below [`PORTS_MAX`].
    pub(crate) port: u8,
    pub(super) kind: Kind,
    pub(super) epoch: u32,
}

/// Ports that a task can have.
pub(crate) const PORTS_MAX: usize = 1 << (8 - KIND_BITS);

/// Of the byte that says the kind and the port.
const KIND_BITS: u32 = 3;

impl Token {
    pub(super) const fn raw(self) -> u64 {
        let what = (self.port as u64) << KIND_BITS | self.kind as u64;
        OWNER << 40 | what << 32 | self.epoch as u64
    }

    /// `None` if the token is the device's.
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
