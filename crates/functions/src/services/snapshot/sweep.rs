//! Deletion of versions, in steps: the chunks that only deleted versions saw are freed.
//!
//! A version is gone when the log has its deletion. The rest is work in memory, which a start does at once
//! while it reads the log. So a checkpoint leaves out the mappings that are still to be freed.

use super::drive::Snapshot;
use crate::services::service::json;
use crate::store::layout::Shape;
use crate::store::metadata_op::MetadataOp;
use crate::store::table::SWEEP;
use sluice_jobs::{Order, Pace, Progress, Report, Scheduler, State, Verb};
use sluice_uif::{Control, Io};

/// The job, by number and by name.
const DELETE: usize = 0;
const NAMES: [&str; 1] = ["delete"];

/// Past mappings of a step, at most.
const STEP: u64 = 1 << 13;

/// Creates the scheduler of a drive. The work is counted in bytes of the chunks that are visited.
pub(super) fn sweeper(shape: Shape) -> Scheduler<1> {
    Scheduler::with_steps(STEP * shape.chunk)
}

impl Snapshot {
    /// Limits deletions to so many MiB per second.
    #[must_use]
    pub fn with_delete_rate(mut self, mib_s: Option<u32>) -> Self {
        self.sweeper.set_pace(DELETE, Pace { mib_s, ..Pace::default() });
        self
    }

    /// Begins to free the chunks of a deleted version. A sweep that is in progress includes them.
    pub(super) fn begin_sweep(&mut self) {
        if !self.sweeper.state(DELETE).is_active() {
            self.sweeper.start(DELETE);
        }
    }

    /// Executes a step of the deletion, if it is due. A checkpoint counts the mappings, and goes first.
    pub(super) fn sweep(&mut self, io: &mut Io<'_>) {
        let stays = |op: &MetadataOp| op.is_checkpoint() || matches!(op, MetadataOp::Load(_));
        if self.op.as_ref().is_some_and(stays) {
            return;
        }
        let (Some(work), now_ns) = (&mut self.work, io.now_ns()) else { return };
        let state = self.sweeper.state(DELETE);
        if state.is_active() && work.table.unswept() == 0 {
            return self.sweeper.finish(DELETE);
        }
        let chunk = self.shape.chunk;
        self.sweeper.run(
            now_ns,
            1,
            |_| state == State::Running,
            |_, budget| {
                let visited = work.table.sweep((budget / chunk).max(1) as usize);
                Progress::Done(visited as u64 * chunk)
            },
        );
        if work.table.unswept() == 0 {
            self.sweeper.finish(DELETE);
        } else if let Some(alarm_ns) = self.sweeper.alarm_ns(|_| state == State::Running) {
            self.wake_at(alarm_ns, io);
        }
    }

    /// Returns whether a write may sweep. A checkpoint counts the mappings. Otherwise one write sweeps one
    /// step, and all go on after that.
    pub(super) fn may_sweep(&self, io: &Io<'_>) -> bool {
        !self.op.as_ref().is_some_and(MetadataOp::is_checkpoint)
            && self.alarm_ns.is_none_or(|alarm_ns| alarm_ns > io.now_ns())
    }

    /// Sweeps one step for a write that waits until all past mappings are visited.
    pub(super) fn sweep_for_write(&mut self, io: &mut Io<'_>) {
        let may_sweep = self.may_sweep(io);
        if let Some(work) = self.work.as_mut().filter(|_| may_sweep) {
            work.table.sweep(SWEEP);
            self.wake_at(io.now_ns(), io);
        }
    }

    /// Sets a further time at which the function is woken.
    pub(super) fn wake_at(&mut self, alarm_ns: u64, io: &mut Io<'_>) {
        let alarm_ns = self.alarm_ns.map_or(alarm_ns, |other_ns| other_ns.min(alarm_ns));
        self.alarm_ns = Some(alarm_ns);
        io.wake_at(self.alarm_ns);
    }

    /// Executes an order for the deletion.
    pub(super) fn order_jobs(&mut self, order: Result<Order, String>, io: &mut Io<'_>) -> Control {
        let answer = order.and_then(|order| self.execute_job(&order, io.now_ns()));
        self.sweep(io);
        Control::Now(answer)
    }

    fn execute_job(&mut self, order: &Order, now_ns: u64) -> Result<String, String> {
        let Order::Do(verb, name, change) = order else {
            return json(Some(self.job()).filter(|job| job.state != State::Idle).as_slice());
        };
        match self.sweeper.execute(*verb, name, *change, &NAMES, now_ns)?.1 {
            Some(Verb::Cancel) => self.sweeper.cancel(DELETE),
            Some(_) => self.sweeper.go_on(DELETE),
            None => {}
        }
        json(&self.job())
    }

    fn job(&self) -> Report {
        let unswept = self.work.as_ref().map_or(0, |work| work.table.unswept() as u64);
        let detail = match self.sweeper.state(DELETE) {
            State::Cancelled if unswept > 0 => {
                "the version is deleted; its chunks stay in use until this is resumed, the store is full, or \
                 the function starts again"
            }
            state if state.is_active() => "frees the chunks that only deleted versions have",
            _ => "",
        };
        self.sweeper.report(DELETE, NAMES[DELETE], unswept * self.shape.chunk, detail.to_owned())
    }
}
