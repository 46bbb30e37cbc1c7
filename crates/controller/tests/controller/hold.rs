//! Drive that is quiet for a moment.

use crate::host::{Host, MS, entry};
use crate::model::Model;
use sluice_nvme::opcode::io;
use sluice_nvme::register::csts;
use sluice_nvme::{FeatureId, SubmissionEntry};

fn flush(host: &mut Host) {
    host.submit(1, SubmissionEntry { nsid: 1, ..entry(io::FLUSH) });
    host.run();
}

#[test]
fn a_held_drive_takes_nothing_and_sleeps_and_loses_nothing() {
    let mut host = Host::with_io(&Model::new(64));
    host.controller.subsystem.hold(u64::MAX);
    for _ in 0..3 {
        flush(&mut host);
    }
    assert_eq!(host.controller.unfinished(), 0);
    assert!(!host.controller.arm(), "there is nothing to stay awake for");
    host.controller.disarm();
    assert!(host.reap(1).is_none());
    host.controller.subsystem.resume();
    host.run();
    assert_eq!((0..4).filter(|_| host.reap(1).is_some()).count(), 3);
}

#[test]
fn nobody_holds_a_drive_for_ever() {
    let mut host = Host::with_io(&Model::new(64));
    host.controller.subsystem.hold(host.now_ns + 10 * MS);
    flush(&mut host);
    assert!(host.reap(1).is_none());
    assert_eq!(host.controller.deadline_ns(), Some(host.now_ns + 10 * MS));
    host.now_ns += 10 * MS;
    host.run();
    host.reap(1).expect("it goes on");
}

#[test]
fn who_is_not_heard_while_a_drive_is_held_is_not_thought_dead() {
    let mut host = Host::with_io(&Model::new(64));
    assert!(host.set_feature(FeatureId::KEEP_ALIVE_TIMER, 1000).is_ok());
    host.controller.subsystem.hold(u64::MAX);
    for _ in 0..5 {
        host.now_ns += 900 * MS;
        host.run();
    }
    host.now_ns += 1500 * MS;
    host.run();
    host.controller.subsystem.resume();
    flush(&mut host);
    host.reap(1).expect("it is served");
    for _ in 0..2 {
        host.now_ns += 1000 * MS;
        host.run();
    }
    assert_ne!(host.csts() & csts::CFS, 0, "not heard since");
}
