//! Discovery controller, which reports the drives to hosts (Base 3.1.2.3).
//!
//! It has only an admin queue, and runs on the thread of the listener. A host that stays connected is
//! notified when its drives change.

use crate::LIMITS;
use crate::accept::{Address, ConnectCommand, Wire};
use crate::conn::Agreed;
use crate::directory::Directory;
use rustix::io::Errno;
use sluice_controller::CAPSULES_MAX;
use sluice_nvme::discovery::{DiscoveryEntry, DiscoveryHeader};
use sluice_nvme::fabrics::{self, DISCOVERY_NQN, Fctype, Property};
use sluice_nvme::identify::IdentifyController;
use sluice_nvme::opcode::admin;
use sluice_nvme::register::{self, Cc, csts};
use sluice_nvme::{Cns, CompletionEntry, FeatureId, LogId, SglDescriptor, SglType, Status, SubmissionEntry};
use sluice_nvme_tcp::{DISCOVERY_PORT, Data, Decoder, Event, Pdu, Place, Violation, crc32c, encode};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};
use zerocopy::{FromZeros, IntoBytes};

/// Bytes of a log page in one transfer; MDTS of Identify Controller gives the same limit in pages.
const TRANSFER_MAX: u32 = 128 << 10;

/// Unsent bytes of a host above which nothing is received from it.
const UNSENT_MAX: usize = 256 << 10;

/// Decoded events of one host (headers of commands, ends of their data) before the turn of another.
const EVENTS_MAX: usize = 128;

/// Asynchronous Event Requests of one host.
const REQUESTS_MAX: usize = 4;

/// Idle time after which a host without a keep-alive timeout is disconnected.
const SILENCE_MAX: Duration = Duration::from_secs(120);

/// CAP: contiguous queues, 10 s to get ready, the NVM command set.
const CAP: u64 = (CAPSULES_MAX as u64 - 1) | 1 << 16 | 20 << 24 | 1 << 37;

/// Asynchronous Event Configuration, and OAES: Discovery Log Page Change Notices.
const CHANGE_NOTICES: u32 = 1 << 31;

/// Dword 0 of the completion of an event: type notice, information F0h, the log page.
const CHANGE_NOTICE: u32 = 2 | 0xf0 << 8 | (LogId::DISCOVERY.0 as u32) << 16;

/// Bytes of an entry of the log page, and of the header before the first entry.
const ENTRY: u64 = DiscoveryEntry::SIZE as u64;
const _: () = assert!(DiscoveryHeader::SIZE == DiscoveryEntry::SIZE);

/// State of the listener that a session needs.
pub(crate) struct Context<'a> {
    pub(crate) directory: &'a Directory,
    /// Addresses that hosts can connect to.
    pub(crate) addresses: &'a [Address],
    pub(crate) now: Instant,
}

/// Connection of one host to the discovery service.
#[derive(Debug)]
pub(crate) struct Session {
    wire: Wire,
    peer: SocketAddr,
    hostnqn: String,
    agreed: Agreed,
    decoder: Decoder,
    /// Command whose data is still arriving. No supported command uses data from the host.
    arriving: Option<SubmissionEntry>,
    cc: u32,
    shut_down: bool,
    head: u32,
    kato_ms: u32,
    until: Instant,
    /// Command identifiers of Asynchronous Event Requests.
    requests: VecDeque<u16>,
    notices: bool,
    /// Generation of the log page that the host has read.
    known: Option<u64>,
    /// Set once a log page was read in this turn: that takes longer than any other command.
    has_read: bool,
}

/// End of a session.
#[derive(Debug)]
pub(crate) enum End {
    /// The host is gone.
    Gone,
    /// The host still has to read the last message: the connection lingers.
    Linger,
}

