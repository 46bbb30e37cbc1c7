//! A pool of memory under drives of two reactors: configuration, API and command line, and verified I/O while the
//! drives move.
//!
//! The variable SLUICE_MOVES sets the number of moves; the default is 100.

use crate::common::{Daemon, namespace, wait_for};
use crate::load::block_on;
use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use sluice_api::client::Client;
use sluice_api::{DriveMoveRequest, SharedList};
use sluice_control::drives::DriveView;
use sluice_functions::Random;
use sluice_host::{Error, Namespace};
use sluice_nvme::Status;
use std::fs::{read_dir, read_to_string};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

const DRIVES: usize = 8;
const BLOCK: usize = 512;
/// Bytes of a drive that the load touches.
const TOUCHED: usize = 4 << 20;
/// Bytes of the longest command: one that the host does not divide, so that a refused write changes nothing.
const LONGEST: usize = 64 << 10;

/// Extents that hold the touched bytes of a drive. They are all of the pool, too.
const EXTENTS: usize = TOUCHED / (64 << 10);

/// Less than the drives have allocated together on average.
const POOL: &str = "[[shared]]\nname = \"fast\"\ntype = \"memory-pool\"\nsize = \"4MiB\"\nreactor = 1\n";

fn drive(number: usize) -> String {
    format!(
        "[[drive]]\nname = \"disk{number}\"\nreactor = {}\n\
         [[drive.namespace]]\ntarget = \"memory-pool\"\nshared = \"fast\"\nsize = \"1TiB\"\n",
        number % 2
    )
}

fn start(drives: usize) -> Daemon {
    let mut daemon = Daemon::start("");
    daemon.stop();
    let drives: String = (0..drives).map(drive).collect();
    daemon.declare("cores = [0, 1]", &format!("{POOL}{drives}"));
    daemon.restart();
    daemon
}

fn pool(daemon: &Daemon) -> sluice_control::drives::SharedView {
    let list: SharedList = block_on(Client::new(daemon.api()).get("/v1/shared")).expect("an answer");
    let [pool] = list.shared.try_into().expect("there is one");
    pool
}

/// Random commands on a drive, with its expected content.
struct Load {
    disk: Namespace,
    model: Vec<u8>,
    random: Random,
    refused: u64,
}

impl Load {
    fn new(disk: Namespace, seed: u64) -> Self {
        Self { disk, model: vec![0; TOUCHED], random: Random::new(seed), refused: 0 }
    }

    /// Writes all bytes that the load touches, as far as the pool has extents.
    fn fill(&mut self) {
        (0..TOUCHED).step_by(LONGEST).for_each(|at| self.write(at, LONGEST));
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random.below(bound as u64) as usize
    }

    fn step(&mut self) {
        let length = (self.below(LONGEST / BLOCK) + 1) * BLOCK;
        let at = self.below((TOUCHED - length) / BLOCK) * BLOCK;
        match self.below(8) {
            0 => self.deallocate(at, length),
            1 => {
                let quarters = 1 + self.below(4);
                self.deallocate(0, TOUCHED / 4 * quarters);
            }
            2..=4 => self.read(at, length),
            _ => self.write(at, length),
        }
    }

    fn deallocate(&mut self, at: usize, length: usize) {
        let range = ((at / BLOCK) as u64, (length / BLOCK) as u32);
        self.disk.deallocate(&[range]).expect("it needs no extent");
        self.model[at..at + length].fill(0);
    }

    fn read(&mut self, at: usize, length: usize) {
        let mut data = vec![0xee; length];
        self.disk.read((at / BLOCK) as u64, &mut data).expect("it needs no extent");
        assert!(data == self.model[at..at + length], "{length} bytes at {at}");
    }

