//! Actions of the host and the operator, and the invariants.

mod faults;

use super::instance::{Finished, Instance};
use sluice_command::{Operation, Request};
use sluice_functions::snapshot;
use sluice_nvme::Status;
use sluice_sim::{Action, DiskConfig, FlightId, ModelNamespace, Random, SimDisk, Tag, read_tag, write_tag};
use sluice_uif::{Function, Options};
use std::collections::BTreeMap;

const BLOCK: u64 = 512;
/// Bytes of the drive; its last chunk is half of one.
const SIZE: u64 = (40 << 12) + 4096;
const CHUNK: u64 = 8192;
/// Blocks of the longest command.
const LONGEST: u64 = 50;
const COMMANDS_MAX: usize = 12;

/// Bytes of the store before its chunks, approximately.
const METADATA: u64 = 120 << 10;

type Content = Vec<Tag>;

/// A command that is in the model.
struct Flight {
    id: FlightId,
    operation: Operation,
}

/// A reader of a version while the drive changes.
struct Watch {
    name: String,
    content: Content,
    instance: Instance,
    /// First block and blocks of each read.
    reads: BTreeMap<u64, (u64, u64)>,
}

pub(super) struct Plan {
    random: Random,
    disk: SimDisk,
    instance: Instance,
    model: ModelNamespace,
    flights: BTreeMap<u64, Flight>,
    versions: BTreeMap<String, Content>,
    /// State of an order that was not answered: the versions, and the contents, before and after.
    doubt: Option<(BTreeMap<String, Content>, Option<Content>)>,
    watches: Vec<Watch>,
    /// Flag that a flush of the function's own may have failed, which the host's next flush reports.
    has_unreported_loss: bool,
    /// Flag that the store may have lost power, which its next flush reports to any caller.
    may_have_lost_power: bool,
    /// Flag that functions are replaced in the middle of orders.
    interrupts: bool,
    tags: u64,
    names: u64,
    /// Time of the next power cut.
    cut_at: Option<u64>,
}

fn function(version: Option<&str>) -> Box<dyn Function> {
    let options = [("size", Some(SIZE.to_string())), ("chunk", Some(CHUNK.to_string()))];
    let version = ("version", version.map(str::to_owned));
    let options = options.into_iter().chain([version]);
    let options = options.filter_map(|(key, value)| Some((key.to_owned(), value?)));
    snapshot::make(&Options::new(options)).expect("options that are right")
}

impl Plan {
    pub(super) fn new(seed: u64) -> Self {
        Self::with_variant(seed, 0)
    }

    /// Creates the same run, with other damage by a power cut.
    pub(super) fn with_variant(seed: u64, variant: u64) -> Self {
        let mut random = Random::new(seed);
        let config = DiskConfig {
            // Room for the metadata, and for the drive one time to three.
            size: METADATA + CHUNK + SIZE * random.between(2, 6) / 2,
            block_size: 512,
            atomic_write: *random.pick(&[512, 4096]),
            volatile_cache: random.below(4) > 0,
        };
        let disk = blank_store(config, Random::new(random.next_u64() ^ variant));
        let instance = Instance::new(function(None), &disk, CHUNK, random.split());
        let model = ModelNamespace::new(SIZE / BLOCK, config.volatile_cache);
        let mut plan = Self {
            random,
            disk,
            instance,
            model,
            flights: BTreeMap::new(),
            versions: BTreeMap::new(),
            doubt: None,
            watches: Vec::new(),
            has_unreported_loss: false,
            may_have_lost_power: false,
            interrupts: false,
            tags: 0,
            names: 0,
            cut_at: None,
        };
        plan.settle();
        plan
    }

    /// Fails a flush of the host. Lost data can be read until the power fails, and the next function reads it
    /// at once.
    pub(super) fn lose_from_a_cache(&mut self) {
        let is_hosts = self.random.one_in(2);
        self.lose_after(0, is_hosts);
        self.instance.faults.is_cached = true;
        for _ in 0..5000 {
            if self.has_lost() {
                break;
            }
            match self.flights.len() < COMMANDS_MAX && self.random.one_in(2) {
                true => self.command(),
                false => self.step_instance(),
            }
        }
        for flight in std::mem::take(&mut self.flights).into_values() {
            self.model.end(flight.id, false);
        }
        self.begin_anew();
    }

