//! Limits of the environment. Each ends the command or the order that meets it, and neither the daemon nor
//! its other drives.

use crate::common::{Daemon, namespace, wait_for};
use crate::tcp_host::{Connect, HOSTID, HOSTNQN, Host, Link, fabrics, in_capsule};
use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use sluice_host::Namespace;
use sluice_nvme::fabrics::{CNTLID_DYNAMIC, ConnectData, Fctype};
use sluice_nvme::opcode::{admin, io};
use sluice_nvme::{Status, SubmissionEntry};
use sluice_nvme_tcp::{Digests, Pdu};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use zerocopy::IntoBytes;

const NQN: &str = "nqn.2026-11.example.sluice:limited";
const MIB: u64 = 1 << 20;

const GOOD: &str = "[[drive]]\nname = \"good\"\n[[drive.namespace]]\ntarget = \"memory\"\nsize = \"4MiB\"\n";

const FILE: &str = "[[drive]]\nname = \"file\"\n[[drive.namespace]]\ntarget = \"file\"\npath = \"disk.img\"\n\
                    size = \"16MiB\"\n";

/// Sets a limit of a daemon at work.
fn limit(daemon: &Daemon, resource: Resource, value: u64) {
    let pid = Pid::from_raw(daemon.pid() as i32);
    // The hard limit of descriptors cannot be above the kernel's own.
    let maximum = (resource == Resource::Nofile).then_some(4096);
    prlimit(pid, resource, Rlimit { current: Some(value), maximum }).expect("it is ours");
}

fn unlimited(daemon: &Daemon, resource: Resource) {
    let pid = Pid::from_raw(daemon.pid() as i32);
    prlimit(pid, resource, Rlimit { current: None, maximum: None }).expect("it is ours");
}

/// Returns the bytes of address space that a daemon has.
fn address_space(daemon: &Daemon) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("VmSize:")).expect("a line");
    line.split_ascii_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a number") << 10
}

pub(crate) fn descriptors(daemon: &Daemon) -> u64 {
    std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).expect("it runs").count() as u64
}

/// Checks that another drive works without errors.
pub(crate) fn is_served(disk: &mut Namespace, round: u8) {
    disk.write(0, &[round; 8192]).expect("nothing is wrong with it");
    disk.flush().expect("nothing is wrong with it");
    let mut bytes = [0; 8192];
    disk.read(0, &mut bytes).expect("nothing is wrong with it");
    assert!(bytes == [round; 8192]);
}

fn status(result: Result<(), sluice_host::Error>) -> Status {
    result.expect_err("it is beyond the limit").status().expect("the controller is there")
}

#[test]
fn a_limit_of_file_sizes_fails_commands_and_orders_alone() {
    let address = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port");
    let tcp = format!(
        "[tcp]\nlisten = [\"{address}\"]\n[[drive]]\nname = \"far\"\n[drive.tcp]\nnqn = \"{NQN}\"\n\
         [[drive.namespace]]\ntarget = \"memory\"\nsize = \"4MiB\"\n"
    );
    let mut daemon = Daemon::start(&[&tcp, GOOD, FILE].concat());
    let (mut good_host, mut file_host) = (daemon.host("good"), daemon.host("file"));
    let (mut good, mut file) = (namespace(&mut good_host, 1), namespace(&mut file_host, 1));
    limit(&daemon, Resource::Fsize, 4 * MIB);
    file.write(0, &[7; 4096]).expect("it is within the limit");
    assert!(status(file.write(6 * MIB / 512, &[7; 4096])).same_code(Status::CAPACITY_EXCEEDED));
    file.flush().expect("what was written is durable");
    is_served(&mut good, 1);
    let image = daemon.folder.path().join("new.img").display().to_string();
    let refused = daemon.fails(&["drive", "create", "new", "--file", &image, "--size", "64MiB"]);
    assert!(refused.contains("File too large") && refused.contains("prlimit --fsize"), "{refused}");
    let refused = daemon.fails(&["drive", "resize", "file", "--size", "64MiB"]);
    assert!(refused.contains("File too large"), "{refused}");
    is_served(&mut good, 2);

    // An association of a host needs a file in memory, too.
    limit(&daemon, Resource::Fsize, 64 << 10);
    let mut link = Link::open(address, Digests::NONE);
    let data = ConnectData::new(HOSTID, CNTLID_DYNAMIC, NQN, HOSTNQN);
    let entry =
        SubmissionEntry { dptr: in_capsule(ConnectData::SIZE as u32), cdw11: 31, ..fabrics(Fctype::CONNECT) };
    link.submit(&entry, data.as_bytes());
    // The Connect is refused by a status, or by the end of the connection.
    if let Some((Pdu::Response(answer), _)) = link.next() {
        assert_ne!(answer.status(), Status::SUCCESS);
    }
    drop(link);
    let refused = daemon.fails(&["drive", "create", "null", "--null", "64MiB"]);
    assert!(refused.contains("File too large"), "{refused}");
    is_served(&mut good, 3);
    unlimited(&daemon, Resource::Fsize);
    drop(Host::start(address, NQN, Digests::NONE, 1));
    file.write(6 * MIB / 512, &[8; 4096]).expect("there is no limit any more");
    daemon.ok(&["drive", "create", "null", "--null", "64MiB"]);
    let log = daemon.log();
    assert!(log.contains("beyond the limit of file sizes"), "{log}");
    assert!(log.contains("an order failed"), "{log}");
    drop((good, good_host, file, file_host));
    daemon.stop();
}

