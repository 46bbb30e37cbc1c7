//! A function over simulated disks, and its host. `layers` has the disks and their failures.

use sluice_command::{Operation, Request};
use sluice_functions::host::entry;
use sluice_memory::{Buffers, SharedRegion};
use sluice_nvme::Status;
use sluice_sim::{Action, DiskConfig, FlightId, ModelNamespace, Random, SimDisk, Tag, read_tag, write_tag};
use sluice_uif::abi::{Reply, Submission, disposition, flag, kind};
use sluice_uif::{Options, Session};

mod layers;

use super::loss;
use super::whole::Whole;

pub(super) const BLOCK: u64 = 512;
/// Bytes of a member: two regions.
pub(super) const SIZE: u64 = (1 << 20) + (256 << 10);
pub(super) const LOG: u64 = 3 << 20;
/// Bytes of a group of blocks with checksums, and more.
const CHECKED: u64 = (2 << 20) + (16 << 10);
/// Bytes of an atomic drive.
const ATOMIC: u64 = 512 << 10;

/// Bytes of a chunk.
const CHUNK: usize = 8 << 10;
const ARENA: usize = 12 << 20;

/// Commands at a time, and bytes of the buffer of each.
pub(super) const SLOTS: usize = 24;
pub(super) const SLOT: usize = 128 << 10;

/// Offset of the text of operators.
const WORDS: usize = 4 << 20;

/// Command of the host.
#[derive(Clone, Debug)]
struct Command {
    request: Request,
    tags: Vec<Tag>,
    flight: Option<FlightId>,
}

/// Request to a layer below.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) reply: Reply,
    pub(super) request: Request,
    pub(super) data: usize,
}

pub(super) struct Rig {
    pub(super) random: Random,
    pub(super) members: usize,
    pub(super) parities: usize,
    /// Whether the last member is a spare, or has the second parity.
    has_spare: bool,
    function: &'static str,
    pub(super) options: Options,
    /// Blocks of the smallest command, and bytes that the power does not tear.
    unit: u64,
    pub(super) atom: u64,
    pub(super) blocks: u64,
    session: Session,
    memory: Buffers,
    /// Members, and the log.
    pub(super) disks: Vec<SimDisk>,
    pub(super) up: Vec<bool>,
    storage: Vec<u64>,
    /// Bytes of a block of layer 0, as the function gets it.
    pub(super) block_size: u64,
    is_new: bool,
    now_ns: u64,
    pub(super) asked: Vec<Asked>,
    commands: Vec<(u32, Option<Command>)>,
    pub(super) model: ModelNamespace,
    next_tag: u64,
    noise: u8,
    pub(super) ready: Option<Status>,
    words: Option<(Status, String)>,
    /// Probability that a read of a member fails at its place, and that any request to a member fails.
    pub(super) media: f64,
    pub(super) faults: f64,
    /// Probability that a request to the log fails. Half of them are done nevertheless.
    pub(super) log_faults: f64,
    /// Writes of the log so far, and the number at which the power fails.
    pub(super) log_writes: u64,
    pub(super) cut_at: Option<u64>,
    /// Writes and flushes of all layers so far, and the number at which the power fails.
    pub(super) changes: u64,
    pub(super) cut_change: Option<u64>,
    /// Check of writes that are whole, of a function that promises that.
    whole: Option<Whole>,
    /// Most blocks of an atomic write of the next function.
    next_limit: u64,
    /// Loss that the next request to a layer reports, or the next flush of it.
    pub(super) loss: [bool; 2],
    pub(super) flush_loss: [bool; 2],
    /// Blocks of layer 0 whose data a command of the host brought, and not the function.
    pub(super) is_direct: Vec<bool>,
    /// Blocks of layer 0 that its last loss of power has changed.
    pub(super) lost: Vec<bool>,
    /// Requests to members since the last command of the host was submitted.
    pub(super) requests: Vec<Operation>,
    pub(super) good: u64,
    pub(super) failed: u64,
}

fn session(function: &str, options: &Options) -> (Session, Buffers) {
    let function =
        sluice_functions::make(function, options, &Default::default()).expect("they are good ones");
    let memory = SharedRegion::new("arena", ARENA).expect("memory");
    (Session::new(function, ARENA), Buffers::new(memory))
}

pub(super) fn disk(size: u64, random: &mut Random, used: bool) -> SimDisk {
    let config = DiskConfig { size, block_size: 512, atomic_write: 512, volatile_cache: true };
    if used { SimDisk::used(config, random.split()) } else { SimDisk::new(config, random.split()) }
}

