//! Verdicts of a program that says anything at any hook. Every command comes back once, as the command it was
//! and when none of its legs is in flight, and a success only with all of its data.

use crate::Input;
use sluice_command::{
    Characteristics, Command, Lane, Layer, Limits, NodeId, Operation, Origin, Request, Route, Slab,
    StackBuilder, Ticket,
};
use sluice_memory::SharedRegion;
use sluice_nvme::{Status, SubmissionEntry};
use sluice_router::{Bytecode, Classifier, Context, Decision, Finish, Router, RouterBuilder, Verdict};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

const BLOCK: u64 = 512;
const BLOCKS: u64 = 64;
/// Blocks of a command.
const COUNT: u64 = 4;
const PATHS: u8 = 3;
const COMMANDS: u32 = 8;
/// Answers of a program, which begins again then.
const ANSWERS: usize = 12;

/// A leg that a target has.
struct Leg {
    cid: u16,
    node: NodeId,
    ticket: Ticket,
    /// The numbers of the blocks of its data.
    data: Vec<u8>,
}

type Floor = Rc<RefCell<Vec<Leg>>>;

/// Parks whatever comes.
struct Target(NodeId, Floor);

impl Layer for Target {
    fn name(&self) -> &'static str {
        "target"
    }

    fn characteristics(&self, _below: &[Characteristics]) -> Characteristics {
        Characteristics::target(BLOCKS * BLOCK, BLOCK as u32)
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        let slot = lane.slot(&command);
        assert!(slot.request.end() <= BLOCKS * BLOCK, "{:?}", slot.request);
        let cid = slot.origin.cid;
        let mut bytes = vec![0; slot.data.len_bytes()];
        slot.data.copy_to(0, &mut bytes);
        let data = bytes.chunks(BLOCK as usize).map(|block| block[0]).collect();
        let ticket = lane.park(command);
        self.1.borrow_mut().push(Leg { cid, node: self.0, ticket, data });
    }

    fn event(&mut self, ticket: Ticket, result: i32, lane: &mut Lane<'_>) {
        let command = lane.unpark(ticket).expect("each is answered once");
        lane.finish(command, Status(result as u16));
    }
}

/// A word of which many are possible.
fn word(input: &mut Input<'_>) -> u64 {
    if input.one_in(8) {
        return input.u64();
    }
    let (start, events, rule) = (u64::from(input.byte()), u64::from(input.byte()), input.below(6) as u64);
    let leg = if rule < 2 { 0 } else { u64::from(input.pick(&[0u8, 1, 2, 15, 7])) };
    let status = if rule == 1 { u64::from(input.u16() & 0x7fff) } else { 0 };
    let limit = if input.one_in(8) { 0xff } else { 7 };
    let events = events & (limit | 0x80);
    start & limit | events << 8 | u64::from(input.byte()) << 16 | status << 32 | rule << 48 | leg << 52
}

/// What the table in the router's page on verdicts says of a word, in the same order.
fn is_meaningful(word: u64) -> bool {
    let bits = |from: u32, count: u32| word >> from & ((1 << count) - 1);
    let (status, rule, leg) = (bits(32, 15), bits(48, 4), bits(52, 4));
    let unused = bits(7, 1) + bits(47, 1) + bits(56, 8);
    unused == 0
        && match rule {
            0 => status == 0 && leg == 0,
            1 => leg == 0,
            2 => status == 0 && leg < 7,
            3 | 4 => status == 0 && (leg < 7 || leg == 15),
            _ => false,
        }
}

/// The one word that says this.
fn word_of(decision: &Decision) -> Verdict {
    let Decision { start, events, cookie, before_completion, finish } = *decision;
    let rule = match finish {
        Finish::Hold => Verdict::hold(),
        Finish::Now(status) => Verdict::complete(status),
        Finish::Leg(leg) => Verdict::finish_with(leg),
        Finish::All(winner) => Verdict::all(winner),
        Finish::AnyGood(winner) => Verdict::any_good(winner),
    };
    let verdict = rule.and_start(start).and_call_at(events).with_cookie(cookie);
    if before_completion { verdict.and_call_before_completion() } else { verdict }
}

fn check(word: u64) {
    let decoded = Verdict(word).decode();
    assert_eq!(decoded.is_ok(), is_meaningful(word), "{word:#x}");
    if let Ok(decision) = decoded {
        assert_eq!(word_of(&decision).0, word);
    }
}

/// What a program does at one hook.
struct Answer {
    word: u64,
    traps: bool,
    /// A byte that it writes, perhaps where it may not.
    scribble: Option<(usize, u8)>,
}

fn program(input: &mut Input<'_>) -> Box<dyn Classifier> {
    let mut answers = Vec::new();
    for _ in 0..=input.below(ANSWERS) {
        let word = word(input);
        check(word);
        let place = if input.one_in(4) { input.byte() / 2 } else { 32 + input.byte() % 24 };
        let scribble = input.one_in(3).then(|| (usize::from(place), input.byte() % 16));
        answers.push(Answer { word, traps: input.one_in(16), scribble });
    }
    let mut next = 0;
    Box::new(Bytecode::new(move |context: &mut [u8; Context::SIZE]| {
        let answer = &answers[next % answers.len()];
        next += 1;
        if let Some((place, value)) = answer.scribble {
            context[place] = value;
        }
        if answer.traps { Err(()) } else { Ok(answer.word) }
    }))
}