#[test]
fn a_daemon_starts_under_a_limit_of_file_sizes_and_says_what_it_cannot_open() {
    let mut daemon = Daemon::start("");
    daemon.stop();
    daemon.declare("", &[GOOD, FILE].concat());
    // The limit is too low for a drive's shared memory, and for the file.
    daemon.restart_by(&["prlimit", "--fsize=1048576:unlimited"]);
    let list = daemon.ok(&["drive", "list"]);
    assert!(list.contains("failed"), "{list}");
    wait_for("the log", || daemon.log().contains("File too large"));
    unlimited(&daemon, Resource::Fsize);
    for name in ["good", "file"] {
        daemon.ok(&["drive", "open", name]);
        let mut host = daemon.host(name);
        is_served(&mut namespace(&mut host, 1), 5);
    }
    daemon.stop();
}

/// Checks that changes that cannot be stored are refused in words. No data is lost, and no message has a Rust
/// structure.
#[test]
fn what_the_state_folder_cannot_store_is_refused_and_costs_no_data() {
    let daemon = Daemon::start(FILE);
    let mut host = daemon.host("file");
    let mut disk = namespace(&mut host, 1);
    is_served(&mut disk, 7);
    // A folder of that name keeps the file from being created.
    let blocked = daemon.folder.path().join("state/drives.state.new");
    std::fs::create_dir(&blocked).expect("room");
    let uncorrectable = SubmissionEntry { opcode: io::WRITE_UNCORRECTABLE, nsid: 1, ..Default::default() };
    let refused = disk.command(uncorrectable).expect("the controller is there").status();
    assert!(refused.same_code(Status::INTERNAL_ERROR), "{refused:?}");
    let format = SubmissionEntry { opcode: admin::FORMAT_NVM, nsid: 1, ..Default::default() };
    host.admin(format).expect_err("it cannot be remembered");
    let sanitize = SubmissionEntry { opcode: admin::SANITIZE, cdw10: 2, ..Default::default() };
    host.admin(sanitize).expect_err("it cannot be remembered");
    let image = daemon.folder.path().join("new.img");
    let orders: [&[&str]; 3] = [
        &["drive", "create", "new", "--file", &image.display().to_string(), "--size", "1MiB"],
        &["drive", "resize", "file", "--size", "32MiB"],
        &["drive", "resize", "file", "--size", "8MiB", "--shrink"],
    ];
    for order in orders {
        let refused = daemon.fails(order);
        assert!(refused.contains("state"), "{refused}");
    }
    assert!(!image.exists(), "what the order made is taken away");
    let mut bytes = [0; 8192];
    disk.read(0, &mut bytes).expect("nothing is wrong with it");
    assert!(bytes == [7; 8192], "a refused command took data");
    std::fs::remove_dir(&blocked).expect("it is empty");
    daemon.ok(&["drive", "resize", "file", "--size", "32MiB"]);
    is_served(&mut disk, 8);
    let log = daemon.log();
    assert!(log.contains("was not formatted, and keeps its data"), "{log}");
    assert!(!log.contains("may have lost data"), "{log}");
    for printed in [" { ", "Some(", "None", "Os {", "Err(", "ApiError"] {
        assert!(!log.contains(printed), "{printed} in {log}");
    }
}

