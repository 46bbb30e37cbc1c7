//! Any program, against legs that end in any order.
//!
//! The rig itself checks the end of every command: each completes once, none while a leg of it is in flight,
//! all of them with their original request.

use super::model::Model;
use super::{BLOCK, BLOCKS, COMMANDS, COUNT, Rig, lock};
use crate::{Classifier, Context, Hook, Trapped, Verdict};
use proptest::collection::vec;
use proptest::prelude::*;
use sluice_command::{Operation, Request};
use sluice_nvme::Status;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

const ENDS: [Status; 4] =
    [Status::SUCCESS, Status::SUCCESS, Status::WRITE_FAULT, Status::UNRECOVERED_READ_ERROR];

/// Next step of a test.
#[derive(Clone, Debug)]
enum Step {
    Submit {
        operation: Operation,
        slba: u64,
    },
    /// End of one of the legs in flight, which is perhaps not processed yet.
    End {
        which: usize,
        how: usize,
        run_completions: bool,
    },
    Replace,
    Detach,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let operation = prop::sample::select(vec![
        Operation::Read,
        Operation::Write,
        Operation::Flush,
        Operation::WriteZeroes,
        Operation::Deallocate,
    ]);
    let step = prop_oneof![
        4 => (operation, 0..BLOCKS + 2).prop_map(|(operation, slba)| Step::Submit { operation, slba }),
        8 => (any::<usize>(), 0..ENDS.len(), any::<bool>())
            .prop_map(|(which, how, run_completions)| Step::End { which, how, run_completions }),
        1 => Just(Step::Replace),
        1 => Just(Step::Detach),
    ];
    vec(step, 1..120)
}

/// Returns a word; some are possible: bits that are always wrong are mostly left out.
fn words() -> impl Strategy<Value = Verdict> {
    let leg = prop_oneof![6 => 0u64..4, 1 => Just(15u64), 1 => 4u64..15];
    let likely = (0u64..16, 0u64..16, any::<bool>(), any::<u16>(), 0u64..6, leg, any::<u16>()).prop_map(
        |(start, events, last, cookie, rule, leg, status)| {
            let events = if rule == 0 { events & start } else { events };
            let leg = if rule < 2 { 0 } else { leg };
            let status = if rule == 1 { u64::from(status & 0x7fff) } else { 0 };
            let flags = u64::from(last) << 15 | u64::from(cookie) << 16;
            Verdict(start | events << 8 | flags | status << 32 | rule << 48 | leg << 52)
        },
    );
    prop_oneof![8 => likely, 1 => any::<u64>().prop_map(Verdict)]
}

/// Actions of a program at one hook.
#[derive(Clone, Debug)]
struct Answer {
    verdict: Verdict,
    /// Bytes of the context that the program writes to.
    scribbles: Vec<(usize, u8)>,
    traps: bool,
}

fn answers() -> impl Strategy<Value = Vec<Answer>> {
    // Every byte now and then, steering bytes more often.
    let place = prop_oneof![1 => 0..Context::SIZE, 2 => 32..48usize, 1 => Just(40usize)];
    let scribbles = prop_oneof![3 => Just(Vec::new()), 1 => vec((place, 0..9u8), 0..3)];
    let answer = (words(), scribbles, prop::bool::weighted(0.03))
        .prop_map(|(verdict, scribbles, traps)| Answer { verdict, scribbles, traps });
    vec(answer, 1..60)
}

/// Record of a hook or of a program's retirement.
#[derive(Clone, Debug, PartialEq)]
enum Note {
    /// The hook may be the last of the command for the program, which then need not keep the command any
    /// more.
    Asked {
        program: u32,
        cid: u16,
        hook: Hook,
        is_last: bool,
    },
    Retired {
        program: u32,
    },
}

type Notes = Arc<Mutex<Vec<Note>>>;

struct Random {
    number: u32,
    answers: Arc<Vec<Answer>>,
    next: usize,
    notes: Notes,
}

impl Classifier for Random {
    fn classify(&mut self, context: &mut Context) -> Result<Verdict, Trapped> {
        use zerocopy::IntoBytes;
        let (cid, hook) = (context.entry().cid, context.hook());
        let answer = &self.answers[self.next % self.answers.len()];
        let is_last = answer.verdict.only_leg().is_some();
        lock(&self.notes).push(Note::Asked { program: self.number, cid, hook, is_last });
        self.next += 1;
        for &(place, value) in &answer.scribbles {
            context.as_mut_bytes()[place] = value;
        }
        if answer.traps { Err(Trapped) } else { Ok(answer.verdict) }
    }
}

impl Drop for Random {
    fn drop(&mut self) {
        lock(&self.notes).push(Note::Retired { program: self.number });
    }
}

/// The drive, and a model of each command's program.
struct Scene {
    rig: Rig,
    answers: Arc<Vec<Answer>>,
    notes: Notes,
    /// Program of new commands.
    current: Option<u32>,
    programs: u32,
    /// Program of each command in flight.
    owners: BTreeMap<u16, Option<u32>>,
    seen: usize,
    next_cid: u16,
}

impl Scene {
    fn new(legs: u32, answers: Vec<Answer>) -> Self {
        let (answers, notes) = (Arc::new(answers), Notes::default());
        let rig = Rig::new(4, legs, |builder| builder);
        let (owners, current) = (BTreeMap::new(), None);
        Self { rig, answers, notes, current, programs: 0, owners, seen: 0, next_cid: 0 }
    }

