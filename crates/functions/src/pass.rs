//! Pass: everything goes straight through. What a layer costs that does nothing.

use crate::counter::Counter;
use sluice_command::{Characteristics, Command, Frame, Lane, Layer};
use std::sync::Arc;

/// How a [`Pass`] lets commands through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassConfig {
    /// Leave a frame on each command, and so see it again on its way up.
    pub watch: bool,
}

/// Forwards every command as it is.
#[derive(Debug)]
pub struct Pass {
    watch: bool,
    counters: Arc<Counters>,
}

/// What a [`Pass`] has seen, to be read from any thread.
#[derive(Clone, Debug)]
pub struct PassCounters(Arc<Counters>);

#[derive(Debug, Default)]
struct Counters {
    down: Counter,
    up: Counter,
    failed: Counter,
}

impl PassCounters {
    /// Commands on their way down.
    pub fn down(&self) -> u64 {
        self.0.down.get()
    }

    /// Commands on their way up, if watched.
    pub fn up(&self) -> u64 {
        self.0.up.get()
    }

    /// Those of them that failed.
    pub fn failed(&self) -> u64 {
        self.0.failed.get()
    }
}

/// The one stage a watched command comes back in.
const WATCHED: u8 = 0;

impl Pass {
    pub fn new(config: PassConfig) -> Self {
        Self { watch: config.watch, counters: Arc::default() }
    }

    pub fn counters(&self) -> PassCounters {
        PassCounters(Arc::clone(&self.counters))
    }
}

impl Layer for Pass {
    fn name(&self) -> &'static str {
        "pass"
    }

    fn characteristics(&self, below: &[Characteristics]) -> Characteristics {
        below[0].over()
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        self.counters.down.increment();
        if self.watch {
            lane.forward_with(0, command, WATCHED, [0; 2]);
        } else {
            lane.forward(command);
        }
    }

    fn resume(&mut self, command: Command, _frame: Frame, lane: &mut Lane<'_>) {
        let status = lane.slot(&command).status;
        self.counters.up.increment();
        if !status.is_success() {
            self.counters.failed.increment();
        }
        lane.finish(command, status);
    }
}
