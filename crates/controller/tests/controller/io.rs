//! I/O commands: data, ranges, and all mistakes of a host.

use crate::host::{Host, PAGE, entry, io as io_entry};
use crate::model::Model;
use sluice_command::{Characteristics, Deallocated, NodeId, Operation};
use sluice_controller::Subsystem;
use sluice_nvme::opcode::io;
use sluice_nvme::{NSID_ALL, SglDescriptor, SglType, Status, SubmissionEntry};
use zerocopy::IntoBytes;

const SGL: u8 = 1 << 6;
const BLOCKS: usize = 8192;

/// Returns bytes that differ from each other and from one seed to the next.
fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 251) as u8 ^ seed).collect()
}

fn host() -> (Host, Model) {
    let model = Model::new(BLOCKS);
    (Host::with_io(&model), model)
}

fn sgl(kind: SglType, address: u64, length: usize) -> SglDescriptor {
    SglDescriptor::new(kind, address, length as u32)
}

/// Returns the command with this descriptor for a data pointer.
fn with_sgl(entry: SubmissionEntry, descriptor: SglDescriptor) -> SubmissionEntry {
    SubmissionEntry { flags: SGL, dptr: descriptor.to_dptr(), ..entry }
}

/// Returns data pointers of `length` bytes at `buffer`, which is in the middle of a page or at its beginning.
fn prp_list(host: &mut Host, buffer: u64, length: usize) -> [u64; 2] {
    let first = (buffer / PAGE as u64 + 1) * PAGE as u64;
    let pages: Vec<u64> = (first..buffer + length as u64).step_by(PAGE).collect();
    match pages[..] {
        [] => [buffer, 0],
        [second] => [buffer, second],
        _ => {
            let list = host.allocate(pages.len() * 8);
            assert!(pages.len() <= PAGE / 8, "one page of entries");
            host.write(list, pages.as_bytes());
            [buffer, list]
        }
    }
}

/// Conformance: NVM 3.2.4, a Read returns what was written, and not a byte more.
/// Conformance: NVM 3.2.6, a Write writes the blocks it names.
/// Conformance: Base 4.1.1, PRP entries and lists describe data of any size from any dword of a page on.
#[test]
fn what_was_written_is_read_whatever_its_size_and_place() {
    let (mut host, model) = host();
    for (blocks, offset) in [(1, 0), (1, 4), (8, 0), (8, 2048), (16, 512), (9, 4092), (2048, 0), (2047, 508)]
    {
        let length = blocks * 512;
        let data = pattern(length, blocks as u8);
        let source = host.allocate(length + PAGE) + offset;
        host.write(source, &data);
        let dptr = prp_list(&mut host, source, length);
        let write = SubmissionEntry { dptr, ..io_entry(io::WRITE, 3, blocks as u32, 0) };
        assert_eq!(host.io(write), Status::SUCCESS, "{blocks} blocks at offset {offset}");
        assert_eq!(model.disk().bytes[3 * 512..][..length], data);

        let destination = host.allocate(length + PAGE) + offset;
        let dptr = prp_list(&mut host, destination, length);
        let read = SubmissionEntry { dptr, ..io_entry(io::READ, 3, blocks as u32, 0) };
        assert_eq!(host.io(read), Status::SUCCESS);
        assert_eq!(host.read(destination, length), data);
        assert_eq!(host.read(destination + length as u64, 16), [0; 16], "and not a byte more");
    }
}

/// Conformance: Base 5.17.2.1, a transfer beyond MDTS is refused with Invalid Field in Command.
#[test]
fn a_transfer_beyond_mdts_is_refused() {
    let (mut host, model) = host();
    for opcode in [io::READ, io::WRITE, io::COMPARE] {
        assert_eq!(host.io(io_entry(opcode, 0, 2049, 0)), Status::INVALID_FIELD);
        assert_eq!(host.io(io_entry(opcode, 0, 0x1_0000 / 16, 0)), Status::INVALID_FIELD);
    }
    assert!(model.take_seen().is_empty());
}

/// Conformance: NVM 3.2, a range that is not in the namespace is refused with LBA Out of Range, also one that wraps.
#[test]
fn a_range_lies_in_its_namespace() {
    let (mut host, model) = host();
    let buffer = host.allocate(PAGE);
    let end = BLOCKS as u64;
    for opcode in [io::READ, io::WRITE, io::COMPARE, io::WRITE_ZEROES] {
        assert_eq!(host.io(io_entry(opcode, end - 2, 2, buffer)), Status::SUCCESS);
        for (slba, blocks) in [(end - 1, 2), (end, 1), (u64::MAX, 1), (u64::MAX - 1, 2), (1 << 55, 1)] {
            assert_eq!(host.io(io_entry(opcode, slba, blocks, buffer)), Status::LBA_OUT_OF_RANGE);
        }
    }
    assert_eq!(model.take_seen().len(), 4);
}

