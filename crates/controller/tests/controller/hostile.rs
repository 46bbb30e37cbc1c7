//! Hosts that do anything at any time. Nothing panics, every command in flight comes back, and after a reset
//! the controller serves as when it was new.

use crate::host::{CC_ENABLED, Host, PAGE, io as io_entry};
use crate::model::Model;
use sluice_controller::{DoorbellMode, NAMESPACES_MAX};
use sluice_nvme::opcode::io;
use sluice_nvme::register::{self, csts};
use sluice_nvme::{NSID_ALL, Status, SubmissionEntry};
use zerocopy::IntoBytes;

const SEEDS: u64 = 150;
const STEPS: u32 = 600;
const BLOCKS: usize = 256;

/// SplitMix64 generator.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub(crate) fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// Returns a dword in which fields of 8 and 16 bits are often small, and sometimes at a limit.
    fn dword(&mut self) -> u32 {
        match self.below(4) {
            0 => self.below(8) as u32,
            1 => (self.below(8) | self.below(8) << 16) as u32,
            2 => self.pick(&[0, 0xff, 0xffff, 0xffff_0000, 0xffff_ffff, 0x8000_0000]),
            _ => self.next() as u32,
        }
    }
}

/// Host with two namespaces and a region of memory that all its pointers lead into, or nearly.
struct Hostile {
    host: Host,
    models: [Model; 2],
    random: Random,
    memory: u64,
}

const PAGES: u64 = 32;

/// I/O queue pairs that these hosts use.
const QUEUES: u16 = 3;

impl Hostile {
    fn new(seed: u64) -> Self {
        let models = [Model::new(BLOCKS), Model::new(BLOCKS)];
        let namespaces = vec![models[0].namespace(1), models[1].namespace(NAMESPACES_MAX as u32)];
        let mut host = Host::new(namespaces);
        let mut random = Random(seed);
        if random.one_in(2) {
            host.controller.controller.set_doorbell_mode(DoorbellMode::Mapped);
        }
        let memory = host.allocate(PAGES as usize * PAGE);
        Self { host, models, random, memory }
    }

    /// Returns an address in the region, mostly of a page, and sometimes anything.
    fn address(&mut self) -> u64 {
        let page = self.memory + self.random.below(PAGES) * PAGE as u64;
        match self.random.below(8) {
            0 => page + self.random.below(PAGE as u64),
            1 => page + self.random.below(PAGE as u64 / 16) * 16,
            2 => self.random.pick(&[0, u64::MAX, self.memory - PAGE as u64, u64::MAX << 12]),
            _ => page,
        }
    }

    fn entry(&mut self) -> SubmissionEntry {
        let random = &mut self.random;
        let flags = if random.one_in(8) { random.next() as u8 } else { random.pick(&[0, 0, 0, 1 << 6]) };
        let opcode = if random.one_in(16) { random.next() as u8 } else { random.below(0x1a) as u8 };
        let nsid = random.pick(&[1, 1, 1, NAMESPACES_MAX as u32, 0, 2, NSID_ALL, 129]);
        let mut dwords = [0; 6];
        dwords.fill_with(|| random.dword());
        let [cdw10, cdw11, cdw12, cdw13, cdw14, cdw15] = dwords;
        let opcode = if self.random.one_in(30) { 0x7c } else { opcode };
        SubmissionEntry {
            opcode,
            flags,
            cid: self.random.next() as u16,
            nsid,
            dptr: [self.address(), self.address()],
            cdw10,
            cdw11,
            cdw12,
            cdw13,
            cdw14,
            cdw15,
            ..SubmissionEntry::default()
        }
    }

    /// Fills the region with entries, so that it serves as queues, and with addresses, so that it serves as
    /// lists.
    fn scribble(&mut self) {
        let place = self.memory + self.random.below(PAGES * PAGE as u64 / 64) * 64;
        match self.random.below(3) {
            0 => {
                let addresses = [self.address(), self.address(), self.address()];
                self.write(place, addresses.as_bytes());
            }
            1 => {
                let descriptor = [self.address(), self.random.dword() as u64 | self.random.below(5) << 60];
                self.write(place, descriptor.as_bytes());
            }
            _ => {
                let entry = self.entry();
                self.write(place, entry.as_bytes());
            }
        }
    }

    fn write(&mut self, place: u64, bytes: &[u8]) {
        if place + bytes.len() as u64 <= self.memory + PAGES * PAGE as u64 {
            self.host.write(place, bytes);
        }
    }

    /// Enables the controller again, if it is not at work and nothing delays it.
    fn restart(&mut self) {
        if self.host.csts() == csts::RDY {
            return;
        }
        self.host.write_register(register::CC, 0);
        self.host.run();
        if self.host.controller.is_quiescent() {
            self.host.enable();
            for id in 1..=QUEUES {
                self.host.create_pair(id, 32);
            }
        }
    }

