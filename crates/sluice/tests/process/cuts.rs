//! Power cuts at random moments under a verified load: of the machine with a drive's data, of the daemon that
//! serves the drive, and of both.
//!
//! Two daemons run, the far one on a [disk with a volatile cache](crate::volatile). After each cut no flushed
//! write is missing unless an error came first, and a set that is in sync has equal members.
//!
//! `SLUICE_CUTS` is the number of cuts, `SLUICE_CUTS_SEED` determines them, and `SLUICE_CUTS_STACK` names the
//! only stack.

use crate::common::{Daemon, LIMIT, wait_for};
use crate::numbered::{Dice, Epoch, Numbered};
use crate::power::Far;
use crate::wire::{self, Wire};
use sluice_host::Controller;
use std::net::TcpListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Number of cuts in CI.
const CUTS: u64 = 10;

/// Highest number of cuts of one pair of daemons.
const SESSION: u64 = 32;

/// Bytes of the drive, of the log of a set, and of the far machine's disk, except for a snapshot function's
/// [`STORE`].
const SIZE: usize = 4 << 20;
const STORE: usize = 16 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stack {
    Plain,
    Mirror,
    Replicate,
    Snapshot,
}

const STACKS: [Stack; 4] = [Stack::Plain, Stack::Mirror, Stack::Replicate, Stack::Snapshot];

impl Stack {
    fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Mirror => "mirror",
            Self::Replicate => "replicate",
            Self::Snapshot => "snapshot",
        }
    }

    fn is_set(self) -> bool {
        matches!(self, Self::Mirror | Self::Replicate)
    }

    /// Returns the near drive. Remote layers have a size, so that the drive opens while its peer is away.
    fn drive(self, far: &Far) -> String {
        let target = |more: &str| {
            far.target_with(&format!(
                ", size = \"{}\", timeout_s = 1, keep_alive_s = 1{more}",
                self.far_bytes()
            ))
        };
        let head = "[[drive]]\nname = \"near\"\n[[drive.namespace]]\n";
        let namespace = |target: String| target.replacen(", ", "\n", 1);
        let function = |kind: &str, more: String| {
            format!(
                "functions = [ {{ kind = \"uif\", function = \"{kind}\", place = \"daemon\", {more} }} ]\n"
            )
        };
        match self {
            Self::Plain => format!("{head}{}\n", namespace(target(""))),
            Self::Snapshot => {
                let options = format!("options = {{ size = \"{SIZE}\" }}");
                format!("{head}{}\n{}", namespace(target("")), function("snapshot", options))
            }
            Self::Mirror | Self::Replicate => {
                let file = |name: &str| format!("target = \"file\", path = \"{name}\", size = \"{SIZE}\"");
                let far = target(", fast_io_fail_s = 0");
                let layers = format!("layers = [ {{ {far} }}, {{ {} }} ]", file("set.log"));
                let near = file("near.img").replace(", ", "\n");
                format!("{head}{near}\n{}", function(self.name(), layers))
            }
        }
    }

    fn far_bytes(self) -> usize {
        if self == Self::Snapshot { STORE } else { SIZE }
    }
}

/// The machine that is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    Far,
    /// The far machine, after a silence in which packets are dropped or its daemon is stopped.
    SilentFar,
    Near,
    Both,
}

/// Two daemons, the host of the near one, and perhaps a wire between them.
struct Rig {
    stack: Stack,
    far: Far,
    near: Daemon,
    wire: Option<Wire>,
    host: Option<Controller>,
    load: Numbered,
    epoch: Epoch,
    dice: Dice,
    /// Number of times that the near daemon was killed.
    near_ends: usize,
}

impl Rig {
    /// Starts both daemons. Returns none where there can be no disk with a volatile cache.
    fn start(stack: Stack, has_wire: bool, seed: u64) -> Option<Self> {
        let wire = if has_wire { Wire::open() } else { None };
        let address = match wire {
            Some(_) => format!("{}:4420", wire::FAR),
            None => {
                let free = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
                free.expect("a port").to_string()
            }
        };
        let far = Far::start_at(wire.as_ref().map(|wire| wire.far), &address, stack.far_bytes())?;
        let near = Daemon::start_in(wire.as_ref().map(|wire| wire.near), &stack.drive(&far));
        if stack.is_set() && !near.run(&["function", "tell", "near", "status"]).status.success() {
            near.ok(&["function", "tell", "near", "copy from 0"]);
        }
        let epoch = Epoch::default();
        let load = Numbered::new(seed, Epoch::clone(&epoch), stack.is_set());
        let (host, dice) = (None, Dice::new(!seed));
        let mut rig = Self { stack, far, near, wire, host, load, epoch, dice, near_ends: 0 };
        rig.connect();
        rig.settle();
        Some(rig)
    }

