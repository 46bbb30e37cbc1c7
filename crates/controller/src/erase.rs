//! Erasing: overwrites all readable data of some namespaces, a chunk at a time, while the host uses other
//! namespaces. Format NVM (Base 5.14) and Sanitize (Base 5.24) consist of it.
//!
//! No classifier is called: a classifier could exclude blocks from the erasure.

use crate::{
    FormatRecord, FormatState, HostId, Namespace, PersistentRecord, SanitizeRecord, SanitizeState, Subsystem,
    TRANSFER_MAX, chunk, client_dma, fused,
};
use sluice_command::{Command, Controllers, Deallocated, Operation, Origin, Request, Slot};
use sluice_nvme::opcode::{admin, io};
use sluice_nvme::{PAGE_SIZE, Status, SubmissionEntry};

/// Bytes zeroed in one step. With more, other namespaces of the drive would wait for it.
const ZEROED_AT_ONCE: u64 = 32 << 20;

/// Time until another attempt to persist a state that could not be persisted.
const RETRY_NS: u64 = 1_000_000_000;

/// Time until another look at obstacles.
const PAUSE_NS: u64 = 1_000_000;

/// Contents that one pass writes to all blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    Zeroes {
        /// Whether the target may deallocate the blocks.
        deallocate: bool,
    },
    /// Overwrite with this pattern.
    Pattern(u32),
    /// Flush that makes everything durable.
    Flush,
}

/// Purpose of an erasure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Format, after which the namespace has this block size.
    Format { nsid: u32, block_size: u32 },
    /// Sanitize operation that begins or runs.
    Sanitize(SanitizeRecord),
}

/// Progress of an erasure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ErasureStage {
    /// First state: the begin is not persisted yet. After that, a later daemon finishes an erasure that this
    /// one leaves.
    New,
    /// Drain of the commands in flight.
    Waiting,
    Erasing,
    /// Persisting of the outcome.
    Persisting,
    /// Failed persisting of the outcome, to be tried again.
    Unpersisted,
}

/// Namespaces that are being erased. A subsystem has at most one erasure at a time.
#[derive(Debug)]
pub(crate) struct Erasure {
    pub(crate) purpose: Purpose,
    stage: ErasureStage,
    /// Time until which commands in flight may drain.
    until_ns: u64,
    nsids: Vec<u32>,
    passes: Vec<Pass>,
    /// Number of finished passes, of finished namespaces in the next pass, and of finished bytes in the next
    /// namespace.
    pass: usize,
    namespace: usize,
    offset: u64,
    in_flight: bool,
    next_ns: u64,
    /// Whether it pauses until the end of a reset.
    paused: bool,
    failure: Option<Status>,
    /// Command that waits for the end, unless a reset took it.
    command: Option<Command>,
    /// Host that requested it; none if an earlier daemon left it.
    host: Option<HostId>,
    /// Whether the host lost its right to a format by a Preempt and Abort. The format ends unless it has
    /// begun, and the preempting command waits for its end.
    preempted: bool,
    /// Whether this daemon or an earlier one may have overwritten data.
    is_touched: bool,
}

impl Erasure {
    pub(crate) fn new(
        purpose: Purpose,
        nsids: Vec<u32>,
        passes: Vec<Pass>,
        now_ns: u64,
        until_ns: u64,
    ) -> Self {
        let (pass, namespace, offset) = (0, 0, 0);
        Self {
            purpose,
            stage: ErasureStage::New,
            until_ns,
            nsids,
            passes,
            pass,
            namespace,
            offset,
            in_flight: false,
            next_ns: now_ns,
            paused: false,
            failure: None,
            command: None,
            host: None,
            preempted: false,
            is_touched: false,
        }
    }

    /// Starts to drain commands, since the begin is persisted.
    pub(crate) fn begin(&mut self) {
        self.stage = ErasureStage::Waiting;
    }

    /// Resumes an erasure of an earlier daemon, which may have written something.
    pub(crate) fn begin_again(&mut self) {
        self.is_touched = true;
        self.begin();
    }

    /// Returns whether nothing was written yet.
    pub(crate) fn is_untouched(&self) -> bool {
        !self.is_touched
    }

