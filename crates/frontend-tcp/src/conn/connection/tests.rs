//! Phases of a connection, its timers, and results of its socket operations.

use super::super::reclaim::SILENCE_NS;
use super::*;
use crate::accept::Host;
use sluice_controller::{Config, Identity};
use sluice_nvme::fabrics::{Connect, Fctype, OPCODE};
use sluice_nvme::{CompletionEntry, Status};
use sluice_nvme_tcp::Digests;
use sluice_reactor::{ReactorConfig, ReactorHandle};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use zerocopy::FromBytes;

const CANCELED: i32 = -Errno::CANCELED.raw_os_error();

fn subsystem() -> Subsystem {
    let identity = Identity {
        subnqn: "nqn.2024-01.org.example:disk".to_owned(),
        serial: "1".to_owned(),
        model: "test".to_owned(),
        firmware: "1".to_owned(),
    };
    Subsystem::new(Config { identity, namespaces: Vec::new() }).expect("memory")
}

/// Runs steps with a new connection of this queue, in one turn of a reactor. No operation completes meanwhile.
fn with_connection<R: Send + 'static>(
    qid: u16,
    run: impl FnOnce(&mut Connection, &mut Context<'_>, UnixStream) -> R + Send + 'static,
) -> R {
    let reactor = ReactorHandle::start(ReactorConfig::default()).expect("a reactor");
    let result = reactor.call(move |local| {
        let (near, far) = UnixStream::pair().expect("sockets");
        let connect = Connect { recfmt: 0, qid, entries: 8, cattr: 0, kato_ms: 0 };
        let address = "127.0.0.1:1".parse().expect("an address");
        let accepted = AcceptedConnect {
            socket: OwnedFd::from(near),
            tls: None,
            peer: address,
            port: address,
            host: Host { nqn: "nqn.a".to_owned(), id: [1; 16] },
            cntlid: 1,
            connect,
            agreed: Agreed { digests: Digests::NONE, alignment: 4, sq_entries: Some(8) },
            entry: SubmissionEntry { cid: 9, ..connect.entry() },
            memory: QueueMemory::new(qid, 7).expect("memory"),
            auth: None,
        };
        let mut found = None;
        let task = local.add(|task, io| {
            let owner = Owner { frontend: 0, controller: 0 };
            found = Some(Connection::new(accepted, io.clone(), task, owner).expect("a connection"));
            Box::new(sluice_frontend::Drive::new(task, io, subsystem()))
        });
        let (mut connection, mut subsystem) = (found.expect("it was made"), subsystem());
        let mut controller = Controller::new(&mut subsystem, 1).expect("memory");
        let space = Space::new();
        let (controller, subsystem, space) = (&mut controller, &mut subsystem, &space);
        let mut context = Context { controller, subsystem, space, kato_ms: 0, now_ns: 0 };
        let result = run(&mut connection, &mut context, far);
        connection.close();
        drop(local.remove(task));
        // Operations that were started here may end later than this.
        std::mem::forget(connection.memory);
        result
    });
    reactor.stop();
    result.expect("the reactor runs")
}

/// Completes the Connect command, and its send.
fn connected(connection: &mut Connection) {
    connection.answer(0, Outcome::default());
    connection.start();
    assert_eq!(connection.sent(24), Ok(()));
}

/// Puts bytes of the host into the staging area, as a receive does.
fn stage(connection: &mut Connection, context: &mut Context<'_>, bytes: &[u8]) -> Result<(), CloseReason> {
    connection.memory.write(connection.memory.staging(), bytes);
    connection.received(bytes.len() as i32, context)
}

/// Returns a capsule without data.
fn capsule(opcode: u8, cid: u16) -> Vec<u8> {
    let nsid = u32::from(Fctype::DISCONNECT.0);
    let entry = SubmissionEntry { opcode, cid, nsid, flags: 1 << 6, ..SubmissionEntry::default() };
    encode::capsule_cmd(&entry, Digests::NONE, 4, 0).as_bytes().to_vec()
}

#[test]
fn a_connection_is_at_rest_once_its_connect_command_is_answered() {
    with_connection(1, |connection, context, _far| {
        assert!(connection.is_open() && !connection.is_closed() && !connection.is_over());
        assert!(connection.is_idle() && !connection.has_work() && !connection.is_at_rest());
        assert_eq!(
            (connection.deadline_ns(), connection.suite(), connection.is_unauthenticated()),
            (None, None, false)
        );
        connection.answer(0, Outcome::default());
        assert!(!connection.is_idle() && connection.has_work());
        connection.start();
        assert!(connection.sending && connection.receiving && !connection.has_work());
        assert_eq!(connection.sent(23), Ok(()));
        assert!(!connection.is_idle() && !connection.is_at_rest(), "a byte is left");
        assert_eq!(connection.sent(1), Ok(()));
        assert!(connection.is_idle() && connection.is_at_rest() && connection.slots.are_free());
        // Half of a header is held by the decoder, and the other half is awaited.
        stage(connection, context, &capsule(0, 5)[..40]).expect("it is open");
        assert!(connection.has_work() && !connection.is_at_rest());
        assert_eq!(connection.take_staged(context), Ok(0));
        assert!(!connection.has_work() && connection.is_at_rest());
        stage(connection, context, &capsule(0, 5)[40..]).expect("it is open");
        assert_eq!(connection.take_staged(context), Ok(2), "a PDU and its command");
        assert!(!connection.is_at_rest() && connection.has_work(), "the response");
    });
}

