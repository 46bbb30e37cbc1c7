//! Front-ends of a task: the joint between a task of a reactor and the transports that bring its commands.
//!
//! The joint assumes no NVMe controller. A front-end gets its backend with each call: the NVMe subsystem in a
//! [`Drive`](crate::Drive), or a router alone for a block front-end. The task calls each front-end once a turn,
//! never per command.

use crate::token::{FRONTENDS_MAX, FrontendToken};
use sluice_reactor::Arm;
use std::any::Any;
use std::fmt;

/// Result of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// Work done, as in [`Task::turn`](sluice_reactor::Task::turn).
    pub work: usize,
    /// No host is connected, and no command of one is in flight.
    pub is_vacant: bool,
}

/// Transport of commands, for one or several hosts. The methods correspond to those of
/// [`Task`](sluice_reactor::Task), and none may block.
pub trait Frontend: Any + Send + fmt::Debug {
    /// Object that executes the commands, shared by all front-ends of a task.
    type Backend;

    /// Runs a turn: takes commands, gives the backend its turn for them, and delivers completions. A vacant
    /// front-end gives no turn to the backend.
    fn turn(&mut self, backend: &mut Self::Backend, now_ns: u64) -> Served;

    /// Prefetches the memory that the next turn reads first. Returns false if the front-end is vacant.
    fn look_ahead(&self) -> bool;

    /// Handles a completion of the front-end's own.
    fn event(
        &mut self,
        backend: &mut Self::Backend,
        token: FrontendToken,
        result: i32,
        more: bool,
        now_ns: u64,
    );

    /// Returns whether the front-end is suspended for a hand-over: it takes nothing, and the backend gets no turn.
    fn is_suspended(&self) -> bool;

    /// Prepares for sleep, without the backend's layers. Returns `Busy` if there is work after all.
    fn arm(&mut self, backend: &mut Self::Backend, now_ns: u64) -> Arm;

    fn disarm(&mut self);

    /// Starts a drain: no host is let in, no more commands are taken, and those in flight finish. Hosts are
    /// disconnected when they have got their completions.
    fn drain(&mut self, backend: &mut Self::Backend, now_ns: u64);

    /// Returns whether the drain is over: no host is connected, and no command is in flight.
    fn is_drained(&self) -> bool;

    /// Returns the number of commands in flight, without commands that wait for events that may never come.
    fn unfinished(&self, backend: &Self::Backend) -> u32;

    /// Returns the limit of hosts that are connected at a time.
    fn hosts_max(&self) -> usize;
}

/// Front-ends of one task, in the order in which they were added. The index of each is its number in
/// [tokens](FrontendToken).
pub struct Frontends<F: Frontend + ?Sized>(Vec<Box<F>>);

impl<F: Frontend + ?Sized> Default for Frontends<F> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<F: Frontend + ?Sized> fmt::Debug for Frontends<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.0).finish()
    }
}

impl<F: Frontend + ?Sized> Frontends<F> {
    /// Returns the number of the next front-end, or `None` if there are [as many](FRONTENDS_MAX) as can be.
    pub fn next_number(&self) -> Option<u8> {
        (self.0.len() < FRONTENDS_MAX).then_some(self.0.len() as u8)
    }

    /// Adds a front-end, which must use the [next number](Self::next_number) in its tokens.
    pub fn push(&mut self, frontend: Box<F>) {
        self.0.push(frontend);
    }

