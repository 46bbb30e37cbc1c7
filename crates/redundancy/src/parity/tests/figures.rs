//! Figures, words and times of an array in known states.

use super::rig::{BLOCK, Rig};
use super::tasks::Task;
use crate::Members;
use crate::parity::{ArrayCheck, HostCommand};
use sluice_jobs::{PaceChange, State, Verb};
use std::collections::BTreeMap;

const SECOND: u64 = 1_000_000_000;

/// Creates an array of four members with two parities, with 4 regions of two chunks, and data everywhere.
fn rig() -> Rig {
    let mut rig = Rig::new(5, (4, 2), 4096, 8);
    write(&mut rig, 0, 128);
    rig.come_to_rest();
    rig
}

fn write(rig: &mut Rig, first: u64, count: u64) {
    rig.submit_at(Some(HostCommand::Write), first, count);
    rig.drain();
}

fn figures(rig: &Rig) -> BTreeMap<String, u64> {
    let mut figures = BTreeMap::new();
    rig.parity.status().count(&mut |name, number| {
        if number > 0 {
            figures.insert(name.to_owned(), number);
        }
    });
    figures
}

fn state(rig: &Rig) -> (&'static str, [&'static str; 4]) {
    let status = rig.parity.status();
    (status.state(), [0, 1, 2, 3].map(|member| status.state_of(member)))
}

/// Returns the whole seconds since a time that is known up to some requests.
fn seconds_since(rig: &Rig, begin_ns: u64) -> u64 {
    (rig.now_ns - begin_ns + SECOND / 2) / SECOND
}

/// Lets time pass up to the next alarm, without the results of requests.
fn alarm(rig: &mut Rig) -> u64 {
    let before = rig.now_ns;
    rig.now_ns = rig.parity.alarm_ns().expect("there is one").max(before);
    rig.pump();
    rig.now_ns - before
}

#[test]
fn the_status_follows_a_member_that_is_lost_and_comes_back() {
    let mut rig = rig();
    let whole = r#"{"state":"in sync","members":["in sync","in sync","in sync","in sync"],"parity":2,"spares":0,"changing":false,"bytes":65536,"stale_bytes":0,"resync_bytes":0,"resync_bytes_s":0,"losses":0,"repairs":0,"mismatches":0,"log":"good","check":{"running":false,"bytes":0,"different":0,"unreadable":0,"first_different":null}}"#;
    assert_eq!(rig.parity.status().to_string(), whole);
    assert_eq!(figures(&rig), BTreeMap::new());
    assert_eq!((rig.parity.size(), rig.parity.jobs()), (65536, vec![]));
    rig.members[1].up = false;
    // The first stripe has D0 on member 1.
    write(&mut rig, 0, 1);
    assert_eq!(state(&rig), ("degraded", ["in sync", "lost", "in sync", "in sync"]));
    let wanted = [("degraded", 1), ("losses_total", 1), ("stale_bytes", 8192)];
    assert_eq!(figures(&rig), wanted.map(|(name, number)| (name.to_owned(), number)).into());
    assert_eq!(rig.parity.status().stale, Members::one(1));
    // Everything of a member that was taken out is stale.
    rig.parity.take_out(1).expect("it can");
    assert!(!rig.parity.is_noted());
    assert_eq!(state(&rig), ("out", ["in sync", "out", "in sync", "in sync"]));
    assert_eq!((rig.parity.status().stale_bytes, rig.parity.out()), (32768, Members::one(1)));
    rig.pump();
    while !rig.parity.is_noted() {
        assert!(rig.turn(), "the log is being written");
    }
    rig.members[1].up = true;
    rig.parity.bring_back(Members::one(1), false).expect("it can");
    assert_eq!(state(&rig), ("resyncing", ["in sync", "resyncing", "in sync", "in sync"]));
    rig.pump();
    let [job] = &rig.parity.jobs()[..] else { panic!("{:?}", rig.parity.jobs()) };
    assert_eq!((job.name.as_str(), job.state, job.done, job.total), ("resync", State::Running, 0, 32768));
    assert_eq!(job.detail, "rebuilds {1}");
    rig.come_to_rest();
    assert_eq!(state(&rig).0, "in sync");
    let wanted = [("losses_total", 1), ("resync_bytes_total", 32768)];
    assert_eq!(figures(&rig), wanted.map(|(name, number)| (name.to_owned(), number)).into());
    let [job] = &rig.parity.jobs()[..] else { panic!("{:?}", rig.parity.jobs()) };
    assert_eq!((job.state, job.done, job.total), (State::Done, 32768, 32768));
    // Only the regions that were written without a member are rebuilt, or all with `whole`.
    for (whole, bytes) in [(false, 8192), (true, 32768)] {
        rig.members[2].up = false;
        write(&mut rig, 0, 2);
        write(&mut rig, 8, 1);
        rig.members[2].up = true;
        let before = rig.parity.status().rebuilt_bytes;
        rig.parity.bring_back(Members::one(2), whole).expect("it can");
        rig.come_to_rest();
        assert_eq!(rig.parity.status().rebuilt_bytes - before, bytes, "{whole}");
    }
}

