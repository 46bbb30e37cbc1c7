//! A store of chunks: a layer that holds a drive, what the drive was at earlier times, and the mapping from one
//! to the other.
//!
//! Nothing here asks for anything itself. A [`Table`](table) is the mapping in memory; a [chore](chore) is work
//! on the metadata, one step after the other, for whoever has the layer; [`Load`] is the one that trusts nothing
//! it reads. The page docs/formats.md has the layout.
//!
//! What is durable when: a block of the log is written when all that it counts on, and every block before it, is
//! durable. So only the last block of a log can be missing after a power cut. A checkpoint goes into the area
//! that is not in use, and counts from the moment that its header is there.

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

pub use layout::Shape;
pub(crate) use layout::{CHUNK_MAX, CHUNK_MIN};
pub(crate) use text::{in_json, is_name, parse_bytes, table_in_json, versions_in_json};

#[cfg(test)]
mod tests;
