//! Completion of commands: the next step of commands with several steps, and the completion entries of all
//! others.

use crate::command::{Step, compare, copy, dataset, reservation, uncorrectable, verify};
use crate::engine::{client_dma, fused, queues, sync, write_cache};
use crate::jobs::erase;
use crate::model::{Controller, Subsystem};
use crate::state::fused::FUSED;
use crate::state::health::Health;
use crate::state::identity::Identity;
use crate::state::latency::{Latency, Run};
use crate::state::queue::Service;
use crate::state::remote_queues::cause::RecallCause;
use crate::state::sampling::is_traced;
use sluice_command::{Command, Origin, Slab, Slot};
use sluice_nvme::{CompletionEntry, Status, opcode};

impl Controller {
    /// Completes finished commands, until none is left.
    #[inline]
    pub(crate) fn run_completions(&mut self, subsystem: &mut Subsystem, now_ns: u64) -> usize {
        match subsystem.latency() {
            None => self.complete_finished::<false>(subsystem, now_ns),
            Some(_) => self.complete_finished::<true>(subsystem, now_ns),
        }
    }

    /// Completes finished commands, of which some may be `MEASURED`.
    fn complete_finished<const MEASURED: bool>(&mut self, subsystem: &mut Subsystem, now_ns: u64) -> usize {
        let mut work = 0;
        while subsystem.has_completions() {
            subsystem.run_completions(now_ns);
            let mut finishing = subsystem.take_finished();
            work += finishing.len();
            subsystem.deliver(self.number(), &mut finishing);
            if self.is_fabrics() {
                self.note_ends(subsystem, &finishing, now_ns);
            }
            // The host waits for these entries, and for nothing that follows.
            let all_last =
                finishing.iter().fold(true, |all, command| self.post_last(subsystem, command, all) & all);
            match all_last {
                true if MEASURED => self.account_measured(subsystem, &mut finishing),
                true => {
                    // From the end, which is cheaper than a drain for the short batches of most guests.
                    while let Some(command) = finishing.pop() {
                        if !subsystem.slab().slot(&command).status.is_success() {
                            finishing.push(command);
                            self.account_in_order(subsystem, &mut finishing);
                            break;
                        }
                        self.account(subsystem, command);
                    }
                }
                false => self.complete_each(subsystem, &mut finishing, now_ns),
            }
            subsystem.put_back_list(finishing);
            self.note_posted();
        }
        work
    }

    /// Counts a batch of commands whose completion entries are written, and how long commands with stamps took.
    #[inline(always)]
    fn account_measured(&mut self, subsystem: &mut Subsystem, batch: &mut Vec<Command>) {
        let Some((slab, health, identity, latency)) = subsystem.timed_accounts() else { return };
        let Some(command) = batch.pop() else { return };
        let slot = slab.slot(&command);
        if batch.is_empty() && !is_apart(slot) {
            latency.count(&Run::of(slot));
            health.completed(&slot.request, Status::SUCCESS);
            return slab.release(command);
        }
        batch.push(command);
        // Commands of one queue, namespace and operation that follow each other are counted together.
        let mut now = None;
        while let Some(first) = batch.pop() {
            let slot = slab.slot(&first);
            if !slot.status.is_success() {
                batch.push(first);
                return self.account_in_order(subsystem, batch);
            }
            if is_apart(slot) {
                let now = *now.get_or_insert_with(|| latency.raw());
                self.account_apart(slab, health, identity, latency, first, batch, now);
                continue;
            }
            let mut run = Run::of(slot);
            slab.release(first);
            while let Some(command) = batch.pop_if(|command| run.has(slab.slot(command))) {
                run.add(slab.slot(&command));
                slab.release(command);
            }
            health.succeeded(run.operation, run.commands, run.bytes);
            latency.count(&run);
        }
    }

    /// Counts commands as they came, the first one first. The log of errors has them in this order.
    #[cold]
    #[inline(never)]
    fn account_in_order(&mut self, subsystem: &mut Subsystem, batch: &mut Vec<Command>) {
        batch.reverse();
        while let Some(command) = batch.pop() {
            self.account_one(subsystem, command);
        }
    }

