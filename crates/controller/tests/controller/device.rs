//! Commands that a target passes to its device: their data, their direction, and the namespace that takes them.

use crate::host::{Host, PAGE, entry, io as io_entry, prps};
use crate::model::{Model, PASSED};
use sluice_command::{Characteristics, Opcodes, Operation, Passthrough};
use sluice_nvme::opcode::{admin, io};
use sluice_nvme::{Cns, NSID_ALL, SglDescriptor, SglType, Status, SubmissionEntry};

/// Namespace of the device; another namespace has none.
const DEVICE: u32 = 2;

fn device(read_only: bool) -> Model {
    let opcodes = |all: &[u8]| all.iter().fold(Opcodes::NONE, |some, opcode| some.and(*opcode));
    let passthrough = Passthrough {
        admin: opcodes(&[admin::GET_LOG_PAGE, 0xc0, 0xc1, 0xc2, 0xc3]),
        io: opcodes(&[io::VERIFY, io::WRITE_UNCORRECTABLE, 0x80, 0x81, 0x82, 0x83]),
    };
    Model::with(Characteristics { passthrough, read_only, ..Characteristics::target(1 << 20, 512) })
}

fn host(device: &Model) -> Host {
    let mut host = Host::enabled(vec![Model::new(64).namespace(1), device.namespace(DEVICE)]);
    host.create_pair(1, 16);
    host
}

/// Takes the only command that the device has received, if it has received one.
fn passed(device: &Model) -> Option<(u8, Operation, usize)> {
    let mut passed = std::mem::take(&mut device.disk().passed);
    assert!(passed.len() <= 1);
    passed.pop().map(|(opcode, request, bytes)| (opcode, request.operation, bytes))
}

/// Conformance: Base 3.3.3.1, the two low bits of an opcode are the direction of its data.
#[test]
fn an_io_command_has_the_data_that_its_opcode_and_length_name() {
    const SGL: u8 = 1 << 6;
    let device = device(false);
    let mut host = host(&device);
    let buffer = host.allocate(128 << 10);
    for (opcode, dwords, expected) in [
        (0x80, 16, Ok(0)),
        (0x81, 0, Ok(0)),
        (0x81, 1, Ok(4)),
        (0x82, 2, Ok(8)),
        (0x82, 16 << 10, Ok(64 << 10)),
        (0x82, (16 << 10) + 1, Err(Status::INVALID_FIELD)),
        (0x81, u32::MAX, Err(Status::INVALID_FIELD)),
        (0x83, 1, Err(Status::INVALID_OPCODE)),
        (0x84, 1, Err(Status::INVALID_OPCODE)),
    ] {
        let dptr = SglDescriptor::new(SglType::DATA_BLOCK, buffer, 128 << 10).to_dptr();
        let command = SubmissionEntry { nsid: DEVICE, flags: SGL, dptr, cdw10: dwords, ..entry(opcode) };
        assert_eq!(host.io(command), expected.err().unwrap_or(Status::SUCCESS), "{opcode:#x}, {dwords}");
        let as_expected = expected.ok().map(|bytes| (opcode, Operation::Flush, bytes));
        assert_eq!(passed(&device), as_expected, "{opcode:#x}, {dwords}");
        assert_eq!(host.io(SubmissionEntry { nsid: 1, ..command }), Status::INVALID_OPCODE, "no device");
        assert_eq!(passed(&device), None);
    }
}

#[test]
fn commands_with_blocks_are_kept_inside_of_the_namespace() {
    for read_only in [false, true] {
        let device = device(read_only);
        let mut host = host(&device);
        for (opcode, operation) in
            [(io::VERIFY, Operation::Read), (io::WRITE_UNCORRECTABLE, Operation::WriteZeroes)]
        {
            let of = |slba, cdw12| SubmissionEntry { nsid: DEVICE, cdw10: slba, cdw12, ..entry(opcode) };
            let is_refused = read_only && opcode == io::WRITE_UNCORRECTABLE;
            let status = if is_refused { Status::NAMESPACE_WRITE_PROTECTED } else { Status::SUCCESS };
            assert_eq!(host.io(of(2047, 0)), status);
            assert_eq!(passed(&device), (!is_refused).then_some((opcode, operation, 0)));
            assert_eq!(host.io(of(2047, 1)), Status::LBA_OUT_OF_RANGE);
            assert_eq!(passed(&device), None);
        }
        // The device alone keeps the list of its uncorrectable blocks.
        let buffer = host.allocate(PAGE);
        let read = SubmissionEntry { nsid: DEVICE, ..io_entry(io::READ, 2047, 1, buffer) };
        assert_eq!(host.io(read), Status::SUCCESS);
    }
}

