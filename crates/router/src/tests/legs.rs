//! Results of legs under each rule.

use super::{COUNT, Rig, leg, legs};
use crate::{Hook, Leg, RouterBuilder, Verdict, Winner};
use sluice_command::{NodeId, Operation, Request, Stack};
use sluice_nvme::Status;

const GOOD: Status = Status::SUCCESS;
const FAULT: Status = Status::WRITE_FAULT;
const UNREAD: Status = Status::UNRECOVERED_READ_ERROR;

/// Runs two legs under a rule with these ends, the first of each pair being the path; returns the command's
/// status after each.
fn both(rule: Verdict, ends: [(usize, Status); 2]) -> Option<Status> {
    let (mut rig, _) = Rig::scripted(2, 2, [rule.and_start(legs(&[0, 1]))]);
    rig.read(1, 0);
    assert_eq!(rig.legs_of(1), [0, 1]);
    assert_eq!(rig.slots(), 3, "a command and two legs");
    rig.answer(1, ends[0].0, ends[0].1);
    assert_eq!(rig.status(1), None, "never completed with a leg in flight");
    rig.answer(1, ends[1].0, ends[1].1);
    assert_eq!(rig.slots(), 0);
    rig.status(1)
}

#[test]
fn a_single_leg_is_the_command_itself() {
    let (mut rig, script) = Rig::scripted(2, 1, [Verdict::send(leg(1))]);
    rig.read(1, 5);
    assert_eq!((rig.legs_of(1), rig.slots()), (vec![1], 1));
    rig.answer(1, 1, FAULT);
    assert_eq!(rig.status(1), Some(FAULT));
    assert_eq!(script.hooks(), [Hook::Submission]);
}

#[test]
fn one_leg_finishes_the_command_and_the_other_only_delays_it() {
    for first in [0, 1] {
        let ends = [(first, if first == 0 { UNREAD } else { FAULT }), (1 - first, FAULT)];
        let expected = if first == 0 { UNREAD } else { FAULT };
        assert_eq!(both(Verdict::finish_with(leg(0)), ends), Some(expected));
    }
    assert_eq!(both(Verdict::finish_with(leg(0)), [(1, FAULT), (0, GOOD)]), Some(GOOD));
}

#[test]
fn all_is_good_if_all_are_and_the_first_error_is_the_lowest_legs() {
    let rule = Verdict::all(Winner::FirstError);
    assert_eq!(both(rule, [(0, GOOD), (1, GOOD)]), Some(GOOD));
    assert_eq!(both(rule, [(0, GOOD), (1, FAULT)]), Some(FAULT));
    assert_eq!(both(rule, [(0, UNREAD), (1, FAULT)]), Some(UNREAD));
    assert_eq!(both(rule, [(1, FAULT), (0, UNREAD)]), Some(UNREAD), "whichever was faster");
}

#[test]
fn all_with_a_winner_has_the_winners_status() {
    let rule = Verdict::all(Winner::Leg(leg(1)));
    assert_eq!(both(rule, [(1, GOOD), (0, FAULT)]), Some(GOOD));
    assert_eq!(both(rule, [(1, FAULT), (0, GOOD)]), Some(FAULT));
}

#[test]
fn any_good_leg_is_enough() {
    let rule = Verdict::any_good(Winner::FirstError);
    assert_eq!(both(rule, [(0, FAULT), (1, GOOD)]), Some(GOOD));
    assert_eq!(both(rule, [(0, GOOD), (1, FAULT)]), Some(GOOD));
    assert_eq!(both(rule, [(1, FAULT), (0, UNREAD)]), Some(UNREAD));
    assert_eq!(both(Verdict::any_good(Winner::Leg(leg(1))), [(1, FAULT), (0, UNREAD)]), Some(FAULT));
}

