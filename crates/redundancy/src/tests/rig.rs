//! A set on simulated disks, with a host, and all that can happen to them.

use super::history::History;
use crate::{Begun, Config, Ended, MEMBERS_MAX, Members, Mirror, Step, WriteId};
use sluice_sim::{DiskConfig, Random, SimDisk};
use std::collections::HashMap;
use std::ops::Range;

pub(super) const SIZE: u64 = 64 << 10;
const BLOCK: u64 = 512;
const LOG: u64 = 512 << 10;

/// Something that a disk was asked for.
#[derive(Debug)]
enum Task {
    ReadLog(u64, usize),
    WriteLog(u64, Vec<u8>),
    Flush(usize),
    Read { to: Members, offset: u64, length: u64 },
    Copy { to: Members, left: Members, failed: Members, offset: u64, data: Vec<u8> },
    Compare { offset: u64, length: u64 },
    Leg { write: WriteId, member: usize },
}

/// A write, or a flush, of the host.
#[derive(Clone, Debug)]
struct Asked {
    tag: u64,
    bytes: Range<u64>,
    fua: bool,
    issued: u64,
    to: Members,
    left: Members,
    failed: Members,
}

#[derive(Debug)]
pub(super) struct Rig {
    pub(super) random: Random,
    pub(super) mirror: Mirror,
    config: Config,
    disks: Vec<SimDisk>,
    log: SimDisk,
    pub(super) up: Vec<bool>,
    pub(super) log_up: bool,
    tasks: Vec<Task>,
    asked: HashMap<WriteId, Asked>,
    history: History,
    pub(super) now_ns: u64,
    next_tag: u64,
    /// The power was off since the host last looked.
    cut: bool,
    pub(super) ready: Option<Result<(), String>>,
    pub(super) acknowledged: u64,
    pub(super) refused: u64,
}

impl Rig {
    pub(super) fn new(seed: u64, members: usize, promotes: bool) -> Self {
        let mut random = Random::new(seed);
        // What is copied from is zeros at first; the others have something else.
        let disks = (0..members).map(|member| disk(SIZE, member > 0, &mut random)).collect();
        let log = disk(LOG, false, &mut random);
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
        Self {
            random,
            mirror: Mirror::new(config).expect("a shape that can be"),
            config,
            disks,
            log,
            up: vec![true; members],
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
        }
    }

    /// So many bytes a second are copied while the host writes. Call before the first turn.
    pub(super) fn set_rate(&mut self, rate: u64) {
        self.config.rate = rate;
        self.mirror = Mirror::new(self.config).expect("a shape that can be");
    }

    /// Everything that holds no contents is gone, and begins anew. What was asked for was done, or not.
    pub(super) fn restart(&mut self, cut: bool) {
        while !self.tasks.is_empty() {
            let task = self.tasks.swap_remove(self.random.below(self.tasks.len() as u64) as usize);
            self.do_some(&task);
        }
        if cut {
            self.disks.iter().chain([&self.log]).for_each(|disk| disk.lock().power_cut());
        }
        self.cut |= cut;
        self.asked.clear();
        self.ready = None;
        self.config.id = self.random.next_u64();
        self.config.new = Members::NONE;
        self.mirror = Mirror::new(self.config).expect("a shape that can be");
    }

    /// Does some of a task that nobody is told of.
    fn do_some(&mut self, task: &Task) {
        let mut random = self.random.split();
        let mut blocks = |disk: &SimDisk, offset: u64, data: &[u8]| {
            for (number, block) in data.chunks(BLOCK as usize).enumerate() {
                if random.one_in(2) {
                    disk.lock().write(offset + number as u64 * BLOCK, block);
                }
            }
        };
        match task {
            Task::WriteLog(offset, data) => blocks(&self.log, *offset, data),
            Task::Copy { left, offset, data, .. } => {
                left.iter().for_each(|member| blocks(&self.disks[member], *offset, data));
            }
            Task::Leg { write, member } => {
                let asked = &self.asked[write];
                let data = tagged(asked.tag, &asked.bytes);
                blocks(&self.disks[*member], asked.bytes.start, &data);
            }
            _ => {}
        }
    }

