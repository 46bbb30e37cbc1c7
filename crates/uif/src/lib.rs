//! Userspace I/O functions (UIFs): storage functions that live where you put them.
//!
//! A function is written once, against the trait [`Function`], and placed inside the daemon or in a
//! process of its own. In a process it is a peer on shared-memory rings:
//!
//! - [`Io`] is what a function can do besides answering; [`Session`] is a function at work.
//! - [`abi`] is what the two sides agree on, with its version.
//! - [`ring`] moves entries between them: no system call while both sides are awake.
//! - [`handshake`] hands the rings over, on a UNIX socket.
//! - [`main`] is all that a function's program needs to say; [`serve`] is the function process: one thread, any number of drives.
//! - [`sandbox`] is what that process gives up.
//!
//! The daemon does not trust the function: what it reads from the rings is copied once and checked, see
//! `sluice_functions`. The function trusts the daemon, whose data it works on.
#![forbid(unsafe_code)]

pub mod abi;
mod function;
pub mod handshake;
mod io;
mod program;
pub mod ring;
pub mod sandbox;
pub mod serve;
mod session;
pub mod socket;
pub mod wire;

pub use function::{Answer, Call, Control, Done, Function, Interest, Properties};
pub use handshake::{Failure, Options};
pub use io::{Below, Buffer, Data, Held, Io, Translation};
pub use program::{Arguments, main};
pub use session::Session;
pub use sluice_command::{Operation, Request};
pub use sluice_nvme::Status;
pub use socket::listen;
