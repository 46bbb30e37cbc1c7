//! Userspace I/O functions (UIFs): storage functions that run in the daemon or in a process of their own.
//!
//! A function is written once, against the trait [`Function`]. In a process it is a peer on shared-memory
//! rings:
//!
//! - [`Io`] has the actions of a function besides its answers; [`Session`] is a function at work.
//! - [`abi`] is the contract of the two sides, with its version.
//! - [`ring`] moves entries between them: no system call while both sides are awake.
//! - [`handshake`] hands the rings over, on a UNIX socket.
//! - [`main`] is the whole `main` of a function's program; [`serve`] is the loop of its process: one thread, any number of
//!   drives.
//! - [`sandbox`] confines that process.
//!
//! The daemon does not trust the function: it copies entries of the rings once and checks them, see
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
