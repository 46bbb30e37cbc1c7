//! Copy: ranges, limits, and namespaces to copy between.

use crate::host::{Host, PAGE, entry};
use crate::model::Model;
use sluice_command::{Characteristics, Operation};
use sluice_nvme::opcode::{admin, io};
use sluice_nvme::{FeatureId, Status, SubmissionEntry};
use zerocopy::IntoBytes;

const BLOCKS: usize = 8192;

/// Source range descriptors: for this namespace (format 0), or with an NSID (2).
const OWN: u32 = 0;
pub(crate) const NAMED: u32 = 2;

fn fill(model: &Model, seed: u8) {
    let mut disk = model.disk();
    disk.bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at / 512 * 7 + at % 512) as u8 ^ seed);
}

/// Namespace, first block, blocks.
type Source = (u32, u64, u16);

/// Returns a Copy to block `to` of namespace 1, of these ranges.
pub(crate) fn copy(host: &mut Host, format: u32, to: u64, ranges: &[Source]) -> SubmissionEntry {
    let wire: Vec<u64> = ranges
        .iter()
        .flat_map(|&(nsid, slba, blocks)| [u64::from(nsid), slba, u64::from(blocks - 1), 0])
        .collect();
    let list = host.allocate(wire.len() * 8);
    host.write(list, wire.as_bytes());
    SubmissionEntry {
        nsid: 1,
        dptr: [list, 0],
        cdw10: to as u32,
        cdw11: (to >> 32) as u32,
        cdw12: (ranges.len() as u32 - 1) | format << 8,
        ..entry(io::COPY)
    }
}

pub(crate) fn enable_named_ranges(host: &mut Host) {
    let buffer = host.allocate(PAGE);
    host.write(buffer, &[0, 0, 0, 0, 0b100]);
    let id = u32::from(FeatureId::HOST_BEHAVIOR.0);
    let set = SubmissionEntry { dptr: [buffer, 0], cdw10: id, ..entry(admin::SET_FEATURES) };
    assert_eq!(host.dw0(set), Ok(0));
}

/// Conformance: NVM 3.2.2, Copy writes its source ranges one behind the other.
#[test]
fn ranges_are_written_one_behind_the_other() {
    let model = Model::new(BLOCKS);
    let mut host = Host::with_io(&model);
    fill(&model, 1);
    let before = model.disk().bytes.clone();
    // One range of several chunks, one of one block, and one that is read twice.
    let ranges = [(1, 10, 100), (1, 5000, 1), (1, 10, 3)];
    let command = copy(&mut host, OWN, 2000, &ranges);
    assert_eq!(host.io(command), Status::SUCCESS);
    let mut expected = before.clone();
    let mut at = 2000 * 512;
    for (_, slba, blocks) in ranges {
        let (from, length) = (slba as usize * 512, usize::from(blocks) * 512);
        expected[at..at + length].copy_from_slice(&before[from..from + length]);
        at += length;
    }
    assert!(model.disk().bytes == expected);
}

/// Checks when a Copy is durable at its end: its host requests that, or has disabled the cache, or the block was
/// uncorrectable, which a power cut must not bring back.
#[test]
fn what_is_written_is_written_through_if_the_host_says_so() {
    const FUA: u32 = 1 << 30;
    let model = Model::new(64);
    let mut host = Host::with_io(&model);
    let writes = |host: &mut Host, fua: u32| {
        model.take_seen();
        let command = copy(host, OWN, 40, &[(1, 0, 2), (1, 8, 1)]);
        assert_eq!(host.io(SubmissionEntry { cdw12: command.cdw12 | fua, ..command }), Status::SUCCESS);
        let seen = model.take_seen();
        let operations: Vec<_> = seen.iter().map(|request| request.operation).collect();
        assert_eq!(operations, [Operation::Read, Operation::Write, Operation::Read, Operation::Write]);
        assert!(!seen[0].fua && !seen[2].fua);
        [seen[1].fua, seen[3].fua]
    };
    assert_eq!(writes(&mut host, FUA), [true, true]);
    assert_eq!(writes(&mut host, 0), [false, false]);
    let mark = |slba| SubmissionEntry { nsid: 1, cdw10: slba, ..entry(io::WRITE_UNCORRECTABLE) };
    for (slba, expected) in [(41, [true, false]), (42, [false, true]), (43, [false, false])] {
        assert_eq!(host.io(mark(slba)), Status::SUCCESS);
        assert_eq!(writes(&mut host, 0), expected, "block {slba}");
        assert_eq!(writes(&mut host, 0), [false, false], "block {slba} is good again");
    }
    assert_eq!(host.set_feature(FeatureId::VOLATILE_WRITE_CACHE, 0), Ok(0));
    assert_eq!(writes(&mut host, 0), [true, true]);
}

