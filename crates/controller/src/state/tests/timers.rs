//! Timers, limits of rates, and the order of queues, against plain models.

use super::{bytes_of, read};
use crate::state::arbitration::Priorities;
use crate::state::features::Features;
use crate::state::interrupts::Interrupts;
use crate::state::persist::{PERSIST_BURST, PERSIST_INTERVAL_NS, PersistentRecord, Persister};
use crate::state::persistent_event::{PAUSE_NS, PersistentEvents};
use crate::state::polls::Polls;
use sluice_nvme::feature::{HostBehavior, TimestampData};
use sluice_nvme::persistent_event::event;

const MS: u64 = 1_000_000;

/// Conformance: Base 5.27.1.12, the Keep Alive Timer has a granularity and expires once.
#[test]
fn the_keep_alive_timer_is_rounded_up_and_expires_once() {
    let mut features = Features::new();
    assert_eq!((features.deadline_ns(), features.keep_alive_expired(u64::MAX)), (None, false));
    for (wanted, rounded) in
        [(0, 0), (1, 100), (100, 100), (101, 200), (u32::MAX - 95, u32::MAX - 95), (u32::MAX, u32::MAX - 95)]
    {
        features.set_keep_alive(wanted, 7);
        assert_eq!(features.keep_alive_ms(), rounded, "{wanted}");
        let deadline = 7 + u64::from(rounded) * MS;
        assert_eq!(features.deadline_ns(), (rounded > 0).then_some(deadline));
    }
    features.set_keep_alive(1000, 5);
    features.note_activity(50);
    let deadline = 50 + 1000 * MS;
    assert_eq!(features.deadline_ns(), Some(deadline));
    assert!(!features.keep_alive_expired(deadline - 1));
    let mut late = features.clone();
    assert!(features.keep_alive_expired(deadline));
    assert_eq!((features.deadline_ns(), features.keep_alive_expired(u64::MAX)), (None, false));
    // A look that is a millisecond late extends the timer by its half, once.
    assert!(features.clone().without_keep_alive().deadline_ns().is_none());
    let mut timely = late.clone();
    assert!(timely.keep_alive_expired(deadline + MS - 1));
    let look = deadline + MS;
    assert!(!late.keep_alive_expired(look));
    let extended = look + 500 * MS;
    assert_eq!(late.deadline_ns(), Some(extended));
    let mut active = late.clone();
    assert!(late.keep_alive_expired(extended + MS));
    active.note_activity(extended);
    let look = extended + 1000 * MS + 5 * MS;
    assert!(!active.keep_alive_expired(look), "it may be extended again after an activity");
    assert_eq!(active.deadline_ns(), Some(look + 500 * MS));
    assert_eq!(
        (active.without_keep_alive().deadline_ns(), active.without_keep_alive().keep_alive_ms()),
        (None, 0)
    );
}

/// Conformance: Base 5.27.1.11, the timestamp advances, wraps after 48 bits, and has an origin.
#[test]
fn clocks_of_a_host_advance() {
    let mut features = Features::new();
    features.enabled(3 * MS);
    assert_eq!(features.timestamp(10 * MS - 1), TimestampData::new(6, false));
    assert_eq!((features.since_reset_ms(10 * MS), features.since_reset_ms(2 * MS)), (7, 0));
    features.set_timestamp(TimestampData::new((1 << 48) - 2, true), 5 * MS);
    assert_eq!(features.timestamp(5 * MS), TimestampData::new((1 << 48) - 2, true));
    assert_eq!(features.timestamp(8 * MS), TimestampData::new(1, true));
    assert_eq!(features.timestamp(MS), TimestampData::new((1 << 48) - 2, true), "the clock went back");
    features.enabled(9 * MS);
    assert_eq!(
        (features.timestamp(9 * MS), features.since_reset_ms(9 * MS)),
        (TimestampData::new(0, false), 0)
    );
}

