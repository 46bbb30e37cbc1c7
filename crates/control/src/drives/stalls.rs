//! Reactors that a page fault has stopped.
//!
//! A guest's memory belongs to its monitor. While the monitor punches a hole into it, an access to the hole
//! waits in the kernel until the hole is complete. The reactor and all its drives wait with it. So does an
//! access to memory that was swapped out. No process can prevent that in another. A thread checks whether a
//! reactor has stopped in a fault, and in which drive's turn. A drive whose accesses stop a reactor
//! repeatedly moves to another reactor, where it delays fewer drives.

use super::{Drives, lock};
use sluice_reactor::Progress;
use sluice_spec::error::ApiError;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Interval between two checks: while a reactor is awake, and while all sleep.
const LOOK: Duration = Duration::from_millis(20);
const LOOK_ASLEEP: Duration = Duration::from_millis(500);

/// Stops of a drive in [`WINDOW`] after which the drive moves to another reactor.
const STOPS: u32 = 3;

/// Time in which stops are counted. Also the minimum interval between two messages of a drive, and between
/// two moves.
const WINDOW: Duration = Duration::from_secs(30);

/// Time that a drive gets to move: reads and writes into such memory may take long themselves.
const MOVE_LIMIT: Duration = Duration::from_secs(1);

/// State of a reactor at the last check.
#[derive(Clone, Copy, Debug)]
struct Seen {
    progress: Progress,
    since: Instant,
    is_told: bool,
}

/// Stops of one drive.
#[derive(Debug)]
struct Stops {
    since: Instant,
    count: u32,
    said: Option<Instant>,
    moved: Option<Instant>,
}

/// State of reactors and drives at the last check.
#[derive(Debug, Default)]
struct Watch {
    reactors: Vec<Seen>,
    stops: BTreeMap<String, Stops>,
}

impl Watch {
    /// Updates the progress of reactors. Returns the reactors that have stopped in a task's turn, with the
    /// task's index and the duration. Each stop is returned once. `in_fault` returns whether a thread waits
    /// in a page fault.
    fn look(
        &mut self,
        progress: &[Progress],
        now: Instant,
        in_fault: impl Fn(u32) -> bool,
    ) -> Vec<(usize, usize, Duration)> {
        let mut stopped = Vec::new();
        for (index, progress) in progress.iter().copied().enumerate() {
            let new = Seen { progress, since: now, is_told: false };
            let Some(seen) = self.reactors.get_mut(index) else {
                self.reactors.push(new);
                continue;
            };
            if seen.progress != progress {
                *seen = new;
                continue;
            }
            if let Some(task) = progress.task
                && !seen.is_told
                && in_fault(progress.thread)
            {
                seen.is_told = true;
                stopped.push((index, task, now - seen.since));
            }
        }
        stopped
    }

    /// Counts a stop of a drive. Returns whether it is to be logged, and whether the drive should move.
    fn note(&mut self, drive: &str, now: Instant) -> (bool, bool) {
        let new = || Stops { since: now, count: 0, said: None, moved: None };
        let stops = self.stops.entry(drive.to_owned()).or_insert_with(new);
        if now - stops.since > WINDOW {
            (stops.since, stops.count) = (now, 0);
        }
        stops.count += 1;
        let is_due = |last: Option<Instant>| last.is_none_or(|last| now - last > WINDOW);
        let (say, go) = (is_due(stops.said), stops.count >= STOPS && is_due(stops.moved));
        if say {
            stops.said = Some(now);
        }
        if go {
            stops.moved = Some(now);
        }
        (say, go)
    }
}

/// Returns whether a thread of this process waits in the kernel outside of a system call: in a page fault.
fn is_in_fault(thread: u32) -> bool {
    let read =
        |name: &str| std::fs::read_to_string(format!("/proc/self/task/{thread}/{name}")).unwrap_or_default();
    // The file begins with -1 if the thread is in no system call. For a running thread it has only the word
    // `running`.
    read("syscall").starts_with("-1 ") && is_waiting(&read("stat"))
}

/// Returns whether a thread's state is D. The state follows the name, which is in parentheses.
fn is_waiting(stat: &str) -> bool {
    stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('D'))
}