#[test]
fn orders_that_would_cost_data_are_refused() {
    let mut rig = Rig::new(6, (3, 1), 4096, 8);
    assert!(rig.parity.take_out(3).is_err_and(|words| words.contains("no member 3")));
    rig.parity.take_out(0).expect("it can");
    rig.pump();
    assert!(rig.parity.take_out(1).is_err_and(|words| words.contains("needed")));
    assert!(rig.parity.recompute().is_err_and(|words| words.contains("{0}")));
    rig.parity.bring_back(Members::first(3), false).expect("it can");
    rig.pump();
    rig.come_to_rest();
    rig.parity.trust_data().expect("it can");
    assert!(rig.parity.take_out(1).is_err_and(|words| words.contains("computed")));
    assert_eq!(rig.parity.status().state(), "resyncing");
    rig.pump();
    let job = rig.parity.jobs().remove(0);
    assert_eq!((job.detail.as_str(), job.total), ("computes parities", 32768));
    let order = |rig: &mut Rig, verb, name: &str| {
        let now_ns = rig.now_ns;
        rig.parity.order_job(verb, name, PaceChange::default(), now_ns).map(|job| job.state)
    };
    assert!(order(&mut rig, Verb::Cancel, "resync").is_err_and(|words| words.contains("not cancelled")));
    assert_eq!(order(&mut rig, Verb::Pause, "resync"), Ok(State::Paused));
    while rig.turn() {}
    assert!(rig.parity.status().unsynced, "nothing is computed in a pause");
    assert_eq!(order(&mut rig, Verb::Resume, "resync"), Ok(State::Running));
    rig.pump();
    rig.come_to_rest();
    assert!(order(&mut rig, Verb::Pause, "check").is_err());
    rig.parity.check();
    assert_eq!(order(&mut rig, Verb::Cancel, "check"), Ok(State::Cancelled));
    assert!(!rig.parity.status().check.running);
    assert_eq!(order(&mut rig, Verb::Resume, "check"), Ok(State::Running));
    assert!(rig.parity.status().check.running);
    rig.pump();
    rig.come_to_rest();
    assert_eq!(rig.parity.status().check.done, 32768);
    // A comparison waits for rebuilding.
    rig.members[2].up = false;
    write(&mut rig, 0, 32);
    rig.members[2].up = true;
    rig.parity.bring_back(Members::one(2), true).expect("it can");
    rig.parity.check();
    rig.pump();
    rig.come_to_rest();
    assert_eq!(rig.parity.status().check.done, 32768);
    // A comparison without all members, or with a stale one, would prove nothing.
    rig.members[0].up = false;
    write(&mut rig, 0, 32);
    rig.members[0].up = true;
    rig.parity.bring_back(Members::one(0), false).expect("it can");
    rig.pump();
    assert_eq!(order(&mut rig, Verb::Pause, "resync"), Ok(State::Paused));
    rig.parity.check();
    rig.pump();
    while rig.turn() {}
    assert!(!rig.parity.status().check.running && rig.parity.status().check.done == 0);
    assert_eq!(order(&mut rig, Verb::Resume, "resync"), Ok(State::Running));
    rig.pump();
    rig.come_to_rest();
    rig.parity.check();
    rig.members[0].up = false;
    rig.pump();
    rig.turn();
    write(&mut rig, 0, 32);
    let check = rig.parity.status().check;
    assert!(!check.running && check.done < 32768);
    assert_eq!(
        rig.parity.jobs().pop().map(|job| (job.name, job.state)),
        Some(("check".to_owned(), State::Failed))
    );
}

