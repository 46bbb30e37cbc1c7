//! Queues of a controller: installing, removing, and doorbell writes.

use crate::model::Controller;
use crate::state::client_dma::shadow_queue::{QueueMemory, ShadowQueue};
use crate::state::doorbells;
use crate::state::doorbells::DoorbellMode;
use crate::state::events::Event;
use crate::state::queue::{CompletionQueue, SubmissionQueue};
use crate::state::unmapped_queues::UnmappedQueues;
use sluice_command::{Command, Slab};
use sluice_memory::{Access, Pages, ShadowMemory, Space};
use sluice_nvme::opcode::admin as opcode;
use sluice_nvme::{CompletionEntry, Status, SubmissionEntry};
use zerocopy::FromZeros;

impl Controller {
    /// Handles a doorbell write that came through the front-end; `offset` is from the first doorbell. Writes
    /// to doorbells of missing queues, and invalid values, are reported to the host (Base 5.2.1, error events
    /// 0 and 1) and change nothing.
    pub fn ring(&mut self, offset: u32, value: u32) {
        let id = (offset / 8) as u16;
        let is_cq = offset & 4 != 0;
        if offset & 3 != 0 || offset >= doorbells::PAGE as u32 || !self.registers.is_ready() {
            return;
        }
        let here = match is_cq {
            true => self.cqs.get(usize::from(id)).and_then(Option::as_ref).map(|queue| queue.size),
            false => self.sqs.get(usize::from(id)).and_then(Option::as_ref).map(|queue| queue.size),
        };
        let size = here.or_else(|| self.remote_groups.ring(id, is_cq));
        match size {
            None => self.doorbell_error(id, Event::INVALID_DOORBELL_REGISTER),
            Some(size) if value >= size => self.doorbell_error(id, Event::INVALID_DOORBELL_VALUE),
            Some(_) if is_cq || !self.ring_shadow_queue(id, value) => {
                self.doorbells.ring(offset as usize, value)
            }
            // The doorbell is passed on when the entries are here.
            Some(_) => {}
        }
    }

    #[cold]
    pub(crate) fn doorbell_error(&mut self, queue: u16, event: Event) {
        if self.remote_groups.defer_doorbell_error(queue, event) {
            return;
        }
        self.errors.doorbell(queue);
        self.events.raise(event);
    }

    /// Returns the level of INTx: high while a completion is unseen whose queue has interrupts enabled and
    /// unmasked.
    pub fn intx_asserted(&mut self) -> bool {
        if !self.registers.is_ready() || self.registers.interrupts_masked() {
            return false;
        }
        let mut asserted = false;
        for id in 0..self.cqs.len() {
            let by_shadow_queue = self.interrupts_by_shadow_queue(id as u16);
            let Self { cqs, doorbells, .. } = self;
            let Some(queue) = &mut cqs[id] else { continue };
            if (queue.vector.is_some() || by_shadow_queue) && queue.has_unseen(doorbells) {
                // The pin goes low when the host has seen the completion, so the host must ring the head
                // doorbell.
                doorbells.request_head_ring(queue.id, queue.head);
                asserted = true;
            }
        }
        asserted
    }

    /// Withdraws the request for doorbell writes when the task is awake again.
    pub fn disarm(&mut self) {
        if !self.doorbells.has_shadow() {
            return;
        }
        for &id in &self.active {
            if let Some(queue) = &mut self.sqs[usize::from(id)] {
                queue.event_index_head = queue.head;
                self.doorbells.put_event_index_behind(id, queue.head);
            }
        }
    }

    /// Notes that a completion queue is posted to, and publishes the tail of the one before.
    #[inline(always)]
    pub(crate) fn note_queue(&mut self, id: u16) {
        if self.posted != id {
            let before = std::mem::replace(&mut self.posted, id);
            self.note_tail(before);
        }
    }

    /// Publishes the tail of the completion queue that was posted to last.
    #[inline]
    pub(crate) fn note_posted(&mut self) {
        self.note_tail(self.posted);
    }

    pub(crate) fn note_tail(&mut self, cq: u16) {
        if let Some(queue) = &self.cqs[usize::from(cq)] {
            self.handover.get_mut().cqs[usize::from(cq)].index = queue.position();
        }
    }

    /// Publishes the head of a submission queue to a successor of this process.
    #[inline(never)]
    pub(crate) fn note_head(&mut self, id: u16) {
        if let Some(sq) = &self.sqs[usize::from(id)] {
            self.handover.get_mut().sqs[usize::from(id)].index = sq.head;
        }
    }

