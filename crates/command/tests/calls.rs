//! Calls of a stack that reach its layers, with and without counters.

use sluice_command::{
    Aborted, Busy, Characteristics, Command, Controllers, Frame, Lane, Layer, LayerCounters, Limits, NodeId,
    Operation, Origin, Request, Slab, Slot, Stack, StackBuilder, Ticket,
};
use sluice_memory::{Removed, Space};
use sluice_nvme::{Status, SubmissionEntry};
use std::sync::{Arc, Mutex};

const SIZE: u64 = 1 << 20;

/// Calls of layers in their order, and the values that the layers return.
#[derive(Default)]
struct Shared {
    calls: Vec<String>,
    deadlines: [Option<u64>; 2],
    work: [usize; 2],
    flags: [bool; 2],
    parked: Option<Ticket>,
}

/// A layer that records its calls: the target is number 0, and the layer over it number 1.
struct Recorder {
    number: usize,
    shared: Arc<Mutex<Shared>>,
    size: u64,
}

impl Recorder {
    fn note(&self, call: String) {
        self.shared.lock().expect("not poisoned").calls.push(format!("{} {call}", self.number));
    }

    fn flag(&self) -> bool {
        self.shared.lock().expect("not poisoned").flags[self.number]
    }
}

impl Layer for Recorder {
    fn name(&self) -> &'static str {
        ["target", "top"][self.number]
    }

    fn characteristics(&self, below: &[Characteristics]) -> Characteristics {
        below.first().map_or_else(|| Characteristics::target(self.size, 512), |it| it.over())
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        self.note(format!("submit {}", lane.now_ns()));
        if self.number == 1 {
            assert_eq!(lane.size_below(0), SIZE);
            return lane.forward_with(0, command, 7, [8, 9]);
        }
        self.shared.lock().expect("not poisoned").parked = Some(lane.park(command));
    }

    fn pass(&mut self, command: Command, lane: &mut Lane<'_>) {
        self.note(format!("pass {}", lane.entry(&command).cdw15));
        lane.finish(command, Status::SUCCESS);
    }

    fn resume(&mut self, command: Command, frame: Frame, lane: &mut Lane<'_>) {
        self.note(format!("resume {} {:?}", frame.stage, frame.data));
        let status = lane.slot(&command).status;
        lane.finish(command, status);
    }

    fn event(&mut self, ticket: Ticket, result: i32, lane: &mut Lane<'_>) {
        self.note(format!("event {result}"));
        if let Some(command) = lane.unpark(ticket) {
            lane.finish(command, Status::WRITE_FAULT);
        }
    }

    fn flush(&mut self, lane: &mut Lane<'_>) {
        self.note(format!("flush {}", lane.now_ns()));
    }

    fn deadline_ns(&self) -> Option<u64> {
        self.shared.lock().expect("not poisoned").deadlines[self.number]
    }

    fn expire(&mut self, lane: &mut Lane<'_>) {
        self.note(format!("expire {}", lane.now_ns()));
    }

    fn end_waiting(&mut self, of: Controllers, why: Status, lane: &mut Lane<'_>) {
        self.note(format!("end_waiting {} {why:?} {}", of.has(5), lane.now_ns()));
    }

    fn abort(&mut self, which: Aborted, why: Status, lane: &mut Lane<'_>) {
        self.note(format!("abort {:?} {why:?} {}", which.cid, lane.now_ns()));
    }

    fn resized(&mut self, size: u64) {
        self.size = size;
        self.note(format!("resized {size}"));
    }

    fn formatted(&mut self, block_size: u32) {
        self.note(format!("formatted {block_size}"));
    }

    fn polls(&self) -> bool {
        true
    }

    fn poll(&mut self, controller: u8, space: &Space, lane: &mut Lane<'_>) -> usize {
        self.note(format!("poll {controller} {} {}", space.page_size(), lane.now_ns()));
        self.shared.lock().expect("not poisoned").work[self.number]
    }

    fn follow_memory(&mut self, controller: u8, _space: &Space) {
        self.note(format!("follow_memory {controller}"));
    }

    fn leave(&mut self, lane: &mut Lane<'_>) -> bool {
        self.note(format!("leave {}", lane.now_ns()));
        self.flag()
    }

    fn is_idle(&self) -> bool {
        self.flag()
    }

    fn arm(&mut self) -> bool {
        self.note("arm".to_owned());
        self.flag()
    }

    fn disarm(&mut self) {
        self.note("disarm".to_owned());
    }

    fn forget_memory(&mut self, _removed: &Removed) {
        self.note("forget_memory".to_owned());
    }

    fn still_maps(&self, _removed: &Removed) -> bool {
        self.flag()
    }

    fn revoke(&mut self, controller: u8) {
        self.note(format!("revoke {controller}"));
    }

    fn is_revoked(&self, controller: u8) -> bool {
        self.note(format!("is_revoked {controller}"));
        self.flag()
    }

    fn renew(&mut self, controller: u8) {
        self.note(format!("renew {controller}"));
    }
}

