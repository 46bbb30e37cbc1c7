//! Members and logs that come back as other storage.

use super::rig::{Rig, SIZE};
use super::{live, start, start_by_order};
use crate::{Members, UNSEEN};
use sluice_sim::seeds;

/// Runs a set until it reports whether it can serve, and no longer.
fn open(rig: &mut Rig) -> Result<(), String> {
    while rig.ready.is_none() {
        if !rig.turn() {
            rig.let_time_go_by();
        }
    }
    rig.ready.clone().expect("it has said so")
}

/// Returns a set that has run under load, and was restarted.
fn lived(seed: u64, members: usize, promotes: bool, cut: bool) -> Rig {
    let mut rig = Rig::new(seed, members, promotes);
    start(&mut rig);
    rig.come_to_rest();
    live(&mut rig);
    rig.come_to_rest();
    rig.restart(cut);
    rig
}

/// Checks that no time and no step changes a member.
fn nothing_changes(rig: &mut Rig, members: usize) {
    let images: Vec<_> = (0..members).map(|member| rig.image(member)).collect();
    for _ in 0..200 {
        if !rig.turn() {
            rig.let_time_go_by();
        }
    }
    (0..members).for_each(|member| assert!(rig.image(member) == images[member], "member {member}"));
}

#[test]
fn a_blank_log_beside_members_that_are_not_new_changes_nothing_without_an_order() {
    for seed in seeds(&[], 24) {
        let promotes = seed.is_multiple_of(2);
        let mut rig = lived(seed, 3, promotes, true);
        rig.blank_log();
        // The survivors are not overwritten either when another disk is in the place of the first.
        let is_first_gone = promotes && seed.is_multiple_of(4);
        if is_first_gone {
            rig.replace(0, None);
        }
        let words = open(&mut rig).expect_err("nothing says which is right");
        assert!(words.contains("the log is blank") && words.contains("copy from N"), "{words}");
        nothing_changes(&mut rig, 3);
        assert!(rig.mirror.copy_from(3).is_err(), "there is no such member");
        let source = if promotes { 2 } else { 0 };
        assert!(promotes || rig.mirror.copy_from(1).is_err(), "the host reads member 0");
        rig.ready = None;
        rig.mirror.copy_from(source).expect("it asks for it");
        assert!(rig.mirror.copy_from(source).is_err(), "once");
        start(&mut rig);
        assert_eq!(rig.mirror.status().source, source);
        rig.read_all();
        rig.come_to_rest();
    }
}

#[test]
fn a_blank_log_is_taken_when_all_that_would_be_overwritten_is_new() {
    let mut rig = lived(1, 3, true, false);
    rig.blank_log();
    rig.replace(1, None);
    let words = open(&mut rig).expect_err("member 2 is not");
    assert!(words.contains("{2}"), "{words}");
    let mut rig = Rig::new(1, 3, true);
    start(&mut rig);
    assert_eq!(rig.mirror.status().source, 0);
}

#[test]
fn a_member_that_is_another_disk_or_an_older_image_is_copied_to_and_never_from() {
    let mut served = 0;
    for seed in seeds(&[], 48) {
        let member = (seed % 3) as usize;
        let mut rig = Rig::new(seed, 3, true);
        start(&mut rig);
        rig.come_to_rest();
        let older = rig.image(member);
        live(&mut rig);
        // The set is dirty or clean here, and the power stays on or fails.
        if seed.is_multiple_of(2) {
            rig.come_to_rest();
        }
        rig.restart(seed.is_multiple_of(3));
        // Writes in flight are not flushed, so any member may lose them.
        let is_older = seed.is_multiple_of(5);
        rig.replace(member, is_older.then_some(&older[..]));
        if open(&mut rig).is_err() {
            assert!(rig.mirror.asks(), "nobody else had everything");
            continue;
        }
        served += 1;
        let status = rig.mirror.status();
        assert!(status.source != member && !status.current.contains(member), "{status:?}");
        assert!(status.joined.contains(member), "it is copied to");
        rig.read_all();
        rig.come_to_rest();
        // The log has the new storage from now on.
        rig.restart(true);
        start(&mut rig);
        assert_eq!(rig.mirror.status().current, Members::first(3));
    }
    assert!(served > 30, "{served} were served");
}

/// Loses a member that was dirty at a start, or that an operator had copied whole, before the copy is complete.
#[test]
fn a_member_that_was_not_yet_copied_to_is_not_served_in_place_of_another_disk() {
    for by_order in [false, true] {
        let mut rig = Rig::new(17, 3, true);
        start(&mut rig);
        rig.come_to_rest();
        if by_order {
            rig.mirror.bring_back(Members::first(3), true);
        } else {
            rig.write_at(0..512);
            rig.turn();
            rig.restart(false);
            start(&mut rig);
        }
        assert_eq!(rig.mirror.status().current, Members::one(0));
        rig.up[1..].fill(false);
        let before = rig.acknowledged;
        while rig.acknowledged == before {
            rig.write_at(512..1024);
            while rig.turn() {}
            rig.let_time_go_by();
        }
        rig.restart(true);
        rig.up.fill(true);
        rig.replace(0, None);
        let words = open(&mut rig).expect_err("no other member has the write");
        assert!(words.contains("{0}") && words.contains("copy from N"), "{words}");
        nothing_changes(&mut rig, 3);
    }
}

