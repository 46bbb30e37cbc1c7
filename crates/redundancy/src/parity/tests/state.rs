//! Tests of an array's state: its bytes on the disk, their limits, and its changes against a simple model.

use crate::parity::Geometry;
use crate::parity::ring::{Place, RING_MAX};
use crate::parity::state::{ARRAY_MAX, CHANGES_MAX, Change, REGIONS_MAX, State, UNSYNCED};
use crate::{MEMBERS_MAX, Members, UNSEEN};
use sluice_sim::Random;

const REGION: u64 = 8192;
const FIVE: Geometry = Geometry { members: 5, parities: 2, chunk: 4096, q_is_last: false };

fn state(regions: u64, stale: u8) -> State {
    State::new(FIVE, regions * REGION, REGION, 512, Members(stale))
}

fn bytes_of(state: &State) -> Vec<u8> {
    let mut bytes = Vec::new();
    state.write(&mut bytes);
    bytes
}

#[test]
fn limits_are_those_of_the_format() {
    assert_eq!((CHANGES_MAX, REGIONS_MAX, RING_MAX, ARRAY_MAX, UNSYNCED.0), (253, 1 << 17, 16384, 7, 0x80));
    // The log has room for the largest state.
    assert_eq!(bytes_of(&state(9, 0)).len(), 184 + 9);
    assert!(REGIONS_MAX + 184 <= crate::log::state_max(crate::parity::NOTES_BYTES));
}

/// Reads states with one field changed: no array has fewer members or regions, or a tail that is not in its ring.
#[test]
fn a_state_of_no_array_is_refused() {
    let mut good = state(4, 0b1001_0010);
    good.tail.block = 511;
    let good = bytes_of(&good);
    let read = |at: usize, field: &[u8], regions: usize| {
        let mut bytes = good.clone();
        bytes[at..][..field.len()].copy_from_slice(field);
        bytes.resize(184 + regions, 0xff);
        State::read(&bytes)
    };
    let whole = State::read(&good).expect("it was written");
    assert_eq!(bytes_of(&whole), good);
    assert_eq!((whole.tail, whole.lacking()), (Place { sequence: 0, block: 511 }, Members(0b1001_0010)));
    let number = |number: u64| number.to_le_bytes();
    for (size, regions, is_right) in [
        (4 * REGION, 4, true),
        (4 * REGION, 3, false),
        (4 * REGION, 5, false),
        (4 * REGION + 1, 5, true),
        (3 * REGION + 1, 4, true),
        (0, 0, true),
        (REGIONS_MAX * REGION, REGIONS_MAX as usize, true),
        ((REGIONS_MAX + 1) * REGION, REGIONS_MAX as usize + 1, false),
    ] {
        assert_eq!(read(0, &number(size), regions).is_some(), is_right, "{size} {regions}");
    }
    for (chunk, is_right) in
        [(0, false), (4095, false), (4096, true), (1 << 20, true), (2 << 20, false), (6000, false)]
    {
        assert_eq!(read(8, &number(chunk), 4).is_some(), is_right, "{chunk}");
    }
    for (region, regions, is_right) in
        [(0, 4, false), (2048, 16, false), (4096, 8, true), (12288, 3, false), (16384, 2, true)]
    {
        assert_eq!(read(16, &number(region), regions).is_some(), is_right, "{region}");
    }
    for (ring, is_right) in [(511, false), (512, true), (RING_MAX, true), (RING_MAX + 1, false)] {
        assert_eq!(read(24, &number(ring), 4).is_some(), is_right, "{ring}");
    }
    assert!(read(40, &number(512), 4).is_none(), "a tail behind the ring");
    for (members, parities, is_right) in [
        (3, 1, true),
        (2, 1, false),
        (7, 2, true),
        (8, 2, false),
        (3, 2, false),
        (5, 0, false),
        (5, 3, false),
    ] {
        assert_eq!(read(176, &[members, parities], 4).is_some(), is_right, "{members} {parities}");
    }
    // Q on the last member, which is one beside an array with one parity.
    for (members, parities, q_is_last, is_right) in [
        (5, 2, 1, true),
        (4, 2, 1, true),
        (3, 2, 1, false),
        (5, 1, 1, false),
        (5, 2, 2, false),
        (0, 2, 1, false),
    ] {
        let state = read(176, &[members, parities, 0, q_is_last], 4);
        assert_eq!(state.is_some(), is_right, "{members} {parities} {q_is_last}");
        assert!(state.is_none_or(|state| state.geometry.q_is_last && bytes_of(&state)[179] == 1));
    }
    // Bits of members that the array does not have are ignored.
    let all = read(178, &[0xff], 5).map(|state| state.out);
    assert_eq!(all, None);
    let read = read(178, &[0xff], 4).expect("an array");
    assert_eq!((read.out, read.lacking()), (Members(0x1f), Members(0b1001_0010)));
    assert!((0..184).all(|length| State::read(&good[..length]).is_none()));
}

