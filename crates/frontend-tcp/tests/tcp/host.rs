//! Test host that sends valid and invalid PDUs, one after the other.

use sluice_nvme::fabrics::{self, CNTLID_DYNAMIC, ConnectData, Fctype};
use sluice_nvme::register::{self, csts};
use sluice_nvme::{Cns, CompletionEntry, FeatureId, SglDescriptor, SglType, Status, SubmissionEntry, opcode};
use sluice_nvme_tcp::{Data, Decoder, Digests, Event, IcReq, Limits, Pdu, Place, Role, crc32c, encode};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;
use zerocopy::IntoBytes;

/// Time after which a wait fails the test.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

pub(crate) const HOSTNQN: &str = "nqn.2024-01.org.example:host";
pub(crate) const HOSTID: [u8; 16] = [9; 16];

/// Entries of each queue.
pub(crate) const ENTRIES: u16 = 32;

const BOTH_WAYS: u8 = 0x5a;

/// Parameters of a Connect command.
#[derive(Clone, Debug)]
pub(crate) struct Connect {
    pub(crate) qid: u16,
    pub(crate) entries: u16,
    pub(crate) recfmt: u16,
    pub(crate) cattr: u8,
    pub(crate) kato_ms: u32,
    pub(crate) cntlid: u16,
    pub(crate) subnqn: String,
    pub(crate) hostnqn: String,
    pub(crate) hostid: [u8; 16],
}

impl Connect {
    pub(crate) fn admin(subnqn: &str) -> Self {
        Self {
            qid: 0,
            entries: ENTRIES,
            recfmt: 0,
            cattr: 0,
            kato_ms: 0,
            cntlid: CNTLID_DYNAMIC,
            subnqn: subnqn.to_owned(),
            hostnqn: HOSTNQN.to_owned(),
            hostid: HOSTID,
        }
    }

    pub(crate) fn io(subnqn: &str, qid: u16) -> Self {
        Self { qid, cntlid: 1, ..Self::admin(subnqn) }
    }
}

/// Connection of a host.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) stream: TcpStream,
    decoder: Decoder,
    pub(crate) digests: Digests,
}

impl Link {
    /// Opens and initializes a connection.
    pub(crate) fn open(address: SocketAddr, digests: Digests) -> Self {
        Self::over(TcpStream::connect(address).expect("somebody listens"), digests)
    }

    /// Initializes a connection on an existing stream.
    pub(crate) fn over(stream: TcpStream, digests: Digests) -> Self {
        stream.set_read_timeout(Some(LIMIT)).expect("a timeout");
        stream.set_nodelay(true).expect("no delay");
        let limits = Limits { in_capsule_max: 0, data_max: 1 << 20, alignment: 4 };
        let mut link = Self { stream, decoder: Decoder::new(Role::Host, limits), digests };
        link.send(encode::ic_req(IcReq { alignment: 4, digests, r2t_max: 1 }).as_bytes());
        let Some((Pdu::IcResp(response), _)) = link.next() else { panic!("no ICResp") };
        assert_eq!(response.digests, digests);
        link.decoder.set_digests(digests);
        link
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("it is read");
    }

    /// Returns the next PDU with its data, after a check of the data digest. None at the end of the
    /// connection.
    pub(crate) fn next(&mut self) -> Option<(Pdu, Vec<u8>)> {
        let mut found: Option<(Pdu, Vec<u8>)> = None;
        loop {
            let (count, is_payload) = match self.decoder.place() {
                Place::Here(room) => match self.stream.read(room) {
                    Ok(0) => return None,
                    Ok(count) => (count, false),
                    Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                    Err(error) => panic!("nothing came: {error}"),
                },
                Place::Payload(left) => {
                    let payload = &mut found.as_mut().expect("a header came first").1;
                    let start = payload.len();
                    payload.resize(start + left as usize, 0);
                    let count = self.stream.read(&mut payload[start..]).expect("data");
                    payload.truncate(start + count);
                    (count, true)
                }
            };
            assert!(count > 0 || !is_payload, "the end amid data");
            match self.decoder.filled(count).expect("a controller keeps to the protocol") {
                Some(Event::Pdu(pdu)) => {
                    found = Some((pdu, Vec::new()));
                    if !matches!(self.decoder.place(), Place::Payload(_)) {
                        return found;
                    }
                }
                Some(Event::End { digest }) => {
                    let found = found.expect("a header came first");
                    assert!(digest.is_none_or(|digest| digest == crc32c(&found.1)), "a wrong data digest");
                    return Some(found);
                }
                None => {}
            }
        }
    }

    /// Returns the next PDU, which must be a response capsule.
    pub(crate) fn response(&mut self) -> CompletionEntry {
        match self.next() {
            Some((Pdu::Response(entry), _)) => entry,
            other => panic!("{other:?} is not a response"),
        }
    }

