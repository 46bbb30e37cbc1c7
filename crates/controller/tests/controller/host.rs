//! Host in the same process: its memory, its queues, and a controller that gets turns by hand.

use crate::client::Client;
use crate::model::Model;
use sluice_command::NodeId;
use sluice_controller::{Attached, Config, DoorbellMode, Identity, Namespace, Subsystem};
use sluice_memory::{Backing, Permissions, SharedRegion, Space};
use sluice_nvme::opcode::admin;
use sluice_nvme::register::{self, csts};
use sluice_nvme::{Cns, CompletionEntry, FeatureId, LogId, Status, SubmissionEntry};
use std::collections::BTreeMap;
use zerocopy::IntoBytes;

pub(crate) const PAGE: usize = 4096;

/// Bytes of the host's memory.
const MEMORY: usize = 32 << 20;

/// Bytes of a region where the regions are separate.
const CHUNK: u64 = 64 << 10;

/// Start of the memory in the host's address space.
const BASE: u64 = 0x1000_0000;

/// CC as hosts write it: enabled, entries of 64 and 16 bytes.
pub(crate) const CC_ENABLED: u32 = 1 | 6 << 16 | 4 << 20;

/// Entries of the admin queues.
pub(crate) const ADMIN_ENTRIES: u32 = 32;

pub(crate) const MS: u64 = 1_000_000;

pub(crate) fn identity() -> Identity {
    Identity {
        subnqn: "nqn.2026-01.org.example:drive".into(),
        serial: "S-1".into(),
        model: "Model of a drive".into(),
        firmware: "1.2".into(),
    }
}

struct Submissions {
    address: u64,
    size: u32,
    tail: u32,
    cq: u16,
}

struct Completions {
    address: u64,
    size: u32,
    head: u32,
    phase: bool,
}

pub(crate) struct Host {
    pub(crate) controller: Attached,
    pub(crate) space: Space,
    pub(crate) now_ns: u64,
    memory: SharedRegion,
    /// First address that was not handed out.
    free: u64,
    /// Bytes of a page, to which every buffer is aligned.
    page: usize,
    sqs: BTreeMap<u16, Submissions>,
    cqs: BTreeMap<u16, Completions>,
    next_cid: u16,
    /// Client that accesses memory for the controller where that cannot.
    pub(crate) client: Client,
}

impl Host {
    /// Creates a host with memory and a controller that is not enabled.
    pub(crate) fn new(namespaces: Vec<Namespace>) -> Self {
        let controller = Attached::new(Config { identity: identity(), namespaces }).expect("a controller");
        let memory = SharedRegion::new("host", MEMORY).expect("memory");
        let (sqs, cqs) = Default::default();
        let space = Space::new();
        let (free, client) = (BASE, Client::default());
        let mut host =
            Self { controller, space, now_ns: 1, memory, free, page: PAGE, sqs, cqs, next_cid: 0, client };
        host.map_memory();
        host
    }

    /// Creates a host with one namespace over `model` and I/O queue pair 1 of 64 entries. The controller
    /// reaches only the shared chunks of its memory. The client accesses the others, in an order that depends
    /// on `seed`.
    pub(crate) fn with_client(model: &Model, seed: u64, is_shared: impl Fn(u64) -> bool) -> Self {
        let mut host = Self::new(vec![model.namespace(1)]);
        host.client = Client::new(seed);
        drop(host.space.unmap_all());
        for chunk in 0..MEMORY as u64 / CHUNK {
            let fd = host.memory.fd().try_clone_to_owned().expect("a descriptor");
            let backing = match is_shared(chunk) {
                true => Backing::File { fd, offset: chunk * CHUNK },
                false => Backing::Remote,
            };
            host.space.map(BASE + chunk * CHUNK, CHUNK, Permissions::READ_WRITE, backing).expect("a map");
        }
        host.enable();
        host.create_pair(1, 64);
        host
    }

    /// Allocates from the beginning again, behind the memory of the queues.
    pub(crate) fn reuse_memory(&mut self) {
        self.free = BASE + (1 << 20);
    }

    /// Enables with pages of 4 KiB times two to the power of `mps`, to which queues are aligned.
    pub(crate) fn enabled_with_pages(namespaces: Vec<Namespace>, mps: u32) -> Self {
        let mut host = Self::new(namespaces);
        host.page = PAGE << mps;
        host.enable_with(CC_ENABLED | mps << 7);
        host
    }

    /// Creates an enabled host.
    pub(crate) fn enabled(namespaces: Vec<Namespace>) -> Self {
        let mut host = Self::new(namespaces);
        host.enable();
        host
    }

