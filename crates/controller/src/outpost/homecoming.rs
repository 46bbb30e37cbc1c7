//! A queue group on its way home.

use super::{Cause, Posting, Tally};
use crate::doorbells::Shadow;
use crate::events::Event;
use crate::health::ErrorLog;
use crate::queue::{CompletionQueue, Service, SubmissionQueue};
use crate::registers::Life;
use crate::{Controller, Subsystem};
use sluice_memory::{Access, Pages, Space};
use std::mem;
use std::sync::Arc;

/// A queue group that comes home, with what happened while it was away.
#[derive(Debug)]
pub struct Homecoming {
    cq: CompletionQueue,
    sqs: Vec<SubmissionQueue>,
    /// It holds memory of the host's, which home is to be the last to let go of.
    _shadow: Option<Shadow>,
    complaints: Vec<(u16, Event)>,
    errors: ErrorLog,
    tally: Arc<Tally>,
    /// Why the outpost sent it home, if it did so by itself.
    cause: Option<Cause>,
}

impl Posting {
    /// Back to where it came from: nobody was there.
    pub fn returned(self) -> Homecoming {
        let Self { cq, sqs, mut doorbells, tally, .. } = self;
        let (complaints, errors) = (Vec::new(), ErrorLog::new());
        let cause = Some(Cause::Room);
        Homecoming { cq, sqs, _shadow: doorbells.take_shadow(), complaints, errors, tally, cause }
    }
}

impl Homecoming {
    /// Identifier of its completion queue.
    pub fn queue(&self) -> u16 {
        self.cq.id
    }

    /// Why the outpost sent it home, if it did so by itself.
    pub fn cause(&self) -> Option<Cause> {
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
    pub fn go_home(&mut self, subsystem: &mut Subsystem) -> Option<Homecoming> {
        if subsystem.in_flight() > 0 || subsystem.has_unsettled() {
            return None;
        }
        self.stop_taking();
        let cq = self.cqs.iter_mut().find_map(Option::take)?;
        let tally = self.apart.tally.take()?;
        let sqs = self.sqs.iter_mut().filter_map(Option::take).collect();
        let cause = self.calls_groups_home();
        self.apart.calls = None;
        self.registers.power_on();
        Some(Homecoming {
            cq,
            sqs,
            _shadow: self.doorbells.take_shadow(),
            complaints: mem::take(&mut self.apart.complaints),
            errors: mem::replace(&mut self.errors, ErrorLog::new()),
            tally,
            cause,
        })
    }
}

/// As home.
impl Controller {
    /// A group is back. If the host has begun anew meanwhile its queues are nobody's.
    pub fn welcome(&mut self, subsystem: &mut Subsystem, group: Homecoming, space: &Space) {
        let Homecoming { mut cq, mut sqs, complaints, errors, tally, .. } = group;
        subsystem.health.welcome(&tally);
        self.errors.append(errors);
        let Some(at) = self.apart.away.iter().position(|absent| absent.cq.0 == cq.id) else { return };
        let absent = self.apart.away.remove(at);
        self.apart.calls.take_if(|_| self.apart.away.is_empty());
        self.next_deadline_ns = 0;
        if self.registers.life != Life::Enabled {
            return;
        }
        if absent.generation != space.generation() {
            let find = |service: &mut Service, memory: &mut Pages, address, access| {
                match space.queue(address, memory.len(), access) {
                    Ok(found) => *memory = found,
                    Err(_) if *service == Service::On => *service = Service::Away,
                    Err(_) => {}
                }
                *service == Service::Away
            };
            let mut away = find(&mut cq.service, &mut cq.memory, cq.address, Access::Write);
            for sq in &mut sqs {
                away |= find(&mut sq.service, &mut sq.memory, sq.address, Access::Read);
            }
            if away {
                self.absence.begin();
            }
        }
        let vector = cq.vector;
        self.seat(cq, sqs);
        // The outpost's last may not have been sent when it ended.
        vector.into_iter().for_each(|vector| self.interrupts.insert(vector));
        for (queue, event) in complaints {
            self.doorbell_error(queue, event);
        }
    }
}
