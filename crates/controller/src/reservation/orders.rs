//! What hosts want of reservations, one order after the other.
//!
//! What survives a loss of power is stored before the host is told, by somebody who may block; until then no other
//! change begins, and everything is as it was. A Preempt and Abort ends when the commands have that it was to abort:
//! so nothing of its victims changes a block after.
//!
//! A reset waits for none of this. It takes the commands of its controller: those that waited here have done nothing,
//! and what was begun goes on without its command.

use super::{Change, Group, HostId, ReservationRecord};
use crate::erase::Erasure;
use crate::mailbox::Notice;
use crate::subsystem::Subsystem;
use crate::{PersistentRecord, client_dma, fused};
use sluice_command::{Aborted, Command, Controllers};
use sluice_nvme::opcode::io;
use sluice_nvme::{NSID_ALL, Status};
use std::collections::VecDeque;

/// Orders carried out in one go. A host can have hundreds wait that change nothing, each of which looks at every
/// namespace.
const ORDERS_AT_ONCE: usize = 4;

#[derive(Debug, Default)]
pub(crate) struct Orders {
    waiting: VecDeque<Command>,
    /// The controller whose order was begun last: others' come first, so that nobody can be kept from fencing a host by
    /// the orders of that host.
    last: u8,
    under_way: Option<UnderWay>,
    /// Hosts that said nothing of themselves and are gone, or have said it now. What they had ends when nothing is being
    /// stored any more.
    gone: Vec<HostId>,
}

/// With the command that waits for it, unless a reset took that.
#[derive(Debug)]
enum UnderWay {
    Storing {
        command: Option<Command>,
        changes: Vec<(u32, Change)>,
    },
    /// Commands of these controllers come to their end in these namespaces.
    Ending {
        command: Option<Command>,
        victims: Vec<(u32, Controllers)>,
    },
}

impl Orders {
    /// Nobody waits for anything.
    pub(crate) fn are_none(&self) -> bool {
        self.waiting.is_empty() && self.under_way.is_none()
    }

    /// A command waits for the end of others.
    #[inline]
    pub(crate) fn are_ending(&self) -> bool {
        matches!(self.under_way, Some(UnderWay::Ending { .. }))
    }

    /// Nothing is under way, and something may begin.
    #[inline]
    fn may_go_on(&self) -> bool {
        self.under_way.is_none() && !self.waiting.is_empty()
    }

    fn are_storing(&self) -> bool {
        matches!(self.under_way, Some(UnderWay::Storing { .. }))
    }

    /// Takes the commands that are meant: those that wait do not begin any more.
    pub(crate) fn take_commands(&mut self, mut is_meant: impl FnMut(&Command) -> bool) -> Vec<Command> {
        let waiting = std::mem::take(&mut self.waiting).into_iter();
        let (taken, left): (VecDeque<_>, VecDeque<_>) = waiting.partition(|command| is_meant(command));
        self.waiting = left;
        let current = self.under_way.as_mut().and_then(|it| match it {
            UnderWay::Storing { command, .. } | UnderWay::Ending { command, .. } => {
                command.take_if(|command| is_meant(command))
            }
        });
        taken.into_iter().chain(current).collect()
    }
}

/// Commands that still wait here end here: nobody is left to be told.
impl Drop for Orders {
    fn drop(&mut self) {
        self.take_commands(|_| true).into_iter().for_each(std::mem::forget);
    }
}

impl Subsystem {
    /// The host that a controller belongs to.
    pub(crate) fn host(&self, number: u8) -> HostId {
        self.hosts.get(usize::from(number)).copied().unwrap_or(HostId::Unnamed(number))
    }

    /// The host of a controller has said who it is, or is gone.
    pub(crate) fn set_host(&mut self, number: u8, host: HostId) {
        let host = if self.belongs_to_another(host, number) { HostId::Unnamed(number) } else { host };
        let Some(entry) = self.hosts.get_mut(usize::from(number)) else { return };
        let before = std::mem::replace(entry, host);
        // Whatever an unnamed one had here ends with it.
        if before.is_named() {
            return;
        }
        if !self.orders.are_storing() {
            return self.forget_host(before);
        }
        // What is being stored may bring it back. Until then nothing begins, also of its controller's next lives: so
        // once is enough, however many of those there are.
        if !self.orders.gone.contains(&before) {
            self.orders.gone.push(before);
        }
    }

    /// Takes a command whose wish is to be carried out.
    pub(crate) fn order(&mut self, command: Command, now_ns: u64) {
        self.orders.waiting.push_back(command);
        self.run_orders(now_ns);
    }

