//! Objects that no compiler makes: small files that need much work.

use sluice_ebpf::{Limits, LoadError, LoadErrorKind, Object};

/// Section: position of its name among the names, its type and its bytes.
struct Section {
    name: u32,
    kind: u32,
    bytes: Vec<u8>,
}

const PROGBITS: u32 = 1;
const STRTAB: u32 = 3;
const EXECINSTR: u64 = 4;
const ELF_HEADER: usize = 64;
const SECTION_HEADER: usize = 64;

/// Returns an object for BPF with these sections, all of them code; the last has the names.
fn elf(sections: &[Section]) -> Vec<u8> {
    let mut bytes = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let count = sections.len() as u16 + 1;
    bytes.extend([1u16, 247].iter().flat_map(|half| half.to_le_bytes()));
    bytes.extend(1u32.to_le_bytes());
    bytes.extend([0, 0, ELF_HEADER as u64].iter().flat_map(|word| word.to_le_bytes()));
    bytes.extend(0u32.to_le_bytes());
    let halves = [ELF_HEADER as u16, 0, 0, SECTION_HEADER as u16, count, count - 1];
    bytes.extend(halves.iter().flat_map(|half| half.to_le_bytes()));
    let mut at = ELF_HEADER + SECTION_HEADER * usize::from(count);
    bytes.extend([0; SECTION_HEADER]);
    for Section { name, kind, bytes: data } in sections {
        bytes.extend([*name, *kind].iter().flat_map(|word| word.to_le_bytes()));
        let words = [EXECINSTR, 0, at as u64, data.len() as u64, 0, 8, 0];
        // Link and information share a word.
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        at += data.len();
    }
    sections.iter().for_each(|section| bytes.extend(&section.bytes));
    bytes
}

fn load(sections: &[Section], section: &str) -> LoadError {
    Object::from_elf(&elf(sections), section, &Limits::default()).expect_err("it is hostile")
}

fn names(text: Vec<u8>) -> Section {
    Section { name: 0, kind: STRTAB, bytes: text }
}

#[test]
fn many_sections_share_a_long_name() {
    let long = || names([vec![b'a'; 500_000], vec![0]].concat());
    let code = |count: usize| {
        let one = || Section { name: 0, kind: PROGBITS, bytes: vec![0; 8] };
        (0..count).map(|_| one()).chain([long()]).collect::<Vec<_>>()
    };
    let message = load(&code(500), "classifier").to_string();
    assert!(message.contains("it has no section classifier"), "{}", message.get(..200).unwrap_or(&message));
    assert!(message.len() < 16 << 10, "a message of {} bytes", message.len());
    let message = load(&code(5000), "classifier").to_string();
    assert!(message.contains("more sections than the limit"), "{}", message.get(..200).unwrap_or(&message));
}

/// Returns BTF with one section of so many maps, all of one type with so many members without meaning.
fn btf(maps: u16, members: u16) -> Vec<u8> {
    const STRINGS: &[u8] = b"\0.maps\0pinning\0";
    let kind = |number: u32, count: u16| number << 24 | u32::from(count);
    let mut types = vec![0, kind(4, members), 0];
    (0..members).for_each(|_| types.extend([7, 0, 0]));
    types.extend([0, kind(14, 0), 1, 0, 1, kind(15, maps), 0]);
    (0..maps).for_each(|_| types.extend([2, 0, 0]));
    let len = types.len() as u32 * 4;
    let header = [0x1_eb9f, 24, 0, len, len, STRINGS.len() as u32];
    let words = header.iter().chain(&types).flat_map(|word| word.to_le_bytes());
    words.chain(STRINGS.iter().copied()).collect()
}

fn with_maps(maps: u16, members: u16) -> LoadError {
    let sections = [
        Section { name: 1, kind: PROGBITS, bytes: vec![0; 8] },
        Section { name: 6, kind: PROGBITS, bytes: btf(maps, members) },
        Section { name: 11, kind: PROGBITS, bytes: vec![0; 8] },
        names(b"\0prog\0.BTF\0.maps\0".to_vec()),
    ];
    load(&sections, "prog")
}

/// Loads tens of thousands of maps, each with a definition as long: without counting first this takes
/// minutes.
#[test]
fn maps_and_their_members_are_counted_first() {
    assert_eq!(with_maps(65, 1).kind, LoadErrorKind::TooManyMaps { limit: 64 });
    let few = with_maps(1, 9).to_string();
    assert!(few.contains("it has no type"), "{few}");
    let long = with_maps(1, 20_000).to_string();
    assert!(long.contains("its definition has 20000 members"), "{long}");
}
