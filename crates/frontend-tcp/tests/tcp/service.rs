//! Service for conforming hosts.

use super::host::{
    CC_ENABLE, Connect, Host, Link, apart, entry, fabrics, in_capsule, transfer, write_in_capsule,
};
use super::rig::{DISK, QUEUES, Rig, SIZE, SLOW, eventually};
use sluice_frontend::Drive;
use sluice_frontend_tcp::Hosts;
use sluice_nvme::fabrics::{Fctype, InvalidParameter};
use sluice_nvme::identify::IdentifyController;
use sluice_nvme::register::{self, csts};
use sluice_nvme::{FeatureId, Status, SubmissionEntry, opcode};
use sluice_nvme_tcp::{Digests, Pdu};
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

const ALL_DIGESTS: [Digests; 4] = [
    Digests::NONE,
    Digests { header: true, data: false },
    Digests { header: false, data: true },
    Digests { header: true, data: true },
];

/// Random number generator that is simple, and good enough for test patterns.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Conformance: TCP 3.3, data go in the capsule, and in answer to R2T, and come in C2HData, with and without digests.
#[test]
fn what_is_written_is_read_whatever_the_sizes_and_digests() {
    let rig = Rig::new();
    let mut model = vec![0u8; SIZE as usize];
    for (round, digests) in ALL_DIGESTS.into_iter().enumerate() {
        let mut host = Host::start(rig.address, DISK, digests, 2);
        let mut random = Random(7 + round as u64);
        for cid in 0..60u16 {
            let blocks = 1 + [8, 17, 64, 512, 2048][random.below(5) as usize].min(random.below(2048));
            let slba = random.below(SIZE / 512 - blocks);
            let range = (slba * 512) as usize..((slba + blocks) * 512) as usize;
            let link = &mut host.io[usize::from(cid % 2)];
            if random.below(2) == 0 {
                let byte = random.below(256) as u8;
                let data: Vec<u8> = (0..range.len()).map(|at| byte ^ (at / 512) as u8).collect();
                assert_eq!(link.write(cid, slba, &data), Status::SUCCESS);
                model[range].copy_from_slice(&data);
            } else {
                let data = link.read(cid, slba, range.len() as u32).expect("a read");
                assert!(data == model[range], "{blocks} blocks from {slba}, {digests:?}");
            }
        }
        drop(host);
        rig.wait_for_nobody();
    }
}

/// Checks that a host with an empty NQN can use a drive without a list of hosts. Benchmark clients send an
/// empty NQN.
#[test]
fn a_host_without_a_name_is_served_where_any_may_come() {
    let rig = Rig::new();
    let nameless = Connect { hostnqn: String::new(), ..Connect::admin(DISK) };
    let mut host = Host::with(rig.address, nameless, Digests::NONE, 1);
    assert_eq!(rig.status().hosts, [""]);
    assert_eq!(host.io[0].write(1, 8, &[5; 4096]), Status::SUCCESS);
    assert_eq!(host.io[0].read(2, 8, 4096), Ok(vec![5; 4096]));
}