    /// Returns a capsule with its data.
    pub(crate) fn capsule(&self, entry: &SubmissionEntry, data: &[u8]) -> Vec<u8> {
        let head = encode::capsule_cmd(entry, self.digests, 4, data.len() as u32);
        self.with_data(head.as_bytes(), data)
    }

    /// Returns a header with data and data digest.
    pub(crate) fn with_data(&self, head: &[u8], data: &[u8]) -> Vec<u8> {
        let mut bytes = [head, data].concat();
        if self.digests.data && !data.is_empty() {
            bytes.extend(crc32c(data).to_le_bytes());
        }
        bytes
    }

    pub(crate) fn submit(&mut self, entry: &SubmissionEntry, data: &[u8]) {
        let capsule = self.capsule(entry, data);
        self.send(&capsule);
    }

    /// Sends a command without data and waits for its response.
    pub(crate) fn command(&mut self, entry: &SubmissionEntry) -> CompletionEntry {
        self.submit(entry, &[]);
        let response = self.response();
        assert_eq!(response.cid, entry.cid);
        response
    }

    pub(crate) fn connect(&mut self, connect: &Connect) -> CompletionEntry {
        let Connect { cntlid, hostid, .. } = *connect;
        let data = ConnectData::new(hostid, cntlid, &connect.subnqn, &connect.hostnqn);
        let entry = SubmissionEntry {
            dptr: in_capsule(ConnectData::SIZE as u32),
            cdw10: u32::from(connect.recfmt) | u32::from(connect.qid) << 16,
            cdw11: u32::from(connect.entries.wrapping_sub(1)) | u32::from(connect.cattr) << 16,
            cdw12: connect.kato_ms,
            ..fabrics(Fctype::CONNECT)
        };
        self.submit(&entry, data.as_bytes());
        self.response()
    }

    pub(crate) fn get_property(&mut self, offset: u32, bytes: u32) -> u64 {
        let entry = SubmissionEntry { cdw10: bytes / 8, cdw11: offset, ..fabrics(Fctype::PROPERTY_GET) };
        let response = self.command(&entry);
        assert_eq!(response.status(), Status::SUCCESS, "property {offset:#x}");
        u64::from(response.dw0) | u64::from(response.dw1) << 32
    }

    pub(crate) fn set_property(&mut self, offset: u32, value: u32) -> Status {
        let entry = SubmissionEntry { cdw11: offset, cdw12: value, ..fabrics(Fctype::PROPERTY_SET) };
        self.command(&entry).status()
    }

    /// Returns a page of 4,096 bytes from Identify.
    pub(crate) fn identify(&mut self, cns: Cns) -> Vec<u8> {
        let identify = transfer(opcode::admin::IDENTIFY, 3, 0, 4096);
        let cdw10 = u32::from(cns.0);
        self.submit(&SubmissionEntry { nsid: 0, cdw10, cdw11: 0, cdw12: 0, ..identify }, &[]);
        let Some((Pdu::Data(_), bytes)) = self.next() else { panic!("no data") };
        assert_eq!(self.response().status(), Status::SUCCESS);
        bytes
    }

    /// Returns the identifiers of the controllers of the subsystem.
    pub(crate) fn controllers(&mut self) -> Vec<u16> {
        let page = self.identify(Cns::CONTROLLERS);
        let mut words = page.chunks_exact(2).map(|word| u16::from_le_bytes([word[0], word[1]]));
        let count = words.next().expect("4,096 bytes");
        words.take(count.into()).collect()
    }

    /// Returns the namespaces that are attached to the controller.
    pub(crate) fn namespaces(&mut self) -> Vec<u32> {
        let page = self.identify(Cns::ACTIVE_NAMESPACES);
        let nsids = page.chunks_exact(4).map(|it| u32::from_le_bytes([it[0], it[1], it[2], it[3]]));
        nsids.take_while(|nsid| *nsid != 0).collect()
    }

    /// Returns whether the next read is the end of the connection.
    pub(crate) fn is_over(&mut self) -> bool {
        self.next().is_none()
    }
}

pub(crate) fn fabrics(fctype: Fctype) -> SubmissionEntry {
    SubmissionEntry { opcode: fabrics::OPCODE, flags: 1 << 6, nsid: u32::from(fctype.0), cid: 77, ..entry(0) }
}

pub(crate) fn entry(cid: u16) -> SubmissionEntry {
    SubmissionEntry { cid, flags: 1 << 6, dptr: apart(0), ..SubmissionEntry::default() }
}

/// Returns an SGL for in-capsule data.
pub(crate) fn in_capsule(length: u32) -> [u64; 2] {
    let mut sgl = SglDescriptor::new(SglType::DATA_BLOCK, 0, length);
    sgl.identifier |= 1;
    sgl.to_dptr()
}

/// Returns an SGL for data in separate PDUs.
pub(crate) fn apart(length: u32) -> [u64; 2] {
    let mut sgl = SglDescriptor::new(SglType::TRANSPORT_DATA_BLOCK, 0, length);
    sgl.identifier = BOTH_WAYS;
    sgl.to_dptr()
}

