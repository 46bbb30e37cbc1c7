//! Tests of limits of a store: room for mappings, content of any disk, use counts, figures and words.

use super::layout::{Layout, Shape};
use super::table::{Mapping, Table, Version};
use super::text::{format_bytes, parse_bytes};
use super::uses::Uses;
use super::{StoreStatus, json};
use std::collections::HashMap;

/// Mappings that are kept free for requests, and the epoch of a mapping that has not died.
const KEPT: u64 = sluice_uif::abi::REQUESTS_MAX as u64;
const NOW: u32 = u32::MAX;

/// Writes a chunk of the drive.
fn write(table: &mut Table, logical: u32) {
    if !table.is_own(logical) {
        let physical = table.allocate().expect("there is room");
        table.put(logical, Some(physical));
    }
}

/// Makes a drive whose version has six chunks: one is own again, one is unmapped, and two are new since.
fn drive(mappings_max: u64) -> Table {
    let mut table = Table::new(10, 60, mappings_max);
    (0..6).for_each(|logical| write(&mut table, logical));
    table.create("first", 1).expect("it can");
    write(&mut table, 0);
    table.put(1, None);
    table.create("second", 2).expect("it can");
    (6..8).for_each(|logical| write(&mut table, logical));
    write(&mut table, 2);
    table
}

/// Rolls back to each version with all limits of mappings: it is done if the mappings after it fit, and the chunks
/// are those of the version.
#[test]
fn a_rollback_has_room_for_its_mappings_or_is_refused() {
    let mut refused = 0;
    for name in ["first", "second"] {
        let mut large = drive(1000);
        let map = large.map_of(large.version(name).expect("it is there").epoch);
        large.roll_back(name).expect("it can");
        let needed = large.count_seen() + KEPT;
        for most in 60..100 {
            let mut table = drive(1000);
            table.set_mappings_max(most);
            let outcome = table.roll_back(name);
            assert_eq!(outcome.is_ok(), needed <= most, "{name} {most}: {outcome:?}");
            refused += u32::from(outcome.is_err());
            let now: Vec<u32> = (0..10).map(|at| table.lookup(at).map_or(0, |chunk| chunk + 1)).collect();
            assert_eq!(now == map, outcome.is_ok());
        }
    }
    assert!(refused > 10);
}

#[test]
fn versions_and_mappings_that_cannot_be_are_not_loaded() {
    let begun = || {
        let mut table = Table::new(10, 20, 1000);
        table.begin(9, 0).expect("it can");
        table
    };
    let version = |name: &str, epoch: u32| {
        let mut bytes = vec![0; Version::BYTES];
        Version { name: name.to_owned(), created: 1, epoch }.put(&mut bytes);
        bytes
    };
    for epoch in [0, 1 << 32, u64::from(NOW)] {
        assert!(Table::new(1, 1, 1).begin(epoch, 0).is_err(), "{epoch}");
    }
    for (epoch, is_right) in
        [(0, false), (2, false), (3, false), (4, true), (8, true), (9, false), (10, false)]
    {
        let mut table = begun();
        table.load_version(&version("one", 3)).expect("it can be");
        assert_eq!(table.load_version(&version("two", epoch)).is_ok(), is_right, "{epoch}");
        assert!(table.load_version(&version("one", 8)).is_err(), "the name is used");
    }
    let good = Mapping { logical: 9, born: 2, died: 4, physical: 19 };
    for (mapping, is_right) in [
        (good, true),
        (Mapping { died: NOW, ..good }, true),
        (Mapping { born: 9, died: NOW, ..good }, true),
        (Mapping { born: 10, died: NOW, ..good }, false),
        (Mapping { logical: 10, ..good }, false),
        (Mapping { physical: 20, ..good }, false),
        (Mapping { born: 0, ..good }, false),
        // A version must have seen it: the only one has epoch 3.
        (Mapping { born: 3, died: 4, ..good }, true),
        (Mapping { born: 4, died: 6, ..good }, false),
        (Mapping { born: 2, died: 3, ..good }, false),
        (Mapping { born: 4, died: 4, ..good }, false),
        (Mapping { died: 9, ..good }, true),
        (Mapping { died: 10, ..good }, false),
    ] {
        let mut table = begun();
        table.load_version(&version("one", 3)).expect("it can be");
        assert_eq!(table.load_mapping(mapping).is_ok(), is_right, "{mapping:?}");
        assert_eq!((table.count(), table.used()), (u64::from(is_right), u64::from(is_right)));
    }
}

