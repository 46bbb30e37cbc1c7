//! Limits of the work for one header, independent of the number of its keyslots.

use sluice_memory::machine;
use std::time::{Duration, Instant};

/// Limits of the work for a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Memory for deriving a key, KiB: 4 GiB, the limit of cryptsetup. Less if less is free.
    pub memory_kib: u32,
    /// Passes over that memory.
    pub passes: u32,
    /// Iterations of PBKDF2, of all keyslots that are tried together.
    pub iterations: u32,
    /// KiB that Argon2 processes, of all keyslots that are tried together.
    pub argon2_kib: u64,
    /// Time after which no other keyslot is tried.
    pub time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_kib: 4 << 20,
            passes: 100,
            iterations: 100_000_000,
            argon2_kib: 128 << 20,
            time: Duration::from_secs(60),
        }
    }
}

/// Lanes of Argon2, at most.
const LANES_MAX: u32 = 16;

/// Remaining limits while keyslots are tried.
#[derive(Debug)]
pub(super) struct Budget {
    limits: Limits,
    iterations: u32,
    argon2_kib: u64,
    began: Instant,
}

impl Budget {
    pub(super) fn new(limits: &Limits) -> Self {
        let Limits { iterations, argon2_kib, .. } = *limits;
        Self { limits: *limits, iterations, argon2_kib, began: Instant::now() }
    }

    /// Returns whether there is time for another keyslot.
    pub(super) fn has_time(&self) -> bool {
        self.began.elapsed() < self.limits.time
    }

    /// Takes iterations of PBKDF2.
    pub(super) fn take_iterations(&mut self, iterations: u32) -> Result<(), String> {
        if !(1..=self.limits.iterations).contains(&iterations) {
            return Err(format!("{iterations} iterations are more than Sluice does"));
        }
        self.iterations = self.iterations.checked_sub(iterations).ok_or_else(used_up)?;
        Ok(())
    }

    /// Takes passes of Argon2 over memory, which must be free.
    pub(super) fn take_argon2(&mut self, passes: u32, memory_kib: u32, lanes: u32) -> Result<(), String> {
        if memory_kib > self.limits.memory_kib || passes > self.limits.passes || lanes > LANES_MAX {
            return Err(format!(
                "{passes} passes over {memory_kib} KiB in {lanes} lanes are more than Sluice does"
            ));
        }
        let free_kib = machine::available_memory().map(|bytes| bytes >> 10);
        if let Some(free) = free_kib.filter(|free| u64::from(memory_kib) > *free) {
            return Err(format!(
                "deriving its key takes {memory_kib} KiB of memory, and {free} KiB are free"
            ));
        }
        let work = u64::from(passes) * u64::from(memory_kib);
        self.argon2_kib = self.argon2_kib.checked_sub(work).ok_or_else(used_up)?;
        Ok(())
    }
}

fn used_up() -> String {
    "it is more work than Sluice does for one header: name it with the option keyslot to try it alone"
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_not_free_is_not_taken() {
        let limits = Limits { memory_kib: u32::MAX, argon2_kib: u64::MAX, ..Limits::default() };
        let message =
            Budget::new(&limits).take_argon2(1, u32::MAX, 1).expect_err("no machine has 4 TiB free");
        assert!(message.contains("KiB are free"), "{message}");
    }
}
