//! Drive's stack with the layer in it, and the far end of its rings.

use super::super::eventfds::{Eventfds, ticket};
use super::super::handshake::{Link, make_rings};
use super::super::layer::Uif;
use super::super::*;
use crate::{Delay, DelayConfig};
use rustix::event::{EventfdFlags, eventfd};
use sluice_command::{
    Characteristics, Command, Lane, Layer, Limits, NodeId, Operation, Origin, Request, Slab, Stack,
    StackBuilder, Ticket,
};
use sluice_memory::{Buffers, SharedRegion, Space};
use sluice_nvme::{Status, SubmissionEntry};
use sluice_targets::Memory;
use sluice_uif::abi::{Header, Reply, Submission, VERSION};
use sluice_uif::ring::{Receiver, Rings, Sender};
use sluice_uif::{Answer, Call, Function as Trait, Interest, Io, Session};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

pub(super) const SIZE: u64 = 1 << 20;
/// Bytes of the longest command here.
const SPAN: usize = 40 * 512;
const COMMANDS: u32 = 64;

/// Function that changes every byte on its way down and back, so that a byte that passes it shows.
pub(super) struct Xor;

impl Trait for Xor {
    fn properties(&self) -> Properties {
        Properties::NONE
            .with(Operation::Read, Interest::After)
            .with(Operation::Write, Interest::Before)
            .with(Operation::Flush, Interest::Before)
    }

    fn submit(&mut self, call: &mut Call<'_>, _io: &mut Io<'_>) -> Answer {
        call.data.iter_mut().for_each(|byte| *byte ^= 0x5a);
        call.cookie[0] = 7;
        match call.request.operation {
            Operation::Write => Answer::ForwardAndReturn(3),
            _ => Answer::Forward,
        }
    }

    fn returned(&mut self, call: &mut Call<'_>, _io: &mut Io<'_>) -> Answer {
        match call.request.operation {
            Operation::Write => assert_eq!((call.stage, call.cookie[0]), (3, 7)),
            _ => call.data.iter_mut().for_each(|byte| *byte ^= 0x5a),
        }
        Answer::Finish(call.status)
    }
}

/// Eventfds that count signals.
#[derive(Debug)]
struct Bells(Arc<AtomicU32>);

impl Eventfds for Bells {
    fn attach(&mut self, _: std::os::fd::OwnedFd, _: std::os::fd::OwnedFd) -> io::Result<()> {
        Ok(())
    }

    fn signal(&mut self) {
        self.0.fetch_add(1, Relaxed);
    }

    fn detach(&mut self) {}
}

/// Guard of a layer of so many bytes: panics at a request that a function must not send. So many Flushes
/// fail.
struct Guard(u64, Arc<AtomicU32>);

impl Layer for Guard {
    fn name(&self) -> &'static str {
        "guard"
    }

    fn characteristics(&self, below: &[Characteristics]) -> Characteristics {
        below[0].over()
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        let slot = lane.slot(&command);
        let has_data = matches!(slot.request.operation, Operation::Read | Operation::Write);
        assert!(
            slot.request.end() <= self.0 && slot.request.length.is_multiple_of(512),
            "{:?}",
            slot.request
        );
        assert_eq!(slot.data.len_bytes() as u64, if has_data { slot.request.length } else { 0 });
        let is_flush = slot.request.operation == Operation::Flush;
        if is_flush && self.1.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {
            return lane.finish(command, Status::WRITE_FAULT);
        }
        lane.forward(command);
    }
}

pub(super) fn config(on_death: OnDeath) -> UifConfig {
    let deadline = Duration::from_secs(1);
    let (options, size, atomic_write) = (Options::default(), None, None);
    UifConfig {
        name: "test".to_owned(),
        options,
        deadline,
        on_death,
        size,
        atomic_write,
        reports_loss_once: false,
    }
}

pub(super) struct Rig {
    pub(super) stack: Stack,
    pub(super) instance: Arc<InstanceSlot>,
    pub(super) now_ns: u64,
    slab: Slab,
    node: NodeId,
    memory: SharedRegion,
    rings: Arc<AtomicU32>,
    /// Flushes to come that fail below.
    pub(super) failing: Arc<AtomicU32>,
    done: VecDeque<(u16, Status)>,
    submitted: u16,
}

impl Rig {
    pub(super) fn new(prepared: PreparedUif) -> Self {
        Self::over(prepared, &[SIZE], 0)
    }

