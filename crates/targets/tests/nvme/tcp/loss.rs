//! The network is cut, or swallows everything; and heals.

use super::fake::{Doom, Fake, content};
use super::lone::Lone;
use super::proxy::Proxy;
use super::rig::{Rig, config, serve, while_others_read};
use crate::model;
use crate::rig::{BLOCK, LIMIT, Scratch, eventually, open, open_at, pattern, start_reactor};
use sluice_host::{Deadline, QueueLayout, entry};
use sluice_nvme::Status;
use sluice_reactor::Local;
use sluice_targets::{Digests, LossNotice, NvmeTcpConfig};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

/// Runs random commands on separate data, checked against a model, while the connection is cut again and
/// again.
#[test]
fn nothing_is_lost_when_the_network_is_cut_under_load() {
    for (seed, digests) in [(5, Digests::NONE), (6, Digests { header: true, data: true })] {
        let rig = Rig::new();
        let proxy = Proxy::to(rig.address);
        // Writes wait for the Keep Alive Timer where the end of a connection was not seen in time.
        let keep_alive = Duration::from_secs(1);
        let (drive, control) =
            rig.drive("disk", &NvmeTcpConfig { digests, keep_alive, ..config(proxy.address) });
        let mut host = drive.guest();
        let done = AtomicBool::new(false);
        let lanes = std::thread::scope(|threads| {
            threads.spawn(|| {
                while !done.load(SeqCst) {
                    // Some commands complete on each connection before it is cut.
                    let before = control.status();
                    let goes_on = || {
                        let now = control.status();
                        now.connected && now.completed > before.completed + 20 || done.load(SeqCst)
                    };
                    eventually("it goes on", goes_on);
                    proxy.cut();
                }
            });
            let lanes = model::run(&mut host, seed, 2000);
            done.store(true, SeqCst);
            lanes
        });
        eventually("it is there again", || control.status().connected);
        let mut disk = open_at(&mut host, 2);
        let mut slba = 0;
        for (number, lane) in lanes.iter().enumerate() {
            let mut there = vec![0; lane.len()];
            disk.read(slba, &mut there).expect("read");
            assert!(there == *lane, "seed {seed}, lane {number}");
            slba += (lane.len() / BLOCK) as u64;
        }
        let status = control.status();
        assert!(status.losses > 3 && status.interrupted > 0, "{status:?}");
    }
}

/// Checks a peer that receives everything and sends nothing: commands of its drive time out, and other drives
/// are not affected.
#[test]
fn a_black_hole_fails_commands_at_their_deadline() {
    let (hole, clear) = (Rig::new(), Rig::new());
    let proxy = Proxy::to(hole.address);
    let short = Duration::from_secs(1);
    let limits =
        NvmeTcpConfig { timeout: short, fast_io_fail: Some(Duration::ZERO), ..config(proxy.address) };
    let (drive, control) = hole.drive("hole", &limits);
    let (other, _) = clear.drive("other", &config(clear.address));
    let (mut host, mut other_host) = (drive.guest(), other.guest());
    let (mut disk, mut other_disk) = (open(&mut host), open(&mut other_host));
    disk.write(0, &pattern(1, BLOCK)).expect("written");
    proxy.swallow(true);
    let failed = std::thread::scope(|threads| {
        let writer = threads.spawn(|| disk.write(0, &pattern(2, BLOCK)));
        for round in 0..50 {
            other_disk.write(round, &pattern(round, BLOCK)).expect("nobody waits for another's peer");
        }
        writer.join().expect("no panic")
    });
    let status = failed.expect_err("nobody answered").status().expect("a status");
    assert!(status.same_code(Status::INTERNAL_PATH_ERROR), "{status:?}");
    // Without a connection commands fail at once.
    assert!(disk.read(0, &mut [0; BLOCK]).is_err());
    proxy.swallow(false);
    proxy.cut();
    eventually("it is there again", || control.status().connected);
    let mut back = vec![0; BLOCK];
    eventually("the drive goes on", || disk.read(0, &mut back).is_ok());
    assert!(back == pattern(1, BLOCK) || back == pattern(2, BLOCK));
}

