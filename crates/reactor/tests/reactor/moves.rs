//! Tasks that move from one reactor to another while operations of theirs are in flight.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use rustix::event::EventfdFlags;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::pipe::{PipeFlags, pipe_with};
use sluice_memory::SharedRegion;
use sluice_reactor::{
    FileSlot, INTERRUPTED, Immovable, Local, PollFlags, ReactorHandle, TaskHandle, WriteFlags,
};

use crate::probe::{ASLEEP, Memory, Probe, add, asleep, eventually, new_eventfd, pair, reactor};

const LIMIT: Duration = Duration::from_secs(10);

/// Two reactors, and a probe on the first.
struct Two {
    first: ReactorHandle,
    second: ReactorHandle,
    probe: TaskHandle,
    memory: std::sync::Arc<Memory>,
}

impl Two {
    fn new() -> Self {
        let (first, second) = (reactor(), reactor());
        let (id, memory) = add(&first, ASLEEP);
        let probe = TaskHandle::new(first.clone(), id);
        Self { first, second, probe, memory }
    }

    fn with<R: Send + 'static>(&self, f: impl FnOnce(&mut Probe) -> R + Send + 'static) -> R {
        let id = self.probe.id();
        let run = move |local: &mut Local| f(local.task_mut::<Probe>(id).expect("the probe is there"));
        self.probe.call(run).expect("an answer")
    }

    /// Has the probe watch an eventfd, with 5 as its token.
    fn watch_eventfd(&self) -> OwnedFd {
        let eventfd = new_eventfd(EventfdFlags::NONBLOCK);
        let ours = eventfd.try_clone().expect("a descriptor");
        self.with(move |probe| {
            let slot = probe.io.register_file(eventfd).expect("room");
            probe.io.watch(&slot, probe.id, 5);
            probe.holds.push(Box::new(slot));
        });
        ours
    }

    fn there(&self) {
        assert_eq!(self.probe.move_to(&self.second, LIMIT), Ok(()));
        assert!(self.probe.reactor().is(&self.second));
    }

    fn back(&self) {
        assert_eq!(self.probe.move_to(&self.first, LIMIT), Ok(()));
    }

    fn stop(self) {
        let Self { first, second, probe, .. } = self;
        drop(probe);
        first.stop();
        second.stop();
    }
}

#[test]
fn a_task_is_polled_where_it_is_and_nowhere_else() {
    let two = Two::new();
    two.there();
    asleep(&two.second);
    let turns = two.memory.turns.load(SeqCst);
    let id = two.probe.id();
    let is_there = move |local: &mut Local| local.task::<Probe>(id).is_some();
    assert_eq!((two.first.call(is_there), two.second.call(is_there)), (Ok(false), Ok(true)));
    two.first.call(move |local| local.wake(id)).expect("an answer");
    asleep(&two.first);
    assert_eq!(two.memory.turns.load(SeqCst), turns, "its number means nothing where it was");
    two.second.call(move |local| local.wake(id)).expect("an answer");
    eventually("it is polled", || two.memory.turns.load(SeqCst) > turns);
    two.back();
    assert_eq!((two.first.call(is_there), two.second.call(is_there)), (Ok(true), Ok(false)));
    let memory = std::sync::Arc::clone(&two.memory);
    two.stop();
    assert_eq!(memory.dropped.load(SeqCst), 1);
}

#[test]
fn a_poll_ends_with_a_move_as_if_there_were_something() {
    let two = Two::new();
    let eventfd = new_eventfd(EventfdFlags::NONBLOCK);
    let theirs = eventfd.try_clone().expect("a descriptor");
    two.with(move |probe| probe.io.poll(theirs.as_fd(), PollFlags::IN, probe.id, 7));
    two.there();
    let events = two.memory.events.lock().expect("not poisoned").clone();
    assert_eq!(events, [(7, 1, false)], "whoever wants it asks again");
    two.with(move |probe| {
        assert_eq!(probe.io.in_flight(probe.id), 0);
        probe.io.poll(eventfd.as_fd(), PollFlags::IN, probe.id, 8);
        rustix::io::write(&eventfd, &1u64.to_ne_bytes()).expect("room");
    });
    eventually("it is polled there", || two.memory.event(8).is_some());
    two.stop();
}

