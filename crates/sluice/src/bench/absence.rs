//! When a reactor was kept from its processor while something was measured: by other threads, or by the hypervisor.
//!
//! The reactors watch themselves, and the kernel's own account of their processor time says so. Another thread on their
//! processors would be one more that keeps them off, and see what happened to it, not to them.

use super::server::Server;
use crate::problem::Problem;
use quanta::Clock;

/// The two clocks at one moment.
#[derive(Clone, Copy, Debug)]
struct Moment {
    raw: u64,
    ns: u64,
}

impl Moment {
    fn now(clock: &Clock) -> Self {
        Self { raw: clock.raw(), ns: sluice_reactor::now_ns() }
    }
}

/// Reactors that are watched.
pub(super) struct Watch<'a> {
    servers: &'a [&'a Server],
    clock: &'a Clock,
    began: Moment,
}

/// What they were kept from.
#[derive(Debug)]
pub(super) struct Absences {
    /// From when to when there was one, in raw ticks of the clock; no two overlap.
    spans: Vec<(u64, u64)>,
    /// How many there were, of all reactors.
    pub(super) count: usize,
    pub(super) longest_ns: u64,
    /// All of them together.
    pub(super) total_ns: u64,
}

impl<'a> Watch<'a> {
    pub(super) fn start(servers: &'a [&'a Server], clock: &'a Clock) -> Result<Self, Problem> {
        for server in servers {
            server.take_absences()?;
        }
        Ok(Self { servers, clock, began: Moment::now(clock) })
    }

    pub(super) fn end(self) -> Result<Absences, Problem> {
        let ended = Moment::now(self.clock);
        let mut all = Vec::new();
        for server in self.servers {
            all.extend(server.take_absences()?);
        }
        let ticks = (ended.raw - self.began.raw) as f64 / (ended.ns - self.began.ns).max(1) as f64;
        let raw = |ns: u64| self.began.raw + (ns.saturating_sub(self.began.ns) as f64 * ticks) as u64;
        let lengths = || all.iter().map(|(from, to)| to - from);
        Ok(Absences {
            spans: disjoint(all.iter().map(|&(from, to)| (raw(from), raw(to))).collect()),
            count: all.len(),
            longest_ns: lengths().max().unwrap_or(0),
            total_ns: lengths().sum(),
        })
    }
}

/// The same times, in their order, those that overlap as one.
fn disjoint(mut spans: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    spans.sort_unstable();
    spans.dedup_by(|next, last| {
        let overlap = next.0 <= last.1;
        if overlap {
            last.1 = last.1.max(next.1);
        }
        overlap
    });
    spans
}

impl Absences {
    /// Something that lasted from one time to another may owe it to one of them.
    pub(super) fn excuse(&self, (from, to): (u64, u64)) -> bool {
        let begun = self.spans.partition_point(|(start, _)| *start <= to);
        begun > 0 && self.spans[begun - 1].1 >= from
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(spans: Vec<(u64, u64)>) -> Absences {
        Absences { spans: disjoint(spans), count: 0, longest_ns: 0, total_ns: 0 }
    }

    #[test]
    fn what_overlaps_an_absence_is_excused() {
        // Those of one reactor, and a longer one of the other.
        let seen = of(vec![(100, 110), (200, 210), (105, 205), (400, 410)]);
        let excused = [(90, 100), (110, 120), (150, 160), (205, 399), (390, 400), (0, 1000)];
        assert!(excused.into_iter().all(|span| seen.excuse(span)));
        let not = [(0, 99), (211, 399), (411, 500)];
        assert!(!not.into_iter().any(|span| seen.excuse(span)));
        assert!(!of(Vec::new()).excuse((0, 1)));
    }
}
