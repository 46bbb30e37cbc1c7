//! Desired state of a daemon's drives, and how to reach it: configuration, state, changes.
//!
//! [`drives::Engine`] is the joint to the parts that make drives work; `crates/wiring` implements it.
#![forbid(unsafe_code)]

pub mod config;
pub mod drives;
pub mod exclusive;
pub mod launch;
pub mod listen;
pub mod object_file;
pub mod state;
pub mod token;