    /// Builds the stack over layers of these sizes, which hold every command for a while.
    pub(super) fn over(prepared: PreparedUif, sizes: &[u64], delay_ns: u64) -> Self {
        let instance = Arc::clone(&prepared.instance);
        let rings = Arc::new(AtomicU32::new(0));
        let layer = layer(prepared, Arc::clone(&rings));
        let mut builder = StackBuilder::new();
        let failing = Arc::new(AtomicU32::new(0));
        let below = |size: &u64| below(&mut builder, *size, delay_ns, &failing);
        let below: Vec<NodeId> = sizes.iter().map(below).collect();
        let node = builder.add(Box::new(layer), &below).expect("a layer");
        let stack = builder.build();
        let fan_out = stack.characteristics().fan_out;
        let slab = Slab::new(Limits::with_reserve(COMMANDS, fan_out, stack.reserve())).expect("a slab");
        let memory = SharedRegion::new("host", (COMMANDS as usize * SPAN).next_multiple_of(4096));
        let memory = memory.expect("memory");
        let done = VecDeque::new();
        Self { stack, instance, now_ns: 0, slab, node, memory, rings, failing, done, submitted: 0 }
    }

    /// Builds the stack of a function that is not there yet.
    pub(super) fn external(on_death: OnDeath) -> Self {
        Self::new(prepared_external(&Xor, on_death))
    }

    /// Gives the targets another size.
    pub(super) fn resize(&mut self, size: u64) {
        self.stack.resize(size);
    }

    /// Returns the number of slots in use.
    pub(super) fn live(&self) -> usize {
        self.slab.live().count()
    }

    /// Submits a command. Returns its CID.
    pub(super) fn submit(&mut self, operation: Operation, offset: u64, length: u64, data: &[u8]) -> u16 {
        let cid = self.submitted;
        // On a slow machine a test submits more than there are numbers.
        self.submitted = self.submitted.wrapping_add(1);
        let place = usize::from(cid) % COMMANDS as usize * SPAN;
        let origin = Origin { cid, ..Origin::default() };
        let command = self.slab.admit(&SubmissionEntry::default(), origin).expect("room");
        let slot = self.slab.slot_mut(&command);
        slot.request = Request { operation, offset, length, ..Request::default() };
        if matches!(operation, Operation::Read | Operation::Write) {
            // Scattered, as a host's memory is.
            let half = (length / 2) as usize;
            slot.data.push(self.memory.segment(place, half as u32)).expect("few segments");
            slot.data.push(self.memory.segment(place + half, length as u32 - half as u32)).expect("few");
        }
        if operation == Operation::Write {
            self.memory.write(place, data);
        } else {
            self.memory.fill(place, (length as usize).min(SPAN), 0xee);
        }
        self.stack.submit(self.stack.root(), command, &mut self.slab, self.now_ns);
        self.settle();
        cid
    }

    /// Returns the content of the host's memory of a command.
    pub(super) fn data(&self, cid: u16, length: usize) -> Vec<u8> {
        let mut data = vec![0; length];
        self.memory.read(usize::from(cid) % COMMANDS as usize * SPAN, &mut data);
        data
    }

    /// Lets time pass, polls the layer, and expires it if it is due.
    pub(super) fn turn(&mut self, passed_ns: u64) {
        self.now_ns += passed_ns;
        self.stack.poll(0, &Space::new(), &mut self.slab, self.now_ns);
        if self.stack.deadline_ns().is_some_and(|deadline_ns| deadline_ns <= self.now_ns) {
            self.stack.expire(&mut self.slab, self.now_ns);
        }
        self.settle();
    }

    /// Signals a change of the instance slot.
    pub(super) fn notify(&mut self) {
        self.event(ticket::INSTANCE);
    }

    /// Signals replies of the function.
    pub(super) fn notify_replies(&mut self) {
        self.event(ticket::REPLIES);
    }

    fn event(&mut self, ticket: u32) {
        self.stack.event(self.node, Ticket(ticket), 1, &mut self.slab, self.now_ns);
        self.settle();
    }

    fn settle(&mut self) {
        let mut done = Vec::new();
        self.stack.run_completions(&mut self.slab, self.now_ns, &mut done);
        for command in done {
            let slot = self.slab.slot(&command);
            self.done.push_back((slot.origin.cid, slot.status));
            self.slab.release(command);
        }
    }

    pub(super) fn finished(&mut self) -> Option<(u16, Status)> {
        self.done.pop_front()
    }

    pub(super) fn in_flight(&self) -> u32 {
        self.slab.in_flight()
    }