    /// Begins what waits, unless something is under way; the next turn goes on where there is much.
    pub(crate) fn run_orders(&mut self, now_ns: u64) {
        for _ in 0..ORDERS_AT_ONCE {
            if !self.orders.may_go_on() {
                return;
            }
            let Some(command) = self.next_order() else { return };
            self.execute(command, now_ns);
        }
        if self.orders.may_go_on() {
            self.mailboxes.announce(Notice::Resumed);
        }
    }

    /// The first of those who have waited longest since their last.
    fn next_order(&mut self) -> Option<Command> {
        let Self { orders, slab, .. } = self;
        let number = |command: &Command| slab.slot(command).origin.controller;
        let turn = |command: &Command| number(command).wrapping_sub(orders.last).wrapping_sub(1);
        let (at, _) = orders.waiting.iter().enumerate().min_by_key(|(_, command)| turn(command))?;
        let next = orders.waiting.remove(at)?;
        orders.last = number(&next);
        Some(next)
    }

    fn execute(&mut self, command: Command, now_ns: u64) {
        let changes = match self.changes(&command) {
            Ok(changes) => changes,
            Err(status) => return self.decide(Some(command), status),
        };
        let command = Some(command);
        let records: Vec<_> =
            changes.iter().filter_map(|(nsid, change)| self.record_if_changed(*nsid, change)).collect();
        if records.is_empty() {
            return self.put_in_force(command, changes);
        }
        self.orders.under_way = Some(UnderWay::Storing { command, changes });
        self.persist(PersistentRecord::Reservations(records), now_ns);
    }

    /// What the command makes of which namespaces.
    fn changes(&self, command: &Command) -> Result<Vec<(u32, Change)>, Status> {
        let controller = self.slab.slot(command).origin.controller;
        let (host, name) = (self.host(controller), self.host_name(controller));
        let (nsid, action) = (self.slab.entry(command).nsid, self.action_of(command)?);
        let there = self.iter_active(controller).filter(|it| !it.is_leaving());
        let concerned = there.filter(|it| nsid == NSID_ALL || it.nsid() == nsid);
        let changes: Vec<_> = concerned
            .map(|it| Ok((it.nsid(), it.reservations.change(host, &name, action)?)))
            .collect::<Result<_, Status>>()?;
        if changes.is_empty() { Err(Status::INVALID_NAMESPACE) } else { Ok(changes) }
    }

    /// What is to be stored, if it is not what was stored last.
    fn record_if_changed(&self, nsid: u32, change: &Change) -> Option<(u32, Option<ReservationRecord>)> {
        let (now, next) = (self.get(nsid)?.reservations.record(), change.next.record());
        (now != next).then_some((nsid, next))
    }

    /// Changes were stored, or could not be.
    pub(crate) fn reservations_persisted(&mut self, well: bool) {
        if let Some(UnderWay::Storing { command, changes }) =
            self.orders.under_way.take_if(|it| matches!(it, UnderWay::Storing { .. }))
        {
            match well {
                true => self.put_in_force(command, changes),
                false => self.decide(command, Status::INTERNAL_ERROR),
            }
            for host in std::mem::take(&mut self.orders.gone) {
                self.forget_host(host);
            }
        }
    }

    /// What was stored, or need not be, is so from now on.
    fn put_in_force(&mut self, command: Option<Command>, changes: Vec<(u32, Change)>) {
        let (mut ending, mut victims) = (false, Vec::new());
        for (nsid, change) in changes {
            self.health.note_effort();
            if !change.aborted.is_empty() {
                ending |= self.await_victims(nsid, &change.aborted, command.is_some()) > 0;
                victims.push((nsid, self.controllers_of(&change.aborted)));
            }
            self.apply(nsid, change);
        }
        self.drop_foreign_identifiers();
        match ending {
            true => self.orders.under_way = Some(UnderWay::Ending { command, victims }),
            false => self.decide(command, Status::SUCCESS),
        }
    }

    fn controllers_of(&self, hosts: &[HostId]) -> Controllers {
        let of_these = (0..).zip(&self.hosts).filter(|(_, host)| hosts.contains(host));
        Controllers::of_bits(of_these.fold(0, |bits, (number, _): (u32, _)| bits | 1 << number))
    }

    fn apply(&mut self, nsid: u32, change: Change) {
        if let Some(namespace) = self.get_mut(nsid) {
            namespace.set_reservations(change.next);
        }
        // In the mailboxes of others they would take the place of what those are told.
        let Self { mailboxes, hosts, .. } = self;
        for (host, notification) in change.notifications {
            let controllers = (0..).zip(hosts.iter()).filter(|(_, of)| **of == host);
            let notice = Notice::Reservation { host, nsid, notification };
            controllers.for_each(|(number, _)| mailboxes.notify(number, notice));
        }
    }

