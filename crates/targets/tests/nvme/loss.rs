//! The device dies, does not answer, or comes back as another.

use crate::rig::{BLOCK, Drive, LIMIT, Rig, Scratch, eventually, open, pattern, start_reactor};
use sluice_command::{Characteristics, Command, Lane, Layer, Ticket};
use sluice_host::{Deadline, DmaBuffer, Error, Mode, QueueLayout, QueuePair, entry};
use sluice_memory::Space;
use sluice_nvme::Status;
use sluice_targets::{Address, Memory, NvmeConfig, OnLoss, PreparedNvme};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn code(result: Result<(), Error>) -> Option<Status> {
    result.err().map(|error| error.status().unwrap_or_else(|| panic!("{error}")))
}

#[test]
fn commands_wait_for_a_device_that_is_gone() {
    for mode in [Mode::Mapped, Mode::Trapped] {
        wait_for_device(mode);
    }
}

fn wait_for_device(mode: Mode) {
    let mut rig = Rig::new();
    let (drive, control) = rig.drive("disk", &rig.config());
    let mut guest = drive.connect(mode);
    let mut blocks = open(&mut guest);
    let data = pattern(1, 64 << 10);
    blocks.write(0, &data).expect("written");
    rig.device.die();
    eventually("the loss is noticed", || !control.status().connected);
    let writer = std::thread::spawn(move || {
        let result = blocks.write(5000, &pattern(2, 128 << 10));
        (blocks, result)
    });
    rig.revive();
    let (mut blocks, result) = writer.join().expect("no panic");
    result.expect("done when the device was back");
    assert!(control.status().connected);
    let mut back = vec![0; data.len()];
    blocks.read(0, &mut back).expect("read");
    assert!(back == data);
    assert_eq!(rig.bytes()[5000 * BLOCK..][..128 << 10], pattern(2, 128 << 10));
}

#[test]
fn commands_fail_if_that_is_wanted() {
    let mut rig = Rig::new();
    let config = NvmeConfig { on_loss: OnLoss::Fail, ..rig.config() };
    let (drive, control) = rig.drive("disk", &config);
    let mut guest = drive.guest();
    let mut blocks = open(&mut guest);
    blocks.write(0, &pattern(1, BLOCK)).expect("written");
    rig.device.die();
    eventually("the loss is noticed", || !control.status().connected);
    let failed = code(blocks.write(0, &pattern(2, BLOCK)));
    assert_eq!(failed, Some(Status::INTERNAL_PATH_ERROR));
    rig.revive();
    eventually("the device is back", || control.status().connected);
    let mut back = vec![0; BLOCK];
    eventually("the drive goes on", || blocks.read(0, &mut back).is_ok());
    assert_eq!(back, pattern(1, BLOCK));
}

/// Resets a controller whose commands wait for the device.
#[test]
fn a_reset_does_not_wait_for_the_device() {
    let mut rig = Rig::new();
    let (drive, control) = rig.drive("disk", &rig.config());
    let mut guest = drive.guest();
    let mut queue = guest.create_queue_pair(1, QueueLayout::default(), None).expect("a queue pair");
    rig.device.die();
    eventually("the loss is noticed", || !control.status().connected);
    for block in 0..50 {
        queue.submit(entry::write_zeroes(1, block, 1, false)).expect("room");
    }
    queue.ring().expect("rung");
    eventually("they are taken", || drive.ask(|endpoint| endpoint.device().unfinished()) == 50);
    guest.enable().expect("reset, and enabled again");
    drop(queue);
    drop(guest);
    rig.revive();
    eventually("the device is back", || control.status().connected);
    let mut guest = drive.guest();
    open(&mut guest).write(0, &pattern(3, BLOCK)).expect("written");
}

