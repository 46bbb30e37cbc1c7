//! The Sluice daemon and its tool.
#![forbid(unsafe_code)]

mod check;
pub mod cli;
pub mod daemon;
mod doctor;
pub mod log;
mod orphans;
mod page;
mod qmp;
mod recover;
mod sockets;
mod upgrade;
mod watchdog;
