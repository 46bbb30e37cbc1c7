//! Hosts on the network that break the protocol in every way, against a real daemon: it lives, the drives
//! beside go on with the right data, and no resource leaks.
//!
//! SLUICE_ROUNDS is the number of rounds; manual runs may use thousands.

use crate::common::{Daemon, LIMIT, wait_for};
use crate::neighbour::Neighbour;
use crate::tcp_host::{
    Connect, HOSTID, HOSTNQN, Host, Link, fabrics, in_capsule, transfer, write_in_capsule,
};
use crate::vmm::belongings;
use sluice_nvme::fabrics::{CNTLID_DYNAMIC, ConnectData, Fctype};
use sluice_nvme::{Status, SubmissionEntry, opcode::io};
use sluice_nvme_tcp::{Data, Digests, IcReq, Pdu, R2t, encode};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Instant;
use zerocopy::IntoBytes;

const ROUNDS: u32 = 2;
const VICTIM: &str = "nqn.2026-11.example.sluice:victim";
const OTHER: &str = "nqn.2026-11.example.sluice:other";
const BOTH: Digests = Digests { header: true, data: true };

/// Bytes of data that are sent apart from their command.
const APART: u32 = 64 << 10;

/// Limits of the daemon's memory in KiB and of its descriptors during attacks, above the values before.
const MEMORY_KIB: u64 = 96 << 10;
const DESCRIPTORS: usize = 300;

/// Values that each field is XORed with, once each.
const CHANGES: [u8; 2] = [0x01, 0xff];

/// The daemon that is attacked.
struct Scene {
    address: SocketAddr,
    pid: u32,
    /// Descriptors and memory of the daemon after the first round.
    before: (usize, u64),
}

impl Scene {
    /// Connects a host with an admin queue and an I/O queue to the drive that is attacked.
    fn host(&self, digests: Digests) -> Host {
        let start = Instant::now();
        loop {
            let mut admin = Link::open(self.address, digests);
            let response = admin.connect(&Connect::admin(VICTIM));
            if response.status().is_success() {
                admin.enable();
                let mut queue = Link::open(self.address, digests);
                let connect = Connect { qid: 1, cntlid: response.dw0 as u16, ..Connect::admin(VICTIM) };
                assert!(queue.connect(&connect).status().is_success());
                return Host { cntlid: response.dw0 as u16, admin, io: vec![queue] };
            }
            // The last host may still be disconnecting.
            assert!(start.elapsed() < LIMIT, "{:?}", response.status());
        }
    }

    fn stream(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("somebody listens");
        stream.set_read_timeout(Some(LIMIT)).expect("a timeout");
        stream
    }

    /// Checks that the daemon holds no more resources than a bounded number of unknown hosts may have.
    fn is_bounded(&self) {
        let (descriptors, memory) = belongings(self.pid);
        assert!(descriptors <= self.before.0 + DESCRIPTORS, "{descriptors} descriptors");
        assert!(memory <= self.before.1 + MEMORY_KIB, "{memory} KiB, and {} before", self.before.1);
    }
}

/// Sends these last bytes, and reads to the end of the connection, which has to come.
fn last_words(stream: &mut TcpStream, bytes: &[u8]) {
    // The daemon may close the connection before all of it is sent.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Ok(_) => {}
        Err(error) => {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "the connection does not end");
        }
    }
}

/// Sends a PDU of a host at work with one of its first `count` bytes changed, for each byte and change.
fn each_byte_wrong(scene: &Scene, count: usize, pdu: fn(&mut Link) -> Vec<u8>) {
    for at in 0..count {
        for change in CHANGES {
            let mut host = scene.host(Digests::NONE);
            let mut bytes = pdu(&mut host.io[0]);
            bytes[at] ^= change;
            last_words(&mut host.io[0].stream, &bytes);
        }
    }
}

fn ic_req() -> Vec<u8> {
    encode::ic_req(IcReq { alignment: 4, digests: Digests::NONE, r2t_max: 1 }).as_bytes().to_vec()
}

