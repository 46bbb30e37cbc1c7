//! Drives that move from reactor to reactor while they are in use: no command is lost, none fails, and every
//! block has the written data.

use crate::comings::{Stop, begin_anew, recreate_and_format};
use crate::common::{Daemon, LIMIT, namespace, wait_for};
use crate::function::functions;
use crate::load::{Load, block_on};
use crate::tunnel::KEY;
use sluice_api::client::Client;
use sluice_api::{AttachRequest, DriveMoveRequest, FunctionList};
use sluice_control::drives::DriveView;
use sluice_spec::{Place, UifSpec};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Instant;

const NQN: &str = "nqn.2026-11.example.sluice:disk";
pub(crate) const HOSTNQN: &str = "nqn.2026-11.example.sluice:traveller";
pub(crate) const HOST_KEY: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
pub(crate) const CONTROLLER_KEY: &str = "DHHC-1:00:ICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj/jBqb2:";
const TWO: &str = "cores = [0, 1]\nbalance = false";

/// Returns the number of moves of a drive, which `SLUICE_DRIVE_MOVES` can raise.
fn moves() -> usize {
    std::env::var("SLUICE_DRIVE_MOVES").ok().and_then(|count| count.parse().ok()).unwrap_or(300)
}

/// Starts a daemon of two reactors.
fn start(drives: &str) -> Daemon {
    let mut daemon = Daemon::start("");
    daemon.stop();
    daemon.declare(TWO, drives);
    daemon.restart();
    daemon
}

/// Returns a drive on a file behind a function in a process, for virtual machines and for hosts at this
/// address.
fn disk(address: &str) -> String {
    format!(
        "[tcp]\nlisten = [\"{address}\"]\n[[drive]]\nname = \"disk\"\n[drive.tcp]\nnqn = \"{NQN}\"\n[drive.vfio_user]\nsockets = 1\n\
         [[drive.namespace]]\ntarget = \"file\"\npath = \"disk.img\"\nsize = \"16MiB\"\n\
         functions = [ {{ kind = \"uif\", function = \"pass\" }} ]\n"
    )
}

fn far(address: &str) -> String {
    format!(
        "[[drive]]\nname = \"far\"\n[[drive.namespace]]\ntarget = \"nvme-tcp\"\n\
         nvme_tcp = {{ address = \"{address}\", subnqn = \"{NQN}\" }}\n"
    )
}

fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").to_string()
}

/// Moves a drive. Tries again while the layers below it are slow, which keeps the drive on its reactor.
async fn move_to(client: &Client, drive: &str, reactor: usize) {
    let (path, start) = (format!("/v1/drives/{drive}/move"), Instant::now());
    loop {
        match client.post::<DriveView>(&path, &DriveMoveRequest { reactor, queue: None }).await {
            Ok(view) => return assert_eq!(view.reactor, reactor),
            Err(problem) => {
                let is_slow = problem.error.contains("did not end within");
                assert!(is_slow && start.elapsed() < LIMIT, "{problem:?}");
            }
        }
    }
}

/// Moves a drive to and fro until `stop`, twice at least. Returns how often.
fn travel(daemon: &Daemon, drive: &str, stop: &AtomicBool) -> usize {
    let client = Client::new(daemon.api());
    block_on(async {
        let mut count = 0;
        while count < 2 || !stop.load(SeqCst) {
            count += 1;
            move_to(&client, drive, count % 2).await;
        }
        count
    })
}

/// Checks loads of several queues of two hosts: one over vfio-user, and one over the network, whose own drive
/// moves, too.
#[test]
fn drives_that_move_to_and_fro_under_load_lose_nothing() {
    let address = free_address();
    let lower = start(&disk(&address));
    let upper = start(&far(&address));
    let (mut near, mut remote) = (lower.host("disk"), upper.host("far"));
    let mut loads: Vec<Load> = (1..=4).map(|qid| Load::new(&mut near, qid, u64::from(qid))).collect();
    loads.extend((1..=2).map(|qid| Load::new(&mut remote, qid, 4 + u64::from(qid))));
    std::thread::scope(|scope| {
        let moving = |daemon: &Daemon, drive: &str| {
            let client = Client::new(daemon.api());
            block_on(async {
                for number in 1..=moves() {
                    move_to(&client, drive, number % 2).await;
                }
            });
        };
        let (lower, upper) = (&lower, &upper);
        let movers = [scope.spawn(move || moving(lower, "disk")), scope.spawn(move || moving(upper, "far"))];
        while !movers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            loads.iter_mut().for_each(|load| load.turn(true));
            std::thread::yield_now();
        }
        movers.into_iter().for_each(|mover| assert!(mover.join().is_ok(), "a move failed"));
    });
    loads.iter_mut().for_each(Load::end);
    let function = functions(&lower, "disk");
    let counted = ["deaths", "failed", "stray", "invalid", "timeouts"].map(|what| function[what].as_u64());
    assert_eq!(counted, [Some(0); 5], "{function}");
    let errors = lower.ok(&["drive", "show", "disk", "-o", "json"]);
    let view: DriveView = serde_json::from_str(&errors).expect("JSON");
    assert_eq!((view.counters.errors, view.reactor), (0, moves() % 2));
    assert!(!upper.log().contains("lost"), "the connection stayed:\n{}", upper.log());
}

