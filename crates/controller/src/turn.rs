//! One turn: new entries in, finished commands out.

use crate::controller::Controller;
use crate::courier;
use crate::events::Event;
use crate::io::Intake;
use crate::outpost::Cause;
use crate::queue::{HeadError, Service};
use crate::registers::Life;
use crate::reset::INTERNAL;
use crate::subsystem::Subsystem;
use crate::{
    BATCH_MAX, FETCH_MAX, admin, compare, copy, dataset, erase, fused, reservation, self_test, uncorrectable,
    verify,
};
use sluice_command::{Command, Origin};
use sluice_memory::Space;
use sluice_nvme::{CompletionEntry, Status, SubmissionEntry, opcode};
use zerocopy::transmute;

/// Queues that are prepared for a turn, the admin queue among them: more would not be in the cache any
/// more when they are looked at.
const QUEUES_AHEAD: usize = 5;

/// Entries of each of them. The others of a batch are fetched together while the first are taken.
const ENTRIES_AHEAD: u32 = 2;

impl Controller {
    /// Looks at every queue once: takes new entries, runs them as far as they go, writes the
    /// completions of whatever finished. Returns how many commands were taken or completed.
    pub fn turn(&mut self, subsystem: &mut Subsystem, space: &Space, now_ns: u64) -> usize {
        if self.registers.life == Life::Draining || self.registers.is_shutting_down() {
            self.advance_life(subsystem, space, now_ns);
        }
        self.interrupts.begin_turn(now_ns);
        if subsystem.is_held() {
            // What it may be saying is not heard now.
            self.features.heard_from_host(now_ns);
        }
        let mut work = subsystem.look(self.number, space, now_ns);
        if subsystem.trays.is_full(self.number) {
            self.empty_tray(subsystem, now_ns);
        }
        if now_ns >= self.next_deadline_ns {
            self.expire(subsystem, now_ns);
        }
        if self.courier.is_some() {
            work += courier::advance(self, subsystem, space, now_ns);
        }
        if subsystem.fused.is_busy() {
            work += fused::advance(self, subsystem, space, now_ns);
        }
        let unsettled = subsystem.has_unsettled();
        if unsettled {
            subsystem.begin_moving();
            work += self.settle(subsystem, now_ns);
        }
        if self.registers.is_ready() && !self.registers.is_fatal() {
            if !subsystem.is_held() {
                work += self.look_at_queues(subsystem, space, now_ns);
            }
            if self.events.is_deliverable() {
                self.deliver_events(subsystem);
            }
        }
        if subsystem.look_at_orders(now_ns) {
            work += self.settle(subsystem, now_ns);
        }
        if self.courier.is_some() {
            self.send_completions();
        }
        // What ran may have set timers.
        if unsettled || work > 0 {
            if work > 0 && self.is_fabrics() {
                // Identify's CTRATT.TBKAS: any command says that the host is alive.
                self.features.heard_from_host(now_ns);
            }
            self.next_deadline_ns = self.deadline_ns(subsystem).unwrap_or(u64::MAX);
            subsystem.note_deadline();
        }
        work
    }

    /// Asks the cache for what the next turn looks at first: the doorbells, and the entries that they
    /// may be about. Another core wrote them.
    pub fn look_ahead(&self) {
        for &id in self.active.iter().take(QUEUES_AHEAD) {
            if let Some(sq) = &self.sqs[usize::from(id)] {
                self.doorbells.prefetch(id);
                sq.prefetch(0, ENTRIES_AHEAD.min(sq.size));
            }
        }
    }

    /// Looks at the queues in the order that the host chose. One loop for both orders, so that there is one
    /// copy of what it does with a queue.
    #[inline]
    fn look_at_queues(&mut self, subsystem: &mut Subsystem, space: &Space, now_ns: u64) -> usize {
        let by_priority = self.registers.is_weighted();
        if by_priority {
            self.priorities.begin(&self.features);
        }
        let (mut work, mut taken) = (0, 0);
        subsystem.begin_moving();
        let count = self.active.len();
        let mut index = if self.rotation + 1 < count { self.rotation + 1 } else { 0 };
        self.rotation = index;
        let mut left = count;
        loop {
            let (id, most) = if by_priority {
                let Some(next) = self.next_by_priority(taken as u32) else { break };
                next
            } else if left > 0
                && let Some(&id) = self.active.get(index)
            {
                left -= 1;
                (id, FETCH_MAX)
            } else {
                // A command may have deleted queues since the loop began.
                break;
            };
            taken = self.fetch(subsystem, id, most, space, now_ns);
            if taken > 0 {
                if id != 0 {
                    subsystem.health.busy(now_ns);
                }
                work += taken + self.settle(subsystem, now_ns);
                if subsystem.has_moved_enough() {
                    // The next turn begins with the queue after this one.
                    self.rotation = index;
                    break;
                }
            }
            index = if index + 1 < count { index + 1 } else { 0 };
        }
        work
    }

