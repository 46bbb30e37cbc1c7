//! Messages about interrupts, and their effects on vectors and on the pin.

use super::*;
use rustix::event::{EventfdFlags, eventfd};
use sluice_reactor::{Arm, ReactorConfig, ReactorHandle, Task};
use zerocopy::IntoBytes;

fn parse(flags: u32, index: u32, start: u32, count: u32, rest: &[u8]) -> Result<Range<usize>, Errno> {
    let set = IrqSet { argsz: IrqSet::SIZE as u32, flags, index, start, count };
    let payload = [set.as_bytes(), rest].concat();
    Request::parse(&payload, 129).map(|request| request.range)
}

const NONE: u32 = IrqSet::DATA_NONE;
const BOOL: u32 = IrqSet::DATA_BOOL;
const EVENTFD: u32 = IrqSet::DATA_EVENTFD;
const TRIGGER: u32 = IrqSet::ACTION_TRIGGER;
const MASK: u32 = IrqSet::ACTION_MASK;

#[test]
fn ranges_lie_inside() {
    assert_eq!(parse(EVENTFD | TRIGGER, index::MSIX, 128, 1, &[]), Ok(128..129));
    assert_eq!(parse(EVENTFD | TRIGGER, index::MSIX, 0, 129, &[]), Ok(0..129));
    assert_eq!(parse(NONE | MASK, index::INTX, 0, 1, &[]), Ok(0..1));
    for (start, count) in [(129, 1), (0, 130), (128, 2), (1, u32::MAX), (u32::MAX, 1), (u32::MAX, u32::MAX)] {
        assert_eq!(parse(EVENTFD | TRIGGER, index::MSIX, start, count, &[]), Err(Errno::INVAL));
    }
    for index in [index::MSI, index::ERROR, index::REQUEST, 5, u32::MAX] {
        assert_eq!(parse(EVENTFD | TRIGGER, index, 0, 1, &[]), Err(Errno::INVAL));
        assert_eq!(parse(NONE | TRIGGER, index, 0, 0, &[]), Err(Errno::INVAL));
    }
}

#[test]
fn zero_interrupts_mean_all_of_them_only_to_turn_them_off() {
    assert_eq!(parse(NONE | TRIGGER, index::MSIX, 0, 0, &[]), Ok(0..0));
    assert_eq!(parse(NONE | TRIGGER, index::MSIX, 1, 0, &[]), Err(Errno::INVAL));
    for flags in [EVENTFD | TRIGGER, BOOL | TRIGGER, NONE | MASK] {
        assert_eq!(parse(flags, index::INTX, 0, 0, &[]), Err(Errno::INVAL));
    }
}

#[test]
fn one_action_on_one_kind_of_data() {
    for flags in [0, NONE, TRIGGER, NONE | BOOL | TRIGGER, NONE | TRIGGER | MASK, NONE | TRIGGER | 1 << 6] {
        assert_eq!(parse(flags, index::INTX, 0, 1, &[]), Err(Errno::INVAL), "{flags:#x}");
    }
    assert_eq!(parse(BOOL | TRIGGER, index::MSIX, 0, 3, &[1, 0]), Err(Errno::INVAL));
    assert_eq!(parse(BOOL | TRIGGER, index::MSIX, 0, 3, &[1, 0, 1]), Ok(0..3));
}

#[test]
fn a_message_that_is_too_short() {
    let set = IrqSet { argsz: 20, flags: NONE | TRIGGER, index: index::MSIX, start: 0, count: 1 };
    assert!(Request::parse(&set.as_bytes()[..19], 129).is_err());
    let lying = IrqSet { argsz: 19, ..set };
    assert!(Request::parse(lying.as_bytes(), 129).is_err());
}

/// Task without work, whose ring the interrupts use.
struct Nothing;

impl Task for Nothing {
    fn turn(&mut self, _: u64) -> usize {
        0
    }

    fn event(&mut self, _: u64, _: i32, _: bool, _: u64) {}