    /// Counts a command that has a stamp or is none of an I/O queue, and succeeded. Commands at the end of `batch` with the same
    /// stamp are counted with it.
    #[cold]
    #[inline(never)]
    #[expect(clippy::too_many_arguments, reason = "parts of one subsystem")]
    fn account_apart(
        &mut self,
        slab: &mut Slab,
        health: &mut Health,
        identity: &Identity,
        latency: &Latency,
        first: Command,
        batch: &mut Vec<Command>,
        now: u64,
    ) {
        if is_traced(slab.slot(&first)) {
            end_trace(slab, latency, &first, now);
        }
        let slot = slab.slot(&first);
        if slot.origin.sq == 0 {
            self.count(slab, health, identity, &first);
            return slab.release(first);
        }
        let mut run = Run::timed(slot, slab.number(&first));
        slab.release(first);
        while let Some(command) = batch.pop_if(|command| run.has_timed(slab.slot(command))) {
            run.add(slab.slot(&command));
            slab.release(command);
        }
        health.succeeded(run.operation, run.commands, run.bytes);
        latency.add(&run, now, slab);
    }

    /// Counts a command outside of a batch, and its latency.
    fn account_one(&mut self, subsystem: &mut Subsystem, command: Command) {
        if let Some((slab, _, _, latency)) = subsystem.timed_accounts() {
            measure_one(slab, latency, &command);
        }
        self.account(subsystem, command);
    }

    /// Counts the end of host commands as traffic for Keep Alive. Internal commands prove nothing about the
    /// host.
    fn note_ends(&mut self, subsystem: &Subsystem, finishing: &[Command], now_ns: u64) {
        if finishing.iter().any(|command| subsystem.slab().slot(command).origin.sq != Origin::INTERNAL_SQ) {
            self.features.note_activity(now_ns);
        }
    }

    /// Writes the completion entry of a command that is back from its router. Returns false if the command
    /// has more steps.
    ///
    /// All entries of a batch are written one after the other: the host's core takes a line of the completion
    /// queue away as soon as it sees an entry in it. Every store after an entry waits for its line.
    #[inline(always)]
    fn post_last(&mut self, subsystem: &mut Subsystem, command: &Command, all: bool) -> bool {
        let slot = subsystem.slab().slot(command);
        let (origin, status) = (slot.origin, slot.status);
        let last = is_last(origin, status, || all && subsystem.jobs_mut().losses.are_none());
        if last {
            self.post(subsystem, origin, status, 0);
        }
        last
    }

    /// Completes a batch in which some commands have a next step. The completion entries of the others are written.
    fn complete_each(&mut self, subsystem: &mut Subsystem, batch: &mut Vec<Command>, now_ns: u64) {
        // The same for each command as when the entries were written: a step may bring a loss.
        let mut nothing_lost = subsystem.jobs().losses.are_none();
        for command in batch.drain(..) {
            let slot = subsystem.slab().slot(&command);
            if is_last(slot.origin, slot.status, || nothing_lost) {
                self.account_one(subsystem, command);
            } else {
                nothing_lost = false;
                self.complete(subsystem, command, now_ns);
            }
        }
    }

