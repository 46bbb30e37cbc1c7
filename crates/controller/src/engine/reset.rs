//! Enable, disable, shutdown and resets (Base 3.5, 3.6, 3.7).

use crate::engine::abandoned;
use crate::model::{Controller, Namespace, Subsystem};
use crate::state::limits::NAMESPACES_MAX;
use crate::state::mailbox::Notice;
use crate::state::registers::RegisterAction;
use crate::state::reservation::HostId;
use sluice_command::{Aborted, Command, Controllers, Operation, Origin, Request};
use sluice_memory::Space;
use sluice_nvme::{Status, SubmissionEntry};

impl Controller {
    /// Handles a write of whole dwords to the registers below the doorbells.
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
            match self.write_dword(at, value) {
                RegisterAction::Nothing => {}
                RegisterAction::Enable => self.try_enable(subsystem, space, now_ns),
                RegisterAction::Disable => self.disable(subsystem),
                RegisterAction::Shutdown => self.begin_shutdown(subsystem, now_ns),
                RegisterAction::ResetSubsystem => {
                    tracing::info!("a host resets the NVM subsystem");
                    subsystem.announce(Notice::Reset);
                    self.drain_mailbox(subsystem, now_ns);
                }
            }
        }
        self.record_registers();
    }

    /// Enables the controller, since CC.EN is set. During a drain this waits for the turn in which the drain
    /// ends.
    fn try_enable(&mut self, subsystem: &mut Subsystem, space: &Space, now_ns: u64) {
        if !self.prepare_to_enable(space) {
            return;
        }
        self.features.enabled(now_ns);
        subsystem.set_enabled(self.number(), true);
        subsystem.reset_ana(self.number());
        // Notices from before are void.
        subsystem.collect_mail(self.number());
        let was_on = self.switch_on();
        if !was_on {
            subsystem.health_mut().switched_on(now_ns);
        }
        self.note_ready(subsystem, !was_on, now_ns);
        self.set_ready();
        if self.is_shutdown_requested() {
            self.begin_shutdown(subsystem, now_ns);
        }
    }

    fn disable(&mut self, subsystem: &mut Subsystem) {
        self.begin_drain();
        self.drop_queues(subsystem);
        // Commands that only wait in a layer would delay the drain, too.
        subsystem.recall(self.number());
    }

    /// Resets the controller from outside: a function level reset, a device reset, or the end of a client.
    /// The reset is finished when [`is_quiescent`](Self::is_quiescent) is true.
    pub fn reset(&mut self, subsystem: &mut Subsystem) {
        self.lose_power(subsystem);
        self.drop_queues(subsystem);
        subsystem.recall(self.number());
    }

    /// Handles an NVM Subsystem Reset (Base 3.7.1). It resembles a power cycle, but no data is lost. A host
    /// on the network loses its association.
    pub(crate) fn subsystem_was_reset(&mut self, subsystem: &mut Subsystem) {
        if self.is_fabrics() {
            // A controller without a host has no host to inform.
            if self.is_ready() {
                self.set_fatal();
            }
            return;
        }
        self.begin_subsystem_reset();
        self.drop_queues(subsystem);
        subsystem.recall(self.number());
    }

    /// Removes all queues. No entry is fetched any more, and commands in flight complete without an entry.
    fn drop_queues(&mut self, subsystem: &mut Subsystem) {
        for command in self.take_unfinished(subsystem) {
            let number = subsystem.slab().number(&command);
            self.client_dma.iter_mut().for_each(|client_dma| client_dma.drop_command(number));
            subsystem.slab_mut().release(command);
        }
        if let Some(client_dma) = &mut self.client_dma {
            client_dma.reset(subsystem.slab_mut());
        }
        abandoned::abandon(subsystem, self.number(), None);
        self.remove_all_queues();
    }

    /// Takes the controller's commands that no layer has and that would not end soon. Work that was started
    /// for them goes on.
    fn take_unfinished(&mut self, subsystem: &mut Subsystem) -> Vec<Command> {
        let mut waiting = self.take_waiting();
        waiting.extend(subsystem.take_commands_of(self.number()));
        waiting
    }

    /// Finishes a drain, and enables the controller again if the host has requested that meanwhile. Part of
    /// every turn.
    pub(crate) fn advance_state(&mut self, subsystem: &mut Subsystem, space: &Space, now_ns: u64) {
        if self.is_draining() {
            // This is repeated, since a command may have reached a layer after the last time.
            subsystem.recall(self.number());
            // A write that waits for room would delay the drain: its result no longer matters to a host, and
            // no member of a mirror has failed it.
            let (own, why) = (Controllers::of_bits(1 << self.number()), Status::ABORTED_SQ_DELETION);
            (1..=NAMESPACES_MAX as u32).for_each(|nsid| subsystem.end_waiting(nsid, own, why, now_ns));
            // The same holds for a command that would take long.
            subsystem.abort(Aborted::of(own), why, now_ns);
        }
        if self.is_draining() && self.is_drained(subsystem) {
            self.finish_drain();
            subsystem.renew(self.number());
            // Notices for the state before the reset are dropped with its events.
            self.drain_mailbox(subsystem, now_ns);
            self.drop_notices();
            if !self.is_fabrics() || !subsystem.host(self.number()).is_named() {
                subsystem.set_host(self.number(), HostId::Unnamed(self.number()));
            }
            self.reset_self_test(subsystem, now_ns);
            subsystem.set_enabled(self.number(), false);
            subsystem.jobs_mut().erasure.iter_mut().for_each(|erasure| erasure.set_paused(false));
            self.make_due(0);
            subsystem.make_due(0);
            if self.is_enable_requested() {
                self.try_enable(subsystem, space, now_ns);
            }
        }
        if self.is_shutting_down() && self.has_only_event_requests(subsystem) {
            self.advance_shutdown(subsystem, now_ns);
        }
    }

    /// Starts the shutdown that CC.SHN requests: all finished writes become durable, flushed or not (Base
    /// 3.6.1).
    fn begin_shutdown(&mut self, subsystem: &mut Subsystem, now_ns: u64) {
        if !self.is_ready() {
            return self.finish_shutdown();
        }
        self.start_shutdown();
        if self.has_only_event_requests(subsystem) {
            self.advance_shutdown(subsystem, now_ns);
        }
    }

    /// Flushes all caches once no command of the host is in flight, and then reports the end of the shutdown.
    /// The flushes come last so that they cover every command.
    fn advance_shutdown(&mut self, subsystem: &mut Subsystem, now_ns: u64) {
        let (nsids, are_last) = self.next_to_flush(subsystem);
        nsids.into_iter().for_each(|nsid| self.flush_internal(subsystem, nsid, now_ns));
        if are_last && self.has_only_event_requests(subsystem) {
            self.finish_shutdown();
        }
    }

    fn flush_internal(&self, subsystem: &mut Subsystem, nsid: u32, now_ns: u64) {
        // A host has deleted the namespace since.
        if subsystem.get(nsid).is_none_or(Namespace::is_leaving) {
            return;
        }
        let entry = SubmissionEntry { nsid, ..SubmissionEntry::default() };
        let origin = Origin { sq: Origin::INTERNAL_SQ, controller: self.number(), ..Origin::default() };
        let command = subsystem.slab_mut().admit(&entry, origin).expect("room was looked at");
        let request = Request { operation: Operation::Flush, ..Request::default() };
        subsystem.slab_mut().slot_mut(&command).request = request;
        // The deletion of the namespace waits for this command.
        subsystem.submit_to(nsid, command, now_ns);
    }
}
