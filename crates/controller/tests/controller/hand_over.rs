//! Hand-over of a drive to another process: the successor continues exactly where its predecessor stopped.

use crate::host::{Host, MS, PAGE, delete, entry, get_log, identity, io};
use crate::model::Model;
use proptest::prelude::*;
use sluice_command::{Characteristics, Command, Frame, Lane, Layer, NodeId, Request, StackBuilder, Ticket};
use sluice_controller::{
    Attached, CannotHandOver, Config, ControllerRecord, DoorbellMode, Namespace, NamespaceConfig, Subsystem,
    SubsystemRecord,
};
use sluice_memory::SharedRegion;
use sluice_nvme::opcode::{admin, io as opcode};
use sluice_nvme::{FeatureId, LogId, Status, SubmissionEntry};
use sluice_router::RouterBuilder;
use std::sync::{Arc, Mutex};

/// Records of the two parts of a drive.
type Bytes = (Vec<u8>, Vec<u8>);

fn record(host: &Host) -> Result<Bytes, CannotHandOver> {
    let Attached { controller, subsystem } = &host.controller;
    let (subsystem, controller) = (subsystem.record()?, controller.record(subsystem)?);
    Ok((subsystem.encode(host.now_ns), controller.encode(host.now_ns)))
}

/// Makes the successor of the host's controller from records, over these namespaces.
fn resume(host: &Host, records: &Bytes, namespaces: Vec<Namespace>) -> Result<Attached, CannotHandOver> {
    let now_ns = host.now_ns;
    let invalid = |_| CannotHandOver("a record cannot be read");
    let subsystem = SubsystemRecord::decode(&records.0, now_ns).map_err(invalid)?;
    let controller = ControllerRecord::decode(&records.1, now_ns).map_err(invalid)?;
    let page = host.controller.controller.doorbells();
    let file = page.fd().try_clone_to_owned().expect("a descriptor");
    let page = SharedRegion::from_fd(file, 0, page.len()).expect("mapped");
    let mut next = Attached::new(Config { identity: identity(), namespaces }).expect("memory");
    next.subsystem.take_over(subsystem, false, now_ns)?;
    let Attached { controller: its, subsystem } = &mut next;
    its.take_over(subsystem, controller, page, &host.space, now_ns)?;
    Ok(next)
}

/// Hands the drive over. The records of the successor are those of its predecessor.
fn upgrade(host: &mut Host, model: &Model) -> Result<(), CannotHandOver> {
    host.controller.subsystem.hold(u64::MAX);
    host.run();
    let records = record(host);
    let next = records.and_then(|records| {
        let next = resume(host, &records, vec![model.namespace(1)])?;
        Ok((records, next))
    });
    match next {
        Ok((records, next)) => {
            host.controller = next;
            assert_eq!(record(host).expect("nothing is in flight"), records);
            host.controller.subsystem.resume();
        }
        Err(why) => {
            host.controller.subsystem.resume();
            return Err(why);
        }
    }
    Ok(())
}

fn request(host: &mut Host) -> u16 {
    let cid = host.submit(0, entry(admin::ASYNC_EVENT_REQUEST));
    host.run();
    cid
}

fn with_mode(model: &Model, mode: DoorbellMode) -> Host {
    let mut host = Host::new(vec![model.namespace(1)]);
    host.controller.controller.set_doorbell_mode(mode);
    host.enable();
    host.create_pair(1, 8);
    host
}