/// Checks that the API answers a page that takes no order thread, which shows that the daemon has started
/// completely.
fn answers_without_an_order(daemon: &Daemon) {
    let mut stream = UnixStream::connect(daemon.api()).expect("it listens");
    stream
        .write_all(b"GET /openapi.json HTTP/1.1\r\nHost: sluice\r\nConnection: close\r\n\r\n")
        .expect("it is read");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[test]
fn limits_of_memory_and_descriptors_fail_orders_alone() {
    let mut daemon = Daemon::start(GOOD);
    let mut host = daemon.host("good");
    let mut good = namespace(&mut host, 1);
    let folder = daemon.folder.path().display().to_string();
    let file = format!("{folder}/new.img");
    let orders: [&[&str]; 3] = [
        &["drive", "create", "file", "--file", &file, "--size", "64MiB"],
        &["drive", "create", "memory", "--memory", "64MiB"],
        &["drive", "create", "null", "--null", "64MiB"],
    ];
    answers_without_an_order(&daemon);
    // The limits do not suffice for the stack of a thread, at the daemon's very first order.
    for (round, resource, value) in [
        (1, Resource::As, address_space(&daemon) + (512 << 10)),
        (2, Resource::Nofile, descriptors(&daemon) + 3),
    ] {
        limit(&daemon, resource, value);
        for order in orders {
            let refused = daemon.fails(order);
            assert!(refused.contains("(os error "), "{refused}\n{}", daemon.log());
            is_served(&mut good, round);
        }
        assert!(daemon.ok(&["drive", "list"]).contains("good"));
        match resource {
            Resource::Nofile => limit(&daemon, resource, 1024),
            _ => unlimited(&daemon, resource),
        }
    }
    for order in orders {
        daemon.ok(order);
    }
    drop((good, host));
    daemon.stop();
}

#[test]
fn a_daemon_that_may_lock_no_memory_serves() {
    let mut daemon = Daemon::start("");
    daemon.stop();
    daemon.declare("", &[GOOD, FILE].concat());
    daemon.restart_by(&["prlimit", "--memlock=0"]);
    for name in ["good", "file"] {
        let mut host = daemon.host(name);
        is_served(&mut namespace(&mut host, 1), 1);
    }
    daemon.stop();
}

#[test]
fn the_limit_of_processor_time_is_an_order_to_stop() {
    let mut daemon = Daemon::start(FILE);
    let mut host = daemon.host("file");
    is_served(&mut namespace(&mut host, 1), 1);
    drop(host);
    daemon.signal(Signal::XCPU);
    assert!(daemon.wait().success());
    assert!(daemon.log().contains("the limit of processor time"), "{}", daemon.log());
}

#[test]
fn a_daemon_that_was_stopped_for_a_while_goes_on() {
    let mut daemon = Daemon::start(&[GOOD, FILE].concat());
    let (mut good_host, mut file_host) = (daemon.host("good"), daemon.host("file"));
    let (mut good, mut file) = (namespace(&mut good_host, 1), namespace(&mut file_host, 1));
    for round in 1..4 {
        daemon.signal(Signal::STOP);
        let stat = format!("/proc/{}/stat", daemon.pid());
        wait_for("it stops", || std::fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") T ")));
        std::thread::sleep(std::time::Duration::from_millis(300));
        daemon.signal(Signal::CONT);
        is_served(&mut good, round);
        is_served(&mut file, round);
    }
    drop((good, good_host, file, file_host));
    daemon.stop();
}

/// Checks that hosts with as many connections as possible to one drive leave descriptors for others.
#[test]
fn hosts_of_one_drive_leave_descriptors_for_others() {
    const OTHER: &str = "nqn.2026-11.example.sluice:other";
    let address = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port");
    let drive = |name: &str, nqn: &str| {
        format!(
            "[[drive]]\nname = \"{name}\"\n[drive.tcp]\nnqn = \"{nqn}\"\nmax_hosts = 24\nmax_queues = 128\n\
             [[drive.namespace]]\ntarget = \"memory\"\nsize = \"4MiB\"\n"
        )
    };
    let listen = format!("[tcp]\nlisten = [\"{address}\"]\n");
    let mut daemon =
        Daemon::start(&[listen, drive("greedy", NQN), drive("other", OTHER), GOOD.into()].concat());
    // Half of the limit leaves the first drive some sixty connections.
    limit(&daemon, Resource::Nofile, 2 * (descriptors(&daemon) + 64));
    // The host connects until a queue is refused, or its connection is not even accepted.
    let mut greedy = Host::start(address, NQN, Digests::NONE, 1);
    let refused = (2..=128u16).map(|qid| {
        let mut link = Link::open(address, Digests::NONE);
        let connect = Connect { qid, cntlid: greedy.cntlid, ..Connect::admin(NQN) };
        let status = link.connect(&connect).status();
        greedy.io.push(link);
        status
    });
    let refused = refused.into_iter().find(|status| *status != Status::SUCCESS);
    assert_eq!(refused, Some(Status::CONNECT_CONTROLLER_BUSY));
    let connected = greedy.io.len();
    assert!(connected >= 32, "{connected}");
    let other = Host::start(address, OTHER, Digests::NONE, 8);
    let mut host = daemon.host("good");
    is_served(&mut namespace(&mut host, 1), 1);
    daemon.ok(&["drive", "create", "new", "--memory", "1MiB"]);
    daemon.ok(&["drive", "list"]);
    let log = daemon.log();
    assert!(log.contains("more than half of the daemon's descriptors are in use"), "{log}");
    drop((greedy, other, host));
    daemon.stop();
}
