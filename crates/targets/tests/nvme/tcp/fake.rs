//! A controller that does what it is told, right or wrong. It has one namespace, whose blocks are all of one
//! byte each, and forgets what is written.

pub(crate) mod odd;

use super::rig::SUBNQN;
use sluice_nvme::AnaState;
use sluice_nvme::fabrics::{self, Fctype, Property};
use sluice_nvme::identify::{IdentifyController, IdentifyNamespace, nidt};
use sluice_nvme::log::{AnaGroup, AnaHeader};
use sluice_nvme::opcode::{admin, io};
use sluice_nvme::register::{self, csts};
use sluice_nvme::{Cns, CompletionEntry, LogId, SglDescriptor, Status, SubmissionEntry};
use sluice_nvme_tcp::{Data, Decoder, Digests, Event, IcResp, Limits, Pdu, Place, R2t, Role, encode};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};
use zerocopy::{FromZeros, IntoBytes};

pub(crate) const BLOCKS: u64 = 1 << 15;
const BLOCK: usize = 512;

/// Bytes that it takes in an H2CData PDU.
pub(crate) const DATA_MAX: u32 = 4096;

/// What it does about the first Read or Write of a connection. True if it goes on as it should.
pub(crate) type Trick = dyn Fn(&mut Link, &SubmissionEntry) -> bool + Send + Sync;

/// What a request for an event is answered with: a notice, which one, and the log that has it.
const NAMESPACE_CHANGE: u32 = 2 | (LogId::CHANGED_NAMESPACE_LIST.0 as u32) << 16;
const ANA_CHANGE: u32 = 2 | 3 << 8 | (LogId::ASYMMETRIC_NAMESPACE_ACCESS.0 as u32) << 16;

/// What it saw, for whoever looks.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// I/O queues that were connected.
    pub(crate) queues: u32,
    /// Termination requests.
    pub(crate) terminated: u32,
    /// Entries of the last one's queue.
    pub(crate) entries: u32,
    /// H2CData PDUs, and their bytes.
    pub(crate) data: Vec<Vec<u8>>,
}

/// How good a path it says that it is; nothing until it is told.
#[derive(Default)]
pub(crate) struct Access {
    state: Mutex<Option<AnaState>>,
    /// Requests for events that are not answered yet.
    requests: Mutex<Vec<(TcpStream, u16)>>,
    /// Events that nobody had asked for yet, who asks at times.
    events: Mutex<Vec<u32>>,
    has_asked: AtomicBool,
    /// It always has another event.
    pub(crate) is_chatty: AtomicBool,
    /// Every byte of its namespace's UUID.
    uuid: AtomicU8,
    /// What that is as soon as a host has looked at it, if not 0.
    uuid_after_look: AtomicU8,
    /// What commands fail with, whatever it says of itself.
    fault: Mutex<Option<Status>>,
    /// What it has against commands that begin with a block. It comes as soon as another has been answered meanwhile.
    doom: Mutex<Option<(u64, Doom)>>,
    /// What it waits for before it answers on an admin queue.
    pause: Mutex<Option<Arc<Pause>>>,
    /// It reads the specification in this way, and carries everything out.
    odd: OnceLock<odd::Odd>,
    /// Commands of a lost connection hold back none of another.
    pub(crate) forgets: AtomicBool,
    /// CQT, milliseconds.
    pub(crate) quiesce_ms: AtomicU16,
    /// MAXCMD: commands that it takes on a queue at a time.
    pub(crate) commands_max: AtomicU16,
}

type Pause = dyn Fn() + Send + Sync;

/// What becomes of a command.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Doom {
    /// It is refused for an access state that it is not in.
    Refused,
    /// It costs the connection.
    Lost,
}

impl Access {
    /// The ANA group of its namespace.
    const GROUP: u32 = 5;

    /// It is so from now on, and the host is told.
    pub(crate) fn tell(&self, state: AnaState) {
        self.keep_quiet(state);
        self.report(ANA_CHANGE);
    }

    /// Its namespace is the one with this UUID from now on, and the host is told.
    pub(crate) fn replace(&self, uuid: u8) {
        self.replace_quietly(uuid);
        self.report(NAMESPACE_CHANGE);
    }

    /// The same, and the host is not told.
    pub(crate) fn replace_quietly(&self, uuid: u8) {
        self.uuid.store(uuid, SeqCst);
    }

    /// It becomes another as soon as a host has looked at it, and the host is told, if it wants to be.
    pub(crate) fn replace_after_look(&self, uuid: u8) {
        self.uuid_after_look.store(uuid, SeqCst);
    }

    fn looked_at(&self) {
        match self.uuid_after_look.swap(0, SeqCst) {
            0 => {}
            uuid => self.replace(uuid),
        }
    }

