//! Deaths of the daemon under hosts with commands in flight, beside a holder: no host is disconnected, no command is
//! lost, none fails, and every block has the written data.

use crate::common::{Daemon, LIMIT, wait_for};
use crate::load::Load;
use crate::volatile::LoopDevice;
use sluice_host::{Controller, Deadline, Mode, Namespace, QueueLayout, Settings, VfioUser, entry};
use sluice_memory::SharedRegion;
use sluice_nvme::{FeatureId, SubmissionEntry};
use std::fs::File;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

const HOLDER: &str = env!("CARGO_BIN_EXE_sluice-holder");

const SETTINGS: &str = "holder = \"holder.sock\"";

const DRIVES: &str = "[[drive]]\nname = \"demo\"\n[[drive.namespace]]\ntarget = \"file\"\npath = \"disk.img\"\n\
                      size = \"16MiB\"\n[[drive]]\nname = \"other\"\n[[drive.namespace]]\ntarget = \"file\"\n\
                      path = \"other.img\"\nsize = \"16MiB\"\n";

/// Returns the number of deaths in a row, which `SLUICE_DEATHS` can raise.
fn deaths() -> usize {
    std::env::var("SLUICE_DEATHS").ok().and_then(|count| count.parse().ok()).unwrap_or(20)
}

/// A holder, which ends with its test.
struct Holder(Child);

impl Holder {
    fn start(daemon: &Daemon) -> Self {
        Self::start_at(&daemon.folder.path().join("holder.sock"), &[])
    }

    fn start_at(path: &PathBuf, words: &[&str]) -> Self {
        let child = Command::new(HOLDER).arg(path).args(words).spawn().expect("the binary is there");
        wait_for("the holder", || path.exists());
        Self(child)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a daemon with a holder.
fn start(drives: &str) -> (Daemon, Holder) {
    let mut daemon = Daemon::start("");
    let holder = Holder::start(&daemon);
    daemon.stop();
    daemon.declare(SETTINGS, drives);
    daemon.restart();
    (daemon, holder)
}

/// Runs a load while the daemon is changed.
fn load_during(load: &mut Load, change: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let changing = scope.spawn(change);
        let before = load.completed;
        while !changing.is_finished() || load.completed == before {
            load.turn(true);
            std::thread::yield_now();
        }
        assert!(changing.join().is_ok(), "a change failed");
    });
}

/// Kills and starts the daemon again and again under loads, and prints the pauses.
fn kill_under_load(daemon: &mut Daemon, loads: &mut [Load], count: usize) {
    let steps = AtomicUsize::new(0);
    let mut longest = vec![Duration::ZERO; count + 1];
    std::thread::scope(|scope| {
        let killing = scope.spawn(|| {
            for step in 0..count {
                // Deaths at all moments of a command.
                std::thread::sleep(Duration::from_micros(500 + step as u64 * 7919 % 20_000));
                daemon.crash();
                daemon.restart();
                steps.fetch_add(1, SeqCst);
            }
        });
        let mut last = Instant::now();
        while !killing.is_finished() {
            for load in &mut *loads {
                let before = load.completed;
                load.turn(true);
                if load.completed > before {
                    let step = steps.load(SeqCst);
                    longest[step] = longest[step].max(last.elapsed());
                    last = Instant::now();
                }
            }
            std::thread::yield_now();
        }
        assert!(killing.join().is_ok(), "a start has failed");
    });
    longest.sort_unstable();
    let part = |percent: usize| longest[(longest.len() - 1) * percent / 100].as_micros();
    println!("{count} deaths; pauses of {}, {} and {} us (p50, p99, longest)", part(50), part(99), part(100));
    for (number, load) in loads.iter_mut().enumerate() {
        println!("the commands of host {number} end");
        load.end();
    }
}

#[test]
fn no_host_loses_a_command_or_its_connection_when_the_daemon_dies() {
    let (mut daemon, _holder) = start(DRIVES);
    let mut host = daemon.host("demo");
    let mut other = daemon.host_with("other", Mode::Mapped);
    host.request_async_event().expect("the limit is not reached");
    let mut loads = [Load::new(&mut host, 1, 0), Load::new(&mut other, 1, 0)];
    kill_under_load(&mut daemon, &mut loads, deaths());
    assert_eq!(host.poll_async_event().expect("a controller"), None, "nothing has happened");
    daemon.ok(&["drive", "resize", "demo", "--size", "32MiB"]);
    let event = host.wait_async_event(&Deadline::after(LIMIT, "an event")).expect("an event");
    assert_eq!((event.kind, event.info, event.log_page), (2, 0, 4), "a notice: namespace attribute changed");
    drop((host, other));
    // Nothing is left of hosts that have gone, or of a daemon that has stopped.
    daemon.stop();
    daemon.restart();
    assert!(!daemon.log().contains("continuing"), "{}", daemon.log());
    daemon.host("demo");
}