    /// Returns whether a flush of the host succeeds.
    pub(super) fn flushes(&mut self) -> bool {
        let id = self.model.begin(Action::Flush);
        self.instance.submit(Request { operation: Operation::Flush, ..Request::default() }, &[]);
        while !self.instance.is_idle() {
            self.instance.step();
        }
        let good = self.instance.take_finished().remove(0).status.is_success();
        self.model.end(id, good);
        good
    }

    /// Returns whether the flush has failed.
    pub(super) fn has_lost(&self) -> bool {
        self.instance.faults.lost.is_none()
    }

    pub(super) fn hits(&self) -> u64 {
        self.instance.hits
    }

    pub(super) fn metadata_writes(&self) -> u64 {
        self.instance.metadata_writes
    }

    /// Performs this many actions, and completes them; stops at a power cut.
    pub(super) fn life(&mut self, things: u32) {
        self.instance.count_below(METADATA);
        self.instance.cut_at = self.cut_at;
        for _ in 0..things {
            match self.random.below(40) {
                0 if self.doubt.is_none() => {
                    if !self.settle() || !self.order() {
                        return;
                    }
                }
                1..20 if self.flights.len() < COMMANDS_MAX => self.command(),
                _ => {
                    if !self.step() {
                        return;
                    }
                }
            }
        }
        self.settle();
    }

    /// Performs one action; returns false if the power failed.
    fn step(&mut self) -> bool {
        let on = self.work();
        self.reap();
        self.watch();
        on
    }

    fn work(&mut self) -> bool {
        let on = self.instance.step();
        if self.instance.has_lost_power() {
            self.model.lose_unflushed();
        }
        on
    }

    /// Steps the function where no power fails.
    fn step_instance(&mut self) {
        assert!(self.step(), "the power is there");
    }

    /// Begins to read a version while the drive changes.
    pub(super) fn watch_one(&mut self) {
        let names: Vec<String> = self.versions.keys().cloned().collect();
        if names.is_empty() {
            return;
        }
        let name = self.random.pick(&names).clone();
        let instance = Instance::new(function(Some(&name)), &self.disk, CHUNK, self.random.split());
        let content = self.versions[&name].clone();
        self.watches.push(Watch { name, content, instance, reads: BTreeMap::new() });
    }

    /// Checks that the read data of a version is unchanged, or that the version was deleted.
    fn watch(&mut self) {
        for Watch { name, content, instance, reads } in &mut self.watches {
            let alive = self.versions.contains_key(name) && self.doubt.is_none();
            if instance.ready.is_some() && reads.len() < 3 {
                let blocks = self.random.between(1, LONGEST);
                let first = self.random.below(SIZE / BLOCK - blocks + 1);
                let (offset, length) = (first * BLOCK, blocks * BLOCK);
                let request = Request { operation: Operation::Read, offset, length, ..Request::default() };
                reads.insert(instance.submit(request, &vec![0; length as usize]), (first, blocks));
            }
            instance.step();
            for Finished { tag, status, data } in instance.take_finished() {
                let (first, blocks) = reads.remove(&tag).expect("it was not finished before");
                match status.is_success() {
                    true => {
                        let was = &content[first as usize..(first + blocks) as usize];
                        assert_eq!(self::content(&data), was, "version {name}");
                    }
                    false => assert!(!alive, "version {name}: {status:?}"),
                }
            }
        }
    }

    /// Completes everything in flight.
    fn settle(&mut self) -> bool {
        let mut steps = 0;
        while !self.instance.is_idle() {
            if !self.step() {
                return false;
            }
            steps += 1;
            assert!(steps < 200_000, "commands do not come back");
        }
        self.reap();
        assert_eq!(self.instance.ready, Some(Status::SUCCESS), "the store is loaded");
        true
    }

    fn tags(&mut self, blocks: u64) -> Vec<Tag> {
        self.tags += blocks;
        (self.tags - blocks + 1..=self.tags).map(Tag).collect()
    }