/// Writes random changes as records and reads them: a record that marks regions beyond the end is refused.
#[test]
fn changes_that_are_replayed_lead_to_the_same_state() {
    let record = |kind: u8, members: u8, first: u32, value: u64| {
        let mut bytes = vec![kind, members, 0, 0];
        bytes.extend(first.to_le_bytes());
        bytes.extend(value.to_le_bytes());
        bytes
    };
    let replayed = |bytes: &[u8]| {
        let mut read = state(4, 0);
        let is_good = read.replay(bytes);
        (is_good, read.regions.iter().map(|region| region.stale.0).collect::<Vec<_>>(), read.out.0, read.tail)
    };
    let tail = Place { sequence: 1 << 40, block: 511 };
    assert_eq!(Change::out(Members(6)), Change::out(Members(6)));
    assert_eq!(State::bytes_of(&[Change::out(Members(6))]), record(2, 6, 0, 0));
    assert_eq!(State::bytes_of(&[Change::tail(tail)]), record(3, 0, 511, 1 << 40));
    assert_eq!(replayed(&record(1, 0x92, 1, 2)), (true, vec![0, 0x92, 0x92, 0], 0, Place::default()));
    assert_eq!(replayed(&record(1, 0xff, 0, 4)).1, [0x9f; 4]);
    assert_eq!(replayed(&record(2, 0xff, 0, 0)).2, 0x1f);
    assert_eq!(replayed(&record(3, 0, 511, 1 << 40)), (true, vec![0; 4], 0, tail));
    let bad = [
        record(1, 1, 3, 2),
        record(1, 1, 4, 1),
        record(1, 1, 1, u64::MAX),
        record(3, 0, 512, 1),
        record(0, 0, 0, 0),
        record(4, 0, 0, 0),
    ];
    assert!(bad.iter().all(|bytes| !replayed(bytes).0));
    assert!(!replayed(&[record(2, 1, 0, 0), vec![0; 8]].concat()).0, "half a change");
}

/// Region of the model: stale members, those of the log, and whether it was written, is being flushed, or was copied.
type Simple = (u8, u8, bool, bool, bool);

fn flag(states: &State, model: &[Simple]) {
    for (region, simple) in states.regions.iter().zip(model) {
        assert_eq!(region.stale.0, simple.0);
    }
    let masks: Vec<u8> = model.iter().map(|simple| simple.1).collect();
    let all = |mask: fn(&Simple) -> u8| model.iter().fold(0, |all, simple| all | mask(simple));
    assert_eq!(bytes_of(states)[184..], masks, "the masks of the log");
    assert_eq!(states.stale().0, all(|it| it.0));
    assert_eq!(states.lacking().0, all(|it| it.0 | it.1));
    assert_eq!(states.is_settling(), model.iter().any(|it| it.0 != it.1));
}