/// Resets the controller, and works with queues, features, pages and memory. Returns the number of rounds.
fn change_everything(host: &mut Controller, is_over: &impl Fn() -> bool) -> u32 {
    let mut rounds = 0;
    while !is_over() {
        rounds += 1;
        let vectors =
            host.admin(entry::set_features(FeatureId::ARBITRATION, 0, 1 + rounds % 5)).expect("a controller");
        assert!(vectors.status().is_success(), "{:?}", vectors.status());
        // The namespace maps memory of its own, and unmaps it at the end.
        let queue = host.create_queue_pair(1, QueueLayout::default(), None).expect("a queue pair");
        let mut blocks = Namespace::open(host, 1, queue).expect("a namespace");
        for block in 0..8 {
            blocks.write(block * 8, &[rounds as u8 ^ block as u8; 4096]).expect("written");
        }
        for block in 0..8 {
            let mut found = [0; 4096];
            blocks.read(block * 8, &mut found).expect("read");
            assert!(found == [rounds as u8 ^ block as u8; 4096], "round {rounds}, block {block}");
        }
        host.delete_queue_pair(blocks.into_queue()).expect("a controller");
        let feature = host.admin(entry::get_features(FeatureId::ARBITRATION, 0)).expect("a controller");
        assert_eq!(feature.dw0, 1 + rounds % 5, "round {rounds}");
        if rounds % 8 == 0 {
            host.enable().expect("it becomes ready");
        }
    }
    rounds
}

#[test]
fn no_change_of_a_controller_is_lost_or_done_twice_when_the_daemon_dies() {
    let (mut daemon, _holder) = start(DRIVES);
    let mut host = daemon.host("demo");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let changing = scope.spawn(|| change_everything(&mut host, &|| is_over.load(SeqCst)));
        for step in 0..deaths() {
            std::thread::sleep(Duration::from_micros(500 + step as u64 * 7919 % 20_000));
            daemon.crash();
            daemon.restart();
        }
        is_over.store(true, SeqCst);
        let rounds = changing.join().expect("no change has failed");
        println!("{} deaths in {rounds} rounds", deaths());
    });
}

#[test]
fn a_host_may_come_while_the_daemon_is_gone() {
    let (mut daemon, _holder) = start(DRIVES);
    for _ in 0..5 {
        daemon.crash();
        let socket = daemon.socket("demo");
        let coming = std::thread::spawn(move || VfioUser::connect(&socket, Mode::Trapped, LIMIT));
        std::thread::sleep(Duration::from_millis(50));
        daemon.restart();
        let transport = coming.join().expect("no panic").expect("it is let in");
        let settings = Settings { timeout: LIMIT, ..Settings::default() };
        let mut host = Controller::start(Arc::new(transport), settings).expect("it becomes ready");
        let mut load = Load::new(&mut host, 1, 0);
        let begun = Instant::now();
        while !load.is_verified() && begun.elapsed() < LIMIT {
            load.turn(true);
        }
        load.end();
    }
}

#[test]
fn upgrades_and_deaths_may_follow_one_another() {
    let (mut daemon, _holder) = start(DRIVES);
    let mut host = daemon.host("demo");
    let mut load = Load::new(&mut host, 1, 0);
    for _ in 0..4 {
        load_during(&mut load, || daemon.upgrade(&[]));
        load_during(&mut load, || {
            daemon.crash();
            daemon.restart();
        });
        // An upgrade that fails leaves the record to the old process.
        load_during(&mut load, || {
            daemon.try_upgrade(&["--binary", "/bin/false"]).expect_err("it is no daemon");
            daemon.crash();
            daemon.restart();
        });
    }
    load.end();
}

#[test]
fn a_holder_may_be_replaced() {
    let (mut daemon, holder) = start(DRIVES);
    let mut host = daemon.host("demo");
    let mut load = Load::new(&mut host, 1, 0);
    load_during(&mut load, || {
        drop(holder);
        wait_for("a warning", || daemon.log().contains("the holder is gone"));
    });
    let path = daemon.folder.path().join("holder.sock");
    std::fs::remove_file(&path).expect("it is there");
    let _holder = Holder::start(&daemon);
    load_during(&mut load, || {
        wait_for("the records", || daemon.log().contains("the holder is there"));
        // A record that cannot be made at the very moment is made within 100 ms.
        std::thread::sleep(Duration::from_millis(200));
        daemon.crash();
        daemon.restart();
    });
    load.end();
}

