//! Windows: the cost that a device may have at once, found by measuring the time of commands.
//!
//! The time of a command is compared with the least mean time of its kind. A device that is not busy needs that time. If
//! commands take longer, some wait in the device, and the window becomes smaller. As long as commands wait for the window
//! and not in the device, the window grows. Interactive commands control a second window: that of background commands.

use sluice_command::{Operation, Request};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Cost of a command besides its bytes, in bytes.
pub(super) const COMMAND_COST: u64 = 16 << 10;

/// Returns the cost of a request in bytes: a Read of 4 KiB costs 20, one of 1 MiB 1,040.
pub(super) fn cost(request: &Request) -> u64 {
    match request.operation {
        Operation::Read | Operation::Write | Operation::WriteZeroes => {
            COMMAND_COST.saturating_add(request.length.min(4 << 20))
        }
        Operation::Deallocate | Operation::Flush => COMMAND_COST,
    }
}

/// Kinds of commands that take about the same time: five sizes of reads, and of writes.
const KINDS: usize = 10;

/// Kind of a command whose time is compared with others; none for commands that are not measured.
pub(super) type Kind = Option<u8>;

/// Returns the kind of a request.
pub(super) fn kind(request: &Request) -> Kind {
    let first = match request.operation {
        Operation::Read => 0,
        Operation::Write => 5,
        _ => return None,
    };
    let size = match request.length >> 12 {
        0..=2 => 0,
        3..=8 => 1,
        9..=32 => 2,
        33..=128 => 3,
        _ => 4,
    };
    Some(first + size)
}

/// Ratio of one, for ratios of times.
const ONE: u64 = 1024;

/// Mean ratio above which commands wait in the device.
const CONGESTED: u64 = ONE * 5 / 4;

/// Mean ratio above which interactive commands wait for background ones.
const DISTURBED: u64 = ONE + ONE / 24;

/// Commands of a mean time, and of a decision.
const TIMES: u64 = 128;
const DECISION: u64 = 64;
const INTERACTIVE_DECISION: u64 = 64;

/// Least time that differs from shorter ones: turns of a reactor take as long.
const LEAST_NS: u64 = 20_000;

/// Time for which a least time counts, at least; twice that at most.
const PERIOD_NS: u64 = 5_000_000_000;

/// Time for which the background window stays after it was cut, and between two steps of growth then.
const HOLD_NS: u64 = 1_000_000_000;
const STEP_NS: u64 = 100_000_000;

const WINDOW_MIN: u64 = 20 << 10;
const WINDOW_FIRST: u64 = 8 * WINDOW_MIN;
const WINDOW_MAX: u64 = 1 << 30;

/// Sum of samples. The caller that adds the last one of a mean gets the mean.
#[derive(Debug, Default)]
struct Mean {
    sum: AtomicU64,
    count: AtomicU64,
}

impl Mean {
    fn add(&self, sample: u64, of: u64) -> Option<u64> {
        self.sum.fetch_add(sample.min(1 << 40), Relaxed);
        let count = self.count.fetch_add(1, Relaxed) + 1;
        count.is_multiple_of(of).then(|| self.sum.swap(0, Relaxed) / of)
    }

    fn clear(&self) {
        self.sum.store(0, Relaxed);
        self.count.store(0, Relaxed);
    }
}

/// Least mean time of a kind of commands, in this period and in the one before.
#[derive(Debug)]
struct Least {
    mean: Mean,
    now: AtomicU64,
    before: AtomicU64,
    since_ns: AtomicU64,
}

impl Least {
    fn new() -> Self {
        let [now, before] = [(); 2].map(|()| AtomicU64::new(u64::MAX));
        Self { mean: Mean::default(), now, before, since_ns: AtomicU64::new(0) }
    }

    /// Adds a time; returns its ratio to the least one.
    fn ratio(&self, took_ns: u64, now_ns: u64) -> u64 {
        if let Some(mean) = self.mean.add(took_ns, TIMES) {
            if now_ns.saturating_sub(self.since_ns.load(Relaxed)) > PERIOD_NS {
                self.since_ns.store(now_ns, Relaxed);
                self.before.store(self.now.swap(u64::MAX, Relaxed), Relaxed);
            }
            self.now.fetch_min(mean.max(LEAST_NS), Relaxed);
        }
        let least = self.now.load(Relaxed).min(self.before.load(Relaxed));
        match least {
            u64::MAX => ONE,
            least => {
                (u128::from(took_ns) * u128::from(ONE) / u128::from(least)).try_into().unwrap_or(u64::MAX)
            }
        }
    }
}

