//! Encoding of verdicts, and impossible words.

use super::{COUNT, Rig, leg, legs};
use crate::{Decision, Finish, Leg, Legs, ProgramError, Verdict, Winner};
use proptest::prelude::*;
use sluice_nvme::Status;

const FAULT: Status = Status::WRITE_FAULT;

/// Checks the layout, which is an ABI: these words are in programs.
#[test]
fn the_words_are_those_of_the_table() {
    assert_eq!(Verdict::send(Leg::FIRST).0, 0x0002_0000_0000_0001);
    assert_eq!(Verdict::send(leg(6)).0, 0x0062_0000_0000_0040);
    assert_eq!(Verdict::complete(Status(0x4280)).0, 0x0001_4280_0000_0000);
    assert_eq!(Verdict::all(Winner::FirstError).and_start(legs(&[0, 1])).0, 0x00f3_0000_0000_0003);
    assert_eq!(Verdict::any_good(Winner::Leg(leg(1))).and_start(legs(&[0, 1])).0, 0x0014_0000_0000_0003);
    let held = Verdict::hold().and_start(legs(&[2])).and_call_at(legs(&[2])).with_cookie(0xbeef);
    assert_eq!(held.0, 0x0000_0000_beef_0404);
    assert_eq!(Verdict::hold().and_call_before_completion().0, 0x8000);
}

#[test]
fn a_decision_is_what_was_put_into_the_word() {
    let word = Verdict::all(Winner::Leg(leg(3)))
        .and_start(legs(&[3, 6]))
        .and_call_at(legs(&[0, 6]))
        .and_call_before_completion()
        .with_cookie(0xffff);
    let decision = Decision {
        start: legs(&[3, 6]),
        events: legs(&[0, 6]),
        before_completion: true,
        cookie: 0xffff,
        finish: Finish::All(Winner::Leg(leg(3))),
    };
    assert_eq!(word.decode(), Ok(decision));
    assert_eq!(Verdict::complete(FAULT).decode().map(|d| d.finish), Ok(Finish::Now(FAULT)));
    assert_eq!(legs(&[1, 4]).iter().map(Leg::number).collect::<Vec<_>>(), [1, 4]);
    assert_eq!(Legs::first(9).count(), 7);
}

#[test]
fn a_word_with_bits_that_mean_nothing_is_refused() {
    let words = [
        1 << 7,
        1 << 47 | Verdict::complete(FAULT).0,
        1 << 56 | Verdict::send(Leg::FIRST).0,
        // A rule and a leg that do not exist.
        5 << 48 | 1,
        7 << 52 | 2 << 48 | 1,
        15 << 52 | 2 << 48 | 1,
        8 << 52 | 3 << 48 | 1,
        // A leg or a status where the rule has no use for it.
        1 << 52 | Verdict::complete(FAULT).0,
        1 << 32 | Verdict::send(Leg::FIRST).0,
        1 << 32 | 0x101,
    ];
    for word in words {
        assert_eq!(Verdict(word).decode(), Err(ProgramError::UnknownBits), "{word:#018x}");
    }
}

proptest! {
    /// Checks that each decision has one word: no bit is lost, and none is ignored.
    #[test]
    fn words_and_decisions_are_one_to_one(word: u64) {
        let rules = [word, word & 0x0000_0000_ffff_ff7f, word & 0x0001_7fff_ffff_ff7f | 1 << 48,
            word & 0x0062_0000_ffff_ff7f | 2 << 48, word & 0x0063_0000_ffff_ff7f | 3 << 48];
        for word in rules {
            if let Ok(decision) = Verdict(word).decode() {
                prop_assert_eq!(encode(decision).0, word);
            }
        }
    }
}

fn encode(decision: Decision) -> Verdict {
    let rule = match decision.finish {
        Finish::Hold => Verdict::hold(),
        Finish::Now(status) => Verdict::complete(status),
        Finish::Leg(leg) => Verdict::finish_with(leg),
        Finish::All(winner) => Verdict::all(winner),
        Finish::AnyGood(winner) => Verdict::any_good(winner),
    };
    let word = rule.and_start(decision.start).and_call_at(decision.events).with_cookie(decision.cookie);
    if decision.before_completion { word.and_call_before_completion() } else { word }
}

/// Runs the first verdict of a command over three paths with room for two legs.
fn fails_at_once(word: Verdict, error: ProgramError) {
    let (mut rig, _) = Rig::scripted(3, 2, [word]);
    rig.read(1, 0);
    assert_eq!(rig.status(1), Some(Status::INTERNAL_ERROR), "{word:?}");
    assert_eq!((rig.router.counters().of(error), rig.router.counters().errors()), (1, 1), "{word:?}");
    assert_eq!(rig.slots(), 0);
}

