//! Enable, disable, shutdown and resets (Base 3.5, 3.6, 3.7).

use crate::absence::Absence;
use crate::mailbox::Notice;
use crate::outpost::Cause;
use crate::queue::{CompletionQueue, SubmissionQueue};
use crate::registers::{Ask, Life};
use crate::reservation::{HostId, Notifications};
use crate::subsystem::Subsystem;
use crate::{Controller, NAMESPACES_MAX, Namespace, abandoned, self_test};
use sluice_command::{Aborted, Command, Controllers, Operation, Origin, Request};
use sluice_memory::{Access, Space};
use sluice_nvme::{CompletionEntry, Status, SubmissionEntry, register};
use zerocopy::FromZeros;

/// The submission queue of commands that no host sent, such as the flushes of a shutdown.
pub(crate) const INTERNAL: u16 = Origin::INTERNAL;

impl Controller {
    /// The host wrote to the register space below the doorbells, in whole dwords.
    pub fn write_register(
        &mut self,
        subsystem: &mut Subsystem,
        offset: u32,
        data: &[u8],
        space: &Space,
        now_ns: u64,
    ) {
        if offset & 3 != 0 {
            return;
        }
        for (index, dword) in data.chunks_exact(4).enumerate() {
            let value = u32::from_le_bytes([dword[0], dword[1], dword[2], dword[3]]);
            let at = offset.saturating_add(index as u32 * 4);
            // Masking the pin is nothing to queues that have vectors.
            if ![register::INTMS, register::INTMC].contains(&at) {
                self.apart.call(Cause::Reset);
            }
            let ask = self.registers.write(at, value);
            match ask {
                Ask::Nothing => {}
                Ask::Enable => self.try_enable(subsystem, space, now_ns),
                Ask::Disable => self.disable(subsystem),
                Ask::Shutdown => self.begin_shutdown(subsystem, now_ns),
                Ask::ResetSubsystem => {
                    tracing::info!("a host resets the NVM subsystem");
                    subsystem.mailboxes.announce(Notice::Reset);
                    self.drain_mailbox(subsystem, now_ns);
                }
            }
        }
        self.handover.get_mut().registers = self.registers.record(&self.doorbells);
    }

    /// CC.EN is set. While an earlier life drains this waits; the turn that finds it drained tries again.
    fn try_enable(&mut self, subsystem: &mut Subsystem, space: &Space, now_ns: u64) {
        if self.registers.life != Life::Disabled {
            return;
        }
        if !self.registers.is_supported() || self.create_admin_queues(space).is_none() {
            tracing::warn!(
                cc = self.registers.cc.0,
                "controller cannot be enabled as the host configured it"
            );
            return self.registers.set_fatal();
        }
        self.features.enabled(now_ns);
        subsystem.set_enabled(self.number, true);
        subsystem.ana.reset(self.number);
        // What happened before is no news.
        subsystem.mailboxes.take(self.number, &mut subsystem.done);
        let was_on = std::mem::replace(&mut self.is_on, true);
        if !was_on {
            subsystem.health.switched_on(now_ns);
        }
        self.note_ready(subsystem, !was_on, now_ns);
        self.registers.set_ready();
        // What rested has a deadline again.
        self.next_deadline_ns = 0;
        if self.registers.cc.shn() != 0 {
            self.begin_shutdown(subsystem, now_ns);
        }
    }

    fn create_admin_queues(&mut self, space: &Space) -> Option<()> {
        let page_size = self.registers.cc.page_size();
        space.set_page_size(page_size);
        let is_amiss = |address: u64| !address.is_multiple_of(page_size as u64);
        // The queues of a host that sends messages are in memory of ours.
        if !self.is_fabrics() && [self.registers.asq, self.registers.acq].into_iter().any(is_amiss) {
            return None;
        }
        let (sq_size, cq_size) = self.registers.admin_sizes();
        let sq_bytes = sq_size as usize * SubmissionEntry::SIZE;
        let cq_bytes = cq_size as usize * CompletionEntry::SIZE;
        let (asq, acq) = (self.registers.asq, self.registers.acq);
        let sq_memory = self.queue_memory(space, asq, sq_bytes, Access::Read).ok()?;
        let cq_memory = self.queue_memory(space, acq, cq_bytes, Access::Write).ok()?;
        self.install_cq_in(|pages| CompletionQueue::new(0, acq, pages, cq_size, Some(0)), cq_memory);
        let epoch = self.next_epoch();
        self.install_sq_in(|pages| SubmissionQueue::new(0, 0, epoch, asq, pages, sq_size), sq_memory);
        Some(())
    }

    pub(crate) fn next_epoch(&mut self) -> u32 {
        self.epochs = self.epochs.wrapping_add(1);
        self.epochs
    }

