//! Times at which a reactor was kept from its processor during a measurement, by other threads or by the
//! hypervisor.
//!
//! The reactors watch themselves. The kernel's account of their processor time shows when other threads had
//! the processor, or a hypervisor that reports its share. A hypervisor without such reports is detected by
//! threads of the highest priority ([`Sentinel`]), if the process may have such threads.

use super::cores::Cores;
use super::server::Server;
use quanta::Clock;
use sluice_reactor::Sentinel;
use sluice_spec::error::ApiError;

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
    sentinel: Option<Sentinel>,
    clock: &'a Clock,
    began: Moment,
}

/// Absences of the watched reactors, and standstills of processors.
#[derive(Debug)]
pub(super) struct Absences {
    /// Begin and end of each, in raw ticks of the clock; no two overlap.
    spans: Vec<(u64, u64)>,
    /// Number of absences of all reactors.
    pub(super) count: usize,
    pub(super) longest_ns: u64,
    /// Sum of all absences.
    pub(super) total_ns: u64,
    /// Number of standstills of processors, and the longest; `None` if they could not be detected.
    pub(super) standstills: Option<(usize, u64)>,
}

impl<'a> Watch<'a> {
    /// Begins to watch the reactors of these servers, and the processors.
    pub(super) fn start(
        servers: &'a [&'a Server],
        cores: &Cores,
        clock: &'a Clock,
    ) -> Result<Self, ApiError> {
        for server in servers {
            server.take_absences()?;
        }
        let processors: Vec<usize> = cores.reactor.into_iter().chain(cores.host).collect();
        // The process may lack the permission for a sentinel. The table shows that.
        let sentinel = Sentinel::of(&processors).ok().filter(|_| !processors.is_empty());
        Ok(Self { servers, sentinel, clock, began: Moment::now(clock) })
    }

    pub(super) fn end(self) -> Result<Absences, ApiError> {
        let ended = Moment::now(self.clock);
        let mut all = Vec::new();
        for server in self.servers {
            all.extend(server.take_absences()?);
        }
        let ticks = (ended.raw - self.began.raw) as f64 / (ended.ns - self.began.ns).max(1) as f64;
        let raw = |ns: u64| self.began.raw + (ns.saturating_sub(self.began.ns) as f64 * ticks) as u64;
        let longest = |spans: &[(u64, u64)]| spans.iter().map(|(from, to)| to - from).max().unwrap_or(0);
        let stood = self.sentinel.map(|sentinel| sentinel.end().concat());
        let spans =
            all.iter().chain(stood.iter().flatten()).map(|&(from, to)| (raw(from), raw(to))).collect();
        Ok(Absences {
            spans: disjoint(spans),
            count: all.len(),
            longest_ns: longest(&all),
            total_ns: all.iter().map(|(from, to)| to - from).sum(),
            standstills: stood.map(|stood| (stood.len(), longest(&stood))),
        })
    }
}

/// Sorts times, and merges overlapping ones.
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
    /// Returns whether a span of time overlaps an absence, which may be its cause.
    pub(super) fn excuse(&self, (from, to): (u64, u64)) -> bool {
        let begun = self.spans.partition_point(|(start, _)| *start <= to);
        begun > 0 && self.spans[begun - 1].1 >= from
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(spans: Vec<(u64, u64)>) -> Absences {
        Absences { spans: disjoint(spans), count: 0, longest_ns: 0, total_ns: 0, standstills: None }
    }

    #[test]
    fn what_overlaps_an_absence_is_excused() {
        // Absences of one reactor, and a longer one of the other.
        let seen = of(vec![(100, 110), (200, 210), (105, 205), (400, 410)]);
        let excused = [(90, 100), (110, 120), (150, 160), (205, 399), (390, 400), (0, 1000)];
        assert!(excused.into_iter().all(|span| seen.excuse(span)));
        let not = [(0, 99), (211, 399), (411, 500)];
        assert!(!not.into_iter().any(|span| seen.excuse(span)));
        assert!(!of(Vec::new()).excuse((0, 1)));
    }
}