    /// The log loses what it holds, or some of it.
    pub(super) fn spoil_log(&mut self, bytes: Range<u64>) {
        let noise: Vec<u8> = bytes.clone().map(|_| self.random.next_u64() as u8).collect();
        self.log.lock().write(bytes.start, &noise);
        self.log.lock().flush();
    }

    /// Between two lives another disk takes the place of a member: a blank one, one of somebody else, or an older image of
    /// this one. Call after [`Self::restart`].
    pub(super) fn replace(&mut self, member: usize, image: Option<&[u8]>) {
        let (random, used) = (&mut self.random, image.is_none());
        self.disks[member] = disk(SIZE, used && random.one_in(2), random);
        if let Some(image) = image {
            write_blocks(&self.disks[member], 0, image);
            self.disks[member].lock().flush();
        }
        self.config.storage[member] = self.random.next_u64().into();
        self.config.new = if used { Members::one(member) } else { Members::NONE };
        self.mirror = Mirror::new(self.config).expect("a shape that can be");
    }

    /// The log is blank. Call after [`Self::restart`].
    pub(super) fn blank_log(&mut self) {
        self.log = disk(LOG, false, &mut self.random);
    }

    /// The drive has so many bytes more, and its members have them.
    pub(super) fn grow(&mut self, bytes: u64) {
        self.config.size += bytes;
        self.disks.iter().for_each(|disk| disk.lock().resize(self.config.size));
        self.mirror.resize(self.config.size).expect("the log has room");
    }

    /// All that a member has, grown or not.
    pub(super) fn whole(&self, member: usize) -> Vec<u8> {
        contents(&self.disks[member], 0, self.config.size)
    }

    pub(super) fn image(&self, member: usize) -> Vec<u8> {
        contents(&self.disks[member], 0, SIZE)
    }

    /// Which storage the members are is not known.
    pub(super) fn hide_storage(&mut self) {
        self.config.storage = [0; MEMBERS_MAX];
        self.mirror = Mirror::new(self.config).expect("a shape that can be");
    }

    /// What the members hold is what the host finds from now on.
    pub(super) fn believe(&mut self, member: usize) {
        let tags = self.tags(member);
        self.history.settle(|block| tags[block as usize]);
    }

    /// A block of a member becomes something else.
    pub(super) fn rot(&mut self, member: usize, at: u64) {
        self.disks[member].lock().write(at, &[0xaa; 512]);
    }