#[test]
fn a_poll_that_its_task_has_ended_stays_ended() {
    let two = Two::new();
    let eventfd = new_eventfd(EventfdFlags::NONBLOCK);
    let handle = two.probe.clone();
    let (id, to) = (two.probe.id(), two.second.clone());
    // In one closure, so that the end is on its way when the move begins.
    two.with(move |probe| {
        probe.io.poll(eventfd.as_fd(), PollFlags::IN, probe.id, 7);
        probe.io.cancel(probe.id, 7);
    });
    assert_eq!(handle.move_to(&to, LIMIT), Ok(()));
    assert_eq!(two.memory.event(7), Some(-rustix::io::Errno::CANCELED.raw_os_error()));
    assert_eq!(id, handle.id());
    two.stop();
}

#[test]
fn a_watch_goes_on_where_its_task_is() {
    let two = Two::new();
    let eventfd = two.watch_eventfd();
    for round in 0..20 {
        let before = two.memory.count(5);
        if round % 2 == 0 {
            two.there()
        } else {
            two.back()
        }
        assert!(two.memory.count(5) > before, "it looks once, whatever happened meanwhile");
        let before = two.memory.count(5);
        rustix::io::write(&eventfd, &1u64.to_ne_bytes()).expect("room");
        eventually("the watch goes on", || two.memory.count(5) > before);
    }
    assert!(two.memory.events.lock().expect("not poisoned").iter().all(|event| event.1 > 0 && event.2));
    two.with(|probe| probe.holds.clear());
    two.there();
    assert_eq!(two.with(|probe| probe.io.in_flight(probe.id)), 0);
    two.stop();
}

#[test]
fn a_receive_is_interrupted_and_no_byte_is_lost() {
    let two = Two::new();
    let (ours, theirs) = pair();
    two.with(move |probe| {
        let slot = probe.io.register_file(theirs).expect("room");
        let region = SharedRegion::new("data", 4096).expect("memory");
        probe.io.receive(&slot, &[region.segment(0, 4096)], true, probe.id, 1);
        probe.holds.push(Box::new(slot));
        probe.holds.push(Box::new(region));
    });
    two.there();
    assert_eq!(two.memory.event(1), Some(INTERRUPTED));
    rustix::io::write(&ours, b"came meanwhile").expect("room");
    two.with(|probe| {
        let slot: &FileSlot = probe.holds[0].downcast_ref().expect("the socket");
        let region: &SharedRegion = probe.holds[1].downcast_ref().expect("memory");
        probe.io.receive(slot, &[region.segment(0, 4096)], true, probe.id, 2);
    });
    eventually("it comes there", || two.memory.event(2) == Some(14));
    let received = two.with(|probe| {
        let mut bytes = [0; 14];
        probe.holds[1].downcast_ref::<SharedRegion>().expect("memory").read(0, &mut bytes);
        bytes
    });
    assert_eq!(&received, b"came meanwhile");
    two.stop();
}

#[test]
fn a_send_without_room_has_sent_nothing() {
    let two = Two::new();
    let (ours, theirs) = pair();
    // The socket is full: the next send waits for its reader.
    let full = [0; 4096];
    let fill = || rustix::net::send(&theirs, &full, rustix::net::SendFlags::DONTWAIT);
    let mut filled = 0;
    while let Ok(bytes) = fill() {
        filled += bytes;
    }
    two.with(move |probe| {
        let slot = probe.io.register_file(theirs).expect("room");
        let region = SharedRegion::new("data", 4096).expect("memory");
        region.write(0, &[9; 4096]);
        probe.io.send(&slot, &[region.segment(0, 4096)], probe.id, 1);
        probe.holds.push(Box::new((slot, region)));
    });
    two.there();
    assert_eq!(two.memory.event(1), Some(0));
    two.with(|probe| probe.holds.clear());
    let mut reader = File::from(ours);
    let mut all = Vec::new();
    std::io::Read::read_to_end(&mut reader, &mut all).expect("until its end");
    assert_eq!((all.len(), all.contains(&9)), (filled, false));
    two.stop();
}

