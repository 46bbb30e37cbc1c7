//! Measurement of where turns spend their time, if [configured](crate::ReactorConfig::watch).
//!
//! By the clock a turn also includes the time that another thread has the processor. The turn's *own* time is
//! the time that the kernel charged to this thread: its instructions, its faults, the kernel's work for it,
//! and interrupts. The own time excludes that of other threads, and of a hypervisor where the hypervisor
//! reports it. The difference is the time away. A thread is also away while it waits of its own will: that is
//! counted, since no turn may.
//!
//! The kernel's account is read after a turn that took [`LONG_NS`] by the clock. Otherwise it is read so
//! often that the amount since the last reading belongs to one turn, up to that error. So own times may be
//! too long by it, never too short.

#![allow(unsafe_code, reason = "getrusage of one thread is not in rustix")]

use std::fs::File;
use std::os::unix::fs::FileExt;

use rustix::thread::sched_getcpu;

use crate::clock;
use crate::counters::Cell;

/// Length of a turn that is examined, ns; also the greatest age of the kernel's account.
const LONG_NS: u64 = 50_000;

/// Length of an absence that is recorded, ns.
const ABSENT_NS: u64 = 50_000;

/// Number of turns that are recorded: those with the most processor time.
const TURNS: usize = 8;

/// Absences that are kept until they are taken.
const ABSENCES_MAX: usize = 1 << 16;

/// Parts of a turn, in the order of [`Reactor::turn`](crate::reactor::Reactor).
#[derive(Debug, Clone, Copy)]
pub(crate) enum Part {
    Events,
    Tasks,
    Mails,
    Times,
    Submit,
}

/// A turn. Up to sixteen turns without work count as one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Turn {
    /// Begin, by the clock of [`now_ns`](crate::now_ns), and duration by that clock.
    pub began_ns: u64,
    pub took_ns: u64,
    /// Processor on which the turn ended.
    pub processor: u64,
    /// Processor time of the turn, ns.
    pub own_ns: u64,
    /// Time by the clock, ns, for delivering completions of io_uring and freeing tasks that left.
    pub events_ns: u64,
    /// Time for the turns of tasks, ns.
    pub tasks_ns: u64,
    pub mails_ns: u64,
    /// Time for tasks whose deadline had come, ns.
    pub times_ns: u64,
    /// Time for submitting to io_uring, ns.
    pub submit_ns: u64,
    /// Page faults during the turn.
    pub faults: u64,
}

/// Measurements of a reactor's turns since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Watched {
    /// Turns with the most processor time, longest first; zeroes for unused entries.
    pub longest: [Turn; TURNS],
    /// The longest time that a turn was kept from its processor, or from beginning when the reactor was
    /// woken, ns.
    pub away_ns: u64,
    /// Number of times that a turn waited of its own will.
    pub waits: u64,
    /// The longest absence of a turn that waited of its own will, ns.
    pub waited_ns: u64,
}

/// Begin and end, ns, of a turn that was kept from its processor.
pub type Absence = (u64, u64);

/// Storage of a [`Turn`] while the reactor runs.
#[derive(Debug, Default)]
struct TurnCells {
    began_ns: Cell,
    took_ns: Cell,
    processor: Cell,
    own_ns: Cell,
    parts_ns: [Cell; 5],
    faults: Cell,
}

impl TurnCells {
    fn set(&self, turn: &Turn) {
        let Turn { events_ns, tasks_ns, mails_ns, times_ns, submit_ns, .. } = *turn;
        let parts_ns = [events_ns, tasks_ns, mails_ns, times_ns, submit_ns];
        self.parts_ns.iter().zip(parts_ns).for_each(|(cell, ns)| cell.set(ns));
        self.began_ns.set(turn.began_ns);
        self.took_ns.set(turn.took_ns);
        self.processor.set(turn.processor);
        self.own_ns.set(turn.own_ns);
        self.faults.set(turn.faults);
    }

    fn snapshot(&self) -> Turn {
        let [events_ns, tasks_ns, mails_ns, times_ns, submit_ns] = self.parts_ns.each_ref().map(Cell::get);
        Turn {
            began_ns: self.began_ns.get(),
            took_ns: self.took_ns.get(),
            processor: self.processor.get(),
            own_ns: self.own_ns.get(),
            events_ns,
            tasks_ns,
            mails_ns,
            times_ns,
            submit_ns,
            faults: self.faults.get(),
        }
    }
}

/// Storage of [`Watched`] while the reactor runs.
#[derive(Debug, Default)]
pub(crate) struct WatchCells {
    longest: [TurnCells; TURNS],
    away_ns: Cell,
    waits: Cell,
    waited_ns: Cell,
}

impl WatchCells {
    pub(crate) fn snapshot(&self) -> Watched {
        let mut longest = self.longest.each_ref().map(TurnCells::snapshot);
        longest.sort_unstable_by_key(|turn| std::cmp::Reverse(turn.own_ns));
        Watched {
            longest,
            away_ns: self.away_ns.get(),
            waits: self.waits.get(),
            waited_ns: self.waited_ns.get(),
        }
    }

    /// Records a turn if it took longer than one that is recorded.
    fn keep(&self, own_ns: u64, turn: impl FnOnce() -> Turn) {
        let shortest = self.longest.iter().min_by_key(|kept| kept.own_ns.get());
        if let Some(kept) = shortest.filter(|kept| kept.own_ns.get() < own_ns) {
            kept.set(&turn());
        }
    }
}

/// The kernel's account of this thread at a moment.
#[derive(Debug, Clone, Copy)]
struct Charged {
    cpu_ns: u64,
    waits: u64,
    faults: u64,
}

