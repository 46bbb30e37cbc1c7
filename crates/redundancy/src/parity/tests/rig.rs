//! An array on simulated disks, with a host, a model of its drive, and all failures that it can have.

use super::tasks::Task;
use crate::parity::{ARRAY_LOG_MIN, ArrayConfig, CommandId, End, Geometry, HostCommand, Parity, Step};
use crate::{MEMBERS_MAX, Members};
use sluice_sim::{Action, DiskConfig, FlightId, ModelNamespace, Random, SimDisk, Tag, read_tag, write_tag};
use std::collections::HashMap;
use std::ops::Range;

pub(super) const BLOCK: u64 = 512;
const REGION: u64 = 8192;
const SLOTS: usize = 12;

/// Command of the host.
#[derive(Debug)]
pub(super) struct Command {
    /// None for a Flush.
    pub(super) kind: Option<HostCommand>,
    pub(super) bytes: Range<u64>,
    pub(super) data: Vec<u8>,
    pub(super) flight: FlightId,
    pub(super) id: Option<CommandId>,
}

/// Disk of a member, and its failures.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) disk: SimDisk,
    pub(super) up: bool,
    /// Whether the disk has lost writes, and no request has shown it.
    pub(super) lost: bool,
    /// Blocks that cannot be read until they are written.
    pub(super) bad: Vec<u64>,
    pub(super) storage: u128,
}

pub(super) struct Rig {
    pub(super) random: Random,
    pub(super) config: ArrayConfig,
    pub(super) parity: Parity,
    pub(super) members: Vec<Member>,
    pub(super) log: SimDisk,
    pub(super) log_up: bool,
    pub(super) now_ns: u64,
    pub(super) tasks: Vec<Task>,
    /// Memory of operations, and of the batch.
    pub(super) memory: HashMap<u32, Vec<u8>>,
    pub(super) batch: Vec<u8>,
    pub(super) commands: Vec<Option<Command>>,
    pub(super) by_id: HashMap<u32, usize>,
    pub(super) model: ModelNamespace,
    next_tag: u64,
    pub(super) ready: Option<Result<(), String>>,
    pub(super) halted: Option<String>,
    /// Probability that a request to any member fails, and that a host gives a read up.
    pub(super) faults: f64,
    pub(super) gives_up: f64,
    pub(super) good: u64,
    pub(super) failed: u64,
    pub(super) given_up: u64,
    /// Requests to members so far: reads, and writes.
    pub(super) reads: u64,
    pub(super) writes: u64,
    /// Writes of the log and of members so far, and the number of the one at which the power fails.
    pub(super) stored: u64,
    pub(super) cut_at: Option<u64>,
    losses: u64,
    joined: Members,
    /// Alarms in a row that had no effect, and alarms for which a command has waited.
    spins: u32,
    pub(super) waits: u64,
}

pub(super) fn disk(size: u64, random: &mut Random, used: bool) -> SimDisk {
    let config = DiskConfig { size, block_size: 512, atomic_write: 512, volatile_cache: true };
    if used { SimDisk::used(config, random.split()) } else { SimDisk::new(config, random.split()) }
}

impl Rig {
    /// Creates an array of this shape, and opens it.
    pub(super) fn new(seed: u64, shape: (usize, usize), chunk: u64, chunks: u64) -> Self {
        Self::with_regions(seed, shape, chunk, chunks, REGION)
    }

    /// Does the same, with regions of this size.
    pub(super) fn with_regions(
        seed: u64,
        shape: (usize, usize),
        chunk: u64,
        chunks: u64,
        region_bytes: u64,
    ) -> Self {
        Self::with_spares(seed, shape, 0, chunk, chunks, region_bytes)
    }

