//! End of the deletion of a queue.

use crate::model::{Controller, Subsystem};
use sluice_nvme::Status;

/// Finishes the deletion of a submission queue after its last command.
#[cold]
pub(crate) fn finish_deletion(controller: &mut Controller, subsystem: &mut Subsystem, id: u16) {
    if let Some(command) = controller.end_sq(subsystem.slab(), id) {
        controller.finish(subsystem, command, Status::SUCCESS, 0);
    }
}

/// Finishes deletions of completion queues whose writes by the client have ended. Returns their number.
#[cold]
pub(crate) fn finish_cq_deletions(controller: &mut Controller, subsystem: &mut Subsystem) -> usize {
    let over = controller.end_cqs(subsystem.slab());
    let count = over.len();
    over.into_iter().for_each(|command| controller.finish(subsystem, command, Status::SUCCESS, 0));
    count
}
