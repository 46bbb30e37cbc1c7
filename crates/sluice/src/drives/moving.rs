//! Drives that go to another reactor at work.

use super::{DriveView, Drives, lock};
use crate::config::check_reactor;
use crate::problem::Problem;
use std::time::Duration;

/// How long reads and writes have to end before a drive that moves goes on where it is: hosts wait for that long.
const MOVE_LIMIT: Duration = Duration::from_secs(1);

impl Drives {
    /// Moves a drive to another reactor, whoever has it. It is there until the daemon ends.
    pub fn move_to(&self, name: &str, reactor: usize) -> Result<DriveView, Problem> {
        self.move_within(name, reactor, MOVE_LIMIT)
    }

    /// The same, if its reads and writes end within `limit`.
    pub(super) fn move_within(
        &self,
        name: &str,
        reactor: usize,
        limit: Duration,
    ) -> Result<DriveView, Problem> {
        let _change = self.change()?;
        let mut entry = self.entry(name)?;
        let mut there = entry.spec.clone();
        there.reactor = Some(reactor);
        check_reactor(&there, self.reactors)?;
        entry.running.clone()?.move_to(reactor, limit)?;
        let from = std::mem::replace(&mut entry.reactor, reactor);
        if from != reactor {
            tracing::info!("drive {name} moved from reactor {from} to reactor {reactor}");
            lock(&self.entries).insert(name.to_owned(), entry.clone());
        }
        Ok(self.view(&entry))
    }
}
