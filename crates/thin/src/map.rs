//! Map of a volume in three levels, so that memory is used where extents are.

/// Entries of the last level, 4 MiB of the volume.
const ENTRIES: usize = 64;

/// Parts of the second level, 512 MiB of the volume.
const LEAVES: usize = 128;

/// Flag of a word: other volumes have the extent, too.
pub(crate) const SHARED: u32 = 1 << 31;

/// Flag of a word: the extent is being allocated, copied or released, and writes wait.
pub(crate) const BUSY: u32 = 1 << 30;

/// Bits of a word with the extent of the pool, plus one.
pub(crate) const PLACE: u32 = BUSY - 1;

const _: () = assert!(crate::EXTENTS_MAX < PLACE && SHARED > BUSY);

/// Entries of a map.
#[derive(Clone, Debug)]
struct Leaf {
    words: [u32; ENTRIES],
    /// Round of sharing that the words have.
    round: u32,
}

/// Part of a map.
type Branch = [Option<Box<Leaf>>; LEAVES];

/// Map from an extent of a volume to a word; zero without one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Map {
    branches: Vec<Option<Box<Branch>>>,
    /// Times that all extents became shared.
    round: u32,
}

/// Returns a word whose extent became shared.
fn shared(word: u32) -> u32 {
    if word & PLACE == 0 { word } else { word | SHARED }
}

/// Returns the branch of an extent, the leaf in it, and the entry in that.
fn place(extent: u32) -> (usize, usize, usize) {
    let (leaf, entry) = (extent as usize / ENTRIES, extent as usize % ENTRIES);
    (leaf / LEAVES, leaf % LEAVES, entry)
}

impl Map {
    #[inline]
    pub(crate) fn get(&self, extent: u32) -> u32 {
        let (branch, leaf, entry) = place(extent);
        let Some(Some(branch)) = self.branches.get(branch) else { return 0 };
        let Some(leaf) = &branch[leaf] else { return 0 };
        let word = leaf.words[entry];
        if leaf.round == self.round { word } else { shared(word) }
    }

    /// Sets an entry; returns the previous one.
    pub(crate) fn set(&mut self, extent: u32, word: u32) -> u32 {
        let (branch, leaf, entry) = place(extent);
        if word == 0 && self.get(extent) == 0 {
            return 0;
        }
        if branch >= self.branches.len() {
            self.branches.resize_with(branch + 1, || None);
        }
        let round = self.round;
        let branch = self.branches[branch].get_or_insert_with(|| Box::new([const { None }; LEAVES]));
        let leaf = branch[leaf].get_or_insert_with(|| Box::new(Leaf { words: [0; ENTRIES], round }));
        if leaf.round != round {
            leaf.round = round;
            leaf.words.iter_mut().for_each(|word| *word = shared(*word));
        }
        std::mem::replace(&mut leaf.words[entry], word)
    }

    /// Marks all extents as shared. The parts of the map follow when they are changed.
    pub(crate) fn share_all(&mut self) {
        self.round = self.round.wrapping_add(1);
    }

    /// Returns the first entry from `from` on that is not zero, with its extent.
    pub(crate) fn next(&self, from: u32) -> Option<(u32, u32)> {
        let (mut branch, mut leaf, mut entry) = place(from);
        while let Some(found) = self.branches.get(branch) {
            let leaves = found.as_ref().map_or(&[][..], |branch| branch.get(leaf..).unwrap_or_default());
            for (number, found) in (leaf..).zip(leaves) {
                let words =
                    found.as_ref().map_or(&[][..], |leaf| leaf.words.get(entry..).unwrap_or_default());
                if let Some(at) = words.iter().position(|word| *word != 0) {
                    let extent = ((branch * LEAVES + number) * ENTRIES + entry + at) as u32;
                    return Some((extent, self.get(extent)));
                }
                entry = 0;
            }
            (branch, leaf, entry) = (branch + 1, 0, 0);
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
    use sluice_functions::Random;
    use std::collections::BTreeMap;

    #[test]
    fn a_map_is_what_was_set() {
        for seed in 0..20 {
            let mut random = Random::new(seed);
            let (mut map, mut model) = (Map::default(), BTreeMap::new());
            for _ in 0..2000 {
                let extent = match random.below(3) {
                    0 => random.below(200) as u32,
                    1 => 8190 + random.below(4) as u32,
                    _ => 1 << random.below(30),
                };
                let word = random.below(3) as u32;
                let before = if word == 0 { model.remove(&extent) } else { model.insert(extent, word) };
                assert_eq!(map.set(extent, word), before.unwrap_or(0));
                let from = random.below(9000) as u32;
                assert_eq!(map.next(from), model.range(from..).next().map(|(at, word)| (*at, *word)));
                assert_eq!(map.get(from), model.get(&from).copied().unwrap_or(0));
            }
            assert!(map.iter().eq(model.into_iter()));
        }
    }

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
