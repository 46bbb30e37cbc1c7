//! Histograms of the time from the fetch of a command to its completion entry, and the counters of commands.
//!
//! Some commands are timed: see `sampling`. The clock is read again after the completion entries of their batch are
//! written. Counters of commands and bytes are exact.

use crate::state::counters::{CommandCounts, DetailCells, QueueCounts, without_namespace};
use crate::state::limits::NAMESPACES_MAX;
use crate::state::sampling::{Chosen, LOW_BITS, Look, Looks, TIMED_EVERY, unmarked, weight};
use crate::state::slow::{SlowCommand, Slowest};
use crate::state::trace::{Sample, Tracer};
use quanta::Clock;
use sluice_command::{LayerCounters, Operation, Slab, Slot};
use sluice_nvme::SubmissionEntry;
use sluice_nvme::opcode::io as opcode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use zerocopy::FromZeros;

/// Buckets of a power of two.
const SUB_BUCKETS: usize = 1 << SUB_BITS;
const SUB_BITS: u32 = 3;

/// Binary logarithm of the first bucket's lower bound in nanoseconds. Shorter times count there, too.
const FIRST_OCTAVE: u32 = 7;

/// Powers of two that have buckets. Times beyond 137 s count in the last bucket.
const OCTAVES: usize = 30;

/// Buckets of a histogram.
pub const LATENCY_BUCKETS: usize = OCTAVES * SUB_BUCKETS;

/// Returns the bucket of a time.
#[must_use]
#[inline]
pub fn bucket_of(ns: u64) -> usize {
    let ns = ns.max(1 << FIRST_OCTAVE);
    let octave = ns.ilog2();
    let sub = (ns >> (octave - SUB_BITS)) as usize & (SUB_BUCKETS - 1);
    ((octave - FIRST_OCTAVE) as usize * SUB_BUCKETS + sub).min(LATENCY_BUCKETS - 1)
}

/// Returns the nanoseconds at which the bucket after this one begins.
#[must_use]
pub fn bucket_upper_ns(bucket: usize) -> u64 {
    let next = bucket + 1;
    let octave = FIRST_OCTAVE + (next / SUB_BUCKETS) as u32;
    let sub = (next % SUB_BUCKETS) as u64;
    (SUB_BUCKETS as u64 + sub) << (octave - SUB_BITS)
}

/// Operation whose commands have a histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimedOperation {
    Read,
    Write,
    Flush,
    /// All other I/O commands.
    Other,
}

impl TimedOperation {
    pub const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Flush, Self::Other];

    fn of(opcode: u8) -> Self {
        match opcode {
            opcode::READ => Self::Read,
            opcode::WRITE => Self::Write,
            opcode::FLUSH => Self::Flush,
            _ => Self::Other,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Other => "other",
        }
    }
}

/// Histogram of an operation. One thread writes, any thread reads.
#[derive(Debug, FromZeros)]
pub(crate) struct Cells {
    sum_ns: AtomicU64,
    counts: [AtomicU64; LATENCY_BUCKETS],
}

impl Cells {
    #[inline]
    pub(crate) fn add(&self, ns: u64, commands: u64) {
        add(&self.counts[bucket_of(ns)], commands);
        add(&self.sum_ns, ns.wrapping_mul(commands));
    }

    fn add_to(&self, sum: &mut OperationLatency) {
        sum.sum_ns = sum.sum_ns.wrapping_add(self.sum_ns.load(Relaxed));
        sum.counts.iter_mut().zip(&self.counts).for_each(|(sum, count)| *sum += count.load(Relaxed));
    }
}

/// Histograms and counters of the commands of one subsystem, which its reactor writes and any thread reads.
#[derive(Debug)]
pub struct LatencyCells {
    /// Time from which on a command is slow.
    slow_ns: u64,
    slow: AtomicU64,
    slowest: Slowest,
    detail: DetailCells,
    layers: Option<Arc<LayerCounters>>,
}

