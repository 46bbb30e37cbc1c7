//! Losses of acknowledged writes: the next Flush of each host fails.
//!
//! A target or a function fails one Flush for a loss, and one host gets its status. Other hosts of the
//! namespace may have lost writes, too. Hosts on the network may outlive a daemon that could not make their
//! writes durable. So the Flushes of hosts pass here on their way back.

use crate::model::{Controller, Subsystem, namespace};
use crate::state::losses::{EVERY, Loss, Losses};
use crate::state::persist::PersistentRecord;
use crate::state::reservation::HostId;
use sluice_nvme::Status;

impl Subsystem {
    /// Restores the losses of an earlier daemon in these namespaces, or in all if one is zero. The hosts of
    /// the controllers in `ended` have ended with that daemon.
    pub fn resume_losses(&mut self, nsids: &[u32], ended: u32) {
        let lost = |nsid: &u32| nsids.contains(&EVERY) || nsids.contains(nsid);
        let lost: Vec<u32> = self.iter().map(namespace::Namespace::nsid).filter(lost).collect();
        let loss = |nsid| Loss { nsid, notified: Vec::new(), ended, stays: false };
        self.jobs_mut().losses = Losses(lost.into_iter().map(loss).collect());
    }

    /// Notes that acknowledged writes of a namespace may be lost, and that no layer will fail a Flush for it.
    pub fn lose_writes(&mut self, nsid: u32, now_ns: u64) {
        if self.jobs_mut().losses.failed(nsid, None) {
            self.persist_losses(now_ns);
        }
    }

    /// Notes the hosts at the begin of the drive's end: the next daemon notifies the ones that were not
    /// notified.
    pub fn note_hosts_at_end(&mut self) {
        let there = (0..self.hosts().len() as u8).filter(|number| self.is_enabled(*number));
        let there: Vec<(u8, HostId)> = there.map(|number| (number, self.host(number))).collect();
        for loss in &mut self.jobs_mut().losses.0 {
            let owed = |(number, host): &(u8, HostId)| {
                loss.ended.unbounded_shr((*number).into()) & 1 == 0 && !loss.notified.contains(host)
            };
            loss.stays |= there.iter().any(owed);
        }
    }

    /// Returns the NSIDs with losses that not all hosts were notified of.
    pub(crate) fn unreported_losses(&self) -> Vec<u32> {
        let unreported = |loss: &&Loss| loss.stays || loss.notified.is_empty();
        self.jobs().losses.0.iter().filter(unreported).map(|loss| loss.nsid).collect()
    }

    /// Persists the losses, so that the next daemon notifies hosts that outlive this one.
    fn persist_losses(&mut self, now_ns: u64) {
        let nsids = self.jobs().losses.0.iter().map(|loss| loss.nsid).collect();
        self.persist(PersistentRecord::Losses(nsids), now_ns);
    }
}

/// Returns the status that the host of the controller gets for a Flush with this status.
pub(crate) fn of_flush(
    controller: &Controller,
    subsystem: &mut Subsystem,
    nsid: u32,
    mut status: Status,
    now_ns: u64,
) -> Status {
    let (number, host) = (controller.number(), subsystem.host(controller.number()));
    if status.same_code(Status::WRITE_FAULT) {
        if subsystem.jobs_mut().losses.failed(nsid, Some(host)) {
            subsystem.persist_losses(now_ns);
        }
    } else if status.is_success() && subsystem.jobs_mut().losses.owes(nsid, host, number) {
        tracing::warn!(
            nsid,
            controller = number,
            "a Flush fails: acknowledged writes were lost before, and this host was not notified yet"
        );
        status = Status::WRITE_FAULT;
    }
    // A repeated Flush would succeed, and the host's file system would not notice the loss. So the host must
    // not retry.
    let dnr = if status.same_code(Status::WRITE_FAULT) { Status::DNR } else { 0 };
    Status(status.0 | dnr)
}