#[test]
fn features_keep_their_values_in_records() {
    let mut features = Features::new();
    features.enabled(3 * MS);
    (features.arbitration, features.power_management) = (0x0102_0304, 0x05);
    (features.interrupt_coalescing, features.write_atomicity) = (0x0607, 1);
    (features.temperature.over, features.temperature.under) = (400, 300);
    (features.retry_limits[0], features.retry_limits[127]) = (8, 9);
    features.host_behavior = HostBehavior::new(1, 0, 1 << 2);
    features.set_timestamp(TimestampData::new(77, true), 4 * MS);
    features.set_keep_alive(1000, 5 * MS);
    for vector in [0, 63, 64, 128] {
        features.disable_coalescing(vector, true);
    }
    features.disable_coalescing(64, false);
    features.disable_coalescing(5, false);
    for state in 0..4 {
        features.enable_write_cache(state % 2 == 0);
        match state {
            2 => assert!(!features.keep_alive_expired(2000 * MS)),
            3 => assert!(features.keep_alive_expired(4000 * MS)),
            _ => {}
        }
        let bytes = bytes_of(|part| features.put(part));
        let found = read(&bytes, Features::take);
        assert_eq!(bytes_of(|part| found.put(part)), bytes);
        assert_eq!(found.write_cache_enabled(), state % 2 == 0);
        assert!(found.copies_across());
        assert_eq!((found.deadline_ns(), found.keep_alive_ms()), (features.deadline_ns(), 1000));
        assert_eq!(found.timestamp(9 * MS), TimestampData::new(82, true));
        assert_eq!(found.since_reset_ms(9 * MS), 6);
        let disabled: Vec<u16> = (0..=128).filter(|it| found.coalescing_disabled(*it)).collect();
        assert_eq!(disabled, [0, 63, 128]);
    }
    features.reset();
    assert_eq!(bytes_of(|part| features.put(part)), bytes_of(|part| Features::new().put(part)));
    assert!(features.write_cache_enabled() && !features.copies_across());
    for (over, under, passed) in [
        (343, 0, false),
        (314, 312, false),
        (313, 0, true),
        (400, 313, true),
        (312, 0, true),
        (400, 314, true),
    ] {
        (features.temperature.over, features.temperature.under) = (over, under);
        assert_eq!(features.temperature.are_passed(), passed, "{over} and {under}");
    }
}

fn signalled(interrupts: &mut Interrupts) -> Vec<u16> {
    let mut found = Vec::new();
    interrupts.take(|vector| found.push(vector));
    found
}

/// Conformance: Base 5.27.1.6, interrupts are held back until a number of completions or a time.
#[test]
fn interrupts_wait_for_a_number_or_a_time() {
    const UNIT: u64 = 100_000;
    let mut interrupts = Interrupts::default();
    [128, 64, 63, 0, 64].into_iter().for_each(|vector| interrupts.insert(vector));
    assert_eq!((signalled(&mut interrupts), signalled(&mut interrupts)), (vec![0, 63, 64, 128], vec![]));
    assert_eq!((interrupts.are_coalesced(), interrupts.deadline_ns()), (false, None));
    let mut features = Features::new();
    for off in [0, 0x0002, 0x0500] {
        features.interrupt_coalescing = off;
        interrupts.configure(&features, 0);
        assert!(!interrupts.are_coalesced(), "{off:#x}");
    }
    // Three completions, or 500 us.
    features.interrupt_coalescing = 0x0502;
    features.disable_coalescing(9, true);
    interrupts.configure(&features, 1000);
    assert!(interrupts.are_coalesced());
    [0, 9, 7, 128, 7].into_iter().for_each(|vector| interrupts.insert(vector));
    assert_eq!((signalled(&mut interrupts), interrupts.deadline_ns()), (vec![0, 9], Some(1000 + 5 * UNIT)));
    interrupts.begin_turn(2000);
    interrupts.insert(64);
    interrupts.insert(7);
    assert_eq!(signalled(&mut interrupts), [7], "the third one");
    interrupts.expire(999 + 5 * UNIT);
    assert_eq!(signalled(&mut interrupts), []);
    interrupts.expire(1000 + 5 * UNIT);
    assert_eq!((signalled(&mut interrupts), interrupts.deadline_ns()), (vec![128], Some(2000 + 5 * UNIT)));
    interrupts.begin_turn(3000);
    interrupts.insert(7);
    assert_eq!(interrupts.deadline_ns(), Some(2000 + 5 * UNIT));
    interrupts.expire(2000 + 5 * UNIT);
    assert_eq!((signalled(&mut interrupts), interrupts.deadline_ns()), (vec![64], Some(3000 + 5 * UNIT)));
    interrupts.release();
    assert_eq!((signalled(&mut interrupts), interrupts.deadline_ns()), (vec![7], None));
    interrupts.insert(64);
    interrupts.configure(&features, 4000);
    assert_eq!(signalled(&mut interrupts), [64], "a change of the feature loses none");
    interrupts.insert(64);
    interrupts.reset();
    assert_eq!((interrupts.are_coalesced(), signalled(&mut interrupts)), (false, vec![]));
}