#[test]
fn another_device_is_not_mistaken_for_the_one_that_was() {
    let mut rig = Rig::new();
    let (drive, control) = rig.drive("disk", &NvmeConfig { on_loss: OnLoss::Fail, ..rig.config() });
    let mut guest = drive.guest();
    let mut blocks = open(&mut guest);
    rig.device.die();
    // Smaller than what the drive has: it is as good as another one.
    let directory = rig.scratch.path().join("device");
    let impostor =
        Drive::serve(&rig.below, directory, 512, |_, _| Box::new(Memory::new(1 << 20).expect("memory")));
    eventually("somebody came", || impostor.ask(|endpoint| endpoint.status().counters.clients) >= 2);
    assert!(!control.status().connected);
    assert_eq!(code(blocks.read(0, &mut [0; 512])), Some(Status::INTERNAL_PATH_ERROR));
    drop(impostor);
    rig.revive();
    eventually("the right one is back", || control.status().connected);
    eventually("the drive goes on", || blocks.read(0, &mut [0; 512]).is_ok());
}

/// Takes commands and keeps them.
struct Silent;

impl Layer for Silent {
    fn name(&self) -> &'static str {
        "silent"
    }

    fn characteristics(&self, _: &[Characteristics]) -> Characteristics {
        Characteristics::target(1 << 20, 512)
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        lane.park(command);
    }
}

#[test]
fn a_device_that_does_not_answer_is_given_up() {
    let scratch = Scratch::new();
    let [below, above] = [start_reactor(), start_reactor()];
    let device = Drive::serve(&below, scratch.path().join("device"), 512, |_, _| Box::new(Silent));
    let config = NvmeConfig {
        on_loss: OnLoss::Fail,
        timeout: Duration::from_secs(1),
        ..NvmeConfig::new(Address::VfioUser(device.socket()), 1)
    };
    let seed = PreparedNvme::open(&config).expect("opened");
    let control = seed.control();
    let make = move |task, io: &sluice_reactor::Io| -> Box<dyn Layer> {
        Box::new(seed.build(task, io, 0).expect("room for a file"))
    };
    let drive = Drive::serve(&above, scratch.path().join("disk"), 512, make);
    let mut guest = drive.guest();
    let mut blocks = open(&mut guest);
    assert_eq!(code(blocks.read(0, &mut [0; 512])), Some(Status::INTERNAL_PATH_ERROR));
    assert_eq!((control.status().losses, control.status().interrupted), (1, 1));
}

/// A layer that keeps its commands until a signal to finish them.
struct Held {
    commands: Vec<Ticket>,
    may_finish: Arc<AtomicBool>,
    finished: Arc<AtomicBool>,
}

impl Layer for Held {
    fn name(&self) -> &'static str {
        "held"
    }

    fn characteristics(&self, _: &[Characteristics]) -> Characteristics {
        Characteristics::target(1 << 20, 512)
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        self.commands.push(lane.park(command));
    }

    fn polls(&self) -> bool {
        true
    }

    fn poll(&mut self, _controller: u8, _space: &Space, lane: &mut Lane<'_>) -> usize {
        if self.commands.is_empty() || !self.may_finish.load(Ordering::Relaxed) {
            return 0;
        }
        let commands = std::mem::take(&mut self.commands);
        for &ticket in &commands {
            let command = lane.unpark(ticket).expect("nobody else finishes it");
            lane.finish(command, Status::SUCCESS);
        }
        self.finished.store(true, Ordering::Relaxed);
        commands.len()
    }
}

/// Pauses the reactor for longer than the timeout: the completions count, and the device is not given up.
#[test]
fn a_device_that_answered_while_nobody_looked_is_not_given_up() {
    const TIMEOUT: Duration = Duration::from_secs(2);
    let scratch = Scratch::new();
    let [below, above] = [start_reactor(), start_reactor()];
    let [may_finish, finished] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let held = Held { commands: Vec::new(), may_finish: may_finish.clone(), finished: finished.clone() };
    let device = Drive::serve(&below, scratch.path().join("device"), 512, |_, _| Box::new(held));
    let config = NvmeConfig { timeout: TIMEOUT, ..NvmeConfig::new(Address::VfioUser(device.socket()), 1) };
    let seed = PreparedNvme::open(&config).expect("opened");
    let control = seed.control();
    let make = move |task, io: &sluice_reactor::Io| -> Box<dyn Layer> {
        Box::new(seed.build(task, io, 0).expect("room for a file"))
    };
    let drive = Drive::serve(&above, scratch.path().join("disk"), 512, make);
    let mut guest = drive.guest();
    let mut queue = guest.create_queue_pair(1, QueueLayout::default(), None).expect("a queue pair");
    let cid = queue.submit(entry::write_zeroes(1, 0, 1, false)).expect("room");
    queue.ring().expect("rung");
    eventually("it is on the device", || device.ask(|endpoint| endpoint.device().unfinished()) == 1);
    let look_away = move |_: &mut sluice_reactor::Local| {
        may_finish.store(true, Ordering::Relaxed);
        eventually("the device is done", || finished.load(Ordering::Relaxed));
        std::thread::sleep(TIMEOUT + Duration::from_millis(500));
    };
    above.call(look_away).expect("the reactor runs");
    let deadline = Deadline::after(LIMIT, "the command");
    assert!(queue.wait(cid, &deadline, drop).expect("answered").status().is_success());
    assert_eq!((control.status().losses, control.status().interrupted), (0, 0));
}

