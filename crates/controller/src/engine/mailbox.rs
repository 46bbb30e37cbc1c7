//! Handling of the mail that other turns have left for a controller.

use crate::jobs::self_test;
use crate::model::{Controller, Subsystem};
use crate::state::events::Event;
use crate::state::mailbox::Notice;

impl Controller {
    /// Handles all that other turns have left for this controller.
    #[cold]
    pub(crate) fn drain_mailbox(&mut self, subsystem: &mut Subsystem, now_ns: u64) {
        for notice in subsystem.collect_mail(self.number()) {
            match notice {
                Notice::NamespaceChanged(nsid) => self.events.namespace_changed(nsid),
                Notice::Deleting(nsid) => self_test::removal(self, subsystem, nsid, now_ns),
                Notice::Deleted(nsid) => self.forget_namespace(nsid),
                Notice::Formatted(nsid) => self_test::format(self, subsystem, nsid, now_ns),
                Notice::Sanitizing => self_test::sanitize(self, subsystem, now_ns),
                Notice::Sanitized => self.events.raise(Event::SANITIZE_COMPLETED),
                Notice::AccessChanged => self.events.raise(Event::ASYMMETRIC_ACCESS_CHANGE),
                Notice::Reset => self.subsystem_was_reset(subsystem),
                Notice::Reservation { host, nsid, notification } => {
                    if subsystem.host(self.number()) == host {
                        self.notify_of_reservation(nsid, notification);
                    }
                }
                // Timers that were off during the hold have a deadline again.
                Notice::Resumed => self.make_due(0),
            }
        }
    }
}
