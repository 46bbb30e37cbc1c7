//! What a message-based transport (Fabrics) needs of a controller.
//!
//! Its host sends capsules and has no queues in memory: the front-end keeps the queue pairs, in memory of
//! its own, and creates and deletes them as connections come and go. All else is as over any other
//! transport, but for what Identify says.

use crate::queue::{CompletionQueue, SubmissionQueue};
use crate::{Controller, DoorbellMode, IO_QUEUES_MAX, Subsystem, abandoned};
use sluice_command::{Aborted, Controllers};
use sluice_memory::{Access, Space};
use sluice_nvme::{CompletionEntry, Status, SubmissionEntry};

/// Bytes of data in a command capsule at most; Identify's IOCCSZ says so (Base 5.17.2.1).
pub const IN_CAPSULE_MAX: u32 = 8192;

/// Commands that a host may have outstanding on one queue: CAP.MQES is one less, MAXCMD the same.
pub const CAPSULES_MAX: u16 = 128;

/// The memory of a queue pair, as addresses in the front-end's space.
#[derive(Clone, Copy, Debug)]
pub struct QueuePair {
    /// 1 to [`IO_QUEUES_MAX`].
    pub id: u16,
    pub sq: u64,
    pub cq: u64,
    /// Of each of the two.
    pub entries: u32,
}

impl Controller {
    pub(crate) fn is_fabrics(&self) -> bool {
        self.mode == DoorbellMode::Capsules
    }

    /// CSTS.CFS: there is no way on but a reset.
    pub fn is_fatal(&self) -> bool {
        self.registers.is_fatal()
    }

    /// CSTS.RDY.
    pub fn is_ready(&self) -> bool {
        self.registers.is_ready()
    }

    /// Starts the Keep Alive Timer with a timeout in milliseconds that came with a Connect command.
    pub fn start_keep_alive(&mut self, timeout_ms: u32, now_ns: u64) {
        self.features.set_keep_alive(timeout_ms, now_ns);
        // With the next turn, which knows all timers.
        self.next_deadline_ns = 0;
    }

    /// Creates an I/O queue pair. Its vector is its number, for [`take_vectors`](Self::take_vectors).
    ///
    /// # Errors
    /// INVALID_QUEUE_IDENTIFIER if there is one of this number, or cannot be;
    /// COMMAND_SEQUENCE_ERROR while the controller is not ready; what is wrong with the memory.
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

    /// The connection of an I/O queue is lost: no more entries are taken from it, its commands end as soon as they can, and
    /// commands of other queues that overlap them wait until then. The queue pair is to be deleted.
    #[cold]
    pub fn abandon_queue(&mut self, subsystem: &mut Subsystem, id: u16, now_ns: u64) {
        let Some(queue) = self.sqs[usize::from(id)].as_mut().filter(|_| id != 0) else { return };
        if std::mem::replace(&mut queue.deleting, true) {
            return;
        }
        abandoned::abandon(subsystem, self.number, Some(id));
        let own = Controllers::of_bits(1 << self.number);
        let of_queue = Aborted { sq: Some(id), ..Aborted::of(own) };
        subsystem.abort(of_queue, Status::ABORTED_SQ_DELETION, now_ns);
    }

    /// Takes no more entries from an I/O queue pair, and deletes it as soon as none of its commands is in
    /// flight. True if it is gone; else it is to be called again.
    pub fn delete_queue_pair(&mut self, id: u16) -> bool {
        if let Some(queue) = &mut self.sqs[usize::from(id)] {
            queue.deleting = true;
            if queue.in_flight > 0 {
                return false;
            }
        }
        crate::admin::queues::delete_pair(self, id);
        true
    }
}
