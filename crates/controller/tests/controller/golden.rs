//! Golden pages: bytes of Identify, of log pages and of features, for drives of several kinds.
//!
//! The other tests compare fields with the specification. These compare whole pages with `tests/records/pages.txt`, so that
//! no bit changes unnoticed. `SLUICE_WRITE_GOLDEN=1` writes the file.

use crate::host::{Host, PAGE, entry, get_log};
use crate::management::{attach, create, pair_on, wanted};
use crate::model::Model;
use sluice_command::{Characteristics, Deallocated, Opcodes, Passthrough};
use sluice_controller::DoorbellMode;
use sluice_nvme::opcode::{admin, io};
use sluice_nvme::{Cns, FeatureId, LogId, NSID_ALL, SglDescriptor, SglType, Status, SubmissionEntry};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

/// Log pages whose contents do not depend on earlier commands.
const LOGS: [(LogId, usize); 9] = [
    (LogId::SUPPORTED_LOG_PAGES, 1024),
    (LogId::SMART_HEALTH, 512),
    (LogId::FIRMWARE_SLOT, 512),
    (LogId::COMMAND_EFFECTS, PAGE),
    (LogId::SELF_TEST, 564),
    (LogId::ASYMMETRIC_NAMESPACE_ACCESS, 256),
    (LogId::FEATURE_EFFECTS, 1024),
    (LogId::SANITIZE_STATUS, 512),
    (LogId::RESERVATION_NOTIFICATION, 64),
];

/// Structures of Identify, each of a namespace.
const STRUCTURES: [(Cns, u32); 14] = [
    (Cns::CONTROLLER, 0),
    (Cns::NAMESPACE, 1),
    (Cns::NAMESPACE, 2),
    (Cns::NAMESPACE, NSID_ALL),
    (Cns::NAMESPACE_DESCRIPTORS, 1),
    (Cns::INDEPENDENT_NAMESPACE, 1),
    (Cns::INDEPENDENT_NAMESPACE, 2),
    (Cns::COMMAND_SET_NAMESPACE, 1),
    (Cns::COMMAND_SET_CONTROLLER, 0),
    (Cns::ALLOCATED_NAMESPACE, 2),
    (Cns::ATTACHED_CONTROLLERS, 2),
    (Cns::COMMAND_SETS, 0),
    (Cns::COMMAND_SET_ALLOCATED_NAMESPACES, 0),
    (Cns::COMMAND_SET_ALLOCATED_NAMESPACE, 2),
];

/// Current value, and supported capabilities.
const SELECTIONS: [u32; 2] = [0, 3];

/// Executes an admin command with `length` bytes of data from the controller, in the form of its transport.
fn read(host: &mut Host, command: SubmissionEntry, length: usize) -> Result<Vec<u8>, Status> {
    if host.controller.controller.doorbell_mode() != DoorbellMode::Capsules {
        return host.admin_read(command, length);
    }
    const SGL: u8 = 1 << 6;
    let buffer = host.allocate(length);
    host.write(buffer, &vec![0xff; length]);
    let dptr = SglDescriptor::new(SglType::DATA_BLOCK, buffer, length as u32).to_dptr();
    let status = host.admin(SubmissionEntry { dptr, flags: SGL, ..command }).status();
    if status.is_success() { Ok(host.read(buffer, length)) } else { Err(status) }
}

/// Text of all pages. A page that another drive has as well is named after that drive.
#[derive(Default)]
struct Pages {
    text: String,
    /// Contents by page and row, each with its first drive.
    known: BTreeMap<String, String>,
}

impl Pages {
    fn add(&mut self, drive: &str, page: &str, contents: &str) {
        let first = self.known.entry(format!("{page}{contents}")).or_insert_with(|| drive.to_owned());
        match first == drive {
            true => writeln!(self.text, "{drive}: {page}{contents}"),
            false => writeln!(self.text, "{drive}: {page} is that of {first}"),
        }
        .expect("a string");
    }

    /// Adds a page in rows of 16 bytes, without rows of zeros.
    fn add_page(&mut self, drive: &str, name: &str, page: Result<Vec<u8>, Status>) {
        let mut text = String::new();
        match page {
            Err(status) => write!(text, " has status {:#06x}", status.0).expect("a string"),
            Ok(page) => {
                for (row, bytes) in page.chunks(16).enumerate().filter(|(_, bytes)| **bytes != [0; 16]) {
                    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                    write!(text, "\n  {:4}: {digits}", row * 16).expect("a string");
                }
            }
        }
        self.add(drive, name, &text);
    }