    pub fn iter(&self) -> impl Iterator<Item = &F> {
        self.0.iter().map(|it| &**it)
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut F> {
        self.0.iter_mut().map(|it| &mut **it)
    }

    /// Runs a turn of each front-end. The result is vacant if all of them are.
    #[inline]
    pub fn turn(&mut self, backend: &mut F::Backend, now_ns: u64) -> Served {
        let mut all = Served { work: 0, is_vacant: true };
        for frontend in &mut self.0 {
            let Served { work, is_vacant } = frontend.turn(backend, now_ns);
            all = Served { work: all.work + work, is_vacant: all.is_vacant & is_vacant };
        }
        all
    }

    /// Prefetches for the first front-end that is not vacant.
    pub fn look_ahead(&self) {
        let _ = self.iter().any(|frontend| frontend.look_ahead());
    }

    /// Passes a completion to its front-end.
    pub fn event(
        &mut self,
        backend: &mut F::Backend,
        token: FrontendToken,
        result: i32,
        more: bool,
        now_ns: u64,
    ) {
        if let Some(frontend) = self.0.get_mut(usize::from(token.frontend)) {
            frontend.event(backend, token, result, more, now_ns);
        }
    }

    /// Returns whether the backend needs a turn of its own after that of the front-ends: no host has given it one. While they
    /// are suspended it has none: a function must not start in a process that may not get the drive.
    pub fn needs_own_turn(&self, served: Served) -> bool {
        served.is_vacant && !self.are_suspended()
    }

    /// Returns whether a front-end is suspended for a hand-over. All of a task are suspended together.
    pub fn are_suspended(&self) -> bool {
        self.iter().any(|frontend| frontend.is_suspended())
    }

    /// Prepares all front-ends for sleep.
    pub fn arm(&mut self, backend: &mut F::Backend, now_ns: u64) -> Arm {
        let (mut is_busy, mut armed) = (false, Arm::Asleep { until: None });
        for frontend in &mut self.0 {
            match frontend.arm(backend, now_ns) {
                Arm::Busy => is_busy = true,
                Arm::Timed { until } => armed = Arm::Timed { until: armed.until() }.no_later_than(until),
                Arm::Asleep { until } => armed = armed.no_later_than(until),
            }
        }
        if is_busy { Arm::Busy } else { armed }
    }

    pub fn disarm(&mut self) {
        self.iter_mut().for_each(|frontend| frontend.disarm());
    }

    /// Starts to drain all front-ends, the last one first: the folder of a later socket lies in that of the
    /// first one.
    pub fn drain(&mut self, backend: &mut F::Backend, now_ns: u64) {
        self.0.iter_mut().rev().for_each(|frontend| frontend.drain(backend, now_ns));
    }

    pub fn are_drained(&self) -> bool {
        self.iter().all(|frontend| frontend.is_drained())
    }

    pub fn unfinished(&self, backend: &F::Backend) -> u32 {
        self.iter().map(|frontend| frontend.unfinished(backend)).sum()
    }

    pub fn hosts_max(&self) -> usize {
        self.iter().map(|frontend| frontend.hosts_max()).sum()
    }
}

/// Drop of the front-ends, the last one first, as in a drain.
impl<F: Frontend + ?Sized> Drop for Frontends<F> {
    fn drop(&mut self) {
        while self.0.pop().is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Backend without an NVMe controller, which logs the calls that reach it.
    type Log = Vec<(char, &'static str)>;

    /// Front-end with fixed answers.
    #[derive(Debug)]
    struct Scripted {
        name: char,
        served: Served,
        armed: Arm,
        is_drained: bool,
        is_suspended: bool,
    }

    impl Frontend for Scripted {
        type Backend = Log;

        fn turn(&mut self, log: &mut Log, _now_ns: u64) -> Served {
            log.push((self.name, "turn"));
            self.served
        }

        fn look_ahead(&self) -> bool {
            !self.served.is_vacant
        }

        fn event(&mut self, log: &mut Log, token: FrontendToken, result: i32, more: bool, now_ns: u64) {
            assert_eq!((token.event, result, more, now_ns), (5, -1, true, 9));
            log.push((self.name, "event"));
        }

        fn is_suspended(&self) -> bool {
            self.is_suspended
        }

        fn arm(&mut self, log: &mut Log, _now_ns: u64) -> Arm {
            log.push((self.name, "arm"));
            self.armed
        }

        fn disarm(&mut self) {}

        fn drain(&mut self, log: &mut Log, _now_ns: u64) {
            log.push((self.name, "drain"));
            self.is_drained = true;
        }

        fn is_drained(&self) -> bool {
            self.is_drained
        }

        fn unfinished(&self, log: &Log) -> u32 {
            log.len() as u32
        }

        fn hosts_max(&self) -> usize {
            3
        }
    }

    fn scripted(name: char, work: usize, is_vacant: bool, armed: Arm) -> Box<Scripted> {
        let served = Served { work, is_vacant };
        Box::new(Scripted { name, served, armed, is_drained: false, is_suspended: false })
    }

    fn two(first: Arm, second: Arm) -> Frontends<dyn Frontend<Backend = Log>> {
        let mut frontends = Frontends::<dyn Frontend<Backend = Log>>::default();
        frontends.push(scripted('a', 2, true, first));
        frontends.push(scripted('b', 3, false, second));
        frontends
    }

    const SLEEP: Arm = Arm::Asleep { until: None };

    #[test]
    fn all_have_their_turns_and_are_vacant_together() {
        let (mut frontends, mut log) = (two(SLEEP, SLEEP), Log::new());
        assert_eq!(frontends.turn(&mut log, 0), Served { work: 5, is_vacant: false });
        assert_eq!(log, [('a', "turn"), ('b', "turn")]);
        assert_eq!(frontends.hosts_max(), 6);
        assert_eq!(frontends.unfinished(&log), 4);
        let none = &mut Frontends::<Scripted>::default();
        assert_eq!(none.turn(&mut log, 0), Served { work: 0, is_vacant: true });
    }

    /// Suspends a drive without a guest, as for an upgrade: its layers have no turns.
    #[test]
    fn the_backend_has_a_turn_without_a_host_unless_it_is_suspended() {
        for (is_vacant, is_suspended, expected) in
            [(true, false, true), (true, true, false), (false, false, false), (false, true, false)]
        {
            let mut frontends = Frontends::<Scripted>::default();
            frontends.push(scripted('a', 0, true, SLEEP));
            frontends.push(Box::new(Scripted { is_suspended, ..*scripted('b', 0, is_vacant, SLEEP) }));
            let served = frontends.turn(&mut Log::new(), 0);
            assert_eq!(frontends.needs_own_turn(served), expected, "{is_vacant} {is_suspended}");
        }
    }

    #[test]
    fn an_event_reaches_the_front_end_of_its_number() {
        let (mut frontends, mut log) = (two(SLEEP, SLEEP), Log::new());
        assert_eq!(frontends.next_number(), Some(2));
        for frontend in [1, 0, 2] {
            frontends.event(&mut log, FrontendToken { frontend, event: 5 }, -1, true, 9);
        }
        assert_eq!(log, [('b', "event"), ('a', "event")], "the third is not there any more");
    }

    #[test]
    fn they_sleep_until_the_first_deadline_and_are_polled_if_one_must_be() {
        let asleep = |until| Arm::Asleep { until };
        let timed = |until| Arm::Timed { until };
        for (first, second, all) in [
            (SLEEP, SLEEP, SLEEP),
            (asleep(Some(7)), asleep(Some(5)), asleep(Some(5))),
            (timed(None), asleep(Some(5)), timed(Some(5))),
            (asleep(Some(4)), timed(Some(5)), timed(Some(4))),
            (Arm::Busy, timed(Some(5)), Arm::Busy),
            (timed(Some(5)), Arm::Busy, Arm::Busy),
        ] {
            let mut log = Log::new();
            assert_eq!(two(first, second).arm(&mut log, 0), all, "{first:?} {second:?}");
            assert_eq!(log.len(), 2, "each is armed");
        }
    }

    #[test]
    fn the_last_one_drains_first() {
        let (mut frontends, mut log) = (two(SLEEP, SLEEP), Log::new());
        assert!(!frontends.are_drained());
        frontends.drain(&mut log, 0);
        assert_eq!(log, [('b', "drain"), ('a', "drain")]);
        assert!(frontends.are_drained());
    }
}
