//! Get Log Page (Base 5.16).

use super::{Admin, Answer};
use crate::Controller;
use sluice_nvme::Status;

pub(super) fn get_log_page(_controller: &mut Controller, _admin: &Admin<'_>) -> Answer {
    Err(Status::INVALID_LOG_PAGE)
}
