//! State of the fdatasyncs of a file, shared by all its targets and by threads that flush the file themselves.

use super::outcome::is_interrupted;
use sluice_reactor::Results;
use std::collections::BTreeSet;
use std::sync::atomic::{
    AtomicBool, AtomicI64, AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{io, thread};

/// First delay before the next check whether another fdatasync of the same file has ended, ns.
pub(super) const LOOK_NS: u64 = 50_000;

/// Maximum of that delay, which doubles with each check, ns.
pub(super) const LOOK_MAX_NS: u64 = 5_000_000;

/// Time for which a target or thread gives way to another that waits after its own fdatasync, ns. It is longer than
/// that one's delay between two checks.
pub(super) const WAY_NS: u64 = 2 * LOOK_MAX_NS;

/// State of the fdatasyncs of a file.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// Whether an fdatasync runs.
    runs: AtomicBool,
    /// Whether another target or thread has found one running, and waits.
    wanted: AtomicBool,
    /// Whether the kernel has lost finished writes, so that no Flush succeeds any more.
    lost: AtomicBool,
    /// Number of doubts raised so far; `count`: number of open ones. Both change only while `open` is locked.
    raised: AtomicU64,
    count: AtomicUsize,
    /// Open doubts, locked only after a failure.
    open: Mutex<BTreeSet<Doubt>>,
    /// End of the last turn of a thread, locked only by threads that may block.
    thread_turn: Mutex<Option<Instant>>,
}

/// Number of a write that failed with FUA, while it is open whether its flush failed, and with it data of
/// other writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Doubt(pub(super) u64);

impl Shared {
    fn open(&self) -> MutexGuard<'_, BTreeSet<Doubt>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn has_lost(&self) -> bool {
        self.lost.load(Acquire)
    }

    pub(super) fn lose(&self) {
        self.lost.store(true, Release);
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.wanted.load(Acquire)
    }

    /// Returns whether a doubt is open that was raised before this one.
    pub(super) fn is_in_doubt(&self, before: Doubt) -> bool {
        self.count.load(Acquire) > 0 && self.open().first().is_some_and(|first| *first < before)
    }

    /// Returns the number of the next doubt.
    pub(super) fn next_doubt(&self) -> Doubt {
        Doubt(self.raised.load(Acquire))
    }

    pub(super) fn raise(&self) -> Doubt {
        let mut open = self.open();
        let number = self.raised.load(Relaxed);
        let doubt = Doubt(number);
        open.insert(doubt);
        self.count.store(open.len(), Release);
        // A reader of this number finds the doubt open.
        self.raised.store(number + 1, Release);
        doubt
    }

    pub(super) fn settle(&self, doubt: Doubt) {
        let mut open = self.open();
        open.remove(&doubt);
        self.count.store(open.len(), Release);
    }

    /// Takes the turn for an fdatasync, if none runs. The result of the last one was stored before the turn was free.
    pub(super) fn take_turn(&self) -> bool {
        let is_free = !self.runs.swap(true, Acquire);
        self.wanted.store(!is_free, Release);
        is_free
    }

    pub(super) fn end_turn(&self) {
        self.runs.store(false, Release);
    }

    /// Flushes the file on a thread that may block, in a turn of its own. Threads give way to others after a turn.
    pub(super) fn flush(&self, sync: impl FnMut() -> io::Result<()>) -> io::Result<()> {
        self.flush_with(Duration::from_nanos(WAY_NS), sync, thread::sleep)
    }

    /// Returns the end of the last turn of a thread.
    fn thread_turn(&self) -> MutexGuard<'_, Option<Instant>> {
        self.thread_turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the turn of a thread.
    fn end_thread_turn(&self) {
        *self.thread_turn() = Some(Instant::now());
        self.end_turn();
    }

    /// Flushes the file as [`flush`](Self::flush) does, with this time for others after the last turn of a thread, and
    /// with this pause before each further check.
    fn flush_with(
        &self,
        way: Duration,
        mut sync: impl FnMut() -> io::Result<()>,
        mut pause: impl FnMut(Duration),
    ) -> io::Result<()> {
        let last = *self.thread_turn();
        let has_given_way = || !self.is_wanted() || last.is_none_or(|last| last.elapsed() >= way);
        wait_until(has_given_way, &mut pause);
        wait_until(|| self.take_turn(), &mut pause);
        if !self.has_lost() {
            // An interrupted fdatasync reports no lost write.
            let failed = std::iter::repeat_with(&mut sync)
                .find(|result| !matches!(result, Err(error) if error.kind() == io::ErrorKind::Interrupted))
                .and_then(Result::err);
            let before = self.next_doubt();
            if let Some(error) = failed {
                self.lose();
                self.end_thread_turn();
                return Err(error);
            }
            self.end_thread_turn();
            wait_until(|| self.has_lost() || !self.is_in_doubt(before), &mut pause);
        } else {
            self.end_turn();
        }
        match self.has_lost() {
            true => Err(io::Error::other("an earlier flush failed, and data may be lost")),
            false => Ok(()),
        }
    }
}

