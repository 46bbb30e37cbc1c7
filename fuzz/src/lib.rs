//! Fuzz targets for everything that takes bytes from outside.
//!
//! Each target is a module with a `run` that interprets an input and checks the invariants for every input;
//! `bin` makes a libFuzzer program of each. See `docs/internals/fuzzing.md`.

pub mod atomic;
pub mod authentication;
pub mod configuration;
pub mod dma_maps;
pub mod draw;
pub mod fabrics;
pub mod far;
pub mod files;
pub mod guest;
pub mod host;
mod input;
pub mod label;
pub mod layers;
pub mod link;
pub mod local_cache;
pub mod luks;
pub mod messages;
pub mod object;
pub mod program;
pub mod records;
pub mod redundancy;
pub mod registers;
pub mod rings;
pub mod snapshot;
pub mod state;
pub mod submission;
pub mod tcp;
pub mod thin;
pub mod tls;
pub mod uif;
pub mod verdict;
pub mod walks;
pub mod wire;

pub use input::Input;

use std::path::PathBuf;

/// Returns a folder of this process. `scripts/fuzz.sh` removes it.
fn scratch() -> PathBuf {
    std::env::temp_dir().join(format!("sluice-fuzz-{}", std::process::id()))
}
