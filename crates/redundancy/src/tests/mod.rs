//! Sets on simulated disks, with power cuts, kills, and failures of members and logs at any step.

mod history;
mod jobs;
mod log;
mod members;
mod parts;
mod rig;
mod set;
mod steps;
mod storage;

use crate::{Begun, Ended, Members, Step, WriteId};
use rig::{Rig, SIZE};
use sluice_sim::seeds;
use std::ops::Range;

/// Processes that serve the set in a run, one after the other.
const LIVES: u64 = 12;

fn start(rig: &mut Rig) {
    for _ in 0..10_000 {
        if rig.ready.is_some() {
            break;
        }
        if !rig.turn() {
            rig.let_time_go_by();
        }
    }
    if let Some(Err(words)) = &rig.ready {
        panic!("it does not start: {words}");
    }
    assert_eq!(rig.ready, Some(Ok(())));
}

/// Starts a set whose log does not show which member is right: an operator chooses `source`.
fn start_by_order(rig: &mut Rig, source: usize) {
    while rig.ready.is_none() {
        if !rig.turn() {
            rig.let_time_go_by();
        }
    }
    let words = rig.ready.take().expect("it was read").expect_err("nothing says which is right");
    assert!(words.contains("copy from N"), "{words}");
    rig.mirror.copy_from(source).expect("it asks for it");
    start(rig);
}

/// Runs one process of the set under load, and stops in the middle.
fn live(rig: &mut Rig) {
    for _ in 0..rig.random.between(1, 600) {
        match rig.random.below(100) {
            0..30 => rig.write(),
            30..32 => rig.let_time_go_by(),
            32 if rig.random.one_in(10) => rig.read_all(),
            _ if rig.turn() => {}
            _ => rig.let_time_go_by(),
        }
    }
}

fn trouble(rig: &mut Rig, members: &[usize]) {
    for member in members {
        let good = rig.random.one_in(2);
        rig.up[*member] = good;
    }
    rig.log_up = true;
}

/// Runs many processes of a set, with faults of the members in `trouble_on`.
fn lives(seed: u64, members: usize, promotes: bool, trouble_on: &[usize]) -> Rig {
    let mut rig = Rig::new(seed, members, promotes);
    for _ in 0..LIVES {
        start(&mut rig);
        // The set detects the members that are down, so its source is one that works.
        for _ in 0..rig.random.between(1, 4) {
            trouble(&mut rig, trouble_on);
            live(&mut rig);
            rig.log_up = !rig.random.one_in(6);
            live(&mut rig);
        }
        rig.log_up = true;
        let cut = rig.random.one_in(2);
        rig.restart(cut);
        start(&mut rig);
        rig.read_all();
        if rig.random.one_in(3) {
            rig.come_to_rest();
        }
    }
    rig.come_to_rest();
    rig
}

#[test]
fn nothing_acknowledged_is_lost_and_copies_are_equal_in_the_end() {
    let mut acknowledged = 0;
    for seed in seeds(&[], 40) {
        acknowledged += lives(seed, 2, false, &[1]).acknowledged;
    }
    assert!(acknowledged > 3_000, "{acknowledged}");
}

#[test]
fn a_source_that_fails_is_followed_by_another() {
    for seed in seeds(&[], 40) {
        lives(seed, 3, true, &[0, 1, 2]);
    }
}

#[test]
fn a_damaged_log_costs_a_copy_and_no_data() {
    let mut damaged = 0;
    for seed in seeds(&[], 40) {
        let mut rig = Rig::new(seed, 2, false);
        start(&mut rig);
        rig.come_to_rest();
        live(&mut rig);
        rig.restart(seed.is_multiple_of(2));
        // Offset of a header, or of a state.
        let half = (256 << 10) * rig.random.below(2);
        let at = half + *rig.random.pick(&[12, 4096]);
        rig.spoil_log(at..at + 200);
        // The damaged half may be older than the valid one.
        while rig.ready.is_none() {
            rig.turn();
        }
        if rig.ready != Some(Ok(())) {
            damaged += 1;
            start_by_order(&mut rig, 0);
        }
        rig.come_to_rest();
    }
    assert!(damaged > 10, "{damaged} were damaged");
}

