//! Virtual machines that are killed at any moment, again and again: the drive takes the next one,
//! acknowledged writes are there, no resource leaks, and the drive next to it is not affected.
//!
//! The monitors are this test program again. SLUICE_KILLS is their number; ten thousand take some minutes.

use crate::common::{Daemon, LIMIT, namespace, wait_for};
use crate::function::Verified;
use sluice_functions::Random;
use sluice_host::{Controller, Mode, QueueLayout, Settings, VfioUser, entry};
use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::time::Duration;

const KILLS: u64 = 200;
const BLOCK: usize = 512;
/// Number of commands in flight of a monitor.
const DEPTH: u64 = 16;
/// Number of blocks that each command slot has for itself.
const BLOCKS: u64 = 64;

/// Writes blocks that are filled with an increasing number, and prints each acknowledged write.
#[test]
#[ignore = "is a monitor that waits to be killed"]
fn monitor() {
    let word = |name| std::env::var(name).expect("the test says so");
    let first: u64 = word("FIRST").parse().expect("a number");
    let mut random = Random::new(first);
    let mode = if random.below(2) == 0 { Mode::Mapped } else { Mode::Trapped };
    let transport = VfioUser::connect(word("SOCKET").as_ref(), mode, LIMIT).expect("it is let in");
    let mut host = Controller::start(Arc::new(transport), Settings::default()).expect("it becomes ready");
    let mut queue = host.create_queue_pair(1, QueueLayout::default(), None).expect("a queue pair");
    let data = host.memory().allocate(DEPTH as usize * BLOCK).expect("memory");
    let mut idle: VecDeque<u64> = (0..DEPTH).collect();
    let mut under_way = BTreeMap::new();
    let mut out = std::io::stdout().lock();
    for number in first.. {
        if let Some(slot) = idle.pop_front() {
            let at = slot as usize * BLOCK;
            let block = random.below(BLOCKS) * DEPTH + slot;
            data.region().write(at, &number.to_le_bytes().repeat(BLOCK / 8));
            let cid =
                queue.submit_prp(entry::write(1, block, 1), data.range(at, BLOCK as u32)).expect("room");
            under_way.insert(cid, (slot, block, number));
            queue.ring().expect("rung");
        }
        queue.reap(|done| {
            assert!(done.status().is_success(), "{:?}", done.status());
            let (slot, block, number) = under_way.remove(&done.cid).expect("a command of ours");
            idle.push_back(slot);
            writeln!(out, "done {block} {number}").expect("somebody reads");
        });
    }
}

/// Starts a monitor at a socket, whose first number is `first`.
pub(crate) fn start_at(socket: &Path, first: u64) -> Child {
    Command::new(std::env::current_exe().expect("it runs"))
        .args(["vmm::monitor", "--exact", "--ignored", "--nocapture"])
        .env("SOCKET", socket)
        .env("FIRST", first.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .expect("it is there")
}

/// Kills a monitor `after` its start or its first acknowledged write. Returns the writes that it has printed,
/// in order.
pub(crate) fn kill(mut monitor: Child, after: Duration, at_work: bool) -> Vec<(u64, u64)> {
    let out = monitor.stdout.take().expect("a pipe");
    let (first, begins) = channel();
    let reader = std::thread::spawn(move || {
        let lines = BufReader::new(out).lines().map_while(Result::ok);
        // Sending fails if the test does not wait for the first write.
        let tell = |_: &(u64, u64)| {
            let _ = first.send(());
        };
        lines.filter_map(|line| said(&line)).inspect(tell).collect::<Vec<_>>()
    });
    let began = if at_work { begins.recv_timeout(LIMIT) } else { Ok(()) };
    std::thread::sleep(after);
    // Also if the test fails: a monitor that stays keeps the output of the test program open.
    monitor.kill().expect("it is ours");
    monitor.wait().expect("it is ours");
    let printed = reader.join().expect("it reads");
    began.expect("a write is acknowledged");
    printed
}

/// Parses a line into a block and its number. Returns none for a line that was cut off.
fn said(line: &str) -> Option<(u64, u64)> {
    let mut words = line.strip_prefix("done ")?.split(' ');
    let (block, number) = (words.next()?, words.next()?);
    Some((block.parse().ok()?, number.parse().ok()?))
}

fn check(daemon: &Daemon, acknowledged: &BTreeMap<u64, u64>) {
    let mut host = daemon.host("disk");
    let mut disk = namespace(&mut host, 1);
    let mut read = [0; BLOCK];
    for (&block, &number) in acknowledged {
        disk.read(block, &mut read).expect("it is in range");
        let words: Vec<u64> =
            read.chunks_exact(8).map(|w| u64::from_le_bytes(w.try_into().expect("8"))).collect();
        assert!(words.iter().all(|word| *word == words[0]), "block {block} has parts of two writes");
        assert!(words[0] >= number, "block {block} has {} and not {number}", words[0]);
    }
}

/// Returns the number of descriptors of a process, and its memory in KiB.
pub(crate) fn belongings(pid: u32) -> (usize, u64) {
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs").count();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let memory = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it has memory");
    (descriptors, memory.trim().trim_end_matches(" kB").parse().expect("a number"))
}

