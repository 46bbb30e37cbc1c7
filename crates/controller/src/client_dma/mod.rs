//! Commands and queues in memory that only the client itself reaches (vfio-user DMA_READ and DMA_WRITE).
//!
//! The front-end takes *DMA requests* from the controller, sends them to the client, and returns the replies.
//! Shared memory never waits for a DMA request: a command comes here when a walk of its data pointer has
//! failed, and a queue when it is created.

mod bounce;
mod pool;
mod shadow_queue;

use crate::Controller;
use crate::admin;
use crate::complete::refuse;
use crate::io::Intake;
use crate::subsystem::Subsystem;
use bounce::BouncedCommands;
pub(crate) use shadow_queue::QueueMemory;
use shadow_queue::ShadowQueues;
use sluice_command::{Command, Operation, Slab, Slot};
use sluice_memory::{BounceBuffers, MissingRange, Space};
use sluice_nvme::Status;
use std::collections::VecDeque;

/// DMA requests of a client in flight.
pub const DMA_REQUESTS_MAX: usize = 16;

/// Time in nanoseconds for one DMA request. When it is over, the controller enters fatal status.
pub const DMA_TIMEOUT_NS: u64 = 30_000_000_000;

/// Request that only the client can execute: a read of its memory for the controller, or a write to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaRequest {
    /// Identifier that no other request ever has.
    pub id: u64,
    pub address: u64,
    /// Number of bytes.
    pub length: usize,
    pub writes: bool,
}

/// Transfer that is still to be done, in one DMA request or in several.
#[derive(Clone, Copy, Debug)]
struct Transfer {
    address: u64,
    length: usize,
    kind: TransferKind,
    /// Offset in the local memory that `kind` selects.
    offset: usize,
}

/// Purpose of a transfer, which also selects the local memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TransferKind {
    /// Data or a list of the command with this number.
    Fetch(usize),
    Store(usize),
    /// Entries of a submission queue.
    Entries(u16),
    /// Entries of a completion queue.
    Completions(u16),
}

impl TransferKind {
    fn writes(self) -> bool {
        matches!(self, TransferKind::Store(_) | TransferKind::Completions(_))
    }
}

/// Action for the controller after bytes of a queue have moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueEvent {
    /// Arrival of a submission queue's entries, up to this tail.
    Tail { sq: u16, tail: u32 },
    /// Arrival of completions in memory that the host sees.
    Posted { vector: Option<u16> },
}

/// DMA requests of one controller, with their commands and queues.
#[derive(Debug, Default)]
pub(crate) struct ClientDma {
    bounced: BouncedCommands,
    shadow_queues: ShadowQueues,
    /// Transfers that the front-end has not taken yet.
    transfers: VecDeque<Transfer>,
    /// Transfers that the client is executing: identifier, start time, transfer.
    sent: Vec<(u64, u64, Transfer)>,
    /// Writes from before a reset that may still happen: identifier and start time.
    late: Vec<(u64, u64)>,
    last_id: u64,
    now_ns: u64,
    /// Whether the memory of a queue could not be read or written.
    is_broken: bool,
}

impl ClientDma {
    /// Returns the next request, of at most `most` bytes, and copies the bytes of a write to `data`.
    fn take(&mut self, most: usize, data: &mut Vec<u8>, now_ns: u64) -> Option<DmaRequest> {
        if self.sent.len() >= DMA_REQUESTS_MAX {
            return None;
        }
        let front = self.transfers.front_mut()?;
        let transfer = Transfer { length: front.length.min(most.max(1)), ..*front };
        if transfer.length == front.length {
            self.transfers.pop_front();
        } else {
            front.address += transfer.length as u64;
            front.length -= transfer.length;
            front.offset += transfer.length;
            match transfer.kind {
                TransferKind::Fetch(number) | TransferKind::Store(number) => self.bounced.one_more(number),
                TransferKind::Entries(_) | TransferKind::Completions(_) => {
                    self.shadow_queues.one_more(transfer.kind)
                }
            }
        }
        let Transfer { address, length, kind, offset } = transfer;
        data.clear();
        if kind.writes() {
            data.resize(length, 0);
            match kind {
                TransferKind::Fetch(_) | TransferKind::Store(_) => self.bounced.read(offset, data),
                TransferKind::Entries(_) | TransferKind::Completions(_) => {
                    self.shadow_queues.read(kind, offset, data)
                }
            }
        }
        self.last_id += 1;
        self.sent.push((self.last_id, now_ns, transfer));
        Some(DmaRequest { id: self.last_id, address, length, writes: kind.writes() })
    }