    fn command(&mut self) {
        let blocks = match self.random.below(3) {
            0 => self.random.between(1, LONGEST),
            1 => CHUNK / BLOCK,
            _ => self.random.between(1, 8),
        };
        let mut first = self.random.below(SIZE / BLOCK - blocks + 1);
        if self.random.one_in(3) {
            first -= first % (CHUNK / BLOCK);
        }
        let fua = self.random.one_in(5);
        let (operation, action, tags) = match self.random.below(16) {
            0..7 => {
                let tags = self.tags(blocks);
                (Operation::Write, Action::Write { first, tags: tags.clone(), fua }, tags)
            }
            7..13 => (Operation::Read, Action::Read { first, blocks }, vec![Tag::ZERO; blocks as usize]),
            13 => {
                let tags = vec![Tag::ZERO; blocks as usize];
                (Operation::WriteZeroes, Action::Write { first, tags, fua }, Vec::new())
            }
            14 => (Operation::Deallocate, Action::Deallocate { first, blocks }, Vec::new()),
            _ => (Operation::Flush, Action::Flush, Vec::new()),
        };
        let data = bytes(&tags);
        let (offset, length) = match operation {
            Operation::Flush => (0, 0),
            _ => (first * BLOCK, blocks * BLOCK),
        };
        let fua = fua && operation.modifies() && operation != Operation::Deallocate;
        self.send(action, Request { operation, fua, deallocate: false, offset, length }, &data);
        self.reap();
    }

    fn send(&mut self, action: Action, request: Request, data: &[u8]) {
        let id = self.model.begin(action);
        let tag = self.instance.submit(request, data);
        self.flights.insert(tag, Flight { id, operation: request.operation });
    }

    /// Writes parts of chunks that a version has, and loses all data that is not durable at the first flush.
    pub(super) fn lose_what_is_copied(&mut self) {
        const CHUNKS: u64 = 6;
        (0..CHUNKS).for_each(|chunk| self.write_chunk(chunk));
        self.obeys("create v");
        let content = self.read_all().expect("no power cut");
        self.versions.insert("v".to_owned(), content);
        self.fail(f64::MIN_POSITIVE, 0.0);
        (self.instance.faults.lost, self.instance.faults.loses_all) = (Some(0), true);
        for chunk in 0..CHUNKS {
            let tags = self.tags(1);
            let (first, data) = (chunk * (CHUNK / BLOCK) + self.random.below(CHUNK / BLOCK), bytes(&tags));
            let request = Request { operation: Operation::Write, ..Request::default() };
            let request = Request { offset: first * BLOCK, length: BLOCK, ..request };
            self.send(Action::Write { first, tags, fua: false }, request, &data);
            (0..self.random.below(4)).for_each(|_| self.step_instance());
        }
        self.settle();
        assert_eq!(self.instance.faults.lost, None, "a flush has failed");
    }

    /// Zeroes a chunk that a version has, and then zeroes a block of it durably. Returns true if that does
    /// not finish before a request of the disk.
    pub(super) fn zeroes_wait_for_the_disk(&mut self) -> bool {
        let zeroes = |length, fua| {
            let action = Action::Write { first: 0, tags: vec![Tag::ZERO; (length / BLOCK) as usize], fua };
            (action, Request { operation: Operation::WriteZeroes, fua, length, ..Request::default() })
        };
        self.write_chunk(0);
        let before = self.read_all().expect("no power cut");
        self.instance.order("create v", true).expect("no power cut").expect("a version");
        self.versions.insert("v".to_owned(), before);
        let (action, request) = zeroes(CHUNK, false);
        self.send(action, request, &[]);
        self.settle();
        let (action, request) = zeroes(BLOCK, true);
        self.send(action, request, &[]);
        self.reap();
        let waits = !self.flights.is_empty();
        self.settle();
        waits
    }

