//! Asynchronous events (Base 5.2): permitted reports, and required ones.

use super::Scenario;
use crate::Completion;
use sluice_nvme::{Status, SubmissionEntry, opcode::admin as opcode};
use std::collections::BTreeSet;

/// An asynchronous event, in the fields of dword 0 of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Event {
    kind: u8,
    information: u8,
    log: u8,
}

impl Event {
    pub(super) const INVALID_DOORBELL_REGISTER: Event = Event { kind: 0, information: 0, log: 1 };
    pub(super) const INVALID_DOORBELL_VALUE: Event = Event { kind: 0, information: 1, log: 1 };
    pub(super) const NAMESPACE_CHANGED: Event = Event { kind: 2, information: 0, log: 4 };

    fn of(dw0: u32) -> Self {
        Self { kind: (dw0 & 7) as u8, information: (dw0 >> 8) as u8, log: (dw0 >> 16) as u8 }
    }
}

/// Events from the host's side.
#[derive(Debug, Default)]
pub(super) struct ExpectedEvents {
    /// CIDs of Asynchronous Event Requests.
    requests: BTreeSet<u16>,
    /// Events that happened and were not reported.
    pending: BTreeSet<Event>,
    /// Reported events: no other of the same type is reported until the log page of the event was read.
    masking: Vec<Event>,
}

impl ExpectedEvents {
    pub(super) fn happened(&mut self, event: Option<Event>) {
        self.pending.extend(event);
    }

    /// Handles the reading of a log page whose events are not retained.
    pub(super) fn log_was_read(&mut self, log: u8) {
        self.pending.retain(|event| event.log != log);
        self.masking.retain(|event| event.log != log);
    }

    fn reported(&mut self, event: Event) {
        assert!(self.pending.remove(&event), "{event:?} is reported and did not happen");
        assert!(!self.is_masked(event), "{event:?} is reported before the log page was read");
        self.masking.push(event);
    }

    fn is_masked(&self, event: Event) -> bool {
        self.masking.iter().any(|masking| masking.kind == event.kind)
    }
}

/// Requests that the controller holds (Identify: AERL).
const REQUESTS_MAX: usize = 4;

impl Scenario<'_> {
    /// Sends one more Asynchronous Event Request; one too many is refused.
    pub(super) fn request_event(&mut self) {
        let entry = SubmissionEntry { opcode: opcode::ASYNC_EVENT_REQUEST, ..SubmissionEntry::default() };
        if self.events.requests.len() < REQUESTS_MAX {
            if let Some(cid) = self.host.push(0, entry) {
                self.events.requests.insert(cid);
                self.host.ring(0);
            }
        } else if self.events.pending.is_empty() {
            // With an event in flight a request might return first, and leave room.
            assert_eq!(self.admin(entry), Status::AER_LIMIT_EXCEEDED);
        }
    }

    /// Handles the completion of an admin command that is not waited for: an event.
    pub(super) fn complete_request(&mut self, completion: Completion) {
        let Completion { cid, status, dw0, .. } = completion;
        assert!(self.events.requests.remove(&cid), "{completion:?} was not asked for");
        if status != Status::ABORT_REQUESTED {
            assert_eq!(status, Status::SUCCESS);
            self.events.reported(Event::of(dw0));
        }
    }

    /// Returns any of the requests, to be aborted.
    pub(super) fn any_request(&mut self) -> Option<u16> {
        let requests: Vec<u16> = self.events.requests.iter().copied().collect();
        (!requests.is_empty()).then(|| *self.random.pick(&requests))
    }

    pub(super) fn is_requested(&self, cid: u16) -> bool {
        self.events.requests.contains(&cid)
    }

    /// Checks that every event was reported, unless there is no request, or its type is masked.
    pub(super) fn check_events(&mut self) {
        for _ in 0..8 {
            self.host.ring(0);
            self.host.turn();
            self.host.reap_all();
            self.take_inbox();
        }
        let unsaid = self.events.pending.iter().find(|&&event| !self.events.is_masked(event));
        assert!(self.events.requests.is_empty() || unsaid.is_none(), "{unsaid:?} is not reported");
    }
}
