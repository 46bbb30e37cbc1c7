//! Seeded simulation: storage with a volatile cache and power cuts, a host, and the reference model of the
//! permitted result of each read.
//!
//! One `u64` decides everything in a run: the host's commands, the order in which the storage answers, the
//! damage of a power cut. [`seeds`] are run by the tests; a run that fails prints its seed, and the seed goes
//! into the test's list of those to be run from then on.
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
