//! A function's process that sends anything: in its rings, and in the handshake of the two sides before.
//! Every command comes back once, the layers below get only permitted requests, and the next function finds
//! everything in order.

use crate::Input;
use sluice_command::{
    Characteristics, Command, Lane, Layer, Limits, NodeId, Operation, Origin, Request, Slab, Stack,
    StackBuilder, Ticket,
};
use sluice_functions::host::OnDeath;
use sluice_functions::host::fuzz::{INSTANCE, REPLIES, SIGNALLED, Supervisor, parse_welcome};
use sluice_memory::{SharedRegion, Space};
use sluice_nvme::{Status, SubmissionEntry};
use sluice_targets::Memory;
use sluice_uif::abi::{Hello, MAGIC, Reply, Submission, VERSION, Welcome};
use sluice_uif::handshake::accept;
use sluice_uif::ring::{Receiver, Rings, Sender};
use sluice_uif::{Answer, Call, Function, Interest, Io, Properties};
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use zerocopy::{FromZeros, IntoBytes};

const SIZE: u64 = 64 << 10;
/// Bytes of the second layer below.
const SMALL: u64 = 8 << 10;
const BLOCK: u64 = 512;
const COMMANDS: u32 = 32;
/// Bytes of the longest command.
const SPAN: usize = 16 << 10;
const ARENA: usize = 64 << 10;
const POOL: u32 = 16 << 10;
const SECOND_NS: u64 = 1_000_000_000;

pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    match input.below(8) {
        0 => greet_daemon(&mut input),
        1 => greet_function(&mut input),
        _ => Table::set(&mut input).play(&mut input),
    }
}

/// Sends a function's first message: it is refused, or is one that the layer supports.
fn greet_daemon(input: &mut Input<'_>) {
    let version = 1 + input.below(2) as u32;
    let mut said = Welcome::new_zeroed();
    (said.magic, said.version, said.block_size) = (MAGIC, version, 512);
    let mut bytes = said.as_bytes().to_vec();
    while !input.is_empty() {
        let place = usize::from(input.byte()) % bytes.len();
        bytes[place] = input.byte();
        if input.one_in(32) {
            bytes.truncate(place.max(1));
        }
    }
    match parse_welcome(&bytes, version) {
        Ok(Properties { block_size, scratch, pool, size, .. }) => {
            assert!([512, 4096].contains(&block_size) && scratch <= 1 << 20 && pool <= 4 << 20);
            assert!(scratch % block_size == 0 && pool % 4096 == 0 && size % u64::from(block_size) == 0);
        }
        Err(failure) => assert!(failure.to_string().len() < 400),
    }
}

/// Sends a daemon's first message, to a function that receives it without the required descriptors.
fn greet_function(input: &mut Input<'_>) {
    let hello =
        Hello { magic: MAGIC, version: VERSION, options: 4, rings_bytes: 1 << 16, arena_bytes: 1 << 16 };
    let mut bytes = [hello.as_bytes(), b"a=b\0"].concat();
    while !input.is_empty() {
        let place = usize::from(input.byte()) % bytes.len();
        bytes[place] = input.byte();
    }
    let flags = rustix::net::SocketFlags::CLOEXEC;
    let kind = rustix::net::SocketType::SEQPACKET;
    let (ours, theirs) =
        rustix::net::socketpair(rustix::net::AddressFamily::UNIX, kind, flags, None).expect("sockets");
    rustix::net::send(&ours, &bytes, rustix::net::SendFlags::empty()).expect("there is room");
    let refused = accept(theirs.as_fd(), &mut |_| Ok(Box::new(Curious))).err();
    assert!(refused.expect("there are no rings").to_string().len() < 400);
}

/// Function that receives every command.
struct Curious;

impl Function for Curious {
    fn properties(&self) -> Properties {
        let all = [Operation::Write, Operation::Flush, Operation::WriteZeroes, Operation::Deallocate];
        let properties = Properties { pool: POOL, scratch: 4096, ..Properties::NONE };
        let properties = properties.with(Operation::Read, Interest::After);
        all.into_iter().fold(properties, |all, operation| all.with(operation, Interest::Before))
    }

    fn submit(&mut self, _: &mut Call<'_>, _: &mut Io<'_>) -> Answer {
        Answer::Forward
    }
}

/// Layer that checks a function's requests against a size in bytes, and holds each for a while if it is slow.
#[derive(Debug)]
struct Guard(u64);

impl Layer for Guard {
    fn name(&self) -> &'static str {
        "guard"
    }

    fn characteristics(&self, below: &[Characteristics]) -> Characteristics {
        below[0].over()
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        let slot = lane.slot(&command);
        let Request { offset, length, .. } = slot.request;
        assert!(offset.checked_add(length).is_some_and(|end| end <= self.0), "{:?}", slot.request);
        assert!((offset | length).is_multiple_of(BLOCK), "{:?}", slot.request);
        let data = if slot.request.has_data() { length } else { 0 };
        assert_eq!(slot.data.len_bytes() as u64, data, "{:?}", slot.request);
        lane.forward(command);
    }
}

