//! Remote queue groups: the work of the owner and of a remote controller, and their waiting for each other.

use crate::host::{ADMIN_ENTRIES, Host, MS, entry, get_log, identity};
use crate::model::Model;
use sluice_command::NodeId;
use sluice_controller::{
    CannotMigrate, Config, Controller, DoorbellMode, PeerConfig, ReturningGroup, Subsystem,
};
use sluice_memory::Space;
use sluice_nvme::log::SmartHealth;
use sluice_nvme::opcode::{admin, io};
use sluice_nvme::register::{self, csts};
use sluice_nvme::{FeatureId, LogId, Status, SubmissionEntry};
use zerocopy::FromBytes;

/// Remote controller for the host's queues, beside a subsystem that reaches the same disk.
struct Remote {
    controller: Controller,
    subsystem: Subsystem,
    space: Space,
}

impl Remote {
    fn new(model: &Model) -> Self {
        let config = Config { identity: identity(), namespaces: vec![model.namespace(1)] };
        let mut subsystem = Subsystem::new(config).expect("memory");
        let controller = Controller::new_remote(&mut subsystem, 1).expect("memory");
        Self { controller, subsystem, space: Space::new() }
    }

    fn peer_config(&self) -> PeerConfig {
        self.subsystem.peer_config().expect("it is plain")
    }

    fn turn(&mut self, host: &Host) -> usize {
        self.controller.remote_turn(&mut self.subsystem, &self.space, host.now_ns)
    }

    /// Migrates the group with this completion queue from its owner.
    fn take(&mut self, host: &mut Host, cq: u16) -> Result<(), CannotMigrate> {
        let owner = &mut host.controller;
        owner.controller.begin_migration(&owner.subsystem, cq)?;
        let peer_config = self.peer_config();
        let gone = owner.controller.finish_migration(&mut owner.subsystem, &peer_config, &host.space);
        match gone {
            Ok(group) => {
                let group = group.expect("nothing is in flight");
                self.controller.accept_group(&mut self.subsystem, group);
                self.space = host.space.clone();
                Ok(())
            }
            Err(why) => {
                owner.controller.cancel_migration();
                Err(why)
            }
        }
    }

    fn pack(&mut self) -> ReturningGroup {
        self.controller.stop_taking();
        self.controller.return_group(&mut self.subsystem).expect("nothing is in flight")
    }

    fn return_group(&mut self, host: &mut Host) {
        let group = self.pack();
        let owner = &mut host.controller;
        owner.controller.take_back_group(&mut owner.subsystem, group, &host.space);
    }
}

/// Returns a host with queue pairs 1 and 2, of which the second is remote.
fn with_remote(model: &Model, mode: DoorbellMode) -> (Host, Remote) {
    let mut host = Host::new(vec![model.namespace(1)]);
    host.controller.controller.set_doorbell_mode(mode);
    host.enable();
    host.create_pair(1, 64);
    host.create_pair(2, 64);
    let mut remote = Remote::new(model);
    remote.take(&mut host, 2).expect("nothing keeps it");
    assert!(!host.controller.controller.has_all_queues());
    (host, remote)
}

fn flush() -> SubmissionEntry {
    SubmissionEntry { nsid: 1, ..entry(io::FLUSH) }
}

#[test]
fn commands_are_done_where_their_queue_is() {
    let model = Model::new(64);
    for mode in [DoorbellMode::Trapped, DoorbellMode::Mapped] {
        let (mut host, mut remote) = with_remote(&model, mode);
        for _ in 0..200 {
            host.submit(2, flush());
            host.submit(1, flush());
            host.run();
            assert!(host.reap(2).is_none() && host.reap(1).is_some(), "the owner has the other");
            let mut rung = Vec::new();
            host.controller.controller.take_rung(|queue| rung.push(queue));
            assert_eq!(rung, if mode == DoorbellMode::Trapped { vec![2] } else { vec![] });
            assert!(remote.turn(&host) > 0);
            assert_eq!(host.reap(2).expect("done").status(), Status::SUCCESS);
        }
        assert_eq!(host.controller.subsystem.statistics().commands, 400, "wherever they were done");
        remote.return_group(&mut host);
        assert_eq!(host.controller.subsystem.statistics().commands, 400, "once");
        for _ in 0..70 {
            assert_eq!(host.execute(2, flush()).status(), Status::SUCCESS);
        }
    }
}

