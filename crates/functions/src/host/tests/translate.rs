//! Translations that functions send to a classifier.

use super::*;
use sluice_uif::Translation;
use sluice_uif::abi::{Reply, Submission, disposition, translation};
use std::sync::Mutex;
use std::sync::atomic::AtomicU32;

/// Updates that were applied, none for a removal of everything; and how often it is busy before that.
#[derive(Clone, Debug, Default)]
struct Notes {
    noted: Arc<Mutex<Vec<Option<Translation>>>>,
    busy: Arc<AtomicU32>,
}

impl Notes {
    fn note(&self, news: Option<Translation>) -> bool {
        let free = self.busy.load(Relaxed) == 0;
        match free {
            true => self.noted.lock().expect("no panic").push(news),
            false => drop(self.busy.fetch_sub(1, Relaxed)),
        }
        free
    }

    fn taken(&self) -> Vec<Option<Translation>> {
        std::mem::take(&mut *self.noted.lock().expect("no panic"))
    }
}

impl Translations for Notes {
    fn note(&mut self, news: &Translation) -> bool {
        Notes::note(self, Some(*news))
    }

    fn forget_all(&mut self) -> bool {
        Notes::note(self, None)
    }

    fn places(&self, news: &Translation) -> u64 {
        if let Translation::Forget { length, .. } = news { *length } else { 1 }
    }
}

fn connected() -> (Rig, Other, Notes) {
    let (mut rig, notes) = (Rig::new(prepared_external(&Xor, OnDeath::Park)), Notes::default());
    rig.instance.set_translations(Some(Box::new(notes.clone())));
    let (link, mut other) = link_to(Box::new(Xor), 2, 128, 256 << 10);
    rig.instance.offer(1, link);
    rig.notify();
    other.serve(u16::MAX);
    rig.turn(0);
    // Once when the cache came, and once more when the function began.
    assert_eq!(notes.taken(), [None, None]);
    (rig, other, notes)
}

fn forget(from: u64) -> Reply {
    let (disposition, operation) = (disposition::TRANSLATE, translation::FORGET);
    Reply { disposition, operation, offset: from, length: 512, ..Reply::default() }
}

const fn forgotten(from: u64) -> Option<Translation> {
    Some(Translation::Forget { from, length: 512 })
}

#[test]
fn news_are_noted_in_their_order_and_nonsense_is_counted() {
    let (mut rig, mut other, notes) = connected();
    let insert = Reply { operation: translation::INSERT, cookie: [4096, 3], ..forget(7) };
    for reply in [
        insert,
        forget(8),
        Reply { operation: translation::PROTECT, ..forget(9) },
        Reply { operation: 3, ..forget(1) },
    ] {
        other.replies.push(&reply);
    }
    let _ = other.replies.publish();
    rig.turn(0);
    let insert = Translation::Insert { from: 7, length: 512, to: 4096, writable: true };
    let protect = Translation::Protect { from: 9, length: 512 };
    assert_eq!(notes.taken(), [Some(insert), forgotten(8), Some(protect)]);
    assert_eq!(rig.instance.counts.invalid.get(), 1);
}

#[test]
fn nothing_is_heard_before_what_was_said_before_it_is_noted() {
    let (mut rig, mut other, notes) = connected();
    rig.submit(Operation::Flush, 0, 0, &[]);
    let entry: Submission = other.requests.take();
    notes.busy.store(1000, Relaxed);
    other.replies.push(&forget(1));
    other.replies.push(&forget(2));
    other.replies.push(&Reply { tag: entry.tag, ..Reply::default() });
    let _ = other.replies.publish();
    for _ in 0..3 {
        rig.turn(0);
        assert!(rig.stack.arm(), "no sleep before it is noted");
        rig.stack.disarm();
        assert_eq!((rig.finished(), notes.taken()), (None, vec![]));
    }
    notes.busy.store(0, Relaxed);
    rig.turn(0);
    assert_eq!((rig.finished(), notes.taken()), (Some((0, OK)), vec![forgotten(1), forgotten(2)]));
}

