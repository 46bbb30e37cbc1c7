//! Format NVM and Sanitize as jobs of an operator: paused, resumed, paced, and never cancelled.

use crate::host::{Host, MS, entry, io};
use crate::model::Model;
use sluice_command::Request;
use sluice_controller::{
    ALL_NAMESPACES, BackgroundJob, COMMANDS_MAX, FormatRecord, FormatState, PersistentRecord,
};
use sluice_jobs::{PaceChange, State, Verb};
use sluice_nvme::opcode::{admin, io as opcode};
use sluice_nvme::{Status, SubmissionEntry};
use std::sync::{Arc, Mutex};

/// Bytes of a chunk without a pace.
const CHUNK: u64 = 32 << 20;

/// Bytes of a disk.
const SIZE: u64 = 3 * CHUNK;

/// LBA format of 4096 bytes.
const OF_4096: u32 = 1;

const BLOCK_ERASE: u32 = 2;

fn format() -> SubmissionEntry {
    SubmissionEntry { nsid: 1, cdw10: OF_4096, ..entry(admin::FORMAT_NVM) }
}

/// Returns a full disk that parks its commands, and a host that formats it.
fn formatting() -> (Model, Host) {
    let model = Model::new(SIZE as usize / 512);
    model.disk().bytes.fill(0x5a);
    model.disk().hold = true;
    let mut host = Host::with_io(&model);
    host.submit(0, format());
    host.run();
    (model, host)
}

fn jobs(host: &Host) -> Vec<BackgroundJob> {
    host.controller.subsystem.background_jobs()
}

fn order(host: &mut Host, nsid: u32, verb: Verb, name: &str) -> Result<(), String> {
    let now_ns = host.now_ns;
    host.controller.subsystem.order_background_job(nsid, verb, name, PaceChange::default(), now_ns)
}

/// Returns state and bytes of the only job.
fn progress(host: &Host) -> (State, u64, u64) {
    let jobs = jobs(host);
    assert_eq!(jobs.len(), 1, "{jobs:?}");
    (jobs[0].report.state, jobs[0].report.done, jobs[0].report.total)
}

#[test]
fn a_paused_format_sets_no_timer_and_its_command_completes_after_the_resume() {
    let (model, mut host) = formatting();
    assert_eq!(progress(&host), (State::Running, 0, SIZE));
    order(&mut host, 1, Verb::Pause, "format").expect("it runs");
    // The chunk in flight ends, and none begins.
    host.answer(1, &model, 1);
    for _ in 0..100 {
        host.now_ns += 1000 * MS;
        host.run();
    }
    assert_eq!(progress(&host), (State::Paused, CHUNK, SIZE));
    assert!(model.disk().parked.is_empty());
    assert_eq!(host.controller.subsystem.deadline_ns(), None);
    assert!(host.reap(0).is_none(), "the command waits");
    model.disk().hold = false;
    order(&mut host, 1, Verb::Resume, "format").expect("it is paused");
    assert!(host.controller.subsystem.deadline_ns().is_some());
    host.run();
    assert_eq!(host.reap(0).map(|completion| completion.status()), Some(Status::SUCCESS));
    assert!(model.disk().bytes.iter().all(|&byte| byte == 0));
    assert_eq!(progress(&host), (State::Done, SIZE, SIZE));
}

/// Tests that a pause does not extend the wait for a command that never ends.
#[test]
fn a_paused_format_fails_behind_a_command_that_does_not_end() {
    let model = Model::new(SIZE as usize / 512);
    model.disk().hold = true;
    let mut host = Host::with_io(&model);
    host.submit(1, io(opcode::READ, 0, 1, 0x1000_0000));
    host.run();
    host.submit(0, format());
    host.run();
    order(&mut host, 1, Verb::Pause, "format").expect("it waits");
    host.now_ns += 9000 * MS;
    host.run();
    assert_eq!(host.reap(0).map(|it| it.status()), Some(Status::COMMAND_SEQUENCE_ERROR));
}

