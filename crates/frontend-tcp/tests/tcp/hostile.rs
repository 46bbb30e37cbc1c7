//! Hosts that break the protocol. Each loses only its connection: the drive serves the next one, and other
//! drives are not affected.

use super::host::{Connect, Host, Link, apart, in_capsule, transfer, write_in_capsule};
use super::rig::{DISK, Rig, SLOW};
use sluice_nvme::fabrics::InvalidParameter;
use sluice_nvme::{Status, SubmissionEntry, opcode};
use sluice_nvme_tcp::{Data, Digests, Fes, Pdu, R2t, Violation, encode};
use std::io::{Read, Write};
use std::net::TcpStream;

const BOTH: Digests = Digests { header: true, data: true };

/// Sends bytes on an I/O queue, and expects a termination request with this error.
fn ends_with(rig: &Rig, digests: Digests, bytes: impl FnOnce(&mut Link) -> Vec<u8>, expected: Fes) {
    let mut host = Host::start(rig.address, DISK, digests, 2);
    let bytes = bytes(&mut host.io[0]);
    host.io[0].send(&bytes);
    match host.io[0].next() {
        Some((Pdu::Terminated(Violation { fes, .. }), _)) => assert_eq!(fes, expected),
        other => panic!("{other:?} instead of {expected:?}"),
    }
    assert!(host.io[0].next().is_none(), "nothing follows a termination request");
    // The other queue of the same host still works.
    assert_eq!(host.io[1].write(1, 0, &[1; 4096]), Status::SUCCESS);
    drop(host);
    rig.wait_for_nobody();
}

/// Submits a Write, and returns its R2T.
fn asked(link: &mut Link, cid: u16, bytes: u32) -> R2t {
    link.submit(&transfer(opcode::io::WRITE, cid, 0, bytes), &[]);
    match link.next() {
        Some((Pdu::R2t(r2t), _)) => r2t,
        other => panic!("{other:?} instead of an R2T"),
    }
}

fn data_for(r2t: &R2t, length: u32) -> Data {
    Data { cccid: r2t.cccid, ttag: r2t.ttag, offset: 0, length, last: length == r2t.length, success: false }
}

/// Conformance: TCP 3.5, a PDU with a wrong header field ends the connection with C2HTermReq that names the error.
#[test]
fn each_header_field_wrong_once() {
    let rig = Rig::new();
    let fields: [(usize, u8, Fes); 9] = [
        (0, 0x0a, Fes::INVALID_HEADER_FIELD),
        (0, 0x07, Fes::INVALID_HEADER_FIELD),
        (0, 0x00, Fes::INVALID_HEADER_FIELD),
        (1, 0x01, Fes::INVALID_HEADER_FIELD),
        (1, 0x02, Fes::INVALID_HEADER_FIELD),
        (2, 0x10, Fes::INVALID_HEADER_FIELD),
        (3, 0x47, Fes::INVALID_HEADER_FIELD),
        (5, 0x00, Fes::INVALID_HEADER_FIELD),
        (7, 0x80, Fes::DATA_LIMIT_EXCEEDED),
    ];
    for (at, value, fes) in fields {
        let bytes = |link: &mut Link| {
            let mut bytes = link.capsule(&write_in_capsule(1, 0, 512), &[1; 512]);
            bytes[at] = value;
            bytes
        };
        let fes = if (at, value) == (0, 0) { Fes::PDU_SEQUENCE } else { fes };
        ends_with(&rig, Digests::NONE, bytes, fes);
    }
}

/// Change of an H2CData header, and the expected error.
type Wrong = (fn(&mut Data), Fes);

