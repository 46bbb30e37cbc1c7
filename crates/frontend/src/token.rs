//! Tokens of the completions that belong to a front-end.
//!
//! A token has 48 bits. Bits 47:40 name its owner: all ones is a front-end, other values belong to the backend
//! and are passed on as they are. Bits 39:35 are the number of the front-end in its task, and the front-end
//! gives the other bits their meaning.

/// Owner in bits 47:40 for a front-end.
const OWNER: u64 = 0xff;

/// Bits that each front-end has for itself.
pub const EVENT_BITS: u32 = 35;

/// Front-ends that a task can have.
pub const FRONTENDS_MAX: usize = 1 << (40 - EVENT_BITS);

/// Token of a completion that belongs to a front-end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrontendToken {
    /// Number of the front-end in its task, below [`FRONTENDS_MAX`].
    pub frontend: u8,
    /// Bits of the front-end, below 2^[`EVENT_BITS`].
    pub event: u64,
}

impl FrontendToken {
    pub const fn raw(self) -> u64 {
        OWNER << 40 | (self.frontend as u64) << EVENT_BITS | self.event
    }

    /// Parses a token. Returns `None` if the token belongs to the backend.
    #[inline]
    pub fn of(raw: u64) -> Option<Self> {
        let frontend = (raw >> EVENT_BITS) as u8 & (FRONTENDS_MAX - 1) as u8;
        (raw >> 40 == OWNER).then_some(Self { frontend, event: raw & ((1 << EVENT_BITS) - 1) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive_48_bits() {
        for (frontend, event) in [(0, 0), (FRONTENDS_MAX as u8 - 1, (1 << EVENT_BITS) - 1), (7, 1 << 34)] {
            let token = FrontendToken { frontend, event };
            assert!(token.raw() < 1 << 48);
            assert_eq!(FrontendToken::of(token.raw()), Some(token));
        }
    }

    #[test]
    fn tokens_of_the_backend_are_left_alone() {
        for raw in [0, 0x7fff_ffff_ffff, 0xfe << 40, 0xfeff_ffff_ffff, 1 << 48 | 0xff << 40] {
            assert_eq!(FrontendToken::of(raw), None);
        }
    }
}
