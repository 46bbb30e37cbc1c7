//! The whole array against the model: random commands, losses and returns of members, restarts and power cuts.

use super::rig::{BLOCK, Rig};
use super::tasks::Task;
use crate::parity::{ARRAY_LOG_MIN, HostCommand, NOTES_BYTES};
use crate::{Members, UNSEEN};
use sluice_jobs::{PaceChange, Verb};
use sluice_sim::seeds;
use std::ops::Range;

const SHAPES: [(usize, usize); 6] = [(3, 1), (4, 1), (4, 2), (5, 2), (6, 2), (7, 1)];

fn rig(seed: u64) -> Rig {
    let shape = SHAPES[(seed % SHAPES.len() as u64) as usize];
    // Chunks of one region, of several regions, and longer than an operation.
    let (chunk, chunks) =
        [(4096, 11), (8192, 5), (4096, 8), (128 << 10, 1), (16384, 3)][(seed / 6 % 5) as usize];
    Rig::new(seed, shape, chunk, chunks)
}

/// Runs load for a while. Some members fail and return meanwhile.
pub(super) fn live(rig: &mut Rig, victims: &[usize], most: u64) {
    for _ in 0..rig.random.between(1, most) {
        match rig.random.below(40) {
            0..10 => rig.submit(),
            10 if !victims.is_empty() => harm(rig, victims),
            11 => {
                let verb = *rig.random.pick(&[Verb::Pause, Verb::Resume, Verb::Resume]);
                drop(rig.parity.order_job(verb, "resync", PaceChange::default(), rig.now_ns));
                rig.pump();
            }
            _ => _ = rig.turn(),
        }
    }
}

/// Changes something about one of these members, which may fail together.
fn harm(rig: &mut Rig, victims: &[usize]) {
    let number = *rig.random.pick(victims);
    let is_out = rig.parity.out().contains(number);
    match rig.random.below(8) {
        0 | 1 => rig.members[number].up = false,
        // It loses writes that are not flushed.
        2 if !is_out => {
            rig.members[number].disk.lock().power_cut();
            rig.members[number].lost = true;
            rig.members[number].up = rig.random.one_in(2);
        }
        3 if rig.is_open() => {
            rig.members[number].lost = false;
            rig.members[number].disk.lock().power_cut();
            rig.parity.has_lost_writes(number);
            rig.pump();
        }
        4 => {
            let block = rig.random.below(rig.config.size / BLOCK);
            rig.members[number].bad.push(block);
        }
        5 if rig.is_open() && rig.parity.status().members.contains(number) => {
            assert_eq!(rig.parity.take_out(number), Ok(()), "the others have everything");
            rig.pump();
        }
        6 if rig.is_open() => {
            let whole = rig.random.one_in(3);
            rig.parity.bring_back(Members::one(number), whole).expect("it can");
            rig.pump();
        }
        _ => rig.members[number].up = true,
    }
}

/// Chooses members that may fail together.
fn victims(rig: &mut Rig) -> Vec<usize> {
    let count = rig.random.below(rig.config.geometry.parities as u64 + 1);
    let mut victims: Vec<usize> = Vec::new();
    while (victims.len() as u64) < count {
        let number = rig.random.below(rig.members.len() as u64) as usize;
        if !victims.contains(&number) {
            victims.push(number);
        }
    }
    victims
}

/// Kills the daemon, and starts the next one. Disks of these members may be others then, or not be there yet.
pub(super) fn restart(rig: &mut Rig, victims: &[usize]) {
    let out = rig.parity.out();
    // The log has an order when it is noted.
    let is_noted = rig.parity.is_noted() && rig.is_open() && !rig.parity.is_changing();
    let cut = rig.random.one_in(2);
    rig.crash(cut);
    let mut unseen = Vec::new();
    for number in victims.iter().copied() {
        rig.members[number].lost &= !cut;
        match rig.random.below(5) {
            0 => rig.replace(number),
            1 => {
                unseen.push((number, rig.members[number].storage));
                (rig.members[number].storage, rig.members[number].up) = (UNSEEN, false);
            }
            _ => {}
        }
    }
    rig.open();
    assert_eq!(rig.comes_up(), Ok(()), "it is opened without {victims:?}");
    if is_noted {
        assert_eq!(rig.parity.out(), out);
    }
    for (number, storage) in unseen {
        rig.members[number].storage = storage;
        if rig.random.one_in(2) {
            rig.replace(number);
        }
    }
}

