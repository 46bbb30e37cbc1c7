//! Commands that go on as their host wrote them: what is listed, kept in its range, and what is not.

use crate::rig::{BLOCK, Drive, Rig, Scratch, eventually, open, pattern, start_reactor};
use sluice_command::{Characteristics, Command, Lane, Layer, Opcodes, Passthrough};
use sluice_host::{Controller, DmaBuffer, Namespace, entry};
use sluice_nvme::opcode::{admin, io};
use sluice_nvme::{CompletionEntry, LogId, NSID_ALL, Status, SubmissionEntry};
use sluice_reactor::ReactorHandle;
use sluice_targets::{Address, NvmeConfig, PreparedNvme};
use std::sync::{Arc, Mutex};

const TAKES: u8 = 0x81;
const GIVES: u8 = 0x82;
const BARE: u8 = 0x84;
const UNLISTED: u8 = 0x88;
const ADMIN_TAKES: u8 = 0xc1;
const ADMIN_GIVES: u8 = 0xc2;
const VENDOR_LOG: u32 = 0xca;

/// Blocks of the drive on its device.
const FIRST: u64 = 1000;
const BLOCKS: u64 = 500;

fn all_of(opcodes: &[u8]) -> Opcodes {
    opcodes.iter().fold(Opcodes::NONE, |set, opcode| set.and(*opcode))
}

fn device_takes() -> Passthrough {
    Passthrough {
        io: all_of(&[io::VERIFY, io::WRITE_UNCORRECTABLE, TAKES, GIVES, BARE, UNLISTED]),
        admin: all_of(&[admin::GET_LOG_PAGE, ADMIN_TAKES, ADMIN_GIVES]),
    }
}

/// Entries that the device got, and the data that came with them.
type Seen = Arc<Mutex<Vec<(SubmissionEntry, Vec<u8>)>>>;

/// A device with vendor specific commands: it records them, and returns a pattern as data.
struct Vendor(Seen);

impl Layer for Vendor {
    fn name(&self) -> &'static str {
        "vendor"
    }

    fn characteristics(&self, _: &[Characteristics]) -> Characteristics {
        Characteristics { passthrough: device_takes(), ..Characteristics::target(1 << 20, 512) }
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        lane.finish(command, Status::SUCCESS);
    }

    fn pass(&mut self, command: Command, lane: &mut Lane<'_>) {
        let entry = *lane.entry(&command);
        let data = &lane.slot(&command).data;
        let mut taken = vec![0; data.len_bytes()];
        if entry.opcode & 2 != 0 {
            data.copy_from(0, &pattern(7, taken.len()));
        } else {
            data.copy_to(0, &mut taken);
        }
        self.0.lock().expect("no panic").push((entry, taken));
        lane.finish(command, Status::SUCCESS);
    }
}

struct Stage {
    guest: Controller,
    disk: Namespace,
    memory: DmaBuffer,
    seen: Seen,
    device: Drive,
    /// Drive, kept until all users of it are gone.
    _drive: Drive,
    _reactors: [ReactorHandle; 2],
    scratch: Scratch,
}

impl Stage {
    fn new(passthrough: Passthrough) -> Self {
        let scratch = Scratch::new();
        let [below, above] = [start_reactor(), start_reactor()];
        let seen = Seen::default();
        let noted = Arc::clone(&seen);
        let directory = scratch.path().join("device");
        let device = Drive::serve(&below, directory, 512, move |_, _| Box::new(Vendor(noted)));
        let config = NvmeConfig {
            first_block: FIRST,
            blocks: Some(BLOCKS),
            passthrough,
            ..NvmeConfig::new(Address::VfioUser(device.socket()), 1)
        };
        let seed = PreparedNvme::open(&config).expect("opened");
        let drive = Drive::serve(&above, scratch.path().join("disk"), 512, move |task, io| {
            Box::new(seed.build(task, io, 0).expect("room for a file"))
        });
        let mut guest = drive.guest();
        let disk = open(&mut guest);
        let memory = guest.memory().allocate(1 << 20).expect("memory");
        Self { guest, disk, memory, seen, device, _drive: drive, _reactors: [below, above], scratch }
    }

    /// Sends an I/O command with some data at the beginning of its memory.
    fn io(&mut self, entry: SubmissionEntry) -> CompletionEntry {
        let iova = self.memory.iova();
        self.disk.command(SubmissionEntry { dptr: [iova, iova + 4096], ..entry }).expect("answered")
    }

    fn last_seen(&self) -> (SubmissionEntry, Vec<u8>) {
        self.seen.lock().expect("no panic").pop().expect("the device got it")
    }

    fn nothing_seen(&self) -> bool {
        self.seen.lock().expect("no panic").is_empty()
    }
}

fn listed() -> Passthrough {
    Passthrough {
        io: all_of(&[io::VERIFY, io::WRITE_UNCORRECTABLE, TAKES, GIVES, BARE]),
        admin: all_of(&[admin::GET_LOG_PAGE, ADMIN_TAKES, ADMIN_GIVES]),
    }
}

fn verify(slba: u64, blocks: u32) -> SubmissionEntry {
    SubmissionEntry { opcode: io::VERIFY, ..entry::read(1, slba, blocks) }
}

/// Builds a vendor specific command with this many bytes of data.
fn own(opcode: u8, bytes: u32) -> SubmissionEntry {
    SubmissionEntry { opcode, nsid: 1, cdw10: bytes / 4, cdw13: 0x1234_5678, ..SubmissionEntry::default() }
}