    pub(crate) fn install_sq(&mut self, mut queue: SubmissionQueue) {
        queue.controller = self.number;
        let id = queue.id;
        self.doorbells.clear_sq(id);
        if let Some(cq) = &mut self.cqs[usize::from(queue.cq)] {
            cq.users += 1;
        }
        self.handover.get_mut().sqs[usize::from(id)] = queue.record();
        self.sqs[usize::from(id)] = Some(queue);
        self.active.push(id);
        self.doorbells.put_event_index_behind(id, 0);
    }

    pub(crate) fn install_cq(&mut self, queue: CompletionQueue) {
        self.doorbells.clear_cq(queue.id);
        let id = usize::from(queue.id);
        self.handover.get_mut().cqs[id] = queue.record();
        self.cqs[id] = Some(queue);
    }

    fn disable(&mut self, subsystem: &mut Subsystem) {
        if self.registers.life == Life::Enabled || self.registers.is_fatal() {
            self.registers.life = Life::Draining;
            self.courier.iter_mut().for_each(|courier| courier.await_writes());
        }
        self.drop_queues(subsystem);
        // What only waits in a layer would keep the drain waiting, too.
        subsystem.recall(self.number);
    }

    /// A reset from outside: a function level reset, a device reset, a client that went away. It is
    /// done when [`is_quiescent`](Self::is_quiescent).
    pub fn reset(&mut self, subsystem: &mut Subsystem) {
        if std::mem::take(&mut self.is_on) {
            let prepared = self.registers.is_prepared_for_power_loss();
            subsystem.health.power_lost(prepared);
            if !prepared {
                self.note_unsafe_shutdown(subsystem);
            }
        }
        self.registers.power_on();
        self.registers.life = Life::Draining;
        self.courier.iter_mut().for_each(|courier| courier.await_nothing());
        self.drop_queues(subsystem);
        subsystem.recall(self.number);
    }

    /// NVM Subsystem Reset (Base 3.7.1): as if everything had been switched off, but that nothing was lost. A host on
    /// the network loses its association.
    pub(crate) fn subsystem_was_reset(&mut self, subsystem: &mut Subsystem) {
        if self.is_fabrics() {
            // One that is nobody's yet, or no more, has nobody to tell.
            if self.registers.is_ready() {
                self.registers.set_fatal();
            }
            return;
        }
        if self.registers.life != Life::Draining {
            self.courier.iter_mut().for_each(|courier| courier.await_writes());
        }
        self.registers.subsystem_reset_occurred();
        self.registers.life = Life::Draining;
        self.drop_queues(subsystem);
        subsystem.recall(self.number);
    }

    /// No queue is left, so nothing new is fetched, and what is in flight completes to nobody.
    fn drop_queues(&mut self, subsystem: &mut Subsystem) {
        for command in self.take_waiting(subsystem) {
            let number = subsystem.slab.number(&command);
            self.courier.iter_mut().for_each(|courier| courier.drop_command(number));
            subsystem.slab.release(command);
        }
        if let Some(courier) = &mut self.courier {
            courier.reset(&mut subsystem.slab);
        }
        abandoned::abandon(subsystem, self.number, None);
        self.persistent_events = None;
        self.active.clear();
        self.sqs.iter_mut().for_each(|queue| *queue = None);
        self.cqs.iter_mut().for_each(|queue| *queue = None);
        match self.apart.delays_reset() {
            true => self.doorbells.drop_shadow(),
            false => self.doorbells.reset(),
        }
        self.interrupts.reset();
        self.absence = Absence::default();
        let handover = self.handover.get_mut();
        handover.sqs.fill(FromZeros::new_zeroed());
        handover.cqs.fill(FromZeros::new_zeroed());
    }

    /// Its commands that no layer has, and that nobody would end soon. What was begun for them goes on.
    fn take_waiting(&mut self, subsystem: &mut Subsystem) -> Vec<Command> {
        let Subsystem { erasure, management, orders, slab, .. } = subsystem;
        let number = self.number;
        let is_own = |command: &Command| slab.slot(command).origin.controller == number;
        let mut waiting: Vec<_> = self.events.take_outstanding().chain(self.deletions.drain(..)).collect();
        waiting.extend(erasure.as_mut().and_then(|erasure| erasure.take_command_if(is_own)));
        waiting.extend(management.take_commands(is_own));
        waiting.extend(orders.take_commands(is_own));
        waiting
    }

    /// Nothing of a host is in flight, and no reset is under way.
    pub fn is_quiescent(&self, subsystem: &Subsystem) -> bool {
        self.registers.life != Life::Draining
            && self.in_flight(subsystem) == 0
            && subsystem.is_recalled(self.number)
    }

    /// A drain or a shutdown has nothing left to wait for.
    pub(crate) fn life_can_advance(&self, subsystem: &Subsystem) -> bool {
        match self.registers.life {
            Life::Draining => self.is_drained(subsystem),
            _ => self.registers.is_shutting_down() && self.has_only_event_requests(subsystem),
        }
    }

