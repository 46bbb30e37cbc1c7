//! Limits and descriptor formats of Copy.

use crate::state::limits::TRANSFER_MAX;

/// Source ranges of a command; MSRC is one less.
pub(crate) const RANGES_MAX: usize = 128;

/// Bytes of all ranges together, and of each; MCL and MSSRL are the same in blocks.
pub(crate) const LENGTH_MAX: u64 = TRANSFER_MAX as u64;

/// Bits of the supported descriptor formats: ranges of this namespace, ranges with an NSID.
pub(crate) const FORMATS: u16 = 1 << OWN | 1 << NAMED;

pub(crate) const OWN: u32 = 0;

pub(crate) const NAMED: u32 = 2;