/// Conformance: TCP 3.3, data of several commands may be sent in any order.
#[test]
fn many_commands_are_outstanding_and_their_data_comes_in_any_order() {
    let rig = Rig::new();
    let mut host = Host::start(rig.address, DISK, Digests::NONE, 1);
    let link = &mut host.io[0];
    const COUNT: u16 = 20;
    const BYTES: u32 = 512 << 10;
    // Ten megabytes exceed the buffer pool of a connection, so some commands wait.
    for cid in 0..COUNT {
        link.submit(&transfer(opcode::io::WRITE, cid, u64::from(cid) * 1024, BYTES), &[]);
    }
    let (mut asked, mut answered) = (Vec::new(), 0);
    while answered < COUNT {
        match link.next() {
            Some((Pdu::R2t(r2t), _)) => asked.push(r2t),
            Some((Pdu::Response(entry), _)) => {
                assert_eq!(entry.status(), Status::SUCCESS);
                answered += 1;
            }
            other => panic!("{other:?}"),
        }
        // The latest R2T is answered first.
        if let Some(r2t) = asked.pop() {
            let payload = vec![r2t.cccid as u8; BYTES as usize];
            let data = sluice_nvme_tcp::Data {
                cccid: r2t.cccid,
                ttag: r2t.ttag,
                offset: 0,
                length: BYTES,
                last: true,
                success: false,
            };
            let head = sluice_nvme_tcp::encode::h2c_data(data, link.digests, 4);
            let bytes = link.with_data(head.as_bytes(), &payload);
            link.send(&bytes);
        }
    }
    for cid in 0..COUNT {
        let data = link.read(cid, u64::from(cid) * 1024, BYTES).expect("a read");
        assert!(data.iter().all(|byte| *byte == cid as u8), "the data of command {cid}");
    }
}

