//! Execution of reservation commands, one after the other.
//!
//! A change that survives a loss of power is persisted before the command completes. Until then no other
//! change begins, and the old state is in force. A Preempt and Abort ends when the commands that it aborts
//! have ended: so its victims change no block after that.
//!
//! A reset waits for none of this. It takes the commands of its controller: waiting ones have done nothing,
//! and a started change goes on without its command.

use crate::model::Subsystem;
use crate::state::erasure::Erasure;
use crate::state::mailbox::Notice;
use crate::state::orders::UnderWay;
use crate::state::persist::PersistentRecord;
use crate::state::reservation::command::{KEYS, parse_action, set_decided};
use crate::state::reservation::{Action, Change, Group, HostId, ReservationRecord};
use crate::state::{client_dma, fused};
use sluice_command::{Aborted, Command, Controllers};
use sluice_nvme::feature::PERSIST_THROUGH_POWER_LOSS;
use sluice_nvme::opcode::{admin, io, io as opcode};
use sluice_nvme::{NSID_ALL, Status};

/// Orders executed in one go. A host can have hundreds of waiting ones that change nothing, each of which
/// looks at every namespace.
const ORDERS_AT_ONCE: usize = 4;

impl Subsystem {
    /// Returns the action of a command; for a Set Features, the action of its first value. Its data is read
    /// once.
    pub(super) fn action_of(&self, command: &Command) -> Result<Action, Status> {
        let (entry, slot) = (self.entry(command), self.slot(command));
        if slot.origin.sq == 0 && entry.opcode == admin::SET_FEATURES {
            return Ok(Action::Persist(entry.cdw11 & PERSIST_THROUGH_POWER_LOSS != 0));
        }
        let mut keys = [0; KEYS];
        let length = if entry.opcode == opcode::RESERVATION_RELEASE { KEYS / 2 } else { KEYS };
        if slot.data.copy_to(0, &mut keys[..length]) != length {
            return Err(Status::DATA_TRANSFER_ERROR);
        }
        parse_action(entry, zerocopy::transmute!(keys))
    }

    /// Sets the final status of a command, for its controller to complete it, unless a reset took the
    /// command.
    fn decide_order(&mut self, command: Option<Command>, status: Status) {
        let Some(command) = command else { return };
        self.decide_with(command, status, |slot| set_decided(slot, true));
    }

    /// Takes a command to execute.
    pub(crate) fn order(&mut self, command: Command, now_ns: u64) {
        self.jobs_mut().orders.waiting.push_back(command);
        self.run_orders(now_ns);
    }

    /// Starts waiting orders, unless one is under way. The next turn goes on if there are many.
    pub(crate) fn run_orders(&mut self, now_ns: u64) {
        for _ in 0..ORDERS_AT_ONCE {
            if !self.jobs().orders.may_go_on() {
                return;
            }
            let Some(command) = self.next_order() else { return };
            self.execute(command, now_ns);
        }
        if self.jobs().orders.may_go_on() {
            self.announce(Notice::Resumed);
        }
    }

    /// Returns the first order of the controller that has waited longest since its last one.
    fn next_order(&mut self) -> Option<Command> {
        let turn = |number: u8| number.wrapping_sub(self.jobs().orders.last).wrapping_sub(1);
        let waiting =
            self.jobs().orders.waiting.iter().map(|command| self.controller_of(command)).enumerate();
        let (at, number) = waiting.min_by_key(|(_, number)| turn(*number))?;
        self.jobs_mut().orders.last = number;
        self.jobs_mut().orders.waiting.remove(at)
    }

    fn execute(&mut self, command: Command, now_ns: u64) {
        let changes = match self.changes(&command) {
            Ok(changes) => changes,
            Err(status) => return self.decide_order(Some(command), status),
        };
        let command = Some(command);
        let records: Vec<_> =
            changes.iter().filter_map(|(nsid, change)| self.record_if_changed(*nsid, change)).collect();
        if records.is_empty() {
            return self.put_in_force(command, changes);
        }
        self.jobs_mut().orders.under_way = Some(UnderWay::Storing { command, changes });
        self.persist(PersistentRecord::Reservations(records), now_ns);
    }