    /// Takes what one submission queue has, this many at most, as far as its completion queue and the slab
    /// have room, and until the drive has moved enough for a turn.
    #[inline]
    fn fetch(&mut self, subsystem: &mut Subsystem, id: u16, most: u32, space: &Space, now_ns: u64) -> usize {
        let mut count = self.claim(subsystem, id, most);
        if count == 0 {
            return 0;
        }
        match id {
            0 => count = self.take_admin(subsystem, count, space, now_ns),
            _ => count -= self.take_batches(subsystem, id, count, space, now_ns),
        }
        self.announce(id);
        count as usize
    }

    /// Takes I/O commands a batch at a time, and finishes what it can of one before the next: the host
    /// works on the completions of the first while the second is taken. Returns how many are left when the drive has
    /// moved enough.
    #[inline]
    fn take_batches(
        &mut self,
        subsystem: &mut Subsystem,
        id: u16,
        count: u32,
        space: &Space,
        now_ns: u64,
    ) -> u32 {
        let mut left = count;
        loop {
            let batch = left.min(BATCH_MAX);
            left -= batch;
            let further = left.min(BATCH_MAX);
            if self.apart.is_so() {
                let kept = batch - self.take_apart(subsystem, id, batch, further, space, now_ns);
                if kept > 0 {
                    self.give_back(id, left + kept);
                    return left + kept;
                }
            } else {
                self.take_io::<false>(subsystem, id, batch, further, space, now_ns);
            }
            if left == 0 {
                return 0;
            }
            self.settle(subsystem, now_ns);
            if subsystem.has_moved_enough() {
                self.give_back(id, left);
                return left;
            }
        }
    }

    /// Reserves completion slots for the entries that wait in a submission queue, for `most` of them at most;
    /// returns for how many.
    #[inline]
    fn claim(&mut self, subsystem: &mut Subsystem, id: u16, most: u32) -> u32 {
        let Some(sq) = &mut self.sqs[usize::from(id)] else { return 0 };
        let tail = self.doorbells.sq_tail(id);
        if tail == sq.head || sq.service != Service::On || sq.deleting {
            return 0;
        }
        if tail >= sq.size {
            sq.service = Service::Over;
            self.doorbell_error(id, Event::INVALID_DOORBELL_VALUE);
            return 0;
        }
        let Some(cq) = &mut self.cqs[usize::from(sq.cq)] else { return 0 };
        if cq.service != Service::On {
            return 0;
        }
        let wanted = sq.waiting(tail).min(most);
        let count = wanted.min(cq.room(wanted, &self.doorbells)).min(subsystem.room(self.number));
        cq.reserve(count);
        sq.in_flight += count;
        let batch = count.min(BATCH_MAX);
        sq.prefetch(0, batch);
        cq.prefetch(0, batch);
        if cq.head_error == HeadError::Seen {
            let id = cq.id;
            self.report_head(id);
        }
        count
    }

    /// Undoes a claim on entries that stay where they are for now.
    #[cold]
    fn give_back(&mut self, id: u16, count: u32) {
        let Some(sq) = &mut self.sqs[usize::from(id)] else { return };
        sq.in_flight -= count;
        if let Some(cq) = &mut self.cqs[usize::from(sq.cq)] {
            cq.give_back(count);
        }
    }

    /// Takes those of `count` commands that come before one for which all queues have to be in one place.
    #[inline(never)]
    fn take_apart(
        &mut self,
        subsystem: &mut Subsystem,
        id: u16,
        count: u32,
        further: u32,
        space: &Space,
        now_ns: u64,
    ) -> u32 {
        self.take_io::<true>(subsystem, id, count, further, space, now_ns)
    }