impl Charged {
    fn now() -> Self {
        // SAFETY: all zeroes are a valid rusage, which is made of integers.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer is to an rusage that lives through the call.
        unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
        Self {
            cpu_ns: clock::thread_cpu_ns(),
            waits: usage.ru_nvcsw as u64,
            faults: usage.ru_minflt as u64 + usage.ru_majflt as u64,
        }
    }
}

/// Measurement of the turn under way.
#[derive(Debug)]
pub(crate) struct Watch {
    /// Last reading of the kernel's account; `known_ns` is its time.
    known: Charged,
    known_ns: u64,
    /// End of the last part.
    part_ns: u64,
    parts_ns: [u64; 5],
    /// File in which the kernel reports how long the thread has waited for a processor.
    statistics: Option<File>,
    /// Reported value before the reactor slept.
    queued_ns: u64,
    absences: Vec<Absence>,
}

impl Watch {
    /// Starts measuring, on the reactor's thread.
    pub(crate) fn new(now_ns: u64) -> Self {
        Self {
            known: Charged::now(),
            known_ns: now_ns,
            part_ns: now_ns,
            parts_ns: [0; 5],
            statistics: File::open("/proc/thread-self/schedstat").ok(),
            queued_ns: 0,
            absences: Vec::with_capacity(ABSENCES_MAX),
        }
    }

    pub(crate) fn sleeps(&mut self) {
        self.queued_ns = self.queued_ns();
    }

    /// Handles the end of a sleep. The wake-up was some time ago if there was no processor for the thread.
    pub(crate) fn woke(&mut self, now_ns: u64, cells: &WatchCells) {
        let queued_ns = self.queued_ns().saturating_sub(self.queued_ns);
        self.was_away(now_ns - queued_ns.min(now_ns), now_ns, queued_ns, cells);
        self.known = Charged::now();
        self.known_ns = now_ns;
        self.begin(now_ns);
    }

    fn begin(&mut self, now_ns: u64) {
        self.part_ns = now_ns;
        self.parts_ns = [0; 5];
    }

    pub(crate) fn part_ended(&mut self, part: Part) {
        let now_ns = clock::now_ns();
        self.parts_ns[part as usize] += now_ns - std::mem::replace(&mut self.part_ns, now_ns);
    }

    /// Handles the end of a turn that took `passed_ns` by the clock.
    pub(crate) fn turn_ended(&mut self, now_ns: u64, passed_ns: u64, cells: &WatchCells) {
        if passed_ns >= LONG_NS || now_ns - self.known_ns >= LONG_NS {
            self.look(now_ns, passed_ns, cells);
        }
        self.begin(now_ns);
    }

    fn look(&mut self, now_ns: u64, passed_ns: u64, cells: &WatchCells) {
        let before = std::mem::replace(&mut self.known, Charged::now());
        self.known_ns = now_ns;
        let own_ns = (self.known.cpu_ns - before.cpu_ns).min(passed_ns);
        let away_ns = passed_ns - own_ns;
        let [events_ns, tasks_ns, mails_ns, times_ns, submit_ns] = self.parts_ns;
        let faults = self.known.faults - before.faults;
        cells.keep(own_ns, || Turn {
            began_ns: now_ns - passed_ns,
            took_ns: passed_ns,
            processor: sched_getcpu() as u64,
            own_ns,
            events_ns,
            tasks_ns,
            mails_ns,
            times_ns,
            submit_ns,
            faults,
        });
        let waits = self.known.waits - before.waits;
        if waits > 0 {
            cells.waits.add(waits);
            cells.waited_ns.raise_to(away_ns);
        }
        self.was_away(now_ns - passed_ns, now_ns, away_ns, cells);
    }

    /// Records an absence of `away_ns` between two moments.
    fn was_away(&mut self, from_ns: u64, to_ns: u64, away_ns: u64, cells: &WatchCells) {
        cells.away_ns.raise_to(away_ns);
        if away_ns >= ABSENT_NS && self.absences.len() < ABSENCES_MAX {
            self.absences.push((from_ns, to_ns));
        }
    }

    /// Returns how long the thread has waited for a processor in total, ns; 0 if the kernel does not report
    /// it.
    fn queued_ns(&self) -> u64 {
        let mut text = [0; 64];
        let read = self.statistics.as_ref().and_then(|file| file.read_at(&mut text, 0).ok());
        let text = str::from_utf8(&text[..read.unwrap_or(0)]).unwrap_or("");
        text.split(' ').nth(1).and_then(|ns| ns.parse().ok()).unwrap_or(0)
    }

    /// Returns the absences since the last call.
    pub(crate) fn take_absences(&mut self) -> Vec<Absence> {
        std::mem::replace(&mut self.absences, Vec::with_capacity(ABSENCES_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks a turn without its processor behind many short turns, which have used more time than the turn took.
    #[test]
    fn processor_time_of_earlier_turns_does_not_hide_an_absence() {
        const TOOK_NS: u64 = 100 * LONG_NS;
        let (cells, mut now_ns) = (WatchCells::default(), 0);
        let mut watch = Watch::new(now_ns);
        let began_ns = clock::thread_cpu_ns();
        while clock::thread_cpu_ns() - began_ns < TOOK_NS {
            std::hint::spin_loop();
        }
        for _ in 0..100 {
            now_ns += LONG_NS;
            watch.turn_ended(now_ns, 1000, &cells);
        }
        now_ns += TOOK_NS;
        watch.turn_ended(now_ns, TOOK_NS, &cells);
        let away_ns = cells.snapshot().away_ns;
        assert!((TOOK_NS / 2..=TOOK_NS).contains(&away_ns), "away for {away_ns} ns of {TOOK_NS}");
        assert_eq!(watch.take_absences(), [(now_ns - TOOK_NS, now_ns)]);
    }
}
