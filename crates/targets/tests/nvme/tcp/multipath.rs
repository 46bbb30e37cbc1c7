//! Tests of several paths to one namespace, some of which are cut, silent, or reported as unusable.

use super::fake::{Doom, Fake, content};
use super::proxy::Proxy;
use super::rig::{Rig, config, while_others_read};
use crate::model;
use crate::rig::{BLOCK, Drive, Scratch, eventually, open, open_at, pattern, start_reactor};
use sluice_command::StackBuilder;
use sluice_functions::Random;
use sluice_nvme::AnaState;
use sluice_nvme::Status;
use sluice_reactor::{Io, ReactorHandle, TaskId};
use sluice_router::{Router, RouterBuilder};
use sluice_targets::{Multipath, NvmeTcpConfig, NvmeTcpControl, PathPolicy, PreparedNvmeTcp};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

/// Creates the parts of a drive over two paths.
fn two_paths(
    configs: &[NvmeTcpConfig; 2],
    policy: PathPolicy,
    limit: Option<Duration>,
) -> ([NvmeTcpControl; 2], impl FnOnce(TaskId, &Io) -> Router + Send + 'static) {
    let seeds = PreparedNvmeTcp::open_paths(configs).expect("they are there");
    let controls = [seeds[0].control(), seeds[1].control()];
    let layer = Multipath::new(policy, controls.to_vec(), limit);
    let router = move |task: TaskId, io: &Io| {
        let mut stack = StackBuilder::new();
        let mut below = Vec::new();
        for (node, seed) in (0u64..).zip(seeds) {
            // The token has the node above the ticket, like those of the controller.
            let target = seed.build(task, io, node << 32).expect("room for files");
            below.push(stack.add(Box::new(target), &[]).expect("room"));
        }
        stack.add(Box::new(layer), &below).expect("room");
        RouterBuilder::new(stack.build()).build()
    };
    (controls, router)
}

/// A device behind two networks, and a drive on it.
struct TwoNetworks {
    drive: Drive,
    controls: [NvmeTcpControl; 2],
    proxies: [Proxy; 2],
    _rig: Rig,
}

impl TwoNetworks {
    fn new(timeout: Option<Duration>, policy: PathPolicy, limit: Option<Duration>) -> Self {
        Self::with(policy, limit, |usual| NvmeTcpConfig {
            timeout: timeout.unwrap_or(usual.timeout),
            ..usual
        })
    }

    fn with(
        policy: PathPolicy,
        limit: Option<Duration>,
        change: impl Fn(NvmeTcpConfig) -> NvmeTcpConfig,
    ) -> Self {
        let rig = Rig::with_room(4);
        let proxies = [Proxy::to(rig.address), Proxy::to(rig.address)];
        let configs = [0, 1].map(|path: usize| change(config(proxies[path].address)));
        let (controls, router) = two_paths(&configs, policy, limit);
        let drive = rig.drive_of("disk", router);
        Self { drive, controls, proxies, _rig: rig }
    }
}

/// Runs random commands against a model, while one network or the other is down for a while: no command
/// fails.
#[test]
fn a_path_that_dies_under_load_is_seen_by_nobody() {
    for policy in [PathPolicy::RoundRobin, PathPolicy::QueueDepth] {
        // Writes wait for the Keep Alive Timer where the end of a connection was not seen in time.
        let keep_alive = Duration::from_secs(1);
        let networks = TwoNetworks::with(policy, None, |usual| NvmeTcpConfig { keep_alive, ..usual });
        let TwoNetworks { drive, controls, proxies, .. } = &networks;
        let mut host = drive.guest();
        let done = AtomicBool::new(false);
        let mut random = Random::new(3);
        let lanes = std::thread::scope(|threads| {
            threads.spawn(|| {
                let used = |path: &NvmeTcpControl, more: u64| {
                    let before = path.status().completed;
                    eventually("a path is used", || {
                        path.status().completed > before + more || done.load(SeqCst)
                    });
                };
                while !done.load(SeqCst) {
                    let dies = random.below(2) as usize;
                    used(&controls[dies], random.below(40));
                    proxies[dies].refuse(true);
                    proxies[dies].cut();
                    used(&controls[1 - dies], random.below(40));
                    proxies[dies].refuse(false);
                    eventually("it is back", || controls[dies].status().connected || done.load(SeqCst));
                }
            });
            let lanes = model::run(&mut host, 7, 2000);
            done.store(true, SeqCst);
            lanes
        });
        let mut disk = open_at(&mut host, 2);
        let mut slba = 0;
        for (number, lane) in lanes.iter().enumerate() {
            let mut there = vec![0; lane.len()];
            disk.read(slba, &mut there).expect("read");
            assert!(there == *lane, "{policy:?}, lane {number}");
            slba += (lane.len() / BLOCK) as u64;
        }
        let [one, other] = controls.each_ref().map(|control| control.status());
        assert!(one.losses + other.losses > 3, "{policy:?}: {one:?}, {other:?}");
        assert!(one.interrupted + other.interrupted > 0, "{policy:?}: {one:?}, {other:?}");
    }
}