    /// Takes `count` commands, and asks the cache for the `further` that come after them: their lines
    /// travel while these are worked on, not more at once than the cache can wait for. Returns how many it took, which is
    /// all of them unless the controller is `APART`.
    #[inline]
    fn take_io<const APART: bool>(
        &mut self,
        subsystem: &mut Subsystem,
        id: u16,
        count: u32,
        further: u32,
        space: &Space,
        now_ns: u64,
    ) -> u32 {
        let Self { sqs, cqs, features, courier, apart, .. } = self;
        let Some(sq) = &mut sqs[usize::from(id)] else { return 0 };
        if further > 0
            && let Some(cq) = &cqs[usize::from(sq.cq)]
        {
            cq.prefetch(count, further);
        }
        let mut intake = Intake { subsystem, space, features, courier, now_ns };
        for taken in 0..count {
            if taken < further {
                sq.prefetch(count, 1);
            }
            let words = sq.take();
            let entry: SubmissionEntry = transmute!(words);
            if APART && apart.keeps(&entry) {
                sq.put_back();
                return taken;
            }
            let command = intake.subsystem.slab.admit_words(words, sq.origin(&entry));
            let command = command.expect("room was counted");
            if entry.fuse() != 0 {
                fused::collect(intake.subsystem, sq, command, &entry);
                continue;
            }
            intake.begin(command, &entry);
        }
        count
    }

    /// Not part of the loop that polls: what it keeps on the stack, that would have to make room for. Returns how many
    /// commands it took: one for which groups have to come home stays in the queue until they are here.
    #[inline(never)]
    fn take_admin(&mut self, subsystem: &mut Subsystem, count: u32, space: &Space, now_ns: u64) -> u32 {
        for taken in 0..count {
            let Some(sq) = &mut self.sqs[0] else { return taken };
            let entry: SubmissionEntry = transmute!(sq.take());
            if self.apart.keeps_admin(subsystem, &entry) {
                sq.put_back();
                self.give_back(0, count - taken);
                return taken;
            }
            let origin = sq.origin(&entry);
            let command = subsystem.slab.admit(&entry, origin).expect("room was counted");
            admin::begin(self, subsystem, command, &entry, space, now_ns);
        }
        count
    }

    /// The host rang a head that cannot be. It is told once; until it rings a better one, no slot of
    /// the completion queue becomes free.
    #[cold]
    fn report_head(&mut self, cq: u16) {
        if let Some(queue) = &mut self.cqs[usize::from(cq)] {
            queue.head_error = HeadError::Reported;
        }
        self.doorbell_error(cq, Event::INVALID_DOORBELL_VALUE);
    }

    /// Notes the new head, and moves the event index along now and then: each store to it takes the
    /// line away from the host.
    #[inline]
    fn announce(&mut self, id: u16) {
        let Some(sq) = &mut self.sqs[usize::from(id)] else { return };
        self.handover.get_mut().sqs[usize::from(id)].index = sq.head;
        let moved =
            if sq.head >= sq.announced { sq.head - sq.announced } else { sq.head + sq.size - sq.announced };
        if moved > sq.size / 4 {
            sq.announced = sq.head;
            self.doorbells.put_event_index_behind(id, sq.head);
        }
    }

    /// Completes what finished, until nothing moves any more.
    #[inline]
    pub(crate) fn settle(&mut self, subsystem: &mut Subsystem, now_ns: u64) -> usize {
        let mut work = 0;
        while subsystem.has_unsettled() {
            subsystem.settle(now_ns);
            work += subsystem.done.len();
            // What the next steps of these push goes to the other list.
            let mut finishing = std::mem::take(&mut subsystem.finishing);
            std::mem::swap(&mut subsystem.done, &mut finishing);
            subsystem.deal_out(self.number, &mut finishing);
            // The host waits for these, and for nothing of what follows.
            let all_last =
                finishing.iter().fold(true, |all, command| self.post_last(subsystem, command) & all);
            match all_last {
                true => finishing.drain(..).for_each(|command| self.account(subsystem, command)),
                false => finishing.drain(..).for_each(|command| self.complete(subsystem, command, now_ns)),
            }
            subsystem.finishing = finishing;
            self.note_posted();
        }
        work
    }

    /// Writes the completion entry of a command that is back from its router; false if that was not its
    /// last step.
    ///
    /// All of a batch one after the other: the host's core takes a line of the completion queue away as
    /// soon as it sees an entry in it, and whatever is stored after an entry waits for its line.
    #[inline]
    fn post_last(&mut self, subsystem: &mut Subsystem, command: &Command) -> bool {
        let slot = subsystem.slab.slot(command);
        let (origin, status) = (slot.origin, slot.status);
        let last = Steps::of(origin) == Steps::One;
        if last {
            self.post(subsystem, origin, status, 0);
        }
        last
    }

