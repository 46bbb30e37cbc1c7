//! Identify (Base 5.17): selection of the data structure.
//!
//! The contents of the structures are in [`describe`](super::describe).

use crate::admin::{Answer, Outcome, describe};
use crate::model::request::Admin;
use crate::model::{Controller, Namespace, Subsystem};
use crate::state::limits::{NAMESPACES_MAX, NN, TRANSFER_MAX};
use sluice_nvme::identify::{CSI_NVM, SIZE, nidt};
use sluice_nvme::{Cns, NSID_ALL, PAGE_SIZE, Status, SubmissionEntry};
use zerocopy::IntoBytes;

type Page = [u8; SIZE];

const ZEROS: Page = [0; SIZE];

pub(crate) fn identify(controller: &mut Controller, subsystem: &mut Subsystem, admin: &Admin<'_>) -> Answer {
    admin.to_host(&page(controller, subsystem, admin.entry)?)?;
    Ok(Outcome::Done(0))
}

fn page(controller: &Controller, subsystem: &Subsystem, entry: &SubmissionEntry) -> Result<Page, Status> {
    let number = controller.number();
    let of_namespace = |describe: &dyn Fn(&Namespace) -> Page| {
        Ok(namespace(controller, subsystem, entry.nsid)?.map_or(ZEROS, describe))
    };
    match Cns(entry.cdw10 as u8) {
        Cns::CONTROLLER => Ok(zerocopy::transmute!(describe::controller(controller, subsystem))),
        // These are the common fields of namespaces that hosts create.
        Cns::NAMESPACE if entry.nsid == NSID_ALL && subsystem.jobs().management.pool.is_some() => {
            Ok(zerocopy::transmute!(describe::creatable()))
        }
        Cns::NAMESPACE => {
            of_namespace(&|namespace| zerocopy::transmute!(describe::namespace(subsystem, namespace)))
        }
        Cns::ALLOCATED_NAMESPACE => {
            let found = allocated(subsystem, entry.nsid)?.map(|it| describe::namespace(subsystem, it));
            Ok(found.map_or(ZEROS, |page| zerocopy::transmute!(page)))
        }
        Cns::INDEPENDENT_NAMESPACE => {
            of_namespace(&|namespace| zerocopy::transmute!(describe::independent(subsystem, namespace)))
        }
        Cns::ACTIVE_NAMESPACES => namespaces_after(subsystem.iter_active(number), entry.nsid),
        Cns::ALLOCATED_NAMESPACES => namespaces_after(subsystem.iter(), entry.nsid),
        Cns::NAMESPACE_DESCRIPTORS => descriptors(controller, subsystem, entry.nsid),
        // The NVM command set has no storage tags here (NVM Command Set 4.1.5.3).
        Cns::COMMAND_SET_NAMESPACE => {
            check_command_set(entry)?;
            of_namespace(&|_| ZEROS)
        }
        Cns::COMMAND_SET_CONTROLLER => {
            check_command_set(entry)?;
            Ok(limits(subsystem))
        }
        Cns::COMMAND_SET_ACTIVE_NAMESPACES => {
            check_command_set(entry)?;
            namespaces_after(subsystem.iter_active(number), entry.nsid)
        }
        Cns::COMMAND_SET_ALLOCATED_NAMESPACES => {
            check_command_set(entry)?;
            namespaces_after(subsystem.iter(), entry.nsid)
        }
        // The reply is that for an attached namespace.
        Cns::COMMAND_SET_ALLOCATED_NAMESPACE => {
            check_command_set(entry)?;
            allocated(subsystem, entry.nsid).map(|_| ZEROS)
        }
        Cns::ATTACHED_CONTROLLERS => attached_controllers(subsystem, entry),
        Cns::CONTROLLERS => Ok(controllers(subsystem, entry, |_| true)),
        Cns::COMMAND_SETS => command_sets(controller, entry),
        _ => Err(Status::INVALID_FIELD),
    }
}

/// Returns limits of commands besides MDTS (NVM Command Set 4.1.5.4). VSL is for Verify, as a power of two of
/// the smallest page. DMRL, DMRSL and DMSL are for Dataset Management, where a target could take long. Larger
/// commands are processed, too.
fn limits(subsystem: &Subsystem) -> Page {
    let mut page = ZEROS;
    page[0] = (TRANSFER_MAX / PAGE_SIZE as u32).ilog2() as u8;
    // The limit is in blocks and for all namespaces, so the largest block size counts.
    let shift = subsystem.iter().map(Namespace::block_shift).max().unwrap_or(0);
    let blocks = subsystem.deallocate_limit() >> shift;
    if blocks > 0 {
        page[3] = DEALLOCATE_RANGES;
        page[4..8].copy_from_slice(&u32::try_from(blocks).unwrap_or(u32::MAX).to_le_bytes());
        page[8..16].copy_from_slice(&(blocks * u64::from(DEALLOCATE_RANGES)).to_le_bytes());
    }
    page
}