/// Checks a network that drops everything: commands on it end with their timeout, and others pass meanwhile.
#[test]
fn a_black_hole_has_its_own_commands_alone() {
    let timeout = Some(Duration::from_secs(2));
    let networks = TwoNetworks::new(timeout, PathPolicy::RoundRobin, None);
    let TwoNetworks { drive, controls, proxies, .. } = &networks;
    let mut host = drive.guest();
    let mut disk = open(&mut host);
    proxies[0].swallow(true);
    for round in 0..20 {
        disk.write(round, &pattern(round, BLOCK)).expect("the other path is there");
    }
    let hole = controls[0].status();
    assert!(hole.losses > 0 && hole.interrupted > 0, "{hole:?}");
    proxies[0].swallow(false);
    proxies[0].cut();
    eventually("it is back", || controls[0].status().connected);
    let mut back = [0; BLOCK];
    for round in 0..20 {
        disk.read(round, &mut back).expect("read");
        assert!(back[..] == pattern(round, BLOCK));
    }
    eventually("both are used", || {
        disk.read(0, &mut back).expect("read");
        controls[0].status().completed > hole.completed + 5
    });
}

#[test]
fn without_a_path_commands_wait_for_one_and_fail_when_it_takes_too_long() {
    let limit = Some(Duration::from_secs(2));
    let networks = TwoNetworks::new(None, PathPolicy::RoundRobin, limit);
    let TwoNetworks { drive, controls, proxies, .. } = &networks;
    let mut host = drive.guest();
    let mut disk = open(&mut host);
    disk.write(0, &pattern(1, BLOCK)).expect("written");
    proxies.iter().for_each(|proxy| proxy.refuse(true));
    proxies.iter().for_each(Proxy::cut);
    eventually("both are lost", || controls.iter().all(|control| !control.status().connected));
    let failed = disk.read(0, &mut [0; BLOCK]).expect_err("nobody is there").status().expect("a status");
    assert!(failed.same_code(Status::INTERNAL_PATH_ERROR), "{failed:?}");
    proxies[1].refuse(false);
    eventually("one path is back", || controls[1].status().connected);
    let mut back = vec![0; BLOCK];
    eventually("the drive goes on", || disk.read(0, &mut back).is_ok());
    assert!(back == pattern(1, BLOCK));
}

#[test]
fn paths_to_two_devices_are_not_taken_for_one() {
    let (rig, fake) = (Rig::new(), Fake::start(Box::new(|_, _| true)));
    let opened = PreparedNvmeTcp::open_paths(&[config(rig.address), config(fake.address)]);
    let complaint = opened.map(drop).expect_err("two devices").to_string();
    assert!(complaint.contains("lead to the same"), "{complaint}");
    assert!(complaint.contains(&fake.address.to_string()), "{complaint}");
}

/// A drive over two controllers that report access states.
struct TwoStates {
    drive: Option<Drive>,
    controls: [NvmeTcpControl; 2],
    fakes: [Fake; 2],
    reactor: ReactorHandle,
    _scratch: Scratch,
}

impl TwoStates {
    fn new(states: [AnaState; 2]) -> Self {
        Self::with_limit(states, None)
    }

    fn with_limit(states: [AnaState; 2], limit: Option<Duration>) -> Self {
        let fakes = states.map(|state| {
            let fake = Fake::start(Box::new(|_, _| true));
            fake.access.tell(state);
            fake
        });
        Self::over(fakes, limit)
    }

    /// Creates a drive over controllers with this Command Quiesce Time, which hold back no commands of other
    /// connections.
    fn forgetful(quiesce_ms: u16) -> Self {
        let fakes = [(); 2].map(|()| {
            let fake = Fake::start(Box::new(|_, _| true));
            fake.access.tell(AnaState::Optimized);
            fake.access.forgets.store(true, SeqCst);
            fake.access.quiesce_ms.store(quiesce_ms, SeqCst);
            fake
        });
        Self::over(fakes, None)
    }

    fn over(fakes: [Fake; 2], limit: Option<Duration>) -> Self {
        let (scratch, reactor) = (Scratch::new(), start_reactor());
        let configs = [0, 1].map(|path: usize| config(fakes[path].address));
        let (controls, router) = two_paths(&configs, PathPolicy::RoundRobin, limit);
        let drive = Drive::serve_router(&reactor, scratch.path().join("disk"), 512, router);
        Self { drive: Some(drive), controls, fakes, reactor, _scratch: scratch }
    }

