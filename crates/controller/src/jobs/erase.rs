//! Erasing: overwrites all readable data of some namespaces, a chunk at a time, while the host uses other
//! namespaces. Format NVM (Base 5.14) and Sanitize (Base 5.24) consist of it.
//!
//! No classifier is called: a classifier could exclude blocks from the erasure.

use crate::model::erasing::bytes_of;
use crate::model::slots::{Ended, Way};
use crate::model::{Namespace, Subsystem};
use crate::state::erasure::{ERASE, Erasure, ErasureStage, Purpose};
use crate::state::format::{FormatRecord, FormatState};
use crate::state::persist::PersistentRecord;
use crate::state::sanitize::{SanitizeRecord, SanitizeState};
use crate::state::{chunk, client_dma, fused};
use sluice_command::{Controllers, Deallocated, Operation, Origin, Request, Slot};
use sluice_memory::SharedRegion;
use sluice_nvme::opcode::{admin, io};
use sluice_nvme::{PAGE_SIZE, Status, SubmissionEntry};

/// Time until another look at obstacles.
const PAUSE_NS: u64 = 1_000_000;

/// Continues the erasure when its time has come.
pub(crate) fn advance(subsystem: &mut Subsystem, now_ns: u64) {
    let Some(mut erasure) =
        subsystem.jobs_mut().erasure.take_if(|it| it.deadline_ns().is_some_and(|due_ns| now_ns >= due_ns))
    else {
        return;
    };
    let next = match erasure.stage {
        ErasureStage::New => {
            erasure.stage = ErasureStage::Persisting;
            let purpose = erasure.purpose;
            subsystem.jobs_mut().erasure = Some(erasure);
            subsystem.persist(beginning(purpose), now_ns);
            // The record may be persisted already.
            return advance(subsystem, now_ns);
        }
        ErasureStage::Unpersisted => {
            let result = erasure.failure.map_or(Ok(()), Err);
            subsystem.jobs_mut().erasure = Some(erasure);
            return end(subsystem, result, now_ns);
        }
        _ if erasure.ends_preempted() => {
            subsystem.jobs_mut().erasure = Some(erasure);
            return end(subsystem, Err(Status::ABORTED_PREEMPT), now_ns);
        }
        ErasureStage::Waiting if !is_quiet(subsystem, &erasure) => {
            // The commands wait for room, which the erasure may be about to make.
            for &nsid in &erasure.nsids {
                subsystem.end_waiting(
                    nsid,
                    Controllers::of_bits(u32::MAX),
                    Status::CAPACITY_EXCEEDED,
                    now_ns,
                );
            }
            let until_ns = erasure.until_ns;
            erasure.next_ns = now_ns.saturating_add(PAUSE_NS);
            subsystem.jobs_mut().erasure = Some(erasure);
            if now_ns >= until_ns {
                end(subsystem, Err(Status::COMMAND_SEQUENCE_ERROR), now_ns);
            }
            return;
        }
        _ if subsystem.is_full() => {
            erasure.next_ns = now_ns.saturating_add(PAUSE_NS);
            subsystem.jobs_mut().erasure = Some(erasure);
            return;
        }
        _ => {
            erasure.stage = ErasureStage::Erasing;
            let Some((_, budget)) = erasure.jobs.next(now_ns, |_| true) else {
                subsystem.jobs_mut().erasure = Some(erasure);
                return;
            };
            erasure.is_touched = true;
            erasure.next_chunk(budget, |nsid| bytes_of(subsystem, nsid))
        }
    };
    if let Some((_, request)) = &next {
        erasure.jobs.begin(ERASE, request.length, now_ns);
        erasure.in_flight = true;
    }
    subsystem.jobs_mut().erasure = Some(erasure);
    match next {
        Some((nsid, request)) => send(subsystem, nsid, request, now_ns),
        None => end(subsystem, Ok(()), now_ns),
    }
}

/// Returns the record to persist before the first chunk.
fn beginning(purpose: Purpose) -> PersistentRecord {
    match purpose {
        Purpose::Format { nsid, block_size } => {
            PersistentRecord::Format(FormatRecord { nsid, block_size, state: FormatState::Running })
        }
        Purpose::Sanitize(record) => PersistentRecord::Sanitize(record),
    }
}