/// Conformance: NVM 3.2.2, descriptor formats that name a namespace are for hosts that enabled them.
#[test]
fn a_namespace_copies_from_another_when_the_host_knows_how() {
    let (ours, theirs) = (Model::new(64), Model::new(128));
    let mut host = Host::enabled(vec![ours.namespace(1), theirs.namespace(7)]);
    host.create_pair(1, 8);
    fill(&theirs, 5);
    let command = copy(&mut host, NAMED, 3, &[(7, 100, 2), (1, 40, 1)]);
    assert_eq!(host.io(command), Status::INVALID_FIELD, "the format is not enabled");
    enable_named_ranges(&mut host);
    assert_eq!(host.io(command), Status::SUCCESS);
    assert!(ours.disk().bytes[3 * 512..5 * 512] == theirs.disk().bytes[100 * 512..102 * 512]);
    // The same blocks of another namespace overlap nothing.
    let command = copy(&mut host, NAMED, 3, &[(7, 3, 2)]);
    assert_eq!(host.io(command), Status::SUCCESS);
    for (nsid, status) in [(2, Status::INVALID_FIELD), (0, Status::INVALID_NAMESPACE)] {
        let command = copy(&mut host, NAMED, 3, &[(nsid, 3, 2)]);
        assert_eq!(host.io(command), status);
    }
}

#[test]
fn block_sizes_agree() {
    let (ours, theirs) = (Model::new(64), Model::new(128));
    let mut host = Host::enabled(vec![ours.namespace(1), theirs.namespace_of_blocks(2, 4096)]);
    host.create_pair(1, 8);
    enable_named_ranges(&mut host);
    let command = copy(&mut host, NAMED, 3, &[(2, 0, 1)]);
    assert_eq!(host.io(command), Status::INCOMPATIBLE_NAMESPACE);
}

/// Conformance: NVM 3.2.2, more or longer ranges than MSRC, MSSRL and MCL say are refused.
#[test]
fn what_cannot_be_copied_is_refused_before_anything_is_done() {
    let model = Model::new(BLOCKS);
    let mut host = Host::with_io(&model);
    let end = BLOCKS as u64;
    let cases: [(u64, &[Source], Status); 9] = [
        (end, &[(1, 0, 1)], Status::LBA_OUT_OF_RANGE),
        (end - 1, &[(1, 0, 1), (1, 4, 1)], Status::LBA_OUT_OF_RANGE),
        (u64::MAX, &[(1, 0, 1)], Status::LBA_OUT_OF_RANGE),
        (0, &[(1, end, 1)], Status::LBA_OUT_OF_RANGE),
        (0, &[(1, 8, 1), (1, u64::MAX, 1)], Status::LBA_OUT_OF_RANGE),
        (100, &[(1, 99, 2)], Status::OVERLAPPING_RANGE),
        (100, &[(1, 0, 8), (1, 107, 1)], Status::OVERLAPPING_RANGE),
        (0, &[(1, 4096, 2049)], Status::COMMAND_SIZE_LIMIT_EXCEEDED),
        (0, &[(1, 4096, 2048), (1, 4096, 1)], Status::COMMAND_SIZE_LIMIT_EXCEEDED),
    ];
    for (to, ranges, status) in cases {
        let command = copy(&mut host, OWN, to, ranges);
        assert_eq!(host.io(command), status, "{ranges:?} to {to}");
    }
    // A range that ends or begins beside the destination does not overlap it.
    let (source, edges) = ([(1, 100, 8)], [(92, true), (93, false), (107, false), (108, true)]);
    for (to, good) in edges {
        let command = copy(&mut host, OWN, to, &source);
        let status = if good { Status::SUCCESS } else { Status::OVERLAPPING_RANGE };
        assert_eq!(host.io(command), status, "to {to}");
    }
    model.take_seen();
    let command = copy(&mut host, OWN, 100, &[(1, 0, 1)]);
    for format in [1, 3, 4, 15] {
        let other = SubmissionEntry { cdw12: command.cdw12 | format << 8, ..command };
        assert_eq!(host.io(other), Status::INVALID_FIELD);
    }
    let many = SubmissionEntry { cdw12: 128, ..command };
    assert_eq!(host.io(many), Status::COMMAND_SIZE_LIMIT_EXCEEDED);
    let astray = SubmissionEntry { dptr: [host.nowhere(), 0], ..command };
    assert_eq!(host.io(astray), Status::DATA_TRANSFER_ERROR);
    assert!(model.take_seen().is_empty());
}

#[test]
fn nothing_is_copied_to_a_write_protected_namespace() {
    let model = Model::with(Characteristics { read_only: true, ..Characteristics::target(1 << 20, 512) });
    let mut host = Host::with_io(&model);
    let command = copy(&mut host, OWN, 100, &[(1, 0, 1)]);
    assert_eq!(host.io(command), Status::NAMESPACE_WRITE_PROTECTED);
}

/// Conformance: NVM 3.2.2, a Copy that fails says in dword 0 which range was not copied.
#[test]
fn a_copy_that_fails_says_how_far_it_came() {
    let (ours, theirs) = (Model::new(64), Model::new(64));
    let mut host = Host::enabled(vec![ours.namespace(1), theirs.namespace(2)]);
    host.create_pair(1, 8);
    enable_named_ranges(&mut host);
    theirs.disk().fails_with = Some(Status::UNRECOVERED_READ_ERROR);
    let command = copy(&mut host, NAMED, 40, &[(1, 8, 1), (1, 16, 4), (2, 0, 1), (1, 30, 1)]);
    let completion = host.execute(1, command);
    assert_eq!((completion.status(), completion.dw0), (Status::UNRECOVERED_READ_ERROR, 2));
    // The next command in that slot did not come as far.
    let completion = host.execute(1, SubmissionEntry { nsid: 9, ..command });
    assert_eq!((completion.status(), completion.dw0), (Status::INVALID_FIELD, 0));
}
