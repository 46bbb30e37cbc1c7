//! Copy (NVM Command Set 3.2.4): reads a chunk of a source range into private memory, writes it to the
//! destination, and so on through all ranges.
//!
//! The addresses of this command are in its data, so it is unpacked before the router. A classifier sees a
//! Read and a Write for each chunk.

use crate::command::{Step, uncorrectable};
use crate::model::{Namespace, Subsystem};
use crate::state::copy::{LENGTH_MAX, NAMED, OWN, RANGES_MAX};
use crate::state::features::Features;
use crate::state::{chunk, data_pointer};
use sluice_command::{Operation, Range, Request, Slot};
use sluice_memory::{Access, SegmentList, SharedRegion, Space};
use sluice_nvme::opcode::io as opcode;
use sluice_nvme::{Status, SubmissionEntry};

/// Bytes of a source range entry.
const ENTRY: usize = 32;

/// Source ranges on their way from the host's memory to the slot.
pub(crate) struct Ranges {
    list: [Range; RANGES_MAX],
    count: usize,
}

impl Ranges {
    pub(crate) fn as_slice(&self) -> &[Range] {
        &self.list[..self.count]
    }
}

/// Copies and checks the ranges. Returns them and their destination in bytes.
pub(crate) fn plan(
    subsystem: &Subsystem,
    features: &Features,
    space: &Space,
    entry: &SubmissionEntry,
    number: u8,
) -> Result<(Ranges, u64), Status> {
    data_pointer::check_flags(entry)?;
    let destination = subsystem.get(entry.nsid).ok_or(Subsystem::status_of_inactive(entry.nsid))?;
    let format = entry.cdw12 >> 8 & 0xf;
    if format != OWN && !(format == NAMED && features.copies_across()) {
        return Err(Status::INVALID_FIELD);
    }
    subsystem.check_access(number, destination, opcode::COPY)?;
    let ranges = ranges(space, entry, format, subsystem, number)?;
    let length: u64 = ranges.as_slice().iter().map(|range| range.length).sum();
    if length > LENGTH_MAX {
        return Err(Status::COMMAND_SIZE_LIMIT_EXCEEDED);
    }
    if destination.is_read_only() {
        return Err(Status::NAMESPACE_WRITE_PROTECTED);
    }
    let shift = destination.block_shift();
    destination.check(Operation::Write, entry.slba(), length >> shift)?;
    let to = entry.slba() << shift;
    let overlaps = |range: &Range| {
        range.nsid == entry.nsid && range.offset < to + length && to < range.offset + range.length
    };
    match ranges.as_slice().iter().any(overlaps) {
        // Overlapping data would be read in chunks after parts of it were written: the outcome would be
        // useless.
        true => Err(Status::OVERLAPPING_RANGE),
        false => Ok((ranges, to)),
    }
}

/// Reads every source range, and checks that it is inside its namespace and has the destination's block size.
fn ranges(
    space: &Space,
    entry: &SubmissionEntry,
    format: u32,
    subsystem: &Subsystem,
    number: u8,
) -> Result<Ranges, Status> {
    let count = (entry.cdw12 as usize & 0xff) + 1;
    if count > RANGES_MAX {
        return Err(Status::COMMAND_SIZE_LIMIT_EXCEEDED);
    }
    let mut wire = [0; RANGES_MAX * ENTRY];
    let wire = &mut wire[..count * ENTRY];
    let mut data = SegmentList::new();
    data_pointer::walk(space, entry, wire.len() as u32, Access::Read, &mut data)?;
    if data.copy_to(0, wire) != wire.len() {
        return Err(Status::DATA_TRANSFER_ERROR);
    }
    let destination = subsystem.get(entry.nsid).ok_or(Subsystem::status_of_inactive(entry.nsid))?;
    let nothing = Range { nsid: 0, offset: 0, length: 0 };
    let mut ranges = Ranges { list: [nothing; RANGES_MAX], count };
    for (range, wire) in ranges.list.iter_mut().zip(wire.as_chunks::<ENTRY>().0) {
        let [named, slba, blocks, _]: [u64; 4] = zerocopy::transmute!(*wire);
        let nsid = if format == NAMED { named as u32 } else { entry.nsid };
        let source = subsystem.get(nsid).ok_or(Subsystem::status_of_inactive(nsid))?;
        subsystem.check_access(number, source, opcode::READ)?;
        *range = source_range(source, destination, slba, (blocks & 0xffff) + 1)?;
    }
    Ok(ranges)
}