/// Conformance: Base 3.2.1.2, a namespace's blocks are its own.
#[test]
fn namespaces_do_not_see_each_other() {
    let models = [Model::new(64), Model::new(32)];
    let mut host = Host::enabled(vec![models[0].namespace(1), models[1].namespace(7)]);
    host.create_pair(1, 8);
    let buffer = host.allocate(PAGE);
    host.write(buffer, &pattern(512, 1));
    assert_eq!(host.io(SubmissionEntry { nsid: 7, ..io_entry(io::WRITE, 5, 1, buffer) }), Status::SUCCESS);
    assert_eq!(models[1].disk().bytes[5 * 512..6 * 512], pattern(512, 1));
    assert!(models[0].disk().bytes.iter().all(|&byte| byte == 0));
    let beyond = SubmissionEntry { nsid: 7, ..io_entry(io::READ, 32, 1, buffer) };
    assert_eq!(host.io(beyond), Status::LBA_OUT_OF_RANGE);
}

/// Conformance: Base 3.2.1.5, an inactive NSID is an Invalid Field in Command, and an invalid one an Invalid Namespace or Format.
/// Conformance: Base 3.3.3.2.1, an opcode that is not supported is refused as that whatever namespace it names.
#[test]
fn a_command_names_an_active_namespace() {
    let (mut host, _) = host();
    for opcode in [io::READ, io::WRITE, io::FLUSH, io::COMPARE, io::WRITE_ZEROES, io::DATASET_MANAGEMENT] {
        for (nsid, status) in [
            (0, Status::INVALID_NAMESPACE),
            (2, Status::INVALID_FIELD),
            (128, Status::INVALID_FIELD),
            (129, Status::INVALID_NAMESPACE),
            (NSID_ALL, Status::INVALID_NAMESPACE),
        ] {
            let command = SubmissionEntry { nsid, ..entry(opcode) };
            assert_eq!(host.io(command), status, "{opcode:#x} to {nsid:#x}");
        }
    }
    for nsid in [0, 1, NSID_ALL] {
        assert_eq!(host.io(SubmissionEntry { nsid, ..entry(0x99) }), Status::INVALID_OPCODE);
    }
}

/// Conformance: Base 3.3.3.1, values of FUSE and PSDT that are reserved or not supported are refused with Invalid Field in Command.
#[test]
fn reserved_fuses_and_data_pointers_are_refused() {
    let (mut host, model) = host();
    let buffer = host.allocate(PAGE);
    for flags in [0b11, 3 << 6, 3 << 6 | 3] {
        let read = SubmissionEntry { flags, ..io_entry(io::READ, 0, 1, buffer) };
        assert_eq!(host.io(read), Status::INVALID_FIELD, "flags {flags:#b}");
    }
    assert!(model.take_seen().is_empty());
}

/// Conformance: Base 4.1.1, a PRP entry with an offset that it may not have is refused with PRP Offset Invalid.
#[test]
fn data_pointers_that_lead_nowhere_are_errors_of_the_command() {
    let (mut host, model) = host();
    let (buffer, nowhere) = (host.allocate(PAGE), host.nowhere());
    let read = io_entry(io::READ, 0, 16, buffer);
    for (dptr, status) in [
        ([nowhere, buffer], Status::DATA_TRANSFER_ERROR),
        ([buffer, nowhere], Status::DATA_TRANSFER_ERROR),
        ([!3, buffer], Status::DATA_TRANSFER_ERROR),
        ([buffer + 1, buffer], Status::PRP_OFFSET_INVALID),
        ([buffer, buffer + 512], Status::PRP_OFFSET_INVALID),
    ] {
        assert_eq!(host.io(SubmissionEntry { dptr, ..read }), status, "{dptr:x?}");
    }
    assert!(model.take_seen().is_empty());
}

