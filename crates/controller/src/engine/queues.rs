//! End of the deletion of a queue.

use crate::model::queues::{remove_cq, remove_sq};
use crate::model::{Controller, Subsystem};
use sluice_command::Command;
use sluice_nvme::opcode::admin as opcode;
use sluice_nvme::{Status, SubmissionEntry};

/// Stores the deletion of a queue until the queue is idle.
pub(super) fn wait(controller: &mut Controller, command: Command) {
    controller.deletions.push(command);
}

/// Finishes the deletion of a submission queue after its last command.
#[cold]
pub(crate) fn finish_deletion(controller: &mut Controller, subsystem: &mut Subsystem, id: u16) {
    remove_sq(controller, id);
    let is_its = |entry: &SubmissionEntry| entry.opcode == opcode::DELETE_IO_SQ && entry.cdw10 as u16 == id;
    let slab = subsystem.slab();
    if let Some(index) = controller.deletions.iter().position(|command| is_its(slab.entry(command))) {
        let command = controller.deletions.swap_remove(index);
        controller.finish(subsystem, command, Status::SUCCESS, 0);
    }
}

/// Finishes deletions of completion queues whose writes by the client have ended. Returns their number.
#[cold]
pub(crate) fn finish_cq_deletions(controller: &mut Controller, subsystem: &mut Subsystem) -> usize {
    let Controller { deletions, client_dma, .. } = &mut *controller;
    let is_over = |command: &mut Command| {
        let entry = subsystem.slab().entry(command);
        let is_writing = |id: u16| client_dma.as_ref().is_some_and(|client_dma| client_dma.is_writing(id));
        entry.opcode == opcode::DELETE_IO_CQ && !is_writing(entry.cdw10 as u16)
    };
    let over: Vec<Command> = deletions.extract_if(.., is_over).collect();
    let count = over.len();
    for command in over {
        remove_cq(controller, subsystem.slab().entry(&command).cdw10 as u16);
        controller.finish(subsystem, command, Status::SUCCESS, 0);
    }
    count
}