#[test]
fn the_next_function_begins_with_nothing() {
    let (mut rig, _gone, notes) = connected();
    rig.instance.end(1);
    rig.notify();
    notes.busy.store(2, Relaxed);
    let (link, mut next) = link_to(Box::new(Xor), 2, 128, 256 << 10);
    rig.instance.offer(2, link);
    rig.notify();
    next.serve(u16::MAX);
    rig.submit(Operation::Flush, 0, 0, &[]);
    for _ in 0..4 {
        rig.turn(0);
        next.serve(u16::MAX);
    }
    rig.turn(0);
    assert_eq!((rig.finished(), notes.taken()), (Some((0, OK)), vec![None]));
}

/// Checks that a drive with a large cache goes on while a function removes much of it.
#[test]
fn what_takes_long_is_noted_over_several_looks() {
    let (mut rig, mut other, notes) = connected();
    (0..20).for_each(|from| other.replies.push(&forget(from)));
    let _ = other.replies.publish();
    let mut noted = vec![];
    for so_many in [8, 8, 4] {
        rig.turn(0);
        let now = notes.taken();
        assert_eq!(now.len(), so_many);
        noted.extend(now);
        assert_eq!(rig.stack.arm(), noted.len() < 20, "no sleep before it is noted");
        rig.stack.disarm();
    }
    assert!(noted.into_iter().eq((0..20).map(forgotten)));
}

/// Function that removes twenty places for every flush.
struct Forgetful;

impl sluice_uif::Function for Forgetful {
    fn properties(&self) -> Properties {
        Properties::NONE.with(Operation::Flush, sluice_uif::Interest::Before)
    }

    fn submit(&mut self, _: &mut sluice_uif::Call<'_>, io: &mut sluice_uif::Io<'_>) -> sluice_uif::Answer {
        (0..20).for_each(|from| io.translate(Translation::Forget { from, length: 512 }));
        sluice_uif::Answer::Finish(OK)
    }

    fn control(&mut self, text: &str, io: &mut sluice_uif::Io<'_>) -> sluice_uif::Control {
        (0..20).for_each(|from| io.translate(Translation::Forget { from, length: 512 }));
        sluice_uif::Control::Now(Ok(text.to_owned()))
    }
}

#[test]
fn a_function_here_is_heard_over_several_looks_too() {
    let (here, _control) =
        PreparedUif::local(rig::config(OnDeath::Park), Box::new(Forgetful)).expect("memory");
    let (mut rig, notes) = (Rig::new(here), Notes::default());
    rig.turn(0);
    rig.instance.set_translations(Some(Box::new(notes.clone())));
    rig.notify();
    assert_eq!(notes.taken(), [None]);
    rig.submit(Operation::Flush, 0, 0, &[]);
    for so_many in [8, 16] {
        assert_eq!((notes.noted.lock().expect("no panic").len(), rig.finished()), (so_many, None));
        assert!(rig.stack.arm(), "no sleep before it is heard");
        rig.stack.disarm();
        rig.turn(0);
    }
    assert!(notes.taken().into_iter().eq((0..20).map(forgotten)));
    assert_eq!((rig.finished(), rig.stack.arm()), (Some((0, OK)), false));
}

#[test]
fn an_order_of_a_function_here_is_answered_after_its_translations() {
    let (here, control) =
        PreparedUif::local(rig::config(OnDeath::Park), Box::new(Forgetful)).expect("memory");
    let (mut rig, notes) = (Rig::new(here), Notes::default());
    rig.turn(0);
    rig.instance.set_translations(Some(Box::new(notes.clone())));
    rig.notify();
    assert_eq!(notes.taken(), [None]);
    let answer = control.start_query("forget");
    rig.notify();
    for so_many in [8, 16] {
        let noted = notes.noted.lock().expect("no panic").len();
        assert_eq!((noted, answer.wait(Instant::now())), (so_many, None));
        rig.turn(0);
    }
    assert!(notes.taken().into_iter().eq((0..20).map(forgotten)));
    assert_eq!(answer.wait(Instant::now()), Some(Ok("forget".to_owned())));
}