/// Checks that commands outside of the lists wait until all queues are at the owner, and then are executed.
#[test]
fn what_takes_all_queues_brings_them_home() {
    let model = Model::new(64);
    let is_of_blocks = |opcode| {
        [io::READ, io::WRITE, io::FLUSH, io::WRITE_ZEROES, io::DATASET_MANAGEMENT, io::COMPARE, io::VERIFY]
            .contains(&opcode)
    };
    for opcode in 0..=255 {
        let (mut host, mut remote) = with_remote(&model, DoorbellMode::Trapped);
        let buffer = if is_of_blocks(opcode) { host.allocate(512) } else { 0 };
        let entry = SubmissionEntry { nsid: 1, dptr: [buffer, 0], ..entry(opcode) };
        let [here, there] = [1, 2].map(|queue| host.submit(queue, entry));
        host.run();
        remote.turn(&host);
        let done = [1, 2].map(|queue| host.reap(queue).map(|completion| completion.cid));
        let all = [Some(here), Some(there)];
        assert_eq!(done, if is_of_blocks(opcode) { all } else { [None; 2] }, "opcode {opcode:#x}");
        let calls =
            [host.controller.controller.recall_cause().is_some(), remote.controller.recall_cause().is_some()];
        assert_eq!(calls, [!is_of_blocks(opcode); 2], "opcode {opcode:#x}");
        remote.return_group(&mut host);
        host.run();
        // There is no sink for uncorrectable ranges, so that command waits.
        if !is_of_blocks(opcode) && opcode != io::WRITE_UNCORRECTABLE {
            let done = [1, 2].map(|queue| host.reap(queue).map(|completion| completion.cid));
            assert_eq!(done, all, "opcode {opcode:#x}");
        }
    }
}

#[test]
fn nearly_every_admin_command_waits_for_queues_that_are_away() {
    let model = Model::new(64);
    for opcode in 0..=255 {
        let (mut host, mut remote) = with_remote(&model, DoorbellMode::Trapped);
        let buffer = host.allocate(512);
        // A supported feature, and the log page of supported features.
        let cdw10 = u32::from(opcode == admin::GET_FEATURES) * u32::from(FeatureId::ARBITRATION.0);
        host.submit(0, SubmissionEntry { cdw10, dptr: [buffer, 0], ..entry(opcode) });
        host.run();
        let waits_for_events = opcode == admin::ASYNC_EVENT_REQUEST;
        let reads = [admin::KEEP_ALIVE, admin::IDENTIFY, admin::GET_FEATURES, admin::GET_LOG_PAGE];
        let is_listed = reads.contains(&opcode);
        assert_eq!(host.reap(0).is_some(), is_listed, "opcode {opcode:#x}");
        let calls = host.controller.controller.recall_cause().is_some();
        assert_eq!(calls, !is_listed && !waits_for_events, "opcode {opcode:#x}");
        remote.return_group(&mut host);
        host.run();
        assert_eq!(host.reap(0).is_some(), !is_listed && !waits_for_events, "opcode {opcode:#x}");
        assert!(host.controller.controller.recall_cause().is_none());
    }
}

#[test]
fn log_pages_are_read_while_queues_are_away() {
    let model = Model::new(64);
    for id in (0..=255).map(LogId) {
        let (mut host, _outpost) = with_remote(&model, DoorbellMode::Trapped);
        let buffer = host.allocate(512);
        host.submit(0, SubmissionEntry { dptr: [buffer, 0], ..get_log(id, 512) });
        host.run();
        let is_read = [
            LogId::SUPPORTED_LOG_PAGES,
            LogId::ERROR_INFORMATION,
            LogId::SMART_HEALTH,
            LogId::FIRMWARE_SLOT,
            LogId::CHANGED_NAMESPACE_LIST,
            LogId::COMMAND_EFFECTS,
            LogId::SELF_TEST,
            LogId::ASYMMETRIC_NAMESPACE_ACCESS,
            LogId::SANITIZE_STATUS,
            LogId::FEATURE_EFFECTS,
            LogId::MI_COMMAND_EFFECTS,
        ]
        .contains(&id);
        assert_eq!(host.reap(0).map(|it| it.status()), is_read.then_some(Status::SUCCESS), "{id:?}");
        assert_eq!(host.controller.controller.recall_cause().is_some(), !is_read, "{id:?}");
    }
}