/// Returns whether a client has connected to a socket that was not accepted yet.
fn is_knocked_at(socket: &Path) -> bool {
    const CONNECTING: &str = "02";
    let sockets = std::fs::read_to_string("/proc/net/unix").expect("Linux says so");
    let path = socket.to_str().expect("a name of ours");
    sockets.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).any(|line| {
        // The state, a number, the path.
        matches!(line[..], [.., state, _, name] if state == CONNECTING && name == path)
    })
}

/// Deletes a drive while its device reconnects: no queue is left there.
#[test]
fn a_drive_may_go_while_its_device_comes_back() {
    let mut rig = Rig::new();
    let half = |first_block| NvmeConfig { first_block, blocks: Some(1024), ..rig.config() };
    let [first, second] = [half(0), half(1024)];
    let (gone, lost) = rig.drive("gone", &first);
    let (_stays, control) = rig.drive("stays", &second);
    rig.device.die();
    eventually("the loss is noticed", || !control.status().connected && !lost.status().connected);
    let (below, socket) = (rig.below.clone(), rig.device.socket());
    let [waits, goes_on] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let (tells, told) = (Arc::clone(&waits), Arc::clone(&goes_on));
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let wait = move |_: &mut sluice_reactor::Local| {
                tells.store(true, Ordering::Relaxed);
                eventually("it is told to go on", || told.load(Ordering::Relaxed));
            };
            below.call(wait).expect("the reactor runs");
        });
        eventually("the reactor that is to serve the device waits", || waits.load(Ordering::Relaxed));
        scope.spawn(|| rig.revive());
        // The connection is not answered before the reactor continues.
        eventually("the device is connected to", || is_knocked_at(&socket));
        drop(gone);
        goes_on.store(true, Ordering::Relaxed);
    });
    eventually("the device is back", || control.status().connected);
    let seed = PreparedNvme::open(&first).expect("its range and its queue pair are free");
    assert_eq!(control.status().losses, 1);
    drop(seed);
}

/// A layer that only finishes its commands, until it is switched to keep them.
pub(crate) struct Stubborn(pub(crate) Arc<AtomicBool>);

impl Layer for Stubborn {
    fn name(&self) -> &'static str {
        "stubborn"
    }

    fn characteristics(&self, _: &[Characteristics]) -> Characteristics {
        Characteristics::target(1 << 20, 512)
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        match self.0.load(Ordering::Relaxed) {
            true => drop(lane.park(command)),
            false => lane.finish(command, Status::SUCCESS),
        }
    }
}

