//! The null target: every command succeeds and moves nothing.
//!
//! The cost of its commands is the overhead of Sluice itself, which the benchmark measures. Reads do not
//! change the host's buffer.

use sluice_command::{Characteristics, Command, Deallocated, Lane, Layer, Storage};
use sluice_nvme::Status;

/// A target with a size and no storage.
#[derive(Clone, Copy, Debug)]
pub struct Null {
    size: u64,
}

impl Null {
    /// Creates a target of `size` bytes.
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
