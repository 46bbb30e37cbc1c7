//! Several controllers of one subsystem, each with a host of its own.

use crate::host::{Host, PAGE, entry, io};
use crate::hostile::Random;
use crate::model::Model;
use sluice_command::NodeId;
use sluice_controller::{COMMANDS_MAX, Controller, Namespace, Subsystem};
use sluice_nvme::opcode::{admin, io as opcode};
use sluice_nvme::{Cns, LogId, Status, SubmissionEntry};
use std::collections::BTreeMap;

/// Two hosts whose controllers are of one subsystem. The subsystem is with the host that acts; the other host
/// holds the one that it was made with.
pub(crate) struct Pair {
    hosts: [Host; 2],
    has_it: usize,
}

impl Pair {
    pub(crate) fn new(model: &Model) -> Self {
        Self::with(vec![model.namespace(1)])
    }

    pub(crate) fn with(namespaces: Vec<Namespace>) -> Self {
        let mut first = Host::new(namespaces);
        let mut second = Host::new(vec![Model::new(8).namespace(1)]);
        second.controller.controller =
            Controller::new(&mut first.controller.subsystem, 2).expect("a second controller");
        Self { hosts: [first, second], has_it: 0 }
    }

    /// Enables both, each with an I/O queue pair.
    pub(crate) fn enabled(model: &Model) -> Self {
        let mut pair = Self::new(model);
        for number in 0..2 {
            pair.enable(number);
        }
        pair
    }

    fn enable(&mut self, number: usize) {
        let host = self.host(number);
        host.enable();
        host.create_pair(1, 64);
    }

    /// Submits more commands of one host than there are slots.
    fn be_greedy(&mut self, number: usize) {
        let greedy = self.host(number);
        let buffer = greedy.allocate(PAGE);
        (2..4).for_each(|queue| greedy.create_pair(queue, 1024));
        for queue in 2..4 {
            for _ in 0..1000 {
                greedy.put(queue, io(opcode::READ, 0, 1, buffer));
            }
            greedy.ring(queue);
        }
        self.run();
    }

    pub(crate) fn host(&mut self, number: usize) -> &mut Host {
        if number != self.has_it {
            let [first, second] = &mut self.hosts;
            std::mem::swap(&mut first.controller.subsystem, &mut second.controller.subsystem);
            self.has_it = number;
        }
        &mut self.hosts[number]
    }

    /// Advances the time for both.
    pub(crate) fn hosts_wait(&mut self, ns: u64) {
        self.pass(ns);
        self.run();
    }

    /// Advances the time for both, without a turn.
    pub(crate) fn pass(&mut self, ns: u64) {
        self.hosts.iter_mut().for_each(|host| host.now_ns += ns);
    }

    /// Gives turns to both until neither has work.
    pub(crate) fn run(&mut self) {
        while (0..2).map(|number| self.host(number).turn()).sum::<usize>() > 0 {}
    }
}

/// Conformance: Base 5.17.2.18, the list of controllers names every one of the subsystem, and so does that of a namespace that all have.
#[test]
fn controllers_of_a_subsystem_tell_of_each_other() {
    let mut pair = Pair::enabled(&Model::new(64));
    for (number, cntlid) in [(0, 1), (1, 2)] {
        let page = pair.host(number).identify(Cns::CONTROLLER, 0).expect("a page");
        assert_eq!(u16::from_le_bytes([page[78], page[79]]), cntlid);
        for (cns, nsid) in [(Cns::CONTROLLERS, 0), (Cns::ATTACHED_CONTROLLERS, 1)] {
            let list = pair.host(number).identify(cns, nsid).expect("a page");
            assert_eq!(list[..8], [2, 0, 1, 0, 2, 0, 0, 0]);
        }
    }
}

/// Conformance: Base 5.2, what happens to a namespace is reported through every controller that has it, and an error through its own.
#[test]
fn all_hosts_are_told_what_happens_to_a_namespace() {
    let mut pair = Pair::enabled(&Model::new(64));
    for number in 0..2 {
        let host = pair.host(number);
        host.submit(0, entry(admin::ASYNC_EVENT_REQUEST));
        host.run();
    }
    assert!(pair.host(0).controller.subsystem.resize(1, 32 * 512));
    pair.run();
    for number in 0..2 {
        let host = pair.host(number);
        assert_eq!(host.reap(0).expect("an event").dw0, 0x0004_0002);
        assert_eq!(host.log(LogId::CHANGED_NAMESPACE_LIST, 8), Ok(vec![1, 0, 0, 0, 0, 0, 0, 0]));
    }
    // An event of one controller does not concern another.
    pair.host(1).submit(0, entry(admin::ASYNC_EVENT_REQUEST));
    pair.host(0).submit(0, entry(admin::ASYNC_EVENT_REQUEST));
    pair.host(0).ring_with(99 * 8, 1);
    pair.run();
    assert_eq!(pair.host(0).reap(0).expect("an event").dw0, 0x0001_0000);
    assert_eq!(pair.host(1).reap(0), None);
}

