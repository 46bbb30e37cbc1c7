//! Commands of a host at the discovery service, over a pair of sockets.

use super::*;
use crate::accept::Host;
use sluice_nvme::fabrics::Connect;
use sluice_nvme_tcp::{Digests, IcReq, Limits, Role};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

/// Session of a host, the host's end of its connection, and the directory.
struct Rig {
    session: Session,
    far: UnixStream,
    decoder: Decoder,
    digests: Digests,
    directory: Directory,
    now: Instant,
}

/// Returns a host that has sent this Connect command.
fn host_with(connect: Connect, digests: Digests) -> Rig {
    // Bytes are there as soon as they are sent, other than over TCP.
    let (near, far) = UnixStream::pair().expect("sockets");
    let near = TcpStream::from(OwnedFd::from(near));
    near.set_nonblocking(true).expect("a socket");
    let peer = "127.0.0.1:1".parse().expect("an address");
    let request = IcReq { alignment: 4, digests, r2t_max: 1 };
    let command = ConnectCommand {
        entry: SubmissionEntry { cid: 77, ..connect.entry() },
        connect,
        cntlid: fabrics::CNTLID_DYNAMIC,
        subnqn: DISCOVERY_NQN.to_owned(),
        host: Host { nqn: "nqn.2024-01.org.example:host".to_owned(), id: [1; 16] },
        request,
    };
    let now = Instant::now();
    let session = Session::new(Wire::new(near), peer, command, now);
    // The decoder of a host begins with an ICResp, which the session's predecessor has sent.
    let limits = Limits { in_capsule_max: 0, data_max: 1 << 20, alignment: 4 };
    let mut decoder = Decoder::new(Role::Host, limits);
    let response = encode::ic_resp(crate::ic_resp(digests));
    let mut bytes = response.as_bytes();
    while !bytes.is_empty() {
        let Place::Here(room) = decoder.place() else { panic!("no header") };
        let count = room.len().min(bytes.len());
        room[..count].copy_from_slice(&bytes[..count]);
        bytes = &bytes[count..];
        decoder.filled(count).expect("an ICResp");
    }
    decoder.set_digests(digests);
    far.set_nonblocking(true).expect("a socket");
    Rig { session, far, decoder, digests, directory: Directory::default(), now }
}

fn connect(cattr: u8, entries: u32, kato_ms: u32) -> Connect {
    Connect { recfmt: 0, qid: 0, entries, cattr, kato_ms }
}

/// Returns a host whose Connect command is completed and whose controller is enabled.
fn host() -> Rig {
    let mut rig = host_with(connect(0, 32, 0), Digests::NONE);
    assert_eq!(rig.next().map(|(entry, _)| entry.dw0), Some(1));
    assert_eq!(rig.status(&property_set(register::CC, 4, 1)), Status::SUCCESS);
    rig
}

impl Rig {
    fn advance(&mut self) -> Result<(), End> {
        let Self { session, directory, now, .. } = self;
        session.advance(&Context { directory, addresses: &[], now: *now })
    }

    fn send(&mut self, entry: &SubmissionEntry, copies: usize) {
        let capsule = encode::capsule_cmd(entry, self.digests, 4, 0);
        self.far.write_all(&capsule.as_bytes().repeat(copies)).expect("room");
    }

    /// Returns the next response with the data before it, if one was sent.
    fn next(&mut self) -> Option<(CompletionEntry, Vec<u8>)> {
        self.session.wire.flush().expect("room");
        let mut data = Vec::new();
        loop {
            let (room, from) = match self.decoder.place() {
                Place::Here(room) => (room, None),
                Place::Payload(left) => {
                    let from = data.len();
                    data.resize(from + left as usize, 0);
                    (&mut data[from..], Some(from))
                }
            };
            let count = match self.far.read(room) {
                Ok(0) => return None,
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                Err(error) => panic!("{error}"),
            };
            if let Some(from) = from {
                data.truncate(from + count);
            }
            match self.decoder.filled(count).expect("a PDU") {
                Some(Event::Pdu(Pdu::Response(entry))) => return Some((entry, data)),
                Some(Event::End { digest }) => {
                    assert_eq!(digest, self.digests.data.then(|| crc32c(&data)));
                }
                Some(Event::Pdu(Pdu::Data(found))) => assert!(found.last && !found.success),
                other => assert!(other.is_none(), "{other:?}"),
            }
        }
    }