/// Checks that entries that the predecessor did not fetch are executed by the successor, over many rounds of the rings.
#[test]
fn entries_that_wait_are_executed() {
    for mode in [DoorbellMode::Trapped, DoorbellMode::Mapped] {
        let model = Model::new(64);
        let mut host = with_mode(&model, mode);
        let buffer = host.allocate(PAGE);
        for round in 0..50u8 {
            host.write(buffer, &[round; 512]);
            host.controller.subsystem.hold(u64::MAX);
            let cids: Vec<u16> =
                (0..5).map(|block| host.submit(1, io(opcode::WRITE, block, 1, buffer))).collect();
            host.run();
            assert!(host.take(1).is_none(), "the drive is held");
            upgrade(&mut host, &model).expect("only entries wait");
            host.run();
            let done = host.reap_all(1);
            assert!(done.iter().all(|completion| completion.status() == Status::SUCCESS));
            assert_eq!(done.iter().map(|completion| completion.cid).collect::<Vec<_>>(), cids);
            assert!(model.disk().bytes[..5 * 512].iter().all(|byte| *byte == round));
        }
        assert_eq!(host.controller.subsystem.statistics().commands, 250, "all of them are counted");
    }
}

#[test]
fn shadow_doorbells_stay_in_use() {
    let model = Model::new(64);
    let mut host = Host::with_io(&model);
    let pages = [host.allocate(PAGE), host.allocate(PAGE)];
    let config = SubmissionEntry { dptr: pages, ..entry(admin::DOORBELL_BUFFER_CONFIG) };
    assert_eq!(host.admin(config).status(), Status::SUCCESS);
    upgrade(&mut host, &model).expect("nothing is in flight");
    let buffer = host.allocate(PAGE);
    host.put(1, io(opcode::READ, 0, 1, buffer));
    host.write(pages[0] + 8, &1u32.to_le_bytes());
    host.run();
    assert!(host.reap(1).is_some_and(|completion| completion.status() == Status::SUCCESS));
}

#[test]
fn a_request_for_events_outlives_its_process() {
    let model = Model::new(64);
    let mut host = Host::with_io(&model);
    let cids = [request(&mut host), request(&mut host)];
    for _ in 0..20 {
        upgrade(&mut host, &model).expect("requests may wait");
        assert!(host.take(0).is_none());
    }
    host.controller.controller.ring(8 * 77, 1);
    host.run();
    let event = host.reap(0).expect("the event is reported");
    assert_eq!((event.cid, event.dw0), (cids[0], 1 << 16), "an invalid doorbell register");
    host.controller.controller.ring(8 * 77, 1);
    upgrade(&mut host, &model).expect("an event may wait");
    host.run();
    assert!(host.take(0).is_none(), "the type is masked");
    host.log(LogId::ERROR_INFORMATION, 512).expect("read");
    host.controller.controller.ring(8, 100);
    host.run();
    let event = host.reap(0).expect("the next event is reported");
    assert_eq!((event.cid, event.dw0), (cids[1], 1 << 16 | 1 << 8), "an invalid doorbell value");
}

/// Checks that the host's settings, counters and logs are those of the predecessor.
#[test]
fn what_the_host_has_set_is_kept() {
    let model = Model::new(64);
    let mut host = Host::with_io(&model);
    host.controller.subsystem.set_power_id([9; 16]);
    host.set_feature(FeatureId::VOLATILE_WRITE_CACHE, 0).expect("set");
    host.set_feature(FeatureId::INTERRUPT_COALESCING, 0x0203).expect("set");
    host.set_feature(FeatureId::KEEP_ALIVE_TIMER, 10_000).expect("set");
    let buffer = host.allocate(PAGE);
    assert_eq!(host.io(io(opcode::READ, 1000, 1, buffer)), Status::LBA_OUT_OF_RANGE);
    let before = host.log(LogId::ERROR_INFORMATION, 512).expect("read");
    host.now_ns += 9_000 * MS;
    upgrade(&mut host, &model).expect("nothing is in flight");
    assert_eq!(host.get_feature(FeatureId::VOLATILE_WRITE_CACHE), Ok(0));
    assert_eq!(host.get_feature(FeatureId::INTERRUPT_COALESCING), Ok(0x0203));
    assert_eq!(host.log(LogId::ERROR_INFORMATION, 512), Ok(before));
    host.now_ns += 9_000 * MS;
    host.run();
    assert!(host.is_ready(), "the pause is no silence of the host");
    // The first late look extends the timer.
    for _ in 0..2 {
        host.now_ns += 30_000 * MS;
        host.run();
    }
    assert!(host.controller.controller.is_fatal(), "the timer runs on");
}