/// Moves a drive while queues come and go, controllers are reset, memory is unmapped and namespaces are
/// formatted. Hosts disconnect without notice.
#[test]
fn a_drive_moves_while_its_hosts_come_and_go() {
    let daemon = start(&disk(&free_address()));
    let (stop, rounds) = (AtomicBool::new(false), AtomicUsize::new(0));
    let moved = std::thread::scope(|scope| {
        let mover = scope.spawn(|| travel(&daemon, "disk", &stop));
        let until = Stop(&stop);
        let client = Client::new(daemon.api());
        for round in 0..12 {
            let mut host = daemon.host("disk");
            let mut load = Load::new(&mut host, 1, 1);
            let mut other = Load::new(&mut host, 2, 2);
            while !load.is_verified() || !other.is_verified() {
                load.turn(true);
                other.turn(true);
                // Memory is mapped and unmapped.
                drop(host.memory().allocate(2 << 20).expect("memory"));
            }
            match round % 4 {
                // The host goes with commands in flight.
                0 => drop(host),
                1 => begin_anew(&mut host, [load, other]),
                2 => recreate_and_format(&mut host, [load, other]),
                _ => {
                    load.end();
                    other.end();
                    let function = UifSpec {
                        function: Some("pass".to_owned()),
                        place: Place::Process,
                        ..UifSpec::default()
                    };
                    let request = AttachRequest { function, nsid: 1, below: 1 };
                    block_on(async {
                        let functions = "/v1/drives/disk/functions";
                        client.post::<FunctionList>(functions, &request).await.expect("attached");
                        client.delete("/v1/drives/disk/functions/2").await.expect("detached");
                    });
                    host.shutdown().expect("shut down");
                }
            }
            rounds.fetch_add(1, SeqCst);
        }
        drop(until);
        mover.join().expect("every move was one")
    });
    assert!(moved >= 12, "{moved} moves in {} rounds", rounds.load(SeqCst));
}

/// Checks that acknowledged writes are there, wherever the drive was when its daemon died.
#[test]
fn a_daemon_that_dies_amid_moves_has_what_it_acknowledged() {
    let mut daemon = start(&disk(&free_address()));
    for round in 0..6u8 {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let mover = scope.spawn(|| travel(&daemon, "disk", &stop));
            let until = Stop(&stop);
            let mut host = daemon.host("disk");
            let mut disk = namespace(&mut host, 1);
            for block in 0..200 {
                disk.write(block, &[round * 20 + block as u8 % 7 + 1; 512]).expect("written");
            }
            drop(until);
            mover.join().expect("every move was one");
        });
        let (client, moved) = (Client::new(daemon.api()), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            let dying = async {
                let path = "/v1/drives/disk/move";
                for number in 0.. {
                    match client
                        .post::<DriveView>(path, &DriveMoveRequest { reactor: number % 2, queue: None })
                        .await
                    {
                        Ok(_) => moved.fetch_add(1, SeqCst),
                        Err(_) if moved.load(SeqCst) >= 5 => return,
                        Err(_) => 0,
                    };
                }
            };
            scope.spawn(|| block_on(dying));
            wait_for("moves", || moved.load(SeqCst) >= 5);
            daemon.signal(rustix::process::Signal::KILL);
        });
        daemon.wait();
        daemon.restart();
        let mut host = daemon.host("disk");
        let mut disk = namespace(&mut host, 1);
        for block in 0..200 {
            let mut read = [0; 512];
            disk.read(block, &mut read).expect("read");
            assert_eq!(read, [round * 20 + block as u8 % 7 + 1; 512], "round {round}, block {block}");
        }
    }
}