/// Returns a Read or Write of 512-byte blocks.
pub(crate) fn transfer(opcode: u8, cid: u16, slba: u64, bytes: u32) -> SubmissionEntry {
    SubmissionEntry {
        opcode,
        nsid: 1,
        dptr: apart(bytes),
        cdw10: slba as u32,
        cdw11: (slba >> 32) as u32,
        cdw12: bytes / 512 - 1,
        ..entry(cid)
    }
}

pub(crate) fn write_in_capsule(cid: u16, slba: u64, bytes: u32) -> SubmissionEntry {
    SubmissionEntry { dptr: in_capsule(bytes), ..transfer(opcode::io::WRITE, cid, slba, bytes) }
}

/// Host with an admin queue and some I/O queues.
#[derive(Debug)]
pub(crate) struct Host {
    /// Controller ID that the drive assigned.
    pub(crate) cntlid: u16,
    pub(crate) admin: Link,
    pub(crate) io: Vec<Link>,
}

/// CC: enabled, 64-byte submission and 16-byte completion entries.
pub(crate) const CC_ENABLE: u32 = 1 | 6 << 16 | 4 << 20;

impl Host {
    pub(crate) fn start(address: SocketAddr, subnqn: &str, digests: Digests, queues: u16) -> Self {
        Self::with(address, Connect::admin(subnqn), digests, queues)
    }

    pub(crate) fn with(address: SocketAddr, connect: Connect, digests: Digests, queues: u16) -> Self {
        let mut admin = Link::open(address, digests);
        let response = admin.connect(&connect);
        assert_eq!(response.status(), Status::SUCCESS);
        let cntlid = response.dw0 as u16;
        admin.enable();
        let io = (1..=queues).map(|qid| {
            let mut link = Link::open(address, digests);
            let response = link.connect(&Connect { qid, cntlid, ..connect.clone() });
            assert_eq!(response.status(), Status::SUCCESS, "queue {qid}");
            link
        });
        let io = io.collect();
        Self { cntlid, admin, io }
    }

    /// Sets the keep-alive timeout. Setup has none, since a busy machine may delay it.
    pub(crate) fn set_keep_alive(&mut self, timeout_ms: u32) {
        let keep_alive = u32::from(FeatureId::KEEP_ALIVE_TIMER.0);
        let opcode = opcode::admin::SET_FEATURES;
        let set = SubmissionEntry { opcode, cdw10: keep_alive, cdw11: timeout_ms, ..entry(78) };
        assert_eq!(self.admin.command(&set).status(), Status::SUCCESS);
    }
}

impl Link {
    pub(crate) fn enable(&mut self) {
        assert_eq!(self.set_property(register::CC, CC_ENABLE), Status::SUCCESS);
        assert_eq!(self.get_property(register::CSTS, 4) as u32 & csts::RDY, csts::RDY);
    }

    /// Writes with in-capsule data up to 8 KiB, and with an R2T above.
    pub(crate) fn write(&mut self, cid: u16, slba: u64, data: &[u8]) -> Status {
        let length = data.len() as u32;
        if length <= 8192 {
            self.submit(&write_in_capsule(cid, slba, length), data);
            return self.response().status();
        }
        self.submit(&transfer(opcode::io::WRITE, cid, slba, length), &[]);
        self.send_data(cid, data, 65_536);
        self.response().status()
    }

    /// Answers the R2T of a command with H2CData PDUs of `piece` bytes.
    pub(crate) fn send_data(&mut self, cid: u16, data: &[u8], piece: usize) {
        let Some((Pdu::R2t(r2t), _)) = self.next() else { panic!("no R2T") };
        assert_eq!((r2t.cccid, r2t.offset, r2t.length), (cid, 0, data.len() as u32));
        for (index, part) in data.chunks(piece).enumerate() {
            let offset = index * piece;
            let last = offset + part.len() == data.len();
            let data = Data {
                cccid: cid,
                ttag: r2t.ttag,
                offset: offset as u32,
                length: part.len() as u32,
                last,
                success: false,
            };
            let head = encode::h2c_data(data, self.digests, 4);
            let bytes = self.with_data(head.as_bytes(), part);
            self.send(&bytes);
        }
    }

    pub(crate) fn read(&mut self, cid: u16, slba: u64, bytes: u32) -> Result<Vec<u8>, Status> {
        self.submit(&transfer(opcode::io::READ, cid, slba, bytes), &[]);
        match self.next() {
            Some((Pdu::Data(data), payload)) => {
                assert_eq!((data.cccid, data.offset, data.length, data.last), (cid, 0, bytes, true));
                if !data.success {
                    assert_eq!(self.response().status(), Status::SUCCESS);
                }
                Ok(payload)
            }
            Some((Pdu::Response(entry), _)) => Err(entry.status()),
            other => panic!("{other:?} is no answer to a read"),
        }
    }
}
