//! Persistent Event Log page (Base 5.16.1.14). A host reads it out of a *context*, which holds the log as of
//! the time when the context was established. The context ends when the host releases it, or with a reset of
//! the controller.

use crate::admin::log::LogRequest;
use crate::admin::{Answer, Outcome, describe};
use crate::model::request::Admin;
use crate::model::{Controller, Subsystem};
use crate::state::persistent_event::{KINDS, PERSISTENT_EVENT_LOG_BYTES};
use sluice_nvme::persistent_event::{LogHeader, action};
use sluice_nvme::{LogId, Status};
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromZeros, IntoBytes};

/// Identify's PELS.
pub(super) const SIZE: u32 = (PERSISTENT_EVENT_LOG_BYTES >> 16) as u32;

/// Bit in the page of supported log pages: the header can be read with a context and without.
pub(super) const READS_HEADER: u32 = 1 << 16;

pub(super) fn get(
    controller: &mut Controller,
    subsystem: &mut Subsystem,
    admin: &Admin<'_>,
    request: &LogRequest,
) -> Answer {
    match ((admin.entry.cdw10 >> 8) as u8 & 3, controller.has_log_context()) {
        (action::READ, true) => {}
        (action::RELEASE, _) => {
            controller.release_log_context();
            return Ok(Outcome::Done(0));
        }
        (action::ESTABLISH_AND_READ | action::ESTABLISH_AND_READ_HEADER, false) => {
            let page = page(controller, subsystem, admin.now_ns);
            send(admin, request, &page)?;
            controller.establish_log_context(subsystem, page);
            return Ok(Outcome::Done(0));
        }
        (action::ESTABLISH_AND_READ_HEADER, true) => {}
        _ => return Err(Status::COMMAND_SEQUENCE_ERROR),
    }
    let page = controller.read_log_context().ok_or(Status::COMMAND_SEQUENCE_ERROR)?;
    send(admin, request, page)?;
    Ok(Outcome::Done(0))
}

/// Sends the requested part of the page, or of its header.
fn send(admin: &Admin<'_>, request: &LogRequest, page: &[u8]) -> Result<(), Status> {
    let only_header = (admin.entry.cdw10 >> 8) as u8 & 3 == action::ESTABLISH_AND_READ_HEADER;
    let page = if only_header { &page[..LogHeader::SIZE] } else { page };
    if request.offset > page.len() as u64 {
        return Err(Status::INVALID_FIELD);
    }
    let rest = &page[request.offset as usize..];
    let sent = &rest[..rest.len().min(request.length as usize)];
    match sent.is_empty() {
        true => Ok(()),
        false => admin.to_buffer(request.length as usize, sent),
    }
}

/// Returns the current page.
fn page(controller: &Controller, subsystem: &Subsystem, now_ns: u64) -> Vec<u8> {
    let mut page = vec![0; LogHeader::SIZE];
    subsystem.jobs().persistent_events.events().for_each(|event| page.extend_from_slice(event));
    let identify = describe::controller(controller, subsystem);
    let hours = u128::from(subsystem.health().power_on_hours(now_ns));
    let mut header = LogHeader::new_zeroed();
    header.log = LogId::PERSISTENT_EVENT.0;
    header.events = U32::new(subsystem.jobs().persistent_events.count());
    header.length = U64::new(page.len() as u64);
    header.revision = LogHeader::REVISION;
    header.header_length = U16::new(LogHeader::LENGTH);
    header.timestamp = U64::new(subsystem.timestamp(now_ns));
    header.power_on_hours = hours.to_le_bytes();
    header.power_cycles = U64::new(subsystem.health().power_cycles());
    header.pci_vendor = U16::new(identify.vid);
    header.pci_subsystem_vendor = U16::new(identify.ssvid);
    header.serial = identify.sn;
    header.model = identify.mn;
    header.subnqn = identify.subnqn;
    header.generation = U16::new(subsystem.jobs().persistent_events.generation);
    KINDS.iter().for_each(|kind| header.supported[usize::from(kind / 8)] |= 1 << (kind % 8));
    page[..LogHeader::SIZE].copy_from_slice(header.as_bytes());
    page
}
