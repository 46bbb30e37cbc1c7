//! Drives over a simulated device with servers, over simulated time.

use super::*;
use crate::Random;
use sluice_command::{Limits, Operation, Origin, Request, Slab, Stack, StackBuilder};
use sluice_memory::SharedRegion;
use sluice_nvme::SubmissionEntry;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Mutex;

const SECOND: u64 = 1_000_000_000;
const SIZE: u64 = 1 << 40;

/// Device with servers: a command takes the first free one, for a time that depends on its bytes.
#[derive(Debug, Default)]
struct Servers {
    free_ns: Vec<u64>,
    /// Commands on the device, with the time of their end and their drive.
    ends: BinaryHeap<Reverse<(u64, u64, usize, u32)>>,
    order: u64,
    base_ns: u64,
    ns_per_kib: u64,
    /// Part of the time by which commands differ, per cent.
    noise: u64,
    random: Option<Random>,
}

impl Servers {
    fn new(servers: usize, base_ns: u64, ns_per_kib: u64, noise: u64) -> Arc<Mutex<Self>> {
        let free_ns = vec![0; servers];
        let random = Some(Random::new(7));
        Arc::new(Mutex::new(Self { free_ns, base_ns, ns_per_kib, noise, random, ..Self::default() }))
    }

    fn take(&mut self, bytes: u64, now_ns: u64, drive: usize, ticket: u32) {
        let service = self.base_ns + self.ns_per_kib * (bytes >> 10);
        let random = self.random.as_mut().expect("there is one");
        let service = service + random.below(1 + service * self.noise / 100);
        let free_ns = self.free_ns.iter_mut().min().expect("there are servers");
        *free_ns = now_ns.max(*free_ns) + service;
        self.order += 1;
        self.ends.push(Reverse((*free_ns, self.order, drive, ticket)));
    }
}

struct Target {
    servers: Arc<Mutex<Servers>>,
    drive: usize,
}

impl Layer for Target {
    fn name(&self) -> &'static str {
        "servers"
    }

    fn characteristics(&self, _below: &[Characteristics]) -> Characteristics {
        Characteristics::target(SIZE, 512)
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        let (bytes, now_ns) = (lane.slot(&command).request.length, lane.now_ns());
        let Ticket(ticket) = lane.park(command);
        self.servers.lock().expect("not poisoned").take(bytes, now_ns, self.drive, ticket);
    }

    fn event(&mut self, ticket: Ticket, _result: i32, lane: &mut Lane<'_>) {
        let command = lane.unpark(ticket).expect("it waits");
        lane.finish(command, Status::SUCCESS);
    }
}

/// A drive whose host keeps so many commands of a size under way, with a pause after each.
struct Drive {
    stack: Stack,
    target: sluice_command::NodeId,
    slab: Slab,
    memory: SharedRegion,
    operation: Operation,
    bytes: u64,
    pause_ns: u64,
    /// Times at which the host submits its next commands.
    next: BinaryHeap<Reverse<u64>>,
    submitted: Vec<u64>,
    latencies: Vec<u64>,
    cost: u64,
}

impl Drive {
    fn new(
        number: usize,
        servers: &Arc<Mutex<Servers>>,
        layer: Option<Priority>,
        depth: usize,
        bytes: u64,
    ) -> Self {
        let mut builder = StackBuilder::new();
        let target = Target { servers: Arc::clone(servers), drive: number };
        let target = builder.add(Box::new(target), &[]).expect("a target");
        if let Some(layer) = layer {
            builder.add(Box::new(layer), &[target]).expect("a layer");
        }
        let stack = builder.build();
        let slab = Slab::new(Limits::new(256, 0)).expect("a slab");
        let memory = SharedRegion::new("servers", 1 << 20).expect("memory");
        let next = (0..depth as u64).map(|it| Reverse(it * 100)).collect();
        Self {
            stack,
            target,
            slab,
            memory,
            operation: Operation::Read,
            bytes,
            pause_ns: 0,
            next,
            submitted: vec![0; 256],
            latencies: Vec::new(),
            cost: 0,
        }
    }

    fn submit(&mut self, now_ns: u64) {
        let origin = Origin { cid: 0, ..Origin::default() };
        let command = self.slab.admit(&SubmissionEntry::default(), origin).expect("room");
        self.submitted[self.slab.number(&command)] = now_ns;
        let slot = self.slab.slot_mut(&command);
        slot.request = Request { operation: self.operation, length: self.bytes, ..Request::default() };
        slot.data.push(self.memory.segment(0, self.bytes as u32)).expect("one segment");
        self.stack.submit(self.stack.root(), command, &mut self.slab, now_ns);
        self.settle(now_ns);
    }

    fn settle(&mut self, now_ns: u64) {
        let mut done = Vec::new();
        self.stack.run_completions(&mut self.slab, now_ns, &mut done);
        for command in done {
            let number = self.slab.number(&command);
            self.latencies.push(now_ns - self.submitted[number]);
            self.cost += window::cost(&self.slab.slot(&command).request);
            self.slab.release(command);
            self.next.push(Reverse(now_ns + self.pause_ns));
        }
    }

