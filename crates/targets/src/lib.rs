//! Targets: where data ends, one module for each kind of place.
#![forbid(unsafe_code)]

mod memory;
mod null;

pub use memory::Memory;
pub use null::Null;