impl Session {
    /// Creates a session, and completes the Connect command.
    pub(crate) fn new(wire: Wire, peer: SocketAddr, command: ConnectCommand, now: Instant) -> Self {
        let connect = command.connect;
        let sq_entries = (!connect.disables_flow_control()).then_some(connect.entries);
        let agreed =
            Agreed { digests: command.request.digests, alignment: command.request.alignment, sq_entries };
        let mut session = Self {
            wire,
            peer,
            hostnqn: command.host.nqn,
            decoder: Decoder::resumed(LIMITS, agreed.digests),
            agreed,
            arriving: None,
            cc: 0,
            shut_down: false,
            head: 0,
            kato_ms: connect.kato_ms,
            until: now,
            requests: VecDeque::new(),
            notices: false,
            known: None,
            has_read: false,
        };
        session.restart_timer(now);
        // Controller ID 1. Each host has its own controller, and no other queue needs the ID.
        session.respond(command.entry.cid, Ok((1, 0)));
        session
    }

    fn restart_timer(&mut self, now: Instant) {
        let limit = match self.kato_ms {
            0 => SILENCE_MAX,
            ms => Duration::from_millis(u64::from(ms)),
        };
        self.until = now + limit;
    }

    /// Returns when the session is over if nothing is received.
    pub(crate) fn until(&self) -> Instant {
        self.until
    }

    /// Returns whether bytes wait for space in the socket.
    pub(crate) fn wants_to_send(&self) -> bool {
        self.wire.unsent() > 0
    }

    /// Returns whether decrypted bytes, of which the kernel gives no event, can be processed.
    pub(crate) fn has_more(&self) -> bool {
        self.wire.has_content() && !self.wants_to_send()
    }

    /// Processes received commands, within the limits of a turn, and sends responses and notices.
    pub(crate) fn advance(&mut self, at: &Context<'_>) -> Result<(), End> {
        let mut events = 0;
        self.has_read = false;
        while self.wire.unsent() < UNSENT_MAX && events < EVENTS_MAX && !self.has_read {
            let mut dropped = [0; 1024];
            let room = match self.decoder.place() {
                Place::Here(room) => room,
                Place::Payload(left) => &mut dropped[..(left as usize).min(1024)],
            };
            let count = match self.wire.receive(room) {
                Ok(0) => return Err(End::Gone),
                Ok(count) => count,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => continue,
                Err(Errno::PROTO) => return Err(End::Linger),
                Err(_) => return Err(End::Gone),
            };
            self.restart_timer(at.now);
            match self.decoder.filled(count) {
                Ok(None) => {}
                Ok(Some(event)) => {
                    events += 1;
                    self.handle(event, at)?;
                }
                Err(violation) => return self.terminate(violation),
            }
        }
        self.notify(at);
        self.wire.flush().map_err(|_| End::Gone)
    }

    fn handle(&mut self, event: Event, at: &Context<'_>) -> Result<(), End> {
        match event {
            Event::Pdu(Pdu::Command(entry, 0)) => self.execute(&entry, at),
            Event::Pdu(Pdu::Command(entry, _)) => self.arriving = Some(entry),
            Event::End { .. } => {
                if let Some(entry) = self.arriving.take() {
                    self.execute(&entry, at);
                }
            }
            Event::Pdu(Pdu::Terminated(_)) => return Err(End::Gone),
            Event::Pdu(_) => return self.terminate(Violation::SEQUENCE),
        }
        Ok(())
    }

    #[cold]
    fn terminate(&mut self, violation: Violation) -> Result<(), End> {
        tracing::info!(peer = %self.peer, "a discovery ends: {violation}");
        self.wire.put(encode::c2h_term(violation, self.decoder.header()).as_bytes());
        Err(End::Linger)
    }

    pub(crate) fn into_wire(self) -> Wire {
        self.wire
    }

