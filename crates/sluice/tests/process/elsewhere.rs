//! Faults while queue groups are on another reactor than their drive: the daemon is killed, the drive is
//! deleted, an interrupt cannot be delivered, the guest is malicious.

use crate::common::{Daemon, LIMIT, namespace, wait_for};
use crate::function::Verified;
use crate::groups::{of_two_reactors, try_move, view};
use crate::guests::attacks;
use crate::load::block_on;
use crate::neighbour::Neighbour;
use crate::replicate::take_over;
use rustix::fs::{OFlags, fcntl_setfl};
use sluice_api::client::Client;
use sluice_host::{Deadline, Mode, QueueLayout, entry};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

/// Starts a daemon of two reactors: a drive on the first, whose queues can go to the second, and another
/// drive there.
fn start(size: &str) -> Daemon {
    let other = "[[drive]]\nname = \"other\"\nreactor = 1\n\
                 [[drive.namespace]]\ntarget = \"memory\"\nsize = \"16MiB\"\n";
    of_two_reactors(size, other)
}

/// Moves a queue of the drive to the other reactor.
fn send(daemon: &Daemon, queue: u16) {
    let moved = block_on(try_move(&Client::new(daemon.api()), queue, 1));
    let again = || daemon.run(&["drive", "move", "disk", "--queue", &queue.to_string(), "--reactor", "1"]);
    assert!(moved.is_some_and(|view| !view.remote_queues.is_empty()), "{:?}", again());
}

#[test]
fn a_daemon_that_is_killed_has_kept_what_it_acknowledged() {
    let mut daemon = start("16MiB");
    let mut host = daemon.host("disk");
    let mut verified = Verified::new(namespace(&mut host, 1));
    for _ in 0..3 {
        send(&daemon, 1);
        let before = view(&daemon).counters.commands;
        let stopped = AtomicBool::new(false);
        verified = std::thread::scope(|scope| {
            let working = scope.spawn(|| {
                while verified.work(5).is_ok() {}
                stopped.store(true, Relaxed);
                verified
            });
            wait_for("work elsewhere", || view(&daemon).counters.commands > before + 200);
            assert_eq!(view(&daemon).remote_queues.len(), 1);
            daemon.crash();
            wait_for("the host notices", || stopped.load(Relaxed));
            working.join().expect("all reads were right")
        });
        drop(host);
        daemon.restart();
        host = daemon.host("disk");
        verified = take_over(verified, namespace(&mut host, 1));
    }
    send(&daemon, 1);
    verified.all_is_well();
}

#[test]
fn a_drive_is_deleted_whose_queues_are_elsewhere_and_at_work() {
    let daemon = start("16MiB");
    let neighbour = Neighbour::on(&daemon, "other");
    // The drive has no disk, whose speed must not matter here.
    daemon.ok(&["drive", "create", "scratch", "--null", "16MiB", "--reactor", "0"]);
    let mut host = daemon.host("scratch");
    let mut queue = host.create_queue_pair(1, QueueLayout::default(), None).expect("a queue pair");
    let data = host.memory().allocate(4096).expect("memory");
    daemon.ok(&["drive", "move", "scratch", "--queue", "1", "--reactor", "1"]);
    for _ in 0..1000 {
        while queue.submit_prp(entry::read(1, 0, 8), data.range(0, 4096)).is_some() {}
        queue.ring().expect("a doorbell");
        queue.reap(drop);
    }
    // The drive is deleted with the commands whose doorbell was just rung.
    daemon.ok(&["drive", "delete", "scratch", "--force"]);
    daemon.fails(&["drive", "show", "scratch"]);
    neighbour.goes_on();
    neighbour.end();
}

/// Checks an eventfd whose writes block. The daemon's write waits in the kernel, and no thread of the daemon
/// waits for it.
#[test]
fn an_interrupt_that_cannot_be_delivered_holds_up_neither_its_queue_nor_another_drive() {
    let daemon = start("16MiB");
    let neighbour = Neighbour::on(&daemon, "other");
    let mut host = daemon.host("disk");
    let bell = host.interrupt(1).expect("an eventfd");
    let mut queue = host.create_queue_pair(1, QueueLayout::default(), Some(1)).expect("a queue pair");
    let data = host.memory().allocate(4096).expect("memory");
    // The eventfd blocks, and is one short of the most it can hold.
    fcntl_setfl(&bell, OFlags::empty()).expect("a flag");
    rustix::io::write(&bell, &(u64::MAX - 1).to_ne_bytes()).expect("there is room");
    let mut read = || {
        let cid = queue.submit_prp(entry::read(1, 0, 8), data.range(0, 4096)).expect("room in the queue");
        queue.ring().expect("a doorbell");
        let deadline = Deadline::after(LIMIT, "a read");
        queue.wait(cid, &deadline, drop).expect("it is completed");
    };
    send(&daemon, 1);
    for _ in 0..5 {
        read();
        neighbour.goes_on();
    }
    assert_eq!(view(&daemon).remote_queues.len(), 1);
    assert_eq!(block_on(try_move(&Client::new(daemon.api()), 1, 0)).expect("home").remote_queues, []);
    read();
    neighbour.goes_on();
    // Once there is room, the delayed interrupt arrives.
    assert_eq!(bell.take().expect("it is ours"), u64::MAX - 1);
    wait_for("the interrupt that waited", || bell.take().expect("it is ours") > 0);
    neighbour.end();
}

/// Checks the attacks of malicious guests, with queues that move away as often as possible.
#[test]
fn a_guest_that_means_harm_harms_nobody_from_there() {
    let daemon = start("4MiB");
    let neighbour = Neighbour::on(&daemon, "other");
    let client = Client::new(daemon.api());
    for (what, attack) in attacks() {
        for mode in [Mode::Trapped, Mode::Mapped] {
            eprintln!("{what}, {mode:?}");
            let sent = AtomicU32::new(0);
            attack(&mut daemon.host_with("disk", mode), &|queue| {
                // A move may fail: the controller may be disabled or gone, or the attack may keep its queues
                // on the drive's reactor.
                let moved = block_on(try_move(&client, queue, 1));
                sent.fetch_add(u32::from(moved.is_some()), Relaxed);
            });
            assert!(sent.load(Relaxed) > 0, "{what}: its queues were elsewhere");
            neighbour.goes_on();
            let mut next = daemon.host("disk");
            let mut disk = namespace(&mut next, 1);
            let data = vec![7; 4 << 20];
            disk.write(0, &data).expect("the next guest is served");
            // The next guest's writes have removed all marked blocks, so that the move succeeds.
            send(&daemon, 1);
            let mut read = vec![0; 4 << 20];
            disk.read(0, &mut read).expect("the next guest is served");
            assert!(read == data);
        }
    }
    neighbour.end();
}