/// Writes across the row up to which a parity is rebuilt: the rows in front of it are rebuilt again.
#[test]
fn rebuilding_goes_back_for_a_write_across_its_row() {
    let mut rig = Rig::with_regions(6, (3, 1), 80 << 10, 1, 128 << 10);
    write(&mut rig, 0, 200);
    rig.come_to_rest();
    // It has P.
    rig.parity.take_out(2).expect("it can");
    rig.pump();
    rig.submit_at(Some(HostCommand::Read), 0, 1);
    rig.parity.bring_back(Members::one(2), false).expect("it can");
    rig.pump();
    while rig.parity.status().rebuilt_bytes < 64 << 10 {
        if rig.is_idle() {
            rig.submit_at(Some(HostCommand::Read), 0, 1);
        }
        assert!(rig.turn());
    }
    write(&mut rig, 120, 16);
    rig.come_to_rest();
    assert_eq!(rig.parity.status().rebuilt_bytes, (80 << 10) + (4 << 10));
}

/// Rebuilds a member: another one can be taken out when the log has that, and not before.
#[test]
fn a_rebuilt_member_counts_when_the_log_has_it() {
    let mut rig = Rig::new(6, (3, 1), 4096, 8);
    rig.parity.take_out(0).expect("it can");
    rig.pump();
    rig.parity.bring_back(Members::one(0), false).expect("it can");
    rig.pump();
    while !rig.parity.status().stale.is_empty() {
        assert!(rig.turn());
    }
    assert!(rig.tasks.iter().any(Task::stores), "the log is being written");
    assert!(rig.parity.take_out(1).is_err_and(|words| words.contains("needed")));
    rig.come_to_rest();
    assert_eq!(rig.parity.take_out(1), Ok(()));
}

/// Changes and breaks known cells. A comparison counts each of them, and a read mends those in its way.
#[test]
fn a_comparison_counts_the_rows_that_differ() {
    let mut rig = rig();
    let check = |rig: &mut Rig| {
        rig.parity.check();
        rig.pump();
        rig.come_to_rest_unchecked();
        rig.parity.status().check
    };
    let none = ArrayCheck { done: 32768, ..ArrayCheck::default() };
    assert_eq!(check(&mut rig), none);
    let images: Vec<Vec<u8>> = (0..4).map(|member| rig.image(member)).collect();
    // Stripe 2 twice, and stripe 5. A stripe has 8 KiB of data.
    for (member, row) in [(0, 2 * 4096), (3, 2 * 4096 + 2048), (1, 5 * 4096 + 4088)] {
        rig.members[member].disk.lock().write(row, &[0x77; 8]);
    }
    assert_eq!(check(&mut rig), ArrayCheck { different: 2, first: Some(2 * 8192), ..none });
    for (member, image) in rig.members.iter().zip(&images) {
        member.disk.lock().write(0, image);
    }
    rig.members[2].bad = vec![0, 7, 8, 63];
    assert_eq!(check(&mut rig), ArrayCheck { unreadable: 3, ..none });
    let [.., job] = &rig.parity.jobs()[..] else { panic!("there is one") };
    assert_eq!((job.state, job.detail.as_str()), (State::Done, "0 rows differ, 3 cannot be read"));
    rig.read_all();
    rig.come_to_rest();
    // Member 2 has a parity in stripe 1, and data in the others.
    assert_eq!(rig.members[2].bad, [8]);
    assert_eq!(figures(&rig)["repairs_total"], 2);
    assert_eq!((figures(&rig)["check_unreadable_pieces"], rig.failed), (3, 0));
    // A write renews a parity that cannot be read.
    write(&mut rig, 16, 1);
    rig.come_to_rest();
    assert_eq!((rig.members[2].bad.clone(), rig.parity.status().losses), (vec![], 0));
    rig.check();
}