/// Checks that new connections do not extend the wait of a command that fails on each, even if other commands
/// succeed.
#[test]
fn a_command_that_is_never_answered_fails_however_often_it_is_sent() {
    let fake = Fake::start(Box::new(|_, _| true));
    let (timeout, fast_io_fail) = (Duration::from_secs(1), Some(Duration::from_secs(5)));
    let lone = Lone::new(fake, |usual| NvmeTcpConfig { timeout, fast_io_fail, ..usual });
    let (mut host, mut disk) = lone.disk();
    let mut other = open_at(&mut host, 2);
    lone.fake.silence.block.store(7, SeqCst);
    // A useful connection is replaced at once.
    let failed = while_others_read(&mut other, || disk.read(7, &mut [0; BLOCK]));
    let status = failed.expect_err("nobody answered").status().expect("a status");
    assert!(status.same_code(Status::INTERNAL_PATH_ERROR), "{status:?}");
    assert!(lone.control.status().losses > 1, "{:?}", lone.control.status());
    lone.fake.silence.block.store(0, SeqCst);
    let mut there = [0; BLOCK];
    eventually("the drive goes on", || disk.read(7, &mut there).is_ok());
    assert!(there[..] == content(7, BLOCK));
}

/// Pauses the reactor for longer than the timeout: completions count, in any number of receives, and the
/// connection is not given up.
#[test]
fn a_controller_that_answered_while_nobody_looked_is_not_given_up() {
    const TIMEOUT: Duration = Duration::from_secs(2);
    const LENGTH: u32 = 256 << 10;
    let may_answer = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&may_answer);
    let fake = Fake::start(Box::new(move |_, _| {
        eventually("it is told", || told.load(SeqCst));
        true
    }));
    let lone = Lone::new(fake, |usual| NvmeTcpConfig { timeout: TIMEOUT, ..usual });
    let mut guest = lone.guest();
    let mut queue = guest.create_queue_pair(1, QueueLayout::default(), None).expect("a queue pair");
    let memory = guest.memory().allocate(16 * LENGTH as usize).expect("memory");
    let read = |number: u32| {
        let read = entry::read(1, u64::from(number) * 8, LENGTH / BLOCK as u32);
        queue.submit_prp(read, memory.range((number * LENGTH) as usize, LENGTH)).expect("room")
    };
    let cids: Vec<u16> = (0..16).map(read).collect();
    queue.ring().expect("rung");
    eventually("they are sent", || lone.control.status().sent == 16);
    let look_away = move |_: &mut sluice_reactor::Local| {
        may_answer.store(true, SeqCst);
        std::thread::sleep(2 * TIMEOUT);
    };
    lone.reactor.call(look_away).expect("the reactor runs");
    let (deadline, mut answered) = (Deadline::after(LIMIT, "the commands"), 0);
    while answered < cids.len() {
        answered += queue.reap(|answer| assert!(answer.status().is_success(), "{answer:?}"));
        deadline.check().expect("in time");
    }
    let mut there = vec![0; LENGTH as usize];
    for number in 0..16 {
        memory.region().read(number * LENGTH as usize, &mut there);
        assert!(there == content(number as u64 * 8, LENGTH as usize));
    }
    assert_eq!((lone.control.status().losses, lone.control.status().interrupted), (0, 0));
}

/// Checks that a silent admin queue does not delay the reset: the time of a command passes once.
#[test]
fn a_connection_that_is_given_up_is_reset_whatever_the_admin_queue_waits_for() {
    let fake = Fake::start(Box::new(|link, _| {
        link.end();
        false
    }));
    let (scratch, reactor) = (Scratch::new(), start_reactor());
    let often = NvmeTcpConfig { keep_alive: Duration::from_millis(20), ..config(fake.address) };
    let (drive, control) = serve(&scratch, &reactor, "disk", &often);
    let mut host = drive.guest();
    let mut disk = open(&mut host);
    fake.silence.is_wanted.store(true, SeqCst);
    eventually("a Keep Alive is not answered", || fake.silence.has_begun.load(SeqCst));
    let mut there = [0; BLOCK];
    disk.read(3, &mut there).expect("on another connection");
    assert!(there[..] == content(3, BLOCK));
    assert_eq!(control.status().losses, 1);
    drop(drive);
    reactor.stop();
}

/// Checks that a write does not wait for the Keep Alive Timer because the reactor is late.
#[test]
fn a_busy_reactor_does_not_hide_that_the_controller_has_seen_the_end() {
    let rig = Rig::new();
    let proxy = Proxy::to(rig.address);
    let (scratch, reactor) = (Scratch::new(), start_reactor());
    let (drive, control) = serve(&scratch, &reactor, "disk", &config(proxy.address));
    let mut host = drive.guest();
    let mut disk = open(&mut host);
    proxy.swallow(true);
    let mut other = open_at(&mut host, 2);
    std::thread::scope(|threads| {
        let writer = threads.spawn(|| disk.write(5, &pattern(3, BLOCK)));
        eventually("the write is sent", || control.status().under_way > 0);
        let has_begun = Arc::new(AtomicBool::new(false));
        let (handle, begun) = (reactor.clone(), Arc::clone(&has_begun));
        threads.spawn(move || {
            let pause = move |_: &mut Local| {
                begun.store(true, SeqCst);
                std::thread::sleep(Duration::from_secs(1));
            };
            handle.call(pause).expect("the reactor runs");
        });
        eventually("the reactor is busy", || has_begun.load(SeqCst));
        proxy.swallow(false);
        proxy.cut();
        writer.join().expect("no panic").expect("on the next connection");
    });
    let mut back = [0; BLOCK];
    other.read(5, &mut back).expect("read");
    assert!(back[..] == pattern(3, BLOCK));
    assert_eq!(control.status().losses, 1);
    drop(drive);
    reactor.stop();
}

