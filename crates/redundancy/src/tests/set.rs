//! Tests of a set's state: its bytes on the disk, their limits, and its regions against a simple model.

use super::rig::Rig;
use super::start;
use crate::log::state_max;
use crate::regions::Regions;
use crate::set::{CHANGES_MAX, Change, REGION_MIN, REGIONS_MAX, Set};
use crate::{
    Begun, Config, Ended, LOG_MIN, MEMBERS_MAX, Members, Mirror, Status, Step, UNSEEN, region_bytes,
};
use sluice_sim::Random;

const REGION: u64 = 8192;

fn bytes_of(set: &Set) -> Vec<u8> {
    let mut bytes = Vec::new();
    set.write(&mut bytes);
    bytes
}

fn masks(set: &Set) -> Vec<u8> {
    Set::masks(&bytes_of(set)).to_vec()
}

/// Compares the bytes of a state with the table in docs/internals/formats.md, and reads them again.
#[test]
fn a_state_has_each_field_in_its_place() {
    let mut set = Set::new(3, 3 * REGION - 1, REGION, 1);
    set.generations = [3, 1 << 62, 0, 0, 0, 0, 0, 0x0102];
    set.out = Members(0b100);
    set.storage =
        std::array::from_fn(|member| u128::from_le_bytes([0xa0 + member as u8; 16]) ^ member as u128);
    let mut wanted = (3 * REGION - 1).to_le_bytes().to_vec();
    wanted.extend(REGION.to_le_bytes());
    wanted.extend(set.generations.iter().flat_map(|it| it.to_le_bytes()));
    wanted.extend([0b111, 0b100, 1, 0, 0, 0, 0, 0]);
    for member in 0..8u8 {
        wanted.push((0xa0 + member) ^ member);
        wanted.extend([0xa0 + member; 15]);
    }
    wanted.extend([0b101; 3]);
    assert_eq!(bytes_of(&set), wanted);
    assert_eq!(Set::state_bytes(3), wanted.len() as u64);
    let read = Set::read(&wanted).expect("it was written");
    assert_eq!(bytes_of(&read), wanted);
    assert_eq!((read.generations, read.storage, read.out), (set.generations, set.storage, set.out));
    assert_eq!(read.regions.behind(), Members(0b111));
    // A state of version 1 has no numbers of storage.
    let mut old = wanted[..88].to_vec();
    old[82] = 0;
    old.extend([0xff; 3]);
    let read = Set::read(&old).expect("an older state");
    assert_eq!((read.storage, masks(&read)), ([0; MEMBERS_MAX], vec![0b111; 3]));
    assert_eq!((CHANGES_MAX, REGIONS_MAX, REGION_MIN, LOG_MIN), (253, 1 << 20, 4096, 512 << 10));
    // A half has a header, the state and at least 16 records.
    for (log_bytes, state_blocks) in
        [(LOG_MIN, 64 - 17), (1 << 20, 128 - 17), (32 << 20, 4096 - 17), (1 << 40, 4096 - 17), (4096, 0)]
    {
        assert_eq!(state_max(log_bytes), state_blocks * 4096);
    }
}