#[test]
fn a_drive_with_commands_in_flight_stays() {
    let model = Model::new(64);
    let mut host = Host::with_io(&model);
    let buffer = host.allocate(PAGE);
    model.disk().hold = true;
    host.submit(1, io(opcode::READ, 0, 1, buffer));
    host.run();
    upgrade(&mut host, &model).expect_err("a command is in flight");
    host.answer(1, &model, 1);
    host.run();
    assert!(host.reap(1).is_some(), "the drive goes on");
    upgrade(&mut host, &model).expect("nothing is in flight");
    let other = Model::new(65);
    upgrade(&mut host, &other).expect_err("the namespace has another size");
    let unmapped = host.space.unmap_all();
    upgrade(&mut host, &model).expect_err("the queues are not mapped");
    drop(unmapped);
    host.map_memory();
    model.disk().hold = false;
    assert_eq!(host.io(io(opcode::READ, 0, 1, buffer)), Status::SUCCESS);
}

#[test]
fn a_host_that_has_not_come_yet_is_no_obstacle() {
    let model = Model::new(64);
    let mut host = Host::new(vec![model.namespace(1)]);
    upgrade(&mut host, &model).expect("nothing is there");
    host.enable();
    host.create_pair(1, 8);
    let buffer = host.allocate(PAGE);
    assert_eq!(host.io(io(opcode::READ, 0, 1, buffer)), Status::SUCCESS);
}