    fn reap(&mut self) {
        for Finished { tag, status, data } in self.instance.take_finished() {
            let Some(Flight { id, operation }) = self.flights.remove(&tag) else {
                panic!("{tag} was finished twice");
            };
            if operation == Operation::Read && status.is_success() {
                let found: Vec<_> = content(&data).into_iter().map(Some).collect();
                self.model.end_read(id, &found).unwrap_or_else(|violation| panic!("{violation}"));
            } else {
                let full = status == Status::CAPACITY_EXCEEDED && operation != Operation::Read;
                let faults = self.instance.faults;
                let full = full || self.may_have_lost_power && operation != Operation::Read;
                let may = full || faults.may_be_of_writes() || faults.reads > 0.0;
                let owed = operation == Operation::Flush && !status.is_success();
                let may = may || owed && std::mem::take(&mut self.has_unreported_loss);
                assert!(status.is_success() || may, "{operation:?}: {status:?}");
                self.model.end(id, status.is_success());
            }
        }
    }

    /// Reads all of a quiet drive.
    fn read_all(&mut self) -> Option<Content> {
        let faults = std::mem::take(&mut self.instance.faults);
        let mut all = Vec::new();
        for first in (0..SIZE / BLOCK).step_by(LONGEST as usize) {
            let blocks = LONGEST.min(SIZE / BLOCK - first);
            let id = self.model.begin(Action::Read { first, blocks });
            let (offset, length) = (first * BLOCK, blocks * BLOCK);
            let request = Request { operation: Operation::Read, offset, length, ..Request::default() };
            self.instance.submit(request, &vec![0; length as usize]);
            while !self.instance.is_idle() {
                if !self.instance.step() {
                    return None;
                }
            }
            let finished = self.instance.take_finished().remove(0);
            assert!(finished.status.is_success(), "{:?}", finished.status);
            let found = content(&finished.data);
            let seen: Vec<_> = found.iter().copied().map(Some).collect();
            self.model.end_read(id, &seen).unwrap_or_else(|violation| panic!("{violation}"));
            all.extend(found);
        }
        self.instance.faults = faults;
        Some(all)
    }

    /// Sends an operator's order to a quiet drive. Returns false if the power failed.
    fn order(&mut self) -> bool {
        let Some(before) = self.read_all() else { return false };
        let names: Vec<String> = self.versions.keys().cloned().collect();
        let (mut after, mut rolled) = (self.versions.clone(), None);
        let text = match self.random.below(4) {
            1 if !names.is_empty() => {
                let name = self.random.pick(&names);
                after.remove(name);
                format!("delete {name}")
            }
            2 if !names.is_empty() => {
                let name = self.random.pick(&names);
                rolled = Some(self.versions[name].clone());
                format!("rollback {name}")
            }
            _ => {
                self.names += 1;
                let name = format!("v{}", self.names);
                after.insert(name.clone(), before);
                format!("create {name}")
            }
        };
        assert!(
            self.instance.order(&text, false).is_none_or(|answer| answer.is_err()),
            "the drive is not quiet"
        );
        self.doubt = Some((after, rolled.clone()));
        // Data that is written during the order may come after its last flush.
        let flush = self.model.begin(Action::Flush);
        self.instance.send_order(&text, true);
        let goes_on = self.random.one_in(2);
        let rolling = if goes_on { self.go_on_before_the_answer(rolled) } else { None };
        let answer = self.answer();
        self.model.end_order(flush, answer.as_ref().is_some_and(Result::is_ok));
        if let Some(id) = rolling {
            self.model.end(id, answer.as_ref().is_some_and(Result::is_ok));
        }
        let Some(answer) = answer else { return false };
        let Some((after, rolled)) = self.doubt.take() else { return false };
        match answer {
            Ok(_) => {
                self.versions = after;
                rolled.filter(|_| !goes_on).into_iter().for_each(|content| self.is_now(content));
            }
            Err(message) => {
                let full = message.contains("no room") || message.contains("already");
                assert!(
                    full || self.may_have_lost_power || self.instance.faults.may_be_of_writes(),
                    "{text}: {message}"
                );
                if self.instance.faults.step.is_some() || self.cut_at.is_some() || self.may_have_lost_power {
                    // The order may be in the log all the same, without a checkpoint in time that completes
                    // it.
                    self.doubt = Some((after, rolled));
                }
            }
        }
        true
    }

