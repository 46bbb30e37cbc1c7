//! Changes of the number of parities under load, with members that fail, crashes and power cuts.

use super::lives::{end_failures, live, rest, restart};
use super::rig::Rig;
use crate::parity::{Geometry, HostCommand, NOTES_BYTES};
use crate::{Members, UNSEEN};
use sluice_sim::seeds;

/// Shapes with one parity. A spare is behind the members.
const MEMBERS: [usize; 4] = [3, 4, 5, 6];

fn rig(seed: u64) -> Rig {
    let members = MEMBERS[(seed % MEMBERS.len() as u64) as usize];
    let (chunk, chunks) = [(4096, 11), (8192, 5), (4096, 8), (128 << 10, 1)][(seed / 4 % 4) as usize];
    Rig::with_spares(seed, (members, 1), 1, chunk, chunks, 8192)
}

fn parities(rig: &Rig) -> usize {
    rig.parity.status().parities
}

/// Orders a change, and waits for its end. Returns why it was not done.
fn change(rig: &mut Rig, to: usize) -> Result<(), String> {
    rig.parity.set_parities(to)?;
    rig.pump();
    while rig.parity.is_changing() && rig.halted.is_none() {
        assert!(rig.turn(), "the change waits for nothing");
    }
    match rig.parity.change_failure() {
        None => Ok(()),
        Some(words) => Err(words.to_owned()),
    }
}

/// Reads everything without each set of as many members as there are parities.
fn survives_losses(rig: &mut Rig) {
    let Geometry { members, parities, .. } = rig.parity.geometry();
    for one in 0..members {
        for other in (one..members).filter(|other| *other == one || parities == 2) {
            [one, other].into_iter().for_each(|member| rig.members[member].up = false);
            rig.read_all();
            rest(rig);
        }
    }
}

/// Changes the number of parities back and forth beside a member that fails, a spare that fails, and restarts. No command
/// fails, and a change that was reported is there after any crash.
#[test]
fn parities_change_under_load() {
    let (mut ups, mut downs, mut refused, mut broken, mut lives) = (0, 0, 0, 0, 0);
    for seed in seeds(&[], 30) {
        let mut rig = rig(seed);
        lives += 1;
        let spare = rig.members.len() - 1;
        for _ in 0..3 {
            let victim = rig.random.below(spare as u64) as usize;
            let victims = match rig.random.below(4) {
                0 => vec![],
                1 => vec![victim],
                2 => vec![spare],
                _ => vec![victim, spare],
            };
            for _ in 0..3 {
                live(&mut rig, &victims, 150);
                let before = parities(&rig);
                let to = 3 - before;
                match rig.parity.set_parities(to) {
                    Ok(()) => rig.pump(),
                    Err(_) => refused += 1,
                }
                live(&mut rig, &victims, 120);
                let (is_changing, is) = (rig.parity.is_changing(), parities(&rig));
                if rig.random.one_in(2) {
                    restart(&mut rig, &victims);
                    broken += u64::from(is_changing);
                    assert!(is_changing || parities(&rig) == is, "a change that was reported is lost");
                    live(&mut rig, &victims, 120);
                }
                if parities(&rig) != before {
                    if to == 2 { ups += 1 } else { downs += 1 }
                }
                assert_eq!((rig.failed, &rig.halted), (0, &None), "{victims:?}");
            }
            if rig.random.one_in(2) {
                rig.drain();
                rig.read_all();
            }
            rest(&mut rig);
            rig.read_all();
        }
        survives_losses(&mut rig);
        assert_eq!(rig.failed, 0);
    }
    let is_mixed = ups > lives && downs > lives / 3 && refused > 5 && broken > 5;
    assert!(is_mixed || lives < 30, "{ups} {downs} {refused} {broken} of {lives}");
}

/// Fails requests to all members and to the log while the number of parities changes: the array may stop, and nothing is lost.
#[test]
fn failures_during_a_change_lose_nothing() {
    let (mut stops, mut changes, mut lives) = (0, 0, 0);
    for seed in seeds(&[], 30) {
        let mut rig = rig(seed);
        lives += 1;
        for _ in 0..3 {
            rig.faults = *rig.random.pick(&[0.0, 0.01, 0.05]);
            rig.gives_up = 0.1;
            for _ in 0..4 {
                rig.log_up = !rig.random.one_in(3);
                if rig.is_open() {
                    changes += u64::from(rig.parity.set_parities(3 - parities(&rig)).is_ok());
                    rig.pump();
                }
                live(&mut rig, &[], 100);
            }
            stops += end_failures(&mut rig);
        }
        survives_losses(&mut rig);
    }
    assert!(stops > 0 && changes > lives || lives < 30, "{stops} {changes}");
}