impl Rig {
    pub(super) fn new(seed: u64, members: usize, parities: usize) -> Self {
        Self::with_options(seed, members, parities, &[])
    }

    pub(super) fn with_options(seed: u64, members: usize, parities: usize, more: &[(&str, &str)]) -> Self {
        let mut random = Random::new(seed);
        let disks = (0..members).map(|_| disk(SIZE, &mut random, false)).collect::<Vec<_>>();
        let disks = disks.into_iter().chain([disk(LOG, &mut random, false)]).collect();
        let parity = parities.to_string();
        let own = [("parity", parity.as_str()), ("chunk", "8KiB")];
        let options = own.iter().chain(more).map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let options = Options::new(options);
        let has_spare = more.contains(&("spare", "true"));
        let blocks = SIZE / BLOCK * (members - parities - usize::from(has_spare)) as u64;
        Self { has_spare, ..Self::of("parity", options, disks, parities, 1, blocks, random) }
    }

    /// Creates the function `checksum` over one disk.
    pub(super) fn checksum(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let disks = vec![disk(2 * CHECKED, &mut random, false)];
        let size = (sluice_functions::service("checksum").expect("it is there").size)(&Options::default());
        let blocks = size.expect("it has a size of its own").over(&[2 * CHECKED]) / BLOCK;
        Self::of("checksum", Options::default(), disks, 0, 8, blocks, random)
    }

    /// Creates the function `atomic` over one disk, with a log of few slots.
    pub(super) fn atomic(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let disks = [ATOMIC, 8192 + 7 * (20 << 10)].map(|size| disk(size, &mut random, false)).to_vec();
        let options = Options::new([("limit".to_owned(), "16KiB".to_owned())]);
        let mut rig = Self::of("atomic", options, disks, 1, 1, ATOMIC / BLOCK, random);
        rig.whole = Some(Whole::new((16 << 10) / BLOCK));
        rig
    }

    /// Creates the function `local-cache` over one disk, with a device of few lines that was used before.
    pub(super) fn local_cache(seed: u64, more: &[(&str, &str)]) -> Self {
        let mut random = Random::new(seed);
        let device = disk(8192 + 8192 + (16 << 10) * 14, &mut random, true);
        // The place of the superblock is blank.
        device.lock().write(0, &[0; 8192]);
        device.lock().flush();
        let disks = vec![disk(ATOMIC, &mut random, false), device];
        let own = [("line", "16KiB"), ("sequential", "1MiB")];
        let options = own.iter().chain(more).map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Self::of("local-cache", Options::new(options), disks, 1, 1, ATOMIC / BLOCK, random)
    }

    /// Sets the options of the next function.
    pub(super) fn set_options(&mut self, options: &[(&str, &str)]) {
        let options = options.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        self.options = Options::new(options);
    }

    /// Sets the limit of the next function `atomic`.
    pub(super) fn set_limit(&mut self, kib: u64) {
        self.options = Options::new([("limit".to_owned(), format!("{kib}KiB"))]);
        self.next_limit = (kib << 10) / BLOCK;
    }

    fn of(
        function: &'static str,
        options: Options,
        disks: Vec<SimDisk>,
        parities: usize,
        unit: u64,
        blocks: u64,
        random: Random,
    ) -> Self {
        let (session, memory) = session(function, &options);
        let members = disks.len() - usize::from(parities > 0);
        let noise = random.clone().next_u64() as u8 | 1;
        let mut rig = Self {
            random,
            members,
            parities,
            has_spare: false,
            function,
            options,
            unit,
            atom: BLOCK,
            blocks,
            session,
            memory,
            disks,
            up: vec![true; members + 1],
            block_size: BLOCK,
            storage: (1..).take(members + 1).collect(),
            is_new: true,
            now_ns: 0,
            asked: Vec::new(),
            commands: vec![(0, None); SLOTS],
            model: ModelNamespace::new(blocks, true),
            next_tag: 1,
            noise,
            ready: None,
            words: None,
            media: 0.0,
            faults: 0.0,
            log_faults: 0.0,
            log_writes: 0,
            cut_at: None,
            changes: 0,
            cut_change: None,
            whole: None,
            next_limit: (16 << 10) / BLOCK,
            loss: [false; 2],
            flush_loss: [false; 2],
            is_direct: vec![false; blocks as usize],
            lost: Vec::new(),
            requests: Vec::new(),
            good: 0,
            failed: 0,
        };
        rig.show_layers();
        assert!(rig.comes_up(), "a new array serves");
        rig.is_new = false;
        rig
    }

