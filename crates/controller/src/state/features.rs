//! Feature values that the host can set (Base 5.27), except for Asynchronous Event Configuration, which
//! belongs to the [events](crate::state::events).
//!
//! A controller reset restores the defaults, since no value is saveable.

use crate::state::limits::{IO_QUEUES_MAX, NAMESPACES_MAX};
use crate::state::{copy, health};
use sluice_command::record::{Reader, RecordError, Writer};
use sluice_nvme::feature::{HostBehavior, TimestampData};
use zerocopy::{FromBytes, IntoBytes};

const NS_PER_MS: u64 = 1_000_000;

/// Delay of a look at the Keep Alive Timer from which the timer is extended.
const KEEP_ALIVE_LATE_NS: u64 = NS_PER_MS;

/// Granularity of the Keep Alive Timer; Identify's KAS is the same in units of 100 ms.
pub(crate) const KEEP_ALIVE_GRANULARITY_MS: u32 = 100;

/// Words with a bit for every interrupt vector.
const VECTOR_WORDS: usize = IO_QUEUES_MAX as usize / 64 + 1;

/// Current values of the features.
#[derive(Clone, Debug)]
pub(crate) struct Features {
    /// Burst and weights of weighted round robin.
    pub(crate) arbitration: u32,
    /// Power state 0, the only one, and the workload hint.
    pub(crate) power_management: u32,
    pub(crate) temperature: Thresholds,
    /// Time limits for retries of reads and writes, by NSID less one, in units of 100 ms. No command is ever
    /// retried here, so every limit is met.
    pub(crate) retry_limits: [u16; NAMESPACES_MAX],
    /// Aggregation threshold, 0's based, and in bits 15:8 the aggregation time.
    pub(crate) interrupt_coalescing: u32,
    /// Bit per vector whose coalescing is disabled.
    not_coalesced: [u64; VECTOR_WORDS],
    /// Disable Normal: the host does not rely on the atomic write units except after a power failure.
    pub(crate) write_atomicity: u32,
    pub(crate) host_behavior: HostBehavior,
    /// Whether the volatile write cache is disabled, so that a write is finished when it is durable.
    write_through: bool,
    timestamp: Timestamp,
    /// Time at which the controller became ready.
    ready_ns: u64,
    keep_alive: KeepAlive,
}

/// Temperature thresholds in kelvins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Thresholds {
    pub(crate) over: u16,
    pub(crate) under: u16,
}

impl Thresholds {
    /// Returns whether the composite temperature causes a critical warning.
    pub(crate) fn are_passed(self) -> bool {
        health::COMPOSITE_TEMPERATURE >= self.over || health::COMPOSITE_TEMPERATURE <= self.under
    }
}

/// Host clock in milliseconds (Base 5.27.1.11).
#[derive(Clone, Copy, Debug, Default)]
struct Timestamp {
    milliseconds: u64,
    /// Time at which the host clock had this value.
    at_ns: u64,
    set_by_host: bool,
}

/// Keep Alive Timer (Base 3.9). Only the Keep Alive command restarts it. Over Fabrics, where CTRATT.TBKAS is
/// set, each command that begins or ends does.
#[derive(Clone, Copy, Debug, Default)]
struct KeepAlive {
    /// KATO; zero is off.
    timeout_ms: u32,
    last_activity_ns: u64,
    /// Whether the timer was extended for a late look since the last activity of the host.
    extended: bool,
    expired: bool,
}

impl Features {
    pub(crate) fn new() -> Self {
        Self {
            arbitration: 0,
            power_management: 0,
            temperature: Thresholds { over: health::WARNING_TEMPERATURE, under: 0 },
            retry_limits: [0; NAMESPACES_MAX],
            interrupt_coalescing: 0,
            not_coalesced: [0; VECTOR_WORDS],
            write_atomicity: 0,
            host_behavior: HostBehavior::default(),
            write_through: false,
            timestamp: Timestamp::default(),
            ready_ns: 0,
            keep_alive: KeepAlive::default(),
        }
    }

    /// Returns the features without the timer, for queues that are served elsewhere. The owner runs the
    /// timer.
    pub(crate) fn without_keep_alive(&self) -> Self {
        Self { keep_alive: KeepAlive::default(), ..self.clone() }
    }

    /// Restores the defaults, as a controller reset requires.
    pub(crate) fn reset(&mut self) {
        *self = Self::new();
    }

    /// Starts the clocks when the controller becomes ready.
    pub(crate) fn enabled(&mut self, now_ns: u64) {
        self.timestamp = Timestamp { at_ns: now_ns, ..Timestamp::default() };
        self.ready_ns = now_ns;
        self.note_activity(now_ns);
    }

    /// Returns false if every write must be durable when it finishes.
    #[inline]
    pub(crate) fn write_cache_enabled(&self) -> bool {
        !self.write_through
    }

    /// Returns whether the host has enabled Copy with an NSID in each source range.
    #[inline]
    pub(crate) fn copies_across(&self) -> bool {
        self.host_behavior.cdfe >> copy::NAMED & 1 != 0
    }

    pub(crate) fn enable_write_cache(&mut self, enable: bool) {
        self.write_through = !enable;
    }

    pub(crate) fn coalescing_disabled(&self, vector: u16) -> bool {
        self.not_coalesced[usize::from(vector / 64)] >> (vector % 64) & 1 != 0
    }

