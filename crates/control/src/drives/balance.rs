//! Balance of reactors: drives move by themselves from a busy reactor to one that has time. If a single drive
//! is too much for a reactor, queue groups of it move instead.
//!
//! The decision uses counters that reactors and drives have anyway, once a second; those of drives only when
//! a reactor is busy. A drive's share of a reactor's load is estimated from its commands and bytes. As this
//! is a guess, a move must promise much, and a drive that moved pauses. The share of a queue is not counted:
//! one queue group after the other moves while the reactor stays too busy. A drive whose groups were
//! returned, because an operation needed all queues, pauses longer each time.

use super::{DriveCounters, Drives, Entry, ReactorCounters, Running, lock};
use sluice_spec::error::ApiError;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Interval between two checks.
const INTERVAL: Duration = Duration::from_secs(1);

/// Consecutive checks that must find a reactor busy. Between them the load is attributed to drives.
const LOOKS: u32 = 3;

/// Minimum load of a reactor that is too busy, and maximum load of a reactor that can take a drive, in
/// percent of its time.
const BUSY: u64 = 90;
const FREE: u64 = 60;

/// Minimum load that a move must take off the busier of the two reactors, in percent of its time.
const GAIN: u64 = 15;

/// Bytes that take about as long as a command.
const BYTES_OF_COMMAND: u64 = 16 << 10;

/// Time that a drive which moved by itself stays on its reactor.
const REST: Duration = Duration::from_secs(60);

/// Initial and maximum rest of a drive that could not move. Each attempt is a pause for its hosts.
const RETRY: Duration = Duration::from_secs(5);
const RETRY_MAX: Duration = Duration::from_secs(3600);

/// Longest pause of a drive for a move. It is short because no operator requested the move.
const LIMIT: Duration = Duration::from_millis(50);

/// A drive on a reactor that is too busy.
#[derive(Clone, Debug)]
struct DriveLoad {
    name: String,
    reactor: usize,
    /// Work of the drive since the last check, in commands.
    work: u64,
    /// Whether the drive may not move: it pauses, or an operator placed it.
    stays: bool,
    /// Queue groups that are on this reactor, and the number of those on others.
    queues: Vec<u16>,
    remote: usize,
}

/// A move of a queue group.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    name: String,
    queue: u16,
    to: usize,
}

/// A move of a drive.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Move {
    name: String,
    from: usize,
    to: usize,
}

/// Returns the move that relieves a busy reactor most, if there is one. `loads` are percent of their time
/// that reactors work.
fn choose(busy: usize, loads: &[u64], drives: &[DriveLoad]) -> Option<Move> {
    let (to, free) = idlest(busy, loads)?;
    let load = *loads.get(busy)?;
    let here = || drives.iter().filter(|drive| drive.reactor == busy);
    let all: u64 = here().map(|drive| drive.work).sum();
    let after = |drive: &DriveLoad| {
        let share = load * drive.work / all.max(1);
        (load - share).max(free + share)
    };
    // A drive with queue groups on other reactors would have to recall them.
    let movable = here().filter(|drive| !drive.stays && drive.remote == 0);
    let best = movable.min_by_key(|drive| after(drive))?;
    (after(best) + GAIN <= load).then(|| Move { name: best.name.clone(), from: busy, to })
}

/// Returns a move of a queue group, of the drive that causes most of a busy reactor's load. One group stays
/// with its drive.
fn divide(busy: usize, loads: &[u64], drives: &[DriveLoad]) -> Option<Part> {
    let (to, _) = idlest(busy, loads)?;
    let here = || drives.iter().filter(|drive| drive.reactor == busy);
    let all: u64 = here().map(|drive| drive.work).sum();
    let most = here().max_by_key(|drive| drive.work)?;
    let [_, .., queue] = most.queues[..] else { return None };
    (!most.stays && most.work > 0 && most.work >= all / 2).then(|| Part {
        name: most.name.clone(),
        queue,
        to,
    })
}

/// Returns the reactor with the lowest load, if that is low enough, and the reactor is not `busy`.
fn idlest(busy: usize, loads: &[u64]) -> Option<(usize, u64)> {
    let (to, free) = loads.iter().copied().enumerate().min_by_key(|(_, load)| *load)?;
    (to != busy && free <= FREE).then_some((to, free))
}

/// State of reactors and drives at the last check.
#[derive(Default)]
struct Watch {
    busy_ns: Vec<u64>,
    /// Number of consecutive checks that found a reactor busy, by reactor.
    looks: Vec<u32>,
    work: BTreeMap<String, u64>,
    /// Drives that must not move for some time.
    pauses: BTreeMap<String, Pause>,
    /// Number of a drive's queue groups on other reactors, after one was moved there.
    remote: BTreeMap<String, usize>,
}

