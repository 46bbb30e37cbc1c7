//! Header and data digests: CRC32C (TCP Transport 3.3.1.1).

/// Returns the digest of a contiguous buffer, as it is on the wire.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

/// The digest of bytes that come in several parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digest(u32);

impl Digest {
    pub fn new() -> Self {
        Self(0)
    }

    pub fn add(&mut self, bytes: &[u8]) {
        self.0 = crc32c::crc32c_append(self.0, bytes);
    }

    pub fn value(self) -> u32 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the examples of RFC 3720, B.4.
    #[test]
    fn known_answers() {
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        let ascending: Vec<u8> = (0..32).collect();
        assert_eq!(crc32c(&ascending), 0x46dd_794e);
    }

    #[test]
    fn pieces_are_as_good_as_the_whole() {
        let bytes: Vec<u8> = (0..=255).cycle().take(1000).collect();
        let mut digest = Digest::new();
        bytes.chunks(7).for_each(|piece| digest.add(piece));
        assert_eq!(digest.value(), crc32c(&bytes));
    }
}
