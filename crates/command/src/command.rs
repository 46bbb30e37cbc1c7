//! The handle of a command.

use std::fmt;

/// A command in flight: the only handle to its slot.
///
/// Not `Clone`: a command is in one place at a time. Dropping a command that was not finished would leave a
/// host waiting for ever and a slot lost, so it ends the process, loudly.
#[must_use = "a command is forwarded, parked or finished, never dropped"]
pub struct Command {
    index: u32,
}

impl Command {
    /// Creates a handle. Only the slab calls this, once for each slot that it gives out.
    pub(crate) fn new(index: u32) -> Self {
        Self { index }
    }

    #[inline]
    pub(crate) fn index(&self) -> usize {
        self.index as usize
    }

    /// Returns the handle to the slab that made it.
    #[inline]
    pub(crate) fn into_index(self) -> u32 {
        let index = self.index;
        std::mem::forget(self);
        index
    }
}

impl Drop for Command {
    #[cold]
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("command in slot {} was dropped without being finished", self.index);
        }
    }
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Command({})", self.index)
    }
}

/// Identifier of a parked command for an asynchronous engine: 20 bits of slot, 12 bits of a generation that
/// changes with every park. So a late or repeated answer finds no command, instead of another one, or the
/// same one parked for another reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(pub u32);

impl Ticket {
    pub(crate) const INDEX_BITS: u32 = 20;
    pub(crate) const GENERATION_MASK: u16 = 0xfff;

    pub(crate) fn new(index: u32, generation: u16) -> Self {
        Self(u32::from(generation) << Self::INDEX_BITS | index)
    }

    pub(crate) fn index(self) -> usize {
        (self.0 & ((1 << Self::INDEX_BITS) - 1)) as usize
    }

    pub(crate) fn generation(self) -> u16 {
        (self.0 >> Self::INDEX_BITS) as u16
    }
}
