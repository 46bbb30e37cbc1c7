//! Hosts that send Fabrics commands, and all others, over NVMe/TCP, to the listener of a drive and to the
//! discovery service.

use crate::layers::{self, SUBNQN};
use crate::link::{Link, TRANSFER_MAX};
use crate::{Input, draw};
use sluice_controller::Subsystem;
use sluice_frontend::Drive;
use sluice_frontend_tcp::{self as tcp, Config, Directory, Entry, Listener};
use sluice_nvme::fabrics::{self, CNTLID_DYNAMIC, Connect, ConnectData, DISCOVERY_NQN, Fctype};
use sluice_nvme::opcode::io;
use sluice_nvme::{SglDescriptor, Status, SubmissionEntry, register};
use sluice_nvme_tcp::Digests;
use sluice_reactor::{ReactorConfig, ReactorHandle, TaskHandle, TaskId};
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use zerocopy::IntoBytes;

const HOST: &str = "nqn.2024-01.org.example:host";

/// Connections at a time.
const LINKS_MAX: usize = 6;

/// Steps of one run, so that it stays short.
const STEPS_MAX: usize = 200;

/// State that is kept from one input to the next.
struct House {
    reactor: ReactorHandle,
    directory: Arc<Directory>,
    address: SocketAddr,
    _listener: Listener,
}

pub fn run(data: &[u8]) {
    static HOUSE: OnceLock<House> = OnceLock::new();
    let house = HOUSE.get_or_init(House::new);
    let drive = house.add();
    let mut input = Input::new(data);
    let mut hosts = Hosts { address: house.address, links: Vec::new(), is_calm: true };
    if !input.one_in(4) {
        hosts.host(&mut input);
    }
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        hosts.step(&mut input);
    }
    hosts.finish();
    house.remove(drive);
}

impl House {
    fn new() -> Self {
        outlive_hosts();
        let reactor = ReactorHandle::start(ReactorConfig::default()).expect("io_uring works here");
        let directory = Arc::new(Directory::default());
        let any = "127.0.0.1:0".parse().expect("an address");
        let listener = Listener::start(&[any], Arc::clone(&directory)).expect("a port is free");
        Self { reactor, directory, address: listener.addresses()[0], _listener: listener }
    }

    fn add(&self) -> TaskId {
        let add = |local: &mut sluice_reactor::Local| {
            local.add(|task, io| {
                let (config, ..) = layers::config();
                let mut drive = Drive::new(task, io, Subsystem::new(config).expect("memory"));
                let config = Config { name: "disk".to_owned(), cntlid: 1, hosts_max: 4, queues_max: 8 };
                tcp::Hosts::admit(&mut drive, config).expect("it has no other front-end");
                Box::new(drive)
            })
        };
        let task = self.reactor.call(add).expect("the reactor runs");
        let drive = TaskHandle::new(self.reactor.clone(), task);
        assert!(self.directory.add(SUBNQN, Entry { drive, hosts: Vec::new(), keys: None }));
        task
    }

    fn remove(&self, drive: TaskId) {
        self.directory.remove(SUBNQN);
        self.reactor.call(move |local| drop(local.remove(drive))).expect("the reactor runs");
    }
}

/// Ignores SIGPIPE: sending to a host that is gone is an error, as in any program whose `main` is Rust's.
/// libFuzzer's does not arrange that, and SIGPIPE would end the process.
fn outlive_hosts() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().expect("a runtime");
    let _entered = runtime.enter();
    // The handler stays when its receiver is dropped.
    let handler = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::pipe());
    drop(handler.expect("a handler"));
}

/// Several hosts.
struct Hosts {
    address: SocketAddr,
    links: Vec<Link>,
    /// No host has sent a command that ends the commands of others.
    is_calm: bool,
}

impl Hosts {
    fn step(&mut self, input: &mut Input<'_>) {
        let which = input.below(LINKS_MAX);
        match self.links.get_mut(which) {
            None => self.open(input),
            Some(link) if !link.is_open => drop(self.links.swap_remove(which)),
            Some(link) => match input.below(32) {
                0..4 if !link.is_initialized => initialize(link, input),
                0..6 => self.connect(which, input),
                6..10 => self.property(which, input),
                10..14 => admin(link, input),
                14..20 => transfer(link, input),
                20..25 => link.receive(input),
                25 => link.wait_if(self.is_calm),
                26 => any_fabrics(link, input),
                27 => {
                    self.is_calm = false;
                    link.command(command(Fctype::DISCONNECT), &[]);
                }
                28 => {
                    let count = input.below(160);
                    link.send_invalid(input.bytes(count));
                }
                29 => {
                    self.is_calm = false;
                    link.end();
                }
                30 => initialize(link, input),
                _ => self.host(input),
            },
        }
    }

