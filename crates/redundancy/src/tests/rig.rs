//! A set on simulated disks, with a host, and with all events that can happen to them.

use super::history::History;
use super::parts::Parts;
use crate::{Begun, Config, Ended, MEMBERS_MAX, Members, Mirror, RESYNC_JOB, Step, WriteId};
use sluice_jobs::{PaceChange, Verb};
use sluice_sim::{DiskConfig, Random, SimDisk};
use std::collections::HashMap;
use std::ops::Range;

pub(super) const SIZE: u64 = 64 << 10;
const BLOCK: u64 = 512;
pub(super) const LOG: u64 = 512 << 10;

/// Bytes that a power cut keeps as a whole or not at all.
const UNIT_USUAL: u64 = 512;

/// Request to a disk.
#[derive(Debug)]
pub(super) enum Task {
    ReadLog(u64, usize),
    WriteLog(u64, Vec<u8>),
    Flush(usize),
    Read {
        to: Members,
        offset: u64,
        length: u64,
    },
    Copy {
        to: Members,
        left: Members,
        failed: Members,
        offset: u64,
        data: Vec<u8>,
    },
    Compare {
        offset: u64,
        length: u64,
    },
    Leg {
        write: WriteId,
        member: usize,
    },
    /// Rest of a leg that timed out.
    Late {
        member: usize,
        offset: u64,
        data: Vec<u8>,
    },
}

/// Write or flush of the host.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) tag: u64,
    pub(super) bytes: Range<u64>,
    fua: bool,
    issued: u64,
    to: Members,
    left: Members,
    failed: Members,
}

impl Asked {
    /// Returns whether the write has gone to no member.
    pub(super) fn is_waiting(&self) -> bool {
        self.to.is_empty()
    }
}

#[derive(Debug)]
pub(super) struct Rig {
    pub(super) random: Random,
    pub(super) mirror: Mirror,
    pub(super) config: Config,
    pub(super) disks: Vec<SimDisk>,
    pub(super) log: SimDisk,
    pub(super) up: Vec<bool>,
    /// Faults of single parts.
    pub(super) parts: Parts,
    pub(super) log_up: bool,
    pub(super) tasks: Vec<Task>,
    pub(super) asked: HashMap<WriteId, Asked>,
    pub(super) history: History,
    pub(super) now_ns: u64,
    next_tag: u64,
    /// Whether writes were lost since the host last read everything.
    pub(super) cut: bool,
    pub(super) ready: Option<Result<(), String>>,
    pub(super) acknowledged: u64,
    pub(super) refused: u64,
    /// Copies that were cancelled.
    pub(super) cancelled: u64,
}

impl Rig {
    pub(super) fn new(seed: u64, members: usize, promotes: bool) -> Self {
        let mut random = Random::new(seed);
        let disks: Vec<SimDisk> = (0..members).map(|_| disk(SIZE, true, &mut random)).collect();
        let log = blank_log(&mut random);
        let mut storage = [0; MEMBERS_MAX];
        storage[..members].fill_with(|| random.next_u64().into());
        let config = Config {
            members,
            size: SIZE,
            region_bytes: 4096,
            log_bytes: LOG,
            piece_bytes: 2048,
            rate: 1 << 20,
            promotes,
            id: 1,
            storage,
            new: Members::first(members),
        };
        let mut rig = Self {
            random,
            mirror: Mirror::new(config).expect("a shape that can be"),
            config,
            disks,
            log,
            up: vec![true; members],
            parts: Parts::new(members, UNIT_USUAL),
            log_up: true,
            tasks: Vec::new(),
            asked: HashMap::new(),
            history: History::default(),
            now_ns: 0,
            next_tag: 1,
            cut: false,
            ready: None,
            acknowledged: 0,
            refused: 0,
            cancelled: 0,
        };
        rig.history.begin(rig.tags(0));
        rig
    }

    /// Sets the unit that a power cut keeps as a whole, smaller than a block. Call before the first turn.
    pub(super) fn set_unit(&mut self, unit: u64) {
        self.parts.unit = unit;
        self.history = History::default();
        self.history.begin(self.tags(0));
    }

