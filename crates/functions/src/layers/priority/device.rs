//! A device that several drives share: virtual time of each class, and cost in flight. Used by all reactors, without a
//! lock.

use super::PriorityClass;
use super::window::{BESIDE, COMMAND_COST, Kind, WHOLE, Windows};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Layers of a class that are served in turn; others do not hold up any.
const LINES_MAX: usize = 512;

/// Virtual time by which a line may be ahead of the one that got least: that of 128 KiB of cost with a weight of 100.
const AHEAD: u64 = 8 << 10;

/// Tag of a line without waiting commands.
const IDLE: u64 = u64::MAX;

/// Least and most time between two tries of a line.
const TRY_NS: [u64; 2] = [50_000, 1_000_000];

/// Time after an interactive command for which background commands leave room.
const ACTIVE_NS: u64 = 1_000_000_000;

/// Cost of the guaranteed share that is saved up: the largest command.
const SAVED_MAX: u64 = 2 << 20;

/// Share of background commands, per cent.
const BACKGROUND_PERCENT: u64 = 10;

/// All devices of a daemon that drives share.
#[derive(Clone, Debug, Default)]
pub struct Devices(Arc<Mutex<BTreeMap<String, Weak<Device>>>>);

impl Devices {
    /// Returns the device of this name. For control threads.
    pub(super) fn open(&self, name: &str) -> Arc<Device> {
        // A panic ends the process, so the lock is never poisoned.
        let mut devices = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        devices.retain(|_, device| device.strong_count() > 0);
        if let Some(device) = devices.get(name).and_then(Weak::upgrade) {
            return device;
        }
        let device = Arc::new(Device::new());
        devices.insert(name.to_owned(), Arc::downgrade(&device));
        device
    }
}

/// Drives of one class on a device.
#[derive(Debug)]
struct Class {
    /// Virtual time: the cost, divided by the weight, that each line with waiting commands has got at least.
    time: AtomicU64,
    /// Virtual time of each line with waiting commands.
    tags: Box<[AtomicU64]>,
    /// Tags that were ever used.
    used: AtomicUsize,
    /// Lines with waiting commands.
    waiting: AtomicUsize,
    /// Cost of commands on the device.
    in_flight: AtomicU64,
}

/// A device that drives share.
#[derive(Debug)]
pub struct Device {
    classes: [Class; 2],
    windows: Windows,
    /// Time of the last interactive command, and whether there was one.
    interactive_ns: AtomicU64,
    /// Cost that background commands may have in any case, and the time until which it is counted.
    entitled: AtomicU64,
    entitled_ns: AtomicU64,
    /// Cost of background commands that counts against it.
    charged: AtomicU64,
    background_percent: AtomicU64,
}

impl Class {
    fn new() -> Self {
        Self {
            time: AtomicU64::new(0),
            tags: (0..LINES_MAX).map(|_| AtomicU64::new(UNUSED)).collect(),
            used: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            in_flight: AtomicU64::new(0),
        }
    }

    /// Advances the virtual time to that of the line which got least.
    fn advance(&self) -> u64 {
        let used = self.used.load(Relaxed).min(self.tags.len());
        let least = self.tags[..used].iter().map(|tag| tag.load(Relaxed)).min().unwrap_or(IDLE);
        match least {
            IDLE | UNUSED => self.time.load(Relaxed),
            least => self.time.fetch_max(least, Relaxed).max(least),
        }
    }
}

/// Tag of a place that no line has.
const UNUSED: u64 = u64::MAX - 1;

/// Place of a line among the tags of its class.
#[derive(Debug)]
pub(super) struct Place {
    device: Arc<Device>,
    class: usize,
    index: Option<usize>,
    is_waiting: bool,
    /// Cost of the line's commands on the device.
    in_flight: u64,
}

impl Place {
    pub(super) fn new(device: Arc<Device>, class: PriorityClass) -> Self {
        let class = class as usize;
        let of = &device.classes[class];
        let take = |tag: &AtomicU64| tag.compare_exchange(UNUSED, IDLE, Relaxed, Relaxed).is_ok();
        let index = of.tags.iter().position(take);
        of.used.fetch_max(index.map_or(0, |index| index + 1), Relaxed);
        Self { device, class, index, is_waiting: false, in_flight: 0 }
    }

    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    /// Publishes the virtual time of the first waiting command; none if no command waits.
    pub(super) fn publish(&mut self, tag: Option<u64>) {
        let class = &self.device.classes[self.class];
        if let Some(index) = self.index {
            class.tags[index].store(tag.unwrap_or(IDLE), Relaxed);
        }
        match (self.is_waiting, tag.is_some()) {
            (false, true) => drop(class.waiting.fetch_add(1, Relaxed)),
            (true, false) => drop(class.waiting.fetch_sub(1, Relaxed)),
            _ => {}
        }
        self.is_waiting = tag.is_some();
    }

    /// Returns the virtual time at which a line without waiting commands goes on.
    pub(super) fn begin(&self, tag: u64) -> u64 {
        tag.max(self.device.classes[self.class].time.load(Relaxed))
    }