/// The function's end of a connection.
struct Instance {
    rings: Rings,
    arena: SharedRegion,
    replies: Sender,
    requests: Receiver,
    seen: Vec<Submission>,
}

struct Table {
    stack: Stack,
    slab: Slab,
    node: NodeId,
    supervisor: Supervisor,
    memory: SharedRegion,
    instance: Instance,
    submitted: u16,
    /// Commands in flight, by CID.
    out: Vec<u16>,
    now_ns: u64,
}

fn connect(supervisor: &mut Supervisor, version: u32) -> Instance {
    let (rings, arena) = supervisor.connect(version, if version == 1 { 8 } else { 256 }, ARENA);
    let (replies, requests) = rings.function();
    Instance { rings, arena, replies, requests, seen: Vec::new() }
}

impl Table {
    fn set(input: &mut Input<'_>) -> Self {
        let on_death = input.pick(&[OnDeath::Fail, OnDeath::Park]);
        let version = 2 - u32::from(input.one_in(8));
        let (layer, mut supervisor) = Supervisor::new(Curious.properties(), Duration::from_secs(1), on_death);
        let mut builder = StackBuilder::new();
        let below = [SIZE, SMALL].map(|size| {
            let memory = Memory::new(size).expect("memory");
            let target = builder.add(Box::new(memory), &[]).expect("a target");
            builder.add(Box::new(Guard(size)), &[target]).expect("a layer")
        });
        let node = builder.add(Box::new(layer), &below).expect("a layer");
        let stack = builder.build();
        let fan_out = stack.characteristics().fan_out;
        let limits = Limits::with_reserve(COMMANDS, fan_out, stack.reserve());
        let slab = Slab::new(limits).expect("a slab");
        let memory = SharedRegion::new("host", COMMANDS as usize * SPAN).expect("memory");
        let instance = connect(&mut supervisor, version);
        let (submitted, out, now_ns) = (0, Vec::new(), 0);
        let mut table = Self { stack, slab, node, supervisor, memory, instance, submitted, out, now_ns };
        table.event(INSTANCE);
        table
    }

    fn play(mut self, input: &mut Input<'_>) {
        for _ in 0..256 {
            if input.is_empty() {
                break;
            }
            match input.below(8) {
                0 | 1 => self.submit(input),
                2 => self.scribble(input),
                3 => self.say(input),
                4 => self.answer(input),
                5 => self.event(input.pick(&[INSTANCE, REPLIES, SIGNALLED])),
                6 => self.pass(u64::from(input.byte()) << 24),
                _ => self.pass(0),
            }
            if self.supervisor.is_killed() || input.one_in(64) {
                self.replace(2);
            }
        }
        self.end();
    }

    fn submit(&mut self, input: &mut Input<'_>) {
        if self.out.len() >= COMMANDS as usize / 2 {
            return;
        }
        let all = [Operation::Read, Operation::Write, Operation::Flush, Operation::WriteZeroes];
        let operation = input.pick(&all);
        let length = BLOCK * (1 + input.below(SPAN / BLOCK as usize) as u64);
        let offset = BLOCK * u64::from(input.byte()) % (SIZE - length + BLOCK);
        let (offset, length) = if operation == Operation::Flush { (0, 0) } else { (offset, length) };
        self.start(Request { operation, offset, length, ..Request::default() });
    }

    fn start(&mut self, request: Request) {
        let cid = self.submitted;
        self.submitted += 1;
        let origin = Origin { cid, ..Origin::default() };
        let command = self.slab.admit(&SubmissionEntry::default(), origin).expect("room");
        let slot = self.slab.slot_mut(&command);
        slot.request = request;
        if request.has_data() {
            let place = usize::from(cid) % COMMANDS as usize * SPAN;
            slot.data.push(self.memory.segment(place, request.length as u32)).expect("one segment");
        }
        self.out.push(cid);
        self.stack.submit(self.stack.root(), command, &mut self.slab, self.now_ns);
        self.run_completions();
    }

    /// Writes words anywhere in the rings, and bytes in the arena.
    fn scribble(&mut self, input: &mut Input<'_>) {
        let region = self.instance.rings.region();
        for _ in 0..=input.below(8) {
            let page = input.below(region.len() / 4096) * 4096;
            let word = page + if input.one_in(2) { input.below(3) * 64 } else { input.below(256) * 8 };
            region.atomic_u64(word).store(u64::from(input.dword()), Relaxed);
        }
        self.instance.arena.write(input.below(ARENA / 4096) * 4096, input.bytes(8));
    }

