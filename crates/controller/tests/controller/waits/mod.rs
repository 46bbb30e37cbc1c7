//! Commands that wait for the end of others, against all commands that they wait for, on several namespaces, queues and
//! controllers. Order and times of completion are random; a model of few rules checks them.
//!
//! The model looks at the commands that the layers of a namespace hold when another arrives there, and when a command
//! completes. It uses none of the controller's own counts.

mod disk;

use crate::copy::{NAMED, copy, enable_named_ranges};
use crate::host::{Host, MS, PAGE, entry, io};
use crate::hostile::Random;
use crate::management::{attachment, deletion};
use crate::reservation::{PREEMPT_AND_ABORT, WRITE_EXCLUSIVE, command, set_host};
use crate::shared::Pair;
use disk::{BLOCKS, CONTENT, Key, Watched, compares_in_vain};
use sluice_controller::{Attached, Pool};
use sluice_nvme::opcode::{admin, io as opcode};
use sluice_nvme::{CompletionEntry, Status, SubmissionEntry};
use std::collections::BTreeMap;
use std::sync::Arc;
use zerocopy::IntoBytes;

const NAMESPACES: u32 = 3;
const QUEUES: u16 = 2;
const SIZE: u32 = 64;

/// Maximum number of commands in flight of a queue, so that no completion queue is ever full.
const DEPTH: usize = 40;

/// FUSE of the two.
const FIRST: u8 = 1;
const SECOND: u8 = 2;

/// A command that has not completed.
#[derive(Clone, Debug)]
struct Sent {
    entry: SubmissionEntry,
    /// Arrivals at each disk before it was sent.
    before: Vec<u64>,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Plain,
    Fused,
    /// Waits for commands of this namespace, or of all.
    Waits(u32),
    /// The controllers with these bits lose a namespace.
    Detach(u32),
    DeleteQueue(u16),
    /// Concerns no namespace.
    Other,
}