/// Opens the log of an earlier version: two members have the highest generation, and each lacks other regions.
#[test]
fn where_the_log_marks_the_source_all_others_are_copied_to() {
    let mut rig = Rig::new(19, 3, true);
    start(&mut rig);
    rig.come_to_rest();
    let mirror = &mut rig.mirror;
    let (first, second) = (Members::one(1), Members::one(2));
    for (region, lacking) in [(0, first), (1, second)] {
        mirror.mark(region..region + 1, lacking);
        mirror.set.regions.make_stale(region..region + 1, lacking);
    }
    mirror.set.generations[0] -= 1;
    mirror.open(SIZE).expect("member 1 is newer than member 0");
    assert_eq!((mirror.status().source, mirror.status().current), (1, first));
    let others = Members::one(0).with(second);
    let regions = &mirror.set.regions.list;
    assert_eq!((regions[0].wanted, regions[0].stale), (others, others));
    assert_eq!((regions[1].wanted, regions[1].stale), (second, second));
}

#[test]
fn a_primary_that_is_another_disk_is_not_served_and_not_copied_without_an_order() {
    for seed in seeds(&[], 12) {
        let mut rig = lived(seed, 2, false, true);
        rig.replace(0, Some(&[0; SIZE as usize]));
        let words = open(&mut rig).expect_err("the host would read it");
        assert!(words.contains("{0}") && words.contains("copy from N"), "{words}");
        nothing_changes(&mut rig, 2);
        rig.believe(0);
        rig.ready = None;
        rig.mirror.copy_from(0).expect("it asks for it");
        start(&mut rig);
        rig.come_to_rest();
    }
}

#[test]
fn a_set_of_which_no_member_is_known_is_not_served_without_an_order() {
    let mut rig = lived(7, 2, true, false);
    rig.replace(0, None);
    let image = rig.image(1);
    rig.replace(1, Some(&image));
    start_by_order(&mut rig, 1);
    assert_eq!(rig.mirror.status().source, 1);
    rig.read_all();
    rig.come_to_rest();
}

#[test]
fn storage_without_a_number_is_taken_for_what_it_was() {
    let mut rig = lived(9, 2, true, false);
    rig.hide_storage();
    assert_eq!(open(&mut rig), Ok(()));
    assert_eq!(rig.mirror.status().current, Members::first(2));
}

/// Checks a member that is missing at the start: it may come back as other storage unnoticed.
#[test]
fn a_member_that_is_not_there_at_the_start_is_copied_to_when_it_comes() {
    let mut rig = lived(11, 2, true, true);
    rig.replace(1, Some(&[0; SIZE as usize]));
    let other = rig.storage_of(1);
    rig.number_storage(1, UNSEEN);
    assert_eq!(open(&mut rig), Ok(()));
    let status = rig.mirror.status();
    assert!(!status.current.contains(1) && status.stale_bytes == status.size, "{status:?}");
    rig.come_to_rest();
    rig.read_all();
    // The log does not have that storage yet.
    rig.restart(true);
    rig.number_storage(1, other);
    assert_eq!(open(&mut rig), Ok(()));
    assert!(!rig.mirror.status().current.contains(1));
    rig.come_to_rest();
    rig.restart(true);
    start(&mut rig);
    assert_eq!(rig.mirror.status().current, Members::first(2));
}

#[test]
fn a_primary_that_is_not_there_at_the_start_is_not_served_without_an_order() {
    let mut rig = lived(13, 2, false, true);
    rig.number_storage(0, UNSEEN);
    let words = open(&mut rig).expect_err("it may come back blank");
    assert!(words.contains("{0}") && words.contains("not there"), "{words}");
    nothing_changes(&mut rig, 2);
}

/// Has a place that a member cannot read copied to it again, from any member to any.
#[test]
fn a_place_that_cannot_be_read_is_copied_again() {
    let mut rig = Rig::new(11, 3, true);
    rig.come_to_rest();
    for member in 0..3 {
        rig.rot(member, 8192);
        let bytes = 8192..8704;
        assert!(rig.mirror.is_unreadable(member, &bytes));
        let readers = rig.mirror.readers(&bytes);
        assert!(!readers.contains(member) && readers.iter().count() == 2, "{readers:?}");
        rig.come_to_rest();
    }
    (0..2).for_each(|member| rig.mirror.lose(member));
    assert!(!rig.mirror.is_unreadable(2, &(0..512)), "no other member has the data");
}