    /// Sends a reply, valid or not.
    fn say(&mut self, input: &mut Input<'_>) {
        let instance = &mut self.instance;
        for _ in 0..instance.requests.waiting().unwrap_or(0) {
            instance.seen.push(instance.requests.take());
        }
        for _ in 0..=input.below(4) {
            let known = input.below(instance.seen.len().max(1));
            let tag = match input.below(4) {
                0 => u64::from(input.dword()) << 32 | u64::from(input.byte()),
                _ => instance.seen.get(known).map_or(0, |entry| entry.tag),
            };
            let (offset, length) = (u64::from(input.byte()) * BLOCK, input.below(40) as u64 * BLOCK);
            let far = if input.one_in(16) { u64::from(input.dword()) << 16 } else { 0 };
            instance.replies.push(&Reply {
                tag,
                disposition: input.below(7) as u8,
                operation: input.below(6) as u8,
                flags: input.byte() & 7,
                stage: input.byte(),
                status: input.u16(),
                layer: input.below(3) as u8,
                offset: offset ^ far,
                length: length ^ far.rotate_left(7),
                cookie: [input.byte().into(), input.below(3) as u64],
                data_offset: u64::from(input.byte()) * 256,
                ..Reply::default()
            });
        }
        let _ = instance.replies.publish();
    }

    /// Answers all requests as an honest function does.
    fn answer(&mut self, input: &mut Input<'_>) {
        let instance = &mut self.instance;
        for _ in 0..instance.requests.waiting().unwrap_or(0) {
            let entry: Submission = instance.requests.take();
            instance.seen.push(entry);
            let Submission { tag, operation, flags, offset, length, kind, .. } = entry;
            let disposition = if kind == 4 { 4 } else { input.below(3) as u8 };
            if matches!(kind, 0 | 1 | 4 | 5) {
                instance.replies.push(&Reply {
                    tag,
                    disposition,
                    operation,
                    flags,
                    offset,
                    length,
                    ..Reply::default()
                });
            }
        }
        let _ = instance.replies.publish();
    }

    fn pass(&mut self, passed_ns: u64) {
        self.now_ns += passed_ns;
        self.stack.poll(0, &Space::new(), &mut self.slab, self.now_ns);
        if self.stack.deadline_ns().is_some_and(|deadline_ns| deadline_ns <= self.now_ns) {
            self.stack.expire(&mut self.slab, self.now_ns);
        }
        self.run_completions();
    }

    fn event(&mut self, ticket: u32) {
        self.stack.event(self.node, Ticket(ticket), 1, &mut self.slab, self.now_ns);
        self.run_completions();
    }

    fn run_completions(&mut self) {
        let mut done = Vec::new();
        self.stack.run_completions(&mut self.slab, self.now_ns, &mut done);
        for command in done {
            let (cid, status) = (self.slab.slot(&command).origin.cid, self.slab.slot(&command).status);
            assert!(status.0 < 1 << 15, "{status:?}");
            let place = self.out.iter().position(|out| *out == cid).expect("it comes back once");
            self.out.swap_remove(place);
            self.slab.release(command);
        }
    }

    /// Ends the function and starts another.
    fn replace(&mut self, version: u32) {
        self.supervisor.end();
        self.event(INSTANCE);
        self.instance = connect(&mut self.supervisor, version);
        self.event(INSTANCE);
    }

    /// Checks that with an honest function everything ends, and continues.
    fn end(&mut self) {
        self.replace(2);
        let request = Request { operation: Operation::Write, length: BLOCK, ..Request::default() };
        for round in 0..64 {
            self.answer_rightly();
            self.pass(SECOND_NS >> 4);
            if self.out.is_empty() && round > 8 {
                break;
            }
        }
        assert!(self.out.is_empty(), "{:?} never ended", self.out);
        self.start(request);
        self.answer_rightly();
        self.pass(0);
        assert!(self.out.is_empty() && self.slab.in_flight() == 0 && self.slab.live().count() == 0);
    }

    fn answer_rightly(&mut self) {
        let instance = &mut self.instance;
        for _ in 0..instance.requests.waiting().expect("the daemon keeps to the rules") {
            let Submission { tag, operation, flags, offset, length, kind, .. } = instance.requests.take();
            let asked = Reply { tag, operation, flags, offset, length, ..Reply::default() };
            match kind {
                0 => instance.replies.push(&Reply { disposition: 1, ..asked }),
                1 => instance.replies.push(&Reply { status: Status::SUCCESS.0, ..asked }),
                4 => instance.replies.push(&Reply { disposition: 4, ..Reply::default() }),
                _ => {}
            }
        }
        let _ = instance.replies.publish();
        self.event(REPLIES);
    }
}