    /// Connects the host as soon as the drive is served.
    fn connect(&mut self) {
        let start = Instant::now();
        let is_served = |near: &Daemon| {
            let shown = near.ok(&["drive", "show", "near"]);
            match self.stack {
                _ if !shown.contains("state:     ready") => Err(shown),
                Stack::Plain => Ok(()),
                _ => {
                    let told = near.run(&["function", "tell", "near", "status"]);
                    told.status.success().then_some(()).ok_or_else(|| near.plain(&told.stderr))
                }
            }
        };
        while let Err(complaint) = is_served(&self.near) {
            assert!(start.elapsed() < LIMIT, "the drive is not served: {complaint}\n{}", self.near.log());
            self.near.run(&["drive", "open", "near"]);
            if complaint.contains("the log before block") {
                // The order opens a store that lost a part of its log.
                self.near.run(&["function", "tell", "near", "open at last durable point"]);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let mut host = self.near.host("near");
        self.load.connect(&mut host);
        self.host = Some(host);
    }

    /// Lets the load work for a random time, and makes a cut.
    fn cut(&mut self, cut: Cut) {
        self.work_until_after(40);
        self.near_ends += usize::from(matches!(cut, Cut::Near | Cut::Both));
        match cut {
            Cut::Near => self.cut_near(),
            Cut::Far | Cut::SilentFar => self.cut_far_under_load(cut == Cut::SilentFar, None),
            Cut::Both => {
                let after = self.dice.below(60);
                self.cut_far_under_load(false, Some(Duration::from_millis(after)));
            }
        }
        self.work_until_after(30);
    }

    fn work_until_after(&mut self, most_ms: u64) {
        let (start, time) = (Instant::now(), Duration::from_millis(self.dice.below(most_ms)));
        while start.elapsed() < time && self.load.turn(true) {}
    }

    fn cut_near(&mut self) {
        self.near.crash();
        self.load.disconnect();
        self.host = None;
        self.near.restart();
        self.connect();
    }

    /// Cuts the far machine and brings it back while the load goes on. Kills the near daemon after
    /// `near_after`.
    fn cut_far_under_load(&mut self, is_silent: bool, near_after: Option<Duration>) {
        let Self { far, wire, load, near, epoch, dice, .. } = self;
        let (seed, start) = (dice.below(1 << 31), Instant::now());
        let mut is_up = true;
        std::thread::scope(|scope| {
            let cut = scope.spawn(|| cut_far(far, wire.as_mut(), is_silent, epoch, &mut Dice::new(seed)));
            while !cut.is_finished() {
                if is_up && near_after.is_some_and(|after| start.elapsed() >= after) {
                    near.crash();
                    load.disconnect();
                    is_up = false;
                }
                match is_up {
                    true => assert!(load.turn(true), "the near daemon is gone"),
                    false => std::thread::sleep(Duration::from_millis(1)),
                }
            }
            cut.join().expect("the far daemon starts");
        });
        if near_after.is_some() {
            if is_up {
                near.crash();
                load.disconnect();
            }
            self.host = None;
            self.near.restart();
            self.connect();
        }
    }

    /// Waits until commands end and a Flush succeeds, and then reads and checks all data.
    fn settle(&mut self) {
        self.load.drain();
        // The first Flush may report that writes are lost. Flushes of a snapshot function get such reports,
        // too, and the function fails a Flush of the host for each.
        let tries = match self.stack {
            Stack::Plain => 3,
            Stack::Snapshot => 6,
            Stack::Mirror | Stack::Replicate => 2,
        };
        let is_done = (0..tries).any(|_| self.load.flush().is_ok());
        assert!(is_done, "no Flush succeeds\n{}", self.near.log());
        self.load.settle().unwrap_or_else(|status| panic!("{status:?}\n{}", self.near.log()));
        match self.stack {
            Stack::Plain => self.load.is_in(&self.far.disk.durable()).expect("flushed data is durable"),
            Stack::Snapshot => {}
            Stack::Mirror | Stack::Replicate => self.members_are_equal(),
        }
    }

    fn members_are_equal(&mut self) {
        let status = || self.near.ok(&["function", "tell", "near", "status"]);
        wait_for("a set in sync", || {
            self.near.ok(&["function", "tell", "near", "resync"]);
            status().contains(r#""state":"in sync""#)
        });
        let near = std::fs::read(self.near.folder.path().join("near.img")).expect("it is there");
        let far = self.far.disk.read();
        assert!(near == far, "in sync, and the members differ: {}\n{}", status(), self.near.log());
        self.load.flush().expect("both members are there");
        assert!(near == self.far.disk.durable(), "flushed, and the far member has not all of it");
        self.load.is_in(&near).expect("the host's writes");
        // The near member is well. If the near daemon was killed, its successor may report the loss of the
        // far member once more.
        let failures = self.load.failures;
        assert!(
            failures.others == 0 && failures.flushes as usize <= self.near_ends,
            "{failures:?} after {} ends of the near daemon\n{}",
            self.near_ends,
            self.near.log()
        );
    }
}

fn cut_far(far: &mut Far, mut wire: Option<&mut Wire>, is_silent: bool, epoch: &Epoch, dice: &mut Dice) {
    // Writes that are acknowledged from now on may be lost.
    epoch.fetch_add(1, Relaxed);
    if is_silent {
        match &mut wire {
            Some(wire) => wire.set("drop"),
            None => far.daemon.signal(rustix::process::Signal::STOP),
        }
        dice.wait(2500);
    }
    far.daemon.crash();
    let share = dice.below(4);
    far.disk.cut_partly(|| dice.below(4) < share);
    epoch.fetch_add(1, Relaxed);
    dice.wait(300);
    far.come_up();
    if let Some(wire) = wire {
        wire.set("pass");
    }
}

/// Runs one pair of daemons through some cuts. Returns false if that cannot be tested here.
fn session(stack: Stack, has_wire: bool, seed: u64, cuts: u64) -> bool {
    let Some(mut rig) = Rig::start(stack, has_wire, seed) else { return false };
    for number in 0..cuts {
        let cut = [Cut::Far, Cut::SilentFar, Cut::Near, Cut::Both][rig.dice.below(4) as usize];
        let start = Instant::now();
        println!("{} {number}: {cut:?}", stack.name());
        rig.cut(cut);
        // Sometimes another cut comes before all is well.
        if rig.dice.below(4) > 0 {
            rig.settle();
        }
        println!("  {:?} {} acknowledged, {:?}", start.elapsed(), rig.load.acknowledged, rig.load.failures);
    }
    rig.settle();
    true
}

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}

#[test]
fn nothing_flushed_is_lost_by_power_cuts_at_any_moment() {
    let seed = from_environment("SLUICE_CUTS_SEED").unwrap_or(1);
    let only = std::env::var("SLUICE_CUTS_STACK").ok();
    let stacks: Vec<Stack> =
        STACKS.into_iter().filter(|stack| only.as_ref().is_none_or(|only| only == stack.name())).collect();
    let cuts = from_environment("SLUICE_CUTS").unwrap_or(CUTS);
    let each = cuts.div_ceil(stacks.len() as u64).min(SESSION);
    let mut faults = Vec::new();
    for (number, first) in (0..cuts).step_by(each as usize).enumerate() {
        let stack = stacks[number % stacks.len()];
        // The seed and the stack determine a session, so that it can be run again alone.
        let seed = seed + (number + number / stacks.len()) as u64;
        let has_wire = seed.is_multiple_of(2);
        let run = || session(stack, has_wire, seed, each.min(cuts - first));
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(true) => {}
            Ok(false) => return,
            Err(_) => faults.push(format!("{} with the wire {has_wire}, seed {seed}", stack.name())),
        }
    }
    assert!(faults.is_empty(), "SLUICE_CUTS_SEED={seed} SLUICE_CUTS={cuts}: {faults:#?}");
}