#[test]
fn a_safe_read_finds_wrong_data() {
    for parities in [1, 2] {
        let mut rig = Rig::new(8, (2 + parities, parities), 4096, 4);
        write(&mut rig, 0, 64);
        rig.come_to_rest();
        rig.config.safe_read = true;
        rig.crash(false);
        rig.open();
        assert_eq!(rig.comes_up(), Ok(()));
        assert_eq!(rig.parity.route(&(0..512)), None, "each read is compared");
        rig.read_all();
        let before = (rig.failed, rig.image(1));
        rig.members[1].disk.lock().write(1024, &[0x77; 512]);
        let member = (0..2).find(|column| rig.config.geometry.member(0, *column) == 1).expect("it has data");
        rig.submit_at(Some(HostCommand::Read), 8 * member as u64, 8);
        rig.drain();
        assert_eq!(figures(&rig)["mismatches_total"], 1);
        if parities == 1 {
            assert_eq!(rig.failed - before.0, 1, "nothing shows which block is wrong");
            continue;
        }
        rig.read_all();
        rig.come_to_rest();
        assert_eq!((figures(&rig)["repairs_total"], figures(&rig)["mismatches_total"]), (1, 1));
        assert_eq!((rig.failed, rig.image(1)), before);
        // The second column.
        rig.members[2].disk.lock().write(1024, &[0x77; 512]);
        rig.submit_at(Some(HostCommand::Read), 8, 8);
        rig.drain();
        rig.come_to_rest();
        assert_eq!(figures(&rig)["repairs_total"], 2);
        // Without a member there is nothing to compare with, and a cell is recovered.
        rig.members[1].up = false;
        rig.read_all();
    }
}

/// Counts the requests to members of small writes and of whole stripes.
#[test]
fn a_change_needs_few_requests() {
    for (shape, reads, writes) in
        [((3, 1), 1, 2), ((6, 1), 2, 2), ((4, 2), 1, 3), ((7, 2), 3, 3), ((5, 2), 2, 3)]
    {
        let mut rig = Rig::new(1, shape, 4096, 8);
        for first in [0, 5, 8, 30] {
            (rig.reads, rig.writes) = (0, 0);
            write(&mut rig, first, 1);
            assert_eq!((rig.reads, rig.writes), (reads, writes), "{shape:?} {first}");
        }
        // A whole stripe needs no read. Zeros of several stripes are one request for each member.
        let (stripe, members) = (8 * (shape.0 - shape.1) as u64, shape.0 as u64);
        (rig.reads, rig.writes) = (0, 0);
        write(&mut rig, stripe, stripe);
        assert_eq!((rig.reads, rig.writes), (0, members));
        for kind in [HostCommand::Zero, HostCommand::Deallocate] {
            rig.submit_at(Some(kind), 0, 3 * stripe);
            rig.drain();
            assert_eq!((rig.reads, rig.writes), (0, 2 * members), "{kind:?}");
            rig.writes = members;
        }
        // A deallocation of a part changes nothing, and zeros there are a write.
        rig.submit_at(Some(HostCommand::Deallocate), 1, 4);
        rig.drain();
        assert_eq!((rig.reads, rig.writes), (0, members));
        rig.submit_at(Some(HostCommand::Zero), 1, 4);
        rig.drain();
        assert_eq!((rig.reads, rig.writes), (reads, members + writes));
        // A read that lies in one chunk is one request; one of two chunks is two.
        for (first, count, wanted) in [(0, 8, 1), (3, 5, 1), (7, 2, 2), (8, 16, 2)] {
            rig.reads = 0;
            rig.submit_at(Some(HostCommand::Read), first, count);
            rig.drain();
            assert_eq!(rig.reads, wanted, "{first} {count}");
        }
        rig.come_to_rest();
    }
}

#[test]
fn reads_of_one_chunk_have_a_route() {
    let mut rig = rig();
    let routes = [
        (0..512, Some((1, 0))),
        (0..4096, Some((1, 0))),
        (512..4096, Some((1, 512))),
        (4096..8192, Some((2, 0))),
        (8192..8704, Some((0, 4096))),
        (65024..65536, Some((3, 32256))),
        (0..0, None),
        (0..4608, None),
        (3584..4608, None),
    ];
    for (bytes, route) in routes {
        assert_eq!(rig.parity.route(&bytes), route, "{bytes:?}");
    }
    rig.parity.route_failed(1, crate::parity::Fault::Media);
    assert!(rig.parity.route(&(0..512)).is_some(), "one place says nothing about others");
    rig.parity.route_failed(1, crate::parity::Fault::Device);
    assert_eq!((rig.parity.route(&(0..512)), rig.parity.route(&(4096..4608))), (None, Some((2, 0))));
}

