//! Tests of arrays: their parts, and the whole against a model. The function is tested in `crates/sim`.

mod cells;
mod figures;
mod image;
mod journal;
mod lives;
mod mode;
mod opening;
mod rig;
mod state;
mod tasks;

use super::code::{self, Cells};
use super::geometry::{Cut, Geometry};
use super::plan::{self, Way};
use sluice_sim::Random;
use std::collections::HashSet;

/// Members and parities of all arrays.
fn shapes() -> impl Iterator<Item = (usize, usize)> {
    (3..=7).flat_map(|members| (1..=2).map(move |parities| (members, parities))).filter(|(m, p)| m - p >= 2)
}

fn geometry(members: usize, parities: usize) -> Geometry {
    Geometry::new(members, parities, 4096).expect("an array")
}

/// Checks the layout of md, drawn in its documentation: left-symmetric, of four members.
#[test]
fn the_layout_is_left_symmetric() {
    let four = geometry(4, 1);
    // Each line is a stripe: the members of D0, D1, D2 and P.
    let expected = [[0, 1, 2, 3], [3, 0, 1, 2], [2, 3, 0, 1], [1, 2, 3, 0], [0, 1, 2, 3]];
    for (stripe, members) in expected.into_iter().enumerate() {
        assert_eq!([0, 1, 2, 3].map(|role| four.member(stripe as u64, role)), members, "stripe {stripe}");
    }
    let five = geometry(5, 2);
    // D0, D1, D2, P and Q.
    for (stripe, members) in [[1, 2, 3, 4, 0], [0, 1, 2, 3, 4], [4, 0, 1, 2, 3]].into_iter().enumerate() {
        assert_eq!([0, 1, 2, 3, 4].map(|role| five.member(stripe as u64, role)), members, "stripe {stripe}");
    }
}

/// Checks the layout of an array that was given Q: that of one parity, with Q on one more member.
#[test]
fn a_q_that_was_added_is_on_the_last_member() {
    let five = geometry(4, 1).with_q().expect("it has none");
    // D0, D1, D2, P and Q.
    let expected = [[0, 1, 2, 3, 4], [3, 0, 1, 2, 4], [2, 3, 0, 1, 4], [1, 2, 3, 0, 4], [0, 1, 2, 3, 4]];
    for (stripe, members) in expected.into_iter().enumerate() {
        assert_eq!([0, 1, 2, 3, 4].map(|role| five.member(stripe as u64, role)), members, "stripe {stripe}");
    }
    assert_eq!((five.with_q(), five.without_q()), (None, Some(geometry(4, 1))));
    assert_eq!((geometry(5, 2).with_q(), geometry(5, 2).without_q()), (None, None));
}

#[test]
fn each_byte_has_one_place() {
    let added = (3..=6).filter_map(|members| geometry(members, 1).with_q());
    for geometry in shapes().map(|(members, parities)| geometry(members, parities)).chain(added) {
        let Geometry { members, parities, .. } = geometry;
        let size = 3 * members as u64 * 4096;
        let mut seen = HashSet::new();
        for offset in (0..geometry.drive_bytes(size)).step_by(512) {
            let (stripe, column, row) = geometry.place(offset);
            let member = geometry.member(stripe, column);
            assert!(row < size && seen.insert((member, row)), "{offset} has a place of its own");
            assert_eq!(geometry.drive_offset(row, column), offset);
        }
        // The other places have the parities, as many in each stripe.
        assert_eq!(seen.len() as u64 * 512, size * (members - parities) as u64);
    }
}

/// Rectangles cover a range exactly, and each lies in one stripe; whole stripes of zeros are one rectangle.
#[test]
fn a_range_is_cut_into_rectangles() {
    const ROWS: u64 = 6144;
    const REGION: u64 = 8192;
    let mut random = Random::new(1);
    for (members, parities) in shapes() {
        for _ in 0..300 {
            // Chunks that are no power of two lie in two regions at times.
            let chunk = if random.one_in(2) { 8192 } else { 12288 };
            let geometry = Geometry::new(members, parities, chunk).expect("an array");
            let start = random.below(40) * 512 * random.between(1, 9);
            let end = start + random.between(1, 400) * 512;
            let whole = random.one_in(2);
            let mut cut = Cut::new(start..end, ROWS, whole);
            let mut bytes = HashSet::new();
            while let Some(rect) = cut.next(&geometry, REGION) {
                let is_run = whole && rect.columns == (0..geometry.columns());
                let is_in_one = |unit: u64| (rect.rows.end - 1) / unit == rect.rows.start / unit;
                assert!(is_run || rect.length() <= ROWS && is_in_one(chunk) && is_in_one(REGION));
                for column in rect.columns.clone() {
                    for row in rect.rows.clone().step_by(512) {
                        assert!(bytes.insert(geometry.drive_offset(row, column)), "once");
                    }
                }
            }
            let all: HashSet<u64> = (start..end).step_by(512).collect();
            assert!(bytes == all, "{members} {parities} {start}..{end}");
        }
    }
}

/// Multiplies by the definition: polynomials modulo x^8 + x^4 + x^3 + x^2 + 1.
fn slow_product(mut one: u16, other: u16) -> u8 {
    let mut product = 0;
    for bit in 0..8 {
        product ^= if other >> bit & 1 == 1 { one } else { 0 };
        one = one << 1 ^ if one & 0x80 == 0 { 0 } else { 0x11d };
    }
    product as u8
}

