//! Histograms of the time from the fetch of a command to its completion entry, and the choice of traced commands.
//!
//! The clock is read once for a batch of fetched commands, and once for a batch of completed commands, after
//! their entries are written. A command carries a stamp: the clock at its fetch, whether it is traced, and its opcode.
//! Commands of a batch mostly have the same stamp and are counted together.

use crate::state::slow::{SlowCommand, Slowest};
use crate::state::trace::{Sample, Tracer};
use quanta::Clock;
use sluice_command::Origin;
use sluice_nvme::opcode::io as opcode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Buckets of a power of two.
const SUB_BUCKETS: usize = 1 << SUB_BITS;
const SUB_BITS: u32 = 3;

/// Binary logarithm of the first bucket's lower bound in nanoseconds. Shorter times count there, too.
const FIRST_OCTAVE: u32 = 7;

/// Powers of two that have buckets. Times beyond 137 s count in the last bucket.
const OCTAVES: usize = 30;

/// Buckets of a histogram.
pub const LATENCY_BUCKETS: usize = OCTAVES * SUB_BUCKETS;

/// Bit of a stamp: the command is traced.
const TRACED: u64 = 1 << u8::BITS;

/// Bits of a stamp below the clock.
const LOW_BITS: u32 = u8::BITS + 1;

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
#[derive(Debug)]
struct Cells {
    sum_ns: AtomicU64,
    counts: [AtomicU64; LATENCY_BUCKETS],
}

impl Default for Cells {
    fn default() -> Self {
        Self { sum_ns: AtomicU64::new(0), counts: [const { AtomicU64::new(0) }; LATENCY_BUCKETS] }
    }
}

/// Histograms of the commands of one subsystem, which its reactor writes and any thread reads.
#[derive(Debug)]
pub struct LatencyCells {
    operations: [Cells; TimedOperation::ALL.len()],
    /// Time from which on a command is slow.
    slow_ns: u64,
    slow: AtomicU64,
    slowest: Slowest,
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
        let operations = TimedOperation::ALL.map(|_| Cells::default());
        Self { operations, slow_ns, slow: AtomicU64::new(0), slowest: Slowest::default() }
    }

    /// Returns the number of slow commands.
    pub fn slow(&self) -> u64 {
        self.slow.load(Relaxed)
    }

    /// Takes the slowest command since the last call, if there was a slow one. Only one thread may call this.
    pub fn take_slowest(&self) -> Option<SlowCommand> {
        self.slowest.take()
    }

    /// Returns the sums of these histograms by operation.
    pub fn sums<'a>(all: impl IntoIterator<Item = &'a Self>) -> Vec<OperationLatency> {
        let empty = |operation| OperationLatency { operation, sum_ns: 0, counts: vec![0; LATENCY_BUCKETS] };
        let mut sums: Vec<_> = TimedOperation::ALL.map(empty).into();
        for cells in all {
            for (sum, cells) in sums.iter_mut().zip(&cells.operations) {
                sum.sum_ns = sum.sum_ns.wrapping_add(cells.sum_ns.load(Relaxed));
                sum.counts.iter_mut().zip(&cells.counts).for_each(|(sum, count)| *sum += count.load(Relaxed));
            }
        }
        sums
    }

    fn add(&self, operation: TimedOperation, ns: u64, commands: u64) {
        if ns >= self.slow_ns {
            add(&self.slow, commands);
        }
        let cells = &self.operations[operation as usize];
        add(&cells.counts[bucket_of(ns)], commands);
        add(&cells.sum_ns, ns.wrapping_mul(commands));
    }
}

/// Adds to a cell with one writer: a load and a store, not a locked instruction.
fn add(cell: &AtomicU64, n: u64) {
    cell.store(cell.load(Relaxed).wrapping_add(n), Relaxed);
}

/// Measurement of the commands of a subsystem.
#[derive(Debug)]
pub(crate) struct Latency {
    clock: Clock,
    /// Histograms; none if commands are only traced.
    cells: Option<Arc<LatencyCells>>,
    tracer: Option<Tracer>,
}

/// Clock at which a batch of commands was completed, and the commands with the last stamp that are not counted yet.
#[derive(Debug)]
pub(crate) struct Completions {
    pub(crate) now: u64,
    stamp: u64,
    commands: u64,
}

impl Latency {
    pub(crate) fn new(clock: Clock, cells: Arc<LatencyCells>) -> Self {
        Self { clock, cells: Some(cells), tracer: None }
    }

    /// Creates a measurement without histograms, for a trace.
    pub(crate) fn of_trace(clock: Clock) -> Self {
        Self { clock, cells: None, tracer: None }
    }

    /// Begins or ends a trace. Returns false if nothing is left to measure.
    pub(crate) fn set_tracer(&mut self, tracer: Option<Tracer>) -> bool {
        self.tracer = tracer;
        self.tracer.is_some() || self.cells.is_some()
    }

    /// Returns the commands of a batch that are traced.
    #[inline]
    pub(crate) fn sample(&mut self, count: u32) -> Sample {
        self.tracer.as_mut().map_or(Sample::First(0), |tracer| tracer.sample(count))
    }

    pub(crate) fn tracer(&self) -> Option<&Tracer> {
        self.tracer.as_ref()
    }

