//! The null target: every command succeeds and moves nothing.
//!
//! What it costs is what Sluice itself costs, so the benchmark stands on it. Reads leave the host's
//! buffer as it is.

use sluice_command::{Characteristics, Command, Deallocated, Lane, Layer, Storage};
use sluice_nvme::Status;

/// A target of a size and nothing else.
#[derive(Clone, Copy, Debug)]
pub struct Null {
    size: u64,
}

impl Null {
    /// `size` in bytes.
    pub fn new(size: u64) -> Self {
        Self { size }
    }
}

impl Layer for Null {
    fn name(&self) -> &'static str {
        "null"
    }

    fn characteristics(&self, _below: &[Characteristics]) -> Characteristics {
        Characteristics {
            deallocated: Deallocated::Indeterminate,
            storage: Storage { id: 0, is_new: true },
            ..Characteristics::target(self.size, 512)
        }
    }

    #[inline]
    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        lane.finish(command, Status::SUCCESS);
    }

    fn resized(&mut self, size: u64) {
        self.size = size;
    }
}