    /// Sets the copy rate while the host writes, bytes per second. Call before the first turn.
    pub(super) fn set_rate(&mut self, rate: u64) {
        self.config.rate = rate;
        self.mirror = Mirror::new(self.config).expect("a shape that can be");
    }

    /// Restarts all parts that hold no contents. Each request in flight was done, in part or not at all.
    pub(super) fn restart(&mut self, cut: bool) {
        while !self.tasks.is_empty() {
            let task = self.tasks.swap_remove(self.random.below(self.tasks.len() as u64) as usize);
            self.do_some(&task);
        }
        if cut {
            self.disks.iter().chain([&self.log]).for_each(|disk| disk.lock().power_cut());
        }
        self.cut |= cut;
        self.part_restart();
        self.history.restart(cut);
        self.asked.clear();
        self.ready = None;
        self.config.id = self.random.next_u64();
        self.config.new = Members::NONE;
        self.mirror = Mirror::new(self.config).expect("a shape that can be");
    }

    /// Does some of a task, without a result for the set.
    pub(super) fn do_some(&mut self, task: &Task) {
        let (mut random, unit) = (self.random.split(), self.parts.unit);
        let mut blocks = |disk: &SimDisk, offset: u64, data: &[u8]| {
            for (at, block) in (offset..).step_by(unit as usize).zip(data.chunks(unit as usize)) {
                if random.one_in(2) {
                    disk.lock().write(at, block);
                }
            }
        };
        match task {
            Task::WriteLog(offset, data) => blocks(&self.log, *offset, data),
            Task::Copy { left, offset, data, .. } => {
                let there = left.iter().filter(|member| !self.parts.is_swapped(*member));
                there.for_each(|member| blocks(&self.disks[member], *offset, data));
            }
            Task::Leg { write, member } if !self.parts.is_swapped(*member) => {
                let (bytes, data) = self.leg_data(*write);
                blocks(&self.disks[*member], bytes.start, &data);
            }
            Task::Late { member, offset, data } if !self.parts.is_swapped(*member) => {
                blocks(&self.disks[*member], *offset, data);
            }
            _ => {}
        }
    }

    /// Overwrites some bytes of the log with noise.
    pub(super) fn spoil_log(&mut self, bytes: Range<u64>) {
        let noise: Vec<u8> = bytes.clone().map(|_| self.random.next_u64() as u8).collect();
        self.log.lock().write(bytes.start, &noise);
        self.log.lock().flush();
    }

    /// Replaces a member by another disk between two processes: a blank one, a foreign one, or an older image
    /// of this one. Call after [`Self::restart`].
    pub(super) fn replace(&mut self, member: usize, image: Option<&[u8]>) {
        let (random, used) = (&mut self.random, image.is_none());
        self.disks[member] = disk(SIZE, used && random.one_in(2), random);
        if let Some(image) = image {
            self.disks[member].lock().write(0, image);
            self.disks[member].lock().flush();
        }
        self.config.storage[member] = self.random.next_u64().into();
        let one = Members::one(member);
        self.config.new = if used { self.config.new.with(one) } else { self.config.new.without(one) };
        self.mirror = Mirror::new(self.config).expect("a shape that can be");
    }

    /// Blanks the log. Call after [`Self::restart`].
    pub(super) fn blank_log(&mut self) {
        self.log = blank_log(&mut self.random);
    }

    /// Grows the drive and its members by so many bytes.
    pub(super) fn grow(&mut self, bytes: u64) {
        self.config.size += bytes;
        self.disks.iter().for_each(|disk| disk.lock().resize(self.config.size));
        self.mirror.resize(self.config.size).expect("the log has room");
    }

    /// Gives a random order for a job. Most are refused, because there is nothing to copy.
    pub(super) fn order_job(&mut self) {
        let none = PaceChange::default();
        let name = ["resync", "resync", "check"][self.random.below(3) as usize];
        let verb = match self.random.below(5) {
            0 => return self.mirror.check(),
            1 => Verb::Pause,
            2 => Verb::Resume,
            _ => Verb::Cancel,
        };
        let done = self.mirror.order_job(verb, name, none, self.now_ns);
        self.cancelled += u64::from(done.is_ok() && verb == Verb::Cancel && name == RESYNC_JOB);
    }

