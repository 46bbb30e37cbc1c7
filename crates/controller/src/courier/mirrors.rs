//! Queues in memory that only the client reaches: each has a mirror here, which is what the controller sees.
//!
//! A tail that is rung for such a submission queue is rung inside when the entries before it are here. Completions
//! are written to the mirror, and the interrupt follows when the client has them.

use super::{Job, News, Place};
use crate::queue::{CompletionQueue, SubmissionQueue};
use crate::{Controller, DoorbellMode};
use sluice_memory::{Access, Mirror, Pages, Space};
use sluice_nvme::{CompletionEntry, Status, SubmissionEntry};
use std::collections::VecDeque;

/// A ring of which a part is on its way.
#[derive(Debug)]
struct Ring {
    id: u16,
    address: u64,
    entry: usize,
    size: u32,
    memory: Mirror,
    /// Entries before it have moved.
    moved: u32,
    /// Entries before it are moving; the same if none are.
    moving: u32,
    /// Jobs of those that are moving.
    open: u32,
}

impl Ring {
    fn new(id: u16, address: u64, entry: usize, size: u32, memory: Mirror) -> Self {
        Self { id, address, entry, size, memory, moved: 0, moving: 0, open: 0 }
    }

    /// Moves the entries up to `tail`, or to the end of the ring, if none are moving. Returns true if it has begun.
    fn advance(&mut self, tail: u32, place: Place, jobs: &mut VecDeque<Job>) -> bool {
        if self.open > 0 || tail == self.moved {
            return false;
        }
        let until = if tail > self.moved { tail } else { self.size };
        let offset = self.moved as usize * self.entry;
        let length = (until - self.moved) as usize * self.entry;
        jobs.push_back(Job { address: self.address + offset as u64, length, place, offset });
        (self.moving, self.open) = (until % self.size, 1);
        true
    }

    /// A job is done. True if it was the last.
    fn answered(&mut self) -> bool {
        self.open = self.open.saturating_sub(1);
        if self.open == 0 {
            self.moved = self.moving;
        }
        self.open == 0
    }
}

/// The queues of a controller that have mirrors.
#[derive(Debug, Default)]
pub(super) struct Mirrors {
    /// With the tail that was rung.
    sqs: Vec<(Ring, u32)>,
    /// With the interrupt vector, if interrupts are enabled.
    cqs: Vec<(Ring, Option<u16>)>,
}

impl Mirrors {
    fn sq(&mut self, id: u16) -> Option<&mut (Ring, u32)> {
        self.sqs.iter_mut().find(|(ring, _)| ring.id == id)
    }

    pub(super) fn has(&self, place: Place) -> bool {
        self.ring(place).is_some()
    }

    fn ring(&self, place: Place) -> Option<&Ring> {
        match place {
            Place::Entries(id) => self.sqs.iter().map(|(ring, _)| ring).find(|ring| ring.id == id),
            Place::Completions(id) => self.cqs.iter().map(|(ring, _)| ring).find(|ring| ring.id == id),
            _ => None,
        }
    }

    /// A job of a queue became two.
    pub(super) fn one_more(&mut self, place: Place) {
        let ring = match place {
            Place::Entries(id) => self.sqs.iter_mut().map(|(ring, _)| ring).find(|ring| ring.id == id),
            Place::Completions(id) => self.cqs.iter_mut().map(|(ring, _)| ring).find(|ring| ring.id == id),
            _ => None,
        };
        if let Some(ring) = ring {
            ring.open += 1;
        }
    }

    /// The host rang a tail. False if the queue has no mirror.
    fn rung(&mut self, id: u16, value: u32, jobs: &mut VecDeque<Job>) -> bool {
        let Some((ring, tail)) = self.sq(id) else { return false };
        *tail = value;
        ring.advance(value, Place::Entries(id), jobs);
        true
    }

    pub(super) fn answered(&mut self, place: Place, jobs: &mut VecDeque<Job>) -> Option<News> {
        match place {
            Place::Entries(id) => {
                let (ring, tail) = self.sq(id)?;
                if !ring.answered() {
                    return None;
                }
                let news = News::Tail { sq: id, tail: ring.moved };
                ring.advance(*tail, place, jobs);
                Some(news)
            }
            Place::Completions(id) => {
                let (ring, vector) = self.cqs.iter_mut().find(|(ring, _)| ring.id == id)?;
                ring.answered().then_some(News::Posted { vector: *vector })
            }
            _ => None,
        }
    }

    /// Sends off what was written to the completion queues.
    pub(super) fn post(&mut self, cqs: &[Option<CompletionQueue>], jobs: &mut VecDeque<Job>) {
        for (ring, _) in &mut self.cqs {
            if let Some(queue) = &cqs[usize::from(ring.id)] {
                ring.advance(queue.tail, Place::Completions(ring.id), jobs);
            }
        }
    }

