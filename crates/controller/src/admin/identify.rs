//! Identify (Base 5.17): which structure is asked for, and of what.
//!
//! What the structures say is in [`describe`](super::describe).

use super::{Admin, Answer, Outcome, describe};
use crate::subsystem::{NN, Subsystem};
use crate::{Controller, NAMESPACES_MAX, Namespace, TRANSFER_MAX};
use sluice_nvme::identify::{CSI_NVM, SIZE, nidt};
use sluice_nvme::{Cns, NSID_ALL, PAGE_SIZE, Status, SubmissionEntry};
use zerocopy::IntoBytes;

type Page = [u8; SIZE];

const ZEROS: Page = [0; SIZE];

pub(super) fn identify(controller: &mut Controller, subsystem: &mut Subsystem, admin: &Admin<'_>) -> Answer {
    admin.to_host(&page(controller, subsystem, admin.entry)?)?;
    Ok(Outcome::Done(0))
}

fn page(controller: &Controller, subsystem: &Subsystem, entry: &SubmissionEntry) -> Result<Page, Status> {
    let of_namespace =
        |describe: &dyn Fn(&Namespace) -> Page| Ok(namespace(subsystem, entry.nsid)?.map_or(ZEROS, describe));
    match Cns(entry.cdw10 as u8) {
        Cns::CONTROLLER => Ok(zerocopy::transmute!(describe::controller(controller, subsystem))),
        Cns::NAMESPACE | Cns::ALLOCATED_NAMESPACE => {
            of_namespace(&|namespace| zerocopy::transmute!(describe::namespace(subsystem, namespace)))
        }
        Cns::INDEPENDENT_NAMESPACE => {
            of_namespace(&|namespace| zerocopy::transmute!(describe::independent(subsystem, namespace)))
        }
        Cns::ACTIVE_NAMESPACES | Cns::ALLOCATED_NAMESPACES => namespaces_after(subsystem, entry.nsid),
        Cns::NAMESPACE_DESCRIPTORS => descriptors(subsystem, entry.nsid),
        // The NVM command set has no storage tags here (NVM Command Set 4.1.5.3).
        Cns::COMMAND_SET_NAMESPACE => {
            check_command_set(entry)?;
            of_namespace(&|_| ZEROS)
        }
        Cns::COMMAND_SET_CONTROLLER => {
            check_command_set(entry)?;
            Ok(limits())
        }
        Cns::COMMAND_SET_ACTIVE_NAMESPACES => {
            check_command_set(entry)?;
            namespaces_after(subsystem, entry.nsid)
        }
        Cns::ATTACHED_CONTROLLERS => attached_controllers(subsystem, entry),
        Cns::CONTROLLERS => Ok(controllers(subsystem, entry)),
        Cns::COMMAND_SETS => command_sets(controller, entry),
        _ => Err(Status::INVALID_FIELD),
    }
}

/// The one limit besides MDTS to what a command covers (NVM Command Set 4.1.5.4): VSL, a power of two of
/// the smallest page, for Verify.
fn limits() -> Page {
    let mut page = ZEROS;
    page[0] = (TRANSFER_MAX / PAGE_SIZE as u32).ilog2() as u8;
    page
}

/// None for an NSID that is valid and inactive: the structures of such a one are zeros. The broadcast
/// NSID would stand for what all namespaces have in common, where namespaces can be managed.
fn namespace(subsystem: &Subsystem, nsid: u32) -> Result<Option<&Namespace>, Status> {
    match nsid {
        1..=NN => Ok(subsystem.get(nsid)),
        _ => Err(Status::INVALID_NAMESPACE),
    }
}

/// CSI in CDW11 bits 31:24.
fn check_command_set(entry: &SubmissionEntry) -> Result<(), Status> {
    if entry.cdw11 >> 24 == u32::from(CSI_NVM) { Ok(()) } else { Err(Status::INVALID_FIELD) }
}

/// CNTID in CDW10 bits 31:16.
fn controller_id(entry: &SubmissionEntry) -> u16 {
    (entry.cdw10 >> 16) as u16
}

/// A Namespace List: the NSIDs greater than the one given.
fn namespaces_after(subsystem: &Subsystem, after: u32) -> Result<Page, Status> {
    // Nothing is greater than these two (Base 5.17.2.2).
    if after >= NSID_ALL - 1 {
        return Err(Status::INVALID_NAMESPACE);
    }
    let mut list = [0u32; SIZE / size_of::<u32>()];
    let found = subsystem.iter().map(Namespace::nsid).filter(|&nsid| nsid > after);
    list.iter_mut().zip(found).for_each(|(entry, nsid)| *entry = nsid);
    Ok(zerocopy::transmute!(list))
}

const _: () = assert!(NAMESPACES_MAX <= SIZE / size_of::<u32>(), "every namespace fits into one list");

/// Namespace Identification Descriptors (Base 5.17.2.3).
fn descriptors(subsystem: &Subsystem, nsid: u32) -> Result<Page, Status> {
    let namespace = namespace(subsystem, nsid)?.ok_or(Subsystem::absent(nsid))?;
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

/// The controllers that a namespace is attached to: all there are.
fn attached_controllers(subsystem: &Subsystem, entry: &SubmissionEntry) -> Result<Page, Status> {
    if entry.nsid == NSID_ALL {
        return Err(Status::INVALID_FIELD);
    }
    match namespace(subsystem, entry.nsid)? {
        Some(_) => Ok(controllers(subsystem, entry)),
        None => Ok(ZEROS),
    }
}

/// A Controller List: how many, and then the identifiers from CNTID on.
fn controllers(subsystem: &Subsystem, entry: &SubmissionEntry) -> Page {
    let from = controller_id(entry);
    let mut found: Vec<u16> = subsystem.trays.cntlids().filter(|cntlid| *cntlid >= from).collect();
    found.sort_unstable();
    let mut list = [0u16; SIZE / size_of::<u16>()];
    list[0] = found.len() as u16;
    list[1..=found.len()].copy_from_slice(&found);
    zerocopy::transmute!(list)
}

/// I/O Command Sets (CNS 1Ch): the one combination there is consists of the NVM command set.
fn command_sets(controller: &Controller, entry: &SubmissionEntry) -> Result<Page, Status> {
    const THIS_CONTROLLER: u16 = 0xffff;
    const NVM: u64 = 1 << CSI_NVM;
    let asked = controller_id(entry);
    if asked != THIS_CONTROLLER && asked != controller.cntlid {
        return Err(Status::INVALID_FIELD);
    }
    let mut page = ZEROS;
    page[..size_of::<u64>()].copy_from_slice(NVM.as_bytes());
    Ok(page)
}