    /// Submits commands while an order is under way, which may give the drive other contents.
    fn go_on_before_the_answer(&mut self, rolled: Option<Content>) -> Option<FlightId> {
        let rolling = rolled.map(|tags| self.model.begin(Action::Write { first: 0, tags, fua: true }));
        (0..3).for_each(|_| self.command());
        rolling
    }

    /// Returns the answer to an order; none if the power failed, or the function is to be replaced before.
    fn answer(&mut self) -> Option<Result<String, String>> {
        loop {
            if let Some(answer) = self.instance.take_answer() {
                return Some(answer);
            }
            if self.interrupts && self.random.one_in(4) || !self.work() {
                return None;
            }
            self.reap();
            self.watch();
        }
    }

    /// Checks that every read of a version comes back, whether the version still exists or not.
    pub(super) fn watch_to_the_end(&mut self) {
        for Watch { instance, .. } in &mut self.watches {
            let steps = (0..20_000).take_while(|_| !instance.is_idle() && instance.step()).count();
            assert!(steps < 20_000, "reads do not come back");
        }
        self.watches.clear();
    }

    /// Shrinks the store while commands are under way, and restores its size.
    pub(super) fn shrink_and_grow(&mut self) {
        let size = self.disk.lock().config().size;
        // Commands fail, but not the store.
        self.fail(f64::MIN_POSITIVE, 0.0);
        for _ in 0..COMMANDS_MAX {
            self.command();
            self.step();
        }
        self.instance.resize(size - (2 * CHUNK));
        assert_eq!(self.instance.ready, Some(Status::NAMESPACE_NOT_READY));
        for _ in 0..self.random.below(30) {
            self.step();
        }
        self.instance.ready = None;
        self.instance.resize(size);
        self.settle();
        self.fail(0.0, 0.0);
    }

    /// Enlarges the store without notice to the reader of a version, and creates and deletes other versions
    /// until the drive has chunks in the new part.
    pub(super) fn grow_under_a_reader(&mut self) {
        self.write_chunk(0);
        let content = self.read_all().expect("no power cut");
        self.obeys("create kept");
        self.versions.insert("kept".to_owned(), content);
        self.watch_one();
        let size = self.disk.lock().config().size + 200 * CHUNK;
        self.disk.lock().resize(size);
        self.instance.resize(size);
        for _ in 0..150 {
            self.obeys("create other");
            self.write_chunk(1);
            self.obeys("delete other");
            self.step();
        }
        // Time for more tries than a reader has.
        for _ in 0..2000 {
            self.step();
        }
    }

    fn obeys(&mut self, order: &str) {
        self.instance.order(order, true).expect("no power cut").expect("it can");
    }

    fn write_chunk(&mut self, chunk: u64) {
        let blocks = CHUNK / BLOCK;
        let tags = self.tags(blocks);
        let (first, data) = (chunk * blocks, bytes(&tags));
        let (offset, length) = (chunk * CHUNK, CHUNK);
        let request = Request { operation: Operation::Write, offset, length, ..Request::default() };
        self.send(Action::Write { first, tags, fua: false }, request, &data);
        self.settle();
    }

    /// Sets the drive's contents in the model, durably.
    fn is_now(&mut self, content: Content) {
        let id = self.model.begin(Action::Write { first: 0, tags: content, fua: true });
        self.model.end(id, true);
    }

    /// Replaces the function: commands in flight fail. An order may have been under way.
    pub(super) fn restart(&mut self) {
        for _ in 0..5 {
            self.command();
            self.step();
        }
        if self.random.one_in(2) {
            self.settle();
            self.interrupts = true;
            self.order();
            self.interrupts = false;
        }
        for tag in self.instance.replace(function(None)) {
            let flight = self.flights.remove(&tag).expect("the model knows it");
            self.model.end(flight.id, false);
        }
        self.reap();
        self.settle();
        if let Some((after, rolled)) = self.doubt.take() {
            self.resolve(after, rolled);
        }
    }

    /// Cuts the power and restores it.
    pub(super) fn cut(&mut self) {
        self.disk.lock().power_cut();
        self.model.power_cut();
        self.flights.clear();
        self.begin_anew();
    }

