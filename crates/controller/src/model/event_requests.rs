//! Asynchronous events of a controller, and the requests for them.
//!
//! A request waits without a reserved completion slot. A small admin queue would otherwise be full of reserved
//! slots. A slot is reserved when there is an event to report.

use crate::model::Controller;
use crate::state::events::{Configuration, Event};
use sluice_command::{Command, Slab};

impl Controller {
    /// Raises an event for the host, unless the host has disabled it.
    pub(crate) fn raise(&mut self, event: Event) {
        self.events.raise(event);
    }

    /// Notes a change of a namespace for the Changed Attached Namespace List.
    pub(crate) fn namespace_changed(&mut self, nsid: u32) {
        self.events.namespace_changed(nsid);
    }

    /// Returns the Changed Attached Namespace List.
    pub(crate) fn changed_namespaces(&self) -> impl Iterator<Item = u32> {
        self.events.changed_namespaces()
    }

    pub(crate) fn configure_events(&mut self, configuration: Configuration) {
        self.events.configure(configuration);
    }

    pub(crate) fn event_configuration(&self) -> Configuration {
        self.events.configuration()
    }

    /// Returns the number of requests that wait for an event.
    pub(crate) fn event_requests(&self) -> u32 {
        self.events.outstanding()
    }

    /// Takes a request, and gives its completion slot back until there is an event.
    ///
    /// # Errors
    /// The limit of requests is reached. The command comes back.
    pub(crate) fn add_event_request(&mut self, command: Command) -> Result<(), Command> {
        self.events.request(command)?;
        if let Some(cq) = &mut self.cqs[0] {
            cq.unreserve(1);
        }
        if let Some(sq) = &mut self.sqs[0] {
            sq.in_flight -= 1;
        }
        Ok(())
    }

    /// Takes a request that another process had taken. It has no completion slot.
    ///
    /// # Errors
    /// The limit of requests is reached. The command comes back.
    pub(crate) fn resume_event_request(&mut self, command: Command) -> Result<(), Command> {
        self.events.request(command)
    }

    /// Returns whether there are an event and a request for it.
    #[inline]
    pub(crate) fn has_deliverable_event(&self) -> bool {
        self.events.is_deliverable()
    }

    /// Returns whether there are an event, a request for it, and a completion slot. Until the host releases a
    /// slot the task may sleep.
    #[inline]
    pub(crate) fn can_deliver_event(&mut self) -> bool {
        self.events.is_deliverable() && self.has_event_slot()
    }

    #[inline]
    fn has_event_slot(&mut self) -> bool {
        let Self { cqs, doorbells, .. } = self;
        cqs[0].as_mut().is_some_and(|cq| cq.room(1, doorbells) > 0)
    }

    /// Returns a request to complete with an event, and dword 0 of its completion. Its slot is reserved.
    pub(crate) fn next_event(&mut self) -> Option<(Command, u32)> {
        if !self.can_deliver_event() {
            return None;
        }
        let next = self.events.next()?;
        self.reserve_event_slot();
        Some(next)
    }

    /// Returns the request with this command identifier, to be aborted. Its slot is reserved. Returns none if
    /// there is no such request, or no slot.
    pub(crate) fn take_event_request(&mut self, slab: &Slab, cid: u16) -> Option<Command> {
        if !self.has_event_slot() {
            return None;
        }
        let command = self.events.remove(|command| slab.slot(command).origin.cid == cid)?;
        self.reserve_event_slot();
        Some(command)
    }

    fn reserve_event_slot(&mut self) {
        if let Some(cq) = &mut self.cqs[0] {
            cq.reserve(1);
        }
        if let Some(sq) = &mut self.sqs[0] {
            sq.in_flight += 1;
        }
    }
}