/// Event at a write of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Nothing,
    /// The power fails.
    Cut,
    /// A member fails for good.
    Lose(usize),
    /// A member fails, and the power at once.
    LoseAndCut(usize),
}

/// Runs load with a change in each direction, up to the event at this write of a log or a member.
fn run(seed: u64, at: u64, event: Event) -> Rig {
    let mut rig = Rig::with_spares(seed, (3, 1), 1, 4096, 4, 8192);
    rig.stored = 0;
    let mut lost = false;
    for step in 0..420 {
        if let (Event::Lose(member), false) = (event, lost)
            && rig.stored >= at
        {
            rig.members[member].up = false;
            lost = true;
        }
        if matches!(event, Event::Cut | Event::LoseAndCut(_)) {
            rig.cut_at = Some(at);
        }
        match step {
            60 => drop(rig.parity.set_parities(2)),
            // The member that was given is rebuilt, and everything is flushed.
            200..280 if !lost => drop(rig.turn()),
            280 => drop(rig.parity.set_parities(1)),
            _ if step % 4 == 0 => rig.submit(),
            _ => drop(rig.turn()),
        }
        rig.pump();
        if rig.cut_at.is_some() && rig.cut_at == Some(rig.stored) {
            break;
        }
    }
    rig
}

/// Cuts the power at each write of a log or a member, from before one change of the parities to after the other.
#[test]
fn a_power_cut_at_every_write_of_a_change() {
    for seed in [1, 2] {
        let whole = run(seed, 0, Event::Nothing);
        let (all, mut seen) = (whole.stored, [0; 3]);
        assert!(all > 60, "{all}");
        assert_eq!(parities(&whole), 1, "it has one again");
        for at in 1..=all {
            let mut rig = run(seed, at, Event::Cut);
            let (is, is_changing) = (parities(&rig), rig.parity.is_changing());
            rig.cut_at = None;
            rig.crash(true);
            rig.open();
            assert_eq!(rig.comes_up(), Ok(()), "after write {at}");
            assert!(is_changing || parities(&rig) == is, "after write {at}");
            seen[parities(&rig)] += 1;
            rig.read_all();
            rest(&mut rig);
            rig.read_all();
            if at % 4 == 0 {
                survives_losses(&mut rig);
            }
        }
        assert!(seen[1] > 10 && seen[2] > 10, "{seen:?}");
    }
}

/// Loses a member at each write of a log or a member, before, in and after both changes: no command fails. The same with a power
/// cut at that moment.
#[test]
fn a_member_lost_at_every_write_of_a_change() {
    let all = run(1, 0, Event::Nothing).stored;
    for member in 0..4 {
        for at in 1..=all {
            let mut rig = run(1, at, Event::Lose(member));
            assert_eq!((rig.failed, &rig.halted), (0, &None), "member {member} at {at}");
            rig.drain();
            rig.read_all();
            rest(&mut rig);
            rig.read_all();

            let mut rig = run(1, at, Event::LoseAndCut(member));
            rig.cut_at = None;
            rig.members[member].up = false;
            rig.crash(true);
            rig.open();
            assert_eq!(rig.comes_up(), Ok(()), "member {member} at {at}");
            rig.read_all();
            // The member comes back as another disk.
            rig.crash(true);
            rig.replace(member);
            rig.members[member].up = true;
            rig.open();
            assert_eq!(rig.comes_up(), Ok(()), "member {member} at {at}");
            rig.read_all();
            rest(&mut rig);
            rig.read_all();
        }
        let mut rig = run(1, all / 2, Event::Lose(member));
        rest(&mut rig);
        survives_losses(&mut rig);
    }
}

/// Loses two members while Q is being computed: nothing is lost that one parity or two can recover.
#[test]
fn the_added_member_and_another_may_be_lost() {
    let mut rig = rig(1);
    rig.submit_at(Some(HostCommand::Write), 0, 60);
    rig.drain();
    assert_eq!(change(&mut rig, 2), Ok(()));
    let spare = rig.members.len() - 1;
    [0, spare].into_iter().for_each(|member| rig.members[member].up = false);
    rig.submit_at(Some(HostCommand::Write), 8, 30);
    rig.drain();
    rig.read_all();
    assert_eq!((rig.failed, &rig.halted), (0, &None));
    let words = rig.parity.set_parities(1).expect_err("member 0 lacks something");
    assert!(words.contains("{0} lack something"), "{words}");
    rest(&mut rig);
    survives_losses(&mut rig);
    // The added member alone may be lost, and is given up then.
    rig.members[spare].up = false;
    rig.submit_at(Some(HostCommand::Write), 8, 30);
    rig.drain();
    assert_eq!(change(&mut rig, 1), Ok(()));
    assert_eq!((rig.parity.status().state(), rig.parity.spares()), ("in sync", 1));
    survives_losses(&mut rig);
}

