//! Tests of a single path in an unusable access state (Asymmetric Namespace Access).

use super::fake::{Doom, Fake, content};
use super::lone::Lone;
use super::rig::{config, serve, while_others_read};
use crate::rig::{BLOCK, LIMIT, Scratch, eventually, open, open_at, start_reactor};
use sluice_host::{Deadline, QueueLayout, entry};
use sluice_nvme::{AnaState, Status};
use sluice_targets::NvmeTcpConfig;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

fn optimized() -> Fake {
    let fake = Fake::start(Box::new(|_, _| true));
    fake.access.tell(AnaState::Optimized);
    fake
}

#[test]
fn what_is_refused_for_the_state_waits_for_another() {
    let (scratch, reactor, fake) = (Scratch::new(), start_reactor(), optimized());
    let (drive, control) = serve(&scratch, &reactor, "disk", &config(fake.address));
    let mut host = drive.guest();
    let mut disk = open(&mut host);
    for state in [AnaState::Change, AnaState::Inaccessible] {
        fake.access.keep_quiet(state);
        let sent = control.status().sent;
        std::thread::scope(|threads| {
            let reader = threads.spawn(|| {
                let mut there = [0; BLOCK];
                disk.read(3, &mut there).map(|()| there)
            });
            eventually("the command finds out", || control.status().sent > sent);
            eventually("it is known", || control.status().ana == Some(state));
            fake.access.tell(AnaState::NonOptimized);
            let there = reader.join().expect("no panic").expect("it came when the path was good again");
            assert!(there[..] == content(3, BLOCK));
        });
        eventually("it is known", || control.status().ana == Some(AnaState::NonOptimized));
        assert_eq!(control.status().losses, 0);
    }
    drop(drive);
    reactor.stop();
}

#[test]
fn what_is_refused_for_too_long_fails() {
    let (scratch, reactor, fake) = (Scratch::new(), start_reactor(), optimized());
    let limit = Duration::from_secs(2);
    let limits = NvmeTcpConfig { fast_io_fail: Some(limit), ..config(fake.address) };
    let (drive, control) = serve(&scratch, &reactor, "disk", &limits);
    let mut host = drive.guest();
    let mut disk = open(&mut host);
    let mut read = || disk.read(3, &mut [0; BLOCK]).map_err(|error| error.status().expect("a status"));
    fake.access.tell(AnaState::Inaccessible);
    let failed = read().expect_err("it was refused all the time");
    assert!(failed.same_code(Status::INTERNAL_PATH_ERROR), "{failed:?}");
    // From now on commands fail at once, refused by the target, or by the controller once more.
    let (since, sent) = (Instant::now(), control.status().sent);
    while control.status().sent < sent + 4 {
        assert!(read().is_err(), "it is refused yet");
    }
    assert!(since.elapsed() < limit, "{:?}", since.elapsed());
    fake.access.tell(AnaState::Optimized);
    eventually("it is known", || control.status().ana == Some(AnaState::Optimized));
    eventually("the drive goes on", || read().is_ok());
    // Commands do not wait in a persistent state.
    fake.access.tell(AnaState::PersistentLoss);
    let failed = read().expect_err("it is lost");
    assert!(AnaState::of_refusal(failed) == Some(AnaState::PersistentLoss), "{failed:?}");
    drop(drive);
    reactor.stop();
}

/// Checks that the later success of a command from before the refusal does not end the wait.
#[test]
fn a_late_success_does_not_have_what_was_refused_wait_for_ever() {
    let is_refused = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&is_refused);
    let fake = Fake::start(Box::new(move |link, entry| {
        let told = Arc::clone(&told);
        link.access.keep_quiet(AnaState::Inaccessible);
        link.respond_later(entry, move || eventually("it is told", || told.load(SeqCst)));
        false
    }));
    fake.access.tell(AnaState::Optimized);
    let fast_io_fail = Some(Duration::from_secs(2));
    let lone = Lone::new(fake, |usual| NvmeTcpConfig { fast_io_fail, ..usual });
    let mut guest = lone.guest();
    let mut queue = guest.create_queue_pair(1, QueueLayout::default(), None).expect("a queue pair");
    let [slow, refused] =
        [0, 1].map(|block| queue.submit(entry::write_zeroes(1, block, 1, false)).expect("room"));
    queue.ring().expect("rung");
    let is_known = || lone.control.status().ana == Some(AnaState::Inaccessible);
    eventually("the other is refused", is_known);
    is_refused.store(true, SeqCst);
    let deadline = Deadline::after(LIMIT, "both");
    let slow = queue.wait(slow, &deadline, drop).expect("answered").status();
    assert!(slow.is_success(), "{slow:?}");
    let refused = queue.wait(refused, &deadline, drop).expect("answered").status();
    assert!(refused.same_code(Status::INTERNAL_PATH_ERROR), "{refused:?}");
}

/// Checks that the success of other commands between two refusals does not extend the wait.
#[test]
fn what_alone_is_refused_fails_whatever_others_come_to() {
    let fast_io_fail = Some(Duration::from_secs(2));
    let lone = Lone::new(optimized(), |usual| NvmeTcpConfig { fast_io_fail, ..usual });
    let (mut host, mut disk) = lone.disk();
    let mut other = open_at(&mut host, 2);
    lone.fake.access.doom(Some((7, Doom::Refused)));
    let failed = while_others_read(&mut other, || disk.read(7, &mut [0; BLOCK]));
    let failed = failed.expect_err("it was refused all the time").status().expect("a status");
    assert!(failed.same_code(Status::INTERNAL_PATH_ERROR), "{failed:?}");
    assert_eq!(lone.control.status().losses, 0);
    lone.fake.access.doom(None);
    let mut there = [0; BLOCK];
    eventually("the drive goes on", || disk.read(7, &mut there).is_ok());
    assert!(there[..] == content(7, BLOCK));
}

#[test]
fn what_must_not_be_repeated_is_not() {
    // So that it ends even if it is repeated.
    let fast_io_fail = Some(Duration::from_secs(2));
    let lone = Lone::new(optimized(), |usual| NvmeTcpConfig { fast_io_fail, ..usual });
    let (_host, mut disk) = lone.disk();
    let refusal = Status(Status::ASYMMETRIC_ACCESS_INACCESSIBLE.0 | Status::DNR);
    lone.fake.access.fail(Some(refusal));
    let sent = lone.control.status().sent;
    let failed = disk.read(3, &mut [0; BLOCK]).expect_err("it was refused").status().expect("a status");
    assert_eq!(failed, refusal);
    assert_eq!(lone.control.status().sent, sent + 1);
}