/// Checks that a read does not end while a device that was given up may still write into its memory.
#[test]
fn memory_that_a_silent_device_has_is_not_said_to_be_free() {
    let scratch = Scratch::new();
    let [below, above] = [start_reactor(), start_reactor()];
    let keeps = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&keeps);
    let directory = scratch.path().join("device");
    let mut device = Drive::serve(&below, directory, 512, |_, _| Box::new(Stubborn(told)));
    let config = NvmeConfig {
        on_loss: OnLoss::Fail,
        timeout: Duration::from_secs(1),
        ..NvmeConfig::new(Address::VfioUser(device.socket()), 1)
    };
    let seed = PreparedNvme::open(&config).expect("opened");
    let control = seed.control();
    let make = move |task, io: &sluice_reactor::Io| -> Box<dyn Layer> {
        Box::new(seed.build(task, io, 0).expect("room for a file"))
    };
    let drive = Drive::serve(&above, scratch.path().join("disk"), 512, make);
    let mut guest = drive.guest();
    let memory = guest.memory().allocate(4096).expect("memory");
    let mut queue = guest.create_queue_pair(1, QueueLayout::default(), None).expect("a queue pair");
    let read = |queue: &mut QueuePair| {
        let cid = queue.submit_prp(entry::read(1, 0, 8), memory.range(0, 4096)).expect("room");
        queue.ring().expect("rung");
        cid
    };
    let deadline = Deadline::after(LIMIT, "a read");
    eventually("the device is shown the memory", || {
        let before = control.status().copied;
        let cid = read(&mut queue);
        assert!(queue.wait(cid, &deadline, drop).expect("answered").status().is_success());
        control.status().copied == before
    });
    keeps.store(true, Ordering::Relaxed);
    let held = read(&mut queue);
    eventually("the device is given up", || control.status().losses == 1);
    // New commands fail at once: the loss is handled, and the first read is still not over.
    let refused = read(&mut queue);
    let status = queue.wait(refused, &deadline, |_| panic!("the device may still write")).expect("answered");
    assert!(status.status().same_code(Status::INTERNAL_PATH_ERROR));
    assert_eq!(queue.in_flight(), 1);
    device.die();
    let status = queue.wait(held, &deadline, drop).expect("answered").status();
    assert!(status.same_code(Status::INTERNAL_PATH_ERROR), "{status:?}");
}

/// Commands of one guest, each with a page of its own, that come back after every failure below.
struct Load {
    queue: QueuePair,
    memory: DmaBuffer,
    /// Last value written to each page, and whether the write has completed.
    wanted: Vec<u64>,
    cids: Vec<Option<usize>>,
    round: u64,
}

const PAGES: usize = 64;

impl Load {
    fn new(guest: &mut sluice_host::Controller) -> Self {
        let queue = guest.create_queue_pair(1, QueueLayout::default(), None).expect("a queue pair");
        let memory = guest.memory().allocate(PAGES * 4096).expect("memory");
        Self { queue, memory, wanted: vec![0; PAGES], cids: vec![None; 128], round: 0 }
    }

    /// Writes every page anew, without waiting.
    fn write_all(&mut self) {
        self.round += 1;
        for page in 0..PAGES {
            self.wanted[page] = self.round << 8 | page as u64;
            self.memory.region().write(page * 4096, &pattern(self.wanted[page], 4096));
            let data = self.memory.range(page * 4096, 4096);
            let cid = self.queue.submit_prp(entry::write(1, page as u64 * 8, 8), data).expect("room");
            self.cids[usize::from(cid)] = Some(page);
        }
        self.queue.ring().expect("rung");
    }

    /// Waits for all of them, which must have succeeded.
    fn finish(&mut self) {
        let deadline = Deadline::after(LIMIT, "the commands");
        while self.queue.in_flight() > 0 {
            let cids = &mut self.cids;
            self.queue.reap(|completion| {
                assert!(completion.status().is_success(), "{:?}", completion.status());
                assert!(cids[usize::from(completion.cid)].take().is_some(), "it was in flight");
            });
            self.queue.ring().expect("rung");
            deadline.check().expect("in time");
            std::thread::yield_now();
        }
    }
}

/// Checks that every command that completed for the guest is on the disk, after any number of device losses.
#[test]
fn nothing_is_lost_when_the_device_dies_under_load() {
    let mut rig = Rig::new();
    let (drive, control) = rig.drive("disk", &rig.config());
    let mut guest = drive.guest();
    let mut load = Load::new(&mut guest);
    for round in 1..=10 {
        load.write_all();
        rig.device.die();
        rig.revive();
        load.finish();
        let bytes = rig.bytes();
        for (page, wanted) in load.wanted.iter().enumerate() {
            assert!(bytes[page * 4096..][..4096] == pattern(*wanted, 4096), "round {round}, page {page}");
        }
    }
    assert!(control.status().losses >= 10, "{:?}", control.status());
}