    /// Returns all contents of a member, grown or not.
    pub(super) fn whole(&self, member: usize) -> Vec<u8> {
        contents(&self.disks[member], 0, self.config.size)
    }

    pub(super) fn image(&self, member: usize) -> Vec<u8> {
        contents(&self.disks[member], 0, SIZE)
    }

    /// Hides the storage numbers of the members.
    pub(super) fn hide_storage(&mut self) {
        self.config.storage = [0; MEMBERS_MAX];
        self.mirror = Mirror::new(self.config).expect("a shape that can be");
    }

    pub(super) fn storage_of(&self, member: usize) -> u128 {
        self.config.storage[member]
    }

    /// Gives a member's storage this number.
    pub(super) fn number_storage(&mut self, member: usize, number: u128) {
        self.config.storage[member] = number;
        self.mirror = Mirror::new(self.config).expect("a shape that can be");
    }

    /// Takes the contents of this member as the content that the host reads from now on.
    pub(super) fn believe(&mut self, member: usize) {
        self.disks[member].lock().flush();
        let tags = self.tags(member);
        self.history.settle_durably(|part| tags[part as usize]);
    }

    /// Corrupts a block of a member.
    pub(super) fn rot(&mut self, member: usize, at: u64) {
        self.disks[member].lock().write(at, &[0xaa; 512]);
    }

    /// Begins a random write or flush of the host.
    pub(super) fn write(&mut self) {
        let flush = self.random.one_in(8);
        let first = self.random.below(SIZE / BLOCK);
        let blocks = self.random.between(1, 12).min(SIZE / BLOCK - first);
        let bytes = if flush { 0..0 } else { first * BLOCK..(first + blocks) * BLOCK };
        self.write_at(bytes);
    }

    pub(super) fn write_at(&mut self, bytes: Range<u64>) {
        let (tag, fua) = (self.next_tag, self.random.one_in(4));
        self.next_tag += 1;
        let issued = self.history.issue(self.numbers(&bytes), tag);
        let (write, begun) = self.mirror.begin(bytes.clone());
        let none = Members::NONE;
        let asked = Asked { tag, bytes, fua, issued, to: none, left: none, failed: none };
        assert!(self.asked.insert(write, asked).is_none(), "the number was free");
        if let Begun::Go(to) = begun {
            self.go(write, to);
        }
    }

    fn go(&mut self, write: WriteId, to: Members) {
        let asked = self.asked.get_mut(&write).expect("it was asked");
        (asked.to, asked.left) = (to, to);
        let bytes = asked.bytes.clone();
        for (other, under_way) in &self.asked {
            let overlap = under_way.bytes.start < bytes.end && bytes.start < under_way.bytes.end;
            assert!(*other == write || under_way.left.is_empty() || !overlap, "two at a time at {bytes:?}");
        }
        self.tasks.extend(to.iter().map(|member| Task::Leg { write, member }));
    }

    fn over(&mut self, write: WriteId, good: bool) {
        let asked = self.asked.remove(&write).expect("it was asked");
        self.history.end(self.numbers(&asked.bytes), asked.tag, good, asked.fua);
        if asked.bytes.is_empty() {
            self.history.flushed(asked.issued, good);
        }
        *if good { &mut self.acknowledged } else { &mut self.refused } += 1;
    }

    /// Performs the steps of the set and one task. Returns false if there are none, and time has to pass.
    pub(super) fn turn(&mut self) -> bool {
        let mut happened = false;
        while let Some(step) = self.mirror.next(self.now_ns) {
            self.take(step);
            happened = true;
        }
        if self.tasks.is_empty() {
            return happened;
        }
        let task = self.tasks.swap_remove(self.random.below(self.tasks.len() as u64) as usize);
        self.perform(task);
        true
    }

