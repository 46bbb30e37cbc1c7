//! Polls and file operations.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::event::EventfdFlags;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use sluice_memory::{Segment, SharedRegion};
use sluice_reactor::{FallocateFlags, FileSlot, PollFlags, ReactorConfig, ReactorHandle, WriteFlags};

use crate::probe::{ASLEEP, Probe, add, asleep, eventually, new_eventfd, reactor, with};

fn memfd() -> (File, OwnedFd) {
    let file = memfd_create("test", MemfdFlags::CLOEXEC).expect("a memfd");
    let ours = file.try_clone().expect("a second descriptor");
    (ours.into(), file)
}

/// Keeps a value for the life of the task; returns its position.
fn keep<T: Send + 'static>(probe: &mut Probe, thing: T) -> usize {
    probe.holds.push(Box::new(thing));
    probe.holds.len() - 1
}

fn kept<T: 'static>(probe: &Probe, position: usize) -> &T {
    probe.holds[position].downcast_ref().expect("what was kept there")
}

#[test]
fn a_socket_is_polled_until_cancelled() {
    let reactor = reactor();
    let (id, memory) = add(&reactor, ASLEEP);
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK, None).expect("a pair");
    with(&reactor, id, move |probe| probe.io.poll(theirs.as_fd(), PollFlags::IN, probe.id, 9));
    for n in 1..=5 {
        asleep(&reactor);
        rustix::io::write(&ours, b"x").expect("a byte goes out");
        eventually("the poll fires", || memory.count(9) == n);
    }
    assert!(memory.events.lock().expect("not poisoned").iter().all(|event| event.2), "the poll goes on");
    with(&reactor, id, |probe| probe.io.cancel(probe.id, 9));
    eventually("the poll ends", || memory.events.lock().expect("not poisoned").last().is_some_and(|e| !e.2));
    assert_eq!(with(&reactor, id, |probe| probe.io.in_flight(probe.id)), 0);
    reactor.stop();
}

#[test]
fn a_peer_that_goes_away_is_noticed() {
    let reactor = reactor();
    let (id, memory) = add(&reactor, ASLEEP);
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::empty(), None).expect("a pair");
    with(&reactor, id, move |probe| {
        probe.io.poll(theirs.as_fd(), PollFlags::IN, probe.id, 1);
        keep(probe, theirs);
    });
    drop(ours);
    eventually("the hang-up arrives", || {
        memory.event(1).is_some_and(|events| events & i32::from(PollFlags::HUP.bits()) != 0)
    });
    reactor.stop();
}

#[test]
fn what_is_written_through_the_ring_is_in_the_file_and_comes_back() {
    let reactor = reactor();
    let (id, memory) = add(&reactor, ASLEEP);
    let (file, registered) = memfd();
    let hold = with(&reactor, id, move |probe| {
        let slot = probe.io.register_file(registered).expect("room");
        let region = SharedRegion::new("data", 16_384).expect("memory");
        region.write(0, &[1; 4096]);
        region.write(4096, &[2; 4096]);
        let flags = WriteFlags { dsync: true };
        probe.io.write(&slot, &[region.segment(0, 4096)], 0, flags, probe.id, 1);
        let both = [region.segment(4096, 4096), region.segment(0, 512)];
        probe.io.write(&slot, &both, 8192, WriteFlags::default(), probe.id, 2);
        keep(probe, slot);
        keep(probe, region)
    });
    eventually("both writes are done", || memory.event(1).is_some() && memory.event(2).is_some());
    assert_eq!((memory.event(1), memory.event(2)), (Some(4096), Some(4608)));
    let mut bytes = [0; 8192 + 4608];
    file.read_exact_at(&mut bytes, 0).expect("that much was written");
    assert!(bytes[..4096].iter().all(|&b| b == 1) && bytes[4096..8192].iter().all(|&b| b == 0));
    assert!(bytes[8192..12_288].iter().all(|&b| b == 2) && bytes[12_288..].iter().all(|&b| b == 1));
    with(&reactor, id, move |probe| {
        let (slot, region) = (kept::<FileSlot>(probe, hold - 1), kept::<SharedRegion>(probe, hold));
        let both = [region.segment(8192, 512), region.segment(12_288, 4096)];
        probe.io.read(slot, &both, 8192, probe.id, 3);
        probe.io.read(slot, &[region.segment(0, 4096)], 12_288, probe.id, 4);
    });
    eventually("both reads are done", || memory.event(3).is_some() && memory.event(4).is_some());
    // The file ends inside the second range: fewer bytes than requested.
    assert_eq!((memory.event(3), memory.event(4)), (Some(4608), Some(512)));
    let read = with(&reactor, id, move |probe| {
        let mut bytes = [0; 4608];
        let region = kept::<SharedRegion>(probe, hold);
        region.read(8192, &mut bytes[..512]);
        region.read(12_288, &mut bytes[512..]);
        bytes
    });
    assert_eq!(read[..], bytes[8192..]);
    reactor.stop();
}