    pub(super) fn rings(&self) -> u32 {
        self.rings.load(Relaxed)
    }

    /// Checks that a write is changed below, and unchanged for the host.
    pub(super) fn write_and_check_below(&mut self) {
        self.submit(Operation::Write, 4096, 512, &[1; 512]);
        assert_eq!(self.finished(), Some((0, Status::SUCCESS)));
        // A write of zeros passes the function, and so does not read as zeros.
        self.submit(Operation::WriteZeroes, 4096, 512, &[]);
        let read = self.submit(Operation::Read, 4096, 512, &[]);
        assert!(self.data(read, 512) == [0x5a; 512]);
        while self.finished().is_some() {}
    }
}

/// Builds the layer, which counts its signals.
pub(super) fn layer(prepared: PreparedUif, rings: Arc<AtomicU32>) -> Uif {
    prepared.build_with(Box::new(Bells(rings))).expect("memory")
}

/// Builds a layer below: a target, a delay, and a guard.
fn below(builder: &mut StackBuilder, size: u64, delay_ns: u64, failing: &Arc<AtomicU32>) -> NodeId {
    let target = builder.add(Box::new(Memory::new(size).expect("memory")), &[]).expect("a target");
    let delay = DelayConfig { read_ns: delay_ns, write_ns: delay_ns, flush_ns: delay_ns, held_max: 1024 };
    let slow = builder.add(Box::new(Delay::new(delay)), &[target]).expect("a layer");
    builder.add(Box::new(Guard(size, Arc::clone(failing))), &[slow]).expect("a layer")
}

/// Prepares a function whose process is not there yet.
pub(super) fn prepared_external(function: &dyn Trait, on_death: OnDeath) -> PreparedUif {
    let instance = Arc::new(InstanceSlot::new("test").expect("descriptors"));
    PreparedUif::new(&config(on_death), function.properties(), instance)
}

/// Function's end of a connection, under the test's control.
pub(super) struct Function {
    pub(super) rings: Rings,
    pub(super) arena: Buffers,
    pub(super) requests: Receiver,
    pub(super) replies: Sender,
    has_heads: bool,
    session: Session,
}

/// Returns both ends of a connection to a function of the first version.
pub(super) fn link(entries: u32, arena_bytes: usize) -> (Link, Function) {
    link_to(Box::new(Xor), 1, entries, arena_bytes)
}

/// Returns both ends of a connection to this function, in this version.
pub(super) fn link_to(
    function: Box<dyn Trait>,
    version: u32,
    entries: u32,
    arena_bytes: usize,
) -> (Link, Function) {
    let rings = make_rings(Header { version: VERSION, entries, ..Header::default() }).expect("memory");
    let arena = SharedRegion::new("arena", arena_bytes).expect("memory");
    let fd = |region: &SharedRegion| region.fd().try_clone_to_owned().expect("a descriptor");
    let map = |region| SharedRegion::from_fd(fd(region), 0, region.len()).expect("memory");
    let (theirs, mapped) = (Rings::open(map(rings.region()), VERSION).expect("rings"), map(&arena));
    let (replies, requests) = theirs.function();
    requests.cancel_wakeup();
    let bell = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("a descriptor");
    let properties = function.properties();
    let link = Link { version, rings, arena, doorbell: bell(), bell: bell(), properties };
    let session = Session::new(function, arena_bytes);
    (
        link,
        Function {
            rings: theirs,
            arena: Buffers::new(mapped),
            requests,
            replies,
            has_heads: version > 1,
            session,
        },
    )
}

impl Function {
    /// Answers as many requests as there are, at most `most`. Returns true if it has to signal the daemon.
    pub(super) fn serve(&mut self, most: u16) -> bool {
        for _ in 0..self.requests.waiting().expect("the daemon keeps to the rules").min(most) {
            let entry: Submission = self.requests.take();
            self.session.take(&entry, &mut self.arena, 0);
        }
        let room = if self.has_heads { self.replies.room().into() } else { usize::MAX };
        self.session.replies(room).for_each(|reply| self.replies.push(&reply));
        self.replies.publish()
    }

    /// Returns the reply of an honest function.
    pub(super) fn answer(&mut self, entry: &Submission) -> Reply {
        self.session.take(entry, &mut self.arena, 0);
        self.session.replies(usize::MAX).next().expect("it holds nothing")
    }

    pub(super) fn sleep(&self) {
        self.requests.request_wakeup();
    }
}
