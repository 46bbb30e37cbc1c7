//! Structures of the specification, filled in by the fuzzer.

use crate::Input;
use sluice_nvme::opcode::{admin, io};
use sluice_nvme::{NSID_ALL, SglDescriptor, SglType, SubmissionEntry};
use zerocopy::IntoBytes;

/// Source of addresses for pointers.
pub type Addresses = fn(&mut Input<'_>) -> u64;

const ADMIN: [u8; 17] = [
    admin::DELETE_IO_SQ,
    admin::CREATE_IO_SQ,
    admin::GET_LOG_PAGE,
    admin::DELETE_IO_CQ,
    admin::CREATE_IO_CQ,
    admin::IDENTIFY,
    admin::ABORT,
    admin::SET_FEATURES,
    admin::GET_FEATURES,
    admin::ASYNC_EVENT_REQUEST,
    admin::ASYNC_EVENT_REQUEST,
    admin::KEEP_ALIVE,
    admin::DOORBELL_BUFFER_CONFIG,
    admin::NAMESPACE_MANAGEMENT,
    admin::NAMESPACE_ATTACHMENT,
    admin::FORMAT_NVM,
    admin::SANITIZE,
];

const IO: [u8; 8] = [
    io::FLUSH,
    io::WRITE,
    io::READ,
    io::COMPARE,
    io::WRITE_ZEROES,
    io::DATASET_MANAGEMENT,
    io::READ,
    io::WRITE,
];

/// Draws an entry for an admin or an I/O queue, of a command that is often valid.
pub fn entry(input: &mut Input<'_>, is_admin: bool, address: Addresses) -> SubmissionEntry {
    let opcode = match input.below(16) {
        0 => input.byte(),
        _ if is_admin => input.pick(&ADMIN),
        _ => input.pick(&IO),
    };
    let flags = if input.one_in(8) { input.pick(&[0x40, 0x80, 0xc0, 1, 2, 0x3c, 0x40, 0x40]) } else { 0 };
    let nsid = nsid(input, is_admin);
    let mut entry = SubmissionEntry { opcode, flags, nsid, ..SubmissionEntry::default() };
    entry.dptr = match flags >> 6 {
        1 | 2 => descriptor(input, address).to_dptr(),
        _ => [address(input), address(input)],
    };
    if is_admin {
        [entry.cdw10, entry.cdw11, entry.cdw12] = [input.dword(), input.dword(), input.dword()];
        entry.cdw14 = input.dword();
    } else {
        fill_range(&mut entry, input);
    }
    entry
}

fn nsid(input: &mut Input<'_>, is_admin: bool) -> u32 {
    match input.below(8) {
        0 => input.pick(&[0, 2, 128, 129, NSID_ALL, NSID_ALL - 1]),
        1 => input.u32(),
        n if is_admin => input.pick(&[0, 0, NSID_ALL, n as u32]),
        n if n % 2 == 0 => 1,
        _ => 3,
    }
}

/// Sets SLBA, NLB and flags of an I/O command. Namespaces have a few hundred blocks.
fn fill_range(entry: &mut SubmissionEntry, input: &mut Input<'_>) {
    entry.cdw10 = if input.one_in(16) { input.dword() } else { input.byte().into() };
    entry.cdw11 = if input.one_in(16) { input.dword() } else { 0 };
    entry.cdw12 = match input.below(8) {
        0 => input.dword(),
        1 => u32::from(input.u16()),
        _ => u32::from(input.byte()) & 0x1f,
    };
    entry.cdw12 |= if input.one_in(4) { u32::from(input.byte()) << 24 } else { 0 };
    if entry.opcode == io::DATASET_MANAGEMENT {
        (entry.cdw10, entry.cdw11) = (entry.cdw12 & 0xff, 1 << 2);
    }
}

/// Draws an SGL descriptor.
pub fn descriptor(input: &mut Input<'_>, address: Addresses) -> SglDescriptor {
    let kind = match input.below(16) {
        0 => SglType(input.byte() & 0xf),
        1 | 2 => SglType::BIT_BUCKET,
        3 | 4 => SglType::SEGMENT,
        5..=7 => SglType::LAST_SEGMENT,
        _ => SglType::DATA_BLOCK,
    };
    let address = address(input);
    let is_pointer = kind == SglType::SEGMENT || kind == SglType::LAST_SEGMENT;
    let length = match input.below(16) {
        0 => input.dword(),
        _ if is_pointer => (u32::from(input.byte()) % 40 + 1) * SglDescriptor::SIZE as u32,
        1..=6 => u32::from(input.byte()),
        _ => u32::from(input.byte()) * 512,
    };
    let mut descriptor = SglDescriptor::new(kind, address, length);
    // Chains are well-formed unless the input decides otherwise.
    descriptor.address &= if is_pointer && !input.one_in(16) { !0xf } else { !0 };
    descriptor.identifier |= if input.one_in(32) { input.byte() & 0xf } else { 0 };
    descriptor
}

/// Draws structures of a guest's memory for a device to read: PRP entries, SGL descriptors, ranges of a
/// Dataset Management, submission entries, anything.
pub fn structures(input: &mut Input<'_>, address: Addresses) -> Vec<u8> {
    let count = input.below(48) + 1;
    let mut bytes = Vec::new();
    match input.below(5) {
        0 => prp_entries(input, address, count, &mut bytes),
        1 => (0..count).for_each(|_| bytes.extend(descriptor(input, address).as_bytes())),
        2 => (0..count).for_each(|_| bytes.extend(range(input))),
        3 => (0..count.min(8)).for_each(|_| bytes.extend(entry(input, false, address).as_bytes())),
        _ => bytes.extend(input.bytes(count)),
    }
    bytes
}

/// Draws pages, of which some follow each other.
fn prp_entries(input: &mut Input<'_>, address: Addresses, count: usize, bytes: &mut Vec<u8>) {
    let mut page = 0u64;
    for _ in 0..count {
        page = match input.below(4) {
            0 | 1 => page.wrapping_add(crate::guest::PAGE),
            2 => address(input) & !0xfff,
            _ => address(input),
        };
        bytes.extend(page.to_le_bytes());
    }
}

/// Draws a range of a Dataset Management (NVM Command Set 3.2.3).
fn range(input: &mut Input<'_>) -> [u8; 16] {
    let blocks = if input.one_in(8) { input.dword() } else { u32::from(input.byte()) & 0x3f };
    let slba = if input.one_in(8) { input.u64() } else { input.byte().into() };
    zerocopy::transmute!([u64::from(blocks) << 32 | u64::from(input.byte()), slba])
}
