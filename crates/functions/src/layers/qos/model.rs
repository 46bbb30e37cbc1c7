//! Rates, order and shares over simulated time, with late turns and limits that change.

use super::super::bench::Bench;
use super::bucket::COMMAND;
use super::*;
use crate::Random;
use proptest::prelude::*;
use sluice_options::Size;
use std::fmt::Write as _;

const SECOND: u64 = 1_000_000_000;

/// Waiting commands of a user.
const DEPTH: usize = 32;

/// A user that always has [`DEPTH`] commands waiting, over a layer of its own.
struct User {
    bench: Bench,
    submitted: u64,
    passed: u64,
    bytes: u64,
}

impl User {
    fn new(member: &Arc<Member>, start_ns: u64, bytes: u64) -> Self {
        let mut bench = Bench::new(Qos::new(Arc::clone(member), 64), Status::SUCCESS);
        bench.now_ns = start_ns;
        let mut user = Self { bench, submitted: 0, passed: 0, bytes };
        user.fill();
        user
    }

    /// Submits commands until enough wait. The offset has the number of the command.
    fn fill(&mut self) {
        while self.submitted - self.passed < DEPTH as u64 {
            let offset = self.submitted % 1024 * 512;
            self.submitted += 1;
            self.passed += self.bench.submit(Operation::Read, offset, self.bytes).len() as u64;
        }
    }

    /// Has a turn at this time, and checks the order of the commands.
    fn turn(&mut self, now_ns: u64) {
        self.bench.now_ns = now_ns;
        if self.bench.stack.deadline_ns().is_some_and(|due_ns| due_ns <= now_ns) {
            self.passed += self.bench.expire_now().len() as u64;
            self.fill();
        }
        let expected = self.passed - self.bench.log.lock().expect("not poisoned").len() as u64;
        for (number, offset) in (expected..).zip(self.bench.reached()) {
            assert_eq!(offset, number % 1024 * 512, "the order is kept");
        }
    }

    fn deadline_ns(&self) -> u64 {
        self.bench.stack.deadline_ns().expect("commands wait")
    }
}

/// Runs turns until `end_ns`, each late by a random time below `late_ns`. At the end all users have a turn.
fn run(users: &mut [User], end_ns: u64, late_ns: u64, random: &mut Random) {
    loop {
        let next = users.iter().map(User::deadline_ns).min().expect("there are users");
        let now_ns = next + random.below(late_ns.max(1));
        if now_ns >= end_ns {
            break;
        }
        users.iter_mut().for_each(|user| user.turn(now_ns));
    }
    // More than a turn may be due in bytes.
    for _ in 0..64 {
        users.iter_mut().for_each(|user| user.turn(end_ns));
    }
}

fn iops(limit: u64) -> QosLimits {
    QosLimits { iops: Some(limit), ..QosLimits::default() }
}

fn bandwidth(limit: u64) -> QosLimits {
    QosLimits { bandwidth: Some(Size(limit)), ..QosLimits::default() }
}

fn alone(limits: QosLimits) -> Arc<Member> {
    Groups::default().member_at(&QosOptions { limits, ..QosOptions::default() }, 0).expect("no group")
}