#[test]
fn files_are_used_where_their_task_is() {
    let two = Two::new();
    // The tables of the reactors differ.
    let other = add(&two.second, ASLEEP).0;
    crate::probe::with(&two.second, other, |probe| {
        for _ in 0..3 {
            let slot = probe.io.register_file(new_eventfd(EventfdFlags::NONBLOCK)).expect("room");
            probe.holds.push(Box::new(slot));
        }
    });
    let memfd = memfd_create("test", MemfdFlags::CLOEXEC).expect("a memfd");
    let file: File = memfd.try_clone().expect("a second descriptor").into();
    two.with(move |probe| {
        let slot = probe.io.register_file(memfd).expect("room");
        let region = SharedRegion::new("data", 4096).expect("memory");
        region.write(0, &[7; 4096]);
        probe.holds.push(Box::new(slot));
        probe.holds.push(Box::new(region));
    });
    for round in 0..20u64 {
        two.with(move |probe| {
            let slot: &FileSlot = probe.holds[0].downcast_ref().expect("the file");
            let region: &SharedRegion = probe.holds[1].downcast_ref().expect("memory");
            let flags = WriteFlags::default();
            probe.io.write(slot, &[region.segment(0, 4096)], round * 4096, flags, probe.id, round);
        });
        if round % 2 == 0 {
            two.there()
        } else {
            two.back()
        }
        assert_eq!(two.memory.event(round), Some(4096), "what is under way is waited for");
    }
    let mut bytes = vec![0; 20 * 4096];
    file.read_exact_at(&mut bytes, 0).expect("that much was written");
    assert!(bytes.iter().all(|byte| *byte == 7));
    two.stop();
}

#[test]
fn signals_are_neither_lost_nor_stuck_in_a_full_eventfd() {
    let two = Two::new();
    // Blocking and full: the signal waits until it is read.
    let theirs = new_eventfd(EventfdFlags::empty());
    let ours = theirs.try_clone().expect("a descriptor");
    rustix::io::write(&ours, &(u64::MAX - 1).to_ne_bytes()).expect("room for that");
    two.with(move |probe| {
        let slot = probe.io.register_file(theirs).expect("room");
        probe.io.signal(&slot, probe.id, 3);
        probe.io.signal(&slot, probe.id, 3);
        probe.holds.push(Box::new(slot));
    });
    asleep(&two.first);
    two.there();
    two.back();
    two.there();
    assert_eq!(two.memory.event(3), None, "it is on its way still");
    let mut count = [0; 8];
    rustix::io::read(&ours, &mut count).expect("it is full");
    eventually("the signal is there", || two.memory.event(3).is_some());
    rustix::io::read(&ours, &mut count).expect("a signal");
    assert!((1..=2).contains(&u64::from_ne_bytes(count)));
    two.stop();
}

#[test]
fn a_task_whose_reads_do_not_end_stays_and_goes_on() {
    let two = Two::new();
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
    let eventfd = new_eventfd(EventfdFlags::NONBLOCK);
    two.with(move |probe| {
        let slot = probe.io.register_file(reader).expect("room");
        let eventfd = probe.io.register_file(eventfd).expect("room");
        let region = SharedRegion::new("data", 4096).expect("memory");
        probe.io.read(&slot, &[region.segment(0, 4096)], 0, probe.id, 1);
        probe.io.watch(&eventfd, probe.id, 2);
        probe.holds.push(Box::new((slot, eventfd, region)));
    });
    let limit = Duration::from_millis(50);
    assert_eq!(two.probe.move_to(&two.second, limit), Err(Immovable::Busy(limit)));
    assert!(two.probe.reactor().is(&two.first));
    assert_eq!(two.with(|probe| probe.io.in_flight(probe.id)), 2, "the read, and the watch again");
    rustix::io::write(&writer, b"late").expect("the read waits");
    eventually("the read ends", || two.memory.event(1) == Some(4));
    two.there();
    two.stop();
}