/// Classes of the queues that would be served by one turn, with the commands of each, if all have many.
fn turn(priorities: &mut Priorities, features: &Features, waiting: &mut [u32; 4]) -> Vec<(usize, u32)> {
    use crate::state::arbitration::TurnStage;
    priorities.begin(features);
    priorities.stage = TurnStage::Classes;
    let mut served: Vec<(usize, u32)> = Vec::new();
    loop {
        let class = priorities.class;
        let count = priorities.burst.min(priorities.left).min(priorities.room).min(waiting[class]);
        waiting[class] -= count;
        priorities.note(count);
        match served.last_mut() {
            Some((last, sum)) if *last == class => *sum += count,
            _ => served.push((class, count)),
        }
        if priorities.room == 0 {
            return served;
        }
        if (count == 0 || priorities.left == 0) && !priorities.next_class() {
            return served;
        }
    }
}

/// Conformance: Base 3.4.4.2, urgent commands come first, and the other classes have their weights.
#[test]
fn each_class_has_its_weight_in_a_round() {
    let mut features = Features::new();
    for (bits, burst) in [(0, 1), (1, 2), (5, 32), (6, 64), (7, 64)] {
        features.arbitration = bits;
        let mut priorities = Priorities::default();
        priorities.begin(&features);
        assert_eq!((priorities.burst, priorities.room, priorities.left), (burst, 256, u32::MAX));
    }
    // High 100, medium 30, low 10.
    features.arbitration = 99 << 24 | 29 << 16 | 9 << 8 | 3;
    let (mut priorities, mut waiting) = (Priorities::default(), [5, 1000, 1000, 1000]);
    let first = turn(&mut priorities, &features, &mut waiting);
    assert_eq!(first, [(0, 5), (1, 100), (2, 30), (3, 10), (0, 0), (1, 100), (2, 11)]);
    // The round goes on behind the commands that are urgent by now.
    waiting[0] = 7;
    let second = turn(&mut priorities, &features, &mut waiting);
    assert_eq!(second, [(0, 7), (2, 19), (3, 10), (0, 0), (1, 100), (2, 30), (3, 10), (0, 0), (1, 80)]);
    waiting[0] = 256;
    assert_eq!(turn(&mut priorities, &features, &mut waiting), [(0, 256)]);
    waiting = [0, 1000, 0, 1];
    let rest = turn(&mut priorities, &features, &mut waiting);
    assert_eq!(
        rest,
        [
            (0, 0),
            (1, 20),
            (2, 0),
            (3, 1),
            (0, 0),
            (1, 100),
            (2, 0),
            (3, 0),
            (0, 0),
            (1, 100),
            (2, 0),
            (3, 0),
            (0, 0),
            (1, 35)
        ]
    );
    // The rest of a round that was cut short is no reason to end the turn before the next round.
    let (mut cut, mut waiting) = (Priorities::default(), [0, 1000, 1000, 0]);
    cut.rotations = [4, 3, 2, 1];
    turn(&mut cut, &features, &mut waiting);
    assert_eq!((cut.class, cut.rotations), (2, [4, 3, 2, 1]));
    waiting = [0, 50, 0, 0];
    let rest = turn(&mut cut, &features, &mut waiting);
    assert_eq!((rest.iter().map(|(_, count)| count).sum::<u32>(), waiting[1]), (50, 0));
    waiting = [0; 4];
    let none = turn(&mut priorities, &features, &mut waiting);
    assert_eq!(none.iter().map(|(_, count)| count).sum::<u32>(), 0, "it ends");
}

