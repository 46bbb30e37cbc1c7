//! One drive with three hosts at once: two virtual machines, each with a socket, and one on the network. The
//! second virtual machine is killed again and again. The others have the right data, and see each other's.

use crate::common::{Daemon, LIMIT, wait_for};
use crate::function::Verified;
use crate::tcp_host::{Connect, Host};
use crate::vmm::{belongings, kill, start_at};
use sluice_functions::Random;
use sluice_host::{Controller, Mode, Namespace, QueueLayout, Settings, VfioUser};
use sluice_nvme::Status;
use sluice_nvme_tcp::Digests;
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

const NQN: &str = "nqn.2026-11.example.sluice:many";
const KILLS: u64 = 40;
/// First block behind the blocks of the monitors.
const FIRST: u64 = 4096;

/// Starts two daemons: a drive with two namespaces on a device of the other daemon, which maps the hosts'
/// memory, too.
fn daemons() -> (Daemon, Daemon, SocketAddr) {
    let lower = Daemon::start(
        "[[drive]]\nname = \"disk\"\n[[drive.namespace]]\ntarget = \"file\"\npath = \"disk.img\"\nsize = \"32MiB\"\n",
    );
    let device = lower.socket("disk").display().to_string();
    let address = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a port");
    let namespace = |keys: &str| {
        format!("[[drive.namespace]]\ntarget = \"nvme\"\nnvme = {{ vfio_user = \"{device}\", {keys} }}\n")
    };
    let upper = Daemon::start(&format!(
        "[tcp]\nlisten = [\"{address}\"]\n[[drive]]\nname = \"disk\"\n[drive.vfio_user]\nsockets = 2\n\
         [drive.tcp]\nnqn = \"{NQN}\"\n{}{}",
        namespace("blocks = 16384"),
        namespace("first_block = 16384")
    ));
    (lower, upper, address)
}

fn second_socket(daemon: &Daemon) -> PathBuf {
    daemon.folder.path().join("drives/disk/2/cntrl")
}

/// Connects a virtual machine to the second socket.
fn second(daemon: &Daemon) -> Controller {
    let transport = VfioUser::connect(&second_socket(daemon), Mode::Trapped, LIMIT).expect("it is let in");
    let settings = Settings { timeout: LIMIT, ..Settings::default() };
    Controller::start(Arc::new(transport), settings).expect("the controller becomes ready")
}

fn open(controller: &mut Controller, nsid: u32) -> Namespace {
    let queue =
        controller.create_queue_pair(nsid as u16, QueueLayout::default(), None).expect("a queue pair");
    Namespace::open(controller, nsid, queue).expect("an active namespace")
}

/// Returns the processor time of a process, in the kernel's ticks.
pub(crate) fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let (_, fields) = stat.rsplit_once(')').expect("its name is in brackets");
    let ticks = |at: usize| fields.split_whitespace().nth(at).and_then(|it| it.parse::<u64>().ok());
    ticks(11).expect("utime") + ticks(12).expect("stime")
}

#[test]
fn a_host_that_is_killed_disturbs_no_other_of_the_drive() {
    let (_lower, mut daemon, address) = daemons();
    let mut machine = second(&daemon);
    let mut shared = open(&mut machine, 1);
    let mut verified = Verified::new(open(&mut machine, 2));
    let mut remote = Host::with(address, Connect::admin(NQN), Digests::NONE, 1);
    assert_eq!(remote.cntlid, 3, "after those of the sockets");
    let shown = daemon.ok(&["drive", "show", "disk"]);
    assert!(shown.contains("connected: 1 over vfio-user") && shown.contains(&Connect::admin(NQN).hostnqn));
    assert!(shown.contains("disk/cntrl; ") && shown.contains("disk/2/cntrl"), "{shown}");
    let over = Arc::new(AtomicBool::new(false));
    let is_over = Arc::clone(&over);
    let here = std::thread::spawn(move || {
        while !is_over.load(Relaxed) {
            verified.work(10).expect("every command succeeds");
        }
        verified.all_is_well();
        machine
    });
    let is_over = Arc::clone(&over);
    let there = std::thread::spawn(move || {
        let mut round = 0u8;
        while !is_over.load(Relaxed) {
            round = round.wrapping_add(1);
            let data = vec![round; 32 << 10];
            assert_eq!(remote.io[0].write(1, FIRST, &data), Status::SUCCESS);
            assert!(remote.io[0].read(2, FIRST, 32 << 10) == Ok(data), "round {round}");
        }
        (remote, round)
    });
    let (mut random, mut acknowledged, mut before) = (Random::new(7), BTreeMap::new(), None);
    for number in 0..KILLS {
        let after = Duration::from_micros(random.below(20_000));
        let monitor = start_at(&daemon.socket("disk"), (number + 1) << 32);
        acknowledged.extend(kill(monitor, after, number % 2 == 0));
        if number == KILLS / 2 {
            before = Some(belongings(daemon.pid()));
        }
    }
    over.store(true, Relaxed);
    let machine = here.join().expect("the virtual machine is well");
    let (mut remote, round) = there.join().expect("the host on the network is well");
    // Each host sees the writes of the others.
    let mut read = [0; 512];
    shared.read(FIRST, &mut read).expect("it is in range");
    assert_eq!(read, [round; 512]);
    for (&block, &number) in &acknowledged {
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
        shared.read(block, &mut read).expect("it is in range");
        assert!(word(&read) >= number, "block {block}");
        assert_eq!(remote.io[0].read(3, block, 512).as_deref(), Ok(&read[..]), "block {block}");
    }
    assert!(acknowledged.len() > 50, "{} writes are no load", acknowledged.len());
    let (descriptors, _) = before.expect("half of it was done");
    wait_for("the last descriptor is closed", || belongings(daemon.pid()).0 <= descriptors + 4);
    // Three idle hosts use no processor time.
    wait_for("the daemon sleeps", || {
        let before = ticks(daemon.pid());
        std::thread::sleep(Duration::from_millis(100));
        ticks(daemon.pid()) == before
    });
    // The stop disconnects all hosts, and leaves no socket behind.
    daemon.stop();
    assert!(remote.admin.is_over());
    assert!(!daemon.folder.path().join("drives/disk").exists());
    drop((shared, machine));
}
