//! The parity function against the model: random commands, failures of members, crashes and power cuts.

mod atomic;
mod checksum;
mod local_cache;
mod loss;
mod mode;
mod rig;
mod whole;

use rig::{BLOCK, Rig};
use sluice_command::Operation;
use sluice_sim::seeds;

/// Shapes of arrays: members and parities.
const SHAPES: [(usize, usize); 5] = [(3, 1), (4, 1), (4, 2), (5, 2), (6, 2)];

fn rig(seed: u64) -> Rig {
    let (members, parities) = SHAPES[(seed % SHAPES.len() as u64) as usize];
    Rig::new(seed, members, parities)
}

/// Runs load four times while requests fail, with a probability for further layers and one for layer 0. `settle` waits until
/// the function serves again; then everything is read, also after a restart. Returns the commands that succeeded and failed.
fn live_with_failures(rig: &mut Rig, faults: impl Fn(u32) -> [f64; 2], settle: fn(&mut Rig)) -> [u64; 2] {
    for round in 0..4 {
        [rig.log_faults, rig.faults] = faults(round);
        live(rig, 400);
        settle(rig);
        rig.read_all();
        live(rig, 100);
        rig.kill_daemon(true);
        rig.read_all();
    }
    [rig.good, rig.failed]
}

/// Checks that commands succeeded and failed in runs with failures.
fn assert_mixed(runs: impl Iterator<Item = [u64; 2]>) {
    let [good, failed] = runs.fold([0, 0], |sum, run| [sum[0] + run[0], sum[1] + run[1]]);
    assert!(failed > 20 && good > failed, "{good} were good, {failed} failed");
}

/// Runs load for a while, and stops in the middle. Returns false if the power fails.
fn live(rig: &mut Rig, most: u64) -> bool {
    for _ in 0..rig.random.between(1, most) {
        match rig.random.below(4) {
            0 => rig.submit(),
            _ => {
                if !rig.turn() {
                    return false;
                }
            }
        }
    }
    true
}

/// Takes down or brings back as many members as may fail.
fn change_members(rig: &mut Rig) {
    rig.up.fill(true);
    for _ in 0..rig.random.below(rig.parities as u64 + 1) {
        let member = rig.random.below(rig.members as u64) as usize;
        rig.up[member] = false;
    }
}

fn turns(rig: &mut Rig, count: u64) {
    for _ in 0..count {
        rig.turn();
    }
}

#[test]
fn an_array_is_what_was_written() {
    for seed in seeds(&[], 8) {
        let mut rig = rig(seed);
        for _ in 0..4 {
            live(&mut rig, 500);
        }
        rig.come_to_rest();
        rig.read_all();
        assert_eq!(rig.failed, 0);
    }
}

#[test]
fn crashes_and_power_cuts_leave_whole_stripes() {
    for seed in seeds(&[], 10) {
        let mut rig = rig(seed);
        for _ in 0..5 {
            live(&mut rig, 400);
            let cut = rig.random.one_in(2);
            rig.kill_daemon(cut);
            rig.check();
            rig.read_all();
        }
        rig.come_to_rest();
    }
}

/// Members fail and come back under load: no command fails, and everything can be read.
#[test]
fn lost_members_cost_nothing() {
    for seed in seeds(&[], 10) {
        let mut rig = rig(seed);
        for _ in 0..4 {
            change_members(&mut rig);
            live(&mut rig, 400);
            rig.drain();
            rig.read_all();
            rig.come_to_rest();
        }
        assert_eq!(rig.failed, 0);
        rig.read_all();
    }
}

/// Crashes or cuts the power while members are lost: neither an old block nor a half one is read.
#[test]
fn crashes_beside_lost_members_lose_nothing() {
    for seed in seeds(&[], 10) {
        let mut rig = rig(seed);
        for _ in 0..4 {
            change_members(&mut rig);
            live(&mut rig, 400);
            let cut = rig.random.one_in(2);
            rig.end_daemon(cut);
            assert!(rig.serves(), "it serves without them: {:?}", rig.tell("status"));
            rig.read_all();
            live(&mut rig, 200);
            rig.come_to_rest();
            rig.read_all();
        }
    }
}

