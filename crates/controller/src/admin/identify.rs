//! Identify (Base 5.17).

use super::{Admin, Answer};
use crate::Controller;
use sluice_nvme::Status;

pub(super) fn identify(_controller: &mut Controller, _admin: &Admin<'_>) -> Answer {
    Err(Status::INVALID_FIELD)
}
