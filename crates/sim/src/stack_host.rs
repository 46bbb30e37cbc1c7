//! A host without a controller: random requests straight into a stack, checked against the model.

use crate::{
    Action, FlightId, ModelNamespace, Random, SimClock, SimDisk, SimEngine, Tag, read_tag, write_tag,
};
use sluice_command::{Command, Limits, Operation, Origin, Request, Slab, Stack};
use sluice_memory::{SegmentList, SharedRegion, Space};
use sluice_nvme::{Status, SubmissionEntry};

/// Workload of a [`StackHost`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Commands in flight.
    pub depth: u16,
    /// Blocks of the longest request.
    pub blocks_max: u64,
    /// Statuses that commands may fail with: the faults that are in the stack.
    pub faults: &'static [Status],
}

/// Function that creates the stack over the disks, now and after every crash.
type Build<'a> = Box<dyn FnMut(&SimEngine) -> Stack + 'a>;

/// Drives one stack, step by step, and checks every command.
pub struct StackHost<'a> {
    pub clock: SimClock,
    pub model: ModelNamespace,
    disks: Vec<SimDisk>,
    engine: SimEngine,
    build: Build<'a>,
    stack: Stack,
    slab: Slab,
    memory: SharedRegion,
    space: Space,
    flights: Vec<Option<Flight>>,
    workload: Workload,
    block_size: usize,
    random: Random,
    last_tag: u64,
    finished: u64,
    failed: u64,
}

impl std::fmt::Debug for StackHost<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StackHost({:?}, {} finished, {} failed)", self.stack, self.finished, self.failed)
    }
}

/// A command that the stack has.
struct Flight {
    id: FlightId,
    operation: Operation,
    data: SegmentList,
}

/// The most parts that a request's memory is scattered into.
const SEGMENTS_MAX: usize = 4;
/// Bytes between two parts, so that they are not merged.
const GAP: usize = 64;

impl<'a> StackHost<'a> {
    pub fn new(
        seed: u64,
        workload: Workload,
        disks: Vec<SimDisk>,
        mut build: impl FnMut(&SimEngine) -> Stack + 'a,
    ) -> Self {
        let mut random = Random::new(seed);
        let engine = SimEngine::new(random.split());
        let stack = build(&engine);
        let top = stack.characteristics();
        let block_size = top.block_size as usize;
        let stride = workload.blocks_max as usize * block_size + SEGMENTS_MAX * GAP;
        let memory =
            SharedRegion::new("sim-host", (usize::from(workload.depth) * stride).next_multiple_of(4096));
        Self {
            clock: SimClock::default(),
            model: ModelNamespace::new(top.size / block_size as u64, top.volatile_cache),
            slab: slab_of(&stack, &workload),
            memory: memory.expect("memory for the simulated host"),
            space: Space::new(),
            flights: (0..workload.depth).map(|_| None).collect(),
            build: Box::new(build),
            last_tag: 0,
            finished: 0,
            failed: 0,
            disks,
            engine,
            stack,
            workload,
            block_size,
            random,
        }
    }

    /// Returns the number of commands that came back.
    pub fn finished(&self) -> u64 {
        self.finished
    }

    /// Returns the number of commands that came back with an error.
    pub fn failed(&self) -> u64 {
        self.failed
    }

    /// Returns the number of commands that the stack has.
    pub fn in_flight(&self) -> usize {
        self.flights.iter().flatten().count()
    }

    /// Runs `steps` random steps: commands are submitted, answered, or time passes.
    pub fn run(&mut self, steps: u64) {
        for _ in 0..steps {
            match self.random.below(10) {
                0..4 => self.submit_any(),
                4..8 => self.answer(),
                8 => self.wait(),
                _ => self.answer_again(),
            }
        }
    }

    /// Runs until every command is back.
    pub fn drain(&mut self) {
        let mut steps = 0u64;
        // Layers may still have commands of their own.
        while self.in_flight() > 0 || self.engine.pending() > 0 {
            self.answer();
            self.wait();
            steps += 1;
            assert!(steps < 1_000_000, "{} commands never come back", self.in_flight());
        }
        assert_eq!(self.slab.in_flight(), 0, "a command came back and its slot did not");
        assert_eq!(self.slab.live().count(), 0, "children outlived their parents");
        assert_eq!(self.model.in_flight(), 0);
        assert_eq!(self.engine.pending(), 0);
    }