/// Checks that a daemon without its holder serves, and that drives with data in the daemon are not continued.
#[test]
fn what_cannot_be_kept_ends_with_the_daemon() {
    const MEMORY: &str =
        "[[drive]]\nname = \"demo\"\n[[drive.namespace]]\ntarget = \"memory\"\nsize = \"16MiB\"\n";
    let (mut daemon, holder) = start(MEMORY);
    daemon.host("demo");
    daemon.crash();
    daemon.restart();
    assert!(!daemon.log().contains("continuing"), "{}", daemon.log());
    daemon.host("demo");
    drop(holder);
    daemon.crash();
    daemon.declare(SETTINGS, DRIVES);
    daemon.restart();
    let log = daemon.log();
    assert!(log.contains("no host of an earlier daemon is continued: cannot connect to the holder"), "{log}");
    assert!(log.contains("its hosts are lost if the daemon dies"), "{log}");
    let mut host = daemon.host("demo");
    let mut load = Load::new(&mut host, 1, 0);
    load_during(&mut load, || std::thread::sleep(Duration::from_millis(100)));
    load.end();
}

/// Checks that a drive that the next configuration no longer has is given up, and its place is free.
#[test]
fn a_drive_that_is_gone_from_the_configuration_is_given_up() {
    let (mut daemon, _holder) = start(DRIVES);
    let _host = daemon.host("other");
    daemon.crash();
    let demo = DRIVES.split("[[drive]]\nname = \"other\"").next().expect("the first drive");
    daemon.declare(SETTINGS, demo);
    daemon.restart();
    assert!(daemon.log().contains("drive other is not continued"), "{}", daemon.log());
    daemon.host("demo");
    daemon.stop();
    daemon.declare(SETTINGS, DRIVES);
    daemon.restart();
    daemon.host("other");
}

/// Checks that a drive on another daemon continues, too.
#[test]
fn a_drive_on_the_network_is_continued() {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a port").port();
    let far = Daemon::start(&format!(
        "[tcp]\nlisten = [\"127.0.0.1:{port}\"]\n[[drive]]\nname = \"far\"\n[drive.tcp]\nnqn = \"nqn.2026-11.example.sluice:far\"\n\
         [[drive.namespace]]\ntarget = \"file\"\npath = \"far.img\"\nsize = \"16MiB\"\n"
    ));
    let (mut daemon, _holder) = start(&format!(
        "[[drive]]\nname = \"demo\"\n[[drive.namespace]]\ntarget = \"nvme-tcp\"\n[drive.namespace.nvme_tcp]\n\
         address = \"127.0.0.1:{port}\"\nsubnqn = \"nqn.2026-11.example.sluice:far\"\n"
    ));
    let mut host = daemon.host("demo");
    let mut loads = [Load::new(&mut host, 1, 0)];
    kill_under_load(&mut daemon, &mut loads, 10);
    drop(far);
}

/// Kills a daemon with a drive on a block device. The kernel's claim of the device ends with the last I/O of the dead
/// process, and the next daemon waits for that.
#[test]
fn a_drive_on_a_block_device_is_continued() {
    let folder = tempfile::tempdir().expect("a folder");
    let image = folder.path().join("image");
    File::create(&image).and_then(|file| file.set_len(16 << 20)).expect("room on the disk");
    let Some(device) = LoopDevice::over_file(&image) else { return };
    let (mut daemon, _holder) = start(&format!(
        "[[drive]]\nname = \"demo\"\n[[drive.namespace]]\ntarget = \"file\"\npath = \"{}\"\n",
        device.path.display()
    ));
    let mut host = daemon.host("demo");
    kill_under_load(&mut daemon, &mut [Load::new(&mut host, 1, 0)], deaths());
}

/// Checks that a message that waits for commands in flight is not lost with the daemon that has received it.
#[test]
fn an_unmap_that_waits_is_answered_by_the_next_daemon() {
    const IOVA: u64 = 1 << 32;
    let functions = "functions = [ { kind = \"delay\", read_us = 1000000 } ]\n";
    let (mut daemon, _holder) = start(&format!(
        "[[drive]]\nname = \"demo\"\n[[drive.namespace]]\ntarget = \"file\"\npath = \"disk.img\"\nsize = \"16MiB\"\n{functions}"
    ));
    let mut host = daemon.host("demo");
    let mut queue = host.create_queue_pair(1, QueueLayout::default(), None).expect("a queue pair");
    let memory = SharedRegion::new("data", 4096).expect("memory");
    host.transport().map(&memory, IOVA).expect("mapped");
    let read = SubmissionEntry { dptr: [IOVA, 0], ..entry::read(1, 0, 8) };
    let cid = queue.submit(read).expect("room in the queue");
    queue.ring().expect("a doorbell");
    wait_for("the read", || daemon.ok(&["drive", "show", "demo", "-o", "json"]).contains("\"in_flight\": 1"));
    let transport = Arc::clone(host.transport());
    let unmapping = std::thread::spawn(move || transport.unmap(IOVA, 4096));
    // The daemon has received the message, and waits for the read.
    std::thread::sleep(Duration::from_millis(100));
    daemon.crash();
    daemon.restart();
    unmapping.join().expect("no panic").expect("it is answered");
    let done = queue.wait(cid, &Deadline::after(LIMIT, "the read"), |_| ()).expect("it is completed");
    assert!(done.status().is_success(), "{:?}", done.status());
}