/// Brings back all members, and waits until they have everything.
pub(super) fn rest(rig: &mut Rig) {
    rig.members.iter_mut().for_each(|member| member.up = true);
    for number in 0..rig.members.len() {
        if std::mem::take(&mut rig.members[number].lost) {
            rig.parity.has_lost_writes(number);
            rig.pump();
        }
    }
    rig.parity.bring_back(rig.parity.status().members, false).expect("it can");
    drop(rig.parity.order_job(Verb::Resume, "resync", PaceChange::default(), rig.now_ns));
    rig.pump();
    rig.come_to_rest();
    // Another disk that came after the start is rebuilt once more after the next one.
    if rig.members.iter().zip(&rig.config.storage).any(|(member, known)| member.storage != *known) {
        rig.crash(false);
        rig.open();
        assert_eq!(rig.comes_up(), Ok(()));
        rig.come_to_rest();
    }
}

/// Waits until the array is open, and failures from before have come out.
pub(super) fn revive(rig: &mut Rig) {
    assert_eq!(rig.comes_up(), Ok(()));
    while rig.halted.is_none() && rig.is_flushing() {
        rig.turn();
    }
    rig.drain();
    if rig.halted.is_some() {
        rig.reopen();
        assert_eq!(rig.comes_up(), Ok(()));
    }
}

/// Loses and gets back as many members as there are parities: no command fails.
#[test]
fn members_that_fail_cost_nothing() {
    let (mut good, mut lives) = (0, 0);
    for seed in seeds(&[], 60) {
        let mut rig = rig(seed);
        for _ in 0..3 {
            let victims = victims(&mut rig);
            live(&mut rig, &victims, 500);
            if rig.random.one_in(2) {
                restart(&mut rig, &victims);
                live(&mut rig, &victims, 200);
            }
            assert_eq!((rig.failed, &rig.halted), (0, &None), "{victims:?}");
            if rig.random.one_in(2) {
                rig.drain();
                rig.read_all();
            }
            rest(&mut rig);
            rig.read_all();
        }
        (good, lives) = (good + rig.good, lives + 1);
    }
    assert!(good > 50 * lives, "{good} of {lives}");
}

/// Writes to regions while they are rebuilt: in front of the rows that are rebuilt, behind them, and across.
#[test]
fn writes_beside_rebuilding_are_rebuilt() {
    for seed in seeds(&[], 24) {
        let shape = SHAPES[(seed % SHAPES.len() as u64) as usize];
        // An operation rebuilds at most 64 KiB.
        let (chunk, chunks, region) =
            [(4096, 8, 16384), (80 << 10, 1, 128 << 10), (96 << 10, 1, 64 << 10)][(seed / 6 % 3) as usize];
        let mut rig = Rig::with_regions(seed, shape, chunk, chunks, region);
        // The member with P of the first stripe, and one with data or Q.
        let geometry = rig.config.geometry;
        for member in [geometry.member(0, geometry.columns()), 0] {
            rig.members[member].up = false;
            for first in (0..rig.blocks()).step_by(40) {
                rig.submit_at(Some(HostCommand::Write), first, 1);
                rig.drain();
            }
            rig.members[member].up = true;
            rig.parity.bring_back(Members::one(member), false).expect("it can");
            rig.pump();
            while !rig.parity.status().stale.is_empty() {
                if rig.random.one_in(3) {
                    // Around a border of chunks or of operations.
                    let border = rig.random.between(1, rig.blocks() / 8 - 1) * 8;
                    let first = border - rig.random.below(8);
                    let count = rig.random.between(1, 16).min(rig.blocks() - first);
                    rig.submit_at(Some(HostCommand::Write), first, count);
                }
                rig.turn();
            }
            rest(&mut rig);
            // The other members have the data that this one has not.
            rig.members[1].up = false;
            rig.read_all();
            rest(&mut rig);
        }
        assert_eq!(rig.failed, 0);
    }
}

/// Ends the failures of members and the log, and some of the lives without a stop. Then everything is there. Returns the
/// number of stops.
pub(super) fn end_failures(rig: &mut Rig) -> u64 {
    (rig.faults, rig.gives_up, rig.log_up) = (0.0, 0.0, true);
    let has_stopped = rig.halted.is_some();
    if has_stopped {
        rig.reopen();
    } else if rig.random.one_in(3) {
        let cut = rig.random.one_in(2);
        rig.crash(cut);
        rig.open();
    }
    revive(rig);
    rest(rig);
    rig.read_all();
    has_stopped.into()
}