    /// Sends a command, and returns its response with its data.
    fn command(&mut self, entry: &SubmissionEntry) -> (CompletionEntry, Vec<u8>) {
        self.send(entry, 1);
        self.advance().expect("it stays");
        let (response, data) = self.next().expect("a response");
        assert_eq!(response.cid, entry.cid);
        (response, data)
    }

    fn status(&mut self, entry: &SubmissionEntry) -> Status {
        self.command(entry).0.status()
    }

    /// Returns the value of a property, or the status.
    fn property(&mut self, offset: u32, size: u32) -> Result<u64, Status> {
        let entry = SubmissionEntry { cdw10: size, cdw11: offset, ..fabrics_entry(Fctype::PROPERTY_GET) };
        let response = self.command(&entry).0;
        let value = u64::from(response.dw0) | u64::from(response.dw1) << 32;
        if response.status().is_success() { Ok(value) } else { Err(response.status()) }
    }
}

fn fabrics_entry(fctype: Fctype) -> SubmissionEntry {
    let dptr = apart(0);
    let (opcode, nsid) = (fabrics::OPCODE, u32::from(fctype.0));
    SubmissionEntry { opcode, nsid, cid: 3, flags: 1 << 6, dptr, ..SubmissionEntry::default() }
}

fn property_set(offset: u32, bytes: u32, value: u64) -> SubmissionEntry {
    let (cdw12, cdw13) = (value as u32, (value >> 32) as u32);
    let cdw10 = bytes / 8;
    SubmissionEntry { cdw10, cdw11: offset, cdw12, cdw13, ..fabrics_entry(Fctype::PROPERTY_SET) }
}

fn apart(length: u32) -> [u64; 2] {
    let mut sgl = SglDescriptor::new(SglType::TRANSPORT_DATA_BLOCK, 0, length);
    sgl.identifier |= 0xa;
    sgl.to_dptr()
}

fn admin(opcode: u8, cdw10: u32, length: u32) -> SubmissionEntry {
    let (flags, dptr) = (1 << 6, apart(length));
    SubmissionEntry { opcode, cid: 5, flags, cdw10, dptr, ..SubmissionEntry::default() }
}

/// Returns a Get Log Page of the Discovery log page.
fn log_page(offset: u64, bytes: u32, length: u32) -> SubmissionEntry {
    let dwords = bytes / 4 - 1;
    let cdw10 = 0x70 | dwords << 16;
    let (cdw11, cdw12, cdw13) = (dwords >> 16, offset as u32, (offset >> 32) as u32);
    SubmissionEntry { cdw11, cdw12, cdw13, ..admin(admin::GET_LOG_PAGE, cdw10, length) }
}

#[test]
fn hosts_are_told_an_address_that_they_can_reach() {
    let seen = |address: &str, local: &str| {
        let parse = |text: &str| text.parse::<SocketAddr>().expect("an address");
        let address = Address { socket: parse(address), encrypted: false };
        seen_from(address, parse(local)).map(|address| address.socket.to_string())
    };
    assert_eq!(seen("10.0.0.1:4420", "10.0.0.1:8009").as_deref(), Some("10.0.0.1:4420"));
    assert_eq!(seen("0.0.0.0:4420", "10.0.0.1:8009").as_deref(), Some("10.0.0.1:4420"));
    assert_eq!(seen("[::]:4420", "[::ffff:10.0.0.1]:8009").as_deref(), Some("10.0.0.1:4420"));
    assert_eq!(seen("[::]:4420", "10.0.0.1:8009").as_deref(), Some("10.0.0.1:4420"));
    assert_eq!(seen("[::]:4420", "[fe80::1]:8009").as_deref(), Some("[fe80::1]:4420"));
    assert_eq!(seen("[fe80::1]:4420", "[fe80::1]:8009").as_deref(), Some("[fe80::1]:4420"));
    assert_eq!(seen("10.0.0.2:4420", "10.0.0.1:8009"), None);
    assert_eq!(seen("10.0.0.1:8009", "10.0.0.1:8009"), None);
    assert_eq!(seen("0.0.0.0:4420", "[fe80::1]:8009"), None);
    assert_eq!(seen("[fe80::2]:4420", "[fe80::1]:8009"), None);
}

