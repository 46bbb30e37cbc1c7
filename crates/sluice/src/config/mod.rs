//! The configuration file: what a daemon is told when it starts.

mod file;
mod locate;
mod settings;

pub use file::{Config, load, parse};
pub use settings::{Idle, Settings};
