//! Flushes of hosts, and the flushes of a Set Features that disables the write cache.

use crate::admin::features::is_of_reservations;
use crate::jobs::losses;
use crate::jobs::losses::of_flush;
use crate::model::{Controller, Subsystem};
use sluice_command::{Command, Operation, Request};
use sluice_nvme::{FeatureId, Status};

/// Completes a Flush of a host.
#[cold]
pub(crate) fn flushed(controller: &mut Controller, subsystem: &mut Subsystem, command: Command, now_ns: u64) {
    let slot = subsystem.slab().slot(&command);
    let (status, nsid) = (slot.status, u32::from(slot.origin.namespace) + 1);
    let status = of_flush(controller, subsystem, nsid, status, now_ns);
    controller.finish(subsystem, command, status, 0);
}

/// Flushes the cache for a Set Features that has disabled it.
pub(super) fn begin_flush(
    controller: &mut Controller,
    subsystem: &mut Subsystem,
    command: Command,
    now_ns: u64,
) {
    subsystem.slab_mut().slot_mut(&command).steps.get_or_insert_default().progress = 0;
    flush_next(controller, subsystem, command, now_ns);
}

/// Continues a Set Features after one of its steps.
pub(crate) fn next(controller: &mut Controller, subsystem: &mut Subsystem, command: Command, now_ns: u64) {
    if is_of_reservations(FeatureId(subsystem.slab().entry(&command).cdw10 as u8)) {
        let status = subsystem.slab().slot(&command).status;
        return controller.finish(subsystem, command, status, 0);
    }
    flush_next(controller, subsystem, command, now_ns);
}

/// Makes the command the Flush of the next namespace that has a cache; its progress is the NSID of the last
/// one. A classifier receives it as a Flush from the admin queue: where paths lead to different targets, only
/// the classifier selects the paths to flush.
fn flush_next(controller: &mut Controller, subsystem: &mut Subsystem, command: Command, now_ns: u64) {
    let slot = subsystem.slab_mut().slot_mut(&command);
    let (mut status, flushed) = (slot.status, slot.steps.get_or_insert_default().progress);
    if flushed > 0 {
        status = losses::of_flush(controller, subsystem, flushed, status, now_ns);
    }
    if !status.is_success() {
        controller.features.enable_write_cache(true);
        return controller.finish(subsystem, command, status, 0);
    }
    let Some(nsid) = subsystem.cached_namespaces().find(|&nsid| nsid > flushed) else {
        return controller.finish(subsystem, command, Status::SUCCESS, 0);
    };
    let slot = subsystem.slab_mut().slot_mut(&command);
    slot.request = Request { operation: Operation::Flush, ..Request::default() };
    slot.steps.get_or_insert_default().progress = nsid;
    subsystem.resubmit(nsid, command, now_ns);
}
