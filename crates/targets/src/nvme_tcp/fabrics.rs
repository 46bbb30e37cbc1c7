//! Steps from a connection to a namespace: Connect, properties, Identify (Base 3.1.3 and 6).

use super::NvmeTcpConfig;
use super::ana;
use super::authenticate::authenticate;
use super::error::ErrorKind;
use super::link::{self, Data, Kind, Link, Negotiated};
use super::transport::Transport;
use crate::remote::{EventRequests, Incompatible, NamespaceInfo};
use sluice_host::entry;
use sluice_nvme::AnaState;
use sluice_nvme::fabrics::{self, CNTLID_DYNAMIC, Connect, ConnectData};
use sluice_nvme::identify::{self, IdentifyController, IdentifyNamespace};
use sluice_nvme::register::{self, csts};
use sluice_nvme::{Cns, CompletionEntry, FeatureId, LogId, NSID_ALL, SubmissionEntry};
use std::time::{Duration, Instant};
use zerocopy::{FromZeros, IntoBytes};

/// Entries of the I/O queue at most.
const ENTRIES_MAX: u32 = 128;

/// Entries of the admin queue.
const ADMIN_ENTRIES: u32 = 32;

/// CC: enabled, 64-byte submission and 16-byte completion entries.
const CC_ENABLE: u32 = 1 | 6 << 16 | 4 << 20;

/// OAES, and Asynchronous Event Configuration: Attached Namespace Attribute Notices, and ANA Change Notices.
const NAMESPACE_NOTICES: u32 = 1 << 8;
const ANA_NOTICES: u32 = 1 << 11;

/// CMIC: the controller supports Asymmetric Namespace Access reporting.
const CMIC_ANA: u8 = 1 << 3;

/// ANA groups of a subsystem that are read at most.
const GROUPS_MAX: u32 = 1024;

/// Get Log Page, Log Specific Parameter of Asymmetric Namespace Access: groups without their namespaces.
const GROUPS_ONLY: u32 = 1 << 8;

/// An admin queue whose controller is ready.
#[derive(Debug)]
pub(super) struct Association {
    pub(super) admin: Link,
    cntlid: u16,
    /// Entries of a queue that the controller accepts.
    entries: u32,
    /// CC of the controller while it is enabled.
    cc: u32,
    /// Supported bits of `NAMESPACE_NOTICES` and `ANA_NOTICES`.
    notices: u32,
    /// Number of ANA groups, if the controller reports their states.
    ana_groups: Option<u32>,
    requests: EventRequests,
    limit: Duration,
    /// Time in which the controller became ready.
    pub(super) ready_time: Duration,
}

/// An I/O queue before it is given to a reactor.
#[derive(Debug)]
pub(super) struct IoQueue {
    pub(super) negotiated: Negotiated,
    /// Entries of the queue.
    pub(super) entries: u32,
    /// Bytes of data that a capsule can carry.
    pub(super) in_capsule_max: u32,
}

impl Association {
    /// Connects the admin queue and enables the controller.
    pub(super) fn start(transport: &dyn Transport, config: &NvmeTcpConfig) -> Result<Self, ErrorKind> {
        let limit = config.timeout;
        let mut admin = connect(transport, config)?;
        let kato_ms = u32::try_from(config.keep_alive.as_millis()).unwrap_or(u32::MAX);
        let connect = Connect { recfmt: 0, qid: 0, entries: ADMIN_ENTRIES, cattr: 0, kato_ms };
        let response = send_connect(&mut admin, config, &connect, CNTLID_DYNAMIC)?;
        let cntlid = response.dw0 as u16;
        let (entries, cc, notices, ana_groups, requests) = (0, 0, 0, None, EventRequests::new());
        let ready_time = Duration::ZERO;
        let mut association =
            Self { admin, cntlid, entries, cc, notices, ana_groups, requests, limit, ready_time };
        let cap = association.property(register::CAP, 8)?;
        // CAP.MPSMIN and CC.MPS: no smaller pages than the controller has, although no pages are used here.
        association.cc = CC_ENABLE | ((cap >> 48 & 0xf) as u32) << 7;
        association.entries = ((cap & 0xffff) as u32 + 1).min(ENTRIES_MAX);
        if association.entries < 2 {
            return Err(ErrorKind::Unsupported("queues without room for a command"));
        }
        // CAP.TO is in units of 500 ms.
        let ready = Duration::from_millis((cap >> 24 & 0xff).max(1) * 500).max(limit);
        let began = Instant::now();
        association.enable(ready)?;
        association.ready_time = began.elapsed();
        Ok(association)
    }

