//! Random values of one transaction.

use crate::field::EXPONENT;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use zeroize::Zeroizing;

/// A challenge, a sequence number and an exponent: for one transaction, and never again.
#[derive(Clone)]
pub struct Entropy {
    pub(crate) challenge: [u8; 64],
    pub(crate) sequence: u32,
    pub(crate) exponent: Zeroizing<[u8; EXPONENT]>,
}

/// The last sequence number of this process (Base: it begins at random, counts, and leaves out zero).
static SEQUENCE: AtomicU32 = AtomicU32::new(0);

impl Entropy {
    /// Creates values that are not random, for reproducible tests. `sequence` is not zero.
    pub fn new(challenge: [u8; 64], sequence: u32, exponent: [u8; EXPONENT]) -> Self {
        Self { challenge, sequence, exponent: Zeroizing::new(exponent) }
    }

    /// Returns a transaction identifier of this end, which differs each time.
    pub fn t_id(&self) -> u16 {
        self.sequence as u16
    }

    /// Draws from the kernel.
    ///
    /// # Errors
    /// The kernel has no randomness, which is so on no supported kernel.
    pub fn draw() -> io::Result<Self> {
        let mut drawn = Self { challenge: [0; 64], sequence: 0, exponent: Zeroizing::new([0; EXPONENT]) };
        getrandom::fill(&mut drawn.challenge)?;
        getrandom::fill(&mut *drawn.exponent)?;
        let mut first = [0; 4];
        getrandom::fill(&mut first)?;
        let begin = u32::from_ne_bytes(first);
        let next = |last: u32| (if last == 0 { begin } else { last.wrapping_add(1) }).max(1);
        let last = SEQUENCE.fetch_update(Relaxed, Relaxed, |last| Some(next(last)));
        drawn.sequence = next(last.unwrap_or_default());
        Ok(drawn)
    }
}

impl fmt::Debug for Entropy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Entropy")
    }
}