#[test]
fn a_format_is_everybodys_and_outlives_who_asked_for_it() {
    let model = Model::new(64);
    let mut pair = Pair::enabled(&model);
    pair.host(1).submit(0, entry(admin::ASYNC_EVENT_REQUEST));
    model.disk().hold = true;
    pair.host(0).submit(0, SubmissionEntry { nsid: 1, cdw10: 1, ..entry(admin::FORMAT_NVM) });
    pair.run();
    let other = pair.host(1);
    let buffer = other.allocate(PAGE);
    assert_eq!(other.io(io(opcode::READ, 0, 1, buffer)), Status::FORMAT_IN_PROGRESS);
    let second = other.admin(SubmissionEntry { nsid: 1, ..entry(admin::FORMAT_NVM) });
    assert_eq!(second.status(), Status::FORMAT_IN_PROGRESS);
    pair.host(0).controller.reset();
    model.disk().hold = false;
    pair.host(1).answer(1, &model, 1);
    pair.run();
    assert!(pair.host(0).controller.is_quiescent());
    let other = pair.host(1);
    assert_eq!(other.reap(0).expect("an event").dw0, 0x0004_0002);
    assert_eq!(other.io(SubmissionEntry { cdw12: 0, ..io(opcode::READ, 0, 1, buffer) }), Status::SUCCESS);
}

/// Tests that a host that uses all it can leaves another its share.
#[test]
fn the_slots_are_shared() {
    let model = Model::new(64);
    let mut pair = Pair::enabled(&model);
    model.disk().hold = true;
    pair.be_greedy(0);
    assert_eq!(pair.host(0).controller.in_flight(), COMMANDS_MAX / 2);
    let modest = pair.host(1);
    let buffer = modest.allocate(PAGE);
    for _ in 0..60 {
        modest.put(1, io(opcode::READ, 0, 1, buffer));
    }
    modest.ring(1);
    pair.run();
    assert_eq!(pair.host(1).controller.in_flight(), 60);
    // When it is alone it has all slots.
    pair.host(1).controller.reset();
    for _ in 0..60 {
        let ticket = model.disk().parked.pop_back().expect("the last are the modest one's");
        let token = Subsystem::token_prefix(1, NodeId(0)) | u64::from(ticket.0);
        pair.host(0).controller.subsystem.event(token, 0, 1);
    }
    pair.run();
    assert!(pair.host(0).controller.arm(), "there is room for more");
    pair.run();
    assert_eq!(pair.host(0).controller.in_flight(), COMMANDS_MAX);
}

/// Tests that a controller that comes while another has all its commands in flight, and none ends, is served.
#[test]
fn some_slots_are_kept_for_who_comes() {
    let model = Model::new(64);
    let mut pair = Pair::new(&model);
    pair.host(0).controller.subsystem.expect(2);
    pair.enable(0);
    model.disk().hold = true;
    pair.be_greedy(0);
    let taken = pair.host(0).controller.in_flight();
    assert!(taken < COMMANDS_MAX && taken > COMMANDS_MAX / 2, "{taken}");
    pair.enable(1);
    let page = pair.host(1).identify(Cns::CONTROLLER, 0).expect("a page");
    assert_eq!(page[76] & 0b10, 0b10, "CMIC");
    let modest = pair.host(1);
    let buffer = modest.allocate(PAGE);
    modest.submit(1, io(opcode::READ, 0, 1, buffer));
    modest.run();
    assert_eq!(modest.controller.in_flight(), 1);
}

/// Operation of a command, by its CID.
enum Asked {
    Write(u64, u8),
    Read(u64, u64),
}

/// Contents of the disk, as far as they are certain, and the operations of two hosts on it.
struct Story {
    pair: Pair,
    model: Model,
    random: Random,
    /// Contents by block; none where a write was under way at a reset.
    blocks: Vec<Option<u8>>,
    asked: [BTreeMap<u16, Asked>; 2],
    verified: u64,
    resets: u64,
}

const BLOCKS: u64 = 64;

