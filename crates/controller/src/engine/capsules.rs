//! Queue pairs for a message-based transport (Fabrics).
//!
//! Its host sends capsules and has no queues in memory. The front-end holds the queue pairs in its own
//! memory, and creates and deletes them as connections come and go. All else is the same as over any other
//! transport, except for Identify.

use crate::engine::abandoned;
use crate::model::{Controller, Subsystem, queues};
use crate::state::limits::IO_QUEUES_MAX;
use crate::state::queue::{CompletionQueue, SubmissionQueue};
use sluice_command::{Aborted, Controllers};
use sluice_memory::{Access, Space};
use sluice_nvme::{CompletionEntry, Status, SubmissionEntry};

/// Memory of a queue pair, as addresses in the front-end's space.
#[derive(Clone, Copy, Debug)]
pub struct QueuePair {
    /// Identifier from 1 to [`IO_QUEUES_MAX`].
    pub id: u16,
    pub sq: u64,
    pub cq: u64,
    /// Entries of each of the two queues.
    pub entries: u32,
}

impl Controller {
    /// Creates an I/O queue pair. Its vector for [`take_vectors`](Self::take_vectors) is its identifier.
    ///
    /// # Errors
    /// INVALID_QUEUE_IDENTIFIER if the identifier is in use or out of range; COMMAND_SEQUENCE_ERROR while the
    /// controller is not ready; the status of invalid memory.
    pub fn create_queue_pair(&mut self, pair: &QueuePair, space: &Space) -> Result<(), Status> {
        let QueuePair { id, sq, cq, entries } = *pair;
        if !self.is_ready() || self.is_fatal() {
            return Err(Status::COMMAND_SEQUENCE_ERROR);
        }
        let at = usize::from(id);
        if id == 0 || id > IO_QUEUES_MAX || self.sqs[at].is_some() || self.cqs[at].is_some() {
            return Err(Status::INVALID_QUEUE_IDENTIFIER);
        }
        let sq_memory = space.queue(sq, entries as usize * SubmissionEntry::SIZE, Access::Read)?;
        let cq_memory = space.queue(cq, entries as usize * CompletionEntry::SIZE, Access::Write)?;
        self.install_cq(CompletionQueue::new(id, cq, cq_memory, entries, Some(id)));
        let epoch = self.next_epoch();
        self.install_sq(SubmissionQueue::new(id, id, epoch, sq, sq_memory, entries));
        Ok(())
    }

    /// Abandons an I/O queue whose connection is lost. No more entries are taken from it, and its commands
    /// end as soon as they can. Commands of other queues that overlap them wait until then. The caller must
    /// delete the queue pair.
    #[cold]
    pub fn abandon_queue(&mut self, subsystem: &mut Subsystem, id: u16, now_ns: u64) {
        let Some(queue) = self.sqs[usize::from(id)].as_mut().filter(|_| id != 0) else { return };
        if std::mem::replace(&mut queue.deleting, true) {
            return;
        }
        abandoned::abandon(subsystem, self.number(), Some(id));
        let own = Controllers::of_bits(1 << self.number());
        let of_queue = Aborted { sq: Some(id), ..Aborted::of(own) };
        subsystem.abort(of_queue, Status::ABORTED_SQ_DELETION, now_ns);
    }

    /// Takes no more entries from an I/O queue pair, and deletes it once none of its commands is in flight.
    /// Returns whether it is deleted; if not, call it again.
    pub fn delete_queue_pair(&mut self, id: u16) -> bool {
        if let Some(queue) = &mut self.sqs[usize::from(id)] {
            queue.deleting = true;
            if queue.in_flight > 0 {
                return false;
            }
        }
        queues::delete_pair(self, id);
        true
    }
}