    /// Returns the clock in place of an opcode's stamp. Commands with the stamp zero are not counted.
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        self.clock.raw() << LOW_BITS
    }

    /// Begins to count a batch of completed commands.
    #[inline]
    pub(crate) fn begin(&self) -> Completions {
        Completions { now: self.clock.raw(), stamp: 0, commands: 0 }
    }

    /// Counts the completed command with this stamp. `describe` returns the command if it is slow, without its time.
    /// Returns whether the command is traced.
    #[inline(always)]
    pub(crate) fn complete(
        &self,
        batch: &mut Completions,
        stamp: u64,
        describe: impl FnOnce() -> SlowCommand,
    ) -> bool {
        let is_traced = stamp != batch.stamp && self.begin_another(batch, stamp, describe);
        batch.commands += 1;
        is_traced
    }

    /// Counts the commands with the last stamp, and begins to count those with this one.
    #[inline(never)]
    fn begin_another(
        &self,
        batch: &mut Completions,
        stamp: u64,
        describe: impl FnOnce() -> SlowCommand,
    ) -> bool {
        self.end(batch);
        // The next traced command with this stamp must come here, too.
        *batch = Completions { now: batch.now, stamp: stamp & !TRACED, commands: 0 };
        let ns = self.ns(batch);
        if let Some(cells) = &self.cells
            && ns >= cells.slow_ns
            && stamp != 0
        {
            cells.slowest.note(SlowCommand { ns, ..describe() });
        }
        stamp & TRACED != 0
    }

    /// Returns the time from the fetch to the completion of the commands with the present stamp.
    fn ns(&self, batch: &Completions) -> u64 {
        // The clock has lost its upper bits.
        let ticks = (batch.now << LOW_BITS).wrapping_sub(batch.stamp >> LOW_BITS << LOW_BITS) >> LOW_BITS;
        self.clock.delta_as_nanos(0, ticks)
    }

    /// Counts the last commands of a batch.
    #[inline(never)]
    pub(crate) fn end(&self, batch: &Completions) {
        if batch.stamp != 0
            && let Some(cells) = &self.cells
        {
            cells.add(TimedOperation::of(batch.stamp as u8), self.ns(batch), batch.commands);
        }
    }

    /// Counts one command of a host, outside of a batch. Returns the time of its end if the command is traced.
    #[cold]
    pub(crate) fn complete_one(
        &self,
        origin: Origin,
        stamp: u64,
        describe: impl FnOnce() -> SlowCommand,
    ) -> Option<u64> {
        if origin.sq == 0 || origin.sq == Origin::INTERNAL_SQ {
            return None;
        }
        let mut batch = self.begin();
        let is_traced = self.complete(&mut batch, stamp, describe);
        self.end(&batch);
        is_traced.then_some(batch.now)
    }
}

/// Returns the stamp of a command that was fetched at this [time](Latency::now).
#[inline]
pub(crate) fn stamp(now: u64, opcode: u8) -> u64 {
    now | u64::from(opcode)
}

/// Returns the stamp of a traced command.
pub(crate) fn traced_stamp(now: u64, opcode: u8) -> u64 {
    stamp(now, opcode) | TRACED
}

#[cfg(test)]
mod tests {
    use super::*;
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

    #[test]
    fn commands_are_counted_by_operation_and_time() {
        let (clock, time) = Clock::mock();
        let cells = Arc::new(LatencyCells::default());
        let latency = Latency::new(clock, Arc::clone(&cells));
        time.increment(Duration::from_micros(5));
        let early = latency.now();
        time.increment(Duration::from_micros(10));
        let late = latency.now();
        time.increment(Duration::from_micros(20));
        let mut batch = latency.begin();
        let stamps =
            [(early, opcode::READ), (early, opcode::READ), (late, opcode::READ), (late, opcode::COMPARE)];
        for (at, opcode) in stamps {
            latency.complete(&mut batch, stamp(at, opcode), SlowCommand::default);
        }
        // An admin command.
        latency.complete(&mut batch, 0, SlowCommand::default);
        latency.end(&batch);
        let [read, write, flush, other] = &LatencyCells::sums([&*cells])[..] else {
            panic!("four operations")
        };
        assert_eq!((read.counts[bucket_of(30_000)], read.counts[bucket_of(20_000)]), (2, 1));
        assert_eq!((read.sum_ns, read.counts.iter().sum::<u64>()), (80_000, 3));
        assert_eq!((other.sum_ns, other.counts[bucket_of(20_000)]), (20_000, 1));
        assert_eq!(write.counts.iter().chain(&flush.counts).sum::<u64>(), 0);
        let twice = LatencyCells::sums([&*cells, &*cells]);
        assert_eq!((twice[0].sum_ns, twice[0].counts[bucket_of(20_000)]), (160_000, 2));
    }

    #[test]
    fn an_overflow_of_the_clock_is_no_long_time() {
        let (clock, time) = Clock::mock();
        let cells = Arc::new(LatencyCells::default());
        let latency = Latency::new(clock, Arc::clone(&cells));
        time.increment((1_u64 << 56) - 1000);
        let at = latency.now();
        time.increment(3000_u64);
        let mut batch = latency.begin();
        latency.complete(&mut batch, stamp(at, opcode::WRITE), SlowCommand::default);
        latency.end(&batch);
        assert_eq!(LatencyCells::sums([&*cells])[1].sum_ns, 3000);
    }
}