    /// A notice.
    fn report(&self, change: u32) {
        let mut requests = self.requests.lock().expect("no panic");
        if requests.is_empty() && self.has_asked.load(SeqCst) {
            self.events.lock().expect("no panic").push(change);
        }
        for (mut stream, cid) in requests.drain(..) {
            let event = CompletionEntry::new(change, 0, 0, cid, Status::SUCCESS, false);
            let _ = stream.write_all(encode::capsule_resp(&event, Digests::NONE).as_bytes());
        }
    }

    fn request(&self, stream: TcpStream, cid: u16) {
        self.has_asked.store(true, SeqCst);
        self.requests.lock().expect("no panic").push((stream, cid));
        let event = self.events.lock().expect("no panic").pop();
        let more = || self.is_chatty.load(SeqCst).then_some(ANA_CHANGE);
        event.or_else(more).into_iter().for_each(|change| self.report(change));
    }

    /// It is so from now on, and the host is not told.
    pub(crate) fn keep_quiet(&self, state: AnaState) {
        *self.state.lock().expect("no panic") = Some(state);
    }

    fn state(&self) -> Option<AnaState> {
        *self.state.lock().expect("no panic")
    }

    /// What a Read or Write is completed with instead of being carried out.
    fn refusal(&self) -> Option<Status> {
        let fault = *self.fault.lock().expect("no panic");
        fault.or_else(|| self.state()?.refusal())
    }

    /// All commands fail with this from now on, or none.
    pub(crate) fn fail(&self, with: Option<Status>) {
        *self.fault.lock().expect("no panic") = with;
    }

    /// This becomes of all commands that begin with a block from now on, or nothing.
    pub(crate) fn doom(&self, doom: Option<(u64, Doom)>) {
        *self.doom.lock().expect("no panic") = doom;
    }

    /// It waits for this from now on before it answers on an admin queue.
    pub(crate) fn pause(&self, pause: Arc<Pause>) {
        *self.pause.lock().expect("no panic") = Some(pause);
    }

    fn pause_now(&self) {
        let pause = self.pause.lock().expect("no panic").clone();
        pause.into_iter().for_each(|pause| pause());
    }

    fn doom_of(&self, entry: &SubmissionEntry) -> Option<Doom> {
        let doom = *self.doom.lock().expect("no panic");
        doom.filter(|(block, _)| *block == entry.slba()).map(|(_, doom)| doom)
    }
}

/// What it does not answer.
#[derive(Debug, Default)]
pub(crate) struct Silence {
    /// The next Keep Alive.
    pub(crate) is_wanted: AtomicBool,
    /// One was not answered.
    pub(crate) has_begun: AtomicBool,
    /// Any Read or Write that begins with this block, if not 0.
    pub(crate) block: AtomicU64,
}

/// A controller that plays a trick on the first I/O queue, and none afterwards.
pub(crate) struct Fake {
    pub(crate) address: SocketAddr,
    pub(crate) seen: Arc<Mutex<Seen>>,
    pub(crate) access: Arc<Access>,
    pub(crate) silence: Arc<Silence>,
}

impl Fake {
    pub(crate) fn start(trick: Box<Trick>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let seen = Arc::new(Mutex::new(Seen::default()));
        let (shared, trick): (_, Arc<Trick>) = (Arc::clone(&seen), trick.into());
        let access = Arc::new(Access::default());
        let silence = Arc::new(Silence::default());
        let told = (Arc::clone(&access), Arc::clone(&silence));
        // It ends with the process: nobody is left to connect to it when its test is over.
        std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let (seen, trick, told) = (Arc::clone(&shared), Arc::clone(&trick), told.clone());
                std::thread::spawn(move || {
                    let _ = Link::new(stream, seen, told).serve(&*trick);
                });
            }
        });
        Self { address, seen, access, silence }
    }
}

/// One connection to it.
pub(crate) struct Link {
    stream: TcpStream,
    decoder: Decoder,
    seen: Arc<Mutex<Seen>>,
    pub(crate) access: Arc<Access>,
    silence: Arc<Silence>,
    ready: bool,
}

impl Link {
    fn new(
        stream: TcpStream,
        seen: Arc<Mutex<Seen>>,
        (access, silence): (Arc<Access>, Arc<Silence>),
    ) -> Self {
        let alignment = access.odd.get().map_or(4, |odd| odd.reading.alignment);
        let limits = Limits { in_capsule_max: 8192, data_max: DATA_MAX, alignment };
        stream.set_nodelay(true).expect("no delay");
        let decoder = Decoder::new(Role::Controller, limits);
        Self { stream, decoder, seen, access, silence, ready: false }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        // The other end may have had enough.
        let _ = self.stream.write_all(bytes);
    }