/// Conformance: Base 4.1.2, an SGL that describes less data than the command has is refused with Data SGL Length Invalid.
#[test]
fn a_block_of_data_is_described_by_one_descriptor() {
    let (mut host, model) = host();
    let data = pattern(3 * 512, 9);
    let buffer = host.allocate(PAGE) + 1;
    host.write(buffer, &data);
    let write = io_entry(io::WRITE, 1, 3, 0);
    assert_eq!(host.io(with_sgl(write, sgl(SglType::DATA_BLOCK, buffer, 1536))), Status::SUCCESS);
    assert_eq!(model.disk().bytes[512..2048], data);
    // It may describe more than is needed, and must not describe less.
    assert_eq!(host.io(with_sgl(write, sgl(SglType::DATA_BLOCK, buffer, 2000))), Status::SUCCESS);
    let short = with_sgl(write, sgl(SglType::DATA_BLOCK, buffer, 1535));
    assert_eq!(host.io(short), Status::SGL_DATA_LENGTH_INVALID);
    let metadata_too =
        SubmissionEntry { flags: 2 << 6, ..with_sgl(write, sgl(SglType::DATA_BLOCK, buffer, 1536)) };
    assert_eq!(host.io(metadata_too), Status::SUCCESS);
}

/// Conformance: Base 4.1.2, SGL segments and last segments are followed in order.
#[test]
fn segments_of_descriptors_are_followed() {
    let (mut host, model) = host();
    let data = pattern(4096, 3);
    let buffer = host.allocate(2 * PAGE);
    host.write(buffer, &data);
    let lists = host.allocate(2 * PAGE);
    let last = [sgl(SglType::DATA_BLOCK, buffer + 3000, 1000), sgl(SglType::DATA_BLOCK, buffer + 4000, 96)];
    host.write(lists + 512, last.as_bytes());
    let first = [
        sgl(SglType::DATA_BLOCK, buffer, 1),
        sgl(SglType::DATA_BLOCK, buffer + 1, 2999),
        sgl(SglType::LAST_SEGMENT, lists + 512, 32),
    ];
    host.write(lists, first.as_bytes());
    let write = with_sgl(io_entry(io::WRITE, 0, 8, 0), sgl(SglType::SEGMENT, lists, 48));
    assert_eq!(host.io(write), Status::SUCCESS);
    assert_eq!(model.disk().bytes[..4096], data);
}

/// Conformance: Base 4.1.2, a bit bucket descriptor discards what is read.
#[test]
fn a_bit_bucket_swallows_what_is_read() {
    let (mut host, model) = host();
    let data = pattern(4096, 5);
    model.disk().bytes[..4096].copy_from_slice(&data);
    let buffer = host.allocate(PAGE);
    host.write(buffer, &[0xee; PAGE]);
    let list = host.allocate(PAGE);
    let descriptors = [
        sgl(SglType::DATA_BLOCK, buffer, 100),
        sgl(SglType::BIT_BUCKET, 0, 3900),
        sgl(SglType::DATA_BLOCK, buffer + 100, 96),
    ];
    host.write(list, descriptors.as_bytes());
    let read = with_sgl(io_entry(io::READ, 0, 8, 0), sgl(SglType::LAST_SEGMENT, list, 48));
    assert_eq!(host.io(read), Status::SUCCESS);
    let bytes = host.read(buffer, PAGE);
    assert_eq!((&bytes[..100], &bytes[100..196]), (&data[..100], &data[4000..]));
    assert!(bytes[196..].iter().all(|&byte| byte == 0xee));
}

/// Conformance: Base 4.1.2, SGL descriptors of other types and segments of impossible lengths are refused with the status named for it.
#[test]
fn descriptors_that_cannot_be_are_refused() {
    let (mut host, model) = host();
    let list = host.allocate(PAGE);
    let read = io_entry(io::READ, 0, 1, 0);
    for (descriptor, status) in [
        (sgl(SglType::KEYED_DATA_BLOCK, list, 512), Status::SGL_TYPE_INVALID),
        (sgl(SglType::TRANSPORT_DATA_BLOCK, list, 512), Status::SGL_TYPE_INVALID),
        (sgl(SglType(0xf), list, 512), Status::SGL_TYPE_INVALID),
        (sgl(SglType::LAST_SEGMENT, list, 0), Status::INVALID_SGL_SEGMENT),
        (sgl(SglType::LAST_SEGMENT, list, 17), Status::INVALID_SGL_SEGMENT),
        (sgl(SglType::LAST_SEGMENT, host.nowhere(), 16), Status::DATA_TRANSFER_ERROR),
        (sgl(SglType::DATA_BLOCK, host.nowhere(), 512), Status::DATA_TRANSFER_ERROR),
    ] {
        assert_eq!(host.io(with_sgl(read, descriptor)), status, "{descriptor:?}");
    }
    assert!(model.take_seen().is_empty());
}

