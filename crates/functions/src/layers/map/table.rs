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
    /// Bytes of a chunk, less one.
    mask: u64,
    /// The target in bits 7:0, a flag in bit 8, and the first byte of the chunk, whose low bits are zero. Zero is
    /// a hole.
    entries: Box<[u64]>,
}

const TARGET_MASK: u64 = 0xff;
const IS_MAPPED: u64 = 1 << (SHIFT_MIN - 1);
const BYTE_MASK: u64 = !((1 << SHIFT_MIN) - 1);

/// Minimum of the shift: chunks are of 512 bytes at least.
const SHIFT_MIN: u32 = 9;
/// Maximum of the shift: the end of a chunk has an address.
const SHIFT_MAX: u32 = 62;

impl MapTable {
    /// Creates a table of chunks of `1 << shift` bytes, with a shift of 9 to 62. An entry that does not fit becomes
    /// a hole.
    pub fn new(shift: u32, entries: impl IntoIterator<Item = Option<MapChunk>>) -> Self {
        let shift = shift.clamp(SHIFT_MIN, SHIFT_MAX);
        let pack = |entry: Option<MapChunk>| entry.and_then(|it| packed(shift, it)).unwrap_or(0);
        Self { shift, mask: (1 << shift) - 1, entries: entries.into_iter().map(pack).collect() }
    }

    /// Returns the target and the offset there of a byte of the drive; none in a hole.
    #[inline]
    pub fn find(&self, offset: u64) -> Option<(usize, u64)> {
        let entry = *self.entries.get(offset.wrapping_shr(self.shift) as usize)?;
        if entry & IS_MAPPED == 0 {
            return None;
        }
        Some(((entry & TARGET_MASK) as usize, (entry & BYTE_MASK) | (offset & self.mask)))
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
        self.entries
            .get(first..=last)
            .is_some_and(|entries| entries.iter().all(|entry| entry & IS_MAPPED != 0))
    }

    /// Returns the bytes from `from` on, up to `end`, that lie together on one target. None if the first lies in a
    /// hole.
    pub(super) fn part(&self, from: u64, end: u64) -> Option<Part> {
        let (target, offset) = self.find(from)?;
        let mut number = (from >> self.shift) as usize;
        // The next chunk of the same target differs in the first byte alone.
        let adjoins = |at: usize| {
            let next = self.entries.get(at + 1)?;
            (*next == self.entries[at].wrapping_add(self.chunk())).then_some(at + 1)
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
            let target = (entry & TARGET_MASK) as usize;
            (entry & IS_MAPPED != 0).then_some(MapChunk { target, chunk: entry >> self.shift })
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
    let end = entry.chunk.checked_add(1)?.checked_mul(1 << shift)?;
    Some((end - (1 << shift)) | IS_MAPPED | target)
}

impl std::fmt::Debug for MapTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {}: ", self.entries.len(), Size(self.chunk()))?;
        f.debug_list().entries(self.entries()).finish()
    }
}