/// Pause after a move of a drive, or after an attempt.
#[derive(Clone, Copy, Debug)]
struct Pause {
    until: Instant,
    /// Number of consecutive moves that failed.
    refusals: u32,
}

impl Watch {
    /// Updates the counters of reactors. Returns their loads.
    fn look(&mut self, counters: &[ReactorCounters], passed: Duration) -> Vec<u64> {
        let passed_ns = (passed.as_nanos() as u64).max(1);
        let now: Vec<u64> = counters.iter().map(|reactor| reactor.busy_ns).collect();
        if self.busy_ns.len() != now.len() {
            // The first check has no earlier counters to compare with.
            self.looks = vec![0; now.len()];
            self.busy_ns.clone_from(&now);
        }
        let worked = now.iter().zip(&self.busy_ns).map(|(now, before)| now.saturating_sub(*before));
        let loads: Vec<u64> = worked.map(|worked_ns| (worked_ns * 100 / passed_ns).min(100)).collect();
        for (looks, load) in self.looks.iter_mut().zip(&loads) {
            *looks = if *load >= BUSY { *looks + 1 } else { 0 };
        }
        self.busy_ns = now;
        loads
    }

    /// Updates the counters of a drive. Returns its work since the last check.
    fn worked(&mut self, name: &str, counters: &DriveCounters) -> u64 {
        let bytes = counters.bytes_read.saturating_add(counters.bytes_written);
        let work = counters.commands.saturating_add(bytes / BYTES_OF_COMMAND);
        let before = self.work.insert(name.to_owned(), work).unwrap_or(work);
        work.saturating_sub(before)
    }

    fn pauses(&self, name: &str, now: Instant) -> bool {
        self.pauses.get(name).is_some_and(|rest| now < rest.until)
    }

    /// Notes that a queue group was moved to another reactor, and the number of such groups.
    fn sent(&mut self, name: &str, remote: usize) {
        self.remote.insert(name.to_owned(), remote);
        self.looks.fill(0);
    }

    /// Compares the number of remote groups with the last one. If it is lower, an operation has recalled them,
    /// and may again.
    fn count_remote(&mut self, name: &str, remote: usize, now: Instant) {
        if self.remote.get(name).is_some_and(|before| remote < *before) {
            self.remote.remove(name);
            self.tried(name, false, now);
        }
    }

    /// Notes that a drive has moved, or could not. The drive pauses for a while, and all loads are measured
    /// anew.
    fn tried(&mut self, name: &str, moved: bool, now: Instant) {
        let before = self.pauses.get(name).map_or(0, |rest| rest.refusals);
        let refusals = if moved { 0 } else { before + 1 };
        let pause = if moved { REST } else { pause_after(refusals) };
        // A number of failures is kept for the longest possible rest.
        self.pauses.retain(|_, rest| now < rest.until + RETRY_MAX);
        self.pauses.insert(name.to_owned(), Pause { until: now + pause, refusals });
        self.looks.fill(0);
    }
}

/// Returns the rest of a drive after this number of consecutive failures.
fn pause_after(refusals: u32) -> Duration {
    let doubled = 1 << refusals.saturating_sub(1).min(16);
    RETRY.saturating_mul(doubled).min(RETRY_MAX)
}

impl Drives {
    /// Starts a thread that moves drives from reactors that are too busy.
    pub fn balance(self: &Arc<Self>) -> Result<(), ApiError> {
        if !self.settings.balance || self.reactors < 2 {
            return Ok(());
        }
        let drives = Arc::downgrade(self);
        let balance = move || {
            let (mut watch, mut looked) = (Watch::default(), Instant::now());
            loop {
                std::thread::sleep(INTERVAL);
                let Some(drives) = drives.upgrade() else { return };
                let passed = std::mem::replace(&mut looked, Instant::now()).elapsed();
                drives.balance_once(&mut watch, passed);
            }
        };
        std::thread::Builder::new()
            .name("balance".to_owned())
            .spawn(balance)
            .map(drop)
            .map_err(|error| ApiError::internal(format!("cannot start a thread: {error}")))
    }

    fn balance_once(&self, watch: &mut Watch, passed: Duration) {
        let loads = watch.look(&self.reactors(), passed);
        if watch.looks.iter().all(|looks| *looks == 0) {
            watch.work.clear();
            return;
        }
        let drives = self.drives(watch);
        for busy in 0..loads.len() {
            if watch.looks[busy] < LOOKS {
                continue;
            }
            let Some(Move { name, from, to }) = choose(busy, &loads, &drives) else {
                if let Some(part) = divide(busy, &loads, &drives) {
                    return self.share_out(watch, part, &loads, busy);
                }
                continue;
            };
            let (load, free) = (loads[from], loads[to]);
            tracing::info!(
                "reactor {from} works {load} % of its time, reactor {to} {free} %: drive {name} moves"
            );
            let moved = self.carry(&name, to, LIMIT);
            if let Err(problem) = &moved {
                tracing::warn!("drive {name} did not move: {}", problem.in_one_line());
            }
            watch.tried(&name, moved.is_ok(), Instant::now());
            return;
        }
    }

