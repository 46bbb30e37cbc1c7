//! Store of chunks: a layer that holds a drive, the drive's state at earlier times, and the mapping between
//! them.
//!
//! This module sends no requests itself. A `Table` is the mapping in memory. A metadata operation changes the
//! metadata, one step after the other, for the user of the layer. `Load` is the one that trusts no data it
//! reads. The page docs/internals/formats.md has the layout.
//!
//! [`sluice_metadata::engine`] has the order of reads, writes and flushes of the areas, which are its halves.
//! This module has the content of their blocks, the superblocks, and the number of deletions.

pub(crate) mod block;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub(crate) mod layout;
pub(crate) mod left_out;
pub(crate) mod load;
pub(crate) mod metadata_op;
pub(crate) mod table;
mod text;
mod uses;
mod wire;

pub use layout::Shape;
pub(crate) use layout::{CHUNK_MAX, CHUNK_MIN};
pub(crate) use text::{is_name, parse_bytes};
pub(crate) use wire::{METRICS, ORDERS, json};
pub use wire::{StoreOrder, StoreStatus, VersionStatus};

#[cfg(test)]
mod disk_tests;
#[cfg(test)]
mod limit_tests;
#[cfg(test)]
mod tests;
