//! Clients of a few drives that take as many shared resources as they get: mappings, descriptors, and the
//! disk of the state folder. Other drives, their machines and hosts, and the operator go on.
//!
//! SLUICE_CROWD=full has 75 hosts and a limit of 20,000 open files; it takes half a minute.

use crate::common::{Daemon, LIMIT, namespace};
use crate::limits::{descriptors, is_served};
use crate::peer::Peer;
use crate::tcp_host::{Connect, Host, Link};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit, setrlimit};
use sluice_control::state::{Saved, StateFile, Uncorrectable};
use sluice_host::{Controller, Mode, Namespace, QueueLayout, Settings, VfioUser};
use sluice_memory::MAX_FILES;
use sluice_nvme::opcode::io;
use sluice_nvme::{Status, SubmissionEntry};
use sluice_nvme_tcp::Digests;
use sluice_vfio_user::device::RegionInfo;
use sluice_vfio_user::{Command, Header, dma::DmaMap};
use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;
use zerocopy::IntoBytes;

const PAGE: u64 = 4096;

/// Number of messages in flight at a time.
const BATCH: usize = 64;

fn is_full() -> bool {
    std::env::var("SLUICE_CROWD").is_ok_and(|crowd| crowd == "full")
}

fn drive(name: &str, more: &str) -> String {
    format!("[[drive]]\nname = \"{name}\"\n{more}[[drive.namespace]]\ntarget = \"memory\"\nsize = \"1MiB\"\n")
}

fn nqn(name: &str) -> String {
    format!("nqn.2026-11.example.sluice:{name}")
}

/// Returns a drive for hosts on the network.
fn remote(name: &str) -> String {
    drive(name, &format!("[drive.tcp]\nnqn = \"{}\"\nmax_hosts = 24\nmax_queues = 128\n", nqn(name)))
}

/// Checks that a machine at another drive, new clients and orders are served. Returns how long an order
/// takes.
fn others_go_on(
    daemon: &Daemon,
    disk: &mut Namespace,
    address: SocketAddr,
    round: u8,
) -> std::time::Duration {
    is_served(disk, round);
    let mut late = daemon.host("late");
    is_served(&mut namespace(&mut late, 1), round);
    drop(late);
    drop(Host::start(address, &nqn("other"), Digests::NONE, 4));
    let began = Instant::now();
    daemon.ok(&["drive", "create", "new", "--memory", "1MiB"]);
    let took = began.elapsed();
    drop(daemon.host("new"));
    daemon.ok(&["drive", "delete", "new"]);
    daemon.ok(&["drive", "list"]);
    took
}

/// Starts a daemon with these drives and three more: `good` and `late` for machines, and `other` for hosts.
fn daemon(drives: &str) -> (Daemon, SocketAddr) {
    let address = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port");
    let beside = [drive("good", ""), drive("late", ""), remote("other")].concat();
    (Daemon::start(&format!("[tcp]\nlisten = [\"{address}\"]\n{beside}{drives}")), address)
}

/// Maps a new file in each of `count` regions. Returns how many were taken.
fn map_files(peer: &mut Peer, count: usize) -> usize {
    let mut taken = 0;
    for batch in (0..count).collect::<Vec<_>>().chunks(BATCH) {
        let send = |number: &usize| {
            let file = memfd_create("sluice-test-crowd", MemfdFlags::CLOEXEC).expect("a file in memory");
            ftruncate(&file, PAGE).expect("room");
            let address = *number as u64 * PAGE;
            let map = DmaMap { argsz: 32, flags: 3, offset: 0, address, size: PAGE };
            peer.send(Command::DMA_MAP, map.as_bytes(), &[file.as_fd()])
        };
        let ids: Vec<u16> = batch.iter().map(send).collect();
        taken += ids.into_iter().filter(|id| peer.reply_to(*id).is_ok()).count();
    }
    taken
}

/// Checks a limit of mappings. Without it, 127 monitors with 256 files each had all mappings that a process
/// may have.
#[test]
fn monitors_with_very_many_files_leave_mappings_to_others() {
    const MONITORS: usize = 127;
    let names: Vec<String> = (0..MONITORS).map(|number| format!("greedy-{number}")).collect();
    let drives: String = names.iter().map(|name| drive(name, "")).collect();
    let (mut daemon, address) = daemon(&drives);
    let mut host = daemon.host("good");
    let mut disk = namespace(&mut host, 1);
    let alone = others_go_on(&daemon, &mut disk, address, 1);
    let connect = |name: &String| {
        let mut peer = Peer::connect(daemon.socket(name).parent().expect("a folder"));
        peer.negotiate(b"{\"capabilities\":{\"max_msg_fds\":16}}\0");
        let taken = map_files(&mut peer, MAX_FILES);
        (peer, taken)
    };
    let monitors: Vec<(Peer, usize)> = names.iter().map(connect).collect();
    let all: usize = monitors.iter().map(|(_, taken)| taken).sum();
    assert_eq!(monitors[0].1, MAX_FILES, "the first is served in full");
    assert!(monitors[MONITORS - 1].1 < MAX_FILES, "the last is not");
    let beside = others_go_on(&daemon, &mut disk, address, 2);
    println!("a drive is created in {alone:?}, and in {beside:?} beside {all} files of {MONITORS} monitors");
    drop((monitors, disk, host));
    daemon.stop();
}

