//! Set Features and Get Features (Base 5.27, 5.15).

use super::{Admin, Answer, Outcome};
use crate::Controller;
use sluice_nvme::{FeatureId, Status};

pub(super) fn set(controller: &mut Controller, admin: &Admin<'_>) -> Answer {
    match FeatureId(admin.entry.cdw10 as u8) {
        FeatureId::NUMBER_OF_QUEUES => Ok(Outcome::Done(number_of_queues(controller))),
        _ => Err(Status::INVALID_FIELD),
    }
}

pub(super) fn get(controller: &mut Controller, admin: &Admin<'_>) -> Answer {
    match FeatureId(admin.entry.cdw10 as u8) {
        FeatureId::NUMBER_OF_QUEUES => Ok(Outcome::Done(number_of_queues(controller))),
        _ => Err(Status::INVALID_FIELD),
    }
}

fn number_of_queues(controller: &Controller) -> u32 {
    let count = u32::from(controller.features.io_queues()) - 1;
    count << 16 | count
}