/// Tries a lost member again after 1, 2, 4 and up to 60 seconds, and after a second once a region was rebuilt.
#[test]
fn a_lost_member_is_tried_again_after_longer_and_longer_pauses() {
    let mut rig = rig();
    rig.members[1].up = false;
    write(&mut rig, 0, 1);
    let mut lost_ns = rig.now_ns;
    for pause in [1, 2, 4, 8, 16, 32, 60, 60] {
        let losses = rig.parity.status().losses;
        while !rig.parity.status().joined.contains(1) {
            assert!(rig.turn());
        }
        assert_eq!(seconds_since(&rig, lost_ns), pause);
        while rig.parity.status().losses == losses {
            assert!(rig.turn());
        }
        lost_ns = rig.now_ns;
    }
    rig.members[1].up = true;
    rig.come_to_rest();
    rig.members[1].up = false;
    write(&mut rig, 0, 1);
    let lost_ns = rig.now_ns;
    while !rig.parity.status().joined.contains(1) {
        assert!(rig.turn());
    }
    assert_eq!(seconds_since(&rig, lost_ns), 1);
}

/// Flushes and trims the journal two seconds after a change, and then nothing is left to do.
#[test]
fn changes_are_flushed_after_two_seconds() {
    let mut rig = rig();
    assert_eq!(rig.parity.alarm_ns(), None);
    write(&mut rig, 0, 1);
    rig.pump();
    let begin_ns = rig.now_ns;
    assert!(!rig.parity.is_quiet() && !rig.is_flushing());
    assert!(alarm(&mut rig) <= 2 * SECOND && rig.is_flushing());
    assert!(rig.now_ns - begin_ns > 2 * SECOND - 50_000_000);
    rig.come_to_rest();
    // The log is written at the next tick, and then the tail is the head.
    assert!(rig.now_ns - begin_ns < 7 * SECOND);
}

/// Rebuilds at the rate of the configuration while the host works, and as fast as possible otherwise.
#[test]
fn rebuilding_keeps_its_rate_while_the_host_works() {
    for works in [true, false] {
        let mut rig = Rig::new(3, (3, 1), 4096, 64);
        rig.config.rate = 64 << 10;
        rig.come_to_rest();
        rig.crash(false);
        rig.open();
        assert_eq!(rig.comes_up(), Ok(()));
        rig.members[0].up = false;
        write(&mut rig, 0, 200);
        rig.members[0].up = true;
        rig.parity.bring_back(Members::one(0), true).expect("it can");
        rig.pump();
        let begin_ns = rig.now_ns;
        while rig.parity.status().stale_bytes > 0 {
            if works && rig.is_idle() {
                rig.submit_at(Some(HostCommand::Read), 0, 1);
            }
            assert!(rig.turn());
        }
        // 256 KiB at 64 KiB per second.
        let seconds = seconds_since(&rig, begin_ns);
        assert!(if works { (4..6).contains(&seconds) } else { seconds < 3 }, "{works} {seconds}");
    }
}

/// Breaks the log for a while: writes fail after some attempts, reads and the state of members go on.
#[test]
fn a_log_that_cannot_be_written_fails_writes_and_is_tried_again() {
    let mut rig = rig();
    rig.log_up = false;
    write(&mut rig, 0, 1);
    assert_eq!((rig.failed, figures(&rig).get("log_broken")), (1, Some(&1)));
    assert!(rig.parity.status().to_string().contains(r#""log":"broken""#));
    rig.read_all();
    rig.log_up = true;
    write(&mut rig, 0, 1);
    assert_eq!((rig.failed, figures(&rig).get("log_broken")), (1, None));
    rig.come_to_rest();
    // The state: three attempts at once, and then one each half second.
    rig.log_up = false;
    rig.parity.take_out(0).expect("it can");
    rig.pump();
    while !rig.parity.status().log_is_broken {
        assert!(rig.turn());
    }
    assert!(!rig.parity.is_noted());
    for _ in 0..3 {
        while !rig.tasks.is_empty() {
            rig.turn();
        }
        assert_eq!(alarm(&mut rig), SECOND / 2);
        assert!(!rig.tasks.is_empty(), "the log is tried again");
    }
    rig.log_up = true;
    while !rig.parity.is_noted() {
        assert!(rig.turn());
    }
    assert!(!rig.parity.status().log_is_broken);
    rig.parity.bring_back(Members::one(0), false).expect("it can");
    rig.pump();
    rig.come_to_rest();
    assert_eq!(rig.blocks() * BLOCK, 65536);
}
