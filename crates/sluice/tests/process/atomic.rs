//! Writes that are whole: under SIGKILL and power cuts, on a file, over a mirror, and over a remote target.
//!
//! A host writes *cells* of the limit, each with its number in every block. A cell never shows two numbers.

use crate::common::{Daemon, LIMIT, namespace, wait_for};
use crate::function::pid;
use crate::numbered::Dice;
use crate::power::Far;
use crate::volatile::Disk;
use rustix::process::{Signal, kill_process};
use sluice_host::{Controller, DmaBuffer, QueueLayout, QueuePair, entry};
use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

const SIZE: usize = 4 << 20;
const CELL: usize = 64 << 10;
const CELLS: usize = 24;
/// Bytes between two cells: an odd number of blocks more than a cell has, so that no unit below fits.
const DISTANCE: usize = CELL + 9 * 512;
const DEPTH: usize = 8;

/// State of a cell: the last write that was acknowledged, and the last one that was submitted.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    acknowledged: u32,
    submitted: u32,
    is_busy: bool,
}

#[derive(Clone, Copy, Debug)]
struct Flight {
    cid: u16,
    cell: usize,
    is_read: bool,
}

/// A host that writes and reads cells.
struct Cells {
    cells: [Cell; CELLS],
    flights: [Option<Flight>; DEPTH],
    queue: Option<(QueuePair, DmaBuffer, Controller)>,
    dice: Dice,
    /// Whether acknowledged writes may be lost, before a Flush.
    may_lose: bool,
    written: u64,
    read: u64,
    failed: u64,
}

fn content(cell: usize, number: u32) -> Vec<u8> {
    let block = (cell as u64) << 32 | u64::from(number);
    let blocks = (0..CELL / 512).map(|index| block << 16 | index as u64);
    blocks.flat_map(|word| word.to_le_bytes().repeat(512 / 8)).collect()
}

impl Cells {
    fn new(seed: u64, may_lose: bool) -> Self {
        let (cells, flights) = ([Cell::default(); CELLS], [None; DEPTH]);
        let dice = Dice::new(seed);
        Self { cells, flights, queue: None, dice, may_lose, written: 0, read: 0, failed: 0 }
    }

    fn connect(&mut self, daemon: &Daemon) {
        let mut host = daemon.host("disk");
        let queue = host.create_queue_pair(1, QueueLayout::default(), None).expect("a queue pair");
        let memory = host.memory().allocate(DEPTH * CELL).expect("memory");
        self.queue = Some((queue, memory, host));
    }

    /// Ends the connection to a daemon that is gone.
    fn disconnect(&mut self) {
        self.reap();
        self.queue = None;
        for flight in self.flights.iter_mut().filter_map(Option::take) {
            self.cells[flight.cell].is_busy = false;
        }
    }

    /// Checks the data of a cell.
    fn check(&mut self, cell: usize, data: &[u8]) {
        let word = u64::from_le_bytes(data[..8].try_into().expect("eight bytes"));
        let number = (word >> 16) as u32;
        let is_whole = match number {
            0 => data.iter().all(|byte| *byte == 0),
            _ => data == content(cell, number),
        };
        if !is_whole {
            let words =
                data.chunks(512).map(|block| u64::from_le_bytes(block[..8].try_into().expect("eight")));
            panic!("cell {cell} is torn: {:x?}", words.collect::<Vec<_>>());
        }
        let Cell { acknowledged, submitted, .. } = self.cells[cell];
        assert!(number <= submitted, "cell {cell} has a write of the future");
        assert!(self.may_lose || number >= acknowledged, "cell {cell} has {number}, not {acknowledged}");
        // A write that was shown is the one that counts from now on.
        self.cells[cell].acknowledged = number;
        self.read += 1;
    }

    fn reap(&mut self) -> usize {
        let Some((queue, memory, _)) = &mut self.queue else { return 0 };
        let mut done = Vec::new();
        let flights = &mut self.flights;
        queue.reap(|completion| {
            let is_it = |flight: &Option<Flight>| flight.is_some_and(|flight| flight.cid == completion.cid);
            let slot = flights.iter().position(is_it).expect("it was submitted");
            let mut data = vec![0; CELL];
            memory.region().read(slot * CELL, &mut data);
            done.extend(flights[slot].take().map(|flight| (flight, completion.status(), data)));
        });
        let count = done.len();
        for (flight, status, data) in done {
            self.cells[flight.cell].is_busy = false;
            match (status.is_success(), flight.is_read) {
                (true, true) => self.check(flight.cell, &data),
                (true, false) => {
                    self.cells[flight.cell].acknowledged = self.cells[flight.cell].submitted;
                    self.written += 1;
                }
                (false, _) => self.failed += 1,
            }
        }
        count
    }