    /// Continues a command that is back from its router: starts its next step, or only counts it, since its
    /// completion entry is written.
    fn complete(&mut self, subsystem: &mut Subsystem, command: Command, now_ns: u64) {
        let slot = subsystem.slab().slot(&command);
        let steps = Steps::of(slot.origin);
        if steps.move_bytes() {
            if subsystem.has_moved_enough() {
                // Its next steps run in later turns, since one command may have hundreds.
                return subsystem.mail(self.number(), command);
            }
            let (slab, health, _) = subsystem.slab_and_accounts();
            health.step(&slab.slot(&command).request);
        }
        match steps {
            Steps::One => self.account_one(subsystem, command),
            Steps::WriteBack => {
                let status = subsystem.slab().slot(&command).status;
                client_dma::write_back(self, subsystem, command, status, 0);
            }
            Steps::Internal => self.finish_internal(subsystem, command, now_ns),
            Steps::Flush => write_cache::flushed(self, subsystem, command, now_ns),
            Steps::SelfTest => {
                let read = subsystem.end_internal(command);
                self.self_test_read_ended(subsystem, read, now_ns);
            }
            Steps::Erase => {
                let ended = subsystem.end_internal(command);
                erase::next(subsystem, ended, now_ns);
            }
            Steps::Compare | Steps::Ranges | Steps::Verify | Steps::Copy | Steps::Uncorrectable => {
                let step = self.next_step(subsystem, &command, steps);
                self.take_step(subsystem, command, step, now_ns);
            }
            Steps::Fused => fused::next(self, subsystem, command, now_ns),
            Steps::Management => {
                let slot = subsystem.slab().slot(&command);
                let (status, dw0) = (slot.status, slot.request.offset as u32);
                self.finish(subsystem, command, status, dw0);
            }
            Steps::Feature => write_cache::next(self, subsystem, command, now_ns),
            Steps::Reservation => {
                subsystem.health_mut().note_effort();
                let step = self.next_step(subsystem, &command, steps);
                self.take_step(subsystem, command, step, now_ns);
            }
        }
    }

    /// Returns the next step of a command that is back from the layers.
    fn next_step(&self, subsystem: &mut Subsystem, command: &Command, steps: Steps) -> Step {
        let nsid = subsystem.slab().entry(command).nsid;
        if steps == Steps::Reservation {
            let (slot, entry) = (subsystem.slab().slot(command), subsystem.slab().entry(command));
            let host = subsystem.host(slot.origin.controller);
            return reservation::next(slot, entry, subsystem.get(nsid), host);
        }
        let number = subsystem.slab().number(command);
        let (namespace, slab, staging) = subsystem.beside(nsid);
        match steps {
            Steps::Compare => compare::next(slab.slot_mut(command), number, staging),
            Steps::Verify => verify::next(slab.slot_mut(command), number, staging),
            Steps::Ranges => dataset::next(slab.slot_mut(command)),
            Steps::Copy => {
                let entry = *slab.entry(command);
                copy::next(slab.slot_mut(command), number, &entry, namespace, &self.features, staging)
            }
            _ => uncorrectable::next(slab.slot(command)),
        }
    }

    /// Takes the next step of a command.
    fn take_step(&mut self, subsystem: &mut Subsystem, command: Command, step: Step, now_ns: u64) {
        match step {
            Step::Send => {
                let nsid = subsystem.slab().entry(&command).nsid;
                subsystem.resubmit(nsid, command, now_ns);
            }
            Step::SendTo(nsid) => subsystem.resubmit(nsid, command, now_ns),
            Step::Finish(status, dw0) => self.finish(subsystem, command, status, dw0),
            Step::Order => subsystem.order(command, now_ns),
            Step::ChangeRanges => crate::jobs::uncorrectable::change(subsystem, command, now_ns),
        }
    }

    /// Finishes an internal flush. No completion entry reports its failure.
    #[cold]
    fn finish_internal(&mut self, subsystem: &mut Subsystem, command: Command, now_ns: u64) {
        let (status, origin) =
            (subsystem.slab().slot(&command).status, subsystem.slab().slot(&command).origin);
        if origin.controller == Origin::SUBSYSTEM {
            return sync::ended(subsystem, command, now_ns);
        }
        if !status.is_success() {
            let nsid = subsystem.slab().entry(&command).nsid;
            tracing::error!(nsid, ?status, "the flush of a shutdown failed: finished writes may be lost");
            if status.same_code(Status::WRITE_FAULT) {
                subsystem.lose_writes(nsid, now_ns);
            }
        }
        subsystem.slab_mut().release(command);
    }

    /// Writes the completion entry of a command and frees its slot.
    pub(crate) fn finish(&mut self, subsystem: &mut Subsystem, command: Command, status: Status, dw0: u32) {
        let slot = subsystem.slab_mut().slot_mut(&command);
        slot.status = status;
        let origin = slot.origin;
        if origin.carried {
            return client_dma::write_back(self, subsystem, command, status, dw0);
        }
        self.post(subsystem, origin, status, dw0);
        self.account_one(subsystem, command);
        self.note_posted();
    }

