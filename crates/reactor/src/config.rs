//! What a reactor is told when it starts.

use std::time::Duration;

/// Configuration of one reactor.
#[derive(Debug, Clone)]
pub struct ReactorConfig {
    /// Name of the thread; Linux shows its first 15 bytes.
    pub name: String,
    /// The processor the thread is bound to; `None` leaves the choice to the kernel.
    pub core: Option<usize>,
    pub idle: IdlePolicy,
    /// Submission entries of the io_uring; the completion ring has four times as many.
    pub ring_entries: u32,
    /// Files that may be registered at once. Lowered to RLIMIT_NOFILE, which the kernel enforces.
    pub max_files: u32,
    /// Mails that may wait at once.
    pub max_mails: usize,
    /// Finds out what turns spend their time on ([`Counters::watched`](crate::Counters::watched)), for some calls of the
    /// kernel in each.
    pub watch: bool,
}

impl Default for ReactorConfig {
    fn default() -> Self {
        Self {
            name: "reactor".to_owned(),
            core: None,
            idle: IdlePolicy::default(),
            ring_entries: 1024,
            max_files: 65_536,
            max_mails: 4096,
            watch: false,
        }
    }
}

/// When polling stops.
#[derive(Debug, Clone)]
pub struct IdlePolicy {
    /// How long a task is polled without work before it is put to sleep, at most: the reactor shrinks
    /// it while other threads want the same processor.
    pub spin: Duration,
    /// Never put anything to sleep.
    pub always_poll: bool,
    /// The longest interval between two looks at a task that nothing can wake.
    pub poll_interval_max_ns: u64,
}

impl Default for IdlePolicy {
    fn default() -> Self {
        Self { spin: Duration::from_micros(50), always_poll: false, poll_interval_max_ns: 4_000_000 }
    }
}
