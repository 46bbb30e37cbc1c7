//! Hand-over of an endpoint with its client to another reactor, as to another process: by records and
//! descriptors alone.

mod rig;

use rig::driver::{DATA, Driver};
use rig::{Peer, Rig, eventually, start_reactor};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use sluice_frontend_vfio_user::{DoorbellPolicy, IncomingSocket};
use sluice_memory::SharedRegion;
use sluice_nvme::SubmissionEntry;
use sluice_nvme::opcode::admin;
use sluice_reactor::{Arm, Task};
use sluice_vfio_user::dma::DmaMap;
use sluice_vfio_user::irq::{IrqSet, index};
use sluice_vfio_user::{Command, Header};
use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use zerocopy::IntoBytes;

/// Takes the signals of an eventfd. Returns whether there was one.
fn is_signalled(eventfd: &OwnedFd) -> bool {
    rustix::io::read(eventfd, 0u64.as_mut_bytes()).is_ok()
}

fn new_eventfd() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd")
}

/// Makes twenty hand-overs in a row, with commands, interrupts and a request for events in between.
#[test]
fn a_client_notices_nothing() {
    for policy in [DoorbellPolicy::Trapped, DoorbellPolicy::Mapped] {
        let mut rig = Rig::with_doorbells(policy);
        let other = start_reactor();
        let mut guest = rig.drive.guest();
        guest.region_info(0, 4096);
        let mut driver = Driver::start(&mut guest, &[1, 2]);
        let eventfd = new_eventfd();
        let flags = IrqSet::DATA_EVENTFD | IrqSet::ACTION_TRIGGER;
        guest.set_irqs(flags, index::MSIX, 2..3, &[eventfd.as_fd()]).expect("wired");
        let request = SubmissionEntry { opcode: admin::ASYNC_EVENT_REQUEST, cid: 77, ..Default::default() };
        driver.submit(&mut guest, 0, request);
        guest.write(7, 0x4, &[6, 4]).expect("the command register");
        for round in 0..20 {
            let reactor = if round % 2 == 0 { &other } else { &rig.reactor };
            let records = rig.drive.hand_over();
            driver.submit_read(&mut guest, 2, DATA);
            rig.drive.take_over(reactor, records);
            assert!(driver.wait(&mut guest, 2).status().is_success());
            driver.acknowledge(&mut guest, 2);
            eventually("the interrupt arrives", || is_signalled(&eventfd));
            driver.complete(&mut guest, &[1, 0, 1]);
            assert_eq!(guest.read(7, 0x4, 2), Ok(vec![6, 4]));
        }
        guest.post_write(0, 0x1000 + 8 * 77, &[1, 0, 0, 0]);
        let event = driver.wait(&mut guest, 0);
        assert_eq!((event.cid, event.dw0), (77, 1 << 16));
        assert_eq!(rig.drive.status().counters.clients, 1);
        assert!(rig.drive.connect().connection.socket().peer_addr().is_ok(), "the socket still listens");
        other.stop();
    }
}

/// Checks that a message that has arrived in part, with its descriptor, is continued.
#[test]
fn half_a_message_is_kept() {
    let mut rig = Rig::new();
    let other = start_reactor();
    let mut guest = rig.drive.guest();
    let memory = SharedRegion::new("guest", 4096).expect("memory");
    let map = DmaMap { argsz: 32, flags: 3, offset: 0, address: 1 << 32, size: 4096 };
    let header = Header { size: 48, ..Header::command(99, Command::DMA_MAP) };
    let message = [header.as_bytes(), map.as_bytes()].concat();
    send_with(&guest, &message[..20], &memory);
    let taken = |rig: &Rig| rig.drive.status().counters.messages;
    let before = taken(&rig);
    let records = rig.drive.hand_over();
    rig.drive.take_over(&other, records);
    let mut socket = guest.connection.socket();
    socket.write_all(&message[20..]).expect("sent");
    assert!(guest.reply_to(99).is_ok());
    assert_eq!((taken(&rig), rig.drive.status().regions), (before + 1, 1));
    guest.unmap(1 << 32, 4096).expect("it was mapped");
    other.stop();
}

fn send_with(guest: &Peer, bytes: &[u8], memory: &SharedRegion) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds = [memory.fd()];
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
    let sent = sendmsg(guest, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::empty());
    assert_eq!(sent, Ok(bytes.len()));
}

/// Checks that messages and commands of the meantime are handled when a hand-over is called off.
#[test]
fn an_endpoint_goes_on_after_a_hand_over_that_failed() {
    let rig = Rig::new();
    let mut guest = rig.drive.guest();
    let mut driver = Driver::start(&mut guest, &[1]);
    for _ in 0..5 {
        let (_, mut socket) = rig.drive.hand_over();
        driver.submit_read(&mut guest, 1, DATA);
        socket.bytes.truncate(socket.bytes.len() / 2);
        IncomingSocket::read(socket).expect_err("half a record");
        assert!(guest.is_waiting());
        rig.drive.go_on();
        assert!(driver.wait(&mut guest, 1).status().is_success());
        driver.acknowledge(&mut guest, 1);
    }
    drop(rig.drive.connect());
}

/// Checks the timers of a suspended endpoint: they wake no thread, and are due after the suspension.
#[test]
fn timers_wait_until_a_suspended_endpoint_goes_on() {
    let rig = Rig::new();
    let mut guest = rig.drive.guest();
    let mut driver = Driver::start(&mut guest, &[1]);
    drop(rig.drive.hand_over());
    let armed = rig.drive.on_endpoint(|endpoint, now_ns| {
        endpoint.device_mut().subsystem.hold(now_ns);
        [endpoint.arm(now_ns), endpoint.arm(now_ns + 1_000_000_000)]
    });
    assert_eq!(armed, [Arm::Asleep { until: None }; 2]);
    driver.submit_read(&mut guest, 1, DATA);
    rig.drive.go_on();
    assert!(driver.wait(&mut guest, 1).status().is_success(), "the hold has ended");
}

/// Hands a socket without a client over. A client that connects meanwhile is served by the successor.
#[test]
fn a_client_that_comes_meanwhile_is_served() {
    let mut rig = Rig::new();
    let other = start_reactor();
    let records = rig.drive.hand_over();
    let mut guest = rig.drive.connect();
    rig.drive.take_over(&other, records);
    guest.negotiate(b"{}\0");
    drop(guest);
    eventually("the client is gone", || !rig.drive.status().connected);
    rig.drive.guest().ping();
    other.stop();
}

/// Checks that a successor that fails halfway leaves the sockets of its predecessor as they were.
#[test]
fn a_successor_that_fails_shuts_nothing_down() {
    let rig = Rig::new();
    let mut guest = rig.drive.guest();
    let mut driver = Driver::start(&mut guest, &[1]);
    let (_, mut socket) = rig.drive.hand_over();
    // The first tag of the controller's record, behind the listener, two headers, a descriptor and a length.
    let listener = u32::from_le_bytes(socket.bytes[4..8].try_into().expect("four bytes")) as usize;
    socket.bytes[8 + listener + 8 + 8] = 0xff;
    let error = rig.drive.fail_to_take_over(socket);
    assert!(error.contains("part 0xff"), "{error}");
    rig.drive.go_on();
    driver.complete(&mut guest, &[1]);
    drop(guest);
    eventually("the client is gone", || !rig.drive.status().connected);
    rig.drive.guest().ping();
}
