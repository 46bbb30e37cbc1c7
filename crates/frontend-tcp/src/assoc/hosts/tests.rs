//! Decisions about connections, with hosts that are connected over pairs of sockets.

use super::super::slot::SlotState;
use super::*;
use crate::conn::{Agreed, Connection, Context, Outcome, QueueMemory, SILENCE_NS};
use sluice_controller::{Config as ControllerConfig, Identity};
use sluice_nvme::CompletionEntry;
use sluice_nvme::fabrics::Connect;
use sluice_nvme_tcp::Digests;
use sluice_reactor::{ReactorConfig, ReactorHandle};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use zerocopy::FromBytes;

const QUEUES: u16 = 8;

/// First controller identifier of the hosts.
const FIRST: u16 = 3;

fn new_subsystem() -> Subsystem {
    let identity = Identity {
        subnqn: "nqn.2024-01.org.example:disk".to_owned(),
        serial: "1".to_owned(),
        model: "test".to_owned(),
        firmware: "1".to_owned(),
    };
    Subsystem::new(ControllerConfig { identity, namespaces: Vec::new() }).expect("memory")
}

/// Runs steps with the hosts of a new drive, all in one turn of its reactor.
fn with_hosts<R: Send + 'static>(
    hosts_max: u8,
    run: impl FnOnce(&mut Hosts, &mut Subsystem) -> R + Send + 'static,
) -> R {
    let reactor = ReactorHandle::start(ReactorConfig::default()).expect("a reactor");
    let subsystem = new_subsystem();
    let result = reactor.call(move |local| {
        let task = local.add(|task, io| {
            let mut drive = Drive::new(task, io, subsystem);
            let config = Config { name: "disk".to_owned(), cntlid: FIRST, hosts_max, queues_max: QUEUES };
            Hosts::admit(&mut drive, config).expect("it has no other front-end");
            Box::new(drive)
        });
        let drive = local.task_mut::<Drive>(task).expect("it is there");
        let result = drive.frontend_mut::<Hosts>().map(|(hosts, subsystem)| run(hosts, subsystem));
        drop(local.remove(task));
        result
    });
    reactor.stop();
    result.expect("the reactor runs").expect("hosts are admitted")
}

/// Returns a connection with a Connect command, and the end of its host.
fn connect(nqn: &str, id: u8, qid: u16, cntlid: u16) -> (AcceptedConnect, UnixStream) {
    let (near, far) = UnixStream::pair().expect("sockets");
    let connect = Connect { recfmt: 0, qid, entries: 32, cattr: 0, kato_ms: 0 };
    let address = "127.0.0.1:1".parse().expect("an address");
    let accepted = AcceptedConnect {
        socket: OwnedFd::from(near),
        tls: None,
        peer: address,
        port: address,
        host: Host { nqn: nqn.to_owned(), id: [id; 16] },
        cntlid,
        connect,
        agreed: Agreed { digests: Digests::NONE, alignment: 4, sq_entries: Some(32) },
        entry: sluice_nvme::SubmissionEntry { cid: 9, ..connect.entry() },
        memory: QueueMemory::new(qid, 31).expect("memory"),
        auth: None,
    };
    (accepted, far)
}

/// Returns the decision about a connection that is dropped then.
fn decided(hosts: &Hosts, nqn: &str, id: u8, qid: u16, cntlid: u16) -> Decision {
    hosts.decide(&connect(nqn, id, qid, cntlid).0)
}

/// Returns the response to a Connect command, which ends the connection.
fn response(mut far: UnixStream) -> CompletionEntry {
    let mut bytes = Vec::new();
    far.read_to_end(&mut bytes).expect("the end");
    CompletionEntry::read_from_bytes(&bytes[8..]).expect("a response capsule")
}

fn is_invalid(decision: &Decision, parameter: InvalidParameter) -> bool {
    matches!(decision, Decision::Refuse(refusal) if refusal.dw0 == parameter.dw0())
}