#[test]
fn no_log_is_too_strange() {
    let (mut served, mut asked, mut refused) = (0, 0, 0);
    for seed in seeds(&[], 100) {
        let mut rig = Rig::new(seed, 2, false);
        start(&mut rig);
        live(&mut rig);
        for _ in 0..rig.random.between(1, 20) {
            let at = 16 * rig.random.below(2000) + (256 << 10) * rig.random.below(2);
            let length = rig.random.between(1, 5000);
            rig.spoil_log(at..at + length);
        }
        if seed.is_multiple_of(8) {
            [0, 256 << 10].iter().for_each(|at| rig.spoil_log(*at..*at + 4096));
        }
        rig.restart(true);
        while rig.ready.is_none() {
            rig.turn();
        }
        if rig.mirror.asks() {
            asked += 1;
            start_by_order(&mut rig, 0);
        } else {
            *if rig.ready == Some(Ok(())) { &mut served } else { &mut refused } += 1;
        }
    }
    assert!(
        served > 5 && asked > 20 && refused > 5,
        "{served} were served, {asked} by order, {refused} refused"
    );
}

#[test]
fn no_write_is_acknowledged_that_only_a_member_has_which_the_log_does_not_call_newer() {
    let mut rig = Rig::new(1, 3, true);
    start(&mut rig);
    rig.come_to_rest();
    rig.write_at(0..512);
    while rig.turn() {}
    let before = rig.acknowledged;
    (rig.up[0], rig.log_up) = (false, false);
    rig.write_at(0..512);
    for _ in 0..100 {
        if !rig.turn() {
            rig.let_time_go_by();
        }
    }
    assert_eq!((rig.mirror.status().source, rig.acknowledged, rig.refused), (1, before, 1));
    rig.come_to_rest();
}

#[test]
fn no_write_goes_to_a_region_that_a_checkpoint_on_its_way_calls_clean() {
    let mut rig = Rig::new(1, 2, false);
    start(&mut rig);
    rig.come_to_rest();
    rig.write_at(0..512);
    while rig.turn() {}
    while !rig.mirror.set.regions.list[0].wanted.is_empty() {
        if !rig.turn() {
            rig.let_time_go_by();
        }
    }
    rig.mirror.journal.make_whole();
    assert!(matches!(rig.mirror.next(0), Some(Step::WriteLog { .. })));
    assert_eq!(rig.mirror.begin(0..512).1, Begun::Wait);
}

#[test]
fn who_was_taken_out_stays_out_and_is_copied_whole() {
    let mut rig = Rig::new(1, 2, false);
    start(&mut rig);
    rig.come_to_rest();
    rig.mirror.take_out(1).expect("member 0 has everything");
    assert!(rig.mirror.take_out(0).is_err(), "nobody else has");
    for _ in 0..20 {
        rig.write();
    }
    while rig.turn() {}
    rig.restart(true);
    start(&mut rig);
    (0..50).for_each(|_| rig.let_time_go_by());
    assert_eq!(rig.mirror.status().joined, Members::one(0));
    assert_eq!(rig.mirror.status().stale_bytes, SIZE);
    rig.come_to_rest();
    assert!(rig.mirror.status().copied_bytes >= SIZE);
}

#[test]
fn a_check_finds_what_differs_and_leaves_it() {
    let mut rig = Rig::new(1, 2, false);
    start(&mut rig);
    rig.come_to_rest();
    for expected in [0, 1] {
        rig.mirror.check();
        while rig.mirror.status().check.running {
            if !rig.turn() {
                rig.let_time_go_by();
            }
        }
        let check = rig.mirror.status().check;
        assert_eq!((check.done, check.different, check.unreadable), (SIZE, expected, 0));
        rig.rot(1, 9 * 512);
    }
    assert_eq!(rig.mirror.status().check.first, Some(4096));
}

/// Checks an end in the middle of a region, and before the last compared byte.
#[test]
fn a_check_ends_where_a_drive_does_that_has_become_smaller() {
    for was_asked in [false, true] {
        let mut rig = Rig::new(1, 2, false);
        start(&mut rig);
        rig.come_to_rest();
        rig.mirror.check();
        let now_ns = 1 << 50;
        let Some(Step::Compare { length: 2048, .. }) = rig.mirror.next(now_ns) else {
            panic!("half a region")
        };
        match was_asked {
            true => {
                rig.mirror.resize(1024).expect("a smaller one fits");
                rig.mirror.compared(None, now_ns);
            }
            false => {
                rig.mirror.compared(Some(true), now_ns);
                rig.mirror.resize(1024).expect("a smaller one fits");
            }
        }
        for _ in 0..100 {
            match rig.mirror.next(now_ns) {
                Some(Step::Compare { offset, length, .. }) => panic!("{length} bytes at {offset}"),
                Some(Step::WriteLog { .. }) => rig.mirror.log_written(true, now_ns),
                Some(_) => {}
                None => break,
            }
        }
        let check = rig.mirror.status().check;
        assert_eq!((check.running, check.done, check.unreadable), (false, 1024, 0));
    }
}