fn source_range(
    source: &Namespace,
    destination: &Namespace,
    slba: u64,
    blocks: u64,
) -> Result<Range, Status> {
    let shift = source.block_shift();
    if shift != destination.block_shift() {
        return Err(Status::INCOMPATIBLE_NAMESPACE);
    }
    if blocks << shift > LENGTH_MAX {
        return Err(Status::COMMAND_SIZE_LIMIT_EXCEEDED);
    }
    source.check(Operation::Read, slba, blocks)?;
    Ok(Range { nsid: source.nsid(), offset: slba << shift, length: blocks << shift })
}

/// Returns the next step after a chunk was read or written. A failed command returns in dword 0 the index of
/// the first range that was not copied.
pub(crate) fn next(
    slot: &mut Slot,
    number: usize,
    entry: &SubmissionEntry,
    destination: Option<&Namespace>,
    features: &Features,
    staging: &SharedRegion,
) -> Step {
    match step(slot, number, entry, destination, features, staging) {
        Ok(Some(nsid)) => Step::SendTo(nsid),
        Ok(None) => {
            let start = entry.slba() << destination.map_or(0, Namespace::block_shift);
            let end = slot.steps.as_ref().map_or(start, |steps| steps.destination);
            if !destination.is_some_and(|namespace| namespace.is_uncorrectable(&(start..end))) {
                return Step::Finish(Status::SUCCESS, 0);
            }
            (slot.request.offset, slot.request.length) = (start, end - start);
            uncorrectable::next(slot)
        }
        Err((status, range)) => Step::Finish(status, range),
    }
}

/// Prepares the next step. Returns its namespace, or none if the command is done. An error includes the index
/// of its range.
fn step(
    slot: &mut Slot,
    number: usize,
    entry: &SubmissionEntry,
    destination: Option<&Namespace>,
    features: &Features,
    staging: &SharedRegion,
) -> Result<Option<u32>, (Status, u32)> {
    let to = slot.steps.as_ref().map_or(0, |steps| steps.destination);
    // Otherwise a power cut could bring back data from before a Write Uncorrectable.
    let fua = entry.fua()
        || !features.write_cache_enabled()
        || destination.is_some_and(|it| it.is_uncorrectable(&(to..to + slot.request.length)));
    if !slot.status.is_success() {
        // A refused command never had a step.
        let progress =
            slot.steps.as_ref().filter(|_| slot.request.length > 0).map_or(0, |steps| steps.progress);
        return Err((slot.status, progress));
    }
    let Some(steps) = &mut slot.steps else { return Err((Status::INTERNAL_ERROR, 0)) };
    if slot.request.operation == Operation::Read {
        let (offset, length) = (steps.destination, slot.request.length);
        slot.request = Request { operation: Operation::Write, fua, offset, length, ..Request::default() };
        return Ok(Some(entry.nsid));
    }
    let (moved, progress) = (slot.request.length, steps.progress);
    slot.request.fua = false;
    steps.destination += moved;
    let range = &mut steps.ranges[progress as usize];
    (range.offset, range.length) = (range.offset + moved, range.length - moved);
    if range.length == 0 {
        steps.progress += 1;
    }
    let Some(&Range { nsid, offset, length }) = steps.ranges.get(steps.progress as usize) else {
        return Ok(None);
    };
    chunk::read(slot, number, staging, offset, length).map_err(|status| (status, progress))?;
    Ok(Some(nsid))
}
