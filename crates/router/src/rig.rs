//! A router over targets that answer on request. For tests and for the fuzzer: its assertions about the
//! commands that come back hold for every program.

use crate::{Router, RouterBuilder};
use sluice_command::{
    Characteristics, Command, Lane, Layer, Limits, NodeId, Operation, Origin, Request, Route, Slab,
    StackBuilder, Ticket,
};
use sluice_memory::SharedRegion;
use sluice_nvme::opcode::io;
use sluice_nvme::{Status, SubmissionEntry};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

/// Bytes.
pub const BLOCK: u64 = 512;
/// Blocks of the namespace.
pub const BLOCKS: u64 = 1024;
pub const NSID: u32 = 3;
/// Blocks of a test's command.
pub const COUNT: u64 = 8;
/// Commands that a rig can have.
pub const COMMANDS: u32 = 16;

/// A leg that has arrived at a target.
#[derive(Clone, Debug)]
pub struct InFlight {
    pub path: usize,
    pub cid: u16,
    pub ticket: Ticket,
    pub request: Request,
    pub route: Route,
    /// Numbers in the blocks of the leg's data.
    pub data: Vec<u8>,
}

/// Legs that are in flight.
pub type Floor = Arc<Mutex<Vec<InFlight>>>;

/// Target that parks every command.
#[derive(Debug)]
pub struct Target {
    pub path: usize,
    pub floor: Floor,
}

impl Layer for Target {
    fn name(&self) -> &'static str {
        "target"
    }

    fn characteristics(&self, _below: &[Characteristics]) -> Characteristics {
        Characteristics::target(BLOCKS * BLOCK, BLOCK as u32)
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        let slot = lane.slot(&command);
        let (cid, request, route) = (slot.origin.cid, slot.request, slot.route);
        assert!(request.end() <= BLOCKS * BLOCK, "beyond the namespace: {request:?}");
        let data = blocks_of(&slot.data);
        let ticket = lane.park(command);
        self.floor.lock().expect("not poisoned").push(InFlight {
            path: self.path,
            cid,
            ticket,
            request,
            route,
            data,
        });
    }

    fn event(&mut self, ticket: Ticket, result: i32, lane: &mut Lane<'_>) {
        let command = lane.unpark(ticket).expect("each is answered once");
        lane.finish(command, Status(result as u16));
    }
}

fn blocks_of(data: &sluice_memory::SegmentList) -> Vec<u8> {
    assert_eq!(data.len_bytes() % BLOCK as usize, 0);
    let mut bytes = vec![0; data.len_bytes()];
    data.copy_to(0, &mut bytes);
    bytes.chunks(BLOCK as usize).map(|block| block[0]).collect()
}

/// A namespace, its commands, and their results.
#[derive(Debug)]
pub struct Rig {
    pub router: Router,
    pub slab: Slab,
    pub memory: SharedRegion,
    pub floor: Floor,
    /// Commands that were submitted, by CID.
    pub given: BTreeMap<u16, Request>,
    /// Status of commands that came back, by CID.
    pub done: BTreeMap<u16, Status>,
    /// Command and block of all data that successful legs transferred.
    pub transferred: BTreeSet<(u16, u8)>,
}

impl Rig {
    /// Creates a drive with `paths` paths, each to a target of its own, and room for `legs` legs at once.
    pub fn new(paths: usize, legs: u32, finish: impl FnOnce(RouterBuilder) -> RouterBuilder) -> Self {
        let floor = Floor::default();
        let mut stack = StackBuilder::new();
        // The layer added last is the first path.
        for path in (0..paths).rev() {
            stack.add(Box::new(Target { path, floor: Arc::clone(&floor) }), &[]).expect("a stack");
        }
        let mut builder = RouterBuilder::new(stack.build()).legs(legs).expect("a number of legs");
        for path in 1..paths {
            builder = builder.path(NodeId((paths - 1 - path) as u8)).expect("room for a path");
        }
        let mut router = finish(builder).build();
        router.set_format(NSID, BLOCK as u32);
        let limits = Limits::new(COMMANDS, router.characteristics().fan_out);
        let memory = SharedRegion::new("router-test", (COUNT * BLOCK) as usize).expect("memory");
        for block in 0..COUNT {
            memory.write((block * BLOCK) as usize, &[block as u8; BLOCK as usize]);
        }
        let slab = Slab::new(limits).expect("memory");
        let (given, done, transferred) = Default::default();
        Self { router, slab, memory, floor, given, done, transferred }
    }

    /// Submits a Read.
    pub fn read(&mut self, cid: u16, slba: u64) {
        let request = Request {
            operation: Operation::Read,
            offset: slba * BLOCK,
            length: COUNT * BLOCK,
            ..Request::default()
        };
        self.submit(cid, request);
    }