struct World {
    pair: Pair,
    disks: Vec<Watched>,
    random: Random,
    sent: BTreeMap<Key, Sent>,
    /// Queues of each host that take commands.
    queues: [Vec<u16>; 2],
    /// Pages with the content of the disks, and with other content.
    buffers: [[u64; 2]; 2],
    /// Number of successful completions by opcode; admin commands are separate.
    succeeded: BTreeMap<(bool, u8), u32>,
    /// Namespace that no Copy reads or writes.
    without_copies: Option<u32>,
    steps: Vec<String>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let aborts = random.one_in(2);
        let disks: Vec<Watched> = (1..=NAMESPACES).map(|nsid| Watched::new(nsid, aborts)).collect();
        let mut pair = Pair::with(disks.iter().map(Watched::namespace).collect());
        let subsystem = &mut pair.host(0).controller.subsystem;
        subsystem.set_pool(Pool { size: 1 << 20, volatile_cache: true });
        subsystem.expect(2);
        for number in [0, 1] {
            let Attached { controller, subsystem } = &mut pair.host(number).controller;
            controller.set_present(subsystem, true);
        }
        let buffers = [0, 1].map(|number| prepare(pair.host(number), number));
        for (number, key) in [(0, 7), (1, 8)] {
            let host = pair.host(number);
            for nsid in 1..=NAMESPACES {
                let register = command(host, opcode::RESERVATION_REGISTER, 0, [0, key]);
                assert_eq!(host.io(SubmissionEntry { nsid, ..register }), Status::SUCCESS);
            }
        }
        let queues = [0, 1].map(|_| (1..=QUEUES).collect());
        let (sent, steps) = (BTreeMap::new(), vec![format!("seed {seed}")]);
        Self {
            pair,
            disks,
            random,
            sent,
            queues,
            buffers,
            succeeded: BTreeMap::new(),
            without_copies: None,
            steps,
        }
    }

    fn note(&mut self, step: String) {
        self.steps.push(step);
    }

    fn fail(&self, what: &str) -> ! {
        panic!("{what}\nafter:\n{}", self.steps.join("\n"));
    }

    /// Draws a namespace.
    fn nsid(&mut self) -> u32 {
        1 + self.random.below(NAMESPACES.into()) as u32
    }

    /// Draws a host with a queue that has room, and the queue.
    fn queue(&mut self) -> Option<(usize, u16)> {
        let number = self.random.below(2) as usize;
        let queues = &self.queues[number];
        let queue = *queues.get(self.random.below(queues.len().max(1) as u64) as usize)?;
        let under_way = self.sent.keys().filter(|(of, sq, _)| (*of, *sq) == (number, queue)).count();
        (under_way < DEPTH).then_some((number, queue))
    }

    fn put(&mut self, number: usize, sq: u16, entry: SubmissionEntry, kind: Kind) -> u16 {
        let cid = self.pair.host(number).put(sq, entry);
        let before = self.disks.iter().map(Watched::arrivals).collect();
        self.note(format!("host {number} queue {sq} cid {cid}: {kind:?} {entry:?}"));
        self.sent.insert((number, sq, cid), Sent { entry, before, kind });
        cid
    }

    fn send(&mut self, number: usize, sq: u16, entry: SubmissionEntry, kind: Kind) {
        self.put(number, sq, entry, kind);
        self.pair.host(number).ring(sq);
    }

    /// Sends a command that others wait for.
    fn plain(&mut self) {
        let Some((number, sq)) = self.queue() else { return };
        let nsid = self.nsid();
        let [same, other] = self.buffers[number];
        let blocks = 1 + self.random.below(8);
        let slba = self.random.below(BLOCKS - blocks);
        let host = self.pair.host(number);
        let entry = match self.random.below(9) {
            0 | 1 => io(opcode::READ, slba, blocks as u32, same + PAGE as u64),
            2 | 3 => io(opcode::WRITE, slba, blocks as u32, other),
            4 => io(opcode::COMPARE, slba, blocks as u32, if slba.is_multiple_of(2) { same } else { other }),
            5 => SubmissionEntry { dptr: [0; 2], ..io(opcode::WRITE_ZEROES, slba, blocks as u32, 0) },
            6 => SubmissionEntry { dptr: [0; 2], ..io(opcode::VERIFY, slba, blocks as u32, 0) },
            7 => {
                let ranges = host.allocate(PAGE);
                host.write(ranges, [blocks << 32, slba].as_bytes());
                SubmissionEntry { dptr: [ranges, 0], cdw11: 1 << 2, ..entry(opcode::DATASET_MANAGEMENT) }
            }
            _ if Some(nsid) == self.without_copies => return,
            _ => {
                let from = 1 + self.random.below(NAMESPACES.into()) as u32;
                if Some(from) == self.without_copies {
                    return;
                }
                let to = self.random.below(BLOCKS - blocks);
                copy(host, NAMED, to, &[(from, slba, blocks as u16)])
            }
        };
        self.send(number, sq, SubmissionEntry { nsid, ..entry }, Kind::Plain);
    }

    /// Sends a fused Compare and Write.
    fn fused(&mut self) {
        let Some((number, sq)) = self.queue() else { return };
        let (nsid, slba) = (self.nsid(), self.random.below(BLOCKS - 4));
        let [same, other] = self.buffers[number];
        let expected = if compares_in_vain(slba) { other } else { same };
        let compare = io(opcode::COMPARE, slba, 4, expected);
        let write = io(opcode::WRITE, slba, 4, other);
        for (flags, entry) in [(FIRST, compare), (SECOND, write)] {
            self.put(number, sq, SubmissionEntry { flags, nsid, ..entry }, Kind::Fused);
        }
        self.pair.host(number).ring(sq);
    }

    /// Sends a command that waits for others.
    fn waiter(&mut self) {
        let nsid = self.nsid();
        let number = self.random.below(2) as usize;
        if self.queues[number].is_empty() {
            return;
        }
        let victim = self.random.below(2) as u16 + 1;
        let choice = self.random.below(12);
        let host = self.pair.host(number);
        match choice {
            0..3 => {
                let format = SubmissionEntry { nsid, ..entry(admin::FORMAT_NVM) };
                self.send(number, 0, format, Kind::Waits(nsid));
            }
            3 => {
                let sanitize = SubmissionEntry { cdw10: 2, ..entry(admin::SANITIZE) };
                self.send(number, 0, sanitize, Kind::Other);
            }
            4 | 5 => {
                let detach = attachment(host, nsid, &[victim], false);
                self.send(number, 0, detach, Kind::Detach(1 << (victim - 1)));
            }
            6 => self.send(number, 0, deletion(nsid), Kind::Waits(nsid)),
            7..10 => self.preempt(number, nsid),
            _ => self.end_queue(number),
        }
    }

    /// Sends a Preempt and Abort of the other host.
    fn preempt(&mut self, number: usize, nsid: u32) {
        let host = self.pair.host(number);
        let (own, others) = (7 + number as u64, 8 - number as u64);
        let preempt =
            command(host, opcode::RESERVATION_ACQUIRE, PREEMPT_AND_ABORT | WRITE_EXCLUSIVE, [own, others]);
        let sq = self.queues[number][0];
        self.send(number, sq, SubmissionEntry { nsid, ..preempt }, Kind::Waits(nsid));
    }

    /// Deletes a queue, or resets the whole controller.
    fn end_queue(&mut self, number: usize) {
        if self.random.one_in(3) {
            self.note(format!("host {number} resets"));
            self.pair.host(number).controller.reset();
            self.queues[number].clear();
            self.abandon(number, None);
            return;
        }
        let Some(sq) = self.queues[number].pop() else { return };
        let delete = SubmissionEntry { cdw10: sq.into(), ..entry(admin::DELETE_IO_SQ) };
        self.send(number, 0, delete, Kind::DeleteQueue(sq));
    }

    /// Marks the commands of a queue, or of all queues, as abandoned: they have no completions any more.
    fn abandon(&mut self, number: usize, queue: Option<u16>) {
        let under_way = Arc::new(self.sent.keys().copied().collect());
        self.sent.retain(|(of, sq, _), _| *of != number || queue.is_some_and(|queue| queue != *sq));
        for disk in &self.disks {
            for held in &mut disk.disk().held {
                let is_its = held.is_host() && usize::from(held.origin.controller) == number;
                if is_its && queue.is_none_or(|queue| queue == held.origin.sq) {
                    held.abandoned.get_or_insert_with(|| Arc::clone(&under_way));
                }
            }
        }
    }

    /// Aborts one of the commands that are under way.
    fn abort(&mut self) {
        let at = self.random.below(self.sent.len().max(1) as u64) as usize;
        let Some((number, sq, cid)) = self.sent.keys().nth(at).copied() else { return };
        if !self.queues[number].is_empty() {
            let abort =
                SubmissionEntry { cdw10: u32::from(sq) | u32::from(cid) << 16, ..entry(admin::ABORT) };
            self.send(number, 0, abort, Kind::Other);
        }
    }

    fn flush(&mut self) {
        let Some((number, sq)) = self.queue() else { return };
        let nsid = self.nsid();
        self.send(number, sq, SubmissionEntry { nsid, ..entry(opcode::FLUSH) }, Kind::Plain);
    }

    /// Ends a command that a disk holds. False if no disk holds one.
    fn answer(&mut self, except: Option<u32>) -> bool {
        let has_some =
            |nsid: &u32| Some(*nsid) != except && !self.disks[*nsid as usize - 1].disk().held.is_empty();
        let busy: Vec<u32> = (1..=NAMESPACES).filter(has_some).collect();
        let Some(&nsid) = busy.get(self.random.below(busy.len().max(1) as u64) as usize) else {
            return false;
        };
        let disk = &self.disks[nsid as usize - 1];
        let count = disk.disk().held.len() as u64;
        let token = disk.token(self.random.below(count) as usize);
        self.note(format!("namespace {nsid} answers {token:x}"));
        let host = self.pair.host(0);
        host.controller.subsystem.event(token, 0, host.now_ns);
        true
    }

    /// Gives both controllers a turn, and takes their completions.
    fn turn(&mut self) {
        for number in [0, 1] {
            self.pair.host(number).turn();
            self.reap(number);
        }
        self.check_disks();
    }

    fn check_disks(&self) {
        let breach = self.disks.iter().find_map(|disk| disk.disk().breach.clone());
        if let Some(breach) = breach {
            self.fail(&breach);
        }
    }

    fn reap(&mut self, number: usize) {
        // Completions of a deleted queue may have been written before that of the deletion.
        for cq in (0..=QUEUES).rev() {
            for completion in self.pair.host(number).reap_all(cq) {
                self.completed(number, &completion);
            }
        }
    }

    fn completed(&mut self, number: usize, completion: &CompletionEntry) {
        let CompletionEntry { sq_id, cid, .. } = *completion;
        let (key, status) = ((number, sq_id, cid), completion.status());
        self.note(format!("host {number} queue {sq_id} cid {cid}: {status:?}"));
        let Some(sent) = self.sent.remove(&key) else { self.fail("a completion of no command") };
        if status.is_success() {
            *self.succeeded.entry((sq_id == 0, sent.entry.opcode)).or_default() += 1;
        }
        self.check_none_is_held(number, &sent, |held| (held.origin.sq, held.origin.cid) == (sq_id, cid));
        match sent.kind {
            Kind::DeleteQueue(sq) if status.is_success() => self.abandon(number, Some(sq)),
            Kind::Detach(_) | Kind::Waits(_) if status.is_success() => self.check_wait(number, &sent),
            _ if sent.entry.opcode == opcode::FLUSH && sq_id != 0 && status.is_success() => {
                self.check_flush(&sent);
            }
            _ => {}
        }
    }

    fn check_none_is_held(&self, number: usize, sent: &Sent, is_it: impl Fn(&disk::Held) -> bool) {
        for disk in &self.disks {
            let disk = disk.disk();
            let its = |held: &&disk::Held| {
                held.is_host()
                    && held.abandoned.is_none()
                    && usize::from(held.origin.controller) == number
                    && is_it(held)
            };
            if let Some(held) = disk.held.iter().find(its) {
                self.fail(&format!("{sent:?} has completed before {held:?}"));
            }
        }
    }

    /// Fails if a command has completed before one that it waits for.
    fn check_wait(&mut self, number: usize, sent: &Sent) {
        let nsid = sent.entry.nsid;
        let disk = self.disks[nsid as usize - 1].disk();
        let before = sent.before[nsid as usize - 1];
        let is_late = |held: &&disk::Held| match (sent.kind, sent.entry.opcode) {
            (Kind::Waits(_), opcode::RESERVATION_ACQUIRE) => {
                usize::from(held.origin.controller) != number && held.arrival <= before
            }
            (Kind::Waits(_), admin::FORMAT_NVM) => held.arrival <= before,
            (Kind::Waits(_), _) => true,
            (Kind::Detach(lost), _) => lost >> held.origin.controller & 1 != 0,
            _ => false,
        };
        if let Some(held) = disk.held.iter().filter(|held| held.is_host()).find(is_late) {
            self.fail(&format!("{sent:?} has completed before {held:?}"));
        }
    }

    fn check_flush(&self, sent: &Sent) {
        let at = sent.entry.nsid as usize - 1;
        if self.disks[at].disk().flushed <= sent.before[at] {
            self.fail(&format!("{sent:?} has completed, and flushed nothing"));
        }
    }

    fn step(&mut self) {
        match self.random.below(40) {
            0..14 => self.plain(),
            14..18 => self.fused(),
            18 => self.waiter(),
            19 => self.flush(),
            20 => self.abort(),
            21..32 => drop(self.answer(None)),
            32 => self.pass(MS),
            _ => self.turn(),
        }
    }

    fn pass(&mut self, ns: u64) {
        self.pair.pass(ns);
        self.turn();
    }

    /// Answers until every command has completed.
    fn end(&mut self) {
        for _ in 0..4000 {
            let answered = self.answer(None);
            self.turn();
            if !answered {
                if self.sent.is_empty() {
                    return;
                }
                self.pass(MS);
            }
        }
        self.fail(&format!("never completed: {:?}", self.sent));
    }

    /// Fails if a command of another namespace does not complete while this one answers nothing.
    fn end_without(&mut self, stuck: u32) {
        for _ in 0..400 {
            let answered = self.answer(Some(stuck));
            self.turn();
            if !answered {
                self.pass(MS);
            }
        }
        let may_wait = |sent: &Sent| {
            sent.entry.nsid == stuck || sent.kind == Kind::Fused || sent.entry.opcode == opcode::COPY
        };
        let late = self.sent.values().find(|sent| !may_wait(sent));
        if let Some(late) = late {
            self.fail(&format!("waits for namespace {stuck}: {late:?}"));
        }
    }
}

