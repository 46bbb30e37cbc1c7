//! Feature values (Base 5.27).

use crate::IO_QUEUES_MAX;

const NS_PER_MS: u64 = 1_000_000;

/// The current value of every feature that the host can set and that lives nowhere else.
#[derive(Debug)]
pub(crate) struct Features {
    keep_alive: KeepAlive,
}

/// The Keep Alive Timer (Base 3.9): restarted by the Keep Alive command.
#[derive(Clone, Copy, Debug, Default)]
struct KeepAlive {
    /// KATO; zero is off.
    timeout_ms: u32,
    heard_ns: u64,
    expired: bool,
}

impl Features {
    pub(crate) fn new() -> Self {
        Self { keep_alive: KeepAlive::default() }
    }

    /// Back to the defaults, as a controller reset demands.
    pub(crate) fn reset(&mut self) {
        *self = Self::new();
    }

    /// I/O queues of each kind that the host may create.
    pub(crate) fn io_queues(&self) -> u16 {
        IO_QUEUES_MAX
    }

    /// The controller became ready.
    pub(crate) fn enabled(&mut self, now_ns: u64) {
        self.heard_from_host(now_ns);
    }

    /// The host is alive.
    pub(crate) fn heard_from_host(&mut self, now_ns: u64) {
        self.keep_alive.heard_ns = now_ns;
    }

    /// When the Keep Alive Timer expires.
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        let timer = &self.keep_alive;
        let runs = timer.timeout_ms != 0 && !timer.expired;
        runs.then(|| timer.heard_ns.saturating_add(u64::from(timer.timeout_ms) * NS_PER_MS))
    }

    /// True once, when the timer has expired.
    pub(crate) fn keep_alive_expired(&mut self, now_ns: u64) -> bool {
        let expired = self.deadline_ns().is_some_and(|deadline| deadline <= now_ns);
        self.keep_alive.expired |= expired;
        expired
    }
}
