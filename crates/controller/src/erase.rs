//! Erasing: everything that a host could read of some namespaces is overwritten, a piece at a time, while the
//! host goes on with others. What Format NVM (Base 5.14) and Sanitize (Base 5.24) are made of.
//!
//! No program is asked about any of it: to erase what it lets through would leave what it does not.

use crate::{
    FormatRecord, FormatState, HostId, Namespace, PersistentRecord, SanitizeRecord, SanitizeState, Subsystem,
    TRANSFER_MAX, chunk, client_dma, fused,
};
use sluice_command::{Command, Controllers, Deallocated, Operation, Origin, Request, Slot};
use sluice_nvme::opcode::{admin, io};
use sluice_nvme::{PAGE_SIZE, Status, SubmissionEntry};

/// Bytes made zeros in one step. Larger, and the drive's other namespaces would wait for it.
const ZEROED_AT_ONCE: u64 = 32 << 20;

/// Until somebody is asked again to remember what could not be remembered.
const RETRY_NS: u64 = 1_000_000_000;

/// Until it is looked again whether what is in the way has gone.
const PAUSE_NS: u64 = 1_000_000;

/// What is written in one pass over all blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    Zeroes {
        /// The target may give the blocks back.
        deallocate: bool,
    },
    /// An overwrite.
    Pattern(u32),
    /// Makes everything durable.
    Flush,
}

/// What is erased for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The namespace gets blocks of this many bytes.
    Format { nsid: u32, block_size: u32 },
    /// The operation that begins, or runs.
    Sanitize(SanitizeRecord),
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ErasureStage {
    /// Nobody was asked yet to remember that it begins: what a daemon leaves halfway, the next one ends.
    New,
    /// Commands in flight come to their end.
    Waiting,
    Erasing,
    /// Somebody was asked to remember the outcome.
    Persisting,
    /// The outcome could not be remembered: somebody will be asked again.
    Unpersisted,
}

/// Namespaces that are being erased. At most one of these is under way in a subsystem.
#[derive(Debug)]
pub(crate) struct Erasure {
    pub(crate) purpose: Purpose,
    stage: ErasureStage,
    /// How long commands in flight have to end.
    until_ns: u64,
    nsids: Vec<u32>,
    passes: Vec<Pass>,
    /// How many of the passes are done, of the namespaces in the next, and how many bytes of the next namespace.
    pass: usize,
    namespace: usize,
    offset: u64,
    in_flight: bool,
    next_ns: u64,
    /// Until the next reset.
    paused: bool,
    failure: Option<Status>,
    /// The command that waits for the end, unless a reset took it.
    command: Option<Command>,
    /// Whose wish it is, if it is not what another daemon left.
    host: Option<HostId>,
    /// That host has lost the right to it: it ends unless it has begun, and who preempted the host waits for its end.
    preempted: bool,
    /// Data may have been written over, by this daemon or the one before.
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

    /// It is remembered that it begins.
    pub(crate) fn begin(&mut self) {
        self.stage = ErasureStage::Waiting;
    }

    /// The daemon before this one has begun it, and may have written something.
    pub(crate) fn begin_again(&mut self) {
        self.is_touched = true;
        self.begin();
    }

    /// Nothing was written yet: all data is there.
    pub(crate) fn is_untouched(&self) -> bool {
        !self.is_touched
    }

    /// Its outcome could not be remembered. What was remembered says that it runs, and so it does, to everybody.
    pub(crate) fn retry(&mut self, now_ns: u64) {
        (self.stage, self.next_ns) = (ErasureStage::Unpersisted, now_ns.saturating_add(RETRY_NS));
    }

    /// Why it could not be done.
    pub(crate) fn failure(&self) -> Option<Status> {
        self.failure
    }

    /// What a command gets that would erase something meanwhile.
    pub(crate) fn status(&self) -> Status {
        match self.purpose {
            Purpose::Format { .. } => Status::FORMAT_IN_PROGRESS,
            Purpose::Sanitize(_) => Status::SANITIZE_IN_PROGRESS,
        }
    }

    /// Overwrites of everything that are done.
    pub(crate) fn patterns_done(&self) -> usize {
        self.passes[..self.pass].iter().filter(|pass| matches!(pass, Pass::Pattern(_))).count()
    }

    /// The host's command, to be finished at the end.
    pub(crate) fn wait(&mut self, command: Command, host: HostId) {
        (self.command, self.host) = (Some(command), Some(host));
    }

    /// A Preempt and Abort has these victims in a namespace. True if this is the format of one of them.
    pub(crate) fn preempt(&mut self, nsid: u32, victims: &[HostId]) -> bool {
        let is_format_of = matches!(self.purpose, Purpose::Format { nsid: of, .. } if of == nsid);
        self.preempted |= is_format_of && self.host.is_some_and(|host| victims.contains(&host));
        self.preempted
    }

    pub(crate) fn is_preempted(&self) -> bool {
        self.preempted
    }

    /// The same, to be finished now.
    pub(crate) fn take_command(&mut self) -> Option<Command> {
        self.command.take()
    }