/// Monitors read it every second.
#[test]
fn health_is_of_all_queues_and_brings_none_home() {
    const MINUTE: u64 = 60_000 * MS;
    let model = Model::new(64);
    let (mut host, mut remote) = with_remote(&model, DoorbellMode::Trapped);
    let buffer = host.allocate(512);
    let on_both = |host: &mut Host, remote: &mut Remote, opcode, lba| {
        for queue in [1, 2] {
            host.submit(queue, SubmissionEntry { nsid: 1, cdw10: lba, dptr: [buffer, 0], ..entry(opcode) });
        }
        host.run();
        remote.turn(host);
        assert!([1, 2].map(|queue| host.reap_all(queue).len()) == [1, 1]);
    };
    let smart = |host: &mut Host| {
        let page = host.log(LogId::SMART_HEALTH, SmartHealth::SIZE).expect("the log");
        let page = SmartHealth::read_from_bytes(&page).expect("its size");
        let counters = [page.host_read_commands, page.host_write_commands, page.data_units_read];
        let others = [page.controller_busy_time, page.media_errors, page.error_log_entries];
        (counters.map(|it| it[0]), others.map(|it| it[0]))
    };
    assert_eq!(smart(&mut host), ([0; 3], [0; 3]));
    (0..3).for_each(|_| on_both(&mut host, &mut remote, io::READ, 0));
    host.now_ns += MINUTE;
    on_both(&mut host, &mut remote, io::WRITE, 0);
    on_both(&mut host, &mut remote, io::WRITE, 100);
    let all = ([6, 2, 1], [2, 0, 2]);
    assert_eq!(smart(&mut host), all);
    assert_eq!(host.controller.subsystem.statistics().commands, 10);
    assert!(
        !host.controller.controller.has_all_queues() && host.controller.controller.recall_cause().is_none()
    );
    remote.return_group(&mut host);
    assert_eq!(
        (smart(&mut host), host.controller.subsystem.statistics().commands),
        (all, 10),
        "counted once"
    );
}

/// Tests that a fused command counts as two, whatever their opcodes.
#[test]
fn entries_before_one_that_brings_queues_home_are_done_first() {
    let (mut host, mut remote) = with_remote(&Model::new(64), DoorbellMode::Trapped);
    let mut cids = Vec::new();
    for number in 0..40 {
        let flags = u8::from(number == 20) * 3;
        cids.push(host.submit(2, SubmissionEntry { flags, ..flush() }));
    }
    remote.turn(&host);
    let done: Vec<u16> = host.reap_all(2).iter().map(|completion| completion.cid).collect();
    assert_eq!(done, cids[..20]);
    remote.return_group(&mut host);
    host.run();
    let done: Vec<u16> = host.reap_all(2).iter().map(|completion| completion.cid).collect();
    assert_eq!(done, cids[20..]);
    // Each entry was in flight once, so the queues have all their slots, and can be deleted.
    for _ in 0..63 {
        host.submit(2, flush());
        host.run();
    }
    assert_eq!(host.reap_all(2).len(), 63);
    assert_eq!((host.delete_sq(2), host.delete_cq(2)), (Status::SUCCESS, Status::SUCCESS));
}

/// Checks that an admin command behind others that are executed at once waits, and that all slots are given back.
#[test]
fn admin_commands_before_one_that_waits_are_done_first() {
    let (mut host, mut remote) = with_remote(&Model::new(64), DoorbellMode::Trapped);
    let opcodes = [admin::KEEP_ALIVE, admin::KEEP_ALIVE, admin::DEVICE_SELF_TEST, admin::KEEP_ALIVE];
    let cids = opcodes.map(|opcode| host.put(0, SubmissionEntry { nsid: 1, cdw10: 1, ..entry(opcode) }));
    host.ring(0);
    host.run();
    let done: Vec<u16> = host.reap_all(0).iter().map(|completion| completion.cid).collect();
    assert_eq!(done, cids[..2]);
    remote.return_group(&mut host);
    host.run();
    let done: Vec<u16> = host.reap_all(0).iter().map(|completion| completion.cid).collect();
    assert_eq!(done, cids[2..]);
    for _ in 0..ADMIN_ENTRIES - 1 {
        host.submit(0, entry(admin::KEEP_ALIVE));
        host.run();
    }
    assert_eq!(host.reap_all(0).len() as u32, ADMIN_ENTRIES - 1);
    host.now_ns += 100 * MS;
    host.run();
    assert_eq!(host.controller.in_flight(), 0);
}