#[test]
fn a_state_of_no_set_is_refused() {
    let good = bytes_of(&Set::new(3, 4 * REGION, REGION, 0));
    let read = |at: usize, field: &[u8], regions: usize| {
        let mut bytes = good.clone();
        bytes[at..][..field.len()].copy_from_slice(field);
        bytes.resize(216 + regions, 0xff);
        Set::read(&bytes)
    };
    let number = |number: u64| number.to_le_bytes();
    for (size, regions, is_right) in [
        (4 * REGION, 4, true),
        (4 * REGION, 3, false),
        (4 * REGION, 5, false),
        (4 * REGION + 1, 5, true),
        (3 * REGION + 1, 4, true),
        (REGIONS_MAX * REGION, REGIONS_MAX as usize, true),
        ((REGIONS_MAX + 1) * REGION, REGIONS_MAX as usize + 1, false),
    ] {
        assert_eq!(read(0, &number(size), regions).is_some(), is_right, "{size} {regions}");
    }
    for (region, regions, is_right) in
        [(0, 4, false), (2048, 16, false), (4096, 8, true), (12288, 3, false), (16384, 2, true)]
    {
        assert_eq!(read(8, &number(region), regions).is_some(), is_right, "{region}");
    }
    for member in 0..MEMBERS_MAX {
        assert!(read(16 + 8 * member, &number(1 << 62), 4).is_some());
        assert!(read(16 + 8 * member, &number((1 << 62) + 1), 4).is_none());
    }
    for members in 0..=255u8 {
        let is_right = members > 0 && (members as u16 + 1).is_power_of_two();
        assert_eq!(read(80, &[members], 4).is_some(), is_right, "{members:b}");
    }
    for out in 0..=255u8 {
        assert_eq!(read(81, &[out], 4).is_some(), out < 8, "{out:b}");
    }
    assert!((0..216).all(|length| Set::read(&good[..length]).is_none()));
}

