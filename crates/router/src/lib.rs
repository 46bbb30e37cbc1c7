//! The router: where a command chooses its path.
//!
//! Every command of a namespace passes a [`Classifier`] at its hooks. The classifier is shown a [`Context`]
//! and answers with a [`Verdict`]: legs to start, hooks to be called at, and the rule for the command's end.
//! The verdict is checked before it is used, and the address of every leg is checked after it. So the
//! classifier need not be trusted with anything that these checks cover.
//!
//! Programs are replaced under load: the next command sees the new one, those in flight finish with the one
//! they began with.
#![forbid(unsafe_code)]

mod context;
mod edit_stack;
mod errors;
mod flight;
mod legs;
mod nvmetro;
mod program;
#[cfg(any(test, feature = "rig"))]
pub mod rig;
mod router;
mod steer;
mod verdict;

#[cfg(test)]
mod tests;

pub use context::{Context, Facts, Hook, Steering};
pub use errors::{Counters, ProgramError};
pub use flight::STARTS_MAX;
pub use nvmetro::{NVMETRO_CONTEXT, NVMETRO_WRITABLE, Nvmetro};
pub use program::{Bytecode, Classifier, Direct, Trapped, Unconfined};
pub use router::{Router, RouterBuilder, RouterError};
pub use verdict::{Decision, Finish, Leg, Legs, Verdict, Winner};