/// Conformance: Base 6.3, a Connect names its controller, or any; an I/O queue names the one of its association.
#[test]
fn a_connection_gets_its_controller() {
    let (before, after, draining) = with_hosts(2, |hosts, subsystem| {
        let all = |hosts: &Hosts| {
            [
                decided(hosts, "nqn.b", 2, 0, CNTLID_DYNAMIC),
                decided(hosts, "nqn.b", 2, 0, FIRST),
                decided(hosts, "nqn.b", 2, 0, FIRST + 1),
                decided(hosts, "nqn.b", 2, 0, FIRST + 2),
                decided(hosts, "nqn.b", 2, 0, FIRST - 1),
                decided(hosts, "nqn.a", 1, 1, FIRST),
                decided(hosts, "nqn.a", 1, QUEUES, FIRST),
                decided(hosts, "nqn.a", 1, QUEUES + 1, FIRST),
                decided(hosts, "nqn.b", 1, 1, FIRST),
                decided(hosts, "nqn.a", 2, 1, FIRST),
                decided(hosts, "nqn.a", 1, 1, FIRST + 1),
                decided(hosts, "nqn.a", 1, 1, CNTLID_DYNAMIC),
            ]
        };
        let before = all(hosts);
        hosts.enqueue(connect("nqn.a", 1, 0, CNTLID_DYNAMIC).0, 0);
        assert_eq!(hosts.admit_pending(subsystem, 0), 1);
        let after = all(hosts);
        hosts.drain(subsystem, 0);
        (before, after, decided(hosts, "nqn.b", 2, 0, CNTLID_DYNAMIC))
    });
    use InvalidParameter as Parameter;
    assert_eq!(before[..2], [Decision::Admit(0), Decision::Admit(0)]);
    // The second controller is made after the first.
    assert!(before[2..].iter().all(|decision| is_invalid(decision, Parameter::CNTLID)), "{before:?}");
    assert_eq!(after[..3], [Decision::Admit(1), Decision::Wait(BUSY), Decision::Admit(1)]);
    let expected = [
        (3, Parameter::CNTLID),
        (4, Parameter::CNTLID),
        (7, Parameter::QID),
        (8, Parameter::HOSTNQN),
        (9, Parameter::HOSTID),
        (10, Parameter::CNTLID),
        (11, Parameter::CNTLID),
    ];
    for (number, parameter) in expected {
        assert!(is_invalid(&after[number], parameter), "{number}: {:?}", after[number]);
    }
    assert_eq!(after[5..7], [Decision::Admit(0), Decision::Admit(0)]);
    assert_eq!(draining, Decision::Wait(BUSY));
}

#[test]
fn a_host_without_a_controller_waits_two_seconds_and_is_refused() {
    const END: u64 = 2_000_000_005;
    let (busy, deadlines, works, status, far) = with_hosts(1, |hosts, subsystem| {
        let (first, _first) = connect("nqn.a", 1, 0, CNTLID_DYNAMIC);
        hosts.enqueue(first, 5);
        hosts.admit_pending(subsystem, 5);
        let busy = decided(hosts, "nqn.b", 2, 0, CNTLID_DYNAMIC);
        let (second, far) = connect("nqn.b", 2, 0, CNTLID_DYNAMIC);
        hosts.enqueue(second, 5);
        let mut works = vec![hosts.admit_pending(subsystem, 5), hosts.admit_pending(subsystem, END - 1)];
        let mut deadlines = vec![hosts.deadline_ns(subsystem)];
        works.push(hosts.admit_pending(subsystem, END));
        deadlines.push(hosts.pending.until_ns());
        (busy, deadlines, works, hosts.status(), far)
    });
    assert_eq!((busy, works), (Decision::Wait(BUSY), vec![0, 0, 1]));
    assert_eq!(deadlines, [Some(END), None]);
    assert_eq!((status.hosts, status.associations, status.refused), (vec!["nqn.a".to_owned()], 1, 1));
    assert_eq!((status.connections, status.authenticated.len(), status.ciphers.len()), (1, 0, 0));
    let response = response(far);
    assert_eq!((response.cid, response.status()), (9, BUSY.status));
}