    /// Takes completions, and submits commands in free slots if `more`. Returns false if the daemon is gone.
    fn turn(&mut self, more: bool) -> bool {
        if self.reap() == 0 {
            std::thread::sleep(Duration::from_micros(200));
        }
        for slot in 0..DEPTH {
            let cell = self.dice.below(CELLS as u64) as usize;
            if more && self.flights[slot].is_none() && !self.cells[cell].is_busy {
                self.submit(slot, cell);
            }
        }
        self.queue.as_mut().is_some_and(|(queue, ..)| queue.ring().is_ok())
    }

    fn submit(&mut self, slot: usize, cell: usize) {
        let is_read = self.dice.below(4) == 0;
        let Some((queue, memory, _)) = &mut self.queue else { return };
        let (slba, blocks) = ((cell * DISTANCE / 512) as u64, (CELL / 512) as u32);
        let command = match is_read {
            true => entry::read(1, slba, blocks),
            false => {
                self.cells[cell].submitted += 1;
                memory.region().write(slot * CELL, &content(cell, self.cells[cell].submitted));
                entry::write(1, slba, blocks)
            }
        };
        let cid = queue.submit_prp(command, memory.range(slot * CELL, CELL as u32)).expect("room");
        self.cells[cell].is_busy = true;
        self.flights[slot] = Some(Flight { cid, cell, is_read });
    }

    /// Works for some time, and on until so many more writes are acknowledged.
    fn work(&mut self, ms: u64, writes: u64) {
        let (start, time, least) = (Instant::now(), Duration::from_millis(ms), self.written + writes);
        while (start.elapsed() < time || self.written < least) && self.turn(true) {
            assert!(start.elapsed() < LIMIT, "{} writes of {least}", self.written);
        }
    }

    fn drain(&mut self) {
        let start = Instant::now();
        while self.flights.iter().any(Option::is_some) {
            assert!(self.turn(false) && start.elapsed() < LIMIT, "commands do not end");
        }
    }

    /// Reads all cells, with a host of its own.
    fn read_all(&mut self, daemon: &Daemon) {
        let mut host = daemon.host("disk");
        let mut disk = namespace(&mut host, 1);
        for cell in 0..CELLS {
            let mut data = vec![0; CELL];
            disk.read((cell * DISTANCE / 512) as u64, &mut data)
                .unwrap_or_else(|error| panic!("{error}\n{}", daemon.log()));
            self.check(cell, &data);
        }
    }
}

fn file(path: &Path, size: usize) -> String {
    format!("target = \"file\", path = \"{}\", size = \"{size}\"", path.display())
}

/// Returns a drive with `atomic` above more functions.
fn drive(target: &str, log: &str, place: &str, below: &str) -> String {
    let target = target.replace(", ", "\n");
    format!(
        "[[drive]]\nname = \"disk\"\n[[drive.namespace]]\n{target}\nfunctions = [ {{ kind = \"uif\", function = \"atomic\", \
         place = \"{place}\", options = {{ limit = \"64KiB\" }}, layers = [ {{ {log} }} ] }}{below} ]\n"
    )
}

/// Returns a mirror as the function below, with its second member and its log.
fn mirror(place: &str) -> String {
    let [member, log] = ["m1", "mlog"].map(|name| file(Path::new(name), SIZE));
    format!(
        ", {{ kind = \"uif\", function = \"mirror\", place = \"{place}\", layers = [ {{ {member} }}, {{ {log} }} ] }}"
    )
}

fn metrics(daemon: &Daemon) -> String {
    daemon.ok(&["function", "tell", "disk", "--function", "1", "metrics"])
}

/// Kills the daemon under load, again and again.
fn survives_kills(place: &str, below: &str) {
    let drive = drive(&file(Path::new("m0"), SIZE), &file(Path::new("alog"), 2 << 20), place, below);
    let mut daemon = Daemon::start("");
    daemon.stop();
    daemon.declare("", &drive);
    daemon.restart();
    let mut cells = Cells::new(7, false);
    for _ in 0..6 {
        cells.connect(&daemon);
        let ms = 50 + cells.dice.below(150);
        cells.work(ms, 9);
        daemon.crash();
        cells.disconnect();
        daemon.restart();
        cells.read_all(&daemon);
    }
    assert!(cells.written > 50 && cells.failed == 0, "{} {}\n{}", cells.written, cells.failed, daemon.log());
    cells.connect(&daemon);
    cells.work(100, 1);
    cells.drain();
    assert!(!metrics(&daemon).contains("logged_total 0\n"), "{}", metrics(&daemon));
    wait_for("the log to be empty", || metrics(&daemon).contains("slots_used 0\n"));
}

