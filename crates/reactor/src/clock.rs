//! The clock of a reactor.

use rustix::time::{ClockId, clock_gettime};

/// Returns nanoseconds of CLOCK_MONOTONIC: the meaning of `now_ns` in every task.
#[must_use]
pub fn now_ns() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// Returns nanoseconds of processor time that this thread has used.
pub(crate) fn thread_cpu_ns() -> u64 {
    nanoseconds(ClockId::ThreadCPUTime)
}

fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    // Neither clock starts before zero, and 2^64 ns are 584 years.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
