//! Balancing of overloaded reactors. If two drives overload one reactor, one of them moves to the other
//! reactor by itself, in use. If a drive overloads a reactor alone, one of its queues moves.

use crate::common::{Daemon, wait_for};
use crate::load::{Load, block_on};
use sluice_api::client::Client;
use sluice_control::drives::DriveView;
use sluice_host::{Controller, DmaBuffer, QueueLayout, QueuePair, entry};
use sluice_nvme::SubmissionEntry;
use sluice_nvme::opcode::io;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Time limit: it takes some seconds, and more on a machine with other work.
const LIMIT: Duration = Duration::from_secs(60);

/// Drives without a reactor go where there are the fewest. Drives with a reactor stay there, and do nothing.
const DRIVES: &str = "[[drive]]\nname = \"one\"\n[[drive.namespace]]\ntarget = \"memory\"\nsize = \"16MiB\"\n\
     [[drive]]\nname = \"still\"\nreactor = 1\n[[drive.namespace]]\ntarget = \"null\"\nsize = \"1MiB\"\n\
     [[drive]]\nname = \"silent\"\nreactor = 1\n[[drive.namespace]]\ntarget = \"null\"\nsize = \"1MiB\"\n\
     [[drive]]\nname = \"two\"\n[[drive.namespace]]\ntarget = \"memory\"\nsize = \"16MiB\"\n";

/// A host that keeps a reactor busy with little processor time of its own. A queue full of Verify commands is
/// a tenth of a second's work, so the reactor has some however seldom the host runs.
struct Burden(QueuePair);

impl Burden {
    const ENTRIES: u32 = 4096;
    /// Number of blocks of a command, less one. So few keep a turn of the reactor short, which takes 64
    /// commands.
    const BLOCKS: u32 = (256 << 10) / 512 - 1;

    fn new(host: &mut Controller, qid: u16) -> Self {
        let layout = QueueLayout { entries: Self::ENTRIES, max_transfer: 4096 };
        Self(host.create_queue_pair(qid, layout, None).expect("a queue pair"))
    }

    fn turn(&mut self, more: bool) {
        self.0.reap(|completion| assert!(completion.status().is_success(), "{:?}", completion.status()));
        let entry =
            SubmissionEntry { opcode: io::VERIFY, nsid: 1, cdw12: Self::BLOCKS, ..Default::default() };
        while more && self.0.submit(entry).is_some() {}
        self.0.ring().expect("a doorbell");
    }
}

/// A host of a drive, which reads back its writes beside its burden.
struct Guest {
    host: Controller,
    load: Load,
    burden: Burden,
}

impl Guest {
    fn new(daemon: &Daemon, drive: &str) -> Self {
        let mut host = daemon.host(drive);
        let load = Load::new(&mut host, 1, 1);
        let burden = Burden::new(&mut host, 2);
        Self { host, load, burden }
    }

    fn turn(&mut self) {
        self.load.turn(true);
        self.burden.turn(true);
    }

    /// Checks that each command is completed once, and that a new load works where the drive is now.
    fn end(mut self) {
        self.load.end();
        wait_for("the end of what was asked for", || {
            self.burden.turn(false);
            self.burden.0.in_flight() == 0
        });
        let mut load = Load::new(&mut self.host, 3, 2);
        wait_for("the next", || {
            load.turn(true);
            load.is_verified()
        });
        load.end();
    }
}

fn show(daemon: &Daemon, drive: &str) -> DriveView {
    let shown = daemon.ok(&["drive", "show", drive, "-o", "json"]);
    serde_json::from_str(&shown).expect("JSON")
}

/// A burden of lists of blocks to deallocate, for namespaces without data.
struct Lists {
    queue: QueuePair,
    list: DmaBuffer,
}

impl Lists {
    const RANGES: u32 = 256;

    fn new(host: &mut Controller, qid: u16) -> Self {
        let layout = QueueLayout { entries: Burden::ENTRIES, max_transfer: 4096 };
        let list = host.memory().allocate(4096).expect("memory");
        for range in 0..Self::RANGES {
            // A range of Dataset Management: context attributes, one block, and its first block.
            let words = [0, 1, range, 0].map(u32::to_le_bytes).concat();
            list.region().write(range as usize * 16, &words);
        }
        let queue = host.create_queue_pair(qid, layout, None).expect("a queue pair");
        Self { queue, list }
    }

