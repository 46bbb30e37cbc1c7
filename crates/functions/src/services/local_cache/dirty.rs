//! Lines with data that is to be written to the drive, in the order of their places.

const WORD: u64 = u64::BITS as u64;

/// Set of lines: a bit for each line, and a bit for each word with a line.
#[derive(Debug, Default)]
pub(super) struct DirtyLines {
    words: Vec<u64>,
    /// Bits of the words that are not zero.
    summary: Vec<u64>,
    count: u64,
}

impl DirtyLines {
    pub(super) fn new(lines: u64) -> Self {
        let words = lines.div_ceil(WORD);
        Self { words: vec![0; words as usize], summary: vec![0; words.div_ceil(WORD) as usize], count: 0 }
    }

    /// Grows to so many lines.
    pub(super) fn grow(&mut self, lines: u64) {
        let words = lines.div_ceil(WORD) as usize;
        if words > self.words.len() {
            self.words.resize(words, 0);
            self.summary.resize((words as u64).div_ceil(WORD) as usize, 0);
        }
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Adds or removes a line.
    pub(super) fn set(&mut self, line: u64, is_in: bool) {
        let (word, bit) = ((line / WORD) as usize, 1 << (line % WORD));
        let Some(place) = self.words.get_mut(word) else { return };
        let before = *place;
        *place = if is_in { before | bit } else { before & !bit };
        self.count = self.count - u64::from(before & bit != 0) + u64::from(is_in);
        let (group, bit) = (word / WORD as usize, 1 << (word as u64 % WORD));
        match *place {
            0 => self.summary[group] &= !bit,
            _ => self.summary[group] |= bit,
        }
    }

    /// Returns the first line from this one on.
    pub(super) fn next(&self, line: u64) -> Option<u64> {
        let first = (line / WORD) as usize;
        let rest = self.words.get(first)? >> (line % WORD);
        if rest != 0 {
            return Some(line + u64::from(rest.trailing_zeros()));
        }
        let after = first as u64 + 1;
        let mut group = (after / WORD) as usize;
        let mut bits = self.summary.get(group)? >> (after % WORD) << (after % WORD);
        for _ in 0..=self.summary.len() {
            if bits != 0 {
                let word = group as u64 * WORD + u64::from(bits.trailing_zeros());
                let lines = self.words.get(word as usize)?;
                return Some(word * WORD + u64::from(lines.trailing_zeros()));
            }
            group += 1;
            bits = *self.summary.get(group)?;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;
    use std::collections::BTreeSet;

    #[test]
    fn lines_are_found_in_their_order() {
        for seed in 0..20 {
            let mut random = Random::new(seed);
            let count = 1 + random.below(20_000);
            let (mut lines, mut model) = (DirtyLines::new(count), BTreeSet::new());
            for _ in 0..300 {
                let line = random.below(count);
                let is_in = random.below(3) > 0;
                lines.set(line, is_in);
                if is_in {
                    model.insert(line)
                } else {
                    model.remove(&line)
                };
                let from = random.below(count + 200);
                assert_eq!(lines.next(from), model.range(from..).next().copied(), "from {from} of {count}");
                assert_eq!(lines.count(), model.len() as u64);
            }
            lines.grow(count + 5000);
            lines.set(count + 4999, true);
            assert_eq!(lines.next(count), Some(count + 4999));
        }
    }
}