/// Returns whether no command of a host works on these namespaces. Commands that wait for a fused operation,
/// and waiting fused commands, are checked again before they begin.
fn is_quiet(subsystem: &Subsystem, erasure: &Erasure) -> bool {
    let is_in_the_way = |slot: &Slot| {
        let Origin { sq, namespace, opcode, awaited, .. } = slot.origin;
        let concerned = erasure.concerns(u32::from(namespace) + 1) || opcode == io::COPY && awaited;
        let concerned = concerned && opcode != fused::WAITS;
        // A command that waits for client DMA finds the namespace closed when it goes on, or is over.
        !slot.is_child() && sq != 0 && sq != Origin::INTERNAL_SQ && concerned && !client_dma::has(slot)
    };
    !subsystem.has_live(is_in_the_way)
}

fn send(subsystem: &mut Subsystem, nsid: u32, request: Request, now_ns: u64) {
    let opcode = match request.operation {
        Operation::Flush => io::FLUSH,
        Operation::Write => io::WRITE,
        _ => io::WRITE_ZEROES,
    };
    let entry = SubmissionEntry { opcode, nsid, ..SubmissionEntry::default() };
    let controller = Origin::SUBSYSTEM;
    let origin =
        Origin { sq: Origin::INTERNAL_SQ, controller, opcode: admin::FORMAT_NVM, ..Origin::default() };
    let pattern = subsystem.jobs().erasure.as_ref().and_then(Erasure::pattern);
    let deallocates = subsystem.get(nsid).is_some_and(deallocates);
    subsystem.start_internal(&entry, origin, Way::Unclassified, now_ns, |slot, number, staging| {
        slot.request = Request { deallocate: request.deallocate && deallocates, ..request };
        pattern.map_or(Ok(()), |pattern| fill(slot, number, staging, pattern))
    });
}

/// Returns whether deallocated blocks of the namespace read as zeros.
fn deallocates(namespace: &Namespace) -> bool {
    namespace.characteristics().deallocated == Deallocated::Zeroes
}

/// Fills the data of an overwrite: the command's own private memory, as often as needed.
fn fill(slot: &mut Slot, number: usize, staging: &SharedRegion, pattern: u32) -> Result<(), Status> {
    let at = number * chunk::CHUNK;
    let mut page = [0; PAGE_SIZE];
    page.chunks_exact_mut(size_of::<u32>()).for_each(|word| word.copy_from_slice(&pattern.to_le_bytes()));
    (0..chunk::CHUNK).step_by(PAGE_SIZE).for_each(|page_at| staging.write(at + page_at, &page));
    slot.data.clear();
    let mut left = slot.request.length as usize;
    while left > 0 {
        let part = left.min(chunk::CHUNK);
        slot.data.push(staging.segment(at, part as u32)).map_err(|_| Status::INTERNAL_ERROR)?;
        left -= part;
    }
    Ok(())
}

/// Continues the erasure after a chunk.
pub(crate) fn next(subsystem: &mut Subsystem, ended: Ended, now_ns: u64) {
    let (status, length) = (ended.status, ended.length);
    let Some(erasure) = &mut subsystem.jobs_mut().erasure else { return };
    (erasure.in_flight, erasure.next_ns) = (false, now_ns);
    if status.is_success() {
        erasure.jobs.end(ERASE, length, now_ns);
        erasure.offset += length.max(1);
        return;
    }
    erasure.jobs.abandon(ERASE);
    if !status.same_code(Status::ABORTED_SQ_DELETION) {
        // A chunk that a reset ended is repeated.
        end(subsystem, Err(status), now_ns);
    }
}

/// Ends the erasure, and persists its outcome.
fn end(subsystem: &mut Subsystem, result: Result<(), Status>, now_ns: u64) {
    let Some(erasure) = &mut subsystem.jobs_mut().erasure else { return };
    (erasure.stage, erasure.failure) = (ErasureStage::Persisting, result.err());
    let well = result.is_ok();
    match erasure.purpose {
        Purpose::Format { nsid, block_size } => {
            let state = if well { FormatState::Done } else { FormatState::Failed };
            subsystem.persist(PersistentRecord::Format(FormatRecord { nsid, block_size, state }), now_ns);
        }
        Purpose::Sanitize(record) => {
            let state = if well { SanitizeState::Done } else { SanitizeState::Failed };
            subsystem.persist(PersistentRecord::Sanitize(SanitizeRecord { state, ..record }), now_ns);
        }
    }
}