#[test]
fn changes_that_cannot_be_are_refused() {
    let refusal = |rig: &mut Rig, to| rig.parity.set_parities(to).expect_err("it cannot be");
    let mut rotating = Rig::new(1, (4, 2), 4096, 8);
    assert!(refusal(&mut rotating, 1).contains("spread among all members"));
    assert_eq!(rotating.parity.set_parities(2), Ok(()));
    assert!(!rotating.parity.is_changing());
    assert!(refusal(&mut Rig::new(1, (4, 1), 4096, 8), 2).contains("there is no spare"));
    let mut rig = rig(1);
    assert!(refusal(&mut rig, 0).contains("1 or 2 parities") && refusal(&mut rig, 3).contains("not 3"));
    rig.parity.check();
    assert!(refusal(&mut rig, 2).contains("a comparison runs"));
    rig.come_to_rest();
    rig.parity.set_parities(2).expect("it can");
    assert!(refusal(&mut rig, 1).contains("is being changed"));
    rig.pump();
    rig.come_to_rest();
    assert_eq!((parities(&rig), rig.parity.spares()), (2, 0));
    // The log has a member that is not declared any more.
    rig.crash(true);
    let geometry = rig.config.geometry;
    rig.config.spares = 0;
    rig.open();
    assert!(rig.comes_up().is_err_and(|words| words.contains("second parity is on member 4")));
    // Two parities that are spread among the members have other places.
    rig.config.geometry = Geometry::new(5, 2, geometry.chunk).expect("an array");
    rig.crash(true);
    rig.open();
    let words = rig.comes_up().expect_err("data would be read from wrong places");
    assert!(words.contains("5 members with 2 parities, the second of them added"), "{words}");
    (rig.config.geometry, rig.config.spares) = (geometry, 1);
    rig.members[4].storage = UNSEEN;
    rig.crash(true);
    rig.open();
    assert_eq!(rig.comes_up(), Ok(()));
    assert_eq!(change(&mut rig, 1), Ok(()), "only the member that is not there lacks something");
    assert!(refusal(&mut rig, 2).contains("not available"));
    rig.read_all();
}

/// Keeps two flushes in flight from the order on: the change and the writes end all the same.
#[test]
fn flushes_without_end_hold_up_no_change() {
    for seed in 0..20 {
        let mut rig = rig(seed);
        rig.submit_at(Some(HostCommand::Write), 0, 60);
        rig.parity.set_parities(2).expect("it can");
        rig.pump();
        let (before, mut turns) = (rig.good, 0);
        while rig.parity.is_changing() {
            rig.submit_at(None, 0, 0);
            rig.submit_at(None, 0, 0);
            assert!(rig.turn());
            turns += 1;
            assert!(turns < 2000, "the change does not end: {}", rig.parity.status());
        }
        assert!(rig.good > before);
        rig.drain();
        assert_eq!((parities(&rig), rig.failed), (2, 0));
        survives_losses(&mut rig);
    }
}

/// Orders a second parity where the data was not compared with the first one, or there is no first one yet.
#[test]
fn a_second_parity_needs_a_right_first_one() {
    let mut rig = rig(3);
    rig.config.safe_read = true;
    rig.crash(true);
    rig.open();
    assert_eq!(rig.comes_up(), Ok(()));
    assert!(rig.parity.set_parities(2).is_err_and(|words| words.contains("`safe_read` compares")));
    rig.config.safe_read = false;
    rig.crash(true);
    rig.open();
    assert_eq!(rig.comes_up(), Ok(()));
    rig.parity.recompute().expect("no member lacks anything");
    assert!(rig.parity.set_parities(2).is_err_and(|words| words.contains("not computed yet")));
    rig.pump();
    rig.come_to_rest();
    assert_eq!(change(&mut rig, 2), Ok(()));
    survives_losses(&mut rig);
}

/// Has another version in the log of such an array: a program without these arrays refuses it.
#[test]
fn a_log_with_q_on_the_last_member_has_another_version() {
    let versions = |rig: &Rig| {
        [0, NOTES_BYTES / 2].map(|at| {
            let mut block = [0; 512];
            rig.log.lock().read(at, &mut block);
            block[8]
        })
    };
    let mut rig = rig(2);
    rig.come_to_rest();
    assert!(versions(&rig).iter().all(|version| [0, 2].contains(version)), "{:?}", versions(&rig));
    assert_eq!(change(&mut rig, 2), Ok(()));
    assert!(versions(&rig).contains(&3));
    rig.come_to_rest();
    assert_eq!(change(&mut rig, 1), Ok(()));
    rig.crash(true);
    rig.open();
    assert_eq!(rig.comes_up(), Ok(()));
    assert_eq!(versions(&rig), [2, 2]);
    assert_eq!(rig.parity.status().stale, Members::NONE);
    rig.read_all();
}