    /// What is left to do for a command that is back from its router: the next step of those that have
    /// several; the completion entry of all others is written.
    fn complete(&mut self, subsystem: &mut Subsystem, command: Command, now_ns: u64) {
        let slot = subsystem.slab.slot(&command);
        let steps = Steps::of(slot.origin);
        if steps.move_bytes() {
            if subsystem.has_moved_enough() {
                // Its next steps are for the turns that follow: one command may have hundreds.
                return subsystem.trays.put(self.number, command);
            }
            subsystem.health.step(&slot.request);
        }
        match steps {
            Steps::One => self.account(subsystem, command),
            Steps::Carry => {
                let status = subsystem.slab.slot(&command).status;
                courier::carry_out(self, subsystem, command, status, 0);
            }
            Steps::Ours => self.finish_for_ourselves(subsystem, command),
            Steps::SelfTest => self_test::next(self, subsystem, command, now_ns),
            Steps::Erase => erase::next(subsystem, command, now_ns),
            Steps::Compare => compare::next(self, subsystem, command, now_ns),
            Steps::Ranges => dataset::next(self, subsystem, command, now_ns),
            Steps::Verify => verify::next(self, subsystem, command, now_ns),
            Steps::Copy => copy::next(self, subsystem, command, now_ns),
            Steps::Marks => uncorrectable::next(self, subsystem, command, now_ns),
            Steps::Fused => fused::next(self, subsystem, command, now_ns),
            Steps::Management => {
                let slot = subsystem.slab.slot(&command);
                let (status, dw0) = (slot.status, slot.request.offset as u32);
                self.finish(subsystem, command, status, dw0);
            }
            Steps::Feature => admin::features::next(self, subsystem, command, now_ns),
            Steps::Reservation => reservation::command::next(self, subsystem, command, now_ns),
        }
    }

    /// A flush that no host asked for is done. There is no completion entry to say that it failed.
    #[cold]
    fn finish_for_ourselves(&mut self, subsystem: &mut Subsystem, command: Command) {
        let status = subsystem.slab.slot(&command).status;
        if !status.is_success() {
            let nsid = subsystem.slab.entry(&command).nsid;
            tracing::error!(nsid, ?status, "the flush of a shutdown failed: finished writes may be lost");
        }
        subsystem.slab.release(command);
    }

    /// Writes the completion entry of a command and frees its slot.
    pub(crate) fn finish(&mut self, subsystem: &mut Subsystem, command: Command, status: Status, dw0: u32) {
        let slot = subsystem.slab.slot_mut(&command);
        slot.status = status;
        let origin = slot.origin;
        if origin.carried {
            return courier::carry_out(self, subsystem, command, status, dw0);
        }
        self.post(subsystem, origin, status, dw0);
        self.account(subsystem, command);
        self.note_posted();
    }

    /// Counts a command whose completion entry is written, and frees its slot.
    #[inline(always)]
    fn account(&mut self, subsystem: &mut Subsystem, command: Command) {
        let slot = subsystem.slab.slot(&command);
        if !slot.status.is_success() {
            // It may be memory that only the client reaches, which home can ask for when the host tries again.
            if slot.status.same_code(Status::DATA_TRANSFER_ERROR) {
                self.apart.call(Cause::Buffer);
            }
            self.errors.command(subsystem.slab.entry(&command), &slot.origin, slot.status);
        }
        if slot.origin.sq != 0 {
            subsystem.health.completed(&slot.request, slot.status);
        }
        subsystem.slab.release(command);
    }