    /// The next PDU with its payload; none at the end.
    fn next(&mut self) -> Option<(Pdu, Vec<u8>)> {
        let mut found = None;
        loop {
            let mut payload = [0; 4096];
            let count = match self.decoder.place() {
                Place::Here(room) => self.stream.read(room).ok()?,
                Place::Payload(left) => {
                    let count = self.stream.read(&mut payload[..4096.min(left as usize)]).ok()?;
                    let (_, data): &mut (Pdu, Vec<u8>) = found.as_mut().expect("a header came first");
                    data.extend(&payload[..count]);
                    count
                }
            };
            if count == 0 {
                return None;
            }
            match self.decoder.filled(count).expect("a host keeps to the protocol") {
                Some(Event::Pdu(pdu)) => {
                    found = Some((pdu, Vec::new()));
                    if !matches!(self.decoder.place(), Place::Payload(_)) {
                        return found;
                    }
                }
                Some(Event::End { .. }) => return found,
                None => {}
            }
        }
    }

    fn serve(mut self, trick: &Trick) -> Option<()> {
        let (Pdu::IcReq(_), _) = self.next()? else { return None };
        let alignment = self.access.odd.get().map_or(4, |odd| odd.reading.alignment);
        let response = IcResp { alignment, digests: Digests::NONE, h2c_data_max: DATA_MAX };
        self.send(encode::ic_resp(response).as_bytes());
        let (Pdu::Command(connect, _), _) = self.next()? else { return None };
        let qid = (connect.cdw10 >> 16) as u16;
        self.seen.lock().expect("no panic").entries = (connect.cdw11 & 0xffff) + 1;
        self.respond(&connect, Status::SUCCESS, 1);
        let access = Arc::clone(&self.access);
        match (access.odd.get(), qid) {
            (Some(odd), 0) => self.serve_admin_oddly(odd),
            (Some(odd), _) => self.serve_io_oddly(odd, (connect.cdw11 & 0xffff) as usize),
            (None, 0) => self.serve_admin(),
            (None, _) => self.serve_io(trick),
        }
    }

    fn serve_admin(&mut self) -> Option<()> {
        loop {
            let (Pdu::Command(entry, _), _) = self.next()? else { return None };
            self.access.pause_now();
            match entry.opcode {
                fabrics::OPCODE if Fctype::of(&entry) == Fctype::PROPERTY_GET => {
                    let value = match Property::of(&entry).offset {
                        register::CAP => 127,
                        register::CSTS if self.ready => csts::RDY,
                        _ => 0,
                    };
                    self.respond(&entry, Status::SUCCESS, value);
                }
                fabrics::OPCODE => {
                    self.ready = true;
                    self.respond(&entry, Status::SUCCESS, 0);
                }
                admin::IDENTIFY if entry.cdw10 as u8 == Cns::CONTROLLER.0 => {
                    let mut identity = IdentifyController::new_zeroed();
                    identity.subnqn[..SUBNQN.len()].copy_from_slice(SUBNQN.as_bytes());
                    (identity.mdts, identity.ioccsz, identity.iorcsz) = (8, (64 + 8192) / 16, 1);
                    identity.oaes = 1 << 8;
                    identity.cqt = self.access.quiesce_ms.load(SeqCst);
                    if !self.access.forgets.load(SeqCst) {
                        identity.holds_back_mark = IdentifyController::HOLDS_BACK_MARK;
                    }
                    identity.maxcmd = self.access.commands_max.load(SeqCst);
                    if self.access.state().is_some() {
                        (identity.cmic, identity.oaes, identity.nanagrpid) = (1 << 3, 1 << 11, 1);
                    }
                    self.give(&entry, identity.as_bytes());
                }
                admin::IDENTIFY if entry.cdw10 as u8 == Cns::NAMESPACE_DESCRIPTORS.0 => {
                    let mut list = [self.access.uuid.load(SeqCst); 4096];
                    list[..4].copy_from_slice(&[nidt::UUID, 16, 0, 0]);
                    list[20..].fill(0);
                    self.give(&entry, &list);
                    self.access.looked_at();
                }
                admin::IDENTIFY => {
                    let mut identity = IdentifyNamespace::new_zeroed();
                    (identity.nsze, identity.ncap) = (BLOCKS, BLOCKS);
                    identity.lbaf[0].lbads = 9;
                    identity.anagrpid = Access::GROUP;
                    self.give(&entry, identity.as_bytes());
                }
                admin::ASYNC_EVENT_REQUEST => {
                    let stream = self.stream.try_clone().expect("a descriptor");
                    self.access.request(stream, entry.cid);
                }
                admin::GET_LOG_PAGE => {
                    let state = self.access.state().map_or(0, |state| state as u8);
                    let mut page = AnaHeader::new(1, 1).as_bytes().to_vec();
                    page.extend(AnaGroup::new(Access::GROUP, 0, 1, state).as_bytes());
                    page.resize(SglDescriptor::from_dptr(entry.dptr).length as usize, 0);
                    self.give(&entry, &page);
                }
                admin::KEEP_ALIVE if self.silence.is_wanted.swap(false, SeqCst) => {
                    self.silence.has_begun.store(true, SeqCst);
                }
                _ => self.respond(&entry, Status::SUCCESS, 0),
            }
        }
    }

