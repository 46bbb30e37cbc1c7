//! Buckets of units that come at a rate. Several reactors claim units without a lock, and nothing is rounded twice.
//!
//! A bucket counts all units that have come, and all that are claimed. A claim gets the next number in the line, its
//! *slot*, and is due when as many units have come. So claims of several users are served in their order, and the
//! rate is exact over any time. A change of the rate changes only the time of the slots.

use super::QosLimits;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

const NS_PER_SECOND: u128 = 1_000_000_000;

/// Buckets of a budget: commands and bytes of reads, of writes, and of both together.
pub(super) const BUCKETS: usize = 6;

/// Buckets of a class of commands: its own for commands and bytes, and those for both classes.
pub(super) const PLACES: [[usize; 4]; 2] = [[0, 1, 4, 5], [2, 3, 4, 5]];

/// Units of a command: a rate of one a second is counted in milliseconds.
pub(super) const COMMAND: u64 = 1024;

/// Amounts of a claim: units of commands, and bytes. The kind of a place is its index modulo 2.
pub(super) type Amounts = [u64; 2];

/// Slots of a claim in the [places](PLACES) of its class.
pub(super) type Slots = [u64; 4];

/// Rate at which units come; none if `per_second` is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rate {
    pub(super) per_second: u64,
    /// Units that can be saved up.
    pub(super) burst: u64,
    /// Units that had come at the time `since_ns`.
    base: u64,
    since_ns: u64,
}

impl Rate {
    pub(super) fn is_limit(&self) -> bool {
        self.per_second != 0
    }

    /// Returns the units that come in a time.
    pub(super) fn come_in(&self, time_ns: u64) -> u64 {
        let come = u128::from(time_ns) * u128::from(self.per_second) / NS_PER_SECOND;
        come.try_into().unwrap_or(u64::MAX)
    }

    /// Returns the units that have come by `now_ns`.
    pub(super) fn earned(&self, now_ns: u64) -> u64 {
        self.base.saturating_add(self.come_in(now_ns.saturating_sub(self.since_ns)))
    }

    /// Returns the units saved beyond the burst, which are not available any more.
    fn lapsed(&self, now_ns: u64) -> u64 {
        self.earned(now_ns).saturating_sub(self.burst)
    }

    /// Returns the first time at which so many units have come.
    pub(super) fn time_of(&self, units: u64) -> u64 {
        let Some(missing) = units.checked_sub(self.base).filter(|_| self.is_limit()) else { return 0 };
        let wait = (u128::from(missing) * NS_PER_SECOND).div_ceil(self.per_second.into());
        self.since_ns.saturating_add(wait.try_into().unwrap_or(u64::MAX))
    }

    fn words(self) -> [u64; 4] {
        [self.per_second, self.burst, self.base, self.since_ns]
    }

    fn from_words([per_second, burst, base, since_ns]: [u64; 4]) -> Self {
        Self { per_second, burst, base, since_ns }
    }
}

/// The rates of a budget, as a user has read them last.
pub(super) type Rates = [Rate; BUCKETS];

/// Units that are claimed, on cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Claimed(AtomicU64);

/// Time for which a line claims units for waiting commands: several times as long as turns are late. Otherwise the drive
/// with the first turn would claim before drives whose units came earlier, again and again.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Ahead {
    ns: AtomicU64,
    changed_ns: AtomicU64,
}

/// Longest time for which several commands are claimed at once.
const AHEAD_MAX_NS: u64 = 2_000_000;

/// Time of a claim for each nanosecond that a turn is late.
const AHEAD_OF_LATE: u64 = 8;

/// Time after which the time for claims is halved, unless turns are as late as before.
const AHEAD_LASTS_NS: u64 = 1_000_000_000;

impl Ahead {
    pub(super) fn ns(&self, now_ns: u64) -> u64 {
        let ns = self.ns.load(Ordering::Relaxed);
        if ns == 0 || now_ns.saturating_sub(self.changed_ns.load(Ordering::Relaxed)) < AHEAD_LASTS_NS {
            return ns;
        }
        self.set(ns / 2, now_ns);
        ns / 2
    }

    /// Notes that a turn was late by this time.
    pub(super) fn note_late(&self, late_ns: u64, now_ns: u64) {
        let ahead_ns = late_ns.saturating_mul(AHEAD_OF_LATE).min(AHEAD_MAX_NS);
        if ahead_ns > self.ns.load(Ordering::Relaxed) {
            self.set(ahead_ns, now_ns);
        }
    }

    fn set(&self, ns: u64, now_ns: u64) {
        self.ns.store(ns, Ordering::Relaxed);
        self.changed_ns.store(now_ns, Ordering::Relaxed);
    }
}

