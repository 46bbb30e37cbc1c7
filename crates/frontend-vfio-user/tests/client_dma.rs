//! Clients that share no memory, or not all of it, against a real controller. DMA_READ and DMA_WRITE reach
//! the rest.

mod rig;

use rig::rings::Rings;
use rig::{Peer, Scratch, controller, eventually, start_reactor};
use sluice_command::Stack;
use sluice_frontend_vfio_user::{Config, Endpoint, Listener};
use sluice_nvme::opcode::{admin, io};
use sluice_nvme::register::{self, csts};
use sluice_nvme::{Cns, CompletionEntry, SubmissionEntry};
use sluice_reactor::ReactorHandle;
use sluice_targets::Memory;
use sluice_vfio_user::dma::DmaAccess;
use sluice_vfio_user::region::RegionAccess;
use sluice_vfio_user::{Command, Errno, Header};
use std::path::{Path, PathBuf};
use zerocopy::{FromBytes, IntoBytes};

const DISK: u64 = 4 << 20;
const BASE: u64 = 0x10_0000;
const MEMORY: usize = 2 << 20;
const CHUNK: u64 = 64 << 10;

/// Adds a drive in memory to a reactor.
fn add_drive(reactor: &ReactorHandle, directory: PathBuf) {
    reactor
        .call(move |local| {
            let listener = Listener::bind(&directory, 0o600).expect("bound");
            local.add(|task, io| {
                let device = controller(Stack::of(Box::new(Memory::new(DISK).expect("memory"))));
                let config = Config { name: "test".to_owned(), ..Config::default() };
                Box::new(Endpoint::new(task, io, listener, device, config))
            })
        })
        .expect("the reactor runs");
}

/// Client's way to answer a DMA request.
type Answer = fn(&mut Host, Header, DmaAccess, &[u8]);

struct Host {
    peer: Peer,
    rings: Rings,
    answer: Answer,
    asked: usize,
    random: u64,
}

/// Answers a DMA request as every client should.
fn properly(host: &mut Host, header: Header, access: DmaAccess, data: &[u8]) {
    let (offset, count) = (host.rings.offset(access.address), access.count as usize);
    if header.command == Command::DMA_WRITE {
        host.rings.memory.write(offset, data);
        return host.peer.connection.reply(&header, access.as_bytes(), &[]).expect("sent");
    }
    let mut bytes = vec![0; count];
    host.rings.memory.read(offset, &mut bytes);
    host.peer.connection.reply(&header, access.as_bytes(), &bytes).expect("sent");
}

impl Host {
    /// Connects a client of which only the shared chunks of memory come with a descriptor.
    fn connect(directory: &Path, is_shared: fn(u64) -> bool) -> Self {
        let mut peer = Peer::connect(directory);
        peer.negotiate(b"{\"capabilities\":{\"max_msg_fds\":16,\"max_data_xfer_size\":1048576}}\0");
        let rings = Rings::new(BASE, MEMORY);
        for chunk in 0..MEMORY as u64 / CHUNK {
            let fd = is_shared(chunk).then(|| rings.memory.fd());
            peer.map_at(BASE + chunk * CHUNK, CHUNK, chunk * CHUNK, fd).expect("mapped");
        }
        Self { peer, rings, answer: properly, asked: 0, random: 1 }
    }

