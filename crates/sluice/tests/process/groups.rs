//! Queue groups that move from reactor to reactor while they are in use: no command is lost, none fails, and
//! every block has the written data. Other operations of the host or the operator find all queues on one
//! reactor.

use crate::comings::{Stop, begin_anew, recreate_and_format};
use crate::common::{Daemon, LIMIT, namespace, wait_for};
use crate::load::{Load, block_on};
use sluice_api::client::Client;
use sluice_api::{DriveMoveRequest, ResizeRequest};
use sluice_control::drives::{DriveView, QueueView};
use sluice_host::{Controller, Mode};
use sluice_nvme::log::SmartHealth;
use sluice_nvme::{Cns, FeatureId, LogId, NSID_ALL};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Instant;
use zerocopy::FromBytes;

/// Returns the number of moves of a group, which `SLUICE_GROUP_MOVES` can raise.
fn moves() -> usize {
    std::env::var("SLUICE_GROUP_MOVES").ok().and_then(|count| count.parse().ok()).unwrap_or(300)
}

/// Starts a daemon of two reactors with a drive on a file.
fn start() -> Daemon {
    start_with("")
}

/// Starts a daemon of two reactors with a drive with functions on a file.
fn start_with(functions: &str) -> Daemon {
    of_two_reactors("16MiB", functions)
}

/// Starts a daemon of two reactors with a drive on a file, on the first reactor, and with `more`
/// configuration.
pub(crate) fn of_two_reactors(size: &str, more: &str) -> Daemon {
    let mut daemon = Daemon::start("");
    daemon.stop();
    let disk = format!(
        "[[drive]]\nname = \"disk\"\nreactor = 0\n\
         [[drive.namespace]]\ntarget = \"file\"\npath = \"disk.img\"\nsize = \"{size}\"\n"
    );
    daemon.declare("cores = [0, 1]\nbalance = false", &format!("{disk}{more}"));
    daemon.restart();
    daemon
}

/// Reasons of a move that failed because the storage is slow.
const SLOW: [&str; 2] = ["did not end in time", "did not come to their end"];

/// Moves a group. Tries again while its commands are slow. Returns none if the group stays for another
/// reason.
pub(crate) async fn try_move(client: &Client, queue: u16, reactor: usize) -> Option<DriveView> {
    let start = Instant::now();
    loop {
        let request = DriveMoveRequest { reactor, queue: Some(queue) };
        match client.post::<DriveView>("/v1/drives/disk/move", &request).await {
            Ok(view) => return Some(view),
            Err(problem)
                if SLOW.iter().any(|slow| problem.error.contains(slow)) && start.elapsed() < LIMIT => {}
            Err(problem) => {
                assert!(problem.error.contains("stays on its reactor"), "{problem:?}");
                return None;
            }
        }
    }
}

pub(crate) fn view(daemon: &Daemon) -> DriveView {
    let words = daemon.ok(&["drive", "show", "disk", "-o", "json"]);
    serde_json::from_str(&words).expect("JSON")
}

/// Moves groups to and fro until `stop`, where that is possible. Returns the number of moves that succeeded.
fn travel(daemon: &Daemon, stop: &AtomicBool) -> usize {
    let client = Client::new(daemon.api());
    block_on(async {
        let (mut moved, mut round) = (0, 0);
        while !stop.load(SeqCst) {
            round += 1;
            let gone = try_move(&client, 1 + (round % 3) as u16, usize::from(round % 4 != 0)).await;
            moved += usize::from(gone.is_some());
        }
        moved
    })
}

fn move_under_load(daemon: &Daemon, mode: Mode) {
    let mut host = daemon.host_with("disk", mode);
    let mut loads: Vec<Load> = (1..=3).map(|qid| Load::new(&mut host, qid, u64::from(qid))).collect();
    std::thread::scope(|scope| {
        let moving = || {
            let client = Client::new(daemon.api());
            block_on(async {
                for number in 0..moves() {
                    let (queue, reactor) = (1 + (number % 3) as u16, 1 - number / 3 % 2);
                    let view = try_move(&client, queue, reactor).await.expect("nothing keeps it");
                    let away = QueueView { queue, reactor };
                    assert_eq!(view.remote_queues.contains(&away), reactor == 1, "{:?}", view.remote_queues);
                }
            });
        };
        let mover = scope.spawn(moving);
        while !mover.is_finished() {
            loads.iter_mut().for_each(|load| load.turn(true));
            std::thread::yield_now();
        }
        assert!(mover.join().is_ok(), "a move failed");
    });
    let client = Client::new(daemon.api());
    block_on(try_move(&client, 2, 1)).expect("it goes once more");
    loads.iter_mut().for_each(Load::end);
    let submitted: u64 = loads.iter().map(|load| load.submitted).sum();
    // Queues on another reactor have counted their commands at the end of that reactor's turn.
    wait_for("all of them are counted", || view(daemon).counters.commands == submitted);
    let seen = view(daemon);
    assert_eq!(seen.counters.errors, 0);
    assert!(
        seen.reactor == 0 && seen.remote_queues.contains(&QueueView { queue: 2, reactor: 1 }),
        "{seen:?}"
    );
}