/// Buckets that one or several layers share.
#[derive(Debug, Default)]
pub(super) struct Budget {
    pub(super) ahead: Ahead,
    claimed: [Claimed; BUCKETS],
    /// Even, and odd while the rates are written.
    version: AtomicU64,
    rates: [[AtomicU64; 4]; BUCKETS],
    /// Limits as a user wrote them. Locked by control threads only.
    limits: Mutex<QosLimits>,
}

impl Budget {
    pub(super) fn new(limits: QosLimits, now_ns: u64) -> Self {
        let budget = Self::default();
        budget.set(limits, now_ns);
        budget
    }

    pub(super) fn limits(&self) -> QosLimits {
        *self.locked()
    }

    /// Sets the limits. For control threads.
    pub(super) fn set(&self, limits: QosLimits, now_ns: u64) {
        let mut current = self.locked();
        *current = limits;
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        for (index, per_second) in limits.rates().into_iter().enumerate() {
            let former = self.rate(index);
            let claimed = self.claimed[index].0.load(Ordering::Relaxed);
            // Where there was no limit, nothing was claimed, and nothing is saved up.
            let base = if former.is_limit() { former.earned(now_ns) } else { former.base.max(claimed) };
            let rate = Rate { per_second, burst: limits.burst_of(per_second), base, since_ns: now_ns };
            let words = rate.words();
            self.rates[index].iter().zip(words).for_each(|(cell, word)| cell.store(word, Ordering::Relaxed));
        }
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// Locks the limits. A panic ends the process, so the lock is never poisoned.
    fn locked(&self) -> MutexGuard<'_, QosLimits> {
        self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rate(&self, index: usize) -> Rate {
        Rate::from_words(self.rates[index].each_ref().map(|cell| cell.load(Ordering::Relaxed)))
    }

    /// Reads the rates; none while they are written. Does not wait.
    pub(super) fn read(&self) -> Option<Rates> {
        let version = self.version.load(Ordering::Acquire);
        let rates = std::array::from_fn(|index| self.rate(index));
        fence(Ordering::Acquire);
        let is_whole = version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version;
        is_whole.then_some(rates)
    }

    /// Claims units for a command that came, or became the first of its line, at `since_ns`.
    pub(super) fn claim(&self, rates: &Rates, class: usize, amounts: Amounts, since_ns: u64) -> Slots {
        self.each(rates, class, amounts, |claimed, rate, amount| {
            claimed.fetch_max(rate.lapsed(since_ns), Ordering::Relaxed);
            claimed.fetch_add(amount, Ordering::Relaxed)
        })
    }

    /// Gives claimed units back.
    pub(super) fn unclaim(&self, rates: &Rates, class: usize, amounts: Amounts) {
        self.each(rates, class, amounts, |claimed, _, amount| claimed.fetch_sub(amount, Ordering::Relaxed));
    }

    /// Claims units that the user has in any case, unless earlier ones have not come yet.
    pub(super) fn charge(&self, rates: &Rates, class: usize, amounts: Amounts, now_ns: u64) {
        self.each(rates, class, amounts, |claimed, rate, amount| {
            claimed.fetch_max(rate.lapsed(now_ns), Ordering::Relaxed);
            if claimed.load(Ordering::Relaxed) <= rate.earned(now_ns) {
                claimed.fetch_add(amount, Ordering::Relaxed);
            }
            0
        });
    }

    /// Returns the slots that the next claim would get.
    pub(super) fn next(&self, rates: &Rates, class: usize, now_ns: u64) -> Slots {
        self.each(rates, class, [1; 2], |claimed, rate, _| {
            claimed.load(Ordering::Relaxed).max(rate.lapsed(now_ns))
        })
    }

    /// Calls `with` for all limits of the class that the amounts concern. The slot of other places is zero.
    fn each(
        &self,
        rates: &Rates,
        class: usize,
        amounts: Amounts,
        with: impl Fn(&AtomicU64, &Rate, u64) -> u64,
    ) -> Slots {
        let mut slots = [0; 4];
        for (number, &place) in PLACES[class].iter().enumerate() {
            let (rate, amount) = (&rates[place], amounts[number % 2]);
            if rate.is_limit() && amount > 0 {
                slots[number] = with(&self.claimed[place].0, rate, amount);
            }
        }
        slots
    }
}

/// Returns the time at which slots are due, for commands and for bytes.
pub(super) fn due_ns(rates: &Rates, class: usize, slots: Slots) -> [u64; 2] {
    let mut due = [0; 2];
    for (number, (&place, slot)) in PLACES[class].iter().zip(slots).enumerate() {
        due[number % 2] = rates[place].time_of(slot).max(due[number % 2]);
    }
    due
}