fn wait_until(is_so: impl Fn() -> bool, pause: &mut impl FnMut(Duration)) {
    let mut look_ns = LOOK_NS;
    while !is_so() {
        pause(Duration::from_nanos(look_ns));
        look_ns = (2 * look_ns).min(LOOK_MAX_NS);
    }
}

/// Values of [`Run::state`] beside the result of an fdatasync.
const IDLE: i64 = i64::MIN;
const RUNNING: i64 = i64::MIN + 1;
const ABANDONED: i64 = i64::MIN + 2;

/// The fdatasync that the kernel has of one target. Its result counts also when the target is gone.
#[derive(Debug)]
pub(super) struct Run {
    state: AtomicI64,
    shared: Arc<Shared>,
}

impl Run {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { state: AtomicI64::new(IDLE), shared }
    }

    pub(super) fn begin(&self) {
        self.state.store(RUNNING, Release);
    }

    /// Leaves a running fdatasync: its result ends the turn. It may be there already.
    pub(super) fn abandon(&self) {
        let state = self.state.swap(ABANDONED, AcqRel);
        if state != RUNNING {
            self.state.store(IDLE, Release);
            self.conclude(state);
        }
    }

    /// Ends the turn of a target that is gone. A failed fdatasync has lost writes; an interrupted one reports none.
    fn conclude(&self, result: i64) {
        if result < 0 && !is_interrupted(-result) {
            self.shared.lose();
        }
        self.shared.end_turn();
    }
}

