//! Drives with TLS keys: which hosts may connect, and that encrypted connections work like others.

use super::host::{Connect, Host, LIMIT, Link, transfer};
use super::rig::{DISK, Rig, SLOW};
use super::tunnel::{self, KEY};
use sluice_nvme::{Status, opcode};
use sluice_nvme_tcp::{Digests, Fes, Pdu, Violation, encode};
use sluice_tls::{Failure, Keys, Session};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;

const ANOTHER: &str = "NVMeTLSkey-1:01:ICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj/jBqb2:";

/// Opens a TLS tunnel to a drive, with the key of this host.
fn tunnel(to: SocketAddr, hostnqn: &str, subnqn: &str) -> SocketAddr {
    tunnel::tunnel(to, keys().for_host(hostnqn, subnqn).remove(0))
}

fn keys() -> Arc<Keys> {
    tunnel::keys(KEY)
}

#[test]
fn an_encrypted_connection_is_one_like_any_other() {
    let rig = Rig::encrypted(keys());
    let address = tunnel(rig.address, super::host::HOSTNQN, DISK);
    for digests in [Digests::NONE, Digests { header: true, data: true }] {
        let mut host = Host::start(address, DISK, digests, 2);
        let status = rig.status();
        assert_eq!(
            status.ciphers.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["TLS_AES_128_GCM_SHA256"]
        );
        for (cid, length) in [(1, 512), (2, 8192), (3, 1 << 20)] {
            let data: Vec<u8> = (0..length).map(|n| (n * 7 + n / 512) as u8).collect();
            assert_eq!(host.io[0].write(cid, 8, &data), Status::SUCCESS);
            assert!(host.io[1].read(cid, 8, length).expect("it was written") == data);
        }
        let mut bytes = host.io[0].capsule(&super::host::write_in_capsule(1, 0, 512), &[1; 512]);
        bytes[0] = 0x0a;
        host.io[0].send(&bytes);
        let Some((Pdu::Terminated(violation), _)) = host.io[0].next() else {
            panic!("no termination request")
        };
        assert_eq!(violation.fes, Fes::INVALID_HEADER_FIELD);
        drop(host);
        rig.wait_for_nobody();
    }
}

#[test]
fn a_key_is_for_two_names() {
    let rig = Rig::encrypted(keys());
    let address = tunnel(rig.address, super::host::HOSTNQN, DISK);
    let refused = |connect: Connect| {
        let mut link = Link::open(address, Digests::NONE);
        assert_eq!(link.connect(&connect).status(), Status::CONNECT_INVALID_HOST);
        assert!(link.is_over());
    };
    refused(Connect { hostnqn: "nqn.2024-01.org.example:another".to_owned(), ..Connect::admin(DISK) });
    refused(Connect::admin(SLOW));
    refused(Connect::admin(sluice_nvme::fabrics::DISCOVERY_NQN));
    drop(Host::start(address, DISK, Digests::NONE, 1));
}

/// Withdraws a key between the handshake and the Connect command.
#[test]
fn a_key_that_is_withdrawn_while_a_host_comes_lets_it_in_no_more() {
    let rig = Rig::encrypted(keys());
    for (text, status) in
        [(KEY, Status::SUCCESS), (ANOTHER, Status::CONNECT_INVALID_HOST), (KEY, Status::SUCCESS)]
    {
        let mut link = Link::open(tunnel(rig.address, super::host::HOSTNQN, DISK), Digests::NONE);
        rig.change_keys(tunnel::keys(text));
        assert_eq!(link.connect(&Connect::admin(DISK)).status(), status, "{text}");
        drop(link);
        rig.change_keys(keys());
        rig.wait_for_nobody();
    }
}

#[test]
fn a_drive_with_keys_is_not_to_be_had_without() {
    let rig = Rig::new();
    rig.list_with_keys("nqn.2024-01.org.example:keyed", keys());
    let mut link = Link::open(rig.address, Digests::NONE);
    let response = link.connect(&Connect::admin("nqn.2024-01.org.example:keyed"));
    assert_eq!(response.status(), Status::CONNECT_INVALID_HOST);
}

/// Sends invalid records after the handshake, and checks that only this connection ends.
#[test]
fn a_broken_record_is_answered_with_an_alert() {
    let rig = Rig::encrypted(keys());
    let psk = keys().for_host(super::host::HOSTNQN, DISK).remove(0);
    let mut host = Host::start(tunnel(rig.address, super::host::HOSTNQN, DISK), DISK, Digests::NONE, 1);
    for bytes in [&[23, 3, 3, 0, 32][..], &[22, 3, 3, 0, 1, 0], &[23, 3, 3, 0xff, 0xff]] {
        let mut stream = TcpStream::connect(rig.address).expect("it listens");
        stream.set_read_timeout(Some(LIMIT)).expect("a timeout");
        let mut session = tunnel::shake_hands(&stream, &psk).expect("the key is right");
        // In one write, since the other end closes after the first few bytes.
        stream.write_all(&[bytes, &[0; 64]].concat()).expect("room");
        let failure = loop {
            match stream.read(session.room()) {
                Ok(0) => panic!("it ends without an alert"),
                Ok(count) => match session.filled(count) {
                    Ok(()) => {}
                    Err(failure) => break failure,
                },
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => panic!("it ends without an alert: {error}"),
            }
        };
        assert!(failure.to_string().starts_with("the peer sent TLS alert"), "{failure}");
    }
    assert_eq!(host.io[0].write(1, 0, &[1; 4096]), Status::SUCCESS);
}

