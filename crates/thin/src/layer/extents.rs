//! Extents on their way into the volume, and out of it.

use super::barrier::Step;
use super::{IDLE_NS, Thin};
use crate::layout::EXTENT;
use crate::note;
use sluice_command::{Lane, Ticket};
use sluice_nvme::Status;
use std::collections::VecDeque;

/// Note for the home, which acknowledges notes in order.
#[derive(Clone, Copy, Debug)]
pub(super) enum Note {
    /// Change of the map that the home makes durable.
    Map {
        extent: u32,
        /// Extent of the pool; none if the volume has none any more.
        place: Option<u32>,
        /// Deallocation that the note belongs to.
        of: Option<Ticket>,
    },
    /// No command changes the volume until the acknowledgement.
    Barrier,
    /// An extent of the pool that the device does not write, and one that it perhaps does not write.
    Bad(u32),
    Suspect(u32),
}

impl Note {
    pub(super) fn word(self) -> u64 {
        match self {
            Self::Map { extent, place, .. } => note::Word::Map(extent, place),
            Self::Barrier => note::Word::Barrier,
            Self::Bad(place) => note::Word::Bad(place),
            Self::Suspect(place) => note::Word::Suspect(place),
        }
        .encode()
    }
}

/// Deallocation in progress.
#[derive(Debug)]
pub(super) struct Release {
    pub(super) ticket: Ticket,
    /// Remaining extents.
    pub(super) next: u32,
    pub(super) end: u32,
    /// Notes that are not acknowledged.
    pub(super) left: u32,
    /// Extents that were busy when their turn came.
    pub(super) busy: VecDeque<u32>,
    /// Whether the first busy extent is unchanged since the last look.
    pub(super) is_stuck: bool,
    /// Status at the end if an extent is busy, since the command was aborted. None while it waits for busy extents.
    pub(super) gives_up: Option<Status>,
    /// Status at the end.
    pub(super) status: Status,
}

impl Release {
    /// Returns whether there is something to do without an answer of the home.
    pub(super) fn can_go_on(&self) -> bool {
        self.next < self.end || !self.busy.is_empty() && !self.is_stuck
    }

    pub(super) fn is_over(&self) -> bool {
        self.next == self.end && self.busy.is_empty() && self.left == 0
    }
}

impl Thin {
    /// Returns whether there is something to do without an answer of the home.
    pub(super) fn has_work(&self) -> bool {
        !self.outbox.is_empty() && !self.barrier.is_on()
            || !self.leaving.is_empty()
            || self.releases.iter().any(Release::can_go_on)
            || self.is_quiet()
    }

    pub(super) fn offset(&self, place: u32) -> u64 {
        self.parts.data_at + u64::from(place) * EXTENT
    }

    /// Continues all that can continue.
    pub(super) fn pump(&mut self, lane: &mut Lane<'_>) {
        if self.waiting.is_empty() && self.growing.wants() {
            self.drop_wanted();
        }
        self.start_growing(lane);
        self.begin_flush(lane);
        self.begin_drain();
        self.answer_call();
        self.send();
        let allocates = std::mem::take(&mut self.allocates);
        if allocates {
            self.port.refill();
        }
        if self.port.finish() || allocates {
            self.idle_ns = Some(lane.now_ns() + IDLE_NS);
        }
    }

    /// Ends the epoch for notes that take an extent away, and sends them when all earlier commands have ended.
    fn begin_drain(&mut self) {
        loop {
            if !self.draining.is_empty() {
                if self.in_flight[1 - self.epoch] > 0 {
                    return;
                }
                self.outbox.extend(self.draining.drain(..));
            }
            if self.drain.is_empty() || self.in_flight[1 - self.epoch] > 0 {
                return;
            }
            std::mem::swap(&mut self.drain, &mut self.draining);
            self.epoch = 1 - self.epoch;
        }
    }

    /// Sends notes, and extents that were not used, as far as the ring has room.
    fn send(&mut self) {
        // The clone has the state of before the barrier.
        while !self.barrier.is_on()
            && let Some(note) = self.outbox.front()
            && self.port.note(note.word()).is_ok()
        {
            self.sent.extend(self.outbox.pop_front());
        }
        while let Some(place) = self.leaving.pop() {
            if self.port.give_back(place.into()).is_err() {
                return self.leaving.push(place);
            }
        }
    }

    /// Applies the changes that are durable. Returns their number.
    pub(super) fn take_acknowledgements(&mut self, lane: &mut Lane<'_>) -> usize {
        let mut count = 0;
        while self.acknowledged < self.port.noted() {
            self.acknowledged += 1;
            count += 1;
            let (extent, place, of) = match self.sent.pop_front() {
                Some(Note::Map { extent, place, of }) => (extent, place, of),
                Some(Note::Barrier) => {
                    self.end_barrier(lane);
                    continue;
                }
                _ => continue,
            };
            self.map.set(extent, place.map_or(0, |place| place + 1));
            for release in self.releases.iter_mut().filter(|release| Some(release.ticket) == of) {
                release.left -= 1;
            }
        }
        if count > 0 {
            self.extents_changed();
            self.run_waiting(lane);
        }
        count
    }

    /// Lets deallocations look at their busy extents again.
    pub(super) fn extents_changed(&mut self) {
        self.releases.iter_mut().for_each(|release| release.is_stuck = false);
    }

    /// Ends everything that needs a change of the map: no change is made durable any more.
    #[cold]
    pub(super) fn break_off(&mut self, lane: &mut Lane<'_>) {
        self.is_broken = true;
        (self.retry_ns, self.idle_ns) = (None, None);
        self.growing.give_up();
        self.barrier.step = Step::Off;
        self.outbox.clear();
        // These have no acknowledgement.
        self.sent.clear();
        self.drain.clear();
        self.draining.clear();
        self.end_parked(|_, _| true, Status::WRITE_FAULT, lane);
        for release in std::mem::take(&mut self.releases) {
            if let Some(command) = lane.unpark(release.ticket) {
                lane.finish(command, Status::WRITE_FAULT);
            }
        }
    }
}