    /// Creates an enabled host with one namespace over `model` and I/O queue pair 1 of 64 entries.
    pub(crate) fn with_io(model: &Model) -> Self {
        let mut host = Self::enabled(vec![model.namespace(1)]);
        host.create_pair(1, 64);
        host
    }

    // Memory.

    /// Maps all memory for the controller.
    pub(crate) fn map_memory(&mut self) {
        let fd = self.memory.fd().try_clone_to_owned().expect("a descriptor");
        let backing = Backing::File { fd, offset: 0 };
        self.space.map(BASE, MEMORY as u64, Permissions::READ_WRITE, backing).expect("a map");
    }

    /// Aligns the next allocation.
    pub(crate) fn align(&mut self, bytes: usize) {
        self.free = self.free.next_multiple_of(bytes as u64);
    }

    pub(crate) fn allocate(&mut self, bytes: usize) -> u64 {
        let address = self.free;
        self.free += bytes.next_multiple_of(self.page) as u64;
        assert!(self.free <= BASE + MEMORY as u64, "the host's memory is used up");
        address
    }

    /// Returns the bytes that were not allocated yet.
    pub(crate) fn free_memory(&self) -> usize {
        (BASE + MEMORY as u64 - self.free) as usize
    }

    /// Returns an address without memory.
    pub(crate) fn nowhere(&self) -> u64 {
        BASE + MEMORY as u64 + PAGE as u64
    }

    pub(crate) fn write(&self, address: u64, bytes: &[u8]) {
        self.memory.write((address - BASE) as usize, bytes);
    }

    pub(crate) fn read(&self, address: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.memory.read((address - BASE) as usize, &mut bytes);
        bytes
    }

    // Registers.

