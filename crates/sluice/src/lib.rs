//! The Sluice daemon and its tool.
#![forbid(unsafe_code)]

pub mod api;
pub mod bench;
mod check;
pub mod cli;
pub mod client;
pub mod config;
pub mod daemon;
pub mod drives;
pub mod exclusive;
mod host_name;
pub mod launch;
pub mod listen;
pub mod log;
pub mod object_file;
pub mod paths;
pub mod problem;
pub mod size;
pub mod spec;
pub mod state;
pub mod wiring;
pub mod words;
