//! Allocation of the pages of a region.

use crate::PAGE_SIZE;

const PAGES_PER_WORD: usize = u64::BITS as usize;

/// Consecutive pages. Not `Clone`: an extent is given back exactly once.
#[derive(Debug, PartialEq, Eq)]
pub struct Extent {
    first: usize,
    pages: usize,
    length: usize,
}

impl Extent {
    /// Returns the offset in bytes from the beginning of the region.
    pub fn offset(&self) -> usize {
        self.first * PAGE_SIZE
    }

    /// Returns the requested bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

/// Free pages of one region. The lowest extent that fits is taken, so that a quiet drive keeps using the same
/// few pages.
#[derive(Debug, Default)]
pub struct Extents {
    /// Bitmap of the free pages.
    free: Box<[u64]>,
    pages: usize,
    taken: usize,
}

impl Extents {
    /// Creates the table of a region in which all pages are free.
    pub fn new(bytes: usize) -> Self {
        let pages = bytes / PAGE_SIZE;
        let mut free = vec![0; pages.div_ceil(PAGES_PER_WORD)].into_boxed_slice();
        (0..pages).for_each(|page| free[page / PAGES_PER_WORD] |= 1 << (page % PAGES_PER_WORD));
        Self { free, pages, taken: 0 }
    }

    /// Returns whether all pages are free.
    pub fn is_untouched(&self) -> bool {
        self.taken == 0
    }

    /// Takes pages for this many bytes; none if no extent fits now.
    pub fn take(&mut self, bytes: usize) -> Option<Extent> {
        let pages = bytes.div_ceil(PAGE_SIZE);
        let mut first = self.next(0, true);
        while first + pages <= self.pages {
            let end = self.next(first, false);
            if end - first >= pages {
                self.mark(first, pages, false);
                self.taken += pages;
                return Some(Extent { first, pages, length: bytes });
            }
            first = self.next(end, true);
        }
        None
    }

    /// Takes the pages for this many bytes at an offset; none if they are not free, or not whole.
    pub fn take_at(&mut self, offset: usize, bytes: usize) -> Option<Extent> {
        let (first, pages) = (offset / PAGE_SIZE, bytes.div_ceil(PAGE_SIZE));
        let end = first.checked_add(pages).filter(|end| *end <= self.pages)?;
        let is_free = bytes > 0 && self.next(first, true) == first && self.next(first, false) >= end;
        if !is_free || !offset.is_multiple_of(PAGE_SIZE) {
            return None;
        }
        self.mark(first, pages, false);
        self.taken += pages;
        Some(Extent { first, pages, length: bytes })
    }

    /// Takes an extent back.
    pub fn give(&mut self, extent: Extent) {
        self.mark(extent.first, extent.pages, true);
        self.taken -= extent.pages;
    }

    fn mark(&mut self, first: usize, pages: usize, free: bool) {
        for page in first..first + pages {
            let (word, bit) = (&mut self.free[page / PAGES_PER_WORD], 1 << (page % PAGES_PER_WORD));
            if free { *word |= bit } else { *word &= !bit }
        }
    }

    /// Returns the first page from `from` on that is free, or that is not; the number of pages if there is
    /// none.
    fn next(&self, from: usize, free: bool) -> usize {
        let mut page = from;
        while page < self.pages {
            let word = self.free[page / PAGES_PER_WORD] ^ if free { 0 } else { u64::MAX };
            let rest = word >> (page % PAGES_PER_WORD);
            if rest != 0 {
                return (page + rest.trailing_zeros() as usize).min(self.pages);
            }
            page = (page / PAGES_PER_WORD + 1) * PAGES_PER_WORD;
        }
        self.pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGES: usize = 150;

    proptest! {
        #[test]
        fn pages_have_one_owner_and_the_first_piece_that_fits_is_taken(
            steps in prop::collection::vec((any::<bool>(), 1..=PAGES + 1, any::<prop::sample::Index>()), 1..300),
        ) {
            let mut extents = Extents::new(PAGES * PAGE_SIZE);
            let (mut owned, mut model): (Vec<Extent>, _) = (Vec::new(), [false; PAGES]);
            for (gives, pages, which) in steps {
                if gives && !owned.is_empty() {
                    let extent = owned.swap_remove(which.index(owned.len()));
                    model[extent.first..extent.first + extent.pages].fill(false);
                    extents.give(extent);
                    continue;
                }
                let pages = if pages % 3 == 0 { pages } else { pages % 4 + 1 };
                let expected = model.windows(pages).position(|window| !window.contains(&true));
                let extent = extents.take(pages * PAGE_SIZE - which.index(PAGE_SIZE));
                prop_assert_eq!(extent.as_ref().map(|extent| extent.first), expected);
                if let Some(extent) = extent {
                    model[extent.first..extent.first + pages].fill(true);
                    owned.push(extent);
                }
            }
            owned.drain(..).for_each(|extent| extents.give(extent));
            prop_assert!(extents.is_untouched());
            let length = PAGES * PAGE_SIZE;
            prop_assert_eq!(extents.take(length), Some(Extent { first: 0, pages: PAGES, length }));
        }
    }

    #[test]
    fn pages_are_taken_at_a_place_once() {
        let mut extents = Extents::new(PAGES * PAGE_SIZE);
        let first = extents.take(3 * PAGE_SIZE).expect("room");
        assert_eq!(extents.take_at(2 * PAGE_SIZE, 1), None, "taken already");
        assert_eq!(extents.take_at(3 * PAGE_SIZE + 1, 1), None, "no page begins there");
        assert_eq!(extents.take_at(3 * PAGE_SIZE, 0), None);
        assert_eq!(extents.take_at((PAGES - 1) * PAGE_SIZE, PAGE_SIZE + 1), None, "beyond the end");
        assert_eq!(extents.take_at(usize::MAX - 4095, usize::MAX), None);
        let last = extents.take_at((PAGES - 1) * PAGE_SIZE, PAGE_SIZE).expect("it is free");
        assert_eq!((last.offset(), last.len()), ((PAGES - 1) * PAGE_SIZE, PAGE_SIZE));
        extents.give(first);
        let again = extents.take_at(PAGE_SIZE, 2 * PAGE_SIZE).expect("it is free again");
        extents.give(again);
        extents.give(last);
        assert!(extents.is_untouched());
    }
}