/// Conformance: TCP 3.5, data that no R2T asked for ends the connection with C2HTermReq.
#[test]
fn data_that_was_not_asked_for() {
    let rig = Rig::new();
    const BYTES: u32 = 65_536;
    let wrong: [Wrong; 6] = [
        (|data| data.ttag ^= 1, Fes::INVALID_HEADER_FIELD),
        (|data| data.ttag = u16::MAX, Fes::INVALID_HEADER_FIELD),
        (|data| data.cccid ^= 1, Fes::INVALID_HEADER_FIELD),
        (|data| data.offset = 4, Fes::DATA_OUT_OF_RANGE),
        (|data| data.offset = u32::MAX, Fes::DATA_OUT_OF_RANGE),
        (|data| data.last = false, Fes::INVALID_HEADER_FIELD),
    ];
    for (change, fes) in wrong {
        let bytes = |link: &mut Link| {
            let mut data = data_for(&asked(link, 7, BYTES), BYTES);
            change(&mut data);
            link.with_data(encode::h2c_data(data, link.digests, 4).as_bytes(), &[0; BYTES as usize])
        };
        ends_with(&rig, Digests::NONE, bytes, fes);
    }
    let too_much = |link: &mut Link| {
        let data = data_for(&asked(link, 7, BYTES), BYTES + 512);
        link.with_data(encode::h2c_data(data, link.digests, 4).as_bytes(), &[0; BYTES as usize + 512])
    };
    ends_with(&rig, Digests::NONE, too_much, Fes::DATA_OUT_OF_RANGE);
    let last_too_early = |link: &mut Link| {
        let data = Data { last: true, ..data_for(&asked(link, 7, BYTES), 512) };
        link.with_data(encode::h2c_data(data, link.digests, 4).as_bytes(), &[0; 512])
    };
    ends_with(&rig, Digests::NONE, last_too_early, Fes::INVALID_HEADER_FIELD);
    let unasked = |link: &mut Link| {
        let data = Data { cccid: 1, ttag: 1, offset: 0, length: 512, last: true, success: false };
        link.with_data(encode::h2c_data(data, link.digests, 4).as_bytes(), &[0; 512])
    };
    ends_with(&rig, Digests::NONE, unasked, Fes::INVALID_HEADER_FIELD);
}

/// Conformance: TCP 3.5, a wrong header digest ends the connection.
#[test]
fn a_wrong_header_digest_ends_the_connection() {
    let rig = Rig::new();
    let bytes = |link: &mut Link| {
        let mut bytes = link.capsule(&transfer(opcode::io::READ, 1, 0, 512), &[]);
        bytes[20] ^= 1;
        bytes
    };
    ends_with(&rig, BOTH, bytes, Fes::HEADER_DIGEST);
}

/// Conformance: TCP 3.5, a wrong data digest fails the command with Transient Transport Error, and nothing else.
#[test]
fn a_wrong_data_digest_fails_the_command_alone() {
    let rig = Rig::new();
    let mut host = Host::start(rig.address, DISK, BOTH, 1);
    let link = &mut host.io[0];
    assert_eq!(link.write(1, 0, &[1; 4096]), Status::SUCCESS);
    let mut bytes = link.capsule(&write_in_capsule(2, 0, 4096), &[2; 4096]);
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    link.send(&bytes);
    assert_eq!(link.response().status(), Status::TRANSIENT_TRANSPORT_ERROR);
    let r2t = asked(link, 3, 65_536);
    let head = encode::h2c_data(data_for(&r2t, 65_536), link.digests, 4);
    let mut bytes = link.with_data(head.as_bytes(), &[3; 65_536]);
    bytes[1000] ^= 1;
    link.send(&bytes);
    assert_eq!(link.response().status(), Status::TRANSIENT_TRANSPORT_ERROR);
    assert_eq!(link.read(4, 0, 4096), Ok(vec![1; 4096]), "neither was carried out");
}

#[test]
fn more_commands_than_the_queue_has_entries() {
    let rig = Rig::new();
    let mut host = Host::start(rig.address, SLOW, Digests::NONE, 1);
    let capsule = host.io[0].capsule(&transfer(opcode::io::READ, 1, 0, 512), &[]);
    let flood: Vec<u8> = capsule.iter().copied().cycle().take(capsule.len() * 200).collect();
    // The connection may be closed before all bytes are sent.
    let _ = host.io[0].stream.write_all(&flood);
    while let Some((pdu, _)) = host.io[0].next() {
        if let Pdu::Terminated(violation) = pdu {
            assert_eq!(violation.fes, Fes::PDU_SEQUENCE);
            return;
        }
    }
    panic!("a flood of commands is not noticed");
}

