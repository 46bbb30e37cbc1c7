//! Passthrough commands, which the operator listed and the device gets as their host wrote them.
//!
//! The entry of a command with an LBA range (Verify, Write Uncorrectable) is made anew, with the blocks of
//! the drive's range. A vendor specific command keeps its parameters, since only the vendor defines whether
//! they are LBAs. In any case the target sets NSID, data pointer and CID; there is no metadata and no SGL.

use super::buffers::{BUFFER_BYTES, Buffer};
use super::chunk::{Scratch, Sent};
use super::confine::Partition;
use super::dma_maps::{DmaMaps, MappingSet};
use super::in_flight::{InFlight, Remaining};
use super::pointer::{Pointer, translate};
use super::port::{Generation, Link, ThreadRequest};
use super::target::Target;
use crate::remote::{BLOCKS_MAX, NamespaceInfo};
use sluice_command::{Command, Lane, Operation, Passthrough, Request, Slot, Ticket};
use sluice_nvme::opcode::{self, io};
use sluice_nvme::{NSID_ALL, Status, SubmissionEntry};

/// Limited Retry and Force Unit Access, in dword 12 of a command with an LBA range.
const LR_AND_FUA: u32 = 0b11 << 30;

/// An admin command for the admin thread, with the data to send or room for the data to receive.
#[derive(Debug)]
pub(super) struct AdminRequest {
    pub(super) ticket: Ticket,
    pub(super) entry: SubmissionEntry,
    pub(super) data: Vec<u8>,
}

/// Returns whether the device writes a command's data.
pub(super) fn brings_data(opcode: u8) -> bool {
    opcode & 0b10 != 0
}

/// Returns whether the command has an LBA range, in the format of a Read.
fn names_blocks(opcode: u8) -> bool {
    matches!(opcode, opcode::io::VERIFY | opcode::io::WRITE_UNCORRECTABLE)
}

/// Returns the effect of a command on unflushed data, as a request. A vendor specific command may write
/// anything.
pub(super) fn effect(slot: &Slot) -> Request {
    if !slot.origin.raw {
        return slot.request;
    }
    let operation = match slot.origin.opcode {
        io::FLUSH => Operation::Flush,
        io::READ | io::COMPARE | io::VERIFY => Operation::Read,
        _ => Operation::Deallocate,
    };
    Request { operation, ..Request::default() }
}

/// Returns whether a command may be sent once more with the same effect. A vendor specific command may not.
pub(super) fn may_be_repeated(slot: &Slot) -> bool {
    !slot.origin.raw || names_blocks(slot.origin.opcode)
}

/// Returns the entry for the device without CID and data pointer, and the bytes of its LBA range.
pub(super) fn made(
    entry: &SubmissionEntry,
    request: &Request,
    done: u64,
    info: &NamespaceInfo,
    range: &Partition,
) -> Result<(SubmissionEntry, u64), Status> {
    let nsid = range.nsid;
    if !names_blocks(entry.opcode) {
        let kept = SubmissionEntry { flags: 0, cid: 0, nsid, mptr: 0, dptr: [0; 2], ..*entry };
        return Ok((kept, 0));
    }
    // A device that limits transfers may limit these commands likewise (VSL, WUSL).
    let most = (info.transfer_max as u64).min(BLOCKS_MAX << range.block_shift);
    let left = request.length.saturating_sub(done);
    let (slba, blocks) = range.locate(request.offset.saturating_add(done), left.min(most))?;
    let nlb = blocks.checked_sub(1).ok_or(Status::INTERNAL_ERROR)?;
    let made = SubmissionEntry {
        opcode: entry.opcode,
        nsid,
        cdw10: slba as u32,
        cdw11: (slba >> 32) as u32,
        cdw12: nlb as u32 | entry.cdw12 & LR_AND_FUA,
        ..SubmissionEntry::default()
    };
    Ok((made, blocks << range.block_shift))
}

/// Returns the entry of an admin command for the device, without CID and data pointer.
///
/// # Errors
/// The command is for all namespaces, and so would reach other drives.
pub(super) fn admin(entry: &SubmissionEntry, nsid: u32) -> Result<SubmissionEntry, Status> {
    let nsid = match entry.nsid {
        0 => 0,
        // A log page of the controller is read with this NSID.
        NSID_ALL if entry.opcode == opcode::admin::GET_LOG_PAGE => NSID_ALL,
        NSID_ALL => return Err(Status::INVALID_NAMESPACE),
        _ => nsid,
    };
    Ok(SubmissionEntry { flags: 0, cid: 0, nsid, mptr: 0, dptr: [0; 2], ..*entry })
}

/// Checks a passthrough command before anything is done.
///
/// # Errors
/// The command is not listed, or leaves the drive, which has `size` bytes.
pub(super) fn check(slot: &Slot, listed: &Passthrough, size: u64) -> Result<(), Status> {
    let listed = match slot.origin.sq {
        0 => listed.admin,
        _ => listed.io,
    };
    if !listed.contains(slot.origin.opcode) {
        return Err(Status::INVALID_OPCODE);
    }
    if slot.request.end() > size { Err(Status::LBA_OUT_OF_RANGE) } else { Ok(()) }
}

