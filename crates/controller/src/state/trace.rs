//! Commands that were traced, on their way from the reactor to the control side.
//!
//! The ring is shared by two threads: the reactor writes, and the control side takes. A full ring counts commands that
//! it has no place for. The trace ends by itself when the control side takes none for a while.

use quanta::Clock;
use sluice_command::{Origin, StageTimes};
use sluice_nvme::opcode::io as opcode;
use sluice_nvme::{Status, SubmissionEntry};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Commands that wait in a ring for the control side. They take 80 KiB.
pub const TRACE_ENTRIES: usize = 1024;

/// Time after which a trace ends whose commands are not taken, nanoseconds.
pub const TRACE_LEASE_NS: u64 = 5_000_000_000;

/// Time without a traced command after which the next one is traced, nanoseconds.
const QUIET_NS: u64 = 1_000_000;

const WORDS: usize = 10;

/// A traced command. Times are in nanoseconds since its fetch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TracedCommand {
    /// Time of its fetch since the begin of the trace, nanoseconds.
    pub fetched_ns: u64,
    /// Time of the classifier's verdict, if there is a classifier.
    pub classified_ns: Option<u64>,
    /// Time at which the command, or its first leg, entered the layers, unless it did not.
    pub sent_ns: Option<u64>,
    /// Time at which it was back from them.
    pub returned_ns: Option<u64>,
    /// Time at which its completion entry was written.
    pub completed_ns: u64,
    pub controller: u8,
    pub sq: u16,
    pub cid: u16,
    pub opcode: u8,
    pub nsid: u32,
    /// First block and number of blocks, of commands with blocks.
    pub slba: u64,
    pub blocks: u32,
    /// Path of its first leg.
    pub path: u8,
    pub status: Status,
}

/// Number of commands of which a trace has one, if its user names none. At 1,100 instructions for a traced command, it
/// costs each command about two.
pub const TRACE_EVERY: u32 = 512;

/// Choice of the commands of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceChoice {
    /// Number of commands of which the first is traced; after a millisecond without a traced one, the next.
    pub every: u32,
    /// Commands that take less time are left out, nanoseconds.
    pub slow_ns: u64,
}

/// Ring of the traced commands of a drive.
#[derive(Debug)]
pub struct TraceRing {
    choice: TraceChoice,
    entries: Box<[[AtomicU64; WORDS]]>,
    written: AtomicU64,
    taken: AtomicU64,
    dropped: AtomicU64,
    clock: Clock,
    /// Clock at the begin of the trace.
    began: u64,
    /// Nanoseconds since then at which the trace ends.
    ends_ns: AtomicU64,
}

impl TraceRing {
    /// Creates an empty ring. The trace begins now.
    #[must_use]
    pub fn new(clock: Clock, choice: TraceChoice) -> Self {
        let entries = (0..TRACE_ENTRIES).map(|_| [const { AtomicU64::new(0) }; WORDS]).collect();
        let (began, none) = (clock.raw(), || AtomicU64::new(0));
        let (written, taken, dropped) = (none(), none(), none());
        let ring = Self { choice, entries, written, taken, dropped, began, clock, ends_ns: none() };
        ring.renew();
        ring
    }

    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    pub fn choice(&self) -> TraceChoice {
        self.choice
    }

    /// Puts off the end of the trace.
    pub fn renew(&self) {
        self.ends_ns.store(self.elapsed_ns(self.clock.raw()) + TRACE_LEASE_NS, Relaxed);
    }

    /// Ends the trace with its next command.
    pub fn end(&self) {
        self.ends_ns.store(0, Relaxed);
    }

    /// Returns whether the trace is over.
    pub fn is_over(&self) -> bool {
        self.elapsed_ns(self.clock.raw()) >= self.ends_ns.load(Relaxed)
    }

    /// Returns the number of commands that found the ring full, or that were too many at a time.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }

    fn elapsed_ns(&self, at: u64) -> u64 {
        self.clock.delta_as_nanos(self.began, at)
    }

    fn drop_one(&self) {
        // One thread writes.
        self.dropped.store(self.dropped.load(Relaxed) + 1, Relaxed);
    }

    /// Adds a command. Only one thread may call this.
    fn push(&self, command: &TracedCommand) {
        let written = self.written.load(Relaxed);
        if written - self.taken.load(Acquire) >= TRACE_ENTRIES as u64 {
            return self.drop_one();
        }
        let entry = &self.entries[written as usize % TRACE_ENTRIES];
        entry.iter().zip(command.to_words()).for_each(|(word, value)| word.store(value, Relaxed));
        self.written.store(written + 1, Release);
    }