    /// Kills the process, with nothing under way; another begins with the disk unchanged.
    pub(super) fn kill(&mut self) {
        assert!(self.flights.is_empty(), "all that was asked is over");
        // Data of a failed write may be there after all, though other data was read since. So the model is as
        // uncertain as after a power cut, and the data that is found must be on the disk then.
        self.disk.lock().flush();
        self.model.power_cut();
        self.begin_anew();
    }

    fn begin_anew(&mut self) {
        self.watches.clear();
        (self.cut_at, self.may_have_lost_power) = (None, false);
        self.instance = Instance::new(function(None), &self.disk, CHUNK, self.random.split());
        self.settle();
        if let Some((after, rolled)) = self.doubt.take() {
            self.resolve(after, rolled);
        }
    }

    /// Resolves an order that the power cut interrupted: it was done, or not.
    fn resolve(&mut self, after: BTreeMap<String, Content>, rolled: Option<Content>) {
        let list = self.list();
        if list == after.keys().cloned().collect::<Vec<_>>() {
            self.versions = after;
        } else {
            assert_eq!(list, self.versions.keys().cloned().collect::<Vec<_>>(), "versions before or after");
        }
        if let Some(content) = rolled {
            // All of the one, or all of the other: the model has both contents.
            let found = self.read_raw();
            if found == content {
                self.is_now(content);
            }
        }
    }

    fn list(&mut self) -> Vec<String> {
        let list = self.instance.order("list", false).expect("no power cut").expect("a list");
        let mut names: Vec<String> = list
            .split("\"name\":\"")
            .skip(1)
            .map(|rest| rest.split('"').next().unwrap_or("").to_owned())
            .collect();
        names.sort();
        names
    }

    /// Reads all of the drive, independent of the model.
    fn read_raw(&mut self) -> Content {
        read_through(&mut self.instance)
    }

    /// Checks that the drive equals the model, and every version is unchanged.
    pub(super) fn look_at_everything(&mut self) {
        self.fail(0.0, 0.0);
        self.settle();
        self.read_all().expect("no power cut");
        assert_eq!(self.list(), self.versions.keys().cloned().collect::<Vec<_>>());
        for (name, content) in &self.versions {
            let mut view = Instance::new(function(Some(name)), &self.disk, CHUNK, self.random.split());
            while !view.is_idle() {
                view.step();
            }
            assert_eq!(view.ready, Some(Status::SUCCESS), "version {name}");
            let found = read_through(&mut view);
            let differs = found.iter().zip(content).position(|(found, was)| found != was);
            assert_eq!(differs, None, "version {name}");
        }
    }
}

/// Creates a store that was not written yet: its first blocks are zeros, and behind them there may be
/// anything.
fn blank_store(config: DiskConfig, random: Random) -> SimDisk {
    let disk = SimDisk::used(config, random);
    disk.lock().write(0, &[0; 8192]);
    disk.lock().flush();
    disk
}

fn read_through(instance: &mut Instance) -> Content {
    let mut all = Vec::new();
    for offset in (0..SIZE).step_by((LONGEST * BLOCK) as usize) {
        let length = (LONGEST * BLOCK).min(SIZE - offset);
        let request = Request { operation: Operation::Read, offset, length, ..Request::default() };
        instance.submit(request, &vec![0; length as usize]);
        while !instance.is_idle() {
            instance.step();
        }
        let finished = instance.take_finished().remove(0);
        assert!(finished.status.is_success(), "{:?}", finished.status);
        all.extend(content(&finished.data));
    }
    all
}

fn bytes(tags: &[Tag]) -> Vec<u8> {
    let mut data = vec![0; tags.len() * BLOCK as usize];
    data.chunks_mut(BLOCK as usize).zip(tags).for_each(|(bytes, tag)| write_tag(*tag, bytes));
    data
}

fn content(data: &[u8]) -> Content {
    let tag = |block| read_tag(block).unwrap_or_else(|torn| panic!("{torn:?}"));
    data.chunks(BLOCK as usize).map(tag).collect()
}
