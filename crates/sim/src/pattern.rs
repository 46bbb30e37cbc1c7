//! Blocks that identify their write.

use crate::Tag;
use std::fmt;

/// A block that is neither one write's data nor another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Torn {
    /// Tag in its first word.
    pub tag: Tag,
    /// Offset of the first byte that does not belong to the tag.
    pub at: usize,
}

impl fmt::Display for Torn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a block that begins as tag {:#x} is something else from byte {} on", self.tag.0, self.at)
    }
}

/// Fills a block so that each of its bytes depends on the tag. [`Tag::ZERO`] is a block of zeroes.
pub fn write_tag(tag: Tag, block: &mut [u8]) {
    for (number, word) in block.chunks_mut(8).enumerate() {
        word.copy_from_slice(&pattern(tag, number).to_le_bytes()[..word.len()]);
    }
}

/// Returns the tag of a block, if the whole of it is of one write.
pub fn read_tag(block: &[u8]) -> Result<Tag, Torn> {
    let mut first = [0; 8];
    first.copy_from_slice(&block[..8]);
    let tag = Tag(u64::from_le_bytes(first));
    for (number, word) in block.chunks(8).enumerate() {
        if word != &pattern(tag, number).to_le_bytes()[..word.len()] {
            return Err(Torn { tag, at: number * 8 });
        }
    }
    Ok(tag)
}

/// Returns word `number` of a block: the tag itself first, then numbers that follow from it.
fn pattern(tag: Tag, number: usize) -> u64 {
    match (tag, number) {
        (Tag::ZERO, _) => 0,
        (Tag(word), 0) => word,
        (Tag(word), _) => {
            (word ^ number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(number as u32)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_shows_its_tag_and_a_mixed_one_that_it_is_mixed() {
        let mut old = [0u8; 512];
        let mut new = [0u8; 512];
        write_tag(Tag(7), &mut old);
        write_tag(Tag(8), &mut new);
        assert_eq!(read_tag(&old), Ok(Tag(7)));
        assert_eq!(read_tag(&[0; 512]), Ok(Tag::ZERO));
        for split in (8..512).step_by(8) {
            let mixed = [&new[..split], &old[split..]].concat();
            assert_eq!(read_tag(&mixed), Err(Torn { tag: Tag(8), at: split }));
        }
    }
}