#[test]
fn results_of_receives_and_sends_end_a_connection() {
    with_connection(1, |connection, context, _far| {
        connected(connection);
        assert_eq!(connection.received(0, context), Err(CloseReason::ByHost));
        let reset = -Errno::CONNRESET.raw_os_error();
        assert_eq!(connection.received(reset, context), Err(CloseReason::Socket(Errno::CONNRESET)));
        assert_eq!(connection.received(INTERRUPTED, context), Ok(()));
        assert_eq!(connection.received(CANCELED, context), Err(CloseReason::Socket(Errno::CANCELED)));
        assert_eq!(connection.sent(reset), Err(CloseReason::Socket(Errno::CONNRESET)));
        assert!(!connection.sending && !connection.receiving);
        // Pieces of 4 KiB are counted: few of them are awaited eagerly.
        for (bytes, pieces) in [(1, 0), (4095, 0), (4096, 1), (65_536, 16)] {
            assert_eq!(connection.received(bytes, context), Ok(()));
            assert_eq!((connection.received_pieces, connection.staged.clone()), (pieces, 0..bytes as usize));
        }
        connection.close();
        assert!(connection.is_closed() && connection.is_over());
        assert_eq!(connection.received(100, context), Ok(()), "the end of an operation");
    });
}

/// Takes the PDUs that the connection sends next, and completes their send. Returns the command identifiers of responses.
fn take_responses(connection: &mut Connection) -> (Vec<u16>, Result<(), CloseReason>) {
    let Connection { transmit, slots, memory, agreed, .. } = &mut *connection;
    let mut bytes = Vec::new();
    for segment in transmit.prepare(slots, memory, agreed) {
        let at = bytes.len();
        bytes.resize(at + segment.len() as usize, 0);
        segment.read(&mut bytes[at..]);
    }
    let cid = |pdu: &[u8]| CompletionEntry::read_from_bytes(&pdu[8..]).expect("a response").cid;
    let cids = bytes.chunks(24).map(cid).collect();
    (cids, connection.sent(bytes.len() as i32))
}

/// Conformance: Base 6.4, the response to Disconnect is the last one on its queue.
#[test]
fn a_queue_is_left_after_its_last_response() {
    with_connection(1, |connection, context, _far| {
        let outstanding = SubmissionEntry { cid: 4, ..SubmissionEntry::default() };
        let outstanding = connection.slots.take(&outstanding).expect("a slot");
        connection.answer(0, Outcome::default());
        assert_eq!(take_responses(connection), (vec![9], Ok(())), "the Connect command");
        let last = [capsule(0, 3), capsule(OPCODE, 5), capsule(0, 6), capsule(0, 7)].concat();
        stage(connection, context, &last).expect("it is open");
        assert_eq!(connection.take_staged(context), Ok(4), "two PDUs and their commands");
        assert_eq!(connection.phase, Phase::Leaving);
        assert!(connection.is_open() && connection.deadline_ns().is_none());
        // A host that goes on to send does not postpone the end.
        for bytes in [capsule(0, 8), capsule(0, 8)[..30].to_vec()] {
            stage(connection, context, &bytes).expect("it is open");
            assert_eq!(connection.take_staged(context), Ok(0));
            assert!(connection.staged.is_empty() && connection.held.is_none());
        }
        // The command before Disconnect ends behind it.
        connection.answer(outstanding, Outcome::default());
        assert_eq!(take_responses(connection), (vec![3, 5], Err(CloseReason::ByHost)));
        assert!(connection.is_idle() && !connection.has_work());
        assert_eq!(connection.take_staged(context), Ok(0));
    });
}

/// Sends two commands while one slot is about to be free. The first of them is Disconnect: the other is never executed.
#[test]
fn a_command_that_waits_behind_disconnect_is_dropped() {
    with_connection(1, |connection, context, _far| {
        stage(connection, context, &[capsule(OPCODE, 5), capsule(0, 6)].concat()).expect("it is open");
        while connection.slots.has_free() {
            let other = SubmissionEntry { cid: 4, ..SubmissionEntry::default() };
            connection.slots.take(&other).expect("a slot");
        }
        connection.answer(0, Outcome::default());
        assert_eq!(connection.take_staged(context), Ok(1), "the capsule waits for a slot");
        assert!(connection.held.is_some());
        assert_eq!(take_responses(connection), (vec![9], Ok(())));
        assert_eq!(connection.take_staged(context), Ok(1), "the command");
        assert_eq!((connection.phase, connection.staged.len()), (Phase::Leaving, 0));
        assert_eq!(take_responses(connection), (vec![5], Err(CloseReason::ByHost)));
    });
}