/// Doorbells that both controllers use must not be taken for new tails by a remote controller that has not
/// seen the reset yet.
#[test]
fn a_reset_waits_for_queues_that_are_away_and_runs_nothing_twice() {
    let model = Model::new(64);
    for mode in [DoorbellMode::Trapped, DoorbellMode::Mapped] {
        let (mut host, mut remote) = with_remote(&model, mode);
        for _ in 0..10 {
            host.submit(2, flush());
        }
        remote.turn(&host);
        model.take_seen();
        host.write_register(register::CC, 0);
        host.run();
        assert!(host.controller.controller.recall_cause().is_some());
        assert_ne!(host.csts() & csts::RDY, 0, "queues of its are at work");
        remote.turn(&host);
        assert_eq!(model.take_seen(), [], "nothing that was done is done again");
        remote.return_group(&mut host);
        host.run();
        assert_eq!(host.csts(), 0);
        assert!(host.controller.is_quiescent());
        host.enable();
        host.create_pair(2, 64);
        assert_eq!(host.execute(2, flush()).status(), Status::SUCCESS);
        assert_eq!(model.take_seen().len(), 1);
    }
}

#[test]
fn memory_that_is_taken_back_is_in_use_until_all_queues_are_here() {
    let (mut host, mut remote) = with_remote(&Model::new(64), DoorbellMode::Trapped);
    let removed = host.space.unmap_all();
    host.controller.forget_memory(&removed);
    assert!(host.controller.controller.recall_cause().is_some() && host.controller.uses(&removed));
    remote.return_group(&mut host);
    assert!(!host.controller.uses(&removed));
    // The queue is suspended, and the host that uses it meanwhile waits in vain.
    drop(removed);
    host.submit(2, flush());
    host.run();
    host.now_ns += 1_200 * MS;
    host.run();
    host.now_ns += 1_200 * MS;
    host.run();
    assert_ne!(host.csts() & csts::CFS, 0);
}

/// Tests that the owner reports once to the host the error that a remote controller found.
#[test]
fn a_tail_that_cannot_be_is_reported() {
    let (mut host, mut remote) = with_remote(&Model::new(64), DoorbellMode::Mapped);
    host.submit(0, entry(admin::ASYNC_EVENT_REQUEST));
    host.run();
    host.ring_with(2 * 8, 64);
    for _ in 0..3 {
        assert_eq!(remote.turn(&host), 0);
    }
    assert!(remote.controller.recall_cause().is_some());
    remote.return_group(&mut host);
    host.run();
    assert_eq!(host.reap(0).expect("an event").dw0, 0x0001_0100);
    host.run();
    assert!(host.reap(0).is_none());
}

#[test]
fn errors_are_in_the_log_when_it_is_read() {
    let (mut host, mut remote) = with_remote(&Model::new(64), DoorbellMode::Trapped);
    let buffer = host.allocate(512);
    for lba in [100, 200] {
        host.submit(2, SubmissionEntry { nsid: 1, cdw10: lba, dptr: [buffer, 0], ..entry(io::READ) });
    }
    assert!(host.log(LogId::ERROR_INFORMATION, 64).is_ok(), "nothing is in it");
    remote.turn(&host);
    assert_eq!(host.reap_all(2).len(), 2);
    let here = host.allocate(64);
    host.submit(0, SubmissionEntry { dptr: [here, 0], ..get_log(LogId::ERROR_INFORMATION, 64) });
    host.run();
    assert!(
        host.reap(0).is_none() && host.controller.controller.recall_cause().is_some(),
        "the remote has them"
    );
    remote.return_group(&mut host);
    host.run();
    assert!(host.reap(0).is_some_and(|it| it.status().is_success()));
    let log = host.log(LogId::ERROR_INFORMATION, 128).expect("the log");
    assert_eq!([log[0], log[64]], [2, 1], "error counts, the newest first");
    assert_eq!([log[8], log[72]], [2, 2], "the queue");
}

