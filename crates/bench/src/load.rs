//! Loads that keep queue pairs busy and count completions.
//!
//! The host polls. Within a turn it takes one time stamp, when it sees the first completion: a stamp for each
//! command would cost as much as the command. A latency is right to within one turn of the host.

use super::client::{NEVER, Stream, trouble};
use super::histogram::Histogram;
use super::tally::Tally;
use quanta::Clock;
use sluice_host::Deadline;
use sluice_spec::error::ApiError;
use std::time::{Duration, Instant};

/// Turns between two checks for the end of the run, of all drives together.
const TURNS_PER_LOOK: usize = 256;

/// Time limit of the commands in flight at the end.
const DRAIN: Duration = Duration::from_secs(10);

/// The queue pairs of one drive.
pub type Streams = Vec<Stream>;

/// Statistics of a host: counts completions.
#[derive(Debug)]
pub struct Counter<'a> {
    clock: &'a Clock,
    latencies: Histogram,
    commands: u64,
    failed: u64,
}

/// Completions of commands that began at the same time.
struct Alike {
    begun: u64,
    count: u64,
}

impl<'a> Counter<'a> {
    pub fn new(clock: &'a Clock) -> Self {
        Self { clock, latencies: Histogram::of_ticks(clock), commands: 0, failed: 0 }
    }

    /// Takes the completions of a queue pair. Returns the time at which the first of them was seen, if there
    /// was one.
    #[inline]
    fn reap(&mut self, stream: &mut Stream) -> Option<u64> {
        let (now, last) = self.reap_but_last(stream)?;
        self.record(last, now);
        Some(now)
    }

    /// Takes the completions of a queue pair, and returns the last ones, which are still to be recorded.
    ///
    /// Commands that began in one turn come back one after the other, so most completions only make a count
    /// longer. The count is recorded when a command comes that began at another time.
    #[inline]
    fn reap_but_last(&mut self, stream: &mut Stream) -> Option<(u64, Alike)> {
        let (mut seen, mut alike) = (None, Alike { begun: NEVER, count: 0 });
        stream.reap(|completion, begun| {
            if begun != alike.begun {
                let now = *seen.get_or_insert_with(|| self.clock.raw());
                self.record(std::mem::replace(&mut alike, Alike { begun, count: 0 }), now);
            }
            alike.count += 1;
            self.failed += u64::from(!completion.status().is_success());
        });
        seen.map(|now| (now, alike))
    }

    #[inline]
    fn record(&mut self, alike: Alike, now: u64) {
        self.latencies.record(now.saturating_sub(alike.begun), alike.count);
        self.commands += alike.count;
    }

    /// Runs a turn of the host: takes completions, fills the queue up to its depth, and rings.
    #[inline]
    pub fn fill_up(&mut self, stream: &mut Stream) -> Result<(), ApiError> {
        let seen = self.reap_but_last(stream);
        if stream.room() == 0 {
            return Ok(());
        }
        let now = seen.as_ref().map_or_else(|| self.clock.raw(), |(now, _)| *now);
        while stream.submit(now) {}
        stream.queue.ring().map_err(|error| trouble(&error))?;
        // Recorded while the device works: at a queue depth of one, the device waits for nothing else.
        if let Some((now, last)) = seen {
            self.record(last, now);
        }
        Ok(())
    }

    fn tally(self, elapsed: Duration, shares: Vec<u64>) -> Tally {
        let Self { latencies, commands, failed, .. } = self;
        Tally { commands, failed, elapsed, latencies, shares, slow: Vec::new() }
    }
}

/// Keeps every queue at its depth.
pub fn flat_out(drives: &mut [Streams], clock: &Clock, time: Duration) -> Result<Tally, ApiError> {
    let mut counter = Counter::new(clock);
    let mut shares = vec![0; drives.len()];
    let turns = (TURNS_PER_LOOK / drives.len().max(1)).max(1);
    let start = Instant::now();
    let elapsed = loop {
        for _ in 0..turns {
            for (streams, share) in drives.iter_mut().zip(&mut shares) {
                let before = counter.commands;
                for stream in streams {
                    counter.fill_up(stream)?;
                }
                *share += counter.commands - before;
            }
        }
        let elapsed = start.elapsed();
        if elapsed >= time {
            break elapsed;
        }
    };
    let tally = counter.tally(elapsed, shares);
    drain(drives)?;
    Ok(tally)
}

