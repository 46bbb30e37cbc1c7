//! Change of a namespace's size.

use crate::jobs::uncorrectable;
use crate::model::Subsystem;
use crate::state::mailbox::Notice;

impl Subsystem {
    /// Applies a new size of a namespace's target. Hosts receive an event, and read the new size without a
    /// rescan. Returns false if there is no such namespace.
    pub fn resize(&mut self, nsid: u32, size: u64) -> bool {
        let Some(namespace) = self.get_mut(nsid) else { return false };
        let before = namespace.blocks();
        if namespace.resize(size) {
            let end = namespace.blocks().min(before) << namespace.block_shift();
            uncorrectable::resized(self, nsid, end);
            self.announce(Notice::NamespaceChanged(nsid));
        }
        true
    }
}