    /// Schedules another attempt to persist the outcome. The stored record has the erasure as running, so it
    /// counts as running until then.
    pub(crate) fn retry(&mut self, now_ns: u64) {
        (self.stage, self.next_ns) = (ErasureStage::Unpersisted, now_ns.saturating_add(RETRY_NS));
    }

    /// Returns the reason of a failure.
    pub(crate) fn failure(&self) -> Option<Status> {
        self.failure
    }

    /// Returns the status for commands that would erase data meanwhile.
    pub(crate) fn status(&self) -> Status {
        match self.purpose {
            Purpose::Format { .. } => Status::FORMAT_IN_PROGRESS,
            Purpose::Sanitize(_) => Status::SANITIZE_IN_PROGRESS,
        }
    }

    /// Returns the number of finished overwrite passes.
    pub(crate) fn patterns_done(&self) -> usize {
        self.passes[..self.pass].iter().filter(|pass| matches!(pass, Pass::Pattern(_))).count()
    }

    /// Stores the host's command until the end.
    pub(crate) fn wait(&mut self, command: Command, host: HostId) {
        (self.command, self.host) = (Some(command), Some(host));
    }

    /// Applies a Preempt and Abort with these victims. Returns whether this is a format of one of them.
    pub(crate) fn preempt(&mut self, nsid: u32, victims: &[HostId]) -> bool {
        let is_format_of = matches!(self.purpose, Purpose::Format { nsid: of, .. } if of == nsid);
        self.preempted |= is_format_of && self.host.is_some_and(|host| victims.contains(&host));
        self.preempted
    }

    pub(crate) fn is_preempted(&self) -> bool {
        self.preempted
    }

    /// Takes the waiting command, to be finished now.
    pub(crate) fn take_command(&mut self) -> Option<Command> {
        self.command.take()
    }

    /// Takes the waiting command if it is the one that is meant.
    pub(crate) fn take_command_if(&mut self, is_meant: impl FnOnce(&Command) -> bool) -> Option<Command> {
        self.command.take_if(|command| is_meant(command))
    }

    pub(crate) fn command(&self) -> Option<&Command> {
        self.command.as_ref()
    }

    /// Returns the pattern of the current pass, if it has one.
    fn pattern(&self) -> Option<u32> {
        match self.passes.get(self.pass) {
            Some(Pass::Pattern(pattern)) => Some(*pattern),
            _ => None,
        }
    }

    pub(crate) fn concerns(&self, nsid: u32) -> bool {
        self.nsids.contains(&nsid)
    }

    /// Returns the time of the next chunk.
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        self.may_advance().then_some(self.next_ns)
    }

    fn may_advance(&self) -> bool {
        // A format that is preempted before it erases only ends, even during a pause, since the preempting
        // command waits.
        let paused = self.paused && (!self.preempted || self.stage == ErasureStage::Erasing);
        !self.in_flight && !paused && self.stage != ErasureStage::Persisting
    }

    /// Starts or ends a pause: no chunk starts during a reset.
    pub(crate) fn set_paused(&mut self, paused: bool) {
        self.paused = paused;
    }

    /// Returns namespace and request of the next chunk, or none if all passes are done.
    fn next_chunk(&mut self, bytes_of: impl Fn(u32) -> u64) -> Option<(u32, Request)> {
        loop {
            let pass = *self.passes.get(self.pass)?;
            let Some(&nsid) = self.nsids.get(self.namespace) else {
                (self.pass, self.namespace, self.offset) = (self.pass + 1, 0, 0);
                continue;
            };
            let left = bytes_of(nsid).saturating_sub(self.offset);
            let (offset, request) = (self.offset, Request::default());
            let request = match pass {
                Pass::Flush if offset == 0 => Request { operation: Operation::Flush, ..request },
                Pass::Zeroes { deallocate } if left > 0 => {
                    let length = left.min(ZEROED_AT_ONCE);
                    Request { operation: Operation::WriteZeroes, deallocate, offset, length, ..request }
                }
                Pass::Pattern(_) if left > 0 => {
                    let length = left.min(TRANSFER_MAX.into());
                    Request { operation: Operation::Write, offset, length, ..request }
                }
                _ => {
                    (self.namespace, self.offset) = (self.namespace + 1, 0);
                    continue;
                }
            };
            return Some((nsid, request));
        }
    }

    /// Returns the bytes done and in total, of all passes over all namespaces. Their number may exceed 64
    /// bits.
    pub(crate) fn progress(&self, bytes_of: impl Fn(u32) -> u64) -> (u128, u128) {
        let writes = |passes: &[Pass]| passes.iter().filter(|pass| **pass != Pass::Flush).count() as u128;
        let bytes = |nsids: &[u32]| nsids.iter().map(|nsid| u128::from(bytes_of(*nsid))).sum::<u128>();
        let (each, before) = (bytes(&self.nsids), bytes(&self.nsids[..self.namespace.min(self.nsids.len())]));
        let is_write = self.passes.get(self.pass).is_some_and(|pass| *pass != Pass::Flush);
        let within = if is_write { before + u128::from(self.offset) } else { 0 };
        (each * writes(&self.passes[..self.pass]) + within, each * writes(&self.passes))
    }
}

