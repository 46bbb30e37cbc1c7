//! Recall of remote groups.

use crate::model::Controller;
use crate::state::remote_queues::cause::RecallCause;

impl Controller {
    /// Returns the cause that requires a recall, or that a remote controller has met.
    pub fn recall_cause(&self) -> Option<RecallCause> {
        let is_fatal = self.remote_groups.is_split() && self.is_fatal();
        self.remote_groups.recall_cause.or(is_fatal.then_some(RecallCause::Fatal))
    }

    /// Recalls the remote groups.
    pub fn recall_groups(&mut self, cause: RecallCause) {
        self.remote_groups.recall(cause);
    }

    /// Calls `each` with the completion queue of each remote group whose doorbells were written since the
    /// last call. Its remote controller may sleep.
    pub fn take_rung(&mut self, mut each: impl FnMut(u16)) {
        if std::mem::take(&mut self.remote_groups.rung) {
            let groups = self.remote_groups.groups.iter_mut();
            let rung = groups.filter_map(|group| std::mem::take(&mut group.rung).then_some(group.cq.0));
            rung.for_each(&mut each);
        }
    }
}
