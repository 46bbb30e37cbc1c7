//! Programs that are attached and detached while commands are in flight.

use super::{Rig, leg, lock};
use crate::{Classifier, Context, Direct, Trapped, Verdict};
use sluice_nvme::Status;
use std::sync::{Arc, Mutex};

const GOOD: Status = Status::SUCCESS;

/// Program that sends everything down one path, requests the last hook, and records its number at each hook.
struct Numbered {
    number: u8,
    path: u8,
    calls: Arc<Mutex<Vec<u8>>>,
    gone: Arc<Mutex<Vec<u8>>>,
}

impl Classifier for Numbered {
    fn classify(&mut self, context: &mut Context) -> Result<Verdict, Trapped> {
        lock(&self.calls).push(self.number);
        Ok(match context.facts().hook {
            0 => Verdict::send(leg(self.path)).and_call_before_completion(),
            _ => Verdict::finish_with(leg(self.path)),
        })
    }
}

impl Drop for Numbered {
    fn drop(&mut self) {
        lock(&self.gone).push(self.number);
    }
}

#[derive(Default)]
struct Notes {
    calls: Arc<Mutex<Vec<u8>>>,
    gone: Arc<Mutex<Vec<u8>>>,
}

impl Notes {
    fn program(&self, number: u8, path: u8) -> Box<dyn Classifier> {
        Box::new(Numbered { number, path, calls: Arc::clone(&self.calls), gone: Arc::clone(&self.gone) })
    }

    fn calls(&self) -> Vec<u8> {
        std::mem::take(&mut lock(&self.calls))
    }

    fn gone(&self) -> Vec<u8> {
        lock(&self.gone).clone()
    }
}

#[test]
fn the_next_command_sees_the_new_program_and_the_old_one_keeps_its_own() {
    let notes = Notes::default();
    let mut rig = Rig::new(2, 1, |builder| builder.classifier(notes.program(1, 0)));
    rig.read(1, 0);
    rig.router.replace(notes.program(2, 1));
    rig.read(2, 0);
    assert_eq!((rig.legs_of(1), rig.legs_of(2), notes.gone()), (vec![0], vec![1], vec![]));
    rig.answer(2, 1, GOOD);
    assert_eq!(notes.calls(), [1, 2, 2]);
    rig.answer(1, 0, GOOD);
    assert_eq!((notes.calls(), notes.gone()), (vec![1], vec![1]), "its last command is done");
    rig.router.detach();
    assert_eq!(notes.gone(), [1, 2], "it had none");
    assert_eq!((rig.status(1), rig.status(2)), (Some(GOOD), Some(GOOD)));
}

#[test]
fn a_detached_program_finishes_what_it_began_and_the_rest_takes_the_first_path() {
    let notes = Notes::default();
    let mut rig = Rig::new(2, 1, |builder| builder);
    rig.read(1, 0);
    rig.router.attach(notes.program(1, 1)).unwrap_or_else(|_| panic!("there was none"));
    assert!(rig.router.attach(notes.program(9, 1)).is_err(), "handed back");
    rig.read(2, 0);
    rig.router.detach();
    assert!(!rig.router.is_attached());
    rig.read(3, 0);
    assert_eq!((rig.legs_of(1), rig.legs_of(2), rig.legs_of(3)), (vec![0], vec![1], vec![0]));
    rig.answer(1, 0, GOOD);
    rig.answer(3, 0, GOOD);
    assert_eq!(notes.calls(), [1]);
    rig.answer(2, 1, GOOD);
    assert_eq!((notes.calls(), notes.gone()), (vec![1], vec![9, 1]));
    assert_eq!(rig.done.len(), 3);
}

#[test]
fn a_program_that_retires_is_handed_over() {
    let notes = Notes::default();
    let retired = Arc::new(Mutex::new(Vec::new()));
    let place = Arc::clone(&retired);
    let mut rig = Rig::new(1, 1, |builder| {
        builder.classifier(notes.program(1, 0)).on_retired(move |program| lock(&place).push(program))
    });
    rig.read(1, 0);
    rig.router.replace(notes.program(2, 0));
    assert!(lock(&retired).is_empty());
    rig.answer(1, 0, GOOD);
    assert_eq!((lock(&retired).len(), notes.gone().len()), (1, 0), "alive in other hands");
}

#[test]
fn a_program_that_lets_a_command_go_is_not_kept_for_it() {
    let retired = Arc::new(Mutex::new(0));
    let count = Arc::clone(&retired);
    let mut rig = Rig::new(1, 1, |builder| {
        builder.classifier(Box::new(Direct)).on_retired(move |_| *lock(&count) += 1)
    });
    rig.read(1, 0);
    rig.read(2, 8);
    rig.router.detach();
    assert_eq!(*lock(&retired), 1);
    rig.answer(2, 0, Status::WRITE_FAULT);
    rig.answer(1, 0, GOOD);
    assert_eq!((rig.status(1), rig.status(2)), (Some(GOOD), Some(Status::WRITE_FAULT)));
}

#[test]
fn a_program_with_too_many_errors_is_detached() {
    let mut rig = Rig::new(1, 1, |builder| {
        builder.classifier(Box::new(|_: &mut Context| Verdict(0))).errors_max(3).drive("vm1")
    });
    for cid in 1..=3 {
        assert!(rig.router.is_attached());
        rig.read(cid, 0);
        assert_eq!(rig.status(cid), Some(Status::INTERNAL_ERROR));
    }
    assert!(!rig.router.is_attached());
    rig.read(4, 0);
    rig.answer(4, 0, GOOD);
    assert_eq!(rig.status(4), Some(GOOD));
    assert_eq!((rig.router.counters().errors(), rig.router.counters().detached), (3, 1));
}

#[test]
fn errors_of_a_program_that_was_replaced_do_not_detach_the_next() {
    let notes = Notes::default();
    let wrong = |context: &mut Context| match context.facts().hook {
        0 => Verdict::send(leg(0)).and_call_before_completion(),
        _ => Verdict(0),
    };
    let mut rig = Rig::new(1, 1, |builder| builder.classifier(Box::new(wrong)).errors_max(1));
    rig.read(1, 0);
    rig.router.replace(notes.program(1, 0));
    rig.answer(1, 0, GOOD);
    assert_eq!(rig.status(1), Some(Status::INTERNAL_ERROR));
    assert!(rig.router.is_attached());
}
