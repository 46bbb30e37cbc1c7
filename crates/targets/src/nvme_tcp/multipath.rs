//! Several ways to one namespace: a layer over as many targets, one for each portal of the subsystem.
//!
//! Each is a target of its own, with a connection and a keeper, and fails its commands when the connection is lost
//! and reset. What failed for a reason that lies in the path goes out again down another, as after a reconnection:
//! nobody above sees an error, as long as a path is left, or comes back in time.
//!
//! A command is under way on one path at a time, and all that come here may be done twice. What nobody can
//! promise is that a controller whose connection was reset does not still have a command that it received before:
//! it may carry it out after another controller did, as with any host.

use super::NvmeTcpControl;
use super::fail_timer::{FailTimer, RECHECK_NS};
use sluice_command::{Characteristics, Command, Controllers, Frame, Lane, Layer, Ticket};
use sluice_memory::Space;
use sluice_nvme::AnaState;
use sluice_nvme::Status;
use std::collections::VecDeque;
use std::time::Duration;

/// Paths of a namespace at most.
pub const PATHS_MAX: usize = 8;

const NS_PER_MS: u64 = 1_000_000;

/// A path that has commands and answered none for so long is silent: others are taken while there are any. What it
/// has is failed by its own deadline.
const SILENCE_NS: u64 = 1_000_000_000;

/// Which of the paths that are as good as each other a command takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathPolicy {
    /// One after the other.
    #[default]
    RoundRobin,
    /// The one with the fewest commands under way.
    QueueDepth,
}

#[derive(Debug)]
struct Path {
    control: NvmeTcpControl,
    /// Commands that are on it.
    under_way: u32,
    /// When it answered last, or was given a command while it had none.
    answered_ns: u64,
}

impl Path {
    /// How bad it is; none if it leads nowhere now. First of all it answers, then it is a good way to the namespace.
    fn rank(&self, policy: PathPolicy, now_ns: u64) -> Option<(bool, u8, u32)> {
        let access = match self.control.path()? {
            AnaState::Optimized => 0,
            AnaState::NonOptimized => 1,
            AnaState::Inaccessible | AnaState::PersistentLoss | AnaState::Change => return None,
        };
        let is_silent = self.under_way > 0 && now_ns.saturating_sub(self.answered_ns) > SILENCE_NS;
        let depth = if policy == PathPolicy::QueueDepth { self.under_way } else { 0 };
        Some((is_silent, access, depth))
    }
}

/// How far a command has come, as its frame remembers it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Search {
    /// Paths that it failed on since it last waited, a bit each.
    tried: u8,
    /// When all that there were had failed it for the first time, milliseconds.
    since_ms: Option<u64>,
}

impl Search {
    fn to_word(self) -> u64 {
        u64::from(self.tried) | self.since_ms.map_or(0, |since_ms| since_ms + 1) << PATHS_MAX
    }

    fn of_word(word: u64) -> Self {
        Self { tried: word as u8, since_ms: (word >> PATHS_MAX).checked_sub(1) }
    }
}

const _: () = assert!(PATHS_MAX == u8::BITS as usize);

/// A layer over targets that are paths to the same namespace.
#[derive(Debug)]
pub struct Multipath {
    policy: PathPolicy,
    paths: Vec<Path>,
    /// The path that the last command took.
    last: usize,
    /// For a path, in the order they are to be started.
    waiting: VecDeque<(Ticket, Search)>,
    fail_timer: FailTimer,
    recheck_at_ns: Option<u64>,
    /// Controllers whose host is gone or begins anew: nothing of theirs may wait.
    ending: Controllers,
}