/// Conformance: NVM 3.2.6, force unit access makes a write durable before it is completed.
#[test]
fn force_unit_access_reaches_the_target() {
    const FUA: u32 = 1 << 30;
    let (mut host, model) = host();
    let buffer = host.allocate(PAGE);
    for opcode in [io::READ, io::WRITE, io::WRITE_ZEROES] {
        for fua in [0, FUA] {
            let command = io_entry(opcode, 0, 1, buffer);
            assert!(host.io(SubmissionEntry { cdw12: command.cdw12 | fua, ..command }).is_success());
            assert_eq!(model.take_seen()[0].fua, fua != 0);
        }
    }
}

/// Conformance: NVM 3.2.8, Write Zeroes zeroes the blocks it names, is not limited by MDTS and may deallocate them.
#[test]
fn write_zeroes_is_not_limited_by_mdts_and_may_deallocate() {
    const DEALLOCATE: u32 = 1 << 25;
    let (mut host, model) = host();
    model.disk().bytes.fill(0xaa);
    assert_eq!(host.io(io_entry(io::WRITE_ZEROES, 1, BLOCKS as u32 - 2, 0)), Status::SUCCESS);
    {
        let disk = model.disk();
        let (first, last) = (disk.bytes[..512].to_vec(), disk.bytes[(BLOCKS - 1) * 512..].to_vec());
        assert!(first.iter().chain(&last).all(|&byte| byte == 0xaa));
        assert!(disk.bytes[512..(BLOCKS - 1) * 512].iter().all(|&byte| byte == 0));
    }
    let command = io_entry(io::WRITE_ZEROES, 0, 1, 0);
    assert!(host.io(SubmissionEntry { cdw12: command.cdw12 | DEALLOCATE, ..command }).is_success());
    let deallocate: Vec<_> = model.take_seen().iter().map(|request| request.deallocate).collect();
    assert_eq!(deallocate, [false, true]);
}

/// Conformance: NVM 3.2.1, a Compare of data that differ ends with Compare Failure, and changes nothing.
#[test]
fn compare_finds_the_one_byte_that_differs() {
    let (mut host, model) = host();
    // The data has three chunks and a bit, so that the difference can be in any.
    let length = 100 * 512;
    let data = pattern(length, 7);
    model.disk().bytes[512..][..length].copy_from_slice(&data);
    let buffer = host.allocate(length);
    let dptr = prp_list(&mut host, buffer, length);
    let compare = SubmissionEntry { dptr, ..io_entry(io::COMPARE, 1, 100, 0) };
    host.write(buffer, &data);
    assert_eq!(host.io(compare), Status::SUCCESS);
    for at in [0, 511, 16_383, 16_384, 40_000, length - 1] {
        host.write(buffer + at as u64, &[!data[at]]);
        assert_eq!(host.io(compare), Status::COMPARE_FAILURE, "byte {at}");
        host.write(buffer + at as u64, &[data[at]]);
    }
    assert_eq!(host.io(compare), Status::SUCCESS);
    model.disk().fails_with = Some(Status::UNRECOVERED_READ_ERROR);
    assert_eq!(host.io(compare), Status::UNRECOVERED_READ_ERROR);
    assert_eq!(model.disk().bytes[512..][..length], data, "nothing was written");
}

/// Conformance: NVM 3.2.5, Verify reads all blocks, transfers nothing and reports what cannot be read.
/// Conformance: NVM 4.1.5.4, a Verify of more blocks than VSL is refused.
#[test]
fn verify_reads_every_block_and_sends_nothing() {
    let (mut host, model) = host();
    assert_eq!(host.io(io_entry(io::VERIFY, 1, 100, host.nowhere())), Status::SUCCESS);
    let seen: Vec<_> = model.take_seen().iter().map(|r| (r.operation, r.offset, r.length)).collect();
    let read = |offset, length| (Operation::Read, offset, length);
    let starts = [512, 512 + 16_384, 512 + 32_768].map(|offset| read(offset, 16_384));
    assert_eq!(seen, [&starts[..], &[read(512 + 49_152, 2048)]].concat());
    assert_eq!(host.controller.subsystem.statistics().bytes_read, 0);
    // VSL equals MDTS.
    assert_eq!(host.io(io_entry(io::VERIFY, 0, 2048, 0)), Status::SUCCESS);
    assert_eq!(host.io(io_entry(io::VERIFY, 0, 2049, 0)), Status::INVALID_FIELD);
    assert_eq!(host.io(io_entry(io::VERIFY, BLOCKS as u64, 1, 0)), Status::LBA_OUT_OF_RANGE);
    model.take_seen();
    model.disk().fails_with = Some(Status::UNRECOVERED_READ_ERROR);
    assert_eq!(host.io(io_entry(io::VERIFY, 0, 100, 0)), Status::UNRECOVERED_READ_ERROR);
    assert_eq!(model.take_seen().len(), 1);
}