#[test]
fn mail_finds_a_task_wherever_it_goes() {
    const MAILS: u64 = 3_000;
    let two = Two::new();
    let (handle, memory) = (two.probe.clone(), std::sync::Arc::clone(&two.memory));
    let sender = std::thread::spawn(move || {
        let id = handle.id();
        for n in 0..MAILS {
            let seen = std::sync::Arc::clone(&memory);
            let run = move |local: &mut Local| {
                assert!(local.task::<Probe>(id).is_some(), "it is where its mail is read");
                seen.events.lock().expect("not poisoned").push((n, 0, false));
            };
            handle.call(run).expect("an answer");
        }
    });
    let mut moves = 0;
    while !sender.is_finished() {
        two.there();
        two.back();
        moves += 2;
    }
    sender.join().expect("all were read");
    assert!(moves > 0);
    let events = two.memory.events.lock().expect("not poisoned").clone();
    assert!(events.iter().map(|event| event.0).eq(0..MAILS));
    two.stop();
}

#[test]
fn a_task_does_not_go_to_a_reactor_that_has_ended() {
    let two = Two::new();
    let second = two.second.clone();
    two.second.clone().stop();
    assert_eq!(two.probe.move_to(&second, LIMIT), Err(Immovable::Gone));
    assert_eq!(two.with(|probe| probe.io.in_flight(probe.id)), 0);
    assert!(two.probe.reactor().is(&two.first));
    two.stop();
}

#[test]
fn a_task_that_is_gone_does_not_move() {
    let two = Two::new();
    let id = two.probe.id();
    assert_eq!(two.probe.call(move |local| local.remove(id).is_some()), Ok(true));
    assert_eq!(two.probe.move_to(&two.second, LIMIT), Err(Immovable::Gone));
    two.stop();
}

/// Starts a reactor that has room for a few files only.
fn small(files: u32) -> ReactorHandle {
    let config = sluice_reactor::ReactorConfig { max_files: files, ..Default::default() };
    ReactorHandle::start(config).expect("io_uring works here")
}

#[test]
fn many_files_move_together_and_all_or_none_of_them() {
    const FILES: u64 = 300;
    let two = Two::new();
    let eventfds: Vec<OwnedFd> = (0..FILES).map(|_| new_eventfd(EventfdFlags::NONBLOCK)).collect();
    let theirs: Vec<_> = eventfds.iter().map(|eventfd| eventfd.try_clone().expect("a descriptor")).collect();
    // The free indices of the other reactor have gaps between them.
    let other = add(&two.second, ASLEEP).0;
    crate::probe::with(&two.second, other, |probe| {
        let register = |_| probe.io.register_file(new_eventfd(EventfdFlags::NONBLOCK)).expect("room");
        let mut slots: Vec<Option<FileSlot>> = (0..40).map(register).map(Some).collect();
        slots.iter_mut().step_by(3).for_each(|slot| drop(slot.take()));
        probe.holds.push(Box::new(slots));
    });
    two.with(|probe| {
        for (token, eventfd) in (1000..).zip(theirs) {
            let slot = probe.io.register_file(eventfd).expect("room");
            probe.io.watch(&slot, probe.id, token);
            probe.holds.push(Box::new(slot));
        }
    });
    let narrow = small(FILES as u32 - 1);
    for round in 0..6 {
        match round % 3 {
            0 => two.there(),
            1 => two.back(),
            _ => match two.probe.move_to(&narrow, LIMIT) {
                Err(Immovable::NoRoom(why)) => assert!(!why.is_empty()),
                other => panic!("{other:?}"),
            },
        }
        let before: Vec<usize> = (0..FILES).map(|n| two.memory.count(1000 + n)).collect();
        for eventfd in &eventfds {
            rustix::io::write(eventfd, &1u64.to_ne_bytes()).expect("room");
        }
        for (n, before) in (0..).zip(before) {
            eventually("its own watch", || two.memory.count(1000 + n) > before);
        }
    }
    // The index that was refused to the task is free for others.
    let third = add(&narrow, ASLEEP).0;
    crate::probe::with(&narrow, third, |probe| {
        for _ in 1..FILES {
            let slot = probe.io.register_file(new_eventfd(EventfdFlags::NONBLOCK)).expect("room for all");
            probe.holds.push(Box::new(slot));
        }
    });
    two.stop();
    narrow.stop();
}