    /// Starts a command if the device has room, and other lines have got enough. Returns whether it is started.
    pub(super) fn start(&mut self, tag: u64, cost: u64, now_ns: u64) -> bool {
        let class = &self.device.classes[self.class];
        let others_wait = class.waiting.load(Relaxed) > usize::from(self.is_waiting);
        let limit = |time: u64| time.saturating_add(AHEAD);
        if others_wait && tag > limit(class.time.load(Relaxed)) && tag > limit(class.advance()) {
            return false;
        }
        if !self.device.has_room(self.class, now_ns) {
            return false;
        }
        if !others_wait {
            class.time.fetch_max(tag, Relaxed);
        }
        self.device.note_start(self.class, cost, now_ns);
        self.in_flight += cost;
        true
    }

    /// Ends a command that took this time.
    pub(super) fn end(&mut self, kind: Kind, cost: u64, took_ns: u64, now_ns: u64) {
        let device = &*self.device;
        self.in_flight -= cost;
        device.classes[self.class].in_flight.fetch_sub(cost, Relaxed);
        device.windows.note(kind, self.class == INTERACTIVE, took_ns, now_ns);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.publish(None);
        // Commands that never came back.
        self.device.classes[self.class].in_flight.fetch_sub(self.in_flight, Relaxed);
        if let Some(index) = self.index {
            self.device.classes[self.class].tags[index].store(UNUSED, Relaxed);
        }
    }
}

const INTERACTIVE: usize = PriorityClass::Interactive as usize;
const BACKGROUND: usize = PriorityClass::Background as usize;

impl Device {
    pub(super) fn new() -> Self {
        Self {
            classes: [Class::new(), Class::new()],
            windows: Windows::new(),
            interactive_ns: AtomicU64::new(IDLE),
            entitled: AtomicU64::new(0),
            entitled_ns: AtomicU64::new(0),
            charged: AtomicU64::new(0),
            background_percent: AtomicU64::new(BACKGROUND_PERCENT),
        }
    }

    pub(super) fn set_background_percent(&self, percent: u32) {
        self.background_percent.store(percent.into(), Relaxed);
    }

    /// Returns the time after which a line without commands on the device is tried again.
    pub(super) fn pause_ns(&self) -> u64 {
        (self.windows.mean_ns() / 4).clamp(TRY_NS[0], TRY_NS[1])
    }

    fn in_flight(&self, class: usize) -> u64 {
        self.classes[class].in_flight.load(Relaxed)
    }

    fn has_room(&self, class: usize, now_ns: u64) -> bool {
        let (window, windows) = (self.windows.whole(), &self.windows);
        let all = self.in_flight(BACKGROUND) + self.in_flight(INTERACTIVE);
        if class == INTERACTIVE {
            let room = self.in_flight(class) < window;
            return room || windows.note_limited(WHOLE);
        }
        if !self.is_active(now_ns) {
            return all < window || windows.note_limited(WHOLE);
        }
        let room = if all >= window {
            windows.note_limited(WHOLE)
        } else {
            self.in_flight(BACKGROUND) < windows.background() || windows.note_limited(BESIDE)
        };
        room || self.is_entitled(now_ns)
    }

    /// Returns whether there were interactive commands lately.
    fn is_active(&self, now_ns: u64) -> bool {
        let last_ns = self.interactive_ns.load(Relaxed);
        last_ns != IDLE && now_ns.saturating_sub(last_ns) < ACTIVE_NS
    }

    /// Returns whether background commands have got less than their share. The cost of a window comes in the time of a
    /// command.
    fn is_entitled(&self, now_ns: u64) -> bool {
        let percent = self.background_percent.load(Relaxed);
        // The last command of a window exceeds it.
        let share = (self.windows.whole() + COMMAND_COST) * percent / (100 - percent);
        let passed_ns = now_ns.saturating_sub(self.entitled_ns.swap(now_ns, Relaxed));
        let come = u128::from(share) * u128::from(passed_ns) / u128::from(self.windows.mean_ns());
        let come = come.try_into().unwrap_or(u64::MAX).min(SAVED_MAX);
        let entitled = self.entitled.fetch_add(come, Relaxed) + come;
        self.charged.fetch_max(entitled.saturating_sub(SAVED_MAX), Relaxed);
        self.charged.load(Relaxed) < entitled
    }

    fn note_start(&self, class: usize, cost: u64, now_ns: u64) {
        self.classes[class].in_flight.fetch_add(cost, Relaxed);
        if class == INTERACTIVE {
            let last_ns = self.interactive_ns.load(Relaxed);
            if last_ns == IDLE || now_ns.saturating_sub(last_ns) > 10 * ACTIVE_NS {
                self.windows.begin_anew();
            }
            self.interactive_ns.store(now_ns, Relaxed);
        } else if self.charged.load(Relaxed) < self.entitled.load(Relaxed) {
            self.charged.fetch_add(cost, Relaxed);
        }
    }
}