/// Conformance: TCP 3.2, a data pointer that a capsule cannot have fails its command with the status named for it.
#[test]
fn commands_with_impossible_data_pointers_fail_alone() {
    let rig = Rig::new();
    let mut host = Host::start(rig.address, DISK, Digests::NONE, 1);
    let link = &mut host.io[0];
    let write = transfer(opcode::io::WRITE, 1, 0, 4096);
    let cases = [
        (SubmissionEntry { dptr: in_capsule(4096), ..write }, Status::SGL_DATA_LENGTH_INVALID),
        (SubmissionEntry { dptr: apart((1 << 20) + 512), ..write }, Status::INVALID_FIELD),
        (SubmissionEntry { dptr: [4096, 0], flags: 0, ..write }, Status::INVALID_FIELD),
        (SubmissionEntry { dptr: [4096, 4096], ..write }, Status::SGL_TYPE_INVALID),
        (
            SubmissionEntry { dptr: apart(512), ..transfer(opcode::io::READ, 1, 0, 4096) },
            Status::SGL_DATA_LENGTH_INVALID,
        ),
        (SubmissionEntry { opcode: 0x7f, nsid: 9, ..write }, Status::INVALID_OPCODE),
        (SubmissionEntry { opcode: 0x83, ..write }, Status::INVALID_OPCODE),
    ];
    for (entry, status) in cases {
        assert_eq!(link.command(&entry).status(), status, "{entry:?}");
    }
    assert_eq!(link.write(2, 0, &[1; 4096]), Status::SUCCESS);
}

/// Conformance: Base 6.3, a Connect with a wrong parameter is refused with Connect Invalid Parameters and where that is.
#[test]
fn connect_commands_that_fail() {
    let rig = Rig::new();
    rig.list("nqn.2024-01.org.example:listed", &["nqn.2024-01.org.example:friend"]);
    let parameter = |parameter: InvalidParameter| (Status::CONNECT_INVALID_PARAMETERS, parameter.dw0());
    let good = Connect::admin(DISK);
    let cases = [
        (Connect { subnqn: "nqn.nobody".into(), ..good.clone() }, parameter(InvalidParameter::SUBNQN)),
        (Connect { subnqn: String::new(), ..good.clone() }, parameter(InvalidParameter::SUBNQN)),
        (Connect { hostnqn: "a\nb".into(), ..good.clone() }, parameter(InvalidParameter::HOSTNQN)),
        (
            Connect {
                hostnqn: String::new(),
                subnqn: "nqn.2024-01.org.example:listed".into(),
                ..good.clone()
            },
            (Status::CONNECT_INVALID_HOST, 0),
        ),
        (Connect { entries: 1, ..good.clone() }, parameter(InvalidParameter::SQSIZE)),
        (Connect { entries: 129, ..good.clone() }, parameter(InvalidParameter::SQSIZE)),
        (Connect { qid: 129, ..good.clone() }, parameter(InvalidParameter::QID)),
        (Connect { cntlid: 2, ..good.clone() }, parameter(InvalidParameter::CNTLID)),
        (Connect { recfmt: 1, ..good.clone() }, (Status::CONNECT_INCOMPATIBLE_FORMAT, 0)),
        (
            Connect { subnqn: "nqn.2024-01.org.example:listed".into(), ..good },
            (Status::CONNECT_INVALID_HOST, 0),
        ),
        (Connect::io(DISK, 1), parameter(InvalidParameter::CNTLID)),
    ];
    for (connect, (status, dw0)) in cases {
        let mut link = Link::open(rig.address, Digests::NONE);
        let response = link.connect(&connect);
        assert_eq!((response.status(), response.dw0), (status, dw0), "{connect:?}");
        assert!(link.is_over());
    }
}

