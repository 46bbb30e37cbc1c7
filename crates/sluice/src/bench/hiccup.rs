//! What the machine itself did while something was measured: a thread on each processor that wants to wake up now and
//! then, and notes when it could not.

use super::cores::pin;
use super::histogram::Histogram;
use quanta::Clock;
use rustix::process::setpriority_process;
use rustix::thread::set_current_timer_slack;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::Duration;

/// How long it sleeps. A hiccup shorter than this may fall between two looks.
const PERIOD: Duration = Duration::from_micros(200);

/// Waking up so much too late is a hiccup, in nanoseconds.
const LATE_NS: u64 = 100_000;

/// Hiccups of a processor that are remembered; beyond, the machine is of no use for this.
const SPANS_MAX: usize = 1 << 20;

/// Threads that watch.
#[derive(Debug)]
pub(super) struct Watch {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Hiccups>>,
}

/// What they saw.
#[derive(Debug)]
pub(super) struct Hiccups {
    /// How much too late they woke up.
    pub(super) late: Histogram,
    /// From when to when there may have been one, in raw ticks of the clock.
    spans: Vec<(u64, u64)>,
}

impl Watch {
    /// On these processors; one that is none floats.
    pub(super) fn start(cores: [Option<usize>; 2], clock: &Clock) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let thread = |core: Option<usize>| {
            let (stop, clock) = (Arc::clone(&stop), clock.clone());
            let watch = move || {
                pin(core);
                // It is to run at once when it wakes up: others run for long. Without the right to that it is
                // late more often, and then its figures say so.
                let _ = setpriority_process(None, -20);
                let _ = set_current_timer_slack(NonZeroU64::new(1));
                watch(&stop, &clock)
            };
            std::thread::Builder::new().name("hiccups".to_owned()).spawn(watch)
        };
        let threads = cores.into_iter().map(thread).collect::<Result<_, _>>()?;
        Ok(Self { stop, threads })
    }

    pub(super) fn end(self) -> Hiccups {
        self.stop.store(true, Ordering::Relaxed);
        let seen = self.threads.into_iter().filter_map(|thread| thread.join().ok());
        let all = seen.reduce(|mut all, one| {
            all.late.merge(&one.late);
            all.spans.extend(one.spans);
            all
        });
        let mut all = all.unwrap_or(Hiccups { late: Histogram::default(), spans: Vec::new() });
        all.spans.sort_unstable();
        all
    }
}

fn watch(stop: &AtomicBool, clock: &Clock) -> Hiccups {
    let mut seen = Hiccups { late: Histogram::of_ticks(clock), spans: Vec::new() };
    let mut before = clock.raw();
    while !stop.load(Ordering::Relaxed) {
        sleep(PERIOD);
        let now = clock.raw();
        let late_ns = clock.delta_as_nanos(before, now).saturating_sub(PERIOD.as_nanos() as u64);
        let period = now - before;
        // In ticks, as the histogram counts: the part of the time that was too long.
        let late = period as f64 * late_ns as f64 / (late_ns as f64 + PERIOD.as_nanos() as f64);
        seen.late.record(late as u64, 1);
        if late_ns >= LATE_NS && seen.spans.len() < SPANS_MAX {
            seen.spans.push((before, now));
        }
        before = now;
    }
    seen
}

impl Hiccups {
    #[cfg(test)]
    fn of(mut spans: Vec<(u64, u64)>) -> Self {
        spans.sort_unstable();
        Self { late: Histogram::default(), spans }
    }

    /// Something that lasted from one time to another may owe it to one of them.
    pub(super) fn excuse(&self, (from, to): (u64, u64)) -> bool {
        // Each processor's follow each other, so that of those that began before its end the last few reach it.
        const CORES: usize = 2;
        let begun = self.spans.partition_point(|(start, _)| *start <= to);
        self.spans[begun.saturating_sub(CORES)..begun].iter().any(|(_, end)| *end >= from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_overlaps_a_hiccup_is_excused() {
        // Those of one processor, and a longer one of the other.
        let seen = Hiccups::of(vec![(100, 110), (200, 210), (105, 205), (400, 410)]);
        let excused = [(90, 100), (110, 120), (150, 160), (205, 399), (390, 400), (0, 1000)];
        assert!(excused.into_iter().all(|span| seen.excuse(span)));
        let not = [(0, 99), (211, 399), (411, 500)];
        assert!(!not.into_iter().any(|span| seen.excuse(span)));
        assert!(!Hiccups::of(Vec::new()).excuse((0, 1)));
    }
}