    /// Takes the oldest command. Only one thread at a time may call this.
    pub fn take(&self) -> Option<TracedCommand> {
        let taken = self.taken.load(Relaxed);
        if taken == self.written.load(Acquire) {
            return None;
        }
        let entry = &self.entries[taken as usize % TRACE_ENTRIES];
        let words = std::array::from_fn(|index| entry[index].load(Relaxed));
        self.taken.store(taken + 1, Release);
        Some(TracedCommand::of_words(words))
    }
}

/// Value of a word for a stage that a command did not pass.
const NONE: u64 = u64::MAX;

impl TracedCommand {
    /// Returns the name of the opcode; none for one that has no name here.
    pub fn operation(&self) -> Option<&'static str> {
        Some(match self.opcode {
            opcode::READ => "read",
            opcode::WRITE => "write",
            opcode::FLUSH => "flush",
            opcode::COMPARE => "compare",
            opcode::WRITE_ZEROES => "write-zeroes",
            opcode::VERIFY => "verify",
            opcode::DATASET_MANAGEMENT => "deallocate",
            opcode::COPY => "copy",
            _ => return None,
        })
    }

    /// Returns whether the entry of the command has a first block and a number of blocks.
    pub fn has_blocks(&self) -> bool {
        matches!(
            self.opcode,
            opcode::READ | opcode::WRITE | opcode::COMPARE | opcode::WRITE_ZEROES | opcode::VERIFY
        )
    }

    fn to_words(self) -> [u64; WORDS] {
        let at = |time: Option<u64>| time.unwrap_or(NONE);
        let Self { controller, sq, cid, opcode, nsid, blocks, path, status, .. } = self;
        [
            self.fetched_ns,
            at(self.classified_ns),
            at(self.sent_ns),
            at(self.returned_ns),
            self.completed_ns,
            self.slba,
            u64::from(sq) << 48 | u64::from(cid) << 32 | u64::from(blocks),
            u64::from(nsid),
            u64::from(status.0),
            u64::from(path) << 16 | u64::from(controller) << 8 | u64::from(opcode),
        ]
    }

    fn of_words(words: [u64; WORDS]) -> Self {
        let [fetched_ns, classified, sent, returned, completed_ns, slba, numbers, nsid, status, last] = words;
        let time = |word: u64| (word != NONE).then_some(word);
        Self {
            fetched_ns,
            classified_ns: time(classified),
            sent_ns: time(sent),
            returned_ns: time(returned),
            completed_ns,
            controller: (last >> 8) as u8,
            sq: (numbers >> 48) as u16,
            cid: (numbers >> 32) as u16,
            opcode: last as u8,
            nsid: nsid as u32,
            slba,
            blocks: numbers as u32,
            path: (last >> 16) as u8,
            status: Status(status as u16),
        }
    }
}

/// The reactor's end of a trace: chooses the commands.
#[derive(Debug)]
pub(crate) struct Tracer {
    ring: Arc<TraceRing>,
    /// Commands until the next traced one.
    left: i64,
    /// Clock at the last traced command.
    last: u64,
}

/// Commands of a batch that are traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sample {
    None,
    One,
    All,
    /// The trace is over.
    Over,
}

impl Tracer {
    pub(crate) fn new(ring: Arc<TraceRing>) -> Self {
        Self { ring, left: 0, last: 0 }
    }

    /// Returns the number of commands of which one is traced.
    pub(crate) fn every(&self) -> u32 {
        self.ring.choice.every
    }

    /// Returns which commands of a batch are traced. `count` is the number of commands since the last call.
    pub(crate) fn sample(&mut self, count: u32) -> Sample {
        let now = self.ring.clock.raw();
        let is_quiet = self.ring.clock.delta_as_nanos(self.last, now) >= QUIET_NS;
        self.left -= i64::from(count);
        if self.left > 0 && !is_quiet {
            return Sample::None;
        }
        if self.ring.is_over() {
            return Sample::Over;
        }
        let every = i64::from(self.every().max(1));
        // Commands after the due one count for the next interval, but not those before a pause.
        self.left = if is_quiet { every } else { (self.left + every).max(1) };
        self.last = now;
        if every == 1 { Sample::All } else { Sample::One }
    }

    /// Returns whether the trace goes on.
    pub(crate) fn is_on(&self) -> bool {
        !self.ring.is_over()
    }

    /// Counts a command that was chosen, and cannot be traced.
    #[cold]
    pub(crate) fn miss(&self) {
        self.ring.drop_one();
    }