    /// Returns how many of `reads` reads each path has executed.
    fn share(&self, disk: &mut sluice_host::Namespace, reads: u64) -> [u64; 2] {
        let before = self.controls.each_ref().map(|control| control.status().completed);
        for slba in 0..reads {
            let mut there = [0; BLOCK];
            disk.read(slba, &mut there).expect("a path is there");
            assert!(there[..] == content(slba, BLOCK));
        }
        let after = self.controls.each_ref().map(|control| control.status().completed);
        [after[0] - before[0], after[1] - before[1]]
    }

    /// Delays the first path: it is not usable or connected again before all of its returned commands have
    /// failed on it.
    fn delay_first(&self) {
        let (control, reactor) = (self.controls[0].clone(), self.reactor.clone());
        self.fakes[0].access.pause(Arc::new(move || {
            eventually("all is given back", || control.status().under_way == 0);
            let _ = reactor.call(|_| ());
        }));
    }

    /// Changes the access state of a path, and waits until the target has it.
    fn change(&self, path: usize, state: AnaState) {
        self.fakes[path].access.tell(state);
        eventually("it is heard of", || self.controls[path].status().ana == Some(state));
    }
}

impl Drop for TwoStates {
    fn drop(&mut self) {
        drop(self.drive.take());
        self.reactor.clone().stop();
    }
}

#[test]
fn of_several_paths_the_best_is_taken_by_what_their_controllers_say() {
    let rig = TwoStates::new([AnaState::NonOptimized, AnaState::Optimized]);
    let mut host = rig.drive.as_ref().expect("it is there").guest();
    let mut disk = open(&mut host);
    assert_eq!(rig.share(&mut disk, 10), [0, 10]);
    rig.change(0, AnaState::Optimized);
    assert_eq!(rig.share(&mut disk, 10), [5, 5]);
    rig.change(1, AnaState::NonOptimized);
    assert_eq!(rig.share(&mut disk, 10), [10, 0]);
    rig.change(0, AnaState::Inaccessible);
    assert_eq!(rig.share(&mut disk, 10), [0, 10]);
    rig.change(1, AnaState::PersistentLoss);
    rig.change(0, AnaState::NonOptimized);
    assert_eq!(rig.share(&mut disk, 10), [10, 0]);
}

#[test]
fn a_command_waits_while_the_states_of_all_paths_change() {
    let rig = TwoStates::new([AnaState::Optimized, AnaState::Inaccessible]);
    let mut host = rig.drive.as_ref().expect("it is there").guest();
    let mut disk = open(&mut host);
    rig.change(0, AnaState::Change);
    let reader = std::thread::spawn(move || {
        let mut there = [0; BLOCK];
        disk.read(3, &mut there).map(|()| there)
    });
    let sent = rig.controls.each_ref().map(|control| control.status().sent);
    // There is no notice of the end of the change, so the target has to read the state.
    rig.fakes[0].access.keep_quiet(AnaState::NonOptimized);
    let there = reader.join().expect("no panic").expect("it came when the path was good again");
    assert!(there[..] == content(3, BLOCK));
    assert_eq!(rig.controls[0].status().sent, sent[0] + 1);
    assert_eq!(rig.controls[1].status().sent, sent[1]);
}

#[test]
fn a_command_that_is_refused_for_the_state_takes_another_path() {
    let rig = TwoStates::new([AnaState::Optimized, AnaState::Optimized]);
    let mut host = rig.drive.as_ref().expect("it is there").guest();
    let mut disk = open(&mut host);
    rig.fakes[0].access.keep_quiet(AnaState::Inaccessible);
    // One of the commands is refused.
    assert_eq!(rig.share(&mut disk, 10).iter().sum::<u64>(), 11);
    eventually("it is known", || rig.controls[0].status().ana == Some(AnaState::Inaccessible));
    assert_eq!(rig.share(&mut disk, 10), [0, 10]);
}