/// Does a step of a host, or of time.
fn step(host: &mut Host, model: &Model, choice: u8, value: u8) {
    let buffer = host.allocate(PAGE);
    match choice {
        0 => {
            host.write(buffer, &[value; 512]);
            let write = io(opcode::WRITE, u64::from(value % 64), 1, buffer);
            assert_eq!(host.io(write), Status::SUCCESS);
            let at = usize::from(value % 64) * 512;
            assert_eq!(model.disk().bytes[at..at + 512], [value; 512]);
        }
        1 => assert_eq!(host.io(io(opcode::READ, u64::from(value % 64), 1, buffer)), Status::SUCCESS),
        2 => {
            request(host);
        }
        3 => host.controller.controller.ring(u32::from(value) * 4 + 64, 7),
        // The Keep Alive Timer would end the controller.
        4 if value % 32 != FeatureId::KEEP_ALIVE_TIMER.0 => {
            let (cdw10, cdw11) = (u32::from(value % 32), u32::from(value));
            host.submit(0, SubmissionEntry { cdw10, cdw11, ..entry(admin::SET_FEATURES) });
        }
        5 => {
            if host.create_cq(2, 4) == Status::SUCCESS {
                let _ = host.create_sq(2, 16, 2);
            }
        }
        6 => {
            let _ = host.admin(delete(admin::DELETE_IO_SQ, 2));
            let _ = host.admin(delete(admin::DELETE_IO_CQ, 2));
        }
        7 => {
            let key = [0, 0, u32::from(value), 0].map(u32::to_le_bytes).concat();
            host.write(buffer, &key);
            let register =
                SubmissionEntry { nsid: 1, dptr: [buffer, 0], ..entry(opcode::RESERVATION_REGISTER) };
            let _ = host.io(register);
        }
        8 => {
            let read = get_log(LogId(value % 16), 512);
            host.submit(0, SubmissionEntry { dptr: [buffer, 0], ..read });
        }
        _ => host.now_ns += u64::from(value) * MS,
    }
    host.run();
    drop(host.reap_all(0));
    if host.free_memory() < 64 * PAGE {
        host.reuse_memory();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Checks that after any history the successor has the state of its predecessor, and serves its host.
    #[test]
    fn every_state_is_continued(steps in prop::collection::vec((0..10u8, any::<u8>()), 0..40)) {
        let model = Model::new(64);
        let mut host = Host::with_io(&model);
        for (at, (choice, value)) in steps.into_iter().enumerate() {
            step(&mut host, &model, choice, value);
            if at % 3 == 0 && host.is_ready() {
                upgrade(&mut host, &model).expect("nothing is in flight");
            }
        }
    }

    /// Checks that a wrong record is refused, or is that of a valid state.
    #[test]
    fn wrong_records_do_no_harm(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<prop::sample::Index>(),
        is_cut in any::<bool>(),
    ) {
        let model = Model::new(64);
        let mut host = Host::with_io(&model);
        request(&mut host);
        let (mut subsystem, mut controller) = record(&host).expect("nothing is in flight");
        for (at, byte) in changes {
            let bytes = if byte & 1 == 0 { &mut controller } else { &mut subsystem };
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if is_cut {
            controller.truncate(cut.index(controller.len()));
        }
        if let Ok(next) = resume(&host, &(subsystem, controller), vec![model.namespace(1)]) {
            host.controller = next;
            host.run();
        }
    }
}

/// Target that ends commands of hosts at once, and keeps those of other layers.
struct Slow(Arc<Mutex<Vec<Ticket>>>);

impl Layer for Slow {
    fn name(&self) -> &'static str {
        "slow"
    }

    fn characteristics(&self, _below: &[Characteristics]) -> Characteristics {
        Characteristics::target(1 << 20, 512)
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        match lane.slot(&command).origin.is_host() {
            true => lane.finish(command, Status::SUCCESS),
            false => self.0.lock().expect("not poisoned").push(lane.park(command)),
        }
    }

    fn event(&mut self, ticket: Ticket, _result: i32, lane: &mut Lane<'_>) {
        if let Some(command) = lane.unpark(ticket) {
            lane.finish(command, Status::SUCCESS);
        }
    }
}

/// Layer that writes something of its own beside each command.
struct Writer;

impl Layer for Writer {
    fn name(&self) -> &'static str {
        "writer"
    }

    fn characteristics(&self, below: &[Characteristics]) -> Characteristics {
        Characteristics { requests: 4, ..below[0].over() }
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        lane.originate(0, Request { length: 512, ..lane.slot(&command).request }, None, 1, [0; 2]);
        lane.forward(command);
    }

    fn resume(&mut self, command: Command, _frame: Frame, lane: &mut Lane<'_>) {
        lane.discard(command);
    }
}

/// Keeps a request of a function in flight. Its I/O must not come to the storage after that of the other process.
#[test]
fn a_drive_whose_layers_have_requests_in_flight_is_not_recorded() {
    let parked = Arc::<Mutex<Vec<Ticket>>>::default();
    let mut stack = StackBuilder::new();
    let below = stack.add(Box::new(Slow(Arc::clone(&parked))), &[]).expect("it is shallow");
    stack.add(Box::new(Writer), &[below]).expect("it is shallow");
    let config = NamespaceConfig { nsid: 1, block_size: 512, uuid: [7; 16] };
    let router = RouterBuilder::new(stack.build()).build();
    let mut host = Host::enabled(vec![Namespace::new(config, router).expect("a namespace")]);
    host.create_pair(1, 8);
    let buffer = host.allocate(PAGE);
    assert_eq!(host.io(io(opcode::WRITE, 0, 1, buffer)), Status::SUCCESS);
    host.controller.subsystem.hold(u64::MAX);
    host.run();
    host.controller.subsystem.check_settled().expect("no command of a host is in flight");
    let why = record(&host).expect_err("a request is in flight");
    assert_eq!(why.to_string(), "commands of its functions are in flight");
    let ticket = parked.lock().expect("not poisoned").pop().expect("one is parked");
    host.controller.subsystem.event(
        Subsystem::token_prefix(1, NodeId(0)) | u64::from(ticket.0),
        0,
        host.now_ns,
    );
    host.run();
    record(&host).expect("nothing is in flight");
}