    fn any(&mut self, limit: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.random >> 33) % limit
    }

    /// Receives the next message and returns it if it is a reply. A DMA request of the server is answered.
    fn listen(&mut self) -> Option<(Header, Vec<u8>)> {
        // Answers may be more than the socket holds. The server reads them even while it waits.
        while !self.peer.connection.flush().expect("the server is there") {
            std::thread::yield_now();
        }
        let (header, payload, _) = self.peer.receive().expect("the server is there");
        if header.is_reply() {
            return Some((header, payload));
        }
        let (access, data) = DmaAccess::read_from_prefix(&payload).expect("long enough");
        // QEMU 11.1 cuts off a reply that does not fit into a socket at once, though it announces a mebibyte.
        assert!(access.count > 0 && access.count <= 16 << 10, "{access:?}");
        self.asked += 1;
        (self.answer)(self, header, access, data);
        None
    }

    fn call(&mut self, command: Command, payload: &[u8]) -> Vec<u8> {
        let id = self.peer.send(command, payload, &[]);
        loop {
            if let Some((header, payload)) = self.listen() {
                assert_eq!((header.id, header.failure()), (id, None));
                return payload;
            }
        }
    }

    fn write_region(&mut self, region: u32, offset: u32, bytes: &[u8]) {
        let access = RegionAccess { offset: offset.into(), region, count: bytes.len() as u32 };
        self.call(Command::REGION_WRITE, &[access.as_bytes(), bytes].concat());
    }

    fn write_register(&mut self, offset: u32, bytes: &[u8]) {
        self.write_region(0, offset, bytes);
    }

    fn csts(&mut self) -> u32 {
        let access = RegionAccess { offset: register::CSTS.into(), region: 0, count: 4 };
        let reply = self.call(Command::REGION_READ, access.as_bytes());
        u32::from_le_bytes(reply[16..20].try_into().expect("four bytes"))
    }

    fn enable(&mut self) {
        // Memory space and bus master are enabled.
        self.write_region(7, 4, &[6, 0]);
        for (offset, value) in self.rings.enabling() {
            self.write_register(offset, &value);
        }
        while self.csts() & csts::RDY == 0 {}
    }

    fn create_io_queues(&mut self) {
        for entry in self.rings.creating(1, None) {
            assert!(self.execute(0, entry).status().is_success());
        }
    }

    fn submit(&mut self, queue: u16, entry: SubmissionEntry) {
        let tail = self.rings.push(queue, entry);
        self.write_register(0x1000 + u32::from(queue) * 8, &tail.to_le_bytes());
    }

    fn execute(&mut self, queue: u16, entry: SubmissionEntry) -> CompletionEntry {
        self.submit(queue, entry);
        loop {
            if let Some(completion) = self.rings.pop(queue) {
                let head = self.rings.head(queue);
                self.write_register(0x1004 + u32::from(queue) * 8, &head.to_le_bytes());
                return completion;
            }
            // A register read replaces a wait for messages: with shared queues, none may come.
            self.csts();
        }
    }

    fn identify(&mut self, buffer: u64) -> Vec<u8> {
        let cdw10 = Cns::CONTROLLER.0.into();
        let entry =
            SubmissionEntry { opcode: admin::IDENTIFY, dptr: [buffer, 0], cdw10, ..Default::default() };
        assert!(self.execute(0, entry).status().is_success());
        let mut page = vec![0; 4096];
        self.rings.memory.read(self.rings.offset(buffer), &mut page);
        page
    }
}

