//! Memory of a program: the stack, and the values of a map.
//!
//! It is made of atomic words, because several threads read and write a map's values at once: the reactor
//! that runs the program, other reactors when the map is shared, and threads outside. Generated code accesses
//! the same words with plain loads and stores, which are relaxed accesses on every machine that code is
//! generated for.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::insn::Size;

/// Zeroed memory of a fixed size.
#[derive(Debug)]
pub(crate) struct Words(Box<[AtomicU64]>);

impl Words {
    /// Reserves at least `bytes` of memory.
    pub(crate) fn new(bytes: usize) -> Self {
        Self((0..bytes.div_ceil(8)).map(|_| AtomicU64::new(0)).collect())
    }

    /// Returns the size in bytes.
    pub(crate) fn len(&self) -> usize {
        self.0.len() * 8
    }

    /// Returns the address for generated code. It never changes while `self` lives.
    pub(crate) fn base(&self) -> *mut u8 {
        self.0.as_ptr().cast_mut().cast()
    }

    /// Reads `size` bytes at `at`, little-endian, zero-extended. A value inside one word is never torn.
    pub(crate) fn load(&self, at: usize, size: Size) -> Option<u64> {
        self.check(at, size)?;
        let (word, shift) = (at / 8, at % 8 * 8);
        let low = self.0.get(word)?.load(Relaxed) >> shift;
        let high = match shift + size.bits() as usize {
            0..=64 => 0,
            _ => self.0.get(word + 1)?.load(Relaxed) << (64 - shift),
        };
        Some((low | high) & size.max())
    }

    /// Writes the lower `size` bytes of `value` at `at`.
    pub(crate) fn store(&self, at: usize, size: Size, value: u64) -> Option<()> {
        self.check(at, size)?;
        let (word, shift) = (at / 8, at % 8 * 8);
        let value = value & size.max();
        merge(self.0.get(word)?, size.max() << shift, value << shift);
        if shift + size.bits() as usize > 64 {
            merge(self.0.get(word + 1)?, size.max() >> (64 - shift), value >> (64 - shift));
        }
        Some(())
    }

    /// Changes an aligned 4- or 8-byte value in one step; returns the value before.
    pub(crate) fn update(&self, at: usize, size: Size, change: impl Fn(u64) -> u64) -> Option<u64> {
        self.check(at, size)?;
        let (word, shift) = (at / 8, at % 8 * 8);
        let mask = size.max() << shift;
        let step = |old: u64| Some(old & !mask | change((old & mask) >> shift) << shift & mask);
        let old = self.0.get(word)?.fetch_update(Relaxed, Relaxed, step);
        old.ok().map(|old| (old & mask) >> shift)
    }

    /// Copies bytes out, each word in one step. The range must be inside.
    pub(crate) fn read(&self, mut at: usize, mut bytes: &mut [u8]) -> Option<()> {
        self.check_range(at, bytes.len())?;
        while !bytes.is_empty() {
            let word = self.0.get(at / 8)?.load(Relaxed).to_le_bytes();
            let part = word.get(at % 8..)?;
            let (now, later) = bytes.split_at_mut(part.len().min(bytes.len()));
            now.copy_from_slice(part.get(..now.len())?);
            at += now.len();
            bytes = later;
        }
        Some(())
    }

    /// Copies bytes in, a whole word at a time where it can. The range must be inside.
    pub(crate) fn write(&self, at: usize, mut bytes: &[u8]) -> Option<()> {
        self.check_range(at, bytes.len())?;
        let mut at = at;
        while let Some(&first) = bytes.first() {
            let step = match bytes.first_chunk() {
                Some(word) if at.is_multiple_of(8) => {
                    self.store(at, Size::B8, u64::from_le_bytes(*word))?;
                    8
                }
                _ => {
                    self.store(at, Size::B1, first.into())?;
                    1
                }
            };
            at += step;
            bytes = bytes.get(step..)?;
        }
        Some(())
    }

    /// Zeroes so many bytes from the start on; a multiple of 8.
    pub(crate) fn clear(&self, bytes: usize) {
        for word in self.0.iter().take(bytes / 8) {
            word.store(0, Relaxed);
        }
    }

    fn check(&self, at: usize, size: Size) -> Option<()> {
        self.check_range(at, size.bytes() as usize)
    }

    fn check_range(&self, at: usize, len: usize) -> Option<()> {
        (at.checked_add(len)? <= self.len()).then_some(())
    }
}

/// Replaces the bits of `mask`; other threads may write its neighbours meanwhile.
fn merge(word: &AtomicU64, mask: u64, value: u64) {
    if mask == u64::MAX {
        word.store(value, Relaxed);
    } else {
        // The closure always returns a value, so this always succeeds.
        let _ = word.fetch_update(Relaxed, Relaxed, |old| Some(old & !mask | value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIZES: [Size; 4] = [Size::B1, Size::B2, Size::B4, Size::B8];

    proptest! {
        /// Compares words with an array of bytes.
        #[test]
        fn like_bytes(steps in prop::collection::vec((0usize..40, 0usize..4, any::<u64>()), 1..50)) {
            let words = Words::new(32);
            let mut model = [0u8; 32];
            for (at, size, value) in steps {
                let size = SIZES[size];
                let n = size.bytes() as usize;
                let stored = words.store(at, size, value);
                prop_assert_eq!(stored.is_some(), at + n <= 32);
                if stored.is_some() {
                    model[at..at + n].copy_from_slice(&value.to_le_bytes()[..n]);
                    prop_assert_eq!(words.load(at, size), Some(value & size.max()));
                }
            }
            let mut all = [0; 32];
            prop_assert!(words.read(0, &mut all).is_some());
            prop_assert_eq!(all, model);
        }
    }

    #[test]
    fn written_in_pieces() {
        let words = Words::new(24);
        let bytes: Vec<u8> = (1..=19).collect();
        assert!(words.write(3, &bytes).is_some());
        let mut back = [0; 19];
        assert!(words.read(3, &mut back).is_some());
        assert_eq!(back.as_slice(), bytes);
        assert!(words.write(6, &bytes).is_none(), "would end outside");
    }

    #[test]
    fn updates_half_a_word() {
        let words = Words::new(8);
        assert_eq!(words.update(4, Size::B4, |old| old.wrapping_sub(1)), Some(0));
        assert_eq!(words.load(0, Size::B8), Some(0xffff_ffff_0000_0000));
    }
}