    pub(crate) fn disable_coalescing(&mut self, vector: u16, disable: bool) {
        let word = &mut self.not_coalesced[usize::from(vector / 64)];
        *word = *word & !(1 << (vector % 64)) | u64::from(disable) << (vector % 64);
    }

    pub(crate) fn timestamp(&self, now_ns: u64) -> TimestampData {
        let elapsed_ms = now_ns.saturating_sub(self.timestamp.at_ns) / NS_PER_MS;
        let now_ms = self.timestamp.milliseconds.wrapping_add(elapsed_ms);
        TimestampData::new(now_ms, self.timestamp.set_by_host)
    }

    pub(crate) fn since_reset_ms(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.ready_ns) / NS_PER_MS
    }

    pub(crate) fn set_timestamp(&mut self, timestamp: TimestampData, now_ns: u64) {
        let milliseconds = timestamp.milliseconds();
        self.timestamp = Timestamp { milliseconds, at_ns: now_ns, set_by_host: true };
    }

    pub(crate) fn keep_alive_ms(&self) -> u32 {
        self.keep_alive.timeout_ms
    }

    /// Sets and starts the Keep Alive Timer; zero stops it.
    pub(crate) fn set_keep_alive(&mut self, timeout_ms: u32, now_ns: u64) {
        let rounded = timeout_ms.checked_next_multiple_of(KEEP_ALIVE_GRANULARITY_MS);
        let timeout_ms = rounded.unwrap_or(u32::MAX - u32::MAX % KEEP_ALIVE_GRANULARITY_MS);
        self.keep_alive = KeepAlive { timeout_ms, last_activity_ns: now_ns, ..KeepAlive::default() };
    }

    /// Restarts the timer, since the host is alive.
    pub(crate) fn note_activity(&mut self, now_ns: u64) {
        (self.keep_alive.last_activity_ns, self.keep_alive.extended) = (now_ns, false);
    }

    /// Returns the time at which the Keep Alive Timer expires.
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        let timer = &self.keep_alive;
        let runs = timer.timeout_ms != 0 && !timer.expired;
        runs.then(|| timer.last_activity_ns.saturating_add(u64::from(timer.timeout_ms) * NS_PER_MS))
    }

    /// Returns true once, when the timer has expired. A late look (the drive moved, or the machine was
    /// suspended) also means that commands of the host were not taken. Such a timer is extended by half its
    /// time, so that commands that came meanwhile are taken.
    pub(crate) fn keep_alive_expired(&mut self, now_ns: u64) -> bool {
        let Some(deadline_ns) = self.deadline_ns().filter(|deadline| *deadline <= now_ns) else {
            return false;
        };
        let timer = &mut self.keep_alive;
        let late_ns = now_ns - deadline_ns;
        if late_ns >= KEEP_ALIVE_LATE_NS && !timer.extended {
            timer.last_activity_ns += late_ns + u64::from(timer.timeout_ms) * NS_PER_MS / 2;
            timer.extended = true;
            return false;
        }
        timer.expired = true;
        true
    }
}

/// Features in a record.
impl Features {
    pub(crate) fn put(&self, part: &mut Writer) {
        [self.arbitration, self.power_management, self.interrupt_coalescing, self.write_atomicity]
            .into_iter()
            .for_each(|value| part.put(value));
        part.put(self.temperature.over);
        part.put(self.temperature.under);
        part.list(self.retry_limits, Writer::put);
        part.list(self.not_coalesced, Writer::put);
        part.bytes(self.host_behavior.as_bytes());
        part.put(self.write_through);
        part.put(self.timestamp.milliseconds);
        part.time(self.timestamp.at_ns);
        part.put(self.timestamp.set_by_host);
        part.time(self.ready_ns);
        part.put(self.keep_alive.timeout_ms);
        part.time(self.keep_alive.last_activity_ns);
        part.put(self.keep_alive.extended);
        part.put(self.keep_alive.expired);
    }

    pub(crate) fn take(part: &mut Reader<'_>) -> Result<Self, RecordError> {
        let mut features = Self::new();
        features.arbitration = part.get()?;
        features.power_management = part.get()?;
        features.interrupt_coalescing = part.get()?;
        features.write_atomicity = part.get()?;
        features.temperature = Thresholds { over: part.get()?, under: part.get()? };
        let retry_limits = part.list(NAMESPACES_MAX, Reader::get)?;
        features.retry_limits.iter_mut().zip(retry_limits).for_each(|(own, limit)| *own = limit);
        let not_coalesced = part.list(VECTOR_WORDS, Reader::get)?;
        features.not_coalesced.iter_mut().zip(not_coalesced).for_each(|(own, word)| *own = word);
        let behavior = HostBehavior::read_from_bytes(part.bytes(HostBehavior::SIZE)?);
        features.host_behavior = behavior.map_err(|_| RecordError::Invalid("host behavior"))?;
        features.write_through = part.get()?;
        features.timestamp =
            Timestamp { milliseconds: part.get()?, at_ns: part.time()?, set_by_host: part.get()? };
        features.ready_ns = part.time()?;
        features.keep_alive = KeepAlive {
            timeout_ms: part.get()?,
            last_activity_ns: part.time()?,
            extended: part.get()?,
            expired: part.get()?,
        };
        Ok(features)
    }
}
