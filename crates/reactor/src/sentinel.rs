//! Detection of standstills of a processor.
//!
//! A hypervisor that preempts a virtual processor need not report it to its guest. To the threads there it
//! looks as if they had worked all the time, since the kernel charges them for it. A thread of the highest
//! priority on that processor, which sleeps nearly always, notices: it is woken late. A thread that waits for
//! another is not detected.

#![allow(unsafe_code, reason = "sched_setscheduler is not in rustix")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::{io, mem};

use rustix::thread::{CpuSet, clock_nanosleep_absolute, sched_setaffinity};
use rustix::time::{ClockId, Timespec};

use crate::clock;
use crate::watch::Absence;

/// Interval of the checks, ns: a shorter standstill may not be noticed.
const INTERVAL_NS: u64 = 500_000;

/// Shortest delay that is recorded, ns. Waking a thread takes less.
const LATE_NS: u64 = 200_000;

/// Standstills that are recorded of one processor.
const STANDSTILLS_MAX: usize = 1 << 16;

/// Priority before all threads without a reason to be urgent.
const PRIORITY: i32 = 50;

/// Watches some processors until it is dropped.
#[derive(Debug)]
pub struct Sentinel {
    ended: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Vec<Absence>>>,
}

impl Sentinel {
    /// Starts a thread for each of these processors.
    ///
    /// # Errors
    /// This process may not use such a processor, or may not have real-time threads (`CAP_SYS_NICE`).
    pub fn of(processors: &[usize]) -> io::Result<Self> {
        let ended = Arc::new(AtomicBool::new(false));
        let mut all = Self { ended, threads: Vec::new() };
        for &processor in processors {
            let (ended, (tell, told)) = (Arc::clone(&all.ended), std::sync::mpsc::channel());
            let run = move || {
                let ready = bind_with_priority(processor);
                let is_ready = ready.is_ok();
                // The thread that started this one waits for the message.
                let _ = tell.send(ready);
                if is_ready { watch(&ended) } else { Vec::new() }
            };
            all.threads.push(thread::Builder::new().name(format!("sentinel-{processor}")).spawn(run)?);
            told.recv().map_err(io::Error::other)??;
        }
        Ok(all)
    }

    /// Ends the threads; returns begin and end of the standstills of each processor, by the clock of
    /// [`now_ns`](crate::now_ns).
    #[must_use]
    pub fn end(mut self) -> Vec<Vec<Absence>> {
        self.ended.store(true, Ordering::Relaxed);
        // A panic ends the process.
        mem::take(&mut self.threads).into_iter().map(|thread| thread.join().unwrap_or_default()).collect()
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

/// Binds the calling thread to a processor, with priority over all other threads there.
fn bind_with_priority(processor: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(processor);
    sched_setaffinity(None, &set)?;
    // SAFETY: all zeroes are a valid sched_param, which is made of integers.
    let mut parameters: libc::sched_param = unsafe { mem::zeroed() };
    parameters.sched_priority = PRIORITY;
    // SAFETY: the pointer is to a sched_param that lives through the call; 0 is the calling thread.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn watch(ended: &AtomicBool) -> Vec<Absence> {
    let mut seen = Vec::new();
    while !ended.load(Ordering::Relaxed) {
        let due_ns = clock::now_ns() + INTERVAL_NS;
        let due =
            Timespec { tv_sec: (due_ns / 1_000_000_000) as i64, tv_nsec: (due_ns % 1_000_000_000) as i64 };
        // A sleep that a signal ends early is not late.
        let _ = clock_nanosleep_absolute(ClockId::Monotonic, &due);
        let woke_ns = clock::now_ns();
        if woke_ns.saturating_sub(due_ns) >= LATE_NS && seen.len() < STANDSTILLS_MAX {
            seen.push((due_ns, woke_ns));
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_that_is_not_there_is_not_watched() {
        assert!(Sentinel::of(&[CpuSet::MAX_CPU - 1]).is_err());
    }
}
