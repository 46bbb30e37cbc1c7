//! A mirror of a file and a remote drive, on a network that is cut, drops and reorders, while either daemon
//! is killed at any moment. No acknowledged write is lost, no command fails, and other drives are not
//! delayed.
//!
//! `SLUICE_CHAOS_S` is the number of seconds, and `SLUICE_CHAOS_SEED` determines the faults.

use crate::common::{Daemon, namespace, wait_for};
use crate::function::Verified;
use crate::machine::{Going, Machine, turns};
use crate::replicate::take_over;
use crate::wire::{FAR, Wire};
use sluice_host::Error;
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-4333-8444-555555555555";

/// Number of seconds in CI.
const SECONDS: u64 = 20;

/// Settings for two processors that are shared by two daemons, the hosts and the wire. Reactors do not spin,
/// and the time that a turn had no processor is counted apart from its own.
const SHARED: &str = "idle = { spin_us = 0 }\nwatch_turns = true\n";

/// Returns a folder in memory where there is one, so that the machine's disk does not lengthen turns.
fn in_memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder")
}

/// Starts the daemon that has the remote drives.
fn far(wire: &Wire) -> Daemon {
    let drive = |name: &str| {
        format!(
            "[[drive]]\nname = \"{name}\"\n[drive.tcp]\nnqn = \"nqn.2026-11.example.sluice:{name}\"\n\
             hosts = [\"{HOST}\"]\n[[drive.namespace]]\ntarget = \"file\"\npath = \"{name}.img\"\nsize = \"16MiB\"\n"
        )
    };
    let drives = drive("disk") + &drive("plain");
    Daemon::start_at(
        in_memory(),
        Some(wire.far),
        &format!("{SHARED}[tcp]\nlisten = [\"{FAR}:4420\"]\n{drives}"),
    )
}

fn remote(name: &str, more: &str) -> String {
    format!(
        "target = \"nvme-tcp\", nvme_tcp = {{ address = \"{FAR}:4420\", subnqn = \"nqn.2026-11.example.sluice:{name}\", \
         hostnqn = \"{HOST}\", timeout_s = 1, keep_alive_s = 2, size = \"16MiB\"{more} }}"
    )
}

/// Starts the daemon that has the mirror, and an independent drive on the same reactor.
fn near(wire: &Wire, more: &str) -> Daemon {
    let drives = format!(
        "{SHARED}[[drive]]\nname = \"disk\"\n[[drive.namespace]]\ntarget = \"file\"\npath = \"near.img\"\nsize = \"16MiB\"\n\
         functions = [ {{ kind = \"uif\", function = \"mirror\", place = \"daemon\", layers = [ {{ {} }}, \
         {{ target = \"file\", path = \"mirror.log\", size = \"4MiB\" }} ] }} ]\n\
         [[drive]]\nname = \"other\"\n[[drive.namespace]]\ntarget = \"memory\"\nsize = \"16MiB\"\n{more}",
        remote("disk", ", fast_io_fail_s = 0"),
    );
    let daemon = Daemon::start_at(in_memory(), Some(wire.near), &drives);
    // The copy needs an order, because a remote member may have been used before.
    daemon.ok(&["function", "tell", "disk", "copy from 0"]);
    daemon
}

/// Starts a host of the independent drive, which returns the longest time of a command.
fn neighbour(daemon: &Daemon) -> Going<Duration> {
    let mut host = daemon.host("other");
    let mut disk = namespace(&mut host, 1);
    let worst = Arc::new(Mutex::new(Duration::ZERO));
    let (seen, mut block) = (Arc::clone(&worst), 0u64);
    let step = move || {
        let _kept = &host;
        block += 1;
        let data = [block as u8; 4096];
        let (mut back, began) = ([0; 4096], Instant::now());
        let done = disk.write(block % 100 * 8, &data).and_then(|()| disk.read(block % 100 * 8, &mut back));
        if done.is_err() {
            // The daemon was killed.
            return false;
        }
        assert!(back == data);
        let mut worst = seen.lock().expect("nobody panicked");
        *worst = began.elapsed().max(*worst);
        sleep(Duration::from_millis(1));
        true
    };
    Going::start(step, move || *worst.lock().expect("nobody panicked"))
}

/// Result of a host of the mirror: the model, with how far it is known, and the error.
type Outcome = (Verified, Option<Error>);

/// Starts a host of the mirror that verifies its reads.
fn load(verified: Verified) -> Going<Outcome> {
    let state = Arc::new(Mutex::new(Some((verified, None))));
    let kept = Arc::clone(&state);
    let step = move || {
        let mut state = state.lock().expect("nobody panicked");
        let Some((verified, trouble)) = state.as_mut() else { return false };
        *trouble = verified.work(5).err();
        trouble.is_none()
    };
    Going::start(step, move || kept.lock().expect("nobody panicked").take().expect("it is there"))
}

struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    fn wait(&mut self, most_ms: u64) {
        sleep(Duration::from_millis(self.below(most_ms)));
    }
}

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}