    /// Publishes the new head, and moves the event index along now and then: each store to it takes the line
    /// away from the host.
    #[inline]
    pub(crate) fn publish_head(&mut self, id: u16) {
        let Some(sq) = &mut self.sqs[usize::from(id)] else { return };
        self.handover.get_mut().sqs[usize::from(id)].index = sq.head;
        let moved = if sq.head >= sq.event_index_head {
            sq.head - sq.event_index_head
        } else {
            sq.head + sq.size - sq.event_index_head
        };
        if moved > sq.size / 4 {
            sq.event_index_head = sq.head;
            self.doorbells.put_event_index_behind(id, sq.head);
        }
    }

    /// Stores the registers in the hand-over segment.
    pub(crate) fn record_registers(&mut self) {
        self.handover.get_mut().registers = self.registers.record(&self.doorbells);
    }

    /// Stores the addresses of shadow doorbells in the hand-over segment.
    pub(crate) fn record_shadow(&mut self, addresses: [u64; 2]) {
        self.handover.get_mut().registers.shadow = addresses;
    }

    /// Removes all queues with their doorbells and interrupts, and the host's context of the Persistent Event
    /// Log.
    pub(crate) fn remove_all_queues(&mut self) {
        self.release_log_context();
        self.active.clear();
        self.sqs.iter_mut().for_each(|queue| *queue = None);
        self.cqs.iter_mut().for_each(|queue| *queue = None);
        let handover = self.handover.get_mut();
        handover.sqs.fill(FromZeros::new_zeroed());
        handover.cqs.fill(FromZeros::new_zeroed());
        match self.remote_groups.delays_reset() {
            true => self.doorbells.drop_shadow(),
            false => self.doorbells.reset(),
        }
        self.interrupts.reset();
        self.unmapped = UnmappedQueues::default();
        self.kept.iter_mut().for_each(|kept| kept.results.clear());
    }

    /// Takes the queues of a group out. A successor of this process must not serve them.
    pub(crate) fn take_group(
        &mut self,
        cq: u16,
        sqs: &[u16],
    ) -> Option<(CompletionQueue, Vec<SubmissionQueue>)> {
        let sqs: Vec<_> = sqs.iter().filter_map(|id| self.sqs[usize::from(*id)].take()).collect();
        let cq = self.cqs[usize::from(cq)].take()?;
        let handover = self.handover.get_mut();
        handover.cqs[usize::from(cq.id)].size = 0;
        sqs.iter().for_each(|sq| handover.sqs[usize::from(sq.id)].size = 0);
        Some((cq, sqs))
    }

    /// Installs the queues of a group and starts to serve them.
    pub(crate) fn install_group(&mut self, cq: CompletionQueue, sqs: Vec<SubmissionQueue>) {
        let handover = self.handover.get_mut();
        handover.cqs[usize::from(cq.id)] = cq.record();
        for mut sq in sqs {
            (sq.controller, sq.event_index_head) = (self.number, sq.head);
            handover.sqs[usize::from(sq.id)] = sq.record();
            self.doorbells.put_event_index_behind(sq.id, sq.head);
            self.active.push(sq.id);
            let id = usize::from(sq.id);
            self.sqs[id] = Some(sq);
        }
        let id = usize::from(cq.id);
        self.cqs[id] = Some(cq);
        // Timers that were off have a deadline again.
        self.make_due(0);
    }

    /// Stores the deletion of a queue until the queue is idle.
    pub(crate) fn await_deletion(&mut self, command: Command) {
        self.deletions.push(command);
    }

    /// Removes a submission queue after its last command. Returns the command that deletes it, unless a reset
    /// has ended that command.
    pub(crate) fn end_sq(&mut self, slab: &Slab, id: u16) -> Option<Command> {
        remove_sq(self, id);
        let is_its =
            |entry: &SubmissionEntry| entry.opcode == opcode::DELETE_IO_SQ && entry.cdw10 as u16 == id;
        let index = self.deletions.iter().position(|command| is_its(slab.entry(command)))?;
        Some(self.deletions.swap_remove(index))
    }

    /// Removes completion queues whose writes by the client have ended. Returns the commands that delete them.
    pub(crate) fn end_cqs(&mut self, slab: &Slab) -> Vec<Command> {
        let Self { deletions, client_dma, .. } = &mut *self;
        let is_over = |command: &mut Command| {
            let entry = slab.entry(command);
            let is_writing =
                |id: u16| client_dma.as_ref().is_some_and(|client_dma| client_dma.is_writing(id));
            entry.opcode == opcode::DELETE_IO_CQ && !is_writing(entry.cdw10 as u16)
        };
        let over: Vec<Command> = deletions.extract_if(.., is_over).collect();
        over.iter().for_each(|command| remove_cq(self, slab.entry(command).cdw10 as u16));
        over
    }

