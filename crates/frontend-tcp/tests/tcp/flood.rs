//! Floods from one address, while hosts with another address connect slowly.

use super::host::{Connect, HOSTNQN, LIMIT, Link, fabrics};
use super::rig::{DISK, Rig};
use super::tunnel::{self, KEY};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use rustix::process::{Resource, getrlimit, setrlimit};
use sluice_nvme::fabrics::{DISCOVERY_NQN, Fctype};
use sluice_nvme::{Status, SubmissionEntry, opcode};
use sluice_nvme_tcp::Digests;
use std::collections::VecDeque;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Address that floods come from.
const ELSEWHERE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

/// Connections of a flood, which are more than the limit.
const MANY: usize = 300;

/// Connects from `ELSEWHERE`.
fn connection(to: SocketAddr) -> TcpStream {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    bind(&socket, &SocketAddr::new(ELSEWHERE, 0)).expect("an address of this machine");
    connect(&socket, &to).expect("somebody listens");
    TcpStream::from(socket)
}

/// Raises the limit of open files, for both ends of a flood.
fn allow_many_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).expect("it is allowed");
}

/// Waits until the other end has closed a connection, and drops the bytes received before.
fn wait_for_the_end(mut stream: &TcpStream) {
    stream.set_read_timeout(Some(LIMIT)).expect("a timeout");
    let mut bytes = [0; 256];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) => {
                return assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "it is put out");
            }
        }
    }
}

/// Opens silent connections, until the first of them is dropped. They stay open as long as the returned
/// vector lives.
fn flood(to: SocketAddr) -> Vec<TcpStream> {
    allow_many_files();
    let flood: Vec<TcpStream> = (0..MANY).map(|_| connection(to)).collect();
    wait_for_the_end(&flood[0]);
    flood
}

#[test]
fn a_flood_from_one_address_keeps_out_no_host_of_another() {
    let rig = Rig::new();
    let slow = TcpStream::connect(rig.address).expect("somebody listens");
    let first = flood(rig.address);
    let mut link = Link::over(slow, Digests::NONE);
    drop(first);
    let second = flood(rig.address);
    assert_eq!(link.connect(&Connect::admin(DISK)).status(), Status::SUCCESS);
    drop(second);
}

#[test]
fn a_flood_from_one_address_ends_no_handshake_of_another() {
    let rig = Rig::encrypted(tunnel::keys(KEY));
    let psk = tunnel::keys(KEY).for_host(HOSTNQN, DISK).remove(0);
    let slow = TcpStream::connect(rig.address).expect("somebody listens");
    let flood = flood(rig.address);
    assert!(tunnel::shake_hands(&slow, &psk).is_some());
    drop(flood);
}

#[test]
fn a_flood_from_one_address_ends_no_discovery_of_another() {
    let rig = Rig::new();
    let discover = |mut link: Link| {
        assert_eq!(link.connect(&Connect::admin(DISCOVERY_NQN)).status(), Status::SUCCESS);
        link
    };
    let mut steady = discover(Link::open(rig.address, Digests::NONE));
    steady.enable();
    allow_many_files();
    let flood = (0..MANY).map(|_| discover(Link::over(connection(rig.address), Digests::NONE)));
    let flood: Vec<Link> = flood.collect();
    wait_for_the_end(&flood[0].stream);
    let alive = SubmissionEntry { opcode: opcode::admin::KEEP_ALIVE, nsid: 0, ..fabrics(Fctype(0)) };
    assert_eq!(steady.command(&alive).status(), Status::SUCCESS);
}

/// Connections for one median.
const CONNECTS: usize = 9;

/// Opens connections as fast as possible while `work` runs. Returns its result, and the connections in a
/// second.
fn beside_a_flood<R>(to: SocketAddr, work: impl FnOnce() -> R) -> (R, f64) {
    let (is_over, began) = (AtomicBool::new(false), Instant::now());
    let (result, begun) = std::thread::scope(|scope| {
        let flooding = scope.spawn(|| {
            let (mut ring, mut begun) = (VecDeque::new(), 0_u32);
            while !is_over.load(Relaxed) {
                ring.push_back(connection(to));
                begun += 1;
                if ring.len() > MANY {
                    ring.pop_front();
                }
            }
            begun
        });
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        is_over.store(true, Relaxed);
        (result, flooding.join().expect("it ends"))
    });
    (result.expect("hosts are let in"), f64::from(begun) / began.elapsed().as_secs_f64())
}

/// Connects distant hosts while another address opens connections as fast as possible, and prints median
/// times.
///
/// The times are for an idle listener, a flood of another listener, which takes as much of the machine, and a
/// flood of the same one. Nothing is compared, since other tests run at the same time.
#[test]
fn hosts_that_are_far_away_come_in_while_another_address_floods() {
    let rig = Rig::new();
    allow_many_files();
    let come_in = |distance: Duration| {
        let start = Instant::now();
        let stream = TcpStream::connect(rig.address).expect("somebody listens");
        sleep(distance);
        let mut link = Link::over(stream, Digests::NONE);
        sleep(distance);
        assert_eq!(link.connect(&Connect::admin(DISK)).status(), Status::SUCCESS, "{distance:?}");
        let time = start.elapsed();
        drop(link);
        rig.wait_for_nobody();
        time
    };
    let median = |distance: Duration| {
        let mut times: Vec<Duration> = (0..CONNECTS).map(|_| come_in(distance)).collect();
        times.sort();
        times[CONNECTS / 2]
    };
    let all = || [2, 30, 100].map(|distance| median(Duration::from_millis(distance)));
    let alone = all();
    let elsewhere = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = elsewhere.local_addr().expect("an address");
    std::thread::spawn(move || elsewhere.incoming().for_each(drop));
    let (busy, elsewhere) = beside_a_flood(address, all);
    let (flooded, begun) = beside_a_flood(rig.address, all);
    println!(
        "alone {alone:?}; beside {elsewhere:.0} connections a second to another {busy:?}, to the same {begun:.0} {flooded:?}"
    );
}