    fn execute(&mut self, entry: &SubmissionEntry, at: &Context<'_>) {
        let is_ready = Cc(self.cc).enabled();
        let outcome = match entry.opcode {
            fabrics::OPCODE => self.fabrics(entry),
            _ if !is_ready => Err(Status::COMMAND_SEQUENCE_ERROR),
            admin::ASYNC_EVENT_REQUEST if self.requests.len() == REQUESTS_MAX => {
                Err(Status::AER_LIMIT_EXCEEDED)
            }
            admin::ASYNC_EVENT_REQUEST => return self.requests.push_back(entry.cid),
            admin::IDENTIFY if Cns(entry.cdw10 as u8) == Cns::CONTROLLER => {
                self.send_data(entry, identify().as_bytes())
            }
            admin::GET_LOG_PAGE if LogId(entry.cdw10 as u8) == LogId::DISCOVERY => self.log_page(entry, at),
            admin::GET_LOG_PAGE => Err(Status::INVALID_LOG_PAGE),
            admin::KEEP_ALIVE => Ok((0, 0)),
            admin::SET_FEATURES => self.set_feature(entry, at.now),
            admin::GET_FEATURES => self.get_feature(entry),
            admin::IDENTIFY => Err(Status::INVALID_FIELD),
            _ => Err(Status::INVALID_OPCODE),
        };
        self.respond(entry.cid, outcome);
    }

    fn fabrics(&mut self, entry: &SubmissionEntry) -> Result<(u32, u32), Status> {
        let property = Property::of(entry);
        match Fctype::of(entry) {
            Fctype::PROPERTY_GET => {
                let (value, bytes) = match property.offset {
                    register::CAP => (CAP, 8),
                    register::VS => (u64::from(register::VERSION), 4),
                    register::CC => (u64::from(self.cc), 4),
                    register::CSTS => (u64::from(self.csts()), 4),
                    _ => return Err(Status::INVALID_FIELD),
                };
                match property.bytes == Some(bytes) {
                    true => Ok((value as u32, (value >> 32) as u32)),
                    false => Err(Status::INVALID_FIELD),
                }
            }
            Fctype::PROPERTY_SET if property.offset == register::CC && property.bytes == Some(4) => {
                self.cc = property.value as u32;
                self.shut_down = Cc(self.cc).shn() != 0;
                Ok((0, 0))
            }
            Fctype::PROPERTY_SET => Err(Status::INVALID_FIELD),
            // A discovery controller has no I/O queue.
            Fctype::DISCONNECT => Err(Status::INVALID_QUEUE_TYPE),
            Fctype::CONNECT => Err(Status::COMMAND_SEQUENCE_ERROR),
            _ => Err(Status::INVALID_OPCODE),
        }
    }

    fn csts(&self) -> u32 {
        let ready = if Cc(self.cc).enabled() { csts::RDY } else { 0 };
        ready | if self.shut_down { csts::SHST_COMPLETE } else { 0 }
    }

    fn set_feature(&mut self, entry: &SubmissionEntry, now: Instant) -> Result<(u32, u32), Status> {
        match FeatureId(entry.cdw10 as u8) {
            FeatureId::ASYNC_EVENTS => self.notices = entry.cdw11 & CHANGE_NOTICES != 0,
            FeatureId::KEEP_ALIVE_TIMER => {
                self.kato_ms = entry.cdw11;
                // The receive has started it with the timeout before this one.
                self.restart_timer(now);
            }
            _ => return Err(Status::INVALID_FIELD),
        }
        Ok((0, 0))
    }

    fn get_feature(&self, entry: &SubmissionEntry) -> Result<(u32, u32), Status> {
        match FeatureId(entry.cdw10 as u8) {
            FeatureId::ASYNC_EVENTS => Ok((if self.notices { CHANGE_NOTICES } else { 0 }, 0)),
            FeatureId::KEEP_ALIVE_TIMER => Ok((self.kato_ms, 0)),
            _ => Err(Status::INVALID_FIELD),
        }
    }

