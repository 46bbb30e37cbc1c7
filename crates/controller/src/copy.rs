//! Copy (NVM Command Set 3.2.4): reads a chunk of a source range into private memory, writes it to the
//! destination, and so on through all ranges.
//!
//! The addresses of this command are in its data, so it is unpacked before the router. A classifier sees a
//! Read and a Write for each chunk.

use crate::fetch::check_flags;
use crate::io::{self, Intake};
use crate::subsystem::Subsystem;
use crate::{Controller, Namespace, TRANSFER_MAX, chunk, fused, uncorrectable};
use sluice_command::{Command, Operation, Range, Request};
use sluice_memory::{Access, SegmentList, Space};
use sluice_nvme::opcode::io as opcode;
use sluice_nvme::{Status, SubmissionEntry};

/// Bytes of a source range entry.
const ENTRY: usize = 32;

/// Source ranges of a command; MSRC is one less.
pub(crate) const RANGES_MAX: usize = 128;

/// Bytes of all ranges together, and of each; MCL and MSSRL are the same in blocks.
pub(crate) const LENGTH_MAX: u64 = TRANSFER_MAX as u64;

/// Bits of the supported descriptor formats: ranges of this namespace, ranges with an NSID.
pub(crate) const FORMATS: u16 = 1 << OWN | 1 << NAMED;
const OWN: u32 = 0;
pub(crate) const NAMED: u32 = 2;

/// Takes a Copy that was just fetched. Not inlined, to keep it out of the path of other commands.
#[inline(never)]
pub(crate) fn begin(intake: &mut Intake<'_>, command: Command, entry: &SubmissionEntry) {
    let number = intake.subsystem.slab.slot(&command).origin.controller;
    intake.subsystem.health.note_effort();
    match plan(intake, entry, number) {
        Ok((ranges, destination)) => start(intake, command, &ranges, destination),
        Err(status) => {
            let Subsystem { fused, abandoned, slab, .. } = &mut *intake.subsystem;
            let slot = slab.slot_mut(&command);
            slot.request = Request { operation: Operation::Write, ..Request::default() };
            let may_wait = fused.has_claim() || !abandoned.is_empty();
            match status == fused::CLAIMED && may_wait {
                true => intake.subsystem.hold_back(command),
                false => intake.give_up(command, status),
            }
        }
    }
}

fn start(intake: &mut Intake<'_>, command: Command, ranges: &Ranges, to: u64) {
    let number = intake.subsystem.slab.number(&command);
    let slot = intake.subsystem.slab.slot_mut(&command);
    slot.request = Request::default();
    let steps = slot.steps.get_or_insert_default();
    (steps.progress, steps.destination) = (0, to);
    steps.ranges.clear();
    steps.ranges.extend_from_slice(ranges.as_slice());
    let Range { nsid, offset, length } = steps.ranges[0];
    match chunk::read(slot, number, &intake.subsystem.staging, offset, length) {
        Ok(()) => intake.subsystem.submit_to(nsid, command, intake.now_ns),
        Err(status) => {
            slot.status = status;
            intake.subsystem.done.push(command);
        }
    }
}

/// Source ranges on their way from the host's memory to the slot.
struct Ranges {
    list: [Range; RANGES_MAX],
    count: usize,
}

impl Ranges {
    fn as_slice(&self) -> &[Range] {
        &self.list[..self.count]
    }
}

/// Copies and checks the ranges. Returns them and their destination in bytes.
fn plan(intake: &Intake<'_>, entry: &SubmissionEntry, number: u8) -> Result<(Ranges, u64), Status> {
    check_flags(entry)?;
    let destination = intake.subsystem.get(entry.nsid).ok_or(Subsystem::status_of_inactive(entry.nsid))?;
    let format = entry.cdw12 >> 8 & 0xf;
    if format != OWN && !(format == NAMED && intake.features.copies_across()) {
        return Err(Status::INVALID_FIELD);
    }
    intake.subsystem.check_access(number, destination, opcode::COPY)?;
    let ranges = ranges(intake.space, entry, format, intake.subsystem, number)?;
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
    io::walk(space, entry, wire.len() as u32, Access::Read, &mut data)?;
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

/// Continues after a chunk was read or written. A failed command returns in dword 0 the index of the first
/// range that was not copied.
pub(crate) fn next(controller: &mut Controller, subsystem: &mut Subsystem, command: Command, now_ns: u64) {
    match step(controller, subsystem, &command) {
        Ok(Some(nsid)) => subsystem.resubmit(nsid, command, now_ns),
        Ok(None) => {
            let entry = subsystem.slab.entry(&command);
            let shift = subsystem.get(entry.nsid).map_or(0, Namespace::block_shift);
            let start = entry.slba() << shift;
            let end = subsystem.slab.slot(&command).steps.as_ref().map_or(start, |steps| steps.destination);
            uncorrectable::copied(controller, subsystem, command, start..end, now_ns);
        }
        Err((status, range)) => controller.finish(subsystem, command, status, range),
    }
}

/// Prepares the next step. Returns its namespace, or none if the command is done. An error includes the index
/// of its range.
fn step(
    controller: &mut Controller,
    subsystem: &mut Subsystem,
    command: &Command,
) -> Result<Option<u32>, (Status, u32)> {
    let number = subsystem.slab.number(command);
    let entry = subsystem.slab.entry(command);
    let (nsid, fua) = (entry.nsid, entry.fua() || !controller.features.write_cache_enabled());
    let slot = subsystem.slab.slot(command);
    let to = slot.steps.as_ref().map_or(0, |steps| steps.destination);
    // Otherwise a power cut could bring back data from before a Write Uncorrectable.
    let fua =
        fua || subsystem.get(nsid).is_some_and(|it| it.is_uncorrectable(&(to..to + slot.request.length)));
    let slot = subsystem.slab.slot_mut(command);
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
        return Ok(Some(nsid));
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
    chunk::read(slot, number, &subsystem.staging, offset, length).map_err(|status| (status, progress))?;
    Ok(Some(nsid))
}
