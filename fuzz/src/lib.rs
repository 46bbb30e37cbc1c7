//! Fuzz targets for everything that takes bytes from outside.
//!
//! Each target is a module with a `run` that gives an input its meaning and checks what must hold
//! whatever the input is; `bin` makes a libFuzzer program of each. See `docs/fuzzing.md`.

pub mod draw;
pub mod files;
pub mod guest;
pub mod host;
mod input;
pub mod layers;
pub mod lent;
pub mod messages;
pub mod registers;
pub mod rings;
pub mod submission;
pub mod walks;
pub mod wire;

pub use input::Input;

use std::path::PathBuf;

/// A folder of this process, in memory where there is a file system in memory.
fn scratch() -> PathBuf {
    let shared_memory = PathBuf::from("/dev/shm");
    let parent = if shared_memory.is_dir() { shared_memory } else { std::env::temp_dir() };
    parent.join(format!("sluice-fuzz-{}", std::process::id()))
}
