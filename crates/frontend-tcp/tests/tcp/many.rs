//! Several hosts of one drive.

use super::host::{Connect, Host, Link, apart, entry, transfer};
use super::rig::{DISK, HOSTS, Rig, SLOW, eventually};
use sluice_frontend_tcp::Hosts;
use sluice_nvme::identify::IdentifyController;
use sluice_nvme::{Cns, Status, SubmissionEntry, opcode};
use sluice_nvme_tcp::Digests;
use zerocopy::FromBytes;

const FRIEND: &str = "nqn.2024-01.org.example:friend";

fn friend() -> Connect {
    Connect { hostnqn: FRIEND.into(), hostid: [9; 16], ..Connect::admin(DISK) }
}

fn identify(host: &mut Host) -> IdentifyController {
    IdentifyController::read_from_bytes(&host.admin.identify(Cns::CONTROLLER)).expect("4096 bytes")
}

#[test]
fn a_drive_has_as_many_hosts_as_it_may() {
    let rig = Rig::new();
    let hosts: Vec<Host> = (0..HOSTS).map(|_| Host::start(rig.address, DISK, Digests::NONE, 1)).collect();
    let mut late = Link::open(rig.address, Digests::NONE);
    let response = late.connect(&friend());
    assert_eq!(response.status(), Status::CONNECT_CONTROLLER_BUSY);
    assert!(late.is_over());
    let mut stranger = Link::open(rig.address, Digests::NONE);
    let connect = Connect { hostnqn: FRIEND.into(), ..Connect::io(DISK, 2) };
    assert_eq!(stranger.connect(&connect).status(), Status::CONNECT_INVALID_PARAMETERS);
    let mut again = Link::open(rig.address, Digests::NONE);
    assert_eq!(again.connect(&Connect::io(DISK, 1)).status(), Status::COMMAND_SEQUENCE_ERROR);
    drop(hosts);
    drop(Host::start(rig.address, DISK, Digests::NONE, 1));
}

/// Checks that two hosts use one drive, each through its own controller.
/// Conformance: Base 3.1.1, each association has a controller, whose identifier no other of the subsystem has.
#[test]
fn two_hosts_have_one_drive() {
    let rig = Rig::new();
    let mut one = Host::start(rig.address, DISK, Digests::NONE, 1);
    let mut other = Host::with(rig.address, friend(), Digests::NONE, 1);
    assert_eq!((one.cntlid, other.cntlid), (1, 2));
    assert_eq!(rig.status().hosts, [Connect::admin(DISK).hostnqn, FRIEND.to_owned()]);
    let (left, right) = (identify(&mut one), identify(&mut other));
    assert_eq!((left.cntlid, right.cntlid), (1, 2));
    assert_eq!((left.sn, left.subnqn, left.cmic), (right.sn, right.subnqn, right.cmic));
    assert_eq!(left.cmic & 0b10, 0b10, "CMIC: two or more controllers");
    assert_eq!(one.io[0].write(1, 8, &[5; 4096]), Status::SUCCESS);
    assert_eq!(other.io[0].read(1, 8, 4096), Ok(vec![5; 4096]));
    drop(one);
    eventually("the first is gone", || rig.status().hosts == [FRIEND]);
    assert_eq!(other.io[0].read(2, 8, 4096), Ok(vec![5; 4096]));
}

/// Checks that a host with several associations keeps its private namespace until the last one ends.
#[test]
fn a_private_namespace_stays_until_the_last_association_of_its_host_ends() {
    let rig = Rig::with_a_private_namespace();
    let mut one = Host::start(rig.address, DISK, Digests::NONE, 1);
    let mut other = Host::start(rig.address, DISK, Digests::NONE, 1);
    assert_eq!((one.admin.namespaces(), other.admin.namespaces()), (vec![1, 2], vec![1]));
    assert_eq!(one.io[0].write(1, 0, &[5; 4096]), Status::SUCCESS);
    let event = SubmissionEntry { opcode: opcode::admin::ASYNC_EVENT_REQUEST, nsid: 0, ..entry(9) };
    other.admin.submit(&event, &[]);
    drop(one);
    let told = other.admin.response();
    assert_eq!((told.cid, told.dw0), (9, 0x0004_0002), "Namespace Attribute Changed");
    assert_eq!(other.admin.namespaces(), [1, 2]);
    let zeroes = transfer(opcode::io::WRITE_ZEROES, 4, 0, 512);
    let zeroes = SubmissionEntry { nsid: 2, dptr: apart(0), ..zeroes };
    assert_eq!(other.io[0].command(&zeroes).status(), Status::SUCCESS);
    drop(other);
    rig.wait_for_nobody();
    eventually("it has the namespace again", || {
        Host::start(rig.address, DISK, Digests::NONE, 1).admin.namespaces() == [1, 2]
    });
}

/// Connects and drops a host with commands in flight, while I/O of another is verified.
#[test]
fn a_host_that_vanishes_takes_nothing_from_another() {
    let rig = Rig::new();
    let mut steady = Host::with(rig.address, friend(), Digests::NONE, 2);
    for round in 0..40u16 {
        let mut hasty = Host::start(rig.address, DISK, Digests::NONE, 2);
        for cid in 0..20 {
            hasty.io[usize::from(cid % 2)].submit(&transfer(opcode::io::READ, cid, 0, 128 << 10), &[]);
        }
        let data = vec![round as u8; 64 << 10];
        for queue in 0..2 {
            let slba = 2048 + queue as u64 * 1024;
            assert_eq!(steady.io[queue].write(round, slba, &data), Status::SUCCESS, "round {round}");
        }
        drop(hasty);
        for queue in 0..2 {
            let slba = 2048 + queue as u64 * 1024;
            assert!(steady.io[queue].read(round, slba, 64 << 10) == Ok(data.clone()), "round {round}");
        }
    }
    assert_eq!(rig.status().associations, 41);
}

/// Checks that commands of one host do not keep another host alive.
#[test]
fn a_host_that_falls_silent_is_given_up_while_another_is_busy() {
    let rig = Rig::new();
    let mut one = Host::start(rig.address, SLOW, Digests::NONE, 1);
    let busy = Connect { subnqn: SLOW.to_owned(), ..friend() };
    let mut other = Host::with(rig.address, busy, Digests::NONE, 1);
    one.set_keep_alive(300);
    eventually("the first is gone", || {
        other.io[0].read(1, 0, 4096).expect("a read");
        rig.ask(SLOW, |drive| Hosts::status_of(drive).expect("hosts may come").hosts) == [FRIEND]
    });
    assert!(one.io[0].is_over() && one.admin.is_over());
}

#[test]
fn a_host_may_ask_for_a_controller() {
    let rig = Rig::new();
    let hosts = [(); 2].map(|()| Host::start(rig.address, DISK, Digests::NONE, 1));
    assert_eq!(hosts.each_ref().map(|host| host.cntlid), [1, 2]);
    let [one, other] = hosts;
    drop(one);
    eventually("the first is gone", || rig.status().hosts.len() == 1);
    let busy = Link::open(rig.address, Digests::NONE).connect(&Connect { cntlid: 2, ..friend() });
    assert_eq!(busy.status(), Status::CONNECT_CONTROLLER_BUSY);
    drop(other);
    rig.wait_for_nobody();
    let again = Host::with(rig.address, Connect { cntlid: 2, ..friend() }, Digests::NONE, 1);
    assert_eq!(again.cntlid, 2);
}