    fn program(&mut self) -> Box<dyn Classifier> {
        self.programs += 1;
        self.current = Some(self.programs);
        let (answers, notes) = (Arc::clone(&self.answers), Arc::clone(&self.notes));
        // Each program begins elsewhere in the answers.
        Box::new(Random { number: self.programs, answers, next: self.programs as usize * 7, notes })
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Submit { operation, slba } if self.rig.slab.room() > 0 => self.submit(operation, slba),
            Step::Submit { .. } => {}
            Step::End { which, how, run_completions } => {
                let count = self.rig.floor.lock().expect("not poisoned").len();
                if count > 0 {
                    self.rig.answer_nth(which % count, ENDS[how]);
                }
                if run_completions {
                    self.rig.run_completions();
                }
            }
            Step::Replace => {
                let program = self.program();
                self.rig.router.replace(program);
            }
            Step::Detach => {
                self.current = None;
                self.rig.router.detach();
            }
        }
        self.check();
    }

    fn submit(&mut self, operation: Operation, slba: u64) {
        self.next_cid += 1;
        let length = if operation == Operation::Flush { 0 } else { COUNT * BLOCK };
        let offset = if operation == Operation::Flush { 0 } else { slba * BLOCK };
        self.owners.insert(self.next_cid, self.current);
        self.rig.submit(self.next_cid, Request { operation, offset, length, ..Request::default() });
    }

    /// Checks that each leg in flight has a permitted path, and that each hook ran the right program.
    fn check(&mut self) {
        self.check_legs();
        let notes = lock(&self.notes);
        for note in &notes[self.seen..] {
            match *note {
                Note::Asked { program, cid, hook, is_last } => {
                    assert_eq!(self.owners.get(&cid), Some(&Some(program)), "{cid} is not this program's");
                    if is_last && hook == Hook::Submission {
                        self.owners.insert(cid, None);
                    }
                    let is_done =
                        self.rig.floor.lock().expect("not poisoned").iter().any(|leg| leg.cid == cid);
                    assert!(!matches!(hook, Hook::BeforeCompletion(_)) || !is_done);
                }
                Note::Retired { program } => {
                    assert_ne!(self.current, Some(program), "the current program retired");
                    let mut left = self.owners.iter().filter(|(_, owner)| **owner == Some(program));
                    assert!(left.all(|(cid, _)| self.rig.done.contains_key(cid)), "retired too early");
                    let again = notes.iter().filter(|other| **other == Note::Retired { program }).count();
                    assert_eq!(again, 1);
                }
            }
        }
        self.seen = notes.len();
        drop(notes);
        let done = &self.rig.done;
        self.owners.retain(|cid, _| !done.contains_key(cid));
    }

    fn check_legs(&self) {
        for leg in self.rig.floor.lock().expect("not poisoned").iter() {
            let given = self.rig.given[&leg.cid];
            assert!(leg.request.end() <= BLOCKS * BLOCK, "a leg outside of the namespace");
            assert!(leg.request.length <= given.length && leg.request.operation == given.operation);
            assert!(leg.request.fua >= given.fua);
            assert_eq!(leg.data.len() as u64 * BLOCK, crate::rig::data_length(&leg.request));
            let ordered = leg.data.windows(2).all(|pair| pair[1] == pair[0] + 1);
            assert!(ordered, "not a chunk of the command's data");
        }
    }

    /// Ends everything in flight, and all legs that this starts.
    fn finish(&mut self) {
        for round in 0.. {
            self.rig.run_completions();
            let count = self.rig.floor.lock().expect("not poisoned").len();
            if count == 0 {
                break;
            }
            self.rig.answer_nth(round % count, ENDS[round % ENDS.len()]);
        }
        self.rig.router.detach();
        self.current = None;
        self.check();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn no_program_loses_a_command_or_completes_one_twice_or_early(
        room in 1..5u32, answers in answers(), steps in steps(), attached in any::<bool>(),
    ) {
        let mut scene = Scene::new(room, answers);
        if attached {
            let program = scene.program();
            scene.rig.router.replace(program);
        }
        for step in &steps {
            scene.take(step);
        }
        scene.finish();
        prop_assert_eq!(scene.rig.done.len(), scene.rig.given.len(), "a command was lost");
        prop_assert_eq!((scene.rig.slots(), scene.rig.slab.room()), (0, COMMANDS));
        let retired = |note: &&Note| matches!(note, Note::Retired { .. });
        prop_assert_eq!(lock(&scene.notes).iter().filter(retired).count(), scene.programs as usize);
    }

    /// Checks one command at a time, with a well-behaved program: its end is that of a plain reading of its
    /// verdicts.
    #[test]
    fn a_command_ends_as_its_verdicts_require(
        words in vec(words(), 1..8), ends in vec(0..ENDS.len(), 64), order in vec(any::<usize>(), 64),
    ) {
        let taken = Arc::new(Mutex::new(Vec::new()));
        let (place, mut next) = (Arc::clone(&taken), 0);
        let program = move |context: &mut Context| {
            let word = words[next % words.len()];
            next += 1;
            lock(&place).push((context.hook(), word));
            word
        };
        let mut rig = Rig::new(4, 4, |builder| builder.classifier(Box::new(program)));
        rig.read(1, 0);
        let mut model = Model::default();
        model.submitted(&lock(&taken));
        for (how, which) in ends.iter().zip(&order) {
            prop_assert_eq!(rig.status(1), model.status());
            let expected: Vec<usize> = model.in_flight();
            prop_assert_eq!(&rig.legs_of(1), &expected);
            let Some(&path) = expected.get(which % expected.len().max(1)) else { break };
            rig.answer(1, path, ENDS[*how]);
            model.leg_done(path, ENDS[*how], &lock(&taken));
        }
    }
}
