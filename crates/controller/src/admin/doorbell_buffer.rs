//! Doorbell Buffer Config (Base 5.8).

use crate::admin::{Answer, Outcome};
use crate::model::Controller;
use crate::model::request::Admin;
use crate::state::doorbells::{DoorbellMode, PAGE, Shadow};
use sluice_memory::Access;
use sluice_nvme::Status;

pub(crate) fn configure(controller: &mut Controller, admin: &Admin<'_>) -> Answer {
    if controller.doorbell_mode() != DoorbellMode::Trapped {
        return Err(Status::INVALID_OPCODE);
    }
    let [doorbells, event_index] = admin.entry.dptr;
    let aligned = |address: u64| address.is_multiple_of(admin.space.page_size() as u64);
    if !aligned(doorbells) || !aligned(event_index) {
        return Err(Status::INVALID_FIELD);
    }
    if controller.has_shadow_queues() {
        // A tail that is not rung would never be found in a shadow queue. Hosts continue without shadow
        // doorbells.
        return Err(Status::INVALID_FIELD);
    }
    let shadow = Shadow {
        addresses: admin.entry.dptr,
        doorbells: admin.space.queue(doorbells, PAGE, Access::Write)?,
        event_index: admin.space.queue(event_index, PAGE, Access::Write)?,
    };
    controller.doorbells.use_shadow(shadow);
    controller.disarm();
    controller.record_shadow(admin.entry.dptr);
    Ok(Outcome::Done(0))
}
