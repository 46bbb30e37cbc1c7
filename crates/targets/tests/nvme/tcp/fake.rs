//! A controller with programmable behaviour, right or wrong. The controller has one namespace, whose blocks
//! consist of one byte each, and drops all writes.

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
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};
use zerocopy::{FromZeros, IntoBytes};

pub(crate) const BLOCKS: u64 = 1 << 15;
const BLOCK: usize = 512;

/// Bytes that it takes in an H2CData PDU.
pub(crate) const DATA_MAX: u32 = 4096;

/// Behaviour at the first Read or Write of a connection. Returns whether the controller continues normally.
pub(crate) type Trick = dyn Fn(&mut Link, &SubmissionEntry) -> bool + Send + Sync;

/// Completions of Asynchronous Event Requests: a notice, its kind, and its log page.
const NAMESPACE_CHANGE: u32 = 2 | (LogId::CHANGED_NAMESPACE_LIST.0 as u32) << 16;
const ANA_CHANGE: u32 = 2 | 3 << 8 | (LogId::ASYMMETRIC_NAMESPACE_ACCESS.0 as u32) << 16;

/// Recorded events, for checks.
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

/// Reported access state, and further programmed behaviour; no state by default.
#[derive(Default)]
pub(crate) struct Access {
    state: Mutex<Option<AnaState>>,
    /// Requests for events that are not answered yet.
    requests: Mutex<Vec<(TcpStream, u16)>>,
    /// Events without a request yet.
    events: Mutex<Vec<u32>>,
    has_asked: AtomicBool,
    /// Set if the controller always has another event.
    pub(crate) always_has_event: AtomicBool,
    /// Every byte of its namespace's UUID.
    uuid: AtomicU8,
    /// UUID from the next Identify on, if not 0.
    uuid_after_look: AtomicU8,
    /// Status with which commands fail, in any access state.
    fault: Mutex<Option<Status>>,
    /// Fate of commands that begin with this block, which comes as soon as another command has completed
    /// meanwhile.
    doom: Mutex<Option<(u64, Doom)>>,
    /// Pause before each answer on an admin queue.
    pause: Mutex<Option<Arc<Pause>>>,
    /// Unusual reading of the specification, with which the controller executes all commands.
    odd: OnceLock<odd::Odd>,
    /// Commands of a lost connection hold back none of another.
    pub(crate) forgets: AtomicBool,
    /// CQT, milliseconds.
    pub(crate) quiesce_ms: AtomicU16,
    /// MAXCMD: commands that it takes on a queue at a time.
    pub(crate) commands_max: AtomicU16,
}

type Pause = dyn Fn() + Send + Sync;

/// Fate of a command.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Doom {
    /// Refused for an access state that the controller does not report.
    Refused,
    /// Loss of the connection.
    Lost,
}

impl Access {
    /// The ANA group of its namespace.
    const GROUP: u32 = 5;

    /// Changes the access state, and notifies the host.
    pub(crate) fn tell(&self, state: AnaState) {
        self.keep_quiet(state);
        self.report(ANA_CHANGE);
    }

    /// Changes the namespace's UUID, and notifies the host.
    pub(crate) fn replace(&self, uuid: u8) {
        self.replace_quietly(uuid);
        self.report(NAMESPACE_CHANGE);
    }

    /// Changes the namespace's UUID without a notice.
    pub(crate) fn replace_quietly(&self, uuid: u8) {
        self.uuid.store(uuid, SeqCst);
    }

    /// Changes the namespace's UUID with the next Identify, and notifies the host if it has enabled notices.
    pub(crate) fn replace_after_look(&self, uuid: u8) {
        self.uuid_after_look.store(uuid, SeqCst);
    }

    fn looked_at(&self) {
        match self.uuid_after_look.swap(0, SeqCst) {
            0 => {}
            uuid => self.replace(uuid),
        }
    }