    fn open(&mut self, input: &mut Input<'_>) {
        let mut link = Link::new(self.address);
        if !input.one_in(16) {
            initialize(&mut link, input);
        }
        self.links.push(link);
    }

    /// Connects a well-behaved host, up to an I/O queue.
    fn host(&mut self, input: &mut Input<'_>) {
        if self.links.len() + 2 > LINKS_MAX {
            return;
        }
        let hostid = [input.byte() & 3; 16];
        let mut admin = Link::new(self.address);
        admin.initialize(Digests::NONE, 1);
        let cid = connect(&mut admin, &queue(0, 32), &names(hostid, CNTLID_DYNAMIC));
        if admin.answer(cid).is_some_and(|answer| answer.status().is_success()) {
            let cntlid = admin.queue.map_or(1, |(_, cntlid)| cntlid);
            enable(&mut admin);
            let mut link = Link::new(self.address);
            link.initialize(Digests::NONE, 1);
            connect(&mut link, &queue(1, 32), &names(hostid, cntlid));
            self.links.push(link);
        }
        self.links.push(admin);
    }

    fn connect(&mut self, which: usize, input: &mut Input<'_>) {
        let known = self.links.iter().find_map(|link| link.queue);
        let is_admin = known.is_none() || input.one_in(4);
        let mut request = if is_admin { queue(0, 32) } else { queue(1 + u16::from(input.byte() & 3), 16) };
        let cntlid = match known {
            Some((_, cntlid)) if !is_admin => cntlid,
            _ => CNTLID_DYNAMIC,
        };
        let hostid = [input.byte() & 3; 16];
        let mut data = names(hostid, cntlid);
        match input.below(16) {
            0 => request.qid = input.u16(),
            1 => request.entries = input.dword(),
            2 => request.recfmt = input.u16(),
            3 => request.cattr = input.byte(),
            4 => request.kato_ms = input.dword(),
            5 => data = ConnectData::new(hostid, input.u16(), SUBNQN, HOST),
            6 => data = ConnectData::new(hostid, cntlid, input.pick(&[DISCOVERY_NQN, "", HOST]), HOST),
            7 => data = ConnectData::new(hostid, cntlid, SUBNQN, input.pick(&["", SUBNQN, DISCOVERY_NQN])),
            _ => {}
        }
        let mut bytes = data.as_bytes().to_vec();
        match input.below(16) {
            0 => bytes.truncate(input.below(256) * 4),
            1 => bytes[usize::from(input.u16()) % ConnectData::SIZE] ^= 1 << input.below(8),
            2 => bytes.resize(ConnectData::SIZE + input.below(256) * 4, 0),
            _ => {}
        }
        let link = &mut self.links[which];
        let length = if input.one_in(32) { input.dword() } else { bytes.len() as u32 };
        link.command(SubmissionEntry { flags: SGL, dptr: in_capsule(length), ..request.entry() }, &bytes);
    }

    fn property(&mut self, which: usize, input: &mut Input<'_>) {
        let offset = match input.below(4) {
            0 => input.dword(),
            _ => input.pick(&[register::CAP, register::VS, register::CC, register::CSTS, register::NSSR]),
        };
        let fctype = input.pick(&[Fctype::PROPERTY_GET, Fctype::PROPERTY_SET]);
        let value =
            input.pick(&[0, ENABLE, ENABLE | 1 << 14, ENABLE | 2 << 14, ENABLE & !1, 0x4e56_4d65, u32::MAX]);
        let cdw10 = if input.one_in(4) { input.dword() } else { u32::from(offset == register::CAP) };
        let entry = SubmissionEntry { cdw10, cdw11: offset, cdw12: value, ..command(fctype) };
        self.is_calm &= fctype == Fctype::PROPERTY_GET || value == ENABLE;
        self.links[which].command(entry, &[]);
    }

    /// Ends all hosts: each valid command is answered, and a later host is served.
    fn finish(mut self) {
        let is_calm = self.is_calm;
        self.links.iter_mut().for_each(|link| link.wait_if(is_calm));
        drop(self.links);
        loop {
            let mut link = Link::new(self.address);
            link.initialize(Digests::NONE, 1);
            let cid = connect(&mut link, &queue(0, 32), &names([0xee; 16], CNTLID_DYNAMIC));
            let status = link.answer(cid).map(|answer| answer.status());
            match status {
                Some(Status::SUCCESS) => {}
                // Previous hosts are still closing.
                None => continue,
                Some(status) if status.same_code(Status::CONNECT_CONTROLLER_BUSY) => {
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                }
                other => panic!("a new host is not served: {other:?}"),
            }
            let get = fabrics::property_get(register::VS, 4);
            let cid = link.command(SubmissionEntry { flags: SGL, dptr: apart(0), ..get }, &[]);
            let version = link.answer(cid).expect("it is answered");
            assert!(version.status().is_success() && version.dw0 != 0);
            return;
        }
    }
}

