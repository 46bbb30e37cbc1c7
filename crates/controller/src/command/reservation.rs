//! Reservation commands (Base 7.2 to 7.5): checks and Reservation Report.

use crate::command::{Next, Step};
use crate::model::Namespace;
use crate::state::data_pointer;
use crate::state::limits::TRANSFER_MAX;
use crate::state::reservation::HostId;
use crate::state::reservation::command::{KEYS, is_decided, set_decided};
use sluice_command::{Operation, Request, Slot};
use sluice_memory::{Access, Space};
use sluice_nvme::opcode::io as opcode;
use sluice_nvme::{Status, SubmissionEntry};

/// Translates the data pointer of a command that was just fetched. The command is executed in its
/// [turn](next).
#[cold]
pub(crate) fn check(slot: &mut Slot, entry: &SubmissionEntry, space: &Space) -> Result<Next, Status> {
    slot.request = Request { operation: Operation::Flush, ..Request::default() };
    set_decided(slot, false);
    let (access, bytes) = match entry.opcode {
        // NUMD, 0's based.
        opcode::RESERVATION_REPORT => (Access::Write, (u64::from(entry.cdw10) + 1) * 4),
        opcode::RESERVATION_RELEASE => (Access::Read, KEYS as u64 / 2),
        _ => (Access::Read, KEYS as u64),
    };
    if bytes > u64::from(TRANSFER_MAX) {
        return Err(Status::INVALID_FIELD);
    }
    data_pointer::walk(space, entry, bytes as u32, access, &mut slot.data)?;
    Ok(Next::Nothing)
}

/// Returns the next step of a command that was checked, or that was decided.
pub(crate) fn next(
    slot: &Slot,
    entry: &SubmissionEntry,
    namespace: Option<&Namespace>,
    host: HostId,
) -> Step {
    if is_decided(slot) || !slot.status.is_success() {
        return Step::Finish(slot.status, 0);
    }
    match entry.opcode {
        opcode::RESERVATION_REPORT => {
            let status = report(slot, entry, namespace, host).err().unwrap_or(Status::SUCCESS);
            Step::Finish(status, 0)
        }
        _ => Step::Order,
    }
}

/// Writes as much of the Reservation Status data structure as there is room for.
fn report(
    slot: &Slot,
    entry: &SubmissionEntry,
    namespace: Option<&Namespace>,
    host: HostId,
) -> Result<(), Status> {
    const EXTENDED: u32 = 1 << 0;
    let namespace = namespace.ok_or(Status::INVALID_NAMESPACE)?;
    let report = namespace.reservations().report(host, entry.cdw11 & EXTENDED != 0)?;
    let wanted = report.len().min(slot.data.len_bytes());
    match slot.data.copy_from(0, &report[..wanted]) == wanted {
        true => Ok(()),
        false => Err(Status::DATA_TRANSFER_ERROR),
    }
}
