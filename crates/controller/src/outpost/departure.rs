//! A queue group on its way to an outpost.

use super::apart::Absent;
use super::{Likeness, StaysHome, Tally};
use crate::doorbells::Doorbells;
use crate::features::Features;
use crate::health::{Busy, Health};
use crate::queue::{CompletionQueue, HeadError, Service, SubmissionQueue};
use crate::registers::Registers;
use crate::{Controller, DoorbellMode, Subsystem};
use sluice_memory::Space;
use std::io;
use std::sync::Arc;

/// A group from which nothing is taken any more, until its commands have ended.
#[derive(Debug)]
pub(super) struct Departing {
    cq: u16,
    sqs: Vec<u16>,
}

/// A queue group, with what it takes to serve it.
#[derive(Debug)]
pub struct Posting {
    pub(super) cq: CompletionQueue,
    pub(super) sqs: Vec<SubmissionQueue>,
    pub(super) doorbells: Doorbells,
    registers: Registers,
    features: Features,
    mode: DoorbellMode,
    busy: Busy,
    pub(super) tally: Arc<Tally>,
}

/// As home.
impl Controller {
    /// The queue group with this completion queue is to leave: nothing is taken from its queues until it
    /// [does](Self::depart) or [stays](Self::stay).
    ///
    /// # Errors
    /// Nothing has changed.
    pub fn begin_departure(&mut self, subsystem: &Subsystem, cq: u16) -> Result<(), StaysHome> {
        if self.apart.departing.is_some() {
            return Err(StaysHome("another queue is about to move"));
        }
        let sqs = self.may_leave(subsystem, cq)?;
        self.active.retain(|id| !sqs.contains(id));
        self.apart.departing = Some(Departing { cq, sqs });
        Ok(())
    }

    /// Completion queues of the host's that are served here.
    pub fn queues_here(&self) -> impl Iterator<Item = u16> {
        self.cqs.iter().skip(1).flatten().map(|cq| cq.id)
    }

    /// The completion queue of a submission queue, which names the group as well.
    pub fn group_of(&self, sq: u16) -> Option<u16> {
        Some(self.sqs.get(usize::from(sq))?.as_ref()?.cq)
    }

    /// The submission queues of a group that may leave.
    fn may_leave(&self, subsystem: &Subsystem, cq: u16) -> Result<Vec<u16>, StaysHome> {
        self.may_be_apart()?;
        subsystem.likeness()?;
        let found = self.cqs.get(usize::from(cq)).and_then(Option::as_ref).filter(|_| cq != 0);
        let queue = found.ok_or(StaysHome("the host has no such I/O queue here"))?;
        let sqs = || self.sqs.iter().flatten().filter(|sq| sq.cq == cq);
        let is_sound = queue.service == Service::On
            && !queue.deleting
            && queue.head_error == HeadError::None
            && sqs().all(|sq| sq.service == Service::On && !sq.deleting);
        if !is_sound || queue.users == 0 {
            return Err(StaysHome("the queue is being deleted, has no submission queue, or is not served"));
        }
        Ok(sqs().map(|sq| sq.id).collect())
    }

    /// None of its commands is in flight.
    pub fn departing_is_idle(&self, subsystem: &Subsystem) -> bool {
        let sqs = self.apart.departing.iter().flat_map(|departing| &departing.sqs);
        let mut sqs = sqs.filter_map(|id| self.sqs[usize::from(*id)].as_ref());
        sqs.all(|sq| sq.in_flight == 0) && !subsystem.has_unsettled()
    }

    /// The interrupt vector of the group that is about to leave, if it has one.
    pub fn departing_vector(&self) -> Option<u16> {
        let departing = self.apart.departing.as_ref()?;
        self.cqs[usize::from(departing.cq)].as_ref()?.vector
    }

