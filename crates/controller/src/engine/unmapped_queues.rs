//! Return of queues whose memory the host maps again.

use crate::model::Controller;
use sluice_memory::Space;

impl Controller {
    /// Serves unmapped queues again whose memory is in the new map, and posts the completions that were held
    /// for them.
    pub fn find_memory(&mut self, space: &Space) {
        for (cq, entry) in self.find_queues(space) {
            self.post_to(cq, entry);
        }
        self.note_posted();
        self.hold_results();
    }
}
