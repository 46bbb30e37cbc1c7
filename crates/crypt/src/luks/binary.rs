//! The binary header: location of the metadata, and its checksum (specification, section 2.1).

use sha2::{Digest, Sha256, Sha512};
use std::io::{Read, Seek, SeekFrom};

/// Bytes of the binary header; the metadata, in JSON, follows.
const BINARY: usize = 4096;

/// Possible sizes of a copy, binary header and metadata; they are the possible offsets of the second copy,
/// too.
const SIZES: [u64; 9] =
    [16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20];

const MAGIC: [&[u8; 6]; 2] = [b"LUKS\xba\xbe", b"SKUL\xba\xbe"];
const VERSION: u16 = 2;

/// Offsets of the fields. Numbers are big-endian.
const VERSION_AT: usize = 6;
const SIZE_AT: usize = 8;
const SEQUENCE_AT: usize = 16;
const ALGORITHM_AT: usize = 72;
const OFFSET_AT: usize = 256;
const CHECKSUM_AT: usize = 448;
const CHECKSUM_BYTES: usize = 64;

/// A copy with a valid checksum.
struct Copy {
    size: u64,
    sequence: u64,
    metadata: Vec<u8>,
}

/// Returns the metadata of the newer copy, without the zeros behind it.
pub(super) fn read(file: &mut (impl Read + Seek)) -> Result<Vec<u8>, String> {
    let first = copy_at(file, 0);
    // A valid first copy contains the offset of the second; otherwise the second is searched for.
    let places: &[u64] = if let Ok(first) = &first { &[first.size] } else { &SIZES };
    let seconds = places.iter().filter_map(|&place| copy_at(file, place).ok());
    let second = seconds.max_by_key(|copy| copy.sequence);
    let newest = match (first, second) {
        (Ok(first), Some(second)) if second.sequence > first.sequence => second,
        (Ok(first), _) => first,
        (Err(_), Some(second)) => second,
        (Err(what), None) => return Err(what),
    };
    let mut metadata = newest.metadata;
    let length = metadata.iter().position(|byte| *byte == 0).unwrap_or(metadata.len());
    metadata.truncate(length);
    Ok(metadata)
}

fn copy_at(file: &mut (impl Read + Seek), place: u64) -> Result<Copy, String> {
    let mut bytes = vec![0; BINARY];
    fill(file, place, &mut bytes)?;
    let magic = MAGIC[usize::from(place != 0)];
    if bytes[..6] != magic[..] {
        return Err("there is no LUKS header".to_owned());
    }
    let version = u16::from_be_bytes([bytes[VERSION_AT], bytes[VERSION_AT + 1]]);
    if version != VERSION {
        return Err(format!("the LUKS header has version {version}, not 2: see `cryptsetup convert`"));
    }
    let (size, sequence) = (number(&bytes, SIZE_AT), number(&bytes, SEQUENCE_AT));
    if !SIZES.contains(&size) || number(&bytes, OFFSET_AT) != place || (place != 0 && place != size) {
        return Err("the LUKS header is damaged: its size or place is wrong".to_owned());
    }
    bytes.resize(size as usize, 0);
    fill(file, place + BINARY as u64, &mut bytes[BINARY..])?;
    check(&mut bytes)?;
    Ok(Copy { size, sequence, metadata: bytes.split_off(BINARY) })
}

fn fill(file: &mut (impl Read + Seek), place: u64, bytes: &mut [u8]) -> Result<(), String> {
    let read = file.seek(SeekFrom::Start(place)).and_then(|_| file.read_exact(bytes));
    read.map_err(|error| format!("the LUKS header cannot be read: {error}"))
}

fn number(bytes: &[u8], at: usize) -> u64 {
    let field = bytes[at..].first_chunk().expect("fields lie in the binary header");
    u64::from_be_bytes(*field)
}

/// Checks the checksum, which covers all of the copy, with zeros in place of the checksum.
fn check(bytes: &mut [u8]) -> Result<(), String> {
    let field = &mut bytes[CHECKSUM_AT..][..CHECKSUM_BYTES];
    let stored: [u8; CHECKSUM_BYTES] = std::array::from_fn(|n| field[n]);
    field.fill(0);
    let algorithm = bytes[ALGORITHM_AT..][..32].split(|byte| *byte == 0).next().unwrap_or_default();
    let computed = match algorithm {
        b"sha256" => Sha256::digest(&*bytes).to_vec(),
        b"sha512" => Sha512::digest(&*bytes).to_vec(),
        other => return Err(format!("the LUKS header has an unknown checksum: {}", other.escape_ascii())),
    };
    match stored.starts_with(&computed) {
        true => Ok(()),
        false => Err("the LUKS header is damaged: its checksum is wrong".to_owned()),
    }
}
