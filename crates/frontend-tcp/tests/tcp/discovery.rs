//! Discovery service.

use super::host::{Connect, HOSTNQN, Link, apart, fabrics};
use super::rig::{DISK, Rig, SLOW};
use super::tunnel;
use sluice_frontend_tcp::Listener;
use sluice_nvme::discovery::{DiscoveryEntry, DiscoveryHeader};
use sluice_nvme::fabrics::{DISCOVERY_NQN, Fctype};
use sluice_nvme::identify::IdentifyController;
use sluice_nvme::{Status, SubmissionEntry, opcode};
use sluice_nvme_tcp::{Digests, IcReq, Pdu, encode};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use zerocopy::FromBytes;

const BOTH: Digests = Digests { header: true, data: true };

fn connect(rig: &Rig, digests: Digests) -> Link {
    connect_at(rig.address, digests)
}

fn connect_at(address: SocketAddr, digests: Digests) -> Link {
    let mut link = Link::open(address, digests);
    assert_eq!(link.connect(&Connect::admin(DISCOVERY_NQN)).status(), Status::SUCCESS);
    link.enable();
    link
}

fn admin(opcode: u8, cdw10: u32) -> SubmissionEntry {
    SubmissionEntry { opcode, nsid: 0, cdw10, ..fabrics(Fctype(0)) }
}

/// Reads a part of the Discovery log page.
fn log_page(link: &mut Link, offset: u32, bytes: u32) -> Vec<u8> {
    let entry = SubmissionEntry {
        dptr: apart(bytes),
        cdw12: offset,
        ..admin(opcode::admin::GET_LOG_PAGE, 0x70 | (bytes / 4 - 1) << 16)
    };
    link.submit(&entry, &[]);
    let Some((Pdu::Data(_), data)) = link.next() else { panic!("no data") };
    assert_eq!(link.response().status(), Status::SUCCESS);
    data
}

fn entries(link: &mut Link) -> Vec<DiscoveryEntry> {
    let header = log_page(link, 0, DiscoveryHeader::SIZE as u32);
    let header = DiscoveryHeader::read_from_bytes(&header).expect("a header");
    let entry = |index| {
        let offset = DiscoveryHeader::SIZE as u32 + index * DiscoveryEntry::SIZE as u32;
        let entry = log_page(link, offset, DiscoveryEntry::SIZE as u32);
        let entry = DiscoveryEntry::read_from_bytes(&entry).expect("an entry");
        assert_eq!((entry.trtype, entry.subtype, entry.cntlid), (3, 2, 0xffff));
        entry
    };
    (0..header.records as u32).map(entry).collect()
}

fn names(link: &mut Link) -> Vec<String> {
    let name = |entry: DiscoveryEntry| {
        let length = entry.subnqn.iter().position(|byte| *byte == 0).expect("a zero at the end");
        String::from_utf8(entry.subnqn[..length].to_vec()).expect("a name")
    };
    entries(link).into_iter().map(name).collect()
}

/// Conformance: Base 3.1.2.3, the Discovery log page names the subsystems that the host may connect to.
#[test]
fn a_host_is_told_of_the_drives_it_may_have() {
    let rig = Rig::new();
    rig.list("nqn.2024-01.org.example:mine", &[HOSTNQN]);
    rig.list("nqn.2024-01.org.example:theirs", &["nqn.2024-01.org.example:other"]);
    for digests in [Digests::NONE, BOTH] {
        let mut link = connect(&rig, digests);
        assert_eq!(names(&mut link), [DISK, "nqn.2024-01.org.example:mine", SLOW]);
    }
}