#[test]
fn writes_are_whole_after_kills_in_the_daemon() {
    survives_kills("daemon", "");
}

#[test]
fn writes_are_whole_after_kills_in_a_process() {
    survives_kills("process", "");
}

#[test]
fn writes_are_whole_after_kills_over_a_mirror() {
    survives_kills("daemon", &mirror("daemon"));
}

/// Kills the process of the function alone: commands begin anew with the next one, and none fails.
#[test]
fn writes_are_whole_when_the_process_of_the_function_dies() {
    let drive = drive(&file(Path::new("m0"), SIZE), &file(Path::new("alog"), 2 << 20), "process", "");
    let daemon = Daemon::start(&drive);
    let mut cells = Cells::new(3, false);
    cells.connect(&daemon);
    for _ in 0..3 {
        cells.work(100, 7);
        let killed = pid(&daemon, "disk").expect("it is there");
        kill_process(killed, Signal::KILL).expect("it is ours");
        cells.work(100, 0);
        wait_for("the next one", || pid(&daemon, "disk").is_some_and(|pid| pid != killed));
    }
    cells.work(100, 0);
    cells.drain();
    cells.disconnect();
    cells.read_all(&daemon);
    assert!(cells.written > 20 && cells.failed == 0, "{} {}\n{}", cells.written, cells.failed, daemon.log());
}

/// Cuts the power of a machine with all layers on disks with volatile caches, whose blocks reach the medium in any
/// order. The function below `atomic` has `more` members besides the first, and a log.
fn survives_power_cuts(function: &str, more: usize) {
    let Some((data, log)) = Disk::new(SIZE).zip(Disk::new(2 << 20)) else { return };
    let others: Vec<Disk> = (0..more).filter_map(|_| Disk::new(SIZE)).collect();
    let plain = |disk: &Disk| format!("target = \"file\", path = \"{}\"", disk.path().display());
    let layers: Vec<String> = others.iter().map(|disk| format!("{{ {} }}", plain(disk))).collect();
    let below = match more {
        0 => String::new(),
        _ => format!(", {{ kind = \"uif\", function = \"{function}\", layers = [ {} ] }}", layers.join(", ")),
    };
    let mut daemon = Daemon::start(&drive(&plain(&data), &plain(&log), "daemon", &below));
    // The disks were used before, so an order chooses the right members.
    let order = if function == "parity" { "recompute" } else { "copy from 0" };
    if more > 0 {
        daemon.ok(&["function", "tell", "disk", "--function", "2", order]);
    }
    let mut cells = Cells::new(11, true);
    let mut torn = 0;
    for _ in 0..10 {
        cells.connect(&daemon);
        let ms = 20 + cells.dice.below(100);
        cells.work(ms, 6);
        daemon.crash();
        cells.disconnect();
        let share = cells.dice.below(4);
        for disk in [&data, &log].into_iter().chain(&others) {
            disk.cut_partly(|| cells.dice.below(4) <= share);
        }
        torn += torn_cells(&data.durable());
        daemon.restart();
        cells.read_all(&daemon);
    }
    assert!(cells.written > 50 && cells.failed == 0, "{} {}\n{}", cells.written, cells.failed, daemon.log());
    // The first member of a parity has the data in other places.
    assert!(torn > 0 || function == "parity", "the cuts tear cells below");
}

#[test]
fn writes_are_whole_after_power_cuts() {
    survives_power_cuts("", 0);
}

#[test]
fn writes_are_whole_after_power_cuts_over_a_mirror() {
    survives_power_cuts("mirror", 2);
}

#[test]
fn writes_are_whole_after_power_cuts_over_a_parity() {
    survives_power_cuts("parity", 3);
}

/// Returns the number of cells that the data's layer alone shows torn.
fn torn_cells(image: &[u8]) -> usize {
    let is_torn = |cell: &usize| {
        let blocks = image[cell * DISTANCE..][..CELL].chunks(512);
        let numbers = blocks.map(|block| u64::from_le_bytes(block[..8].try_into().expect("eight")) >> 16);
        let numbers: Vec<u64> = numbers.collect();
        numbers.iter().any(|number| *number != numbers[0])
    };
    (0..CELLS).filter(is_torn).count()
}