    /// The group that is about to leave does, if none of its commands is in flight. `there` is what the outpost is like.
    ///
    /// # Errors
    /// It [stays](Self::stay), since something has changed.
    pub fn depart(
        &mut self,
        subsystem: &mut Subsystem,
        there: &Likeness,
        space: &Space,
    ) -> Result<Option<Posting>, StaysHome> {
        let Some(Departing { cq, sqs }) = &self.apart.departing else {
            return Err(StaysHome("the host has begun anew"));
        };
        let cq = *cq;
        if self.may_leave(subsystem, cq)? != *sqs || sqs.iter().any(|id| self.active.contains(id)) {
            return Err(StaysHome("the host has changed its queues"));
        }
        if subsystem.likeness()? != *there {
            return Err(StaysHome("the drive is not what it was"));
        }
        if !self.departing_is_idle(subsystem) {
            return Ok(None);
        }
        let doorbells =
            self.doorbells.share().map_err(|_| StaysHome("there is no memory for its doorbells"))?;
        let sqs = self.apart.departing.take().map(|departing| departing.sqs).unwrap_or_default();
        let sqs: Vec<_> = sqs.iter().filter_map(|id| self.sqs[usize::from(*id)].take()).collect();
        let Some(cq) = self.cqs[usize::from(cq)].take() else { return Ok(None) };
        // A successor must not take up what is served elsewhere.
        let handover = self.handover.get_mut();
        handover.cqs[usize::from(cq.id)].size = 0;
        sqs.iter().for_each(|sq| handover.sqs[usize::from(sq.id)].size = 0);
        self.apart.away.push(Absent {
            cq: (cq.id, cq.size),
            sqs: sqs.iter().map(|sq| (sq.id, sq.size)).collect(),
            generation: space.generation(),
            rung: false,
        });
        Ok(Some(Posting {
            cq,
            sqs,
            doorbells,
            registers: self.registers.clone(),
            features: self.features.without_keep_alive(),
            mode: self.mode,
            busy: subsystem.health.busy_time(),
            tally: subsystem.health.away.begin(),
        }))
    }

    /// The group that was about to leave stays.
    pub fn stay(&mut self) {
        let Some(Departing { sqs, .. }) = self.apart.departing.take() else { return };
        for id in sqs {
            // After a reset they are gone, or others.
            if self.sqs[usize::from(id)].is_some() && !self.active.contains(&id) {
                self.active.push(id);
            }
        }
    }
}

/// As an outpost.
impl Controller {
    /// A controller for groups of another, with its identifier, beside a subsystem of its own.
    ///
    /// # Errors
    /// There is no memory, or there are no descriptors.
    pub fn outpost(subsystem: &mut Subsystem, cntlid: u16) -> io::Result<Self> {
        let mut outpost = Self::new(subsystem, cntlid)?;
        outpost.apart.is_outpost = true;
        Ok(outpost)
    }

    /// Serves a group from the next turn on.
    pub fn take_in(&mut self, subsystem: &mut Subsystem, posting: Posting) {
        let Posting { cq, sqs, doorbells, registers, features, mode, busy, tally } = posting;
        (self.doorbells, self.registers, self.features, self.mode) = (doorbells, registers, features, mode);
        subsystem.health = Health::away_from_home(busy);
        self.apart.tally = Some(tally);
        subsystem.set_enabled(self.number, true);
        self.seat(cq, sqs);
    }

    /// [`turn`](Self::turn), as an outpost: what is done in it is counted for home when it is over.
    pub fn turn_away(&mut self, subsystem: &mut Subsystem, space: &Space, now_ns: u64) -> usize {
        self.apart.tally.iter().for_each(|tally| tally.open());
        let work = self.turn(subsystem, space, now_ns);
        if let Some(tally) = &self.apart.tally {
            if work > 0 {
                let health = &subsystem.health;
                tally.put(health.here(), health.busy_time(), self.errors.count(), subsystem.in_flight());
            }
            tally.close();
        }
        work
    }

    /// Has these queues served.
    pub(super) fn seat(&mut self, cq: CompletionQueue, sqs: Vec<SubmissionQueue>) {
        let handover = self.handover.get_mut();
        handover.cqs[usize::from(cq.id)] = cq.record();
        for mut sq in sqs {
            (sq.controller, sq.announced) = (self.number, sq.head);
            handover.sqs[usize::from(sq.id)] = sq.record();
            self.doorbells.put_event_index_behind(sq.id, sq.head);
            self.active.push(sq.id);
            let id = usize::from(sq.id);
            self.sqs[id] = Some(sq);
        }
        let id = usize::from(cq.id);
        self.cqs[id] = Some(cq);
        // What rested has a deadline again.
        self.next_deadline_ns = 0;
    }
}