impl Results for Run {
    fn ended(&self, result: i32) {
        if self.state.swap(result.into(), AcqRel) == ABANDONED {
            self.conclude(result.into());
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // No result will arrive, so it counts as a failure.
        if *self.state.get_mut() == ABANDONED {
            self.shared.lose();
            self.shared.end_turn();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::collections::VecDeque;

    const WAY: Duration = Duration::from_nanos(WAY_NS);

    fn error(kind: io::ErrorKind) -> io::Result<()> {
        Err(kind.into())
    }

    #[test]
    fn a_flush_of_another_thread_loses_data_for_all_and_is_repeated_if_it_was_interrupted() {
        let shared = Shared::default();
        let mut results: VecDeque<_> = [error(io::ErrorKind::Interrupted), Ok(())].into();
        shared.flush(|| results.pop_front().expect("two calls")).expect("it succeeds");
        assert!(results.is_empty() && !shared.has_lost() && shared.take_turn());
        shared.end_turn();
        shared.flush(|| error(io::ErrorKind::BrokenPipe)).expect_err("it fails");
        assert!(shared.has_lost() && shared.take_turn());
        shared.end_turn();
        shared.flush(|| unreachable!("none begins")).expect_err("data is lost");
        assert!(shared.take_turn(), "the turn is free");
    }

    /// Ends another fdatasync after some checks, and settles a doubt after some more, with a loss and without one.
    #[test]
    fn a_flush_of_another_thread_waits_for_its_turn_and_for_doubts() {
        for has_lost in [false, true] {
            let shared = Shared::default();
            let doubt = shared.raise();
            assert!(shared.take_turn());
            let began = Cell::new(0);
            let mut delays = Vec::new();
            let sync = || {
                began.set(began.get() + 1);
                Ok(())
            };
            let flushed = shared.flush_with(WAY, sync, |delay| {
                delays.push(delay.as_nanos() as u64 / LOOK_NS);
                assert_eq!(
                    began.get(),
                    u32::from(delays.len() > 3),
                    "another one runs, then a write is in doubt"
                );
                match delays.len() {
                    1..3 => assert!(shared.is_wanted()),
                    3 => shared.end_turn(),
                    4..12 => assert!(!shared.is_wanted()),
                    12 => {
                        if has_lost {
                            shared.lose();
                        }
                        shared.settle(doubt);
                    }
                    more => panic!("it waits for nothing, {more} times"),
                }
            });
            assert_eq!(flushed.is_err(), has_lost);
            assert_eq!(delays, [1, 2, 4, 1, 2, 4, 8, 16, 32, 64, 100, 100], "they double up to a limit");
            assert_eq!(began.get(), 1);
            assert!(shared.take_turn(), "the turn is free");
        }
    }

    #[test]
    fn a_flush_of_another_thread_does_not_wait_for_doubts_that_are_raised_after_it() {
        let shared = Shared::default();
        shared.flush_with(WAY, || Ok(()), |_| panic!("it waits")).expect("nothing is in doubt");
        let (first, second) = (shared.raise(), shared.raise());
        let mut looks = 0;
        let flushed = shared.flush_with(
            WAY,
            || Ok(()),
            |_| {
                looks += 1;
                shared.raise();
                match looks {
                    1 => shared.settle(second),
                    2 => shared.settle(first),
                    _ => panic!("it waits for a later write"),
                }
            },
        );
        flushed.expect("both are settled");
        assert_eq!(looks, 2);
    }

    #[test]
    fn a_thread_that_has_had_its_turn_gives_way_to_one_that_waits() {
        let (shared, hour) = (Shared::default(), Duration::from_secs(3600));
        let flush = || shared.flush_with(hour, || Ok(()), thread::sleep);
        flush().expect("it succeeds");
        flush().expect("nobody else wants a turn");
        // A target finds a turn taken, and looks again later.
        assert!(shared.take_turn() && !shared.take_turn());
        shared.end_turn();
        let began = AtomicBool::new(false);
        thread::scope(|scope| {
            let flush = scope.spawn(|| {
                let sync = || {
                    began.store(true, Release);
                    Ok(())
                };
                shared.flush_with(hour, sync, thread::sleep)
            });
            thread::sleep(Duration::from_nanos(WAY_NS));
            assert!(shared.take_turn(), "it is the turn of the target");
            assert!(!began.load(Acquire) && !flush.is_finished());
            shared.end_turn();
            flush.join().expect("no panic").expect("it succeeds");
        });
        // The target that waits may be gone.
        assert!(shared.take_turn() && !shared.take_turn());
        shared.end_turn();
        shared.flush_with(Duration::ZERO, || Ok(()), thread::sleep).expect("it succeeds");
    }

    #[test]
    fn an_interrupted_result_ends_the_turn_of_a_target_that_is_gone() {
        for errno in [libc::EINTR, libc::EAGAIN, libc::ECANCELED] {
            for is_late in [false, true] {
                let shared = Arc::new(Shared::default());
                let run = Run::new(Arc::clone(&shared));
                assert!(shared.take_turn());
                run.begin();
                if is_late {
                    run.abandon();
                    run.ended(-errno);
                } else {
                    run.ended(-errno);
                    run.abandon();
                }
                assert!(!shared.has_lost() && shared.take_turn(), "{errno}");
            }
        }
    }

    #[test]
    fn a_result_counts_whether_it_comes_before_or_after_its_target_goes() {
        for (result, is_lost) in [(0, false), (-5, true)] {
            for is_late in [false, true] {
                let shared = Arc::new(Shared::default());
                let run = Run::new(Arc::clone(&shared));
                assert!(shared.take_turn());
                run.begin();
                if is_late {
                    run.abandon();
                    assert!(!shared.take_turn(), "the kernel has it");
                    run.ended(result);
                } else {
                    run.ended(result);
                    assert!(!shared.take_turn(), "the target has its result");
                    run.abandon();
                }
                assert_eq!((shared.has_lost(), shared.take_turn()), (is_lost, true));
                shared.end_turn();
                drop(run);
                assert_eq!(shared.has_lost(), is_lost);
            }
        }
    }
}