/// Conformance: Base 5.16.1, a part of a log page is what stands there in the whole, and zeros beyond its end.
#[test]
fn a_long_log_page_is_the_same_in_parts_of_any_size() {
    let rig = Rig::new();
    (0..100).for_each(|number| rig.list(&format!("nqn.2024-01.org.example:{number}"), &[HOSTNQN]));
    let mut link = connect(&rig, Digests::NONE);
    let whole = log_page(&mut link, 0, 128 << 10);
    assert_eq!(names(&mut link).len(), 102);
    let header = DiscoveryHeader::read_from_prefix(&whole).expect("a header").0;
    assert_eq!(header.records, 102);
    assert!(whole[103 * 1024..].iter().all(|byte| *byte == 0));
    for (offset, bytes) in [(0, 4), (4, 1020), (1020, 8), (1024, 1024), (2044, 3076), (5000, 50_000)] {
        assert!(log_page(&mut link, offset, bytes) == whole[offset as usize..][..bytes as usize], "{offset}");
    }
    for (offset, bytes) in [(102 * 1024 + 4, 4096), (103 * 1024, 1024), (1 << 31, 64)] {
        let mut wanted = whole.get(offset as usize..).unwrap_or_default().to_vec();
        wanted.resize(bytes as usize, 0);
        assert!(log_page(&mut link, offset, bytes) == wanted, "{offset}");
    }
}

/// Conformance: Base 5.16.1.23, a Discovery log page entry says in TREQ whether a secure channel is required, and that SQ flow control can be disabled.
/// Conformance: TCP 3.6.1, a Discovery log page entry says in SECTYPE whether a port has TLS 1.3.
#[test]
fn a_host_is_told_where_to_use_tls() {
    let rig = Rig::encrypted(tunnel::keys(tunnel::KEY));
    rig.list("nqn.2024-01.org.example:plain", &[HOSTNQN]);
    let any = "127.0.0.1:0".parse().expect("an address");
    let listener = Listener::start_with_tls(&[any], &[any], Arc::clone(&rig.directory)).expect("a listener");
    let [plain, encrypted] = [0, 1].map(|door| listener.addresses()[door].port().to_string());
    let mut link = Link::open(listener.addresses()[0], Digests::NONE);
    assert_eq!(link.connect(&Connect::admin(DISCOVERY_NQN)).status(), Status::SUCCESS);
    link.enable();
    let told = entries(&mut link).into_iter().map(|entry| {
        let port = String::from_utf8_lossy(&entry.trsvcid).trim_end().to_owned();
        (port, entry.treq, entry.tsas[0])
    });
    let (with, without) = ((encrypted, 1 | 1 << 2, 2), (plain, 2 | 1 << 2, 0));
    assert_eq!(told.collect::<Vec<_>>(), [with.clone(), without, with]);
}

/// Conformance: TCP 3.6.1, a connection to the discovery service may be encrypted, with a key of the host for its name.
#[test]
fn an_encrypted_discovery_is_one_like_any_other() {
    let rig = Rig::encrypted(tunnel::keys(tunnel::KEY));
    rig.directory.set_discovery_keys(Some(tunnel::keys(tunnel::KEY)));
    let psk = tunnel::keys(tunnel::KEY).for_host(HOSTNQN, DISCOVERY_NQN).remove(0);
    let address = tunnel::tunnel(rig.address, psk);
    for digests in [Digests::NONE, BOTH] {
        let mut link = connect_at(address, digests);
        // One record holds more commands than a turn takes, and their responses exceed the limit of unsent
        // bytes.
        let capsule = link.capsule(&admin(opcode::admin::KEEP_ALIVE, 0), &[]);
        link.send(&capsule.repeat(1000));
        for _ in 0..1000 {
            assert_eq!(link.response().status(), Status::SUCCESS);
        }
        assert_eq!(log_page(&mut link, 0, 128 << 10).len(), 128 << 10);
        assert_eq!(names(&mut link), [DISK, SLOW]);
    }
    let refused = |connect: Connect| {
        let mut link = Link::open(address, Digests::NONE);
        assert_eq!(link.connect(&connect).status(), Status::CONNECT_INVALID_HOST);
        assert!(link.is_over());
    };
    refused(Connect::admin(DISK));
    refused(Connect {
        hostnqn: "nqn.2024-01.org.example:another".to_owned(),
        ..Connect::admin(DISCOVERY_NQN)
    });
    // A withdrawn key is invalid at once, also for a connection that has completed its handshake.
    let mut link = Link::open(address, Digests::NONE);
    rig.directory.set_discovery_keys(None);
    assert_eq!(link.connect(&Connect::admin(DISCOVERY_NQN)).status(), Status::CONNECT_INVALID_HOST);
}

