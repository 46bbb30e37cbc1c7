//! Time of a reactor's turns, without the delays that the machine caused.

use crate::common::Daemon;
use rustix::thread::sched_getaffinity;
use serde::Deserialize;
use sluice_reactor::{Absence, Sentinel};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

/// Highest processor time of a turn, on a machine that does nothing else.
const TURN: Duration = Duration::from_millis(1);

/// Highest processor time of a turn where others share caches and cores: less than any wait for the network
/// here.
const SHARED_TURN: Duration = Duration::from_millis(10);

/// Highest time that a turn which waited by itself was off its processor. The limit is as much as other
/// threads may use meanwhile on a machine that is not fast, and less than any wait for the network here.
const NO_WAIT: Duration = Duration::from_millis(100);

/// A thread that repeats a step until it is stopped.
pub(crate) struct Going<T> {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<T>,
}

impl<T: Send + 'static> Going<T> {
    pub(crate) fn start(
        mut step: impl FnMut() -> bool + Send + 'static,
        end: impl FnOnce() -> T + Send + 'static,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let thread = spawn(move || {
            while !told.load(Relaxed) && step() {}
            end()
        });
        Self { stop, thread }
    }

    pub(crate) fn stop(self) -> T {
        self.stop.store(true, Relaxed);
        self.thread.join().expect("it ends")
    }
}

/// Measures the longest delay with which the machine woke a sleeping thread.
fn hiccups() -> Going<Duration> {
    const NAP: Duration = Duration::from_micros(500);
    let worst = Arc::new(Mutex::new(Duration::ZERO));
    let seen = Arc::clone(&worst);
    let step = move || {
        let began = Instant::now();
        sleep(NAP);
        let mut worst = seen.lock().expect("nobody panicked");
        *worst = began.elapsed().saturating_sub(NAP).max(*worst);
        true
    };
    Going::start(step, move || *worst.lock().expect("nobody panicked"))
}

/// Observation of the machine: how late its threads are woken, and when its processors stood still.
pub(crate) struct Machine {
    hiccups: Going<Duration>,
    /// Observer of the processors; none where it is not permitted.
    sentinel: Option<Sentinel>,
    processors: Vec<usize>,
}

/// Result of the observation.
pub(crate) struct Seen {
    hiccup: Duration,
    /// Times at which each processor stood still; none if they could not be observed.
    standstills: Option<Vec<(usize, Vec<Absence>)>>,
}

/// Counters of a reactor about its turns.
#[derive(Debug, Deserialize)]
pub(crate) struct Turns {
    longest_turn_ns: u64,
    watched: Watched,
}

#[derive(Debug, Deserialize)]
struct Watched {
    longest: Vec<Turn>,
    away_ns: u64,
    waits: u64,
    waited_ns: u64,
}

#[derive(Debug, Deserialize)]
#[allow(dead_code, reason = "it is shown")]
struct Turn {
    began_ns: u64,
    took_ns: u64,
    processor: usize,
    own_ns: u64,
    events_ns: u64,
    drives_ns: u64,
    mails_ns: u64,
    times_ns: u64,
    submit_ns: u64,
    faults: u64,
}

/// Returns the counters of the daemon's first reactor.
pub(crate) fn turns(daemon: &Daemon) -> Turns {
    let shown = daemon.ok(&["reactor", "list", "-o", "json"]);
    let mut shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
    serde_json::from_value(shown["reactors"][0].take()).expect("a reactor that is watched")
}

impl Machine {
    pub(crate) fn watch() -> Self {
        let set = sched_getaffinity(None).expect("the processors of this process");
        let processors: Vec<usize> =
            (0..rustix::thread::CpuSet::MAX_CPU).filter(|it| set.is_set(*it)).collect();
        let sentinel = Sentinel::of(&processors).ok();
        Self { hiccups: hiccups(), sentinel, processors }
    }

    pub(crate) fn end(self) -> Seen {
        let by_processor = |sentinel: Sentinel| self.processors.into_iter().zip(sentinel.end()).collect();
        Seen { hiccup: self.hiccups.stop(), standstills: self.sentinel.map(by_processor) }
    }
}

