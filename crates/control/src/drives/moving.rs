//! Moves of running drives and queue groups to other reactors.

use super::{DriveView, Drives, Entry, lock};
use crate::config::check_reactor;
use sluice_spec::error::ApiError;
use std::time::Duration;

/// Time that reads and writes of a moving drive get to complete; else the drive stays. Hosts wait for that
/// long.
const MOVE_LIMIT: Duration = Duration::from_secs(1);

impl Drives {
    /// Moves a drive to another reactor, even with a client. The drive stays there until the daemon ends.
    pub fn move_to(&self, name: &str, reactor: usize) -> Result<DriveView, ApiError> {
        self.carry(name, reactor, MOVE_LIMIT)?;
        self.amend(name, |entry| entry.moved = true);
        self.show(name)
    }

    /// Moves the queue group of a completion queue to a reactor other than its drive's, or back.
    pub fn move_queue(&self, name: &str, queue: u16, reactor: usize) -> Result<DriveView, ApiError> {
        self.carry_queue(name, queue, reactor, MOVE_LIMIT)?;
        self.show(name)
    }

    /// Moves a queue group if its commands end within `limit`.
    pub(super) fn carry_queue(
        &self,
        name: &str,
        queue: u16,
        reactor: usize,
        limit: Duration,
    ) -> Result<(), ApiError> {
        let _one_at_a_time = lock(&self.moves);
        let entry = self.bound_for(name, reactor)?;
        entry.running?.move_queue(queue, reactor, limit)?;
        tracing::info!("queue {queue} of drive {name} moved to reactor {reactor}");
        Ok(())
    }

    /// Moves a drive if its reads and writes end within `limit`. The drive may move again by itself. A move
    /// is not stored, so other changes do not wait for it: they find the drive on either reactor.
    pub(super) fn carry(&self, name: &str, reactor: usize, limit: Duration) -> Result<(), ApiError> {
        let _one_at_a_time = lock(&self.moves);
        let entry = self.bound_for(name, reactor)?;
        let from = entry.reactor();
        entry.running?.move_to(reactor, limit)?;
        if from != reactor {
            tracing::info!("drive {name} moved from reactor {from} to reactor {reactor}");
        }
        Ok(())
    }

    /// Returns the entry of a drive, if the drive may be changed and the reactor exists.
    fn bound_for(&self, name: &str, reactor: usize) -> Result<Entry, ApiError> {
        self.may_change()?;
        let entry = self.entry(name)?;
        let mut there = entry.spec.clone();
        there.reactor = Some(reactor);
        check_reactor(&there, self.reactors)?;
        Ok(entry)
    }
}