    /// Sends a notice.
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
        let more = || self.always_has_event.load(SeqCst).then_some(ANA_CHANGE);
        event.or_else(more).into_iter().for_each(|change| self.report(change));
    }

    /// Changes the access state without a notice.
    pub(crate) fn keep_quiet(&self, state: AnaState) {
        *self.state.lock().expect("no panic") = Some(state);
    }

    fn state(&self) -> Option<AnaState> {
        *self.state.lock().expect("no panic")
    }

    /// Returns the status of a Read or Write that is not executed.
    fn refusal(&self) -> Option<Status> {
        let fault = *self.fault.lock().expect("no panic");
        fault.or_else(|| self.state()?.refusal())
    }

    /// Fails all commands with this status from now on, or none.
    pub(crate) fn fail(&self, with: Option<Status>) {
        *self.fault.lock().expect("no panic") = with;
    }

    /// Sets the fate of all commands that begin with a block, or of none.
    pub(crate) fn doom(&self, doom: Option<(u64, Doom)>) {
        *self.doom.lock().expect("no panic") = doom;
    }

    /// Pauses before each answer on an admin queue from now on.
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

/// Commands that are not answered.
#[derive(Debug, Default)]
pub(crate) struct Silence {
    /// The next Keep Alive.
    pub(crate) is_wanted: AtomicBool,
    /// Set once a command was not answered.
    pub(crate) has_begun: AtomicBool,
    /// Any Read or Write that begins with this block, if not 0.
    pub(crate) block: AtomicU64,
    /// A Firmware Commit, until this number of Keep Alives has come.
    pub(crate) keep_alives: AtomicU32,
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
        // The thread ends with the process: no host connects to it after its test.
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

/// A connection to the controller.
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
        // The host may have closed the connection.
        let _ = self.stream.write_all(bytes);
    }

    /// Receives the next PDU with its payload; returns none at the end.
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
        let mut commit = None;
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
                admin::FIRMWARE_COMMIT if self.silence.keep_alives.load(SeqCst) > 0 => commit = Some(entry),
                admin::KEEP_ALIVE if commit.is_some() => {
                    self.respond(&entry, Status::SUCCESS, 0);
                    if self.silence.keep_alives.fetch_sub(1, SeqCst) == 1 {
                        commit.take().into_iter().for_each(|entry| self.respond(&entry, Status::SUCCESS, 0));
                    }
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

    /// Ends the sending side of this connection.
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

    /// Responds after `when`, and answers other commands meanwhile.
    pub(crate) fn respond_later(&self, entry: &SubmissionEntry, when: impl FnOnce() + Send + 'static) {
        let stream = self.stream.try_clone().expect("a descriptor");
        let told = (Arc::clone(&self.access), Arc::clone(&self.silence));
        let (mut later, entry) = (Self::new(stream, Arc::clone(&self.seen), told), *entry);
        std::thread::spawn(move || {
            when();
            later.respond(&entry, Status::SUCCESS, 0);
        });
    }

    /// Sends all of a command's data, and a response.
    fn give(&mut self, entry: &SubmissionEntry, bytes: &[u8]) {
        let data = whole(entry, bytes.len());
        self.data(data, bytes);
        self.respond(entry, Status::SUCCESS, 0);
    }

    /// Sends a C2HData PDU.
    pub(crate) fn data(&mut self, data: Data, bytes: &[u8]) {
        self.send(&[encode::c2h_data(data, Digests::NONE, 4).as_bytes(), bytes].concat());
    }
}

/// Returns the C2HData header for all data of a command.
pub(crate) fn whole(entry: &SubmissionEntry, length: usize) -> Data {
    Data { cccid: entry.cid, ttag: 0, offset: 0, length: length as u32, last: true, success: false }
}

/// Returns the content of blocks from `slba` on.
pub(crate) fn content(slba: u64, length: usize) -> Vec<u8> {
    (0..length).map(|at| (slba as usize + at / BLOCK) as u8).collect()
}