impl Story {
    fn new(seed: u64) -> Self {
        let model = Model::new(BLOCKS as usize);
        model.disk().hold = true;
        let (pair, random) = (Pair::enabled(&model), Random(seed));
        let blocks = vec![Some(0); BLOCKS as usize];
        Self { pair, model, random, blocks, asked: Default::default(), verified: 0, resets: 0 }
    }

    fn step(&mut self) {
        let number = self.random.below(2) as usize;
        match self.random.below(20) {
            0..8 => self.submit(number),
            8..14 => self.answer(number),
            14..19 => self.reap(number),
            _ => self.reset(number),
        }
    }

    fn is_busy(&self, block: u64) -> bool {
        self.asked.iter().flat_map(|asked| asked.values()).any(|asked| match asked {
            Asked::Write(of, _) | Asked::Read(of, _) => *of == block,
        })
    }

    fn submit(&mut self, number: usize) {
        let block = self.random.below(BLOCKS);
        if self.is_busy(block) || self.asked[number].len() > 30 {
            return;
        }
        let (byte, is_write) = (self.random.below(256) as u8, self.random.one_in(2));
        let host = self.pair.host(number);
        let buffer = host.allocate(PAGE);
        host.write(buffer, &[byte; 512]);
        let opcode = if is_write { opcode::WRITE } else { opcode::READ };
        let cid = host.submit(1, io(opcode, block, 1, buffer));
        let asked = if is_write { Asked::Write(block, byte) } else { Asked::Read(block, buffer) };
        self.asked[number].insert(cid, asked);
        self.pair.host(number).turn();
    }

    /// Answers any commands of the target, in the turn of either controller.
    fn answer(&mut self, number: usize) {
        let parked = self.model.disk().parked.len() as u64;
        if parked > 0 {
            let index = self.random.below(parked) as usize;
            let ticket = self.model.disk().parked.remove(index).expect("there are so many");
            let token = Subsystem::token_prefix(1, NodeId(0)) | u64::from(ticket.0);
            let host = self.pair.host(number);
            host.controller.subsystem.event(token, 0, host.now_ns);
        }
        self.pair.host(number).turn();
    }

    fn reap(&mut self, number: usize) {
        self.pair.host(number).turn();
        for completion in self.pair.host(number).reap_all(1) {
            let asked = self.asked[number].remove(&completion.cid).expect("it asked for that, once");
            assert_eq!(completion.status(), Status::SUCCESS);
            match asked {
                Asked::Write(block, byte) => self.blocks[block as usize] = Some(byte),
                Asked::Read(block, buffer) => {
                    let read = self.pair.host(number).read(buffer, 512);
                    if let Some(byte) = self.blocks[block as usize] {
                        assert_eq!(read, [byte; 512], "block {block} as host {number} reads it");
                        self.verified += 1;
                    }
                }
            }
        }
    }

    /// Checks that its commands in flight end, and no others.
    fn reset(&mut self, number: usize) {
        self.resets += 1;
        for asked in std::mem::take(&mut self.asked[number]).into_values() {
            if let Asked::Write(block, _) = asked {
                self.blocks[block as usize] = None;
            }
        }
        self.pair.host(number).controller.reset();
        while !self.pair.host(number).controller.is_quiescent() {
            let other = usize::from(self.random.one_in(2));
            self.answer(other);
        }
        self.pair.enable(number);
    }
}

/// Conformance: Base 3.7.2, a controller level reset leaves the other controllers of the subsystem as they are.
#[test]
fn a_reset_ends_what_is_its_controllers_and_nothing_else() {
    let (mut verified, mut resets) = (0, 0);
    for seed in 0..40 {
        let mut story = Story::new(seed);
        for _ in 0..400 {
            story.step();
        }
        (verified, resets) = (verified + story.verified, resets + story.resets);
    }
    assert!(
        verified > 1000 && resets > 200,
        "{verified} blocks verified, {resets} resets: too little happens"
    );
}

#[test]
fn one_that_leaves_makes_room() {
    let mut pair = Pair::enabled(&Model::new(64));
    let host = pair.host(1);
    host.controller.reset();
    host.run();
    let spare = Host::new(vec![Model::new(8).namespace(1)]);
    let gone = std::mem::replace(&mut host.controller.controller, spare.controller.controller);
    gone.leave(&mut host.controller.subsystem);
    let list = pair.host(0).identify(Cns::CONTROLLERS, 0).expect("a page");
    assert_eq!(list[..6], [1, 0, 1, 0, 0, 0]);
}
