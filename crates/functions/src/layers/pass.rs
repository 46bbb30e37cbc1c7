//! Pass: forwards everything unchanged. It shows the cost of a layer without work.

use crate::counter::Counter;
use crate::{Kind, OpenCx, Prepared, Shape};
use serde::{Deserialize, Serialize};
use sluice_command::{Characteristics, Command, Frame, Lane, Layer};
use sluice_options::Fault;
use std::sync::Arc;
use utoipa::ToSchema;

/// Options of a function that lets all commands through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PassOptions {
    /// Whether the function sees commands again on their way up.
    #[serde(default)]
    pub watch: bool,
}

impl<L> Kind<L> for PassOptions {
    const NAME: &'static str = "pass";
    const ABOUT: &'static str = "Lets everything through.";

    fn shape(&self) -> Shape {
        Shape { is_stateless: true, ..Shape::SAME }
    }

    fn open(&self, _: &OpenCx<'_>) -> Result<Prepared, Fault> {
        let config = PassConfig { watch: self.watch };
        Ok(Prepared::new(move |_| Pass::new(config)))
    }
}

/// Options of a [`Pass`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassConfig {
    /// Whether each command gets a frame, and so is seen again on its way up.
    pub watch: bool,
}

/// Layer that forwards every command unchanged.
#[derive(Debug)]
pub struct Pass {
    watch: bool,
    counters: Arc<Counters>,
}

/// Counters of a [`Pass`], for any thread.
#[derive(Clone, Debug)]
pub struct PassCounters(Arc<Counters>);

#[derive(Debug, Default)]
struct Counters {
    down: Counter,
    up: Counter,
    failed: Counter,
}

impl PassCounters {
    /// Returns the commands on their way down.
    pub fn down(&self) -> u64 {
        self.0.down.get()
    }

    /// Returns the commands on their way up, if watched.
    pub fn up(&self) -> u64 {
        self.0.up.get()
    }

    /// Returns the watched commands that failed.
    pub fn failed(&self) -> u64 {
        self.0.failed.get()
    }
}

/// Stage of the frame of a watched command.
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