impl Multipath {
    /// Over targets with these controls, in the order of the layers below. When there was no path for `limit`, commands
    /// fail; without a limit they wait for as long as it takes.
    pub fn new(policy: PathPolicy, controls: Vec<NvmeTcpControl>, limit: Option<Duration>) -> Self {
        let limit_ns = limit.map(|limit| u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX));
        Self {
            policy,
            paths: controls
                .into_iter()
                .map(|control| Path { control, under_way: 0, answered_ns: 0 })
                .collect(),
            last: 0,
            waiting: VecDeque::with_capacity(sluice_command::handover::COMMANDS_MAX),
            fail_timer: FailTimer::new(limit_ns),
            recheck_at_ns: None,
            ending: Controllers::default(),
        }
    }

    /// The path for a command that has `tried` these, a bit each: of the best that are left, whose turn it is.
    fn choose(&self, tried: u8, now_ns: u64) -> Option<usize> {
        let count = self.paths.len();
        let in_turn = (1..=count).map(|further| (self.last + further) % count);
        let left = in_turn.filter(|path| tried >> path & 1 == 0);
        let ranked = left.filter_map(|path| Some((self.paths[path].rank(self.policy, now_ns)?, path)));
        // The first of several that are the same.
        ranked.min_by_key(|(rank, _)| *rank).map(|(_, path)| path)
    }

    fn send(&mut self, command: Command, search: Search, lane: &mut Lane<'_>) {
        let now_ns = lane.now_ns();
        let Some(number) = self.choose(search.tried, now_ns) else { return self.wait(command, search, lane) };
        self.last = number;
        self.fail_timer.stop();
        let path = &mut self.paths[number];
        if path.under_way == 0 {
            path.answered_ns = now_ns;
        }
        path.under_way += 1;
        let search = Search { tried: search.tried | 1 << number, ..search };
        lane.forward_with(number, command, 0, [search.to_word(), number as u64]);
    }

    /// There is no path, or none that this command has not failed on a moment ago.
    fn wait(&mut self, command: Command, search: Search, lane: &mut Lane<'_>) {
        let now_ns = lane.now_ns();
        let mut since_ms = search.since_ms;
        if self.choose(0, now_ns).is_none() {
            self.fail_timer.start(now_ns);
        }
        // Those that failed it are no good for it, there or not, nor when they are back: for the host that is as if
        // they were not.
        if search.tried != 0 {
            since_ms.get_or_insert(now_ns / NS_PER_MS);
        }
        let is_exceeded =
            since_ms.is_some_and(|since_ms| self.fail_timer.is_exceeded(since_ms * NS_PER_MS, now_ns));
        if self.fail_timer.is_expired() || is_exceeded {
            return lane.finish(command, Status::INTERNAL_PATH_ERROR);
        }
        let ticket = lane.park(command);
        if lane.is_of(self.ending, ticket) {
            return finish(ticket, Status::ABORTED_SQ_DELETION, lane);
        }
        self.waiting.push_back((ticket, Search { tried: 0, since_ms }));
        self.recheck_at_ns.get_or_insert(lane.now_ns() + RECHECK_NS);
    }

    /// Those that wait go on if there is a path, or fail if there was none for too long.
    fn retry_waiting(&mut self, lane: &mut Lane<'_>) {
        self.recheck_at_ns = None;
        for _ in 0..self.waiting.len() {
            let Some((ticket, search)) = self.waiting.pop_front() else { return };
            if let Some(command) = lane.unpark(ticket) {
                self.send(command, search, lane);
            }
        }
    }

    fn end_waiting(&mut self, lane: &mut Lane<'_>) -> usize {
        let before = self.waiting.len();
        self.waiting.retain(|(ticket, _)| {
            let ends = lane.is_of(self.ending, *ticket);
            if ends {
                finish(*ticket, Status::ABORTED_SQ_DELETION, lane);
            }
            !ends
        });
        before - self.waiting.len()
    }
}

impl Layer for Multipath {
    fn name(&self) -> &'static str {
        "multipath"
    }

    fn characteristics(&self, below: &[Characteristics]) -> Characteristics {
        // All are the same namespace. One that is a path of it has no less than the first.
        let size = below.iter().map(|path| path.size).min().unwrap_or(0);
        Characteristics { size, ..below[0].over() }
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        self.send(command, Search::default(), lane);
    }

    fn resume(&mut self, command: Command, frame: Frame, lane: &mut Lane<'_>) {
        let [search, path] = frame.data;
        let path = &mut self.paths[path as usize];
        path.under_way -= 1;
        path.answered_ns = lane.now_ns();
        match lane.slot(&command).status {
            status if is_of_path(status) => self.send(command, Search::of_word(search), lane),
            status => lane.finish(command, status),
        }
    }

    fn deadline_ns(&self) -> Option<u64> {
        [self.recheck_at_ns, self.fail_timer.deadline_ns()].into_iter().flatten().min()
    }

    fn expire(&mut self, lane: &mut Lane<'_>) {
        if self.fail_timer.deadline_ns().is_some_and(|at| at <= lane.now_ns()) {
            if self.choose(0, lane.now_ns()).is_none() {
                self.fail_timer.expire();
            }
            self.retry_waiting(lane);
        }
        if self.recheck_at_ns.is_some_and(|at| at <= lane.now_ns()) {
            self.retry_waiting(lane);
        }
    }

    fn polls(&self) -> bool {
        true
    }

    fn poll(&mut self, _controller: u8, _space: &Space, lane: &mut Lane<'_>) -> usize {
        // A path that is back is so whether a command needs it or not.
        if self.fail_timer.is_running() && self.choose(0, lane.now_ns()).is_some() {
            self.fail_timer.stop();
        }
        if self.ending.is_empty() { 0 } else { self.end_waiting(lane) }
    }

    fn revoke(&mut self, controller: u8) {
        self.ending.insert(controller);
    }

    fn renew(&mut self, controller: u8) {
        self.ending.remove(controller);
    }
}

/// Path Related Status (Base 4.2.3.4): another path may do better, if it is not said that none will.
fn is_of_path(status: Status) -> bool {
    const TYPE: u16 = 7 << 8;
    const PATH_RELATED: u16 = 3 << 8;
    status.0 & TYPE == PATH_RELATED && status.0 & Status::DNR == 0
}

fn finish(ticket: Ticket, status: Status, lane: &mut Lane<'_>) {
    if let Some(command) = lane.unpark(ticket) {
        lane.finish(command, status);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_remembers_how_far_a_command_has_come() {
        for tried in [0, 1, 0x80, 0xff] {
            for since_ms in [None, Some(0), Some(7), Some(1 << 50)] {
                let search = Search { tried, since_ms };
                assert_eq!(Search::of_word(search.to_word()), search);
            }
        }
    }
}