fn in_group(groups: &Groups, guarantee: Option<QosLimits>) -> Arc<Member> {
    let options = QosOptions { group: Some("all".to_owned()), guarantee, ..QosOptions::default() };
    groups.member_at(&options, 0).expect("there is room")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Checks that a limit passes exactly its number of commands while it is always reached. Turns may be late, and the
    /// limit may change.
    #[test]
    fn the_rate_is_exact_while_it_changes(
        seed in any::<u64>(),
        late_ns in 0..2_000_000u64,
        limits in prop::collection::vec((0..4u32, 1..10u64), 1..6),
    ) {
        let mut random = Random::new(seed);
        let member = alone(iops(1));
        let control = Member::control(Arc::clone(&member));
        let (mut now_ns, mut come, mut missed) = (0, 0, 0);
        let mut users = Vec::new();
        for (decimal, factor) in limits {
            let rate = 10u64.pow(decimal) * factor;
            control.set_at(iops(rate), now_ns);
            if users.is_empty() {
                users.push(User::new(&member, 0, 512));
            }
            let time_ns = SECOND / 2 + random.below(SECOND);
            now_ns += time_ns;
            run(&mut users, now_ns, late_ns, &mut random);
            come += u128::from(rate * COMMAND) * u128::from(time_ns) / u128::from(SECOND);
            // The line follows a change within the time between two looks, and may be too short for what has come since.
            missed += u128::from(rate * LOOK_NS / SECOND).saturating_sub(DEPTH as u128);
            let passed = u128::from(users[0].passed);
            // Each change of the limit rounds down by less than a unit.
            let most = come / u128::from(COMMAND) + 1;
            prop_assert!(passed <= most && passed + missed + 1 >= most, "{passed} of {most}");
        }
        let waits = control.waits();
        prop_assert_eq!(waits.waiting, DEPTH as u64);
        prop_assert_eq!(u64::from(users[0].bench.slab.in_flight()), DEPTH as u64);
    }

    /// Checks that no window of time has more than its limit, the burst and one command, for any arrivals.
    #[test]
    fn no_window_has_more_than_the_limit(
        seed in any::<u64>(),
        decimal in 0..5u32,
        pause_ns in 1..50_000_000u64,
        burst_ms in 0..200u32,
    ) {
        let rate = 10u64.pow(decimal) * 3;
        let member = alone(QosLimits { burst_ms: Some(burst_ms), ..iops(rate) });
        let mut bench = Bench::new(Qos::new(Arc::clone(&member), 64), Status::SUCCESS);
        let mut random = Random::new(seed);
        let mut passes: Vec<u64> = Vec::new();
        let mut submitted = 0;
        for _ in 0..400 {
            let arrives_ns = bench.now_ns + random.below(pause_ns);
            while bench.stack.deadline_ns().is_some_and(|due_ns| due_ns <= arrives_ns) {
                let back = bench.expire();
                passes.extend(back.iter().map(|_| bench.now_ns));
            }
            bench.now_ns = bench.now_ns.max(arrives_ns);
            if bench.slab.room() > 0 {
                submitted += 1;
                let back = bench.read(0);
                passes.extend(back.iter().map(|_| bench.now_ns));
            }
        }
        while (passes.len() as u64) < submitted {
            let back = bench.expire();
            passes.extend(back.iter().map(|_| bench.now_ns));
        }
        prop_assert_eq!(bench.slab.in_flight(), 0, "no command is lost");
        let burst = u128::from(rate) * u128::from(burst_ms) / 1000;
        for (first, from) in passes.iter().enumerate() {
            for (last, to) in passes.iter().enumerate().skip(first) {
                let come = u128::from(rate) * u128::from(to - from) / u128::from(SECOND);
                // Credit is a quarter of the burst. Three quotients are rounded down.
                let most = come + burst + burst / 4 + 3;
                prop_assert!((last - first + 1) as u128 <= most, "{} in {} ns", last - first + 1, to - from);
            }
        }
    }
}

#[test]
fn members_of_a_group_get_equal_parts_of_exactly_the_limit() {
    for (limit, late_ns) in [(1000, 100_000), (100_000, 100_000), (100_000, 300_000)] {
        let groups = Groups::default();
        groups.set_at("all", iops(limit), 0).expect("there is room");
        let mut users: Vec<_> = (0..4).map(|_| User::new(&in_group(&groups, None), 0, 512)).collect();
        run(&mut users, 2 * SECOND, late_ns, &mut Random::new(1));
        let passed: Vec<u64> = users.iter().map(|user| user.passed).collect();
        let all: u64 = passed.iter().sum();
        // A user of this test has only 32 commands for a turn.
        let most = 2 * limit + 1;
        assert!(all <= most && all >= most - most / 20, "{passed:?} at {limit}, {late_ns} ns late");
        let (least, most) = (passed.iter().min().expect("four"), passed.iter().max().expect("four"));
        assert!(most - least <= most / 20, "{passed:?} at {limit}, {late_ns} ns late");
    }
}

#[test]
fn a_guarantee_is_kept_beside_greedy_members() {
    let groups = Groups::default();
    groups.set_at("all", iops(1000), 0).expect("there is room");
    let mut users = vec![User::new(&in_group(&groups, Some(iops(400))), 0, 512)];
    users.extend((0..9).map(|_| User::new(&in_group(&groups, None), 0, 512)));
    run(&mut users, 10 * SECOND, 50_000, &mut Random::new(1));
    let passed: Vec<u64> = users.iter().map(|user| user.passed).collect();
    let all: u64 = passed.iter().sum();
    assert!((10_000..=10_030).contains(&all), "{passed:?}");
    assert!(passed[0] >= 4000, "{passed:?}");
    assert!(passed[1..].iter().all(|it| *it >= 600), "{passed:?}");
}