    fn arm(&mut self, _: u64) -> Arm {
        Arm::Asleep { until: None }
    }
}

/// Runs steps with interrupts of so many vectors, in one turn of a reactor.
fn with_interrupts<R: Send + 'static>(
    vectors: u16,
    run: impl FnOnce(&mut Interrupts, &dyn Fn(u16) -> Interrupts) -> R + Send + 'static,
) -> R {
    let reactor = ReactorHandle::start(ReactorConfig::default()).expect("a reactor");
    let result = reactor.call(move |local| {
        let mut found = None;
        let task = local.add(|task, io| {
            found = Some((task, io));
            Box::new(Nothing)
        });
        let (id, io) = found.expect("it was added");
        let new = |vectors| Interrupts::new(io.clone(), id, 2, vectors);
        let result = run(&mut new(vectors), &new);
        drop(local.remove(task));
        result
    });
    reactor.stop();
    result.expect("the reactor runs")
}

fn eventfds(count: usize) -> Vec<OwnedFd> {
    (0..count)
        .map(|_| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd"))
        .collect()
}

/// Executes a message with these descriptors.
fn set(
    interrupts: &mut Interrupts,
    flags: u32,
    (index, start, count): (u32, u32, u32),
    rest: &[u8],
    mut fds: Vec<OwnedFd>,
) -> Result<(), Errno> {
    let set = IrqSet { argsz: IrqSet::SIZE as u32, flags, index, start, count };
    let result = interrupts.set(&[set.as_bytes(), rest].concat(), &mut fds);
    assert!(fds.is_empty() || result.is_err(), "a message that succeeds takes its descriptors");
    result
}

fn pending(interrupts: &Interrupts, offset: usize, length: usize) -> Vec<u8> {
    let mut bytes = vec![0xff; length];
    interrupts.read_pending(offset, &mut bytes);
    bytes
}

const UNMASK: u32 = IrqSet::ACTION_UNMASK;

/// Conformance: PCIe 3.5, a vector that cannot be signalled is pending until it can be.
#[test]
fn a_vector_is_pending_until_it_has_an_eventfd() {
    with_interrupts(20, |interrupts, _| {
        for vector in [0, 9, 10, 19, 20, u16::MAX] {
            interrupts.signal(vector, true);
        }
        interrupts.signal(3, false);
        assert_eq!(pending(interrupts, 0, 4), [1, 6, 8, 0]);
        assert_eq!((pending(interrupts, 1, 2), pending(interrupts, 2, 1)), (vec![6, 8], vec![8]));
        assert_eq!(pending(interrupts, 4094, 2), [0, 0]);
        assert_eq!((interrupts.take_signalled(), interrupts.are_sent(), interrupts.vectors()), (0, true, 20));
        // Vectors 8 to 10 get an eventfd. Two of them are signalled now, and no longer pending.
        assert_eq!(set(interrupts, EVENTFD | TRIGGER, (index::MSIX, 8, 3), &[], eventfds(3)), Ok(()));
        assert_eq!(pending(interrupts, 0, 3), [1, 0, 8]);
        assert_eq!((interrupts.take_signalled(), interrupts.take_signalled()), (2, 0));
        interrupts.sent(9);
        assert!(!interrupts.are_sent());
        interrupts.sent(10);
        assert!(interrupts.are_sent());
        interrupts.signal(8, true);
        assert_eq!((interrupts.take_signalled(), pending(interrupts, 1, 1)), (1, vec![0]));
        assert_eq!([7, 8, 20].map(|vector| interrupts.eventfd(vector).is_some()), [false, true, false]);
        // An eventfd that is taken away has no signal on its way.
        assert_eq!(set(interrupts, EVENTFD | TRIGGER, (index::MSIX, 8, 1), &[], Vec::new()), Ok(()));
        assert!(interrupts.are_sent() && interrupts.eventfd(8).is_none() && interrupts.eventfd(9).is_some());
        interrupts.reset();
        assert_eq!(pending(interrupts, 0, 3), [0; 3]);
        assert!(interrupts.eventfd(9).is_some(), "a reset leaves the eventfds");
        assert_eq!(set(interrupts, NONE | TRIGGER, (index::MSIX, 0, 0), &[], Vec::new()), Ok(()));
        assert!((0..20).all(|vector| interrupts.eventfd(vector).is_none()));
    });
}

#[test]
fn a_client_triggers_the_vectors_that_it_selects() {
    with_interrupts(8, |interrupts, _| {
        assert_eq!(set(interrupts, EVENTFD | TRIGGER, (index::MSIX, 0, 8), &[], eventfds(8)), Ok(()));
        assert_eq!(set(interrupts, NONE | TRIGGER, (index::MSIX, 2, 3), &[], Vec::new()), Ok(()));
        assert_eq!(interrupts.take_signalled(), 3);
        assert_eq!(set(interrupts, BOOL | TRIGGER, (index::MSIX, 4, 4), &[0, 1, 0, 2], Vec::new()), Ok(()));
        assert_eq!(interrupts.take_signalled(), 2);
        let sending: Vec<bool> = interrupts.msix.iter().map(|vector| vector.sending).collect();
        assert_eq!(sending, [false, false, true, true, true, true, false, true]);
        for (flags, range) in [
            (EVENTFD | MASK, (index::MSIX, 0, 1)),
            (NONE | MASK, (index::MSIX, 0, 1)),
            (NONE | UNMASK, (index::MSIX, 0, 1)),
            (EVENTFD | MASK, (index::INTX, 0, 1)),
        ] {
            assert_eq!(set(interrupts, flags, range, &[], Vec::new()), Err(Errno::INVAL), "{flags:#x}");
        }
        for count in [1, 3, 9] {
            let fds = eventfds(count);
            assert_eq!(set(interrupts, EVENTFD | TRIGGER, (index::MSIX, 0, 2), &[], fds), Err(Errno::INVAL));
        }
        let mut fds = eventfds(1);
        fds.push(rustix::pipe::pipe().expect("a pipe").0);
        assert_eq!(set(interrupts, EVENTFD | TRIGGER, (index::MSIX, 0, 2), &[], fds), Err(Errno::INVAL));
    });
}

/// Conformance: PCIe 3.5, the pin is a level: an event masks it, and another follows when it is unmasked.
#[test]
fn the_pin_is_signalled_once_until_it_is_unmasked() {
    with_interrupts(1, |interrupts, _| {
        interrupts.set_intx(true);
        assert!(!interrupts.has_intx() && interrupts.take_signalled() == 0);
        assert_eq!(set(interrupts, EVENTFD | TRIGGER, (index::INTX, 0, 1), &[], eventfds(1)), Ok(()));
        assert!(interrupts.has_intx());
        interrupts.set_intx(false);
        assert_eq!((interrupts.take_signalled(), interrupts.are_sent()), (0, true));
        interrupts.set_intx(true);
        interrupts.set_intx(true);
        assert_eq!((interrupts.take_signalled(), interrupts.are_sent()), (1, false));
        interrupts.sent(INTX);
        assert!(interrupts.are_sent());
        // A byte of zero selects nothing.
        assert_eq!(set(interrupts, BOOL | UNMASK, (index::INTX, 0, 1), &[0], Vec::new()), Ok(()));
        interrupts.set_intx(true);
        assert_eq!(interrupts.take_signalled(), 0);
        for (flags, rest, signalled) in [
            (BOOL | UNMASK, &[1][..], 1),
            (NONE | UNMASK, &[], 1),
            (NONE | MASK, &[], 0),
            (BOOL | MASK, &[1], 0),
        ] {
            assert_eq!(set(interrupts, flags, (index::INTX, 0, 1), rest, Vec::new()), Ok(()));
            interrupts.set_intx(true);
            assert_eq!(interrupts.take_signalled(), signalled, "{flags:#x}");
        }
        interrupts.reset();
        assert_eq!(set(interrupts, NONE | TRIGGER, (index::INTX, 0, 1), &[], Vec::new()), Ok(()));
        assert_eq!(interrupts.take_signalled(), 1, "a reset unmasks it, and the client triggers it");
        assert_eq!(set(interrupts, NONE | TRIGGER, (index::INTX, 0, 0), &[], Vec::new()), Ok(()));
        assert!(!interrupts.has_intx() && interrupts.are_sent());
    });
}

/// Checks the eventfd that unmasks the pin: its signals count, and those of a former one do not.
#[test]
fn the_pin_is_unmasked_by_its_present_eventfd() {
    with_interrupts(1, |interrupts, _| {
        let signal = |fd: &OwnedFd| rustix::io::write(fd, &1u64.to_ne_bytes()).expect("room");
        assert_eq!(set(interrupts, EVENTFD | TRIGGER, (index::INTX, 0, 1), &[], eventfds(1)), Ok(()));
        let mut unmask = eventfds(2);
        let copies: Vec<OwnedFd> = unmask.iter().map(|fd| fd.try_clone().expect("a copy")).collect();
        for (number, fd) in unmask.drain(..).enumerate() {
            assert_eq!(set(interrupts, EVENTFD | UNMASK, (index::INTX, 0, 1), &[], vec![fd]), Ok(()));
            assert_eq!(interrupts.epochs, number as u32 + 1);
        }
        interrupts.set_intx(true);
        interrupts.unmask_event(2);
        assert!(interrupts.intx.masked, "an event without a signal");
        signal(&copies[0]);
        signal(&copies[1]);
        interrupts.unmask_event(1);
        assert!(interrupts.intx.masked, "an event of the former eventfd");
        interrupts.unmask_event(2);
        assert!(!interrupts.intx.masked);
        interrupts.set_intx(true);
        // A new eventfd of the pin leaves the one that unmasks it.
        assert_eq!(set(interrupts, EVENTFD | TRIGGER, (index::INTX, 0, 1), &[], eventfds(1)), Ok(()));
        assert!(!interrupts.intx.masked && interrupts.intx.unmask.is_some());
        assert_eq!(set(interrupts, EVENTFD | UNMASK, (index::INTX, 0, 1), &[], Vec::new()), Ok(()));
        assert!(interrupts.intx.unmask.is_none());
    });
}

/// Checks that another process continues with the same vectors and the same pin.
#[test]
fn interrupts_come_back_from_a_record() {
    with_interrupts(5, |interrupts, new| {
        assert_eq!(set(interrupts, EVENTFD | TRIGGER, (index::MSIX, 1, 2), &[], eventfds(2)), Ok(()));
        interrupts.signal(4, true);
        assert_eq!(set(interrupts, EVENTFD | TRIGGER, (index::INTX, 0, 1), &[], eventfds(1)), Ok(()));
        assert_eq!(set(interrupts, EVENTFD | UNMASK, (index::INTX, 0, 1), &[], eventfds(1)), Ok(()));
        interrupts.set_intx(true);
        let (mut part, mut outgoing) = (Writer::new(0), Outgoing::default());
        interrupts.put(&mut part, &mut outgoing);
        let (bytes, incoming) = (part.finish(), Incoming(outgoing.finish().expect("copies")));
        assert_eq!(incoming.0.len(), 4);
        let mut next = new(5);
        next.take(&mut Reader::new(&bytes, 0), &incoming).expect("it fits");
        let has: Vec<bool> = (0..5).map(|vector| next.eventfd(vector).is_some()).collect();
        assert_eq!((has, pending(&next, 0, 1)), (vec![false, true, true, false, false], vec![16]));
        assert!(next.has_intx() && next.intx.masked && next.intx.unmask.is_some() && next.epochs == 1);
        assert_eq!((next.take_signalled(), next.are_sent()), (0, true));
        // A function with more vectors has room, and one with fewer has not.
        assert!(new(6).take(&mut Reader::new(&bytes, 0), &incoming).is_ok());
        assert!(new(4).take(&mut Reader::new(&bytes, 0), &incoming).is_err());
    });
}