/// Compares use counts with a map, for a store and for its reader, which has chunks beyond its size.
#[test]
fn uses_are_counted() {
    let mut random = crate::Random::new(3);
    for reads in [false, true] {
        let mut uses = if reads { Uses::new(8).only_read() } else { Uses::new(8) };
        let mut model: HashMap<u32, u32> = HashMap::new();
        let mut chunks = 8;
        for step in 0..2000 {
            let chunk = random.below(if reads { 12 } else { chunks }) as u32;
            let count = model.entry(chunk).or_default();
            if *count > 0 && random.one_in(2) {
                uses.release(chunk);
                *count -= 1;
            } else if *count < 4 {
                uses.take(chunk);
                *count += 1;
            }
            if step % 500 == 499 {
                chunks += 3;
                uses.grow(chunks as u32);
                // A size that the store had before changes nothing.
                uses.grow(chunks as u32 - 2);
                model.retain(|chunk, _| u64::from(*chunk) < chunks - 3);
            }
            if reads && step == 498 {
                break;
            }
            let used = |chunk: &u32| model.get(chunk).copied().unwrap_or_default();
            let free = (0..chunks as u32).filter(|chunk| used(chunk) == 0).count();
            assert_eq!((uses.free as usize, uses.len()), (free, chunks));
            (0..12).for_each(|chunk| {
                let known = reads || u64::from(chunk) < chunks;
                assert_eq!(uses.of(chunk), known.then(|| used(&chunk)), "{chunk}");
            });
        }
    }
    for (chunk, is_possible) in [(u32::MAX - 2, true), (u32::MAX - 1, false), (u32::MAX, false)] {
        assert_eq!(Uses::new(8).only_read().of(chunk).is_some(), is_possible);
        assert_eq!(Uses::new(8).of(chunk), None);
    }
}

/// Plans stores up to the largest: a chunk's number plus one is always in 32 bits.
#[test]
fn a_store_of_any_size_has_chunks_with_numbers() {
    let tib = 1 << 40;
    let shape = Shape { size: tib, chunk: 4096 };
    let plan = |store: u64| Layout::plan(shape, 1, 4 * tib, store).expect("it is large enough");
    assert_eq!(plan(64 * tib).physical, u32::MAX - 1);
    let last = plan(16 * tib);
    assert_eq!(u64::from(last.physical), (16 * tib - last.chunk_at(0)) / 4096);
    let small = Shape { size: 1 << 20, chunk: 65536 };
    let least = Layout::plan(small, 1, 1 << 20, 1 << 20).expect("it is large enough").chunk_at(1);
    assert!(Layout::plan(small, 1, least, least).is_ok_and(|layout| layout.physical == 1));
    let words = Layout::plan(small, 1, least - 4096, least - 4096).expect_err("no chunk has room");
    assert!(words.ends_with(&format!("needs at least {}", format_bytes(least))), "{words}");
    assert!(Layout::plan(small, 1, 2 * least, least).is_err(), "it has become smaller");
}

/// Frees the chunks of deleted versions, all at once and in steps, and counts the visited mappings.
#[test]
fn deletions_count_what_they_visit() {
    let mut table = drive(1000);
    let past = table.count() - table.mapped();
    assert_eq!(past, 3);
    table.delete("first").expect("it is there");
    assert_eq!((table.visited(), table.unswept(), table.deletions()), (3, 0, 1));
    table.delete("second").expect("it is there");
    assert_eq!((table.visited(), table.deletions()), (4, 2));
    assert_eq!((table.count(), table.used()), (table.mapped(), table.mapped()));
    let mut table = drive(1000);
    table.forget_version("first").expect("it is there");
    for left in [2, 1, 0, 0] {
        table.sweep(1);
        assert_eq!(table.unswept(), left);
    }
}

#[test]
fn the_status_has_the_figures_of_the_table() {
    let shape = Shape { size: 40960, chunk: 4096 };
    let table = drive(1000);
    assert_eq!((table.mapped(), table.used()), (7, 10));
    let status = json(&StoreStatus::of(&table, shape)).expect("it is JSON");
    let wanted = r#"{"ready":true,"size":40960,"chunk":4096,"mapped":28672,"store":245760,"free":204800,"low":false,"versions":2}"#;
    assert_eq!(status, wanted);
    // 80 % are in use, and one chunk more.
    for (chunks, is_low) in [(4, false), (5, true)] {
        let mut table = Table::new(10, 5, 1000);
        (0..chunks).for_each(|logical| write(&mut table, logical));
        let level = StoreStatus::of(&table, shape).level.expect("it is ready");
        assert_eq!((level.low, level.free), (is_low, (5 - u64::from(chunks)) * 4096));
    }
    let view = json(&StoreStatus::of_version("first", true)).expect("it is JSON");
    assert_eq!(view, r#"{"ready":true,"version":"first"}"#);
    let refused = json(&StoreStatus::refused("it is damaged".to_owned())).expect("it is JSON");
    assert_eq!(refused, r#"{"ready":false,"reason":"it is damaged"}"#);
}

#[test]
fn bytes_are_written_as_they_are_read() {
    for (bytes, words) in [
        (0, "0 bytes"),
        (1, "1 bytes"),
        (1023, "1023 bytes"),
        (1024, "1KiB"),
        (1536, "1536 bytes"),
        (3 << 20, "3MiB"),
        (1025 << 10, "1025KiB"),
        (20 << 30, "20GiB"),
        (5 << 40, "5TiB"),
        (1 << 50, "1024TiB"),
    ] {
        assert_eq!(format_bytes(bytes), words);
        assert_eq!(parse_bytes(words.trim_end_matches(" bytes")), Some(bytes));
    }
}