/// Returns the bytes of a namespace that can be erased, including bytes behind its last block.
pub(crate) fn bytes_of(subsystem: &Subsystem, nsid: u32) -> u64 {
    subsystem.get(nsid).map_or(0, all_bytes)
}

fn all_bytes(namespace: &Namespace) -> u64 {
    let below = namespace.characteristics();
    below.size - below.size % u64::from(below.block_size)
}

/// Continues the erasure when its time has come.
pub(crate) fn advance(subsystem: &mut Subsystem, now_ns: u64) {
    let Some(mut erasure) = subsystem.erasure.take_if(|it| it.may_advance() && now_ns >= it.next_ns) else {
        return;
    };
    let next = match erasure.stage {
        ErasureStage::New => {
            erasure.stage = ErasureStage::Persisting;
            let purpose = erasure.purpose;
            subsystem.erasure = Some(erasure);
            subsystem.persist(beginning(purpose), now_ns);
            // The record may be persisted already.
            return advance(subsystem, now_ns);
        }
        ErasureStage::Unpersisted => {
            let result = erasure.failure.map_or(Ok(()), Err);
            subsystem.erasure = Some(erasure);
            return end(subsystem, result, now_ns);
        }
        ErasureStage::Waiting if erasure.preempted => {
            subsystem.erasure = Some(erasure);
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
            subsystem.erasure = Some(erasure);
            if now_ns >= until_ns {
                end(subsystem, Err(Status::COMMAND_SEQUENCE_ERROR), now_ns);
            }
            return;
        }
        _ if subsystem.slab.room() == 0 => {
            erasure.next_ns = now_ns.saturating_add(PAUSE_NS);
            subsystem.erasure = Some(erasure);
            return;
        }
        _ => {
            (erasure.stage, erasure.is_touched) = (ErasureStage::Erasing, true);
            erasure.next_chunk(|nsid| bytes_of(subsystem, nsid))
        }
    };
    erasure.in_flight = next.is_some();
    subsystem.erasure = Some(erasure);
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

/// Makes the erasure wait for all Copy commands in flight, after namespaces were closed. Their next sources
/// and destinations are not visible, so the erasure waits for each Copy. A later Copy finds the namespaces
/// closed.
pub(crate) fn await_copies(subsystem: &mut Subsystem) {
    let copies =
        subsystem.slab.live_mut().filter(|slot| slot.origin.opcode == io::COPY && slot.origin.sq != 0);
    copies.for_each(|slot| slot.origin.awaited = true);
}

/// Returns whether no command of a host works on these namespaces. Commands that wait for a fused operation,
/// and waiting fused commands, are checked again before they begin.
fn is_quiet(subsystem: &Subsystem, erasure: &Erasure) -> bool {
    let is_in_the_way = |slot: &Slot| {
        let Origin { sq, namespace, opcode, awaited, .. } = slot.origin;
        let concerned = erasure.concerns(u32::from(namespace) + 1) || opcode == io::COPY && awaited;
        let concerned = concerned && opcode != fused::WAITS;
        // A command that waits for client DMA finds the namespace closed when it goes on, or is over.
        !slot.is_child() && sq != 0 && sq != Origin::INTERNAL && concerned && !client_dma::has(slot)
    };
    !subsystem.slab.live().any(is_in_the_way)
}

fn send(subsystem: &mut Subsystem, nsid: u32, request: Request, now_ns: u64) {
    let opcode = match request.operation {
        Operation::Flush => io::FLUSH,
        Operation::Write => io::WRITE,
        _ => io::WRITE_ZEROES,
    };
    let entry = SubmissionEntry { opcode, nsid, ..SubmissionEntry::default() };
    let controller = Origin::SUBSYSTEM;
    let origin = Origin { sq: Origin::INTERNAL, controller, opcode: admin::FORMAT_NVM, ..Origin::default() };
    let command = subsystem.slab.admit(&entry, origin).expect("room was looked at");
    let filled = match subsystem.erasure.as_ref().and_then(Erasure::pattern) {
        Some(pattern) => fill(subsystem, &command, pattern, request.length),
        None => Ok(()),
    };
    let deallocates = subsystem.get(nsid).is_some_and(deallocates);
    let slot = subsystem.slab.slot_mut(&command);
    slot.request = Request { deallocate: request.deallocate && deallocates, ..request };
    match filled {
        Ok(()) => subsystem.submit_unclassified(nsid, command, now_ns),
        Err(status) => {
            slot.status = status;
            subsystem.done.push(command);
        }
    }
}

/// Returns whether deallocated blocks of the namespace read as zeros.
fn deallocates(namespace: &Namespace) -> bool {
    namespace.characteristics().deallocated == Deallocated::Zeroes
}

/// Fills the data of an overwrite: the command's own private memory, as often as needed.
fn fill(subsystem: &mut Subsystem, command: &Command, pattern: u32, length: u64) -> Result<(), Status> {
    let at = subsystem.slab.number(command) * chunk::CHUNK;
    let mut page = [0; PAGE_SIZE];
    page.chunks_exact_mut(size_of::<u32>()).for_each(|word| word.copy_from_slice(&pattern.to_le_bytes()));
    (0..chunk::CHUNK).step_by(PAGE_SIZE).for_each(|page_at| subsystem.staging.write(at + page_at, &page));
    let slot = subsystem.slab.slot_mut(command);
    slot.data.clear();
    let mut left = length as usize;
    while left > 0 {
        let part = left.min(chunk::CHUNK);
        let segment = subsystem.staging.segment(at, part as u32);
        slot.data.push(segment).map_err(|_| Status::INTERNAL_ERROR)?;
        left -= part;
    }
    Ok(())
}

/// Continues the erasure after a chunk.
pub(crate) fn next(subsystem: &mut Subsystem, command: Command, now_ns: u64) {
    let slot = subsystem.slab.slot(&command);
    let (status, length) = (slot.status, slot.request.length.max(1));
    subsystem.slab.release(command);
    let Some(erasure) = &mut subsystem.erasure else { return };
    (erasure.in_flight, erasure.next_ns) = (false, now_ns);
    if status.is_success() {
        erasure.offset += length;
    } else if !status.same_code(Status::ABORTED_SQ_DELETION) {
        // A chunk that a reset ended is repeated.
        end(subsystem, Err(status), now_ns);
    }
}

/// Ends the erasure, and persists its outcome.
fn end(subsystem: &mut Subsystem, result: Result<(), Status>, now_ns: u64) {
    let Some(erasure) = &mut subsystem.erasure else { return };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_progress_of_the_largest_drives_does_not_overflow() {
        const PASSES: u128 = 16;
        let purpose = Purpose::Format { nsid: 1, block_size: 512 };
        let mut erasure =
            Erasure::new(purpose, vec![1, 2], vec![Pass::Pattern(0); PASSES as usize], 0, u64::MAX);
        (erasure.pass, erasure.namespace, erasure.offset) = (15, 1, 512);
        let each = 2 * u128::from(u64::MAX);
        let done = 15 * each + u128::from(u64::MAX) + 512;
        assert_eq!(erasure.progress(|_| u64::MAX), (done, PASSES * each));
    }
}