    pub(super) fn let_time_go_by(&mut self) {
        let alarm_ns = self.mirror.alarm_ns().unwrap_or(self.now_ns);
        self.now_ns = alarm_ns.max(self.now_ns + 1000);
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Ready(outcome) => self.ready = Some(outcome),
            Step::ReadLog { offset, length } => self.tasks.push(Task::ReadLog(offset, length)),
            Step::WriteLog { offset } => {
                self.tasks.push(Task::WriteLog(offset, self.mirror.log_bytes().to_vec()));
            }
            Step::Flush { member } => self.tasks.push(Task::Flush(member)),
            Step::Copy { from, to, offset, length } => {
                assert!(self.mirror.status().current.contains(from), "it is copied from one that has it all");
                self.tasks.push(Task::Read { to, offset, length });
            }
            Step::Compare { offset, length, .. } => self.tasks.push(Task::Compare { offset, length }),
            Step::Go { write, to } => self.go(write, to),
            Step::Over { write, good } => self.over(write, good),
        }
    }

    fn perform(&mut self, task: Task) {
        match task {
            Task::ReadLog(offset, length) => {
                let mut bytes = vec![0; length];
                self.log.lock().read(offset, &mut bytes);
                self.mirror.log_read(self.log_up.then_some(&bytes));
            }
            Task::WriteLog(offset, ref bytes) => self.write_log(offset, bytes),
            Task::Late { member, offset, ref data } => self.write_units(member, offset, data),
            Task::Flush(member) => self.flush(member),
            Task::Read { to, offset, length } => {
                let from = self.mirror.status().source;
                if !self.works(from) {
                    return self.mirror.copied(Members::one(from), self.now_ns);
                }
                let mut data = vec![0; length as usize];
                self.disks[from].lock().read(offset, &mut data);
                self.tasks.push(Task::Copy { to, left: to, failed: Members::NONE, offset, data });
            }
            Task::Copy { .. } => self.copy(task),
            Task::Compare { offset, length } => {
                for member in 0..self.disks.len() {
                    self.says_it_lost_power(member);
                }
                let all: Vec<Vec<u8>> =
                    self.disks.iter().map(|disk| contents(disk, offset, length)).collect();
                let equal = all.iter().all(|other| *other == all[0]);
                self.mirror.compared(Some(equal), self.now_ns);
            }
            Task::Leg { write, member } => self.leg(write, member),
        }
    }

    fn copy(&mut self, task: Task) {
        let Task::Copy { to, left, failed, offset, data } = task else { return };
        let Some(member) = left.lowest() else { return self.mirror.copied(failed, self.now_ns) };
        let one = Members::one(member);
        let good = self.works(member);
        if good {
            self.write_units(member, offset, &data);
        }
        let failed = if good { failed } else { failed.with(one) };
        self.tasks.push(Task::Copy { to, left: left.without(one), failed, offset, data });
    }

    fn leg(&mut self, write: WriteId, member: usize) {
        let asked = self.asked[&write].clone();
        let flushes = asked.bytes.is_empty();
        let good = match flushes {
            true => self.flush_works(write.0, member),
            false => !self.times_out(member) && self.works(member),
        };
        if good {
            self.do_leg(&asked, member);
        } else {
            self.fail_leg(write, member);
        }
        let one = Members::one(member);
        let asked = self.asked.get_mut(&write).expect("it was asked");
        asked.left = asked.left.without(one);
        asked.failed = if good { asked.failed } else { asked.failed.with(one) };
        if asked.left.is_empty() {
            let (failed, issued) = (asked.failed, asked.issued);
            match self.may_lose(flushes.then_some(write.0), |mirror| mirror.end(write, failed)) {
                Ended::Good => self.over(write, true),
                Ended::Failed => self.over(write, false),
                // The members have flushed, whatever the result of the log.
                Ended::Wait if flushes => self.history.is_flushed(issued),
                Ended::Wait => {}
            }
        }
    }

    pub(super) fn leg_data(&self, write: WriteId) -> (Range<u64>, Vec<u8>) {
        let asked = &self.asked[&write];
        (asked.bytes.clone(), tagged(asked.tag, &asked.bytes))
    }

    fn do_leg(&mut self, asked: &Asked, member: usize) {
        let bytes = asked.bytes.clone();
        if bytes.is_empty() {
            return self.disks[member].lock().flush();
        }
        self.write_units(member, bytes.start, &tagged(asked.tag, &bytes));
        if asked.fua {
            self.disks[member].lock().persist(bytes);
        }
    }

    pub(super) fn works(&mut self, member: usize) -> bool {
        self.is_there(member) && !self.says_it_lost_power(member) && !self.random.one_in(200)
    }

    /// Writes in units, each of which survives a power cut by itself.
    pub(super) fn write_units(&self, member: usize, offset: u64, data: &[u8]) {
        let unit = self.parts.unit as usize;
        for (at, piece) in (offset..).step_by(unit).zip(data.chunks(unit)) {
            self.disks[member].lock().write(at, piece);
        }
    }

    fn numbers(&self, bytes: &Range<u64>) -> Range<u64> {
        bytes.start / self.parts.unit..bytes.end / self.parts.unit
    }

    /// Reads everything as the host, from all members that may serve the reads.
    pub(super) fn read_all(&mut self) {
        for member in 0..self.disks.len() {
            self.says_it_lost_power(member);
        }
        let (source, unit) = (self.mirror.status().source, self.parts.unit);
        let tags = self.tags(source);
        if self.is_mute(source) {
            return;
        }
        let current = self.mirror.status().current;
        for member in current.iter().filter(|member| !self.is_mute(*member)) {
            for (part, tag) in (0..).zip(self.tags(member)) {
                let readers = self.mirror.readers(&(part * unit..(part + 1) * unit));
                assert!(readers.contains(source), "what is copied from is read");
                if readers.contains(member) {
                    self.history.check(part, tag);
                }
            }
        }
        // While a loss is not in the log, a restart may serve the lost member again, with writes that failed.
        if self.asked.is_empty() && self.mirror.is_noted() && std::mem::take(&mut self.cut) {
            self.history.settle(|part| tags[part as usize]);
        }
    }

    pub(super) fn tags(&self, member: usize) -> Vec<u64> {
        contents(&self.disks[member], 0, SIZE).chunks(self.parts.unit as usize).map(tag_of).collect()
    }

    /// Ends all faults, and runs until the set is idle. Then the members must be equal, and have the right
    /// contents.
    pub(super) fn come_to_rest(&mut self) {
        self.up.fill(true);
        self.log_up = true;
        self.part_rest();
        let all = Members::first(self.up.len());
        self.mirror.bring_back(all, false);
        let _ = self.mirror.order_job(Verb::Resume, RESYNC_JOB, PaceChange::default(), self.now_ns);
        for turns in 0.. {
            assert!(turns < 1_000_000, "it never comes to rest: {:?}", self.mirror.status());
            if !self.turn() {
                let status = self.mirror.status();
                if status.current == all && status.dirty_bytes == 0 && self.asked.is_empty() {
                    break;
                }
                self.let_time_go_by();
            }
        }
        self.read_all();
        let (first, tags) = (self.image(0), self.tags(0));
        // No region is dirty, so all was flushed.
        self.history.settle_durably(|part| tags[part as usize]);
        (1..self.up.len()).for_each(|member| assert!(self.image(member) == first, "member {member} differs"));
    }
}