    /// Takes the commands that wait here for an event or for the end of a queue.
    pub(crate) fn take_waiting(&mut self) -> Vec<Command> {
        self.events.take_outstanding().chain(self.deletions.drain(..)).collect()
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
        self.hold_results();
    }

    /// Returns the memory of a new queue of `length` bytes at `iova`, or a shadow if only the client reaches
    /// that memory.
    ///
    /// # Errors
    /// As [`Space::queue`]. A queue cannot have a shadow if the host's doorbell writes do not trap, in a
    /// mapped page or in shadow doorbells.
    pub(crate) fn queue_memory(
        &self,
        space: &Space,
        iova: u64,
        length: usize,
        access: Access,
    ) -> Result<QueueMemory, Status> {
        let is_trapped = self.doorbell_mode() == DoorbellMode::Trapped && !self.doorbells.has_shadow();
        match space.queue(iova, length, access) {
            Err(Status::DATA_TRANSFER_ERROR) if is_trapped && space.is_remote(iova, length, access) => {
                let shadow = ShadowMemory::new(length).map_err(|error| {
                    tracing::error!(%error, "no memory for a shadow queue of a client");
                    Status::INTERNAL_ERROR
                })?;
                Ok(QueueMemory { pages: shadow.pages(), shadow: Some(shadow) })
            }
            found => Ok(QueueMemory { pages: found?, shadow: None }),
        }
    }

    /// Installs a submission queue in this memory.
    pub(crate) fn install_sq_in(
        &mut self,
        queue: impl FnOnce(Pages) -> SubmissionQueue,
        memory: QueueMemory,
    ) {
        let QueueMemory { pages, shadow } = memory;
        let queue = queue(pages);
        if let Some(memory) = shadow {
            let SubmissionQueue { id, address, size, .. } = queue;
            let shadow = ShadowQueue::new(id, address, SubmissionEntry::SIZE, size, memory);
            self.client_dma.get_or_insert_default().shadow_queues.sqs.push((shadow, 0));
        }
        self.install_sq(queue);
    }

    /// Installs a completion queue in this memory. With a shadow, interrupts follow when the client has the
    /// entries.
    pub(crate) fn install_cq_in(
        &mut self,
        queue: impl FnOnce(Pages) -> CompletionQueue,
        memory: QueueMemory,
    ) {
        let QueueMemory { pages, shadow } = memory;
        let mut queue = queue(pages);
        if let Some(memory) = shadow {
            let CompletionQueue { id, address, size, .. } = queue;
            let shadow = ShadowQueue::new(id, address, CompletionEntry::SIZE, size, memory);
            self.client_dma.get_or_insert_default().shadow_queues.cqs.push((shadow, queue.vector.take()));
        }
        self.install_cq(queue);
    }

    /// Handles a doorbell write for a submission queue. Returns false if the queue has no shadow.
    #[inline]
    pub(crate) fn ring_shadow_queue(&mut self, id: u16, value: u32) -> bool {
        let Some(client_dma) = &mut self.client_dma else { return false };
        client_dma.shadow_queues.rung(id, value, &mut client_dma.transfers)
    }

    /// Returns whether some submission queue has a shadow. With shadow doorbells the host would not ring for
    /// it.
    pub(crate) fn has_shadow_queues(&self) -> bool {
        self.client_dma.as_ref().is_some_and(|client_dma| !client_dma.shadow_queues.sqs.is_empty())
    }

    /// Returns whether a completion queue has a shadow and its interrupts are enabled.
    pub(crate) fn interrupts_by_shadow_queue(&self, cq: u16) -> bool {
        let Some(client_dma) = &self.client_dma else { return false };
        client_dma.shadow_queues.cqs.iter().any(|(shadow, vector)| shadow.id == cq && vector.is_some())
    }
}

pub(crate) fn remove_cq(controller: &mut Controller, id: u16) {
    controller.cqs[usize::from(id)] = None;
    controller.handover.get_mut().cqs[usize::from(id)].size = 0;
}

pub(crate) fn remove_sq(controller: &mut Controller, id: u16) {
    let Some(queue) = controller.sqs[usize::from(id)].take() else { return };
    if let Some(cq) = &mut controller.cqs[usize::from(queue.cq)] {
        cq.users -= 1;
    }
    controller.handover.get_mut().sqs[usize::from(id)].size = 0;
    controller.active.retain(|&active| active != id);
    controller.client_dma.iter_mut().for_each(|client_dma| client_dma.forget_sq(id));
}

/// Removes both queues of a pair that has nothing in flight.
pub(crate) fn delete_pair(controller: &mut Controller, id: u16) {
    remove_sq(controller, id);
    remove_cq(controller, id);
}