impl Default for LatencyCells {
    fn default() -> Self {
        Self::new(u64::MAX)
    }
}

/// A snapshot of a histogram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationLatency {
    pub operation: TimedOperation,
    /// Sum of all times.
    pub sum_ns: u64,
    /// Commands by [bucket](bucket_of).
    pub counts: Vec<u64>,
}

impl LatencyCells {
    /// Creates histograms. Commands that take `slow_ns` or longer are noted.
    #[must_use]
    pub fn new(slow_ns: u64) -> Self {
        let (slow, slowest, detail) = (AtomicU64::new(0), Slowest::default(), DetailCells::new());
        Self { slow_ns, slow, slowest, detail, layers: None }
    }

    /// Returns the number of slow commands.
    pub fn slow(&self) -> u64 {
        self.slow.load(Relaxed)
    }

    /// Takes the slowest command since the last call, if there was a slow one. Only one thread may call this.
    pub fn take_slowest(&self) -> Option<SlowCommand> {
        self.slowest.take()
    }

    /// Returns the sums of these histograms by operation, over all namespaces.
    pub fn sums<'a>(all: impl IntoIterator<Item = &'a Self>) -> Vec<OperationLatency> {
        let mut sums = no_times();
        for histograms in all.into_iter().flat_map(|cells| cells.detail.all_histograms()) {
            sums.iter_mut().zip(histograms).for_each(|(sum, cells)| cells.add_to(sum));
        }
        sums
    }

    /// Returns the sums of these counters for each namespace that has had commands, by its NSID, with its histograms.
    pub fn namespaces<'a>(
        all: impl IntoIterator<Item = &'a Self> + Clone,
    ) -> Vec<(u32, CommandCounts, Vec<OperationLatency>)> {
        let mut counts = [CommandCounts::default(); NAMESPACES_MAX];
        all.clone().into_iter().for_each(|cells| cells.detail.add_namespaces(&mut counts));
        let times = |index| {
            let mut sums = no_times();
            for histograms in all.clone().into_iter().filter_map(|cells| cells.detail.histograms(index)) {
                sums.iter_mut().zip(histograms).for_each(|(sum, cells)| cells.add_to(sum));
            }
            sums
        };
        let used = counts.into_iter().enumerate().filter(|(_, counts)| counts.commands > 0);
        used.map(|(index, counts)| (index as u32 + 1, counts, times(index))).collect()
    }

    /// Counts the commands of each layer, too.
    #[must_use]
    pub fn with_layers(mut self) -> Self {
        self.layers = Some(Arc::new(LayerCounters::new(NAMESPACES_MAX)));
        self
    }

    /// Returns the counters of the layers, if these are counted.
    pub fn layers(&self) -> Option<&Arc<LayerCounters>> {
        self.layers.as_ref()
    }

    /// Returns the sums of these counters for each queue that has had commands.
    pub fn queues<'a>(all: impl IntoIterator<Item = &'a Self>) -> Vec<QueueCounts> {
        let mut sums = Vec::new();
        all.into_iter().for_each(|cells| cells.detail.add_queues(&mut sums));
        sums
    }
}

fn no_times() -> Vec<OperationLatency> {
    let empty = |operation| OperationLatency { operation, sum_ns: 0, counts: vec![0; LATENCY_BUCKETS] };
    TimedOperation::ALL.map(empty).into()
}

/// Adds to a cell with one writer: a load and a store, not a locked instruction.
fn add(cell: &AtomicU64, n: u64) {
    cell.store(cell.load(Relaxed).wrapping_add(n), Relaxed);
}

/// Measurement of the commands of a subsystem.
#[derive(Debug)]
pub(crate) struct Latency {
    clock: Clock,
    cells: Arc<LatencyCells>,
    /// Whether the cells have a reader. Without one commands are only traced.
    is_read: bool,
    tracer: Option<Tracer>,
    looks: Looks,
}