    /// Returns the changes by a command, per namespace.
    fn changes(&self, command: &Command) -> Result<Vec<(u32, Change)>, Status> {
        let controller = self.controller_of(command);
        let (host, name) = (self.host(controller), self.host_name(controller));
        let (nsid, action) = (self.entry(command).nsid, self.action_of(command)?);
        let there = self.iter_active(controller).filter(|it| !it.is_leaving());
        let concerned = there.filter(|it| nsid == NSID_ALL || it.nsid() == nsid);
        let changes: Vec<_> = concerned
            .map(|it| Ok((it.nsid(), it.reservations().change(host, &name, action)?)))
            .collect::<Result<_, Status>>()?;
        if changes.is_empty() { Err(Status::INVALID_NAMESPACE) } else { Ok(changes) }
    }

    /// Returns the record to persist, if it differs from the one persisted last.
    fn record_if_changed(&self, nsid: u32, change: &Change) -> Option<(u32, Option<ReservationRecord>)> {
        let (now, next) = (self.get(nsid)?.reservations().record(), change.next.record());
        (now != next).then_some((nsid, next))
    }

    /// Continues the order after its changes were persisted, or could not be.
    pub(crate) fn reservations_persisted(&mut self, well: bool) {
        if let Some(UnderWay::Storing { command, changes }) =
            self.jobs_mut().orders.under_way.take_if(|it| matches!(it, UnderWay::Storing { .. }))
        {
            match well {
                true => self.put_in_force(command, changes),
                false => self.decide_order(command, Status::INTERNAL_ERROR),
            }
            for host in std::mem::take(&mut self.jobs_mut().orders.gone) {
                self.unregister_host(host);
            }
        }
    }

    /// Puts changes in force that were persisted, or need not be.
    fn put_in_force(&mut self, command: Option<Command>, changes: Vec<(u32, Change)>) {
        let (mut ending, mut victims) = (false, Vec::new());
        for (nsid, change) in changes {
            self.health_mut().note_effort();
            if !change.aborted.is_empty() {
                ending |= self.await_victims(nsid, &change.aborted, command.is_some()) > 0;
                victims.push((nsid, self.controllers_of(&change.aborted)));
            }
            self.apply(nsid, change);
        }
        self.drop_foreign_identifiers();
        match ending {
            true => self.jobs_mut().orders.under_way = Some(UnderWay::Ending { command, victims }),
            false => self.decide_order(command, Status::SUCCESS),
        }
    }

    fn controllers_of(&self, hosts: &[HostId]) -> Controllers {
        let of_these = (0..).zip(self.hosts()).filter(|(_, host)| hosts.contains(host));
        Controllers::of_bits(of_these.fold(0, |bits, (number, _): (u32, _)| bits | 1 << number))
    }

    /// Marks the commands of these hosts that are in flight in a namespace. Also preempts their format of it,
    /// if a command waits (`is_awaited`). Returns their number.
    fn await_victims(&mut self, nsid: u32, hosts: &[HostId], is_awaited: bool) -> usize {
        let of = self.controllers_of(hosts);
        // A format does not begin to erase before a waiting command that preempts it has ended. Without such
        // a command it may have begun, and others would wait for hours.
        let is_formatting =
            is_awaited && self.jobs_mut().erasure.as_mut().is_some_and(|it| it.preempt(nsid, hosts));
        let awaited = self.await_live(|slot| {
            let origin = slot.origin;
            // Commands that wait for a fused operation are checked again before they begin. So are commands
            // that wait for client DMA, which has no time limit here.
            let begun = origin.opcode != fused::WAITS && Group::of_io(origin.opcode) != Group::Free;
            let is_io = origin.is_host() && origin.sq != 0 && begun;
            // The next sources and destinations of a Copy are not visible.
            let concerned = u32::from(origin.namespace) + 1 == nsid || origin.opcode == io::COPY;
            is_io && concerned && of.has(origin.controller) && !client_dma::has(slot)
        });
        awaited + usize::from(is_formatting)
    }

