//! Several paths to one namespace: a layer over several targets, one for each portal of the subsystem.
//!
//! Each path is a target of its own, with a connection and an admin thread. A path fails its commands when
//! the connection is lost and reset. A command that failed with a path related status is sent on another
//! path, as after a reconnection. So hosts see no error as long as a path is left, or is back in time.
//!
//! A command is in flight on one path at a time, and all commands of this layer may be repeated. One
//! guarantee is impossible: a controller whose connection was reset may still have a command that it received
//! before. It may execute that command after another controller did, as with any host.

use super::NvmeTcpControl;
use super::fail_timer::{FailTimer, RECHECK_NS};
use crate::remote::{end_some, finish};
use sluice_command::{Aborted, Characteristics, Command, Controllers, Frame, Lane, Layer, Ticket};
use sluice_memory::Space;
use sluice_nvme::AnaState;
use sluice_nvme::Status;
use std::collections::VecDeque;
use std::time::Duration;

/// Paths of a namespace at most.
pub const PATHS_MAX: usize = 8;

const NS_PER_MS: u64 = 1_000_000;

/// Time without an answer after which a path with commands is silent. Other paths are preferred while there
/// are any. The commands of a silent path fail after their own time limit.
const SILENCE_NS: u64 = 1_000_000_000;

/// Choice among paths of equal quality.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathPolicy {
    /// Each path in turn.
    #[default]
    RoundRobin,
    /// Path with the fewest commands in flight.
    QueueDepth,
}

#[derive(Debug)]
struct Path {
    control: NvmeTcpControl,
    /// Commands in flight on the path.
    under_way: u32,
    /// Time of the last answer, or of the first command after the path had none.
    answered_ns: u64,
}

impl Path {
    /// Returns the rank of the path, the lowest of which is best; none if the path is unusable now. Answering
    /// counts first, then the access state.
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

/// Progress of a command, which is stored in its frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Search {
    /// Bit per path on which the command failed since it last waited.
    tried: u8,
    /// Time at which the command had first failed on all paths, milliseconds.
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
    /// Commands that wait for a path, in the order of their start.
    waiting: VecDeque<(Ticket, Search)>,
    fail_timer: FailTimer,
    recheck_at_ns: Option<u64>,
    /// Controllers whose host is gone or resets: none of their commands may wait.
    ending: Controllers,
}

impl Multipath {
    /// Creates the layer over targets with these controls, in the order of the layers below. When there was
    /// no path for `limit`, commands fail. Without a limit they wait for ever.
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

    /// Returns the next of the best paths for a command that has `tried` some already, a bit each.
    fn choose(&self, tried: u8, now_ns: u64) -> Option<usize> {
        let count = self.paths.len();
        let in_turn = (1..=count).map(|further| (self.last + further) % count);
        let left = in_turn.filter(|path| tried >> path & 1 == 0);
        let ranked = left.filter_map(|path| Some((self.paths[path].rank(self.policy, now_ns)?, path)));
        // The first of several equal ones.
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

    /// Parks a command for which there is no path, or none on which it has not just failed.
    fn wait(&mut self, command: Command, search: Search, lane: &mut Lane<'_>) {
        let now_ns = lane.now_ns();
        let mut since_ms = search.since_ms;
        if self.choose(0, now_ns).is_none() {
            self.fail_timer.start(now_ns);
        }
        // For the host, paths on which the command failed are the same as missing paths, even when they are
        // back.
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

    /// Sends the waiting commands if there is a path, or fails them if there was none for too long.
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
        let ending = self.ending;
        self.end_some(|ticket, lane| lane.is_of(ending, ticket), Status::ABORTED_SQ_DELETION, lane)
    }

    /// Ends some of the commands that have no path.
    fn end_some(
        &mut self,
        ends: impl Fn(Ticket, &Lane<'_>) -> bool,
        why: Status,
        lane: &mut Lane<'_>,
    ) -> usize {
        end_some(&mut self.waiting, |(ticket, _)| *ticket, ends, why, lane)
    }
}

impl Layer for Multipath {
    fn name(&self) -> &'static str {
        "multipath"
    }

    fn characteristics(&self, below: &[Characteristics]) -> Characteristics {
        // All paths lead to the same namespace. Each has at least the properties of the first.
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
        // A path that is back stops the timer, even if no command needs it.
        if self.fail_timer.is_running() && self.choose(0, lane.now_ns()).is_some() {
            self.fail_timer.stop();
        }
        if self.ending.is_empty() { 0 } else { self.end_waiting(lane) }
    }

    fn abort(&mut self, which: Aborted, why: Status, lane: &mut Lane<'_>) {
        self.end_some(|ticket, lane| lane.is_aborted(which, ticket), why, lane);
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    fn revoke(&mut self, controller: u8) {
        self.ending.insert(controller);
    }

    fn renew(&mut self, controller: u8) {
        self.ending.remove(controller);
    }
}

/// Returns whether a status is path related (Base 4.2.3.4) without DNR: the command may succeed on another
/// path.
fn is_of_path(status: Status) -> bool {
    const TYPE: u16 = 7 << 8;
    const PATH_RELATED: u16 = 3 << 8;
    status.0 & TYPE == PATH_RELATED && status.0 & Status::DNR == 0
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