    /// Sends the requested part of the Discovery log page, with zeros beyond its end.
    fn log_page(&mut self, entry: &SubmissionEntry, at: &Context<'_>) -> Result<(u32, u32), Status> {
        let dwords = u64::from(entry.cdw10 >> 16) | u64::from(entry.cdw11 & 0xffff) << 16;
        let length = (dwords + 1) * 4;
        let offset = u64::from(entry.cdw12) | u64::from(entry.cdw13) << 32;
        if length > u64::from(TRANSFER_MAX) || !offset.is_multiple_of(4) {
            return Err(Status::INVALID_FIELD);
        }
        self.has_read = true;
        let part = self.page(offset, length as usize, at);
        self.send_data(entry, &part)
    }

    /// Returns `length` bytes of the Discovery log page. Only these are built: there may be thousands of
    /// entries, and many hosts may read them one by one.
    fn page(&mut self, offset: u64, length: usize, at: &Context<'_>) -> Vec<u8> {
        let (generation, names) = at.directory.visible_to(&self.hostnqn, self.peer);
        self.known = Some(generation);
        // The number of a port is the same for all hosts.
        let numbered = (0..).zip(at.addresses.iter());
        let reachable: Vec<(u16, Address)> = match self.wire.stream.local_addr() {
            Ok(local) => numbered.filter_map(|(port, at)| Some((port, seen_from(*at, local)?))).collect(),
            Err(_) => Vec::new(),
        };
        let ports = |encrypted: bool| reachable.iter().filter(move |(_, at)| at.encrypted == encrypted);
        let entries =
            || names.iter().flat_map(|(name, encrypted)| ports(*encrypted).map(move |at| (name, at)));
        // The header is as long as an entry, and comes before the first.
        let (first, before) = (offset / ENTRY, (offset % ENTRY) as usize);
        let mut part = Vec::with_capacity(before + length + DiscoveryEntry::SIZE);
        if first == 0 {
            part.extend(DiscoveryHeader::new(generation, entries().count() as u64).as_bytes());
        }
        let skipped = usize::try_from(first.saturating_sub(1)).unwrap_or(usize::MAX);
        let left = (before + length).saturating_sub(part.len()).div_ceil(DiscoveryEntry::SIZE);
        for (name, (port, address)) in entries().skip(skipped).take(left) {
            part.extend(describe(name, *port, *address).as_bytes());
        }
        part.drain(..before.min(part.len()));
        part.resize(length, 0);
        part
    }

    /// Sends a change notice to a host that enabled it, if the log page has changed.
    fn notify(&mut self, at: &Context<'_>) {
        if !self.notices || self.known.is_none() || self.requests.is_empty() {
            return;
        }
        if self.known != Some(at.directory.generation())
            && let Some(cid) = self.requests.pop_front()
        {
            // No further notice before the host has read the page.
            self.known = None;
            self.respond(cid, Ok((CHANGE_NOTICE, 0)));
        }
    }

    /// Returns whether the host waits for a change notice.
    pub(crate) fn is_watching(&self) -> bool {
        self.notices && self.known.is_some() && !self.requests.is_empty()
    }

    /// Sends the data of a command. Fails if the host's buffer is too small.
    fn send_data(&mut self, entry: &SubmissionEntry, bytes: &[u8]) -> Result<(u32, u32), Status> {
        let sgl = SglDescriptor::from_dptr(entry.dptr);
        if sgl.kind() != SglType::TRANSPORT_DATA_BLOCK {
            return Err(Status::SGL_TYPE_INVALID);
        }
        if (sgl.length as usize) < bytes.len() {
            return Err(Status::SGL_DATA_LENGTH_INVALID);
        }
        let length = bytes.len() as u32;
        let data = Data { cccid: entry.cid, ttag: 0, offset: 0, length, last: true, success: false };
        let head = encode::c2h_data(data, self.agreed.digests, self.agreed.alignment);
        let digest = crc32c(bytes).to_le_bytes();
        let digest = if self.agreed.digests.data { &digest[..] } else { &[] };
        self.wire.put(&[head.as_bytes(), bytes, digest].concat());
        Ok((0, 0))
    }

