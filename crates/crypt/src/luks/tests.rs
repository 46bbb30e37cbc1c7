use super::*;
use proptest::prelude::*;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::io::Cursor;

/// Header by cryptsetup 2.6.1: a 256-bit key in one keyslot (argon2id, 64 KiB), sectors of 4096 bytes.
const REAL: &[u8] = include_bytes!("../../tests/data/argon2id.luks2");
const PASSPHRASE: &[u8] = b"correct horse battery staple";
/// Output of `luksDump --dump-volume-key`.
const KEY: &str = "732080c411543f1965e4f64484c9152d6a49720ce8009d454116cc10a80c22e1";

const COPY: usize = 16 << 10;
const SEQUENCE: u64 = 3;

const LIMITS: Limits = Limits {
    memory_kib: 1024,
    passes: 10,
    iterations: 100_000,
    argon2_kib: 1 << 20,
    time: std::time::Duration::from_secs(60),
};

fn read(bytes: &[u8]) -> Result<Header, String> {
    Header::read(&mut Cursor::new(bytes))
}

fn unlock(bytes: &[u8], passphrase: &[u8], number: Option<u32>) -> Result<String, String> {
    let key = read(bytes)?.unlock(&mut Cursor::new(bytes), passphrase, number, &LIMITS)?;
    Ok(key.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Returns the metadata of the real header, to be changed.
fn metadata() -> Value {
    let text = REAL[4096..COPY].split(|byte| *byte == 0).next().expect("it is there");
    serde_json::from_slice(text).expect("JSON")
}

/// Writes a copy of the header with other metadata, with the right checksum.
fn forge(bytes: &mut [u8], copy: usize, sequence: u64, metadata: &Value) {
    let copy = &mut bytes[copy * COPY..][..COPY];
    let text = metadata.to_string();
    copy[4096..].fill(0);
    copy[4096..][..text.len()].copy_from_slice(text.as_bytes());
    copy[16..24].copy_from_slice(&sequence.to_be_bytes());
    copy[448..512].fill(0);
    let checksum = Sha256::digest(&*copy);
    copy[448..480].copy_from_slice(&checksum);
}

/// Returns the error for a header that is right but for one value of its metadata.
fn error_of(pointer: &str, value: Value) -> String {
    let (mut bytes, mut metadata) = (REAL.to_vec(), metadata());
    *metadata.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer}")) = value;
    forge(&mut bytes, 0, SEQUENCE, &metadata);
    forge(&mut bytes, 1, SEQUENCE, &metadata);
    unlock(&bytes, PASSPHRASE, None).expect_err("something is wrong")
}

#[test]
fn a_real_header_opens() {
    let header = read(REAL).expect("it is whole");
    let expected = Segment { offset: 0, size: None, sector_size: 4096, iv_tweak: 0 };
    assert_eq!(header.segment(), expected);
    assert_eq!(unlock(REAL, PASSPHRASE, None).as_deref(), Ok(KEY));
    assert_eq!(unlock(REAL, PASSPHRASE, Some(0)).as_deref(), Ok(KEY));
    let message = unlock(REAL, b"correct horse battery stable", None);
    assert_eq!(message.expect_err("it is another"), "no keyslot opens with this passphrase");
    let message = unlock(REAL, PASSPHRASE, Some(1)).expect_err("there is one");
    assert_eq!(message, "the LUKS header has no keyslot 1 with the disk's key");
}

#[test]
fn the_newer_copy_that_is_whole_counts() {
    let mut newer = metadata();
    newer["segments"]["0"]["iv_tweak"] = json!("77");
    let tweak = |bytes: &[u8]| read(bytes).map(|header| header.segment().iv_tweak);
    for (sequences, expected) in [([4, 3], 0), ([3, 3], 0), ([3, 4], 77)] {
        let mut bytes = REAL.to_vec();
        forge(&mut bytes, 0, sequences[0], &metadata());
        // The second copy has the other magic and offset already.
        forge(&mut bytes, 1, sequences[1], &newer);
        assert_eq!(tweak(&bytes), Ok(expected), "{sequences:?}");
        bytes[1000] ^= 1;
        assert_eq!(tweak(&bytes), Ok(77), "the first is damaged");
        bytes[COPY + 5000] ^= 1;
        assert_eq!(tweak(&bytes), Err("the LUKS header is damaged: its checksum is wrong".to_owned()));
    }
}

#[test]
fn invalid_values_are_named_in_the_error() {
    let many = [
        ("/segments/0/encryption", json!("aes-cbc-essiv:sha256"), "not with aes-xts-plain64 alone"),
        ("/segments/0/type", json!("linear"), "not one encrypted segment"),
        ("/segments/0/sector_size", json!(520), "sectors of 520 bytes"),
        ("/segments/0/sector_size", json!(0), "sectors of 0 bytes"),
        ("/segments/0/offset", json!("512"), "whole sectors"),
        ("/segments/0/offset", json!("-1"), "not a number"),
        ("/segments/0/size", json!("18446744073709551616"), "not a size"),
        ("/digests/0/segments", json!(["1"]), "no digest"),
        ("/digests/0/keyslots", json!([]), "no keyslot"),
        ("/digests/0/digest", json!("AAAA"), "digest of the disk's key makes no sense"),
        (
            "/digests/0/hash",
            json!("stribog512"),
            "a digest of the LUKS header makes no sense: Sluice has no hash stribog512",
        ),
        (
            "/digests/0/type",
            json!("argon3"),
            "a digest of the LUKS header makes no sense: unknown variant `argon3`",
        ),
        ("/digests/0/iterations", json!(4_000_000_000u32), "4000000000 iterations are more"),
        ("/digests/0/iterations", json!(0), "0 iterations"),
        ("/keyslots/0/type", json!("luks3"), "no keyslot"),
        ("/keyslots/0/key_size", json!(4_000_000_000u32), "not of 32 or 64 bytes"),
        ("/keyslots/0/af/stripes", json!(4_000_000_000u32), "its size makes no sense"),
        ("/keyslots/0/af/stripes", json!(0), "its size makes no sense"),
        ("/keyslots/0/af/hash", json!("md5"), "a keyslot of the LUKS header makes no sense"),
        (
            "/keyslots/0/af/hash",
            json!("\u{1b}[31m".repeat(1000)),
            "makes no sense: Sluice has no hash [31m[31m",
        ),
        ("/keyslots/0/area/offset", json!("18446744073709551615"), "cannot be read"),
        ("/keyslots/0/area/size", json!("100"), "its size makes no sense"),
        ("/keyslots/0/area/encryption", json!("null"), "encrypted with null"),
        ("/keyslots/0/kdf/memory", json!(4_000_000_000u32), "more than Sluice does"),
        ("/keyslots/0/kdf/time", json!(4_000_000_000u32), "more than Sluice does"),
        ("/keyslots/0/kdf/cpus", json!(1_000_000), "more than Sluice does"),
        ("/keyslots/0/kdf/memory", json!(1), "its parameters make no sense"),
        ("/keyslots/0/kdf/salt", json!("!"), "not base64"),
    ];
    for (pointer, value, expected) in many {
        let message = error_of(pointer, value.clone());
        assert!(message.contains(expected), "{pointer} {value}: {message}");
    }
    let message = error_of("/config", json!({"requirements": {"mandatory": ["online-reencrypt"]}}));
    assert_eq!(message, "the LUKS header requires what Sluice cannot do: online-reencrypt");
}

#[test]
fn keyslots_of_other_kinds_do_not_matter() {
    let (mut bytes, mut metadata) = (REAL.to_vec(), metadata());
    metadata["keyslots"]["1"] = json!({"type": "reencrypt", "key_size": 1});
    metadata["keyslots"]["2"] = metadata["keyslots"]["0"].clone();
    metadata["keyslots"]["2"]["af"]["hash"] = json!("md4");
    metadata["digests"]["0"]["keyslots"] = json!(["1", "0", "2", "9"]);
    metadata["digests"]["1"] = json!({"type": "other"});
    forge(&mut bytes, 0, SEQUENCE, &metadata);
    assert_eq!(unlock(&bytes, PASSPHRASE, None).as_deref(), Ok(KEY));
    let message = unlock(&bytes, b"another", None).expect_err("it opens nothing that could be tried");
    assert_eq!(message, "keyslot 2: a keyslot of the LUKS header makes no sense: Sluice has no hash md4");
    // A keyslot that is to be ignored is tried only on request.
    metadata["keyslots"]["0"]["priority"] = json!(0);
    forge(&mut bytes, 0, SEQUENCE, &metadata);
    assert!(unlock(&bytes, PASSPHRASE, None).is_err());
    assert_eq!(unlock(&bytes, PASSPHRASE, Some(0)).as_deref(), Ok(KEY));
}

/// Returns a header with this many copies of its keyslot.
fn with_keyslots(count: usize) -> Vec<u8> {
    let (mut bytes, mut metadata) = (REAL.to_vec(), metadata());
    let names: Vec<String> = (0..count).map(|name| name.to_string()).collect();
    for name in &names {
        metadata["keyslots"][name] = metadata["keyslots"]["0"].clone();
        // Without blanks, all of them fit.
        metadata["keyslots"][name]["area"]["size"] = json!("131072");
    }
    metadata["digests"]["0"]["keyslots"] = json!(names);
    forge(&mut bytes, 0, SEQUENCE, &metadata);
    forge(&mut bytes, 1, SEQUENCE, &metadata);
    bytes
}

#[test]
fn a_header_is_one_budget_for_all_of_its_keyslots() {
    let refused = |bytes: &[u8], limits: &Limits| {
        let key = read(bytes).and_then(|it| it.unlock(&mut Cursor::new(bytes), b"another", None, limits));
        key.expect_err("nothing opens it")
    };
    let message = refused(&with_keyslots(33), &LIMITS);
    assert_eq!(message, "the LUKS header has 33 keyslots; 32 are possible");
    let many = with_keyslots(32);
    let kdf = &metadata()["keyslots"]["0"]["kdf"];
    let work = kdf["time"].as_u64().and_then(|time| Some(time * kdf["memory"].as_u64()?)).expect("numbers");
    assert_eq!(refused(&many, &LIMITS), "no keyslot opens with this passphrase");
    let message = refused(&many, &Limits { argon2_kib: 31 * work, ..LIMITS });
    assert!(message.contains("more work than Sluice does for one header"), "{message}");
    let verify = metadata()["digests"]["0"]["iterations"].as_u64().expect("a number") as u32;
    let message = refused(&many, &Limits { iterations: 31 * verify, ..LIMITS });
    assert!(message.contains("more work than Sluice does for one header"), "{message}");
    let message = refused(&many, &Limits { time: std::time::Duration::ZERO, ..LIMITS });
    assert!(message.contains("the time for one header is up"), "{message}");
}

#[test]
fn what_is_no_header_is_refused() {
    assert!(read(b"").is_err_and(|message| message.contains("cannot be read")));
    assert_eq!(read(&[0; 8192]).expect_err("zeros"), "there is no LUKS header");
    let mut first = REAL.to_vec();
    first[7] = 1;
    let message = read(&first[..COPY]).expect_err("the second copy is missing");
    assert_eq!(message, "the LUKS header has version 1, not 2: see `cryptsetup convert`");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Checks that any damage is detected or does not matter.
    #[test]
    fn damage_never_opens_another_disk(
        changes in prop::collection::vec((0..2 * COPY, any::<u8>()), 1..4), length in 0..REAL.len()
    ) {
        let mut bytes = REAL.to_vec();
        changes.iter().for_each(|&(place, byte)| bytes[place] = byte);
        if let Ok(header) = read(&bytes) {
            prop_assert_eq!((header.segment().sector_size, header.segment().iv_tweak), (4096, 0));
        }
        let _ = read(&bytes[..length]);
    }
}
