//! Configuration of a reactor, and its idle policy.

use std::time::Duration;

/// Configuration of one reactor.
#[derive(Debug, Clone)]
pub struct ReactorConfig {
    /// Name of the thread; Linux shows its first 15 bytes.
    pub name: String,
    /// Processor that the thread is bound to; `None` leaves the choice to the kernel.
    pub core: Option<usize>,
    pub idle: IdlePolicy,
    /// Submission entries of the io_uring; the completion ring has four times as many.
    pub ring_entries: u32,
    /// Files that may be registered at once. Lowered to RLIMIT_NOFILE, which the kernel enforces.
    pub max_files: u32,
    /// Mails that may wait at once.
    pub max_mails: usize,
    /// Measures where turns spend their time ([`Counters::watched`](crate::Counters::watched)), which costs
    /// some system calls in each.
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

/// Policy for the end of polling.
#[derive(Debug, Clone)]
pub struct IdlePolicy {
    /// Time that a task is polled without work before it is put to sleep, at most. The reactor shrinks it
    /// while other threads compete for the same processor, and for a task whose work comes later. Zero on a
    /// machine with one processor.
    pub spin: Duration,
    /// Flag that keeps all tasks from being put to sleep.
    pub always_poll: bool,
    /// The longest interval between two polls of a task that nothing can wake.
    pub poll_interval_max_ns: u64,
}

impl Default for IdlePolicy {
    fn default() -> Self {
        Self { spin: Duration::from_micros(50), always_poll: false, poll_interval_max_ns: 4_000_000 }
    }
}