    fn respond(&mut self, cid: u16, outcome: Result<(u32, u32), Status>) {
        let head = match self.agreed.sq_entries {
            Some(entries) => {
                self.head = (self.head + 1) % entries;
                self.head as u16
            }
            None => u16::MAX,
        };
        let status = outcome.err().unwrap_or(Status::SUCCESS);
        let (dw0, dw1) = outcome.unwrap_or_default();
        let mut entry = CompletionEntry::new(dw0, head, 0, cid, status, false);
        entry.dw1 = dw1;
        self.wire.put(encode::capsule_resp(&entry, self.agreed.digests).as_bytes());
    }
}

impl AsFd for Session {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wire.as_fd()
    }
}

fn identify() -> IdentifyController {
    const DISCOVERY_CONTROLLER: u8 = 2;
    const EXTENDED_DATA: u8 = 1 << 2;
    let mut page = IdentifyController::new_zeroed();
    page.sn.fill(b' ');
    page.mn.fill(b' ');
    page.fr.fill(b' ');
    page.mn[..MODEL.len()].copy_from_slice(MODEL);
    page.mdts = (TRANSFER_MAX / sluice_nvme::PAGE_SIZE as u32).ilog2() as u8;
    page.cntlid = 1;
    page.ver = register::VERSION;
    page.oaes = CHANGE_NOTICES;
    page.cntrltype = DISCOVERY_CONTROLLER;
    page.aerl = REQUESTS_MAX as u8 - 1;
    page.lpa = EXTENDED_DATA;
    page.kas = 1;
    page.maxcmd = CAPSULES_MAX;
    page.sgls = 1 | 1 << 21;
    page.subnqn[..DISCOVERY_NQN.len()].copy_from_slice(DISCOVERY_NQN.as_bytes());
    page
}

const MODEL: &[u8] = b"Sluice Discovery";

/// Returns `address` as a host that connected to `local` can use it. A wildcard address becomes the one that
/// the host used. The port reserved for discovery is left out.
fn seen_from(address: Address, local: SocketAddr) -> Option<Address> {
    let Address { socket, encrypted } = address;
    let (ip, here) = (socket.ip().to_canonical(), local.ip().to_canonical());
    let reachable = ip.is_unspecified() && ip.is_ipv4() == here.is_ipv4()
        || ip == here
        || ip.is_unspecified() && ip.is_ipv6();
    let there = Address { socket: SocketAddr::new(here, socket.port()), encrypted };
    (reachable && socket.port() != DISCOVERY_PORT).then_some(there)
}

fn describe(subnqn: &str, port: u16, address: Address) -> DiscoveryEntry {
    let Address { socket: address, encrypted } = address;
    let mut entry = DiscoveryEntry::new_zeroed();
    entry.trtype = DiscoveryEntry::TCP;
    entry.adrfam = if address.is_ipv4() { DiscoveryEntry::IPV4 } else { DiscoveryEntry::IPV6 };
    entry.subtype = DiscoveryEntry::NVM_SUBSYSTEM;
    let channel = match encrypted {
        true => DiscoveryEntry::SECURE_CHANNEL,
        false => DiscoveryEntry::NO_SECURE_CHANNEL,
    };
    entry.treq = channel | DiscoveryEntry::SQ_FLOW_CONTROL_OPTIONAL;
    if encrypted {
        entry.tsas[0] = DiscoveryEntry::TLS_1_3;
    }
    entry.portid = port;
    entry.cntlid = fabrics::CNTLID_DYNAMIC;
    entry.asqsz = CAPSULES_MAX;
    text(&mut entry.trsvcid, &address.port().to_string(), b' ');
    text(&mut entry.traddr, &address.ip().to_string(), b' ');
    text(&mut entry.subnqn, subnqn, 0);
    entry
}

fn text(field: &mut [u8], text: &str, padding: u8) {
    field.fill(padding);
    let length = text.len().min(field.len());
    field[..length].copy_from_slice(&text.as_bytes()[..length]);
}

#[cfg(test)]
mod tests;