    /// Submits a command, and takes finished commands.
    pub fn submit(&mut self, cid: u16, request: Request) {
        let command = self.admit(cid, request);
        self.router.submit(command, &mut self.slab, 0);
        self.run_completions();
    }

    /// Returns a command that was not submitted yet.
    pub fn admit(&mut self, cid: u16, request: Request) -> Command {
        let opcode = match request.operation {
            Operation::Write => io::WRITE,
            Operation::Flush => io::FLUSH,
            Operation::WriteZeroes => io::WRITE_ZEROES,
            Operation::Deallocate => io::DATASET_MANAGEMENT,
            _ => io::READ,
        };
        let entry = SubmissionEntry { opcode, cid, nsid: NSID, ..SubmissionEntry::default() };
        let origin = Origin { sq: 1, cid, ..Origin::default() };
        let command = self.slab.admit(&entry, origin).expect("room");
        let slot = self.slab.slot_mut(&command);
        slot.request = request;
        if matches!(request.operation, Operation::Read | Operation::Write) {
            let all = self.memory.segment(0, (COUNT * BLOCK) as u32);
            slot.data.push(all).expect("one segment");
        }
        assert!(self.given.insert(cid, request).is_none(), "a CID that was used already");
        command
    }

    /// Answers the leg of `cid` on `path`, which must be in flight.
    pub fn answer(&mut self, cid: u16, path: usize, status: Status) {
        let found = self
            .floor
            .lock()
            .expect("not poisoned")
            .iter()
            .position(|leg| leg.cid == cid && leg.path == path);
        self.answer_nth(found.expect("such a leg is in flight"), status);
        self.run_completions();
    }

    /// Answers a leg, by its index in `floor`. Finished commands are not taken.
    pub fn answer_nth(&mut self, index: usize, status: Status) {
        let leg = self.floor.lock().expect("not poisoned").remove(index);
        if status.is_success() {
            self.transferred.extend(leg.data.iter().map(|&block| (leg.cid, block)));
        }
        let node = NodeId((self.paths() - 1 - leg.path) as u8);
        self.router.event(node, leg.ticket, i32::from(status.0), &mut self.slab, 0);
    }

    fn paths(&self) -> usize {
        self.router.layers().count()
    }

    /// Takes finished commands, and checks that each may be finished.
    pub fn run_completions(&mut self) {
        let mut done = Vec::new();
        self.router.run_completions(&mut self.slab, 0, &mut done);
        for command in done {
            let slot = self.slab.slot(&command);
            let cid = slot.origin.cid;
            assert!(!slot.is_child(), "a leg came back to the host");
            assert!(
                !self.floor.lock().expect("not poisoned").iter().any(|leg| leg.cid == cid),
                "completed with a leg in flight"
            );
            assert_eq!(Some(&slot.request), self.given.get(&cid), "not the command that was given");
            assert_eq!(slot.segments().map(|s| u64::from(s.len())).sum::<u64>(), data_length(&slot.request));
            assert_eq!(slot.route.program, 0, "in no program's hands");
            if slot.status.is_success() {
                let blocks = data_length(&slot.request) / BLOCK;
                let is_there = |block| self.transferred.contains(&(cid, block as u8));
                assert!((0..blocks).all(is_there), "a success without its data");
            }
            assert!(self.done.insert(cid, slot.status).is_none(), "completed twice");
            self.slab.release(command);
        }
    }

    /// Returns the paths that have a leg of this command, ascending.
    pub fn legs_of(&self, cid: u16) -> Vec<usize> {
        let mut paths: Vec<usize> = self
            .floor
            .lock()
            .expect("not poisoned")
            .iter()
            .filter(|leg| leg.cid == cid)
            .map(|leg| leg.path)
            .collect();
        paths.sort_unstable();
        paths
    }

    /// Returns a leg, which must be in flight.
    pub fn leg(&self, cid: u16, path: usize) -> InFlight {
        let floor = self.floor.lock().expect("not poisoned");
        floor.iter().find(|leg| leg.cid == cid && leg.path == path).expect("in flight").clone()
    }

    /// Returns the status of a command that came back.
    pub fn status(&self, cid: u16) -> Option<Status> {
        self.done.get(&cid).copied()
    }

    /// Returns the number of commands and legs in use.
    pub fn slots(&self) -> usize {
        self.slab.live().count()
    }
}

/// Returns the bytes of data of a request.
pub fn data_length(request: &Request) -> u64 {
    match request.operation {
        Operation::Read | Operation::Write => request.length,
        _ => 0,
    }
}