    /// Checks whether awaited commands have ended, or an order can start. Returns whether there is progress.
    #[inline]
    pub(crate) fn poll_orders(&mut self, now_ns: u64) -> bool {
        self.jobs().orders.are_ending() && self.check_victims(now_ns)
            || self.jobs().orders.may_go_on() && self.continue_orders(now_ns)
    }

    #[cold]
    fn continue_orders(&mut self, now_ns: u64) -> bool {
        self.run_orders(now_ns);
        true
    }

    /// Ends victims that only wait in the layers, as for room, since other hosts would have to wait as long.
    fn end_waiting_victims(&mut self, now_ns: u64) {
        let Some(UnderWay::Ending { victims, .. }) = &mut self.jobs_mut().orders.under_way else { return };
        let victims = std::mem::take(victims);
        for (nsid, of) in &victims {
            self.end_waiting(*nsid, *of, Status::ABORTED_PREEMPT, now_ns);
            let victims = Aborted { awaited: true, ..Aborted::of(*of) };
            self.abort_in(*nsid, victims, Status::ABORTED_PREEMPT, now_ns);
        }
        if let Some(UnderWay::Ending { victims: place, .. }) = &mut self.jobs_mut().orders.under_way {
            *place = victims;
        }
    }

    /// Returns whether the awaited commands have ended.
    #[cold]
    fn check_victims(&mut self, now_ns: u64) -> bool {
        self.end_waiting_victims(now_ns);
        let is_formatting = self.jobs().erasure.as_ref().is_some_and(Erasure::is_preempted);
        let ended = !is_formatting && !self.has_live(|slot| slot.origin.awaited && !client_dma::has(slot));
        if ended && let Some(UnderWay::Ending { command, .. }) = self.jobs_mut().orders.under_way.take() {
            self.decide_order(command, Status::SUCCESS);
            self.run_orders(now_ns);
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tests::{shared, small};
    use crate::state::orders::Orders;
    use crate::state::refusal::Refusal;
    use crate::{Config, Identity};

    #[test]
    fn victims_are_found_by_the_numbers_of_their_controllers() {
        let (mut subsystem, controllers) = shared(vec![small(1)], 5);
        let host = |number: u8| HostId::Short([number; 8]);
        for (number, of) in [(0, 1), (1, 2), (2, 3), (4, 2)] {
            subsystem.set_host(number, host(of));
        }
        let found = |of: &[u8]| {
            let hosts: Vec<_> = of.iter().map(|it| host(*it)).collect();
            let controllers = subsystem.controllers_of(&hosts);
            (0..6).filter(|number| controllers.has(*number)).collect::<Vec<u8>>()
        };
        assert_eq!([found(&[]), found(&[1]), found(&[3])], [vec![], vec![0], vec![2]]);
        assert_eq!([found(&[2]), found(&[3, 1]), found(&[9])], [vec![1, 4], vec![0, 2], vec![]]);
        assert_eq!(subsystem.delete_namespace(1, 0), Err(Refusal::NoSuchNamespace(1)));
        assert_eq!(subsystem.delete_namespace(2, 0), Err(Refusal::NoSuchNamespace(2)));
        controllers.into_iter().for_each(|controller| controller.leave(&mut subsystem));
    }

    #[test]
    fn a_host_that_is_gone_over_and_over_is_forgotten_once() {
        let text = String::from("any");
        let identity =
            Identity { subnqn: text.clone(), serial: text.clone(), model: text.clone(), firmware: text };
        let mut subsystem = Subsystem::new(Config { identity, namespaces: vec![] }).expect("memory");
        subsystem.on_persist(|_| {});
        subsystem.jobs_mut().orders.under_way = Some(UnderWay::Storing { command: None, changes: vec![] });
        for _ in 0..1000 {
            subsystem.set_host(1, HostId::Unnamed(1));
            subsystem.set_host(2, HostId::Unnamed(2));
        }
        let Orders { waiting, gone, .. } = &subsystem.jobs().orders;
        assert_eq!((waiting.len(), &gone[..]), (0, &[HostId::Unnamed(1), HostId::Unnamed(2)][..]));
        subsystem.reservations_persisted(true);
        assert!(subsystem.jobs().orders.are_none() && subsystem.jobs().orders.gone.is_empty());
    }
}