    fn next_ns(&self) -> u64 {
        let submits = self.next.peek().map_or(u64::MAX, |Reverse(at)| *at);
        submits.min(self.stack.deadline_ns().unwrap_or(u64::MAX))
    }

    /// Returns the latency that so many per cent of the commands keep, and forgets all latencies.
    fn percentile(&mut self, percent: usize) -> u64 {
        self.latencies.sort_unstable();
        let found = self.latencies[self.latencies.len() * percent / 100];
        self.latencies.clear();
        found
    }
}

fn run(drives: &mut [Drive], servers: &Mutex<Servers>, until_ns: u64) {
    loop {
        let end = servers.lock().expect("not poisoned").ends.peek().map(|Reverse((at, ..))| *at);
        let next = drives.iter().map(Drive::next_ns).min().unwrap_or(u64::MAX);
        let now_ns = next.min(end.unwrap_or(u64::MAX));
        if now_ns >= until_ns {
            return;
        }
        if end == Some(now_ns) {
            let Some(Reverse((_, _, drive, ticket))) = servers.lock().expect("not poisoned").ends.pop()
            else {
                return;
            };
            let drive = &mut drives[drive];
            drive.stack.event(drive.target, Ticket(ticket), 0, &mut drive.slab, now_ns);
            drive.settle(now_ns);
            continue;
        }
        for drive in drives.iter_mut().filter(|drive| drive.next_ns() <= now_ns) {
            drive.stack.expire(&mut drive.slab, now_ns);
            drive.settle(now_ns);
            while drive.next.peek().is_some_and(|Reverse(at)| *at <= now_ns) {
                drive.next.pop();
                drive.submit(now_ns);
            }
        }
    }
}

fn layer(device: &Arc<Device>, class: PriorityClass, weight: u32) -> Option<Priority> {
    Some(Priority::new(Arc::clone(device), Share { class, weight }, 256))
}

/// Runs drives until a time; returns the cost that each got after `from_ns`.
fn parts(drives: &mut [Drive], servers: &Mutex<Servers>, from_ns: u64, until_ns: u64) -> Vec<u64> {
    run(drives, servers, from_ns);
    let before: Vec<u64> = drives.iter().map(|drive| drive.cost).collect();
    drives.iter_mut().for_each(|drive| drive.latencies.clear());
    run(drives, servers, until_ns);
    drives.iter().zip(before).map(|(drive, before)| drive.cost - before).collect()
}

#[test]
fn equal_drives_get_equal_parts() {
    for (servers, noise) in [(4, 0), (16, 0), (16, 50), (64, 20)] {
        let servers = Servers::new(servers, 800_000, 2500, noise);
        let device = Arc::new(Device::new());
        let interactive = || layer(&device, PriorityClass::Interactive, 100);
        let mut drives: Vec<_> =
            (0..26).map(|number| Drive::new(number, &servers, interactive(), 16, 4096)).collect();
        let parts = parts(&mut drives, &servers, SECOND, 3 * SECOND);
        let mean = parts.iter().sum::<u64>() / 26;
        assert!(parts.iter().all(|part| part.abs_diff(mean) <= mean * 3 / 100), "{parts:?}");
    }
}

#[test]
fn large_commands_and_deep_queues_get_no_more_and_weights_count() {
    let servers = Servers::new(16, 600_000, 10_000, 20);
    let device = Arc::new(Device::new());
    let users = [(16, 4096, 100), (64, 4096, 100), (16, 65536, 100), (8, 1 << 20, 100), (32, 16384, 200)];
    let drive = |(number, (depth, bytes, weight)): (usize, (usize, u64, u32))| {
        Drive::new(number, &servers, layer(&device, PriorityClass::Interactive, weight), depth, bytes)
    };
    let mut drives: Vec<_> = users.into_iter().enumerate().map(drive).collect();
    let parts = parts(&mut drives, &servers, SECOND, 5 * SECOND);
    for (part, (.., weight)) in parts.iter().zip(users) {
        let fair = parts.iter().sum::<u64>() * u64::from(weight) / 600;
        assert!(part.abs_diff(fair) <= fair * 3 / 100, "{parts:?}");
    }
}

/// An interactive drive of some depth, and three background drives with 32 commands of some size.
struct Mixture {
    servers: usize,
    /// Part of a command's time by which it differs, per cent.
    noise: u64,
    depth: usize,
    bytes: u64,
}

/// Result of a mixture.
struct Mixed {
    /// Latencies that 99 % of the interactive commands keep, alone and beside the background, ns.
    alone: u64,
    beside: u64,
    /// Part of the device that the background gets, per cent.
    background: u64,
}

impl Mixture {
    fn servers(&self) -> Arc<Mutex<Servers>> {
        Servers::new(self.servers, 400_000, 1250, self.noise)
    }