impl Drives {
    /// Starts a thread that watches reactors for stops.
    pub fn watch_stalls(self: &Arc<Self>) -> Result<(), ApiError> {
        let drives = Arc::downgrade(self);
        let watch = move || {
            let mut watch = Watch::default();
            loop {
                let Some(drives) = drives.upgrade() else { return };
                let progress = drives.engine.progress();
                for (reactor, task, stopped) in watch.look(&progress, Instant::now(), is_in_fault) {
                    drives.note_stall(&mut watch, reactor, task, stopped);
                }
                drop(drives);
                let is_awake = progress.iter().any(|reactor| reactor.task.is_some());
                std::thread::sleep(if is_awake { LOOK } else { LOOK_ASLEEP });
            }
        };
        std::thread::Builder::new()
            .name("stalls".to_owned())
            .spawn(watch)
            .map(drop)
            .map_err(|error| ApiError::internal(format!("cannot start a thread: {error}")))
    }

    fn note_stall(&self, watch: &mut Watch, reactor: usize, task: usize, stopped: Duration) {
        let Some(name) = self.drive_of(task) else { return };
        *lock(&self.stalls).entry(name.clone()).or_default() += 1;
        let (say, go) = watch.note(&name, Instant::now());
        if say {
            tracing::warn!(
                "drive {name} has stopped reactor {reactor} for {} ms or more, in an access to memory that its client takes \
                 back at the moment (or that is swapped out): other drives of that reactor wait",
                stopped.as_millis()
            );
        }
        let to = go.then(|| self.reactor_for_a_stalling(&name, reactor)).flatten();
        if let Some(to) = to {
            match self.carry(&name, to, MOVE_LIMIT) {
                Ok(()) => tracing::warn!(
                    "drive {name} is on reactor {to} now: it has stopped reactor {reactor} too often"
                ),
                Err(problem) => tracing::warn!("drive {name} stays where it is: {}", problem.in_one_line()),
            }
        }
    }

    fn drive_of(&self, task: usize) -> Option<String> {
        let entries = lock(&self.entries);
        let is_it = |entry: &&super::Entry| entry.running.as_ref().is_ok_and(|running| running.is_task(task));
        entries.values().find(is_it).map(|entry| entry.spec.name.clone())
    }

    /// Returns the reactor with the fewest other drives, if it has fewer than the current one.
    fn reactor_for_a_stalling(&self, name: &str, here: usize) -> Option<usize> {
        let entries = lock(&self.entries);
        let others = |reactor: usize| {
            let is_other = |entry: &&super::Entry| entry.spec.name != name && entry.reactor() == reactor;
            entries.values().filter(is_other).count()
        };
        let best = (0..self.reactors).min_by_key(|reactor| others(*reactor))?;
        (others(best) < others(here)).then_some(best)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(turns: u64, task: Option<usize>) -> [Progress; 1] {
        [Progress { turns, task, thread: 7 }]
    }

    #[test]
    fn a_reactor_that_waits_in_a_fault_has_stopped_and_is_told_of_once() {
        let (mut watch, now) = (Watch::default(), Instant::now());
        let after = |looks: u32| now + LOOK * looks;
        assert_eq!(watch.look(&at(1, Some(3)), now, |_| true), []);
        assert_eq!(watch.look(&at(2, Some(3)), after(1), |_| true), [], "it went on");
        assert_eq!(watch.look(&at(2, Some(3)), after(2), |_| false), [], "another has its processor");
        assert_eq!(watch.look(&at(2, Some(3)), after(3), |thread| thread == 7), [(0, 3, LOOK * 2)]);
        assert_eq!(watch.look(&at(2, Some(3)), after(4), |_| true), [], "once");
        assert_eq!(watch.look(&at(3, None), after(5), |_| true), []);
        assert_eq!(watch.look(&at(3, None), after(6), |_| true), [], "it sleeps");
    }

    #[test]
    fn a_drive_goes_elsewhere_when_it_stops_its_reactor_again_and_again() {
        let (mut watch, now) = (Watch::default(), Instant::now());
        let seconds = |seconds| now + Duration::from_secs(seconds);
        assert_eq!(watch.note("a", now), (true, false));
        assert_eq!(watch.note("a", seconds(1)), (false, false));
        assert_eq!(watch.note("b", seconds(1)), (true, false));
        assert_eq!(watch.note("a", seconds(2)), (false, true));
        assert_eq!(watch.note("a", seconds(3)), (false, false), "it has just moved");
        assert_eq!(watch.note("a", seconds(60)), (true, false), "a window later");
    }

    #[test]
    fn states_are_read_behind_any_name() {
        assert!(is_waiting("12 (a) R (b) D 1 2") && !is_waiting("12 (D) S 1 2") && !is_waiting(""));
        assert!(!is_in_fault(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()));
    }
}