    /// Counts a command whose completion entry is written, and frees its slot.
    #[inline(always)]
    fn account(&mut self, subsystem: &mut Subsystem, command: Command) {
        let (slab, health, identity) = subsystem.slab_and_accounts();
        self.account_with(slab, health, identity, command);
    }

    #[inline(always)]
    fn account_with(&mut self, slab: &mut Slab, health: &mut Health, identity: &Identity, command: Command) {
        self.count(slab, health, identity, &command);
        slab.release(command);
    }

    /// Counts a command whose completion entry is written.
    #[inline(always)]
    fn count(&mut self, slab: &Slab, health: &mut Health, identity: &Identity, command: &Command) {
        let slot = slab.slot(command);
        if !slot.status.is_success() {
            // The data may be in memory that only the client reaches. The owner can fetch it when the host
            // tries again.
            if slot.status.same_code(Status::DATA_TRANSFER_ERROR) {
                self.remote_groups.recall(RecallCause::Buffer);
            }
            let entry = slab.entry(command);
            self.report_failure(&identity.subnqn, entry, slot);
        }
        if slot.origin.sq != 0 {
            health.completed(&slot.request, slot.status);
        }
    }

    /// Writes a completion entry for a command that came from `origin`, if its queue still exists.
    #[inline(always)]
    fn post(&mut self, subsystem: &mut Subsystem, origin: Origin, status: Status, dw0: u32) {
        let Some(sq) = &mut self.sqs[usize::from(origin.sq)] else { return };
        if sq.epoch != origin.epoch {
            return;
        }
        sq.in_flight -= 1;
        let emptied = sq.deleting && sq.in_flight == 0;
        let entry = CompletionEntry::new(dw0, sq.head as u16, origin.sq, origin.cid, status, false);
        let cq = sq.cq;
        self.post_to(cq, entry);
        if emptied {
            queues::finish_deletion(self, subsystem, origin.sq);
        }
    }

    /// Writes a completion entry to a queue, in a reserved slot.
    #[inline(always)]
    pub(crate) fn post_to(&mut self, id: u16, entry: CompletionEntry) {
        let Some(cq) = &mut self.cqs[usize::from(id)] else { return };
        if cq.service != Service::On {
            return self.post_later(id, entry);
        }
        cq.post(entry);
        if let Some(vector) = cq.vector {
            self.signal(vector);
        }
        self.note_queue(id);
    }
}

impl Controller {
    /// Holds a completion entry for a queue to which nothing is posted now, or drops it.
    #[cold]
    #[inline(never)]
    fn post_later(&mut self, id: u16, entry: CompletionEntry) {
        let Some(cq) = &mut self.cqs[usize::from(id)] else { return };
        match cq.service {
            Service::On => cq.post(entry),
            Service::Kept => self.hold_result(entry),
            Service::Unmapped => self.hold_completion(id, entry),
            Service::Over => cq.unreserve(1),
        }
    }
}

/// Returns whether a command has a stamp, failed, or is none of an I/O queue.
#[inline(always)]
fn is_apart(slot: &Slot) -> bool {
    slot.origin.timed || !slot.status.is_success() || slot.origin.stream() as u16 == 0
}

/// Measures one command of a host, which is counted elsewhere.
#[cold]
fn measure_one(slab: &mut Slab, latency: &Latency, command: &Command) {
    let slot = slab.slot(command);
    let (origin, traced) = (slot.origin, is_traced(slot));
    let now = if origin.timed { latency.raw() } else { 0 };
    if origin.sq == 0 || origin.sq == Origin::INTERNAL_SQ {
        return;
    }
    if slot.status.is_success() {
        latency.add(&Run::timed(slot, slab.number(command)), now, slab);
    } else {
        note_failure(slab, latency, command, now);
    }
    if traced {
        end_trace(slab, latency, command, now);
    }
}

/// Measures a command of a host that failed.
#[cold]
#[inline(never)]
fn note_failure(slab: &Slab, latency: &Latency, command: &Command, now: u64) {
    let slot = slab.slot(command);
    let known = slab.entry(command).nsid == u32::from(slot.origin.namespace) + 1;
    latency.add_failed(Run::timed(slot, slab.number(command)), known, now, slab);
}

