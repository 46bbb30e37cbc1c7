//! A queue group on its way home.

use super::{MigratingGroup, RecallCause, Tally};
use crate::doorbells::Shadow;
use crate::events::Event;
use crate::health::ErrorLog;
use crate::queue::{CompletionQueue, Service, SubmissionQueue};
use crate::registers::State;
use crate::{Controller, Subsystem};
use sluice_memory::{Access, Pages, Space};
use std::mem;
use std::sync::Arc;

/// A queue group that comes home, with what happened while it was away.
#[derive(Debug)]
pub struct ReturningGroup {
    cq: CompletionQueue,
    sqs: Vec<SubmissionQueue>,
    /// It holds memory of the host's, which home is to be the last to let go of.
    _shadow: Option<Shadow>,
    doorbell_errors: Vec<(u16, Event)>,
    errors: ErrorLog,
    tally: Arc<Tally>,
    /// Why the outpost sent it home, if it did so by itself.
    cause: Option<RecallCause>,
}

impl MigratingGroup {
    /// Back to where it came from: nobody was there.
    pub fn into_returning(self) -> ReturningGroup {
        let Self { cq, sqs, mut doorbells, tally, .. } = self;
        let (doorbell_errors, errors) = (Vec::new(), ErrorLog::new());
        let cause = Some(RecallCause::Room);
        ReturningGroup { cq, sqs, _shadow: doorbells.take_shadow(), doorbell_errors, errors, tally, cause }
    }
}

impl ReturningGroup {
    /// Identifier of its completion queue.
    pub fn queue(&self) -> u16 {
        self.cq.id
    }

    /// Why the outpost sent it home, if it did so by itself.
    pub fn cause(&self) -> Option<RecallCause> {
        self.cause
    }
}

/// As an outpost.
impl Controller {
    /// Takes no entry any more; what is in flight goes on.
    pub fn stop_taking(&mut self) {
        self.active.clear();
    }

    /// The group, if none of its commands is in flight. Nothing is left to serve then.
    pub fn return_group(&mut self, subsystem: &mut Subsystem) -> Option<ReturningGroup> {
        if subsystem.in_flight() > 0 || subsystem.has_completions() {
            return None;
        }
        self.stop_taking();
        let cq = self.cqs.iter_mut().find_map(Option::take)?;
        let tally = self.remote_groups.tally.take()?;
        let sqs = self.sqs.iter_mut().filter_map(Option::take).collect();
        let cause = self.recall_cause();
        self.remote_groups.recall_cause = None;
        self.registers.power_on();
        Some(ReturningGroup {
            cq,
            sqs,
            _shadow: self.doorbells.take_shadow(),
            doorbell_errors: mem::take(&mut self.remote_groups.doorbell_errors),
            errors: mem::replace(&mut self.errors, ErrorLog::new()),
            tally,
            cause,
        })
    }
}

/// As home.
impl Controller {
    /// A group is back. If the host has begun anew meanwhile its queues are nobody's.
    pub fn take_back_group(&mut self, subsystem: &mut Subsystem, group: ReturningGroup, space: &Space) {
        let ReturningGroup { mut cq, mut sqs, doorbell_errors, errors, tally, .. } = group;
        subsystem.health.take_back(&tally);
        self.errors.append(errors);
        let Some(at) = self.remote_groups.groups.iter().position(|remote| remote.cq.0 == cq.id) else {
            return;
        };
        let remote = self.remote_groups.groups.remove(at);
        self.remote_groups.recall_cause.take_if(|_| self.remote_groups.groups.is_empty());
        self.next_deadline_ns = 0;
        if self.registers.state != State::Enabled {
            return;
        }
        if remote.generation != space.generation() {
            let find = |service: &mut Service, memory: &mut Pages, address, access| {
                match space.queue(address, memory.len(), access) {
                    Ok(found) => *memory = found,
                    Err(_) if *service == Service::On => *service = Service::Unmapped,
                    Err(_) => {}
                }
                *service == Service::Unmapped
            };
            let mut unmapped = find(&mut cq.service, &mut cq.memory, cq.address, Access::Write);
            for sq in &mut sqs {
                unmapped |= find(&mut sq.service, &mut sq.memory, sq.address, Access::Read);
            }
            if unmapped {
                self.unmapped.begin();
            }
        }
        let vector = cq.vector;
        self.install_group(cq, sqs);
        // The outpost's last may not have been sent when it ended.
        vector.into_iter().for_each(|vector| self.interrupts.insert(vector));
        for (queue, event) in doorbell_errors {
            self.doorbell_error(queue, event);
        }
    }
}
