//! Commands that a real daemon serves over each front-end, found by sending every possible command. The
//! controller's logs and docs/reference/commands.md must list the same commands.

use crate::common::{Daemon, LIMIT};
use crate::names::{ADMIN, FABRICS, FEATURES, IO, LOGS, Names, STRUCTURES};
use crate::tcp_host::{self, Connect, Link, apart};
use sluice_host::{Controller, Deadline, Mode, QueueLayout, QueuePair};
use sluice_nvme::log::effects;
use sluice_nvme::opcode::admin;
use sluice_nvme::{LogId, NSID_ALL, Status, SubmissionEntry, fabrics};
use sluice_nvme_tcp::{Digests, Pdu};
use std::collections::BTreeSet;
use std::net::TcpListener;
use std::path::Path;

const NQN: &str = "nqn.2026-11.example.sluice:disk";

/// Path of the page, relative to this package.
const PAGE: &str = "../../docs/reference/commands.md";

/// Environment variable with which the page is written, not compared.
const WRITE: &str = "SLUICE_WRITE_DOCS";

/// A host that sends commands to a controller over one of the transports.
trait Host {
    /// Returns the status of an admin command without data.
    fn admin(&mut self, entry: SubmissionEntry) -> Status;

    /// Returns the status of an I/O command without data; none where there are no I/O queues.
    fn io(&mut self, entry: SubmissionEntry) -> Option<Status>;

    /// Returns the data of an admin command, at most `length` bytes.
    fn read(&mut self, entry: SubmissionEntry, length: usize) -> Result<Vec<u8>, Status>;

    /// Returns whether an Asynchronous Event Request waits for an event.
    fn event_request_waits(&mut self) -> bool;
}

struct Pci {
    controller: Controller,
    queue: QueuePair,
}

/// Addresses where a guest has no memory.
const NOWHERE: [u64; 2] = [!0xfff; 2];

impl Pci {
    fn start(daemon: &Daemon, drive: &str, mode: Mode) -> Self {
        let mut controller = daemon.host_with(drive, mode);
        let queue = controller.create_queue_pair(1, QueueLayout::default(), None).expect("a queue pair");
        Self { controller, queue }
    }
}

impl Host for Pci {
    fn admin(&mut self, entry: SubmissionEntry) -> Status {
        let entry = SubmissionEntry { dptr: NOWHERE, ..entry };
        self.controller.command(entry).expect("it is completed").status()
    }

    fn io(&mut self, entry: SubmissionEntry) -> Option<Status> {
        let cid = self.queue.submit(SubmissionEntry { dptr: NOWHERE, ..entry }).expect("there is room");
        self.queue.ring().expect("a doorbell");
        let deadline = Deadline::after(LIMIT, "an I/O command");
        Some(self.queue.wait(cid, &deadline, drop).expect("it is completed").status())
    }

    fn read(&mut self, entry: SubmissionEntry, length: usize) -> Result<Vec<u8>, Status> {
        let mut data = vec![0; length];
        match self.controller.admin_read(entry, &mut data) {
            Ok(_) => Ok(data),
            Err(error) => Err(error.status().expect("it is completed")),
        }
    }

    fn event_request_waits(&mut self) -> bool {
        self.controller.request_async_event().expect("it is sent");
        self.admin(SubmissionEntry { opcode: admin::KEEP_ALIVE, ..Default::default() });
        self.controller.poll_async_event().is_ok_and(|event| event.is_none())
    }
}

struct Tcp {
    admin: Link,
    io: Option<Link>,
}

/// Returns an entry as capsules have it, with room for `length` bytes.
fn capsule(entry: SubmissionEntry, length: usize) -> SubmissionEntry {
    const SGL: u8 = 1 << 6;
    SubmissionEntry { flags: SGL, cid: 5, dptr: apart(length as u32), ..entry }
}

impl Host for Tcp {
    fn admin(&mut self, entry: SubmissionEntry) -> Status {
        self.admin.command(&capsule(entry, 0)).status()
    }

    fn io(&mut self, entry: SubmissionEntry) -> Option<Status> {
        Some(self.io.as_mut()?.command(&capsule(entry, 0)).status())
    }

    fn read(&mut self, entry: SubmissionEntry, length: usize) -> Result<Vec<u8>, Status> {
        self.admin.submit(&capsule(entry, length), &[]);
        match self.admin.next() {
            Some((Pdu::Data(data), bytes)) => {
                assert!(data.success || self.admin.response().status().is_success());
                Ok(bytes)
            }
            Some((Pdu::Response(response), _)) if response.status().is_success() => Ok(Vec::new()),
            Some((Pdu::Response(response), _)) => Err(response.status()),
            other => panic!("{other:?} is no answer"),
        }
    }

