//! Seeded runs of drives on two simulated reactors: turns in any order, moves, stalls, sleep, and deletions with
//! commands under way. The model checks that no unit and no command is lost or is seen twice.

use super::{Ledger, connect, home};
use crate::{Home, Port, Unit};
use std::collections::VecDeque;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ word >> 31) % bound
    }

    fn one_in(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }
}

#[derive(Clone, Copy)]
struct Command {
    number: usize,
    need: usize,
}

/// A drive with commands that take units in order.
struct Drive {
    port: Port,
    reactor: usize,
    /// Steps until a move has ended.
    moves_for: u64,
    asleep: bool,
    /// The last turn found no work: the next one arms.
    idle: bool,
    waiting: VecDeque<Command>,
    used: Vec<Unit>,
}

/// Outcome of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    Pending,
    Done,
    Refused,
    Deleted,
}

struct Model {
    random: Random,
    home: Home<Ledger>,
    home_sleeps: bool,
    home_is_idle: bool,
    drives: Vec<Drive>,
    outcomes: Vec<Outcome>,
    /// Steps until the reactors, and the home's, turn again.
    stalls: [u64; 2],
    home_stalls: u64,
}

impl Drive {
    /// Runs commands in order, as far as the credit goes.
    fn run(&mut self, refused: bool, outcomes: &mut [Outcome]) -> usize {
        let mut ran = 0;
        let mut refused = refused;
        while let Some(&Command { number, need }) = self.waiting.front() {
            if need > self.port.credit() {
                if !std::mem::take(&mut refused) {
                    self.port.request(need);
                    break;
                }
                set(outcomes, number, Outcome::Refused);
            } else {
                self.used.extend((0..need).map(|_| self.port.take().expect("credit")));
                set(outcomes, number, Outcome::Done);
            }
            self.waiting.pop_front();
            ran += 1;
        }
        ran
    }

    fn turn(&mut self, outcomes: &mut [Outcome]) -> usize {
        let received = self.port.receive();
        let ran = self.run(received.refused, outcomes);
        self.port.refill();
        self.port.finish();
        received.messages + ran
    }
}

fn set(outcomes: &mut [Outcome], number: usize, outcome: Outcome) {
    assert_eq!(outcomes[number], Outcome::Pending, "command {number} ends twice");
    outcomes[number] = outcome;
}