#[test]
fn changes_are_joined_replayed_and_refused() {
    let record = |kind: u8, members: u8, flags: u8, first: u32, value: u64| {
        let mut bytes = vec![kind, members, flags, 0];
        bytes.extend(first.to_le_bytes());
        bytes.extend(value.to_le_bytes());
        bytes
    };
    assert_eq!(Set::bytes_of(&[Change::mark(3..5, Members(6))]), record(1, 6, 0, 3, 2));
    assert_eq!(Set::bytes_of(&[Change::member(2, 9, true)]), record(2, 2, 1, 0, 9));
    let mark = |regions, members| Change::mark(regions, Members(members));
    for (first, later, joined) in [
        (mark(0..2, 1), mark(2..5, 1), Some(mark(0..5, 1))),
        (mark(1..2, 1), mark(2..3, 1), Some(mark(1..3, 1))),
        (mark(0..2, 1), mark(2..5, 3), None),
        (mark(0..2, 1), mark(3..5, 1), None),
        (mark(0..2, 1), mark(1..5, 1), None),
        (mark(2..5, 1), mark(0..2, 1), None),
        (Change::member(1, 0, false), mark(0..2, 1), None),
        (mark(0..0, 1), Change::member(1, 7, false), None),
        (Change::member(1, 0, false), Change::member(1, 7, false), None),
    ] {
        let mut both = first;
        assert_eq!(both.join(&later), joined.is_some(), "{first:?} {later:?}");
        assert_eq!(both, joined.unwrap_or(first));
    }
    let replayed = |bytes: &[u8]| {
        let mut set = Set::new(3, 4 * REGION, REGION, 0);
        let is_good = set.replay(bytes);
        (is_good, masks(&set), set.out.0, set.generations)
    };
    let (dirty, first) = (vec![0b110; 4], [1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(replayed(&record(1, 0xf1, 0, 1, 2)), (true, vec![0b110, 1, 1, 0b110], 0, first));
    assert_eq!(
        replayed(&record(2, 2, 1, 0, 1 << 62)),
        (true, dirty.clone(), 4, [1, 0, 1 << 62, 0, 0, 0, 0, 0])
    );
    let twice = [record(2, 1, 1, 0, 5), record(2, 2, 1, 0, 6), record(2, 1, 0, 0, 7)].concat();
    assert_eq!(replayed(&twice), (true, dirty, 4, [1, 7, 6, 0, 0, 0, 0, 0]));
    let bad = [
        record(1, 1, 0, 3, 2),
        record(1, 1, 0, 0, u64::MAX),
        record(2, 3, 0, 0, 1),
        record(2, 255, 0, 0, 1),
        record(2, 1, 0, 0, (1 << 62) + 1),
        record(3, 1, 0, 0, 1),
        record(0, 1, 0, 0, 1),
    ];
    assert!(bad.iter().all(|bytes| !replayed(bytes).0));
    assert!(!replayed(&record(2, 1, 0, 0, 1)[..15]).0, "a part of a change");
}

/// Compares the default sizes of regions: at most 65536 of them, or 1 MiB each.
#[test]
fn a_drive_has_at_most_65536_regions_by_default() {
    let (mib, tib) = (1 << 20, 1u64 << 40);
    for (size, bytes) in [
        (0, mib),
        (mib, mib),
        (tib / 16, mib),
        (tib / 16 + 65536, 2 * mib),
        (tib, 16 * mib),
        (3 * tib, 64 * mib),
    ] {
        assert_eq!(region_bytes(size), bytes, "{size}");
    }
}

#[test]
fn only_storage_with_two_numbers_can_be_other_storage() {
    let (mut set, numbers) = (Set::new(3, REGION, REGION, 0), [0, 1, 2, UNSEEN]);
    for was in numbers {
        for is in numbers {
            for member in 0..MEMBERS_MAX {
                let (mut before, mut now) = ([5; MEMBERS_MAX], [5; MEMBERS_MAX]);
                (before[member], now[member]) = (was, is);
                set.storage = before;
                let is_other = was != is && was != 0 && is != 0 && member < 3;
                assert_eq!(set.replaced(&now), if is_other { Members::one(member) } else { Members::NONE });
                set.note_storage(&now);
                assert_eq!(set.storage[member], if is == 0 || is == UNSEEN { was } else { is });
            }
        }
    }
}

#[test]
fn members_are_bits() {
    for member in 0..20 {
        let bit = if member < MEMBERS_MAX { 1 << member } else { 0 };
        assert_eq!(
            (Members::one(member).0, Members::first(member).0),
            (bit, (bit as u16).wrapping_sub(1) as u8)
        );
    }
    for mask in 0..=255u8 {
        let all: Vec<usize> = (0..8).filter(|member| mask >> member & 1 == 1).collect();
        let members = Members(mask);
        assert_eq!(
            (members.iter().collect::<Vec<_>>(), members.lowest()),
            (all.clone(), all.first().copied())
        );
        assert_eq!(members.is_empty(), all.is_empty());
        assert!((0..10).all(|member| members.contains(member) == all.contains(&member)));
        assert_eq!(members.without(Members(0b1010)).0, mask & 0b0101 | mask & 0xf0);
        assert_eq!(members.covers(Members(0b1010)), mask & 0b1010 == 0b1010);
    }
}

/// Region of the model: its masks, its age, its writers, and whether it is doubtful.
#[derive(Clone, Default)]
struct Simple {
    wanted: u8,
    stale: u8,
    age: u8,
    writers: u32,
    doubtful: bool,
}

/// Compares random writes, ticks, copies and sizes with a model.
#[test]
fn regions_are_as_in_a_model() {
    let mut random = Random::new(3);
    for _ in 0..40 {
        let mut regions = Regions::new(4 * REGION, REGION, Members(2));
        let mut model = vec![Simple { wanted: 2, stale: 2, ..Simple::default() }; 4];
        for _ in 0..300 {
            let first = random.below(model.len() as u64) as usize;
            let some = first..first + 1 + random.below((model.len() - first) as u64) as usize;
            let (members, here) = (1u8 << random.below(3), &mut model[some.clone()]);
            match random.below(11) {
                0 => {
                    regions.make_stale(some.start..some.end + 3, Members(members));
                    let all = if some.end + 3 >= model.len() {
                        some.start..model.len()
                    } else {
                        some.start..some.end + 3
                    };
                    model[all].iter_mut().for_each(|it| it.stale |= members);
                }
                1 => {
                    regions.mark(some, Members(members));
                    here.iter_mut().for_each(|it| it.wanted = members);
                }
                2 => {
                    regions.keep(some);
                    here.iter_mut().for_each(|it| it.age = 2);
                }
                3 => {
                    regions.enter(some);
                    here.iter_mut().for_each(|it| it.writers += 1);
                }
                4 => {
                    regions.leave(some);
                    here.iter_mut().for_each(|it| (it.writers, it.age) = (it.writers.saturating_sub(1), 2));
                }
                5 => {
                    regions.tick();
                    model.iter_mut().for_each(|it| it.age = it.age.saturating_sub(1));
                    assert_eq!(regions.are_settling(), model.iter().any(|it| it.wanted != it.stale));
                }
                6 => {
                    regions.is_copied(first, Members(members));
                    (model[first].stale, model[first].age) = (model[first].stale & !members, 2);
                }
                7 => {
                    regions.doubt_dirty();
                    model.iter_mut().for_each(|it| it.doubtful |= it.wanted != 0);
                }
                8 => {
                    let any = model.iter().any(|it| it.doubtful);
                    assert_eq!(regions.make_doubtful_stale(Members(members)), any);
                    for it in model.iter_mut().filter(|it| it.doubtful) {
                        (it.stale, it.doubtful) = (it.stale | it.wanted & members, false);
                    }
                }
                9 => {
                    regions.make_dirty_stale(Members(members));
                    model.iter_mut().for_each(|it| it.stale |= it.wanted & members);
                }
                _ => {
                    let (old, size) = (regions.size(), 1 + random.below(8 * REGION));
                    regions.resize(size, Members(members));
                    if let Some(last) = model.last_mut().filter(|_| size > old) {
                        (last.wanted, last.stale) = (last.wanted | members, last.stale | members);
                    }
                    let added = Simple { wanted: members, stale: members, ..Simple::default() };
                    model.resize(size.div_ceil(REGION) as usize, added);
                    assert_eq!(regions.size(), size);
                }
            }
            check(&mut regions, &model, &mut random);
        }
    }
}

fn check(regions: &mut Regions, model: &[Simple], random: &mut Random) {
    let found: Vec<_> = regions.list.iter().map(|it| (it.wanted.0, it.stale.0, it.doubtful)).collect();
    assert_eq!(found, model.iter().map(|it| (it.wanted, it.stale, it.doubtful)).collect::<Vec<_>>());
    let is_idle = |it: &Simple| it.writers == 0 && it.age == 0 && it.wanted != it.stale;
    let idle: Vec<usize> = (0..model.len()).filter(|number| is_idle(&model[*number])).collect();
    assert_eq!(regions.idle().collect::<Vec<_>>(), idle);
    let first = random.below(model.len() as u64) as usize;
    let some = first..first + random.below((model.len() - first) as u64 + 1) as usize;
    assert_eq!(regions.are_quiet(some.clone()), model[some].iter().all(|it| it.writers == 0));
    // Each region that is stale is found.
    let stale = model.iter().fold(0, |all, it| all | it.stale);
    assert!(regions.behind().covers(Members(stale)));
    let members = Members(1 << random.below(3));
    let from = random.below(10) as usize;
    let start = from.min(model.len());
    let next = (start..model.len()).chain(0..start).find(|number| model[*number].stale & members.0 != 0);
    assert_eq!(regions.next_stale(from, members), next);
    assert!(next.is_some() || regions.behind().and(members).is_empty());
    let size = regions.size();
    let bytes: u64 = (0..model.len() as u64)
        .filter(|number| model[*number as usize].stale & members.0 != 0)
        .map(|number| REGION.min(size - number * REGION))
        .sum();
    assert_eq!(regions.count(|region| !region.stale.and(members).is_empty()), bytes);
    let (start, end) = (random.below(size), size + random.below(REGION));
    assert_eq!(regions.of(&(start..end)), (start / REGION) as usize..model.len());
}

/// Compares the words for the state of a set and of its members for all masks.
#[test]
fn a_state_is_in_words() {
    let members = Members::first(2);
    for (masks, number) in
        (0..256u32).map(|masks| [masks & 3, masks >> 2 & 3, masks >> 4 & 3, masks >> 6]).zip(0..)
    {
        let [current, joined, stale, out] = masks.map(|mask| Members(mask as u8));
        let status = Status { members, current, joined, stale, out, ..Status::default() };
        let missing = members.without(current);
        let word = if missing.is_empty() && stale.is_empty() {
            "in sync"
        } else if missing.is_empty() || missing.and(joined) != Members::NONE {
            "resyncing"
        } else if missing.without(out).is_empty() {
            "out"
        } else {
            "degraded"
        };
        assert_eq!(status.state(), word, "{number}");
        for member in 0..2 {
            let word = match [out, current, stale, joined].map(|mask| mask.contains(member)) {
                [true, ..] => "out",
                [_, true, false, _] => "in sync",
                [.., true] => "resyncing",
                _ => "lost",
            };
            assert_eq!(status.state_of(member), word, "{number} {member}");
        }
    }
    for (log_is_broken, log_was_damaged, word) in [
        (false, false, "good"),
        (true, false, "broken"),
        (false, true, "was damaged"),
        (true, true, "broken"),
    ] {
        let words = Status { members, log_is_broken, log_was_damaged, ..Status::default() }.to_string();
        assert!(words.contains(word), "{words}");
    }
}

/// Creates sets whose regions just fit into their log, and sets that are one region larger.
#[test]
fn a_log_has_room_for_its_regions() {
    let shape = |size: u64, log_bytes: u64| Config {
        members: 2,
        size,
        region_bytes: 4096,
        log_bytes,
        piece_bytes: 2048,
        rate: 1,
        promotes: false,
        id: 1,
        storage: [0; MEMBERS_MAX],
        new: Members::NONE,
    };
    // The state has 216 bytes and one for each region.
    for (log_bytes, most) in [(LOG_MIN, (64 - 17) * 4096 - 216), (32 << 20, 1 << 20)] {
        let mut mirror = Mirror::new(shape(most * 4096, log_bytes)).expect("it fits");
        assert_eq!(mirror.size(), most * 4096);
        assert!(Mirror::new(shape(most * 4096 + 1, log_bytes)).is_err());
        assert!(mirror.resize(most * 4096 + 1).expect_err("no room").contains("the log is too small"));
        assert_eq!(mirror.size(), most * 4096);
        mirror.resize(8192).expect("it is smaller");
        assert_eq!((mirror.size(), mirror.status().size), (8192, 8192));
    }
    assert!(Mirror::new(shape(4096, LOG_MIN - 1)).is_err());
}

/// Fails a write of the source beside a copy of its region: the copied part may differ again.
#[test]
fn a_region_that_is_stale_again_is_copied_from_its_beginning() {
    let mut rig = Rig::new(1, 2, false);
    start(&mut rig);
    rig.come_to_rest();
    rig.write_at(0..512);
    while rig.turn() {}
    let (write, begun) = rig.mirror.begin(3072..3584);
    assert!(matches!(begun, Begun::Go(_)), "the region is marked");
    rig.mirror.set.regions.make_stale(0..1, Members::one(1));
    let mut now_ns = rig.now_ns;
    let mut next_copy = |mirror: &mut Mirror| loop {
        now_ns += 1_000_000_000;
        match mirror.next(now_ns) {
            Some(Step::Copy { to, offset, length, .. }) => return (to, offset, length),
            Some(Step::Flush { member }) => mirror.flushed(member, true),
            Some(Step::WriteLog { .. }) => mirror.log_written(true, now_ns),
            _ => {}
        }
    };
    assert_eq!(next_copy(&mut rig.mirror), (Members::one(1), 0, 2048));
    assert_eq!(rig.mirror.end(write, Members::one(0)), Ended::Failed);
    rig.mirror.copied(Members::NONE, 0);
    assert_eq!(next_copy(&mut rig.mirror), (Members::one(1), 0, 2048), "from the beginning");
    rig.mirror.copied(Members::NONE, 0);
    assert_eq!(next_copy(&mut rig.mirror), (Members::one(1), 2048, 2048));
    assert_eq!(rig.mirror.status().stale_bytes, 4096);
    rig.mirror.copied(Members::NONE, 0);
    assert_eq!(rig.mirror.status().stale_bytes, 0);
}