/// Raises the limit of this process, and sets that of the daemon to `most`.
fn limit_files(daemon: &Daemon, most: u64) {
    let mut ours = getrlimit(Resource::Nofile);
    ours.current = ours.maximum;
    setrlimit(Resource::Nofile, ours).expect("it is allowed");
    let most = most.min(ours.maximum.unwrap_or(most));
    let limit = Rlimit { current: Some(most), maximum: Some(most) };
    prlimit(Pid::from_raw(daemon.pid() as i32), Resource::Nofile, limit).expect("it is ours");
}

/// Connects queue after queue of a host, as many as are accepted. Returns none if the host is refused.
fn connect_all(address: SocketAddr, subnqn: &str, number: usize) -> Option<Vec<Link>> {
    let mut links = Vec::new();
    let mut id = [7; 16];
    id[..8].copy_from_slice(&(number as u64).to_le_bytes());
    let hostnqn = format!("nqn.2026-11.example.sluice:host-{number}");
    let admin = Connect { hostnqn, hostid: id, ..Connect::admin(subnqn) };
    let mut link = Link::open(address, Digests::NONE);
    let response = link.connect(&admin);
    if response.status() != Status::SUCCESS {
        return None;
    }
    let cntlid = response.dw0 as u16;
    link.enable();
    links.push(link);
    for qid in 1..128 {
        let mut link = Link::open(address, Digests::NONE);
        if link.connect(&Connect { qid, cntlid, ..admin.clone() }).status() != Status::SUCCESS {
            break;
        }
        links.push(link);
    }
    Some(links)
}

/// Checks a limit of connections. Without it, 75 hosts with 9,600 connections had all descriptors.
#[test]
fn connections_of_very_many_hosts_leave_descriptors_to_others() {
    let (hosts, files) = if is_full() { (75, 20_000) } else { (30, 1536) };
    let names = ["greedy-1", "greedy-2", "greedy-3", "greedy-4"];
    let (mut daemon, address) = daemon(&names.map(remote).concat());
    let mut host = daemon.host("good");
    let mut disk = namespace(&mut host, 1);
    let alone = others_go_on(&daemon, &mut disk, address, 1);
    limit_files(&daemon, files);
    let mut connections = Vec::new();
    for number in 0..hosts {
        // The hosts connect to one drive after the other. A drive that accepts no further host has had its
        // share.
        let name = names[number * names.len() / hosts];
        connections.extend(connect_all(address, &nqn(name), number).unwrap_or_default());
    }
    let taken = descriptors(&daemon);
    assert!(taken >= files / 2, "the first drive is served in full: {taken}");
    let beside = others_go_on(&daemon, &mut disk, address, 2);
    println!(
        "a drive is created in {alone:?}, and in {beside:?} beside {} connections with {taken} of {files} descriptors",
        connections.len()
    );
    drop((connections, disk, host));
    daemon.stop();
}

/// Sends the same request as often as it is taken, and reads no answer. Returns how often.
fn ask_without_reading(stream: &mut UnixStream) -> usize {
    let question = RegionInfo { argsz: 4096, index: 0, ..RegionInfo::default() };
    let header = Header::command(1, Command::DEVICE_GET_REGION_INFO);
    let header = Header { size: (Header::SIZE + RegionInfo::SIZE) as u32, ..header };
    let message = [header.as_bytes(), question.as_bytes()].concat();
    let (mut asked, began) = (0, Instant::now());
    stream.set_write_timeout(Some(std::time::Duration::from_millis(200))).expect("it is ours");
    while began.elapsed() < LIMIT {
        match stream.write_all(&message) {
            Ok(()) => asked += 1,
            Err(error) => {
                let kinds = [ErrorKind::WouldBlock, ErrorKind::BrokenPipe, ErrorKind::ConnectionReset];
                assert!(kinds.contains(&error.kind()), "{error}");
                break;
            }
        }
    }
    asked
}