    fn write(&mut self, at: usize, length: usize) {
        let seed = self.random.next_u64();
        let data: Vec<u8> = (0..length).map(|n| (n as u64 / 7 + seed) as u8).collect();
        match self.disk.write((at / BLOCK) as u64, &data) {
            Ok(()) => self.model[at..at + length].copy_from_slice(&data),
            // It has changed nothing.
            Err(error) if is_full(&error) => self.refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
}

fn is_full(error: &Error) -> bool {
    error.status() == Some(Status::CAPACITY_EXCEEDED)
}

fn move_drives(daemon: &Daemon, moves: usize) {
    let client = Client::new(daemon.api());
    for step in 0..moves {
        let (number, round) = (step % DRIVES, step / DRIVES);
        let request = DriveMoveRequest { reactor: (number + round + 1) % 2, queue: None };
        let path = format!("/v1/drives/disk{number}/move");
        let moved = block_on(client.post::<DriveView>(&path, &request));
        moved.expect("the drive moves");
        match step {
            _ if step == moves / 4 => stall(daemon, "reactor-0"),
            _ if step == moves / 2 => stall(daemon, "reactor-1"),
            _ => {}
        }
    }
}

/// Stops one reactor for a second, and leaves the others running.
fn stall(daemon: &Daemon, name: &str) {
    let threads = read_dir(format!("/proc/{}/task", daemon.pid())).expect("the daemon runs");
    let paths = threads.map(|thread| thread.expect("a thread").path());
    let found = paths
        .into_iter()
        .find(|path| read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim_end() == name));
    let path = found.expect("the reactor's thread");
    let id = path.file_name().and_then(|id| id.to_str()).and_then(|id| id.parse().ok()).expect("an ID");
    let thread = Pid::from_raw(id);
    ptrace::seize(thread, ptrace::Options::empty()).expect("the thread is ours");
    ptrace::interrupt(thread).expect("the thread runs");
    waitpid(thread, Some(WaitPidFlag::__WALL)).expect("the thread stops");
    std::thread::sleep(Duration::from_secs(1));
    ptrace::detach(thread, None).expect("the thread is stopped");
}

#[test]
fn drives_in_a_pool_move_under_verified_load_and_lose_nothing() {
    let moves = std::env::var("SLUICE_MOVES").ok().and_then(|moves| moves.parse().ok()).unwrap_or(100);
    let daemon = start(DRIVES);
    let (stop, steps, refused) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let filled = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for number in 0..DRIVES {
            let (daemon, stop, steps, refused, filled) = (&daemon, &stop, &steps, &refused, &filled);
            scope.spawn(move || {
                let mut host = daemon.host(&format!("disk{number}"));
                let mut load = Load::new(namespace(&mut host, 1), number as u64);
                // No drive gives an extent back before all drives have tried to take theirs.
                load.fill();
                filled.fetch_add(1, Relaxed);
                wait_for("the fill of all drives", || filled.load(Relaxed) == DRIVES);
                while !stop.load(Relaxed) {
                    load.step();
                    steps.fetch_add(1, Relaxed);
                }
                (0..TOUCHED).step_by(LONGEST).for_each(|at| load.read(at, LONGEST.min(TOUCHED - at)));
                load.deallocate(0, TOUCHED);
                refused.fetch_add(load.refused, Relaxed);
            });
        }
        move_drives(&daemon, moves);
        let before = steps.load(Relaxed);
        wait_for("further commands", || steps.load(Relaxed) > before + 200);
        stop.store(true, Relaxed);
    });
    let least = ((DRIVES - 1) * EXTENTS) as u64;
    assert!(refused.load(Relaxed) >= least, "{} of {least} writes were refused", refused.load(Relaxed));
    wait_for("the return of all extents", || pool(&daemon).free == pool(&daemon).size);
    println!("{moves} moves, {} commands, {} refused", steps.load(Relaxed), refused.load(Relaxed));
}

#[test]
fn a_pool_beyond_the_memory_of_the_machine_is_refused_in_words() {
    let mut daemon = Daemon::start("");
    daemon.stop();
    let huge = POOL.replace("4MiB", "100TiB").replace("reactor = 1", "reactor = 0");
    daemon.declare("", &huge);
    let config = daemon.config().display().to_string();
    let expected = "the pool `fast` of 100TiB does not fit the memory of this machine, which has room for ";
    for words in [["serve", "-c", &config].as_slice(), &["serve", "--check", "-c", &config]] {
        let message = daemon.fails(words);
        assert!(message.contains(expected) && message.contains("make the pool smaller"), "{message}");
    }
}

#[test]
fn a_pool_is_shown_with_its_use_and_gets_extents_of_deleted_drives_back() {
    let daemon = start(1);
    let found = pool(&daemon);
    assert_eq!((found.name.as_str(), found.reactor, found.users), ("fast", 1, 1));
    assert_eq!(found.free, found.size);
    let create =
        r#"{"name": "more", "namespaces": [{"target": "memory-pool", "shared": "fast", "size": "1GiB"}]}"#;
    let file = daemon.folder.path().join("more.json");
    std::fs::write(&file, create).expect("room on the disk");
    daemon.ok(&["drive", "create", "more", "--spec", &file.display().to_string()]);
    assert_eq!(pool(&daemon).users, 2);
    let mut host = daemon.host("more");
    let mut disk = namespace(&mut host, 1);
    disk.write(0, &[7; LONGEST]).expect("there is room");
    assert!(pool(&daemon).free.0 < found.size.0);
    drop((disk, host));
    daemon.ok(&["drive", "delete", "more"]);
    wait_for("the return of all extents", || pool(&daemon) == found);
    let table = daemon.ok(&["shared", "list"]);
    assert!(table.contains("fast") && table.contains("memory-pool") && table.contains("4MiB"), "{table}");
    let shown = daemon.ok(&["drive", "show", "disk0", "-o", "json"]);
    assert!(shown.contains("\"shared\": \"fast\""), "{shown}");
    std::fs::write(&file, create.replace("fast", "slow")).expect("room on the disk");
    let message = daemon.fails(&["drive", "create", "more", "--spec", &file.display().to_string()]);
    assert!(message.contains("there is no shared object `slow`"), "{message}");
}
