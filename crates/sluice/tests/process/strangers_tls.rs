//! Attacks over TLS: hosts that break off a handshake, have another key, or have the right key and send
//! invalid records.

use crate::common::{Daemon, LIMIT, wait_for};
use crate::neighbour::Neighbour;
use crate::strangers::remote_neighbour;
use crate::tcp_host::{HOSTID, HOSTNQN, Host, fabrics, in_capsule};
use crate::tunnel::{KEY, keys, shake_hands, tunnel};
use crate::vmm::belongings;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};
use sluice_nvme::SubmissionEntry;
use sluice_nvme::fabrics::{CNTLID_DYNAMIC, ConnectData, DISCOVERY_NQN, Fctype};
use sluice_nvme_tcp::{Digests, IcReq, encode};
use sluice_tls::{Handshake, Psk, Session};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use zerocopy::IntoBytes;

const ROUNDS: u32 = 2;
const VAULT: &str = "nqn.2026-11.example.sluice:vault";
const OTHER: &str = "nqn.2026-11.example.sluice:other";

/// Limits of the daemon's memory in KiB and of its descriptors, above the values before. A connection has two
/// descriptors during its handshake.
const MEMORY_KIB: u64 = 96 << 10;
const DESCRIPTORS: usize = 700;

const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const DATA: u8 = 23;

fn psk(subnqn: &str) -> Psk {
    keys(KEY).for_host(HOSTNQN, subnqn).remove(0)
}

struct Scene {
    address: SocketAddr,
    pid: u32,
    before: (usize, u64),
}

impl Scene {
    fn stream(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("somebody listens");
        stream.set_read_timeout(Some(LIMIT)).expect("a timeout");
        stream.set_nodelay(true).expect("no delay");
        stream
    }

    /// Opens connections with the right key: one that is only past its handshake, one to the discovery
    /// service, and one to the drive's reactor.
    fn each(&self) -> [Veiled; 3] {
        [Veiled::open(self, VAULT), Veiled::connected(self, DISCOVERY_NQN), Veiled::connected(self, VAULT)]
    }

    fn is_bounded(&self) {
        let (descriptors, memory) = belongings(self.pid);
        assert!(descriptors <= self.before.0 + DESCRIPTORS, "{descriptors} descriptors");
        assert!(memory <= self.before.1 + MEMORY_KIB, "{memory} KiB, and {} before", self.before.1);
    }
}

/// A connection with the right key.
struct Veiled {
    stream: TcpStream,
    session: Box<Session>,
}

impl Veiled {
    fn open(scene: &Scene, subnqn: &str) -> Self {
        let stream = scene.stream();
        let session = shake_hands(&stream, &psk(subnqn)).expect("the key is right");
        Self { stream, session }
    }

    fn connected(scene: &Scene, subnqn: &str) -> Self {
        let mut last = None;
        wait_for("the last host is on its way out", || {
            let mut veiled = Self::open(scene, subnqn);
            veiled.speak(ic_req().as_bytes());
            veiled.listen(128);
            veiled.speak(&connect(subnqn));
            let success = veiled.listen(24)[22] & 0xfe == 0;
            last = success.then_some(veiled);
            success
        });
        last.expect("just made")
    }

    /// Sends bytes. An error is ignored, because the peer may have closed the connection.
    fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    fn speak(&mut self, content: &[u8]) {
        let record = self.session.seal_any(DATA, content, 0);
        self.send(&record);
    }

    fn listen(&mut self, count: usize) -> Vec<u8> {
        let mut heard = Vec::new();
        while heard.len() < count {
            let received = self.stream.read(self.session.room()).expect("an answer");
            assert!(received > 0, "the end instead of an answer");
            self.session.filled(received).expect("a record");
            heard.extend_from_slice(self.session.content());
            self.session.take(self.session.content().len());
        }
        heard
    }

    /// Sends these bytes, and checks that the connection ends then, whatever is received before.
    fn ends_with(mut self, bytes: &[u8]) {
        self.send(bytes);
        is_over(&mut self.stream);
    }
}

fn is_over(stream: &mut TcpStream) {
    match stream.read_to_end(&mut Vec::new()) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "the connection does not end"),
    }
}

fn ic_req() -> Vec<u8> {
    encode::ic_req(IcReq { alignment: 4, digests: Digests::NONE, r2t_max: 1 }).as_bytes().to_vec()
}