impl Link {
    fn wait_if(&mut self, is_calm: bool) {
        if is_calm && self.queue.is_some() {
            self.wait_for_answers();
        }
    }
}

/// CC: enabled, 64-byte submission and 16-byte completion entries.
const ENABLE: u32 = 1 | 6 << 16 | 4 << 20;

fn enable(link: &mut Link) {
    let set = fabrics::property_set(register::CC, ENABLE);
    link.command(SubmissionEntry { flags: SGL, dptr: apart(0), ..set }, &[]);
}

fn queue(qid: u16, entries: u32) -> Connect {
    Connect { recfmt: 0, qid, entries, cattr: 0, kato_ms: 0 }
}

fn names(hostid: [u8; 16], cntlid: u16) -> ConnectData {
    ConnectData::new(hostid, cntlid, SUBNQN, HOST)
}

fn connect(link: &mut Link, request: &Connect, data: &ConnectData) -> u16 {
    let dptr = in_capsule(ConnectData::SIZE as u32);
    link.command(SubmissionEntry { flags: SGL, dptr, ..request.entry() }, data.as_bytes())
}

fn initialize(link: &mut Link, input: &mut Input<'_>) {
    let bits = input.byte();
    let digests = Digests { header: bits & 1 != 0, data: bits & 2 != 0 };
    let r2t_max = if input.one_in(4) { 1 + u64::from(input.dword()) } else { 1 };
    link.initialize(digests, r2t_max);
}

/// PSDT: an SGL, as required over a message-based transport.
const SGL: u8 = 1 << 6;

fn command(fctype: Fctype) -> SubmissionEntry {
    SubmissionEntry {
        opcode: fabrics::OPCODE,
        flags: SGL,
        nsid: fctype.0.into(),
        dptr: apart(0),
        ..SubmissionEntry::default()
    }
}

fn any_fabrics(link: &mut Link, input: &mut Input<'_>) {
    let mut entry = command(Fctype(input.byte() & 0x1f));
    [entry.cdw10, entry.cdw11, entry.cdw12] = [input.dword(), input.dword(), input.dword()];
    let count = input.below(64) * 4;
    let data = input.bytes(count);
    entry.dptr =
        if input.one_in(4) { apart(input.dword() % TRANSFER_MAX) } else { in_capsule(data.len() as u32) };
    link.command(entry, data);
}

/// Sends a command of an admin queue, on a queue of any type.
fn admin(link: &mut Link, input: &mut Input<'_>) {
    let mut entry = draw::entry(input, true, |input| input.u64());
    if !input.one_in(16) {
        entry.flags = SGL;
        entry.dptr = apart(input.pick(&[4096, 0, 512, 1024, 16, TRANSFER_MAX]));
    }
    link.command(entry, &[]);
}

/// Sends a Read or Write, with its data in the capsule or apart.
fn transfer(link: &mut Link, input: &mut Input<'_>) {
    let blocks = 1 + u32::from(input.byte()) % (TRANSFER_MAX / 512);
    let opcode = input.pick(&[io::READ, io::WRITE, io::WRITE, io::COMPARE]);
    let bytes = if input.one_in(16) { input.dword() % TRANSFER_MAX } else { blocks * 512 };
    let is_inside = opcode != io::READ && bytes <= 8192 && !input.one_in(4);
    let data = if is_inside { vec![input.byte(); bytes as usize] } else { Vec::new() };
    let entry = SubmissionEntry {
        opcode,
        flags: SGL,
        nsid: if input.one_in(16) { input.dword() } else { 1 },
        dptr: if is_inside { in_capsule(bytes) } else { apart(bytes) },
        cdw10: if input.one_in(16) { input.dword() } else { u32::from(input.byte()) },
        cdw12: blocks - 1,
        ..SubmissionEntry::default()
    };
    link.command(entry, &data);
}

/// Returns a pointer to data in the capsule.
fn in_capsule(length: u32) -> [u64; 2] {
    SglDescriptor::in_capsule(length).to_dptr()
}

/// Returns a pointer to data in PDUs of their own.
fn apart(length: u32) -> [u64; 2] {
    SglDescriptor::apart(length).to_dptr()
}