/// Conformance: TCP 3.6.1, a host without TLS is told by an alert where nothing else is spoken.
#[test]
fn a_host_without_tls_is_told() {
    let rig = Rig::encrypted(tunnel::keys(tunnel::KEY));
    let mut stream = TcpStream::connect(rig.address).expect("it listens");
    let request = IcReq { alignment: 4, digests: Digests::NONE, r2t_max: 1 };
    stream.write_all(encode::ic_req(request).as_bytes()).expect("room");
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard).expect("an end, and no reset");
    assert!(heard.starts_with(&[21, 3]), "an alert: {heard:?}");
}

/// Conformance: Base 3.1.2.3, a discovery controller has no I/O queues and says in CNTRLTYPE what it is.
#[test]
fn it_is_a_discovery_controller() {
    let rig = Rig::new();
    let mut link = connect(&rig, BOTH);
    link.submit(&SubmissionEntry { dptr: apart(4096), ..admin(opcode::admin::IDENTIFY, 1) }, &[]);
    let Some((Pdu::Data(_), data)) = link.next() else { panic!("no data") };
    assert_eq!(link.response().status(), Status::SUCCESS);
    let page = IdentifyController::read_from_bytes(&data).expect("4096 bytes");
    assert_eq!((page.cntrltype, page.nn, page.cntlid), (2, 0, 1));
    assert!(page.subnqn.starts_with(DISCOVERY_NQN.as_bytes()));
    assert_eq!(link.command(&admin(opcode::admin::KEEP_ALIVE, 0)).status(), Status::SUCCESS);
    assert_eq!(link.command(&admin(opcode::admin::FORMAT_NVM, 0)).status(), Status::INVALID_OPCODE);
    assert_eq!(link.command(&admin(opcode::admin::GET_LOG_PAGE, 2)).status(), Status::INVALID_LOG_PAGE);
    let mut io = Link::open(rig.address, BOTH);
    assert_eq!(io.connect(&Connect::io(DISCOVERY_NQN, 1)).status(), Status::CONNECT_INVALID_PARAMETERS);
}

#[test]
fn a_host_that_says_much_at_once_is_answered() {
    let rig = Rig::new();
    let mut link = connect(&rig, BOTH);
    let capsule = link.capsule(&admin(opcode::admin::KEEP_ALIVE, 0), &[]);
    link.send(&capsule.repeat(1000));
    for _ in 0..1000 {
        assert_eq!(link.response().status(), Status::SUCCESS);
    }
}

/// Conformance: Base 3.1.2.3, a host that stays is told of changes of the Discovery log page by an event.
#[test]
fn a_host_that_stays_is_told_of_changes() {
    let rig = Rig::new();
    let mut link = connect(&rig, Digests::NONE);
    let notices = SubmissionEntry { cdw11: 1 << 31, ..admin(opcode::admin::SET_FEATURES, 0x0b) };
    assert_eq!(link.command(&notices).status(), Status::SUCCESS);
    assert_eq!(names(&mut link).len(), 2);
    link.submit(&SubmissionEntry { cid: 9, ..admin(opcode::admin::ASYNC_EVENT_REQUEST, 0) }, &[]);
    rig.directory.remove(SLOW);
    let response = link.response();
    assert_eq!((response.cid, response.status(), response.dw0), (9, Status::SUCCESS, 0x70_f002));
    assert_eq!(names(&mut link), [DISK]);
}