/// Returns the nanoseconds of a span that lie in other spans, which do not overlap.
fn within((from, to): Absence, spans: &[Absence]) -> u64 {
    spans.iter().map(|(start, end)| to.min(*end).saturating_sub(from.max(*start))).sum()
}

impl Seen {
    /// Returns how long the processor of a turn stood still in it.
    fn stood_still(&self, turn: &Turn) -> Duration {
        let all = self.standstills.iter().flatten();
        let of_processor = all.filter(|(processor, _)| *processor == turn.processor);
        let span = (turn.began_ns, turn.began_ns + turn.took_ns);
        Duration::from_nanos(of_processor.map(|(_, spans)| within(span, spans)).sum())
    }

    /// Returns the processor time of a turn, without the time that its processor stood still.
    fn own(&self, turn: &Turn) -> Duration {
        Duration::from_nanos(turn.own_ns).saturating_sub(self.stood_still(turn))
    }

    /// Checks that the reactor had no turn that waited for a peer, nor one that took long by itself.
    /// `strictly` is for a machine that does nothing else: threads that share a cache and a core are slower.
    pub(crate) fn no_turn_was_long(&self, turns: &Turns, neighbour: Duration, strictly: bool) {
        let Self { hiccup, standstills } = self;
        let Watched { longest, away_ns, waits, waited_ns } = &turns.watched;
        let count = standstills.as_ref().map(|all| all.iter().map(|(_, spans)| spans.len()).sum::<usize>());
        println!(
            "longest turn {} ns, away {away_ns} ns at most; {waits} waits, in turns that were away {waited_ns} ns at most; a \
             command next door {neighbour:?} at most; the machine: a thread was woken {hiccup:?} late at most, processors \
             stood still {count:?} times",
            turns.longest_turn_ns
        );
        for turn in longest.iter().filter(|turn| turn.own_ns >= TURN.as_nanos() as u64 / 2) {
            println!("  {:?} after {:?} standing still: {turn:?}", self.own(turn), self.stood_still(turn));
        }
        // Without an observer, time in which the processor stood still looks like the turn's own.
        let unseen = if standstills.is_none() { *hiccup } else { Duration::ZERO };
        let allowed = if strictly { TURN } else { SHARED_TURN } + unseen;
        let long = longest.iter().find(|turn| self.own(turn) >= allowed);
        assert!(long.is_none(), "a turn took {:?} by itself: {long:?}", long.map(|turn| self.own(turn)));
        assert!(Duration::from_nanos(*waited_ns) < NO_WAIT + *hiccup, "a turn waited: {:?}", turns.watched);
        assert!(neighbour < 4 * (NO_WAIT + *hiccup), "a command next door took {neighbour:?}");
    }
}

#[test]
fn what_a_machine_did_is_no_turns_own() {
    let turn = |processor, own_ns| Turn {
        began_ns: 10_000_000,
        took_ns: 20_000_000,
        processor,
        own_ns,
        events_ns: 0,
        drives_ns: 0,
        mails_ns: 0,
        times_ns: 0,
        submit_ns: 0,
        faults: 0,
    };
    let stood = vec![(8_000_000, 11_000_000), (15_000_000, 18_000_000), (29_000_000, 90_000_000)];
    let seen = Seen { hiccup: Duration::ZERO, standstills: Some(vec![(0, Vec::new()), (1, stood)]) };
    assert_eq!(seen.own(&turn(1, 7_000_000)), Duration::from_millis(2));
    assert_eq!(seen.own(&turn(0, 7_000_000)), Duration::from_millis(7), "it was on another processor");
    assert_eq!(seen.own(&turn(1, 4_000_000)), Duration::ZERO);
    let seen = Seen { hiccup: Duration::ZERO, standstills: None };
    assert_eq!(seen.own(&turn(1, 7_000_000)), Duration::from_millis(7), "nobody knows");
}
