//! Admin commands (Base 5): one module for each group.

pub(crate) mod abort;
pub(crate) mod describe;
mod doorbell_buffer;
pub(crate) mod features;
mod firmware;
mod identify;
pub(crate) mod log;
mod persistent;
pub(crate) mod queues;
mod reservation;

use crate::complete::refuse;
use crate::fetch::check_flags;
use crate::io::walk;
use crate::management::{self, Request};
use crate::{Controller, Subsystem, client_dma, format, passthrough, sanitize, self_test};
use sluice_command::Command;
use sluice_memory::{Access, SegmentList, Space};
use sluice_nvme::{DataTransfer, Status, SubmissionEntry, opcode::admin as opcode};

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

/// Admin command with its context.
pub(crate) struct Admin<'a> {
    pub(crate) entry: &'a SubmissionEntry,
    pub(crate) space: &'a Space,
    pub(crate) now_ns: u64,
}

impl Admin<'_> {
    /// Writes `bytes` to the host's buffer.
    pub(crate) fn to_host(&self, bytes: &[u8]) -> Result<(), Status> {
        self.to_buffer(bytes.len(), bytes)
    }

    /// Writes `bytes` to the beginning of the host's buffer of `length` bytes. The length decides on the
    /// meaning of its PRPs: of a longer buffer the second one is a list.
    pub(crate) fn to_buffer(&self, length: usize, bytes: &[u8]) -> Result<(), Status> {
        let data = self.data(length, Access::Write)?;
        match data.copy_from(0, bytes) == bytes.len() {
            true => Ok(()),
            false => Err(Status::DATA_TRANSFER_ERROR),
        }
    }

    /// Copies the host's buffer, once, into `bytes`.
    pub(crate) fn take_from_host(&self, bytes: &mut [u8]) -> Result<(), Status> {
        let data = self.data(bytes.len(), Access::Read)?;
        match data.copy_to(0, bytes) == bytes.len() {
            true => Ok(()),
            false => Err(Status::DATA_TRANSFER_ERROR),
        }
    }

    pub(crate) fn data(&self, length: usize, access: Access) -> Result<SegmentList, Status> {
        let mut data = SegmentList::new();
        walk(self.space, self.entry, length as u32, access, &mut data)?;
        Ok(data)
    }
}

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
        && subsystem.check_admin(controller.number, entry).is_ok()
    {
        return passthrough::hand_on(controller, subsystem, command, entry, nsid, space, now_ns);
    }
    let admin = Admin { entry, space, now_ns };
    match check(controller, subsystem, entry).and_then(|()| execute(controller, subsystem, &admin)) {
        Ok(Outcome::Done(dw0)) => controller.finish(subsystem, command, Status::SUCCESS, dw0),
        Ok(Outcome::Later) => queues::wait(controller, command),
        Ok(Outcome::AfterErasure) => {
            let host = subsystem.host(controller.number);
            match &mut subsystem.erasure {
                Some(erasure) => erasure.wait(command, host),
                None => refuse(controller, subsystem, command, Status::INTERNAL_ERROR),
            }
        }
        Ok(Outcome::AfterManagement(request)) => subsystem.manage(command, request, now_ns),
        Ok(Outcome::AfterOrder) => subsystem.order(command, now_ns),
        Ok(Outcome::AfterFlush) => features::begin_flush(controller, subsystem, command, now_ns),
        Err(status) => client_dma::fetch_or_refuse(controller, subsystem, command, status, space, now_ns),
    }
}

/// Checks the flags and the data pointer: admin commands over PCIe use PRPs, and those in capsules SGLs (Base
/// 3.3.3.1, PSDT).
fn check(controller: &Controller, subsystem: &Subsystem, entry: &SubmissionEntry) -> Result<(), Status> {
    check_flags(entry)?;
    sanitize::permits(subsystem, entry)?;
    match (entry.data_transfer(), controller.is_fabrics()) {
        (DataTransfer::Prp, false) | (DataTransfer::Sgl, true) => Ok(()),
        _ => Err(Status::INVALID_FIELD),
    }
}

fn execute(controller: &mut Controller, subsystem: &mut Subsystem, admin: &Admin<'_>) -> Answer {
    subsystem.check_admin(controller.number, admin.entry)?;
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
        opcode::FIRMWARE_DOWNLOAD => firmware::download(admin),
        opcode::FIRMWARE_COMMIT => {
            let answer = firmware::commit(admin);
            let status = answer.as_ref().err().copied().unwrap_or(Status::SUCCESS);
            controller.note_firmware_commit(subsystem, admin.entry.cdw10, status, admin.now_ns);
            answer
        }
        opcode::NAMESPACE_MANAGEMENT | opcode::NAMESPACE_ATTACHMENT => management::begin(subsystem, admin),
        opcode::KEEP_ALIVE => features::keep_alive(controller, admin),
        opcode::DOORBELL_BUFFER_CONFIG => doorbell_buffer::configure(controller, admin),
        _ => Err(Status::INVALID_OPCODE),
    }
}

/// Takes an Asynchronous Event Request, which waits without a reserved completion slot. A small admin queue
/// would otherwise be full of reserved slots. A slot is reserved when there is an event to report.
fn request_event(
    controller: &mut Controller,
    subsystem: &mut Subsystem,
    command: Command,
    entry: &SubmissionEntry,
) {
    if let Err(status) = check(controller, subsystem, entry) {
        return refuse(controller, subsystem, command, status);
    }
    match controller.events.request(command) {
        Ok(()) => {
            if let Some(cq) = &mut controller.cqs[0] {
                cq.unreserve(1);
            }
            if let Some(sq) = &mut controller.sqs[0] {
                sq.in_flight -= 1;
            }
        }
        Err(command) => refuse(controller, subsystem, command, Status::AER_LIMIT_EXCEEDED),
    }
}