/// Conformance: Base 6.3, an I/O queue is refused before its controller is enabled.
#[test]
fn an_io_queue_needs_an_enabled_controller() {
    let (works, refused, far) = with_hosts(2, |hosts, subsystem| {
        hosts.enqueue(connect("nqn.a", 1, 0, CNTLID_DYNAMIC).0, 0);
        hosts.admit_pending(subsystem, 0);
        // The controller is not enabled, so it has no I/O queue.
        let (queue, far) = connect("nqn.a", 1, 1, FIRST);
        hosts.enqueue(queue, 0);
        let works = hosts.admit_pending(subsystem, 0);
        let connected = hosts.status().connections;
        ((works, connected), hosts.shared.refused, far)
    });
    assert_eq!((works, refused), ((1, 1), 1));
    let response = response(far);
    assert_eq!(response.status(), sluice_nvme::Status::COMMAND_SEQUENCE_ERROR);
}

/// Checks how many controllers may have commands of one host that has gone: half of them, and four at most.
#[test]
fn a_host_that_has_gone_leaves_controllers_for_others() {
    for (hosts_max, expected) in [(1, 1), (2, 1), (3, 1), (4, 2), (8, 4), (255, 4)] {
        let found = with_hosts(hosts_max, |hosts, _| (hosts.most(), hosts.leaving_max()));
        assert_eq!(found, (hosts_max.into(), expected));
    }
}

/// Checks a host that disconnects: its controller is free when nothing of it is in flight, and it may come again.
#[test]
fn a_controller_is_free_when_its_host_is_gone() {
    let found = with_hosts(1, |hosts, subsystem| {
        let (first, _first) = connect("nqn.a", 1, 0, CNTLID_DYNAMIC);
        hosts.enqueue(first, 0);
        hosts.admit_pending(subsystem, 0);
        let connected = (hosts.is_vacant(), hosts.slots[0].is_leaving(), hosts.look_ahead());
        let Hosts { slots, shared, .. } = hosts;
        slots[0].disconnect(CloseReason::ByServer, subsystem, shared, 0);
        let leaving = (hosts.is_vacant(), hosts.slots[0].is_leaving());
        let own = Host { nqn: "nqn.a".to_owned(), id: [1; 16] };
        let other = Host { id: [2; 16], ..own.clone() };
        let counts = (hosts.leaving_of(&own), hosts.leaving_of(&other));
        let decisions =
            [decided(hosts, "nqn.a", 1, 0, CNTLID_DYNAMIC), decided(hosts, "nqn.b", 2, 0, CNTLID_DYNAMIC)];
        (connected, leaving, counts, decisions, hosts.status().hosts.len())
    });
    let (connected, leaving, counts, decisions, listed) = found;
    assert_eq!((connected, leaving, counts), ((false, false, true), (false, true), (1, 0)));
    assert_eq!(decisions, [Decision::Wait(STILL_LEAVING), Decision::Wait(BUSY)]);
    assert_eq!(listed, 0);
}

/// Runs steps with an association of these queues, each of which has received something at ten times its number. The
/// Connect command of the last queue is not answered.
fn with_queues<R: Send + 'static>(
    last: u16,
    run: impl FnOnce(&mut Association, &mut TcpController, &mut Subsystem) -> R + Send + 'static,
) -> R {
    with_hosts(1, move |hosts, subsystem| {
        hosts.make_controller(0, subsystem, 0);
        let Hosts { slots, shared, .. } = hosts;
        let (slot, owner) = (&mut slots[0], slots_owner(shared));
        let host = Host { nqn: "nqn.a".to_owned(), id: [1; 16] };
        let mut association = Association::new(host, "127.0.0.1:1".parse().expect("an address"), 0);
        for qid in 0..=last {
            let (accepted, _) = connect("nqn.a", 1, qid, FIRST);
            let connection = Connection::new(accepted, shared.io.clone(), shared.task, owner);
            let mut connection = connection.expect("a connection");
            let TcpController { controller, space, .. } = &mut *slot;
            connection.memory.map(space).expect("room");
            if qid < last {
                connection.answer(0, Outcome::default());
                connection.start();
                connection.sent(24).expect("it is open");
            }
            let now_ns = u64::from(qid) * 10;
            let mut context = Context { controller, subsystem: &mut *subsystem, space, kato_ms: 0, now_ns };
            // A part of a header, which the decoder holds.
            connection.received(4, &mut context).expect("it is open");
            assert_eq!(connection.take_staged(&mut context), Ok(0));
            association.connections.insert(qid, connection);
        }
        let result = run(&mut association, slot, subsystem);
        // Operations that were started here may end later than this.
        std::mem::forget(association);
        result
    })
}

