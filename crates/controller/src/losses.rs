//! Losses of acknowledged writes: the next Flush of each host fails.
//!
//! A target or a function fails one Flush for a loss, and one host gets its status. Other hosts of the
//! namespace may have lost writes, too. Hosts on the network may outlive a daemon that could not make their
//! writes durable. So the Flushes of hosts pass here on their way back.

use crate::controller::Controller;
use crate::persist::PersistentRecord;
use crate::reservation::HostId;
use crate::subsystem::Subsystem;
use sluice_command::Command;
use sluice_nvme::Status;

/// Hosts of a namespace that are noted as notified. Beyond that the oldest is dropped, and may be notified
/// twice.
const NOTIFIED_MAX: usize = 256;

/// Value in place of an NSID for every namespace of the drive.
const EVERY: u32 = 0;

/// Writes of a namespace that may be lost.
#[derive(Debug)]
struct Loss {
    nsid: u32,
    /// Hosts that had a failed Flush since the loss.
    notified: Vec<HostId>,
    /// Bit per controller whose host ended together with the daemon that left the loss.
    ended: u32,
    /// Whether a host was there when the drive began to end, and was not notified.
    stays: bool,
}

impl Loss {
    fn note(&mut self, host: HostId) {
        if self.notified.len() == NOTIFIED_MAX {
            self.notified.remove(0);
        }
        self.notified.push(host);
    }
}

/// Losses of a drive's namespaces.
#[derive(Debug, Default)]
pub(crate) struct Losses(Vec<Loss>);

impl Losses {
    fn of(&mut self, nsid: u32) -> Option<&mut Loss> {
        self.0.iter_mut().find(|loss| loss.nsid == nsid)
    }

    /// Notes a failed Flush of `host`, or a loss that no Flush reported. Returns whether it is the first loss
    /// of the namespace.
    fn failed(&mut self, nsid: u32, host: Option<HostId>) -> bool {
        let Some(loss) = self.of(nsid) else {
            self.0.push(Loss { nsid, notified: host.into_iter().collect(), ended: 0, stays: false });
            return true;
        };
        match host {
            Some(host) if !loss.notified.contains(&host) => loss.note(host),
            // This is another loss, so all other hosts are notified again.
            host => (loss.notified, loss.ended) = (host.into_iter().collect(), 0),
        }
        false
    }

    /// Returns whether a successful Flush must fail, since its host was not notified of a loss yet.
    fn owes(&mut self, nsid: u32, host: HostId, controller: u8) -> bool {
        let Some(loss) = self.of(nsid) else { return false };
        let owes = loss.ended.unbounded_shr(controller.into()) & 1 == 0 && !loss.notified.contains(&host);
        if owes {
            loss.note(host);
        }
        owes
    }

    /// Returns whether no writes were lost.
    pub(crate) fn are_none(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether there is a loss that no host was notified of.
    pub(crate) fn are_unreported(&self) -> bool {
        self.0.iter().any(|loss| loss.notified.is_empty())
    }
}

impl Subsystem {
    /// Restores the losses of an earlier daemon in these namespaces, or in all if one is zero. The hosts of
    /// the controllers in `ended` have ended with that daemon.
    pub fn resume_losses(&mut self, nsids: &[u32], ended: u32) {
        let lost = |nsid: &u32| nsids.contains(&EVERY) || nsids.contains(nsid);
        let lost: Vec<u32> = self.iter().map(crate::Namespace::nsid).filter(lost).collect();
        let loss = |nsid| Loss { nsid, notified: Vec::new(), ended, stays: false };
        self.losses = Losses(lost.into_iter().map(loss).collect());
    }

    /// Notes that acknowledged writes of a namespace may be lost, and that no layer will fail a Flush for it.
    pub fn lose_writes(&mut self, nsid: u32, now_ns: u64) {
        if self.losses.failed(nsid, None) {
            self.persist_losses(now_ns);
        }
    }