/// Fails a flush of written data, either an internal one or the host's; the later flushes are good.
fn fails_to_flush(rig: &mut Rig, by_host: bool) {
    rig.write_at(0..512);
    while rig.turn() {}
    let before = rig.mirror.status();
    let down = if before.members == Members::first(2) { 1 } else { 3 };
    rig.up[..down].fill(false);
    let refused = rig.refused;
    if by_host {
        rig.write_at(0..0);
    }
    while rig.mirror.status().source_errors == before.source_errors {
        if !rig.turn() {
            rig.let_time_go_by();
        }
    }
    rig.up.fill(true);
    let acknowledged = rig.acknowledged;
    for _ in 0..2 {
        rig.write_at(0..0);
        while rig.turn() {}
    }
    let told = rig.refused - refused;
    assert_eq!((told, rig.acknowledged - acknowledged), (1, if by_host { 2 } else { 1 }), "told once");
    while rig.mirror.status().dirty_bytes > 0 {
        if !rig.turn() {
            rig.let_time_go_by();
        }
    }
    assert_eq!(rig.mirror.status().copied_bytes - before.copied_bytes, 4096, "the region is copied");
}

/// Checks that data dropped by a disk stays lost: a later flush does not bring it back.
#[test]
fn a_flush_that_fails_on_the_source_is_told_and_made_up_for_by_a_copy() {
    for (members, promotes) in [(2, false), (3, true)] {
        for by_host in [false, true] {
            let mut rig = Rig::new(1, members, promotes);
            start(&mut rig);
            rig.come_to_rest();
            fails_to_flush(&mut rig, by_host);
        }
    }
}

#[test]
fn a_log_that_could_not_be_read_at_once_is_not_broken_for_it() {
    let mut rig = Rig::new(1, 2, false);
    for tries in 0.. {
        match rig.mirror.next(0) {
            Some(Step::ReadLog { .. }) if tries < 2 => rig.mirror.log_read(None),
            Some(Step::ReadLog { length, .. }) => rig.mirror.log_read(Some(&vec![0; length])),
            Some(Step::WriteLog { .. }) => break,
            other => panic!("{other:?}"),
        }
    }
    rig.mirror.log_written(false, 0);
    assert!(!rig.mirror.status().log_is_broken, "it was written once");
    start(&mut rig);
}