fn slots_owner(shared: &Shared) -> crate::token::Owner {
    crate::token::Owner { frontend: shared.frontend, controller: 0 }
}

/// Checks when idle queues are looked at: one is reclaimed at a time, and one with a command a second later.
#[test]
fn memory_of_idle_queues_is_reclaimed_one_after_the_other() {
    const PAUSE_NS: u64 = 10_000_000;
    for (times, expected) in [
        ([9, 20, 30, 40, 50], [10, 30, 40, 40 + SILENCE_NS, 50 + SILENCE_NS]),
        (
            [99, 100, 101, 102, 103],
            [99 + PAUSE_NS, 100 + PAUSE_NS, 101 + SILENCE_NS, 102 + SILENCE_NS, 103 + SILENCE_NS],
        ),
    ] {
        let (first, looks) = with_queues(4, move |association, _, _| {
            association.schedule_look(5);
            association.schedule_look(100);
            let first = association.look_ns;
            let looks = times.map(|now_ns| {
                association.look(SILENCE_NS + now_ns);
                association.look_ns
            });
            (first, looks)
        });
        assert_eq!(first, Some(SILENCE_NS + 5));
        assert_eq!(looks, expected.map(|ns| Some(SILENCE_NS + ns)));
    }
}

/// Checks that a queue that is over is removed with its memory, and the others stay.
#[test]
fn a_closed_queue_is_removed() {
    with_queues(2, |association, slot, subsystem| {
        assert!(association.is_open() && !association.has_closed() && !association.is_over());
        assert_eq!(association.authenticated_connections(), 3);
        let TcpController { controller, space, .. } = slot;
        assert_eq!(association.remove_closed(controller, subsystem, space), 0);
        let regions = space.len();
        let mut end = |association: &mut Association, qid: u16| {
            let TcpController { controller, space, .. } = &mut *slot;
            let connection = association.connections.get_mut(&qid).expect("it is there");
            connection.close();
            let mut context =
                Context { controller, subsystem: &mut *subsystem, space, kato_ms: 0, now_ns: 0 };
            let _ = (connection.received(0, &mut context), connection.sent(-1));
            assert!(connection.is_over());
            let is_closed = association.has_closed();
            let count = association.remove_closed(controller, subsystem, space);
            (is_closed, count, association.has_closed(), space.len())
        };
        assert_eq!(end(association, 1), (true, 1, false, regions - 1));
        assert_eq!((association.connections.len(), association.is_open()), (2, true));
        assert_eq!(end(association, 2), (true, 1, false, regions - 2));
        // The admin queue ends with its association.
        assert_eq!(end(association, 0), (true, 0, true, regions - 2));
        assert!(association.is_over() && !association.is_open());
    });
}