#[test]
fn limits_of_the_member_and_of_the_group_hold_together() {
    let groups = Groups::default();
    groups.set_at("all", iops(1000), 0).expect("there is room");
    let slow = QosOptions { limits: iops(100), group: Some("all".to_owned()), guarantee: None };
    let slow = groups.member_at(&slow, 0).expect("there is room");
    let mut users = vec![User::new(&slow, 0, 512), User::new(&in_group(&groups, None), 0, 512)];
    run(&mut users, 10 * SECOND, 50_000, &mut Random::new(1));
    let passed: Vec<u64> = users.iter().map(|user| user.passed).collect();
    assert_eq!(passed[0], 1001);
    assert!((8990..=9010).contains(&passed[1]), "the other has the rest: {passed:?}");
}

/// Checks two instances of the layer of one drive, as for a queue group on another reactor.
#[test]
fn instances_on_several_reactors_share_the_limit() {
    let member = alone(iops(1000));
    let mut users = vec![User::new(&member, 0, 512), User::new(&member, 0, 512)];
    run(&mut users, 10 * SECOND, 50_000, &mut Random::new(1));
    let passed: Vec<u64> = users.iter().map(|user| user.passed).collect();
    assert_eq!(passed.iter().sum::<u64>(), 10_001);
    assert!(passed[0].abs_diff(passed[1]) <= 100, "{passed:?}");
}

/// Makes the table of docs/internals/qos.md.
#[test]
fn the_table_of_the_documentation() {
    let mut text =
        String::from("| limit | alone | 4 in a group | alone, halved and restored |\n|---|---|---|---|\n");
    let counts = [1u64, 10, 100, 1000, 10_000, 100_000].map(|limit| (iops(limit), limit, "commands/s", 512));
    let bytes =
        [1u64, 10, 100, 1000].map(|limit| (bandwidth(limit * 1_000_000), limit * 1_000_000, "B/s", 16384));
    for (limits, limit, unit, length) in counts.into_iter().chain(bytes) {
        let cost = if unit == "B/s" { length } else { 1 };
        // At least a second, and 200 commands.
        let time_ns = SECOND.max(200 * cost * SECOND / limit);
        let error = |users: &[User], come: u64| {
            let passed: u64 = users.iter().map(|user| user.passed * cost).sum();
            (passed as f64 / come as f64 - 1.0) * 100.0
        };
        let come = (limit as u128 * u128::from(time_ns) / u128::from(SECOND)) as u64;
        let mut random = Random::new(limit);
        let mut single = [User::new(&alone(limits), 0, length)];
        run(&mut single, time_ns, 100_000, &mut random);
        let groups = Groups::default();
        groups.set_at("all", limits, 0).expect("there is room");
        let mut four: Vec<_> = (0..4).map(|_| User::new(&in_group(&groups, None), 0, length)).collect();
        run(&mut four, time_ns, 100_000, &mut random);
        let member = alone(limits);
        let control = Member::control(Arc::clone(&member));
        let mut changed = [User::new(&member, 0, length)];
        let half = |limit: Option<u64>| limit.map(|limit| limit.div_ceil(2));
        let halved = QosLimits {
            iops: half(limits.iops),
            bandwidth: half(limits.bandwidth.map(|it| it.0)).map(Size),
            ..limits
        };
        let mut come_changed = 0;
        for part in 1..=10 {
            let (now, rate) = if part % 2 == 0 { (limits, limit) } else { (halved, limit.div_ceil(2)) };
            control.set_at(now, time_ns / 10 * (part - 1));
            run(&mut changed, time_ns / 10 * part, 100_000, &mut random);
            come_changed += (u128::from(rate) * u128::from(time_ns / 10) / u128::from(SECOND)) as u64;
        }
        let errors = [error(&single, come), error(&four, come), error(&changed, come_changed)];
        assert!(errors.iter().all(|error| error.abs() < 5.0), "{limit} {unit}: {errors:?}");
        let [single, four, changed] = errors.map(|error| format!("{error:+.2} %"));
        let _ = writeln!(text, "| {limit} {unit} | {single} | {four} | {changed} |");
    }
    println!("{text}");
}