    fn serve_io(&mut self, trick: &Trick) -> Option<()> {
        let mut queues = self.seen.lock().expect("no panic");
        queues.queues += 1;
        let mut is_first = queues.queues == 1;
        drop(queues);
        let mut doomed = None;
        loop {
            match self.next()? {
                (Pdu::Command(entry, length), _) => {
                    if std::mem::take(&mut is_first) && !trick(self, &entry) {
                        continue;
                    }
                    if let Some(doom) = self.access.doom_of(&entry) {
                        doomed = Some((entry, doom));
                        continue;
                    }
                    self.carry_out(&entry, length);
                    match doomed.take() {
                        Some((entry, Doom::Refused)) => {
                            self.respond(&entry, Status::ASYMMETRIC_ACCESS_INACCESSIBLE, 0);
                        }
                        Some((_, Doom::Lost)) => self.end(),
                        None => {}
                    }
                }
                (Pdu::Data(data), payload) => {
                    self.seen.lock().expect("no panic").data.push(payload);
                    if data.last {
                        let entry = SubmissionEntry { cid: data.cccid, ..SubmissionEntry::default() };
                        self.respond(&entry, Status::SUCCESS, 0);
                    }
                }
                (Pdu::Terminated(_), _) => self.seen.lock().expect("no panic").terminated += 1,
                _ => return None,
            }
        }
    }

    fn carry_out(&mut self, entry: &SubmissionEntry, in_capsule: u32) {
        let silent = self.silence.block.load(SeqCst);
        if silent != 0 && entry.slba() == silent {
            return;
        }
        let length = SglDescriptor::from_dptr(entry.dptr).length;
        if let Some(refusal) = self.access.refusal() {
            return self.respond(entry, refusal, 0);
        }
        match entry.opcode {
            io::READ => self.give(entry, &content(entry.slba(), length as usize)),
            io::WRITE if in_capsule == 0 => self.ask(R2t { cccid: entry.cid, ttag: 7, offset: 0, length }),
            _ => self.respond(entry, Status::SUCCESS, 0),
        }
    }

    /// Nothing more comes of this connection.
    pub(crate) fn end(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    pub(crate) fn ask(&mut self, r2t: R2t) {
        self.send(encode::r2t(r2t, Digests::NONE).as_bytes());
    }

    pub(crate) fn respond(&mut self, entry: &SubmissionEntry, status: Status, dw0: u32) {
        let response = CompletionEntry::new(dw0, 0, 0, entry.cid, status, false);
        self.send(encode::capsule_resp(&response, Digests::NONE).as_bytes());
    }

    /// Responds when it is told to. Others are answered meanwhile.
    pub(crate) fn respond_later(&self, entry: &SubmissionEntry, when: impl FnOnce() + Send + 'static) {
        let stream = self.stream.try_clone().expect("a descriptor");
        let told = (Arc::clone(&self.access), Arc::clone(&self.silence));
        let (mut later, entry) = (Self::new(stream, Arc::clone(&self.seen), told), *entry);
        std::thread::spawn(move || {
            when();
            later.respond(&entry, Status::SUCCESS, 0);
        });
    }

    /// All of a command's data, and a response.
    fn give(&mut self, entry: &SubmissionEntry, bytes: &[u8]) {
        let data = whole(entry, bytes.len());
        self.data(data, bytes);
        self.respond(entry, Status::SUCCESS, 0);
    }

    /// A C2HData PDU.
    pub(crate) fn data(&mut self, data: Data, bytes: &[u8]) {
        self.send(&[encode::c2h_data(data, Digests::NONE, 4).as_bytes(), bytes].concat());
    }
}

/// C2HData with all data of a command.
pub(crate) fn whole(entry: &SubmissionEntry, length: usize) -> Data {
    Data { cccid: entry.cid, ttag: 0, offset: 0, length: length as u32, last: true, success: false }
}

/// What is read from a block on.
pub(crate) fn content(slba: u64, length: usize) -> Vec<u8> {
    (0..length).map(|at| (slba as usize + at / BLOCK) as u8).collect()
}