    /// Writes a completion entry for a command that came from `origin`, if its queue still lives.
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
            admin::queues::finish_deletion(self, subsystem, origin.sq);
        }
    }

    /// Writes a completion entry to a queue, whose slot is promised.
    #[inline(always)]
    pub(crate) fn post_to(&mut self, id: u16, entry: CompletionEntry) {
        let Some(cq) = &mut self.cqs[usize::from(id)] else { return };
        match cq.service {
            Service::On => {}
            Service::Away => return self.absence.keep(id, entry),
            Service::Over => return cq.unreserve(1),
        }
        cq.post(entry);
        if let Some(vector) = cq.vector {
            self.interrupts.insert(vector);
        }
        if self.posted != id {
            let before = std::mem::replace(&mut self.posted, id);
            self.note_tail(before);
        }
    }

    /// Notes the tail of the completion queue that was posted to last.
    #[inline]
    pub(crate) fn note_posted(&mut self) {
        self.note_tail(self.posted);
    }

    fn note_tail(&mut self, cq: u16) {
        if let Some(queue) = &self.cqs[usize::from(cq)] {
            self.handover.get_mut().cqs[usize::from(cq)].index = queue.position();
        }
    }

    /// Completes Asynchronous Event Requests that have an event to report. They gave their completion
    /// slot back while they waited, so one is needed now.
    #[cold]
    fn deliver_events(&mut self, subsystem: &mut Subsystem) {
        while self.events.is_deliverable() {
            let Some(cq) = &mut self.cqs[0] else { return };
            if cq.room(1, &self.doorbells) == 0 {
                return;
            }
            let Some((command, dw0)) = self.events.next() else { return };
            cq.reserve(1);
            if let Some(sq) = &mut self.sqs[0] {
                sq.in_flight += 1;
            }
            self.finish(subsystem, command, Status::SUCCESS, dw0);
        }
    }

    /// Timers of layers and of the keep-alive feature.
    #[cold]
    fn expire(&mut self, subsystem: &mut Subsystem, now_ns: u64) {
        if !subsystem.is_held() {
            self_test::advance(self, subsystem, now_ns);
        }
        self.interrupts.expire(now_ns);
        self.look_for_absent(now_ns);
        self.next_deadline_ns = self.deadline_ns(subsystem).unwrap_or(u64::MAX);
        if self.features.keep_alive_expired(now_ns) {
            tracing::warn!("the host's keep-alive timer expired");
            self.errors.keep_alive();
            self.registers.set_fatal();
        }
    }
}

/// What follows when a command is back from its router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Steps {
    /// Its completion entry.
    One,
    /// Its data goes to its client, then its completion entry.
    Carry,
    /// Nothing: no host sent it.
    Ours,
    /// The next piece of a Device Self-test.
    SelfTest,
    /// The next piece of a Format NVM.
    Erase,
    /// The next piece of a Compare.
    Compare,
    /// The next range of a Dataset Management.
    Ranges,
    /// The next piece of a Verify.
    Verify,
    /// The next piece of a Copy.
    Copy,
    /// The change of the blocks that cannot be read.
    Marks,
    /// The Write after a Compare, or the end of a claim.
    Fused,
    /// The next flush of a Set Features, or its end.
    Feature,
    /// The end of a command that manages namespaces.
    Management,
    /// What a reservation command asks for, or its end.
    Reservation,
}

impl Steps {
    /// Each step has the target move bytes, and may be followed by another at once.
    fn move_bytes(self) -> bool {
        matches!(self, Self::Compare | Self::Ranges | Self::Verify | Self::Copy)
    }

    #[inline]
    fn of(origin: Origin) -> Self {
        match (origin.sq, origin.opcode) {
            (INTERNAL, opcode::admin::DEVICE_SELF_TEST) => Self::SelfTest,
            (INTERNAL, opcode::admin::FORMAT_NVM) => Self::Erase,
            (INTERNAL, _) => Self::Ours,
            (0, opcode::admin::SET_FEATURES) => Self::Feature,
            (0, opcode::admin::NAMESPACE_MANAGEMENT | opcode::admin::NAMESPACE_ATTACHMENT) => {
                Self::Management
            }
            (0, _) if origin.carried => Self::Carry,
            (0, _) => Self::One,
            (_, opcode::io::COMPARE) => Self::Compare,
            (_, opcode::io::DATASET_MANAGEMENT) => Self::Ranges,
            (_, opcode::io::VERIFY) if !origin.raw => Self::Verify,
            (_, opcode::io::COPY) => Self::Copy,
            (_, opcode::io::WRITE_UNCORRECTABLE) if !origin.raw => Self::Marks,
            (_, fused::FUSED) if !origin.raw => Self::Fused,
            (
                _,
                opcode::io::RESERVATION_REGISTER
                | opcode::io::RESERVATION_REPORT
                | opcode::io::RESERVATION_ACQUIRE
                | opcode::io::RESERVATION_RELEASE,
            ) => Self::Reservation,
            _ if origin.carried => Self::Carry,
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
    subsystem.slab.slot_mut(&command).status = status;
    controller.finish(subsystem, command, status, 0);
}

/// The entry's fused bits and reserved data pointer form, which no command here may have.
#[inline]
pub(crate) fn check_flags(entry: &SubmissionEntry) -> Result<(), Status> {
    // FUSE in bits 1:0, PSDT = 11b in bits 7:6; bits 5:2 are reserved and ignored.
    if entry.fuse() != 0 || entry.flags >> 6 == 3 {
        return Err(Status::INVALID_FIELD);
    }
    Ok(())
}
