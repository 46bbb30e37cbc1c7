//! A lease in simulated time: daemons with clocks of their own, a slow disk, pauses and crashes.

use super::block::{Claim, Content};
use super::protocol::{Party, Step, Timing};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

const SECOND_NS: u64 = 1_000_000_000;

/// Seeds that once failed: a daemon that stood still while its claim settled.
const FAILED_ONCE: [u64; 1] = [685];

/// Random numbers (splitmix64).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }

    /// Returns a delay: short as a rule, and now and then very long.
    fn delay_ns(&mut self, slow: u64) -> u64 {
        match self.roll(1000) < slow {
            true => self.roll(40 * SECOND_NS),
            false => 100_000 + self.roll(20_000_000),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The daemon of this life continues.
    Run {
        daemon: usize,
        life: u64,
    },
    /// The disk returns its content, for a read that began at `began_ns`.
    Sample {
        daemon: usize,
        life: u64,
        began_ns: u64,
    },
    /// A write reaches the disk. Nothing stops it, not even the end of its daemon.
    Land {
        number: usize,
    },
    Returned {
        daemon: usize,
        life: u64,
        began_ns: u64,
        read: Option<usize>,
    },
    Crash {
        daemon: usize,
    },
}

struct Daemon {
    party: Party,
    life: u64,
    /// Rate of the clock in thousandths of the time; `offset_ns`: its initial value.
    rate: u64,
    offset_ns: u64,
    ended: bool,
}

impl Daemon {
    fn clock(&self, now_ns: u64) -> u64 {
        self.offset_ns + (u128::from(now_ns) * u128::from(self.rate) / 1000) as u64
    }

    /// Returns the time at which the daemon's clock shows `clock_ns`.
    fn when(&self, clock_ns: u64) -> u64 {
        (u128::from(clock_ns.saturating_sub(self.offset_ns)) * 1000).div_ceil(self.rate.into()) as u64
    }
}

struct World {
    dice: Dice,
    timing: Timing,
    /// Long delays in a thousand; `crash_ns`: mean time between crashes of a daemon.
    slow: u64,
    crash_ns: u64,
    daemons: Vec<Daemon>,
    disk: Content,
    /// Contents on their way: writes to the disk, and reads from it.
    moving: Vec<Content>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    order: u64,
    /// Results of the run.
    taken: u64,
    releases: u64,
    lost: u64,
    overlaps: u64,
    free_ns: u64,
    longest_free_ns: u64,
}

impl World {
    fn new(seed: u64, daemons: usize, timing: Timing, slow: u64, drift: u64) -> Self {
        let mut dice = Dice(seed);
        let daemons = (0..daemons)
            .map(|_| Daemon {
                party: Party::new(timing, u128::from(dice.roll(u64::MAX)), "daemon".to_owned()),
                life: 0,
                rate: 1000 - drift + dice.roll(2 * drift + 1),
                offset_ns: dice.roll(1 << 40),
                ended: false,
            })
            .collect();
        let mut world = Self {
            dice,
            timing,
            slow,
            crash_ns: 120 * SECOND_NS,
            daemons,
            disk: Content::Blank,
            moving: Vec::new(),
            events: BinaryHeap::new(),
            order: 0,
            taken: 0,
            releases: 0,
            lost: 0,
            overlaps: 0,
            free_ns: 0,
            longest_free_ns: 0,
        };
        for daemon in 0..world.daemons.len() {
            let at_ns = world.dice.roll(3 * SECOND_NS);
            world.at(at_ns, Event::Run { daemon, life: 0 });
            world.plan_crash(daemon, 0);
        }
        world
    }

    fn at(&mut self, at_ns: u64, event: Event) {
        self.order += 1;
        self.events.push(Reverse((at_ns, self.order, event)));
    }

    fn plan_crash(&mut self, daemon: usize, now_ns: u64) {
        let at_ns = now_ns + self.dice.roll(2 * self.crash_ns);
        self.at(at_ns, Event::Crash { daemon });
    }

    /// Returns the number of daemons that may use the storage now.
    fn holders(&self, now_ns: u64) -> usize {
        let holds =
            |it: &&Daemon| !it.ended && it.party.until_ns().is_some_and(|until| it.clock(now_ns) < until);
        self.daemons.iter().filter(holds).count()
    }

    fn run(&mut self, until_ns: u64) {
        while let Some(Reverse((now_ns, _, event))) = self.events.pop() {
            if now_ns > until_ns {
                return;
            }
            match event {
                Event::Run { daemon, life } if self.daemons[daemon].life == life => {
                    self.step(daemon, now_ns);
                }
                Event::Sample { daemon, life, began_ns } => {
                    self.moving.push(self.disk.clone());
                    let read = Some(self.moving.len() - 1);
                    let at_ns = now_ns + self.dice.delay_ns(self.slow);
                    self.at(at_ns, Event::Returned { daemon, life, began_ns, read });
                }
                Event::Land { number } => self.disk = self.moving[number].clone(),
                Event::Returned { daemon, life, began_ns, read } if self.daemons[daemon].life == life => {
                    self.returned(daemon, now_ns, began_ns, read);
                }
                Event::Crash { daemon } => self.crash(daemon, now_ns),
                Event::Run { .. } | Event::Returned { .. } => {}
            }
            let holders = self.holders(now_ns);
            self.overlaps += u64::from(holders > 1);
            self.free_ns = if holders > 0 { now_ns } else { self.free_ns };
            self.longest_free_ns = self.longest_free_ns.max(now_ns - self.free_ns);
        }
    }

    fn step(&mut self, daemon: usize, now_ns: u64) {
        let (life, clock) = (self.daemons[daemon].life, self.daemons[daemon].clock(now_ns));
        // The process may stand still between a decision and its action.
        let pause_ns = self.dice.delay_ns(self.slow / 4);
        match self.daemons[daemon].party.next(clock) {
            Step::Read => {
                let at_ns = now_ns + pause_ns + self.dice.delay_ns(self.slow);
                self.at(at_ns, Event::Sample { daemon, life, began_ns: clock });
            }
            Step::Write(claim) => self.write(daemon, claim, now_ns + pause_ns, clock),
            Step::Wait(until) => {
                let at_ns = self.daemons[daemon].when(until).max(now_ns + 1) + pause_ns;
                self.at(at_ns, Event::Run { daemon, life });
            }
            Step::Taken(_) | Step::Lost(_) => {
                self.lost += u64::from(matches!(self.daemons[daemon].party.next(clock), Step::Lost(_)));
                self.begin_anew(daemon, now_ns);
            }
            Step::Other => panic!("nobody wrote anything else"),
        }
    }

    fn write(&mut self, daemon: usize, claim: Claim, now_ns: u64, began_ns: u64) {
        let life = self.daemons[daemon].life;
        self.moving.push(Content::Claim(claim));
        let number = self.moving.len() - 1;
        let lands_ns = now_ns + self.dice.delay_ns(self.slow);
        self.at(lands_ns, Event::Land { number });
        let at_ns = lands_ns + self.dice.delay_ns(self.slow);
        self.at(at_ns, Event::Returned { daemon, life, began_ns, read: None });
    }

    fn returned(&mut self, daemon: usize, now_ns: u64, began_ns: u64, read: Option<usize>) {
        let holder = u128::from(self.dice.roll(u64::MAX));
        let life = self.daemons[daemon].life;
        let it = &mut self.daemons[daemon];
        let (clock, had) = (it.clock(now_ns), it.party.until_ns().is_some());
        match read {
            Some(number) => it.party.read(began_ns, clock, self.moving[number].clone()),
            None => it.party.written(clock, true, holder),
        }
        let has = it.party.until_ns().is_some();
        self.taken += u64::from(has && !had);
        // Now and then a holder gives the lease back; that takes no longer than a lease stands still.
        if has && had && read.is_some() && self.dice.roll(40) == 0 {
            let content = read.map_or(Content::Blank, |number| self.moving[number].clone());
            if let Some(released) = self.daemons[daemon].party.release(clock, &content) {
                self.moving.push(Content::Claim(released));
                let number = self.moving.len() - 1;
                let lands_ns = now_ns + self.dice.roll(5 * SECOND_NS);
                self.at(lands_ns, Event::Land { number });
                self.releases += 1;
                return self.begin_anew(daemon, lands_ns);
            }
        }
        self.at(now_ns + 1, Event::Run { daemon, life });
    }

    fn crash(&mut self, daemon: usize, now_ns: u64) {
        self.begin_anew(daemon, now_ns);
        self.plan_crash(daemon, now_ns);
    }

    /// Replaces a daemon by another one.
    fn begin_anew(&mut self, daemon: usize, now_ns: u64) {
        let holder = u128::from(self.dice.roll(u64::MAX));
        let it = &mut self.daemons[daemon];
        it.party = Party::new(self.timing, holder, "daemon".to_owned());
        it.life += 1;
        let life = it.life;
        let at_ns = now_ns + self.dice.roll(10 * SECOND_NS);
        self.at(at_ns, Event::Run { daemon, life });
    }
}

/// Runs worlds, an hour each. Returns the sums of their results.
fn worlds(seeds: impl IntoIterator<Item = u64>, timing: Timing, slow: u64, drift: u64) -> [u64; 4] {
    let mut sums = [0; 4];
    for seed in seeds {
        let mut world = World::new(seed, 2 + (seed % 2) as usize, timing, slow, drift);
        world.run(3600 * SECOND_NS);
        for (sum, one) in sums.iter_mut().zip([world.overlaps, world.taken, world.releases, world.lost]) {
            *sum += one;
        }
    }
    sums
}

/// Checks any behavior of the disk, the scheduler and crashes, with clocks that are up to a tenth fast or
/// slow.
#[test]
fn two_never_hold_it_at_once() {
    let [overlaps, taken, releases, lost] = worlds((0..60).chain(FAILED_ONCE), Timing::USUAL, 30, 100);
    assert_eq!(overlaps, 0);
    assert!(taken > 1000 && releases > 100 && lost > 20, "{taken} {releases} {lost}");
}

/// Checks that the model detects times that are too short.
#[test]
fn times_that_are_too_short_are_found_out() {
    let still = Timing { still_ns: Timing::USUAL.expire_ns / 2, ..Timing::USUAL };
    assert!(worlds(0..60, still, 30, 100)[0] > 0);
    let settle = Timing { settle_ns: Timing::USUAL.latency_ns / 4, ..Timing::USUAL };
    let latency = Timing { latency_ns: 60 * SECOND_NS, ..settle };
    assert!(worlds(0..60, latency, 30, 100)[0] > 0);
}

/// Checks that on a quiet disk, with a crash every two minutes, the next daemon has the lease within a
/// minute.
#[test]
fn a_dead_holder_is_followed() {
    for seed in 0..10 {
        let mut world = World::new(seed, 2, Timing::USUAL, 0, 100);
        world.run(3600 * SECOND_NS);
        assert!(world.taken > 10 && world.lost == 0);
        assert!(world.longest_free_ns < 60 * SECOND_NS, "{}", world.longest_free_ns);
    }
}
