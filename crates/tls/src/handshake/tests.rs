use super::*;
use crate::Keys;
use crate::keys::tests::{FILE, HOST, SUBSYSTEM, keys};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::os::fd::AsFd;

fn pair() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).expect("sockets")
}

type Ended = Result<Box<Session>, HandshakeError>;

/// Advances both ends until both handshakes have ended.
fn negotiate(mut client: Handshake, mut server: Handshake) -> (Ended, Ended) {
    let (mut ends, mut hands) = ([None, None], [&mut client, &mut server]);
    for _ in 0..100 {
        for (end, hand) in ends.iter_mut().zip(&mut hands) {
            if end.is_none()
                && let Poll::Ready(result) = hand.advance()
            {
                *end = Some(result);
            }
        }
    }
    let [client, server] = ends.map(|end| end.expect("it ends"));
    (client, server)
}

fn shake(psk: &Psk, server: Keys) -> (Ended, Ended) {
    let (ours, theirs) = pair();
    let client = Handshake::client(ours.as_fd(), psk).expect("a handshake");
    let server = Handshake::server(theirs.as_fd(), Arc::new(server)).expect("a handshake");
    negotiate(client, server)
}

/// Checks that content passes unchanged in both directions.
fn converse(client: &mut Session, server: &mut Session) {
    for (from, to) in [(0, 1), (1, 0), (0, 1)] {
        let ends = [&mut *client, &mut *server];
        let sealed = ends[from].seal(5, |room| room.copy_from_slice(b"hello")).to_vec();
        assert!(!sealed.windows(5).any(|window| window == b"hello"));
        assert_eq!(deliver(ends[to], &sealed), Ok(b"hello".to_vec()));
    }
}

fn deliver(session: &mut Session, mut bytes: &[u8]) -> Result<Vec<u8>, crate::Failure> {
    let mut content = Vec::new();
    while !bytes.is_empty() {
        let room = session.room();
        let count = room.len().min(bytes.len());
        room[..count].copy_from_slice(&bytes[..count]);
        bytes = &bytes[count..];
        session.filled(count)?;
        content.extend_from_slice(session.content());
        session.take(session.content().len());
    }
    Ok(content)
}

#[test]
fn both_hashes_both_versions_and_both_derivations() {
    for (key, suite) in [
        ("NVMeTLSkey-1:01:", "TLS_AES_128_GCM_SHA256"),
        ("NVMeTLSkey-1:02:", "TLS_AES_256_GCM_SHA384"),
        ("NVMeTLSkey-1:00:", "TLS_AES_128_GCM_SHA256"),
    ] {
        let line = FILE.lines().find(|line| line.starts_with(key)).expect("one of each");
        for version in ["0", "1"] {
            for psk in crate::keys::tests::derived(line, version) {
                let (client, server) = shake(&psk, keys(line));
                let (mut client, mut server) = (client.expect("the client"), server.expect("the server"));
                assert_eq!(server.identity(), &psk.identity);
                assert_eq!(server.suite().to_string(), suite);
                converse(&mut client, &mut server);
            }
        }
    }
}

#[test]
fn a_key_that_was_derived_already() {
    let psk = keys(FILE).for_host(HOST, SUBSYSTEM).remove(0);
    let line = crate::keys::tests::line_of(&psk);
    let (client, server) = shake(&keys(&line).for_host(HOST, SUBSYSTEM).remove(0), keys(&line));
    converse(&mut client.expect("the client"), &mut server.expect("the server"));
}

#[test]
fn another_key_of_the_same_name_is_refused() {
    let mut psk = keys(FILE).for_host(HOST, SUBSYSTEM).remove(0);
    psk.secret[0] ^= 1;
    let (client, server) = shake(&psk, keys(FILE));
    let words = client.expect_err("it is refused").to_string();
    assert!(words.contains("or another one"), "{words}");
    let error = server.expect_err("it is refused");
    assert!(error.to_string().contains("not the one that has its name") && !error.may_pass(), "{error}");
}

#[test]
fn a_name_that_nobody_knows_is_refused() {
    let mut psk = keys(FILE).for_host(HOST, SUBSYSTEM).remove(0);
    psk.identity = Identity::parse("NVMe1R01 nqn.other nqn.sub abc=").expect("an identity");
    let (client, server) = shake(&psk, keys(FILE));
    assert!(client.is_err());
    let words = server.expect_err("it is refused").to_string();
    assert!(words.contains("no key that was offered"), "{words}");
}

/// Fails at once, without a complete record, and for either end.
#[test]
fn what_is_no_tls_ends_at_once() {
    let psk = keys(FILE).for_host(HOST, SUBSYSTEM).remove(0);
    for bytes in [&[0u8; 128][..], b"GET / HTTP/1.1\r\n\r\n", &[7]] {
        let (ours, theirs) = pair();
        let server = Handshake::server(theirs.as_fd(), Arc::new(keys(FILE))).expect("a handshake");
        let client = Handshake::client(theirs.as_fd(), &psk).expect("a handshake");
        for mut hand in [server, client] {
            assert!(hand.advance().is_pending());
            send(&ours, bytes, SendFlags::empty()).expect("room in the socket");
            let Poll::Ready(Err(error)) = hand.advance() else { panic!("{bytes:?} is no record") };
            assert!(error.to_string().starts_with("what came is no TLS") && !error.may_pass(), "{error}");
            let mut left = [0; 128];
            while recv(&theirs, &mut left, RecvFlags::DONTWAIT).is_ok() {}
        }
    }
}

