//! Commands and queues in memory that only the client itself reaches (vfio-user DMA_READ and DMA_WRITE).
//!
//! The front-end takes *DMA requests* from the controller, sends them to the client, and returns the replies.
//! Shared memory never waits for a DMA request: a command comes here when a walk of its data pointer has
//! failed, and a queue when it is created.

pub(crate) mod bounce;
pub(crate) mod pool;
pub(crate) mod shadow_queue;

use crate::state::client_dma::bounce::BouncedCommands;
use crate::state::client_dma::shadow_queue::ShadowQueues;
use sluice_command::{Operation, Slab, Slot};
use sluice_memory::Space;
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
pub(crate) struct Transfer {
    address: u64,
    length: usize,
    kind: TransferKind,
    /// Offset in the local memory that `kind` selects.
    offset: usize,
}

/// Purpose of a transfer, which also selects the local memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransferKind {
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
pub(crate) enum QueueEvent {
    /// Arrival of a submission queue's entries, up to this tail.
    Tail { sq: u16, tail: u32 },
    /// Arrival of completions in memory that the host sees.
    Posted { vector: Option<u16> },
}

/// DMA requests of one controller, with their commands and queues.
#[derive(Debug, Default)]
pub(crate) struct ClientDma {
    pub(crate) bounced: BouncedCommands,
    pub(crate) shadow_queues: ShadowQueues,
    /// Transfers that the front-end has not taken yet.
    pub(crate) transfers: VecDeque<Transfer>,
    /// Transfers that the client is executing: identifier, start time, transfer.
    sent: Vec<(u64, u64, Transfer)>,
    /// Writes from before a reset that may still happen: identifier and start time.
    late: Vec<(u64, u64)>,
    last_id: u64,
    pub(crate) now_ns: u64,
    /// Whether the memory of a queue could not be read or written.
    pub(crate) is_broken: bool,
}

impl ClientDma {
    /// Returns the next request, of at most `most` bytes, and copies the bytes of a write to `data`.
    pub(crate) fn take(&mut self, most: usize, data: &mut Vec<u8>, now_ns: u64) -> Option<DmaRequest> {
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
    pub(crate) fn answer(&mut self, id: u64, data: Option<&[u8]>) -> Option<QueueEvent> {
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
    pub(crate) fn is_overdue(&mut self, now_ns: u64) -> bool {
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

/// Returns whether a command waits for transfers or for buffer memory, and so is in no layer.
pub(crate) fn has(slot: &Slot) -> bool {
    let deallocates = slot.request.operation == Operation::Deallocate && slot.request.length > 0;
    slot.origin.carried && slot.data.is_empty() && !deallocates
}
