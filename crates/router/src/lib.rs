//! The router: where a command chooses its path.
//!
//! Every command of a namespace passes a [`Classifier`] at the hooks it asked for. The classifier
//! answers with a [`Verdict`]; the verdict is checked before it is used, and the address of every leg
//! is checked after it. What a classifier cannot break, it does not have to be trusted with.
#![forbid(unsafe_code)]

mod classifier;
mod router;
mod verdict;

#[cfg(test)]
mod tests;

pub use classifier::{Classifier, Direct, Facts, Hook};
pub use router::{Counters, Router, RouterBuilder, RouterError};
pub use verdict::{Decision, Path, Verdict};