    /// Does the same, with spares behind the members.
    pub(super) fn with_spares(
        seed: u64,
        (members, parities): (usize, usize),
        spares: usize,
        chunk: u64,
        chunks: u64,
        region_bytes: u64,
    ) -> Self {
        let mut random = Random::new(seed);
        let geometry = Geometry::new(members, parities, chunk).expect("an array");
        let size = chunk * chunks;
        let config = ArrayConfig {
            geometry,
            spares,
            size,
            region_bytes,
            log_bytes: ARRAY_LOG_MIN,
            rate: 1 << 20,
            safe_read: false,
            id: random.next_u64(),
            storage: [0; MEMBERS_MAX],
            new: Members::first(members),
        };
        let log = disk(ARRAY_LOG_MIN, &mut random, false);
        let new_member = |storage: usize| Member {
            disk: disk(size, &mut random, false),
            up: true,
            lost: false,
            bad: Vec::new(),
            storage: storage as u128 + 1,
        };
        let members = (0..members + spares).map(new_member).collect();
        let model = ModelNamespace::new(geometry.drive_bytes(size) / BLOCK, true);
        let mut rig = Self {
            random,
            config,
            parity: Parity::new(config).expect("a shape that can be"),
            members,
            log,
            log_up: true,
            now_ns: 0,
            tasks: Vec::new(),
            memory: HashMap::new(),
            batch: vec![0x5a; crate::parity::BATCH_MAX],
            commands: (0..SLOTS).map(|_| None).collect(),
            by_id: HashMap::new(),
            model,
            next_tag: 1,
            ready: None,
            halted: None,
            faults: 0.0,
            gives_up: 0.0,
            good: 0,
            failed: 0,
            given_up: 0,
            reads: 0,
            writes: 0,
            stored: 0,
            cut_at: None,
            losses: 0,
            joined: Members::NONE,
            spins: 0,
            waits: 0,
        };
        rig.open();
        assert_eq!(rig.comes_up(), Ok(()), "a new array is opened");
        rig.config.new = Members::NONE;
        rig
    }

    /// Makes the array anew, from its disks.
    pub(super) fn open(&mut self) {
        assert!(self.tasks.is_empty(), "requests are in flight");
        for (number, member) in self.members.iter().enumerate() {
            self.config.storage[number] = member.storage;
        }
        // A log that exists has an identifier.
        self.config.id = self.random.next_u64();
        self.parity = Parity::new(self.config).expect("a shape that can be");
        (self.ready, self.halted) = (None, None);
        (self.losses, self.joined, self.spins) = (0, Members::NONE, 0);
        self.memory.clear();
        self.by_id.clear();
        self.pump();
    }

    /// Waits until the array is open or refuses.
    pub(super) fn comes_up(&mut self) -> Result<(), String> {
        for _ in 0..100_000 {
            if let Some(ready) = &self.ready {
                return ready.clone();
            }
            assert!(self.turn(), "it is neither open nor refused, and nothing is in flight");
            if self.cut_at == Some(self.stored) {
                return Err("the power has failed".to_owned());
            }
        }
        panic!("it is neither open nor refused");
    }

    pub(super) fn is_open(&self) -> bool {
        self.ready == Some(Ok(())) && self.halted.is_none()
    }

    pub(super) fn blocks(&self) -> u64 {
        self.model.blocks()
    }