/// Causes one fault and repairs it.
fn trouble(wire: &mut Wire, far: &mut Daemon, dice: &mut Dice) {
    match dice.below(5) {
        0 => {
            wire.set("drop");
            dice.wait(3000);
            wire.set("pass");
        }
        1 => {
            wire.set("down");
            dice.wait(2000);
            wire.set("up");
        }
        2 => {
            wire.set("reorder");
            dice.wait(3000);
            wire.set("pass");
        }
        3 => {
            far.crash();
            dice.wait(1000);
            far.restart();
        }
        _ => {
            wire.set("drop");
            far.crash();
            far.restart();
            dice.wait(1000);
            wire.set("pass");
        }
    }
    dice.wait(1500);
}

fn is_in_sync(daemon: &Daemon) -> bool {
    let status = daemon.ok(&["function", "tell", "disk", "status"]);
    status.contains(r#""state":"in sync""#) && status.contains(r#""dirty_bytes":0,"#)
}

#[test]
fn a_mirror_over_a_bad_network_loses_nothing_and_nobody_else_waits() {
    let Some(mut wire) = Wire::open() else { return };
    let by_hand = from_environment("SLUICE_CHAOS_S");
    let now =
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_millis() as u64;
    let seed = from_environment("SLUICE_CHAOS_SEED").unwrap_or(now);
    println!("SLUICE_CHAOS_SEED={seed}");
    let (mut dice, end) = (Dice(seed), Instant::now() + Duration::from_secs(by_hand.unwrap_or(SECONDS)));
    let mut far = far(&wire);
    let mut machine = Machine::watch();
    let mut near = near(&wire, "");
    let mut host = near.host("disk");
    let mut verified = Verified::new(namespace(&mut host, 1));
    loop {
        let (next_door, host_of_mirror) = (neighbour(&near), load(verified));
        for _ in 0..=dice.below(4) {
            trouble(&mut wire, &mut far, &mut dice);
        }
        let is_last = Instant::now() >= end;
        if !is_last && dice.below(2) == 0 {
            // The daemon starts while its peer cannot be reached.
            wire.set("drop");
        }
        let (turns, killed) = (turns(&near), !is_last);
        if killed {
            near.crash();
        }
        let (taken, error) = host_of_mirror.stop();
        let (next_door, seen) = (next_door.stop(), machine.end());
        verified = taken;
        seen.no_turn_was_long(&turns, next_door, by_hand.is_some());
        if !killed {
            assert!(error.is_none(), "no command fails: {error:?}\n{}", near.log());
            break;
        }
        drop(host);
        machine = Machine::watch();
        near.restart();
        host = near.host("disk");
        verified = take_over(verified, namespace(&mut host, 1));
        wire.set("pass");
    }
    verified.all_is_well();
    near.ok(&["function", "tell", "disk", "resync"]);
    wait_for("equal copies", || is_in_sync(&near));
    let image = |daemon: &Daemon, name| std::fs::read(daemon.folder.path().join(name)).expect("it is there");
    assert!(image(&near, "near.img") == verified.model, "the near member has what the host was told");
    assert!(image(&far, "disk.img") == verified.model, "and so has the far one");
}

/// Checks a network that drops packets without refusing them. Commands for the peer fail at their deadline,
/// and no others wait.
#[test]
fn a_peer_in_a_black_hole_holds_up_its_own_commands_until_their_deadline() {
    let Some(mut wire) = Wire::open() else { return };
    let _far = far(&wire);
    let plain = format!(
        "[[drive]]\nname = \"plain\"\n[[drive.namespace]]\n{}\n",
        remote("plain", ", fast_io_fail_s = 1").replace(", nvme_tcp", "\nnvme_tcp")
    );
    let machine = Machine::watch();
    let near = near(&wire, &plain);
    let mut host = near.host("plain");
    let mut plain = namespace(&mut host, 1);
    plain.write(0, &[7; 4096]).expect("all is well");
    let mut mirrored = near.host("disk");
    let verified = Verified::new(namespace(&mut mirrored, 1));
    wait_for("equal copies", || is_in_sync(&near));
    let (next_door, host_of_mirror) = (neighbour(&near), load(verified));
    // The time counts from the cut: the first request without an answer may be a Keep Alive.
    let began = Instant::now();
    wire.set("drop");
    let error = plain.write(0, &[8; 4096]).expect_err("nobody answers");
    let status = error.status().and_then(sluice_nvme::Status::name);
    assert_eq!(status, Some("INTERNAL_PATH_ERROR"), "{error}");
    let took = began.elapsed();
    assert!(took >= Duration::from_secs(2), "timeout_s and fast_io_fail_s go by first, but it took {took:?}");
    wait_for("the loss of a member", || {
        near.ok(&["function", "tell", "disk", "status"]).contains(r#""members":["in sync","lost"]"#)
    });
    wire.set("pass");
    wait_for("the peer", || plain.write(0, &[9; 4096]).is_ok());
    let turns = turns(&near);
    let (next_door, machine) = (next_door.stop(), machine.end());
    let (mut verified, error) = host_of_mirror.stop();
    assert!(error.is_none(), "a mirror goes on with its other member: {error:?}");
    machine.no_turn_was_long(&turns, next_door, false);
    verified.all_is_well();
    near.ok(&["function", "tell", "disk", "resync"]);
    wait_for("equal copies", || is_in_sync(&near));
}