/// Checks a log that fails three times, and twice before it works.
#[test]
fn a_log_is_given_up_after_three_failures() {
    for (failures, is_broken) in [(2, false), (3, true)] {
        let mut rig = Rig::new(1, 2, false);
        let mut reads = 0;
        let outcome = loop {
            match rig.mirror.next(0) {
                Some(Step::ReadLog { .. }) if reads < failures => {
                    rig.mirror.log_read(None);
                    reads += 1;
                }
                Some(Step::ReadLog { .. }) => break Ok(()),
                Some(Step::Ready(outcome)) => break outcome,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(outcome.is_err(), is_broken, "{outcome:?} after {failures} reads");

        let mut rig = Rig::new(1, 2, false);
        start(&mut rig);
        rig.come_to_rest();
        let _ = rig.mirror.begin(0..512);
        let mut now_ns = 1 << 50;
        for _ in 0..failures {
            while !matches!(rig.mirror.next(now_ns), Some(Step::WriteLog { .. })) {
                now_ns += 1 << 20;
            }
            rig.mirror.log_written(false, now_ns);
        }
        assert_eq!(rig.mirror.status().log_is_broken, is_broken, "after {failures} writes");
    }
}

#[test]
fn only_what_was_written_is_copied_to_a_member_that_was_away() {
    let mut rig = Rig::new(3, 2, false);
    start(&mut rig);
    rig.come_to_rest();
    let before = rig.mirror.status().copied_bytes;
    rig.up[1] = false;
    rig.write_at(0..512);
    while rig.turn() {}
    rig.restart(true);
    start(&mut rig);
    rig.come_to_rest();
    assert_eq!(rig.mirror.status().copied_bytes, 4096, "one region, in a new life");
    assert!(before >= SIZE);
}

/// Measures the rate in the time of the simulation.
#[test]
fn a_busy_host_leaves_copying_the_rate_that_it_was_given_and_an_idle_one_all_there_is() {
    for rate in [2048, 8192, 32 << 10] {
        let mut rig = Rig::new(11, 2, false);
        rig.set_rate(rate);
        start(&mut rig);
        let (began, copied) = (rig.now_ns, rig.mirror.status().copied_bytes);
        while rig.mirror.status().copied_bytes < copied + SIZE / 2 {
            rig.write_at(0..512);
            while rig.turn() {}
            rig.let_time_go_by();
        }
        let passed_ns = rig.now_ns - began;
        let due_ns = SIZE / 2 * 1_000_000_000 / rate;
        // Random failures of writes and flushes cost some seconds.
        let most_ns = due_ns * 2 + 8_000_000_000;
        assert!((due_ns / 2..most_ns).contains(&passed_ns), "{rate}: {passed_ns} ns, not {due_ns}");
    }
}

#[test]
fn each_number_has_its_name() {
    let status = crate::Status {
        members: Members::first(3),
        current: Members::first(2),
        dirty_bytes: 1,
        stale_bytes: 2,
        copied_bytes: 3,
        copied_bytes_s: 4,
        losses: 5,
        source_errors: 6,
        log_is_broken: true,
        check: crate::Check { different: 7, unreadable: 8, ..crate::Check::default() },
        ..crate::Status::default()
    };
    let numbers = |status: &crate::Status| {
        let mut numbers = Vec::new();
        status.count(&mut |name, value| numbers.push(format!("{name} {value}")));
        numbers.join(", ")
    };
    assert_eq!(
        numbers(&status),
        "degraded 1, dirty_bytes 1, stale_bytes 2, resync_bytes_total 3, resync_bytes_per_second 4, losses_total 5, \
         source_errors_total 6, check_different_pieces 7, check_unreadable_pieces 8, log_broken 1"
    );
    let well = crate::Status { current: Members::first(3), log_is_broken: false, ..status };
    let well = numbers(&well);
    assert!(well.starts_with("degraded 0,") && well.ends_with("log_broken 0"), "{well}");
}

/// Checks a drive that grows: its added bytes differ on all members. The power fails after `seed` turns.
#[test]
fn what_comes_to_a_drive_that_grows_is_copied() {
    for seed in seeds(&[], 24) {
        let mut rig = Rig::new(seed, 3, true);
        start(&mut rig);
        rig.come_to_rest();
        rig.grow(8192 + 512);
        (0..seed).for_each(|_| {
            rig.turn();
        });
        rig.restart(true);
        start(&mut rig);
        rig.come_to_rest();
        let images = [0, 1, 2].map(|member| rig.whole(member));
        assert!(images[0].len() > SIZE as usize && images.iter().all(|image| *image == images[0]));
    }
}

/// Begins a write or flush of the host that nothing holds back.
fn begins(rig: &mut Rig, bytes: Range<u64>) -> WriteId {
    match rig.mirror.begin(bytes) {
        (id, Begun::Go(_)) => id,
        (_, Begun::Wait) => panic!("it waits"),
    }
}

/// Checks that neither a Flush that succeeds nor a write that fails beside a failed Flush counts as a loss.
#[test]
fn what_ends_beside_a_failed_flush_makes_no_later_one_fail() {
    let source = Members::one(0);
    for (bytes, failed, ends) in [(0..0, Members::NONE, Ended::Good), (0..512, source, Ended::Failed)] {
        let mut rig = Rig::new(1, 2, false);
        start(&mut rig);
        rig.come_to_rest();
        rig.write_at(0..512);
        while rig.turn() {}
        let beside = begins(&mut rig, bytes.clone());
        let flush = begins(&mut rig, 0..0);
        assert_eq!(rig.mirror.end(flush, source), Ended::Failed);
        assert_eq!(rig.mirror.end(beside, failed), ends);
        let next = begins(&mut rig, 0..0);
        assert_eq!(rig.mirror.end(next, Members::NONE), Ended::Good, "beside {bytes:?}");
    }
    // A write that failed while a flush was under way is none that the flush did not cover.
    let mut rig = Rig::new(1, 2, false);
    start(&mut rig);
    rig.come_to_rest();
    rig.write_at(0..512);
    while rig.turn() {}
    let flush = begins(&mut rig, 0..0);
    let write = begins(&mut rig, 0..512);
    assert_eq!(rig.mirror.end(write, source), Ended::Failed);
    assert_eq!(rig.mirror.end(flush, source), Ended::Failed);
    let next = begins(&mut rig, 0..0);
    assert_eq!(rig.mirror.end(next, Members::NONE), Ended::Good);
}
