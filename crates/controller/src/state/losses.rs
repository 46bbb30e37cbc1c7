//! Losses of acknowledged writes, with the hosts that were notified.

use crate::state::reservation::HostId;

/// Hosts of a namespace that are noted as notified. Beyond that the oldest is dropped, and may be notified
/// twice.
const NOTIFIED_MAX: usize = 256;

/// Value in place of an NSID for every namespace of the drive.
pub(crate) const EVERY: u32 = 0;

/// Writes of a namespace that may be lost.
#[derive(Debug)]
pub(crate) struct Loss {
    pub(crate) nsid: u32,
    /// Hosts that had a failed Flush since the loss.
    pub(crate) notified: Vec<HostId>,
    /// Bit per controller whose host ended together with the daemon that left the loss.
    pub(crate) ended: u32,
    /// Whether a host was there when the drive began to end, and was not notified.
    pub(crate) stays: bool,
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
pub(crate) struct Losses(pub(crate) Vec<Loss>);

impl Losses {
    fn of(&mut self, nsid: u32) -> Option<&mut Loss> {
        self.0.iter_mut().find(|loss| loss.nsid == nsid)
    }

    /// Notes a failed Flush of `host`, or a loss that no Flush reported. Returns whether it is the first loss
    /// of the namespace.
    pub(crate) fn failed(&mut self, nsid: u32, host: Option<HostId>) -> bool {
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
    pub(crate) fn owes(&mut self, nsid: u32, host: HostId, controller: u8) -> bool {
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

    /// Checks who is notified again: a host that fails for the first time shares a loss, and one that fails again has
    /// another.
    #[test]
    fn another_loss_is_owed_to_all_others() {
        let mut losses = Losses::default();
        losses.failed(1, None);
        assert!([1, 2, 3].map(|number| losses.owes(1, host(number), 0)) == [true; 3]);
        assert!(!losses.failed(1, Some(host(4))));
        assert_eq!([1, 2, 3, 4].map(|number| losses.owes(1, host(number), 0)), [false; 4]);
        assert!(!losses.failed(1, Some(host(2))));
        assert_eq!([1, 2, 3, 4].map(|number| losses.owes(1, host(number), 0)), [true, false, true, true]);
        assert!(!losses.are_none() && Losses::default().are_none());
        // A loss that no Flush reported is owed to all.
        losses.failed(1, None);
        assert!(losses.are_unreported());
        assert_eq!([1, 2, 3, 4].map(|number| losses.owes(1, host(number), 0)), [true; 4]);
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