    /// Submits a few commands on one of the queues, with one doorbell write, and sometimes rings another
    /// doorbell.
    fn command(&mut self) {
        if self.host.has_queues() {
            let queue = if self.random.one_in(8) { 0 } else { 1 + self.random.below(QUEUES.into()) as u16 };
            for _ in 0..self.random.below(6) {
                let entry = self.entry();
                self.host.put(queue, entry);
            }
            self.host.ring(queue);
        }
        if self.random.one_in(50) {
            let doorbell = self.random.below(12) as u32 * 4;
            self.host.ring_with(doorbell, self.random.below(40) as u32);
        }
    }

    fn reap(&mut self) {
        if self.host.has_queues() {
            for queue in 0..=QUEUES {
                self.host.reap_all(queue);
            }
        }
    }

    fn register(&mut self) {
        let offset = self.random.below(0x40) as u32;
        let value = match self.random.below(4) {
            0 => CC_ENABLED,
            1 => CC_ENABLED | 1 << 14,
            2 => 0,
            _ => self.random.dword(),
        };
        let offset = if self.random.one_in(2) { register::CC } else { offset };
        self.host.write_register(offset, value);
    }

    fn answer(&mut self) {
        let which = self.random.below(2) as usize;
        let parked = self.models[which].disk().parked.len() as u64;
        if parked > 0 {
            let rotation = self.random.below(parked) as usize;
            self.models[which].disk().parked.rotate_left(rotation);
            self.host.answer([1, NAMESPACES_MAX as u32][which], &self.models[which], 1);
        }
    }

    fn operator(&mut self) {
        match self.random.below(5) {
            0 => {
                let blocks = BLOCKS as u64 + self.random.below(8);
                assert!(self.host.controller.subsystem.resize(1, blocks * 512));
            }
            1 => self.models[0].disk().hold ^= true,
            2 => self.models[1].disk().hold ^= true,
            3 => {
                let status = self.random.pick(&[None, None, Some(Status::UNRECOVERED_READ_ERROR)]);
                self.models[0].disk().fails_with = status;
            }
            _ => self.host.controller.reset(),
        }
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..40 => self.command(),
            40..50 => self.scribble(),
            50..75 => {
                self.host.turn();
            }
            75..82 => self.answer(),
            82..91 => self.reap(),
            91 => self.register(),
            92 => self.operator(),
            93 => self.restart(),
            94 => {
                let offset = self.random.below(0x2000) as u32 & !3;
                if offset < PAGE as u32 {
                    self.host.ring_with(offset, self.random.dword());
                }
            }
            95 => self.host.now_ns += self.random.below(1 << 40),
            96 => self.host.controller.disarm(),
            97 => self.host.controller.controller.take_vectors(|vector| assert!(vector <= 128)),
            98 => {
                self.host.controller.controller.intx_asserted();
                self.host.controller.overview();
            }
            _ => {
                // A sleeping controller has no work for a turn.
                if !self.host.controller.arm() {
                    let deadline = self.host.controller.deadline_ns();
                    let due = deadline.is_some_and(|deadline| deadline <= self.host.now_ns);
                    assert!(self.host.turn() == 0 || due, "work was left behind");
                }
            }
        }
    }

    /// Ends a sequence: all answers come, then one reset, and then a correct host.
    fn recover(mut self) {
        for model in &self.models {
            let mut disk = model.disk();
            disk.hold = false;
            disk.fails_with = None;
        }
        self.host.controller.reset();
        for _ in 0..10 {
            for (nsid, model) in [(1, &self.models[0]), (NAMESPACES_MAX as u32, &self.models[1])] {
                let parked = model.disk().parked.len();
                self.host.answer(nsid, model, parked);
            }
            self.host.run();
        }
        assert_eq!(self.host.controller.in_flight(), 0);
        assert!(self.host.controller.is_quiescent());
        self.host.enable();
        self.host.create_pair(1, 8);
        let buffer = self.host.allocate(PAGE);
        self.host.write(buffer, &[0x5a; 512]);
        assert_eq!(self.host.io(io_entry(io::WRITE, 9, 1, buffer)), Status::SUCCESS);
        assert_eq!(self.models[0].disk().bytes[9 * 512..10 * 512], [0x5a; 512]);
    }
}

/// Conformance: Base 3.7.2, whatever a host did, a reset brings the controller back.
#[test]
fn nothing_a_host_does_outlives_a_reset() {
    let mut commands = 0;
    for seed in 0..SEEDS {
        let mut hostile = Hostile::new(seed);
        hostile.restart();
        for _ in 0..STEPS {
            hostile.step();
        }
        commands += hostile.host.controller.subsystem.statistics().commands;
        hostile.recover();
    }
    assert!(commands > 20_000, "only {commands} I/O commands: these hosts do too little");
}
