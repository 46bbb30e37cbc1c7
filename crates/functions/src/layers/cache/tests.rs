//! A cache over a device that executes commands in any order, at any time, and fails some.

use super::*;
use crate::Random;
use proptest::prelude::*;
use sluice_command::{Limits, Origin, Slab, Stack, StackBuilder, Ticket};
use sluice_nvme::SubmissionEntry;
use std::sync::Mutex;

const BLOCK: usize = 512;
const SIZE: usize = 1 << 20;

/// Bytes of the largest command.
const LONGEST: usize = 128 << 10;

#[derive(Default)]
struct Disk {
    bytes: Vec<u8>,
    /// Commands that wait for their execution.
    waiting: Vec<Ticket>,
    reads: usize,
}

struct Target(Arc<Mutex<Disk>>);

impl Layer for Target {
    fn name(&self) -> &'static str {
        "disk"
    }

    fn characteristics(&self, _below: &[Characteristics]) -> Characteristics {
        Characteristics::target(SIZE as u64, BLOCK as u32)
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        let ticket = lane.park(command);
        self.0.lock().expect("not poisoned").waiting.push(ticket);
    }

    /// Executes a command, or fails it.
    fn event(&mut self, ticket: Ticket, result: i32, lane: &mut Lane<'_>) {
        let command = lane.unpark(ticket).expect("it waits");
        if result < 0 {
            return lane.finish(command, Status::WRITE_FAULT);
        }
        let mut disk = self.0.lock().expect("not poisoned");
        let slot = lane.slot(&command);
        let range = slot.request.offset as usize..slot.request.end() as usize;
        match slot.request.operation {
            Operation::Read => {
                disk.reads += 1;
                assert_eq!(slot.data.copy_from(0, &disk.bytes[range.clone()]), range.len());
            }
            Operation::Write => assert_eq!(slot.data.copy_to(0, &mut disk.bytes[range.clone()]), range.len()),
            Operation::WriteZeroes | Operation::Deallocate => disk.bytes[range].fill(0),
            Operation::Flush => {}
        }
        drop(disk);
        lane.finish(command, Status::SUCCESS);
    }
}

struct Host {
    stack: Stack,
    slab: Slab,
    memory: SharedRegion,
    disk: Arc<Mutex<Disk>>,
    target: sluice_command::NodeId,
    counters: Arc<CacheCounters>,
    in_flight: usize,
}

impl Host {
    fn new(pages: u64) -> Self {
        let disk = Arc::new(Mutex::new(Disk { bytes: vec![0; SIZE], ..Disk::default() }));
        let cache = Cache::new(pages * PAGE).expect("there is memory");
        let counters = cache.counters();
        let mut builder = StackBuilder::new();
        let target = builder.add(Box::new(Target(Arc::clone(&disk))), &[]).expect("a target");
        builder.add(Box::new(cache), &[target]).expect("a layer");
        let stack = builder.build();
        let slab = Slab::new(Limits::new(64, stack.characteristics().fan_out)).expect("a slab");
        let memory = SharedRegion::new("host", 64 * LONGEST).expect("memory");
        Self { stack, slab, memory, disk, target, counters, in_flight: 0 }
    }

    /// Submits a command, whose data is in the memory of its slot. Returns the number of the slot.
    fn submit(&mut self, operation: Operation, offset: usize, length: usize, seed: u64) -> usize {
        let command = self.slab.admit(&SubmissionEntry::default(), Origin::default()).expect("room");
        let number = self.slab.number(&command);
        let at = number * LONGEST;
        if operation == Operation::Write {
            let data: Vec<u8> = (0..length).map(|n| (n as u64 / 512 + seed) as u8).collect();
            self.memory.write(at, &data);
        }
        let slot = self.slab.slot_mut(&command);
        slot.request =
            Request { operation, offset: offset as u64, length: length as u64, ..Request::default() };
        if slot.request.has_data() {
            slot.data.push(self.memory.segment(at, length as u32)).expect("one segment");
        }
        self.stack.submit(self.stack.root(), command, &mut self.slab, 0);
        self.in_flight += 1;
        self.settle();
        number
    }

    fn settle(&mut self) -> Vec<Status> {
        let mut done = Vec::new();
        self.stack.run_completions(&mut self.slab, 0, &mut done);
        self.in_flight -= done.len();
        let statuses = done.iter().map(|command| self.slab.slot(command).status).collect();
        done.into_iter().for_each(|command| self.slab.release(command));
        statuses
    }

    /// Executes one of the commands on the disk.
    fn execute(&mut self, random: &mut Random, fails: bool) -> Vec<Status> {
        let ticket = {
            let mut disk = self.disk.lock().expect("not poisoned");
            let which = random.below(disk.waiting.len() as u64) as usize;
            disk.waiting.swap_remove(which)
        };
        self.stack.event(self.target, ticket, if fails { -1 } else { 0 }, &mut self.slab, 0);
        self.settle()
    }

    fn waiting(&self) -> usize {
        self.disk.lock().expect("not poisoned").waiting.len()
    }

    fn drain(&mut self, random: &mut Random) {
        while self.waiting() > 0 {
            self.execute(random, false);
        }
        assert_eq!(self.in_flight, 0, "no command is lost");
    }

    /// Reads through the cache while nothing else is under way.
    fn read(&mut self, offset: usize, length: usize) -> Vec<u8> {
        let number = self.submit(Operation::Read, offset, length, 0);
        self.drain(&mut Random::new(0));
        let mut data = vec![0; length];
        self.memory.read(number * LONGEST, &mut data);
        data
    }

