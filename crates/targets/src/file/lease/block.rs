//! The block of a lease: one sector, so that a device writes all of it or nothing.

use sluice_nvme_tcp::crc32c;

/// Bytes that are read and written: a block of every device.
pub(super) const BLOCK_BYTES: usize = 4096;

/// Bytes with something in them: a sector of every device.
const SECTOR_BYTES: usize = 512;
const CRC_AT: usize = SECTOR_BYTES - 4;
const NAME_AT: usize = 48;
const NAME_MAX: usize = 256;
const MAGIC: [u8; 8] = *b"SLUICELS";
/// Version of the layout, and of the time that a holder may go without renewing.
const VERSION: u32 = 1;
const HELD: u32 = 1;

/// A claim to a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    /// Random number, a new one for each attempt to take the lease.
    pub(super) holder: u128,
    /// Counter that goes up with each renewal.
    pub(super) counter: u64,
    /// Host and process, for people.
    pub(super) name: String,
    /// Whether the holder has the lease; false once it has given the lease back.
    pub(super) held: bool,
}

/// Contents of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// Zeros: it was never held.
    Blank,
    Claim(Claim),
    /// Something that is no lease of this version.
    Other,
}

impl Claim {
    pub(super) fn encode(&self, block: &mut [u8]) {
        block.fill(0);
        block[..8].copy_from_slice(&MAGIC);
        block[8..12].copy_from_slice(&VERSION.to_le_bytes());
        block[12..16].copy_from_slice(&(if self.held { HELD } else { 0 }).to_le_bytes());
        block[16..32].copy_from_slice(&self.holder.to_le_bytes());
        block[32..40].copy_from_slice(&self.counter.to_le_bytes());
        let end = self.name.floor_char_boundary(NAME_MAX);
        block[NAME_AT..NAME_AT + end].copy_from_slice(&self.name.as_bytes()[..end]);
        let crc = crc32c(&block[..CRC_AT]);
        block[CRC_AT..SECTOR_BYTES].copy_from_slice(&crc.to_le_bytes());
    }
}

impl Content {
    pub(super) fn decode(block: &[u8]) -> Self {
        let Some(sector) = block.get(..SECTOR_BYTES) else { return Self::Other };
        if sector.iter().all(|byte| *byte == 0) {
            return Self::Blank;
        }
        let word =
            |at: usize| u32::from_le_bytes([sector[at], sector[at + 1], sector[at + 2], sector[at + 3]]);
        if sector[..8] != MAGIC || word(8) != VERSION || word(CRC_AT) != crc32c(&sector[..CRC_AT]) {
            return Self::Other;
        }
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let name = sector[NAME_AT..NAME_AT + NAME_MAX].split(|byte| *byte == 0).next().unwrap_or_default();
        Self::Claim(Claim {
            holder: u128::from(long(16)) | u128::from(long(24)) << 64,
            counter: long(32),
            // The name goes to a log and to a terminal.
            name: String::from_utf8_lossy(name).chars().filter(|it| !it.is_control()).collect(),
            held: word(12) & HELD != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim() -> Claim {
        Claim { holder: u128::MAX - 5, counter: 1 << 40, name: "hôst, process 7".to_owned(), held: true }
    }

    #[test]
    fn a_claim_is_read_as_it_was_written() {
        let mut block = [0xa5; BLOCK_BYTES];
        for held in [true, false] {
            let claim = Claim { held, ..claim() };
            claim.encode(&mut block);
            assert_eq!(Content::decode(&block), Content::Claim(claim));
        }
        Claim { name: "ä".repeat(NAME_MAX), ..claim() }.encode(&mut block);
        assert!(matches!(Content::decode(&block), Content::Claim(claim) if claim.name.len() == NAME_MAX));
    }

    #[test]
    fn zeros_are_blank_and_anything_else_is_no_lease() {
        assert_eq!(Content::decode(&[0; BLOCK_BYTES]), Content::Blank);
        let mut block = [0; BLOCK_BYTES];
        claim().encode(&mut block);
        for at in 0..SECTOR_BYTES {
            block[at] ^= 0x10;
            assert_eq!(Content::decode(&block), Content::Other, "byte {at}");
            block[at] ^= 0x10;
        }
        assert_eq!(Content::decode(&block[..100]), Content::Other);
        // A later version has other times, so its claim is not watched.
        for at in [0, 8] {
            claim().encode(&mut block);
            block[at] += 1;
            let crc = crc32c(&block[..CRC_AT]);
            block[CRC_AT..SECTOR_BYTES].copy_from_slice(&crc.to_le_bytes());
            assert_eq!(Content::decode(&block), Content::Other, "byte {at}");
        }
    }
}
