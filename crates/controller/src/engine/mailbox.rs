//! Handling of the mail that other turns have left for a controller.

use crate::model::{Controller, Subsystem};
use crate::state::events::Event;
use crate::state::mailbox::Notice;
use crate::state::self_test::ended;

impl Controller {
    /// Handles all that other turns have left for this controller.
    #[cold]
    pub(crate) fn drain_mailbox(&mut self, subsystem: &mut Subsystem, now_ns: u64) {
        for notice in subsystem.collect_mail(self.number()) {
            match notice {
                Notice::NamespaceChanged(nsid) => self.namespace_changed(nsid),
                Notice::Deleting(nsid) => self.end_self_test_of(subsystem, nsid, ended::REMOVAL, now_ns),
                Notice::Deleted(nsid) => self.forget_namespace(nsid),
                Notice::Formatted(nsid) => self.end_self_test_of(subsystem, nsid, ended::FORMAT, now_ns),
                Notice::Sanitizing => self.end_self_test(subsystem, ended::SANITIZE, now_ns),
                Notice::Sanitized => self.raise(Event::SANITIZE_COMPLETED),
                Notice::AccessChanged => self.raise(Event::ASYMMETRIC_ACCESS_CHANGE),
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