/// Checks paths that are connected while none leads to the storage, as with a drive of Sluice that has lost
/// its network.
#[test]
fn a_command_that_fails_on_all_paths_fails_when_that_takes_too_long() {
    let limit = Some(Duration::from_millis(100));
    let rig = TwoStates::with_limit([AnaState::Optimized, AnaState::NonOptimized], limit);
    let mut host = rig.drive.as_ref().expect("it is there").guest();
    let mut disk = open(&mut host);
    rig.share(&mut disk, 1);
    rig.fakes.iter().for_each(|fake| fake.access.fail(Some(Status::INTERNAL_PATH_ERROR)));
    let sent = rig.controls.each_ref().map(|control| control.status().sent);
    let failed = disk.read(0, &mut [0; BLOCK]).expect_err("no path is any good").status();
    assert!(failed.expect("a status").same_code(Status::INTERNAL_PATH_ERROR), "{failed:?}");
    let tries = [0, 1].map(|path| rig.controls[path].status().sent - sent[path]);
    assert!(tries.iter().all(|tries| *tries >= 2), "each was tried again: {tries:?}");
    rig.fakes.iter().for_each(|fake| fake.access.fail(None));
    rig.share(&mut disk, 10);
}

/// Checks that a restored path does not extend the wait of a command that loses the connection again, even if
/// others succeed.
#[test]
fn a_command_that_costs_every_connection_fails_when_that_takes_too_long() {
    let limit = Some(Duration::from_secs(2));
    let rig = TwoStates::with_limit([AnaState::Optimized, AnaState::Inaccessible], limit);
    let mut host = rig.drive.as_ref().expect("it is there").guest();
    let (mut disk, mut other) = (open(&mut host), open_at(&mut host, 2));
    rig.delay_first();
    rig.fakes[0].access.doom(Some((7, Doom::Lost)));
    // A useful connection is replaced at once.
    let failed = while_others_read(&mut other, || disk.read(7, &mut [0; BLOCK]));
    let failed = failed.expect_err("no connection outlives it").status().expect("a status");
    assert!(failed.same_code(Status::INTERNAL_PATH_ERROR), "{failed:?}");
    assert!(rig.controls[0].status().losses > 0, "{:?}", rig.controls[0].status());
    rig.fakes[0].access.doom(None);
    let mut there = [0; BLOCK];
    eventually("the drive goes on", || disk.read(7, &mut there).is_ok());
    assert!(there[..] == content(7, BLOCK));
}

/// Checks that a good access state does not extend the wait of a command that the controller refuses
/// nevertheless.
#[test]
fn a_command_that_is_refused_on_paths_said_to_be_good_fails_when_that_takes_too_long() {
    let limit = Some(Duration::from_secs(2));
    let rig = TwoStates::with_limit([AnaState::Optimized, AnaState::Inaccessible], limit);
    let mut host = rig.drive.as_ref().expect("it is there").guest();
    let mut disk = open(&mut host);
    rig.delay_first();
    rig.fakes[0].access.fail(Some(Status::ASYMMETRIC_ACCESS_INACCESSIBLE));
    let failed = disk.read(3, &mut [0; BLOCK]).expect_err("it is refused").status().expect("a status");
    assert!(failed.same_code(Status::INTERNAL_PATH_ERROR), "{failed:?}");
    rig.fakes[0].access.fail(None);
    let mut there = [0; BLOCK];
    eventually("the drive goes on", || disk.read(3, &mut there).is_ok());
    assert!(there[..] == content(3, BLOCK));
}

/// Checks the delay of writes that NVM Express Base 2.1 requires in 9.6.2. Reads need not wait.
#[test]
fn a_write_takes_another_path_when_the_first_controller_is_done_with_it() {
    for quiesce_ms in [20_000, 1] {
        let rig = TwoStates::forgetful(quiesce_ms);
        let mut host = rig.drive.as_ref().expect("it is there").guest();
        let (mut disk, mut other) = (open(&mut host), open_at(&mut host, 2));
        rig.fakes.iter().for_each(|fake| fake.access.doom(Some((7, Doom::Lost))));
        let writer = std::thread::spawn(move || disk.write(7, &[1; BLOCK]));
        while_others_read(&mut other, || {
            eventually("a connection is lost", || rig.controls.iter().any(|it| it.status().losses > 0));
            rig.fakes.iter().for_each(|fake| fake.access.doom(None));
            eventually("it is there again", || rig.controls.iter().all(|it| it.status().connected));
            // The other controller may have received the write before its doom ended. That connection ends with
            // the next read.
            if quiesce_ms == 1 {
                eventually("it is written", || writer.is_finished());
            }
        });
        if quiesce_ms == 1 {
            writer.join().expect("no panic").expect("written");
            continue;
        }
        // A read continues at once, and the write is sent on no path.
        let before = rig.controls.each_ref().map(|control| control.status().sent);
        rig.share(&mut other, 20);
        let after = rig.controls.each_ref().map(|control| control.status().sent);
        assert_eq!(after.iter().sum::<u64>(), before.iter().sum::<u64>() + 20);
        assert!(!writer.is_finished(), "its first controller may still have it");
        let waits = rig.controls.iter().map(|control| control.status().under_way).sum::<u64>();
        assert_eq!(waits, 1);
    }
}
