//! Function without a daemon, on simulated disks, with a host and all kinds of failures.

use super::parts::Parts;
use crate::Replicate;
use crate::host::entry;
use sluice_command::{Operation, Request};
use sluice_memory::{Buffers, SharedRegion};
use sluice_nvme::Status;
use sluice_sim::{Action, DiskConfig, FlightId, ModelNamespace, Random, SimDisk, Tag, read_tag, write_tag};
use sluice_uif::abi::{Reply, Submission, disposition, flag, kind};
use sluice_uif::{Options, Session};

pub(super) const SIZE: u64 = 4 << 20;
const BLOCK: u64 = 512;
const LOG: u64 = 1 << 20;
const ARENA: usize = 4 << 20;

/// Commands at a time, and bytes of the buffer of each.
const SLOTS: usize = 24;
const SLOT: usize = 16 << 10;

/// Offset of the text of operators.
const WORDS: usize = 1 << 20;

/// Command of the host.
#[derive(Clone, Debug)]
struct Command {
    request: Request,
    tags: Vec<Tag>,
    flight: FlightId,
}

/// Request to a layer below.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) reply: Reply,
    pub(super) request: Request,
    /// Offset of a host command's data.
    data: usize,
}

pub(super) struct Rig {
    pub(super) random: Random,
    pub(super) up: Vec<bool>,
    /// Whether the layers were never written to; `storage`: the numbers of their storage.
    pub(super) is_new: bool,
    pub(super) storage: Vec<u64>,
    /// Number of members; the log is the layer after them. Without `is_mirror`, they are a drive and its
    /// copy.
    pub(super) members: usize,
    pub(super) is_mirror: bool,
    options: Options,
    session: Session,
    memory: Buffers,
    pub(super) disks: Vec<SimDisk>,
    /// Faults of single parts.
    pub(super) parts: Parts,
    pub(super) now_ns: u64,
    pub(super) asked: Vec<Asked>,
    /// Commands by slot, each with the number of times that it was sent.
    commands: Vec<(u32, Option<Command>)>,
    pub(super) model: ModelNamespace,
    next_tag: u64,
    /// Content of a buffer before it is read to.
    noise: u8,
    pub(super) ready: Option<Status>,
    words: Option<(Status, String)>,
    pub(super) good: u64,
    pub(super) failed: u64,
}

fn session(is_mirror: bool, options: &Options) -> (Session, Buffers) {
    let make = if is_mirror { Replicate::mirror } else { Replicate::new };
    let function = make(options).expect("they are good ones");
    let memory = SharedRegion::new("arena", ARENA).expect("memory");
    (Session::new(Box::new(function), ARENA), Buffers::new(memory))
}

impl Rig {
    pub(super) fn new(seed: u64) -> Self {
        Self::of(seed, 2, false)
    }

    pub(super) fn mirror(seed: u64, members: usize) -> Self {
        Self::of(seed, members, true)
    }

    fn of(seed: u64, members: usize, is_mirror: bool) -> Self {
        Self::with_options(seed, members, is_mirror, Options::default())
    }

    pub(super) fn with_options(seed: u64, members: usize, is_mirror: bool, options: Options) -> Self {
        let mut random = Random::new(seed);
        let sizes = std::iter::repeat_n(SIZE, members).chain([LOG]);
        let disks: Vec<SimDisk> = sizes
            .map(|size| {
                let config = DiskConfig { size, block_size: 512, atomic_write: 512, volatile_cache: true };
                SimDisk::used(config, random.split())
            })
            .collect();
        clear_log(&disks[members]);
        let (session, memory) = session(is_mirror, &options);
        let mut rig = Self {
            up: vec![true; members + 1],
            is_new: true,
            storage: (1..).take(members + 1).collect(),
            members,
            is_mirror,
            options,
            session,
            memory,
            disks,
            parts: Parts::new(members),
            now_ns: 0,
            asked: Vec::new(),
            commands: vec![(0, None); SLOTS],
            model: ModelNamespace::new(SIZE / BLOCK, true),
            next_tag: 1,
            noise: seed as u8 | 1,
            random,
            ready: None,
            words: None,
            good: 0,
            failed: 0,
        };
        rig.fill_first();
        rig.start();
        rig
    }