#[test]
fn an_immediate_status_waits_for_legs_in_flight() {
    assert_eq!(both(Verdict::complete(UNREAD), [(0, GOOD), (1, GOOD)]), Some(UNREAD));
    assert_eq!(both(Verdict::complete(GOOD), [(0, GOOD), (1, FAULT)]), Some(GOOD), "leg 0 transferred it");
    assert_eq!(both(Verdict::complete(GOOD), [(0, FAULT), (1, UNREAD)]), Some(FAULT), "nobody did");
}

/// Checks an encryptor's read: the device, and then the function.
#[test]
fn legs_can_follow_each_other_in_the_commands_own_slot() {
    let first = Verdict::hold().and_start(legs(&[1])).and_call_at(legs(&[1])).with_cookie(7);
    let (mut rig, script) = Rig::scripted(2, 1, [first, Verdict::send(leg(0))]);
    rig.read(1, 9);
    rig.answer(1, 1, GOOD);
    assert_eq!((rig.legs_of(1), rig.slots()), (vec![0], 1));
    rig.answer(1, 0, GOOD);
    assert_eq!(rig.status(1), Some(GOOD));
    assert_eq!(script.hooks(), [Hook::Submission, Hook::LegDone(leg(1), GOOD)]);
    let contexts = super::lock(&script.contexts);
    assert_eq!([contexts[0].facts().cookie, contexts[1].facts().cookie], [0, 7]);
}

#[test]
fn a_leg_can_be_started_again_and_counts_as_it_ended_last() {
    let first = Verdict::hold().and_start(legs(&[0])).and_call_at(legs(&[0]));
    let (mut rig, _) = Rig::scripted(1, 1, [first, Verdict::all(Winner::FirstError).and_start(legs(&[0]))]);
    rig.read(1, 0);
    rig.answer(1, 0, FAULT);
    assert_eq!(rig.status(1), None);
    rig.answer(1, 0, GOOD);
    assert_eq!(rig.status(1), Some(GOOD));
}

#[test]
fn a_leg_that_is_done_can_be_finished_with() {
    let first = Verdict::hold().and_start(legs(&[0, 1])).and_call_at(legs(&[0, 1]));
    let still = Verdict::hold().and_call_at(legs(&[1]));
    let (mut rig, script) = Rig::scripted(2, 2, [first, still, Verdict::finish_with(leg(0))]);
    rig.read(1, 0);
    rig.answer(1, 0, GOOD);
    rig.answer(1, 1, FAULT);
    assert_eq!(rig.status(1), Some(GOOD));
    let contexts = super::lock(&script.contexts);
    assert_eq!(contexts.iter().map(|context| context.facts().in_flight).collect::<Vec<_>>(), [0, 0b10, 0]);
}

#[test]
fn a_third_leg_can_start_while_the_second_is_in_flight() {
    let first = Verdict::hold().and_start(legs(&[0, 1])).and_call_at(legs(&[0]));
    let second = Verdict::all(Winner::FirstError).and_start(legs(&[2]));
    let (mut rig, _) = Rig::scripted(3, 2, [first, second]);
    rig.read(1, 0);
    rig.answer(1, 0, GOOD);
    assert_eq!((rig.legs_of(1), rig.slots()), (vec![1, 2], 3));
    rig.answer(1, 2, GOOD);
    rig.answer(1, 1, UNREAD);
    assert_eq!(rig.status(1), Some(UNREAD));
}

#[test]
fn no_hook_is_run_at_the_end_of_a_leg_when_the_command_is_finished() {
    let first = Verdict::finish_with(leg(0)).and_start(legs(&[0, 1])).and_call_at(legs(&[1]));
    let (mut rig, script) = Rig::scripted(2, 2, [first]);
    rig.read(1, 0);
    rig.answer(1, 0, GOOD);
    rig.answer(1, 1, FAULT);
    assert_eq!((rig.status(1), script.hooks().len()), (Some(GOOD), 1));
}

