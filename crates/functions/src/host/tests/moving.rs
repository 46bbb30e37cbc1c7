//! Functions that move, or go, while commands are in flight.

use super::*;
use sluice_memory::SharedRegion;
use sluice_uif::{Answer, Call, Function, Held, Interest, Io};

const PLACES: u64 = 16;
const LENGTH: usize = 4096;

/// Writes and reads back each place in turns, with several commands at a time, until `enough`.
fn is_read_back(rig: &mut Rig, enough: impl Fn() -> bool) {
    let mut places: Vec<(Option<u16>, u8)> = vec![(None, 0); PLACES as usize];
    let mut ending = false;
    loop {
        ending |= enough();
        for (number, (cid, step)) in (0..).zip(&mut places) {
            let is_write = *step % 2 == 0;
            if cid.is_none() && !(ending && is_write) {
                let operation = if is_write { Operation::Write } else { Operation::Read };
                *cid = Some(rig.submit(operation, number * LENGTH as u64, LENGTH as u64, &[*step; LENGTH]));
            }
        }
        rig.notify();
        rig.turn(500);
        while let Some((done, status)) = rig.finished() {
            assert_eq!(status, OK);
            let place = places.iter_mut().find(|(cid, _)| *cid == Some(done)).expect("once for each");
            if place.1 % 2 == 1 {
                assert!(rig.data(done, LENGTH) == [place.1 - 1; LENGTH], "command {done}");
            }
            *place = (None, (place.1 + 1) % 250);
        }
        if ending && places.iter().all(|(cid, _)| cid.is_none()) {
            break;
        }
    }
    assert_eq!(rig.in_flight(), 0);
}

/// Moves a function that has requests of its own, and holds commands until those are back.
#[test]
fn a_function_that_moves_finishes_what_it_has_and_the_next_gets_the_rest() {
    let (here, control) =
        PreparedUif::local(rig::config(OnDeath::Fail), Box::new(Twin::new())).expect("memory");
    let mut rig = Rig::over(here, &twin::SIZES, 500);
    std::thread::scope(|scope| {
        let moving = scope.spawn(|| {
            (0..100).for_each(|_| control.move_into_daemon(Box::new(Twin::new())).expect("it leaves"));
        });
        is_read_back(&mut rig, || moving.is_finished());
    });
    let counts = &rig.instance.counts;
    assert_eq!((counts.deaths.get(), counts.failed.get(), counts.invalid.get()), (100, 0, 0));
    assert_eq!(counts.sent.get(), counts.replies.get());
}

/// Unloads a function that the layer has taken and not yet sent START.
#[test]
fn one_that_is_to_leave_before_it_has_started_is_not_asked_to_start() {
    let (here, _control) =
        PreparedUif::local(rig::config(OnDeath::Fail), Box::new(Twin::new())).expect("memory");
    let mut rig = Rig::over(here, &twin::SIZES, 500);
    rig.instance.unload();
    rig.notify();
    assert!(rig.instance.is_empty());
    assert_eq!(rig.instance.counts.requests.get(), 0);
    let write = rig.submit(Operation::Write, 0, BLOCK, &[1; 512]);
    let memory = SharedRegion::new("arena", ARENA_BYTES).expect("memory");
    rig.instance.offer(rig.instance.number(), peer::Incoming::Local(Box::new(Twin::new()), memory));
    rig.instance.load();
    rig.notify();
    (0..4).for_each(|_| rig.turn(500));
    assert_eq!(rig.finished(), Some((write, OK)), "it waited for the next");
}

/// Moves a function into this process out of another, and back.
#[test]
fn it_goes_on_in_a_process_and_comes_back() {
    let mut rig = Rig::over(prepared_external(&Twin::new(), OnDeath::Fail), &twin::SIZES, 500);
    for number in 1..20 {
        let (link, mut other) = link_to(Box::new(Twin::new()), 2, 128, 256 << 10);
        if number % 2 == 0 {
            rig.instance.offer(number, link);
        } else {
            let memory = SharedRegion::new("arena", ARENA_BYTES).expect("memory");
            rig.instance.offer(number, peer::Incoming::Local(Box::new(Twin::new()), memory));
        }
        rig.instance.load();
        rig.notify();
        let mut commands = 20;
        while commands > 0 || rig.in_flight() > 0 {
            if commands > 0 {
                rig.submit(Operation::Write, 0, BLOCK, &[number as u8; 512]);
                commands -= 1;
            }
            if commands == 10 {
                rig.instance.unload();
            }
            rig.notify();
            other.serve(u16::MAX);
            rig.turn(500);
            if rig.instance.is_unloading() && rig.instance.is_quiesced() && commands == 0 {
                break;
            }
        }
        rig.instance.end(number);
        rig.notify();
        assert!(rig.instance.is_empty());
    }
    let counts = &rig.instance.counts;
    assert_eq!((counts.failed.get(), counts.stray.get()), (0, 0));
    assert!(std::iter::from_fn(|| rig.finished()).all(|(_, status)| status == OK));
}

/// Function that holds its commands for ever.
struct Keeps(Vec<Held>);

impl Function for Keeps {
    fn properties(&self) -> Properties {
        Properties::NONE.with(Operation::Write, Interest::Before)
    }

    fn submit(&mut self, call: &mut Call<'_>, _io: &mut Io<'_>) -> Answer {
        self.0.push(call.hold());
        Answer::Hold
    }
}

#[test]
fn a_function_here_that_does_not_finish_stays_when_the_operator_has_waited_long_enough() {
    let (here, _control) =
        PreparedUif::local(rig::config(OnDeath::Fail), Box::new(Keeps(vec![]))).expect("memory");
    let mut rig = Rig::new(here);
    rig.submit(Operation::Write, 0, BLOCK, &[1; 512]);
    rig.instance.unload();
    rig.notify();
    rig.submit(Operation::Write, BLOCK, BLOCK, &[1; 512]);
    assert_eq!(rig.instance.counts.sent.get(), 1, "the second waits");
    assert!(rig.instance.decide() && !rig.instance.is_empty());
    rig.instance.load();
    rig.notify();
    assert_eq!((rig.instance.counts.sent.get(), rig.instance.counts.deaths.get()), (2, 0), "all goes on");
}