fn connect(link: &Link) -> Vec<u8> {
    let data = ConnectData::new(HOSTID, CNTLID_DYNAMIC, VICTIM, HOSTNQN);
    let entry =
        SubmissionEntry { dptr: in_capsule(ConnectData::SIZE as u32), cdw11: 31, ..fabrics(Fctype::CONNECT) };
    link.capsule(&entry, data.as_bytes())
}

/// Sends a Write whose data is requested by an R2T. Returns the R2T.
fn asked(link: &mut Link) -> R2t {
    link.submit(&transfer(io::WRITE, 7, 0, APART), &[]);
    match link.next() {
        Some((Pdu::R2t(r2t), _)) => r2t,
        other => panic!("{other:?} instead of an R2T"),
    }
}

fn answer(link: &Link, r2t: &R2t, offset: u32, length: u32) -> Vec<u8> {
    let last = offset + length == r2t.length;
    let data = Data { cccid: r2t.cccid, ttag: r2t.ttag, offset, length, last, success: false };
    link.with_data(encode::h2c_data(data, link.digests, 4).as_bytes(), &vec![7; length as usize])
}

fn initializations(scene: &Scene) {
    for at in 0..128 {
        let mut bytes = ic_req();
        bytes[at] ^= 0xff;
        last_words(&mut scene.stream(), &bytes);
    }
}

fn connects(scene: &Scene) {
    // Offsets of the header, the entry, the host and controller identifiers, and bytes of each name.
    let fields = (0..72 + 18).chain([72 + 256, 72 + 511, 72 + 512, 72 + 767, 72 + 1023]);
    for at in fields {
        let mut link = Link::open(scene.address, Digests::NONE);
        let mut bytes = connect(&link);
        bytes[at] ^= 0xff;
        last_words(&mut link.stream, &bytes);
    }
}

fn commands(scene: &Scene) {
    each_byte_wrong(scene, 72, |link| link.capsule(&write_in_capsule(1, 0, 512), &[1; 512]));
}

fn data(scene: &Scene) {
    each_byte_wrong(scene, 24, |link| {
        let r2t = asked(link);
        answer(link, &r2t, 0, APART)
    });
}

/// Wrong answer to an R2T.
type Way = fn(&Link, &R2t) -> Vec<u8>;

fn data_that_was_not_asked_for(scene: &Scene) {
    let ways: [Way; 5] = [
        // The data comes twice, its second half comes first, it is too long, it is followed by a Connect, or
        // it is empty.
        |link, r2t| [answer(link, r2t, 0, APART), answer(link, r2t, 0, APART)].concat(),
        |link, r2t| answer(link, r2t, APART / 2, APART / 2),
        |link, r2t| answer(link, &R2t { length: APART + 512, ..*r2t }, 0, APART + 512),
        |link, r2t| [answer(link, r2t, 0, 512), connect(link)].concat(),
        |link, r2t| answer(link, r2t, 0, 0),
    ];
    for way in ways {
        let mut host = scene.host(Digests::NONE);
        let r2t = asked(&mut host.io[0]);
        let bytes = way(&host.io[0], &r2t);
        last_words(&mut host.io[0].stream, &bytes);
    }
}

fn digests(scene: &Scene) {
    for at in [0, 8, 71, 72, 75] {
        let mut host = scene.host(BOTH);
        let mut bytes = host.io[0].capsule(&write_in_capsule(1, 0, 512), &[1; 512]);
        bytes[at] ^= 0x10;
        last_words(&mut host.io[0].stream, &bytes);
    }
    // A wrong data digest fails the command alone, any number of times.
    let mut host = scene.host(BOTH);
    let link = &mut host.io[0];
    for _ in 0..100 {
        let mut bytes = link.capsule(&write_in_capsule(1, 0, 512), &[1; 512]);
        *bytes.last_mut().expect("it has some") ^= 1;
        link.send(&bytes);
        assert_eq!(link.response().status(), Status::TRANSIENT_TRANSPORT_ERROR);
    }
    assert_eq!(link.write(2, 0, &[1; 512]), Status::SUCCESS);
}

