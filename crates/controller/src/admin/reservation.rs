//! Features of reservations: Host Identifier, Reservation Notification Mask, and Reservation Persistence
//! (Base 5.27, 81h to 83h).

use crate::admin::{Answer, Outcome};
use crate::model::request::Admin;
use crate::model::{Controller, Subsystem};
use crate::state::reservation::HostId;
use sluice_nvme::feature::{EXTENDED_HOST_IDENTIFIER, PERSIST_THROUGH_POWER_LOSS};
use sluice_nvme::{FeatureId, NSID_ALL, Status};

/// Sets one of these features, whose NSID was checked.
pub(super) fn set(
    controller: &mut Controller,
    subsystem: &mut Subsystem,
    admin: &Admin<'_>,
    id: FeatureId,
) -> Answer {
    match id {
        FeatureId::HOST_IDENTIFIER => set_host(controller, subsystem, admin)?,
        FeatureId::RESERVATION_NOTIFICATION_MASK => {
            let nsids = subsystem.iter_active(controller.number()).map(|namespace| namespace.nsid());
            let concerned = nsids.filter(|nsid| admin.entry.nsid == NSID_ALL || admin.entry.nsid == *nsid);
            concerned.for_each(|nsid| controller.set_reservation_mask(nsid, admin.entry.cdw11));
        }
        _ => return Ok(Outcome::AfterOrder),
    }
    Ok(Outcome::Done(0))
}

/// Sets the Host Identifier. A host on a fabric has set it with Connect, and no host can change its
/// identifier.
fn set_host(controller: &Controller, subsystem: &mut Subsystem, admin: &Admin<'_>) -> Result<(), Status> {
    if controller.is_fabrics() {
        return Err(Status::COMMAND_SEQUENCE_ERROR);
    }
    let (now, number) = (subsystem.host(controller.number()), controller.number());
    let host = match admin.entry.cdw11 & EXTENDED_HOST_IDENTIFIER {
        0 => {
            let mut bytes = [0; 8];
            admin.take_from_host(&mut bytes)?;
            HostId::short(bytes, number)
        }
        _ => {
            let mut bytes = [0; 16];
            admin.take_from_host(&mut bytes)?;
            // Zero is valid only in 64 bits.
            if bytes == [0; 16] {
                return Err(Status::INVALID_FIELD);
            }
            HostId::extended(bytes, number)
        }
    };
    if now.is_named() && host != now {
        return Err(Status::COMMAND_SEQUENCE_ERROR);
    }
    if subsystem.belongs_to_another(host, number) {
        return Err(Status::INVALID_FIELD);
    }
    if host != now {
        subsystem.set_host(number, host);
    }
    Ok(())
}

/// Returns the current value of one of these features, or its default.
pub(super) fn get(
    controller: &Controller,
    subsystem: &Subsystem,
    admin: &Admin<'_>,
    id: FeatureId,
    current: bool,
) -> Answer {
    if id == FeatureId::HOST_IDENTIFIER {
        let host = subsystem.host(controller.number());
        let host = if current { host } else { HostId::Unnamed(controller.number()) };
        let bytes = host.bytes();
        match (admin.entry.cdw11 & EXTENDED_HOST_IDENTIFIER != 0, host) {
            (true, _) => admin.to_host(&bytes)?,
            (false, HostId::Extended(_)) => return Err(Status::INVALID_FIELD),
            (false, _) => admin.to_host(&bytes[..8])?,
        }
        return Ok(Outcome::Done(0));
    }
    let nsid = admin.entry.nsid;
    let namespace = subsystem.active(controller.number(), nsid).ok_or(Subsystem::status_of_inactive(nsid))?;
    Ok(Outcome::Done(match id {
        _ if !current => 0,
        FeatureId::RESERVATION_NOTIFICATION_MASK => controller.reservation_mask(nsid).into(),
        _ => u32::from(namespace.reservations().persists()) * PERSIST_THROUGH_POWER_LOSS,
    }))
}