    pub(super) fn blocks(&self) -> u64 {
        self.blocks
    }

    pub(super) fn show_layers(&mut self) {
        for number in 0..self.disks.len() {
            let below = Submission {
                kind: kind::BELOW,
                stage: number as u8,
                offset: self.disks[number].lock().config().size,
                length: if number == 0 { self.block_size } else { BLOCK },
                data_length: 512,
                flags: if self.is_new { flag::NEW } else { 0 },
                cookie: loss::storage_words(self.storage[number]),
                ..Submission::default()
            };
            self.session.take(&below, &mut self.memory, self.now_ns);
        }
        self.ready = None;
        self.show(&Submission { kind: kind::START, ..Submission::default() });
    }

    /// Waits until the function serves or refuses. Returns whether it serves.
    pub(super) fn comes_up(&mut self) -> bool {
        for _ in 0..1_000_000 {
            if let Some(ready) = self.ready {
                return ready == Status::SUCCESS;
            }
            if !self.turn() {
                return false;
            }
        }
        panic!("it neither serves nor refuses");
    }

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
                self.ask(reply, slot * SLOT);
            }
            disposition::REQUEST => self.ask(reply, reply.data_offset as usize),
            other => panic!("disposition {other}"),
        }
    }

    fn ask(&mut self, reply: Reply, data: usize) {
        let Some(request) = entry::request(&reply) else { panic!("{reply:?}") };
        let size = self.disks[usize::from(reply.layer)].lock().config().size;
        assert!(request.end() <= size, "{request:?} is inside of layer {}", reply.layer);
        if usize::from(reply.layer) < self.members {
            self.requests.push(request.operation);
        }
        self.asked.push(Asked { reply, request, data });
    }

    fn finish(&mut self, tag: u64, status: Status) {
        let (used, command) = &mut self.commands[tag as u32 as usize];
        assert_eq!(*used, (tag >> 32) as u32, "it is that command");
        let command = command.take().expect("it is finished once");
        let data = tag as u32 as usize * SLOT;
        self.whole.iter_mut().for_each(|whole| whole.end(tag as u32 as usize));
        let uses = |asked: &Asked| asked.request.has_data() && (data..data + SLOT).contains(&asked.data);
        assert!(!self.asked.iter().any(uses), "a layer has its data");
        match (command.flight, command.request.operation) {
            (None, _) => {}
            (Some(flight), Operation::Read) => self.end_read(&command, flight, data, status),
            (Some(flight), _) => self.model.end(flight, status.is_success()),
        }
        *if status.is_success() { &mut self.good } else { &mut self.failed } += 1;
    }

    fn end_read(&mut self, command: &Command, flight: FlightId, data: usize, status: Status) {
        if !status.is_success() {
            return self.model.end(flight, false);
        }
        let bytes = self.memory.bytes(data, command.request.length as usize).expect("it is there");
        let tag = |block: &[u8]| Some(read_tag(block).expect("whole blocks"));
        let found: Vec<Option<Tag>> = bytes.chunks(BLOCK as usize).map(tag).collect();
        if let Some(whole) = &self.whole {
            let found: Vec<Tag> = found.iter().copied().flatten().collect();
            whole.check(command.request.offset / BLOCK, &found);
        }
        self.model.end_read(flight, &found).unwrap_or_else(|violation| panic!("{violation}"));
    }

    fn free_slot(&self) -> Option<usize> {
        self.commands.iter().position(|(_, command)| command.is_none())
    }

    /// Chooses blocks: some are used again and again, and some commands are long.
    fn place(&mut self) -> (u64, u64) {
        let blocks = self.blocks();
        let first = match self.random.below(4) {
            0 => self.random.below(blocks),
            // The border between two regions of the members.
            1 => blocks / 2 - 48 + self.random.below(96),
            _ => self.random.below(160),
        };
        let most = if self.random.one_in(8) { 256 } else { 24 };
        let first = first / self.unit * self.unit;
        let length = self.random.between(1, most).next_multiple_of(self.unit);
        (first, length.min(blocks - first))
    }

    /// Submits a random command of the host, if a slot is free.
    pub(super) fn submit(&mut self) {
        let kinds = [
            Operation::Read,
            Operation::Read,
            Operation::Write,
            Operation::Write,
            Operation::Write,
            Operation::Flush,
            Operation::WriteZeroes,
            Operation::Deallocate,
        ];
        let operation = *self.random.pick(&kinds);
        let (first, blocks) = self.place();
        self.submit_at(operation, first, blocks);
    }

    pub(super) fn submit_at(&mut self, operation: Operation, first: u64, blocks: u64) {
        let Some(slot) = self.free_slot() else { return };
        let fua = matches!(operation, Operation::Write | Operation::WriteZeroes) && self.random.one_in(4);
        let (offset, length) = (first * BLOCK, blocks * BLOCK);
        let mut request = Request { operation, fua, deallocate: false, offset, length };
        let mut tags = vec![Tag::ZERO; blocks as usize];
        let action = match operation {
            Operation::Flush => {
                request = Request { operation, ..Request::default() };
                Action::Flush
            }
            Operation::Read => Action::Read { first, blocks },
            Operation::Deallocate => Action::Deallocate { first, blocks },
            _ => {
                if operation == Operation::Write {
                    tags.fill_with(|| self.tag());
                }
                Action::Write { first, tags: tags.clone(), fua }
            }
        };
        self.whole.iter_mut().for_each(|whole| whole.begin(slot, operation, first, &tags));
        let flight = Some(self.model.begin(action));
        self.commands[slot].1 = Some(Command { request, tags, flight });
        self.send(slot);
    }

    fn tag(&mut self) -> Tag {
        self.next_tag += 1;
        Tag(self.next_tag)
    }

    fn next_tag_of(&mut self, slot: usize) -> u64 {
        self.commands[slot].0 += 1;
        u64::from(self.commands[slot].0) << 32 | slot as u64
    }

    fn send(&mut self, slot: usize) {
        let tag = self.next_tag_of(slot);
        let Some(command) = &self.commands[slot].1 else { return };
        let length = if command.request.has_data() { command.request.length as usize } else { 0 };
        let data = self.memory.bytes(slot * SLOT, length).expect("it is there");
        data.fill(self.noise);
        if command.request.operation == Operation::Write {
            let blocks = data.chunks_mut(BLOCK as usize);
            command.tags.iter().zip(blocks).for_each(|(tag, block)| write_tag(*tag, block));
        }
        let entry = Submission {
            tag,
            data_offset: (slot * SLOT) as u32,
            data_length: length as u32,
            ..entry::about(&command.request)
        };
        self.show(&entry);
    }

    /// Kills the daemon, with a power cut if it is `cut`. No command or request gets an answer. The next
    /// function is made, without its layers.
    pub(super) fn end_daemon(&mut self, cut: bool) {
        for asked in std::mem::take(&mut self.asked) {
            self.apply(&asked, 0.5);
        }
        match cut {
            true => {
                self.disks.iter().for_each(|disk| disk.lock().power_cut());
                self.model.power_cut();
            }
            false => self.model.crash(),
        }
        self.commands.iter_mut().for_each(|(_, command)| *command = None);
        let limit = self.next_limit;
        self.whole.iter_mut().for_each(|whole| whole.crash(limit));
        (self.loss, self.flush_loss) = Default::default();
        self.words = None;
        (self.session, self.memory) = session(self.function, &self.options);
    }

    /// Sends the function its layers. Returns whether it serves.
    pub(super) fn serves(&mut self) -> bool {
        self.show_layers();
        self.comes_up()
    }

    /// Kills the daemon, and starts the next one.
    pub(super) fn kill_daemon(&mut self, cut: bool) {
        self.end_daemon(cut);
        assert!(self.serves(), "it serves again: {:?}", self.tell("status"));
    }

    /// Replaces a member by another disk: a used one, or one of zeros. Call between two daemons.
    pub(super) fn replace(&mut self, member: usize) {
        let used = self.random.one_in(2);
        self.disks[member] = disk(SIZE, &mut self.random, used);
        self.storage[member] = self.random.next_u64();
    }

    /// Sends an operator's order. Returns its answer.
    pub(super) fn tell(&mut self, text: &str) -> Result<String, String> {
        self.tell_while(text, |_| ())
    }

    /// Sends an operator's order, and takes a step each time that it is not answered yet.
    pub(super) fn tell_while(
        &mut self,
        text: &str,
        mut step: impl FnMut(&mut Self),
    ) -> Result<String, String> {
        self.order(text);
        for _ in 0..100_000 {
            if self.words.is_some() || !self.turn() {
                break;
            }
            step(self);
        }
        let (status, words) = self.words.take().expect("it answers soon");
        if status.is_success() { Ok(words) } else { Err(words) }
    }

    /// Sends an operator's order, and waits for nothing.
    pub(super) fn order(&mut self, text: &str) {
        self.words = None;
        self.memory.bytes(WORDS, text.len()).expect("room").copy_from_slice(text.as_bytes());
        let (tag, data_offset, data_length) = (u64::MAX, WORDS as u32, text.len() as u32);
        let entry =
            Submission { kind: kind::CONTROL, tag, data_offset, data_length, ..Submission::default() };
        self.show(&entry);
    }

    /// Has the host read the whole drive.
    pub(super) fn read_all(&mut self) {
        let (blocks, step) = (self.blocks(), (SLOT as u64) / BLOCK);
        let failed = self.failed;
        for first in (0..blocks).step_by(step as usize) {
            self.submit_at(Operation::Read, first, step.min(blocks - first));
            self.drain();
        }
        assert_eq!(self.failed, failed, "everything can be read");
    }

    /// Ends all commands.
    pub(super) fn drain(&mut self) {
        for _ in 0..1_000_000 {
            if self.is_idle() {
                return;
            }
            self.turn();
        }
        panic!("commands do not end: {:?}", self.tell("status"));
    }

    /// Ends all commands and all requests.
    pub(super) fn drain_all(&mut self) {
        self.drain();
        while !self.asked.is_empty() {
            self.turn();
        }
    }

    /// Runs without failures, until all members have everything.
    pub(super) fn come_to_rest(&mut self) {
        self.up.fill(true);
        (self.media, self.faults, self.cut_at) = (0.0, 0.0, None);
        self.drain();
        for _ in 0..100_000 {
            if self.asked.is_empty() {
                if self.ready == Some(Status::SUCCESS) {
                    let status = self.tell("status").expect("it serves");
                    if status.contains(r#""state":"in sync""#) {
                        return self.check();
                    }
                }
                self.turn();
            }
            for _ in 0..20 {
                self.turn();
            }
        }
        panic!("it never comes to rest: {:?}", self.tell("status"));
    }

    /// Compares all members with the parities, from outside.
    pub(super) fn check(&mut self) {
        self.drain();
        while !self.asked.is_empty() {
            self.turn();
        }
        let images: Vec<Vec<u8>> = (0..self.members).map(|member| self.image(member)).collect();
        let members = self.members - usize::from(self.has_spare);
        let has_q =
            self.has_spare && self.tell("status").is_ok_and(|status| status.contains(r#""parity":2"#));
        for row in (0..SIZE as usize).step_by(CHUNK) {
            let cells: Vec<&[u8]> = images.iter().map(|image| &image[row..row + CHUNK]).collect();
            let (mut p, mut q) = (vec![0; CHUNK], vec![0; CHUNK]);
            let first = members - 1 - (row / CHUNK) % members;
            for column in (0..members - self.parities).rev() {
                let data = cells[(first + self.parities + column) % members];
                for ((p, q), data) in p.iter_mut().zip(&mut q).zip(data) {
                    // Q is the sum of g^i times column i, by Horner's rule.
                    (*p, *q) = (*p ^ data, (*q << 1) ^ ((*q >> 7) * 0x1d) ^ data);
                }
            }
            assert!(p == cells[first], "P of row {row:#x}");
            assert!(self.parities == 1 || q == cells[(first + 1) % members], "Q of row {row:#x}");
            assert!(!has_q || q == cells[members], "Q of row {row:#x}, on the last member");
        }
    }

    /// Compares the drive below a function with the model: it has everything.
    pub(super) fn check_drive(&mut self) {
        self.drain();
        let image = self.image(0);
        let found: Vec<Option<Tag>> =
            image.chunks(BLOCK as usize).map(|block| Some(read_tag(block).expect("whole blocks"))).collect();
        let flight = self.model.begin(Action::Read { first: 0, blocks: self.blocks });
        self.model.end_read(flight, &found).unwrap_or_else(|violation| panic!("{violation}"));
    }

    pub(super) fn image(&self, layer: usize) -> Vec<u8> {
        let mut bytes = vec![0; self.disks[layer].lock().config().size as usize];
        self.disks[layer].lock().read(0, &mut bytes);
        bytes
    }
}
