//! Distance of the two processors: the round trip of one cache line between them.
//!
//! A virtual machine's processors are where its host puts them: two threads of one core, two cores of one
//! cache, two cores farther apart. The host moves processors within seconds, without notice. The round trip
//! shows the move, because the three places differ by a factor of eight.

use super::cores::{self, Cores};
use super::tally::median;
use serde::Serialize;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread;
use std::time::{Duration, Instant};

/// Duration of a probe.
const PROBE: Duration = Duration::from_millis(3);

/// Round trips in a sample: so many that reading the clock does not matter. A sample in which a thread was
/// kept from its processor is much too long, which does not change the median.
const TRIPS: u64 = 64;

/// Value that ends the answering thread.
const OVER: u64 = u64::MAX;

/// Cache line that travels. Some processors fetch two lines at a time, so it has two for itself.
#[derive(Default)]
#[repr(align(128))]
struct Line(AtomicU64);

/// Returns the nanoseconds that a line takes from the host's processor to the reactor's and back, in the
/// median. Returns `None` if there is one processor for both.
pub fn round_trip_ns(cores: &Cores) -> Option<f64> {
    cores.reactor?;
    let line = Line::default();
    thread::scope(|scope| {
        scope.spawn(|| {
            cores::pin(cores.reactor);
            answer(&line);
        });
        let samples = ask(&line, PROBE);
        line.0.store(OVER, Release);
        median(samples)
    })
}

/// Answers every odd number with the next even one.
fn answer(line: &Line) {
    loop {
        match line.0.load(Acquire) {
            OVER => return,
            number if number % 2 == 1 => line.0.store(number + 1, Release),
            _ => {}
        }
    }
}

/// Returns the nanoseconds of a round trip, sample by sample. The first round trip waits for the other thread
/// to start, and does not count.
fn ask(line: &Line, time: Duration) -> Vec<f64> {
    let mut samples = Vec::new();
    send(line, 1);
    let (start, mut number) = (Instant::now(), 3);
    while samples.is_empty() || start.elapsed() < time {
        let sample = Instant::now();
        for _ in 0..TRIPS {
            send(line, number);
            number += 2;
        }
        samples.push(sample.elapsed().as_nanos() as f64 / TRIPS as f64);
    }
    samples
}

#[inline]
fn send(line: &Line, number: u64) {
    line.0.store(number, Release);
    while line.0.load(Acquire) == number {}
}

/// Range of acceptable round trips, in nanoseconds: `300..500`, `300..` or `..150`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LineRange {
    min_ns: f64,
    max_ns: f64,
}

impl LineRange {
    pub fn contains(&self, ns: f64) -> bool {
        (self.min_ns..=self.max_ns).contains(&ns)
    }
}

impl FromStr for LineRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not a range of nanoseconds: use MIN..MAX, MIN.. or ..MAX");
        let (min, max) = text.split_once("..").filter(|ends| *ends != ("", "")).ok_or_else(wrong)?;
        let end =
            |text: &str, open| if text.is_empty() { Ok(open) } else { text.parse::<u32>().map(f64::from) };
        let min_ns = end(min, 0.0).map_err(|_| wrong())?;
        let max_ns = end(max, f64::INFINITY).map_err(|_| wrong())?;
        (min_ns < max_ns).then_some(Self { min_ns, max_ns }).ok_or_else(wrong)
    }
}

impl fmt::Display for LineRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.max_ns.is_finite() {
            true => write!(f, "{}..{} ns", self.min_ns, self.max_ns),
            false => write!(f, "{}.. ns", self.min_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_question_is_answered_until_it_is_over() {
        let line = Line::default();
        let samples = thread::scope(|scope| {
            scope.spawn(|| answer(&line));
            let samples = ask(&line, Duration::ZERO);
            line.0.store(OVER, Release);
            samples
        });
        assert_eq!(samples.len(), 1);
        assert!(samples[0] > 0.0);
    }

    #[test]
    fn one_processor_has_no_distance() {
        assert_eq!(round_trip_ns(&Cores { reactor: None, host: None }), None);
    }

    #[test]
    fn ranges_are_read_with_and_without_ends() {
        let range = |text: &str| text.parse::<LineRange>();
        let cores = range("300..500").expect("a range");
        assert!(cores.contains(300.0) && cores.contains(500.0));
        assert!(!cores.contains(299.9) && !cores.contains(500.1));
        assert!(range("..150").is_ok_and(|range| range.contains(0.5) && !range.contains(151.0)));
        assert!(range("300..").is_ok_and(|range| range.contains(1e9) && !range.contains(299.0)));
        assert_eq!(cores.to_string(), "300..500 ns");
        for text in ["", "..", "300", "500..300", "300..300", "a..b", "-1..5", "1..2..3"] {
            assert!(range(text).is_err(), "{text}");
        }
    }
}