#[test]
fn a_load_without_shared_memory_or_with_some_is_verified() {
    let mixes: [fn(u64) -> bool; 3] = [|_| false, |chunk| chunk == 0, |chunk| chunk % 2 == 1];
    let (scratch, reactor) = (Scratch::new(), start_reactor());
    let directory = scratch.path().join("drive");
    add_drive(&reactor, directory.clone());
    let mut disk = vec![0; DISK as usize];
    for is_shared in mixes {
        let mut host = Host::connect(&directory, is_shared);
        host.enable();
        host.create_io_queues();
        let (list, data) = (host.rings.allocate(4096), host.rings.free());
        for round in 0..60_u64 {
            let blocks = 1 + host.any(512) as usize;
            let slba = host.any(DISK / 512 - 512) as usize;
            let length = blocks * 512;
            // The pages are contiguous, but listed, from any page on.
            let at = data + host.any(64) * 4096;
            let pages: Vec<u64> = (1..=length as u64 / 4096 + 1).map(|page| at + page * 4096).collect();
            host.rings.memory.write(host.rings.offset(list), pages.as_bytes());
            let second = if length <= 8192 { pages[0] } else { list };
            let writes = host.any(2) == 0;
            let entry = SubmissionEntry {
                opcode: if writes { io::WRITE } else { io::READ },
                nsid: 1,
                dptr: [at, second],
                cdw10: slba as u32,
                cdw12: blocks as u32 - 1,
                ..SubmissionEntry::default()
            };
            let range = slba * 512..slba * 512 + length;
            let (there, mut bytes) = (host.rings.offset(at), vec![0; length]);
            if writes {
                let fill =
                    |(n, byte): (usize, &mut u8)| *byte = (n as u64 * 31 + n as u64 / 253 + round) as u8;
                bytes.iter_mut().enumerate().for_each(fill);
                host.rings.memory.write(there, &bytes);
                disk[range.clone()].copy_from_slice(&bytes);
            }
            assert!(host.execute(1, entry).status().is_success(), "round {round}");
            host.rings.memory.read(there, &mut bytes);
            assert!(bytes == disk[range], "round {round}");
        }
        assert!(host.asked > 60, "{}", host.asked);
    }
    reactor.stop();
}

#[test]
fn answers_to_what_was_not_asked_end_the_connection_and_nothing_else() {
    let answers: [Answer; 6] = [
        |host, header, access, _| {
            let header = Header { id: header.id.wrapping_add(1), ..header };
            host.peer.connection.reply(&header, access.as_bytes(), &[0; 64]).expect("sent");
        },
        |host, header, access, _| {
            let header = Header { command: Command::DMA_UNMAP, ..header };
            host.peer.connection.reply(&header, access.as_bytes(), &[0; 64]).expect("sent");
        },
        |host, header, access, _| {
            host.peer.connection.reply(&header, access.as_bytes(), &[0; 63]).expect("sent");
        },
        |host, header, access, _| {
            host.peer.connection.reply(&header, access.as_bytes(), &[0; 65]).expect("sent");
        },
        |host, header, _, _| host.peer.connection.reply(&header, &[0; 15], &[]).expect("sent"),
        |host, header, access, _| {
            let access = DmaAccess { address: access.address + 1, ..access };
            host.peer.connection.reply(&header, access.as_bytes(), &[0; 64]).expect("sent");
        },
    ];
    let (scratch, reactor) = (Scratch::new(), start_reactor());
    let directory = scratch.path().join("drive");
    add_drive(&reactor, directory.clone());
    for answer in answers {
        let mut host = Host::connect(&directory, |_| false);
        host.enable();
        host.answer = answer;
        host.submit(0, SubmissionEntry { opcode: admin::KEEP_ALIVE, ..SubmissionEntry::default() });
        while host.asked == 0 {
            host.listen();
        }
        host.peer.assert_disconnected();
    }
    // An error reply sets fatal status. A client that never answers delays no reset.
    let mut host = Host::connect(&directory, |_| false);
    host.enable();
    host.answer = |host, header, _, _| host.peer.connection.reply_error(&header, Errno::FAULT).expect("sent");
    host.submit(0, SubmissionEntry { opcode: admin::KEEP_ALIVE, ..SubmissionEntry::default() });
    eventually("fatal status", || host.csts() & csts::CFS != 0);
    drop(host);
    let mut host = Host::connect(&directory, |_| false);
    host.enable();
    host.answer = |_, _, _, _| {};
    host.submit(0, SubmissionEntry { opcode: admin::KEEP_ALIVE, ..SubmissionEntry::default() });
    while host.asked == 0 {
        host.csts();
    }
    host.call(Command::DEVICE_RESET, &[]);
    host.answer = properly;
    host.enable();
    let buffer = host.rings.allocate(4096);
    assert_eq!(&host.identify(buffer)[4..7], b"S-1");
    reactor.stop();
}
