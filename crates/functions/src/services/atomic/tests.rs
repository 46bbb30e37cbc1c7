//! Tests of the format and the options. The function is tested in `crates/sim`, against the model.

use super::format::{self, BLOCK, Entry, Found, Geometry, Superblock};
use super::limit_of;
use sluice_uif::Options;

const GEOMETRY: Geometry = Geometry { id: 0x1122, limit: 8192, slots: 5 };

#[test]
fn every_slot_has_a_place_of_its_own() {
    for (size, limit) in [(1 << 20, 4096), ((1 << 20) + 5000, 64 << 10), (1 << 40, 1 << 20)] {
        let geometry = Geometry::of(size, limit, 7);
        assert!(geometry.slots > 0 && geometry.fits(size) && geometry.slot_at(0) == 8192, "{geometry:?}");
        assert_eq!(geometry.slot_at(1) - geometry.slot_at(0), limit + 4096);
        assert!(!geometry.fits(geometry.slot_at(geometry.slots) - 1));
    }
    assert_eq!(Geometry::of(8191, 4096, 7).slots, 0);
}

/// Compares the superblock with its bytes, which every later version must read.
#[test]
fn the_superblock_is_these_bytes() {
    let superblock = Superblock { geometry: GEOMETRY, watermark: 0x0203, storage: 9 << 64 | 8 };
    let mut copies = vec![0; 2 * BLOCK];
    assert_eq!(format::read_superblocks(&copies), (Found::Blank, 1));
    copies[..BLOCK].fill(0xff);
    assert_eq!(format::read_superblocks(&copies).0, Found::Other);
    format::write_superblock(&mut copies[..BLOCK], &superblock);
    let mut expected = vec![0; BLOCK];
    expected[..12].copy_from_slice(b"sluiceAT\x01\0\0\0");
    expected[16..18].copy_from_slice(&[0x22, 0x11]);
    expected[24..26].copy_from_slice(&[3, 2]);
    expected[32..34].copy_from_slice(&[0, 0x20]);
    expected[40] = 5;
    (expected[48], expected[56]) = (8, 9);
    let checksum = crc32c::crc32c_append(crc32c::crc32c(&expected[..12]), &expected[16..]);
    expected[12..16].copy_from_slice(&checksum.to_le_bytes());
    assert_eq!(copies[..BLOCK], expected);
    assert_eq!(format::read_superblocks(&copies), (Found::Good(superblock), 0));
    // The newer of two counts, and a torn one does not.
    let newer = Superblock { watermark: 0x0204, ..superblock };
    format::write_superblock(&mut copies[BLOCK..], &newer);
    assert_eq!(format::read_superblocks(&copies), (Found::Good(newer), 1));
    copies[BLOCK + 2000] ^= 1;
    assert_eq!(format::read_superblocks(&copies), (Found::Good(superblock), 0));
    copies[8] = 2;
    assert_eq!(format::read_superblocks(&copies).0, Found::Later(2));
}

/// Compares an entry with its bytes, which every later version must read.
#[test]
fn an_entry_is_these_bytes() {
    let entry = Entry { sequence: 0x0102, slot: 3, offset: 0x4000, length: 512 };
    let mut bytes = vec![0xff; format::entry_bytes(512)];
    bytes[BLOCK..BLOCK + 512].fill(0x5a);
    format::seal(&mut bytes, 0x1122, &entry);
    let mut expected = vec![0; 2 * BLOCK];
    expected[BLOCK..BLOCK + 512].fill(0x5a);
    expected[..12].copy_from_slice(b"sluiceAE\x01\0\0\0");
    expected[16..18].copy_from_slice(&[0x22, 0x11]);
    expected[24..26].copy_from_slice(&[2, 1]);
    expected[33] = 0x40;
    expected[41] = 2;
    expected[44..48].copy_from_slice(&crc32c::crc32c(&[0x5a; 512]).to_le_bytes());
    expected[48] = 3;
    let checksum = crc32c::crc32c_append(crc32c::crc32c(&expected[..12]), &expected[16..BLOCK]);
    expected[12..16].copy_from_slice(&checksum.to_le_bytes());
    assert_eq!(bytes, expected);
    assert_eq!(format::open(&bytes, &GEOMETRY, 3), Some(entry));
    assert_eq!(format::open_whole(&bytes, &GEOMETRY, 3), Some((entry, &[0x5a; 512][..])));
    assert_eq!(format::open(&bytes, &GEOMETRY, 2), None, "it is that of another slot");
    assert_eq!(format::open(&bytes, &Geometry { id: 1, ..GEOMETRY }, 3), None, "it is of another log");
    bytes[BLOCK + 9] ^= 1;
    assert_eq!(format::open(&bytes, &GEOMETRY, 3), Some(entry));
    assert_eq!(format::open_whole(&bytes, &GEOMETRY, 3), None, "it is torn");
    bytes[100] ^= 1;
    assert_eq!(format::open(&bytes, &GEOMETRY, 3), None);
}

#[test]
fn a_run_begins_behind_all_numbers_of_the_one_before() {
    assert_eq!((format::next_run(0), format::next_run(1 << 32)), (1 << 32, 2 << 32));
    assert_eq!(format::next_run((3 << 32) - 1), 3 << 32);
    assert_eq!(format::next_run(u64::MAX), u64::MAX);
}

#[test]
fn the_limit_is_a_number_of_bytes() {
    let of = |limit: Option<&str>| {
        limit_of(&Options::new(limit.map(|limit| ("limit".to_owned(), limit.to_owned()))))
    };
    assert_eq!((of(None), of(Some("1020KiB")), of(Some("4096"))), (Ok(64 << 10), Ok(1020 << 10), Ok(4096)));
    for wrong in ["0", "1MiB", "5000", "many", "-1"] {
        assert!(of(Some(wrong)).is_err(), "{wrong}");
    }
}