/// Members are replaced by other disks at a crash: the write hole.
#[test]
fn disks_that_are_replaced_at_a_power_cut_are_rebuilt() {
    for seed in seeds(&[], 10) {
        let mut rig = rig(seed);
        for _ in 0..3 {
            live(&mut rig, 400);
            let cut = rig.random.one_in(2);
            rig.end_daemon(cut);
            for _ in 0..rig.random.between(1, rig.parities as u64) {
                let member = rig.random.below(rig.members as u64) as usize;
                rig.replace(member);
            }
            assert!(rig.serves(), "it serves: {:?}", rig.tell("status"));
            rig.read_all();
            live(&mut rig, 100);
            rig.come_to_rest();
            rig.read_all();
        }
    }
}

/// Cuts the power at each write of the log that a run has.
#[test]
fn a_power_cut_at_every_write_of_the_log() {
    for seed in seeds(&[], 2) {
        let run = |rig: &mut Rig| {
            live(rig, 150)
                && {
                    rig.up[(seed % 3) as usize] = false;
                    live(rig, 150)
                }
                && {
                    rig.up.fill(true);
                    live(rig, 200)
                }
        };
        let mut whole = rig(seed);
        run(&mut whole);
        for at in 1..=whole.log_writes {
            let mut rig = rig(seed);
            rig.cut_at = Some(at);
            assert!(rig.log_writes >= at || !run(&mut rig), "the power fails at write {at}");
            rig.cut_at = None;
            rig.kill_daemon(true);
            rig.read_all();
            rig.come_to_rest();
            rig.read_all();
        }
    }
}

/// Fails another member at each step of rebuilding one: with two parities the data is still there, and with
/// one it is there again when the member is.
#[test]
fn a_member_lost_at_every_step_of_rebuilding() {
    for (members, parities) in [(3, 1), (4, 2)] {
        for step in 0..40 {
            let mut rig = Rig::new(step, members, parities);
            live(&mut rig, 300);
            rig.drain();
            rig.end_daemon(false);
            rig.replace(0);
            assert!(rig.serves(), "it serves");
            turns(&mut rig, step * 20);
            rig.up[1] = false;
            (0..40).for_each(|_| {
                rig.submit();
                rig.turn();
            });
            if parities == 2 {
                rig.drain();
                rig.read_all();
                assert_eq!(rig.failed, 0);
            } else {
                turns(&mut rig, 200);
            }
            rig.come_to_rest();
            rig.read_all();
        }
    }
}

