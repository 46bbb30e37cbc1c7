//! Userspace I/O functions (UIFs): storage functions that run in the daemon or in a process of their own.
//!
//! A function is written once, against the trait [`Function`]. In the daemon it is called. In a process
//! it is a peer on shared-memory rings:
//!
//! - [`Io`] has the actions of a function besides its answers. [`Direct`] is a function at work, which is called;
//!   [`Session`] is one that works on the entries of a ring.
//! - [`abi`] is the contract of the two sides, with its version.
//! - [`ring`] moves entries between them: no system call while both sides are awake.
//! - [`handshake`] hands the rings over, on a UNIX socket.
//! - [`main`] is the whole `main` of a function's program; [`serve`] is the loop of its process: one thread, any number of
//!   drives.
//! - [`sandbox`] confines that process.
//!
//! # A function
//!
//! This one refuses writes to the first mebibyte, where the partition table is:
//!
//! ```
//! use sluice_uif::{Answer, Call, Function, Interest, Io, Operation, Properties, Status};
//!
//! #[derive(Default)]
//! struct Guard {
//!     refused: u64,
//! }
//!
//! impl Function for Guard {
//!     fn properties(&self) -> Properties {
//!         // Reads and flushes pass the function.
//!         Properties::NONE.with(Operation::Write, Interest::Before)
//!     }
//!
//!     fn submit(&mut self, call: &mut Call<'_>, _io: &mut Io<'_>) -> Answer {
//!         if call.request.offset >= 1 << 20 {
//!             return Answer::Forward;
//!         }
//!         self.refused += 1;
//!         Answer::Finish(Status::NAMESPACE_WRITE_PROTECTED)
//!     }
//!
//!     fn metrics(&self, count: &mut dyn FnMut(&str, u64)) {
//!         count("refused_total", self.refused);
//!     }
//! }
//! # use sluice_memory::{Buffers, SharedRegion};
//! # use sluice_uif::abi::{Submission, disposition, operation};
//! # let mut memory = Buffers::new(SharedRegion::new("arena", 64 << 10).expect("memory"));
//! # let mut session = sluice_uif::Session::new(Box::new(Guard::default()), 64 << 10);
//! # let mut write = |offset| {
//! #     let (operation, length, data_length) = (operation::WRITE, 512, 512);
//! #     let entry = Submission { operation, offset, length, data_length, ..Submission::default() };
//! #     session.take(&entry, &mut memory, 0);
//! #     session.replies(1).next().expect("a reply")
//! # };
//! # assert_eq!(write(512).disposition, disposition::FINISH);
//! # assert_eq!(write(512).status, Status::NAMESPACE_WRITE_PROTECTED.0);
//! # assert_eq!(write(1 << 20).disposition, disposition::FORWARD);
//! ```
//!
//! Its program is one call. The daemon starts it (`command` in the configuration), or it listens (`--socket`):
//!
//! ```no_run
//! # struct Guard;
//! # impl sluice_uif::Function for Guard {
//! #     fn properties(&self) -> sluice_uif::Properties { sluice_uif::Properties::NONE }
//! #     fn submit(&mut self, _: &mut sluice_uif::Call<'_>, _: &mut sluice_uif::Io<'_>) -> sluice_uif::Answer {
//! #         sluice_uif::Answer::Forward
//! #     }
//! # }
//! fn main() -> std::process::ExitCode {
//!     sluice_uif::main(&mut |_options| Ok(Box::new(Guard)))
//! }
//! ```
//!
//! The daemon does not trust the function: it copies entries of the rings once and checks them, see
//! `sluice_functions`. The function trusts the daemon, whose data it works on.
#![forbid(unsafe_code)]

pub mod abi;
mod direct;
mod function;
pub mod handshake;
mod io;
mod program;
pub mod ring;
pub mod sandbox;
pub mod serve;
mod session;
pub mod socket;
mod state;
pub mod wire;

pub use direct::{Direct, Effect, Passage};
pub use function::{Answer, Call, Control, Done, Function, Interest, Properties};
pub use handshake::{Failure, Options};
pub use io::{Below, Buffer, Data, Held, Io, Part, Translation};
pub use program::{Arguments, main};
pub use session::Session;
pub use sluice_command::{Operation, Request};
pub use sluice_nvme::Status;
pub use socket::listen;