/// Hands hosts over to another process, whose hosts are those of a second subsystem here.
#[test]
fn another_process_goes_on_with_the_hosts() {
    let (early, before, suspended, after, queues) = with_hosts(3, |hosts, subsystem| {
        let (first, _first) = connect("nqn.a", 1, 0, CNTLID_DYNAMIC);
        let (second, _second) = connect("nqn.b", 2, 0, CNTLID_DYNAMIC);
        for accepted in [first, second] {
            hosts.enqueue(accepted, 0);
        }
        let early = [hosts.record(subsystem, 0).is_err(), hosts.is_suspended];
        hosts.admit_pending(subsystem, 0);
        // The first host leaves its controller, so that the numbers have a gap.
        let Hosts { slots, shared, .. } = &mut *hosts;
        slots[0].disconnect(CloseReason::ByServer, subsystem, shared, 0);
        let leaving = hosts.record(subsystem, 0).is_err();
        // Operations that were started here may end later than this.
        std::mem::forget(std::mem::replace(&mut hosts.slots[0].state, SlotState::Vacant));
        let sending = hosts.record(subsystem, 0).is_err();
        hosts.connections().for_each(Connection::quiesce);
        let Hosts { slots, shared, .. } = &mut *hosts;
        let owner = slots[1].owner(shared);
        for (kind, result) in [(crate::token::Kind::Send, 24), (crate::token::Kind::Receive, -125)] {
            slots[1].completed(Token { kind, owner, qid: 0 }, result, subsystem, shared, 0);
        }
        let before = hosts.status();
        let record = hosts.record(subsystem, 7).expect("nothing is under way");
        let mut suspended = vec![hosts.is_suspended, hosts.turn(subsystem, 8).is_vacant];
        let incoming = super::super::record::IncomingHosts::new(record);
        let mut other = new_subsystem();
        let (task, io) = (hosts.shared.task, hosts.shared.io.clone());
        let new = NewFrontend { number: 0, task, io, subsystem: &mut other };
        let mut next = Hosts::new(new, hosts.config.clone());
        let keys = super::super::record::Keys::new(String::new(), Vec::new(), std::sync::Weak::new());
        next.take(&mut other, &incoming, &keys, 9).expect("it fits");
        suspended.push(next.take(&mut other, &incoming, &keys, 9).is_err());
        let queues: Vec<Vec<u16>> = next
            .slots
            .iter()
            .map(|slot| slot.association().map_or(Vec::new(), |it| it.connections.keys().copied().collect()))
            .collect();
        // A process with fewer controllers has no room.
        let few = Config { hosts_max: 1, ..hosts.config.clone() };
        let mut third = new_subsystem();
        let (task, io) = (hosts.shared.task, hosts.shared.io.clone());
        let new = NewFrontend { number: 0, task, io, subsystem: &mut third };
        suspended.push(Hosts::new(new, few).take(&mut third, &incoming, &keys, 9).is_err());
        hosts.connections().for_each(Connection::go_on);
        hosts.is_suspended = false;
        ([early[0], !early[1], leaving, sending], before, suspended, next.status(), queues)
    });
    assert_eq!((early, suspended), ([true; 4], vec![true, false, true, true]));
    assert_eq!((before.hosts.clone(), before.associations), (vec!["nqn.b".to_owned()], 2));
    assert_eq!(before, after);
    assert_eq!(queues, [vec![], vec![0]]);
}

/// Checks the size and the places of the admin queue in the registers that the controller reads when it is enabled.
#[test]
fn the_admin_queue_is_as_long_as_its_memory() {
    let (aqa, asq, acq) = with_hosts(1, |hosts, subsystem| {
        let (first, _first) = connect("nqn.a", 1, 0, CNTLID_DYNAMIC);
        let pair = first.memory.queue_pair();
        hosts.enqueue(first, 0);
        hosts.admit_pending(subsystem, 0);
        let read = |offset| {
            let mut bytes = [0; 8];
            hosts.slots[0].controller.read_register(offset, &mut bytes);
            u64::from_le_bytes(bytes)
        };
        use sluice_nvme::register;
        let aqa = (read(register::AQA) as u32, pair.entries - 1);
        (aqa, (read(register::ASQ), pair.sq), (read(register::ACQ), pair.cq))
    });
    assert_eq!((aqa.0, aqa.1), (31 | 31 << 16, 31));
    assert_eq!((asq.0, acq.0), (asq.1, acq.1));
}

/// Checks when the hosts may sleep, and when a drain is over.
#[test]
fn hosts_are_drained_when_none_is_left() {
    let found = with_hosts(1, |hosts, subsystem| {
        let mut vacant = vec![hosts.look_ahead(), hosts.is_drained(), hosts.is_suspended()];
        vacant.push(matches!(hosts.arm(subsystem, 0), Arm::Busy));
        hosts.drain(subsystem, 0);
        let drained = hosts.is_drained();
        hosts.shared.draining = false;
        let (first, _first) = connect("nqn.a", 1, 0, CNTLID_DYNAMIC);
        hosts.enqueue(first, 0);
        hosts.admit_pending(subsystem, 0);
        let mut connected = vec![hosts.look_ahead()];
        // A part of a PDU has come, and is to be decoded before the hosts sleep.
        let Hosts { slots, shared, .. } = &mut *hosts;
        let owner = slots[0].owner(shared);
        let token = Token { kind: crate::token::Kind::Receive, owner, qid: 0 };
        slots[0].completed(token, 4, subsystem, shared, 0);
        connected.push(hosts.slots[0].arm(subsystem));
        hosts.drain(subsystem, 0);
        connected.extend([!hosts.is_drained(), hosts.unfinished(subsystem) == 0]);
        (vacant, drained, connected)
    });
    assert_eq!(found, (vec![false; 4], true, vec![true; 4]));
}