    fn share_out(&self, watch: &mut Watch, part: Part, loads: &[u64], from: usize) {
        let Part { name, queue, to } = part;
        let (load, free) = (loads[from], loads[to]);
        tracing::info!(
            "reactor {from} works {load} % of its time, reactor {to} {free} %: queue {queue} of drive {name} moves"
        );
        match self.carry_queue(&name, queue, to, LIMIT) {
            Ok(()) => {
                let running = self.entry(&name).and_then(|entry| entry.running);
                watch.sent(&name, running.map_or(0, |running| running.remote_queues().len()));
            }
            Err(problem) => {
                tracing::warn!("queue {queue} of drive {name} did not move: {}", problem.in_one_line());
                watch.tried(&name, false, Instant::now());
            }
        }
    }

    /// Returns the drives on busy reactors, with their work since the last check.
    fn drives(&self, watch: &mut Watch) -> Vec<DriveLoad> {
        let entries: Vec<Entry> = lock(&self.entries).values().cloned().collect();
        let on_busy = entries.into_iter().filter(|entry| watch.looks.get(entry.reactor()) > Some(&0));
        let on_busy: Vec<(Entry, Arc<dyn Running>)> =
            on_busy.filter_map(|entry| entry.running.clone().ok().map(|running| (entry, running))).collect();
        let mut drives = Vec::new();
        for (entry, running) in on_busy {
            let Ok(status) = running.status() else { continue };
            let (reactor, name) = (entry.reactor(), entry.spec.name);
            let work = watch.worked(&name, &status.counters);
            let (queues, remote) = (running.queues_here(), running.remote_queues().len());
            let now = Instant::now();
            watch.count_remote(&name, remote, now);
            let stays = entry.moved || entry.spec.reactor.is_some() || watch.pauses(&name, now);
            drives.push(DriveLoad { name, reactor, work, stays, queues, remote });
        }
        drives
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drive(name: &str, reactor: usize, work: u64) -> DriveLoad {
        DriveLoad { name: name.to_owned(), reactor, work, stays: false, queues: Vec::new(), remote: 0 }
    }

    fn chosen(loads: &[u64], drives: &[DriveLoad]) -> Option<(String, usize)> {
        choose(0, loads, drives).map(|it| (it.name, it.to))
    }

    #[test]
    fn the_drive_that_halves_the_load_moves_to_the_idlest() {
        let drives = [drive("a", 0, 10), drive("b", 0, 45), drive("c", 0, 50), drive("d", 1, 99)];
        assert_eq!(chosen(&[100, 40, 0], &drives), Some(("c".to_owned(), 2)));
        assert_eq!(chosen(&[100, 40], &drives), Some(("b".to_owned(), 1)), "{drives:?}");
    }

    #[test]
    fn one_that_is_alone_stays_and_so_does_one_that_makes_nothing_better() {
        assert_eq!(chosen(&[100, 0], &[drive("a", 0, 100)]), None);
        assert_eq!(chosen(&[100, 0], &[drive("a", 0, 100), drive("idle", 0, 0)]), None);
        assert_eq!(chosen(&[100, 0], &[drive("a", 0, 95), drive("b", 0, 5)]), None, "too little");
        assert_eq!(chosen(&[100, 60], &[drive("a", 0, 50), drive("b", 0, 50)]), None, "it would go back");
        assert_eq!(chosen(&[100, 100], &[drive("a", 0, 50), drive("b", 0, 50)]), None);
        assert_eq!(chosen(&[100, 0], &[]), None);
    }

    #[test]
    fn one_that_rests_or_was_put_where_it_is_stays() {
        let stays = DriveLoad { stays: true, ..drive("a", 0, 50) };
        assert_eq!(chosen(&[100, 0], &[stays.clone(), stays.clone()]), None);
        assert_eq!(chosen(&[100, 0], &[stays, drive("b", 0, 50)]), Some(("b".to_owned(), 1)));
    }

    #[test]
    fn one_that_is_alone_is_shared_out_a_queue_at_a_time() {
        let with =
            |queues: &[u16], remote| DriveLoad { queues: queues.to_vec(), remote, ..drive("a", 0, 95) };
        let part = |queue, to| Some(Part { name: "a".to_owned(), queue, to });
        let idle = DriveLoad { queues: vec![1, 2], ..drive("b", 0, 5) };
        assert_eq!(divide(0, &[100, 40], &[with(&[1, 2, 3], 0), idle.clone()]), part(3, 1));
        assert_eq!(divide(0, &[100, 90, 50], &[with(&[1, 2], 1)]), part(2, 2));
        assert_eq!(divide(0, &[100, 40], &[with(&[1], 2)]), None, "one stays");
        assert_eq!(divide(0, &[100, 61], &[with(&[1, 2, 3], 0)]), None, "the other has enough to do");
        assert_eq!(
            divide(0, &[100, 0], &[DriveLoad { stays: true, ..with(&[1, 2], 0) }, idle.clone()]),
            None
        );
        assert_eq!(divide(0, &[100, 0], &[idle]), part(2, 1).map(|it| Part { name: "b".to_owned(), ..it }));
        assert_eq!(divide(0, &[100, 0], &[DriveLoad { work: 0, ..with(&[1, 2], 0) }]), None);
        // A drive with queue groups on other reactors does not move as a whole.
        assert_eq!(chosen(&[100, 0], &[with(&[1], 1), DriveLoad { remote: 1, ..drive("b", 0, 95) }]), None);
    }

    #[test]
    fn one_whose_queues_return_is_let_be() {
        let (mut watch, now) = (Watch { looks: vec![3], ..Watch::default() }, Instant::now());
        watch.sent("a", 1);
        watch.count_remote("a", 1, now);
        watch.sent("a", 2);
        watch.count_remote("a", 2, now);
        assert!(!watch.pauses("a", now));
        watch.count_remote("a", 0, now);
        assert!(watch.pauses("a", now) && !watch.pauses("a", now + RETRY));
        watch.sent("a", 1);
        watch.count_remote("a", 0, now + RETRY);
        assert!(watch.pauses("a", now + 2 * RETRY), "longer each time");
    }

    #[test]
    fn bytes_count_as_work_like_commands() {
        let mut watch = Watch::default();
        let mut worked = |commands, bytes_read, bytes_written| {
            watch.worked(
                "a",
                &DriveCounters { commands, bytes_read, bytes_written, ..DriveCounters::default() },
            )
        };
        assert_eq!(worked(1, 0, 0), 0, "there is nothing to compare with");
        assert_eq!(worked(3, 0, 0), 2);
        assert_eq!(worked(3, 4 * BYTES_OF_COMMAND, 3 * BYTES_OF_COMMAND), 7);
        assert_eq!(worked(3, 0, 0), 0, "it was made anew");
    }

    #[test]
    fn what_was_moved_is_not_moved_back() {
        // Both drives have more work than a reactor can do: either takes the time that the other gives up.
        let mut drives = [drive("a", 0, 50), drive("b", 0, 50)];
        let Some(Move { name, to, .. }) = choose(0, &[100, 0], &drives) else { panic!("one moves") };
        drives.iter_mut().filter(|drive| drive.name == name).for_each(|drive| drive.reactor = to);
        for loads in [[100, 100], [100, 50], [50, 100], [100, 0], [0, 100]] {
            assert_eq!(choose(0, &loads, &drives), None);
            assert_eq!(choose(1, &loads, &drives), None);
        }
    }

    #[test]
    fn a_load_is_of_the_time_since_the_last_look() {
        let mut watch = Watch::default();
        let counters = |busy_ns| [ReactorCounters { busy_ns, ..ReactorCounters::default() }];
        let second = Duration::from_secs(1);
        assert_eq!(watch.look(&counters(77_000_000_000), second), [0], "nothing to compare with");
        assert_eq!(watch.look(&counters(77_950_000_000), second), [95]);
        assert_eq!(watch.look(&counters(79_900_000_000), second), [100], "a turn that began before");
        assert_eq!(watch.looks, [2]);
        assert_eq!(watch.look(&counters(80_300_000_000), second), [40]);
        assert_eq!(watch.looks, [0]);
    }

    #[test]
    fn a_drive_that_cannot_move_is_tried_less_and_less() {
        let (mut watch, mut now) = (Watch { looks: vec![3], ..Watch::default() }, Instant::now());
        for pause_s in [5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600] {
            watch.tried("a", false, now);
            let end = now + Duration::from_secs(pause_s);
            assert!(
                watch.pauses("a", end - Duration::from_millis(1)) && !watch.pauses("a", end),
                "{pause_s} s"
            );
            now = end;
        }
        assert_eq!((watch.looks.as_slice(), watch.pauses("b", now)), (&[0][..], false));
        // A move that succeeds resets the pause.
        watch.tried("a", true, now);
        assert!(!watch.pauses("a", now + REST));
        watch.tried("a", false, now + REST);
        assert!(!watch.pauses("a", now + REST + RETRY));
        // A drive without an attempt for a long time is removed from the list.
        watch.tried("b", true, now + 3 * RETRY_MAX);
        assert_eq!(watch.pauses.len(), 1);
    }
}