/// Conformance: Base 5.16.1.23, Figure 294, all bytes of an entry of the Discovery log page.
#[test]
fn an_entry_of_the_log_page_has_its_fields_where_hosts_read_them() {
    for (address, encrypted, family, treq, security) in [
        ("10.0.0.1:4420", false, 1, 2 | 1 << 2, 0),
        ("10.0.0.1:4420", true, 1, 1 | 1 << 2, 2),
        ("[fe80::1]:65535", false, 2, 2 | 1 << 2, 0),
    ] {
        let socket: SocketAddr = address.parse().expect("an address");
        let entry = describe("nqn.a", 0x0203, Address { socket, encrypted });
        let mut expected = [0u8; 1024];
        expected[..10].copy_from_slice(&[3, family, 2, treq, 3, 2, 0xff, 0xff, 128, 0]);
        expected[32..64].fill(b' ');
        let port = socket.port().to_string();
        expected[32..32 + port.len()].copy_from_slice(port.as_bytes());
        expected[256..261].copy_from_slice(b"nqn.a");
        expected[512..768].fill(b' ');
        let ip = socket.ip().to_string();
        expected[512..512 + ip.len()].copy_from_slice(ip.as_bytes());
        expected[768] = security;
        assert!(entry.as_bytes() == expected, "{address}: {entry:?}");
    }
    let mut field = [1; 4];
    text(&mut field, "abcdef", 0);
    assert_eq!(field, *b"abcd");
}

/// Conformance: Base 5.17.2.1, all bytes of Identify Controller of a discovery controller.
#[test]
fn identify_has_its_fields_where_hosts_read_them() {
    let mut rig = host();
    let (response, page) = rig.command(&admin(admin::IDENTIFY, 1, 4096));
    assert!(response.status().is_success());
    let mut expected = [0u8; 4096];
    // SN, MN and FR.
    expected[4..72].fill(b' ');
    expected[24..40].copy_from_slice(b"Sluice Discovery");
    let mut put = |at: usize, bytes: &[u8]| expected[at..at + bytes.len()].copy_from_slice(bytes);
    put(77, &[5]); // MDTS: 2^5 pages of 4 KiB
    put(78, &1u16.to_le_bytes()); // CNTLID
    put(80, &0x0002_0000u32.to_le_bytes()); // VER
    put(92, &(1u32 << 31).to_le_bytes()); // OAES
    put(111, &[2]); // CNTRLTYPE
    put(259, &[3]); // AERL
    put(261, &[1 << 2]); // LPA
    put(320, &1u16.to_le_bytes()); // KAS
    put(514, &128u16.to_le_bytes()); // MAXCMD
    put(536, &(1u32 | 1 << 21).to_le_bytes()); // SGLS
    put(768, b"nqn.2014-08.org.nvmexpress.discovery");
    let differing: Vec<usize> = (0..4096).filter(|at| page[*at] != expected[*at]).collect();
    assert!(differing.is_empty(), "{differing:?}");
    assert_eq!(rig.status(&admin(admin::IDENTIFY, 0, 4096)), Status::INVALID_FIELD);
    assert_eq!(rig.status(&admin(admin::IDENTIFY, 1, 4095)), Status::SGL_DATA_LENGTH_INVALID);
    let inside = SglDescriptor::new(SglType::DATA_BLOCK, 0, 4096).to_dptr();
    let entry = SubmissionEntry { dptr: inside, ..admin(admin::IDENTIFY, 1, 0) };
    assert_eq!(rig.status(&entry), Status::SGL_TYPE_INVALID);
}