    /// True if [`post`](Self::post) would find something.
    pub(super) fn are_behind(&self, cqs: &[Option<CompletionQueue>]) -> bool {
        self.cqs.iter().any(|(ring, _)| {
            let queue = cqs[usize::from(ring.id)].as_ref();
            ring.open == 0 && queue.is_some_and(|queue| queue.tail != ring.moved)
        })
    }

    pub(super) fn are_posting(&self) -> bool {
        self.cqs.iter().any(|(ring, _)| ring.open > 0)
    }

    pub(super) fn forget_sq(&mut self, id: u16) {
        self.sqs.retain(|(ring, _)| ring.id != id);
    }

    pub(super) fn forget_cq(&mut self, id: u16) {
        self.cqs.retain(|(ring, _)| ring.id != id);
    }

    pub(super) fn read(&self, place: Place, offset: usize, data: &mut [u8]) {
        if let Some(ring) = self.ring(place) {
            ring.memory.read(offset, data);
        }
    }

    pub(super) fn write(&self, place: Place, offset: usize, data: &[u8]) {
        if let Some(ring) = self.ring(place) {
            ring.memory.write(offset, data);
        }
    }
}

/// The memory of a queue as the controller sees it.
pub(crate) struct QueueMemory {
    pub(crate) pages: Pages,
    mirror: Option<Mirror>,
}

impl Controller {
    /// The memory of a new queue of `length` bytes at `iova`, or a mirror of it if only the client reaches it.
    ///
    /// # Errors
    /// As [`Space::queue`]. A queue whose doorbell the host stores to where nobody hears it, mapped or shadow, cannot
    /// have a mirror.
    pub(crate) fn queue_memory(
        &self,
        space: &Space,
        iova: u64,
        length: usize,
        access: Access,
    ) -> Result<QueueMemory, Status> {
        let is_heard = self.mode == DoorbellMode::Trapped && !self.doorbells.has_shadow();
        match space.queue(iova, length, access) {
            Err(Status::DATA_TRANSFER_ERROR) if is_heard && space.is_remote(iova, length, access) => {
                let mirror = Mirror::new(length).map_err(|error| {
                    tracing::error!(%error, "no memory for a queue that its client has to be asked for");
                    Status::INTERNAL_ERROR
                })?;
                Ok(QueueMemory { pages: mirror.pages(), mirror: Some(mirror) })
            }
            found => Ok(QueueMemory { pages: found?, mirror: None }),
        }
    }

    /// A submission queue in this memory, which begins at `address`.
    pub(crate) fn install_sq_in(
        &mut self,
        queue: impl FnOnce(Pages) -> SubmissionQueue,
        memory: QueueMemory,
    ) {
        let QueueMemory { pages, mirror } = memory;
        let queue = queue(pages);
        if let Some(memory) = mirror {
            let SubmissionQueue { id, address, size, .. } = queue;
            let ring = Ring::new(id, address, SubmissionEntry::SIZE, size, memory);
            self.courier.get_or_insert_default().mirrors.sqs.push((ring, 0));
        }
        self.install_sq(queue);
    }

    /// A completion queue in this memory. One with a mirror has its interrupts when the client has the entries.
    pub(crate) fn install_cq_in(
        &mut self,
        queue: impl FnOnce(Pages) -> CompletionQueue,
        memory: QueueMemory,
    ) {
        let QueueMemory { pages, mirror } = memory;
        let mut queue = queue(pages);
        if let Some(memory) = mirror {
            let CompletionQueue { id, address, size, .. } = queue;
            let ring = Ring::new(id, address, CompletionEntry::SIZE, size, memory);
            self.courier.get_or_insert_default().mirrors.cqs.push((ring, queue.vector.take()));
        }
        self.install_cq(queue);
    }

    /// The host rang the doorbell of a submission queue. False if it has no mirror.
    #[inline]
    pub(crate) fn ring_mirror(&mut self, id: u16, value: u32) -> bool {
        let Some(courier) = &mut self.courier else { return false };
        courier.mirrors.rung(id, value, &mut courier.jobs)
    }

    /// True if some queue has a mirror: a host that has shadow doorbells would not ring for it.
    pub(crate) fn has_mirrors(&self) -> bool {
        self.courier.as_ref().is_some_and(|courier| !courier.mirrors.sqs.is_empty())
    }

    /// True if interrupts are enabled for a completion queue that has a mirror.
    pub(crate) fn interrupts_by_mirror(&self, cq: u16) -> bool {
        let Some(courier) = &self.courier else { return false };
        courier.mirrors.cqs.iter().any(|(ring, vector)| ring.id == cq && vector.is_some())
    }
}
