//! Waiting until the processors have the required distance.

use super::line::LineRange;
use std::thread::sleep;
use std::time::Duration;

/// Interval between two probes, the probe included. Between them nothing runs, which gives the hypervisor an
/// occasion to place the processors anew.
const LOOK: Duration = Duration::from_millis(50);

/// Probes between two messages to the user.
const LOOKS_PER_WORD: u32 = 100;

/// Waiting of one cell, with one time limit for all its runs together.
#[derive(Debug)]
pub struct Wait {
    range: Option<LineRange>,
    looks_left: u32,
    pause: Duration,
    /// Runs that went without their placement.
    absent: usize,
    /// Shortest and longest round trip outside of the range, in nanoseconds.
    unwanted: Option<(f64, f64)>,
}

/// Error that the placement never came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absent;

impl Wait {
    pub fn new(range: Option<LineRange>, limit: Duration) -> Self {
        let looks = limit.as_millis() / LOOK.as_millis();
        let looks_left = u32::try_from(looks).unwrap_or(u32::MAX);
        Self { range, looks_left, pause: LOOK, absent: 0, unwanted: None }
    }

    /// Calls `probe` until it finds a round trip in the range, or the time is up; at least once. Returns the
    /// round trip.
    pub fn place(&mut self, mut probe: impl FnMut() -> Option<f64>) -> Result<Option<f64>, Absent> {
        let mut looks = 0;
        loop {
            let found = probe();
            let (Some(range), Some(ns)) = (self.range, found) else { return Ok(found) };
            if range.contains(ns) {
                return Ok(found);
            }
            self.note(ns);
            if self.looks_left == 0 {
                self.absent += 1;
                return Err(Absent);
            }
            if looks % LOOKS_PER_WORD == 0 {
                eprintln!("    waiting for a cache line's round trip of {range}; it is {ns:.0} ns");
            }
            looks += 1;
            self.looks_left -= 1;
            sleep(self.pause);
        }
    }

    fn note(&mut self, ns: f64) {
        let (least, most) = self.unwanted.unwrap_or((ns, ns));
        self.unwanted = Some((least.min(ns), most.max(ns)));
    }

    /// Returns the number of runs that went without their placement.
    pub fn absent(&self) -> usize {
        self.absent
    }

    /// Returns the reason why a cell has no run, if waiting was in vain.
    pub fn in_vain(&self) -> Option<String> {
        let (range, (least, most)) = (self.range?, self.unwanted?);
        Some(format!("a cache line's round trip was never {range}; it was {least:.0} to {most:.0} ns"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the result of `place` with these probes one after the other, and the number of probes.
    fn place(wait: &mut Wait, found: &[f64]) -> (Result<Option<f64>, Absent>, usize) {
        let mut probes = found.iter().copied();
        let placed = wait.place(|| Some(probes.next().expect("it stops in time")));
        (placed, found.len() - probes.len())
    }

    fn wait(range: Option<&str>, looks_left: u32) -> Wait {
        let range = range.map(|range| range.parse().expect("a range"));
        Wait { looks_left, pause: Duration::ZERO, ..Wait::new(range, Duration::ZERO) }
    }

    #[test]
    fn who_wants_nothing_takes_what_comes() {
        assert_eq!(place(&mut wait(None, 0), &[110.0, 400.0]), (Ok(Some(110.0)), 1));
        assert_eq!(wait(Some("300..500"), 9).place(|| None), Ok(None));
    }

    #[test]
    fn it_waits_until_the_processors_are_there() {
        let mut wait = wait(Some("300..500"), 2);
        assert_eq!(place(&mut wait, &[110.0, 900.0, 400.0, 110.0]), (Ok(Some(400.0)), 3));
        assert_eq!(wait.absent(), 0);
    }

    #[test]
    fn the_time_is_that_of_all_runs_together() {
        let mut wait = wait(Some("300..500"), 2);
        assert_eq!(place(&mut wait, &[110.0, 105.5, 120.0]), (Err(Absent), 3));
        assert_eq!(place(&mut wait, &[110.0, 400.0]), (Err(Absent), 1));
        assert_eq!(place(&mut wait, &[400.0]), (Ok(Some(400.0)), 1));
        assert_eq!(wait.absent(), 2);
        let words = "a cache line's round trip was never 300..500 ns; it was 106 to 120 ns";
        assert_eq!(wait.in_vain().as_deref(), Some(words));
    }

    #[test]
    fn a_second_is_twenty_looks() {
        assert_eq!(Wait::new(None, Duration::from_secs(1)).looks_left, 20);
    }
}
