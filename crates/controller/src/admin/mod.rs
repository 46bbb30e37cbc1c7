//! Admin commands that read or set state (Base 5): one module for each group. Each returns an [`Outcome`], and
//! completes nothing.

pub(crate) mod describe;
pub(crate) mod doorbell_buffer;
pub(crate) mod features;
pub(crate) mod firmware;
pub(crate) mod identify;
pub(crate) mod log;
pub(crate) mod persistent;
pub(crate) mod queues;
pub(crate) mod reservation;

use crate::model::request::Admin;
use crate::model::{Controller, Subsystem};
use crate::state::management::Request;
use sluice_nvme::Status;
use sluice_nvme::opcode::admin as opcode;

/// Outcome of an admin command.
pub(crate) enum Outcome {
    /// Completion now, with this value in dword 0.
    Done(u32),
    /// Completion later: after an event, or after the deletion of a queue with commands in flight.
    Later,
    /// Completion after the flush of every volatile write cache.
    AfterFlush,
    /// Completion after the erasure that is under way.
    AfterErasure,
    /// Completion when its change of reservations is in force.
    AfterOrder,
    /// Completion after this request.
    AfterManagement(Request),
}

pub(crate) type Answer = Result<Outcome, Status>;

/// Executes an admin command whose flags and access were checked.
pub(crate) fn execute(controller: &mut Controller, subsystem: &mut Subsystem, admin: &Admin<'_>) -> Answer {
    match admin.entry.opcode {
        opcode::IDENTIFY => identify::identify(controller, subsystem, admin),
        opcode::GET_LOG_PAGE => log::get_log_page(controller, subsystem, admin),
        opcode::SET_FEATURES => features::set(controller, subsystem, admin)
            .inspect(|_| controller.note_feature(subsystem, admin.entry, admin.now_ns)),
        opcode::GET_FEATURES => features::get(controller, subsystem, admin),
        opcode::CREATE_IO_CQ => queues::create_cq(controller, admin),
        opcode::CREATE_IO_SQ => queues::create_sq(controller, admin),
        opcode::DELETE_IO_CQ => queues::delete_cq(controller, admin),
        opcode::DELETE_IO_SQ => queues::delete_sq(controller, subsystem, admin),
        opcode::FIRMWARE_DOWNLOAD => firmware::download(admin),
        opcode::FIRMWARE_COMMIT => {
            let answer = firmware::commit(admin);
            let status = answer.as_ref().err().copied().unwrap_or(Status::SUCCESS);
            controller.note_firmware_commit(subsystem, admin.entry.cdw10, status, admin.now_ns);
            answer
        }
        opcode::KEEP_ALIVE => features::keep_alive(controller, admin),
        opcode::DOORBELL_BUFFER_CONFIG => doorbell_buffer::configure(controller, admin),
        _ => Err(Status::INVALID_OPCODE),
    }
}