    /// Finishes a request. `data` is the result of a read; none means that the request failed. Replies for
    /// commands and queues that are gone are ignored.
    fn answer(&mut self, id: u64, data: Option<&[u8]>) -> Option<QueueEvent> {
        self.late.retain(|(late, _)| *late != id);
        let index = self.sent.iter().position(|(sent, ..)| *sent == id)?;
        let (_, _, Transfer { length, kind, offset, .. }) = self.sent.swap_remove(index);
        let data = data.filter(|data| kind.writes() || data.len() == length);
        if let Some(data) = data.filter(|_| !kind.writes()) {
            match kind {
                TransferKind::Fetch(_) | TransferKind::Store(_) => self.bounced.write(offset, data),
                TransferKind::Entries(_) | TransferKind::Completions(_) => {
                    self.shadow_queues.write(kind, offset, data)
                }
            }
        }
        match kind {
            TransferKind::Fetch(number) | TransferKind::Store(number) => {
                self.bounced.answered(number, data.is_some());
                None
            }
            TransferKind::Entries(_) | TransferKind::Completions(_) if data.is_none() => {
                self.is_broken |= self.shadow_queues.has(kind);
                None
            }
            TransferKind::Entries(_) | TransferKind::Completions(_) => {
                self.shadow_queues.answered(kind, &mut self.transfers)
            }
        }
    }

    /// Returns the time at which the oldest request, or a command, exceeds its limit.
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        let late = self.late.iter().map(|(_, since_ns)| *since_ns);
        let requests = self.sent.iter().map(|(_, since_ns, _)| *since_ns).chain(late).min();
        let requests = requests.map(|since_ns| since_ns.saturating_add(DMA_TIMEOUT_NS));
        [requests, self.bounced.deadline_ns()].into_iter().flatten().min()
    }

    /// Makes a reset wait for writes that the client is executing. The host reuses its memory once the
    /// controller reports the end of the reset.
    pub(crate) fn await_writes(&mut self) {
        let writes = self.sent.iter().filter(|(.., transfer)| transfer.kind.writes());
        self.late.extend(writes.map(|(id, since_ns, _)| (*id, *since_ns)));
    }

    /// Stops waiting for writes: the client is gone, or ends them itself.
    pub(crate) fn drop_writes(&mut self) {
        self.late.clear();
    }

    pub(crate) fn awaits_writes(&self) -> bool {
        !self.late.is_empty()
    }

    /// Returns whether the client has exceeded a time limit.
    fn is_overdue(&mut self, now_ns: u64) -> bool {
        let is_over = |since_ns: u64| since_ns.saturating_add(DMA_TIMEOUT_NS) <= now_ns;
        self.late.retain(|(_, since_ns)| !is_over(*since_ns));
        self.bounced.is_overdue(now_ns) || self.sent.iter().any(|(_, since_ns, _)| is_over(*since_ns))
    }

    /// Removes the transfers of a deleted queue.
    pub(crate) fn forget_sq(&mut self, id: u16) {
        let kind = TransferKind::Entries(id);
        self.shadow_queues.forget_sq(id);
        self.transfers.retain(|transfer| transfer.kind != kind);
        self.sent.retain(|(_, _, transfer)| transfer.kind != kind);
    }

    /// Removes the transfers of a deleted queue that the client is not [executing](Self::is_writing).
    pub(crate) fn forget_cq(&mut self, id: u16) {
        self.shadow_queues.forget_cq(id);
        self.transfers.retain(|transfer| transfer.kind != TransferKind::Completions(id));
    }

    /// Returns whether the client may be writing to the memory of this completion queue.
    pub(crate) fn is_writing(&self, id: u16) -> bool {
        self.sent.iter().any(|(_, _, transfer)| transfer.kind == TransferKind::Completions(id))
    }

    /// Removes all queues and releases all commands that are here. Commands that are with a router come back
    /// later.
    pub(crate) fn reset(&mut self, slab: &mut Slab) {
        self.shadow_queues = ShadowQueues::default();
        self.transfers.clear();
        self.sent.clear();
        self.is_broken = false;
        self.bounced.reset(slab);
    }

    /// Frees the buffers of a command that ends without a completion entry.
    pub(crate) fn drop_command(&mut self, number: usize) {
        self.bounced.close(number);
    }

    /// Forgets all commands, when there is no subsystem that could release them.
    pub(crate) fn abandon(&mut self) {
        self.bounced.abandon();
    }
}