    /// Passes a traced command on whose completion entry was written at `now`.
    #[cold]
    pub(crate) fn complete(
        &self,
        times: &StageTimes,
        now: u64,
        origin: &Origin,
        entry: &SubmissionEntry,
        status: Status,
    ) {
        let StageTimes { fetched, classified, sent, returned, path } = *times;
        let since = |at: u64| self.ring.clock.delta_as_nanos(fetched, at);
        let stage = |at: u64| (at != 0).then(|| since(at));
        let completed_ns = since(now);
        if completed_ns < self.ring.choice.slow_ns {
            return;
        }
        self.ring.push(&TracedCommand {
            fetched_ns: self.ring.elapsed_ns(fetched),
            classified_ns: stage(classified),
            sent_ns: stage(sent),
            returned_ns: stage(returned),
            completed_ns,
            controller: origin.controller,
            sq: origin.sq,
            cid: origin.cid,
            opcode: entry.opcode,
            nsid: entry.nsid,
            slba: entry.slba(),
            blocks: (entry.cdw12 & 0xffff) + 1,
            path,
            status,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const CHOICE: TraceChoice = TraceChoice { every: 32, slow_ns: 0 };

    fn command(number: u64) -> TracedCommand {
        TracedCommand {
            fetched_ns: number,
            classified_ns: number.is_multiple_of(2).then_some(7),
            sent_ns: Some(8),
            returned_ns: None,
            completed_ns: u64::MAX - 1,
            controller: 31,
            sq: 128,
            cid: 65_535,
            opcode: 0x7f,
            nsid: u32::MAX,
            slba: u64::MAX,
            blocks: 65_536,
            path: 7,
            status: Status::LBA_OUT_OF_RANGE,
        }
    }

    #[test]
    fn a_full_ring_counts_further_commands() {
        let ring = TraceRing::new(Clock::mock().0, CHOICE);
        let entries = TRACE_ENTRIES as u64;
        for round in 0..3 {
            (0..entries + 5).for_each(|number| ring.push(&command(number)));
            assert_eq!(ring.dropped(), (round + 1) * 5);
            let taken: Vec<_> = std::iter::from_fn(|| ring.take()).collect();
            assert_eq!(taken, (0..entries).map(command).collect::<Vec<_>>());
        }
    }

    #[test]
    fn commands_are_taken_while_others_are_added() {
        let ring = TraceRing::new(Clock::mock().0, CHOICE);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| (0..100_000).for_each(|number| ring.push(&command(number))));
            let (mut count, mut least) = (0, 0);
            loop {
                let is_last = writer.is_finished();
                while let Some(found) = ring.take() {
                    assert!(found == command(found.fetched_ns) && found.fetched_ns >= least, "{found:?}");
                    (count, least) = (count + 1, found.fetched_ns + 1);
                }
                if is_last {
                    break;
                }
            }
            assert_eq!(count + ring.dropped(), 100_000);
        });
    }

    #[test]
    fn one_of_so_many_is_chosen_and_one_after_a_pause() {
        let (clock, time) = Clock::mock();
        time.increment(Duration::from_secs(1));
        let ring = Arc::new(TraceRing::new(clock, CHOICE));
        let mut tracer = Tracer::new(Arc::clone(&ring));
        let samples: Vec<_> = (0..9).map(|_| tracer.sample(8)).collect();
        let chosen = |first| if first { Sample::One } else { Sample::None };
        let expected = [true, false, false, false, true, false, false, false, true].map(chosen);
        assert_eq!(samples, expected);
        time.increment(Duration::from_millis(1));
        assert_eq!((tracer.sample(1), tracer.sample(1)), (Sample::One, Sample::None));
        let all = Arc::new(TraceRing::new(ring.clock().clone(), TraceChoice { every: 1, ..CHOICE }));
        assert_eq!(Tracer::new(all).sample(16), Sample::All);
    }

    #[test]
    fn a_trace_ends_when_no_one_takes_its_commands() {
        let (clock, time) = Clock::mock();
        let ring = Arc::new(TraceRing::new(clock, CHOICE));
        let mut tracer = Tracer::new(Arc::clone(&ring));
        time.increment(TRACE_LEASE_NS - 1);
        assert_eq!(tracer.sample(1), Sample::One);
        ring.renew();
        time.increment(TRACE_LEASE_NS - 1);
        assert_eq!(tracer.sample(1), Sample::One);
        time.increment(QUIET_NS);
        assert!(ring.is_over());
        assert_eq!(tracer.sample(1), Sample::Over);
    }
}
