//! Verdicts of a program that returns anything at any hook. Every command comes back once, with its original
//! request and when none of its legs is in flight. A success requires all of its data.

use crate::Input;
use sluice_command::{Operation, Request};
use sluice_nvme::Status;
use sluice_router::rig::{BLOCK, BLOCKS, COMMANDS, COUNT, Rig};
use sluice_router::{Classifier, Context, Decision, Finish, Unconfined, Verdict};

const PATHS: usize = 3;
/// Answers of a program, which then begins again.
const ANSWERS: usize = 12;

/// Draws a word of which many are possible.
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

/// Returns whether a word has a meaning, by the table in the router's documentation of verdicts, in the same
/// order.
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

/// Returns the only word for this decision.
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

/// Actions of a program at one hook.
struct Answer {
    word: u64,
    traps: bool,
    /// Byte that the program writes, perhaps where it must not.
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
    Box::new(Unconfined::new(move |context: &mut [u8; Context::SIZE]| {
        let answer = &answers[next % answers.len()];
        next += 1;
        if let Some((place, value)) = answer.scribble {
            context[place] = value;
        }
        if answer.traps { Err(()) } else { Ok(answer.word) }
    }))
}

/// Submits a command, if there is room. One of four goes beyond the namespace.
fn submit(rig: &mut Rig, input: &mut Input<'_>) {
    if rig.given.len() - rig.done.len() == COMMANDS as usize {
        return;
    }
    let operation =
        input.pick(&[Operation::Read, Operation::Write, Operation::Flush, Operation::WriteZeroes]);
    let slba = u64::from(input.u16()) % (BLOCKS + BLOCKS / 4);
    let (slba, count) = if operation == Operation::Flush { (0, 0) } else { (slba, COUNT) };
    let request = Request { operation, offset: slba * BLOCK, length: count * BLOCK, ..Request::default() };
    let Ok(cid) = u16::try_from(rig.given.len()) else { return };
    let command = rig.admit(cid, request);
    if input.one_in(4) {
        // Without a host.
        rig.slab.slot_mut(&command).origin.sq = 0;
    }
    rig.router.submit(command, &mut rig.slab, 0);
}

fn answer(rig: &mut Rig, which: usize, status: Status) {
    let legs = rig.floor.lock().expect("not poisoned").len();
    if legs > 0 {
        rig.answer_nth(which % legs, status);
    }
}

pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    check(input.u64());
    let legs = 1 + input.below(PATHS) as u32;
    let mut rig = Rig::new(PATHS, legs, |builder| builder.classifier(program(&mut input)));
    while !input.is_empty() {
        match input.below(8) {
            0..=2 => submit(&mut rig, &mut input),
            3..=5 => {
                let status = input.pick(&[Status::SUCCESS, Status::SUCCESS, Status::WRITE_FAULT]);
                answer(&mut rig, input.byte().into(), status);
            }
            6 => rig.run_completions(),
            _ => match input.below(4) {
                0 => rig.router.replace(program(&mut input)),
                1 => rig.router.detach(),
                _ => rig.run_completions(),
            },
        }
    }
    rig.run_completions();
    while !rig.floor.lock().expect("not poisoned").is_empty() {
        answer(&mut rig, 0, Status::SUCCESS);
        rig.run_completions();
    }
    assert_eq!(rig.done.len(), rig.given.len(), "commands that nobody has");
    assert_eq!(rig.slots(), 0);
}