/// Returns whether a command failed only for memory that the client can read or write for us.
#[cold]
pub(crate) fn is_fetchable(space: &Space, status: Status) -> bool {
    status == Status::DATA_TRANSFER_ERROR && space.has_missing()
}

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
    let number = subsystem.slab.number(&command);
    let slot = subsystem.slab.slot_mut(&command);
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
        false => refuse(controller, subsystem, command, status),
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
        client_dma.reset(&mut subsystem.slab);
        controller.registers.set_fatal();
        return 0;
    }
    let ready = client_dma.bounced.take_ready();
    let count = ready.len();
    for number in ready {
        resume(controller, subsystem, number, space, now_ns);
    }
    count + admin::queues::finish_cq_deletions(controller, subsystem)
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
    let entry = *subsystem.slab.entry(&command);
    let sq = subsystem.slab.slot(&command).origin.sq;
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
    let number = subsystem.slab.number(&command);
    controller.client_dma.get_or_insert_default().bounced.put_back(number, command);
    resume(controller, subsystem, number, space, now_ns);
}

/// Returns whether a command waits for transfers or for buffer memory, and so is in no layer.
pub(crate) fn has(slot: &Slot) -> bool {
    let deallocates = slot.request.operation == Operation::Deallocate && slot.request.length > 0;
    slot.origin.carried && slot.data.is_empty() && !deallocates
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
    let number = subsystem.slab.number(&command);
    let slot = subsystem.slab.slot_mut(&command);
    let origin = slot.origin;
    let sq = controller.sqs[usize::from(origin.sq)].as_ref();
    let has_host = sq.is_some_and(|queue| queue.epoch == origin.epoch) && !controller.registers.is_fatal();
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
        client_dma.bounced.close(subsystem.slab.number(&command));
    }
    let slot = subsystem.slab.slot_mut(&command);
    slot.data.clear();
    slot.origin.carried = false;
    controller.finish(subsystem, command, status, dw0);
}

impl Controller {
    /// Returns the next DMA request, of at most `most` bytes, and copies the bytes of a write to `data`.
    /// Returns none if there is no transfer, or [`DMA_REQUESTS_MAX`] are in flight.
    pub fn take_dma_request(&mut self, most: usize, data: &mut Vec<u8>, now_ns: u64) -> Option<DmaRequest> {
        let request = self.client_dma.as_mut()?.take(most, data, now_ns)?;
        self.next_deadline_ns = self.next_deadline_ns.min(now_ns.saturating_add(DMA_TIMEOUT_NS));
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
            Some(QueueEvent::Posted { vector: Some(vector) }) => {
                self.interrupts.insert(vector);
                let held_until_ns = self.interrupts.deadline_ns().unwrap_or(u64::MAX);
                self.next_deadline_ns = self.next_deadline_ns.min(held_until_ns);
            }
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