    /// The same, if it is the one that is meant.
    pub(crate) fn take_command_if(&mut self, is_meant: impl FnOnce(&Command) -> bool) -> Option<Command> {
        self.command.take_if(|command| is_meant(command))
    }

    pub(crate) fn command(&self) -> Option<&Command> {
        self.command.as_ref()
    }

    /// What is written now, if it is a pattern.
    fn pattern(&self) -> Option<u32> {
        match self.passes.get(self.pass) {
            Some(Pass::Pattern(pattern)) => Some(*pattern),
            _ => None,
        }
    }

    pub(crate) fn concerns(&self, nsid: u32) -> bool {
        self.nsids.contains(&nsid)
    }

    /// When the next piece is due, of a controller that is not on its way to somewhere else.
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        self.may_advance().then_some(self.next_ns)
    }

    fn may_advance(&self) -> bool {
        // One that is preempted before it erases only ends, and who preempted it waits for that.
        let paused = self.paused && (!self.preempted || self.stage == ErasureStage::Erasing);
        !self.in_flight && !paused && self.stage != ErasureStage::Persisting
    }

    /// No piece begins until a reset is over.
    pub(crate) fn set_paused(&mut self, paused: bool) {
        self.paused = paused;
    }

    /// The next piece: of which namespace, and what. None if all is done.
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

    /// Done and to do, bytes: of all passes over all namespaces, which are more than 64 bits can say.
    pub(crate) fn progress(&self, bytes_of: impl Fn(u32) -> u64) -> (u128, u128) {
        let writes = |passes: &[Pass]| passes.iter().filter(|pass| **pass != Pass::Flush).count() as u128;
        let bytes = |nsids: &[u32]| nsids.iter().map(|nsid| u128::from(bytes_of(*nsid))).sum::<u128>();
        let (each, before) = (bytes(&self.nsids), bytes(&self.nsids[..self.namespace.min(self.nsids.len())]));
        let is_write = self.passes.get(self.pass).is_some_and(|pass| *pass != Pass::Flush);
        let within = if is_write { before + u128::from(self.offset) } else { 0 };
        (each * writes(&self.passes[..self.pass]) + within, each * writes(&self.passes))
    }
}

/// Bytes of a namespace that can be erased: what is beyond its last block, too, if the layers have it.
pub(crate) fn bytes_of(subsystem: &Subsystem, nsid: u32) -> u64 {
    subsystem.get(nsid).map_or(0, all_bytes)
}

fn all_bytes(namespace: &Namespace) -> u64 {
    let below = namespace.characteristics();
    below.size - below.size % u64::from(below.block_size)
}

/// The time of the next piece has come.
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
            // It may be remembered already.
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
            // For room, which the erasure may be about to make.
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

/// What is to be remembered before the first piece.
fn beginning(purpose: Purpose) -> PersistentRecord {
    match purpose {
        Purpose::Format { nsid, block_size } => {
            PersistentRecord::Format(FormatRecord { nsid, block_size, state: FormatState::Running })
        }
        Purpose::Sanitize(record) => PersistentRecord::Sanitize(record),
    }
}

/// Namespaces have been closed. What a Copy that is under way does next, and where, is not seen: its end is awaited,
/// wherever it is. One that comes later finds them closed.
pub(crate) fn await_copies(subsystem: &mut Subsystem) {
    let copies =
        subsystem.slab.live_mut().filter(|slot| slot.origin.opcode == io::COPY && slot.origin.sq != 0);
    copies.for_each(|slot| slot.origin.awaited = true);
}

/// No command of the host works on these namespaces. Those that wait for a fused operation, or are one that waits, are
/// looked at again before they begin.
fn is_quiet(subsystem: &Subsystem, erasure: &Erasure) -> bool {
    let is_in_the_way = |slot: &Slot| {
        let Origin { sq, namespace, opcode, awaited, .. } = slot.origin;
        let concerned = erasure.concerns(u32::from(namespace) + 1) || opcode == io::COPY && awaited;
        let concerned = concerned && opcode != fused::WAITS;
        // One that is with its client finds the namespace closed when it goes on, or is over.
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

/// What is given back reads as zeros.
fn deallocates(namespace: &Namespace) -> bool {
    namespace.characteristics().deallocated == Deallocated::Zeroes
}

/// The data of an overwrite: the command's own private memory, as often as is needed.
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

/// A piece was erased, or could not be.
pub(crate) fn next(subsystem: &mut Subsystem, command: Command, now_ns: u64) {
    let slot = subsystem.slab.slot(&command);
    let (status, length) = (slot.status, slot.request.length.max(1));
    subsystem.slab.release(command);
    let Some(erasure) = &mut subsystem.erasure else { return };
    (erasure.in_flight, erasure.next_ns) = (false, now_ns);
    if status.is_success() {
        erasure.offset += length;
    } else if !status.same_code(Status::ABORTED_SQ_DELETION) {
        // What a reset ended begins again.
        end(subsystem, Err(status), now_ns);
    }
}

/// All is erased, or cannot be.
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
    fn the_progress_of_the_largest_drives_is_told() {
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
