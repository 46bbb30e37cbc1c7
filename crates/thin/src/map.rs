//! Map of a volume in two levels, so that memory is used where extents are.

/// Entries of the second level.
const ENTRIES: usize = 1024;

/// Flag of a word: other volumes have the extent, too.
pub(crate) const SHARED: u32 = 1 << 31;

/// Flag of a word: the extent is being allocated, copied or released, and writes wait.
pub(crate) const BUSY: u32 = 1 << 30;

/// Bits of a word with the extent of the pool, plus one.
pub(crate) const PLACE: u32 = BUSY - 1;

const _: () = assert!(crate::EXTENTS_MAX < PLACE && SHARED > BUSY);

/// Part of a map.
#[derive(Clone, Debug)]
struct Chunk {
    words: [u32; ENTRIES],
    /// Round of sharing that the words have.
    round: u32,
}

/// Map from an extent of a volume to a word; zero without one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Map {
    chunks: Vec<Option<Box<Chunk>>>,
    /// Times that all extents became shared.
    round: u32,
}

/// Returns a word whose extent became shared.
fn shared(word: u32) -> u32 {
    if word & PLACE == 0 { word } else { word | SHARED }
}

impl Map {
    #[inline]
    pub(crate) fn get(&self, extent: u32) -> u32 {
        match self.chunks.get(extent as usize / ENTRIES) {
            Some(Some(chunk)) => {
                let word = chunk.words[extent as usize % ENTRIES];
                if chunk.round == self.round { word } else { shared(word) }
            }
            _ => 0,
        }
    }

    /// Sets an entry; returns the previous one.
    pub(crate) fn set(&mut self, extent: u32, word: u32) -> u32 {
        let number = extent as usize / ENTRIES;
        if number >= self.chunks.len() {
            if word == 0 {
                return 0;
            }
            self.chunks.resize_with(number + 1, || None);
        }
        if word == 0 && self.chunks[number].is_none() {
            return 0;
        }
        let round = self.round;
        let chunk = self.chunks[number].get_or_insert_with(|| Box::new(Chunk { words: [0; ENTRIES], round }));
        if chunk.round != round {
            chunk.round = round;
            chunk.words.iter_mut().for_each(|word| *word = shared(*word));
        }
        std::mem::replace(&mut chunk.words[extent as usize % ENTRIES], word)
    }

    /// Marks all extents as shared. The parts of the map follow when they are changed.
    pub(crate) fn share_all(&mut self) {
        self.round = self.round.wrapping_add(1);
    }

    /// Returns the first entry from `from` on that is not zero, with its extent.
    pub(crate) fn next(&self, from: u32) -> Option<(u32, u32)> {
        let (mut number, mut inside) = (from as usize / ENTRIES, from as usize % ENTRIES);
        while number < self.chunks.len() {
            if let Some(chunk) = &self.chunks[number]
                && let Some(found) = chunk.words[inside..].iter().position(|word| *word != 0)
            {
                let extent = (number * ENTRIES + inside + found) as u32;
                return Some((extent, self.get(extent)));
            }
            (number, inside) = (number + 1, 0);
        }
        None
    }

    /// Returns all entries that are not zero.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let mut from = Some(0u32);
        std::iter::from_fn(move || {
            let found = self.next(from?)?;
            from = found.0.checked_add(1);
            Some(found)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_extents_become_shared_and_later_ones_are_not() {
        let mut map = Map::default();
        map.set(1, 7);
        map.set(2, BUSY);
        map.set(3000, 8);
        for round in 0..3 {
            map.share_all();
            assert_eq!([1, 2, 3000, 5].map(|extent| map.get(extent)), [7 | SHARED, BUSY, 8 | SHARED, 0]);
            let expected: Vec<_> = [(1, 7 | SHARED), (2, BUSY), (3000, 8 | SHARED)].into();
            assert_eq!(map.iter().collect::<Vec<_>>(), expected, "round {round}");
        }
        assert_eq!(map.set(1, 9), 7 | SHARED);
        assert_eq!([1, 2, 3000].map(|extent| map.get(extent)), [9, BUSY, 8 | SHARED]);
    }
}
