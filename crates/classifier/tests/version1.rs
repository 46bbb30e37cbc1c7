//! Object of the first version of `sluice.h`, as users have it: every later version runs it, with the same
//! results.

use sluice_classifier::{Clock, Hooks, Loaded, Update, load};
use sluice_nvme::{Status, SubmissionEntry};
use sluice_router::{Context, Decision, Facts, Finish, Hook, Leg, Legs, Steering, Winner};

const VERSION1: &[u8] = include_bytes!("fixtures/version1.o");

const BLOCK: u64 = 640;

fn leg(number: u8) -> Leg {
    Leg::new(number).expect("one of seven")
}

fn entry() -> SubmissionEntry {
    SubmissionEntry {
        opcode: 2,
        flags: 1,
        cid: 3,
        nsid: 4,
        cdw2: 5,
        cdw3: 6,
        mptr: 7,
        dptr: [8, 9],
        cdw10: 10,
        cdw11: 11,
        cdw12: 12,
        cdw13: 13,
        cdw14: 14,
        cdw15: 15,
    }
}

fn facts() -> Facts {
    Facts {
        cookie: 21,
        queue: 22,
        opcode: 2,
        in_flight: 3,
        nsid: 4,
        block_size: 512,
        further_step: 1,
        capacity: 1 << 40,
        ..Facts::default()
    }
}

/// Returns the program's sum of the facts, as in its source.
fn weighed(facts: &Facts) -> u64 {
    let small = u64::from(facts.version)
        + 2 * u64::from(facts.hook)
        + 3 * u64::from(facts.leg)
        + 5 * u64::from(facts.status)
        + 7 * u64::from(facts.cookie)
        + 11 * u64::from(facts.queue)
        + 13 * u64::from(facts.opcode)
        + 17 * u64::from(facts.in_flight)
        + 19 * u64::from(facts.nsid);
    small + 23 * u64::from(facts.block_size) + 29 * u64::from(facts.further_step) + 31 * facts.capacity
}

/// 2 + 2 * 1 + 3 * 3 + ... of the entry above.
const WEIGHED_ENTRY: u64 = 2 + 2 + 9 + 20 + 35 + 66 + 91 + 136 + 171 + 230 + 319 + 372 + 481 + 574 + 645;

/// Returns the program's decision at a hook, and the steering it leaves.
fn ask(loaded: &mut Loaded, hook: Hook) -> (Decision, Steering, u64) {
    let steering = Steering { slba: BLOCK, blocks: 8, ..Steering::default() };
    let mut context = Context::new(hook, facts(), steering, &entry());
    let before = *context.facts();
    let verdict = loaded.classifier.classify(&mut context).expect("it ends");
    (verdict.decode().expect("it says something"), context.steering, weighed(&before))
}

/// Returns the program's notes of a hook: facts, entry, calls.
fn noted(loaded: &Loaded, hook: u32) -> Vec<u64> {
    let map = loaded.view.map("by_hook").expect("it has one");
    let bytes = map.get(&hook.to_le_bytes()).expect("an array has all its elements");
    bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

#[test]
fn it_sees_every_field_and_all_that_it_says_is_understood() {
    let mut loaded =
        load(VERSION1, "classifier", Clock::Coarse, &[]).expect("it is of an earlier version, or of this");
    let view = loaded.view.clone();
    let places = view.map("places").and_then(|map| map.translations()).expect("it is a cache");
    places.insert(BLOCK..BLOCK + 8, 7000, 1).expect("no other change is under way");

    let (first, steering, facts) = ask(&mut loaded, Hook::Submission);
    let both = Legs::of(leg(0)).and(leg(1));
    let expected = Decision {
        start: both,
        events: Legs::of(leg(1)),
        before_completion: true,
        cookie: 0x1234,
        finish: Finish::Hold,
    };
    assert_eq!(first, expected);
    let Steering { slba, blocks, skip, hints, target, fua, .. } = steering;
    assert_eq!((slba, blocks, skip, hints, target, fua), (7001, 2, 1, 0x0102_0304, 5, 1));
    assert_eq!(noted(&loaded, 0), [facts, WEIGHED_ENTRY, 1]);
    let by_slba = view.map("by_slba").expect("it has one");
    assert_eq!(by_slba.get(&BLOCK.to_le_bytes()), Ok(BLOCK.to_le_bytes().to_vec()));
    assert!(view.map("recent").expect("it has one").def().shared());

    let (second, _, facts) = ask(&mut loaded, Hook::LegDone(leg(1), Status::WRITE_FAULT));
    let expected = Decision {
        start: Legs::of(leg(6)),
        events: Legs::NONE,
        before_completion: false,
        cookie: 2,
        finish: Finish::AnyGood(Winner::FirstError),
    };
    assert_eq!(second, expected);
    assert_eq!(noted(&loaded, 1), [facts, WEIGHED_ENTRY, 3]);

    let (last, _, facts) = ask(&mut loaded, Hook::BeforeCompletion(Status::SUCCESS));
    assert_eq!(last.finish, Finish::Now(Status::WRITE_FAULT));
    assert_eq!(noted(&loaded, 2), [facts, WEIGHED_ENTRY, 5]);
    assert!(places.lookup(BLOCK).is_none() && by_slba.get(&BLOCK.to_le_bytes()).is_err());
    assert_eq!(view.pop_trace().expect("it said something").text, b"completed");
    assert_eq!(view.counters()[..3], [1, 1, 1]);
    assert_eq!(view.hooks(), Hooks { submission: 1, leg_done: 1, before_completion: 1 });
    assert_eq!(view.traps(), 0);
}

#[test]
fn its_maps_are_found_under_their_names() {
    let loaded =
        load(VERSION1, "classifier", Clock::Coarse, &[]).expect("it is of an earlier version, or of this");
    let map = loaded.view.map("by_slba").expect("it has one");
    map.set(&[1; 8], &[2; 8], Update::Any).expect("there is room");
    let next = load(VERSION1, "classifier", Clock::Coarse, loaded.view.maps()).expect("the same again");
    assert_eq!(next.view.map("by_slba").expect("it has one").get(&[1; 8]), Ok(vec![2; 8]));
}

/// Checks the same object with a header version that is not written yet.
#[test]
fn one_of_a_later_version_is_refused_in_words() {
    const LATER: &[u8] = include_bytes!("fixtures/later.o");
    let error =
        load(LATER, "classifier", Clock::Coarse, &[]).expect_err("its version is unknown").to_string();
    let words = "the object was compiled with version 65535 of sluice.h, and versions 1 to ";
    assert!(error.starts_with(words), "{error}");
}