/// Cuts the power of the machine with the data while the daemon with the function and its log lives.
#[test]
fn writes_are_whole_after_power_cuts_of_a_remote_target() {
    let free = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port");
    let Some(mut far) = Far::start_at(None, &free.to_string(), SIZE) else { return };
    let target = far.target_with(&format!(", size = \"{SIZE}\", timeout_s = 1, keep_alive_s = 1"));
    let log = file(Path::new("alog"), 2 << 20);
    let text = format!(
        "[[drive]]\nname = \"disk\"\n[[drive.namespace]]\n{}\nfunctions = [ {{ kind = \"uif\", function = \"atomic\", \
         place = \"daemon\", layers = [ {{ {log} }} ] }} ]\n",
        target.replacen(", ", "\n", 1)
    );
    let daemon = Daemon::start(&text);
    let mut cells = Cells::new(5, true);
    wait_for("the drive", || daemon.ok(&["drive", "show", "disk"]).contains("state:     ready"));
    let mut torn = 0;
    for _ in 0..5 {
        cells.connect(&daemon);
        let ms = 50 + cells.dice.below(100);
        cells.work(ms, 5);
        far.daemon.crash();
        let share = cells.dice.below(4);
        far.disk.cut_partly(|| cells.dice.below(4) <= share);
        torn += torn_cells(&far.disk.durable());
        far.come_up();
        cells.work(200, 0);
        cells.drain();
        cells.disconnect();
        cells.read_all(&daemon);
        let mut host = daemon.host("disk");
        let mut disk = namespace(&mut host, 1);
        let is_flushed = (0..3).any(|_| disk.flush().is_ok());
        assert!(is_flushed, "no Flush succeeds\n{}", daemon.log());
    }
    assert!(cells.written > 20, "{} {}\n{}", cells.written, cells.failed, daemon.log());
    assert!(torn > 0, "the cuts tear cells below");
}

/// Checks that nothing can pass the function by, so that no entry of the log is older than the data.
#[test]
fn ways_past_the_log_are_refused() {
    let daemon = Daemon::start("");
    let create = |options: &str, below: &str, paths: &str| {
        let atomic = format!(
            r#"{{ "kind": "uif", "function": "atomic", "options": {{ {options} }},
                  "layers": [ {{ "target": "memory", "size": "2MiB" }} ] }}"#
        );
        let spec = format!(
            r#"{{ "name": "a", "namespaces": [ {{ "target": "memory", "size": "4MiB",
                  "functions": [ {atomic}{below} ] {paths} }} ] }}"#
        );
        let file = daemon.folder.path().join("a.json");
        std::fs::write(&file, spec).expect("room");
        daemon.fails(&["drive", "create", "a", "--spec", &file.display().to_string()])
    };
    let past = create("", "", r#", "paths": [ { "name": "past", "below": 1 } ]"#);
    assert!(past.contains("a classifier could send commands past atomic"), "{past}");
    let below = create("", r#", { "kind": "uif", "function": "snapshot" }"#, "");
    assert!(below.contains("snapshot below atomic can change data by itself"), "{below}");
    let limit = create(r#""limit": "5000""#, "", "");
    assert!(limit.contains("limit is a multiple of 4KiB"), "{limit}");
}

/// Grows the drive under the function, and refuses to detach it.
#[test]
fn a_drive_grows_and_keeps_its_log() {
    let drive = drive(&file(Path::new("m0"), SIZE), &file(Path::new("alog"), 2 << 20), "daemon", "");
    let daemon = Daemon::start(&drive);
    daemon.ok(&["drive", "resize", "disk", "--size", "8MiB"]);
    let mut host = daemon.host("disk");
    let mut disk = namespace(&mut host, 1);
    let (slba, data) = ((8 << 20) / 512 - 128, content(1, 1));
    disk.write(slba, &data).expect("the new blocks are there");
    let mut read = vec![0; CELL];
    disk.read(slba, &mut read).expect("they can be read");
    assert!(read == data);
    let refused = daemon.fails(&["function", "detach", "disk"]);
    assert!(refused.contains("its log may have writes"), "{refused}");
}

/// Checks the fields of Identify that Linux takes its limits from.
#[test]
fn hosts_see_the_limit() {
    let drive = |block: u32| {
        drive(
            &format!("{}, block_size = {block}", file(Path::new("m0"), SIZE)),
            &file(Path::new("alog"), 2 << 20),
            "daemon",
            "",
        )
    };
    for block in [512, 4096] {
        let daemon = Daemon::start(&drive(block));
        let mut host = daemon.host("disk");
        let limit = ((64 << 10) / block - 1) as u16;
        let controller = *host.identity().expect("it was identified");
        assert_eq!((controller.awun, controller.awupf), (limit, limit));
        let disk = namespace(&mut host, 1);
        let identity = disk.identity();
        assert_eq!((identity.nawun, identity.nawupf), (limit, limit));
        assert_eq!((identity.nabsn, identity.nabspf, identity.nabo, identity.nsfeat & 2), (0, 0, 0, 2));
    }
}