/// Fails requests to all members and to the log: commands fail, the array may stop, and nothing is lost.
#[test]
fn failures_beyond_the_parities_lose_nothing() {
    let (mut stops, mut lives) = (0, 0);
    for seed in seeds(&[], 40) {
        let mut rig = rig(seed);
        lives += 1;
        for _ in 0..3 {
            rig.faults = *rig.random.pick(&[0.0, 0.01, 0.1]);
            rig.gives_up = 0.1;
            for _ in 0..4 {
                rig.log_up = !rig.random.one_in(3);
                live(&mut rig, &[], 100);
            }
            stops += end_failures(&mut rig);
        }
    }
    assert!(stops > 0 || lives < 10, "{stops} of {lives}");
}

/// Cuts the power at each write of a log or a member, with a member that is lost and one that returns.
#[test]
fn a_power_cut_at_every_write() {
    for (seed, shape) in [(1, (3, 1)), (2, (4, 2))] {
        let run = |cut_at: Option<u64>| {
            let mut rig = Rig::new(seed, shape, 4096, 6);
            rig.stored = 0;
            rig.cut_at = cut_at;
            for step in 0..260 {
                rig.members[1].up = !(60..140).contains(&step);
                if step % 4 == 0 {
                    rig.submit()
                } else {
                    _ = rig.turn();
                }
                if rig.cut_at == Some(rig.stored) {
                    break;
                }
            }
            rig
        };
        let all = run(None).stored;
        assert!(all > 40, "{all}");
        for at in 1..=all {
            let mut rig = run(Some(at));
            rig.cut_at = None;
            rig.crash(true);
            rig.open();
            assert_eq!(rig.comes_up(), Ok(()), "after write {at}");
            rig.read_all();
            rest(&mut rig);
            rig.read_all();
        }
    }
}

/// Begins arrays whose data is declared right: with a blank log, a damaged one, and by an order.
#[test]
fn parities_are_computed_from_data_that_is_right() {
    for seed in seeds(&[], 30) {
        let mut rig = rig(seed);
        live(&mut rig, &[], 300);
        rest(&mut rig);
        let kind = rig.random.below(3);
        if kind < 2 {
            rig.crash(true);
            if kind == 0 {
                rig.log.lock().write(0, &vec![0; ARRAY_LOG_MIN as usize]);
            } else {
                // Neither header is whole.
                [20, NOTES_BYTES / 2 + 20].into_iter().for_each(|at| rig.log.lock().write(at, &[0x5a]));
            }
            rig.log.lock().flush();
            rig.open();
            assert!(rig.comes_up().is_err() && rig.parity.asks());
            assert!(rig.parity.alarm_ns().is_none() && rig.parity.next(rig.now_ns).is_none());
            rig.ready = None;
            rig.parity.trust_data().expect("it can");
            rig.pump();
            assert_eq!(rig.comes_up(), Ok(()));
        } else {
            rig.parity.trust_data().expect("it can");
            rig.pump();
        }
        assert!(!rig.parity.asks() && rig.parity.status().unsynced);
        live(&mut rig, &[], 60);
        if rig.random.one_in(2) {
            restart(&mut rig, &[]);
            live(&mut rig, &[], 100);
        }
        assert_eq!((rig.failed, &rig.halted), (0, &None));
        rest(&mut rig);
        assert!(!rig.parity.status().unsynced);
        rig.read_all();
        // Again with a member that is lost.
        rig.members[0].up = false;
        rig.read_all();
        rest(&mut rig);
    }
}

/// Fills the journal several times without a pause: the members are flushed for it, and no command waits for a timer.
#[test]
fn a_journal_that_is_full_is_emptied_at_once() {
    for seed in seeds(&[], 2) {
        let mut rig = Rig::new(seed, (4, 2), 4096, 64);
        for number in 0..120 {
            (0..8).for_each(|part| {
                let first = rig.random.below(rig.blocks() - 150);
                rig.submit_at(Some(HostCommand::Write), first, 80 + 8 * part);
            });
            (0..40).for_each(|_| _ = rig.turn());
            if number % 50 == 49 {
                restart(&mut rig, &[]);
            }
        }
        rig.drain();
        assert_eq!((rig.failed, rig.waits), (0, 0));
        rig.read_all();
        rest(&mut rig);
    }
}