    /// Kills the daemon: commands in flight vanish, the disks stay as they are.
    pub fn crash(&mut self) {
        self.model.crash();
        self.restart();
    }

    /// Cuts the power: commands in flight vanish, and data that is not durable may be lost.
    pub fn power_cut(&mut self) {
        self.model.power_cut();
        self.disks.iter().for_each(|disk| disk.lock().power_cut());
        self.restart();
    }

    fn restart(&mut self) {
        self.engine.forget();
        self.flights.fill_with(|| None);
        self.stack = (self.build)(&self.engine);
        self.slab = slab_of(&self.stack, &self.workload);
    }

    /// Reads every block, in requests of the largest size.
    pub fn verify(&mut self) {
        let mut first = 0;
        while first < self.model.blocks() {
            let blocks = self.workload.blocks_max.min(self.model.blocks() - first);
            while !self.submit(Action::Read { first, blocks }) {
                self.answer();
                self.wait();
            }
            first += blocks;
        }
        self.drain();
    }

    fn submit_any(&mut self) {
        let action = self.any_action();
        self.submit(action);
    }

    fn any_action(&mut self) -> Action {
        let blocks = self.random.between(1, self.workload.blocks_max.min(self.model.blocks()));
        let first = self.random.below(self.model.blocks() - blocks + 1);
        match self.random.below(20) {
            0..8 => Action::Read { first, blocks },
            8..15 => Action::Write { first, tags: self.new_tags(blocks), fua: self.random.one_in(4) },
            15..17 => {
                Action::Write { first, tags: vec![Tag::ZERO; blocks as usize], fua: self.random.one_in(4) }
            }
            17 => Action::Deallocate { first, blocks },
            _ => Action::Flush,
        }
    }

    fn new_tags(&mut self, blocks: u64) -> Vec<Tag> {
        let first = self.last_tag + 1;
        self.last_tag += blocks;
        (first..=self.last_tag).map(Tag).collect()
    }

    /// Submits a command; returns false if the limit of commands is in flight.
    pub fn submit(&mut self, action: Action) -> bool {
        let Some(cid) = self.flights.iter().position(Option::is_none) else { return false };
        let origin = Origin { cid: cid as u16, ..Origin::default() };
        let command = self.slab.admit(&SubmissionEntry::default(), origin).expect("a slot for each CID");
        let request = self.request(&action);
        let data = self.scatter(cid, &request);
        match &action {
            Action::Write { tags, .. } => self.fill(&data, tags),
            // Earlier contents of the buffer must not be taken for data that was read.
            _ => data.fill(0, data.len_bytes(), 0xa5),
        }
        let slot = self.slab.slot_mut(&command);
        slot.request = request;
        data.as_slice().iter().for_each(|&segment| slot.data.push(segment).expect("a few segments"));
        let id = self.model.begin(action);
        self.flights[cid] = Some(Flight { id, operation: request.operation, data });
        self.stack.submit(self.stack.root(), command, &mut self.slab, self.clock.now_ns());
        self.run_completions();
        true
    }

    fn request(&mut self, action: &Action) -> Request {
        let (operation, first, blocks) = match action {
            Action::Read { first, blocks } => (Operation::Read, *first, *blocks),
            Action::Deallocate { first, blocks } => (Operation::Deallocate, *first, *blocks),
            Action::Flush => (Operation::Flush, 0, 0),
            // The two ways to write zeroes are the same to the model.
            Action::Write { first, tags, .. } if tags[0] == Tag::ZERO && self.random.one_in(2) => {
                (Operation::WriteZeroes, *first, tags.len() as u64)
            }
            Action::Write { first, tags, .. } => (Operation::Write, *first, tags.len() as u64),
        };
        let block_size = self.block_size as u64;
        Request {
            operation,
            fua: matches!(action, Action::Write { fua: true, .. }),
            deallocate: operation == Operation::WriteZeroes && self.random.one_in(2),
            offset: first * block_size,
            length: blocks * block_size,
        }
    }