#[test]
fn what_is_no_client_hello_ends_at_its_end() {
    let (ours, theirs) = pair();
    let mut server = Handshake::server(theirs.as_fd(), Arc::new(keys(FILE))).expect("a handshake");
    send(&ours, &[22, 3, 1, 0xff, 0xff, 1, 0, 0], SendFlags::empty()).expect("room in the socket");
    rustix::net::shutdown(&ours, rustix::net::Shutdown::Write).expect("it is open");
    let Poll::Ready(Err(_)) = server.advance() else { panic!("it is no ClientHello") };
}

/// Sends a message that the library takes at any time, and any number of times.
#[test]
fn a_handshake_that_never_gets_further_has_an_end_and_others_have_their_turn() {
    const CHANGE_CIPHER_SPEC: [u8; 6] = [20, 3, 3, 0, 1, 1];
    let psk = keys(FILE).for_host(HOST, SUBSYSTEM).remove(0);
    let (ours, theirs) = pair();
    let mut client = Handshake::client(ours.as_fd(), &psk).expect("a handshake");
    let mut server = Handshake::server(theirs.as_fd(), Arc::new(keys(FILE))).expect("a handshake");
    assert!(client.advance().is_pending() && server.advance().is_pending());
    let flood = CHANGE_CIPHER_SPEC.repeat(2000);
    let mut turns = 0;
    let ended = loop {
        // The socket takes as much as it has room for.
        let _ = send(&ours, &flood, SendFlags::DONTWAIT);
        turns += 1;
        match server.advance() {
            Poll::Pending => assert!(turns < 10_000, "it has no end"),
            Poll::Ready(ended) => break ended,
        }
    };
    let words = ended.expect_err("it is no handshake").to_string();
    assert!(words.contains("more came") && turns > 100, "{words}, after {turns}");
}

/// Distinguishes a socket error from an earlier "would block".
#[test]
fn a_connection_that_is_lost_is_told_from_one_that_is_refused() {
    let psk = keys(FILE).for_host(HOST, SUBSYSTEM).remove(0);
    for how in ["reset", "closed"] {
        let (ours, theirs) = pair();
        let mut client = Handshake::client(ours.as_fd(), &psk).expect("a handshake");
        assert!(client.advance().is_pending());
        if how == "closed" {
            let mut hello = [0; 1024];
            recv(&theirs, &mut hello, RecvFlags::DONTWAIT).expect("a ClientHello");
        }
        drop(theirs);
        let Poll::Ready(Err(error)) = client.advance() else { panic!("there is nobody") };
        assert!(error.may_pass(), "{error}");
        assert_eq!(error.to_string().contains("was lost"), how == "reset", "{error}");
    }
}

#[test]
fn keys_are_replaced_while_there_is_traffic() {
    let psk = keys(FILE).for_host(HOST, SUBSYSTEM).remove(0);
    let (client, server) = shake(&psk, keys(FILE));
    let (mut client, mut server) = (client.expect("the client"), server.expect("the server"));
    client.owe_update();
    let mut sealed = client.notice().expect("it is owed").to_vec();
    assert!(client.notice().is_none());
    sealed.extend_from_slice(client.seal(3, |room| room.copy_from_slice(b"new")));
    assert_eq!(deliver(&mut server, &sealed), Ok(b"new".to_vec()));
    converse(&mut client, &mut server);
}

#[test]
fn damage_ends_it_and_is_told() {
    for (at, alert) in [(0, "unexpected_message"), (3, "record_overflow"), (9, "bad_record_mac")] {
        let psk = keys(FILE).for_host(HOST, SUBSYSTEM).remove(0);
        let (client, server) = shake(&psk, keys(FILE));
        let (mut client, mut server) = (client.expect("the client"), server.expect("the server"));
        let mut sealed = client.seal(64, |room| room.fill(3)).to_vec();
        sealed[at] ^= 0x80;
        let failure = deliver(&mut server, &sealed).expect_err("it was changed");
        assert!(failure.to_string().ends_with(alert), "{failure}");
        let told = server.farewell(Some(failure)).to_vec();
        let heard = deliver(&mut client, &told).expect_err("it is the end");
        assert_eq!(heard.to_string(), format!("the peer sent TLS alert {alert}"));
        assert!(!heard.is_end());
    }
}

#[test]
fn a_record_is_taken_once_and_in_order() {
    let psk = keys(FILE).for_host(HOST, SUBSYSTEM).remove(0);
    let (client, server) = shake(&psk, keys(FILE));
    let (mut client, mut server) = (client.expect("the client"), server.expect("the server"));
    let first = client.seal(5, |room| room.copy_from_slice(b"first")).to_vec();
    assert!(deliver(&mut server, &first).is_ok());
    assert!(deliver(&mut server, &first).is_err());
    let goodbye = client.farewell(None).to_vec();
    assert!(deliver(&mut server, &goodbye).is_err_and(|failure| !failure.is_end()), "one was left out");
}

#[test]
fn a_farewell_is_an_end() {
    let psk = keys(FILE).for_host(HOST, SUBSYSTEM).remove(0);
    let (client, server) = shake(&psk, keys(FILE));
    let (mut client, mut server) = (client.expect("the client"), server.expect("the server"));
    let goodbye = client.farewell(None).to_vec();
    assert!(deliver(&mut server, &goodbye).is_err_and(|failure| failure.is_end()));
}
