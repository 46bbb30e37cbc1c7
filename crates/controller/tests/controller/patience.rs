//! Commands that wait for storage for longer than their host is going to.

use crate::host::{Host, MS, PAGE, entry, io, prps};
use crate::model::Model;
use sluice_controller::HOST_TIMEOUT;
use sluice_nvme::opcode::{admin, io as opcode};
use sluice_nvme::{Cns, FeatureId, Status, SubmissionEntry};

/// Milliseconds between two turns.
const STEP: u64 = 500;

/// Returns a host whose disk keeps all commands until they end early.
fn host(model: &Model) -> Host {
    let host = Host::with_io(model);
    (model.disk().hold, model.disk().aborts) = (true, true);
    host
}

/// Runs for so many milliseconds. Returns the statuses that came, each with its millisecond.
fn run(host: &mut Host, milliseconds: u64) -> Vec<(u64, Status)> {
    let mut came = Vec::new();
    for step in 1..=milliseconds / STEP {
        host.now_ns += STEP * MS;
        host.run();
        came.extend(host.reap_all(1).iter().map(|it| (step * STEP, it.status())));
    }
    came
}

fn read(host: &mut Host, slba: u64) {
    let buffer = host.allocate(PAGE);
    host.submit(1, io(opcode::READ, slba, 1, buffer));
    host.run();
}

/// Enables the retry delays, as Linux does where Identify has some.
fn enable_delays(host: &mut Host) {
    let buffer = host.allocate(PAGE);
    host.write(buffer, &[1]);
    let id = u32::from(FeatureId::HOST_BEHAVIOR.0);
    let set = SubmissionEntry { cdw10: id, dptr: prps(buffer, 512), ..entry(admin::SET_FEATURES) };
    assert_eq!(host.dw0(set), Ok(0));
}

/// Conformance: Base 3.3.3.2.1, a Command Retry Delay is named to a host that has enabled it, and Identify has its time.
#[test]
fn what_only_waits_comes_back_before_the_host_gives_it_up() {
    let model = Model::new(64);
    let mut host = host(&model);
    let identify = host.identify(Cns::CONTROLLER, 0).expect("a page");
    let delays: Vec<_> = identify[128..134].chunks(2).map(|it| u16::from_le_bytes([it[0], it[1]])).collect();
    assert!(delays.is_sorted() && delays[0] > 0, "{delays:?}");
    read(&mut host, 1);
    let came = run(&mut host, 30_000);
    let [(after, status)] = came[..] else { panic!("{came:?}") };
    assert!((20_000..=25_000).contains(&after), "{after} ms");
    assert_eq!(status, Status::COMMAND_INTERRUPTED, "the host has no use for a delay");
    enable_delays(&mut host);
    read(&mut host, 1);
    let came = run(&mut host, 30_000);
    let [(_, status)] = came[..] else { panic!("{came:?}") };
    assert!(status.same_code(Status::COMMAND_INTERRUPTED));
    let number = usize::from(status.0 >> 11 & 3);
    assert!((1..=3).contains(&number), "one of CRDT1 to CRDT3");
    assert_eq!(status.0 & Status::DNR, 0);
}

#[test]
fn young_commands_stay_beside_old_ones() {
    let model = Model::new(64);
    let mut host = host(&model);
    read(&mut host, 1);
    assert_eq!(run(&mut host, 15_000), []);
    read(&mut host, 2);
    assert_eq!(run(&mut host, 10_000).len(), 1);
    host.answer(1, &model, 1);
    host.run();
    assert_eq!(host.reap_all(1).iter().map(|it| it.status()).collect::<Vec<_>>(), [Status::SUCCESS]);
}

/// Tests that a drive without commands needs no timer.
#[test]
fn an_idle_host_wakes_nobody() {
    let model = Model::new(64);
    let mut host = Host::with_io(&model);
    read(&mut host, 1);
    assert_eq!(host.reap_all(1).len(), 1);
    run(&mut host, HOST_TIMEOUT.as_millis() as u64);
    assert_eq!(host.controller.deadline_ns(), None);
}

#[test]
fn a_host_that_waits_for_ever_is_let_wait() {
    let model = Model::new(64);
    let mut host = host(&model);
    host.controller.subsystem.set_host_timeout(std::time::Duration::ZERO);
    read(&mut host, 1);
    assert_eq!(run(&mut host, 120_000), []);
}
