//! The trait of every shared object.

use crate::PortNumber;

/// Number of an extent, an amount of tokens: the object's own meaning.
pub type Unit = u64;

/// An object that several drives use, in units. All methods run on the home reactor, and none may block.
pub trait Object: Send + 'static {
    /// Takes a unit for a port; none if all are taken.
    fn take(&mut self, port: PortNumber) -> Option<Unit>;

    /// Takes a unit back from a port.
    fn give_back(&mut self, port: PortNumber, unit: Unit);

    /// Takes a note of a port. The home [acknowledges](crate::Home::acknowledge) notes in order. An object without
    /// notes ignores it.
    fn note(&mut self, port: PortNumber, word: u64) {
        let _ = (port, word);
    }

    /// Takes back up to `limit` units of a closed port, which sends nothing any more. Returns whether the port has
    /// none left.
    fn reclaim(&mut self, port: PortNumber, limit: usize) -> bool;
}