    /// Fills the source with a tag in each block, which the model has, too.
    fn fill_first(&mut self) {
        let tags: Vec<Tag> = (0..SIZE / BLOCK).map(|_| self.tag()).collect();
        let mut content = vec![0; SIZE as usize];
        content.chunks_mut(BLOCK as usize).zip(&tags).for_each(|(block, tag)| write_tag(*tag, block));
        self.disks[0].lock().write(0, &content);
        self.disks[0].lock().flush();
        let flight = self.model.begin(Action::Write { first: 0, tags, fua: true });
        self.model.end(flight, true);
    }

    fn start(&mut self) {
        let sizes: Vec<u64> = self.disks.iter().map(|disk| disk.lock().config().size).collect();
        self.show_layers(&sizes);
        while self.ready.is_none() {
            self.turn();
        }
        assert_eq!(self.ready, Some(Status::SUCCESS));
    }

    /// Sends the function layers of these sizes.
    pub(super) fn show_layers(&mut self, sizes: &[u64]) {
        for (number, offset) in sizes.iter().copied().enumerate() {
            let stage = number as u8;
            let flags = if self.is_new { flag::NEW } else { 0 };
            let cookie = [self.storage[number], 0];
            let below = Submission {
                kind: kind::BELOW,
                stage,
                offset,
                length: 512,
                flags,
                cookie,
                ..Submission::default()
            };
            self.session.take(&below, &mut self.memory, self.now_ns);
        }
        self.ready = None;
        self.show(&Submission { kind: kind::START, ..Submission::default() });
    }