struct Bench {
    stack: Stack,
    slab: Slab,
    shared: Arc<Mutex<Shared>>,
}

impl Bench {
    fn new(counted: bool) -> Self {
        let shared = Arc::<Mutex<Shared>>::default();
        let layer = |number| Box::new(Recorder { number, shared: Arc::clone(&shared), size: SIZE });
        let mut builder = StackBuilder::new();
        let target = builder.add(layer(0), &[]).expect("a target");
        builder.add(layer(1), &[target]).expect("a layer");
        let mut stack = builder.build();
        if counted {
            stack.count_layers(Arc::new(LayerCounters::new(1)), 0);
        }
        let slab = Slab::new(Limits::new(4, 0)).expect("memory");
        Self { stack, slab, shared }
    }

    fn set(&self, change: impl FnOnce(&mut Shared)) {
        change(&mut self.shared.lock().expect("not poisoned"));
    }

    /// Takes the calls since the last time.
    fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.shared.lock().expect("not poisoned").calls)
    }

    fn admit(&mut self, request: Request) -> Command {
        let entry = SubmissionEntry { cdw15: 77, ..SubmissionEntry::default() };
        let command = self.slab.admit(&entry, Origin::default()).expect("room");
        self.slab.slot_mut(&command).request = request;
        command
    }

    /// Returns the statuses of the commands that are back, and releases them.
    fn back(&mut self, now_ns: u64) -> Vec<Status> {
        let mut done = Vec::new();
        self.stack.run_completions(&mut self.slab, now_ns, &mut done);
        done.into_iter()
            .map(|command| {
                let status = self.slab.slot(&command).status;
                self.slab.release(command);
                status
            })
            .collect()
    }
}

fn flush() -> Request {
    Request { operation: Operation::Flush, ..Request::default() }
}

#[test]
fn commands_reach_their_layers_and_come_back() {
    for counted in [false, true] {
        let mut bench = Bench::new(counted);
        let command = bench.admit(flush());
        bench.stack.submit(bench.stack.root(), command, &mut bench.slab, 10);
        assert_eq!(bench.back(11), []);
        assert_eq!(bench.calls(), ["1 submit 10", "0 submit 11", "0 flush 11", "1 flush 11"]);
        assert_eq!((bench.back(12), bench.calls()), (vec![], vec![]), "nothing is flushed again");
        let parked = bench.shared.lock().expect("not poisoned").parked.expect("it is parked");
        bench.stack.event(NodeId(0), parked, -5, &mut bench.slab, 20);
        assert_eq!(bench.back(20), [Status::WRITE_FAULT]);
        assert_eq!(bench.calls(), ["0 event -5", "1 resume 7 [8, 9]"]);
        bench.stack.event(NodeId(9), parked, 0, &mut bench.slab, 20);
        assert_eq!(bench.calls(), [""; 0], "there is no such layer");
        for entry in [NodeId(0), NodeId(1)] {
            let command = bench.admit(flush());
            bench.stack.pass(entry, command, &mut bench.slab, 30);
            assert_eq!(bench.back(30), [Status::SUCCESS]);
            assert_eq!(bench.calls(), [format!("{} pass 77", entry.0), format!("{} flush 30", entry.0)]);
        }
    }
}