    /// The host writes, or flushes.
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
        let issued = self.history.issue(numbers(&bytes), tag);
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
        self.history.end(numbers(&asked.bytes), asked.tag, good, asked.fua);
        if good && asked.bytes.is_empty() {
            self.history.flushed(asked.issued);
        }
        *if good { &mut self.acknowledged } else { &mut self.refused } += 1;
    }

    /// One thing happens. False if nothing can, and time has to go by.
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
            Task::WriteLog(offset, ref bytes) => {
                let good = self.log_up && !self.random.one_in(200);
                if !good {
                    self.do_some(&task);
                } else {
                    let mut log = self.log.lock();
                    log.write(offset, bytes);
                    log.persist(offset..offset + bytes.len() as u64);
                }
                self.mirror.log_written(good, self.now_ns);
            }
            Task::Flush(member) => {
                let good = self.works(member);
                if good {
                    self.disks[member].lock().flush();
                }
                self.mirror.flushed(member, good);
            }
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
                let all: Vec<Vec<u8>> =
                    self.disks.iter().map(|disk| contents(disk, offset, length)).collect();
                self.mirror.compared(Some(all.iter().all(|other| *other == all[0])));
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
            write_blocks(&self.disks[member], offset, &data);
        }
        let failed = if good { failed } else { failed.with(one) };
        self.tasks.push(Task::Copy { to, left: left.without(one), failed, offset, data });
    }

    fn leg(&mut self, write: WriteId, member: usize) {
        let good = self.works(member);
        if !good {
            self.do_some(&Task::Leg { write, member });
        }
        let asked = self.asked.get_mut(&write).expect("it was asked");
        let one = Members::one(member);
        asked.left = asked.left.without(one);
        let (bytes, disk) = (asked.bytes.clone(), &self.disks[member]);
        match good {
            false => asked.failed = asked.failed.with(one),
            true if bytes.is_empty() => disk.lock().flush(),
            true => {
                write_blocks(disk, bytes.start, &tagged(asked.tag, &bytes));
                if asked.fua {
                    disk.lock().persist(bytes);
                }
            }
        }
        if asked.left.is_empty() {
            match self.mirror.end(write, asked.failed) {
                Ended::Good => self.over(write, true),
                Ended::Failed => self.over(write, false),
                Ended::Wait => {}
            }
        }
    }

    fn works(&mut self, member: usize) -> bool {
        self.up[member] && !self.random.one_in(200)
    }

    /// The host reads everything, of all members that it may read it of.
    pub(super) fn read_all(&mut self) {
        let source = self.mirror.status().source;
        let tags = self.tags(source);
        for member in self.mirror.status().current.iter() {
            for (block, tag) in (0..).zip(self.tags(member)) {
                let readers = self.mirror.readers(&(block * BLOCK..(block + 1) * BLOCK));
                assert!(readers.contains(source), "what is copied from is read");
                if readers.contains(member) {
                    self.history.check(block, tag, self.cut);
                }
            }
        }
        if self.asked.is_empty() && std::mem::take(&mut self.cut) {
            self.history.settle(|block| tags[block as usize]);
        }
    }

    fn tags(&self, member: usize) -> Vec<u64> {
        let bytes = contents(&self.disks[member], 0, SIZE);
        let tag = |block: &[u8]| u64::from_le_bytes(*block.first_chunk().expect("blocks are longer"));
        bytes.chunks(BLOCK as usize).map(tag).collect()
    }

    /// Everything works again, until all is done: then the members are equal, and have what they must.
    pub(super) fn come_to_rest(&mut self) {
        self.up.fill(true);
        self.log_up = true;
        let all = Members::first(self.up.len());
        self.mirror.bring_back(all, false);
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
        let first = self.tags(0);
        // No region is dirty, so all was flushed.
        self.history.settle(|block| first[block as usize]);
        (1..self.up.len()).for_each(|member| assert!(self.tags(member) == first, "member {member} differs"));
    }
}

fn disk(size: u64, used: bool, random: &mut Random) -> SimDisk {
    let config = DiskConfig { size, block_size: 512, atomic_write: 512, volatile_cache: true };
    if used { SimDisk::used(config, random.split()) } else { SimDisk::new(config, random.split()) }
}

fn contents(disk: &SimDisk, offset: u64, length: u64) -> Vec<u8> {
    let mut bytes = vec![0; length as usize];
    disk.lock().read(offset, &mut bytes);
    bytes
}

/// Each survives a power cut by itself.
fn write_blocks(disk: &SimDisk, offset: u64, data: &[u8]) {
    for (at, block) in (offset..).step_by(BLOCK as usize).zip(data.chunks(BLOCK as usize)) {
        disk.lock().write(at, block);
    }
}

fn numbers(bytes: &Range<u64>) -> std::ops::Range<u64> {
    bytes.start / BLOCK..bytes.end / BLOCK
}

fn tagged(tag: u64, bytes: &Range<u64>) -> Vec<u8> {
    numbers(bytes).flat_map(|_| tag.to_le_bytes().into_iter().cycle().take(BLOCK as usize)).collect()
}
