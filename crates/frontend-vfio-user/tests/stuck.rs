//! Clients that send descriptors whose close does not end.
//!
//! Such a descriptor needs no special file system. A TCP socket that lingers, over a peer that does not read,
//! blocks its last close for as long as its owner likes.

mod rig;

use rig::driver::DATA;
use rig::{Drive, Peer, Rig, eventually};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{set_socket_linger, set_socket_recv_buffer_size, set_socket_send_buffer_size};
use sluice_reactor::{Local, ReactorHandle};
use sluice_vfio_user::{Command, Errno, Header};
use std::io::{ErrorKind, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::channel;
use std::time::Duration;

/// Time longer than any test runs.
const HOURS: Duration = Duration::from_secs(5 * 3600);

/// Source of stuck descriptors. Their close ends when it is dropped.
struct Tar {
    listener: TcpListener,
    peers: Vec<TcpStream>,
}

impl Tar {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        set_socket_recv_buffer_size(&listener, 4096).expect("a small buffer");
        Self { listener, peers: Vec::new() }
    }

    /// Returns a socket whose last close blocks.
    fn stuck(&mut self) -> OwnedFd {
        let mut socket =
            TcpStream::connect(self.listener.local_addr().expect("an address")).expect("connected");
        self.peers.push(self.listener.accept().expect("it waits").0);
        set_socket_send_buffer_size(&socket, 4096).expect("a small buffer");
        set_socket_linger(&socket, Some(HOURS)).expect("it lingers");
        socket.set_nonblocking(true).expect("a flag");
        loop {
            match socket.write(&[0; 4096]) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return socket.into(),
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Sends `count` stuck descriptors with a message that has no use for them, and keeps none. The reactor
    /// has to be paused: otherwise the last close could be that of the test.
    fn send(&mut self, client: &mut Peer, count: usize) {
        let fds: Vec<OwnedFd> = (0..count).map(|_| self.stuck()).collect();
        let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        client.send(Command(999), &[], &fds);
    }

    /// Sends a stuck descriptor with an answer to no request.
    fn answer(&mut self, client: &mut Peer) {
        let fd = self.stuck();
        let header = Header::command(1, Command::DMA_READ).reply();
        client.connection.send(header, &[0; 16], &[], &[fd.as_fd()]).expect("sent");
    }

    /// Connects, and sends `count` stuck descriptors before the server can reject the client.
    fn client(&mut self, rig: &Rig, count: usize) -> Peer {
        while_paused(&rig.reactor, || {
            let mut client = rig.drive.connect();
            self.send(&mut client, count);
            client
        })
    }
}

/// Runs a closure while a reactor is paused.
fn while_paused<R>(reactor: &ReactorHandle, run: impl FnOnce() -> R) -> R {
    let ((go_on, wait), (say, paused)) = (channel::<()>(), channel());
    let pause = move |_: &mut Local| {
        let _ = say.send(());
        let _ = wait.recv();
    };
    reactor.mail(pause).expect("room in the mailbox");
    paused.recv().expect("the reactor runs");
    let result = run();
    drop(go_on);
    result
}

/// Checks that the server closes a descriptor of no use, by the other end of a pipe.
fn closes(drive: &Drive) {
    let mut guest = drive.guest();
    let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
    let sent = guest.send(Command(999), &[], &[writer.as_fd()]);
    drop(writer);
    guest.reply_to(sent).map(|_| ()).expect_err("there is no such command");
    let limit = Timespec { tv_sec: 60, tv_nsec: 0 };
    assert_eq!(poll(&mut [PollFd::new(&reader, PollFlags::IN)], Some(&limit)), Ok(1), "never closed");
    assert_eq!(rustix::io::read(&reader, &mut [0; 1][..]), Ok(0));
}

#[test]
fn one_that_is_stuck_costs_no_other_drive_anything() {
    let (rig, mut tar) = (Rig::new(), Tar::new());
    let neighbour = rig.neighbour();
    let mut guest = rig.drive.guest();
    while_paused(&rig.reactor, || tar.send(&mut guest, 1));
    eventually("it is stuck", || rig.drive.status().unclosed == 1);
    closes(&neighbour);
    eventually("it is counted as closed", || neighbour.status().unclosed == 0);
}

#[test]
fn neither_does_one_that_comes_with_an_answer() {
    let (rig, mut tar) = (Rig::new(), Tar::new());
    let neighbour = rig.neighbour();
    let mut stranger = rig.drive.connect();
    while_paused(&rig.reactor, || tar.answer(&mut stranger));
    eventually("it is stuck", || rig.drive.status().unclosed == 1);
    stranger.assert_disconnected();
    closes(&neighbour);
}

#[test]
fn clients_that_come_later_leave_nothing_behind() {
    let (rig, mut tar) = (Rig::new(), Tar::new());
    let mut guest = rig.drive.guest();
    while_paused(&rig.reactor, || tar.send(&mut guest, 1));
    eventually("it is stuck", || rig.drive.status().unclosed == 1);
    drop(guest);
    for _ in 0..200 {
        rig.drive.guest().ping();
        // A second client is rejected.
        let _first = rig.drive.guest();
        let mut second = rig.drive.connect();
        assert_eq!(second.call(Command::VERSION, &[0; 4]), Err(Errno::BUSY));
        second.assert_disconnected();
    }
    assert_eq!(rig.drive.status().unclosed, 1);
    drop(tar);
    eventually("it came loose", || rig.drive.status().unclosed == 0);
}

#[test]
fn hundreds_stay_a_bounded_number() {
    let (rig, mut tar) = (Rig::new(), Tar::new());
    let neighbour = rig.neighbour();
    while rig.drive.status().counters.turned_away < 5 {
        tar.client(&rig, 16).assert_disconnected();
        assert!(tar.peers.len() < 1000, "no end to it");
    }
    // Clients without descriptors are rejected and leave nothing unclosed.
    let unclosed = rig.drive.status().unclosed;
    assert!((128..256).contains(&unclosed), "{unclosed}");
    for _ in 0..100 {
        rig.drive.connect().assert_disconnected();
    }
    assert_eq!(rig.drive.status().unclosed, unclosed);
    assert!(closers() <= 8, "{} threads", closers());
    closes(&neighbour);
    drop(tar);
    eventually("all came loose", || rig.drive.status().unclosed == 0);
    rig.drive.guest().ping();
}

#[test]
fn at_some_point_nobody_is_looked_at() {
    let (rig, mut tar) = (Rig::new(), Tar::new());
    let neighbour = rig.neighbour();
    while rig.drive.status().unclosed < 256 {
        tar.client(&rig, 16).assert_disconnected();
        assert!(tar.peers.len() < 1000, "no end to it");
    }
    let unclosed = rig.drive.status().unclosed;
    let mut patient = tar.client(&rig, 16);
    closes(&neighbour);
    assert_eq!(rig.drive.status().unclosed, unclosed);
    drop(tar);
    patient.assert_disconnected();
    eventually("all came loose", || rig.drive.status().unclosed == 0);
    rig.drive.guest().ping();
}

#[test]
fn what_waits_at_a_door_that_closes_is_closed_elsewhere() {
    let (rig, mut tar) = (Rig::new(), Tar::new());
    let neighbour = rig.neighbour();
    let mut first = rig.drive.guest();
    rig.drive.hold_read(&mut first, DATA);
    drop(first);
    eventually("it is gone", || !rig.drive.status().connected);
    // The first client's commands are still in flight, so the second client has to wait.
    let mut second = tar.client(&rig, 3);
    rig.drive.on_endpoint(|endpoint, now_ns| endpoint.drain(now_ns));
    second.assert_disconnected();
    closes(&neighbour);
    assert_eq!(rig.drive.status().unclosed, 4, "three, and the connection that they came with");
    rig.drive.remove();
    closes(&neighbour);
}

#[test]
fn a_drive_that_is_removed_leaves_its_thread_to_its_fate() {
    let (rig, mut tar) = (Rig::new(), Tar::new());
    let neighbour = rig.neighbour();
    let mut guest = rig.drive.guest();
    while_paused(&rig.reactor, || tar.send(&mut guest, 16));
    rig.drive.remove();
    guest.assert_disconnected();
    closes(&neighbour);
}

/// Counts the threads of this process for deferred closes.
fn closers() -> usize {
    let threads = std::fs::read_dir("/proc/self/task").expect("there are threads");
    let names =
        threads.flatten().filter_map(|thread| std::fs::read_to_string(thread.path().join("comm")).ok());
    names.filter(|name| name.trim() == "sluice-closer").count()
}
