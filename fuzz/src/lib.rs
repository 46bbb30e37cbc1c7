//! Fuzz targets for everything that takes bytes from outside.
//!
//! Each target is a module with a `run` that gives an input its meaning and checks what must hold
//! whatever the input is; `bin` makes a libFuzzer program of each. See `docs/fuzzing.md`.

pub mod draw;
pub mod guest;
pub mod host;
mod input;
pub mod layers;
pub mod rings;
pub mod submission;
pub mod walks;

pub use input::Input;
