//! Pieces of the options that a user writes: sizes, faults with the key that each is at, near words.
#![forbid(unsafe_code)]

mod fault;
pub mod size;
pub mod words;

pub use fault::{Fault, KeyPath, Step};
pub use size::Size;
