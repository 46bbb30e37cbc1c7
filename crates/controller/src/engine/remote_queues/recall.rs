//! Return of a queue group to its owner.

use crate::engine::remote_queues::migrate::MigratingGroup;
use crate::model::{Controller, Subsystem};
use crate::state::doorbells::Shadow;
use crate::state::events::Event;
use crate::state::health::ErrorLog;
use crate::state::queue::{CompletionQueue, SubmissionQueue};
use crate::state::remote_queues::cause::RecallCause;
use crate::state::remote_queues::tally::Tally;
use sluice_memory::Space;
use std::mem;
use std::sync::Arc;

/// Queue group on its way to the owner, with the events and counters of its time elsewhere.
#[derive(Debug)]
pub struct ReturningGroup {
    cq: CompletionQueue,
    sqs: Vec<SubmissionQueue>,
    /// Shadow doorbells that hold host memory. The owner must be the last to release them.
    _shadow: Option<Shadow>,
    doorbell_errors: Vec<(u16, Event)>,
    errors: ErrorLog,
    tally: Arc<Tally>,
    /// Cause for which the remote controller returned the group by itself.
    cause: Option<RecallCause>,
}

impl MigratingGroup {
    /// Returns the group to its owner, since the remote controller has no room for it.
    pub fn into_returning(self) -> ReturningGroup {
        let Self { cq, sqs, mut host, tally, .. } = self;
        let (doorbell_errors, errors) = (Vec::new(), ErrorLog::new());
        let cause = Some(RecallCause::Room);
        ReturningGroup { cq, sqs, _shadow: host.take_shadow(), doorbell_errors, errors, tally, cause }
    }
}

impl ReturningGroup {
    /// Returns the identifier of the completion queue.
    pub fn queue(&self) -> u16 {
        self.cq.id
    }

    /// Returns the cause for which the remote controller returned the group by itself, if it did.
    pub fn cause(&self) -> Option<RecallCause> {
        self.cause
    }
}

/// Methods of a remote controller.
impl Controller {
    /// Returns the group if none of its commands is in flight. No queue is left to serve then.
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
        self.retire();
        Some(ReturningGroup {
            cq,
            sqs,
            _shadow: self.take_shadow(),
            doorbell_errors: mem::take(&mut self.remote_groups.doorbell_errors),
            errors: self.take_errors(),
            tally,
            cause,
        })
    }
}

/// Methods of the owner.
impl Controller {
    /// Takes back a group. If the host has reset the controller meanwhile, the queues are dropped.
    pub fn take_back_group(&mut self, subsystem: &mut Subsystem, group: ReturningGroup, space: &Space) {
        let ReturningGroup { mut cq, mut sqs, doorbell_errors, errors, tally, .. } = group;
        subsystem.health_mut().take_back(&tally);
        self.append_errors(errors);
        let Some(at) = self.remote_groups.groups.iter().position(|remote| remote.cq.0 == cq.id) else {
            return;
        };
        let remote = self.remote_groups.groups.remove(at);
        self.remote_groups.recall_cause.take_if(|_| self.remote_groups.groups.is_empty());
        self.make_due(0);
        if !self.is_enabled() {
            return;
        }
        if remote.generation != space.generation() {
            self.find_group(&mut cq, &mut sqs, space);
        }
        let vector = cq.vector;
        self.install_group(cq, sqs);
        // The last interrupt of the remote controller may not have been sent.
        vector.into_iter().for_each(|vector| self.signal(vector));
        for (queue, event) in doorbell_errors {
            self.doorbell_error(queue, event);
        }
    }
}
