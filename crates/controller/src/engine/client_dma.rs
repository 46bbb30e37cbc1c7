//! Commands that wait for memory of the client, from the failed check to the completion.

use crate::engine::intake::Intake;
use crate::engine::{admin, complete, queues};
use crate::model::{Controller, Subsystem};
use crate::state::client_dma::{ClientDma, DMA_TIMEOUT_NS, DmaRequest, QueueEvent, bounce, is_fetchable};
use sluice_command::Command;
use sluice_memory::{BounceBuffers, MissingRange, Space};
use sluice_nvme::Status;

/// Takes a command that cannot start before these buffers are here.
#[cold]
pub(crate) fn fetch_missing(
    client_dma: &mut Option<Box<ClientDma>>,
    subsystem: &mut Subsystem,
    command: Command,
    wanted: &[MissingRange],
    now_ns: u64,
) {
    let client_dma = client_dma.get_or_insert_default();
    let number = subsystem.slab().number(&command);
    let slot = subsystem.slab_mut().slot_mut(&command);
    let is_first = !std::mem::replace(&mut slot.origin.carried, true);
    slot.data.clear();
    if is_first {
        // Buffers under this number belong to an earlier command.
        client_dma.bounced.close(number);
    }
    client_dma.bounced.fetch(number, command, wanted, &mut client_dma.transfers, now_ns);
}

/// Fetches the missing memory of an admin command that was not started, or fails the command if that cannot
/// help.
#[cold]
pub(crate) fn fetch_or_refuse(
    controller: &mut Controller,
    subsystem: &mut Subsystem,
    command: Command,
    status: Status,
    space: &Space,
    now_ns: u64,
) {
    match is_fetchable(space, status) {
        true => fetch_missing(&mut controller.client_dma, subsystem, command, &space.take_missing(), now_ns),
        false => complete::refuse(controller, subsystem, command, status),
    }
}

/// Continues commands whose transfers are finished, and returns their number. Called in each turn of a
/// controller that has a `ClientDma`.
#[cold]
pub(crate) fn advance(
    controller: &mut Controller,
    subsystem: &mut Subsystem,
    space: &Space,
    now_ns: u64,
) -> usize {
    let Some(client_dma) = &mut controller.client_dma else { return 0 };
    client_dma.now_ns = now_ns;
    let is_overdue = client_dma.is_overdue(now_ns);
    if client_dma.is_broken || is_overdue {
        let why = if is_overdue {
            "did not answer a DMA request in time"
        } else {
            "cannot access the memory of a queue"
        };
        tracing::warn!("a controller enters fatal status: its client {why}");
        client_dma.reset(subsystem.slab_mut());
        controller.set_fatal();
        return 0;
    }
    let ready = client_dma.bounced.take_ready();
    let count = ready.len();
    for number in ready {
        resume(controller, subsystem, number, space, now_ns);
    }
    count + queues::finish_cq_deletions(controller, subsystem)
}

/// Continues a command after its last transfer.
fn resume(controller: &mut Controller, subsystem: &mut Subsystem, number: usize, space: &Space, now_ns: u64) {
    let Some(client_dma) = &mut controller.client_dma else { return };
    let Some((command, outcome)) = client_dma.bounced.resume(number) else { return };
    let bounce_buffers = match outcome {
        bounce::Outcome::Begin(bounce_buffers) => bounce_buffers,
        bounce::Outcome::Over(status, dw0) => {
            return finish_command(controller, subsystem, command, status, dw0);
        }
    };
    let entry = *subsystem.slab().entry(&command);
    let sq = subsystem.slab().slot(&command).origin.sq;
    space.use_bounce_buffers(bounce_buffers);
    if sq == 0 {
        admin::begin(controller, subsystem, command, &entry, space, now_ns);
    } else {
        let Controller { features, client_dma, .. } = &mut *controller;
        Intake { subsystem, space, features, client_dma, now_ns }.begin(command, &entry);
    }
    space.use_bounce_buffers(BounceBuffers::default());
}