    fn is_drained(&self, subsystem: &Subsystem) -> bool {
        self.in_flight(subsystem) == 0
            && !self.courier.as_ref().is_some_and(|courier| courier.awaits_writes())
    }

    /// Part of every turn: finishes a drain, and enables again if the host asked for that meanwhile.
    pub(crate) fn advance_life(&mut self, subsystem: &mut Subsystem, space: &Space, now_ns: u64) {
        if self.registers.life == Life::Draining {
            // Once more: a command that was above a layer may have come down to it since.
            subsystem.recall(self.number);
            // Nobody will hear whether a write that waits for room has found it, and no member of a mirror has failed it.
            let (own, why) = (Controllers::of_bits(1 << self.number), Status::ABORTED_SQ_DELETION);
            (1..=NAMESPACES_MAX as u32).for_each(|nsid| subsystem.end_waiting(nsid, own, why, now_ns));
            // Nor for one that would go on for long.
            subsystem.abort(Aborted::of(own), why, now_ns);
        }
        if self.registers.life == Life::Draining && self.is_drained(subsystem) {
            self.registers.controller_reset();
            if self.apart.take_stale() {
                self.doorbells.reset();
            }
            subsystem.renew(self.number);
            self.features.reset();
            // What was left for the life that ends is forgotten with its events.
            self.drain_mailbox(subsystem, now_ns);
            self.events.reset();
            self.reservation_notifications = Notifications::new();
            if !self.is_fabrics() || !subsystem.host(self.number).is_named() {
                subsystem.set_host(self.number, HostId::Unnamed(self.number));
            }
            self_test::reset(self, subsystem, now_ns);
            subsystem.set_enabled(self.number, false);
            subsystem.erasure.iter_mut().for_each(|erasure| erasure.rest(false));
            (self.next_deadline_ns, subsystem.next_deadline_ns) = (0, 0);
            if self.registers.cc.enabled() {
                self.try_enable(subsystem, space, now_ns);
            }
        }
        if self.registers.is_shutting_down() && self.has_only_event_requests(subsystem) {
            self.advance_shutdown(subsystem, now_ns);
        }
    }

    /// Nothing that a shutdown waits for: a format goes on when the controller is enabled again.
    fn has_only_event_requests(&self, subsystem: &Subsystem) -> bool {
        self.unfinished(subsystem) == 0
    }

    /// CC.SHN: everything finished before is made durable, whatever the host flushed (Base 3.6.1).
    fn begin_shutdown(&mut self, subsystem: &mut Subsystem, now_ns: u64) {
        if !self.registers.is_ready() {
            return self.registers.shutdown_complete();
        }
        self.registers.shutdown_begins();
        self.unflushed = None;
        if self.has_only_event_requests(subsystem) {
            self.advance_shutdown(subsystem, now_ns);
        }
    }

    /// No command of the host is in flight: flushes what is cached, then says that all is done. The
    /// flushes come last so that they cover every command.
    fn advance_shutdown(&mut self, subsystem: &mut Subsystem, now_ns: u64) {
        let mut unflushed = match self.unflushed.take() {
            Some(unflushed) => unflushed,
            None => subsystem.cached_namespaces().collect(),
        };
        let room = (subsystem.room(self.number) as usize).min(unflushed.len());
        for nsid in unflushed.drain(..room) {
            self.flush_for_ourselves(subsystem, nsid, now_ns);
        }
        let is_last = unflushed.is_empty();
        self.unflushed = Some(unflushed);
        if is_last && self.has_only_event_requests(subsystem) {
            self.registers.shutdown_complete();
        }
    }

    fn flush_for_ourselves(&self, subsystem: &mut Subsystem, nsid: u32, now_ns: u64) {
        // A host has deleted it since.
        if subsystem.get(nsid).is_none_or(Namespace::is_leaving) {
            return;
        }
        let entry = SubmissionEntry { nsid, ..SubmissionEntry::default() };
        let origin = Origin { sq: INTERNAL, controller: self.number, ..Origin::default() };
        let command = subsystem.slab.admit(&entry, origin).expect("room was looked at");
        let request = Request { operation: Operation::Flush, ..Request::default() };
        subsystem.slab.slot_mut(&command).request = request;
        // Its deletion waits for this.
        subsystem.submit_to(nsid, command, now_ns);
    }
}

/// Commands that wait here, for an event or for the end of a queue, end here. The hand-over segment
/// stays as it is: a successor may be reading it.
impl Drop for Controller {
    fn drop(&mut self) {
        self.events.take_outstanding().for_each(std::mem::forget);
        self.deletions.drain(..).for_each(std::mem::forget);
        self.courier.iter_mut().for_each(|courier| courier.abandon());
    }
}
