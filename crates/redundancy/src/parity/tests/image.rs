//! The formats as bytes: images that every later version must read as this one does.

use crate::parity::Geometry;
use crate::parity::ring::Place;
use crate::parity::ring::format::{self, Entry};
use crate::parity::state::{Change, State, UNSYNCED};
use crate::{BLOCK, Members};

/// Writes the numbers of an image by the table in docs/internals/formats.md.
fn image(parts: &[(usize, &[u8])], length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    for (at, part) in parts {
        bytes[*at..][..part.len()].copy_from_slice(part);
    }
    bytes
}

fn state() -> State {
    let geometry = Geometry::new(4, 2, 65536).expect("an array");
    let mut state = State::new(geometry, 5 << 20, 1 << 20, 1024, Members::NONE);
    state.tail = Place { sequence: 9, block: 77 };
    state.storage[1] = 0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10;
    state.out = Members::one(3);
    state.make_stale(1..2, Members::one(0));
    state.make_stale(4..5, UNSYNCED);
    state
}

#[test]
fn the_state_is_these_bytes() {
    let number = |number: u64| number.to_le_bytes();
    let expected = image(
        &[
            (0, &number(5 << 20)),
            (8, &number(65536)),
            (16, &number(1 << 20)),
            (24, &number(1024)),
            (32, &number(9)),
            (40, &number(77)),
            (64, &number(0x090a_0b0c_0d0e_0f10)),
            (72, &number(0x0102_0304_0506_0708)),
            (176, &[4, 2, 8]),
            (185, &[1]),
            (188, &[0x80]),
        ],
        189,
    );
    let mut bytes = Vec::new();
    state().write(&mut bytes);
    assert_eq!(bytes, expected);
    let read = State::read(&bytes).expect("a state");
    let mut again = Vec::new();
    read.write(&mut again);
    assert_eq!(again, bytes);
    assert!(read.regions[1].stale == Members::one(0) && read.regions[4].stale == UNSYNCED);
}

/// Writes the state of an array that was given Q. The log has another version, so that a program without it refuses.
#[test]
fn a_state_with_q_on_the_last_member_is_these_bytes() {
    let geometry = Geometry::new(4, 1, 65536).expect("an array");
    let mut state = State::new(geometry, 2 << 20, 1 << 20, 1024, Members::NONE);
    state.make_stale(0..1, Members::one(2));
    state.out = Members::one(1);
    let mut storage = [0; 8];
    (storage[1], storage[4]) = (7, 0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10);
    assert_eq!(state.reshape(geometry.with_q().expect("it has none"), &storage), Members::one(4));
    let number = |number: u64| number.to_le_bytes();
    let expected = image(
        &[
            (0, &number(2 << 20)),
            (8, &number(65536)),
            (16, &number(1 << 20)),
            (24, &number(1024)),
            (112, &number(0x090a_0b0c_0d0e_0f10)),
            (120, &number(0x0102_0304_0506_0708)),
            (176, &[5, 2, 2, 1]),
            (184, &[0b1_0100, 0b1_0000]),
        ],
        186,
    );
    let mut bytes = Vec::new();
    state.write(&mut bytes);
    assert_eq!(bytes, expected);
    let mut read = State::read(&bytes).expect("a state");
    assert_eq!((read.geometry, read.members), (state.geometry, Members::first(5)));
    // Without Q it is as it was.
    assert_eq!(read.reshape(geometry, &storage), Members::NONE);
    bytes.clear();
    read.write(&mut bytes);
    let expected = image(&[(0, &expected[..112]), (176, &[4, 1, 2, 0]), (184, &[0b100])], 186);
    assert_eq!(bytes, expected);
}

#[test]
fn changes_are_these_bytes() {
    let mut state = state();
    state.pending.clear();
    state.make_stale(2..4, Members::one(2));
    state.pending.push(Change::out(Members::one(1)));
    state.pending.push(Change::tail(Place { sequence: 10, block: 80 }));
    let expected =
        image(&[(0, &[1, 4, 0, 0, 2, 0, 0, 0, 2]), (16, &[2, 2]), (32, &[3, 0, 0, 0, 80, 0, 0, 0, 10])], 48);
    assert_eq!(State::bytes_of(&state.pending), expected);
    let mut other = self::state();
    assert!(other.replay(&expected));
    assert!(other.tail == Place { sequence: 10, block: 80 } && other.out == Members::one(1));
    assert_eq!(other.regions[3].stale, Members::one(2));
    // A tail behind the ring, regions behind the end, an unknown kind.
    for wrong in [&[3, 0, 0, 0, 0, 4][..], &[1, 0, 0, 0, 5, 0, 0, 0, 1], &[4]] {
        assert!(!other.replay(&image(&[(0, wrong)], 16)), "{wrong:?}");
    }
}

#[test]
fn a_batch_is_these_bytes() {
    let entries = [Entry::new(65536..66048, 0b1011, 0x0403_0201, 4), Entry::zeroes(0..4096, 0)];
    let mut block = vec![0xff; BLOCK];
    format::seal(&mut block, 0x1122, 7, 3, &entries);
    let mut expected = image(
        &[
            (0, b"sluicePJ"),
            (8, &[1]),
            (16, &[0x22, 0x11]),
            (24, &[7]),
            (32, &[2, 0, 0, 0, 3]),
            (50, &[1]),
            (57, &[2]),
            (64, &[0b1011, 0, 0, 0, 1, 2, 3, 4, 4]),
            (89, &[16]),
            (105, &[1]),
        ],
        BLOCK,
    );
    let checksum = crc32c::crc32c_append(crc32c::crc32c(&expected[..12]), &expected[16..]);
    expected[12..16].copy_from_slice(&checksum.to_le_bytes());
    assert_eq!(block, expected);
    let (head, found) = format::open(&block, 0x1122).expect("a batch");
    assert_eq!((head.sequence, head.blocks, found.as_slice()), (7, 3, &entries[..]));
}

/// Reads states of any bytes: they are read or refused, without a panic.
#[test]
fn no_state_is_too_strange() {
    let mut bytes = Vec::new();
    state().write(&mut bytes);
    for byte in 0..bytes.len() {
        for value in [0, 1, 0x7f, 0xff] {
            let mut strange = bytes.clone();
            strange[byte] = value;
            if let Some(mut state) = State::read(&strange) {
                state.replay(&[1; 16]);
            }
        }
        assert!(State::read(&bytes[..byte]).is_none(), "it is too short");
    }
}