/// Starts a command again with all of its buffers, after it had to wait for something else.
#[cold]
pub(crate) fn restart(
    controller: &mut Controller,
    subsystem: &mut Subsystem,
    command: Command,
    space: &Space,
    now_ns: u64,
) {
    let number = subsystem.slab().number(&command);
    controller.client_dma.get_or_insert_default().bounced.put_back(number, command);
    resume(controller, subsystem, number, space, now_ns);
}

/// Writes the results of a finished command to the client. The completion entry follows afterwards.
#[cold]
pub(crate) fn write_back(
    controller: &mut Controller,
    subsystem: &mut Subsystem,
    command: Command,
    status: Status,
    dw0: u32,
) {
    let number = subsystem.slab().number(&command);
    let slot = subsystem.slab_mut().slot_mut(&command);
    let origin = slot.origin;
    let sq = controller.sqs[usize::from(origin.sq)].as_ref();
    let has_host = sq.is_some_and(|queue| queue.epoch == origin.epoch) && !controller.is_fatal();
    if let Some(client_dma) = &mut controller.client_dma
        && has_host
        && status.is_success()
        && client_dma.bounced.has_results(number)
    {
        // An unmap waits for all users of memory, and need not wait for this one.
        slot.data.clear();
        return client_dma.bounced.store(number, command, dw0, &mut client_dma.transfers, client_dma.now_ns);
    }
    finish_command(controller, subsystem, command, status, dw0);
}

fn finish_command(
    controller: &mut Controller,
    subsystem: &mut Subsystem,
    command: Command,
    status: Status,
    dw0: u32,
) {
    if let Some(client_dma) = &mut controller.client_dma {
        client_dma.bounced.close(subsystem.slab().number(&command));
    }
    let slot = subsystem.slab_mut().slot_mut(&command);
    slot.data.clear();
    slot.origin.carried = false;
    controller.finish(subsystem, command, status, dw0);
}

impl Controller {
    /// Returns the next DMA request, of at most `most` bytes, and copies the bytes of a write to `data`.
    /// Returns none if there is no transfer, or [`DMA_REQUESTS_MAX`](crate::DMA_REQUESTS_MAX) are in flight.
    pub fn take_dma_request(&mut self, most: usize, data: &mut Vec<u8>, now_ns: u64) -> Option<DmaRequest> {
        let request = self.client_dma.as_mut()?.take(most, data, now_ns)?;
        self.make_due(now_ns.saturating_add(DMA_TIMEOUT_NS));
        Some(request)
    }

    /// Returns whether [`take_dma_request`](Self::take_dma_request) has a request.
    #[inline]
    pub fn has_dma_requests(&self) -> bool {
        self.client_dma.as_ref().is_some_and(|client_dma| !client_dma.transfers.is_empty())
    }

    /// Finishes a DMA request with the bytes of a read, or with none if the client failed. A turn must
    /// follow.
    pub fn complete_dma_request(&mut self, id: u64, data: Option<&[u8]>) {
        let Some(client_dma) = &mut self.client_dma else { return };
        match client_dma.answer(id, data) {
            Some(QueueEvent::Tail { sq, tail }) => self.doorbells.ring(usize::from(sq) * 8, tail),
            Some(QueueEvent::Posted { vector: Some(vector) }) => self.signal_late(vector),
            _ => {}
        }
    }

    /// Returns whether completions are on their way to the host and not yet visible to it.
    pub fn is_delivering(&self) -> bool {
        let Some(client_dma) = &self.client_dma else { return false };
        client_dma.shadow_queues.are_behind(&self.cqs) || client_dma.shadow_queues.are_posting()
    }

    /// Returns whether a turn can continue a command or must send completions.
    pub(crate) fn has_client_dma_work(&self) -> bool {
        let Some(client_dma) = &self.client_dma else { return false };
        client_dma.is_broken
            || client_dma.bounced.has_ready()
            || client_dma.shadow_queues.are_behind(&self.cqs)
    }

    /// Starts transfers of all completions that were written since the last call.
    #[cold]
    pub(crate) fn send_completions(&mut self) {
        if let Some(ClientDma { shadow_queues, transfers, .. }) = self.client_dma.as_deref_mut() {
            shadow_queues.post(&self.cqs, transfers);
        }
    }
}
