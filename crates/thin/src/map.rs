//! Map of a volume in two levels, so that memory is used where extents are.

/// Entries of the second level.
const ENTRIES: usize = 1024;

/// Map from an extent of a volume to a word; zero without one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Map {
    chunks: Vec<Option<Box<[u32; ENTRIES]>>>,
}

impl Map {
    #[inline]
    pub(crate) fn get(&self, extent: u32) -> u32 {
        match self.chunks.get(extent as usize / ENTRIES) {
            Some(Some(chunk)) => chunk[extent as usize % ENTRIES],
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
        let chunk = self.chunks[number].get_or_insert_with(|| Box::new([0; ENTRIES]));
        std::mem::replace(&mut chunk[extent as usize % ENTRIES], word)
    }

    /// Returns the first entry from `from` on that is not zero, with its extent.
    pub(crate) fn next(&self, from: u32) -> Option<(u32, u32)> {
        let (mut number, mut inside) = (from as usize / ENTRIES, from as usize % ENTRIES);
        while number < self.chunks.len() {
            if let Some(chunk) = &self.chunks[number]
                && let Some(found) = chunk[inside..].iter().position(|word| *word != 0)
            {
                let at = inside + found;
                return Some(((number * ENTRIES + at) as u32, chunk[at]));
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
