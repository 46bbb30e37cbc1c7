//! Assignment of processors to threads, and checks that the threads had them.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use std::path::Path;
use std::time::Instant;

/// Processors of a measurement; `None` if there are too few to give one to each thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Cores {
    pub reactor: Option<usize>,
    pub host: Option<usize>,
}

impl Cores {
    /// Returns the first two processors that this process may use.
    pub fn choose() -> Self {
        let allowed = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
        let mut cores = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core));
        match (cores.next(), cores.next()) {
            (reactor @ Some(_), host @ Some(_)) => Self { reactor, host },
            _ => Self { reactor: None, host: None },
        }
    }
}

/// Binds the calling thread to a processor, if there is one for it.
pub fn pin(core: Option<usize>) {
    if let Some(core) = core {
        let mut set = CpuSet::new();
        set.set(core);
        // The processor was allowed a moment ago. If this fails, the run reports that the thread had no core.
        let _ = sched_setaffinity(None, &set);
    }
}

/// Returns the processor time of the calling thread, in nanoseconds.
pub fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// Share of its core that the calling thread has, from the beginning to the end.
#[derive(Debug)]
pub struct CoreShare {
    start: Instant,
    cpu_ns: u64,
}

impl CoreShare {
    pub fn begin() -> Self {
        Self { start: Instant::now(), cpu_ns: thread_cpu_ns() }
    }

    pub fn end(self) -> f64 {
        (thread_cpu_ns() - self.cpu_ns) as f64 / self.start.elapsed().as_nanos().max(1) as f64
    }
}

/// Returns the processor time of the threads of another process, in nanoseconds, to within a tick of the
/// kernel. Threads that have ended do not count. Returns zero if the kernel does not report it.
pub fn process_cpu_ns(pid: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    let tasks = tasks.into_iter().flatten().flatten().map(|entry| entry.path());
    tasks.filter_map(|task| task_cpu_ns(&task)).sum()
}

/// Returns the first number in `schedstat`, the time on a processor.
fn task_cpu_ns(task: &Path) -> Option<u64> {
    std::fs::read_to_string(task.join("schedstat")).ok()?.split(' ').next()?.parse().ok()
}