    fn event_request_waits(&mut self) -> bool {
        let request = SubmissionEntry { opcode: admin::ASYNC_EVENT_REQUEST, ..Default::default() };
        self.admin.submit(&SubmissionEntry { cid: 6, ..capsule(request, 0) }, &[]);
        let other = SubmissionEntry { opcode: admin::KEEP_ALIVE, ..Default::default() };
        self.admin.submit(&capsule(other, 0), &[]);
        self.admin.response().cid != 6
    }
}

type Set = BTreeSet<u8>;

/// Numbers that a controller was found to take.
struct Served {
    over: &'static str,
    admin: Set,
    io: Set,
    fabrics: Set,
    logs: Set,
    features: Set,
    structures: Set,
}

/// Returns a command for a namespace that does not exist. The controller checks its opcode before its other
/// faults.
fn about_nothing(opcode: u8) -> SubmissionEntry {
    SubmissionEntry { opcode, nsid: 0xffff_0000, cdw10: 0xffff_ffff, ..Default::default() }
}

fn get_log(log: u8, length: usize) -> SubmissionEntry {
    let dwords = length as u32 / 4 - 1;
    let cdw10 = u32::from(log) | dwords << 16;
    SubmissionEntry { opcode: admin::GET_LOG_PAGE, nsid: NSID_ALL, cdw10, ..Default::default() }
}

/// Returns a Get Features command: of the capabilities (Select 3), or, without Select, of the value.
fn get_feature(feature: u8, selects: bool) -> SubmissionEntry {
    let select = if selects { 3 << 8 } else { 0 };
    SubmissionEntry { opcode: admin::GET_FEATURES, cdw10: u32::from(feature) | select, ..Default::default() }
}

/// Returns an Identify command, of namespace 1 where the structure is of one, and of no controller in
/// particular.
fn identify(structure: u8) -> SubmissionEntry {
    let cdw10 = u32::from(structure) | 0xffff << 16;
    SubmissionEntry { opcode: admin::IDENTIFY, nsid: 1, cdw10, ..Default::default() }
}

impl Served {
    fn by(host: &mut dyn Host, over: &'static str) -> Self {
        let all = || 0..=u8::MAX;
        let is_known = |status: Status| !status.same_code(Status::INVALID_OPCODE);
        let is_tcp = over.contains("TCP");
        let is_discovery = over.contains("discovery");
        let mut take_admin = |opcode: &u8| match *opcode {
            admin::ASYNC_EVENT_REQUEST => host.event_request_waits(),
            fabrics::OPCODE if is_tcp => false,
            opcode => is_known(host.admin(about_nothing(opcode))),
        };
        let admin = all().filter(&mut take_admin).collect();
        let io = all().filter(|opcode| host.io(about_nothing(*opcode)).is_some_and(is_known)).collect();
        let fabrics = |kind: &u8| {
            let nsid = u32::from(*kind);
            let entry = SubmissionEntry { nsid, ..about_nothing(fabrics::OPCODE) };
            is_tcp && is_known(host.admin(entry))
        };
        let fabrics = all().filter(fabrics).collect();
        let is_log = |log: &u8| {
            let read = host.read(get_log(*log, 4), 4);
            read.err().is_none_or(|status| !status.same_code(Status::INVALID_LOG_PAGE))
        };
        let logs = all().filter(is_log).collect();
        let has = |feature: &u8| host.read(get_feature(*feature, !is_discovery), 4096).is_ok();
        let features = all().filter(has).collect();
        let structures = all().filter(|cns| host.read(identify(*cns), 4096).is_ok()).collect();
        Self { over, admin, io, fabrics, logs, features, structures }
    }

    /// Checks that the logs list exactly what the drive took.
    fn agrees_with_its_logs(&self, host: &mut dyn Host) {
        let mut listed = |log: LogId, bytes: usize| {
            let page = host.read(get_log(log.0, bytes), bytes).expect("a page");
            let is_there = |index: &usize| page[index * 4] & effects::SUPPORTED as u8 != 0;
            (0..bytes / 4).filter(is_there).collect::<Vec<_>>()
        };
        let numbers =
            |set: &Set, first: usize| set.iter().map(|id| first + usize::from(*id)).collect::<Vec<_>>();
        let commands: Vec<usize> = [numbers(&self.admin, 0), numbers(&self.io, 256)].concat();
        assert_eq!(listed(LogId::COMMAND_EFFECTS, 4096), commands, "{}: commands", self.over);
        assert_eq!(listed(LogId::SUPPORTED_LOG_PAGES, 1024), numbers(&self.logs, 0), "{}: logs", self.over);
        assert_eq!(
            listed(LogId::FEATURE_EFFECTS, 1024),
            numbers(&self.features, 0),
            "{}: features",
            self.over
        );
    }
}

