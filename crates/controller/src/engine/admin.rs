//! Admin commands from their fetch to their outcome.

use crate::admin::{Answer, Outcome};
use crate::command::passthrough::{self, ADMIN_DATA_MAX, data_dwords, find_data};
use crate::engine::{abort, client_dma, complete, write_cache};
use crate::jobs::{format, management, sanitize, self_test};
use crate::model::request::Admin;
use crate::model::{Controller, Subsystem, erasing};
use crate::state::data_pointer;
use sluice_command::{Command, Operation, Request};
use sluice_memory::Space;
use sluice_nvme::opcode::admin as opcode;
use sluice_nvme::{DataTransfer, Status, SubmissionEntry};

/// Takes an admin command that was just fetched.
pub(crate) fn begin(
    controller: &mut Controller,
    subsystem: &mut Subsystem,
    command: Command,
    entry: &SubmissionEntry,
    space: &Space,
    now_ns: u64,
) {
    if entry.opcode == opcode::ASYNC_EVENT_REQUEST {
        return request_event(controller, subsystem, command, entry);
    }
    if let Some(nsid) = passthrough::taker(controller, subsystem, entry)
        && check(controller, subsystem, entry).is_ok()
        && subsystem.check_admin(controller.number(), entry).is_ok()
    {
        return hand_on(controller, subsystem, command, entry, nsid, space, now_ns);
    }
    let admin = Admin { entry, space, now_ns };
    match check(controller, subsystem, entry).and_then(|()| execute(controller, subsystem, &admin)) {
        Ok(Outcome::Done(dw0)) => controller.finish(subsystem, command, Status::SUCCESS, dw0),
        Ok(Outcome::Later) => controller.await_deletion(command),
        Ok(Outcome::AfterErasure) => {
            let host = subsystem.host(controller.number());
            match &mut subsystem.jobs_mut().erasure {
                Some(erasure) => erasure.wait(command, host),
                None => complete::refuse(controller, subsystem, command, Status::INTERNAL_ERROR),
            }
        }
        Ok(Outcome::AfterManagement(request)) => subsystem.manage(command, request, now_ns),
        Ok(Outcome::AfterOrder) => subsystem.order(command, now_ns),
        Ok(Outcome::AfterFlush) => write_cache::begin_flush(controller, subsystem, command, now_ns),
        Err(status) => client_dma::fetch_or_refuse(controller, subsystem, command, status, space, now_ns),
    }
}

/// Checks the flags and the data pointer: admin commands over PCIe use PRPs, and those in capsules SGLs (Base
/// 3.3.3.1, PSDT).
fn check(controller: &Controller, subsystem: &Subsystem, entry: &SubmissionEntry) -> Result<(), Status> {
    data_pointer::check_flags(entry)?;
    erasing::permits(subsystem, entry)?;
    match (entry.data_transfer(), controller.is_fabrics()) {
        (DataTransfer::Prp, false) | (DataTransfer::Sgl, true) => Ok(()),
        _ => Err(Status::INVALID_FIELD),
    }
}

/// Executes a command: jobs begin here, and all others are those of [`admin`](crate::admin).
fn execute(controller: &mut Controller, subsystem: &mut Subsystem, admin: &Admin<'_>) -> Answer {
    subsystem.check_admin(controller.number(), admin.entry)?;
    match admin.entry.opcode {
        opcode::ABORT => abort::abort(controller, subsystem, admin),
        opcode::DEVICE_SELF_TEST => {
            self_test::command(controller, subsystem, admin.entry, admin.now_ns)?;
            Ok(Outcome::Done(0))
        }
        opcode::FORMAT_NVM => {
            format::begin(controller, subsystem, admin.entry, admin.now_ns)?;
            Ok(Outcome::AfterErasure)
        }
        opcode::SANITIZE => match sanitize::begin(subsystem, admin.entry, admin.now_ns)? {
            true => Ok(Outcome::AfterErasure),
            false => Ok(Outcome::Done(0)),
        },
        opcode::NAMESPACE_MANAGEMENT | opcode::NAMESPACE_ATTACHMENT => {
            management::begin(subsystem, admin).map(Outcome::AfterManagement)
        }
        _ => crate::admin::execute(controller, subsystem, admin),
    }
}

/// Sends an admin command to the target of this namespace.
pub(crate) fn hand_on(
    controller: &mut Controller,
    subsystem: &mut Subsystem,
    command: Command,
    entry: &SubmissionEntry,
    nsid: u32,
    space: &Space,
    now_ns: u64,
) {
    let slot = subsystem.slab_mut().slot_mut(&command);
    slot.request = Request { operation: Operation::Flush, ..Request::default() };
    slot.origin.raw = true;
    let dwords = match entry.opcode {
        // NUMDL and NUMDU, 0's based.
        opcode::GET_LOG_PAGE => u64::from(entry.cdw10 >> 16 | entry.cdw11 << 16) + 1,
        _ => data_dwords(entry),
    };
    match find_data(slot, entry, dwords, ADMIN_DATA_MAX, space) {
        Ok(()) => subsystem.pass(nsid, command, now_ns),
        Err(status) => client_dma::fetch_or_refuse(controller, subsystem, command, status, space, now_ns),
    }
}

/// Takes an Asynchronous Event Request, which waits for an event.
fn request_event(
    controller: &mut Controller,
    subsystem: &mut Subsystem,
    command: Command,
    entry: &SubmissionEntry,
) {
    if let Err(status) = check(controller, subsystem, entry) {
        return complete::refuse(controller, subsystem, command, status);
    }
    if let Err(command) = controller.add_event_request(command) {
        complete::refuse(controller, subsystem, command, Status::AER_LIMIT_EXCEEDED);
    }
}