#[test]
fn every_layer_hears_of_what_concerns_the_stack() {
    for counted in [false, true] {
        let mut bench = Bench::new(counted);
        let (both, space) = (|call: &str| [format!("0 {call}"), format!("1 {call}")], Space::new());
        assert_eq!(bench.stack.names().collect::<Vec<_>>(), ["top", "target"]);
        assert_eq!((bench.stack.position("target"), bench.stack.position("top")), (Some(1), Some(0)));
        assert_eq!(bench.stack.position("other"), None);
        let of = Controllers::of_bits(1 << 5);
        bench.stack.end_waiting(of, Status::ABORT_REQUESTED, &mut bench.slab, 3);
        assert_eq!(bench.calls(), both(&format!("end_waiting true {:?} 3", Status::ABORT_REQUESTED)));
        let which = Aborted { cid: Some(6), ..Aborted::of(of) };
        bench.stack.abort(which, Status::ABORT_REQUESTED, &mut bench.slab, 4);
        let abort = format!("abort Some(6) {:?} 4", Status::ABORT_REQUESTED);
        assert_eq!(bench.calls(), both(&abort));
        bench.stack.abort_below(1, which, Status::ABORT_REQUESTED, &mut bench.slab, 4);
        assert_eq!(bench.calls(), [format!("0 {abort}")]);
        bench.stack.formatted(4096);
        assert_eq!(bench.calls(), both("formatted 4096"));
        assert!(bench.stack.polls());
        bench.set(|shared| shared.work = [3, 4]);
        assert_eq!(bench.stack.poll(2, &space, &mut bench.slab, 5), 7);
        assert_eq!(bench.calls(), both(&format!("poll 2 {} 5", space.page_size())));
        bench.stack.follow_memory(3, &space);
        assert_eq!(bench.calls(), both("follow_memory 3"));
        bench.stack.disarm();
        assert_eq!(bench.calls(), both("disarm"));
        let removed = Space::new().unmap_all();
        bench.stack.forget_memory(&removed);
        assert_eq!(bench.calls(), both("forget_memory"));
        bench.stack.revoke(4);
        bench.stack.renew(5);
        assert_eq!(bench.calls(), [both("revoke 4"), both("renew 5")].concat());
        for flags in [[false, false], [false, true], [true, false], [true, true]] {
            bench.set(|shared| shared.flags = flags);
            let (any, all) = (flags[0] || flags[1], flags[0] && flags[1]);
            assert_eq!((bench.stack.arm(), bench.calls()), (any, both("arm").to_vec()));
            assert_eq!(bench.stack.still_maps(&removed), any);
            assert_eq!(bench.stack.is_revoked(6), all);
            assert!(bench.calls().iter().all(|call| call.ends_with("is_revoked 6")));
            assert_eq!(bench.stack.is_idle(0, &bench.slab), all);
            assert_eq!(bench.stack.is_idle(1, &bench.slab), flags[0]);
        }
        bench.stack.resize(SIZE / 2);
        assert_eq!(bench.calls(), [format!("0 resized {}", SIZE / 2)]);
        assert_eq!((bench.stack.characteristics().size, bench.stack.target_size()), (SIZE / 2, SIZE / 2));
        bench.set(|shared| shared.flags = [false, false]);
        assert_eq!(bench.stack.take_out(0, &mut bench.slab, 9), Err(Busy));
        bench.set(|shared| shared.flags = [false, true]);
        assert_eq!(bench.stack.take_out(0, &mut bench.slab, 9), Ok(NodeId(0)));
        assert_eq!(bench.calls(), ["1 leave 9", "1 leave 9"]);
        assert_eq!(bench.stack.names().collect::<Vec<_>>(), ["target"]);
        assert!(bench.stack.polls(), "the target is polled as before");
    }
}

