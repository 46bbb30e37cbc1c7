//! One path alone, whose controller says that it is no good for now (Asymmetric Namespace Access).

use super::fake::{Fake, content};
use super::rig::{config, serve};
use crate::rig::{BLOCK, Scratch, eventually, open, start_reactor};
use sluice_nvme::{AnaState, Status};
use sluice_targets::NvmeTcpConfig;
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
    // From now on at once, by whoever refuses it: the target, or the controller once more.
    let (since, sent) = (Instant::now(), control.status().sent);
    while control.status().sent < sent + 4 {
        assert!(read().is_err(), "it is refused yet");
    }
    assert!(since.elapsed() < limit, "{:?}", since.elapsed());
    fake.access.tell(AnaState::Optimized);
    eventually("it is known", || control.status().ana == Some(AnaState::Optimized));
    eventually("the drive goes on", || read().is_ok());
    // What will not be another is not waited for.
    fake.access.tell(AnaState::PersistentLoss);
    let failed = read().expect_err("it is lost");
    assert!(AnaState::of_refusal(failed) == Some(AnaState::PersistentLoss), "{failed:?}");
    drop(drive);
    reactor.stop();
}