#[test]
fn a_host_has_a_second_to_read_why_its_connection_ends() {
    with_connection(1, |connection, context, _far| {
        connected(connection);
        connection.answer(0, Outcome::default());
        connection.terminate(Violation::SEQUENCE, 5);
        assert!(!connection.is_open() && !connection.is_closed() && !connection.is_idle());
        assert_eq!(connection.deadline_ns(), Some(1_000_000_005));
        assert!(!connection.has_work(), "it is not open, so nothing is processed");
        // Received bytes are dropped.
        assert_eq!(connection.received(100, context), Ok(()));
        assert!(connection.staged.is_empty());
        connection.start();
        assert!(connection.receiving && connection.sending);
        assert!(!connection.expire(1_000_000_004) && !connection.is_closed());
        assert!(connection.expire(1_000_000_005) && connection.is_closed());
        assert_eq!((connection.deadline_ns(), connection.expire(u64::MAX)), (None, false));
        connection.leave();
        assert!(connection.is_closed() && !connection.is_over());
        (connection.receiving, connection.sending) = (false, true);
        assert!(!connection.is_over());
        (connection.receiving, connection.sending) = (true, false);
        assert!(!connection.is_over());
        connection.receiving = false;
        assert!(connection.is_over());
    });
}

/// Checks when the memory of an idle connection is due, and that it is returned only while nothing can write to it.
#[test]
fn idle_memory_is_returned_after_a_second() {
    with_connection(1, |connection, context, _far| {
        connected(connection);
        assert_eq!(connection.due_ns(), None, "a new connection has touched little");
        context.now_ns = 7;
        stage(connection, context, &capsule(0, 5)).expect("it is open");
        assert_eq!(connection.due_ns(), Some(7 + SILENCE_NS));
        connection.take_staged(context).expect("a command");
        let place = connection.memory.pool();
        connection.memory.write(place, &[7; 100]);
        let mut bytes = [0; 100];
        // A command is outstanding when the cancelled receive completes: the memory stays, and is due again.
        connection.begin_to_reclaim();
        assert_eq!(connection.due_ns(), None);
        assert_eq!(connection.received(CANCELED, context), Ok(()));
        assert_eq!(connection.due_ns(), Some(7 + SILENCE_NS));
        connection.memory.read(place, &mut bytes);
        assert_eq!(bytes, [7; 100]);
        connection.start();
        assert_eq!(connection.sent(24), Ok(()));
        // Data that arrives instead is processed.
        connection.begin_to_reclaim();
        context.now_ns = 9;
        stage(connection, context, &capsule(0, 6)).expect("it is open");
        assert_eq!(connection.due_ns(), Some(9 + SILENCE_NS));
        connection.take_staged(context).expect("a command");
        connection.start();
        assert_eq!(connection.sent(24), Ok(()));
        for errno in [Errno::CANCELED, Errno::INTR] {
            connection.memory.write(place, &[7; 100]);
            connection.begin_to_reclaim();
            assert_eq!(connection.received(-errno.raw_os_error(), context), Ok(()));
            connection.memory.read(place, &mut bytes);
            assert_eq!((bytes, connection.due_ns()), ([0; 100], None));
        }
    });
    let due = with_connection(0, |connection, context, _far| {
        connected(connection);
        stage(connection, context, &capsule(0, 5)).expect("it is open");
        connection.due_ns()
    });
    assert_eq!(due, None, "the admin queue keeps its memory");
}

/// Checks a controller that is enabled anew: commands of its former queues are aborted, and the queues are empty.
#[test]
fn former_commands_are_aborted_and_queues_begin_anew() {
    with_connection(0, |connection, _context, _far| {
        connected(connection);
        let entry = SubmissionEntry { cid: 5, ..SubmissionEntry::default() };
        let numbers = [5, 6, 7].map(|cid| {
            let number = connection.slots.take(&SubmissionEntry { cid, ..entry }).expect("a slot");
            if cid != 7 {
                connection.submit(number);
            }
            number
        });
        assert_eq!((connection.sq_tail, connection.sq_rung), (2, 0));
        connection.memory.write(connection.memory.queue_pair().cq as usize - (1 << 28), &[0xff; 16]);
        (connection.cq_head, connection.cq_phase) = (3, false);
        connection.abandon_submitted(Outcome::failed(Status::ABORTED_SQ_DELETION));
        let stages = numbers.map(|number| connection.slots.slot(number).stage);
        assert_eq!(stages, [Stage::Answering, Stage::Answering, Stage::Arriving]);
        assert_eq!(connection.slots.slot(numbers[0]).outcome.status, Status::ABORTED_SQ_DELETION);
        let places = (connection.sq_tail, connection.sq_rung, connection.cq_head, connection.cq_phase);
        assert_eq!(places, (0, 0, 0, true));
        assert!(connection.memory.completion(0, true).is_none());
        // The tail wraps at the size of the queue, which has one entry more than there are capsules.
        for tail in [1, 2, 3, 4, 5, 6, 7, 0, 1] {
            connection.submit(numbers[2]);
            assert_eq!(connection.sq_tail, tail);
        }
    });
}