    fn turn(&mut self, more: bool) {
        self.queue.reap(|completion| assert!(completion.status().is_success(), "{:?}", completion.status()));
        let (command, list) = (entry::deallocate(2, Self::RANGES), self.list.range(0, 4096));
        while more && self.queue.submit_prp(command, list).is_some() {}
        self.queue.ring().expect("a doorbell");
    }
}

#[test]
fn a_queue_leaves_a_reactor_for_which_one_drive_is_too_much() {
    let mut daemon = Daemon::start("");
    daemon.stop();
    let disk = "[[drive]]\nname = \"disk\"\n\
                [[drive.namespace]]\ntarget = \"file\"\npath = \"disk.img\"\nsize = \"16MiB\"\n\
                [[drive.namespace]]\ntarget = \"null\"\nsize = \"1MiB\"\n";
    daemon.declare("cores = [0, 1]\nbalance = true", disk);
    daemon.restart();
    let mut host = daemon.host("disk");
    let mut load = Load::new(&mut host, 1, 1);
    let mut burdens = [2, 3].map(|qid| Lists::new(&mut host, qid));
    let began = Instant::now();
    // The balancer moves the last queue, and leaves the others where they are.
    let moved = || daemon.log().contains("queue 3 of drive disk moved to reactor 1");
    let mut looked = Instant::now();
    loop {
        load.turn(true);
        burdens.iter_mut().for_each(|burden| burden.turn(true));
        if looked.elapsed() > Duration::from_millis(50) {
            if moved() {
                break;
            }
            looked = Instant::now();
        }
        assert!(began.elapsed() < LIMIT, "none moved:\n{}", daemon.log());
        std::thread::yield_now();
    }
    // The load goes on with the queue on the other reactor.
    load.end();
    wait_for("the end of what was asked for", || {
        burdens.iter_mut().for_each(|burden| burden.turn(false));
        burdens.iter().all(|burden| burden.queue.in_flight() == 0)
    });
    burdens.iter_mut().for_each(|burden| burden.turn(true));
    wait_for("the next", || {
        burdens.iter_mut().for_each(|burden| burden.turn(false));
        burdens.iter().all(|burden| burden.queue.in_flight() == 0)
    });
    let view = show(&daemon, "disk");
    assert_eq!((view.reactor, view.counters.errors), (0, 0));
    assert!(view.remote_queues.iter().all(|it| it.reactor == 1), "{:?}", view.remote_queues);
}

#[test]
fn a_drive_leaves_a_reactor_that_is_too_busy() {
    let mut daemon = Daemon::start("");
    daemon.stop();
    daemon.declare("cores = [0, 1]\nbalance = true", DRIVES);
    daemon.restart();
    assert_eq!(["one", "two", "still"].map(|name| show(&daemon, name).reactor), [0, 0, 1]);
    let mut guests = ["one", "two"].map(|name| Guest::new(&daemon, name));
    let is_over = AtomicBool::new(false);
    let moved = std::thread::scope(|scope| {
        let watching = scope.spawn(|| {
            let start = Instant::now();
            let mut moved = false;
            while !moved && start.elapsed() < LIMIT {
                std::thread::sleep(Duration::from_millis(50));
                moved = daemon.log().contains("moved from reactor 0 to reactor 1");
            }
            is_over.store(true, SeqCst);
            moved
        });
        while !is_over.load(SeqCst) {
            guests.iter_mut().for_each(Guest::turn);
            std::thread::yield_now();
        }
        watching.join().expect("a log")
    });
    let reactors = block_on(Client::new(daemon.api()).get::<serde_json::Value>("/v1/reactors"));
    assert!(moved, "none moved: {reactors:?}\n{}", daemon.log());
    guests.into_iter().for_each(Guest::end);
    let views = ["one", "two"].map(|name| show(&daemon, name));
    assert_eq!(views[0].reactor + views[1].reactor, 1, "one of them: {}", daemon.log());
    assert_eq!(views.map(|view| view.counters.errors), [0, 0]);
}
