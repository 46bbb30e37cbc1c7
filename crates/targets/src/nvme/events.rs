//! Asynchronous events of a device, for the log.

use super::admin_thread::{AdminThread, Connection};
use crate::remote::EventRequests;
use sluice_host::{AsyncEvent, Error};
use sluice_nvme::{LogId, NSID_ALL};
use std::time::Duration;

/// Bytes of a log page that are read. The read lets the device report the next event of the type.
const LOG_BYTES: usize = 512;

impl AdminThread {
    /// Handles one event, if there is one, and requests the next when due. Requests of targets come in
    /// between.
    pub(super) fn handle_async_events(&mut self) {
        let Some(link) = &mut self.link else { return };
        let mut result = link.event();
        if let Ok(Some(event)) = result {
            self.ports.iter().flatten().for_each(|port_state| port_state.control.count_events(1));
            if let Some(left_out) = self.logged.admit() {
                log_event(&self.address, event, left_out);
            }
            result = link.clear(event).map(|()| None);
        }
        if let Err(error) = result {
            tracing::warn!(device = %self.address, %error, "events of an NVMe device cannot be received");
            self.lose_if_fatal(&error);
        }
    }
}

impl Connection {
    /// Returns the event that has come, if one has. Sends the next request if it is due.
    fn event(&mut self) -> Result<Option<AsyncEvent>, Error> {
        if self.requests.left() == Some(Duration::ZERO) {
            self.controller.request_async_event()?;
            self.requests = EventRequests::new();
        }
        self.controller.poll_async_event()
    }

    /// Clears an event by a read of its log page. After that the next event may be requested.
    fn clear(&mut self, event: AsyncEvent) -> Result<(), Error> {
        let mut log = [0; LOG_BYTES];
        match self.controller.get_log_page(LogId(event.log_page), NSID_ALL, 0, &mut log) {
            // A device without such a log has nothing to clear.
            Ok(()) | Err(Error::Status(_)) => {}
            Err(error) => return Err(error),
        }
        self.requests.set_due();
        Ok(())
    }
}

/// Logs an event in the specification's terms (Base 5.2.2).
fn log_event(device: &super::Address, event: AsyncEvent, left_out: u64) {
    let AsyncEvent { kind, info, log_page } = event;
    let what = match (kind, info) {
        (0, _) => "an error",
        (1, 0) => "that it is not reliable any more",
        (1, 1) => "a temperature beyond its limit",
        (1, 2) => "that it runs out of spare blocks",
        (2, 0) => "changed namespaces; a new size counts when the drive is opened again",
        (2, 1) => "that firmware is being activated",
        _ => "an event",
    };
    tracing::warn!(%device, kind, info, log_page, left_out, "an NVMe device reports {what}");
}
