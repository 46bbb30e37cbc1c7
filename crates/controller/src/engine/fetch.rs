//! Fetching: takes new entries out of the submission queues, as far as there is room for their commands.

use crate::engine::intake::Intake;
use crate::engine::{admin, fused};
use crate::model::{Controller, Subsystem};
use crate::state::events::Event;
use crate::state::latency::Latency;
use crate::state::limits::BATCH_MAX;
use crate::state::queue::{HeadError, Service};
use crate::state::sampling::Chosen;
use sluice_command::Origin;
use sluice_memory::Space;
use sluice_nvme::SubmissionEntry;
use zerocopy::transmute;

impl Controller {
    /// Takes at most `most` entries of a submission queue, as far as its completion queue and the slab have
    /// room. Stops when the drive has moved enough for a turn.
    #[inline]
    pub(crate) fn fetch(
        &mut self,
        subsystem: &mut Subsystem,
        id: u16,
        most: u32,
        space: &Space,
        now_ns: u64,
    ) -> usize {
        let mut count = self.claim(subsystem, id, most);
        if count == 0 {
            return 0;
        }
        subsystem.health_mut().count_taken(count);
        if self.is_fabrics() {
            // Any command restarts the timer (Identify's CTRATT.TBKAS).
            self.features.note_activity(now_ns);
        }
        match id {
            0 => count = self.take_admin(subsystem, count, space, now_ns),
            _ => count -= self.take_batches(subsystem, id, count, space, now_ns),
        }
        self.publish_head(id);
        count as usize
    }