/// Compares random writes, copies, flushes and growth with a model, and the log of their changes.
#[test]
fn regions_are_as_in_a_model() {
    let mut random = Random::new(7);
    for _ in 0..40 {
        let mut states = state(3, 0b10);
        let mut model: Vec<Simple> = vec![(0b10, 0b10, false, false, false); 3];
        let mut log = State::read(&bytes_of(&states)).expect("an array");
        for _ in 0..200 {
            let first = random.below(model.len() as u64) as usize;
            let some = first..first + 1 + random.below((model.len() - first) as u64) as usize;
            let members = [1, 2, 4, 8, 16, UNSYNCED.0][random.below(6) as usize];
            match random.below(8) {
                0 => {
                    states.make_stale(some.clone(), Members(members));
                    model[some].iter_mut().for_each(|it| (it.0, it.1) = (it.0 | members, it.1 | members));
                }
                1 | 2 => {
                    states.touch(some.clone());
                    model[some].iter_mut().for_each(|it| it.2 = true);
                }
                3 => {
                    states.is_copied(first, Members(members));
                    let it = &mut model[first];
                    (it.0, it.2, it.4) = (it.0 & !members, true, true);
                }
                4 => {
                    states.begin_flush();
                    model.iter_mut().for_each(|it| (it.2, it.3, it.4) = (false, it.2 || it.3, false));
                }
                5 => {
                    let good = random.one_in(2);
                    states.end_flush(good);
                    for it in model.iter_mut().filter(|_| good) {
                        (it.3, it.1) = (false, if it.4 { it.1 } else { it.0 });
                    }
                }
                6 => {
                    states.make_recent_stale(Members(members));
                    let recent = model.iter_mut().filter(|it| it.2 || it.3);
                    recent.for_each(|it| (it.0, it.1) = (it.0 | members, it.1 | members));
                }
                _ if model.len() < 12 => {
                    // The last region may have been a part of one.
                    let is_part = !states.size.is_multiple_of(REGION);
                    let size = states.size + random.below(3) * (REGION / 2);
                    if let Some(last) = model.last_mut().filter(|_| is_part && size > states.size) {
                        (last.0, last.1) = (last.0 | UNSYNCED.0, last.1 | UNSYNCED.0);
                    }
                    states.grow(size);
                    model.resize(
                        size.div_ceil(REGION) as usize,
                        (UNSYNCED.0, UNSYNCED.0, false, false, false),
                    );
                    log.grow(size);
                }
                _ => {}
            }
            flag(&states, &model);
            // The log has the masks when it has all changes.
            let changes = std::mem::take(&mut states.pending);
            assert!(log.replay(State::bytes_of(&changes)));
            log.pending.clear();
            assert!(log.regions.iter().zip(&model).all(|(region, it)| region.stale.0 == it.1));
            assert!(changes.len() <= model.len());
        }
    }
}

/// Compares the regions of rows, and the rows of regions, with each byte.
#[test]
fn rows_are_in_their_regions() {
    let states = State::new(FIVE, 3 * REGION + 4096, REGION, 512, Members::NONE);
    let (size, step) = (states.size, 2048);
    for start in (0..size).step_by(step) {
        for end in (start + step as u64..size + 3 * REGION).step_by(step) {
            let regions = states.regions_of(&(start..end));
            let last = (end.min(size) - 1) / REGION;
            assert_eq!(regions, (start / REGION) as usize..last as usize + 1, "{start}..{end}");
        }
    }
    assert!(states.regions_of(&(size + REGION..size + 2 * REGION)).is_empty());
    let rows: Vec<_> = (0..4).map(|region| states.rows_of(region)).collect();
    assert_eq!(rows, [0..REGION, REGION..2 * REGION, 2 * REGION..3 * REGION, 3 * REGION..size]);
}

/// Joins changes of adjacent regions with one mask, and no others.
#[test]
fn adjacent_changes_are_one() {
    let mut states = state(8, 0);
    for (region, members) in [(0, 1), (1, 1), (2, 2), (3, 2), (5, 2), (4, 2), (7, 4)] {
        states.make_stale(region..region + 1, Members(members));
    }
    assert_eq!((states.marks, states.pending.len()), (7, 5));
    states.make_stale(0..8, Members(1));
    // Regions 0 and 1 have that mask already.
    assert_eq!(states.marks, 7 + 6);
    let mut log = state(8, 0);
    assert!(log.replay(State::bytes_of(&states.pending)));
    let masks: Vec<u8> = log.regions.iter().map(|region| region.stale.0).collect();
    assert_eq!(masks, [1, 1, 3, 3, 3, 3, 1, 5]);
    states.pending.push(Change::out(Members(1)));
    states.make_stale(0..1, Members(2));
    assert_eq!(states.pending.len(), 5 + 3 + 2, "a change of members is joined with nothing");
}

/// Compares the storage of members: a number that is unknown now or before is no other one.
#[test]
fn only_storage_with_two_numbers_can_be_other_storage() {
    let (mut states, numbers) = (state(1, 0), [0, 1, 2, UNSEEN]);
    for was in numbers {
        for is in numbers {
            for member in 0..MEMBERS_MAX {
                let (mut before, mut now) = ([5; MEMBERS_MAX], [5; MEMBERS_MAX]);
                (before[member], now[member]) = (was, is);
                states.storage = before;
                let is_other = was != is && was != 0 && is != 0 && member < 5;
                let wanted = if is_other { Members::one(member) } else { Members::NONE };
                assert_eq!(states.replaced(&now), wanted);
                states.note_storage(&now);
                // A spare is no member yet.
                let noted = if is == 0 || is == UNSEEN || member >= 5 { was } else { is };
                assert_eq!(states.storage[member], noted);
            }
        }
    }
}
