//! An eBPF engine: small programs of untrusted authors, run in the middle of a data path.
//!
//! The engine is independent of the purpose of its programs. A caller gives it an object file (or
//! instructions), the name of the program's section, the [layout of a context](ContextLayout) and the
//! [helpers](Helpers) that programs may call. It gets a [`Program`] to [run](Program::run): no allocation, no
//! lock and no system call per run.
//!
//! Three stages limit a program:
//!
//! 1. [`decode`](mod@decode) and [`object`] refuse malformed programs.
//! 2. `verify` refuses certain errors with a message, and proves where accesses go.
//! 3. Every run confines every access, proven or not, to the program's context, stack and maps, and ends with its fuel. A
//!    violation ends the run in a [`Trap`] and has no other effect.
//!
//! The third alone keeps the host safe. Proofs only make it fast: generated code goes straight to the region
//! that was proven, and compares with that region's bounds.

pub mod alu;
pub mod asm;
pub mod decode;
#[cfg(any(test, feature = "fuzz"))]
mod edges;
mod elf;

mod error;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;

mod helpers;
pub mod insn;
mod interpreter;
mod jit;
mod layout;
mod machine;
mod maps;
pub mod object;
mod program;
mod speculation;
mod trace;
mod verify;
mod words;

#[cfg(test)]
mod tests;

pub use error::{Fault, LoadError, LoadErrorKind, SourceLine, Trap};
pub use helpers::{Argument, Clock, Helper, HelperFn, Helpers, Returns, monotonic_clock};
pub use layout::{ContextLayout, FRAME_BYTES, FRAMES_MAX};
pub use machine::Machine;
pub use maps::{
    KEY_BYTES_MAX, Map, MapDef, MapError, MapKind, Page, Translation, TranslationCache, Update, flags,
};
pub use object::{Limits, MapSpec, Object};
pub use program::{Engine, FUEL, Options, Program};
pub use trace::{COUNTERS, Counters, TRACE_BYTES, TRACE_RECORDS, Trace, TraceRecord};
pub use verify::Note;