    /// Takes I/O commands a batch at a time, and completes finished ones before the next batch: the host
    /// works on the first completions while the second batch is taken. Returns the number that is left when
    /// the drive has moved enough.
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
            if self.remote_groups.is_split() {
                let kept = batch - self.take_until_recall(subsystem, id, batch, further, space, now_ns);
                if kept > 0 {
                    self.give_back(id, left + kept);
                    return left + kept;
                }
            } else {
                self.take_timed(subsystem, id, batch, further, space, now_ns);
            }
            if left == 0 {
                return 0;
            }
            // Before any of their completions: a successor of this process repeats entries behind the head.
            self.note_head(id);
            self.run_completions(subsystem, now_ns);
            if subsystem.has_moved_enough() {
                self.give_back(id, left);
                return left;
            }
        }
    }

    /// Reserves completion slots for at most `most` waiting entries of a submission queue. Returns the number
    /// of slots.
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
        if !cq.service.takes() {
            return 0;
        }
        let wanted = sq.waiting(tail).min(most);
        let count = wanted.min(cq.room(wanted, &self.doorbells)).min(subsystem.room(sq.controller));
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

    /// Undoes a claim on entries that stay in their queue for now.
    #[cold]
    fn give_back(&mut self, id: u16, count: u32) {
        let Some(sq) = &mut self.sqs[usize::from(id)] else { return };
        sq.in_flight -= count;
        if let Some(cq) = &mut self.cqs[usize::from(sq.cq)] {
            cq.give_back(count);
        }
    }

    /// Takes `count` commands, and stamps some if latency is measured.
    #[inline]
    fn take_timed(
        &mut self,
        subsystem: &mut Subsystem,
        id: u16,
        count: u32,
        further: u32,
        space: &Space,
        now_ns: u64,
    ) {
        let chosen = match subsystem.measurement_is_due(count, now_ns) {
            false => 0,
            true => self.take_chosen(subsystem, id, count, space, now_ns),
        };
        self.take_io::<false>(subsystem, id, count - chosen, further, space, now_ns, Chosen::default());
    }

    /// Takes the commands of a batch of `count` up to the last one that is measured. Returns their number.
    #[cold]
    #[inline(never)]
    fn take_chosen(
        &mut self,
        subsystem: &mut Subsystem,
        id: u16,
        count: u32,
        space: &Space,
        now_ns: u64,
    ) -> u32 {
        let chosen = subsystem.choose(count, now_ns);
        let Self { sqs, features, client_dma, .. } = self;
        let Some(sq) = &mut sqs[usize::from(id)] else { return 0 };
        let mut intake = Intake { subsystem, space, features, client_dma, now_ns };
        for index in 0..chosen.end() {
            let words = sq.take();
            let entry: SubmissionEntry = transmute!(words);
            let (slab, stamp) = (intake.subsystem.slab_mut(), chosen.stamp(index, entry.opcode));
            let origin = Origin { timed: stamp.is_some(), ..sq.origin(&entry) };
            let command = slab.admit_stamped(words, origin, stamp.unwrap_or_default());
            let command = command.expect("room was counted");
            let is_traced = chosen.traces(index) && slab.begin_trace(&command);
            if chosen.traces(index)
                && !is_traced
                && let Some(tracer) = intake.subsystem.latency().and_then(Latency::tracer)
            {
                tracer.miss();
            }
            match entry.fuse() {
                0 if is_traced => intake.begin_traced(command, &entry),
                0 => intake.begin(command, &entry),
                _ => fused::collect(intake.subsystem, sq, command, &entry),
            }
        }
        chosen.end()
    }

    /// Takes the commands, of `count`, before the first one that requires a recall of the remote groups.
    #[inline(never)]
    fn take_until_recall(
        &mut self,
        subsystem: &mut Subsystem,
        id: u16,
        count: u32,
        further: u32,
        space: &Space,
        now_ns: u64,
    ) -> u32 {
        let looks = subsystem.latency().map(Latency::looks);
        let chosen = match subsystem.measurement_is_due(count, now_ns) {
            false => None,
            true => subsystem.latency_mut().map(|latency| latency.choose_timed(count, now_ns)),
        };
        let chosen = chosen.unwrap_or_default();
        let taken = self.take_io::<true>(subsystem, id, count, further, space, now_ns, chosen);
        if taken < count
            && let (Some(latency), Some(looks)) = (subsystem.latency_mut(), looks)
        {
            // The others are fetched again, and counted then.
            latency.recount(looks, taken, now_ns);
        }
        taken
    }

    /// Takes `count` commands, and prefetches the `further` entries behind them. Their lines are on the way
    /// while these commands are worked on, never more at once than the cache can wait for. Returns the number
    /// of commands taken: all of them unless the queues are split (`REMOTE`). Only in this case some are measured, as `chosen`.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "inlined; a structure of them costs instructions")]
    fn take_io<const REMOTE: bool>(
        &mut self,
        subsystem: &mut Subsystem,
        id: u16,
        count: u32,
        further: u32,
        space: &Space,
        now_ns: u64,
        chosen: Chosen,
    ) -> u32 {
        let Self { sqs, cqs, features, client_dma, remote_groups, .. } = self;
        let Some(sq) = &mut sqs[usize::from(id)] else { return 0 };
        if further > 0
            && let Some(cq) = &cqs[usize::from(sq.cq)]
        {
            cq.prefetch(count, further);
        }
        let mut intake = Intake { subsystem, space, features, client_dma, now_ns };
        for taken in 0..count {
            if taken < further {
                sq.prefetch(count, 1);
            }
            let words = sq.take();
            let entry: SubmissionEntry = transmute!(words);
            if REMOTE && remote_groups.defers(&entry) {
                sq.put_back();
                return taken;
            }
            let (slab, origin) = (intake.subsystem.slab_mut(), sq.origin(&entry));
            let command = match if REMOTE { chosen.stamp(taken, entry.opcode) } else { None } {
                None => slab.admit_words(words, origin),
                Some(stamp) => slab.admit_stamped(words, Origin { timed: true, ..origin }, stamp),
            };
            let command = command.expect("room was counted");
            if entry.fuse() != 0 {
                fused::collect(intake.subsystem, sq, command, &entry);
                continue;
            }
            intake.begin(command, &entry);
        }
        count
    }

    /// Takes admin commands and returns their number. A command that requires a recall stays in the queue
    /// until all groups are here. Not inlined, so that the polling loop does not pay for its stack frame.
    #[inline(never)]
    fn take_admin(&mut self, subsystem: &mut Subsystem, count: u32, space: &Space, now_ns: u64) -> u32 {
        for taken in 0..count {
            let Some(sq) = &mut self.sqs[0] else { return taken };
            let entry: SubmissionEntry = transmute!(sq.take());
            if self.remote_groups.defers_admin(&mut subsystem.health_mut().remote, &entry) {
                sq.put_back();
                self.give_back(0, count - taken);
                return taken;
            }
            let origin = sq.origin(&entry);
            let command = subsystem.slab_mut().admit(&entry, origin).expect("room was counted");
            admin::begin(self, subsystem, command, &entry, space, now_ns);
            if subsystem.has_moved_enough() {
                self.give_back(0, count - taken - 1);
                return taken + 1;
            }
        }
        count
    }

    /// Reports an invalid head to the host, once. No slot of the completion queue becomes free until the host
    /// writes a valid one.
    #[cold]
    fn report_head(&mut self, cq: u16) {
        if let Some(queue) = &mut self.cqs[usize::from(cq)] {
            queue.head_error = HeadError::Reported;
        }
        self.doorbell_error(cq, Event::INVALID_DOORBELL_VALUE);
    }
}