#[test]
fn a_file_that_is_dropped_elsewhere_gives_its_place_back() {
    let reactor = small(4);
    let (id, _) = add(&reactor, ASLEEP);
    for _ in 0..20 {
        // All indices are taken, and the files are dropped where they cannot be unregistered.
        let slots = crate::probe::with(&reactor, id, |probe| {
            let register = |_| probe.io.register_file(new_eventfd(EventfdFlags::NONBLOCK));
            (0..4).map(register).collect::<Result<Vec<_>, _>>()
        });
        drop(slots.expect("the places of those before"));
    }
    reactor.stop();
}

#[test]
fn a_task_whose_new_reactor_ends_before_it_gets_there_goes_home() {
    for home_ends in [false, true] {
        let two = Two::new();
        let eventfd = two.watch_eventfd();
        // The other reactor runs a long mail, and ends after it.
        let (began, is_in_mail) = std::sync::mpsc::channel();
        let (go_on, waits) = std::sync::mpsc::channel::<()>();
        let (probe, second, itself) = (two.probe.clone(), two.second.clone(), two.second.clone());
        two.second
            .mail(move |_| {
                began.send(()).expect("somebody listens");
                waits.recv().expect("somebody tells");
                itself.stop();
            })
            .expect("room");
        is_in_mail.recv().expect("it runs");
        let to = second.clone();
        let moving = std::thread::spawn(move || probe.move_to(&to, LIMIT));
        eventually("it is on its way", || two.probe.reactor().is(&second));
        if home_ends {
            two.first.clone().stop();
        }
        go_on.send(()).expect("it waits");
        assert_eq!(moving.join().expect("an answer"), Err(Immovable::Gone));
        if home_ends {
            assert_eq!(two.memory.dropped.load(SeqCst), 1, "it is gone, and its number free");
        } else {
            assert!(two.probe.reactor().is(&two.first));
            let before = two.memory.count(5);
            rustix::io::write(&eventfd, &1u64.to_ne_bytes()).expect("room");
            eventually("its watch goes on", || two.memory.count(5) > before);
        }
        two.stop();
    }
}

#[test]
fn what_waits_for_a_task_that_does_not_get_away_is_bounded() {
    let two = Two::new();
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
    two.with(move |probe| {
        let slot = probe.io.register_file(reader).expect("room");
        let region = SharedRegion::new("data", 4096).expect("memory");
        probe.io.read(&slot, &[region.segment(0, 4096)], 0, probe.id, 1);
        probe.holds.push(Box::new((slot, region)));
    });
    let (probe, second) = (two.probe.clone(), two.second.clone());
    let moving = std::thread::spawn(move || probe.move_to(&second, LIMIT));
    let id = two.probe.id();
    eventually("it is not polled any more", || {
        two.first.call(move |local| local.task::<Probe>(id).is_none()) == Ok(true)
    });
    let read = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let mail = || {
        let read = std::sync::Arc::clone(&read);
        two.probe.mail(move |_| {
            read.fetch_add(1, SeqCst);
        })
    };
    // Each of them has been read where the task is not, before the next.
    let mut taken = 0;
    while mail().is_ok() {
        taken += 1;
        two.first.call(|_| ()).expect("an answer");
        assert!(taken < 100_000, "there is a limit");
    }
    assert_eq!(read.load(SeqCst), 0);
    rustix::io::write(&writer, b"at last").expect("the read waits");
    assert_eq!(moving.join().expect("an answer"), Ok(()));
    eventually("all are read", || read.load(SeqCst) == taken);
    assert!(mail().is_ok(), "there is room again");
    two.stop();
}