/// Returns a Dataset Management with these ranges of first block and count.
pub(crate) fn dataset(host: &mut Host, attributes: u32, ranges: &[(u64, u32)]) -> SubmissionEntry {
    let wire: Vec<u64> = ranges.iter().flat_map(|&(slba, blocks)| [u64::from(blocks) << 32, slba]).collect();
    let buffer = host.allocate(PAGE);
    host.write(buffer, wire.as_bytes());
    let count = ranges.len() as u32 - 1;
    let dptr = [buffer, 0];
    SubmissionEntry { nsid: 1, dptr, cdw10: count, cdw11: attributes, ..entry(io::DATASET_MANAGEMENT) }
}

pub(crate) const DEALLOCATE: u32 = 1 << 2;

/// Conformance: NVM 3.2.3, Dataset Management deallocates each of its ranges.
#[test]
fn deallocate_takes_its_ranges_one_by_one() {
    let (mut host, model) = host();
    model.disk().bytes.fill(0xaa);
    let command = dataset(&mut host, DEALLOCATE, &[(8, 8), (100, 0), (0, 1), (BLOCKS as u64 - 1, 1)]);
    assert_eq!(host.io(command), Status::SUCCESS);
    let seen: Vec<_> = model.take_seen().iter().map(|r| (r.operation, r.offset, r.length)).collect();
    let last = (BLOCKS as u64 - 1) * 512;
    let deallocate = |offset, length| (Operation::Deallocate, offset, length);
    assert_eq!(seen, [deallocate(4096, 4096), deallocate(0, 512), deallocate(last, 512)]);
    let zeros = model.disk().bytes.iter().filter(|&&byte| byte == 0).count();
    assert_eq!(zeros, 10 * 512);
}

/// Conformance: NVM 3.2.3, Dataset Management takes 256 ranges.
#[test]
fn as_many_ranges_as_fit_are_taken() {
    let (mut host, model) = host();
    let ranges: Vec<_> = (0..256).map(|n| (n * 2, 1)).collect();
    let command = dataset(&mut host, DEALLOCATE, &ranges);
    assert_eq!(host.io(command), Status::SUCCESS);
    assert_eq!(model.take_seen().len(), 256);
}

/// Conformance: NVM 3.2.3, a range that is not in the namespace is refused with LBA Out of Range.
#[test]
fn a_range_out_of_range_spoils_the_command_before_anything_is_done() {
    let (mut host, model) = host();
    for bad in [(BLOCKS as u64, 1), (BLOCKS as u64 - 1, 2), (u64::MAX, 1), (u64::MAX, u32::MAX)] {
        let command = dataset(&mut host, DEALLOCATE, &[(0, 8), bad]);
        assert_eq!(host.io(command), Status::LBA_OUT_OF_RANGE);
    }
    let command = dataset(&mut host, DEALLOCATE, &[(0, 8)]);
    let astray = SubmissionEntry { dptr: [host.nowhere(), 0], ..command };
    assert_eq!(host.io(astray), Status::DATA_TRANSFER_ERROR);
    assert!(model.take_seen().is_empty());
}

/// Conformance: NVM 3.2.3, context attributes are hints, and a range of no blocks is none.
#[test]
fn hints_alone_change_nothing() {
    let (mut host, model) = host();
    let command = dataset(&mut host, 0b011, &[(0, 8)]);
    assert_eq!(host.io(command), Status::SUCCESS);
    let command = dataset(&mut host, DEALLOCATE, &[(0, 0)]);
    assert_eq!(host.io(command), Status::SUCCESS);
    assert!(model.take_seen().is_empty());
}

#[test]
fn an_error_in_the_middle_ends_a_deallocate() {
    let (mut host, model) = host();
    model.disk().fails_with = Some(Status::CAPACITY_EXCEEDED);
    let command = dataset(&mut host, DEALLOCATE, &[(0, 1), (2, 1)]);
    assert_eq!(host.io(command), Status::CAPACITY_EXCEEDED);
    assert_eq!(model.take_seen().len(), 1);
}