    /// Sends an admin command, which must not fail.
    pub(super) fn admin_command(
        &mut self,
        entry: SubmissionEntry,
        data: Data<'_>,
        what: &'static str,
    ) -> Result<CompletionEntry, ErrorKind> {
        let response = self.admin.command(entry, data, self.limit, what)?;
        match response.status() {
            status if status.is_success() => Ok(response),
            status => Err(ErrorKind::Status(what, status)),
        }
    }

    fn property(&mut self, offset: u32, bytes: usize) -> Result<u64, ErrorKind> {
        let response =
            self.admin_command(fabrics::property_get(offset, bytes), Data::None, "Property Get")?;
        Ok(u64::from(response.dw0) | u64::from(response.dw1) << 32)
    }

    fn enable(&mut self, limit: Duration) -> Result<(), ErrorKind> {
        self.admin_command(fabrics::property_set(register::CC, self.cc), Data::None, "Property Set of CC")?;
        let deadline = Instant::now() + limit;
        loop {
            let status = self.property(register::CSTS, 4)? as u32;
            if status & csts::CFS != 0 {
                return Err(ErrorKind::Unsupported("a fatal controller status"));
            }
            if status & csts::RDY != 0 {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(ErrorKind::Timeout("enabling the controller"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Clears CC.EN and waits until the controller has stopped.
    pub(super) fn disable(&mut self) -> Result<(), ErrorKind> {
        let set = fabrics::property_set(register::CC, self.cc & !1);
        self.admin_command(set, Data::None, "Property Set of CC")?;
        let deadline = Instant::now() + self.limit;
        while self.property(register::CSTS, 4)? as u32 & csts::RDY != 0 {
            if Instant::now() >= deadline {
                return Err(ErrorKind::Timeout("resetting the controller"));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Sends Identify Controller.
    pub(super) fn identify(&mut self) -> Result<IdentifyController, ErrorKind> {
        let mut controller = IdentifyController::new_zeroed();
        let room = Data::In(controller.as_mut_bytes());
        self.admin_command(entry::identify(Cns::CONTROLLER, 0), room, "Identify Controller")?;
        if controller.maxcmd > 0 {
            // A queue with MAXCMD commands has one free entry.
            self.entries = self.entries.min(u32::from(controller.maxcmd) + 1);
        }
        self.notices = controller.oaes & (NAMESPACE_NOTICES | ANA_NOTICES);
        let groups = controller.nanagrpid.min(GROUPS_MAX);
        self.ana_groups = (controller.cmic & CMIC_ANA != 0).then_some(groups);
        Ok(controller)
    }

    /// Returns the properties of a namespace of the controller.
    pub(super) fn info(
        &mut self,
        controller: &IdentifyController,
        nsid: u32,
    ) -> Result<NamespaceInfo, ErrorKind> {
        let namespace = self.identify_namespace(nsid)?;
        Ok(NamespaceInfo::of(nsid, controller, &namespace)?.with_uuid(self.uuid(nsid)?))
    }

    fn identify_namespace(&mut self, nsid: u32) -> Result<IdentifyNamespace, ErrorKind> {
        let mut namespace = IdentifyNamespace::new_zeroed();
        let room = Data::In(namespace.as_mut_bytes());
        match self.admin_command(entry::identify(Cns::NAMESPACE, nsid), room, "Identify Namespace") {
            Err(ErrorKind::Status(..)) => Err(Incompatible::NoNamespace(nsid).into()),
            other => other.map(|_| namespace),
        }
    }

    fn uuid(&mut self, nsid: u32) -> Result<Option<[u8; 16]>, ErrorKind> {
        let mut list = [0; identify::SIZE];
        let entry = entry::identify(Cns::NAMESPACE_DESCRIPTORS, nsid);
        match self.admin_command(entry, Data::In(&mut list), "Identify, Namespace Identification Descriptors")
        {
            Ok(_) => Ok(sluice_host::identify::uuid(&list)),
            // Controllers before NVMe 1.3 have no such list.
            Err(ErrorKind::Status(..)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Connects an I/O queue. The host uses no submission queue head pointer, so the controller may omit
    /// responses.
    pub(super) fn io_queue(
        &mut self,
        transport: &dyn Transport,
        config: &NvmeTcpConfig,
        controller: &IdentifyController,
    ) -> Result<IoQueue, ErrorKind> {
        let count = entry::set_features(FeatureId::NUMBER_OF_QUEUES, 0, entry::queue_count(1));
        self.admin_command(count, Data::None, "Set Features, Number of Queues")?;
        let mut link = connect(transport, config)?;
        let cattr = Connect::DISABLE_SQ_FLOW_CONTROL;
        let request = Connect { recfmt: 0, qid: 1, entries: self.entries, cattr, kato_ms: 0 };
        send_connect(&mut link, config, &request, self.cntlid)?;
        let in_capsule_max = in_capsule_max(controller);
        Ok(IoQueue { negotiated: link.into_negotiated()?, entries: self.entries, in_capsule_max })
    }

    /// Enables notices of changed namespaces, if the controller supports them.
    pub(super) fn request_notices(&mut self) -> Result<(), ErrorKind> {
        if self.notices == 0 {
            return Ok(());
        }
        let configured = entry::set_features(FeatureId::ASYNC_EVENTS, 0, self.notices);
        match self.admin_command(configured, Data::None, "Set Features, Asynchronous Event Configuration") {
            // A controller that refuses the feature sends the notices of its choice.
            Ok(_) | Err(ErrorKind::Status(..)) => {}
            Err(error) => return Err(error),
        }
        self.request_notice()
    }

    fn request_notice(&mut self) -> Result<(), ErrorKind> {
        self.admin.submit_async(Kind::EventRequest, entry::async_event_request(), self.limit)?;
        self.requests = EventRequests::new();
        Ok(())
    }

    /// Returns the access state of this path to the namespace; none if the controller does not report it.
    pub(super) fn ana_state(&mut self, nsid: u32) -> Result<Option<AnaState>, ErrorKind> {
        let Some(groups) = self.ana_groups else { return Ok(None) };
        // The namespace may have moved to another group.
        let group = self.identify_namespace(nsid)?.anagrpid;
        let mut page = vec![0; ana::log_bytes(groups)];
        let mut read =
            entry::get_log_page(LogId::ASYMMETRIC_NAMESPACE_ACCESS, NSID_ALL, 0, page.len() as u32, false);
        read.cdw10 |= GROUPS_ONLY;
        match self.admin_command(read, Data::In(&mut page), "Get Log Page, Asymmetric Namespace Access") {
            // Without the log, refused commands reveal the state.
            Err(ErrorKind::Status(..)) => Ok(None),
            Err(error) => Err(error),
            Ok(_) => Ok(ana::state_of(&page, group)),
        }
    }

    /// Returns the time until the next notice may be requested; none if one is requested.
    pub(super) fn notice_left(&self) -> Option<Duration> {
        self.requests.left()
    }

    /// Returns a notice, if one has come. Requests the next one when it is due.
    pub(super) fn take_notice(&mut self) -> Result<Option<Notice>, ErrorKind> {
        if self.requests.left() == Some(Duration::ZERO) {
            self.request_notice()?;
        }
        let Some(response) = self.admin.poll_async(Kind::EventRequest)? else { return Ok(None) };
        if !response.status().is_success() {
            // The controller takes no more requests, so no more notices come.
            return Ok(None);
        }
        let notice = Notice { kind: (response.dw0 & 7) as u8, info: (response.dw0 >> 8) as u8 };
        let log = LogId((response.dw0 >> 16) as u8);
        // The read of the log lets the controller report the next event of the type.
        let mut page = [0; 4096];
        let read = entry::get_log_page(log, NSID_ALL, 0, page.len() as u32, false);
        match self.admin_command(read, Data::In(&mut page), "Get Log Page") {
            Ok(_) | Err(ErrorKind::Status(..)) => {}
            Err(error) => return Err(error),
        }
        self.requests.set_due();
        Ok(Some(notice))
    }

    /// Reads bytes of the Discovery log from an offset on.
    pub(super) fn discovery_log(&mut self, offset: u64, room: &mut [u8]) -> Result<(), ErrorKind> {
        let read = entry::get_log_page(LogId::DISCOVERY, 0, offset, room.len() as u32, true);
        self.admin_command(read, Data::In(room), "Get Log Page, Discovery").map(drop)
    }

    /// Sends a Keep Alive command, and waits for the answer.
    pub(super) fn keep_alive(&mut self) -> Result<(), ErrorKind> {
        self.admin_command(keep_alive(), Data::None, "Keep Alive").map(drop)
    }

    /// Sends a command that may take long. Others can be sent meanwhile.
    ///
    /// # Errors
    /// The connection failed, or an earlier such command has no answer yet.
    pub(super) fn begin_long(&mut self, entry: SubmissionEntry) -> Result<(), ErrorKind> {
        match self.admin.is_outstanding(Kind::Long) {
            true => Err(ErrorKind::Busy),
            false => self.admin.submit_async(Kind::Long, entry, self.limit),
        }
    }

    /// Returns the answer to the long command, if it has come.
    pub(super) fn poll_long(&mut self) -> Result<Option<CompletionEntry>, ErrorKind> {
        self.admin.poll_async(Kind::Long)
    }

    /// Sends a Keep Alive command, unless one is outstanding. Its answer is not waited for, since the controller may answer
    /// nothing until the long command ends. Returns whether it was sent.
    pub(super) fn send_keep_alive(&mut self) -> Result<bool, ErrorKind> {
        if self.admin.is_outstanding(Kind::KeepAlive) {
            return Ok(false);
        }
        self.admin.submit_async(Kind::KeepAlive, keep_alive(), self.limit)?;
        Ok(true)
    }

    /// Shuts the controller down, so that the next host need not wait, and waits until its cache is durable.
    /// A controller whose connection ends before counts an unsafe shutdown.
    pub(super) fn shut_down(&mut self) -> Result<(), ErrorKind> {
        const NORMAL: u32 = 1 << 14;
        let set = fabrics::property_set(register::CC, self.cc | NORMAL);
        self.admin_command(set, Data::None, "Property Set of CC")?;
        let deadline = Instant::now() + SHUTDOWN_LIMIT;
        while self.property(register::CSTS, 4)? as u32 & csts::SHST_MASK != csts::SHST_COMPLETE {
            if Instant::now() >= deadline {
                return Err(ErrorKind::Timeout("shutting the controller down"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

fn keep_alive() -> SubmissionEntry {
    SubmissionEntry { opcode: sluice_nvme::opcode::admin::KEEP_ALIVE, ..SubmissionEntry::default() }
}

/// Time limit of the controller for its shutdown.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(2);

/// Returns the bytes of data that a capsule of an I/O queue can carry.
fn in_capsule_max(controller: &IdentifyController) -> u32 {
    let capsule = controller.ioccsz.saturating_mul(16);
    match controller.icdoff {
        0 => capsule.saturating_sub(SubmissionEntry::SIZE as u32),
        _ => 0,
    }
}

/// An asynchronous event of the controller (Base 5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Notice {
    pub(super) kind: u8,
    pub(super) info: u8,
}

fn connect(transport: &dyn Transport, config: &NvmeTcpConfig) -> Result<Link, ErrorKind> {
    let connected = || transport.connect(config.timeout).map_err(ErrorKind::Connect);
    let open = |socket, tls| Link::open(socket, tls, config.digests, config.timeout);
    let Some(keys) = &config.keys else { return open(connected()?, None) };
    let mut why = ErrorKind::NoTlsKey(config.hostnqn.clone());
    for psk in keys.for_host(&config.hostnqn, &config.subnqn) {
        let socket = connected()?;
        match link::shake_hands(&socket, &psk, config.timeout) {
            Ok(session) => return open(socket, Some(session)),
            // The controller may have another of the keys. The host offers one key after the other, since
            // GnuTLS ends a handshake at the first unknown key.
            Err(refused @ ErrorKind::Handshake(_)) => why = refused,
            Err(error) => return Err(error),
        }
    }
    Err(why)
}

/// Connects a queue, and authenticates this host if the controller requires it.
fn send_connect(
    link: &mut Link,
    config: &NvmeTcpConfig,
    connect: &Connect,
    cntlid: u16,
) -> Result<CompletionEntry, ErrorKind> {
    let data = ConnectData::new(config.hostid, cntlid, &config.subnqn, &config.hostnqn);
    let sent = Data::Out(data.as_bytes());
    let response = link.command(connect.entry(), sent, config.timeout, "Connect")?;
    match response.status() {
        status if status.is_success() => {}
        status => return Err(ErrorKind::Refused(status, response.dw0)),
    }
    authenticate(link, config, connect.qid, response.dw0)?;
    Ok(response)
}

const _: () = assert!(size_of::<IdentifyController>() == identify::SIZE);
