//! Requests of Namespace Management and Namespace Attachment, from dwords and data of a command.

pub(crate) mod plan;
pub(crate) mod progress;

use crate::model::Subsystem;
use crate::model::request::Admin;
use crate::state::format;
use crate::state::limits::{ANA_GROUPS_MAX, NN};
use crate::state::management::{Creation, Request};
use sluice_nvme::Status;
use sluice_nvme::identify::{CSI_NVM, IdentifyNamespace, SIZE};
use sluice_nvme::opcode::admin as opcode;

/// Takes one of the two commands.
pub(crate) fn begin(subsystem: &Subsystem, admin: &Admin<'_>) -> Result<Request, Status> {
    if subsystem.jobs().management.pool.is_none() {
        return Err(Status::INVALID_OPCODE);
    }
    let select = admin.entry.cdw10 & 0xf;
    match (admin.entry.opcode, select) {
        (opcode::NAMESPACE_MANAGEMENT, 0) => create(subsystem, admin),
        (opcode::NAMESPACE_MANAGEMENT, 1) => Ok(Request::Delete(admin.entry.nsid)),
        (opcode::NAMESPACE_ATTACHMENT, 0 | 1) => attach(admin, select == 0),
        _ => Err(Status::INVALID_FIELD),
    }
}

/// Reads the fields of Identify Namespace that a host may choose (NVM Command Set 4.1.6).
fn create(subsystem: &Subsystem, admin: &Admin<'_>) -> Result<Request, Status> {
    const SHARED: u8 = 1 << 0;
    if admin.entry.cdw11 >> 24 != u32::from(CSI_NVM) {
        return Err(Status::COMMAND_SET_NOT_SUPPORTED);
    }
    if admin.entry.nsid != 0 {
        return Err(Status::INVALID_FIELD);
    }
    let mut data = [0; SIZE];
    admin.take_from_host(&mut data)?;
    let data: IdentifyNamespace = zerocopy::transmute!(data);
    if data.nsze == 0 || data.ncap > data.nsze || data.nmic & !SHARED != 0 {
        return Err(Status::INVALID_FIELD);
    }
    if data.ncap < data.nsze {
        return Err(Status::THIN_PROVISIONING_NOT_SUPPORTED);
    }
    // Sets and endurance groups are not supported; zero means none.
    if data.nvmsetid != 0 || data.endgid != 0 {
        return Err(Status::INVALID_FIELD);
    }
    let index = usize::from(data.flbas & 0xf | data.flbas >> 1 & 0x30);
    let block_size = format::BLOCK_SIZES.get(index).copied().filter(|_| data.dps == 0);
    let block_size = block_size.ok_or(Status::INVALID_FORMAT)?;
    let ana_group = match data.anagrpid {
        0 => 1,
        group if group <= ANA_GROUPS_MAX && subsystem.is_shared() => group,
        _ => return Err(Status::ANA_GROUP_IDENTIFIER_INVALID),
    };
    let (nsid, blocks, shared) = (0, data.nsze, data.nmic & SHARED != 0);
    Ok(Request::Create(Creation { nsid, block_size, blocks, shared, ana_group }))
}

/// Reads a Controller List: their number, and their identifiers in ascending order (Base 4.6.1).
fn attach(admin: &Admin<'_>, attach: bool) -> Result<Request, Status> {
    let nsid = admin.entry.nsid;
    if !(1..=NN).contains(&nsid) {
        return Err(Status::INVALID_NAMESPACE);
    }
    let mut data = [0; SIZE];
    admin.take_from_host(&mut data)?;
    let list: [u16; SIZE / size_of::<u16>()] = zerocopy::transmute!(data);
    let (count, list) = (usize::from(list[0]), &list[1..]);
    let cntlids = list.get(..count).filter(|it| !it.is_empty() && it.is_sorted_by(|a, b| a < b));
    let cntlids = cntlids.ok_or(Status::CONTROLLER_LIST_INVALID)?.to_vec();
    Ok(Request::Attach { nsid, cntlids, attach })
}
