//! Clients that share no memory, or not all of it, against a real controller. DMA_READ and DMA_WRITE reach
//! the rest.

mod rig;

use rig::{Peer, Scratch, eventually, start_reactor};
use sluice_command::Stack;
use sluice_controller::{Attached, Config as ControllerConfig, Identity, Namespace, NamespaceConfig};
use sluice_frontend_vfio_user::{Config, Endpoint, Listener};
use sluice_memory::SharedRegion;
use sluice_nvme::opcode::{admin, io};
use sluice_nvme::register::{self, csts};
use sluice_nvme::{Cns, CompletionEntry, SubmissionEntry};
use sluice_reactor::ReactorHandle;
use sluice_router::RouterBuilder;
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
                let identity = Identity {
                    subnqn: "nqn.2026-11.example.sluice:test".to_owned(),
                    serial: "S-1".to_owned(),
                    model: "test".to_owned(),
                    firmware: "1".to_owned(),
                };
                let stack = Stack::of(Box::new(Memory::new(DISK).expect("memory")));
                let config = NamespaceConfig { nsid: 1, block_size: 512, uuid: [1; 16] };
                let namespace =
                    Namespace::new(config, RouterBuilder::new(stack).build()).expect("a namespace");
                let namespaces = vec![namespace];
                let device = Attached::new(ControllerConfig { identity, namespaces }).expect("a controller");
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
    memory: SharedRegion,
    answer: Answer,
    asked: usize,
    free: u64,
    /// Queues: address of the entries, address of the completions, tail and head.
    queues: Vec<(u64, u64, u32, u32)>,
    random: u64,
}

const ENTRIES: u32 = 16;

/// Answers a DMA request as every client should.
fn properly(host: &mut Host, header: Header, access: DmaAccess, data: &[u8]) {
    let (offset, count) = ((access.address - BASE) as usize, access.count as usize);
    if header.command == Command::DMA_WRITE {
        host.memory.write(offset, data);
        return host.peer.connection.reply(&header, access.as_bytes(), &[]).expect("sent");
    }
    let mut bytes = vec![0; count];
    host.memory.read(offset, &mut bytes);
    host.peer.connection.reply(&header, access.as_bytes(), &bytes).expect("sent");
}

impl Host {
    /// Connects a client of which only the shared chunks of memory come with a descriptor.
    fn connect(directory: &Path, is_shared: fn(u64) -> bool) -> Self {
        let mut peer = Peer::connect(directory);
        peer.negotiate(b"{\"capabilities\":{\"max_msg_fds\":16,\"max_data_xfer_size\":1048576}}\0");
        let memory = SharedRegion::new("guest", MEMORY).expect("memory");
        for chunk in 0..MEMORY as u64 / CHUNK {
            let fd = is_shared(chunk).then(|| memory.fd());
            peer.map_at(BASE + chunk * CHUNK, CHUNK, chunk * CHUNK, fd).expect("mapped");
        }
        Self { peer, memory, answer: properly, asked: 0, free: BASE, queues: Vec::new(), random: 1 }
    }

    fn allocate(&mut self, bytes: usize) -> u64 {
        let address = self.free;
        self.free += bytes.next_multiple_of(4096) as u64;
        assert!(self.free <= BASE + MEMORY as u64);
        address
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

    fn new_queue(&mut self) -> (u64, u64) {
        let (sq, cq) = (self.allocate(4096), self.allocate(4096));
        self.memory.fill((sq - BASE) as usize, 8192, 0);
        self.queues.push((sq, cq, 0, 0));
        (sq, cq)
    }

    fn enable(&mut self) {
        // Memory space and bus master are enabled.
        self.write_region(7, 4, &[6, 0]);
        let (sq, cq) = self.new_queue();
        self.write_register(register::AQA, &((ENTRIES - 1) << 16 | (ENTRIES - 1)).to_le_bytes());
        self.write_register(register::ASQ, &sq.to_le_bytes());
        self.write_register(register::ACQ, &cq.to_le_bytes());
        self.write_register(register::CC, &(1_u32 | 6 << 16 | 4 << 20).to_le_bytes());
        while self.csts() & csts::RDY == 0 {}
    }

    fn create_io_queues(&mut self) {
        let (sq, cq) = self.new_queue();
        let create = |opcode, address, cdw11| SubmissionEntry {
            opcode,
            dptr: [address, 0],
            cdw10: 1 | (ENTRIES - 1) << 16,
            cdw11,
            ..SubmissionEntry::default()
        };
        assert!(self.execute(0, create(admin::CREATE_IO_CQ, cq, 1)).status().is_success());
        assert!(self.execute(0, create(admin::CREATE_IO_SQ, sq, 1 | 1 << 16)).status().is_success());
    }

    fn submit(&mut self, queue: usize, entry: SubmissionEntry) {
        let (sq, _, tail, _) = &mut self.queues[queue];
        self.memory.write((*sq - BASE) as usize + *tail as usize * 64, entry.as_bytes());
        *tail = (*tail + 1) % ENTRIES;
        let tail = *tail;
        self.write_register(0x1000 + queue as u32 * 8, &tail.to_le_bytes());
    }

    fn completion(&mut self, queue: usize) -> Option<CompletionEntry> {
        let (_, cq, _, head) = &mut self.queues[queue];
        let mut entry = CompletionEntry::default();
        self.memory.read((*cq - BASE) as usize + (*head % ENTRIES) as usize * 16, entry.as_mut_bytes());
        let is_new = entry.phase() == (*head / ENTRIES).is_multiple_of(2);
        *head += u32::from(is_new);
        is_new.then_some(entry)
    }

    fn execute(&mut self, queue: usize, entry: SubmissionEntry) -> CompletionEntry {
        self.submit(queue, entry);
        loop {
            if let Some(completion) = self.completion(queue) {
                let head = self.queues[queue].3 % ENTRIES;
                self.write_register(0x1004 + queue as u32 * 8, &head.to_le_bytes());
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
        self.memory.read((buffer - BASE) as usize, &mut page);
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
        let (list, data) = (host.allocate(4096), host.free);
        for round in 0..60_u64 {
            let blocks = 1 + host.any(512) as usize;
            let slba = host.any(DISK / 512 - 512) as usize;
            let length = blocks * 512;
            // The pages are contiguous, but listed, from any page on.
            let at = data + host.any(64) * 4096;
            let pages: Vec<u64> = (1..=length as u64 / 4096 + 1).map(|page| at + page * 4096).collect();
            host.memory.write((list - BASE) as usize, pages.as_bytes());
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
            let (there, mut bytes) = ((at - BASE) as usize, vec![0; length]);
            if writes {
                let fill =
                    |(n, byte): (usize, &mut u8)| *byte = (n as u64 * 31 + n as u64 / 253 + round) as u8;
                bytes.iter_mut().enumerate().for_each(fill);
                host.memory.write(there, &bytes);
                disk[range.clone()].copy_from_slice(&bytes);
            }
            assert!(host.execute(1, entry).status().is_success(), "round {round}");
            host.memory.read(there, &mut bytes);
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
    (host.answer, host.queues) = (properly, Vec::new());
    host.enable();
    let buffer = host.allocate(4096);
    assert_eq!(&host.identify(buffer)[4..7], b"S-1");
    reactor.stop();
}