#[test]
fn groups_that_move_to_and_fro_under_load_lose_nothing() {
    move_under_load(&start(), Mode::Trapped);
}

#[test]
fn so_do_those_whose_doorbells_are_mapped() {
    move_under_load(&start(), Mode::Mapped);
}

/// Checks moves with a load on all of the functions' files.
#[test]
fn so_do_those_of_drives_with_functions_that_keep_nothing() {
    let file = |name, size| format!("{{ target = \"file\", path = \"{name}\", size = \"{size}\" }}");
    let stripe =
        format!("{{ kind = \"stripe\", chunk = \"16KiB\", layers = [ {} ] }}", file("b.img", "16MiB"));
    let range = "{ kind = \"range\", from = \"8KiB\" }";
    move_under_load(&start_with(&format!("functions = [ {range}, {stripe} ]\n")), Mode::Trapped);
    let concat = format!("{{ kind = \"concat\", layers = [ {} ] }}", file("c.img", "1MiB"));
    let range = "{ kind = \"range\", from = \"16200KiB\" }";
    move_under_load(&start_with(&format!("functions = [ {range}, {concat} ]\n")), Mode::Mapped);
}

#[test]
fn a_drive_with_a_function_that_keeps_something_stays_in_one_place() {
    let daemon = start_with("functions = [ { kind = \"delay\", read_us = 1 } ]\n");
    let mut host = daemon.host("disk");
    let _disk = namespace(&mut host, 1);
    let said = daemon.fails(&["drive", "move", "disk", "--queue", "1", "--reactor", "1"]);
    assert!(said.contains("work on one reactor at a time"), "{said}");
}

#[test]
fn a_drive_that_is_rid_of_such_a_function_may_be_in_two_places() {
    let daemon = start_with("functions = [ { kind = \"uif\", function = \"pass\", place = \"daemon\" } ]\n");
    let mut host = daemon.host("disk");
    let _disk = namespace(&mut host, 1);
    let to_one = ["drive", "move", "disk", "--queue", "1", "--reactor", "1"];
    assert!(daemon.fails(&to_one).contains("stays on its reactor"));
    daemon.ok(&["function", "detach", "disk"]);
    assert!(daemon.ok(&to_one).contains("queue 1 on 1"));
}

/// Moves queue groups while queues come and go, controllers are reset, memory is unmapped and namespaces are
/// formatted and resized. The drive moves, too, and hosts disconnect without notice.
#[test]
fn whatever_happens_finds_all_queues_in_one_place() {
    let daemon = start();
    let stop = AtomicBool::new(false);
    let moved = std::thread::scope(|scope| {
        let mover = scope.spawn(|| travel(&daemon, &stop));
        let until = Stop(&stop);
        let client = Client::new(daemon.api());
        for round in 0..15 {
            let mut host = daemon.host("disk");
            let mut load = Load::new(&mut host, 1, 1);
            let mut other = Load::new(&mut host, 2, 2);
            while !load.is_verified() || !other.is_verified() {
                load.turn(true);
                other.turn(true);
                if round % 3 == 0 {
                    // Memory is mapped and unmapped.
                    drop(host.memory().allocate(2 << 20).expect("memory"));
                }
            }
            match round % 5 {
                // The host goes with commands in flight.
                0 => drop(host),
                1 => begin_anew(&mut host, [load, other]),
                2 => recreate_and_format(&mut host, [load, other]),
                3 => {
                    let size = format!("{}MiB", 16 + round).parse().expect("a size");
                    let request = ResizeRequest { nsid: 1, size, shrink: false };
                    let resized = client.post::<DriveView>("/v1/drives/disk/resize", &request);
                    block_on(resized).expect("resized");
                    load.end();
                    other.end();
                }
                _ => {
                    let request = DriveMoveRequest { reactor: round % 2, queue: None };
                    let start = Instant::now();
                    while let Err(problem) =
                        block_on(client.post::<DriveView>("/v1/drives/disk/move", &request))
                    {
                        assert!(start.elapsed() < LIMIT, "{problem:?}");
                    }
                    load.end();
                    other.end();
                    host.shutdown().expect("shut down");
                }
            }
        }
        drop(until);
        mover.join().expect("every move was one")
    });
    assert!(moved >= 15, "{moved} moves");
}