    fn run(&self) -> Mixed {
        let servers = self.servers();
        let mut alone = [Drive::new(0, &servers, None, self.depth, 4096)];
        parts(&mut alone, &servers, SECOND, 3 * SECOND);
        let servers = self.servers();
        let mut only = [Drive::new(0, &servers, None, 96, self.bytes)];
        let whole = parts(&mut only, &servers, SECOND, 2 * SECOND)[0];
        let servers = self.servers();
        let device = Arc::new(Device::new());
        let mut drives =
            vec![Drive::new(0, &servers, layer(&device, PriorityClass::Interactive, 100), self.depth, 4096)];
        let background = |number| {
            Drive::new(number, &servers, layer(&device, PriorityClass::Background, 100), 32, self.bytes)
        };
        drives.extend((1..4).map(background));
        // The background is there first.
        drives[0].next = (0..self.depth as u64).map(|it| Reverse(SECOND + it * 100)).collect();
        let parts = parts(&mut drives, &servers, 3 * SECOND, 9 * SECOND);
        let background = 100 * parts[1..].iter().sum::<u64>() / (6 * whole);
        Mixed { alone: alone[0].percentile(99), beside: drives[0].percentile(99), background }
    }
}

/// Makes the second table of docs/internals/qos.md.
#[test]
fn an_interactive_drive_is_as_fast_as_alone() {
    println!(
        "| servers | times differ by | interactive | background | p99 alone | p99 beside | background gets |\n|---|---|---|---|---|---|---|"
    );
    for (servers, noise, depth, bytes) in [
        (4, 10, 1, 4096),
        (8, 10, 1, 4096),
        (8, 10, 1, 65536),
        (8, 10, 3, 4096),
        (8, 10, 32, 4096),
        (16, 30, 4, 131_072),
        (16, 0, 1, 1 << 20),
        (32, 50, 4, 65536),
    ] {
        let mixture = Mixture { servers, noise, depth, bytes };
        let Mixed { alone, beside, background } = mixture.run();
        let size = bytes >> 10;
        println!(
            "| {servers} | {noise} % | {depth} of 4 KiB | 3 x 32 of {size} KiB | {} us | {} us | {background} % |",
            alone / 1000,
            beside / 1000
        );
        assert!(beside * 10 <= alone * 12, "{beside} ns beside, {alone} ns alone");
        assert!(background >= 10, "{background} %");
    }
}

/// Checks a device whose times are below those of a reactor's turn, and differ much.
#[test]
fn a_device_that_is_fast_is_not_slowed() {
    let servers = || Servers::new(64, 1000, 0, 1000);
    let alone = servers();
    let mut without = [Drive::new(0, &alone, None, 64, 4096)];
    let without = parts(&mut without, &alone, SECOND / 50, SECOND / 10)[0];
    let shared = servers();
    let layer = layer(&Arc::new(Device::new()), PriorityClass::Interactive, 100);
    let mut with = [Drive::new(0, &shared, layer, 64, 4096)];
    let with = parts(&mut with, &shared, SECOND / 50, SECOND / 10)[0];
    assert!(with >= without / 100 * 95, "{with} of {without}");
}

#[test]
fn waiting_commands_are_aborted_and_a_layer_leaves_when_nothing_is_below() {
    let servers = Servers::new(1, 1000, 0, 0);
    let device = Arc::new(Device::new());
    let mut drive = Drive::new(0, &servers, layer(&device, PriorityClass::Interactive, 100), 0, 1 << 20);
    drive.pause_ns = 10 * SECOND;
    (0..8).for_each(|_| drive.submit(0));
    let waiting = drive.slab.in_flight() as usize - servers.lock().expect("not poisoned").ends.len();
    assert_eq!(waiting, 7, "the window is smaller than a command, which passes alone");
    assert!(drive.stack.take_out(0, &mut drive.slab, 0).is_err(), "a command is below");
    let all = Aborted::of(Controllers::of_bits(1));
    drive.stack.abort(all, Status::ABORT_REQUESTED, &mut drive.slab, 0);
    drive.settle(0);
    assert_eq!(drive.slab.in_flight(), 1);
    assert_eq!(drive.stack.deadline_ns(), None);
    run(std::slice::from_mut(&mut drive), &servers, SECOND);
    assert_eq!(drive.slab.in_flight(), 0);
    drive.stack.take_out(0, &mut drive.slab, 0).expect("nothing is below");
}

#[test]
fn drives_of_one_name_share_a_device_and_others_do_not() {
    let devices = Devices::default();
    let first = devices.open("nvme0");
    assert!(Arc::ptr_eq(&first, &devices.open("nvme0")) && !Arc::ptr_eq(&first, &devices.open("nvme1")));
    let other = Arc::downgrade(&first);
    drop(first);
    devices.open("nvme1");
    assert_eq!(other.strong_count(), 0, "a device goes with its last drive");
}