fn connect(subnqn: &str) -> Vec<u8> {
    let data = ConnectData::new(HOSTID, CNTLID_DYNAMIC, subnqn, HOSTNQN);
    let size = ConnectData::SIZE as u32;
    let entry = SubmissionEntry { dptr: in_capsule(size), cdw11: 31, ..fabrics(Fctype::CONNECT) };
    [encode::capsule_cmd(&entry, Digests::NONE, 4, size).as_bytes(), data.as_bytes()].concat()
}

/// Returns the ClientHello of a host with the right key.
fn client_hello() -> Vec<u8> {
    let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    let (ours, theirs) = pair.expect("sockets");
    let mut handshake = Handshake::client(ours.as_fd(), &psk(VAULT)).expect("a handshake");
    assert!(handshake.advance().is_pending());
    let mut hello = vec![0; 2048];
    let (_, count) = recv(&theirs, &mut hello[..], RecvFlags::DONTWAIT).expect("a ClientHello");
    hello.truncate(count);
    hello
}

/// Opens connections that stop in the ClientHello: before it, after its first byte, in it, before its last
/// byte, and after it.
fn half_handshakes(scene: &Scene) {
    let hello = client_hello();
    let mut there = Vec::new();
    for number in 0..300 {
        let mut stream = scene.stream();
        let _ = stream.write_all(&hello[..[0, 1, 100, hello.len() - 1, hello.len()][number % 5]]);
        there.push(stream);
    }
    scene.is_bounded();
    drop(Veiled::connected(scene, VAULT));
}

/// Sends a ClientHello with one wrong byte, for each byte.
fn hellos(scene: &Scene) {
    let hello = client_hello();
    for at in 0..hello.len() {
        let mut bytes = hello.clone();
        bytes[at] ^= 0xff;
        let mut stream = scene.stream();
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(Shutdown::Write);
        is_over(&mut stream);
    }
}

fn names(scene: &Scene) {
    let other = keys("NVMeTLSkey-1:01:////AwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8x5LSW:");
    for psk in [other.for_host(HOSTNQN, VAULT).remove(0), psk("nqn.2026-11.example.sluice:none")] {
        assert!(shake_hands(&scene.stream(), &psk).is_none());
    }
    // The key is right, but the Connect command has another name.
    for (key, name) in [(VAULT, OTHER), (VAULT, DISCOVERY_NQN), (DISCOVERY_NQN, VAULT)] {
        let mut veiled = Veiled::open(scene, key);
        veiled.speak(&ic_req());
        veiled.speak(&connect(name));
        is_over(&mut veiled.stream);
    }
}

/// Sends one byte after the other: of handshakes, and of records in a session.
fn slow(scene: &Scene) {
    let hello = client_hello();
    let mut greetings: Vec<TcpStream> = (0..16).map(|_| scene.stream()).collect();
    let mut within = scene.each();
    let records = within.each_mut().map(|veiled| veiled.session.seal_any(DATA, &connect(VAULT), 0));
    for at in 0..hello.len().max(records[0].len()) {
        for stream in &mut greetings {
            let _ = hello.get(at).map(|byte| stream.write_all(&[*byte]));
        }
        for (veiled, record) in within.iter_mut().zip(&records) {
            let _ = record.get(at).map(|byte| veiled.send(&[*byte]));
        }
    }
    scene.is_bounded();
}

/// Checks that floods of records that cost work and carry no data are ended.
fn floods(scene: &Scene) {
    for asks in [false, true] {
        for mut veiled in scene.each() {
            let updates: Vec<u8> = (0..1000).flat_map(|_| veiled.session.update(asks)).collect();
            veiled.ends_with(&updates);
        }
    }
    for mut veiled in scene.each() {
        let empty: Vec<u8> = (0..1000).flat_map(|_| veiled.session.seal_any(DATA, &[], 200)).collect();
        veiled.ends_with(&empty);
    }
    for mut veiled in scene.each() {
        let tickets: Vec<u8> =
            (0..1000).flat_map(|_| veiled.session.seal_any(HANDSHAKE, &[4, 0, 0, 1, 0], 0)).collect();
        veiled.ends_with(&tickets);
    }
}

