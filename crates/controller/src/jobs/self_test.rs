//! Device Self-test (Base 5.11): reads samples of the namespaces, a chunk at a time, while the host goes on.
//!
//! There is no medium to test. Failures below show when data is read: a short test reads a few places of each
//! namespace, an extended one many, up to all of it.

use crate::model::self_test::{NextRead, bytes_of};
use crate::model::slots::Way;
use crate::model::{Controller, Namespace, Subsystem};
use crate::state::chunk;
use crate::state::limits::NN;
use crate::state::self_test::{TestKind, ended, place_of};
use sluice_command::Origin;
use sluice_nvme::opcode::{admin, io};
use sluice_nvme::{NSID_ALL, Status, SubmissionEntry};

/// Begins a test for a Device Self-test command, or aborts the one that runs.
pub(crate) fn command(
    controller: &mut Controller,
    subsystem: &mut Subsystem,
    entry: &SubmissionEntry,
    now_ns: u64,
) -> Result<(), Status> {
    const ABORT: u32 = 0xf;
    let kind = match entry.cdw10 & 0xf {
        1 => TestKind::Short,
        2 => TestKind::Extended,
        ABORT => {
            controller.end_self_test(subsystem, ended::ABORTED, now_ns);
            return Ok(());
        }
        _ => return Err(Status::INVALID_FIELD),
    };
    let nsids = namespaces(controller, subsystem, entry.nsid)?;
    controller.begin_self_test(kind, entry.nsid, nsids, now_ns)
}

fn namespaces(controller: &Controller, subsystem: &Subsystem, nsid: u32) -> Result<Vec<u32>, Status> {
    let number = controller.number();
    match nsid {
        0 => Ok(Vec::new()),
        NSID_ALL => Ok(subsystem.iter_active(number).map(Namespace::nsid).collect()),
        1..=NN if subsystem.active(number, nsid).is_some() => Ok(vec![nsid]),
        // An NSID without an active namespace is invalid for this command, inactive or not (Base 5.11).
        _ => Err(Status::INVALID_NAMESPACE),
    }
}

/// Continues the test when its time has come.
pub(crate) fn advance(controller: &mut Controller, subsystem: &mut Subsystem, now_ns: u64) {
    if let Some(read) = controller.next_self_test_read(subsystem, now_ns) {
        read_place(controller, subsystem, read, now_ns);
    }
}

fn read_place(controller: &Controller, subsystem: &mut Subsystem, read: NextRead, now_ns: u64) {
    let NextRead { nsid, number, place, places } = read;
    let Some(namespace) = subsystem.get(nsid) else { return };
    let (shift, bytes) = (namespace.block_shift(), bytes_of(subsystem, nsid));
    let offset = place_of(bytes, places, place);
    let left = (bytes - offset).min(chunk::CHUNK as u64);
    let slba = offset >> shift;
    let entry = SubmissionEntry {
        opcode: io::READ,
        nsid,
        cdw10: slba as u32,
        cdw11: (slba >> 32) as u32,
        cdw12: (left >> shift) as u32 - 1,
        ..SubmissionEntry::default()
    };
    let origin = Origin {
        sq: Origin::INTERNAL_SQ,
        controller: controller.number(),
        opcode: admin::DEVICE_SELF_TEST,
        epoch: number,
        ..Origin::default()
    };
    subsystem.start_internal(&entry, origin, Way::Router, now_ns, |slot, number, staging| {
        chunk::read(slot, number, staging, offset, left)
    });
}