/// Starts a daemon with the same drive behind each front-end.
fn daemon() -> (Daemon, std::net::SocketAddr) {
    let address = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port");
    let drive = |name: &str, more: &str| {
        format!(
            "[[drive]]\nname = \"{name}\"\n{more}\n[drive.pool]\ntarget = \"file\"\nfolder = \"pool\"\nsize = \"1MiB\"\n[[drive.namespace]]\ntarget = \"file\"\n\
             path = \"{name}.img\"\nsize = \"1MiB\"\n"
        )
    };
    let drives = [
        format!("[tcp]\nlisten = [\"{address}\"]\n"),
        drive("trapped", "doorbells = \"trapped\""),
        drive("mapped", "doorbells = \"mapped\""),
        drive("remote", &format!("[drive.tcp]\nnqn = \"{NQN}\"")),
    ];
    (Daemon::start(&drives.concat()), address)
}

/// Returns one table, with a line for each name and a column for each front-end.
fn table(title: &str, id: &str, names: Names, all: &[Served], of: fn(&Served) -> &Set) -> String {
    let unnamed: Vec<_> =
        all.iter().flat_map(of).filter(|id| names.iter().all(|(named, _)| named != *id)).collect();
    assert!(unnamed.is_empty(), "{title}: names.rs has no name for {unnamed:x?}");
    let columns: Vec<&Served> = all.iter().filter(|served| !of(served).is_empty()).collect();
    let heads: String = columns.iter().map(|served| format!(" {} |", served.over)).collect();
    let rule: String = columns.iter().map(|_| " --- |").collect();
    let mut text = format!("\n## {title}\n\n| {id} | |{heads}\n| --- | --- |{rule}\n");
    for (id, name) in names {
        let cells: String =
            columns.iter().map(|served| if of(served).contains(id) { " yes |" } else { " - |" }).collect();
        text += &format!("| {id:02X}h | {name} |{cells}\n");
    }
    text
}

const HEAD: &str = "# Commands and log pages

Commands, log pages and features of each front-end. A test sends each command to a daemon and writes this page
(`SLUICE_WRITE_DOCS=1 cargo test --release --workspace --test process commands`). The same test fails when the page is
not true any more, or when the controller's own logs (Commands Supported and Effects, Supported Log Pages, Feature
Identifiers Supported and Effects) differ from it.

The drive of the test is on a file, with a pool. Without a pool ([configuration](configuration.md#drivepool)) there are no Namespace
Management and no Namespace Attachment. Three things depend on the layers below a drive: Dataset Management (a target
that can deallocate), the feature Volatile Write Cache (a target that has one) and commands that are passed to a
device ([passthrough](configuration.md)). Over vfio-user a drive has either trapped doorbells or mapped ones.
";

/// Conformance: Base 5.16.1.6, over each front-end the log names exactly the commands that the controller takes.
#[test]
fn what_is_served_is_what_the_logs_say_and_the_page() {
    let (daemon, address) = daemon();
    let mut all = Vec::new();
    for (drive, mode, over) in
        [("trapped", Mode::Trapped, "vfio-user"), ("mapped", Mode::Mapped, "vfio-user, mapped doorbells")]
    {
        let mut host = Pci::start(&daemon, drive, mode);
        let served = Served::by(&mut host, over);
        served.agrees_with_its_logs(&mut host);
        all.push(served);
    }
    let mut host = tcp_host::Host::start(address, NQN, Digests::NONE, 1);
    let mut host = Tcp { io: host.io.pop(), admin: host.admin };
    let served = Served::by(&mut host, "NVMe/TCP");
    served.agrees_with_its_logs(&mut host);
    all.push(served);
    let mut link = Link::open(address, Digests::NONE);
    assert!(link.connect(&Connect::admin(fabrics::DISCOVERY_NQN)).status().is_success());
    link.enable();
    all.push(Served::by(&mut Tcp { admin: link, io: None }, "discovery, over NVMe/TCP"));
    let text = [
        HEAD,
        &table("Admin commands", "opcode", ADMIN, &all, |served| &served.admin),
        &table("I/O commands", "opcode", IO, &all, |served| &served.io),
        &table("Fabrics commands", "type", FABRICS, &all, |served| &served.fabrics),
        &table("Log pages", "LID", LOGS, &all, |served| &served.logs),
        &table("Features", "FID", FEATURES, &all, |served| &served.features),
        &table("Identify", "CNS", STRUCTURES, &all, |served| &served.structures),
    ]
    .concat();
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&page, &text).expect("the sources can be written");
    }
    let there = std::fs::read_to_string(&page).unwrap_or_default();
    for (line, (is, said)) in text.lines().zip(there.lines()).enumerate() {
        assert_eq!(is, said, "{PAGE}, line {}: write it anew with {WRITE}=1", line + 1);
    }
    assert!(text == there, "{PAGE} is too short or too long: write it anew with {WRITE}=1");
}
