//! Words of notes that a volume sends to the home.

/// A note as one word: the kind in the two highest bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// An extent of the volume has this extent of the pool, or none.
    Map(u32, Option<u32>),
    /// No command changes the volume until the acknowledgement.
    Barrier,
    /// The device does not write this extent of the pool. It is left out.
    Bad(u32),
    /// The device has not written this extent of the pool. It is used again after all others.
    Suspect(u32),
}

impl Word {
    pub(crate) fn encode(self) -> u64 {
        match self {
            Self::Map(logical, physical) => {
                u64::from(logical) | u64::from(physical.map_or(0, |extent| extent + 1)) << 32
            }
            Self::Barrier => 1 << 62,
            Self::Bad(extent) => 2 << 62 | u64::from(extent),
            Self::Suspect(extent) => 3 << 62 | u64::from(extent),
        }
    }

    pub(crate) fn decode(word: u64) -> Self {
        let (low, high) = (word as u32, (word >> 32) as u32);
        match word >> 62 {
            0 => Self::Map(low, high.checked_sub(1)),
            1 => Self::Barrier,
            2 => Self::Bad(low),
            _ => Self::Suspect(low),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Word;

    #[test]
    fn words_are_read_as_they_were_written() {
        let last = crate::EXTENTS_MAX - 1;
        for word in [
            Word::Map(0, None),
            Word::Map(u32::MAX, Some(0)),
            Word::Map(7, Some(last)),
            Word::Barrier,
            Word::Bad(0),
            Word::Bad(last),
            Word::Suspect(last),
        ] {
            assert_eq!(Word::decode(word.encode()), word);
        }
    }
}