/// Passes on a traced command whose completion entry was written at `now`.
#[cold]
#[inline(never)]
fn end_trace(slab: &mut Slab, latency: &Latency, command: &Command, now: u64) {
    if let Some(times) = slab.end_trace(command)
        && let Some(tracer) = latency.tracer()
    {
        let slot = slab.slot(command);
        tracer.complete(&times, now, &slot.origin, slab.entry(command), slot.status);
    }
}

/// Returns whether only a completion entry follows. A Flush that succeeded has no next step where no write was lost
/// that may still have to be reported to its host.
#[inline(always)]
fn is_last(origin: Origin, status: Status, nothing_lost: impl FnOnce() -> bool) -> bool {
    match Steps::of(origin) {
        Steps::One => true,
        Steps::Flush => status.is_success() && !origin.carried && nothing_lost(),
        _ => false,
    }
}

/// Next step of a command that is back from its router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Steps {
    /// Completion entry.
    One,
    /// Transfer of the data to the client, and then the completion entry.
    WriteBack,
    /// No completion entry: no host sent the command.
    Internal,
    /// Completion entry of a Flush, which may fail for an earlier loss.
    Flush,
    /// Next read of a Device Self-test.
    SelfTest,
    /// Next write of a Format NVM or Sanitize.
    Erase,
    /// Next chunk of a Compare.
    Compare,
    /// Next range of a Dataset Management.
    Ranges,
    /// Next chunk of a Verify.
    Verify,
    /// Next chunk of a Copy.
    Copy,
    /// Change of the uncorrectable ranges.
    Uncorrectable,
    /// Write after a Compare, or end of a claim.
    Fused,
    /// Next flush of a Set Features, or its end.
    Feature,
    /// End of a Namespace Management or Namespace Attachment command.
    Management,
    /// Action of a reservation command, or its end.
    Reservation,
}

impl Steps {
    /// Returns whether each step makes the target move bytes, and may be followed by another step at once.
    fn move_bytes(self) -> bool {
        matches!(self, Self::Compare | Self::Ranges | Self::Verify | Self::Copy)
    }

    #[inline]
    fn of(origin: Origin) -> Self {
        match (origin.sq, origin.opcode) {
            (Origin::INTERNAL_SQ, opcode::admin::DEVICE_SELF_TEST) => Self::SelfTest,
            (Origin::INTERNAL_SQ, opcode::admin::FORMAT_NVM) => Self::Erase,
            (Origin::INTERNAL_SQ, _) => Self::Internal,
            (0, opcode::admin::SET_FEATURES) => Self::Feature,
            (0, opcode::admin::NAMESPACE_MANAGEMENT | opcode::admin::NAMESPACE_ATTACHMENT) => {
                Self::Management
            }
            (0, _) if origin.carried => Self::WriteBack,
            (0, _) => Self::One,
            (_, opcode::io::FLUSH) => Self::Flush,
            (_, opcode::io::COMPARE) => Self::Compare,
            (_, opcode::io::DATASET_MANAGEMENT) => Self::Ranges,
            (_, opcode::io::VERIFY) if !origin.raw => Self::Verify,
            (_, opcode::io::COPY) => Self::Copy,
            (_, opcode::io::WRITE_UNCORRECTABLE) if !origin.raw => Self::Uncorrectable,
            (_, FUSED) if !origin.raw => Self::Fused,
            (
                _,
                opcode::io::RESERVATION_REGISTER
                | opcode::io::RESERVATION_REPORT
                | opcode::io::RESERVATION_ACQUIRE
                | opcode::io::RESERVATION_RELEASE,
            ) => Self::Reservation,
            _ if origin.carried => Self::WriteBack,
            _ => Self::One,
        }
    }
}

/// Fails a command that was not started.
#[cold]
pub(crate) fn refuse(
    controller: &mut Controller,
    subsystem: &mut Subsystem,
    command: Command,
    status: Status,
) {
    subsystem.slab_mut().slot_mut(&command).status = status;
    controller.finish(subsystem, command, status, 0);
}