#[test]
fn the_field_is_that_of_raid_6() {
    for one in 0..=255u8 {
        for other in [0, 1, 2, 3, 29, 128, 142, 255] {
            assert_eq!(code::product(one, other), slow_product(one.into(), other.into()));
        }
        if one > 0 {
            assert_eq!(code::product(one, code::inverse(one)), 1, "{one}");
        }
    }
    assert_eq!([0, 1, 7, 8, 255].map(code::power), [1, 2, 128, 29, 1]);
}

fn random_cells(random: &mut Random, length: usize, members: usize, parities: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..length * members).map(|_| random.next_u64() as u8).collect();
    Cells::new(&mut bytes, length, members - parities, parities).expect("long enough").encode();
    bytes
}

/// Computes any cells that are missing, as many as there are parities, from the others.
#[test]
fn missing_cells_are_recovered() {
    let mut random = Random::new(2);
    // Rows that fill no turn of the loops, and rows that do.
    for length in [8, 120, 512] {
        for (members, parities) in shapes() {
            let whole = random_cells(&mut random, length, members, parities);
            for missing in (0u32..1 << members).filter(|mask| mask.count_ones() as usize <= parities) {
                let mut bytes = whole.clone();
                let lost = (0..members).filter(|role| missing >> role & 1 == 1);
                lost.for_each(|role| bytes[role * length..][..length].fill(0x5a));
                let mut cells =
                    Cells::new(&mut bytes, length, members - parities, parities).expect("long enough");
                cells.recover(missing);
                assert!(bytes == whole, "{members} {parities} {missing:b}");
            }
        }
    }
}

/// Checks that a change by the old parities is the same as one by all data.
#[test]
fn both_ways_to_the_parities_lead_there() {
    let mut random = Random::new(3);
    for (members, parities) in shapes() {
        let (columns, length) = (members - parities, 64);
        let mut bytes = random_cells(&mut random, length, members, parities);
        let all = ((1 << parities) - 1) << columns;
        for column in 0..columns {
            let mut cells = Cells::new(&mut bytes, length, columns, parities).expect("long enough");
            cells.fold(column, all);
            cells.cell(column).iter_mut().for_each(|byte| *byte = random.next_u64() as u8);
            cells.fold(column, all);
        }
        let modified = bytes.clone();
        Cells::new(&mut bytes, length, columns, parities).expect("long enough").encode();
        assert!(bytes == modified, "{members} {parities}");
    }
}

/// Finds a wrong cell: with one parity its existence, with two its role, and then it is corrected.
#[test]
fn a_wrong_cell_is_found() {
    let mut random = Random::new(4);
    for (members, parities) in shapes() {
        let length = 64;
        let whole = random_cells(&mut random, length, members, parities);
        for wrong in 0..members {
            let mut bytes = whole.clone();
            bytes[wrong * length + 17] ^= 0x40;
            let mut cells =
                Cells::new(&mut bytes, length, members - parities, parities).expect("long enough");
            assert!(!cells.check());
            assert_eq!(cells.blame(), (parities == 2).then_some(wrong));
            if parities == 2 {
                if wrong < members - parities {
                    cells.correct(wrong);
                }
                cells.encode();
                assert!(bytes == whole);
            }
        }
        let mut bytes = whole.clone();
        assert!(Cells::new(&mut bytes, length, members - parities, parities).expect("long enough").check());
    }
}

/// Checks that each plan reads the cells that its way needs, and never a missing one. No other plan reads fewer.
#[test]
fn a_plan_reads_as_little_as_it_can() {
    for (members, parities) in shapes() {
        let columns = members - parities;
        let data = (1u32 << columns) - 1;
        for written in 1..=data {
            for missing in 0u32..1 << members {
                let plan = plan::change(columns, parities, written, missing, false);
                if missing.count_ones() as usize > parities {
                    assert_eq!(plan, None);
                    continue;
                }
                let plan = plan.expect("there is a way");
                assert_eq!(plan.reads & missing, 0);
                let (others, kept) = (data & !written, !data & !missing & ((1 << members) - 1));
                let rebuild = others.count_ones();
                let modify = if kept == 0 { 0 } else { (written | kept).count_ones() };
                let can = [others & missing == 0, written & missing == 0];
                match plan.way {
                    Way::Rebuild => assert!(can[0] && (!can[1] || rebuild <= modify) && plan.reads == others),
                    Way::Modify => assert!(can[1] && (!can[0] || modify <= rebuild)),
                    Way::Recover => {
                        assert!(!can[0] && !can[1] && plan.reads.count_ones() as usize == columns)
                    }
                }
            }
        }
        // A plan that renews the parities leaves none out, also beside missing data.
        for missing in 0u32..1 << members {
            let plan = plan::change(columns, parities, 1, missing, true);
            let way = if missing & data & !1 == 0 { Way::Rebuild } else { Way::Recover };
            let can = missing.count_ones() as usize <= parities;
            assert_eq!(plan.map(|plan| plan.way), can.then_some(way), "{missing:b}");
        }
        // A small write reads its own cell and the parities at most.
        assert!(
            plan::change(columns, parities, 1, 0, false).expect("a way").reads.count_ones() as usize
                <= 1 + parities
        );
        assert_eq!(
            plan::change(columns, parities, data, 0, false).expect("a way").reads,
            0,
            "a whole stripe"
        );
    }
}
