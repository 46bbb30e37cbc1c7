//! Queues in memory that only the client reaches. Each has a shadow here, which the controller uses in its
//! place.
//!
//! A tail of such a submission queue is passed on when the entries before it are here. Completions are
//! written to the shadow, and the interrupt follows when the client has them.

use crate::state::client_dma::{QueueEvent, Transfer, TransferKind};
use crate::state::queue::CompletionQueue;
use sluice_memory::{Pages, ShadowMemory};
use std::collections::VecDeque;

/// Local copy of a queue, a part of which may be moving.
#[derive(Debug)]
pub(crate) struct ShadowQueue {
    pub(crate) id: u16,
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
    pub(crate) fn new(id: u16, address: u64, entry: usize, size: u32, memory: ShadowMemory) -> Self {
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
pub(crate) struct ShadowQueues {
    /// Submission queues, each with the tail that was rung.
    pub(crate) sqs: Vec<(ShadowQueue, u32)>,
    /// Completion queues, each with its interrupt vector if interrupts are enabled.
    pub(crate) cqs: Vec<(ShadowQueue, Option<u16>)>,
}

impl ShadowQueues {
    fn sq(&mut self, id: u16) -> Option<&mut (ShadowQueue, u32)> {
        self.sqs.iter_mut().find(|(shadow, _)| shadow.id == id)
    }

    pub(crate) fn has(&self, kind: TransferKind) -> bool {
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
    pub(crate) fn one_more(&mut self, kind: TransferKind) {
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
    pub(crate) fn rung(&mut self, id: u16, value: u32, transfers: &mut VecDeque<Transfer>) -> bool {
        let Some((shadow, tail)) = self.sq(id) else { return false };
        *tail = value;
        shadow.advance(value, TransferKind::Entries(id), transfers);
        true
    }

    pub(crate) fn answered(
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
    pub(crate) fn post(&mut self, cqs: &[Option<CompletionQueue>], transfers: &mut VecDeque<Transfer>) {
        for (shadow, _) in &mut self.cqs {
            if let Some(queue) = &cqs[usize::from(shadow.id)] {
                shadow.advance(queue.tail, TransferKind::Completions(shadow.id), transfers);
            }
        }
    }

    /// Returns whether [`post`](Self::post) would start a transfer.
    pub(crate) fn are_behind(&self, cqs: &[Option<CompletionQueue>]) -> bool {
        self.cqs.iter().any(|(shadow, _)| {
            let queue = cqs[usize::from(shadow.id)].as_ref();
            shadow.open == 0 && queue.is_some_and(|queue| queue.tail != shadow.moved)
        })
    }

    pub(crate) fn are_posting(&self) -> bool {
        self.cqs.iter().any(|(shadow, _)| shadow.open > 0)
    }

    pub(crate) fn forget_sq(&mut self, id: u16) {
        self.sqs.retain(|(shadow, _)| shadow.id != id);
    }

    pub(crate) fn forget_cq(&mut self, id: u16) {
        self.cqs.retain(|(shadow, _)| shadow.id != id);
    }

    pub(crate) fn read(&self, kind: TransferKind, offset: usize, data: &mut [u8]) {
        if let Some(shadow) = self.shadow(kind) {
            shadow.memory.read(offset, data);
        }
    }

    pub(crate) fn write(&self, kind: TransferKind, offset: usize, data: &[u8]) {
        if let Some(shadow) = self.shadow(kind) {
            shadow.memory.write(offset, data);
        }
    }
}

/// Memory of a queue as the controller uses it.
pub(crate) struct QueueMemory {
    pub(crate) pages: Pages,
    pub(crate) shadow: Option<ShadowMemory>,
}