/// Commands of one queue, namespace and operation that succeeded and end together, and have the same stamp or none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    /// [Stream](sluice_command::Origin::stream) of all of them.
    stream: u32,
    pub(crate) operation: Operation,
    pub(crate) commands: u64,
    pub(crate) bytes: u64,
    /// Stamp, and slot of the first one; zero without a stamp.
    stamp: u64,
    number: usize,
}

impl Run {
    /// Begins a run of commands without a stamp.
    #[inline(always)]
    pub(crate) fn of(slot: &Slot) -> Self {
        let (operation, bytes) = (slot.request.operation, slot.request.length);
        Self { stream: slot.origin.stream(), operation, commands: 1, bytes, stamp: 0, number: 0 }
    }

    /// Begins a run of commands that may have a stamp.
    pub(crate) fn timed(slot: &Slot, number: usize) -> Self {
        let stamp = if slot.origin.timed { unmarked(slot.stamp) } else { 0 };
        Self { stamp, number, ..Self::of(slot) }
    }

    /// Returns whether a command without a stamp belongs to this run, which has none.
    #[inline(always)]
    pub(crate) fn has(&self, slot: &Slot) -> bool {
        !slot.origin.timed && slot.status.is_success() && self.is_like(slot)
    }

    /// Returns whether a command belongs to this run, which has a stamp. A traced one never does.
    #[inline]
    pub(crate) fn has_timed(&self, slot: &Slot) -> bool {
        slot.origin.timed && slot.stamp == self.stamp && slot.status.is_success() && self.is_like(slot)
    }

    #[inline(always)]
    fn is_like(&self, slot: &Slot) -> bool {
        slot.origin.stream() == self.stream && slot.request.operation == self.operation
    }

    /// Adds a command.
    #[inline(always)]
    pub(crate) fn add(&mut self, slot: &Slot) {
        self.commands += 1;
        // A host can deallocate 16 TiB in a microsecond, as often as it likes, so this may wrap.
        self.bytes = self.bytes.wrapping_add(slot.request.length);
    }

    fn histogram(&self) -> usize {
        TimedOperation::of(self.stamp as u8) as usize
    }
}

impl Latency {
    pub(crate) fn new(clock: Clock, cells: Arc<LatencyCells>) -> Self {
        Self::with(clock, cells, true)
    }

    /// Creates a measurement without histograms, for a trace.
    pub(crate) fn of_trace(clock: Clock) -> Self {
        Self::with(clock, Arc::default(), false)
    }

    fn with(clock: Clock, cells: Arc<LatencyCells>, is_read: bool) -> Self {
        let mut latency = Self { clock, cells, is_read, tracer: None, looks: Looks::default() };
        latency.set_period();
        latency
    }

    /// Begins or ends a trace. Returns false if nothing is left to measure.
    pub(crate) fn set_tracer(&mut self, tracer: Option<Tracer>) -> bool {
        self.tracer = tracer;
        self.set_period();
        self.tracer.is_some() || self.is_read
    }

    /// Sets how many commands lie between two looks. Slow commands are found among all.
    fn set_period(&mut self) {
        let every = if self.cells.slow_ns == u64::MAX { TIMED_EVERY } else { 1 };
        let timed = self.is_read.then_some(every);
        let traced = self.tracer.as_ref().map(Tracer::every);
        self.looks.set_period(timed.into_iter().chain(traced).min().unwrap_or(TIMED_EVERY));
    }

    /// Counts a batch of commands. Returns whether some of them are to be [chosen](Self::choose).
    #[inline(always)]
    pub(crate) fn is_due(&mut self, count: u32, now_ns: u64) -> bool {
        self.looks.is_due(count, now_ns)
    }