/// Recommended number of ranges of a Dataset Management that has a limit.
const DEALLOCATE_RANGES: u8 = 64;

/// Returns a namespace of the controller, or none for a valid inactive NSID, whose structures are zeros.
fn namespace<'a>(
    controller: &Controller,
    subsystem: &'a Subsystem,
    nsid: u32,
) -> Result<Option<&'a Namespace>, Status> {
    Ok(allocated(subsystem, nsid)?.filter(|namespace| namespace.is_attached(controller.number())))
}

/// Returns a namespace, even if it is not attached to the controller.
fn allocated(subsystem: &Subsystem, nsid: u32) -> Result<Option<&Namespace>, Status> {
    match nsid {
        1..=NN => Ok(subsystem.get(nsid)),
        _ => Err(Status::INVALID_NAMESPACE),
    }
}

/// Checks CSI in CDW11 bits 31:24.
fn check_command_set(entry: &SubmissionEntry) -> Result<(), Status> {
    if entry.cdw11 >> 24 == u32::from(CSI_NVM) { Ok(()) } else { Err(Status::INVALID_FIELD) }
}

/// Returns CNTID in CDW10 bits 31:16.
fn controller_id(entry: &SubmissionEntry) -> u16 {
    (entry.cdw10 >> 16) as u16
}

/// Returns a Namespace List: the NSIDs greater than the one given.
fn namespaces_after<'a>(namespaces: impl Iterator<Item = &'a Namespace>, after: u32) -> Result<Page, Status> {
    // No NSID is greater than these two (Base 5.17.2.2).
    if after >= NSID_ALL - 1 {
        return Err(Status::INVALID_NAMESPACE);
    }
    let mut list = [0u32; SIZE / size_of::<u32>()];
    let found = namespaces.map(Namespace::nsid).filter(|&nsid| nsid > after);
    list.iter_mut().zip(found).for_each(|(entry, nsid)| *entry = nsid);
    Ok(zerocopy::transmute!(list))
}

const _: () = assert!(NAMESPACES_MAX <= SIZE / size_of::<u32>(), "every namespace fits into one list");

/// Returns the Namespace Identification Descriptors (Base 5.17.2.3).
fn descriptors(controller: &Controller, subsystem: &Subsystem, nsid: u32) -> Result<Page, Status> {
    let namespace = namespace(controller, subsystem, nsid)?.ok_or(Subsystem::status_of_inactive(nsid))?;
    let mut page = ZEROS;
    let mut rest = page.as_mut_slice();
    for (kind, identifier) in [
        (nidt::UUID, namespace.uuid().as_slice()),
        (nidt::NGUID, describe::nguid(namespace).as_slice()),
        (nidt::CSI, &[CSI_NVM]),
    ] {
        const HEADER: usize = 4;
        let (descriptor, behind) = rest.split_at_mut(HEADER + identifier.len());
        descriptor[0] = kind;
        descriptor[1] = identifier.len() as u8;
        descriptor[HEADER..].copy_from_slice(identifier);
        rest = behind;
    }
    Ok(page)
}

/// Returns the controllers that a namespace is attached to.
fn attached_controllers(subsystem: &Subsystem, entry: &SubmissionEntry) -> Result<Page, Status> {
    if entry.nsid == NSID_ALL {
        return Err(Status::INVALID_FIELD);
    }
    match allocated(subsystem, entry.nsid)? {
        Some(namespace) => Ok(controllers(subsystem, entry, |number| namespace.is_attached(number))),
        None => Ok(ZEROS),
    }
}

/// Returns a Controller List: their number, and then the identifiers from CNTID on.
fn controllers(subsystem: &Subsystem, entry: &SubmissionEntry, has: impl Fn(u8) -> bool) -> Page {
    let from = controller_id(entry);
    let present = subsystem.present().filter(|(number, _)| has(*number));
    let mut found: Vec<u16> = present.map(|(_, cntlid)| cntlid).filter(|cntlid| *cntlid >= from).collect();
    found.sort_unstable();
    let mut list = [0u16; SIZE / size_of::<u16>()];
    list[0] = found.len() as u16;
    list[1..=found.len()].copy_from_slice(&found);
    zerocopy::transmute!(list)
}

/// Returns the I/O Command Sets (CNS 1Ch): the only combination consists of the NVM command set.
fn command_sets(controller: &Controller, entry: &SubmissionEntry) -> Result<Page, Status> {
    const THIS_CONTROLLER: u16 = 0xffff;
    const NVM: u64 = 1 << CSI_NVM;
    let requested = controller_id(entry);
    if requested != THIS_CONTROLLER && requested != controller.cntlid() {
        return Err(Status::INVALID_FIELD);
    }
    let mut page = ZEROS;
    page[..size_of::<u64>()].copy_from_slice(NVM.as_bytes());
    Ok(page)
}