/// Checks the health log, which monitoring programs read every second.
#[test]
fn health_that_is_read_under_load_is_of_all_queues_and_leaves_them_where_they_are() {
    let daemon = start();
    let mut host = daemon.host("disk");
    let mut loads = [1, 2].map(|qid| Load::new(&mut host, qid, u64::from(qid)));
    daemon.ok(&["drive", "move", "disk", "--queue", "2", "--reactor", "1"]);
    let commands = |host: &mut Controller| {
        let mut page = [0; SmartHealth::SIZE];
        host.get_log_page(LogId::SMART_HEALTH, NSID_ALL, 0, &mut page).expect("the log");
        let page = SmartHealth::read_from_bytes(&page).expect("its size");
        page.host_read_commands[0] + page.host_write_commands[0]
    };
    let mut last = 0;
    while !loads.iter().all(Load::is_verified) {
        loads.iter_mut().for_each(|load| load.turn(true));
        let now = commands(&mut host);
        assert!(now >= last, "{now} after {last}");
        last = now;
        host.identify(Cns::CONTROLLER, 0).expect("identified");
        host.get_feature(FeatureId::TEMPERATURE_THRESHOLD, 0).expect("a feature");
        host.get_log_page(LogId::ERROR_INFORMATION, NSID_ALL, 0, &mut [0; 64]).expect("the log");
    }
    loads.iter_mut().for_each(Load::end);
    let submitted = loads.iter().map(|load| load.submitted).sum::<u64>();
    assert_eq!(commands(&mut host), submitted, "all that the host has seen done is counted");
    let seen = view(&daemon);
    assert_eq!((seen.counters.commands, seen.in_flight), (submitted, 0));
    assert_eq!(seen.remote_queues, [QueueView { queue: 2, reactor: 1 }]);
    assert_eq!(seen.queue_recalls, []);
}

#[test]
fn what_brings_queues_home_is_said_and_counted() {
    let daemon = start();
    let mut host = daemon.host("disk");
    let mut disk = namespace(&mut host, 1);
    disk.write(0, &[9; 4096]).expect("written");
    let to_one = ["drive", "move", "disk", "--queue", "1", "--reactor", "1"];
    for _ in 0..2 {
        daemon.ok(&to_one);
        host.set_feature(FeatureId::TEMPERATURE_THRESHOLD, 0, 343).expect("set");
    }
    daemon.ok(&to_one);
    daemon.ok(&["drive", "resize", "disk", "--nsid", "1", "--size", "20MiB"]);
    daemon.ok(&to_one);
    // The operator requests this move, so the log has no line of it.
    daemon.ok(&["drive", "move", "disk", "--queue", "1", "--reactor", "0"]);
    wait_for("lines in the log", || {
        let said = daemon.log();
        let counted = |what: &str| said.matches(what).count();
        counted("queues come home from other reactors: ") == 3
            && counted("the host sent admin command 09h") == 2
            && counted("an order takes all queues of the drive") == 1
    });
    let said = daemon.ok(&["drive", "show", "disk"]);
    assert!(said.contains("queues recalled: admin_command 2, operator 1"), "{said}");
    let said = block_on(Client::new(daemon.api()).get_text("/metrics")).expect("metrics");
    let sample = "sluice_drive_queue_recalls_total{drive=\"disk\",cause=\"admin_command\"} 2";
    assert!(said.contains(sample), "{said}");
}

#[test]
fn a_move_is_said_and_one_that_cannot_be_is_refused() {
    let daemon = start();
    let to_one = ["drive", "move", "disk", "--queue", "1", "--reactor", "1"];
    let said = daemon.fails(&to_one);
    assert!(said.contains("queue 1") && said.contains("no host is at work"), "{said}");
    let mut host = daemon.host("disk");
    let said = daemon.fails(&to_one);
    assert!(said.contains("the host has no such I/O queue"), "{said}");
    let mut disk = namespace(&mut host, 1);
    let moved = daemon.ok(&to_one);
    assert!(moved.contains("queue 1 on 1"), "{moved}");
    wait_for("a line in the log", || daemon.log().contains("queue 1 of drive disk moved to reactor 1"));
    disk.write(0, &[9; 4096]).expect("written");
    let said = daemon.fails(&["drive", "move", "disk", "--queue", "1", "--reactor", "2"]);
    assert!(said.contains("there is no reactor 2"), "{said}");
    daemon.ok(&["drive", "move", "disk", "--queue", "1", "--reactor", "0"]);
    assert_eq!(view(&daemon).remote_queues, []);
    let mut read = [0; 4096];
    disk.read(0, &mut read).expect("read");
    assert_eq!(read, [9; 4096]);
}