#[test]
fn sync_and_fallocate_reach_the_file() {
    let reactor = reactor();
    let (id, memory) = add(&reactor, ASLEEP);
    let (file, registered) = memfd();
    file.write_all_at(&[7; 8192], 0).expect("room");
    with(&reactor, id, move |probe| {
        let slot = probe.io.register_file(registered).expect("room");
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        probe.io.fallocate(&slot, mode, 4096, 4096, probe.id, 1);
        probe.io.fdatasync(&slot, probe.id, 2);
        // The slot is dropped while both operations wait to be submitted: they use the file nevertheless.
    });
    eventually("both are done", || memory.event(1).is_some() && memory.event(2).is_some());
    assert_eq!((memory.event(1), memory.event(2)), (Some(0), Some(0)));
    let mut bytes = [1; 8192];
    file.read_exact_at(&mut bytes, 0).expect("the size is kept");
    assert!(bytes[..4096].iter().all(|&b| b == 7) && bytes[4096..].iter().all(|&b| b == 0));
    reactor.stop();
}

#[test]
fn far_more_operations_than_the_rings_hold_all_complete() {
    let config = ReactorConfig { ring_entries: 4, ..ReactorConfig::default() };
    let reactor = ReactorHandle::start(config).expect("io_uring works here");
    let (id, memory) = add(&reactor, ASLEEP);
    let (file, registered) = memfd();
    file.write_all_at(&[5; 4096], 0).expect("room");
    with(&reactor, id, move |probe| {
        let slot = probe.io.register_file(registered).expect("room");
        let region = SharedRegion::new("data", 4096).expect("memory");
        let pieces: Vec<Segment> = (0..100).map(|n| region.segment(n * 40, 40)).collect();
        for token in 0..1000 {
            probe.io.read(&slot, &pieces, 0, probe.id, token);
        }
        keep(probe, slot);
        keep(probe, region);
    });
    eventually("all reads are done", || memory.events.lock().expect("not poisoned").len() == 1000);
    assert!((0..1000).all(|token| memory.event(token) == Some(4000)));
    assert_eq!(with(&reactor, id, |probe| probe.io.in_flight(probe.id)), 0);
    reactor.stop();
}

#[test]
fn many_polls_firing_at_once_survive_a_full_completion_ring() {
    let config = ReactorConfig { ring_entries: 4, ..ReactorConfig::default() };
    let reactor = ReactorHandle::start(config).expect("io_uring works here");
    let (id, memory) = add(&reactor, ASLEEP);
    let eventfds: Vec<OwnedFd> = (0..200).map(|_| new_eventfd(EventfdFlags::NONBLOCK)).collect();
    let copies: Vec<OwnedFd> =
        eventfds.iter().map(|eventfd| eventfd.try_clone().expect("a descriptor")).collect();
    with(&reactor, id, move |probe| {
        for (token, eventfd) in (0u64..).zip(&copies) {
            probe.io.poll(eventfd.as_fd(), PollFlags::IN, probe.id, token);
        }
    });
    asleep(&reactor);
    for eventfd in &eventfds {
        rustix::io::write(eventfd, &1u64.to_ne_bytes()).expect("not full");
    }
    eventually("every poll fired", || (0..200).all(|token| memory.event(token).is_some()));
    reactor.stop();
}

#[test]
fn the_file_table_has_a_limit_and_gives_slots_back() {
    let config = ReactorConfig { max_files: 2, ..ReactorConfig::default() };
    let reactor = ReactorHandle::start(config).expect("io_uring works here");
    let (id, _) = add(&reactor, ASLEEP);
    let fill = |probe: &mut Probe| {
        let slots: Vec<_> = (0..3).map(|_| probe.io.register_file(memfd().1)).collect();
        slots.iter().map(|slot| slot.as_ref().err().and_then(|e| e.raw_os_error())).collect::<Vec<_>>()
    };
    for _ in 0..10 {
        assert_eq!(with(&reactor, id, fill), [None, None, Some(libc::ENFILE)]);
    }
    reactor.stop();
}