/// Conformance: Base 6.5, the properties of a discovery controller, each with its size.
#[test]
fn properties_have_their_sizes_and_values() {
    const CAP: u64 = 127 | 1 << 16 | 20 << 24 | 1 << 37;
    let mut rig = host_with(connect(0, 32, 0), Digests::NONE);
    rig.next().expect("the response to Connect");
    for (offset, value, size) in
        [(register::CAP, CAP, 1), (register::VS, 0x2_0000, 0), (register::CC, 0, 0), (register::CSTS, 0, 0)]
    {
        assert_eq!(rig.property(offset, size), Ok(value), "{offset:#x}");
        assert_eq!(rig.property(offset, 1 - size), Err(Status::INVALID_FIELD), "{offset:#x}");
    }
    assert_eq!(rig.property(register::AQA, 0), Err(Status::INVALID_FIELD));
    // Only Fabrics commands are served before the controller is enabled.
    assert_eq!(rig.status(&admin(admin::KEEP_ALIVE, 0, 0)), Status::COMMAND_SEQUENCE_ERROR);
    for (cc, csts) in
        [(0x0046_0001, 1), (0x0046_0000, 0), (1 | 1 << 14, 1 | 2 << 2), (1 << 14, 2 << 2), (1, 1)]
    {
        assert_eq!(rig.status(&property_set(register::CC, 4, cc)), Status::SUCCESS);
        assert_eq!((rig.property(register::CC, 0), rig.property(register::CSTS, 0)), (Ok(cc), Ok(csts)));
    }
    for (offset, bytes) in [(register::CC, 8), (register::CSTS, 4), (register::CAP, 8)] {
        assert_eq!(rig.status(&property_set(offset, bytes, 0)), Status::INVALID_FIELD, "{offset:#x}");
    }
    assert_eq!(rig.property(register::CSTS, 0), Ok(1), "no failed write disables it");
    for (fctype, status) in [
        (Fctype::DISCONNECT, Status::INVALID_QUEUE_TYPE),
        (Fctype::CONNECT, Status::COMMAND_SEQUENCE_ERROR),
        (Fctype::AUTHENTICATION_SEND, Status::INVALID_OPCODE),
    ] {
        assert_eq!(rig.status(&fabrics_entry(fctype)), status, "{fctype:?}");
    }
}

/// Conformance: Base 5.27.1, the features of a discovery controller.
#[test]
fn features_are_returned_as_they_were_set() {
    let mut rig = host();
    let set = |id: u32, value: u32| SubmissionEntry { cdw11: value, ..admin(admin::SET_FEATURES, id, 0) };
    let get = |rig: &mut Rig, id: u32| {
        let response = rig.command(&admin(admin::GET_FEATURES, id, 0)).0;
        (response.status(), response.dw0)
    };
    let good = |value| (Status::SUCCESS, value);
    assert_eq!((get(&mut rig, 0xb), get(&mut rig, 0xf)), (good(0), good(0)));
    assert_eq!(rig.status(&set(0xb, u32::MAX)), Status::SUCCESS);
    assert_eq!(rig.status(&set(0xf, 5000)), Status::SUCCESS);
    assert_eq!((get(&mut rig, 0xb), get(&mut rig, 0xf)), (good(1 << 31), good(5000)));
    assert_eq!(rig.status(&set(0xb, !(1 << 31))), Status::SUCCESS);
    assert_eq!(get(&mut rig, 0xb), good(0));
    assert_eq!(rig.status(&set(0x7, 1)), Status::INVALID_FIELD);
    assert_eq!(get(&mut rig, 0x7).0, Status::INVALID_FIELD);
    assert_eq!(rig.status(&admin(admin::KEEP_ALIVE, 0, 0)), Status::SUCCESS);
    assert_eq!(rig.status(&admin(admin::ABORT, 0, 0)), Status::INVALID_OPCODE);
}

