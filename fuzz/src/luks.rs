//! LUKS2 headers: each opens or is refused with a reason, and no more memory or work is spent on it than the
//! limits permit.

use crate::Input;
use sha2::{Digest, Sha256};
use sluice_crypt::luks::{Header, Limits};
use std::io::Cursor;

/// Bytes of a copy of the header that is made here.
const COPY: usize = 16 << 10;
const BINARY: usize = 4096;

/// Bytes behind the copies, for keyslots: room for one.
const AREA: usize = 256 << 10;

const LIMITS: Limits = Limits {
    memory_kib: 64,
    passes: 2,
    iterations: 100,
    argon2_kib: 4096,
    time: std::time::Duration::from_secs(60),
};

pub fn run(data: &[u8]) {
    let mut file = Cursor::new(file(&mut Input::new(data)));
    let opened = Header::read(&mut file).and_then(|header| {
        let segment = header.segment();
        assert!((512..=4096).contains(&segment.sector_size) && segment.sector_size.is_power_of_two());
        assert!(segment.offset.is_multiple_of(segment.sector_size.into()));
        header.unlock(&mut file, b"a passphrase", None, &LIMITS)
    });
    match opened {
        Ok(key) => assert!([32, 64].contains(&key.len())),
        Err(words) => {
            assert!(!words.is_empty() && words.chars().all(|letter| !letter.is_control()), "{words}")
        }
    }
}

/// Returns the input as it is, or as the metadata of a header whose checksum is right.
fn file(input: &mut Input<'_>) -> Vec<u8> {
    if input.one_in(4) {
        return input.bytes(usize::MAX).to_vec();
    }
    let second = input.one_in(4);
    let metadata = input.bytes(COPY - BINARY);
    let mut file = vec![0; 2 * COPY + AREA];
    let place = if second { COPY } else { 0 };
    let copy = &mut file[place..][..COPY];
    copy[..6].copy_from_slice(if second { b"SKUL\xba\xbe" } else { b"LUKS\xba\xbe" });
    copy[7] = 2;
    copy[8..16].copy_from_slice(&(COPY as u64).to_be_bytes());
    copy[72..78].copy_from_slice(b"sha256");
    copy[256..264].copy_from_slice(&(place as u64).to_be_bytes());
    copy[BINARY..][..metadata.len()].copy_from_slice(metadata);
    let checksum = Sha256::digest(&*copy);
    copy[448..480].copy_from_slice(&checksum);
    file
}