#[test]
fn an_admin_command_goes_to_the_namespace_that_takes_it() {
    let device = device(false);
    let mut host = host(&device);
    let buffer = host.allocate(2 * PAGE);
    let dptr = prps(buffer, 2 * PAGE);
    let log = |log: u32, dwords: u32| SubmissionEntry {
        cdw10: log | (dwords - 1) << 16,
        cdw11: (dwords - 1) >> 16,
        ..entry(admin::GET_LOG_PAGE)
    };
    let own = |opcode, dwords| SubmissionEntry { cdw10: dwords, ..entry(opcode) };
    for (command, expected) in [
        (own(0xc0, 9), Ok(0)),
        (own(0xc1, 3), Ok(12)),
        (own(0xc2, 1024), Ok(PAGE)),
        (own(0xc2, 1025), Err(Status::INVALID_FIELD)),
        (own(0xc3, 1), Err(Status::INVALID_OPCODE)),
        (own(0xc4, 1), Err(Status::INVALID_OPCODE)),
        (log(0xc0, 8), Ok(32)),
        (log(0xff, 1024), Ok(PAGE)),
        (log(0xc0, 1025), Err(Status::INVALID_FIELD)),
        (log(0xc0, 0x1_0001), Err(Status::INVALID_FIELD)),
        (log(0xbf, 8), Err(Status::INVALID_LOG_PAGE)),
    ] {
        for nsid in [0, NSID_ALL, DEVICE] {
            let status = host.admin(SubmissionEntry { nsid, dptr, ..command }).status();
            assert_eq!(status, expected.err().unwrap_or(Status::SUCCESS), "{command:?} of {nsid:#x}");
            let as_expected = expected.ok().map(|bytes| (command.opcode, Operation::Flush, bytes));
            assert_eq!(passed(&device), as_expected, "{command:?} of {nsid:#x}");
        }
        assert!(!host.admin(SubmissionEntry { nsid: 1, dptr, ..command }).status().is_success());
        assert_eq!(passed(&device), None, "the other namespace has no device");
    }
}

/// Conformance: Base 5.17.2.1, ICSVSCC and AVSCC are set for vendor specific commands alone.
#[test]
fn identify_names_vendor_specific_commands() {
    for (passthrough, fields) in [
        (Passthrough::NONE, (0, 0)),
        (Passthrough { admin: Opcodes::NONE.and(0xbf), io: Opcodes::NONE.and(0x7f) }, (0, 0)),
        (Passthrough { admin: Opcodes::NONE.and(0xc0), io: Opcodes::NONE.and(0x7f) }, (0, 1)),
        (Passthrough { admin: Opcodes::NONE.and(0xbf), io: Opcodes::NONE.and(0x80) }, (1, 0)),
    ] {
        let device = Model::with(Characteristics { passthrough, ..Characteristics::target(1 << 20, 512) });
        let page = host(&device).identify(Cns::CONTROLLER, 0).expect("a page");
        assert_eq!((page[530], page[264]), fields);
    }
}

/// Checks that the data of such commands reaches memory that only the client of a host has.
#[test]
fn data_of_a_device_goes_to_a_client() {
    for seed in 1..8 {
        let device = device(false);
        let mut host = Host::with_client(&device, seed, |chunk| chunk % 2 == seed % 2);
        for (sq, opcode) in [(0, 0xc2), (1, 0x82)] {
            for _ in 0..20 {
                let buffer = host.allocate(PAGE);
                let dptr = prps(buffer, PAGE);
                let command = SubmissionEntry { nsid: 1, dptr, cdw10: 1023, ..entry(opcode) };
                assert_eq!(host.execute(sq, command).status(), Status::SUCCESS);
                let data = host.read(buffer, PAGE);
                assert!(data[..4092].iter().all(|byte| *byte == PASSED) && data[4092..] == [0; 4]);
            }
        }
    }
}