    /// Chooses commands of the batch of `count` that was counted last.
    pub(crate) fn choose(&mut self, count: u32, now_ns: u64) -> Chosen {
        let mut chosen = self.choose_timed(count, now_ns);
        // A command that is timed in any case, if there is one.
        let first = match chosen.look {
            Look { exact: 0, counted: Some((index, _)), .. } => index,
            _ => 0,
        };
        match self.tracer.as_mut().map(|tracer| tracer.sample(chosen.look.commands)) {
            None | Some(Sample::None | Sample::Over) => {}
            Some(Sample::One) => chosen.traced = (first, 1),
            Some(Sample::All) => chosen.traced = (0, count),
        }
        if !self.is_read {
            (chosen.look.exact, chosen.look.counted) = (0, None);
        }
        chosen
    }

    /// Chooses commands as [`choose`](Self::choose) does, and none for the trace.
    pub(crate) fn choose_timed(&mut self, count: u32, now_ns: u64) -> Chosen {
        let look = self.looks.look(count, now_ns);
        Chosen { look, at: self.clock.raw(), ..Chosen::default() }
    }

    /// Returns the looks, for [`recount`](Self::recount).
    pub(crate) fn looks(&self) -> Looks {
        self.looks.clone()
    }

    /// Goes back to looks of before a batch, of which only the first `taken` commands were taken.
    pub(crate) fn recount(&mut self, before: Looks, taken: u32, now_ns: u64) {
        self.looks = before;
        if taken > 0 && self.looks.is_due(taken, now_ns) {
            self.looks.look(taken, now_ns);
        }
    }

    /// Returns whether a trace has ended by itself.
    pub(crate) fn trace_is_over(&self) -> bool {
        self.tracer.as_ref().is_some_and(|tracer| !tracer.is_on())
    }

    pub(crate) fn cells(&self) -> &LatencyCells {
        &self.cells
    }

    pub(crate) fn tracer(&self) -> Option<&Tracer> {
        self.tracer.as_ref()
    }

    /// Returns the clock for the end of commands.
    #[inline]
    pub(crate) fn raw(&self) -> u64 {
        self.clock.raw()
    }

    /// Counts the commands of a run without a stamp, which succeeded.
    #[inline(always)]
    pub(crate) fn count(&self, run: &Run) {
        self.cells.detail.add(run.stream, run.operation, run.commands, run.bytes);
    }

    /// Counts the commands of a run, which succeeded and ended at `now`.
    pub(crate) fn add(&self, run: &Run, now: u64, slab: &Slab) {
        self.count(run);
        self.add_time(run, now, slab);
    }

    /// Counts a command that failed and ended at `now`; `known` if it named its namespace.
    #[cold]
    pub(crate) fn add_failed(&self, mut run: Run, known: bool, now: u64, slab: &Slab) {
        if !known {
            run.stream = without_namespace(run.stream);
        }
        self.cells.detail.add_failed(run.stream, run.commands);
        self.add_time(&run, now, slab);
    }

    fn add_time(&self, run: &Run, now: u64, slab: &Slab) {
        let cells = &self.cells;
        let weight = weight(run.stamp);
        // A command that is only traced has none, nor has one without a stamp.
        if weight == 0 {
            return;
        }
        let ns = self.ns(run.stamp, now);
        if let Some(histogram) = cells.detail.histogram(run.stream, run.histogram()) {
            histogram.add(ns, run.commands * weight);
        }
        if ns >= cells.slow_ns {
            note_slow(cells, slab.entry_of_number(run.number), run.stream as u16, run.commands, ns);
        }
    }

    /// Returns the time of a command with this stamp that ended at `now`.
    #[inline]
    fn ns(&self, stamp: u64, now: u64) -> u64 {
        // The clock has lost its upper bits.
        let ticks = (now << LOW_BITS).wrapping_sub(stamp >> LOW_BITS << LOW_BITS) >> LOW_BITS;
        self.clock.delta_as_nanos(0, ticks)
    }
}

