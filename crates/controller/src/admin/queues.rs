//! Creating and deleting I/O queues (Base 5.4, 5.5, 5.6, 5.7).

use crate::admin::{Answer, Outcome};
use crate::model::queues::{remove_cq, remove_sq};
use crate::model::request::Admin;
use crate::model::{Controller, Subsystem};
use crate::state::client_dma::shadow_queue::QueueMemory;
use crate::state::limits::QUEUE_ENTRIES_MAX;
use crate::state::queue::{CompletionQueue, SubmissionQueue};
use sluice_command::{Aborted, Controllers};
use sluice_memory::Access;
use sluice_nvme::{CompletionEntry, Status, SubmissionEntry};

/// Returns the queue identifier and the number of entries in CDW10 of a create command.
fn identity(controller: &Controller, entry: &SubmissionEntry) -> Result<(u16, u32), Status> {
    let id = entry.cdw10 as u16;
    let size = (entry.cdw10 >> 16) + 1;
    if id == 0 || id > controller.io_queues() {
        return Err(Status::INVALID_QUEUE_IDENTIFIER);
    }
    if !(2..=QUEUE_ENTRIES_MAX).contains(&size) {
        return Err(Status::INVALID_QUEUE_SIZE);
    }
    Ok((id, size))
}

/// Returns the memory of a queue: physically contiguous, as CAP.CQR requires, and page aligned.
fn memory(
    controller: &Controller,
    admin: &Admin<'_>,
    bytes: usize,
    access: Access,
) -> Result<QueueMemory, Status> {
    const CONTIGUOUS: u32 = 1;
    let prp1 = admin.entry.dptr[0];
    if admin.entry.cdw11 & CONTIGUOUS == 0 {
        return Err(Status::INVALID_FIELD);
    }
    if !prp1.is_multiple_of(admin.space.page_size() as u64) {
        return Err(Status::PRP_OFFSET_INVALID);
    }
    controller.queue_memory(admin.space, prp1, bytes, access)
}

/// Checks the entry size in CC. Only 64 and 16 bytes are possible (Base 3.1.3.5).
fn check_entry_size(actual: u8, needed: u8) -> Result<(), Status> {
    if actual == needed { Ok(()) } else { Err(Status::INVALID_QUEUE_SIZE) }
}

pub(crate) fn create_cq(controller: &mut Controller, admin: &Admin<'_>) -> Answer {
    let (id, size) = identity(controller, admin.entry)?;
    if controller.cqs[usize::from(id)].is_some() {
        return Err(Status::INVALID_QUEUE_IDENTIFIER);
    }
    check_entry_size(controller.entry_sizes().1, 4)?;
    let vector = (admin.entry.cdw11 >> 16) as u16;
    let interrupts = admin.entry.cdw11 & 2 != 0;
    if interrupts && vector >= controller.vectors() {
        return Err(Status::INVALID_INTERRUPT_VECTOR);
    }
    let memory = memory(controller, admin, size as usize * CompletionEntry::SIZE, Access::Write)?;
    let (address, vector) = (admin.entry.dptr[0], interrupts.then_some(vector));
    controller.install_cq_in(|pages| CompletionQueue::new(id, address, pages, size, vector), memory);
    Ok(Outcome::Done(0))
}

pub(crate) fn create_sq(controller: &mut Controller, admin: &Admin<'_>) -> Answer {
    let (id, size) = identity(controller, admin.entry)?;
    if controller.sqs[usize::from(id)].is_some() {
        return Err(Status::INVALID_QUEUE_IDENTIFIER);
    }
    check_entry_size(controller.entry_sizes().0, 6)?;
    let cq = (admin.entry.cdw11 >> 16) as u16;
    let is_there = |queue: &Option<CompletionQueue>| queue.as_ref().is_some_and(|queue| !queue.deleting);
    if cq == 0 || !controller.cqs.get(usize::from(cq)).is_some_and(is_there) {
        // An identifier out of range has another error than a missing queue.
        return Err(match cq == 0 || cq > controller.io_queues() {
            true => Status::INVALID_QUEUE_IDENTIFIER,
            false => Status::COMPLETION_QUEUE_INVALID,
        });
    }
    let memory = memory(controller, admin, size as usize * SubmissionEntry::SIZE, Access::Read)?;
    let epoch = controller.next_epoch();
    let queue = |pages| {
        let mut queue = SubmissionQueue::new(id, cq, epoch, admin.entry.dptr[0], pages, size);
        // QPRIO, CDW11 bits 2:1.
        queue.class = (admin.entry.cdw11 >> 1 & 3) as u8;
        queue
    };
    controller.install_sq_in(queue, memory);
    Ok(Outcome::Done(0))
}

/// Deletes a completion queue. If the client is writing entries of a shadow queue, the command finishes after
/// that (Base 5.6).
pub(crate) fn delete_cq(controller: &mut Controller, admin: &Admin<'_>) -> Answer {
    let id = admin.entry.cdw10 as u16;
    let queue = controller.cqs.get_mut(usize::from(id)).filter(|_| id != 0);
    let Some(Some(queue)) = queue else { return Err(Status::INVALID_QUEUE_IDENTIFIER) };
    if queue.deleting {
        return Err(Status::INVALID_QUEUE_IDENTIFIER);
    }
    if queue.users > 0 {
        return Err(Status::INVALID_QUEUE_DELETION);
    }
    queue.deleting = true;
    controller.drop_held_completions(id);
    controller.client_dma.iter_mut().for_each(|client_dma| client_dma.forget_cq(id));
    if controller.client_dma.as_ref().is_some_and(|client_dma| client_dma.is_writing(id)) {
        return Ok(Outcome::Later);
    }
    remove_cq(controller, id);
    Ok(Outcome::Done(0))
}

/// Deletes a submission queue. No entry is fetched any more; the command finishes when none of the queue's
/// commands is in flight (Base 5.7). Long commands end early.
pub(crate) fn delete_sq(controller: &mut Controller, subsystem: &mut Subsystem, admin: &Admin<'_>) -> Answer {
    let id = admin.entry.cdw10 as u16;
    let queue = controller.sqs.get_mut(usize::from(id)).filter(|_| id != 0);
    let Some(Some(queue)) = queue else { return Err(Status::INVALID_QUEUE_IDENTIFIER) };
    if queue.deleting {
        return Err(Status::INVALID_QUEUE_IDENTIFIER);
    }
    queue.deleting = true;
    if queue.in_flight > 0 {
        let own = Controllers::of_bits(1 << controller.number());
        let of_queue = Aborted { sq: Some(id), ..Aborted::of(own) };
        subsystem.abort(of_queue, Status::ABORTED_SQ_DELETION, admin.now_ns);
        return Ok(Outcome::Later);
    }
    remove_sq(controller, id);
    Ok(Outcome::Done(0))
}
