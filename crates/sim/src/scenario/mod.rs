//! A whole run: a host with a drive, random commands, and the check of each result.
//!
//! Every command is drafted as a legal one. Some are then spoiled in exactly one way, and must come back with
//! exactly the status that the specification requires. All others must succeed, and have the effect on the
//! namespace that the model predicts.

mod admin;
mod draft;
mod events;
mod flaw;
mod job;
mod queues;

use crate::{Action, Buffer, Completion, FlightId, ModelNamespace, Random, SimDisk, SimEngine, SimHost, Tag};
use events::ExpectedEvents;
use job::Job;
use sluice_controller::Attached;
use sluice_nvme::{Status, SubmissionEntry};
use std::collections::{BTreeMap, BTreeSet};

/// A namespace of the drive under test.
#[derive(Clone, Debug)]
pub struct DriveNamespace {
    pub nsid: u32,
    pub block_size: u32,
    pub blocks: u64,
    pub volatile_cache: bool,
    /// Flag of a namespace whose data can be read back; that of a null target cannot.
    pub keeps_data: bool,
    /// Storage below, if it is simulated and so survives the controller.
    pub disk: Option<SimDisk>,
}

/// Function that creates a controller over these engines.
pub type Make<'a> = Box<dyn FnMut(&[SimEngine]) -> Attached + 'a>;

/// A drive under test: its namespaces, and a function that creates its controller, also after a crash.
pub struct Drive<'a> {
    pub namespaces: Vec<DriveNamespace>,
    /// Creates the controller; there is one engine for each namespace, in their order.
    pub make: Make<'a>,
    /// Statuses that legal commands may fail with: the faults below.
    pub faults: &'static [Status],
}

impl std::fmt::Debug for Drive<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Drive").field("namespaces", &self.namespaces).finish_non_exhaustive()
    }
}

/// Intensity of a [`Scenario`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Number of commands of which one is spoiled.
    pub flawed_one_in: u64,
    /// Bytes of a usual transfer; one in 32 is as long as the controller permits.
    pub usual_transfer: u32,
}

/// Results of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// I/O commands that came back with success.
    pub succeeded: u64,
    /// Copy commands among these.
    pub copied: u64,
    /// Spoiled commands, refused with the right status.
    pub refused: u64,
    /// Legal commands that failed because of a fault below.
    pub failed: u64,
    /// Commands that were left unanswered by a queue deletion or reset.
    pub cut_off: u64,
}

/// A host, its drive and the expectations for both.
#[derive(Debug)]
pub struct Scenario<'a> {
    pub host: SimHost,
    pub tally: Tally,
    drive: Drive<'a>,
    /// Models by index of the namespace; that of a namespace without data is not used.
    models: Vec<ModelNamespace>,
    /// Commands in flight, by submission queue and CID.
    jobs: BTreeMap<(u16, u16), Job>,
    /// Submission queue that is being deleted.
    deleting: Option<u16>,
    events: ExpectedEvents,
    /// Commands that failed, which the Error Information log may name: queue, CID, status.
    errors: BTreeSet<(u16, u16, u16)>,
    /// Commands whose completions a reset or deletion kept from the host: queue and CID.
    unseen: BTreeSet<(u16, u16)>,
    effort: Effort,
    random: Random,
    last_tag: u64,
}

impl<'a> Scenario<'a> {
    /// Creates a host with an enabled controller and some I/O queues.
    pub fn new(seed: u64, mut drive: Drive<'a>, effort: Effort) -> Self {
        let mut random = Random::new(seed);
        let host = power_on(&mut drive, &mut random);
        let model =
            |namespace: &DriveNamespace| ModelNamespace::new(namespace.blocks, namespace.volatile_cache);
        let models = drive.namespaces.iter().map(model).collect();
        let mut scenario = Self {
            host,
            tally: Tally::default(),
            drive,
            models,
            jobs: BTreeMap::new(),
            deleting: None,
            events: ExpectedEvents::default(),
            errors: BTreeSet::new(),
            unseen: BTreeSet::new(),
            effort,
            random,
            last_tag: 0,
        };
        scenario.start();
        scenario
    }

    fn start(&mut self) {
        self.host.enable();
        self.events = ExpectedEvents::default();
        for (model, namespace) in self.models.iter_mut().zip(&self.drive.namespaces) {
            model.set_volatile_cache(namespace.volatile_cache);
        }
        for _ in 0..self.random.between(1, 4) {
            self.create_any_queue();
        }
        self.create_pair();
    }

    /// Runs `steps` random steps.
    pub fn run(&mut self, steps: u64) {
        for _ in 0..steps {
            match self.random.below(100) {
                0..35 => self.submit_some(),
                35..60 => self.host.answer(),
                60..75 => self.host.turn(),
                75..90 => self.reap_some(),
                90..92 => self.host.wait(),
                92..93 => self.copy_alone(),
                93..95 => self.host.answer_again(),
                95..96 => self.change_queues(),
                96..97 => self.ring_nonsense(),
                97..98 => self.use_shadow_doorbells(),
                98..99 => self.ask_something(),
                _ => self.request_event(),
            }
        }
    }

    /// Runs until every command is back.
    pub fn drain(&mut self) {
        for _ in 0..1_000_000 {
            if self.jobs.is_empty() {
                return;
            }
            let queues: Vec<u16> = self.host.sqs.keys().copied().collect();
            queues.into_iter().for_each(|sq| self.host.ring(sq));
            self.host.answer();
            self.host.wait();
            self.host.turn();
            self.host.reap_all();
            self.take_inbox();
        }
        let waiting: Vec<&(u16, u16)> = self.jobs.keys().collect();
        panic!("commands never come back: {waiting:?} of {:x?}", self.host);
    }