pub(super) fn disk(size: u64, used: bool, random: &mut Random) -> SimDisk {
    let config = DiskConfig { size, block_size: 512, atomic_write: 512, volatile_cache: true };
    if used { SimDisk::used(config, random.split()) } else { SimDisk::new(config, random.split()) }
}

fn contents(disk: &SimDisk, offset: u64, length: u64) -> Vec<u8> {
    let mut bytes = vec![0; length as usize];
    disk.lock().read(offset, &mut bytes);
    bytes
}

fn tagged(tag: u64, bytes: &Range<u64>) -> Vec<u8> {
    let tag = tag.to_le_bytes();
    tag.repeat((bytes.end - bytes.start) as usize / tag.len())
}

/// Returns the tag of a unit of one write, and for any other content a number of its own.
fn tag_of(unit: &[u8]) -> u64 {
    let word = |bytes: &[u8]| u64::from_le_bytes(*bytes.first_chunk().expect("a word"));
    let first = word(unit);
    match unit.chunks(8).all(|bytes| word(bytes) == first) {
        true => first,
        false => unit.chunks(8).fold(1, |all: u64, bytes| (all ^ word(bytes)).wrapping_mul(0x100_0000_01b3)),
    }
}

/// Returns a log that was never written to. Its bytes beyond the headers are random.
fn blank_log(random: &mut Random) -> SimDisk {
    let log = disk(LOG, true, random);
    for half in [0, LOG / 2] {
        log.lock().write(half, &[0; crate::BLOCK]);
    }
    log.lock().flush();
    log
}
