//! Queues in memory that only the client reaches. Each has a shadow here, which the controller uses in its
//! place.
//!
//! A tail of such a submission queue is passed on when the entries before it are here. Completions are
//! written to the shadow, and the interrupt follows when the client has them.

use super::{QueueEvent, Transfer, TransferKind};
use crate::queue::{CompletionQueue, SubmissionQueue};
use crate::{Controller, DoorbellMode};
use sluice_memory::{Access, Pages, ShadowMemory, Space};
use sluice_nvme::{CompletionEntry, Status, SubmissionEntry};
use std::collections::VecDeque;

/// Local copy of a queue, a part of which may be moving.
#[derive(Debug)]
struct ShadowQueue {
    id: u16,
    address: u64,
    entry: usize,
    size: u32,
    memory: ShadowMemory,
    /// Index behind the last entry that has moved.
    moved: u32,
    /// Index behind the last entry that is moving; equal to `moved` if none is.
    moving: u32,
    /// Number of unfinished transfers.
    open: u32,
}

impl ShadowQueue {
    fn new(id: u16, address: u64, entry: usize, size: u32, memory: ShadowMemory) -> Self {
        Self { id, address, entry, size, memory, moved: 0, moving: 0, open: 0 }
    }

    /// Moves the entries up to `tail`, or to the end of the queue, if none are moving. Returns whether a move
    /// was started.
    fn advance(&mut self, tail: u32, kind: TransferKind, transfers: &mut VecDeque<Transfer>) -> bool {
        if self.open > 0 || tail == self.moved {
            return false;
        }
        let until = if tail > self.moved { tail } else { self.size };
        let offset = self.moved as usize * self.entry;
        let length = (until - self.moved) as usize * self.entry;
        transfers.push_back(Transfer { address: self.address + offset as u64, length, kind, offset });
        (self.moving, self.open) = (until % self.size, 1);
        true
    }

    /// Finishes a transfer, and returns whether it was the last.
    fn answered(&mut self) -> bool {
        self.open = self.open.saturating_sub(1);
        if self.open == 0 {
            self.moved = self.moving;
        }
        self.open == 0
    }
}

/// Shadow queues of a controller.
#[derive(Debug, Default)]
pub(super) struct ShadowQueues {
    /// Submission queues, each with the tail that was rung.
    sqs: Vec<(ShadowQueue, u32)>,
    /// Completion queues, each with its interrupt vector if interrupts are enabled.
    cqs: Vec<(ShadowQueue, Option<u16>)>,
}

impl ShadowQueues {
    fn sq(&mut self, id: u16) -> Option<&mut (ShadowQueue, u32)> {
        self.sqs.iter_mut().find(|(shadow, _)| shadow.id == id)
    }

    pub(super) fn has(&self, kind: TransferKind) -> bool {
        self.shadow(kind).is_some()
    }

    fn shadow(&self, kind: TransferKind) -> Option<&ShadowQueue> {
        match kind {
            TransferKind::Entries(id) => {
                self.sqs.iter().map(|(shadow, _)| shadow).find(|shadow| shadow.id == id)
            }
            TransferKind::Completions(id) => {
                self.cqs.iter().map(|(shadow, _)| shadow).find(|shadow| shadow.id == id)
            }
            _ => None,
        }
    }

    /// Counts one more transfer of a queue, since one was split.
    pub(super) fn one_more(&mut self, kind: TransferKind) {
        let shadow = match kind {
            TransferKind::Entries(id) => {
                self.sqs.iter_mut().map(|(shadow, _)| shadow).find(|shadow| shadow.id == id)
            }
            TransferKind::Completions(id) => {
                self.cqs.iter_mut().map(|(shadow, _)| shadow).find(|shadow| shadow.id == id)
            }
            _ => None,
        };
        if let Some(shadow) = shadow {
            shadow.open += 1;
        }
    }

    /// Handles a doorbell write by the host. Returns false if the queue has no shadow.
    fn rung(&mut self, id: u16, value: u32, transfers: &mut VecDeque<Transfer>) -> bool {
        let Some((shadow, tail)) = self.sq(id) else { return false };
        *tail = value;
        shadow.advance(value, TransferKind::Entries(id), transfers);
        true
    }

    pub(super) fn answered(
        &mut self,
        kind: TransferKind,
        transfers: &mut VecDeque<Transfer>,
    ) -> Option<QueueEvent> {
        match kind {
            TransferKind::Entries(id) => {
                let (shadow, tail) = self.sq(id)?;
                if !shadow.answered() {
                    return None;
                }
                let event = QueueEvent::Tail { sq: id, tail: shadow.moved };
                shadow.advance(*tail, kind, transfers);
                Some(event)
            }
            TransferKind::Completions(id) => {
                let (shadow, vector) = self.cqs.iter_mut().find(|(shadow, _)| shadow.id == id)?;
                shadow.answered().then_some(QueueEvent::Posted { vector: *vector })
            }
            _ => None,
        }
    }

    /// Starts transfers of the entries that were written to the completion queues.
    pub(super) fn post(&mut self, cqs: &[Option<CompletionQueue>], transfers: &mut VecDeque<Transfer>) {
        for (shadow, _) in &mut self.cqs {
            if let Some(queue) = &cqs[usize::from(shadow.id)] {
                shadow.advance(queue.tail, TransferKind::Completions(shadow.id), transfers);
            }
        }
    }

    /// Returns whether [`post`](Self::post) would start a transfer.
    pub(super) fn are_behind(&self, cqs: &[Option<CompletionQueue>]) -> bool {
        self.cqs.iter().any(|(shadow, _)| {
            let queue = cqs[usize::from(shadow.id)].as_ref();
            shadow.open == 0 && queue.is_some_and(|queue| queue.tail != shadow.moved)
        })
    }

    pub(super) fn are_posting(&self) -> bool {
        self.cqs.iter().any(|(shadow, _)| shadow.open > 0)
    }

    pub(super) fn forget_sq(&mut self, id: u16) {
        self.sqs.retain(|(shadow, _)| shadow.id != id);
    }

    pub(super) fn forget_cq(&mut self, id: u16) {
        self.cqs.retain(|(shadow, _)| shadow.id != id);
    }

    pub(super) fn read(&self, kind: TransferKind, offset: usize, data: &mut [u8]) {
        if let Some(shadow) = self.shadow(kind) {
            shadow.memory.read(offset, data);
        }
    }

    pub(super) fn write(&self, kind: TransferKind, offset: usize, data: &[u8]) {
        if let Some(shadow) = self.shadow(kind) {
            shadow.memory.write(offset, data);
        }
    }
}

/// Memory of a queue as the controller uses it.
pub(crate) struct QueueMemory {
    pub(crate) pages: Pages,
    shadow: Option<ShadowMemory>,
}

impl Controller {
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
        let is_trapped = self.mode == DoorbellMode::Trapped && !self.doorbells.has_shadow();
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