/// Conformance: Base 5.16.1, offset and length of a log page, and the bytes of an empty one.
#[test]
fn the_part_of_a_log_page_has_an_offset_and_a_length() {
    let mut rig = host();
    for (offset, bytes, length, status) in [
        (0, 128 << 10, 128 << 10, Status::SUCCESS),
        (0, (128 << 10) + 4, 256 << 10, Status::INVALID_FIELD),
        (0, 1 << 20, 1 << 20, Status::INVALID_FIELD),
        (2, 4, 4, Status::INVALID_FIELD),
        (1 << 40, 16, 16, Status::SUCCESS),
        (0, 16, 15, Status::SGL_DATA_LENGTH_INVALID),
        (0, 16, 17, Status::SUCCESS),
    ] {
        let (response, data) = rig.command(&log_page(offset, bytes, length));
        assert_eq!(response.status(), status, "{bytes} bytes at {offset}");
        assert!(data.iter().all(|byte| *byte == 0), "an empty page of generation 0");
        assert_eq!(data.len(), if status.is_success() { bytes as usize } else { 0 });
    }
    assert_eq!(rig.status(&admin(admin::GET_LOG_PAGE, 0x71, 1024)), Status::INVALID_LOG_PAGE);
}

/// Conformance: Base 3.3.2.1, SQHD counts modulo the size of the queue, unless the host disabled flow control.
#[test]
fn the_head_of_the_queue_advances_with_each_response() {
    for (cattr, heads) in [(0, [1, 2, 0, 1]), (Connect::DISABLE_SQ_FLOW_CONTROL, [0xffff; 4])] {
        let digests = Digests { header: true, data: true };
        let mut rig = host_with(connect(cattr, 3, 0), digests);
        let (first, _) = rig.next().expect("the response to Connect");
        assert_eq!((first.cid, first.dw0, first.dw1, first.sq_head), (77, 1, 0, heads[0]));
        for head in &heads[1..] {
            let entry = SubmissionEntry { cdw11: register::VS, ..fabrics_entry(Fctype::PROPERTY_GET) };
            assert_eq!(rig.command(&entry).0.sq_head, *head);
        }
    }
}

/// Checks that a host has its own timeout from each receive on, and that a longer one counts at once.
#[test]
fn a_silent_host_has_its_timeout() {
    for (kato_ms, limit) in [(0, Duration::from_secs(120)), (2500, Duration::from_millis(2500))] {
        let mut rig = host_with(connect(0, 32, kato_ms), Digests::NONE);
        let begin = rig.now;
        assert_eq!(rig.session.until(), begin + limit);
        rig.now = begin + Duration::from_secs(1);
        rig.advance().expect("it stays");
        assert_eq!(rig.session.until(), begin + limit, "nothing was received");
        rig.send(&property_set(register::CC, 4, 1), 1);
        rig.advance().expect("it stays");
        assert_eq!(rig.session.until(), rig.now + limit);
        let longer = SubmissionEntry { cdw11: 60_000, ..admin(admin::SET_FEATURES, 0xf, 0) };
        rig.send(&longer, 1);
        rig.advance().expect("it stays");
        assert_eq!(rig.session.until(), rig.now + Duration::from_secs(60));
    }
}

/// Conformance: Base 5.2, Asynchronous Event Requests up to AERL wait without a response.
#[test]
fn four_event_requests_wait() {
    let mut rig = host();
    for cid in 0..4 {
        rig.send(&SubmissionEntry { cid, ..admin(admin::ASYNC_EVENT_REQUEST, 0, 0) }, 1);
        rig.advance().expect("it stays");
        assert!(rig.next().is_none());
    }
    assert_eq!(rig.status(&admin(admin::ASYNC_EVENT_REQUEST, 0, 0)), Status::AER_LIMIT_EXCEEDED);
    // A host waits for a notice after it has read the page and enabled the notice.
    let mut watch = Vec::new();
    let notices =
        |on: bool| SubmissionEntry { cdw11: u32::from(on) << 31, ..admin(admin::SET_FEATURES, 0xb, 0) };
    for entry in [notices(true), log_page(0, 16, 16), notices(false), notices(true)] {
        assert_eq!(rig.status(&entry), Status::SUCCESS);
        watch.push(rig.session.is_watching());
    }
    assert_eq!(watch, [false, true, false, true]);
    rig.session.requests.clear();
    assert!(!rig.session.is_watching());
}