    /// Takes all steps of the array.
    pub(super) fn pump(&mut self) {
        while let Some(step) = self.parity.next(self.now_ns) {
            self.spins = 0;
            self.take(step);
        }
        assert_eq!(self.parity.is_halted(), self.halted.is_some());
        self.count_losses();
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Ready(outcome) => self.ready = Some(outcome),
            Step::Halt(why) => self.halted = Some(why),
            Step::Free { op } => drop(self.memory.remove(&op).expect("it has memory")),
            Step::Over { command, end } => self.over(command, end),
            step => {
                let task = Task::of(step, self);
                self.tasks.push(task);
            }
        }
    }

    /// Counts the members that the array has lost, and compares its figure.
    fn count_losses(&mut self) {
        let status = self.parity.status();
        // A member that was given up is no loss.
        let gone = self.joined.without(status.joined).and(status.members);
        match self.ready {
            Some(Ok(())) => self.losses += gone.iter().count() as u64,
            _ => self.losses = status.losses,
        }
        self.joined = status.joined;
        assert_eq!(status.losses, self.losses, "losses of {:?}", self.joined);
    }

    /// Ends a task, or lets time pass. Returns false if there is nothing to wait for.
    pub(super) fn turn(&mut self) -> bool {
        if self.tasks.is_empty() {
            let Some(alarm_ns) = self.parity.alarm_ns() else { return false };
            self.spins = if alarm_ns > self.now_ns { 0 } else { self.spins + 1 };
            assert!(self.spins < 4, "an alarm has no effect");
            self.waits += u64::from(!self.is_idle());
            self.now_ns = self.now_ns.max(alarm_ns);
            self.pump();
            return true;
        }
        self.now_ns += self.random.below(2_000_000);
        let index = self.random.below(self.tasks.len() as u64) as usize;
        if self.tasks[index].stores() {
            self.stored += 1;
            if self.cut_at == Some(self.stored) {
                return true;
            }
        }
        let task = self.tasks.swap_remove(index);
        self.end(task);
        self.count_losses();
        self.pump();
        true
    }

    /// Submits a random command of the host. Some places are used again and again.
    pub(super) fn submit(&mut self) {
        let blocks = self.blocks();
        let first =
            if self.random.one_in(3) { self.random.below(blocks) } else { self.random.below(blocks.min(64)) };
        let most = if self.random.one_in(6) { 200 } else { 20 };
        let count = self.random.between(1, most).min(blocks - first);
        let kind = match self.random.below(16) {
            0..5 => Some(HostCommand::Read),
            5..11 => Some(HostCommand::Write),
            11..13 => Some(HostCommand::Zero),
            13 => Some(HostCommand::Deallocate),
            _ => None,
        };
        self.submit_at(kind, first, count);
    }

    pub(super) fn submit_at(&mut self, kind: Option<HostCommand>, first: u64, count: u64) {
        let Some(slot) = self.commands.iter().position(Option::is_none).filter(|_| self.is_open()) else {
            return;
        };
        let fua = self.random.one_in(4) && matches!(kind, Some(HostCommand::Write | HostCommand::Zero));
        let bytes = first * BLOCK..(first + count) * BLOCK;
        let mut data = vec![0xee; (count * BLOCK) as usize];
        let mut tags = vec![Tag::ZERO; count as usize];
        if kind == Some(HostCommand::Write) {
            for (tag, block) in tags.iter_mut().zip(data.chunks_mut(BLOCK as usize)) {
                *tag = Tag(self.next_tag);
                self.next_tag += 1;
                write_tag(*tag, block);
            }
        }
        let action = match kind {
            None => Action::Flush,
            Some(HostCommand::Read) => Action::Read { first, blocks: count },
            Some(HostCommand::Deallocate) => Action::Deallocate { first, blocks: count },
            Some(_) => Action::Write { first, tags, fua },
        };
        let flight = self.model.begin(action);
        let mut command = Command { kind, bytes: bytes.clone(), data, flight, id: None };
        let id = match kind {
            // A read of a chunk can be sent to its member by the host's side.
            Some(HostCommand::Read) => match self.parity.route(&bytes).filter(|_| self.random.one_in(2)) {
                Some((member, offset)) => {
                    self.reads += 1;
                    self.commands[slot] = Some(command);
                    return self.tasks.push(Task::Routed { slot, member, offset });
                }
                None => self.parity.begin(HostCommand::Read, bytes, false),
            },
            Some(kind) => self.parity.begin(kind, bytes, fua),
            None => self.parity.begin_flush(),
        };
        assert!(id.0 < 2 * SLOTS as u32, "numbers are reused");
        command.id = Some(id);
        self.commands[slot] = Some(command);
        assert_eq!(self.by_id.insert(id.0, slot), None, "the number is free");
        self.pump();
    }

    /// Returns the command with a number.
    pub(super) fn command(&mut self, CommandId(id): CommandId) -> &mut Command {
        self.commands[self.by_id[&id]].as_mut().expect("it is not over")
    }

    fn over(&mut self, CommandId(id): CommandId, end: End) {
        let slot = self.by_id.remove(&id).expect("it is over once");
        assert!(!self.tasks.iter().any(|task| task.is_of(CommandId(id))), "requests are in flight");
        self.finish(slot, end);
    }

    /// Ends a command of the host.
    pub(super) fn finish(&mut self, slot: usize, end: End) {
        let command = self.commands[slot].take().expect("it is over once");
        let is_read = command.kind == Some(HostCommand::Read);
        match end {
            End::Good => self.good += 1,
            End::GivenUp => self.given_up += 1,
            End::ReadFailed | End::WriteFailed => {
                assert_eq!(end == End::ReadFailed, is_read, "the failure is of its kind");
                self.failed += 1;
            }
        }
        if !is_read || end != End::Good {
            return self.model.end(command.flight, end == End::Good);
        }
        let found: Vec<_> =
            command.data.chunks(BLOCK as usize).map(|block| Some(read_tag(block).expect("whole"))).collect();
        self.model.end_read(command.flight, &found).unwrap_or_else(|violation| panic!("{violation}"));
    }

    pub(super) fn is_flushing(&self) -> bool {
        self.tasks.iter().any(|task| matches!(task, Task::Flush { .. }))
    }

    pub(super) fn is_idle(&self) -> bool {
        self.commands.iter().all(Option::is_none)
    }

    /// Ends all commands.
    pub(super) fn drain(&mut self) {
        for _ in 0..200_000 {
            if self.is_idle() || !self.is_open() {
                return;
            }
            assert!(self.turn(), "a command waits for nothing");
        }
        panic!("commands do not end: {}", self.parity.status());
    }

    /// Ends the daemon, with a power cut or without, and leaves requests undone.
    pub(super) fn crash(&mut self, cut: bool) {
        for task in std::mem::take(&mut self.tasks) {
            task.tear(self);
        }
        match cut {
            true => {
                self.members.iter().for_each(|member| member.disk.lock().power_cut());
                self.log.lock().power_cut();
                self.model.power_cut();
            }
            false => self.model.crash(),
        }
        self.commands.iter_mut().for_each(|command| *command = None);
    }

    /// Opens an array again that has stopped, as often as it needs. No member fails meanwhile.
    pub(super) fn reopen(&mut self) {
        while !self.tasks.is_empty() {
            self.turn();
        }
        assert!(self.parity.next(self.now_ns).is_none() && self.parity.alarm_ns().is_none());
        for slot in 0..SLOTS {
            if let Some(command) = self.commands[slot].take() {
                self.model.end(command.flight, false);
            }
        }
        self.open();
    }

    /// Puts another disk in the place of a member. Call between two daemons, or while it is down.
    pub(super) fn replace(&mut self, member: usize) {
        let used = self.random.one_in(2);
        let storage = self.random.next_u64().into();
        let disk = disk(self.config.size, &mut self.random, used);
        let up = self.members[member].up;
        self.members[member] = Member { disk, up, lost: false, bad: Vec::new(), storage };
    }

    /// Has the host read the whole drive.
    pub(super) fn read_all(&mut self) {
        let failed = (self.failed, self.given_up);
        for first in (0..self.blocks()).step_by(96) {
            self.submit_at(Some(HostCommand::Read), first, 96.min(self.blocks() - first));
            self.drain();
        }
        assert_eq!((self.failed, self.given_up), failed, "everything can be read");
    }

    /// Runs without failures until all members have everything, and nothing is left to do.
    pub(super) fn come_to_rest(&mut self) {
        self.come_to_rest_unchecked();
        self.check();
    }

    /// Does the same for an array that may have wrong cells.
    pub(super) fn come_to_rest_unchecked(&mut self) {
        self.members.iter_mut().for_each(|member| member.up = true);
        (self.faults, self.gives_up, self.log_up) = (0.0, 0.0, true);
        self.drain();
        let begin_ns = self.now_ns;
        for _ in 0..200_000 {
            assert_eq!(self.halted, None);
            if !self.turn() {
                let status = self.parity.status();
                assert_eq!((status.state(), self.parity.is_quiet()), ("in sync", true), "{status}");
                assert!(self.memory.is_empty(), "memory of operations is left");
                assert!(self.now_ns - begin_ns < 200_000_000_000, "it takes minutes");
                return;
            }
        }
        panic!("it never comes to rest: {}", self.parity.status());
    }

    /// Compares all cells with the parities from outside, and the content of the drive.
    pub(super) fn check(&self) {
        let Geometry { members, parities, chunk, q_is_last } = self.parity.geometry();
        let chunk = chunk as usize;
        let all: Vec<Vec<u8>> = (0..members).map(|member| self.image(member)).collect();
        // The members among which the other roles rotate, and the parities among these.
        let (images, rotating) = if q_is_last { (&all[..members - 1], 1) } else { (&all[..], parities) };
        let members = images.len();
        for row in (0..self.config.size as usize).step_by(chunk) {
            let first = members - 1 - (row / chunk) % members;
            let cell = |role: usize| images[(first + role) % members][row..row + chunk].as_chunks::<8>().0;
            for at in 0..chunk / 8 {
                let word = |role: usize| u64::from_le_bytes(cell(role)[at]);
                let (mut p, mut q) = (0, 0);
                for column in (0..members - rotating).rev() {
                    let data = word(rotating + column);
                    // The polynomial for each byte that overflows.
                    let carry = (q >> 7 & 0x0101_0101_0101_0101) * 0x1d;
                    (p, q) = (p ^ data, (q << 1 & 0xfefe_fefe_fefe_fefe) ^ carry ^ data);
                }
                assert_eq!(word(0), p, "P of row {row:#x}");
                let last = || all.last().expect("it has members")[row..row + chunk].as_chunks::<8>().0[at];
                let found = if q_is_last { u64::from_le_bytes(last()) } else { word(1) };
                assert!(parities == 1 || found == q, "Q of row {row:#x}");
            }
        }
    }

    pub(super) fn image(&self, member: usize) -> Vec<u8> {
        let mut bytes = vec![0; self.config.size as usize];
        self.members[member].disk.lock().read(0, &mut bytes);
        bytes
    }
}
