//! The runs of one cell: short slices of load, each between two of the floor and two probes of the
//! processors' distance.
//!
//! A virtual machine's processors change places within seconds. A short slice is likely to be measured in one
//! place, and the probes before and after show which one.

use super::args::{Pace, Plan};
use super::cell::Shape;
use super::cores::Cores;
use super::floor;
use super::groups::Line;
use super::line::round_trip_ns;
use super::load::{self, Streams};
use super::run::{Meter, Run};
use super::tally::Tally;
use super::wait::Wait;
use quanta::Clock;
use sluice_spec::error::ApiError;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Duration of the load before the first run of a cell.
pub(super) const WARM_UP: Duration = Duration::from_millis(100);

/// Duration of the load before each run: the floor has had the caches meanwhile, and the reactor sleeps.
const LEAD_IN: Duration = Duration::from_millis(5);

/// Pause after a run: the reactor still looks for work, on the processor that the floor's device needs.
const SETTLE: Duration = Duration::from_millis(1);

/// Pause before a command that is to find all threads asleep.
const SILENCE: Duration = Duration::from_secs(1);

/// A cell whose queue pairs are open.
pub(super) struct Cell<'a> {
    pub(super) plan: &'a Plan,
    pub(super) cores: &'a Cores,
    pub(super) clock: &'a Clock,
    pub(super) shape: &'a Shape,
    pub(super) meter: Meter<'a>,
    /// The queue pairs of each drive.
    pub(super) drives: &'a mut [Streams],
}

/// Runs of a cell, and the waiting for them.
pub(super) struct Taken {
    pub(super) runs: Vec<Run>,
    pub(super) wait: Wait,
}

impl Cell<'_> {
    pub(super) fn take(mut self) -> Result<Taken, ApiError> {
        let Plan { pace, time, runs, line, wait, .. } = *self.plan;
        let mut wait = Wait::new(line, wait);
        let runs = match pace {
            Pace::FlatOut => self.slices(&mut wait)?,
            Pace::Rate(per_second) => {
                self.rated(WARM_UP, per_second)?;
                (0..runs).map(|_| self.rated(time, per_second)).collect::<Result<_, _>>()?
            }
            Pace::First(times) => vec![self.after_silence(times)?],
        };
        Ok(Taken { runs, wait })
    }

    fn slices(&mut self, wait: &mut Wait) -> Result<Vec<Run>, ApiError> {
        load::flat_out(self.drives, self.clock, WARM_UP)?;
        sleep(SETTLE);
        let mut runs = Vec::new();
        for _ in 0..self.plan.runs {
            if let Ok(before_ns) = wait.place(|| round_trip_ns(self.cores)) {
                runs.push(self.slice(before_ns)?);
            }
        }
        Ok(runs)
    }

    /// Measures a run between two halves of the floor.
    fn slice(&mut self, before_ns: Option<f64>) -> Result<Run, ApiError> {
        let floor_before = self.floor();
        load::flat_out(self.drives, self.clock, LEAD_IN)?;
        let (clock, time) = (self.clock, self.plan.time);
        let run = self.run(|drives| load::flat_out(drives, clock, time))?;
        sleep(SETTLE);
        let floor = floor_before.and(self.floor());
        let line = before_ns.zip(round_trip_ns(self.cores));
        let line = line.map(|(before_ns, after_ns)| Line { before_ns, after_ns });
        Ok(run.beside(Some(floor)).at(line))
    }

    fn floor(&self) -> floor::Floor {
        let queues = self.shape.queues.0 * self.shape.drives.0;
        floor::measure(self.shape.queue_depth.0, queues, self.plan.time / 2, self.cores)
    }

    fn rated(&mut self, time: Duration, per_second: u32) -> Result<Run, ApiError> {
        let clock = self.clock;
        self.run(|drives| load::at_a_rate(drives, clock, time, per_second))
    }

    fn after_silence(&mut self, times: u32) -> Result<Run, ApiError> {
        let clock = self.clock;
        self.run(|drives| match drives.iter_mut().flatten().next() {
            Some(stream) => load::after_silence(stream, clock, SILENCE, times),
            None => Err(ApiError::internal("there is no queue")),
        })
    }

    fn run(&mut self, load: impl FnOnce(&mut [Streams]) -> Result<Tally, ApiError>) -> Result<Run, ApiError> {
        let (before, start) = (self.meter.read(), Instant::now());
        let tally = load(self.drives)?;
        let wall = start.elapsed();
        Ok(Run::new(tally, before, self.meter.read(), wall))
    }
}
