//! What a device reports by itself, for the log.

use super::keeper::Keeper;
use sluice_host::{AsyncEvent, Controller, Error};
use sluice_nvme::{LogId, NSID_ALL};

/// Bytes of a log page that are read: reading is what lets the device report the next event of the kind.
const LOG_BYTES: usize = 512;

impl Keeper {
    /// Takes note of events, and asks for the next.
    pub(super) fn hear_events(&mut self) {
        let address = &self.address;
        let Some(link) = &mut self.link else { return };
        let mut heard = 0;
        let mut note = |event| {
            heard += 1;
            tell(address, event);
        };
        let result = take_events(&mut link.controller, &mut note);
        if heard > 0 {
            self.ports.iter().flatten().for_each(|tenant| tenant.control.count_events(heard));
        }
        if let Err(error) = result {
            tracing::warn!(device = %self.address, %error, "events of an NVMe device are not heard");
            self.lose_if_fatal(&error);
        }
    }
}

/// Everything that has come. One request is always out.
fn take_events(controller: &mut Controller, note: &mut impl FnMut(AsyncEvent)) -> Result<(), Error> {
    while let Some(event) = controller.poll_async_event()? {
        note(event);
        let mut log = [0; LOG_BYTES];
        match controller.get_log_page(LogId(event.log_page), NSID_ALL, 0, &mut log) {
            // One that has no such log has nothing to clear.
            Ok(()) | Err(Error::Status(_)) => {}
            Err(error) => return Err(error),
        }
        controller.request_async_event()?;
    }
    Ok(())
}

/// In words, by the kinds of the specification (Base 5.2.2).
fn tell(device: &super::Address, event: AsyncEvent) {
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
    tracing::warn!(%device, kind, info, log_page, "an NVMe device reports {what}");
}