struct Rig {
    router: Router,
    slab: Slab,
    memory: SharedRegion,
    floor: Floor,
    next_cid: u16,
    given: BTreeMap<u16, Request>,
    /// The command and block of all data that good legs had.
    transferred: BTreeSet<(u16, u8)>,
}

impl Rig {
    fn new(input: &mut Input<'_>) -> Self {
        let floor = Floor::default();
        let mut stack = StackBuilder::new();
        // The layer added last is the first path.
        for node in 0..PATHS {
            stack.add(Box::new(Target(NodeId(node), Rc::clone(&floor))), &[]).expect("a stack");
        }
        let builder =
            RouterBuilder::new(stack.build()).legs(1 + input.below(3) as u32).expect("one to three");
        let builder = (0..PATHS - 1)
            .rev()
            .fold(builder, |builder, node| builder.path(NodeId(node)).expect("there is room for a path"));
        let mut router = builder.classifier(program(input)).build();
        router.set_format(1, BLOCK as u32);
        let slab = Slab::new(Limits::new(COMMANDS, router.characteristics().fan_out)).expect("memory");
        let memory = SharedRegion::new("fuzz-verdict", (COUNT * BLOCK) as usize).expect("memory");
        for block in 0..COUNT {
            memory.write((block * BLOCK) as usize, &[block as u8; BLOCK as usize]);
        }
        let (given, transferred) = Default::default();
        Self { router, slab, memory, floor, next_cid: 0, given, transferred }
    }

    fn submit(&mut self, input: &mut Input<'_>) {
        if self.given.len() == COMMANDS as usize {
            return;
        }
        let operation =
            input.pick(&[Operation::Read, Operation::Write, Operation::Flush, Operation::WriteZeroes]);
        let (slba, count) =
            if operation == Operation::Flush { (0, 0) } else { (u64::from(input.byte()), COUNT) };
        let request =
            Request { operation, offset: slba * BLOCK, length: count * BLOCK, ..Request::default() };
        self.next_cid += 1;
        let entry = SubmissionEntry { cid: self.next_cid, nsid: 1, ..SubmissionEntry::default() };
        let origin = Origin { sq: input.pick(&[1, 0]), cid: self.next_cid, ..Origin::default() };
        let command = self.slab.admit(&entry, origin).expect("there is room");
        let slot = self.slab.slot_mut(&command);
        slot.request = request;
        if matches!(operation, Operation::Read | Operation::Write) {
            slot.data.push(self.memory.segment(0, (COUNT * BLOCK) as u32)).expect("one segment");
        }
        self.given.insert(self.next_cid, request);
        self.router.submit(command, &mut self.slab, 0);
    }

    fn answer(&mut self, which: usize, status: Status) {
        let legs = self.floor.borrow().len();
        if legs == 0 {
            return;
        }
        let leg = self.floor.borrow_mut().swap_remove(which % legs);
        if status.is_success() {
            self.transferred.extend(leg.data.iter().map(|&block| (leg.cid, block)));
        }
        self.router.event(leg.node, leg.ticket, i32::from(status.0), &mut self.slab, 0);
    }

    /// Takes what is done, and looks whether it may be.
    fn settle(&mut self) {
        let mut done = Vec::new();
        self.router.settle(&mut self.slab, 0, &mut done);
        for command in done {
            let slot = self.slab.slot(&command);
            let cid = slot.origin.cid;
            let request = self.given.remove(&cid).expect("it was given, and comes back once");
            assert_eq!((slot.request, slot.route), (request, Route::default()));
            assert!(!slot.is_child(), "a leg came back to the host");
            assert!(self.floor.borrow().iter().all(|leg| leg.cid != cid), "completed with a leg in flight");
            if slot.status.is_success() && matches!(request.operation, Operation::Read | Operation::Write) {
                let has = |block| self.transferred.contains(&(cid, block as u8));
                assert!((0..COUNT).all(has), "a success without its data");
            }
            self.slab.release(command);
        }
    }
}

pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    check(input.u64());
    let mut rig = Rig::new(&mut input);
    while !input.is_empty() {
        match input.below(8) {
            0..=2 => rig.submit(&mut input),
            3..=5 => {
                let status = input.pick(&[Status::SUCCESS, Status::SUCCESS, Status::WRITE_FAULT]);
                rig.answer(input.byte().into(), status);
            }
            6 => rig.settle(),
            _ => match input.below(4) {
                0 => rig.router.replace(program(&mut input)),
                1 => rig.router.detach(),
                _ => rig.settle(),
            },
        }
    }
    rig.settle();
    while !rig.floor.borrow().is_empty() {
        rig.answer(0, Status::SUCCESS);
        rig.settle();
    }
    assert!(rig.given.is_empty(), "commands that nobody has: {:?}", rig.given);
    assert_eq!(rig.slab.live().count(), 0);
}
