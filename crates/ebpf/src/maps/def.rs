//! Definition of a map, and the check that it is possible.

use super::{KEY_BYTES_MAX, hash, translation};
use crate::error::LoadErrorKind;
use crate::layout::REGION_BYTES_MAX;

/// Kind of a map, by its behaviour; the numbers are those of `enum bpf_map_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MapKind {
    /// Elements 0 to `max_entries - 1`, which always exist.
    Array,
    Hash,
    /// Hash that evicts elements that were not used lately instead of being full.
    LruHash,
    /// Map from ranges of blocks to their positions; see [`TranslationCache`](super::TranslationCache).
    Translation,
}

impl MapKind {
    /// Number of Sluice's own kind: no kernel number is this high.
    pub const TRANSLATION: u32 = 1000;

    /// Returns the kind of a definition's `type`. A map per CPU is an ordinary one here: maps are per reactor
    /// anyway.
    pub const fn from_number(number: u32) -> Option<Self> {
        match number {
            1 | 5 => Some(Self::Hash),
            2 | 6 => Some(Self::Array),
            9 | 10 => Some(Self::LruHash),
            Self::TRANSLATION => Some(Self::Translation),
            _ => None,
        }
    }
}

/// Bits of a map definition's `map_flags`.
pub mod flags {
    /// The kernel's `BPF_F_NO_PREALLOC`: accepted, but all memory is reserved nevertheless.
    pub const NO_PREALLOC: u32 = 1;
    /// The kernel's `BPF_F_RDONLY_PROG`: programs may not change the values.
    pub const READ_ONLY: u32 = 1 << 7;
    /// Sluice's own flag: one map for all drives, on any reactor, instead of one for each.
    pub const SHARED: u32 = 1 << 24;
    pub(super) const KNOWN: u32 = NO_PREALLOC | READ_ONLY | SHARED;
}

/// Definition of a map: its name and its shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapDef {
    pub name: String,
    pub kind: MapKind,
    /// Bytes of a key; 4 for an array.
    pub key_size: u32,
    /// Bytes of a value.
    pub value_size: u32,
    pub max_entries: u32,
    /// Flags, see [`flags`].
    pub flags: u32,
    /// Logarithm of the blocks of a granule of a translation cache; otherwise zero.
    pub extra: u64,
}

/// Most bytes of a value.
const VALUE_BYTES_MAX: u32 = 1 << 20;

impl MapDef {
    /// Defines an array, without flags.
    pub fn array(name: &str, value_size: u32, max_entries: u32) -> Self {
        let (kind, name) = (MapKind::Array, name.to_owned());
        Self { name, kind, key_size: 4, value_size, max_entries, flags: 0, extra: 0 }
    }

    /// Defines a hash, without flags.
    pub fn hash(name: &str, key_size: u32, value_size: u32, max_entries: u32) -> Self {
        Self { kind: MapKind::Hash, key_size, ..Self::array(name, value_size, max_entries) }
    }

    /// Defines a translation cache whose granules are `1 << granule_shift` blocks.
    pub fn translation(name: &str, max_entries: u32, granule_shift: u64) -> Self {
        let extra = granule_shift;
        Self { kind: MapKind::Translation, key_size: 8, extra, ..Self::array(name, 16, max_entries) }
    }

    /// Returns whether one map serves all drives.
    pub fn shared(&self) -> bool {
        self.flags & flags::SHARED != 0
    }

    /// Returns whether programs may only read the map.
    pub fn read_only(&self) -> bool {
        self.flags & flags::READ_ONLY != 0
    }

    /// Returns the bytes from one value to the next.
    pub(crate) fn stride(&self) -> usize {
        (self.value_size as usize).next_multiple_of(8)
    }

    /// Returns the bytes of the map's memory: values, keys and links.
    pub(crate) fn bytes(&self) -> u128 {
        match self.kind {
            MapKind::Array => u128::from(self.max_entries) * self.stride() as u128,
            MapKind::Hash | MapKind::LruHash => hash::bytes_of(self),
            MapKind::Translation => translation::bytes_of(self),
        }
    }

    /// Returns the bytes for programs to address, without the limit of [`REGION_BYTES_MAX`]: all values, and
    /// of a hash a spare one.
    fn addressed(&self) -> u128 {
        match self.kind {
            MapKind::Translation => 0,
            _ => (u128::from(self.max_entries) + 1) * self.stride() as u128,
        }
    }

    /// Checks that the values fit into a region, independent of the available memory.
    pub(crate) fn check_region(&self) -> Result<(), LoadErrorKind> {
        if self.addressed() < REGION_BYTES_MAX as u128 {
            return Ok(());
        }
        let why = "all its values together must have less than 2 GiB; lower max_entries".to_owned();
        Err(LoadErrorKind::BadMap { name: self.name.clone(), why })
    }

    /// Checks that such a map can be made at all.
    pub(crate) fn check(&self) -> Result<(), LoadErrorKind> {
        let why = if self.flags & !flags::KNOWN != 0 {
            "its map_flags has bits that are not supported"
        } else if self.max_entries == 0 {
            "max_entries is zero; say how many there may be"
        } else if self.value_size == 0 || self.value_size > VALUE_BYTES_MAX {
            "the value must have 1 to 1048576 bytes"
        } else {
            match self.kind {
                MapKind::Array if self.key_size != 4 => "the key of an array must have 4 bytes",
                MapKind::Hash | MapKind::LruHash
                    if self.key_size == 0 || self.key_size as usize > KEY_BYTES_MAX =>
                {
                    "the key must have 1 to 64 bytes"
                }
                MapKind::Translation if self.key_size != 8 || self.value_size != 16 => {
                    "a translation cache has 8-byte keys and 16-byte values (struct sluice_translation)"
                }
                MapKind::Translation if self.extra > 32 => {
                    "a granule has at most 2^32 blocks; lower map_extra"
                }
                MapKind::Translation if self.shared() => {
                    "a translation cache cannot be shared: each reactor fills and clears its own"
                }
                _ => return Ok(()),
            }
        };
        Err(LoadErrorKind::BadMap { name: self.name.clone(), why: why.to_owned() })
    }
}
