//! Table of a drive's chunks, one word each.

use sluice_options::Size;

/// Chunk of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MapChunk {
    /// Index of the target; the rest of the stack is target 0.
    pub target: usize,
    /// Number of the chunk in the target.
    pub chunk: u64,
}

/// Part of a command that lies together on one target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) target: usize,
    /// First byte and end in the drive.
    pub(super) from: u64,
    pub(super) end: u64,
    /// First byte in the target.
    pub(super) offset: u64,
}

/// Table of chunks: entry n has the chunk of bytes `n * chunk` to `(n + 1) * chunk`.
#[derive(Clone, PartialEq, Eq)]
pub struct MapTable {
    shift: u32,
    /// A flag in bit 0, the target in bits 7:1, the number of the chunk above. Zero is a hole.
    entries: Box<[u64]>,
}

const TARGET_SHIFT: u32 = 1;
const TARGET_MASK: u64 = 0x7f;
const CHUNK_SHIFT: u32 = 8;

impl MapTable {
    /// Creates a table of chunks of `1 << shift` bytes. An entry that does not fit becomes a hole.
    pub fn new(shift: u32, entries: impl IntoIterator<Item = Option<MapChunk>>) -> Self {
        let pack = |entry: Option<MapChunk>| entry.and_then(|it| packed(shift, it)).unwrap_or(0);
        Self { shift: shift.min(u64::BITS - 1), entries: entries.into_iter().map(pack).collect() }
    }

    /// Returns the target and the offset there of a byte of the drive; none in a hole.
    #[inline]
    pub fn find(&self, offset: u64) -> Option<(usize, u64)> {
        let entry = *self.entries.get((offset >> self.shift) as usize)?;
        if entry & 1 == 0 {
            return None;
        }
        let within = offset & ((1 << self.shift) - 1);
        let target = (entry >> TARGET_SHIFT & TARGET_MASK) as usize;
        Some((target, (entry >> CHUNK_SHIFT << self.shift) | within))
    }

    /// Returns the bytes of a chunk.
    pub fn chunk(&self) -> u64 {
        1 << self.shift
    }

    /// Returns the bytes of the drive.
    pub fn size(&self) -> u64 {
        (self.entries.len() as u64).saturating_mul(self.chunk())
    }

    /// Returns whether the bytes from `offset` to `end` lie in one chunk.
    #[inline]
    pub(super) fn is_in_one(&self, offset: u64, end: u64) -> bool {
        end <= offset || offset >> self.shift == (end - 1) >> self.shift
    }

    /// Returns whether none of the bytes from `offset` to `end`, at least one, lies in a hole.
    pub(super) fn is_mapped(&self, offset: u64, end: u64) -> bool {
        let (first, last) = ((offset >> self.shift) as usize, ((end - 1) >> self.shift) as usize);
        self.entries.get(first..=last).is_some_and(|entries| entries.iter().all(|entry| entry & 1 == 1))
    }

    /// Returns the bytes from `from` on, up to `end`, that lie together on one target. None if the first lies in a
    /// hole.
    pub(super) fn part(&self, from: u64, end: u64) -> Option<Part> {
        let (target, offset) = self.find(from)?;
        let mut number = (from >> self.shift) as usize;
        // The next chunk of the same target differs in the number alone.
        let adjoins = |at: usize| {
            let next = self.entries.get(at + 1)?;
            (*next == self.entries[at].wrapping_add(1 << CHUNK_SHIFT)).then_some(at + 1)
        };
        let end_of = |number: usize| (number as u64 + 1).saturating_mul(self.chunk());
        while end_of(number) < end {
            let Some(next) = adjoins(number) else { break };
            number = next;
        }
        Some(Part { target, from, end: end_of(number).min(end), offset })
    }

    /// Returns the entries in order; none for a hole.
    pub fn entries(&self) -> impl Iterator<Item = Option<MapChunk>> + '_ {
        self.entries.iter().map(|entry| {
            let target = (entry >> TARGET_SHIFT & TARGET_MASK) as usize;
            (entry & 1 == 1).then_some(MapChunk { target, chunk: entry >> CHUNK_SHIFT })
        })
    }

    /// Returns a number that differs for different tables.
    pub(super) fn checksum(&self) -> u64 {
        let bytes: Vec<u8> = self.entries.iter().flat_map(|entry| entry.to_le_bytes()).collect();
        twox_hash::XxHash3_64::oneshot_with_seed(self.shift.into(), &bytes)
    }
}

/// Returns the word of an entry, if its end has an address.
fn packed(shift: u32, entry: MapChunk) -> Option<u64> {
    let target = u64::try_from(entry.target).ok().filter(|target| *target <= TARGET_MASK)?;
    entry.chunk.checked_add(1)?.checked_mul(1u64.checked_shl(shift)?)?;
    let chunk = entry.chunk.checked_mul(1 << CHUNK_SHIFT)?;
    Some(chunk | target << TARGET_SHIFT | 1)
}

impl std::fmt::Debug for MapTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {}: ", self.entries.len(), Size(self.chunk()))?;
        f.debug_list().entries(self.entries()).finish()
    }
}
