//! Maps and helpers of `sluice.h` against those of the engine.

use sluice_ebpf::{COUNTERS, Helpers, MapKind, TRACE_BYTES, flags};

const HEADER: &str = include_str!("../include/sluice.h");

/// Returns the value of a macro; `1 << n` is one, too.
fn macro_number(name: &str) -> u64 {
    let define = format!("#define {name} ");
    let line = HEADER.lines().find_map(|line| line.strip_prefix(&define)).expect(name);
    let line = line.trim_matches(['(', ')']);
    match line.split_once("<<") {
        Some((one, shift)) => number(one) << number(shift),
        None => number(line),
    }
}

fn number(text: &str) -> u64 {
    let text = text.trim().trim_end_matches('u');
    text.parse().unwrap_or_else(|_| panic!("{text} is not a number"))
}

/// Returns names and numbers of the helpers that the header declares.
fn helpers() -> Vec<(String, u32)> {
    let declared = |declaration: &str| {
        let (before, value) = declaration.split_once("= (void *)")?;
        let name = before.split_once("(*const ")?.1.split_once(')')?.0;
        Some((name.to_owned(), value.trim().parse().ok()?))
    };
    let mut helpers: Vec<_> = HEADER.split(';').filter_map(declared).collect();
    helpers.sort();
    helpers
}

#[test]
fn helpers_have_the_same_numbers() {
    let mut standard: Vec<(String, u32)> =
        Helpers::standard().iter().map(|helper| (helper.name.to_owned(), helper.number)).collect();
    standard.sort();
    assert_eq!(helpers(), standard);
}

#[test]
fn maps_have_the_same_numbers() {
    let kinds = [
        ("BPF_MAP_TYPE_HASH", MapKind::Hash),
        ("BPF_MAP_TYPE_ARRAY", MapKind::Array),
        ("BPF_MAP_TYPE_LRU_HASH", MapKind::LruHash),
        ("SLUICE_MAP_TYPE_TRANSLATION", MapKind::Translation),
    ];
    for (name, kind) in kinds {
        assert_eq!(MapKind::from_number(macro_number(name) as u32), Some(kind), "{name}");
    }
    assert_eq!(macro_number("BPF_F_RDONLY_PROG"), flags::READ_ONLY.into());
    assert_eq!(macro_number("SLUICE_F_SHARED"), flags::SHARED.into());
    assert_eq!(macro_number("SLUICE_TRANSLATION_WRITABLE"), sluice_ebpf::Translation::WRITABLE.into());
    assert_eq!(macro_number("SLUICE_COUNTERS"), COUNTERS as u64);
    assert_eq!(macro_number("SLUICE_TRACE_BYTES"), TRACE_BYTES as u64);
}
