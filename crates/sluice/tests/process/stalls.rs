//! A monitor that removes pages of its guest's memory while its drive reads into it, so that page faults stop
//! the reactor. And memory that is populated beforehand.

use crate::common::{Daemon, LIMIT, namespace, wait_for};
use crate::peer::Peer;
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, fstat, ftruncate, memfd_create};
use sluice_host::{QueueLayout, entry};
use sluice_nvme::SubmissionEntry;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Instant;

/// Bytes of memory, enough that punching a hole of that size takes a while.
const MEMORY: usize = 1 << 30;

/// Two drives on the reactor of the one that stops it, and a reactor without any.
const DRIVES: &str = "[[drive]]\nname = \"greedy\"\n[[drive.namespace]]\ntarget = \"memory\"\nsize = \"16MiB\"\n\
     [[drive]]\nname = \"other\"\n[[drive.namespace]]\ntarget = \"memory\"\nsize = \"16MiB\"\n";

#[test]
fn a_drive_whose_client_takes_back_memory_in_use_is_told_of_and_moved() {
    let mut daemon = Daemon::start("");
    daemon.stop();
    daemon.declare("cores = [0, 1]", DRIVES);
    daemon.restart();
    daemon.ok(&["drive", "move", "other", "--reactor", "0"]);
    let mut host = daemon.host("greedy");
    let memory = host.memory().allocate(MEMORY).expect("memory");
    let layout = QueueLayout { entries: 128, max_transfer: 4096 };
    let mut queue = host.create_queue_pair(1, layout, None).expect("a queue pair");
    let mut other_host = daemon.host("other");
    let mut other = namespace(&mut other_host, 1);
    let over = Arc::new(AtomicBool::new(false));
    let file = memory.region().fd().try_clone_to_owned().expect("a descriptor");
    let is_over = Arc::clone(&over);
    let punching = std::thread::spawn(move || {
        while !is_over.load(SeqCst) {
            let whole = MEMORY as u64;
            fallocate(&file, FallocateFlags::KEEP_SIZE, 0, whole).expect("there is memory");
            fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, whole)
                .expect("a hole");
        }
    });
    let (began, mut page) = (Instant::now(), 0_u64);
    let log = loop {
        let log = daemon.log();
        if log.contains("drive greedy is on reactor 1 now") || began.elapsed() > 4 * LIMIT {
            break log;
        }
        while queue.in_flight() < 32 {
            page = (page + 4099) % (MEMORY as u64 / 4096);
            let command = SubmissionEntry { dptr: [memory.iova() + page * 4096, 0], ..entry::read(1, 0, 8) };
            queue.submit(command).expect("room");
        }
        queue.ring().expect("the daemon is there");
        queue.reap(|completion| assert!(completion.status().is_success()));
        other.read(0, &mut [0; 4096]).expect("nothing is wrong with it");
    };
    over.store(true, SeqCst);
    punching.join().expect("holes are made");
    assert!(log.contains("drive greedy has stopped reactor 0 for "), "{log}");
    assert!(log.contains("drive greedy is on reactor 1 now"), "{log}");
    assert!(!log.contains("drive other has stopped"), "{log}");
    println!(
        "moved after {:?}: {}",
        began.elapsed(),
        log.lines().find(|line| line.contains("has stopped")).unwrap_or_default()
    );
    let shown: serde_json::Value =
        serde_json::from_str(&daemon.ok(&["drive", "show", "greedy", "-o", "json"])).expect("JSON");
    assert!(shown["stalls"].as_u64() >= Some(3) && shown["reactor"] == 1, "{shown}");
    drop((queue, memory, host, other, other_host));
    daemon.stop();
}

/// Returns the bytes of a file that have pages.
fn pages(file: &OwnedFd) -> u64 {
    fstat(file).expect("it is ours").st_blocks as u64 * 512
}

#[test]
fn memory_is_populated_when_it_is_mapped_where_the_operator_says_so() {
    const SIZE: u64 = 8 << 20;
    let drive = |name: &str, populate: bool| {
        format!(
            "[[drive]]\nname = \"{name}\"\n[drive.vfio_user]\npopulate = {populate}\nmemory_max = \"8MiB\"\n\
             [[drive.namespace]]\ntarget = \"memory\"\nsize = \"1MiB\"\n"
        )
    };
    let mut daemon = Daemon::start(&(drive("plain", false) + &drive("eager", true)));
    let mapped = |name: &str, size: u64| {
        let mut peer = Peer::connect(daemon.socket(name).parent().expect("a folder"));
        peer.negotiate(b"{\"capabilities\":{\"max_msg_fds\":16}}\0");
        let file = memfd_create("sluice-test-guest", MemfdFlags::CLOEXEC).expect("a file in memory");
        ftruncate(&file, size).expect("room");
        let is_mapped = peer.map(0, SIZE, Some(file.as_fd())).is_ok();
        (peer, file, is_mapped)
    };
    let (first, plain, is_mapped) = mapped("plain", SIZE);
    assert!(is_mapped);
    let (second, eager, is_mapped) = mapped("eager", SIZE);
    assert!(is_mapped);
    wait_for("all pages are there", || pages(&eager) == SIZE);
    assert_eq!(pages(&plain), 0);
    drop((first, second));
    // The sizes of whole files count, even if only parts of them are mapped.
    let show = || daemon.ok(&["drive", "show", "eager", "-o", "json"]);
    let shown = || serde_json::from_str::<serde_json::Value>(&show()).expect("JSON");
    wait_for("the first client is gone", || shown()["state"] == "ready");
    let (third, large, is_mapped) = mapped("eager", 2 * SIZE);
    assert!(!is_mapped && pages(&large) == 0);
    drop(third);
    daemon.stop();
}