#[test]
fn the_earliest_deadline_counts_and_layers_are_called_at_theirs() {
    for counted in [false, true] {
        let mut bench = Bench::new(counted);
        assert_eq!(bench.stack.deadline_ns(), None);
        for (deadlines, first) in
            [([Some(500), None], 500), ([None, Some(300)], 300), ([Some(500), Some(300)], 300)]
        {
            bench.set(|shared| shared.deadlines = deadlines);
            assert_eq!(bench.stack.deadline_ns(), Some(first));
        }
        bench.stack.expire(&mut bench.slab, 299);
        assert_eq!(bench.calls(), [""; 0]);
        bench.stack.expire(&mut bench.slab, 300);
        assert_eq!(bench.calls(), ["1 expire 300"]);
        bench.stack.expire(&mut bench.slab, 500);
        assert_eq!(bench.calls(), ["0 expire 500", "1 expire 500"]);
    }
}

/// A layer with only the methods that each layer has. It sends two children where something is below it.
struct Plain {
    answers: Vec<Status>,
}

impl Layer for Plain {
    fn name(&self) -> &'static str {
        "plain"
    }

    fn characteristics(&self, below: &[Characteristics]) -> Characteristics {
        let target = Characteristics::target(SIZE, 512);
        below.first().map_or(target, |it| Characteristics { fan_out: 2, ..it.over() })
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        if lane.slot(&command).is_child() {
            let status = self.answers.remove(0);
            return lane.finish(command, status);
        }
        lane.fork(command, 2, 0, [0; 2], |_, parent, child: &mut Slot| {
            child.request = parent.request;
            0
        });
    }
}

#[test]
fn a_layer_without_more_refuses_ends_and_reports_the_first_error() {
    [false, true].into_iter().for_each(check_plain);
}

fn check_plain(counted: bool) {
    let (good, read, write) = (Status::SUCCESS, Status::UNRECOVERED_READ_ERROR, Status::WRITE_FAULT);
    let mut slab = Slab::new(Limits::new(2, 2)).expect("memory");
    let mut builder = StackBuilder::new();
    let answers = vec![good, good, good, write, read, good, read, write];
    let target = builder.add(Box::new(Plain { answers }), &[]).expect("a target");
    builder.add(Box::new(Plain { answers: Vec::new() }), &[target]).expect("a layer");
    let mut stack = builder.build();
    if counted {
        stack.count_layers(Arc::new(LayerCounters::new(1)), 0);
    }
    let run = |stack: &mut Stack, slab: &mut Slab, passes| {
        let command = slab.admit(&SubmissionEntry::default(), Origin::default()).expect("room");
        slab.slot_mut(&command).request = flush();
        match passes {
            true => stack.pass(stack.root(), command, slab, 0),
            false => stack.submit(stack.root(), command, slab, 0),
        }
        let mut done = Vec::new();
        stack.run_completions(slab, 0, &mut done);
        let [command] = done.try_into().expect("it comes back once");
        let status = slab.slot(&command).status;
        slab.release(command);
        status
    };
    for expected in [good, write, read, read] {
        assert_eq!(run(&mut stack, &mut slab, false), expected);
    }
    assert_eq!(run(&mut stack, &mut slab, true), Status::INVALID_OPCODE);
    assert_eq!((stack.deadline_ns(), stack.polls(), stack.arm()), (None, false, false));
    assert!(!stack.still_maps(&Space::new().unmap_all()) && stack.is_revoked(0));
    assert!(!stack.is_idle(0, &slab), "it cannot be known");
    assert_eq!(stack.take_out(0, &mut slab, 0), Err(Busy));
    let command = slab.admit(&SubmissionEntry::default(), Origin::default()).expect("room");
    let ticket = slab.park(command);
    stack.event(target, ticket, 0, &mut slab, 0);
    let mut done = Vec::new();
    stack.run_completions(&mut slab, 0, &mut done);
    let [command] = done.try_into().expect("nothing else ends it");
    assert_eq!(slab.slot(&command).status, Status::INTERNAL_ERROR);
    slab.release(command);
    stack.unlink(0);
    assert_eq!((stack.names().count(), stack.polls()), (1, false));
}