/// Tunnels one connection until its host stops sending, then sends the bytes of `say`, and only then reads.
///
/// Returns the content received, and how the TLS session ends.
fn spoiled(
    to: SocketAddr,
    say: impl FnOnce(&mut Session) -> Vec<u8> + Send + 'static,
) -> (SocketAddr, JoinHandle<(Vec<u8>, Failure)>) {
    let psk = keys().for_host(super::host::HOSTNQN, DISK).remove(0);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let thread = std::thread::spawn(move || {
        let (near, _) = listener.accept().expect("a host");
        let mut far = TcpStream::connect(to).expect("somebody listens");
        let mut session = tunnel::shake_hands(&far, &psk).expect("the key is right");
        tunnel::pump(&near, &far, &mut session).expect("both are there");
        far.write_all(&say(&mut session)).expect("room");
        let mut heard = Vec::new();
        let failure = loop {
            match far.read(session.room()).expect("no reset") {
                0 => panic!("it ends without an alert"),
                count => match session.filled(count) {
                    Ok(()) => {
                        heard.extend_from_slice(session.content());
                        session.take(session.content().len());
                    }
                    Err(failure) => break failure,
                },
            }
            far.write_all(&[0xff; 5]).expect("it is there until we end it");
        };
        assert_eq!(far.read(&mut [0; 16]).expect("no reset"), 0);
        (heard, failure)
    });
    (address, thread)
}

/// Sends the bytes of `say` behind many unread Reads. Returns the content that follows, and how the session
/// ends.
fn heard_behind_reads(say: impl FnOnce(&mut Session) -> Vec<u8> + Send + 'static) -> (Vec<u8>, Failure) {
    const READS: u16 = 100;
    let rig = Rig::encrypted(keys());
    let mut host = Host::start(tunnel(rig.address, super::host::HOSTNQN, DISK), DISK, Digests::NONE, 1);
    let (address, told) = spoiled(rig.address, say);
    let mut link = Link::open(address, Digests::NONE);
    let connect = Connect { cntlid: host.cntlid, entries: READS + 1, ..Connect::io(DISK, 2) };
    assert_eq!(link.connect(&connect).status(), Status::SUCCESS);
    let reads = (0..READS).flat_map(|cid| link.capsule(&transfer(opcode::io::READ, cid, 0, 64 << 10), &[]));
    let reads: Vec<u8> = reads.collect();
    link.send(&reads);
    link.stream.shutdown(Shutdown::Write).expect("it is there");
    let told = told.join().expect("it is told");
    assert_eq!(host.io[0].write(1, 0, &[1; 4096]), Status::SUCCESS);
    told
}

/// Conformance: TCP 3.6.1, a host is told by an alert what was wrong with its records, behind what it has yet to read.
#[test]
fn an_alert_comes_behind_what_is_being_sent() {
    let (_, failure) = heard_behind_reads(|_| vec![0xff; 50_000]);
    assert_eq!(failure.to_string(), "the peer sent TLS alert unexpected_message");
}

/// Conformance: TCP 3.5, a termination request comes behind what is being sent, and nothing comes behind it.
#[test]
fn a_termination_request_comes_behind_what_is_being_sent() {
    const NO_PDU: [u8; 8] = [0x0a, 0, 8, 0, 8, 0, 0, 0];
    let (heard, end) =
        heard_behind_reads(|session| session.seal(8, |room| room.copy_from_slice(&NO_PDU)).to_vec());
    assert!(end.is_end(), "{end}");
    let last = encode::c2h_term(Violation::field(0), &NO_PDU);
    assert!(heard.len() > 256 << 10 && heard.ends_with(last.as_bytes()), "{} bytes", heard.len());
}

/// Tests that a host with the last of as many keys as a file can hold comes in. All keys are for every host, so each may
/// be the right one. `SLUICE_HANDSHAKES` makes more handshakes, and prints their times.
#[test]
fn a_host_comes_in_with_one_of_very_many_keys() {
    let more = std::env::var("SLUICE_HANDSHAKES").ok().and_then(|count| count.parse().ok());
    for count in [1, 124] {
        let others = format!("{ANOTHER}\n").repeat(count - 1);
        let rig = Rig::encrypted(tunnel::keys(&(others + KEY)));
        let psk = keys().for_host(super::host::HOSTNQN, DISK).remove(0);
        let shake_hands = || {
            let began = std::time::Instant::now();
            let stream = TcpStream::connect(rig.address).expect("the listener accepts");
            tunnel::shake_hands(&stream, &psk).expect("the key is right");
            began.elapsed()
        };
        let mut times: Vec<_> = (0..more.unwrap_or(1)).map(|_| shake_hands()).collect();
        times.sort();
        if more.is_some() {
            println!(
                "{count} keys: {:?} in the middle, {:?} at most",
                times[times.len() / 2],
                times[times.len() - 1]
            );
        }
    }
}