    /// Adds all pages of a drive, and all features without data.
    fn describe(&mut self, drive: &str, host: &mut Host) {
        for (cns, nsid) in STRUCTURES {
            host.reuse_memory();
            // The list of command sets is that of this controller.
            let cdw10 = u32::from(cns.0) | if cns == Cns::COMMAND_SETS { 0xffff_0000 } else { 0 };
            let page = read(host, SubmissionEntry { nsid, cdw10, ..entry(admin::IDENTIFY) }, PAGE);
            self.add_page(drive, &format!("Identify {:#04x} of {nsid:#x}", cns.0), page);
        }
        for (log, length) in LOGS {
            host.reuse_memory();
            let page = read(host, get_log(log, length), length);
            self.add_page(drive, &format!("log page {:#04x}", log.0), page);
        }
        self.add(drive, "features", &features(host));
    }
}

/// Returns the values and the capabilities of all features without data.
fn features(host: &mut Host) -> String {
    const WITH_DATA: [FeatureId; 3] =
        [FeatureId::TIMESTAMP, FeatureId::HOST_BEHAVIOR, FeatureId::HOST_IDENTIFIER];
    const OF_NAMESPACES: [FeatureId; 3] = [
        FeatureId::ERROR_RECOVERY,
        FeatureId::RESERVATION_NOTIFICATION_MASK,
        FeatureId::RESERVATION_PERSISTENCE,
    ];
    let flags = u8::from(host.controller.controller.doorbell_mode() == DoorbellMode::Capsules) << 6;
    let mut text = String::new();
    for id in (0..=u8::MAX).map(FeatureId).filter(|id| !WITH_DATA.contains(id)) {
        let nsid = u32::from(OF_NAMESPACES.contains(&id));
        for select in SELECTIONS {
            let cdw10 = u32::from(id.0) | select << 8;
            match host.dw0(SubmissionEntry { nsid, cdw10, flags, ..entry(admin::GET_FEATURES) }) {
                Ok(value) => write!(text, "\n  {:#04x}, {select}: {value:#x}", id.0).expect("a string"),
                Err(status) => assert_eq!(status, Status::INVALID_FIELD, "{id:?}"),
            }
        }
    }
    text
}

fn target() -> Characteristics {
    Characteristics {
        optimal_write: 16 << 10,
        boundary: 128 << 10,
        atomic_boundary: 128 << 10,
        atomic_write: 8 << 10,
        deallocated: Deallocated::Indeterminate,
        deallocate_limit: 1 << 19,
        ..Characteristics::target(1 << 20, 512)
    }
}

fn pages() -> String {
    let mut pages = Pages::default();
    let two = || vec![Model::new(2048).namespace(1), Model::with(target()).namespace_of_blocks(2, 4096)];
    pages.describe("trapped", &mut Host::enabled(two()));

    let mut mapped = Host::new(vec![Model::with(Characteristics::target(1 << 20, 512)).namespace(1)]);
    mapped.controller.controller.set_doorbell_mode(DoorbellMode::Mapped);
    mapped.enable();
    pages.describe("mapped", &mut mapped);

    let mut fabrics = Host::new(two());
    fabrics.controller.controller.set_doorbell_mode(DoorbellMode::Capsules);
    fabrics.enable();
    pages.describe("fabrics", &mut fabrics);

    let read_only = Characteristics { read_only: true, ..Characteristics::target(3 << 20, 512) };
    let opcodes = |all: &[u8]| all.iter().fold(Opcodes::NONE, |some, opcode| some.and(*opcode));
    let device = Characteristics {
        passthrough: Passthrough {
            admin: opcodes(&[admin::GET_LOG_PAGE, 0xc1, 0xfe]),
            io: opcodes(&[io::VERIFY, io::WRITE_UNCORRECTABLE, 0x81, 0xff]),
        },
        ..target()
    };
    let namespaces = vec![Model::with(device).namespace(1), Model::with(read_only).namespace(2)];
    pages.describe("device", &mut Host::enabled(namespaces));

    let (mut pair, daemon) = pair_on(&Model::new(2048));
    assert_eq!(create(&mut pair, &daemon, &wanted(4)), Ok(2));
    assert_eq!(attach(&mut pair, &daemon, 2, &[2], true), Status::SUCCESS);
    for number in 0..2 {
        pages.describe(&format!("pool, controller {number}"), pair.host(number));
    }
    pages.text
}

/// Compares all pages of five drives with the golden ones.
#[test]
fn no_bit_of_a_page_changes_unnoticed() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/records/pages.txt");
    let text = pages();
    if std::env::var_os("SLUICE_WRITE_GOLDEN").is_some() {
        std::fs::write(&path, &text).expect("room on the disk");
    }
    let golden = std::fs::read_to_string(&path).expect("the golden pages");
    for (line, expected) in text.lines().zip(golden.lines()) {
        assert_eq!(line, expected);
    }
    assert_eq!(text.lines().count(), golden.lines().count());
}