/// Numbers of the windows: of all commands, and of background commands beside interactive ones.
pub(super) const WHOLE: usize = 0;
pub(super) const BESIDE: usize = 1;

/// The windows of a device.
#[derive(Debug)]
pub(super) struct Windows {
    least: [Least; KINDS],
    all: Mean,
    times: Mean,
    mean_ns: AtomicU64,
    interactive: Mean,
    whole: AtomicU64,
    background: AtomicU64,
    /// Commands have waited for a [window](WHOLE) since the last decision.
    limited: [AtomicBool; 2],
    /// The window was not cut yet.
    is_new: [AtomicBool; 2],
    /// Time of the last cut of the background window, and of the last step of growth.
    cut_ns: AtomicU64,
    step_ns: AtomicU64,
}

impl Windows {
    pub(super) fn new() -> Self {
        Self {
            least: std::array::from_fn(|_| Least::new()),
            all: Mean::default(),
            times: Mean::default(),
            mean_ns: AtomicU64::new(1_000_000),
            interactive: Mean::default(),
            whole: AtomicU64::new(WINDOW_FIRST),
            background: AtomicU64::new(0),
            limited: Default::default(),
            is_new: [(); 2].map(|()| AtomicBool::new(true)),
            cut_ns: AtomicU64::new(0),
            step_ns: AtomicU64::new(0),
        }
    }

    /// Returns the window of all commands.
    pub(super) fn whole(&self) -> u64 {
        self.whole.load(Relaxed)
    }

    /// Returns the window of background commands beside interactive ones.
    pub(super) fn background(&self) -> u64 {
        self.background.load(Relaxed).min(self.whole())
    }

    /// Notes that commands wait for a window; returns false.
    pub(super) fn note_limited(&self, window: usize) -> bool {
        self.limited[window].store(true, Relaxed);
        false
    }

    /// Returns the mean time of a command, or a millisecond if that is not known yet.
    pub(super) fn mean_ns(&self) -> u64 {
        self.mean_ns.load(Relaxed).max(1)
    }

    /// Begins with a small background window: interactive commands are here again.
    pub(super) fn begin_anew(&self) {
        self.background.store(0, Relaxed);
        self.is_new[BESIDE].store(true, Relaxed);
        self.interactive.clear();
    }

    /// Notes the time of a command, and decides on the windows.
    pub(super) fn note(&self, kind: Kind, is_interactive: bool, took_ns: u64, now_ns: u64) {
        let Some(least) = kind.and_then(|kind| self.least.get(usize::from(kind))) else { return };
        let ratio = least.ratio(took_ns, now_ns);
        if is_interactive && let Some(mean) = self.interactive.add(ratio, INTERACTIVE_DECISION) {
            self.decide_background(mean, now_ns);
        }
        if let Some(mean) = self.times.add(took_ns, DECISION) {
            self.mean_ns.store(mean, Relaxed);
        }
        if let Some(mean) = self.all.add(ratio, DECISION) {
            self.decide(mean);
        }
    }

    fn decide(&self, mean: u64) {
        let whole = self.whole();
        let was_limited = self.limited[WHOLE].swap(false, Relaxed);
        let next = if mean > CONGESTED {
            self.is_new[WHOLE].store(false, Relaxed);
            whole - whole / 8
        } else if !was_limited {
            whole
        } else if self.is_new[WHOLE].load(Relaxed) {
            2 * whole
        } else {
            whole + (whole / 16).max(WINDOW_MIN / 4)
        };
        self.whole.store(next.clamp(WINDOW_MIN, WINDOW_MAX), Relaxed);
    }

    fn decide_background(&self, mean: u64, now_ns: u64) {
        let background = self.background();
        let was_limited = self.limited[BESIDE].swap(false, Relaxed);
        if mean > DISTURBED {
            self.is_new[BESIDE].store(false, Relaxed);
            let cut = background - background / 4;
            self.background.store(if cut < WINDOW_MIN / 2 { 0 } else { cut }, Relaxed);
            self.cut_ns.store(now_ns, Relaxed);
            return;
        }
        let is_new = self.is_new[BESIDE].load(Relaxed);
        let passed = |since: &AtomicU64| now_ns.saturating_sub(since.load(Relaxed));
        if was_limited && (is_new || passed(&self.cut_ns) > HOLD_NS && passed(&self.step_ns) > STEP_NS) {
            self.background.store(background + WINDOW_MIN / 2, Relaxed);
            self.step_ns.store(now_ns, Relaxed);
        }
    }
}