impl Model {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let units = 20 + random.below(150) as usize;
        let mut home = home(units);
        let drives = (0..8).map(|number| Self::drive(&mut home, number % 2)).collect();
        let (outcomes, stalls) = (Vec::new(), [0; 2]);
        Self {
            random,
            home,
            home_sleeps: false,
            home_is_idle: false,
            drives,
            outcomes,
            stalls,
            home_stalls: 0,
        }
    }

    fn drive(home: &mut Home<Ledger>, reactor: usize) -> Drive {
        let (waiting, used) = (VecDeque::new(), Vec::new());
        Drive { port: connect(home), reactor, moves_for: 0, asleep: false, idle: false, waiting, used }
    }

    /// Turns the home, unless it stalls or sleeps. Returns the work done.
    fn turn_home(&mut self) -> usize {
        if self.home_stalls > 0 {
            self.home_stalls -= 1;
            return 1;
        }
        if self.home_sleeps {
            if !self.home.side().notifier.clear() {
                return 0;
            }
            self.home_sleeps = false;
            self.home.disarm();
        }
        if std::mem::take(&mut self.home_is_idle) {
            self.home_sleeps = !self.home.arm();
            return usize::from(!self.home_sleeps);
        }
        self.home_is_idle = self.home.turn() == 0;
        1
    }

    /// Turns a drive, unless it moves, sleeps, or its reactor stalls. Returns the work done.
    fn turn_drive(&mut self, index: usize) -> usize {
        let drive = &mut self.drives[index];
        if self.stalls[drive.reactor] > 0 {
            self.stalls[drive.reactor] -= 1;
            return 1;
        }
        if drive.moves_for > 0 {
            drive.moves_for -= 1;
            return 1;
        }
        if drive.asleep {
            if !drive.port.was_notified() {
                return 0;
            }
            drive.asleep = false;
            drive.port.disarm();
        }
        if std::mem::take(&mut drive.idle) {
            let waits = !drive.waiting.is_empty() && !drive.port.is_requesting();
            drive.asleep = !waits && !drive.port.arm();
            return usize::from(!drive.asleep);
        }
        drive.idle = drive.turn(&mut self.outcomes) == 0;
        1
    }

    fn submit(&mut self, index: usize) {
        let command = Command { number: self.outcomes.len(), need: self.random.below(18) as usize };
        self.outcomes.push(Outcome::Pending);
        let drive = &mut self.drives[index];
        drive.waiting.push_back(command);
        Self::wake(drive);
    }

    /// Wakes a drive for a command of its host.
    fn wake(drive: &mut Drive) {
        drive.idle = false;
        if std::mem::take(&mut drive.asleep) {
            drive.port.disarm();
        }
    }

    fn give_back(&mut self, index: usize) {
        let drive = &mut self.drives[index];
        for _ in 0..self.random.below(20) {
            let Some(unit) = drive.used.pop() else { break };
            if drive.port.give_back(unit).is_err() {
                drive.used.push(unit);
                break;
            }
        }
        Self::wake(drive);
    }

    fn delete(&mut self, index: usize) {
        let reactor = self.random.below(2) as usize;
        let new = Self::drive(&mut self.home, reactor);
        let old = std::mem::replace(&mut self.drives[index], new);
        for command in &old.waiting {
            set(&mut self.outcomes, command.number, Outcome::Deleted);
        }
    }

    fn step(&mut self) {
        let index = self.random.below(8) as usize;
        match self.random.below(40) {
            0..=7 => self.submit(index),
            8..=11 => self.give_back(index),
            12 => {
                let drive = &mut self.drives[index];
                (drive.reactor, drive.moves_for, drive.asleep) =
                    (1 - drive.reactor, self.random.below(20), false);
                drive.port.disarm();
            }
            13 if self.random.one_in(5) => self.stalls[index % 2] = self.random.below(100),
            14 if self.random.one_in(5) => self.home_stalls = self.random.below(60),
            15 if self.random.one_in(5) => self.delete(index),
            16 => {
                self.drives[index].port.give_back_credit();
                self.drives[index].port.finish();
            }
            17..=22 => drop(self.turn_home()),
            _ => drop(self.turn_drive(index)),
        }
    }

    /// Checks that each unit has one owner at most, and that each drive has only its own.
    fn check(&self) {
        let mut seen = vec![false; self.home.object().owners.len()];
        for drive in &self.drives {
            for unit in drive.used.iter().chain(drive.port.credit_units()) {
                assert!(!std::mem::replace(&mut seen[*unit as usize], true), "unit {unit} is seen twice");
                assert_eq!(self.home.object().owners[*unit as usize], Some(drive.port.number()));
            }
        }
    }

    /// Runs until nothing has work. Only sides that are awake or woken are turned.
    fn quiesce(&mut self) {
        for _ in 0..100_000 {
            let work = (0..8).map(|index| self.turn_drive(index)).sum::<usize>() + self.turn_home();
            if work == 0 {
                return;
            }
        }
        panic!("the model does not come to rest");
    }

    fn check_at_rest(&self) {
        for (number, outcome) in self.outcomes.iter().enumerate() {
            assert_ne!(*outcome, Outcome::Pending, "command {number} is lost");
        }
        let held: usize = self.drives.iter().map(|drive| drive.used.len() + drive.port.credit()).sum();
        let object = self.home.object();
        assert_eq!(object.free() + held, object.owners.len(), "units are lost");
        assert_eq!(self.home.side().ports(), 8);
    }
}

#[test]
fn nothing_is_lost_and_nothing_is_seen_twice() {
    let runs = std::env::var("SLUICE_SHARED_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(24);
    let mut ended = [0usize; 3];
    for seed in 0..runs {
        let mut model = Model::new(seed);
        for _ in 0..4 {
            for _ in 0..1_000 {
                model.step();
                model.check();
            }
            model.quiesce();
            model.check();
            model.check_at_rest();
        }
        for outcome in &model.outcomes {
            ended[*outcome as usize - 1] += 1;
        }
    }
    assert!(ended.iter().all(|count| *count > runs as usize), "a kind of outcome is not tested: {ended:?}");
}