/// Ends a slow write only after another member was rebuilt, and then writes a little all the time. The journal had to be kept
/// for the slow write; its tail is stored soon, and nothing that the other member missed is replayed any more.
#[test]
fn a_rebuilt_member_is_complete_soon_under_a_light_load() {
    const SECOND_NS: u64 = 1_000_000_000;
    let mut rig = Rig::new(1, (3, 1), 4096, 64);
    let geometry = rig.config.geometry;
    // Runs all requests but those of these rows. Half a second passes.
    let live = |rig: &mut Rig, first: u64, held: &Range<u64>| {
        rig.submit_at(Some(HostCommand::Write), first, 1);
        let mut kept = Vec::new();
        let end_ns = rig.now_ns + SECOND_NS / 2;
        loop {
            let is_held = |task: &Task| matches!(task, Task::Write { offset, .. } if held.contains(offset));
            kept.extend(rig.tasks.extract_if(.., |task| is_held(task)));
            if rig.tasks.is_empty() && rig.parity.alarm_ns().is_none_or(|at| at > end_ns) {
                break;
            }
            rig.turn();
        }
        rig.tasks.extend(kept);
        rig.now_ns = rig.now_ns.max(end_ns);
        rig.pump();
    };
    // The slow write needs no cell of member 1, which is lost.
    let (stripe, column) = (30..)
        .flat_map(|stripe| [(stripe, 0), (stripe, 1)])
        .find(|(stripe, column)| geometry.member(*stripe, 1 - column) == 1)
        .expect("there is one in three");
    let slow = (stripe * geometry.stripe_bytes() + column as u64 * geometry.chunk) / BLOCK;
    let rows = stripe * geometry.chunk..(stripe + 1) * geometry.chunk;
    rig.members[1].up = false;
    (0..9).for_each(|block| live(&mut rig, 8 * block, &(0..0)));
    assert!(!rig.parity.incomplete().is_empty(), "member 1 is lost");
    // It is not tried again meanwhile: all that is under way then would be stale on it.
    let losses = rig.parity.status().losses;
    live(&mut rig, slow, &rows);
    live(&mut rig, 0, &rows);
    rig.members[1].up = true;
    assert_eq!(rig.parity.status().losses, losses);
    (0..60).for_each(|block| live(&mut rig, 8 * (block % 9), &rows));
    let status = rig.parity.status();
    assert!(!rig.is_idle() && status.stale == Members::NONE, "it is rebuilt beside the slow write: {status}");
    (0..20).for_each(|block| live(&mut rig, 8 * (block % 9), &(0..0)));
    assert_eq!(rig.parity.incomplete(), Members::NONE);
    rest(&mut rig);
}

/// Fails a write of zeros to whole stripes, on each member: that member is lost, and no other.
#[test]
fn zeros_that_fail_lose_their_member() {
    for member in 0..4 {
        let mut rig = Rig::new(2, (4, 2), 4096, 8);
        rig.submit_at(Some(HostCommand::Write), 0, 128);
        rig.drain();
        rig.members[member].up = false;
        rig.submit_at(Some(HostCommand::Zero), 32, 48);
        rig.drain();
        let status = rig.parity.status();
        assert_eq!((status.losses, status.joined), (1, status.members.without(Members::one(member))));
        rig.read_all();
        rest(&mut rig);
        rig.read_all();
    }
}

/// Reads a bad block while the parities are not computed: it fails, and nothing is computed from them.
#[test]
fn parities_that_are_not_computed_recover_nothing() {
    for parities in [1, 2] {
        let mut rig = Rig::new(2, (2 + parities, parities), 4096, 4);
        rig.submit_at(Some(HostCommand::Write), 0, 64);
        rig.drain();
        rig.come_to_rest();
        for member in 0..2 + parities {
            if rig.config.geometry.member(0, 0) != member && rig.config.geometry.member(0, 1) != member {
                rig.members[member].disk.lock().write(0, &[0x77; 4096]);
            }
        }
        rig.parity.trust_data().expect("it can");
        rig.pump();
        drop(rig.parity.order_job(Verb::Pause, "resync", PaceChange::default(), rig.now_ns));
        let (member, row) = rig.parity.route(&(0..512)).expect("it has its data");
        rig.members[member].bad.push(row / BLOCK);
        rig.submit_at(Some(HostCommand::Read), 0, 1);
        rig.drain();
        assert_eq!((rig.failed, rig.parity.status().unsynced), (1, true));
        rig.submit_at(Some(HostCommand::Write), 0, 1);
        rig.drain();
        assert_eq!(rig.failed, 1);
        rest(&mut rig);
        rig.read_all();
    }
}

