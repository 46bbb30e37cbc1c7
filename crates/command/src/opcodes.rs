//! Sets of opcodes.

/// Set of some of the 256 opcodes of a command set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opcodes([u64; 4]);

impl Opcodes {
    pub const NONE: Opcodes = Opcodes([0; 4]);

    /// Returns this set with one more opcode.
    #[must_use]
    pub const fn and(mut self, opcode: u8) -> Self {
        self.0[opcode as usize / 64] |= 1 << (opcode % 64);
        self
    }

    pub const fn contains(self, opcode: u8) -> bool {
        self.0[opcode as usize / 64] & 1 << (opcode % 64) != 0
    }

    /// Returns the opcodes of both sets.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] | other.0[word]))
    }

    /// Returns the opcodes in ascending order.
    pub fn iter(self) -> impl Iterator<Item = u8> {
        (0..=u8::MAX).filter(move |opcode| self.contains(*opcode))
    }
}

/// Opcodes that a target passes to its device as the host wrote them, beside its requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passthrough {
    pub io: Opcodes,
    pub admin: Opcodes,
}

impl Passthrough {
    pub const NONE: Passthrough = Passthrough { io: Opcodes::NONE, admin: Opcodes::NONE };

    /// Returns the opcodes that one of the two passes.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self { io: self.io.union(other.io), admin: self.admin.union(other.admin) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_what_was_put_in() {
        let mut set = Opcodes::NONE;
        let members = [0, 63, 64, 0x81, 255];
        for opcode in members {
            assert!(!set.contains(opcode));
            set = set.and(opcode);
        }
        assert_eq!(set.iter().collect::<Vec<_>>(), members);
        let both = set.union(Opcodes::NONE.and(1));
        assert_eq!(both.iter().collect::<Vec<_>>(), [0, 1, 63, 64, 0x81, 255]);
    }
}
