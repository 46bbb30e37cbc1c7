//! Changes of the number of parities of the function, under load.

use super::rig::Rig;
use super::{live, turns};
use sluice_sim::seeds;
use sluice_uif::Options;

fn rig(seed: u64) -> Rig {
    Rig::with_options(seed, [4, 5, 6][(seed % 3) as usize], 1, &[("spare", "true")])
}

fn parities(rig: &mut Rig) -> u64 {
    let status = rig.tell("status").expect("it serves");
    [1, 2].into_iter().find(|count| status.contains(&format!("\"parity\":{count},"))).expect("a number")
}

/// Reads everything without as many members as there are parities, the first ones and the last ones.
fn survives_losses(rig: &mut Rig) {
    let parities = parities(rig) as usize;
    let members = rig.members - (2 - parities);
    for first in [0, members - parities] {
        rig.up[first..first + parities].fill(false);
        rig.read_all();
        rig.come_to_rest();
    }
}

/// Changes the number of parities back and forth beside a member that is lost and a spare that may be, with crashes between.
#[test]
fn parities_change_under_load() {
    let (mut changes, mut lives) = (0, 0);
    for seed in seeds(&[], 8) {
        let mut rig = rig(seed);
        lives += 1;
        for _ in 0..4 {
            let (spare, victim) = (rig.members - 1, rig.random.below(rig.members as u64 - 1) as usize);
            rig.up[victim] = rig.random.one_in(2);
            rig.up[spare] = rig.random.one_in(2);
            live(&mut rig, 300);
            let before = parities(&mut rig);
            let told = rig.tell(&format!("parities {}", 3 - before));
            assert!(told.is_ok() || before == 2, "{told:?}");
            assert!(told.is_err() || parities(&mut rig) == 3 - before, "{told:?}");
            changes += u64::from(told.is_ok());
            live(&mut rig, 300);
            if rig.random.one_in(2) {
                let (is, cut) = (parities(&mut rig), rig.random.one_in(2));
                rig.end_daemon(cut);
                assert!(rig.serves(), "it serves: {:?}", rig.tell("status"));
                assert_eq!(parities(&mut rig), is);
            }
            rig.drain();
            rig.read_all();
            assert_eq!(rig.failed, 0);
            rig.come_to_rest();
        }
        survives_losses(&mut rig);
    }
    assert!(changes > 15 || lives < 8, "{changes}");
}

/// Cuts the power at each write of the log, from before one change of the parities to after the other.
#[test]
fn a_power_cut_at_every_write_of_the_log_of_a_change() {
    for seed in seeds(&[], 1) {
        let run = |rig: &mut Rig| {
            for order in ["parities 2", "parities 1"] {
                if !live(rig, 100) {
                    return false;
                }
                rig.order(order);
                // The members have everything before the second change.
                for _ in 0..600 {
                    if !rig.turn() {
                        return false;
                    }
                }
            }
            live(rig, 100)
        };
        let mut whole = rig(seed);
        assert!(run(&mut whole));
        assert!(whole.log_writes > 20, "{}", whole.log_writes);
        let mut seen = [0; 3];
        for at in 1..=whole.log_writes {
            let mut rig = rig(seed);
            rig.cut_at = Some(at);
            assert!(rig.log_writes >= at || !run(&mut rig), "the power fails at write {at}");
            rig.cut_at = None;
            rig.kill_daemon(true);
            seen[parities(&mut rig) as usize] += 1;
            rig.read_all();
            rig.come_to_rest();
            if at % 5 == 0 {
                survives_losses(&mut rig);
            }
        }
        assert!(seen[1] > 0 && seen[2] > 0, "{seen:?}");
    }
}

/// Fails a member between the order of a change and its end, also the one that is added: no command fails.
#[test]
fn a_member_lost_during_a_change() {
    let mut changed = 0;
    for (step, member) in (0..12).flat_map(|step| [(step, 0), (step, 3)]) {
        let mut rig = Rig::with_options(step, 4, 1, &[("spare", "true")]);
        live(&mut rig, 200);
        rig.order("parities 2");
        turns(&mut rig, step * 24);
        rig.up[member] = false;
        (0..40).for_each(|_| {
            rig.submit();
            rig.turn();
        });
        rig.drain();
        rig.read_all();
        assert_eq!(rig.failed, 0);
        rig.come_to_rest();
        rig.read_all();
        changed += u32::from(parities(&mut rig) == 2);
    }
    // The order is refused if its member is lost before.
    assert!(changed > 12, "{changed} changes");
}

#[test]
fn orders_and_options_that_cannot_be_are_refused() {
    let mut rig = Rig::with_options(1, 4, 1, &[("spare", "true")]);
    for (order, why) in
        [("parities 3", "1 or 2 parities"), ("fail 3", "no member 3"), ("resync 3", "no member 3")]
    {
        let words = rig.tell(order).expect_err("it cannot be");
        assert!(words.contains(why), "{words}");
    }
    let told = rig.tell("parities 1").expect("it has one");
    assert!(told.contains(r#""parity":1,"spares":1,"changing":false"#), "{told}");
    let told = rig.tell("parities 2").expect("it can");
    assert!(told.contains(r#""parity":2,"spares":0,"changing":false"#), "{told}");
    let told = Rig::new(1, 4, 1).tell("parities 2").expect_err("it cannot be");
    assert!(told.contains("there is no spare"), "{told}");
    let told = Rig::new(1, 4, 2).tell("parities 1").expect_err("it cannot be");
    assert!(told.contains("spread among all members"), "{told}");
    for (parity, spare, is_right) in
        [("1", "true", true), ("2", "false", true), ("2", "true", false), ("1", "1", false)]
    {
        let options = [("parity", parity), ("spare", spare)];
        let options = Options::new(options.map(|(key, value)| (key.to_owned(), value.to_owned())));
        assert_eq!(sluice_functions::make("parity", &options, &Default::default()).is_ok(), is_right);
    }
    // Three members with data and parity need another one.
    let options = Options::new([("spare".to_owned(), "true".to_owned())]);
    let size = (sluice_functions::service("parity").expect("it is there").size)(&options);
    let size = size.expect("it has a size of its own");
    assert_eq!((size.over(&[1 << 20; 4]), size.over(&[1 << 20; 5])), (0, 2 << 20));
}
