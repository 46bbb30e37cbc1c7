//! Seeded simulation: storage with a volatile cache and power cuts, a host, and the reference model
//! that says what each read may return.
//!
//! One `u64` decides everything in a run: what the host asks for, the order in which the storage
//! answers, what a power cut destroys. [`seeds`] are run by the tests; a run that fails prints its seed,
//! and the seed goes into the test's list of those to be tried for ever after.
#![forbid(unsafe_code)]

mod buffer;
mod clock;
mod disk;
mod engine;
mod guest;
mod host;
mod model;
mod pattern;
mod ring;
mod scenario;
mod seeds;
mod stack_host;
mod target;

pub use buffer::{Buffer, Direction};
pub use clock::SimClock;
pub use disk::{Disk, DiskConfig, SimDisk};
pub use engine::SimEngine;
pub use guest::Guest;
pub use host::{Completion, Doorbells, SimHost};
pub use model::{Action, FlightId, ModelNamespace, Tag, Violation};
pub use pattern::{Torn, read_tag, write_tag};
pub use ring::{CompletionRing, SubmissionRing};
pub use scenario::{Drive, DriveNamespace, Effort, Make, Scenario, Tally};
pub use seeds::seeds;
pub use stack_host::{StackHost, Workload};
pub use target::SimTarget;

pub use sluice_functions::Random;