/// Tests that a pause does not delay the storing of a failure: until then the namespace counts as being formatted.
#[test]
fn the_failure_of_a_paused_format_is_stored_again_until_that_succeeds() {
    let (model, mut host) = formatting();
    let stored = Arc::new(Mutex::new(Vec::new()));
    let store = Arc::clone(&stored);
    host.controller.subsystem.on_persist(move |what| store.lock().expect("not poisoned").push(what));
    let failed =
        PersistentRecord::Format(FormatRecord { nsid: 1, block_size: 4096, state: FormatState::Failed });
    order(&mut host, 1, Verb::Pause, "format").expect("it runs");
    model.disk().fails_with = Some(Status::WRITE_FAULT);
    host.answer(1, &model, 1);
    for is_stored in [false, true] {
        host.run();
        assert_eq!(std::mem::take(&mut *stored.lock().expect("not poisoned")), std::slice::from_ref(&failed));
        let now_ns = host.now_ns;
        host.controller.subsystem.persisted(failed.clone(), is_stored, now_ns);
        host.now_ns += 1000 * MS;
    }
    model.disk().fails_with = None;
    model.disk().hold = false;
    host.run();
    assert!(host.reap(0).is_some_and(|it| !it.status().is_success()));
    assert_eq!(host.io(io(opcode::READ, 0, 1, 0x1000_0000)), Status::SUCCESS, "no format runs");
}

#[test]
fn neither_job_is_cancelled_and_the_reason_is_given() {
    let (model, mut host) = formatting();
    let refused = order(&mut host, 1, Verb::Cancel, "format").expect_err("NVMe does not allow it");
    assert!(refused.contains("neither its old data nor the requested format"), "{refused}");
    assert_eq!(progress(&host), (State::Running, 0, SIZE));
    let job = &jobs(&host)[0];
    assert_eq!(job.report.accepts, [Verb::Pause, Verb::Pace]);
    for (nsid, name) in [(2, "format"), (1, "sanitize"), (ALL_NAMESPACES, "sanitize")] {
        let refused = order(&mut host, nsid, Verb::Pause, name).expect_err("there is no such job");
        assert!(refused.contains("does not run"), "{refused}");
    }
    model.disk().hold = false;
    host.answer(1, &model, 1);
    host.run();
    assert_eq!(host.reap(0).map(|completion| completion.status()), Some(Status::SUCCESS));

    model.disk().hold = true;
    let sanitize = SubmissionEntry { cdw10: BLOCK_ERASE, ..entry(admin::SANITIZE) };
    assert_eq!(host.admin(sanitize).status(), Status::SUCCESS, "it begins");
    host.run();
    let refused = order(&mut host, ALL_NAMESPACES, Verb::Cancel, "sanitize").expect_err("nor this");
    assert!(refused.contains("it goes on to its end, over resets and restarts"), "{refused}");
    order(&mut host, ALL_NAMESPACES, Verb::Pause, "sanitize").expect("it runs");
    host.answer(1, &model, 1);
    host.run();
    let sanitizing = jobs(&host).remove(0);
    assert_eq!((sanitizing.report.state, sanitizing.report.done), (State::Paused, CHUNK));
    model.disk().hold = false;
    order(&mut host, ALL_NAMESPACES, Verb::Resume, "sanitize").expect("it is paused");
    host.run();
    let ended: Vec<_> =
        jobs(&host).into_iter().map(|job| (job.nsid, job.report.name, job.report.state)).collect();
    let [format, sanitize] = [(1, "format"), (ALL_NAMESPACES, "sanitize")];
    let done = |(nsid, name): (u32, &str)| (nsid, name.to_owned(), State::Done);
    assert_eq!(ended, [done(format), done(sanitize)]);
}