#[test]
fn commands_wait_for_a_network_that_is_cut() {
    let rig = Rig::new();
    let proxy = Proxy::to(rig.address);
    let (drive, control) = rig.drive("disk", &config(proxy.address));
    let mut host = drive.guest();
    let mut disk = open(&mut host);
    proxy.refuse(true);
    proxy.cut();
    eventually("the loss is noticed", || !control.status().connected);
    let writer = std::thread::spawn(move || {
        let result = disk.write(5, &pattern(3, 64 << 10));
        (disk, result)
    });
    let before = proxy.connections();
    eventually("it is tried again and again", || proxy.connections() > before + 2);
    proxy.refuse(false);
    let (mut disk, result) = writer.join().expect("no panic");
    result.expect("done when the network was back");
    let mut back = vec![0; 64 << 10];
    disk.read(5, &mut back).expect("read");
    assert!(back == pattern(3, 64 << 10));
}

#[test]
fn a_controller_that_is_gone_for_long_is_given_up() {
    let rig = Rig::new();
    let proxy = Proxy::to(rig.address);
    let limits = NvmeTcpConfig { ctrl_loss: Some(Duration::from_millis(100)), ..config(proxy.address) };
    let (drive, control) = rig.drive("disk", &limits);
    let mut host = drive.guest();
    let mut disk = open(&mut host);
    proxy.refuse(true);
    proxy.cut();
    let failed = disk.write(0, &pattern(1, BLOCK)).expect_err("it is gone").status().expect("a status");
    assert!(failed.same_code(Status::INTERNAL_PATH_ERROR), "{failed:?}");
    assert!(!control.status().connected);
}

/// Resets a controller whose commands wait for the network.
#[test]
fn a_reset_does_not_wait_for_the_network() {
    let rig = Rig::new();
    let proxy = Proxy::to(rig.address);
    let (drive, control) = rig.drive("disk", &config(proxy.address));
    let mut guest = drive.guest();
    let mut queue = guest.create_queue_pair(1, QueueLayout::default(), None).expect("a queue pair");
    proxy.refuse(true);
    proxy.cut();
    eventually("the loss is noticed", || !control.status().connected);
    for block in 0..50 {
        queue.submit(entry::write_zeroes(1, block, 1, false)).expect("room");
    }
    queue.ring().expect("rung");
    eventually("they are taken", || drive.ask(|endpoint| endpoint.device().unfinished()) == 50);
    guest.enable().expect("reset, and enabled again");
    drop(queue);
    proxy.refuse(false);
    eventually("it is there again", || control.status().connected);
    open(&mut guest).write(0, &pattern(3, BLOCK)).expect("written");
}

/// Checks that a write under a mirror does not wait, and that the path is closed until its controller cannot
/// execute it any more.
#[test]
fn a_member_of_a_mirror_comes_back_when_its_controller_is_done_with_its_writes() {
    for quiesce_ms in [20_000, 1] {
        let fake = Fake::start(Box::new(|_, _| true));
        fake.access.forgets.store(true, SeqCst);
        fake.access.quiesce_ms.store(quiesce_ms, SeqCst);
        let (notice, fast_io_fail) = (LossNotice::FailCommand, Some(Duration::ZERO));
        let lone = Lone::new(fake, |usual| NvmeTcpConfig { loss_notice: notice, fast_io_fail, ..usual });
        let (mut host, mut disk) = lone.disk();
        let mut other = open_at(&mut host, 2);
        lone.fake.access.doom(Some((7, Doom::Lost)));
        let failed = while_others_read(&mut other, || disk.write(7, &[1; BLOCK]));
        let status = failed.expect_err("its connection is lost").status().expect("a status");
        assert!(status.same_code(Status::INTERNAL_PATH_ERROR), "{status:?}");
        lone.fake.access.doom(None);
        eventually("it is there again", || lone.control.status().connected);
        let mut there = [0; BLOCK];
        match quiesce_ms {
            1 => eventually("the drive goes on", || disk.read(3, &mut there).is_ok()),
            _ => (0..20).for_each(|_| drop(disk.read(3, &mut there).expect_err("not before it is done"))),
        }
    }
}
