//! States of a controller: disabled, ready, draining, shutting down, fatal (Base 3.5, 3.6, 3.7).

use crate::model::{Controller, Subsystem};
use crate::state::erasure::Erasure;
use crate::state::queue::{CompletionQueue, Service, SubmissionQueue};
use crate::state::registers::{RegisterAction, State};
use crate::state::remote_queues::cause::RecallCause;
use sluice_command::Command;
use sluice_memory::{Access, Space};
use sluice_nvme::{CompletionEntry, SubmissionEntry, register};

/// Questions about the state.
impl Controller {
    /// Returns CSTS.CFS: only a reset ends this state.
    #[inline]
    pub fn is_fatal(&self) -> bool {
        self.registers.is_fatal()
    }

    /// Returns CSTS.RDY.
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.registers.is_ready()
    }

    /// Returns whether queues are served: in fatal status none is.
    #[inline]
    pub(crate) fn serves(&self) -> bool {
        self.registers.is_ready() && !self.registers.is_fatal()
    }

    /// Returns whether the controller was enabled, and no drain has begun since.
    pub(crate) fn is_enabled(&self) -> bool {
        self.registers.state == State::Enabled
    }

    /// Returns whether commands in flight are awaited, after a disable or a reset.
    #[inline]
    pub(crate) fn is_draining(&self) -> bool {
        self.registers.state == State::Draining
    }

    #[inline]
    pub(crate) fn is_shutting_down(&self) -> bool {
        self.registers.is_shutting_down()
    }

    /// Returns whether the host has selected weighted round robin.
    #[inline]
    pub(crate) fn is_weighted(&self) -> bool {
        self.registers.is_weighted()
    }

    /// Returns CC.EN.
    pub(crate) fn is_enable_requested(&self) -> bool {
        self.registers.cc.enabled()
    }

    /// Returns whether CC.SHN requests a shutdown.
    pub(crate) fn is_shutdown_requested(&self) -> bool {
        self.registers.cc.shn() != 0
    }

    /// Returns the entry sizes of I/O submission and completion queues, as powers of two (CC.IOSQES, CC.IOCQES).
    pub(crate) fn entry_sizes(&self) -> (u8, u8) {
        (self.registers.cc.iosqes(), self.registers.cc.iocqes())
    }

    /// Returns whether no command of a host is in flight and no reset is under way.
    pub fn is_quiescent(&self, subsystem: &Subsystem) -> bool {
        !self.is_draining() && self.in_flight(subsystem) == 0 && subsystem.is_recalled(self.number())
    }

    /// Returns whether a drain or a shutdown has nothing left to wait for.
    pub(crate) fn can_advance_state(&self, subsystem: &Subsystem) -> bool {
        match self.registers.state {
            State::Draining => self.is_drained(subsystem),
            _ => self.registers.is_shutting_down() && self.has_only_event_requests(subsystem),
        }
    }

    pub(crate) fn is_drained(&self, subsystem: &Subsystem) -> bool {
        self.in_flight(subsystem) == 0
            && !self.client_dma.as_ref().is_some_and(|client_dma| client_dma.awaits_writes())
    }

    /// Returns whether only Asynchronous Event Requests are pending. A format goes on when the controller is
    /// enabled again.
    pub(crate) fn has_only_event_requests(&self, subsystem: &Subsystem) -> bool {
        self.unfinished(subsystem) == 0
    }

    /// Returns whether a paused controller, which takes no Keep Alive either, still has commands to complete.
    pub(crate) fn owes_completions(&self, subsystem: &Subsystem) -> bool {
        let is_paused = self.sqs[0].as_ref().is_some_and(|queue| queue.service == Service::Over);
        is_paused && self.unfinished(subsystem) > 0
    }

    /// Returns the number of commands without a completion entry, including completions for unmapped queues.
    /// Asynchronous Event Requests do not count, since their event may never happen (Base 5.2). Nor does a
    /// Format NVM, which pauses between any two of its chunks.
    pub fn unfinished(&self, subsystem: &Subsystem) -> u32 {
        let is_own = |command: &Command| subsystem.slab().slot(command).origin.controller == self.number();
        let waiting = subsystem.jobs().erasure.as_ref().and_then(Erasure::command).is_some_and(is_own);
        self.in_flight(subsystem) - self.event_requests() - u32::from(waiting) + self.held_completions()
    }
}

/// Changes of the state.
impl Controller {
    /// Writes a dword below the doorbells. Returns the action that it requests.
    pub(crate) fn write_dword(&mut self, at: u32, value: u32) -> RegisterAction {
        // Masking the interrupt pin does not concern queues that have vectors.
        if ![register::INTMS, register::INTMC].contains(&at) {
            self.remote_groups.recall(RecallCause::Reset);
        }
        self.registers.write(at, value)
    }

    /// Enters fatal status.
    pub(crate) fn set_fatal(&mut self) {
        self.registers.set_fatal();
    }

    /// Creates the admin queues as the host configured them, so that the controller can be enabled. Returns
    /// false during a drain, and for a configuration that leads to fatal status.
    pub(crate) fn prepare_to_enable(&mut self, space: &Space) -> bool {
        if self.registers.state != State::Disabled {
            return false;
        }
        if !self.registers.is_supported() || self.create_admin_queues(space).is_none() {
            tracing::warn!(
                cc = self.registers.cc.0,
                "controller cannot be enabled as the host configured it"
            );
            self.registers.set_fatal();
            return false;
        }
        true
    }

    fn create_admin_queues(&mut self, space: &Space) -> Option<()> {
        let page_size = self.registers.cc.page_size();
        space.set_page_size(page_size);
        let is_amiss = |address: u64| !address.is_multiple_of(page_size as u64);
        // For a host that sends capsules, the queues are in memory of the daemon.
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

    /// Sets CSTS.RDY.
    pub(crate) fn set_ready(&mut self) {
        self.registers.set_ready();
        // Timers that were off have a deadline again.
        self.make_due(0);
    }

    /// Begins a drain, since the host has disabled the controller.
    pub(crate) fn begin_drain(&mut self) {
        if self.is_enabled() || self.is_fatal() {
            self.registers.state = State::Draining;
            self.client_dma.iter_mut().for_each(|client_dma| client_dma.await_writes());
        }
    }

    /// Sets the registers as after power on, and begins a drain.
    pub(crate) fn lose_power(&mut self, subsystem: &mut Subsystem) {
        if self.switch_off() {
            let prepared = self.registers.is_prepared_for_power_loss();
            subsystem.health_mut().power_lost(prepared);
            if !prepared {
                self.note_unsafe_shutdown(subsystem);
            }
        }
        self.registers.power_on();
        self.registers.state = State::Draining;
        self.client_dma.iter_mut().for_each(|client_dma| client_dma.drop_writes());
    }

    /// Sets the registers as after an NVM Subsystem Reset, and begins a drain.
    pub(crate) fn begin_subsystem_reset(&mut self) {
        if !self.is_draining() {
            self.client_dma.iter_mut().for_each(|client_dma| client_dma.await_writes());
        }
        self.registers.subsystem_reset_occurred();
        self.registers.state = State::Draining;
    }

    /// Finishes a drain: registers, doorbells and features are as after a reset.
    pub(crate) fn finish_drain(&mut self) {
        self.registers.controller_reset();
        if self.remote_groups.take_stale() {
            self.doorbells.reset();
        }
        self.features.reset();
    }

    /// Sets the registers as after power on, since a remote controller has returned its queues.
    pub(crate) fn retire(&mut self) {
        self.registers.power_on();
    }
}