    fn submit_some(&mut self) {
        let queues: Vec<u16> = self.host.sqs.keys().copied().filter(|&sq| sq != 0).collect();
        if queues.is_empty() {
            return self.create_pair();
        }
        let sq = *self.random.pick(&queues);
        for _ in 0..self.random.between(1, 8) {
            if !self.host.guest.is_short() {
                self.submit_any(sq);
            }
        }
        if !self.random.one_in(8) {
            self.host.ring(sq);
        }
    }

    fn reap_some(&mut self) {
        let queues: Vec<u16> = self.host.cqs.keys().copied().collect();
        let cq = *self.random.pick(&queues);
        let most = self.random.between(1, 16);
        self.host.reap(cq, most);
        self.take_inbox();
    }

    fn take_inbox(&mut self) {
        for completion in std::mem::take(&mut self.host.inbox) {
            self.complete(completion);
        }
    }

    /// Disables the controller under the commands in flight, and enables it again. Acknowledged data stays.
    pub fn reset(&mut self) {
        match self.random.one_in(2) {
            true => self.host.disable(),
            false => self.host.reset_function(),
        }
        self.cut_off_all();
        self.models.iter_mut().for_each(ModelNamespace::crash);
        let before = self.host.guest.snapshot();
        for _ in 0..20 {
            self.host.answer_again();
            self.host.wait();
            self.host.turn();
        }
        assert!(before == self.host.guest.snapshot(), "memory changed after the reset was complete");
        self.start();
    }

    /// Shuts the controller down as the host, with commands in flight, and switches the power off (the
    /// daemon, where storage is real). All writes finished before are durable, flushed or not (Base 3.6.1).
    pub fn shut_down(&mut self) {
        let flushes: Vec<FlightId> = self.models.iter_mut().map(|model| model.begin(Action::Flush)).collect();
        let abrupt = self.random.one_in(2);
        self.host.shut_down(abrupt);
        self.models.iter_mut().zip(flushes).for_each(|(model, flush)| model.end(flush, true));
        match self.drive.namespaces.iter().all(|namespace| namespace.disk.is_some()) {
            true => self.power_cut(),
            false => self.crash(),
        }
    }

    /// Cuts the power: the controller is gone, and data that is not durable may be.
    pub fn power_cut(&mut self) {
        for namespace in &self.drive.namespaces {
            let disk = namespace.disk.as_ref().expect("only simulated storage survives a power cut");
            disk.lock().power_cut();
        }
        self.models.iter_mut().for_each(ModelNamespace::power_cut);
        self.new_host();
    }

    /// Kills the daemon: the controller is gone, its storage is unchanged.
    pub fn crash(&mut self) {
        self.models.iter_mut().for_each(ModelNamespace::crash);
        self.new_host();
    }

    fn new_host(&mut self) {
        self.tally.cut_off += self.jobs.len() as u64;
        self.jobs.clear();
        self.errors.clear();
        self.unseen.clear();
        self.host.vanish();
        self.host = power_on(&mut self.drive, &mut self.random);
        self.start();
    }

    /// Reads all of every namespace.
    pub fn verify(&mut self) {
        self.drain();
        self.create_pair();
        for index in 0..self.drive.namespaces.len() {
            let mut first = 0;
            while first < self.drive.namespaces[index].blocks {
                let blocks = self.blocks_max(index).min(self.drive.namespaces[index].blocks - first);
                if !self.host.guest.is_short() && self.submit_read(index, first, blocks) {
                    first += blocks;
                } else {
                    self.drain();
                }
            }
            self.drain();
        }
        self.check_events();
    }

    /// Sends an admin command and waits for its status.
    fn admin(&mut self, entry: SubmissionEntry) -> Status {
        self.admin_answer(entry).0
    }

    /// Sends an admin command; returns its status and dword 0 of the completion.
    fn admin_answer(&mut self, entry: SubmissionEntry) -> (Status, u32) {
        let completion = self.host.admin(entry);
        self.note_error(&completion);
        self.take_inbox();
        (completion.status, completion.dw0)
    }

    fn note_error(&mut self, completion: &Completion) {
        if !completion.status.is_success() {
            self.errors.insert((completion.sq, completion.cid, completion.status.0));
        }
    }

    /// Returns the most blocks of a usual transfer.
    fn blocks_max(&self, index: usize) -> u64 {
        let namespace = &self.drive.namespaces[index];
        u64::from(self.effort.usual_transfer / namespace.block_size).clamp(1, namespace.blocks)
    }

    fn new_tags(&mut self, blocks: u64) -> Vec<Tag> {
        let first = self.last_tag + 1;
        self.last_tag += blocks;
        (first..=self.last_tag).map(Tag).collect()
    }

    /// Ends all commands that remain unanswered; their memory is the host's again.
    fn cut_off_all(&mut self) {
        for (name, job) in std::mem::take(&mut self.jobs) {
            self.cut_off(name, job);
        }
    }

    fn cut_off(&mut self, name: (u16, u16), job: Job) {
        self.unseen.insert(name);
        self.tally.cut_off += 1;
        let direction = job.direction;
        let buffer: Buffer = job.buffer;
        buffer.check_and_release(&mut self.host.guest, direction);
    }
}

fn power_on(drive: &mut Drive<'_>, random: &mut Random) -> SimHost {
    let engines: Vec<SimEngine> = drive.namespaces.iter().map(|_| SimEngine::new(random.split())).collect();
    let controller = (drive.make)(&engines);
    let nsids = drive.namespaces.iter().map(|namespace| namespace.nsid);
    SimHost::new(controller, nsids.zip(engines).collect(), random.split())
}