#[test]
fn the_last_hook_sees_the_status_and_may_change_it() {
    let first = Verdict::send(Leg::FIRST).and_call_before_completion().with_cookie(0xbeef);
    for (leg, last, status) in [
        (GOOD, Verdict::complete(FAULT), FAULT),
        (FAULT, Verdict::complete(UNREAD), UNREAD),
        (FAULT, Verdict::finish_with(Leg::FIRST), FAULT),
        (GOOD, Verdict::all(Winner::FirstError), GOOD),
        // A program can steer but not forge: data that was not read was not read.
        (FAULT, Verdict::complete(GOOD), FAULT),
    ] {
        let (mut rig, script) = Rig::scripted(1, 1, [first, last]);
        rig.read(1, 0);
        rig.answer(1, 0, leg);
        assert_eq!(rig.status(1), Some(status), "{leg:?}, then {last:?}");
        assert_eq!(script.hooks(), [Hook::Submission, Hook::BeforeCompletion(leg)]);
        assert_eq!(super::lock(&script.contexts)[1].facts().cookie, 0xbeef);
        assert_eq!(rig.router.counters().errors(), 0);
    }
}

#[test]
fn what_moves_nothing_can_be_finished_without_a_leg() {
    for operation in [Operation::Flush, Operation::Deallocate] {
        let length = if operation == Operation::Flush { 0 } else { 4096 };
        let (mut rig, _) = Rig::scripted(1, 1, [Verdict::complete(GOOD)]);
        rig.submit(1, Request { operation, length, ..Request::default() });
        assert_eq!(rig.status(1), Some(GOOD));
    }
}

#[test]
fn the_program_runs_for_every_step_of_a_command() {
    let (mut rig, script) = Rig::scripted(2, 2, [Verdict::send(leg(0)), Verdict::send(leg(1))]);
    let steps = [(0, leg(0)), (40, leg(1))];
    let command = rig.admit(1, Request::default());
    let mut command = Some(command);
    for (number, (block, path)) in steps.into_iter().enumerate() {
        let request = Request {
            operation: Operation::Deallocate,
            offset: block * 512,
            length: 512,
            ..Request::default()
        };
        let step = command.take().expect("in hand");
        rig.slab.slot_mut(&step).request = request;
        match number {
            0 => rig.router.submit(step, &mut rig.slab, 0),
            _ => rig.router.resubmit(step, &mut rig.slab, 0),
        }
        assert_eq!(rig.legs_of(1), [usize::from(path.number())]);
        rig.answer_nth(0, GOOD);
        let mut done = Vec::new();
        rig.router.run_completions(&mut rig.slab, 0, &mut done);
        command = done.pop();
    }
    rig.slab.release(command.expect("in hand"));
    let contexts = super::lock(&script.contexts);
    let shown = |n: usize| (contexts[n].steering.slba, contexts[n].facts().further_step);
    assert_eq!([shown(0), shown(1)], [(0, 0), (40, 1)]);
}

#[test]
fn without_a_program_every_command_takes_the_first_path() {
    let mut rig = Rig::new(2, 2, |builder| builder);
    rig.read(1, 0);
    assert_eq!((rig.legs_of(1), rig.slots()), (vec![0], 1));
    rig.answer(1, 0, FAULT);
    assert_eq!(rig.status(1), Some(FAULT));
    rig.read(2, super::BLOCKS - COUNT + 1);
    assert_eq!(rig.status(2), Some(Status::LBA_OUT_OF_RANGE));
}

#[test]
fn there_are_only_so_many_paths_and_legs() {
    let builder = || RouterBuilder::new(stack());
    let mut full = builder();
    for _ in 1..Leg::COUNT {
        full = full.path(NodeId(0)).expect("room");
    }
    assert!(full.path(NodeId(0)).is_err());
    assert!(builder().path(NodeId(1)).is_err(), "no such layer");
    assert!(builder().legs(0).is_err() && builder().legs(8).is_err());
    assert_eq!(builder().build().characteristics().fan_out, 0);
    assert_eq!(builder().legs(7).expect("seven").build().characteristics().fan_out, 7);
}

fn stack() -> Stack {
    Stack::of(Box::new(crate::rig::Target { path: 0, floor: Default::default() }))
}