/// Begins a command at a fixed interval, with the queue pairs in turn. Earlier commands do not delay it. A
/// command that finds its queue full waits, and its latency counts from the time at which it should have
/// begun.
pub fn at_a_rate(
    drives: &mut [Streams],
    clock: &Clock,
    time: Duration,
    per_second: u32,
) -> Result<Tally, ApiError> {
    let mut counter = Counter::new(clock);
    let mut streams: Vec<&mut Stream> = drives.iter_mut().flatten().collect();
    let period_ns = 1e9 / f64::from(per_second);
    let start = clock.raw();
    let (mut submitted, mut whose) = (0_u64, 0);
    loop {
        let now_ns = clock.delta_as_nanos(start, clock.raw());
        if now_ns >= time.as_nanos() as u64 {
            break;
        }
        let due_ns = (submitted as f64 * period_ns) as u64;
        if due_ns <= now_ns && streams[whose].room() > 0 {
            streams[whose].submit(start + ticks(clock, due_ns));
            submitted += 1;
            streams[whose].queue.ring().map_err(|error| trouble(&error))?;
            whose = (whose + 1) % streams.len();
        }
        for stream in &mut streams {
            if counter.reap(stream).is_some() {
                stream.queue.ring().map_err(|error| trouble(&error))?;
            }
        }
    }
    let tally = counter.tally(time, Vec::new());
    drop(streams);
    drain(drives)?;
    Ok(tally)
}

/// Converts nanoseconds into clock ticks.
fn ticks(clock: &Clock, ns: u64) -> u64 {
    const SAMPLE: u64 = 1 << 32;
    let sample_ns = clock.delta_as_nanos(0, SAMPLE).max(1);
    (u128::from(ns) * u128::from(SAMPLE) / u128::from(sample_ns)) as u64
}

/// Measures single commands, each after a time of silence.
pub fn after_silence(
    stream: &mut Stream,
    clock: &Clock,
    silence: Duration,
    times: u32,
) -> Result<Tally, ApiError> {
    let mut counter = Counter::new(clock);
    let start = Instant::now();
    for _ in 0..times {
        std::thread::sleep(silence);
        stream.submit(clock.raw());
        stream.queue.ring().map_err(|error| trouble(&error))?;
        let deadline = Deadline::after(DRAIN, "the first command after a silence");
        while counter.reap(stream).is_none() {
            deadline.check().map_err(|error| trouble(&error))?;
        }
        stream.queue.ring().map_err(|error| trouble(&error))?;
    }
    Ok(counter.tally(start.elapsed(), Vec::new()))
}

/// Sends `count` commands and waits for them.
pub fn send(streams: &mut Streams, clock: &Clock, count: u64) -> Result<(), ApiError> {
    let mut counter = Counter::new(clock);
    let mut left = count;
    while left > 0 {
        for stream in &mut *streams {
            counter.reap(stream);
            while left > 0 && stream.room() > 0 && stream.submit(0) {
                left -= 1;
            }
            stream.queue.ring().map_err(|error| trouble(&error))?;
        }
    }
    drain(std::slice::from_mut(streams))
}

/// Waits for the commands in flight.
fn drain(drives: &mut [Streams]) -> Result<(), ApiError> {
    let deadline = Deadline::after(DRAIN, "the last commands of a run");
    for stream in drives.iter_mut().flatten() {
        while !stream.is_idle() {
            stream.reap(|_, _| ());
            stream.queue.ring().map_err(|error| trouble(&error))?;
            deadline.check().map_err(|error| trouble(&error))?;
        }
        match stream.strays() {
            0 => {}
            strays => return Err(trouble(&format_args!("{strays} completions of commands not in flight"))),
        }
    }
    Ok(())
}