#[test]
fn a_format_that_an_earlier_daemon_left_paused_erases_nothing_until_it_is_resumed() {
    let model = Model::new(SIZE as usize / 512);
    model.disk().bytes.fill(0x5a);
    let mut host = Host::with_io(&model);
    assert!(host.controller.subsystem.resume_format(1, 4096, host.now_ns));
    host.controller.subsystem.pause_background_job(1, "format");
    for _ in 0..10 {
        host.now_ns += 1000 * MS;
        host.run();
    }
    assert!(model.disk().bytes.iter().all(|&byte| byte == 0x5a));
    assert_eq!(progress(&host), (State::Paused, 0, SIZE));
    order(&mut host, 1, Verb::Resume, "format").expect("it is paused");
    host.run();
    assert!(model.disk().bytes.iter().all(|&byte| byte == 0));
    assert_eq!(progress(&host), (State::Done, SIZE, SIZE));
}

#[test]
fn a_slow_pace_has_small_chunks_and_keeps_to_its_rate() {
    let (model, mut host) = formatting();
    let slow = PaceChange { mib_s: Some(8), ..PaceChange::default() };
    let now_ns = host.now_ns;
    host.controller.subsystem.order_background_job(1, Verb::Pace, "format", slow, now_ns).expect("it runs");
    model.disk().hold = false;
    host.answer(1, &model, 1);
    model.take_seen();
    // Two seconds, in which the first chunk of the whole budget still counts by the old pace.
    for _ in 0..2000 {
        host.now_ns += MS;
        host.run();
    }
    let erased: Vec<u64> = model.take_seen().iter().map(|request: &Request| request.length).collect();
    assert!(erased.iter().all(|length| *length == 1 << 20), "{erased:?}");
    assert!((15..=18).contains(&erased.len()), "{}", erased.len());
}

#[test]
fn a_format_that_fails_is_listed_as_failed() {
    let (model, mut host) = formatting();
    model.disk().hold = false;
    model.disk().fails_with = Some(Status::WRITE_FAULT);
    host.answer(1, &model, 1);
    host.run();
    assert_eq!(host.reap(0).map(|completion| completion.status()), Some(Status::WRITE_FAULT));
    assert_eq!(progress(&host), (State::Failed, 0, SIZE));
    assert!(jobs(&host)[0].report.accepts.is_empty());
}

/// Checks that a format waits for a slot while the host's commands have all of them.
#[test]
fn a_format_waits_while_there_is_no_room_for_a_command() {
    let models = [Model::new(2048), Model::new(64)];
    let mut host = Host::enabled(vec![models[0].namespace(1), models[1].namespace(2)]);
    models.iter().for_each(|model| model.disk().hold = true);
    host.submit(0, format());
    host.run();
    order(&mut host, 1, Verb::Pause, "format").expect("it runs");
    host.answer(1, &models[0], 1);
    host.run();
    models[0].disk().hold = false;
    let buffer = host.allocate(4096);
    (1..4).for_each(|queue| host.create_pair(queue, 1024));
    for queue in 1..4 {
        let read = SubmissionEntry { nsid: 2, ..io(opcode::READ, 0, 1, buffer) };
        (0..1000).for_each(|_| _ = host.put(queue, read));
        host.ring(queue);
    }
    host.run();
    assert_eq!(host.controller.in_flight(), COMMANDS_MAX);
    order(&mut host, 1, Verb::Resume, "format").expect("it is paused");
    for _ in 0..5 {
        host.now_ns += 2 * MS;
        host.run();
    }
    assert_eq!((progress(&host).0, host.take(0)), (State::Running, None));
    models[1].disk().hold = false;
    let waiting = models[1].disk().parked.len();
    host.answer(2, &models[1], waiting);
    for _ in 0..5 {
        host.now_ns += 2 * MS;
        host.run();
    }
    assert_eq!(host.reap(0).map(|completion| completion.status()), Some(Status::SUCCESS));
    assert_eq!(progress(&host), (State::Done, 1 << 20, 1 << 20));
}