    pub(crate) fn register(&self, offset: u32) -> u32 {
        let mut bytes = [0; 4];
        self.controller.controller.read_register(offset, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    pub(crate) fn write_register(&mut self, offset: u32, value: u32) {
        self.controller.write_register(offset, &value.to_le_bytes(), &self.space, self.now_ns);
    }

    pub(crate) fn write_register_64(&mut self, offset: u32, value: u64) {
        self.controller.write_register(offset, &value.to_le_bytes(), &self.space, self.now_ns);
    }

    pub(crate) fn csts(&self) -> u32 {
        self.register(register::CSTS)
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.csts() & csts::RDY != 0
    }

    // Controller state.

    pub(crate) fn enable(&mut self) {
        self.enable_with(CC_ENABLED);
    }

    pub(crate) fn enable_with(&mut self, cc: u32) {
        self.configure_admin_queues();
        self.write_register(register::CC, cc);
        self.turn();
        assert_eq!(self.csts(), csts::RDY);
    }

    /// Allocates new admin queues and writes their registers; I/O queues are dropped.
    pub(crate) fn configure_admin_queues(&mut self) {
        self.sqs.clear();
        self.cqs.clear();
        let sq = self.lay_out_sq(0, ADMIN_ENTRIES, 0);
        let cq = self.lay_out_cq(0, ADMIN_ENTRIES);
        self.write_register(register::AQA, (ADMIN_ENTRIES - 1) << 16 | (ADMIN_ENTRIES - 1));
        self.write_register_64(register::ASQ, sq);
        self.write_register_64(register::ACQ, cq);
    }

    pub(crate) fn turn(&mut self) -> usize {
        let may_sleep = self.client.is_quiet() && self.may_sleep();
        let work = self.controller.turn(&self.space, self.now_ns);
        assert!(work == 0 || !may_sleep, "a task that sleeps would not have had this turn");
        let Self { client, controller, memory, now_ns, .. } = self;
        work + client.serve(controller, memory, BASE, *now_ns)
    }

    /// Returns whether a task would sleep now until a doorbell, an answer or a later time.
    fn may_sleep(&mut self) -> bool {
        let has_work = self.controller.arm();
        self.controller.disarm();
        !has_work && self.controller.deadline_ns().is_none_or(|at_ns| at_ns > self.now_ns)
    }

    /// Gives turns until there is no work.
    pub(crate) fn run(&mut self) {
        while self.turn() > 0 {}
    }

    // Queues.

    pub(crate) fn lay_out_sq(&mut self, id: u16, size: u32, cq: u16) -> u64 {
        let address = self.allocate(size as usize * SubmissionEntry::SIZE);
        self.sqs.insert(id, Submissions { address, size, tail: 0, cq });
        address
    }

    pub(crate) fn lay_out_cq(&mut self, id: u16, size: u32) -> u64 {
        let address = self.allocate(size as usize * CompletionEntry::SIZE);
        self.write(address, &vec![0; size as usize * CompletionEntry::SIZE]);
        self.cqs.insert(id, Completions { address, size, head: 0, phase: true });
        address
    }

    pub(crate) fn create_cq(&mut self, id: u16, size: u32) -> Status {
        let address = self.lay_out_cq(id, size);
        self.admin(create_cq(id, size, address)).status()
    }

    pub(crate) fn create_sq(&mut self, id: u16, size: u32, cq: u16) -> Status {
        let address = self.lay_out_sq(id, size, cq);
        self.admin(create_sq(id, size, cq, address)).status()
    }

    pub(crate) fn create_pair(&mut self, id: u16, size: u32) {
        assert_eq!(self.create_cq(id, size), Status::SUCCESS);
        assert_eq!(self.create_sq(id, size, id), Status::SUCCESS);
    }

    pub(crate) fn delete_sq(&mut self, id: u16) -> Status {
        self.admin(delete(admin::DELETE_IO_SQ, id)).status()
    }

    pub(crate) fn delete_cq(&mut self, id: u16) -> Status {
        self.admin(delete(admin::DELETE_IO_CQ, id)).status()
    }

    pub(crate) fn has_queues(&self) -> bool {
        self.sqs.len() > 1
    }

    /// Puts an entry on a queue without ringing, and returns its CID.
    pub(crate) fn put(&mut self, sq: u16, mut entry: SubmissionEntry) -> u16 {
        self.next_cid = self.next_cid.wrapping_add(1);
        entry.cid = self.next_cid;
        let queue = self.sqs.get_mut(&sq).expect("a queue the host has");
        let address = queue.address + u64::from(queue.tail) * SubmissionEntry::SIZE as u64;
        queue.tail = (queue.tail + 1) % queue.size;
        self.write(address, entry.as_bytes());
        entry.cid
    }

    pub(crate) fn ring(&mut self, sq: u16) {
        let tail = self.sqs[&sq].tail;
        self.ring_with(u32::from(sq) * 8, tail);
    }

    /// Writes any doorbell in the way of the mode.
    pub(crate) fn ring_with(&mut self, offset: u32, value: u32) {
        match self.controller.controller.doorbell_mode() {
            DoorbellMode::Trapped | DoorbellMode::Capsules => self.controller.controller.ring(offset, value),
            DoorbellMode::Mapped => {
                let at = register::DOORBELLS as usize + offset as usize;
                let page = self.controller.controller.doorbells();
                page.atomic_u32(at).store(value, std::sync::atomic::Ordering::Release);
            }
        }
    }

    /// Submits an entry and returns its CID.
    pub(crate) fn submit(&mut self, sq: u16, entry: SubmissionEntry) -> u16 {
        let cid = self.put(sq, entry);
        self.ring(sq);
        cid
    }

    /// Returns the next completion of a queue, if there is one. The doorbell stays as it is.
    pub(crate) fn take(&mut self, cq: u16) -> Option<CompletionEntry> {
        let queue = &self.cqs[&cq];
        let address = queue.address + u64::from(queue.head) * CompletionEntry::SIZE as u64;
        let mut entry = CompletionEntry::default();
        entry.as_mut_bytes().copy_from_slice(&self.read(address, CompletionEntry::SIZE));
        let queue = self.cqs.get_mut(&cq).expect("just looked at");
        if entry.phase() != queue.phase {
            return None;
        }
        queue.head = (queue.head + 1) % queue.size;
        queue.phase ^= queue.head == 0;
        Some(entry)
    }

    /// Releases the completions that were taken.
    pub(crate) fn release(&mut self, cq: u16) {
        let head = self.cqs[&cq].head;
        self.ring_with(u32::from(cq) * 8 + 4, head);
    }

    /// Takes and releases the next completion.
    pub(crate) fn reap(&mut self, cq: u16) -> Option<CompletionEntry> {
        let entry = self.take(cq)?;
        self.release(cq);
        Some(entry)
    }

    pub(crate) fn reap_all(&mut self, cq: u16) -> Vec<CompletionEntry> {
        std::iter::from_fn(|| self.reap(cq)).collect()
    }

    /// Submits an entry and waits for its completion, which is the only one.
    pub(crate) fn execute(&mut self, sq: u16, entry: SubmissionEntry) -> CompletionEntry {
        let cid = self.submit(sq, entry);
        self.run();
        let cq = self.sqs[&sq].cq;
        let completion = self.reap(cq).expect("a completion");
        assert_eq!((completion.cid, completion.sq_id), (cid, sq));
        assert_eq!(self.take(cq), None, "one completion for one command");
        completion
    }

    pub(crate) fn admin(&mut self, entry: SubmissionEntry) -> CompletionEntry {
        self.execute(0, entry)
    }

    pub(crate) fn io(&mut self, entry: SubmissionEntry) -> Status {
        self.execute(1, entry).status()
    }

    /// Answers the commands that the model of namespace `nsid` holds, oldest first.
    pub(crate) fn answer(&mut self, nsid: u32, model: &Model, count: usize) {
        for _ in 0..count {
            let ticket = model.disk().parked.pop_front().expect("a parked command");
            let token = Subsystem::token_prefix(nsid, NodeId(0)) | u64::from(ticket.0);
            self.controller.subsystem.event(token, 0, self.now_ns);
        }
    }

    // Admin commands with data.

    /// Executes an admin command that reads `length` bytes into a buffer of all ones.
    pub(crate) fn admin_read(&mut self, entry: SubmissionEntry, length: usize) -> Result<Vec<u8>, Status> {
        let buffer = self.allocate(length);
        self.write(buffer, &vec![0xff; length]);
        let completion = self.admin(SubmissionEntry { dptr: prps(buffer, length), ..entry });
        let data = self.read(buffer, length);
        if completion.status().is_success() { Ok(data) } else { Err(completion.status()) }
    }

    pub(crate) fn identify(&mut self, cns: Cns, nsid: u32) -> Result<Vec<u8>, Status> {
        let cdw10 = u32::from(cns.0);
        self.admin_read(SubmissionEntry { nsid, cdw10, ..entry(admin::IDENTIFY) }, PAGE)
    }

    pub(crate) fn log(&mut self, log: LogId, length: usize) -> Result<Vec<u8>, Status> {
        self.admin_read(get_log(log, length), length)
    }

    pub(crate) fn set_feature(&mut self, id: FeatureId, value: u32) -> Result<u32, Status> {
        self.dw0(SubmissionEntry { cdw10: u32::from(id.0), cdw11: value, ..entry(admin::SET_FEATURES) })
    }

    pub(crate) fn get_feature(&mut self, id: FeatureId) -> Result<u32, Status> {
        self.dw0(SubmissionEntry { cdw10: u32::from(id.0), ..entry(admin::GET_FEATURES) })
    }

    /// Executes an admin command that returns dword 0.
    pub(crate) fn dw0(&mut self, entry: SubmissionEntry) -> Result<u32, Status> {
        let completion = self.admin(entry);
        if completion.status().is_success() { Ok(completion.dw0) } else { Err(completion.status()) }
    }
}

// Entries.

pub(crate) fn entry(opcode: u8) -> SubmissionEntry {
    SubmissionEntry { opcode, ..SubmissionEntry::default() }
}

pub(crate) fn create_cq(id: u16, size: u32, address: u64) -> SubmissionEntry {
    const CONTIGUOUS_AND_INTERRUPTS: u32 = 0b11;
    SubmissionEntry {
        dptr: [address, 0],
        cdw10: u32::from(id) | (size - 1) << 16,
        cdw11: CONTIGUOUS_AND_INTERRUPTS | u32::from(id) << 16,
        ..entry(admin::CREATE_IO_CQ)
    }
}

pub(crate) fn create_sq(id: u16, size: u32, cq: u16, address: u64) -> SubmissionEntry {
    const CONTIGUOUS: u32 = 1;
    SubmissionEntry {
        dptr: [address, 0],
        cdw10: u32::from(id) | (size - 1) << 16,
        cdw11: CONTIGUOUS | u32::from(cq) << 16,
        ..entry(admin::CREATE_IO_SQ)
    }
}

pub(crate) fn delete(opcode: u8, id: u16) -> SubmissionEntry {
    SubmissionEntry { cdw10: u32::from(id), ..entry(opcode) }
}

/// Returns a Get Log Page of `length` bytes from the start, RAE = 0.
pub(crate) fn get_log(log: LogId, length: usize) -> SubmissionEntry {
    let dwords = length as u32 / 4 - 1;
    let cdw10 = u32::from(log.0) | dwords << 16;
    SubmissionEntry { nsid: 0xffff_ffff, cdw10, cdw11: dwords >> 16, ..entry(admin::GET_LOG_PAGE) }
}

/// Returns PRP1 and PRP2 of a page-aligned buffer of at most two pages.
pub(crate) fn prps(buffer: u64, length: usize) -> [u64; 2] {
    assert!(length <= 2 * PAGE);
    [buffer, if length > PAGE { buffer + PAGE as u64 } else { 0 }]
}

/// Returns an I/O command on `blocks` blocks of namespace 1 from `slba` on; the buffer is at most two pages.
pub(crate) fn io(opcode: u8, slba: u64, blocks: u32, buffer: u64) -> SubmissionEntry {
    SubmissionEntry {
        nsid: 1,
        dptr: [buffer, buffer + PAGE as u64],
        cdw10: slba as u32,
        cdw11: (slba >> 32) as u32,
        cdw12: blocks - 1,
        ..entry(opcode)
    }
}