/// Checks the limits of one turn: a number of commands, and one log page.
#[test]
fn a_turn_of_a_host_is_short() {
    let mut rig = host();
    rig.send(&admin(admin::KEEP_ALIVE, 0, 0), EVENTS_MAX + 5);
    let mut counts = Vec::new();
    for _ in 0..2 {
        rig.advance().expect("it stays");
        counts.push(std::iter::from_fn(|| rig.next()).count());
    }
    assert_eq!(counts, [EVENTS_MAX, 5]);
    rig.send(&log_page(0, 16, 16), 3);
    for _ in 0..3 {
        rig.advance().expect("it stays");
        assert_eq!(std::iter::from_fn(|| rig.next()).count(), 1);
    }
    assert!(!rig.session.wants_to_send() && !rig.session.has_more());
}

/// Checks that a host that reads nothing has few bytes here, and is served when it reads.
#[test]
fn a_host_that_reads_nothing_fills_little_memory() {
    let mut rig = host();
    let mut turns = 0;
    while rig.session.wire.unsent() < UNSENT_MAX {
        rig.send(&log_page(0, 64 << 10, 64 << 10), 1);
        rig.advance().expect("it stays");
        turns += 1;
        assert!(turns < 10_000, "the socket never fills");
    }
    assert!(rig.session.wants_to_send() && rig.session.wire.unsent() < UNSENT_MAX + (65 << 10));
    let unsent = rig.session.wire.unsent();
    rig.send(&log_page(0, 64 << 10, 64 << 10), 1);
    rig.advance().expect("it stays");
    assert_eq!(rig.session.wire.unsent(), unsent);
    let mut count = 0;
    while count < turns + 1 {
        rig.advance().expect("it stays");
        while let Some((response, data)) = rig.next() {
            assert!(response.status().is_success());
            assert_eq!(data.len(), 64 << 10);
            count += 1;
        }
    }
}

/// Checks PDUs that end a session, with a message to the host or without.
#[test]
fn a_session_ends_with_its_host() {
    let mut rig = host();
    let head = encode::h2c_term(Violation::SEQUENCE, &[]);
    rig.far.write_all(head.as_bytes()).expect("room");
    assert!(matches!(rig.advance(), Err(End::Gone)));
    let mut rig = host();
    let data = Data { cccid: 1, ttag: 0, offset: 0, length: 4, last: true, success: false };
    rig.far.write_all(encode::h2c_data(data, Digests::NONE, 4).as_bytes()).expect("room");
    assert!(matches!(rig.advance(), Err(End::Linger)));
    assert!(rig.session.wants_to_send(), "the reason");
    let mut rig = host();
    rig.far.shutdown(std::net::Shutdown::Both).expect("a socket");
    assert!(matches!(rig.advance(), Err(End::Gone)));
    // A command with data in its capsule is executed when all of it is there, and the data is dropped.
    let mut rig = host();
    let capsule = encode::capsule_cmd(&admin(admin::KEEP_ALIVE, 0, 0), Digests::NONE, 4, 3000);
    rig.far.write_all(&[capsule.as_bytes(), &[1; 2999]].concat()).expect("room");
    rig.advance().expect("it stays");
    assert!(rig.next().is_none());
    rig.far.write_all(&[1]).expect("room");
    rig.advance().expect("it stays");
    assert_eq!(rig.next().map(|(entry, _)| (entry.cid, entry.status())), Some((5, Status::SUCCESS)));
}