/// Opens connections that stop halfway: without a byte, in a PDU, after the initialization, in a Connect.
fn half_open(scene: &Scene) {
    let mut there = Vec::new();
    for number in 0..300 {
        let mut stream = scene.stream();
        let part = [0, 1, 8, 127][number % 4];
        let _ = stream.write_all(&ic_req()[..part]);
        there.push(stream);
    }
    for number in 0..100 {
        let mut link = Link::open(scene.address, Digests::NONE);
        let bytes = connect(&link);
        let _ = link.stream.write_all(&bytes[..[0, 5, 72, 1000][number % 4]]);
        there.push(link.stream);
    }
    scene.is_bounded();
    drop(scene.host(Digests::NONE));
}

/// Sends one byte after the other, on many connections at once.
fn slow(scene: &Scene) {
    let mut greetings: Vec<TcpStream> = (0..32).map(|_| scene.stream()).collect();
    let mut host = scene.host(Digests::NONE);
    let capsule = host.io[0].capsule(&write_in_capsule(1, 0, 512), &[1; 512]);
    let bytes = ic_req();
    for at in 0..bytes.len().min(capsule.len()) {
        for stream in &mut greetings {
            let _ = stream.write_all(&bytes[at..=at]);
        }
        let _ = host.io[0].stream.write_all(&capsule[at..=at]);
    }
    scene.is_bounded();
}

/// Sends as many reads as possible, and receives no data of them.
fn deaf(scene: &Scene) {
    let mut host = scene.host(Digests::NONE);
    let reads: Vec<u8> =
        (0..31).flat_map(|cid| host.io[0].capsule(&transfer(io::READ, cid, 0, 128 << 10), &[])).collect();
    let _ = host.io[0].stream.write_all(&reads);
    assert_eq!(host.admin.get_property(sluice_nvme::register::CSTS, 4) & 1, 1, "its other queue is served");
    scene.is_bounded();
}

/// Sends many Connects without waiting for the answers.
fn floods(scene: &Scene) {
    let mut there = Vec::new();
    for number in 0..500 {
        let mut link = Link::open(scene.address, Digests::NONE);
        let bytes = connect(&link);
        let _ = link.stream.write_all(&bytes);
        if number % 2 == 0 {
            there.push(link);
        }
    }
    scene.is_bounded();
    drop(there);
    // The host sends more commands than the queue has entries.
    let mut host = scene.host(Digests::NONE);
    let capsule = host.io[0].capsule(&transfer(io::READ, 1, 0, 512), &[]);
    last_words(&mut host.io[0].stream, &capsule.repeat(500));
}

/// Sends PDUs of every type in place of a Connect, and random bytes.
fn nonsense(scene: &Scene) {
    for kind in 0..=16u8 {
        let mut link = Link::open(scene.address, Digests::NONE);
        last_words(&mut link.stream, &[&[kind, 0, 24, 0, 24, 0, 0, 0][..], &[0; 16]].concat());
    }
    let mut random = 1u64;
    for length in [1usize, 7, 8, 100, 1000, 70_000] {
        let bytes: Vec<u8> = std::iter::repeat_with(|| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 56) as u8
        })
        .take(length)
        .collect();
        last_words(&mut scene.stream(), &bytes);
        last_words(&mut Link::open(scene.address, Digests::NONE).stream, &bytes);
        let mut host = scene.host(Digests::NONE);
        last_words(&mut host.io[0].stream, &bytes);
    }
}