fn alerts(scene: &Scene) {
    for alert in [0, 10, 20, 40, 90, 255] {
        for level in [1, 2] {
            for mut veiled in scene.each() {
                let record = veiled.session.seal_any(ALERT, &[level, alert], 0);
                veiled.ends_with(&record);
            }
        }
    }
    for content in [&[][..], &[1], &[1, 0, 0]] {
        for mut veiled in scene.each() {
            let record = veiled.session.seal_any(ALERT, content, 0);
            veiled.ends_with(&record);
        }
    }
}

/// Sends records that do not belong to the connection, and ones that are not allowed.
fn records(scene: &Scene) {
    type Wrong = fn(&mut Session) -> Vec<u8>;
    let ways: [Wrong; 10] = [
        |_| ic_req(),
        |_| client_hello(),
        |_| [&[DATA, 3, 3, 0, 64][..], &[7; 64]].concat(),
        |_| [&[DATA, 3, 3, 0xff, 0xff][..], &[7; 64]].concat(),
        |_| vec![DATA, 3, 3, 0, 0],
        |session| session.seal_any(DATA, &[1; Session::CONTENT_MAX + 1], 0),
        |session| session.seal_any(0, &[], 32),
        |session| session.seal_any(20, &[1], 0),
        |session| session.seal_any(HANDSHAKE, &[24, 0, 0, 2, 0, 0], 0),
        |session| {
            let record = session.seal_any(DATA, &[1; 100], 0);
            [&record[..], &record].concat()
        },
    ];
    for way in ways {
        for mut veiled in scene.each() {
            let bytes = way(&mut veiled.session);
            veiled.ends_with(&bytes);
        }
    }
    // The connections end in the middle of a record.
    for length in [1, 4, 5, 20, 100] {
        for mut veiled in scene.each() {
            let record = veiled.session.seal_any(DATA, &[1; 100], 0);
            veiled.send(&record[..length]);
            let _ = veiled.stream.shutdown(Shutdown::Write);
            is_over(&mut veiled.stream);
        }
    }
}

type Attack = (&'static str, fn(&Scene));

const ATTACKS: [Attack; 7] = [
    ("half handshakes", half_handshakes),
    ("hellos", hellos),
    ("names", names),
    ("slow", slow),
    ("floods", floods),
    ("alerts", alerts),
    ("records", records),
];

#[test]
fn hosts_that_mean_harm_over_tls_harm_nobody_but_their_own_drive() {
    let rounds = std::env::var("SLUICE_ROUNDS").map_or(ROUNDS, |rounds| rounds.parse().expect("a number"));
    let address = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("keys");
    std::fs::write(&file, KEY).expect("room on the disk");
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).expect("it is ours");
    let drive = |name: &str, nqn: &str| {
        let keys = file.display();
        format!(
            "[[drive]]\nname = \"{name}\"\n[drive.tcp]\nnqn = \"{nqn}\"\ntls_keys = \"{keys}\"\n\
             [[drive.namespace]]\ntarget = \"memory\"\nsize = \"16MiB\"\n"
        )
    };
    let daemon = Daemon::start(&format!(
        "[tcp]\nlisten_tls = [\"{address}\"]\ndiscovery_keys = \"{}\"\n{}{}\
         [[drive]]\nname = \"local\"\n[[drive.namespace]]\ntarget = \"memory\"\nsize = \"16MiB\"\n",
        file.display(),
        drive("vault", VAULT),
        drive("other", OTHER),
    ));
    let encrypted = Host::start(tunnel(address, psk(OTHER)), OTHER, Digests::NONE, 1);
    let neighbours = [Neighbour::on(&daemon, "local"), remote_neighbour(encrypted)];
    let mut scene = Scene { address, pid: daemon.pid(), before: belongings(daemon.pid()) };
    for round in 0..rounds {
        for (what, attack) in ATTACKS {
            eprintln!("round {round}: {what}");
            attack(&scene);
            neighbours.iter().for_each(Neighbour::goes_on);
        }
        drop(Veiled::connected(&scene, VAULT));
        if round == 0 {
            scene.before = belongings(daemon.pid());
        }
    }
    neighbours.into_iter().for_each(Neighbour::end);
    wait_for("the last descriptor is closed", || belongings(scene.pid).0 <= scene.before.0 + 2);
    let memory = belongings(scene.pid).1;
    assert!(memory <= scene.before.1 + (8 << 10), "{memory} KiB, and {} before", scene.before.1);
    let log = daemon.log().len();
    assert!(log < 1 << 20, "{log} bytes of log");
}
