//! Reports of a controller to its host: error log, reservation notifications, and the host's context of the
//! Persistent Event Log.

use crate::model::{Controller, Subsystem};
use crate::state::events::Event;
use crate::state::health::ErrorLog;
use crate::state::reservation::Notifications;
use crate::state::reservation::notification::Notification;
use sluice_command::Slot;
use sluice_nvme::log::{ErrorInformation, ReservationNotification, SmartHealth, critical_warning};
use sluice_nvme::persistent_event::{LogHeader, reporting_context};
use sluice_nvme::{LogId, SubmissionEntry};

/// Error log, and health as far as it is the controller's own.
impl Controller {
    /// Records a failed command in the error log, and an I/O command in the log of the daemon.
    pub(crate) fn report_failure(&mut self, subnqn: &str, entry: &SubmissionEntry, slot: &Slot) {
        self.errors.command(entry, &slot.origin, slot.status);
        if slot.origin.sq != 0 {
            self.failures.report(subnqn, entry, slot.status);
        }
    }

    /// Enters fatal status, since the Keep Alive Timer has expired.
    #[cold]
    pub(crate) fn keep_alive_expired(&mut self) {
        tracing::warn!("the host's keep-alive timer expired");
        self.errors.keep_alive();
        self.registers.set_fatal();
    }

    /// Returns the entries of the Error Information log page, the newest first.
    pub(crate) fn errors(&self) -> impl Iterator<Item = &ErrorInformation> {
        self.errors.entries()
    }

    /// Returns the number of errors ever recorded.
    pub(crate) fn error_count(&self) -> u64 {
        self.errors.count()
    }

    /// Takes the error log out, for the owner of a remote controller.
    pub(crate) fn take_errors(&mut self) -> ErrorLog {
        std::mem::replace(&mut self.errors, ErrorLog::new())
    }

    /// Adds the error log of a remote controller.
    pub(crate) fn append_errors(&mut self, errors: ErrorLog) {
        self.errors.append(errors);
    }

    /// Returns the SMART / Health Information log page.
    pub(crate) fn smart(&self, subsystem: &Subsystem, now_ns: u64) -> SmartHealth {
        let is_too_warm = self.features.temperature.are_passed();
        let warning = if is_too_warm { critical_warning::TEMPERATURE } else { 0 };
        subsystem.health().smart(warning, &self.errors, now_ns)
    }
}

/// Notices that the host reads in log pages.
impl Controller {
    /// Adds a reservation notification for the host, unless the host has masked it.
    pub(crate) fn notify_of_reservation(&mut self, nsid: u32, notification: Notification) {
        if self.reservation_notifications.add(nsid, notification) {
            self.events.raise(Event::RESERVATION_LOG_PAGE);
        }
    }

    /// Returns the Reservation Notification log page.
    pub(crate) fn reservation_page(&self) -> ReservationNotification {
        self.reservation_notifications.page()
    }

    /// Returns the Reservation Notification Mask of a namespace.
    pub(crate) fn reservation_mask(&self, nsid: u32) -> u8 {
        self.reservation_notifications.mask(nsid)
    }

    pub(crate) fn set_reservation_mask(&mut self, nsid: u32, mask: u32) {
        self.reservation_notifications.set_mask(nsid, mask);
    }

    /// Clears the event that a log page explains, since the host has read the page.
    pub(crate) fn log_was_read(&mut self, log: LogId) {
        self.events.log_was_read(log);
        if log == LogId::RESERVATION_NOTIFICATION && self.reservation_notifications.was_read() {
            self.events.raise(Event::RESERVATION_LOG_PAGE);
        }
    }

    /// Drops the settings and notifications of a deleted namespace, since its NSID may be used again.
    pub(crate) fn forget_namespace(&mut self, nsid: u32) {
        self.features.retry_limits[nsid as usize - 1] = 0;
        self.reservation_notifications.forget(nsid);
    }

    /// Drops all notices from before a reset.
    pub(crate) fn drop_notices(&mut self) {
        self.events.reset();
        self.reservation_notifications = Notifications::new();
    }
}

/// Context in which the host reads the Persistent Event Log (Base 5.16.1.14).
impl Controller {
    /// Returns whether the host has established a context.
    pub(crate) fn has_log_context(&self) -> bool {
        self.persistent_events.is_some()
    }

    /// Establishes a context with this page.
    pub(crate) fn establish_log_context(&mut self, subsystem: &mut Subsystem, page: Vec<u8>) {
        self.persistent_events = Some(page);
        let generation = &mut subsystem.jobs_mut().persistent_events.generation;
        *generation = generation.wrapping_add(1);
    }

    /// Returns the page of the context, which reports from then on that the context exists.
    pub(crate) fn read_log_context(&mut self) -> Option<&[u8]> {
        let page = self.persistent_events.as_mut()?;
        let at = std::mem::offset_of!(LogHeader, reporting_context);
        let exists = reporting_context::SUBSYSTEM_PORT | reporting_context::EXISTS;
        page[at..at + size_of::<u32>()].copy_from_slice(&exists.to_le_bytes());
        Some(page)
    }

    pub(crate) fn release_log_context(&mut self) {
        self.persistent_events = None;
    }
}
