mod parts;
mod rig;
mod steps;

use super::Mode;
use crate::Replicate;
use rig::{Rig, SIZE};
use sluice_nvme::Status;
use sluice_sim::seeds;
use sluice_uif::abi::LAYERS_MAX;
use sluice_uif::{Below, Options};

/// Runs load for a while, and stops in the middle.
fn live(rig: &mut Rig) {
    for _ in 0..rig.random.between(1, 400) {
        match rig.random.below(4) {
            0 => rig.submit(),
            _ => rig.turn(),
        }
    }
}

/// Ends something, or lets all work end; then checks the disk.
fn interrupt(rig: &mut Rig) {
    match rig.random.below(4) {
        0 => rig.kill_function(),
        1 => rig.kill_daemon(false),
        2 => rig.kill_daemon(true),
        _ => rig.come_to_rest(),
    }
    rig.read_all();
}

#[test]
fn killed_at_any_moment_it_loses_nothing_and_copies_are_equal_in_the_end() {
    let (mut good, mut failed) = (0, 0);
    for seed in seeds(&[], 24) {
        let mut rig = Rig::new(seed);
        for _ in 0..8 {
            for _ in 0..2 {
                rig.up[1] = !rig.random.one_in(3);
                live(&mut rig);
            }
            interrupt(&mut rig);
        }
        rig.come_to_rest();
        good += rig.good;
        failed += rig.failed;
    }
    assert!(good > 10 * failed && good > 3_000, "{good} were good, {failed} failed");
}

/// Runs the same on a mirror: after any failure and return of members the host sees no old data. A write
/// fails because all members with current data are down.
#[test]
fn a_mirror_is_read_from_whoever_has_everything() {
    let (mut good, mut failed) = (0, 0);
    for seed in seeds(&[], 24) {
        let members = 2 + (seed % 2) as usize;
        let mut rig = Rig::mirror(seed, members);
        for _ in 0..8 {
            for _ in 0..2 {
                let down = rig.random.below(2 * members as u64) as usize;
                (0..members).for_each(|member| rig.up[member] = member != down);
                live(&mut rig);
                (0..8).for_each(|_| rig.submit_read());
                live(&mut rig);
            }
            interrupt(&mut rig);
        }
        rig.come_to_rest();
        good += rig.good;
        failed += rig.failed;
    }
    assert!(good > 3 * failed && good > 3_000, "{good} were good, {failed} failed");
}