    fn forget_host(&mut self, host: HostId) {
        // Whoever holds a reservation is registered, too.
        let there = self.iter().filter(|it| it.reservations.is_registrant(host));
        let changes: Vec<_> = there.map(|it| (it.nsid(), it.reservations.without(host))).collect();
        changes.into_iter().for_each(|(nsid, change)| self.apply(nsid, change));
    }

    /// Marks the commands of these hosts that are in flight in a namespace, and their format of it if somebody `is_told`;
    /// returns how many there are.
    fn await_victims(&mut self, nsid: u32, hosts: &[HostId], is_awaited: bool) -> usize {
        let Self { slab, hosts: of, erasure, .. } = self;
        let is_victim = |controller: u8| of.get(usize::from(controller)).is_some_and(|it| hosts.contains(it));
        // No format begins to erase before a command that would preempt it has ended. One without may have, and then
        // others would wait for hours.
        let is_formatting = is_awaited && erasure.as_mut().is_some_and(|it| it.preempt(nsid, hosts));
        let mut awaited = usize::from(is_formatting);
        for slot in slab.live_mut() {
            let origin = slot.origin;
            // Those that wait for a fused operation are looked at again before they begin.
            // So are those that are with their client: no time is set for that.
            let begun = origin.opcode != fused::WAITS && Group::of_io(origin.opcode) != Group::Free;
            let is_io = origin.is_host() && origin.sq != 0 && begun;
            // What a Copy does next, and where, is not seen.
            let concerned = u32::from(origin.namespace) + 1 == nsid || origin.opcode == io::COPY;
            if is_io && concerned && is_victim(origin.controller) && !client_dma::has(slot) {
                slot.origin.awaited = true;
                awaited += 1;
            }
        }
        awaited
    }

    /// A command may wait for the end of others, or for its turn. True if that has come.
    #[inline]
    pub(crate) fn poll_orders(&mut self, now_ns: u64) -> bool {
        self.orders.are_ending() && self.check_victims(now_ns)
            || self.orders.may_go_on() && self.continue_orders(now_ns)
    }

    #[cold]
    fn continue_orders(&mut self, now_ns: u64) -> bool {
        self.run_orders(now_ns);
        true
    }

    /// What of the victims only waits in the layers, as for room, would have others wait for as long.
    fn end_waiting_victims(&mut self, now_ns: u64) {
        let Some(UnderWay::Ending { victims, .. }) = &mut self.orders.under_way else { return };
        let victims = std::mem::take(victims);
        for (nsid, of) in &victims {
            self.end_waiting(*nsid, *of, Status::ABORTED_PREEMPT, now_ns);
            let victims = Aborted { awaited: true, ..Aborted::of(*of) };
            self.abort_in(*nsid, victims, Status::ABORTED_PREEMPT, now_ns);
        }
        if let Some(UnderWay::Ending { victims: place, .. }) = &mut self.orders.under_way {
            *place = victims;
        }
    }

    /// Looks whether the commands have ended that one waits for.
    #[cold]
    fn check_victims(&mut self, now_ns: u64) -> bool {
        self.end_waiting_victims(now_ns);
        let is_formatting = self.erasure.as_ref().is_some_and(Erasure::is_preempted);
        let ended =
            !is_formatting && !self.slab.live().any(|slot| slot.origin.awaited && !client_dma::has(slot));
        if ended && let Some(UnderWay::Ending { command, .. }) = self.orders.under_way.take() {
            self.decide(command, Status::SUCCESS);
            self.run_orders(now_ns);
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Identity};

    #[test]
    fn a_host_that_is_gone_over_and_over_is_forgotten_once() {
        let text = String::from("any");
        let identity =
            Identity { subnqn: text.clone(), serial: text.clone(), model: text.clone(), firmware: text };
        let mut subsystem = Subsystem::new(Config { identity, namespaces: vec![] }).expect("memory");
        subsystem.on_persist(|_| {});
        subsystem.orders.under_way = Some(UnderWay::Storing { command: None, changes: vec![] });
        for _ in 0..1000 {
            subsystem.set_host(1, HostId::Unnamed(1));
            subsystem.set_host(2, HostId::Unnamed(2));
        }
        let Orders { waiting, gone, .. } = &subsystem.orders;
        assert_eq!((waiting.len(), &gone[..]), (0, &[HostId::Unnamed(1), HostId::Unnamed(2)][..]));
        subsystem.reservations_persisted(true);
        assert!(subsystem.orders.are_none() && subsystem.orders.gone.is_empty());
    }
}