/// Compares the rate limit of records with a bucket that has one more every 250 ms.
#[test]
fn records_have_a_burst_and_then_a_pace() {
    let mut persister = Persister::default();
    let start = 1000 * PERSIST_INTERVAL_NS;
    assert!((0..PERSIST_BURST).all(|_| persister.admit(start)));
    assert_eq!((persister.admit(start), persister.deadline_ns()), (false, None));
    persister.delayed.push_back(PersistentRecord::Removal);
    assert_eq!(persister.deadline_ns(), Some(start + PERSIST_INTERVAL_NS));
    assert!(
        !persister.admit(start + PERSIST_INTERVAL_NS - 1) && persister.admit(start + PERSIST_INTERVAL_NS)
    );
    assert_eq!(persister.deadline_ns(), Some(start + 2 * PERSIST_INTERVAL_NS));
    let later = start + 11 * PERSIST_INTERVAL_NS;
    assert!((0..10).all(|_| persister.admit(later)) && !persister.admit(later));
    let much_later = 5000 * PERSIST_INTERVAL_NS;
    assert!((0..PERSIST_BURST).all(|_| persister.admit(much_later)) && !persister.admit(much_later));
    assert!(format!("{persister:?}").contains("sink: false, delayed: [Removal]"));
}

#[test]
fn persistent_events_are_stored_together_and_after_a_pause() {
    let mut log = PersistentEvents::default();
    log.add(event::POWER_ON_OR_RESET, 1, &[1; 44], 7 * MS);
    assert_eq!((log.deadline_ns(), log.count()), (None, 1), "without a clock nothing is stored");
    assert_eq!(log.timestamp(7 * MS), 7);
    log.clock = Some(Box::new(|| 0x1234));
    assert_eq!(log.timestamp(7 * MS), TimestampData::new(0x1234, true).0);
    log.add(event::POWER_ON_OR_RESET, 1, &[2; 44], 8 * MS);
    log.add(event::POWER_ON_OR_RESET, 1, &[3; 44], 20 * MS);
    assert_eq!(log.deadline_ns(), Some(108 * MS));
    log.awaits = true;
    assert_eq!(log.deadline_ns(), None);
    (log.awaits, log.due_ns, log.rests_until_ns) = (false, None, 150 * MS + PAUSE_NS);
    log.add(event::POWER_ON_OR_RESET, 1, &[4; 44], 200 * MS);
    assert_eq!(log.deadline_ns(), Some(1150 * MS));
    let record = log.record();
    let kinds: Vec<_> = record.events().map(|(kind, data)| (kind, data[0])).collect();
    assert_eq!(kinds, [1, 2, 3, 4].map(|byte| (event::POWER_ON_OR_RESET, byte)));
    let mut other = PersistentEvents::default();
    other.add(event::TIMESTAMP_CHANGE, 1, &[9; 16], 0);
    other.replace(&record);
    assert_eq!((other.count(), other.bytes, other.record()), (4, log.bytes, record.clone()));
    assert_eq!(log.bytes, record.as_bytes().len());
    assert_eq!(format!("{record:?}"), "PersistentEventRecord(4 events)");
    assert_eq!(format!("{log:?}"), format!("PersistentEvents {{ events: 4, bytes: {} }}", log.bytes));
    // A log that is exactly full, and one byte more.
    let room = |log: &PersistentEvents| (64 << 10) - 512 - log.bytes;
    let mut full = PersistentEvents::default();
    while room(&full) > 4096 {
        full.add(event::SMART_SNAPSHOT, 1, &[5; 1000], 0);
    }
    full.add(event::FORMAT_START, 1, &vec![6; room(&full) - 24], 0);
    let count = full.count();
    assert_eq!(room(&full), 0);
    full.add(event::FORMAT_START, 1, &[], 0);
    assert_eq!((full.count(), room(&full)), (count, 1000), "the oldest of the largest type goes");
}

#[test]
fn layers_are_polled_by_the_turns_of_one_controller() {
    for (is_polled, controllers, expected) in [
        (false, 0, "Never"),
        (false, 5, "Never"),
        (true, 0, "EachTurn"),
        (true, 1, "EachTurn"),
        (true, 2, "EachRound(Round { now_ns: 0, controllers: 0 })"),
    ] {
        assert_eq!(format!("{:?}", Polls::new(is_polled, controllers)), expected);
    }
}