/// Checks orders while the rig does nothing by itself.
#[test]
fn a_member_that_is_lost_is_not_read_until_it_has_everything_again() {
    let mut rig = Rig::mirror(5, 2);
    rig.come_to_rest();
    rig.up[0] = false;
    (0..4).for_each(|_| live(&mut rig));
    assert_eq!(rig.source(), 1);
    let status = rig.tell("status").expect("it serves");
    assert!(status.contains(r#""members":["lost","in sync"]"#) || status.contains("resyncing"), "{status}");
    rig.kill_daemon(true);
    assert_eq!(rig.source(), 1, "the log knows which is the newer one");
    rig.read_all();
    rig.come_to_rest();
    assert!(rig.tell("status").expect("it serves").contains(r#""members":["in sync","in sync"]"#));
}

#[test]
fn members_are_told_apart_by_number() {
    let mut rig = Rig::mirror(6, 3);
    rig.come_to_rest();
    assert!(rig.tell("fail").is_err() && rig.tell("fail 3").is_err());
    let status = rig.tell("fail 0").expect("two others have everything");
    assert!(status.contains(r#""members":["out","in sync","in sync"],"source":1"#), "{status}");
    rig.tell("fail 1").expect("another has everything");
    let refused = rig.tell("fail 2").expect_err("nobody else has everything");
    assert!(refused.contains("no other member"), "{refused}");
    rig.tell("resync 0").expect("it can");
    rig.tell("resync 1").expect("it can");
    rig.come_to_rest();
}

/// Checks the answer to `fail`: the operator swaps a disk by it.
#[test]
fn a_member_is_out_when_the_log_knows() {
    let mut rig = Rig::mirror(7, 2);
    rig.come_to_rest();
    rig.up[2] = false;
    let words = rig.tell("fail 0").expect_err("the log cannot be written");
    assert!(words.contains("the log"), "{words}");
    assert!(rig.tell("fail 0").is_err(), "still");
    rig.up[2] = true;
    (0..20).for_each(|_| rig.turn());
    let status = rig.tell("fail 0").expect("it can");
    assert!(status.contains(r#""members":["out","in sync"]"#), "{status}");
    rig.kill_daemon(true);
    assert_eq!(rig.source(), 1, "the log knows");
}

#[test]
fn a_secondary_that_fails_is_noticed_by_nobody_but_the_operator() {
    let mut rig = Rig::new(1);
    rig.come_to_rest();
    rig.up[1] = false;
    // The simulated primary fails now and then.
    (0..4).for_each(|_| live(&mut rig));
    let status = rig.tell("status").expect("it serves");
    assert!(
        status.contains(r#""state":"degraded""#) || status.contains(r#""state":"resyncing""#),
        "{status}"
    );
    assert!(!status.contains(r#""stale_bytes":0,"#), "{status}");
    let metrics = rig.tell("metrics").expect("every function has them");
    assert!(metrics.contains("degraded 1\n") && metrics.contains("dirty_bytes "), "{metrics}");
    assert!(rig.good > 20 * rig.failed, "{} were good, {} failed", rig.good, rig.failed);
    rig.come_to_rest();
    assert!(rig.tell("metrics").expect("every function has them").contains("degraded 0\n"));
}

#[test]
fn a_primary_that_fails_fails_the_command() {
    let mut rig = Rig::new(1);
    rig.come_to_rest();
    let before = rig.good;
    rig.up[0] = false;
    (0..8).for_each(|_| live(&mut rig));
    assert!(rig.failed > 20 && rig.good == before, "{} were good, {} failed", rig.good - before, rig.failed);
    rig.come_to_rest();
}

/// Checks that commands in flight fail: none waits for ever, and none ends while a layer has its data.
#[test]
fn a_secondary_that_becomes_too_small_ends_the_service() {
    for seed in seeds(&[], 24) {
        let mut rig = Rig::new(seed);
        live(&mut rig);
        (0..8).for_each(|_| rig.submit());
        rig.show_layers(&[SIZE, SIZE / 2, SIZE / 4]);
        assert_eq!(rig.ready, Some(Status::NAMESPACE_NOT_READY));
        for _ in 0..10_000 {
            rig.turn();
        }
        assert!(rig.is_idle(), "commands do not come back");
        let words = rig.tell("status").expect_err("there is no set");
        assert!(words.contains("the secondary has"), "{words}");
    }
}

#[test]
fn a_log_that_fails_fails_what_it_would_have_to_know_of() {
    let mut rig = Rig::new(1);
    rig.come_to_rest();
    rig.up[2] = false;
    (0..8).for_each(|_| live(&mut rig));
    assert!(rig.failed > 20);
    rig.come_to_rest();
}

#[test]
fn orders_are_obeyed_and_strange_ones_refused() {
    let mut rig = Rig::new(4);
    rig.come_to_rest();
    let refused = rig.tell("dance").expect_err("it cannot");
    assert!(refused.contains("resync"), "{refused}");
    for (order, state) in [("fail", "out"), ("resync", "resyncing")] {
        let status = rig.tell(order).expect("it can");
        assert!(status.contains(&format!(r#""state":"{state}""#)), "{status}");
    }
    rig.come_to_rest();
    rig.tell("resync all").expect("it can");
    rig.come_to_rest();
    let copied = format!(r#""resync_bytes":{},"#, 3 * SIZE);
    let status = rig.tell("status").expect("it serves");
    assert!(status.contains(&copied), "first, after fail, and when asked for: {status}");
}

#[test]
fn a_check_compares_everything() {
    let mut rig = Rig::new(3);
    (0..4).for_each(|_| live(&mut rig));
    rig.come_to_rest();
    let sound = check(&mut rig);
    assert!(sound.contains(r#""different":0,"unreadable":0,"first_different":null"#), "{sound}");
    rig.rot(1, (1 << 20) + 512);
    let rotten = check(&mut rig);
    assert!(rotten.contains(r#""different":1,"unreadable":0,"first_different":1048576"#), "{rotten}");
}

/// Checks that a comparison which could compare nothing does not begin, and so is not done.
#[test]
fn a_check_without_all_members_is_refused() {
    let mut rig = Rig::new(3);
    rig.come_to_rest();
    rig.tell("fail").expect("it can");
    let why = rig.tell("check").expect_err("there is nothing to compare with");
    assert!(why.contains("needs all members, and {1} is missing"), "{why}");
    let jobs = rig.tell("jobs").expect("it has some");
    assert!(!jobs.contains("check"), "{jobs}");
    rig.tell("resync").expect("it can");
    rig.come_to_rest();
    assert!(check(&mut rig).contains(r#""different":0"#));
}

fn check(rig: &mut Rig) -> String {
    rig.tell("check").expect("it can");
    loop {
        let status = rig.tell("status").expect("it serves");
        if status.contains(r#""running":false"#) {
            return status;
        }
        rig.turn();
    }
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let options = |key: &str, value: &str| Options::new([(key.to_owned(), value.to_owned())]);
    assert!(Replicate::new(&options("resync_mib_s", "10")).is_ok());
    for (key, value) in [("resync_mib_s", "0"), ("resync_mib_s", "fast"), ("rate", "1")] {
        let words = Replicate::new(&options(key, value)).expect_err("it makes no sense");
        assert!(words.contains("resync_mib_s"), "{words}");
    }
}

/// Checks a blank log, without any record of the members.
#[test]
fn nothing_is_overwritten_beside_a_blank_log_until_an_operator_says_which_member_is_right() {
    for is_mirror in [false, true] {
        let mut rig = if is_mirror { Rig::mirror(8, 2) } else { Rig::new(8) };
        rig.come_to_rest();
        rig.blank_log();
        rig.rot(0, 4096);
        rig.is_new = false;
        rig.open_again();
        assert!(!rig.serves());
        let images = [rig.image(0), rig.image(1)];
        for order in ["status", "resync all", "check", "fail 0"] {
            let words = rig.tell(order).expect_err("nothing says which is right");
            assert!(words.contains("the log is blank") && words.contains("copy from N"), "{words}");
        }
        // Nor when the layers have another size.
        assert!(!rig.serves());
        (0..200).for_each(|_| rig.turn());
        assert!(images == [rig.image(0), rig.image(1)], "something was copied");
        assert!(rig.tell("copy from 2").is_err() && (is_mirror || rig.tell("copy from 1").is_err()));
        let source = usize::from(is_mirror);
        rig.ready = None;
        let status = rig.tell(&format!("copy from {source}")).expect("it asks for it");
        assert!(status.contains("resyncing"), "{status}");
        assert!(rig.comes_up());
        assert_eq!(rig.source(), source);
        assert!(rig.tell("copy from 0").is_err(), "once");
        while !rig.tell("status").expect("it serves").contains(r#""state":"in sync""#) {
            rig.turn();
        }
        assert!(rig.image(0) == images[source] && rig.image(1) == images[source]);
    }
}

#[test]
fn a_member_on_other_storage_is_copied_to() {
    let mut rig = Rig::mirror(9, 3);
    rig.come_to_rest();
    rig.open_again();
    rig.is_new = false;
    rig.storage[0] = 100;
    assert!(rig.serves());
    assert_ne!(rig.source(), 0);
    let status = rig.tell("status").expect("it serves");
    assert!(status.contains(r#""members":["resyncing","in sync","in sync"]"#), "{status}");
    rig.come_to_rest();
}

/// Checks sets of up to eight members: a byte can distinguish so many.
#[test]
fn a_mirror_has_up_to_eight_members() {
    for members in [LAYERS_MAX - 2, LAYERS_MAX - 1] {
        let mut rig = Rig::mirror(10, members);
        live(&mut rig);
        rig.come_to_rest();
    }
    let layer = Below { size: 4 << 20, block_size: 512, atomic: 512, id: 0, is_new: true };
    for (mode, layers, is_good) in [
        (Mode::Equals, 2, false),
        (Mode::Equals, 3, true),
        (Mode::Equals, 9, true),
        (Mode::Equals, 10, false),
        (Mode::Copy, 2, false),
        (Mode::Copy, 3, true),
        (Mode::Copy, 4, false),
    ] {
        assert_eq!(mode.members(&vec![layer; layers]).is_ok(), is_good, "{mode:?} of {layers}");
    }
}

/// Measures in the time of the simulation.
#[test]
fn copying_takes_what_the_option_says_while_the_host_writes() {
    let took = |rate: &str| {
        let options = Options::new([("resync_mib_s".to_owned(), rate.to_owned())]);
        let mut rig = Rig::with_options(12, 2, true, options);
        let began = rig.now_ns;
        while rig.tell("status").expect("it serves").contains(r#""resync_bytes":0,"#)
            || rig.tell("metrics").expect("every function has them").contains("degraded 1\n")
        {
            rig.submit();
            (0..8).for_each(|_| rig.turn());
        }
        (rig.now_ns - began) / 1_000_000
    };
    let (slow, fast) = (took("1"), took("8"));
    assert!(slow > 3_000 && fast < slow / 2, "4 MiB took {slow} ms at 1 MiB a second, {fast} ms at 8");
}