/// Keeps copies of the descriptors of clients that end, as a child between fork and exec does.
#[test]
fn the_end_of_a_client_does_not_wait_for_copies_of_its_descriptor() {
    let daemon =
        Daemon::start("[[drive]]\nname = \"disk\"\nnamespace = [{ target = \"null\", size = \"1MiB\" }]\n");
    let mut copies = Vec::new();
    for mode in [Mode::Mapped, Mode::Trapped].into_iter().cycle().take(20) {
        let socket = UnixStream::connect(daemon.socket("disk")).expect("it listens");
        socket.set_nonblocking(true).expect("a socket");
        copies.push(socket.try_clone().expect("a copy"));
        let transport = VfioUser::over(socket, mode, LIMIT).expect("it is let in");
        let host = Controller::start(Arc::new(transport), Settings::default()).expect("it becomes ready");
        drop(host);
    }
}

#[test]
fn monitors_that_are_killed_leave_nothing_behind() {
    let kills = std::env::var("SLUICE_KILLS").map_or(KILLS, |kills| kills.parse().expect("a number"));
    let folder = tempfile::tempdir().expect("a folder");
    let image = folder.path().join("disk.img");
    let daemon = Daemon::start(&format!(
        "[[drive]]\nname = \"disk\"\n[[drive.namespace]]\ntarget = \"file\"\npath = \"{}\"\nsize = \"1MiB\"\n\
         [[drive]]\nname = \"other\"\n[[drive.namespace]]\ntarget = \"memory\"\nsize = \"16MiB\"\n",
        image.display()
    ));
    let mut host = daemon.host("other");
    let mut other = Verified::new(namespace(&mut host, 1));
    let over = Arc::new(AtomicBool::new(false));
    let is_over = Arc::clone(&over);
    let neighbour = std::thread::spawn(move || {
        while !is_over.load(Relaxed) {
            other.work(20).expect("every command succeeds");
        }
        other.all_is_well();
    });
    let (mut random, mut acknowledged, mut before) = (Random::new(kills), BTreeMap::new(), None);
    let mut writes = 0;
    for number in 0..kills {
        let after = Duration::from_micros(random.below(40_000));
        let said = kill(start_at(&daemon.socket("disk"), (number + 1) << 32), after, number % 2 == 0);
        writes += said.len();
        acknowledged.extend(said);
        if number % 20 == 19 {
            check(&daemon, &acknowledged);
            before.get_or_insert_with(|| belongings(daemon.pid()));
        }
    }
    over.store(true, Relaxed);
    neighbour.join().expect("the neighbour is well");
    check(&daemon, &acknowledged);
    assert!(writes as u64 >= kills / 2, "{writes} writes are no load");
    let (descriptors, memory) = before.expect("a monitor was killed, and the blocks checked");
    wait_for("the last descriptor is closed", || belongings(daemon.pid()).0 <= descriptors + 2);
    let after = belongings(daemon.pid()).1;
    assert!(after <= memory + (8 << 10), "{after} KiB, and {memory} before");
}
