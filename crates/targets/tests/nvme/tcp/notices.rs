//! A controller that always has something to report, and one that takes long.

use super::fake::{Fake, content};
use super::lone::Lone;
use super::rig::config;
use crate::rig::{BLOCK, eventually};
use sluice_nvme::AnaState;
use sluice_targets::{Activation, CommitLimits, NvmeTcpConfig, PreparedNvmeTcp};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

#[test]
fn a_controller_that_always_has_a_notice_is_asked_for_the_next_at_times() {
    let began = Instant::now();
    let fake = Fake::start(Box::new(|_, _| true));
    fake.access.tell(AnaState::Optimized);
    fake.access.always_has_event.store(true, SeqCst);
    let lone = Lone::new(fake, |usual| usual);
    eventually("some are heard", || lone.control.status().events >= 5);
    let (events, most) = (lone.control.status().events, began.elapsed().as_millis() / 100 + 2);
    assert!(u128::from(events) <= most, "{events} events, at most {most} in that time");
    let (_host, mut disk) = lone.disk();
    let mut there = [0; BLOCK];
    disk.read(3, &mut there).expect("it is not in the way");
    assert!(there[..] == content(3, BLOCK));
    // The last notice is handled.
    lone.fake.access.always_has_event.store(false, SeqCst);
    lone.fake.access.tell(AnaState::NonOptimized);
    eventually("it is known", || lone.control.status().ana == Some(AnaState::NonOptimized));
}

/// Commits firmware at a controller that completes the command only after a few Keep Alives.
#[test]
fn a_controller_is_kept_alive_during_a_long_commit() {
    let fake = Fake::start(Box::new(|_, _| true));
    fake.silence.keep_alives.store(3, SeqCst);
    let second = Duration::from_secs(1);
    let config = NvmeTcpConfig { keep_alive: second / 5, timeout: second * 60, ..config(fake.address) };
    let prepared = PreparedNvmeTcp::open(&config).expect("it is there");
    let maintenance = prepared.maintenance();
    let limits = CommitLimits { answer: second * 60, busy: second * 60 };
    assert_eq!(maintenance.commit(1, 3, limits), Ok(Activation::Ready));
    assert_eq!(fake.silence.keep_alives.load(SeqCst), 0);
    assert_eq!(fake.seen.lock().expect("no panic").queues, 1, "the connection was not lost");
    maintenance.save().expect("other orders go on");
    drop(prepared);
}