#[test]
fn deallocate_means_nothing_to_a_target_that_cannot() {
    let (can, cannot) = (Model::new(64), Model::with(Characteristics::target(1 << 20, 512)));
    let mut host = Host::enabled(vec![cannot.namespace(1), can.namespace(2)]);
    host.create_pair(1, 8);
    let command = dataset(&mut host, DEALLOCATE, &[(0, 8)]);
    assert_eq!(host.io(command), Status::SUCCESS, "the other namespace can");
    assert!(cannot.take_seen().is_empty());
    let mut host = Host::with_io(&cannot);
    let command = dataset(&mut host, DEALLOCATE, &[(0, 8)]);
    assert_eq!(host.io(command), Status::INVALID_OPCODE, "nobody can");
}

/// Conformance: Base 5.17.2.8, a write-protected namespace refuses every write with Namespace is Write Protected.
#[test]
fn a_write_protected_namespace_is_read_only() {
    let below = Characteristics {
        read_only: true,
        deallocated: Deallocated::Zeroes,
        ..Characteristics::target(1 << 20, 512)
    };
    let model = Model::with(below);
    let mut host = Host::with_io(&model);
    let buffer = host.allocate(PAGE);
    for opcode in [io::WRITE, io::WRITE_ZEROES] {
        assert_eq!(host.io(io_entry(opcode, 0, 1, buffer)), Status::NAMESPACE_WRITE_PROTECTED);
    }
    let command = dataset(&mut host, DEALLOCATE, &[(0, 8)]);
    assert_eq!(host.io(command), Status::NAMESPACE_WRITE_PROTECTED);
    assert!(model.take_seen().is_empty());
    for opcode in [io::READ, io::COMPARE] {
        assert_eq!(host.io(io_entry(opcode, 0, 1, buffer)), Status::SUCCESS);
    }
}

/// Conformance: Base 3.4.1, commands have no order: each is completed when it is done.
#[test]
fn commands_finish_in_the_order_of_their_answers() {
    let (mut host, model) = host();
    let buffer = host.allocate(PAGE);
    model.disk().hold = true;
    let cids: Vec<u16> = (0..3).map(|slba| host.submit(1, io_entry(io::READ, slba, 1, buffer))).collect();
    host.run();
    model.disk().parked.rotate_left(1);
    host.answer(1, &model, 3);
    host.run();
    let finished: Vec<u16> = host.reap_all(1).iter().map(|completion| completion.cid).collect();
    assert_eq!(finished, [cids[1], cids[2], cids[0]]);
}

#[test]
fn an_answer_that_nobody_waits_for_is_nobodys() {
    let (mut host, model) = host();
    let flush = SubmissionEntry { nsid: 1, ..entry(io::FLUSH) };
    model.disk().hold = true;
    let first = host.submit(1, flush);
    host.run();
    let ticket = model.disk().parked[0];
    host.answer(1, &model, 1);
    let second = host.submit(1, flush);
    host.run();
    assert_eq!(host.reap_all(1).iter().map(|completion| completion.cid).collect::<Vec<_>>(), [first]);
    let repeated = Subsystem::token_prefix(1, NodeId(0)) | u64::from(ticket.0);
    let elsewhere = [Subsystem::token_prefix(2, NodeId(0)), Subsystem::token_prefix(1, NodeId(9))];
    for token in [repeated, elsewhere[0], elsewhere[1], u64::MAX] {
        host.controller.subsystem.event(token, 0, host.now_ns);
    }
    host.run();
    assert_eq!(host.take(1), None);
    host.answer(1, &model, 1);
    host.run();
    assert_eq!(host.reap(1).map(|completion| completion.cid), Some(second));
}

/// Conformance: NVM 4.1.5.1, NSZE is what commands may address, also after it has changed.
#[test]
fn a_namespace_that_grew_takes_more() {
    let (mut host, _) = host();
    let buffer = host.allocate(PAGE);
    let beyond = io_entry(io::WRITE, BLOCKS as u64, 1, buffer);
    assert_eq!(host.io(beyond), Status::LBA_OUT_OF_RANGE);
    assert!(host.controller.subsystem.resize(1, (BLOCKS as u64 + 1) * 512));
    assert_eq!(host.io(beyond), Status::SUCCESS);
    assert!(host.controller.subsystem.resize(1, (BLOCKS as u64) * 512));
    assert_eq!(host.io(beyond), Status::LBA_OUT_OF_RANGE);
}
