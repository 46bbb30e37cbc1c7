//! Change of the number of parities while the array serves.
//!
//! The second parity lies on a member of its own, the last one, so data and P keep their places: see
//! [`Geometry::with_q`](super::Geometry::with_q). A member that is added has nothing, and is rebuilt as one that was
//! replaced. The stale regions in the log are the progress. A change of the shape itself is one checkpoint of the
//! log:
//!
//! - No operation begins, and those under way end. Reads that need no parity go on.
//! - The members are flushed, so the journal has nothing that would be replayed with the other shape.
//! - A checkpoint stores the shape, the stale regions and the end of the journal together.
//! - Operations begin again when the checkpoint is durable. After a crash the array has one shape or the other,
//!   and no change was made with the one that the log does not have.

use super::Geometry;
use super::array::Parity;
use super::state::{ARRAY_MAX, UNSYNCED};
use crate::{Members, UNSEEN};

/// Stage of a change.
#[derive(Debug, Default)]
enum Stage {
    #[default]
    None,
    /// Operations end, and the members are flushed. The shape is to be this one.
    Drain(Geometry),
    /// The checkpoint is on its way.
    Store,
}

/// Change of the shape, and the result of the last one.
#[derive(Debug, Default)]
pub(super) struct Mode {
    stage: Stage,
    failure: Option<String>,
}

impl Mode {
    /// Returns whether operations may begin.
    pub(super) fn is_settled(&self) -> bool {
        matches!(self.stage, Stage::None)
    }
}

impl Parity {
    /// Begins a change of the number of parities, by an operator's order. It is done when
    /// [`is_changing`](Self::is_changing) returns false.
    ///
    /// # Errors
    /// Returns a message if the array cannot have so many.
    pub fn set_parities(&mut self, parities: usize) -> Result<(), String> {
        if self.is_changing() {
            return Err("the number of parities is being changed".to_owned());
        }
        if self.background.check.running {
            return Err("a comparison runs: cancel the job `check`, or wait for its end".to_owned());
        }
        let geometry = self.geometry();
        let to = match parities {
            _ if parities == geometry.parities => return Ok(()),
            1 => geometry.without_q().ok_or(
                "the second parity is spread among all members, because the array was made with two; it keeps them",
            )?,
            2 => geometry.with_q().ok_or("the array has two parities")?,
            _ => return Err(format!("an array has 1 or 2 parities, not {parities}")),
        };
        self.may_become(&to)?;
        self.mode = Mode { stage: Stage::Drain(to), failure: None };
        Ok(())
    }

    /// Returns whether the number of parities is being changed, and the log does not have the new one yet.
    pub fn is_changing(&self) -> bool {
        !self.mode.is_settled()
    }

    /// Returns the reason why the last change was not done, if it was not.
    pub fn change_failure(&self) -> Option<&str> {
        self.mode.failure.as_deref()
    }

    /// Returns the number of members that wait behind those of the array.
    pub fn spares(&self) -> usize {
        self.available.saturating_sub(self.geometry().members)
    }

    fn may_become(&self, to: &Geometry) -> Result<(), String> {
        if self.notes.is_broken() || self.batches.are_broken() {
            return Err("the log cannot be written: mend it first".to_owned());
        }
        let last = self.geometry().members;
        if to.members < last {
            let lacking = self.incomplete().without(Members::one(to.members));
            return match lacking.is_empty() {
                true => Ok(()),
                false => Err(format!("members {lacking:?} lack something, which only both parities have")),
            };
        }
        if to.members > self.available.min(ARRAY_MAX) {
            return Err("there is no spare: declare the drive with one more member, and `spare = \"true\"`"
                .to_owned());
        }
        if self.config.safe_read {
            return Err("`safe_read` compares data with the parity, and the second one would be computed from data that is not \
                        compared: remove `safe_read`, run the job `check`, and order it then"
                .to_owned());
        }
        if self.lacking().covers(UNSYNCED) {
            return Err("the parities are not computed yet: wait for the job `resync`".to_owned());
        }
        match self.config.storage[last] {
            UNSEEN => Err(format!(
                "member {last}, the spare, is not available: connect it, and open the drive again"
            )),
            _ => Ok(()),
        }
    }

    /// Does the next stage of a change. Returns whether there was one that has no step.
    pub(super) fn change_mode(&mut self) -> bool {
        match self.mode.stage {
            Stage::None => false,
            Stage::Drain(to) => self.drain_for(to),
            Stage::Store if self.is_noted() => {
                self.mode.stage = Stage::None;
                self.ops.look_again();
                true
            }
            Stage::Store => {
                if self.notes.is_broken() {
                    // Either shape may be in the log, and both are right. The next opening reads which one.
                    self.halt(
                        "the log cannot be written, and may have the other number of parities".to_owned(),
                    );
                }
                false
            }
        }
    }

    fn drain_for(&mut self, to: Geometry) -> bool {
        if self.ops.are_active() {
            return false;
        }
        // Flushes of hosts may follow each other without end, and the change waits for none of them.
        if self.ring.is_unflushed() {
            self.flush_if_idle();
            return false;
        }
        // Members may have failed since the order.
        if let Err(words) = self.may_become(&to) {
            self.mode = Mode { stage: Stage::None, failure: Some(words) };
            self.ops.look_again();
            return true;
        }
        let added = self.state.reshape(to, &self.config.storage);
        self.config.geometry = to;
        self.member_state.joined = self.member_state.joined.with(added).and(self.state.members);
        self.background.restart();
        self.note_shape();
        self.mode.stage = Stage::Store;
        true
    }
}