type Attack = (&'static str, fn(&Scene));

const ATTACKS: [Attack; 11] = [
    ("initializations", initializations),
    ("connects", connects),
    ("commands", commands),
    ("data", data),
    ("data that was not asked for", data_that_was_not_asked_for),
    ("digests", digests),
    ("half open", half_open),
    ("slow", slow),
    ("deaf", deaf),
    ("floods", floods),
    ("nonsense", nonsense),
];

/// Starts a host on the network that checks that every command succeeds and every read is right.
pub(crate) fn remote_neighbour(mut host: Host) -> Neighbour {
    Neighbour::start(move |round| {
        // The closure takes the whole host, which is gone with the last of it.
        let host = &mut host;
        let data = vec![round as u8; 16 << 10];
        assert_eq!(host.io[0].write(1, 8, &data), Status::SUCCESS);
        assert!(host.io[0].read(2, 8, data.len() as u32) == Ok(data), "round {round}");
    })
}

#[test]
fn hosts_that_mean_harm_harm_nobody_but_their_own_drive() {
    let rounds = std::env::var("SLUICE_ROUNDS").map_or(ROUNDS, |rounds| rounds.parse().expect("a number"));
    let address = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port");
    let drive = |name: &str, more: &str| {
        format!(
            "[[drive]]\nname = \"{name}\"\n{more}\n[[drive.namespace]]\ntarget = \"memory\"\nsize = \"16MiB\"\n"
        )
    };
    let daemon = Daemon::start(&format!(
        "[tcp]\nlisten = [\"{address}\"]\n{}{}{}",
        drive("victim", &format!("[drive.tcp]\nnqn = \"{VICTIM}\"")),
        drive("other", &format!("[drive.tcp]\nnqn = \"{OTHER}\"")),
        drive("local", ""),
    ));
    let neighbours =
        [Neighbour::on(&daemon, "local"), remote_neighbour(Host::start(address, OTHER, BOTH, 1))];
    let mut scene = Scene { address, pid: daemon.pid(), before: belongings(daemon.pid()) };
    for round in 0..rounds {
        for (what, attack) in ATTACKS {
            eprintln!("round {round}: {what}");
            attack(&scene);
            neighbours.iter().for_each(Neighbour::goes_on);
        }
        drop(scene.host(BOTH));
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

const HOST_KEY: &str = "DHHC-1:01:AQADAgUEBwYJCAsKDQwPDhEQExIVFBcWGRgbGh0cHx7rtB3q:";

/// Connects to a drive under the name of a host that has a key, without the key.
fn knock(address: SocketAddr, subnqn: &str) -> Link {
    let mut link = Link::open(address, Digests::NONE);
    let response = link.connect(&Connect::admin(subnqn));
    assert!(response.status().is_success() && response.dw0 >> 16 != 0, "it has to prove who it is");
    link
}

/// Checks that a host without authentication does not count as a client: `drive delete` succeeds without
/// `--force`, and `reload` withdraws the drive.
#[test]
fn strangers_that_merely_knock_hinder_no_reload_and_no_delete() {
    let address = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port");
    let tcp = format!("[tcp]\nlisten = [\"{address}\"]\n");
    let mut daemon = Daemon::start(&tcp);
    daemon.stop();
    let key = daemon.folder.path().join("host.key");
    std::fs::write(&key, HOST_KEY).expect("room on the disk");
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("it is ours");
    let key = key.display();
    let drive = format!(
        "[[drive]]\nname = \"victim\"\n[drive.tcp]\nnqn = \"{VICTIM}\"\n[[drive.tcp.hosts]]\nnqn = \"{HOSTNQN}\"\n\
         dhchap = {{ key = \"{key}\" }}\n[[drive.namespace]]\ntarget = \"memory\"\nsize = \"1MiB\"\n"
    );
    daemon.declare("", &(tcp.clone() + &drive));
    daemon.restart();
    let mut strangers = vec![knock(address, VICTIM), knock(address, VICTIM)];
    assert!(daemon.ok(&["drive", "show", "victim"]).contains("state:     ready"));
    daemon.declare("", &tcp);
    assert_eq!(daemon.ok(&["reload"]), "drive victim removed\n");
    strangers.iter_mut().for_each(|link| assert!(link.is_over()));
    let spec = daemon.folder.path().join("spec.json");
    let hosts = format!("[{{\"nqn\":\"{HOSTNQN}\",\"dhchap\":{{\"key\":\"{key}\"}}}}]");
    let text = format!(
        "{{\"name\":\"other\",\"tcp\":{{\"nqn\":\"{OTHER}\",\"hosts\":{hosts}}},\
         \"namespaces\":[{{\"target\":\"memory\",\"size\":\"1MiB\"}}]}}"
    );
    std::fs::write(&spec, text).expect("room on the disk");
    daemon.ok(&["drive", "create", "other", "--spec", spec.to_str().expect("text")]);
    strangers = vec![knock(address, OTHER)];
    daemon.ok(&["drive", "delete", "other"]);
    strangers.iter_mut().for_each(|link| assert!(link.is_over()));
}