#[test]
fn blocks_are_those_of_the_drive() {
    let mut stage = Stage::new(listed());
    let done =
        stage.io(SubmissionEntry { mptr: 77, cdw12: 9 | 1 << 30 | 1 << 26, cdw14: 5, ..verify(490, 10) });
    assert!(done.status().is_success(), "{:?}", done.status());
    let (entry, _) = stage.last_seen();
    assert_eq!((entry.opcode, entry.slba(), entry.blocks()), (io::VERIFY, FIRST + 490, 10));
    assert_eq!((entry.cdw12 >> 16, entry.cdw14, entry.mptr), (1 << 14, 0, 0), "FUA, and nothing else");
    for (slba, blocks) in [(491, 10), (BLOCKS, 1), (u64::MAX, 2), (1 << 55, 1), (0, 501)] {
        for opcode in [io::VERIFY, io::WRITE_UNCORRECTABLE] {
            let status = stage.io(SubmissionEntry { opcode, ..verify(slba, blocks) }).status();
            assert!(status.same_code(Status::LBA_OUT_OF_RANGE), "{slba} {blocks}: {status:?}");
        }
    }
    assert!(stage.nothing_seen());
}

#[test]
fn a_vendors_own_keeps_its_parameters_and_its_data() {
    let mut stage = Stage::new(listed());
    // The first has its data copied; by the third the device has been shown the memory.
    for round in 0..3 {
        let data = pattern(round, 6000);
        stage.memory.region().write(0, &data);
        assert!(stage.io(own(TAKES, 6000)).status().is_success());
        let (entry, taken) = stage.last_seen();
        assert_eq!((entry.opcode, entry.nsid, entry.cdw13), (TAKES, 1, 0x1234_5678));
        assert!(taken == data);
        assert!(stage.io(own(GIVES, 4096)).status().is_success());
        let mut given = vec![0; 6000];
        stage.memory.region().read(0, &mut given);
        assert!(given[..4096] == pattern(7, 4096) && given[4096..] == data[4096..]);
        stage.last_seen();
    }
    assert!(stage.io(own(BARE, 64)).status().is_success());
    assert!(stage.last_seen().1.is_empty());
    let too_long = stage.io(own(GIVES, (64 << 10) + 4)).status();
    assert!(too_long.same_code(Status::INVALID_FIELD), "{too_long:?}");
}

#[test]
fn what_is_not_listed_goes_nowhere() {
    let mut stage = Stage::new(listed());
    for opcode in [UNLISTED, 0x12, 0x1d, 0x8a, 0xff] {
        let status = stage.io(own(opcode, 4)).status();
        assert!(status.same_code(Status::INVALID_OPCODE), "{opcode:#x}: {status:?}");
    }
    for opcode in [0xc4, 0xff, admin::NAMESPACE_MANAGEMENT] {
        let status = stage.guest.command(own(opcode, 0)).expect("answered").status();
        assert!(status.same_code(Status::INVALID_OPCODE), "{opcode:#x}: {status:?}");
    }
    let mut stage = Stage::new(Passthrough::NONE);
    assert!(stage.io(own(GIVES, 4)).status().same_code(Status::INVALID_OPCODE));
    // A Verify that does not pass is made of reads.
    assert!(stage.io(verify(0, 1)).status().is_success());
    let log = SubmissionEntry { nsid: 0, ..entry::get_log_page(LogId(VENDOR_LOG as u8), 0, 0, 64, false) };
    let status = stage.guest.command(log).expect("answered").status();
    assert!(status.same_code(Status::INVALID_LOG_PAGE), "{status:?}");
    assert!(stage.nothing_seen());
}

#[test]
fn admin_commands_are_answered_by_the_device() {
    let mut stage = Stage::new(listed());
    let mut page = [0; 512];
    stage.guest.get_log_page(LogId(VENDOR_LOG as u8), NSID_ALL, 0, &mut page).expect("the device's");
    assert!(page[..] == pattern(7, 512));
    let (entry, _) = stage.last_seen();
    assert_eq!((entry.opcode, entry.cdw10 & 0xff), (admin::GET_LOG_PAGE, VENDOR_LOG));
    let data = pattern(3, 1024);
    stage.guest.admin_write(own(ADMIN_TAKES, 1024), &data).expect("taken");
    assert!(stage.last_seen().1 == data);
    stage.guest.admin_read(own(ADMIN_GIVES, 512), &mut page).expect("given");
    assert!(page[..] == pattern(7, 512));
    stage.last_seen();
    // The broadcast NSID would reach what is not the drive's.
    let all = SubmissionEntry { nsid: NSID_ALL, ..own(ADMIN_TAKES, 0) };
    let status = stage.guest.command(all).expect("answered").status();
    assert!(status.same_code(Status::INVALID_NAMESPACE), "{status:?}");
    // Logs that a drive has itself stay its own.
    stage.guest.get_log_page(LogId::SMART_HEALTH, NSID_ALL, 0, &mut page).expect("the drive's");
    assert!(stage.nothing_seen());
    stage.device.die();
    let gone = || stage.guest.command(own(ADMIN_TAKES, 0)).expect("answered").status();
    let mut gone = gone;
    eventually("the loss is noticed", || gone().same_code(Status::INTERNAL_PATH_ERROR));
    drop(stage.scratch);
}

#[test]
fn a_device_must_have_what_is_to_be_handed_on() {
    let rig = Rig::new();
    // Controllers of Sluice report nothing about vendor specific commands.
    let passthrough = Passthrough { io: all_of(&[GIVES]), ..Passthrough::NONE };
    let refused = PreparedNvme::open(&NvmeConfig { passthrough, ..rig.config() }).expect_err("it has not");
    assert!(refused.to_string().contains("ICSVSCC"), "{refused}");
    let (drive, _) = rig.drive("disk", &rig.config());
    open(&mut drive.guest()).write(0, &pattern(1, BLOCK)).expect("written");
}
