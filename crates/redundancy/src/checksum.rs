//! CRC-32C (Castagnoli), as iSCSI and ext4 use it (RFC 3720, appendix B.4).

const TABLE: [u32; 256] = table();

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut word = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            word = if word & 1 == 1 { word >> 1 ^ 0x82f6_3b78 } else { word >> 1 };
            bit += 1;
        }
        table[byte] = word;
        byte += 1;
    }
    table
}

/// Of some pieces of memory, one after the other.
pub(crate) fn crc32c(pieces: &[&[u8]]) -> u32 {
    let step = |crc: u32, byte: &u8| crc >> 8 ^ TABLE[usize::from(crc as u8 ^ byte)];
    !pieces.iter().copied().flatten().fold(!0, step)
}

#[cfg(test)]
mod tests {
    use super::crc32c;

    #[test]
    fn vectors_of_the_standard() {
        assert_eq!(crc32c(&[b"123456789"]), 0xe306_9283);
        assert_eq!(crc32c(&[&[0; 32]]), 0x8a91_36aa);
        assert_eq!(crc32c(&[&[0xff; 16], &[0xff; 16]]), 0x62a8_ab43);
    }
}
