//! A connection against a peer that writes anything at any time.

use rustix::io::{FdFlags, fcntl_getfd};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use sluice_vfio_user::{
    Command, Connection, Error, Header, MAX_MESSAGE_FDS, MAX_MESSAGE_SIZE, MAX_UNSENT, MAX_UNSENT_FDS,
    Message,
};
use std::fs::File;
use std::io::{IoSlice, Read, Seek, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use zerocopy::IntoBytes;

fn pair() -> (Connection, UnixStream) {
    let (ours, peer) = UnixStream::pair().expect("a socket pair");
    (Connection::new(ours), peer)
}

fn message(id: u16, payload: &[u8]) -> Vec<u8> {
    let size = (Header::SIZE + payload.len()) as u32;
    let header = Header { size, ..Header::command(id, Command::REGION_WRITE) };
    [header.as_bytes(), payload].concat()
}

/// Returns a file that is identified by its contents.
fn marked(mark: u8) -> OwnedFd {
    let mut file =
        File::from(rustix::fs::memfd_create("mark", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd"));
    file.write_all(&[mark]).expect("one byte");
    file.into()
}

fn mark_of(fd: &OwnedFd) -> u8 {
    let mut file = File::from(fd.try_clone().expect("a copy"));
    file.rewind().expect("seekable");
    let mut mark = [0];
    file.read_exact(&mut mark).expect("one byte");
    mark[0]
}

fn send_with_fds(peer: &UnixStream, bytes: &[u8], fds: &[OwnedFd]) {
    let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
    let sent = sendmsg(peer, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::empty()).expect("sent");
    assert_eq!(sent, bytes.len());
}

fn next(connection: &mut Connection) -> Message<'_> {
    connection.receive().expect("a healthy connection").expect("a message")
}

fn nothing(connection: &mut Connection) {
    assert!(connection.receive().expect("a healthy connection").is_none());
}

#[test]
fn byte_by_byte() {
    let (mut connection, mut peer) = pair();
    let bytes = message(3, b"payload");
    for byte in &bytes[..bytes.len() - 1] {
        peer.write_all(&[*byte]).expect("written");
        nothing(&mut connection);
    }
    peer.write_all(&bytes[bytes.len() - 1..]).expect("written");
    let message = next(&mut connection);
    assert_eq!((message.header.id, message.payload), (3, &b"payload"[..]));
    nothing(&mut connection);
}

#[test]
fn many_in_one_write() {
    let (mut connection, mut peer) = pair();
    let bytes: Vec<u8> = (0..1000).flat_map(|id| message(id, &[id as u8; 7])).collect();
    peer.write_all(&bytes).expect("written");
    for id in 0..1000 {
        let message = next(&mut connection);
        assert_eq!((message.header.id, message.payload), (id, &[id as u8; 7][..]));
    }
    nothing(&mut connection);
}

#[test]
fn the_longest_message() {
    let (mut connection, mut peer) = pair();
    let payload: Vec<u8> = (0..MAX_MESSAGE_SIZE - Header::SIZE).map(|i| i as u8).collect();
    let bytes = [message(1, &payload), message(2, b"after")].concat();
    let writer = std::thread::spawn(move || peer.write_all(&bytes).map(|()| peer));
    let mut seen = Vec::new();
    while seen.len() < 2 {
        if let Some(message) = connection.receive().expect("a healthy connection") {
            seen.push(message.payload.to_vec());
        }
    }
    assert_eq!(seen, [payload, b"after".to_vec()]);
    writer.join().expect("joined").expect("written");
}

#[test]
fn fds_stay_with_their_message() {
    let (mut connection, mut peer) = pair();
    peer.write_all(&message(1, b"none")).expect("written");
    send_with_fds(&peer, &message(2, b"two"), &[marked(20), marked(21)]);
    peer.write_all(&message(3, b"none")).expect("written");
    send_with_fds(&peer, &message(4, b"one"), &[marked(40)]);
    for (id, marks) in [(1, &[][..]), (2, &[20, 21]), (3, &[]), (4, &[40])] {
        let message = next(&mut connection);
        assert_eq!(message.header.id, id);
        assert_eq!(message.fds.iter().map(mark_of).collect::<Vec<_>>(), marks);
        for fd in &message.fds {
            assert!(fcntl_getfd(fd).expect("open").contains(FdFlags::CLOEXEC));
        }
    }
}

#[test]
fn fds_may_come_with_any_part_of_a_message() {
    let (mut connection, mut peer) = pair();
    let bytes = message(1, b"payload");
    send_with_fds(&peer, &bytes[..5], &[marked(1)]);
    peer.write_all(&bytes[5..16]).expect("written");
    nothing(&mut connection);
    send_with_fds(&peer, &bytes[16..], &[marked(2)]);
    send_with_fds(&peer, &message(2, b""), &[marked(3)]);
    assert_eq!(next(&mut connection).fds.iter().map(mark_of).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(next(&mut connection).fds.iter().map(mark_of).collect::<Vec<_>>(), [3]);
}

#[test]
fn fds_beyond_the_limit_end_the_connection() {
    let (mut connection, peer) = pair();
    let fds: Vec<OwnedFd> = (0..MAX_MESSAGE_FDS as u8).map(marked).collect();
    send_with_fds(&peer, &message(1, b""), &fds);
    assert_eq!(next(&mut connection).fds.len(), MAX_MESSAGE_FDS);
    let fds: Vec<OwnedFd> = (0..=MAX_MESSAGE_FDS as u8).map(marked).collect();
    send_with_fds(&peer, &message(2, b""), &fds);
    assert_eq!(connection.receive().expect_err("too many"), Error::TooManyFds);
}

#[test]
fn fds_cannot_be_collected_with_a_message_in_crumbs() {
    let (mut connection, peer) = pair();
    let bytes = message(1, &[0; 64]);
    let result = bytes.iter().try_for_each(|byte| {
        send_with_fds(&peer, &[*byte], &[marked(1)]);
        connection.receive().map(|message| assert!(message.is_none()))
    });
    assert_eq!(result.expect_err("too many"), Error::TooManyFds);
}

#[test]
fn impossible_sizes() {
    for size in [0, 15, MAX_MESSAGE_SIZE as u32 + 1, u32::MAX] {
        let (mut connection, mut peer) = pair();
        let header = Header { size, ..Header::command(1, Command::VERSION) };
        peer.write_all(header.as_bytes()).expect("written");
        assert_eq!(connection.receive().expect_err("impossible"), Error::MessageSize(size));
    }
}

#[test]
fn the_end_of_the_stream() {
    let (mut connection, mut peer) = pair();
    peer.write_all(&message(1, b"last")).expect("written");
    drop(peer);
    assert_eq!(next(&mut connection).payload, b"last");
    assert_eq!(connection.receive().expect_err("closed"), Error::Closed);
    assert_eq!(
        connection.send(Header::command(1, Command::DMA_READ), &[], &[], &[]).expect_err("closed"),
        Error::Closed
    );

    let (mut connection, mut peer) = pair();
    peer.write_all(&message(1, b"half")[..18]).expect("written");
    drop(peer);
    assert_eq!(connection.receive().expect_err("closed"), Error::ClosedInsideMessage);
}

#[test]
fn replies() {
    let (server, client) = UnixStream::pair().expect("a socket pair");
    let (mut server, mut client) = (Connection::new(server), Connection::new(client));
    let command = Header::command(9, Command::REGION_READ);
    server.reply(&command, b"head", b"data").expect("sent");
    server.reply(&command.without_reply(), b"head", b"data").expect("left out");
    server.reply_error(&command.without_reply(), rustix::io::Errno::INVAL).expect("left out");
    server.reply_error(&command, rustix::io::Errno::INVAL).expect("sent");
    let message = next(&mut client);
    assert_eq!((message.header.id, message.payload), (9, &b"headdata"[..]));
    assert!(message.header.is_reply() && message.header.failure().is_none());
    assert_eq!(next(&mut client).header.failure(), Some(rustix::io::Errno::INVAL));
    nothing(&mut client);
}

/// Sends numbered messages, every fiftieth with a file descriptor, until the socket is full and about half of
/// the limit waits. Returns the number of messages.
fn overfill(connection: &mut Connection) -> u16 {
    let mut unsent = 0;
    for id in 0.. {
        let mark = marked(id as u8);
        let fds = [mark.as_fd()];
        let fds = if id % 50 == 0 { &fds[..] } else { &[] };
        connection
            .send(Header::command(id, Command::DMA_WRITE), b"head", &[id as u8; 1000], fds)
            .expect("kept");
        unsent += if connection.has_unsent() { 1020 } else { 0 };
        if unsent > MAX_UNSENT / 2 {
            return id + 1;
        }
    }
    unreachable!("sixteen bits are enough for every message that fits")
}

#[test]
fn a_peer_that_does_not_read_costs_few_descriptors() {
    let (server, _client) = UnixStream::pair().expect("a socket pair");
    let mut server = Connection::new(server);
    let mark = marked(7);
    let mut kept = 0;
    let ended = loop {
        let sent = server.send(Header::command(1, Command::DMA_WRITE), b"head", &[7; 100], &[mark.as_fd()]);
        kept += usize::from(server.has_unsent());
        if let Err(error) = sent {
            break error;
        }
        assert!(kept <= MAX_UNSENT_FDS, "{kept}");
    };
    assert!(matches!(ended, Error::PeerDoesNotRead), "{ended}");
}

#[test]
fn what_does_not_fit_the_socket_waits_in_order() {
    let (server, client) = UnixStream::pair().expect("a socket pair");
    let (mut server, mut client) = (Connection::new(server), Connection::new(client));
    let count = overfill(&mut server);
    assert!(!server.flush().expect("a healthy connection"));
    for id in 0..count {
        let message = loop {
            server.flush().expect("a healthy connection");
            // Called twice, since a borrow that is returned from a loop lasts.
            if let Some(message) = client.receive().expect("a healthy connection") {
                break (message.header.id, message.payload.to_vec(), message.fds);
            }
        };
        assert_eq!((message.0, &message.1[4..]), (id, &[id as u8; 1000][..]));
        let marks: Vec<u8> = message.2.iter().map(mark_of).collect();
        assert_eq!(marks, if id % 50 == 0 { vec![id as u8] } else { vec![] });
    }
    assert!(server.flush().expect("a healthy connection") && !server.has_unsent());
}

#[test]
fn a_peer_that_never_reads_is_given_up() {
    let (mut connection, _peer) = pair();
    let header = Header::command(1, Command::DMA_WRITE);
    let result = (0..10_000).try_for_each(|_| connection.send(header, &[], &[0; 4096], &[]));
    assert_eq!(result.expect_err("given up"), Error::PeerDoesNotRead);
}

#[test]
fn messages_over_the_limits_are_not_sent() {
    let (mut connection, _peer) = pair();
    let header = Header::command(1, Command::DMA_WRITE);
    let data = vec![0; MAX_MESSAGE_SIZE];
    assert_eq!(connection.send(header, &[], &data, &[]), Err(Error::UnsendableMessage));
    let fd = marked(0);
    let fds = vec![fd.as_fd(); MAX_MESSAGE_FDS + 1];
    assert_eq!(connection.send(header, &[], &[], &fds), Err(Error::UnsendableMessage));
    assert!(!connection.has_unsent());
}