fn prepare(host: &mut Host, number: usize) -> [u64; 2] {
    host.enable();
    assert_eq!(set_host(host, number as u8 + 1), Status::SUCCESS);
    enable_named_ranges(host);
    (1..=QUEUES).for_each(|queue| host.create_pair(queue, SIZE));
    [CONTENT, !CONTENT].map(|byte| {
        let buffer = host.allocate(2 * PAGE);
        host.write(buffer, &[byte; PAGE]);
        buffer
    })
}

#[test]
fn nothing_completes_before_what_it_waits_for() {
    let mut succeeded = BTreeMap::new();
    for seed in 0..400 {
        let mut world = World::new(seed);
        (0..300).for_each(|_| world.step());
        world.end();
        for number in [0, 1] {
            assert_eq!(world.pair.host(number).controller.in_flight(), 0, "seed {seed}");
        }
        for (command, times) in world.succeeded {
            *succeeded.entry(command).or_default() += times;
        }
    }
    let waits = [
        (true, admin::FORMAT_NVM),
        (true, admin::SANITIZE),
        (true, admin::NAMESPACE_ATTACHMENT),
        (true, admin::NAMESPACE_MANAGEMENT),
        (true, admin::DELETE_IO_SQ),
        (true, admin::ABORT),
        (false, opcode::RESERVATION_ACQUIRE),
        (false, opcode::FLUSH),
        (false, opcode::COMPARE),
        (false, opcode::COPY),
        (false, opcode::DATASET_MANAGEMENT),
    ];
    for command in waits {
        let times: u32 = succeeded.get(&command).copied().unwrap_or_default();
        assert!(times >= 20, "{command:?} has succeeded {times} times");
    }
}

#[test]
fn nothing_waits_for_commands_of_another_namespace() {
    for seed in 0..200 {
        let mut world = World::new(seed);
        let stuck = world.nsid();
        // It may write anything with its next step.
        world.without_copies = Some(stuck);
        for _ in 0..12 {
            world.plain();
            world.turn();
        }
        let free = stuck % NAMESPACES + 1;
        let number = world.random.below(2) as usize;
        let host = world.pair.host(number);
        match seed % 4 {
            0 => world.send(
                number,
                0,
                SubmissionEntry { nsid: free, ..entry(admin::FORMAT_NVM) },
                Kind::Waits(free),
            ),
            1 => world.send(number, 0, deletion(free), Kind::Waits(free)),
            2 => {
                let detach = attachment(host, free, &[1, 2], false);
                world.send(number, 0, detach, Kind::Detach(0b11));
            }
            _ => world.preempt(number, free),
        }
        world.end_without(stuck);
        world.end();
    }
}