/// Submits a command to the queue. Returns `Ok(None)` if there is no buffer for its data.
///
/// # Errors
/// The command leaves its range, or has more data than any buffer.
pub(super) fn send(
    (slot, entry): (&Slot, &SubmissionEntry),
    remaining: Remaining,
    (info, range): (&NamespaceInfo, &Partition),
    link: &mut Link,
    maps: &mut DmaMaps,
    scratch: Scratch<'_>,
) -> Result<Option<Sent>, Status> {
    let (made, blocks_bytes) = made(entry, &slot.request, remaining.done, info, range)?;
    let data_bytes = slot.data.len_bytes();
    if data_bytes > BUFFER_BYTES {
        return Err(Status::INTERNAL_ERROR);
    }
    let sent = match data_bytes {
        0 => push(link, made, &Pointer::Nothing).map(|cid| (cid, 0, None)),
        _ => send_data(made, slot, link, maps, scratch),
    };
    let bytes = blocks_bytes.max(data_bytes as u64);
    Ok(sent.map(|(cid, maps, buffer)| Sent {
        cid,
        flight: InFlight { remaining, bytes, maps, buffer, since_ns: 0, mark: 0 },
    }))
}

/// Submits a command with data: in the host's memory if that is mapped for the device, else in a buffer.
fn send_data(
    made: SubmissionEntry,
    slot: &Slot,
    link: &mut Link,
    maps: &mut DmaMaps,
    scratch: Scratch<'_>,
) -> Option<(u16, MappingSet, Option<Buffer>)> {
    if let Some((pointer, set)) = translate(&slot.data, slot.origin.controller, maps, scratch.pages) {
        return Some((push(link, made, &pointer)?, set, None));
    }
    let bytes = slot.data.len_bytes();
    let buffer = link.buffers.take()?;
    if !brings_data(made.opcode) {
        link.buffers.gather(&slot.data, 0, &buffer, bytes);
    }
    let pointer = Pointer::Span(link.buffers.range(&buffer, bytes));
    match push(link, made, &pointer) {
        Some(cid) => Some((cid, 0, Some(buffer))),
        None => {
            link.buffers.give_back(buffer);
            None
        }
    }
}

fn push(link: &mut Link, entry: SubmissionEntry, pointer: &Pointer<'_>) -> Option<u16> {
    link.queue.submit_with(entry, |slot, lists| pointer.write(slot, lists))
}

impl Target {
    /// Requests an admin command from the admin thread, which has the admin queue and waits for the
    /// completion.
    pub(super) fn send_admin(&mut self, command: Command, lane: &mut Lane<'_>) {
        let nsid = self.handle.port.range.nsid;
        let Some(generation) = self.generation() else {
            return lane.finish(command, Status::INTERNAL_PATH_ERROR);
        };
        let entry = *lane.entry(&command);
        let entry = match admin(&entry, nsid) {
            Ok(entry) => entry,
            Err(status) => return lane.finish(command, status),
        };
        let slot = lane.slot(&command);
        let mut data = vec![0; slot.data.len_bytes()];
        if !brings_data(entry.opcode) {
            slot.data.copy_to(0, &mut data);
        }
        let ticket = lane.park(command);
        let port = self.handle.port.id;
        self.handle.send(ThreadRequest::Admin {
            port,
            generation,
            request: Box::new(AdminRequest { ticket, entry, data }),
        });
    }

    /// Finishes an admin command that the admin thread has answered.
    pub(super) fn admin_done(&mut self, request: &AdminRequest, status: Status, lane: &mut Lane<'_>) {
        let Some(command) = lane.unpark(request.ticket) else { return };
        if status.is_success() && brings_data(request.entry.opcode) {
            lane.slot(&command).data.copy_from(0, &request.data);
        }
        lane.finish(command, status);
    }

    fn generation(&self) -> Option<Generation> {
        self.handle.link.as_ref().map(|link| link.generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use sluice_nvme::identify::{IdentifyController, IdentifyNamespace};
    use zerocopy::{FromZeros, IntoBytes};

    fn info() -> NamespaceInfo {
        let mut controller = IdentifyController::new_zeroed();
        controller.mdts = 8;
        let mut namespace = IdentifyNamespace::new_zeroed();
        namespace.nsze = 1 << 40;
        namespace.lbaf[0].lbads = 9;
        NamespaceInfo::of(1, &controller, &namespace).expect("a namespace")
    }

    proptest! {
        /// Checks with random entries that blocks are those of the range, and that no address of the host is
        /// left.
        #[test]
        fn an_entry_keeps_to_its_range(
            words in any::<[u64; 8]>(),
            opcode in prop::sample::select(vec![opcode::io::VERIFY, opcode::io::WRITE_UNCORRECTABLE, 0x81, 0x92]),
            offset in prop_oneof![0u64..1 << 19, 0u64..1 << 20, any::<u64>()],
            length in prop_oneof![0u64..1 << 18, 0u64..1 << 27, any::<u64>()],
            done in 0u64..4096,
            first in prop::sample::select(vec![1000, 0x1_0000_0000, 0x2_ffff_fff0]),
        ) {
            let entry: SubmissionEntry = zerocopy::transmute!(words);
            let entry = SubmissionEntry { opcode, ..entry };
            let range = Partition { nsid: 7, blocks: first..first + 2000, block_shift: 9 };
            let request = Request { offset: offset & !511, length: length & !511, ..Request::default() };
            let Ok((made, bytes)) = made(&entry, &request, done & !511, &info(), &range) else { return Ok(()) };
            prop_assert_eq!((made.opcode, made.nsid, made.mptr, made.dptr), (opcode, 7, 0, [0, 0]));
            prop_assert_eq!((made.flags, made.cid), (0, 0));
            if names_blocks(opcode) {
                let end = made.slba() + u64::from(made.blocks());
                prop_assert_eq!(made.slba(), first + (request.offset + (done & !511)) / 512);
                prop_assert!(end <= first + 2000);
                prop_assert_eq!(u64::from(made.blocks()) << 9, bytes);
                prop_assert_eq!(made.as_bytes()[52..].iter().filter(|byte| **byte != 0).count(), 0);
            } else {
                prop_assert_eq!(bytes, 0);
                prop_assert_eq!(made.cdw10, entry.cdw10);
            }
        }
    }
}