#[test]
fn an_impossible_verdict_fails_its_command_and_is_counted_by_kind() {
    use ProgramError as E;
    let both = legs(&[0, 1]);
    fails_at_once(Verdict(0), E::NothingToWaitFor);
    fails_at_once(Verdict(u64::MAX), E::UnknownBits);
    fails_at_once(Verdict::send(leg(3)), E::NoSuchPath);
    fails_at_once(Verdict::all(Winner::FirstError).and_start(legs(&[0, 1, 2])), E::TooManyLegs);
    fails_at_once(Verdict::hold().and_start(both), E::NothingToWaitFor);
    fails_at_once(Verdict::hold().and_start(both).and_call_before_completion(), E::NothingToWaitFor);
    fails_at_once(Verdict::hold().and_start(both).and_call_at(legs(&[2])), E::NothingToWaitFor);
    fails_at_once(Verdict::send(leg(0)).and_call_at(legs(&[1])), E::NothingToWaitFor);
    fails_at_once(Verdict::finish_with(leg(0)), E::NeverStarted);
    fails_at_once(Verdict::finish_with(leg(2)).and_start(both), E::NeverStarted);
    fails_at_once(Verdict::all(Winner::FirstError), E::NeverStarted);
    fails_at_once(Verdict::any_good(Winner::FirstError), E::NeverStarted);
    fails_at_once(Verdict::all(Winner::Leg(leg(2))).and_start(both), E::NeverStarted);
    fails_at_once(Verdict::complete(Status::SUCCESS), E::NotTransferred);
}

/// Runs the second verdict of a command with two legs in flight, when leg 0 is done.
fn fails_later(word: Verdict, error: ProgramError) {
    let first = Verdict::hold().and_start(legs(&[0, 1])).and_call_at(legs(&[0, 1]));
    let (mut rig, script) = Rig::scripted(3, 2, [first, word]);
    rig.read(1, 0);
    rig.answer(1, 0, Status::SUCCESS);
    assert_eq!(rig.router.counters().of(error), 1, "{word:?}");
    assert_eq!(rig.status(1), None, "leg 1 is in flight");
    rig.answer(1, 1, Status::SUCCESS);
    assert_eq!(rig.status(1), Some(Status::INTERNAL_ERROR), "{word:?}");
    assert_eq!(script.hooks().len(), 2, "a program that made an error is not called again");
    assert_eq!(rig.slots(), 0);
}

#[test]
fn a_command_that_fails_waits_for_its_legs() {
    use ProgramError as E;
    fails_later(Verdict::all(Winner::FirstError).and_start(legs(&[1])), E::LegInFlight);
    fails_later(Verdict::all(Winner::FirstError).and_start(legs(&[0, 2])), E::TooManyLegs);
    fails_later(Verdict::hold(), E::NothingToWaitFor);
    fails_later(Verdict::hold().and_call_at(legs(&[0])), E::NothingToWaitFor);
    fails_later(Verdict::finish_with(leg(2)), E::NeverStarted);
    fails_later(Verdict(1 << 63), E::UnknownBits);
}

#[test]
fn before_completion_only_the_status_can_be_chosen() {
    let words = [
        Verdict::send(leg(0)),
        Verdict::send(leg(0)).and_call_before_completion(),
        Verdict::finish_with(leg(0)).and_call_at(legs(&[0])),
        Verdict::complete(FAULT).and_call_before_completion(),
    ];
    for word in words {
        let (mut rig, _) = Rig::scripted(1, 1, [Verdict::send(leg(0)).and_call_before_completion(), word]);
        rig.read(1, 0);
        rig.answer(1, 0, Status::SUCCESS);
        assert_eq!(rig.status(1), Some(Status::INTERNAL_ERROR), "{word:?}");
        assert_eq!(rig.router.counters().of(ProgramError::TooLate), 1, "{word:?}");
    }
}

#[test]
fn legs_are_started_only_so_often_for_one_command() {
    let again = Verdict::hold().and_start(legs(&[0])).and_call_at(legs(&[0]));
    let (mut rig, script) = Rig::scripted(1, 1, std::iter::repeat_n(again, 1000));
    // Outside of the namespace: each leg ends where it starts, and the program starts the next.
    rig.read(1, super::BLOCKS - COUNT + 1);
    assert_eq!(rig.status(1), Some(Status::INTERNAL_ERROR));
    assert_eq!(rig.router.counters().of(ProgramError::TooManyStarts), 1);
    assert_eq!(script.hooks().len(), 257);
}