    /// Returns memory for a request's data, in a few parts.
    fn scatter(&mut self, cid: usize, request: &Request) -> SegmentList {
        let mut data = SegmentList::new();
        if !matches!(request.operation, Operation::Read | Operation::Write) {
            return data;
        }
        let stride = self.workload.blocks_max as usize * self.block_size + SEGMENTS_MAX * GAP;
        let mut at = cid * stride;
        let mut left = request.length;
        for segments_left in (0..SEGMENTS_MAX).rev() {
            let length = if segments_left == 0 { left } else { self.random.below(left / 4 + 1) * 4 };
            data.push(self.memory.segment(at, length as u32)).expect("a few segments");
            at += length as usize + GAP;
            left -= length;
        }
        data
    }

    fn fill(&self, data: &SegmentList, tags: &[Tag]) {
        let mut block = vec![0; self.block_size];
        for (number, &tag) in tags.iter().enumerate() {
            write_tag(tag, &mut block);
            data.copy_from(number * self.block_size, &block);
        }
    }

    fn tags(&self, data: &SegmentList) -> Vec<Tag> {
        let mut block = vec![0; self.block_size];
        let blocks = data.len_bytes() / self.block_size;
        let tag = |number| {
            data.copy_to(number * self.block_size, &mut block);
            read_tag(&block).unwrap_or_else(|torn| panic!("block {number} of a read: {torn}"))
        };
        (0..blocks).map(tag).collect()
    }

    /// Answers one of the parked commands.
    pub fn answer(&mut self) {
        if let Some((node, ticket)) = self.engine.answer() {
            self.stack.event(node, ticket, 0, &mut self.slab, self.clock.now_ns());
        }
        self.run_completions();
    }

    /// Answers a command that was answered before, which must have no effect.
    fn answer_again(&mut self) {
        if let Some((node, ticket)) = self.engine.stale() {
            let before = self.in_flight();
            self.stack.event(node, ticket, 0, &mut self.slab, self.clock.now_ns());
            self.run_completions();
            assert_eq!(self.in_flight(), before, "a stale ticket finished a command");
        }
    }

    /// Gives the polled layers a turn.
    fn poll(&mut self) {
        if self.stack.polls() {
            self.stack.poll(0, &self.space, &mut self.slab, self.clock.now_ns());
        }
    }

    /// Advances the time, up to the next deadline if there is one.
    fn wait(&mut self) {
        self.clock.advance(self.random.below(1000));
        if let Some(deadline_ns) = self.stack.deadline_ns() {
            self.clock.advance_to(deadline_ns);
            self.stack.expire(&mut self.slab, self.clock.now_ns());
        }
        self.poll();
        self.run_completions();
    }

    fn run_completions(&mut self) {
        let mut done = Vec::new();
        self.stack.run_completions(&mut self.slab, self.clock.now_ns(), &mut done);
        for command in done {
            self.complete(command);
        }
    }

    fn complete(&mut self, command: Command) {
        let slot = self.slab.slot(&command);
        let (status, cid) = (slot.status, usize::from(slot.origin.cid));
        assert!(!slot.is_child(), "a child came back to the host");
        self.slab.release(command);
        let flight = self.flights[cid].take();
        let flight = flight.unwrap_or_else(|| panic!("CID {cid} came back twice"));
        self.finished += 1;
        self.failed += u64::from(!status.is_success());
        self.check(flight, status);
    }

    fn check(&mut self, flight: Flight, status: Status) {
        let expected = status.is_success() || self.workload.faults.contains(&status);
        assert!(expected, "{:?} came back with {status:?}", flight.operation);
        if status.is_success() && flight.operation == Operation::Read {
            let found: Vec<_> = self.tags(&flight.data).into_iter().map(Some).collect();
            if let Err(violation) = self.model.end_read(flight.id, &found) {
                panic!("{violation}");
            }
        } else {
            self.model.end(flight.id, status.is_success());
        }
    }
}

fn slab_of(stack: &Stack, workload: &Workload) -> Slab {
    let limits =
        Limits::with_reserve(workload.depth.into(), stack.characteristics().fan_out, stack.reserve());
    Slab::new(limits).expect("memory for a slab")
}