/// Marks more regions at a time than a record of the log has room for.
#[test]
fn more_changes_than_a_record_holds_are_a_checkpoint() {
    let mut rig = Rig::with_regions(3, (3, 1), 4096, 700, 4096);
    rig.members[0].up = false;
    for stripe in (0..700).step_by(2) {
        rig.submit_at(Some(HostCommand::Zero), stripe * 16, 16);
        if stripe % 20 == 0 {
            rig.drain();
        }
    }
    rig.drain();
    let stale = rig.parity.status().stale_bytes;
    assert!(stale > 300 * 4096, "{stale}");
    rig.crash(true);
    rig.open();
    assert_eq!(rig.comes_up(), Ok(()));
    assert!(rig.parity.status().stale_bytes >= stale);
    rig.read_all();
    rest(&mut rig);
}

/// Enlarges all members between two daemons.
#[test]
fn members_that_grow_have_parities_in_the_end() {
    for seed in seeds(&[], 12) {
        let mut rig = rig(seed);
        live(&mut rig, &[], 200);
        rest(&mut rig);
        rig.crash(true);
        let size = rig.config.size + rig.random.between(1, 4) * rig.config.geometry.chunk;
        rig.config.size = size;
        rig.members.iter().for_each(|member| member.disk.lock().resize(size));
        rig.model.grow(rig.config.geometry.drive_bytes(size) / BLOCK);
        rig.open();
        assert_eq!(rig.comes_up(), Ok(()));
        assert_eq!(rig.parity.size(), rig.blocks() * BLOCK);
        live(&mut rig, &[], 100);
        rest(&mut rig);
        rig.read_all();
        rig.members[1].up = false;
        rig.submit_at(Some(HostCommand::Write), rig.blocks() - 9, 9);
        rig.drain();
        rig.read_all();
        rest(&mut rig);
    }
}

/// Replaces a member by a longer disk. The parities of the last region are needed until the member has its content.
#[test]
fn an_array_does_not_grow_beside_a_member_that_lacks_something() {
    let mut refused = 0;
    for seed in seeds(&[], 12) {
        let mut rig = rig(seed);
        live(&mut rig, &[], 200);
        rest(&mut rig);
        rig.crash(true);
        let before = rig.config.size;
        if before.is_multiple_of(rig.config.region_bytes) {
            continue;
        }
        let size = before + rig.config.geometry.chunk;
        rig.config.size = size;
        rig.members.iter().for_each(|member| member.disk.lock().resize(size));
        rig.replace(1);
        rig.open();
        let words = rig.comes_up().expect_err("it would lose data");
        assert!(words.contains("does not grow while members"), "{words}");
        rig.crash(true);
        rig.config.size = before;
        rig.open();
        assert_eq!(rig.comes_up(), Ok(()));
        rest(&mut rig);
        rig.read_all();
        refused += 1;
    }
    assert!(refused > 0, "some arrays end inside of a region");
}

/// Takes members down and up at any time, one after the other, with restarts: the array may stop, and nothing is lost.
#[test]
fn members_that_fail_in_turn_lose_nothing() {
    for seed in seeds(&[], 150) {
        let mut rig = rig(seed);
        for _ in 0..6 {
            for _ in 0..4 {
                let number = rig.random.below(rig.members.len() as u64) as usize;
                rig.members[number].up = rig.random.one_in(2);
                live(&mut rig, &[], 60);
                // Time passes, so that members are tried again, rebuilt and flushed.
                for _ in 0..rig.random.below(60) {
                    rig.turn();
                }
                if rig.random.one_in(2) {
                    rig.members.iter_mut().for_each(|member| member.up = true);
                }
            }
            rig.members.iter_mut().for_each(|member| member.up = true);
            if rig.halted.is_some() {
                rig.reopen();
            } else if rig.random.one_in(2) {
                let cut = rig.random.one_in(2);
                rig.crash(cut);
                rig.open();
            }
            revive(&mut rig);
            rig.read_all();
            assert_eq!(rig.halted, None);
        }
        rest(&mut rig);
        rig.read_all();
    }
}