    /// Notes the hosts at the begin of the drive's end: the next daemon notifies the ones that were not
    /// notified.
    pub fn note_hosts_at_end(&mut self) {
        let there = (0..self.hosts.len() as u8).filter(|number| self.enabled >> number & 1 != 0);
        let there: Vec<(u8, HostId)> = there.map(|number| (number, self.host(number))).collect();
        for loss in &mut self.losses.0 {
            let owed = |(number, host): &(u8, HostId)| {
                loss.ended.unbounded_shr((*number).into()) & 1 == 0 && !loss.notified.contains(host)
            };
            loss.stays |= there.iter().any(owed);
        }
    }

    /// Returns the NSIDs with losses that not all hosts were notified of.
    pub(crate) fn unreported_losses(&self) -> Vec<u32> {
        let unreported = |loss: &&Loss| loss.stays || loss.notified.is_empty();
        self.losses.0.iter().filter(unreported).map(|loss| loss.nsid).collect()
    }

    /// Persists the losses, so that the next daemon notifies hosts that outlive this one.
    fn persist_losses(&mut self, now_ns: u64) {
        let nsids = self.losses.0.iter().map(|loss| loss.nsid).collect();
        self.persist(PersistentRecord::Losses(nsids), now_ns);
    }
}

/// Completes a Flush of a host.
#[cold]
pub(crate) fn flushed(controller: &mut Controller, subsystem: &mut Subsystem, command: Command, now_ns: u64) {
    let slot = subsystem.slab.slot(&command);
    let (status, nsid) = (slot.status, u32::from(slot.origin.namespace) + 1);
    let status = of_flush(controller, subsystem, nsid, status, now_ns);
    controller.finish(subsystem, command, status, 0);
}

/// Returns the status that the host of the controller gets for a Flush with this status.
pub(crate) fn of_flush(
    controller: &Controller,
    subsystem: &mut Subsystem,
    nsid: u32,
    mut status: Status,
    now_ns: u64,
) -> Status {
    let (number, host) = (controller.number, subsystem.host(controller.number));
    if status.same_code(Status::WRITE_FAULT) {
        if subsystem.losses.failed(nsid, Some(host)) {
            subsystem.persist_losses(now_ns);
        }
    } else if status.is_success() && subsystem.losses.owes(nsid, host, number) {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn host(number: u8) -> HostId {
        HostId::Extended([number; 16])
    }

    #[test]
    fn each_host_is_notified_once() {
        let mut losses = Losses::default();
        assert!(!losses.owes(1, host(1), 0));
        assert!(losses.failed(1, Some(host(1))) && !losses.are_unreported());
        assert!(
            !losses.owes(1, host(1), 0) && !losses.owes(2, host(2), 1),
            "the other namespace lost nothing"
        );
        assert!(losses.owes(1, host(2), 1) && !losses.owes(1, host(2), 1));
        // The layers below notified the other host, too.
        assert!(!losses.failed(1, Some(host(3))) && !losses.owes(1, host(3), 2));
        assert!(!losses.failed(1, Some(host(3))), "it is stored already that there was one");
        assert!(losses.owes(1, host(1), 0) && !losses.owes(1, host(3), 2), "that is another loss");
    }

    #[test]
    fn more_hosts_than_are_noted_are_notified() {
        let mut losses = Losses::default();
        losses.failed(1, None);
        assert!(losses.are_unreported());
        let hosts = (0..=NOTIFIED_MAX as u32).map(|it| HostId::Short(u64::from(it).to_le_bytes()));
        assert!(hosts.clone().all(|host| losses.owes(1, host, 0)));
        assert_eq!(losses.0[0].notified.len(), NOTIFIED_MAX);
        assert!(!losses.owes(1, hosts.clone().next_back().expect("one"), 0));
    }

    #[test]
    fn hosts_that_ended_with_the_daemon_are_not_notified() {
        let mut losses = Losses(vec![Loss { nsid: 1, notified: Vec::new(), ended: 0b10, stays: false }]);
        assert!(!losses.owes(1, host(1), 1) && losses.owes(1, host(1), 0));
    }
}