/// Reads that fail at a place are recovered, and the place is written again. No member is lost for it.
#[test]
fn unreadable_places_are_recovered() {
    for seed in seeds(&[], 8) {
        let mut rig = rig(seed);
        live(&mut rig, 300);
        rig.drain();
        rig.media = 0.02;
        for _ in 0..40 {
            let first = rig.random.below(rig.blocks() - 16);
            rig.submit_at(Operation::Read, first, 16);
            rig.drain();
        }
        rig.media = 0.0;
        let status = rig.tell("status").expect("it serves");
        assert!(status.contains(r#""losses":0"#), "{status}");
        rig.come_to_rest();
        rig.read_all();
    }
}

/// Compares each read with the parities: with two a wrong block is corrected, with one it is an error.
#[test]
fn a_safe_read_never_returns_what_has_changed() {
    for (members, parities) in [(3, 1), (4, 2), (6, 2)] {
        let mut rig = Rig::with_options(9, members, parities, &[("safe_read", "true")]);
        live(&mut rig, 300);
        rig.come_to_rest();
        rig.read_all();
        let image = rig.image(1);
        for row in [0, 8192, 81920] {
            rig.disks[1].lock().write(row + 512, &[0x55; BLOCK as usize]);
        }
        let failed = rig.failed;
        for first in (0..800).step_by(8) {
            rig.submit_at(Operation::Read, first, 8);
            rig.drain();
        }
        match parities {
            1 => assert!(rig.failed > failed, "nothing shows which block is wrong"),
            _ => {
                rig.come_to_rest();
                assert_eq!(rig.failed, failed);
                assert!(rig.image(1) == image, "it is written again");
            }
        }
    }
}

/// Requests fail at random, more than there are parities: commands may fail, and nothing is lost.
#[test]
fn faults_beyond_the_parities_lose_nothing() {
    for seed in seeds(&[], 10) {
        let mut rig = rig(seed);
        for _ in 0..3 {
            (rig.faults, rig.media) = (0.01, 0.005);
            live(&mut rig, 400);
            (rig.faults, rig.media) = (0.0, 0.0);
            match rig.random.below(3) {
                0 => rig.come_to_rest(),
                it => {
                    rig.end_daemon(it == 1);
                    assert!(rig.serves(), "it serves: {:?}", rig.tell("status"));
                }
            }
            rig.read_all();
        }
    }
}

/// Counts the requests to members of a small write: four with one parity, six with two.
#[test]
fn a_small_write_is_few_requests() {
    for (members, parities, most) in [(3, 1, 4), (5, 1, 4), (6, 1, 4), (6, 2, 6), (5, 2, 6)] {
        let mut rig = Rig::new(1, members, parities);
        for first in [0, 8, 24, 160, 1000] {
            rig.requests.clear();
            rig.submit_at(Operation::Write, first, 8);
            rig.drain();
            assert!(rig.requests.len() <= most, "{members} {parities}: {:?}", rig.requests);
        }
        // Whole stripes are written without a read.
        let stripe = (members - parities) as u64 * 16;
        rig.requests.clear();
        rig.submit_at(Operation::Write, 3 * stripe, stripe);
        rig.drain();
        assert_eq!(rig.requests, vec![Operation::Write; members]);
        assert_eq!(rig.failed, 0);
        rig.come_to_rest();
    }
}

#[test]
fn a_member_is_taken_out_and_brought_back() {
    let mut rig = Rig::new(7, 4, 1);
    live(&mut rig, 300);
    rig.drain();
    let status = rig.tell("fail 2").expect("it can");
    assert!(status.contains(r#""state":"out","members":["in sync","in sync","out","in sync"]"#), "{status}");
    assert!(rig.tell("fail 1").expect_err("no parity is left").contains("needed"));
    live(&mut rig, 300);
    rig.kill_daemon(true);
    assert!(rig.tell("status").expect("it serves").contains(r#""state":"out""#), "it stays out");
    rig.read_all();
    rig.tell("resync 2").expect("it can");
    rig.come_to_rest();
    rig.read_all();
    assert!(rig.tell("fail 9").is_err() && rig.tell("nonsense").is_err());
}

/// Finds a cell that has changed by itself, by a comparison.
#[test]
fn a_comparison_finds_what_is_wrong() {
    for (members, parities) in [(3, 1), (5, 2)] {
        let mut rig = Rig::new(8, members, parities);
        live(&mut rig, 300);
        rig.come_to_rest();
        let check = |rig: &mut Rig| {
            rig.tell("check").expect("it can");
            for _ in 0..100_000 {
                let status = rig.tell("status").expect("it serves");
                if status.contains(r#""running":false"#) {
                    return status;
                }
                turns(rig, 20);
            }
            panic!("the comparison does not end");
        };
        let status = check(&mut rig);
        assert!(status.contains(r#""different":0,"unreadable":0"#), "{status}");
        rig.disks[1].lock().write(12 * 4096, &[0xaa; BLOCK as usize]);
        let status = check(&mut rig);
        assert!(status.contains(r#""different":1,"unreadable":0"#), "{status}");
        rig.tell("recompute").expect("it can");
        let mut looks = 0;
        while !rig.tell("status").expect("it serves").contains(r#""state":"in sync""#) {
            looks += 1;
            assert!(looks < 100_000, "it is computed in the end");
            turns(&mut rig, 20);
        }
        rig.check();
    }
}
