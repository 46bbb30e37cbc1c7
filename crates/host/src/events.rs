//! Asynchronous events (Base 5.2.2).

use crate::controller::success;
use crate::wait::Backoff;
use crate::{Controller, Deadline, Error, entry};
use sluice_nvme::CompletionEntry;
use std::collections::VecDeque;

/// Result of an Asynchronous Event Request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncEvent {
    /// Asynchronous event type: 0 error, 1 SMART, 2 notice ...
    pub kind: u8,
    /// Asynchronous event information.
    pub info: u8,
    /// Log page that clears the event.
    pub log_page: u8,
}

impl AsyncEvent {
    fn new(completion: CompletionEntry) -> Self {
        let [kind, info, log_page, _] = completion.dw0.to_le_bytes();
        Self { kind: kind & 7, info, log_page }
    }
}

/// Outstanding requests, and completed ones. A request releases its identifier when it completes, so this
/// list is needed to recognize it.
#[derive(Debug, Default)]
pub(crate) struct AsyncEvents {
    requests: Vec<u16>,
    arrived: VecDeque<CompletionEntry>,
    /// Identifier of a command that takes long, and its completion.
    long: Option<u16>,
    long_completion: Option<CompletionEntry>,
}

impl AsyncEvents {
    pub(crate) fn has_long(&self) -> bool {
        self.long.is_some()
    }

    pub(crate) fn begin_long(&mut self, cid: u16) {
        (self.long, self.long_completion) = (Some(cid), None);
    }

    pub(crate) fn take_long(&mut self) -> Option<CompletionEntry> {
        self.long_completion.take()
    }

    /// Keeps the completion of a request or of the long command, and drops any other, which is not waited for
    /// any more.
    pub(crate) fn keep(&mut self, completion: CompletionEntry) {
        if let Some(index) = self.requests.iter().position(|cid| *cid == completion.cid) {
            self.requests.swap_remove(index);
            self.arrived.push_back(completion);
        } else if self.long == Some(completion.cid) {
            (self.long, self.long_completion) = (None, Some(completion));
        }
    }
}

impl Controller {
    /// Requests the next event from the controller. Returns the identifier of the request, for an Abort.
    pub fn request_async_event(&mut self) -> Result<u16, Error> {
        let cid = self.submit(entry::async_event_request())?;
        self.events.requests.push(cid);
        Ok(cid)
    }

    /// Returns the event of a completed request, if there is one. Does not wait.
    pub fn poll_async_event(&mut self) -> Result<Option<AsyncEvent>, Error> {
        self.admin.reap(|completion| self.events.keep(completion));
        self.admin.ring()?;
        let arrived = self.events.arrived.pop_front().map(success).transpose()?;
        Ok(arrived.map(AsyncEvent::new))
    }

    /// Waits for the event that a request is answered with.
    pub fn wait_async_event(&mut self, deadline: &Deadline) -> Result<AsyncEvent, Error> {
        let mut backoff = Backoff::default();
        loop {
            if let Some(event) = self.poll_async_event()? {
                return Ok(event);
            }
            deadline.check()?;
            backoff.pause();
        }
    }
}