    /// Returns whether no command of the host is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.commands.iter().all(|(_, command)| command.is_none())
    }

    fn show(&mut self, entry: &Submission) {
        self.session.take(entry, &mut self.memory, self.now_ns);
        self.listen();
    }

    fn listen(&mut self) {
        let said: Vec<Reply> = self.session.replies(usize::MAX).collect();
        said.into_iter().for_each(|reply| self.obey(reply));
    }

    fn obey(&mut self, reply: Reply) {
        match reply.disposition {
            disposition::READY => self.ready = Some(Status(reply.status)),
            disposition::FINISH if reply.tag == u64::MAX => {
                let words = self.memory.bytes(WORDS, reply.length as usize).expect("it is there").to_vec();
                self.words = Some((Status(reply.status), String::from_utf8(words).expect("text")));
            }
            disposition::FINISH => self.finish(reply.tag, Status(reply.status)),
            disposition::FORWARD | disposition::FORWARD_AND_RETURN => {
                let slot = reply.tag as u32 as usize;
                assert_eq!(self.commands[slot].0, (reply.tag >> 32) as u32, "it is that command");
                let request = entry::request(&reply).expect("it makes sense");
                self.asked.push(Asked { reply, request, data: slot * SLOT });
            }
            disposition::REQUEST => {
                let Some(request) = entry::request(&reply) else { panic!("{reply:?}") };
                self.asked.push(Asked { reply, request, data: reply.data_offset as usize });
            }
            other => panic!("disposition {other}"),
        }
    }

    fn finish(&mut self, tag: u64, status: Status) {
        let (used, command) = &mut self.commands[tag as u32 as usize];
        assert_eq!(*used, (tag >> 32) as u32, "it is that command");
        let command = command.take().expect("it is finished once");
        let data = tag as u32 as usize * SLOT;
        let uses = |asked: &Asked| asked.request.has_data() && asked.data == data;
        assert!(!self.asked.iter().any(uses), "a layer has its data");
        if command.request.operation == Operation::Read {
            self.end_read(&command, data, status);
        } else {
            self.end(command.flight, status.is_success());
        }
        *if status.is_success() { &mut self.good } else { &mut self.failed } += 1;
    }

    /// Checks the data of a read against the model.
    fn end_read(&mut self, command: &Command, data: usize, status: Status) {
        if !status.is_success() {
            return self.model.end(command.flight, false);
        }
        let bytes = self.memory.bytes(data, command.request.length as usize).expect("it is there");
        let found: Vec<Option<Tag>> =
            bytes.chunks(BLOCK as usize).map(|block| Some(read_tag(block).expect("whole blocks"))).collect();
        self.model.end_read(command.flight, &found).unwrap_or_else(|violation| panic!("{violation}"));
    }

    /// Submits a read of the host through the function, if a slot is free.
    pub(super) fn submit_read(&mut self) {
        let Some(slot) = self.free_slot() else { return };
        let first = self.random.below(64);
        let blocks = self.random.between(1, 16);
        let (offset, length) = (first * BLOCK, blocks * BLOCK);
        let request = Request { operation: Operation::Read, offset, length, ..Request::default() };
        let flight = self.model.begin(Action::Read { first, blocks });
        self.commands[slot].1 = Some(Command { request, tags: Vec::new(), flight });
        self.send(slot);
    }

    fn free_slot(&self) -> Option<usize> {
        self.commands.iter().position(|(_, command)| command.is_none())
    }

    /// Submits a change of the drive by the host, if a slot is free.
    pub(super) fn submit(&mut self) {
        let Some(slot) = self.free_slot() else { return };
        let kinds = [Operation::Write, Operation::Write, Operation::Write, Operation::Flush];
        let rare = [Operation::WriteZeroes, Operation::Deallocate];
        let operation = *self.random.pick(if self.random.clone().one_in(4) { &rare } else { &kinds });
        // Some places are written again and again, others once in a while.
        let first = match self.random.one_in(2) {
            true => self.random.below(64),
            false => self.random.below(SIZE / BLOCK),
        };
        let blocks = self.random.between(1, 16).min(SIZE / BLOCK - first);
        let fua = operation != Operation::Deallocate && self.random.one_in(4);
        let (offset, length) = (first * BLOCK, blocks * BLOCK);
        let mut request = Request { operation, fua, deallocate: false, offset, length };
        let mut tags = vec![Tag::ZERO; blocks as usize];
        let action = match operation {
            Operation::Flush => {
                request = Request { operation, ..Request::default() };
                Action::Flush
            }
            Operation::Deallocate => Action::Deallocate { first, blocks },
            _ => {
                if operation == Operation::Write {
                    tags.fill_with(|| self.tag());
                }
                Action::Write { first, tags: tags.clone(), fua }
            }
        };
        let flight = self.model.begin(action);
        self.commands[slot].1 = Some(Command { request, tags, flight });
        self.send(slot);
    }

    /// Submits a flush of the host, if a slot is free.
    pub(super) fn submit_flush(&mut self) {
        let Some(slot) = self.free_slot() else { return };
        let request = Request { operation: Operation::Flush, ..Request::default() };
        let flight = self.model.begin(Action::Flush);
        self.commands[slot].1 = Some(Command { request, tags: Vec::new(), flight });
        self.send(slot);
    }

    fn tag(&mut self) -> Tag {
        self.next_tag += 1;
        Tag(self.next_tag)
    }

    /// Returns the next tag of a command: it has another one each time that it goes to the function.
    fn next_tag_of(&mut self, slot: usize) -> u64 {
        self.commands[slot].0 += 1;
        u64::from(self.commands[slot].0) << 32 | slot as u64
    }

    /// Sends the function a command, with its data.
    fn send(&mut self, slot: usize) {
        let tag = self.next_tag_of(slot);
        let Some(command) = &self.commands[slot].1 else { return };
        let length = if command.request.has_data() { command.request.length as usize } else { 0 };
        let data = self.memory.bytes(slot * SLOT, length).expect("it is there");
        data.fill(self.noise);
        for (tag, block) in command.tags.iter().zip(data.chunks_mut(BLOCK as usize)) {
            write_tag(*tag, block);
        }
        let entry = Submission {
            tag,
            data_offset: (slot * SLOT) as u32,
            data_length: length as u32,
            ..entry::about(&command.request)
        };
        self.show(&entry);
    }

    /// Ends a request of a layer, or lets time pass.
    pub(super) fn turn(&mut self) {
        if self.does_late() {
            return;
        }
        if self.asked.is_empty() {
            let alarm_ns = self.session.alarm_ns().unwrap_or(self.now_ns);
            self.now_ns = alarm_ns.max(self.now_ns) + 1;
            self.session.expire(&mut self.memory, self.now_ns);
            return self.listen();
        }
        self.now_ns += self.random.below(10_000_000);
        let asked = self.asked.swap_remove(self.random.below(self.asked.len() as u64) as usize);
        if let Some(fate) = self.fate(&asked) {
            self.apply(&asked, fate.chance);
            return self.meet(&asked, &fate);
        }
        let layer = usize::from(asked.reply.layer);
        let good = self.up[layer] && !self.random.one_in(if layer == self.members { 100 } else { 300 });
        self.apply(&asked, if good { 1.0 } else { 0.5 });
        self.answer(&asked, if good { Status::SUCCESS } else { Status::WRITE_FAULT });
    }

    /// Returns the result of a layer's request to the function.
    pub(super) fn answer(&mut self, asked: &Asked, status: Status) {
        let about = Submission { tag: asked.reply.tag, status: status.0, ..entry::about(&asked.request) };
        match asked.reply.disposition {
            disposition::REQUEST => self.show(&Submission { kind: kind::DONE, ..about }),
            disposition::FORWARD => self.finish(asked.reply.tag, status),
            _ => {
                let returned = Submission {
                    kind: kind::RETURNED,
                    tag: self.next_tag_of(asked.reply.tag as u32 as usize),
                    stage: asked.reply.stage,
                    cookie: asked.reply.cookie,
                    data_offset: asked.data as u32,
                    data_length: if asked.request.has_data() { asked.request.length as u32 } else { 0 },
                    ..about
                };
                self.show(&returned);
            }
        }
    }

    /// Executes each block of a request with this probability.
    fn apply(&mut self, asked: &Asked, chance: f64) {
        let (disk, request) = (&self.disks[usize::from(asked.reply.layer)], &asked.request);
        let length = request.length as usize;
        match request.operation {
            Operation::Flush if chance == 1.0 => disk.lock().flush(),
            Operation::Flush => {}
            Operation::Read => {
                let into = self.memory.bytes(asked.data, length).expect("it is there");
                disk.lock().read(request.offset, into);
            }
            _ => {
                let data = self.data_of(asked);
                let (disk, request) = (&self.disks[usize::from(asked.reply.layer)], &asked.request);
                for (number, block) in data.chunks(BLOCK as usize).enumerate() {
                    if self.random.chance(chance) {
                        disk.lock().write(request.offset + number as u64 * BLOCK, block);
                    }
                }
                if request.fua && chance == 1.0 {
                    disk.lock().persist(request.offset..request.end());
                }
            }
        }
    }

    /// Returns the data of a request that writes.
    pub(super) fn data_of(&mut self, asked: &Asked) -> Vec<u8> {
        let length = asked.request.length as usize;
        match asked.request.operation {
            Operation::Write => self.memory.bytes(asked.data, length).expect("it is there").to_vec(),
            _ => vec![0; length],
        }
    }

    /// Kills the function's process. Its requests are done first; all commands are sent again to the next
    /// function.
    pub(super) fn kill_function(&mut self) {
        for asked in std::mem::take(&mut self.asked) {
            self.apply(&asked, 1.0);
        }
        self.part_kill_function();
        (self.session, self.memory) = session(self.is_mirror, &self.options);
        self.start();
        (0..SLOTS).for_each(|slot| self.send(slot));
    }

    /// Kills the daemon, with a power cut if it is `cut`. No command or request gets an answer.
    pub(super) fn kill_daemon(&mut self, cut: bool) {
        self.end_daemon(cut);
        self.start();
    }

    /// Kills the daemon as [`kill_daemon`](Self::kill_daemon) does, without sending the next function its
    /// layers.
    pub(super) fn end_daemon(&mut self, cut: bool) {
        for asked in std::mem::take(&mut self.asked) {
            self.apply(&asked, 0.5);
        }
        let has_lost = self.part_kill_daemon();
        match cut {
            true => {
                self.disks.iter().for_each(|disk| disk.lock().power_cut());
                self.model.power_cut();
            }
            // The log may lack a member's loss, so that member may be trusted once more.
            false if has_lost => {
                self.disks.iter().for_each(|disk| disk.lock().flush());
                self.model.power_cut();
            }
            false => self.model.crash(),
        }
        self.commands.iter_mut().for_each(|(_, command)| *command = None);
        self.is_new = false;
        self.open_again();
    }

    /// Opens the function anew, before it is sent its layers.
    pub(super) fn open_again(&mut self) {
        (self.session, self.memory) = session(self.is_mirror, &self.options);
    }

    /// Sends the function its layers. Returns whether it serves.
    pub(super) fn serves(&mut self) -> bool {
        let sizes: Vec<u64> = self.disks.iter().map(|disk| disk.lock().config().size).collect();
        self.show_layers(&sizes);
        self.comes_up()
    }

    pub(super) fn comes_up(&mut self) -> bool {
        while self.ready.is_none() {
            self.turn();
        }
        self.ready == Some(Status::SUCCESS)
    }

    /// Blanks the whole log.
    pub(super) fn blank_log(&mut self) {
        let mut log = self.disks[self.members].lock();
        log.write(0, &vec![0; LOG as usize]);
        log.flush();
    }

    pub(super) fn image(&self, layer: usize) -> Vec<u8> {
        let mut bytes = vec![0; SIZE as usize];
        self.disks[layer].lock().read(0, &mut bytes);
        bytes
    }

    /// Sends an operator's order. Returns its answer.
    pub(super) fn tell(&mut self, text: &str) -> Result<String, String> {
        self.memory.bytes(WORDS, text.len()).expect("room").copy_from_slice(text.as_bytes());
        let (tag, data_offset, data_length) = (u64::MAX, WORDS as u32, text.len() as u32);
        let flags = if text.is_empty() { flag::QUIET } else { 0 };
        let entry =
            Submission { kind: kind::CONTROL, tag, flags, data_offset, data_length, ..Submission::default() };
        self.show(&entry);
        for _ in 0..1000 {
            if self.words.is_some() {
                break;
            }
            self.turn();
        }
        let (status, words) = self.words.take().expect("it answers soon");
        if status.is_success() { Ok(words) } else { Err(words) }
    }

    /// Returns the member that is read and copied from. It may change with every turn.
    pub(super) fn source(&mut self) -> usize {
        let status = self.tell("status").expect("it serves");
        let (_, number) = status.split_once(r#""source":"#).expect("a source");
        number.chars().next().and_then(|digit| digit.to_digit(10)).expect("a number") as usize
    }

    /// Has the host read the whole drive, which is the source.
    pub(super) fn read_all(&mut self) {
        self.hear_losses();
        let source = self.source();
        let flight = self.model.begin(Action::Read { first: 0, blocks: SIZE / BLOCK });
        let contents = self.contents(source);
        let tag = |block| Some(read_tag(block).expect("blocks are not torn"));
        let found: Vec<Option<Tag>> = contents.chunks(BLOCK as usize).map(tag).collect();
        self.model.end_read(flight, &found).unwrap_or_else(|violation| panic!("{violation}"));
    }

    pub(super) fn contents(&self, layer: usize) -> Vec<u8> {
        let mut bytes = vec![0; SIZE as usize];
        self.disks[layer].lock().read(0, &mut bytes);
        bytes
    }

    pub(super) fn rot(&mut self, layer: usize, at: u64) {
        self.disks[layer].lock().write(at, &[0xaa; 512]);
    }

    /// Runs without failures, until the secondary has everything and nothing is dirty.
    pub(super) fn come_to_rest(&mut self) {
        self.up.fill(true);
        self.part_rest();
        for _ in 0..200_000 {
            if self.asked.is_empty() && self.is_idle() {
                let status = self.tell("status").expect("it serves");
                if status.contains(r#""state":"in sync""#) && status.contains(r#""dirty_bytes":0,"#) {
                    self.read_all();
                    let first = self.contents(0);
                    (1..self.members).for_each(|it| assert!(self.contents(it) == first, "{it} differs"));
                    return;
                }
            }
            self.turn();
        }
        panic!("it never comes to rest: {:?}", self.tell("status"));
    }
}

/// Blanks the headers of a log, and leaves its other bytes random.
fn clear_log(log: &SimDisk) {
    let mut log = log.lock();
    [0, LOG / 2].iter().for_each(|half| log.write(*half, &[0; 4096]));
    log.flush();
}