/// Checks a limit of unread answers. Without it, seven clients that never read had 3,400 descriptors each.
#[test]
fn clients_that_never_read_leave_descriptors_to_others() {
    const SOCKETS: usize = 7;
    let greedy = drive("greedy", &format!("[drive.vfio_user]\nsockets = {SOCKETS}\n"));
    let (mut daemon, address) = daemon(&greedy);
    let mut host = daemon.host("good");
    let mut disk = namespace(&mut host, 1);
    let alone = others_go_on(&daemon, &mut disk, address, 1);
    let before = descriptors(&daemon);
    let connect = |number: usize| {
        let first = daemon.socket("greedy");
        let folder = first.parent().expect("a folder");
        let folder = if number == 1 { folder.to_owned() } else { folder.join(number.to_string()) };
        // A host that polls gets the file of the doorbells with each answer.
        let mut peer = Peer::connect(&folder);
        peer.negotiate(b"");
        let (_, _, fds) = peer.region_info(0, 4096);
        assert_eq!(fds.len(), 1, "the answer has a descriptor");
        let mut stream = UnixStream::from(peer.as_fd().try_clone_to_owned().expect("a descriptor"));
        (ask_without_reading(&mut stream), peer)
    };
    let clients: Vec<(usize, Peer)> = (1..=SOCKETS).map(connect).collect();
    let asked: usize = clients.iter().map(|(asked, _)| asked).sum();
    let kept = descriptors(&daemon).saturating_sub(before);
    assert!(kept as usize <= SOCKETS * (sluice_vfio_user::MAX_UNSENT_FDS + 8), "{kept}");
    let beside = others_go_on(&daemon, &mut disk, address, 2);
    println!(
        "a drive is created in {alone:?}, and in {beside:?} beside {SOCKETS} clients that left {asked} answers: {kept} descriptors"
    );
    drop((clients, disk, host));
    daemon.stop();
}

/// Returns the marks of one namespace, as many as it may have.
fn marks(nsid: u32) -> Uncorrectable {
    let ranges = (0..512).map(|range| [range << 20, (range << 20) + 512]).collect();
    Uncorrectable { drive: "busy".to_owned(), nsid, ranges }
}

/// Marks a block and writes it again, until `is_over`.
fn toggle(host: &mut Controller, nsid: u32, is_over: &AtomicBool, changes: &AtomicU64) {
    let queue = host.create_queue_pair(1, QueueLayout::default(), None).expect("a queue pair");
    let mut disk = Namespace::open(host, nsid, queue).expect("an active namespace");
    let mark =
        SubmissionEntry { opcode: io::WRITE_UNCORRECTABLE, nsid, cdw10: 64 << 11, ..Default::default() };
    while !is_over.load(Relaxed) {
        let marked = disk.command(mark).expect("the controller is there").status();
        assert!(marked.is_success(), "{marked:?}");
        disk.write(64 << 11, &[1; 512]).expect("it is whole again");
        changes.fetch_add(2, Relaxed);
    }
}

/// Checks that marks do not delay orders. Two hosts that changed one mark again and again delayed an operator
/// by 1.8 to 2.8 s.
#[test]
fn hosts_that_change_marks_without_end_hold_up_no_operator() {
    const NAMESPACES: u32 = 120;
    let one = "[[drive.namespace]]\ntarget = \"null\"\nsize = \"1GiB\"\n".to_owned();
    let busy = "[[drive]]\nname = \"busy\"\n[drive.vfio_user]\nsockets = 2\n".to_owned();
    let (mut daemon, address) = daemon("");
    let mut config = std::fs::read_to_string(daemon.config()).expect("it is ours");
    daemon.stop();
    config += &(busy + &one.repeat(NAMESPACES as usize));
    std::fs::write(daemon.config(), config).expect("room");
    // The state is that of a daemon whose hosts marked as much as a drive may have.
    let state = daemon.folder.path().join("state");
    let saved = Saved { uncorrectable: (1..=NAMESPACES).map(marks).collect(), ..Saved::default() };
    StateFile::open(&state).expect("nobody has it").store(&saved).expect("room");
    daemon.restart();
    let bytes = std::fs::metadata(state.join("hosts/busy.state")).expect("it is there").len();
    assert!(bytes > 1 << 20, "{bytes}");
    let mut host = daemon.host("good");
    let mut disk = namespace(&mut host, 1);
    let alone = others_go_on(&daemon, &mut disk, address, 1);
    let second = daemon.folder.path().join("drives/busy/2/cntrl");
    let transport = VfioUser::connect(&second, Mode::Trapped, LIMIT).expect("it is let in");
    let settings = Settings { timeout: LIMIT, ..Settings::default() };
    let second = Controller::start(Arc::new(transport), settings).expect("the controller becomes ready");
    let (is_over, changes) = (&AtomicBool::new(false), &AtomicU64::new(0));
    let mut hosts = [daemon.host("busy"), second];
    let beside = std::thread::scope(|scope| {
        for (nsid, host) in (1..).zip(&mut hosts) {
            scope.spawn(move || toggle(host, nsid, is_over, changes));
        }
        let beside = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            (2..7).map(|round| others_go_on(&daemon, &mut disk, address, round)).max()
        }));
        is_over.store(true, Relaxed);
        beside.expect("others go on")
    });
    let changes = changes.load(Relaxed);
    assert!(changes > 0, "nothing changed meanwhile");
    println!(
        "a drive is created in {alone:?}, and in {:?} at most beside {changes} changes of marks; the file has {bytes} bytes",
        beside.expect("there were rounds")
    );
    drop((hosts, disk, host));
    daemon.stop();
}