#[cold]
#[inline(never)]
fn note_slow(cells: &LatencyCells, first: &SubmissionEntry, queue: u16, commands: u64, ns: u64) {
    add(&cells.slow, commands);
    cells.slowest.note(SlowCommand { ns, ..SlowCommand::of(queue, first.cid, first) });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::sampling::stamp;
    use crate::state::trace::{TraceChoice, TraceRing};
    use std::time::Duration;

    #[test]
    fn each_time_is_below_the_bound_of_its_bucket_and_not_below_the_one_before() {
        for shift in FIRST_OCTAVE..37 {
            for ns in [0, 1, 3, 7, 8, 100].map(|more| (1_u64 << shift) + (more << shift >> 7)) {
                let bucket = bucket_of(ns);
                assert!(ns < bucket_upper_ns(bucket), "{ns} in {bucket}");
                assert!(bucket == 0 || ns >= bucket_upper_ns(bucket - 1), "{ns} in {bucket}");
            }
        }
        assert_eq!([0, 127, 128, 143, 144].map(bucket_of), [0, 0, 0, 0, 1]);
        assert_eq!(bucket_of(u64::MAX), LATENCY_BUCKETS - 1);
        assert_eq!(bucket_upper_ns(LATENCY_BUCKETS - 1), 1 << 37);
    }

    #[test]
    fn a_bucket_is_at_most_an_eighth_wide() {
        for bucket in 1..LATENCY_BUCKETS {
            let (lower, upper) = (bucket_upper_ns(bucket - 1), bucket_upper_ns(bucket));
            assert!((upper - lower) * 8 <= lower, "{lower}..{upper}");
        }
    }

    /// Returns a run of so many commands, each of which counts for one.
    fn run(latency: &Latency, opcode: u8, commands: u64) -> Run {
        let stamp = stamp(latency.raw(), 1) | u64::from(opcode);
        Run { stream: 1, operation: Operation::Read, commands, bytes: 512 * commands, stamp, number: 0 }
    }

    #[test]
    fn commands_are_counted_by_operation_and_time() {
        let (clock, time) = Clock::mock();
        let cells = Arc::new(LatencyCells::default());
        let latency = Latency::new(clock, Arc::clone(&cells));
        let slab = Slab::new(sluice_command::Limits::new(16, 0)).expect("a slab");
        time.increment(Duration::from_micros(5));
        let early = run(&latency, opcode::READ, 2);
        time.increment(Duration::from_micros(10));
        let late = [opcode::READ, opcode::COMPARE].map(|opcode| run(&latency, opcode, 1));
        time.increment(Duration::from_micros(20));
        for run in [&early].into_iter().chain(&late) {
            latency.add(run, latency.raw(), &slab);
        }
        // Without a stamp: their time is not known.
        latency.count(&Run { stamp: 0, ..run(&latency, 0, 3) });
        latency.add(&Run { stamp: 0, ..run(&latency, 0, 1) }, latency.raw(), &slab);
        let [read, write, flush, other] = &LatencyCells::sums([&*cells])[..] else {
            panic!("four operations")
        };
        assert_eq!((read.counts[bucket_of(30_000)], read.counts[bucket_of(20_000)]), (2, 1));
        assert_eq!((read.sum_ns, read.counts.iter().sum::<u64>()), (80_000, 3));
        assert_eq!((other.sum_ns, other.counts[bucket_of(20_000)]), (20_000, 1));
        assert_eq!(write.counts.iter().chain(&flush.counts).sum::<u64>(), 0);
        let twice = LatencyCells::sums([&*cells, &*cells]);
        assert_eq!((twice[0].sum_ns, twice[0].counts[bucket_of(20_000)]), (160_000, 2));
        let counts = CommandCounts { commands: 8, errors: 0, bytes_read: 4096, bytes_written: 0 };
        let namespaces = LatencyCells::namespaces([&*cells]);
        assert_eq!((namespaces.len(), namespaces[0].0, namespaces[0].1), (1, 1, counts));
        assert_eq!(namespaces[0].2, LatencyCells::sums([&*cells]));
        assert_eq!(LatencyCells::queues([&*cells]), [QueueCounts { controller: 0, queue: 1, counts }]);
    }

    #[test]
    fn an_overflow_of_the_clock_is_no_long_time() {
        let (clock, time) = Clock::mock();
        let cells = Arc::new(LatencyCells::default());
        let latency = Latency::new(clock, Arc::clone(&cells));
        let slab = Slab::new(sluice_command::Limits::new(16, 0)).expect("a slab");
        time.increment((1_u64 << (u64::BITS - LOW_BITS)) - 1000);
        let begun = run(&latency, opcode::WRITE, 1);
        time.increment(3000_u64);
        latency.add(&begun, latency.raw(), &slab);
        assert_eq!(LatencyCells::sums([&*cells])[1].sum_ns, 3000);
    }

    #[test]
    fn a_timed_command_counts_for_others() {
        let (clock, time) = Clock::mock();
        let cells = Arc::new(LatencyCells::default());
        let mut latency = Latency::new(clock, Arc::clone(&cells));
        let slab = Slab::new(sluice_command::Limits::new(16, 0)).expect("a slab");
        // Two that count for themselves, and seven for 127 each.
        for _ in 0..128 {
            if latency.is_due(7, 0) {
                let chosen = latency.choose(7, 0);
                time.increment(1_000_u64);
                for stamp in (0..7).filter_map(|index| chosen.stamp(index, opcode::READ)) {
                    latency.add(&Run { stamp, ..run(&latency, 0, 1) }, latency.raw(), &slab);
                }
            }
        }
        let reads = &LatencyCells::sums([&*cells])[0];
        assert_eq!((reads.counts.iter().sum::<u64>(), reads.sum_ns), (2 + 7 * 127, 1000 * (2 + 7 * 127)));
    }

    #[test]
    fn a_trace_has_one_command_of_its_number() {
        for every in [1, 16, 128, 200, 512] {
            for is_measured in [true, false] {
                let (clock, time) = Clock::mock();
                time.increment(Duration::from_secs(1));
                let mut latency = match is_measured {
                    true => Latency::new(clock.clone(), Arc::default()),
                    false => Latency::of_trace(clock.clone()),
                };
                let ring = Arc::new(TraceRing::new(clock, TraceChoice { every, slow_ns: 0 }));
                latency.set_tracer(Some(Tracer::new(ring)));
                let mut traced = 0;
                for _ in 0..10_240 {
                    if latency.is_due(10, 0) {
                        let chosen = latency.choose(10, 0);
                        traced += (0..10).filter(|&index| chosen.traces(index)).count() as u32;
                    }
                }
                let expected = 102_400 / every;
                assert!(traced.abs_diff(expected) <= 1, "{traced} of {expected}, one of {every}");
            }
        }
    }

    #[test]
    fn commands_that_were_not_taken_are_not_counted() {
        let mut latency = Latency::new(Clock::mock().0, Arc::default());
        let (mut weights, mut timed) = (0, 0);
        for round in 0..4000 {
            let before = latency.looks();
            let chosen = if latency.is_due(8, 0) { latency.choose_timed(8, 0) } else { Chosen::default() };
            // Of a batch of eight only three commands are taken, or none.
            let taken = if round % 2 == 0 { 3 } else { 0 };
            let stamps: Vec<_> = (0..taken).filter_map(|index| chosen.stamp(index, 0)).collect();
            weights += stamps.iter().map(|stamp| weight(*stamp)).sum::<u64>();
            timed += stamps.len() as u32;
            latency.recount(before, taken, 0);
        }
        assert!((6000 - 126..=6000).contains(&weights), "{weights}");
        assert!(timed <= 2 + 6000 / TIMED_EVERY, "{timed} are timed");
    }

    #[test]
    fn all_commands_are_timed_where_slow_ones_are_noted() {
        let (clock, _) = Clock::mock();
        let mut latency = Latency::new(clock, Arc::new(LatencyCells::new(1)));
        for count in [1, 16, 3] {
            assert!(latency.is_due(count, 0));
            let chosen = latency.choose(count, 0);
            assert_eq!((chosen.end(), chosen.stamp(count - 1, opcode::READ).map(weight)), (count, Some(1)));
        }
    }
}