    fn write(&mut self, offset: usize, length: usize, seed: u64) {
        self.submit(Operation::Write, offset, length, seed);
        self.drain(&mut Random::new(0));
    }

    fn disk_reads(&self) -> usize {
        self.disk.lock().expect("not poisoned").reads
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Checks that reads return the data of the disk when nothing is under way: after any mixture of commands, in any
    /// order, some of them without success.
    #[test]
    fn the_cache_is_equal_to_the_disk(seed in any::<u64>(), pages in 1..64u64) {
        let mut random = Random::new(seed);
        let mut host = Host::new(pages);
        for round in 0..24 {
            for step in 0..24 {
                let longest = if random.one_in(8) { LONGEST } else { 4 * PAGE as usize };
                let mut length = (1 + random.below((longest / BLOCK) as u64) as usize) * BLOCK;
                let mut offset = random.below(((SIZE / 4 - length) / BLOCK) as u64) as usize * BLOCK;
                if random.one_in(2) {
                    (offset, length) = (offset / 4096 * 4096, length.next_multiple_of(4096));
                }
                let operation = match random.below(16) {
                    0 => Operation::WriteZeroes,
                    1 => Operation::Deallocate,
                    2 => Operation::Flush,
                    3..=8 => Operation::Write,
                    _ => Operation::Read,
                };
                match operation {
                    Operation::Deallocate if random.one_in(4) => {
                        // All of the disk at once.
                        host.submit(operation, 0, SIZE, 0)
                    }
                    Operation::Flush => host.submit(operation, 0, 0, 0),
                    _ => host.submit(operation, offset, length, round * 24 + step),
                };
                while host.waiting() > 0 && (host.in_flight > 16 || random.one_in(2)) {
                    let fails = random.one_in(12);
                    host.execute(&mut random, fails);
                }
            }
            host.drain(&mut random);
            for offset in (0..SIZE / 4).step_by(4 * PAGE as usize) {
                let data = host.read(offset, 4 * PAGE as usize);
                let disk = host.disk.lock().expect("not poisoned").bytes[offset..offset + data.len()].to_vec();
                prop_assert!(data == disk, "{offset} in round {round}");
            }
        }
    }
}

#[test]
fn what_is_read_again_or_written_comes_from_memory() {
    let mut host = Host::new(64);
    host.write(8192, 8192, 7);
    let written: Vec<u8> = (0..8192).map(|n| (n / 512 + 7) as u8).collect();
    assert_eq!(host.read(8192, 8192), written);
    assert_eq!(host.disk_reads(), 0, "the write has filled the cache");
    host.read(32768, 512);
    assert_eq!(host.disk_reads(), 1);
    host.read(32768 + 1024, 512);
    assert_eq!(host.disk_reads(), 1, "the page is there");
    host.write(32768, 512, 9);
    assert_eq!(host.read(32768, 512), [9; 512]);
    assert_eq!(host.disk_reads(), 2, "a part of a page is not cached");
    assert_eq!(host.counters.reads(), [2, 2, 0]);
    assert_eq!(host.counters.writes(), 1);
}

#[test]
fn a_long_sequence_bypasses_and_a_scan_leaves_what_is_read_again() {
    let mut host = Host::new(64);
    for _ in 0..3 {
        (0..16).for_each(|page| drop(host.read(page * 3 * 4096, 4096)));
    }
    let before = host.disk_reads();
    // Pages that are read once, in no order, are four times as many as the cache has.
    (0..255).for_each(|page| drop(host.read(page * 37 % 256 * 4096, 4096)));
    let scan = host.disk_reads();
    assert!(scan - before >= 192, "most of the scan is on the disk");
    (0..16).for_each(|page| drop(host.read(page * 3 * 4096, 4096)));
    assert!(host.disk_reads() - scan <= 2, "{} of 16 are gone", host.disk_reads() - scan);
    let [.., before] = host.counters.reads();
    (0..15).for_each(|part| drop(host.read(part * 65536, 65536)));
    let [.., after] = host.counters.reads();
    assert!(after - before >= 10, "a sequence of 64 KiB reads bypasses after 256 KiB");
}

#[test]
fn a_failed_flush_drops_everything() {
    let mut host = Host::new(64);
    host.write(0, 4096, 1);
    host.submit(Operation::Flush, 0, 0, 0);
    assert_eq!(host.execute(&mut Random::new(0), true), [Status::WRITE_FAULT]);
    host.read(0, 4096);
    assert_eq!(host.disk_reads(), 1);
}

#[test]
fn places_are_never_lost() {
    let mut index = Index::new(16, 8);
    let mut random = Random::new(3);
    for _ in 0..20_000 {
        let page = random.below(64);
        match random.below(8) {
            0 => index.remove(page),
            1 if random.one_in(50) => index.clear(),
            2..=4 => drop(index.read(page)),
            _ => {
                let place = index.take().expect("eight more places than pages");
                index.insert(page, place);
                assert_eq!(index.read(page), Some(place));
            }
        }
        assert_eq!(index.free() + index.held(), 24);
    }
}

#[test]
fn a_cache_without_memory_lets_everything_pass() {
    let mut flights = Flights::new();
    assert!(flights.is_idle() && !flights.is_full());
    flights.begin_read(1);
    flights.begin_write(1, true);
    assert!(!flights.end(1, true) && !flights.end(1, false), "the order is not known");
    assert!(flights.is_idle());
    let mut cache = Cache::without_memory();
    assert!(cache.begin(Pages { first: 0, count: 1 }).is_none());
}
