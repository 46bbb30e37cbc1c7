//! The one clock of a reactor.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of CLOCK_MONOTONIC: what `now_ns` means wherever a task sees it.
#[must_use]
pub fn now_ns() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// Nanoseconds of processor time this thread has used.
pub(crate) fn thread_cpu_ns() -> u64 {
    nanoseconds(ClockId::ThreadCPUTime)
}

fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    // Neither clock starts before zero, and 2^64 ns are 584 years.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