#[test]
fn a_move_is_said_and_one_that_cannot_be_is_refused() {
    let daemon = start(&disk(&free_address()));
    let from = daemon.ok(&["drive", "show", "disk"]);
    assert!(from.contains("reactor") && from.contains('0'), "{from}");
    let moved = daemon.ok(&["drive", "move", "disk", "--reactor", "1"]);
    assert!(moved.lines().any(|line| line.starts_with("reactor") && line.ends_with('1')), "{moved}");
    assert!(daemon.log().contains("drive disk moved from reactor 0 to reactor 1"), "{}", daemon.log());
    daemon.ok(&["drive", "move", "disk", "--reactor", "1"]);
    let said = daemon.fails(&["drive", "move", "disk", "--reactor", "2"]);
    assert!(said.contains("there is no reactor 2") && said.contains("there are 2"), "{said}");
    let said = daemon.fails(&["drive", "move", "nothing", "--reactor", "0"]);
    assert!(said.contains("there is no drive `nothing`"), "{said}");
}

/// Writes a file with a secret, which only its owner may read. Returns its path.
pub(crate) fn secret(daemon: &Daemon, name: &str, text: &str) -> String {
    let path = daemon.folder.path().join(name);
    std::fs::write(&path, format!("{text}\n")).expect("room on the disk");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("it is ours");
    path.display().to_string()
}

/// Checks encrypted connections of authenticated hosts, and a device behind a socket. Both ends of them move.
#[test]
fn drives_with_secrets_and_on_devices_move_at_both_ends() {
    let address = free_address();
    let mut lower = start("");
    let tls = secret(&lower, "tls", KEY);
    let [host, controller] =
        [("host", HOST_KEY), ("controller", CONTROLLER_KEY)].map(|(name, key)| secret(&lower, name, key));
    lower.stop();
    lower.declare(
        TWO,
        &format!(
            "[tcp]\nlisten_tls = [\"{address}\"]\n[[drive]]\nname = \"disk\"\n[drive.tcp]\nnqn = \"{NQN}\"\n\
             tls_keys = \"{tls}\"\n[[drive.tcp.hosts]]\nnqn = \"{HOSTNQN}\"\n\
             dhchap = {{ key = \"{host}\", controller_key = \"{controller}\" }}\n[drive.vfio_user]\nsockets = 1\n\
             [[drive.namespace]]\ntarget = \"file\"\npath = \"disk.img\"\nsize = \"16MiB\"\n"
        ),
    );
    lower.restart();
    let socket = lower.socket("disk").display().to_string();
    let upper = start(&format!(
        "[[drive]]\nname = \"far\"\n[[drive.namespace]]\ntarget = \"nvme-tcp\"\n[drive.namespace.nvme_tcp]\n\
         address = \"{address}\"\nsubnqn = \"{NQN}\"\nhostnqn = \"{HOSTNQN}\"\ntls_keys = \"{tls}\"\n\
         dhchap = {{ key = \"{host}\", controller_key = \"{controller}\" }}\n\
         [[drive]]\nname = \"device\"\n[[drive.namespace]]\ntarget = \"nvme\"\nnvme = {{ vfio_user = \"{socket}\" }}\n"
    ));
    let (mut far, mut device) = (upper.host("far"), upper.host("device"));
    let mut loads = [Load::new(&mut far, 1, 1), Load::new(&mut far, 2, 2), Load::new(&mut device, 1, 3)];
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (lower, upper) = (&lower, &upper);
        let movers = [(lower, "disk"), (upper, "far"), (upper, "device")].map(|(daemon, drive)| {
            let stop = &stop;
            scope.spawn(move || travel(daemon, drive, stop))
        });
        let until = Stop(&stop);
        let begun = Instant::now();
        while !loads.iter().all(Load::is_verified) && begun.elapsed() < LIMIT {
            loads.iter_mut().for_each(|load| load.turn(true));
            std::thread::yield_now();
        }
        drop(until);
        // A move waits for the commands in flight, which go on only if the loads are polled.
        while !movers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            loads.iter_mut().for_each(|load| load.turn(true));
        }
        let moved = movers.map(|mover| mover.join().expect("every move was one"));
        assert!(moved.iter().all(|moved| *moved > 1), "{moved:?} moves");
    });
    loads.iter_mut().for_each(Load::end);
    assert!(!upper.log().contains("lost"), "the connections stayed:\n{}", upper.log());
    let shown = lower.ok(&["drive", "show", "disk", "-o", "json"]);
    let view: DriveView = serde_json::from_str(&shown).expect("JSON");
    assert_eq!(
        (view.authenticated.as_slice(), view.counters.errors),
        (&[HOSTNQN.to_owned()][..], 0),
        "{shown}"
    );
    assert!(view.ciphers.iter().all(|cipher| cipher.contains("AES")), "{shown}");
}