#[test]
fn a_group_whose_commands_are_under_way_waits_and_one_that_has_changed_stays() {
    let model = Model::new(64);
    let mut host = Host::with_io(&model);
    model.disk().hold = true;
    host.submit(1, flush());
    host.run();
    let remote = Remote::new(&model);
    let owner = &mut host.controller;
    owner.controller.begin_migration(&owner.subsystem, 1).expect("it may");
    let gone = owner.controller.finish_migration(&mut owner.subsystem, &remote.peer_config(), &host.space);
    assert!(matches!(gone, Ok(None)));
    host.submit(1, flush());
    host.run();
    assert_eq!(model.take_seen().len(), 1, "nothing more is taken");
    model.disk().hold = false;
    host.answer(1, &model, 1);
    host.run();
    assert_eq!(host.create_sq(2, 16, 1), Status::SUCCESS);
    let owner = &mut host.controller;
    let gone = owner.controller.finish_migration(&mut owner.subsystem, &remote.peer_config(), &host.space);
    assert!(matches!(gone, Err(CannotMigrate(_))), "it has a queue more");
    owner.controller.cancel_migration();
    host.run();
    assert_eq!(host.reap_all(1).len(), 2);
}

/// Tests that the owner fetches memory that only the client reaches, when the host tries again.
#[test]
fn a_buffer_that_is_not_there_brings_queues_home() {
    let (mut host, mut remote) = with_remote(&Model::new(64), DoorbellMode::Trapped);
    let dptr = [host.nowhere(), 0];
    host.submit(2, SubmissionEntry { nsid: 1, dptr, ..entry(io::READ) });
    remote.turn(&host);
    assert!(host.reap(2).is_some_and(|it| it.status().same_code(Status::DATA_TRANSFER_ERROR)));
    assert!(remote.controller.recall_cause().is_some());
    remote.return_group(&mut host);
    assert_eq!(host.execute(2, flush()).status(), Status::SUCCESS);
}

/// Tests that a target that hangs delays only work that waits for its commands, since that waits for the
/// group.
#[test]
fn a_group_whose_target_does_not_answer_comes_home_when_it_does() {
    let model = Model::new(64);
    let (mut host, mut remote) = with_remote(&model, DoorbellMode::Trapped);
    model.disk().hold = true;
    host.submit(2, flush());
    remote.turn(&host);
    assert_eq!(host.controller.in_flight(), 1, "the group");
    assert_eq!(host.controller.subsystem.in_flight_remote(), 1, "its command");
    host.controller.reset();
    host.run();
    assert!(host.controller.controller.recall_cause().is_some() && !host.controller.is_quiescent());
    remote.controller.stop_taking();
    assert!(remote.controller.return_group(&mut remote.subsystem).is_none());
    model.disk().hold = false;
    let ticket = model.disk().parked.pop_front().expect("a parked command");
    let token = Subsystem::token_prefix(1, NodeId(0)) | u64::from(ticket.0);
    remote.subsystem.event(token, 0, host.now_ns);
    remote.turn(&host);
    remote.return_group(&mut host);
    host.run();
    assert!(host.controller.is_quiescent());
    assert_eq!(host.controller.subsystem.in_flight_remote(), 0);
}

/// Tests that a group that no remote controller accepted is unchanged, and interrupts once more.
#[test]
fn a_group_that_does_not_arrive_comes_back() {
    let model = Model::new(64);
    let mut host = Host::with_io(&model);
    let peer_config = Remote::new(&model).peer_config();
    host.controller.controller.take_vectors(|_| ());
    let owner = &mut host.controller;
    owner.controller.begin_migration(&owner.subsystem, 1).expect("it may");
    let group = owner.controller.finish_migration(&mut owner.subsystem, &peer_config, &host.space);
    let group = group.expect("nothing keeps it").expect("nothing is in flight");
    owner.controller.take_back_group(&mut owner.subsystem, group.into_returning(), &host.space);
    let mut vectors = Vec::new();
    host.controller.controller.take_vectors(|vector| vectors.push(vector));
    assert_eq!(vectors, [1]);
    assert!(host.controller.controller.has_all_queues());
    assert_eq!(host.execute(1, flush()).status(), Status::SUCCESS);
}
