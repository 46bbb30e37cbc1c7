//! Interrupt Coalescing: fewer interrupts, and none too late.

use crate::host::{Host, MS, entry};
use crate::model::Model;
use sluice_nvme::opcode::io;
use sluice_nvme::{FeatureId, SubmissionEntry};
use std::time::Duration;

/// Four completions, or a millisecond.
const FOUR_OR_A_MILLISECOND: u32 = 3 | 10 << 8;

fn host() -> Host {
    let mut host = Host::with_io(&Model::new(64));
    host.create_pair(2, 16);
    taken(&mut host);
    host
}

/// Executes this number of commands of a queue, one after the other.
fn work(host: &mut Host, queue: u16, count: u32) {
    for _ in 0..count {
        host.submit(queue, SubmissionEntry { nsid: 1, ..entry(io::FLUSH) });
        host.run();
        host.reap(queue).expect("a completion");
    }
}

fn taken(host: &mut Host) -> Vec<u16> {
    let mut vectors = Vec::new();
    host.controller.controller.take_vectors(|vector| vectors.push(vector));
    vectors
}

/// Conformance: Base 5.27.1.6, an interrupt is sent when as many completions wait as the aggregation threshold says.
#[test]
fn enough_completions_are_worth_an_interrupt() {
    let mut host = host();
    work(&mut host, 1, 1);
    assert_eq!(taken(&mut host), [1], "nothing is held back unless the host says so");
    assert!(host.set_feature(FeatureId::INTERRUPT_COALESCING, FOUR_OR_A_MILLISECOND).is_ok());
    assert_eq!(taken(&mut host), [0], "the admin queue never waits");
    work(&mut host, 1, 3);
    work(&mut host, 2, 3);
    assert_eq!(taken(&mut host), []);
    work(&mut host, 1, 1);
    assert_eq!(taken(&mut host), [1]);
    work(&mut host, 1, 3);
    assert_eq!(taken(&mut host), [], "counted anew");
}

/// Conformance: Base 5.27.1.6, an interrupt is sent when the first completion has waited for the aggregation time.
#[test]
fn fewer_are_when_the_first_has_waited_long_enough() {
    let mut host = host();
    // Only timers of interrupts are of interest.
    host.controller.subsystem.set_host_timeout(Duration::ZERO);
    assert!(host.set_feature(FeatureId::INTERRUPT_COALESCING, FOUR_OR_A_MILLISECOND).is_ok());
    taken(&mut host);
    work(&mut host, 1, 1);
    let first_ns = host.now_ns;
    host.now_ns += MS / 2;
    work(&mut host, 2, 2);
    assert_eq!(host.controller.deadline_ns(), Some(first_ns + MS));
    host.now_ns = first_ns + MS;
    host.run();
    assert_eq!(taken(&mut host), [1]);
    assert_eq!(host.controller.deadline_ns(), Some(first_ns + MS + MS / 2));
    host.now_ns += MS / 2;
    host.run();
    assert_eq!(taken(&mut host), [2]);
    assert_eq!(host.controller.deadline_ns(), None, "nothing waits");
}

#[test]
fn a_vector_may_be_left_out() {
    const DISABLE: u32 = 1 << 16;
    let mut host = host();
    assert!(host.set_feature(FeatureId::INTERRUPT_COALESCING, FOUR_OR_A_MILLISECOND).is_ok());
    assert!(host.set_feature(FeatureId::INTERRUPT_VECTOR, 1 | DISABLE).is_ok());
    taken(&mut host);
    work(&mut host, 1, 1);
    work(&mut host, 2, 1);
    assert_eq!(taken(&mut host), [1]);
    // Held-back interrupts are not lost when the host changes the feature.
    assert!(host.set_feature(FeatureId::INTERRUPT_COALESCING, 0).is_ok());
    assert_eq!(taken(&mut host), [0, 2]);
    work(&mut host, 2, 1);
    assert_eq!(taken(&mut host), [2]);
}

#[test]
fn a_reset_forgets_what_waits_and_that_anything_does() {
    let mut host = host();
    assert!(host.set_feature(FeatureId::INTERRUPT_COALESCING, FOUR_OR_A_MILLISECOND).is_ok());
    taken(&mut host);
    work(&mut host, 1, 1);
    host.controller.reset();
    host.run();
    host.now_ns += 5 * MS;
    host.run();
    assert_eq!(taken(&mut host), []);
    host.enable();
    host.create_pair(1, 8);
    taken(&mut host);
    work(&mut host, 1, 1);
    assert_eq!(taken(&mut host), [1]);
}