#[test]
fn a_host_that_does_not_read_holds_up_nobody() {
    let rig = Rig::new();
    let mut lazy = Host::start(rig.address, DISK, Digests::NONE, 1);
    let mut other = Host::start(rig.address, SLOW, Digests::NONE, 1);
    const COUNT: u16 = 30;
    for cid in 0..COUNT {
        lazy.io[0].submit(&transfer(opcode::io::READ, cid, 0, 1 << 20), &[]);
    }
    for cid in 0..5 {
        other.io[0].read(cid, 0, 4096).expect("the other drive answers");
    }
    let mut answered = 0;
    while answered < COUNT {
        match lazy.io[0].next() {
            Some((Pdu::Data(data), payload)) => assert_eq!(payload.len(), data.length as usize),
            Some((Pdu::Response(entry), _)) => {
                assert_eq!(entry.status(), Status::SUCCESS);
                answered += 1;
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Conformance: Base 5.17.2.1, IOCCSZ, IORCSZ, ICDOFF, MAXCMD and KAS are there for Fabrics.
#[test]
fn identify_says_what_is_so_over_tcp() {
    let rig = Rig::new();
    let mut host = Host::start(rig.address, DISK, Digests::NONE, 0);
    let cap = host.admin.get_property(register::CAP, 8);
    assert_eq!(cap & 0xffff, 127, "MQES");
    assert_ne!(cap >> 16 & 1, 0, "CQR");
    assert_ne!(cap >> 37 & 1, 0, "CSS, the NVM command set");
    let identify = SubmissionEntry {
        opcode: opcode::admin::IDENTIFY,
        cdw10: 1,
        dptr: apart(4096),
        ..transfer(0, 3, 0, 512)
    };
    let identify = SubmissionEntry { nsid: 0, cdw11: 0, cdw12: 0, ..identify };
    host.admin.submit(&identify, &[]);
    let Some((Pdu::Data(_), bytes)) = host.admin.next() else { panic!("no data") };
    assert_eq!(host.admin.response().status(), Status::SUCCESS);
    let page = IdentifyController::read_from_bytes(&bytes).expect("4096 bytes");
    assert_eq!((page.cntlid, page.maxcmd, page.ioccsz, page.iorcsz), (1, 128, (64 + 8192) / 16, 1));
    assert_eq!((page.icdoff, page.fcatt, page.msdbd), (0, 0, 1));
    assert_eq!(page.oacs & 1 << 8, 0, "Doorbell Buffer Config");
    assert_ne!(page.kas, 0);
    assert_eq!(page.sgls, 1 | 1 << 20 | 1 << 21);
    assert!(page.subnqn.starts_with(DISK.as_bytes()));
    // These commands exist on memory-based transports only.
    for opcode in [0x00, 0x01, 0x04, 0x05, 0x7c] {
        let entry = SubmissionEntry { opcode, dptr: apart(0), ..identify };
        assert_eq!(host.admin.command(&entry).status(), Status::INVALID_OPCODE, "opcode {opcode:#x}");
    }
}

/// Conformance: TCP 3.3, a C2HData with SUCCESS stands for the response where the host disabled flow control.
#[test]
fn a_success_needs_no_response_where_the_host_says_so() {
    let rig = Rig::new();
    let connect = Connect { cattr: 1 << 2, ..Connect::admin(DISK) };
    let mut host = Host::with(rig.address, connect, Digests::NONE, 1);
    host.io[0].submit(&transfer(opcode::io::READ, 5, 0, 4096), &[]);
    let Some((Pdu::Data(data), _)) = host.io[0].next() else { panic!("no data") };
    assert!(data.success && data.last);
    let beyond = host.io[0].read(6, SIZE / 512, 4096);
    assert_eq!(beyond, Err(Status::LBA_OUT_OF_RANGE));
}

/// Conformance: Base 3.5, over Fabrics, commands other than Fabrics commands are refused before the controller is ready.
#[test]
fn commands_wait_for_a_controller_that_is_ready() {
    let rig = Rig::new();
    let mut admin = Link::open(rig.address, Digests::NONE);
    assert_eq!(admin.connect(&Connect::admin(DISK)).status(), Status::SUCCESS);
    let keep_alive = SubmissionEntry { opcode: opcode::admin::KEEP_ALIVE, ..fabrics(Fctype(0)) };
    assert_eq!(admin.command(&keep_alive).status(), Status::COMMAND_SEQUENCE_ERROR);
    let mut early = Link::open(rig.address, Digests::NONE);
    assert_eq!(early.connect(&Connect::io(DISK, 1)).status(), Status::COMMAND_SEQUENCE_ERROR);
    admin.enable();
    assert_eq!(admin.command(&keep_alive).status(), Status::SUCCESS);
    let mut io = Link::open(rig.address, Digests::NONE);
    assert_eq!(io.connect(&Connect::io(DISK, 1)).status(), Status::SUCCESS);
    // Disabling the controller ends the I/O queues. It can be enabled again.
    assert_eq!(admin.set_property(register::CC, CC_ENABLE & !1), Status::SUCCESS);
    assert!(io.is_over());
    eventually("the controller is disabled", || {
        admin.get_property(register::CSTS, 4) as u32 & csts::RDY == 0
    });
    eventually("it is enabled again", || admin.set_property(register::CC, CC_ENABLE) == Status::SUCCESS);
    let mut io = Link::open(rig.address, Digests::NONE);
    assert_eq!(io.connect(&Connect::io(DISK, 1)).status(), Status::SUCCESS);
    assert_eq!(io.write(1, 0, &[1; 4096]), Status::SUCCESS);
}

/// Sends a reservation command with its keys.
fn order(io: &mut Link, opcode: u8, cdw10: u32, keys: [u64; 2]) -> Status {
    let entry = SubmissionEntry { opcode, nsid: 1, cdw10, dptr: in_capsule(16), ..entry(9) };
    io.submit(&entry, keys.as_bytes());
    io.response().status()
}

/// Conformance: Base 7.1, a host on a fabric keeps its identifier, and so its reservation, over a controller reset.
#[test]
fn a_reservation_survives_a_reset_of_its_holders_controller() {
    const WRITE_EXCLUSIVE: u32 = 1 << 8;
    let rig = Rig::new();
    let mut host = Host::start(rig.address, DISK, Digests::NONE, 1);
    let hostnqn = "nqn.2024-01.org.example:other".to_owned();
    let other = Connect { hostnqn, hostid: [9; 16], ..Connect::admin(DISK) };
    let mut other = Host::with(rig.address, other, Digests::NONE, 1);
    let io = &mut host.io[0];
    assert_eq!(order(io, opcode::io::RESERVATION_REGISTER, 0, [0, 5]), Status::SUCCESS);
    assert_eq!(order(io, opcode::io::RESERVATION_ACQUIRE, WRITE_EXCLUSIVE, [5, 0]), Status::SUCCESS);
    assert_eq!(host.admin.set_property(register::CC, CC_ENABLE & !1), Status::SUCCESS);
    assert!(host.io[0].is_over());
    eventually("it is enabled again", || host.admin.set_property(register::CC, CC_ENABLE) == Status::SUCCESS);
    let mut io = Link::open(rig.address, Digests::NONE);
    let connect = Connect { cntlid: host.cntlid, ..Connect::io(DISK, 1) };
    assert_eq!(io.connect(&connect).status(), Status::SUCCESS);
    assert_eq!(io.write(1, 0, &[1; 4096]), Status::SUCCESS, "the holder's own");
    assert_eq!(other.io[0].write(1, 0, &[2; 4096]), Status::RESERVATION_CONFLICT);
    assert_eq!(order(&mut io, opcode::io::RESERVATION_RELEASE, WRITE_EXCLUSIVE, [5, 0]), Status::SUCCESS);
    assert_eq!(other.io[0].write(1, 0, &[2; 4096]), Status::SUCCESS);
}

/// Conformance: Base 6.4, a Disconnect ends an I/O queue, which can be connected again.
#[test]
fn a_queue_comes_and_goes_by_itself() {
    let rig = Rig::new();
    let mut host = Host::start(rig.address, DISK, Digests::NONE, 1);
    for round in 0..20u8 {
        assert_eq!(host.io[0].write(1, 0, &[round; 512]), Status::SUCCESS);
        if round % 2 == 0 {
            // A write in the same segment of the stream is not executed, and has no response.
            let disconnect = host.io[0].capsule(&fabrics(Fctype::DISCONNECT), &[]);
            let behind = host.io[0].capsule(&write_in_capsule(6, 0, 512), &[0xee; 512]);
            host.io[0].send(&[disconnect, behind].concat());
            let response = host.io[0].response();
            assert_eq!((response.cid, response.status()), (77, Status::SUCCESS));
            assert!(host.io[0].is_over());
        }
        let mut next = Link::open(rig.address, Digests::NONE);
        drop(host.io.pop());
        assert_eq!(next.connect(&Connect::io(DISK, 1)).status(), Status::SUCCESS);
        assert_eq!(next.read(1, 0, 512), Ok(vec![round; 512]));
        host.io.push(next);
    }
    assert_eq!(host.admin.command(&fabrics(Fctype::DISCONNECT)).status(), Status::INVALID_QUEUE_TYPE);
    assert_eq!(host.io[0].write(1, 0, &[0; 512]), Status::SUCCESS);
}

/// Conformance: Base 5.27.1.5, a host may have as many I/O queues as Number of Queues says, however many it asks for.
#[test]
fn a_host_has_at_most_the_queues_that_it_was_granted() {
    let rig = Rig::new();
    let mut host = Host::start(rig.address, DISK, Digests::NONE, QUEUES);
    let queues = u32::from(FeatureId::NUMBER_OF_QUEUES.0);
    let set = |host: &mut Host, count: u32| {
        let (opcode, count) = (opcode::admin::SET_FEATURES, count - 1);
        host.admin.command(&SubmissionEntry {
            opcode,
            cdw10: queues,
            cdw11: count << 16 | count,
            ..entry(80)
        })
    };
    let mut another = Host::start(rig.address, DISK, Digests::NONE, 0);
    for count in [1, QUEUES.into(), 100] {
        let granted = u32::from(QUEUES) - 1;
        let response = set(&mut another, count);
        assert_eq!((response.status(), response.dw0), (Status::SUCCESS, granted << 16 | granted), "{count}");
    }
    let mut link = Link::open(rig.address, Digests::NONE);
    let response = link.connect(&Connect { cntlid: host.cntlid, ..Connect::io(DISK, QUEUES + 1) });
    let refused = (Status::CONNECT_INVALID_PARAMETERS, InvalidParameter::QID.dw0());
    assert_eq!((response.status(), response.dw0), refused);
    assert_eq!(rig.status().refused, 1, "the queue");
    for link in &mut host.io {
        assert_eq!(link.write(1, 0, &[1; 4096]), Status::SUCCESS, "the others go on");
    }
}

/// Conformance: Base 3.9, over Fabrics a host whose keep alive timer expires loses its association.
#[test]
fn a_host_that_falls_silent_is_given_up() {
    let rig = Rig::new();
    let connect = Connect { kato_ms: 2000, ..Connect::admin(DISK) };
    let mut host = Host::with(rig.address, connect, Digests::NONE, 1);
    assert!(host.io[0].is_over());
    assert!(host.admin.is_over());
    rig.wait_for_nobody();
    drop(Host::start(rig.address, DISK, Digests::NONE, 1));
}

/// Conformance: Base 3.6, over Fabrics a controller can be shut down.
#[test]
fn a_shutdown_is_carried_out_when_the_queues_are_gone() {
    let rig = Rig::new();
    let mut host = Host::start(rig.address, DISK, Digests::NONE, 2);
    host.io.clear();
    assert_eq!(host.admin.set_property(register::CC, CC_ENABLE | 1 << 14), Status::SUCCESS);
    let done = |csts: u64| csts as u32 & csts::SHST_MASK == csts::SHST_COMPLETE;
    eventually("the shutdown is over", || done(host.admin.get_property(register::CSTS, 4)));
}

/// Checks that a reconnected host has no earlier command in flight, which could overtake a repeated one.
#[test]
fn a_host_that_comes_back_finds_nothing_of_its_own_under_way() {
    let rig = Rig::new();
    let is_gone = |drive: &mut Drive| Hosts::status_of(drive).expect("hosts may come").hosts.is_empty();
    for _ in 0..5 {
        let mut host = Host::start(rig.address, SLOW, Digests::NONE, 1);
        for cid in 0..8 {
            host.io[0].submit(&transfer(opcode::io::READ, cid, 0, 4096), &[]);
        }
        drop(host);
        eventually("it is seen to be gone", || rig.ask(SLOW, is_gone));
        let mut link = Link::open(rig.address, Digests::NONE);
        assert_eq!(link.connect(&Connect::admin(SLOW)).status(), Status::SUCCESS);
        assert_eq!(rig.ask(SLOW, |drive| drive.unfinished()), 0);
        drop(link);
        eventually("it is seen to be gone", || rig.ask(SLOW, is_gone));
    }
}

#[test]
fn a_drain_answers_what_was_taken() {
    let rig = Rig::new();
    drain(&rig, 0);
}

/// Drains longer than the keep-alive timeout, although no Keep Alive command is taken meanwhile.
#[test]
fn a_drain_answers_what_takes_longer_than_a_host_may_be_silent() {
    let rig = Rig::with_reads_of(Duration::from_secs(6));
    drain(&rig, 2000);
}

fn drain(rig: &Rig, keep_alive_ms: u32) {
    let mut host = Host::start(rig.address, SLOW, Digests::NONE, 1);
    for cid in 0..8 {
        host.io[0].submit(&transfer(opcode::io::READ, cid, 0, 4096), &[]);
    }
    eventually("the commands are taken", || rig.ask(SLOW, |drive| drive.unfinished()) == 8);
    host.set_keep_alive(keep_alive_ms);
    rig.ask(SLOW, |drive| drive.drain(0));
    let mut answered = 0;
    while let Some((pdu, _)) = host.io[0].next() {
        answered += usize::from(matches!(pdu, Pdu::Response(_)));
    }
    assert_eq!(answered, 8);
    assert!(host.admin.is_over());
    eventually("it is drained", || rig.ask(SLOW, |drive| drive.is_drained()));
}
