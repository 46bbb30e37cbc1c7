//! The Sluice daemon and its tool.
#![forbid(unsafe_code)]

mod check;
pub mod cli;
pub mod daemon;
pub mod log;
mod watchdog;