/// Opens many connections that send no complete Connect command, and checks that other hosts can connect.
#[test]
fn a_flood_of_connections_that_never_come_to_the_point() {
    let rig = Rig::new();
    let mut idle: Vec<TcpStream> = Vec::new();
    for number in 0..600 {
        let mut stream = TcpStream::connect(rig.address).expect("somebody listens");
        let head =
            encode::ic_req(sluice_nvme_tcp::IcReq { alignment: 4, digests: Digests::NONE, r2t_max: 1 });
        // A part of the ICReq, all of it, or nothing.
        let part = [0, 1, 8, 100, 128][number % 5];
        let _ = stream.write_all(&head.as_bytes()[..part]);
        idle.push(stream);
        if number % 100 == 0 {
            let mut host = Host::start(rig.address, DISK, Digests::NONE, 1);
            assert_eq!(host.io[0].write(1, 0, &[1; 512]), Status::SUCCESS);
        }
    }
}

#[test]
fn garbage_instead_of_a_greeting() {
    let rig = Rig::new();
    for garbage in [&[0xff; 8][..], &[0; 200], b"GET / HTTP/1.1\r\n\r\n", &[4; 80]] {
        let mut stream = TcpStream::connect(rig.address).expect("somebody listens");
        stream.write_all(garbage).expect("room");
        // More bytes than are ever read, before and after the answer.
        stream.write_all(&[0; 5000]).expect("room");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("an end, and no reset");
        assert_eq!(answer.first(), Some(&3), "a termination request: {answer:?}");
        (0..3).for_each(|_| stream.write_all(&[0; 5000]).expect("it is there until we end it"));
    }
    let mut stream = TcpStream::connect(rig.address).expect("somebody listens");
    stream.write_all(&[&[2, 0, 24, 0, 24, 0, 0, 0][..], &[0; 16]].concat()).expect("room");
    assert_eq!(stream.read(&mut [0; 16]).expect("an end"), 0, "a termination request has no answer");
    drop(Host::start(rig.address, DISK, Digests::NONE, 1));
}

/// Disconnects hosts at different moments, and checks that nothing is left of them.
#[test]
fn hosts_that_vanish() {
    let rig = Rig::new();
    for round in 0..30u16 {
        let mut host = Host::start(rig.address, DISK, Digests::NONE, 3);
        for cid in 0..10 {
            let link = &mut host.io[usize::from(cid % 3)];
            link.submit(&transfer(opcode::io::READ, cid, 0, 128 << 10), &[]);
        }
        match round % 3 {
            // Within the data of a command.
            0 => {
                let r2t = loop {
                    host.io[0].submit(&transfer(opcode::io::WRITE, 99, 0, 65_536), &[]);
                    match host.io[0].next() {
                        Some((Pdu::R2t(r2t), _)) => break r2t,
                        Some(_) => {}
                        None => panic!("the end"),
                    }
                };
                let head = encode::h2c_data(data_for(&r2t, 65_536), Digests::NONE, 4);
                host.io[0].send(head.as_bytes());
                host.io[0].send(&[1; 1000]);
            }
            // Within a header.
            1 => host.io[1].send(&[4, 0, 72]),
            _ => {}
        }
    }
    let mut host = Host::start(rig.address, DISK, Digests::NONE, 3);
    assert_eq!(host.io[2].write(1, 0, &[1; 4096]), Status::SUCCESS);
    assert_eq!(rig.status().associations, 31);
}

/// Sends broken PDUs to one drive, while I/O of another host to the next drive is verified.
#[test]
fn the_neighbour_does_not_notice() {
    let rig = Rig::new();
    let address = rig.address;
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let neighbour = scope.spawn(|| {
            let mut host = Host::start(address, SLOW, BOTH, 1);
            let mut rounds = 0u8;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) || rounds < 3 {
                rounds = rounds.wrapping_add(1);
                assert_eq!(host.io[0].write(1, 8, &[rounds; 8192]), Status::SUCCESS);
                assert_eq!(host.io[0].read(2, 8, 8192), Ok(vec![rounds; 8192]));
            }
        });
        for round in 0..20usize {
            let mut host = Host::start(rig.address, DISK, Digests::NONE, 1);
            let mut bytes = host.io[0].capsule(&write_in_capsule(1, 0, 512), &[1; 512]);
            bytes[round % 8] ^= 0x80;
            let _ = host.io[0].stream.write_all(&bytes);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        neighbour.join().expect("its data is right");
    });
}
