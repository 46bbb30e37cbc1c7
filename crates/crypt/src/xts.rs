//! XTS-AES (IEEE 1619-2018, 5.3) for whole blocks: sectors have no partial block that would need ciphertext
//! stealing.

use aes::cipher::consts::U16;
use aes::cipher::inout::InOutBuf;
use aes::cipher::{BlockDecrypt, BlockEncrypt, KeyInit};
use aes::{Aes128, Aes256, Block};
use std::fmt;

/// Bytes of a block of AES.
const BLOCK: usize = 16;

/// Blocks that are ciphered together: those of 512 bytes. Eight would keep the processor's AES units busy,
/// but each call has a cost: with 32 a byte takes an eighth less.
const BATCH: usize = 32;

/// Expanded keys, both. Zeroed when dropped, by the cipher. Stored inline: a box would be outside of the
/// pages of the secret.
#[allow(clippy::large_enum_variant)]
pub enum Xts {
    Aes128(Aes128, Aes128),
    Aes256(Aes256, Aes256),
}

impl Xts {
    /// Creates a cipher from both keys, one after the other, as in dm-crypt: 32 bytes or 64. `None` for
    /// another length.
    pub fn new(key: &[u8]) -> Option<Self> {
        let (data, tweak) = key.split_at_checked(key.len() / 2)?;
        match key.len() {
            32 => Some(Self::Aes128(Aes128::new_from_slice(data).ok()?, Aes128::new_from_slice(tweak).ok()?)),
            64 => Some(Self::Aes256(Aes256::new_from_slice(data).ok()?, Aes256::new_from_slice(tweak).ok()?)),
            _ => None,
        }
    }

    /// Encrypts a sector, whole blocks, under the number of its data unit.
    pub fn encrypt(&self, number: u128, sector: &mut [u8]) {
        match self {
            Self::Aes128(data, tweak) => walk(|b| data.encrypt_blocks_inout(b), tweak, number, sector),
            Self::Aes256(data, tweak) => walk(|b| data.encrypt_blocks_inout(b), tweak, number, sector),
        }
    }

    /// Decrypts a sector, whole blocks, under the number of its data unit.
    pub fn decrypt(&self, number: u128, sector: &mut [u8]) {
        match self {
            Self::Aes128(data, tweak) => walk(|b| data.decrypt_blocks_inout(b), tweak, number, sector),
            Self::Aes256(data, tweak) => walk(|b| data.decrypt_blocks_inout(b), tweak, number, sector),
        }
    }
}

impl fmt::Debug for Xts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Xts")
    }
}

/// Processes blocks in place, in both directions: each is masked, ciphered, and masked again.
fn walk(
    cipher: impl Fn(InOutBuf<'_, '_, Block>),
    tweak_cipher: &impl BlockEncrypt<BlockSize = U16>,
    number: u128,
    sector: &mut [u8],
) {
    debug_assert!(sector.len().is_multiple_of(BLOCK), "a rest would stay as it is");
    let mut first = Block::from(number.to_le_bytes());
    tweak_cipher.encrypt_block(&mut first);
    let mut mask = u128::from_le_bytes(first.into());
    let mut masks = [0u128; BATCH];
    for batch in sector.chunks_mut(BATCH * BLOCK) {
        let (blocks, _) = batch.as_chunks_mut::<BLOCK>();
        each(blocks, &mut masks, |block, place| {
            *place = mask;
            *block = masked(*block, mask);
            mask = double(mask);
        });
        cipher(InOutBuf::from(&mut *batch).into_chunks().0);
        let (blocks, _) = batch.as_chunks_mut::<BLOCK>();
        each(blocks, &mut masks, |block, mask| *block = masked(*block, *mask));
    }
}

/// Calls a function for each block and its mask. Several are in one step of the loop, whose own instructions
/// would be a third of all.
#[inline(always)]
fn each(
    blocks: &mut [[u8; BLOCK]],
    masks: &mut [u128; BATCH],
    mut does: impl FnMut(&mut [u8; BLOCK], &mut u128),
) {
    const STEP: usize = 8;
    let (steps, rest) = blocks.as_chunks_mut::<STEP>();
    let (masks, _) = masks.as_chunks_mut::<STEP>();
    for (blocks, masks) in steps.iter_mut().zip(&mut *masks) {
        blocks.iter_mut().zip(masks).for_each(|(block, mask)| does(block, mask));
    }
    if let Some(masks) = masks.get_mut(steps.len()) {
        rest.iter_mut().zip(masks).for_each(|(block, mask)| does(block, mask));
    }
}

#[inline]
fn masked(block: [u8; BLOCK], mask: u128) -> [u8; BLOCK] {
    (u128::from_le_bytes(block) ^ mask).to_le_bytes()
}

/// Multiplies by alpha in GF(2^128) with x^128 + x^7 + x^2 + x + 1 (5.2).
#[inline]
fn double(mask: u128) -> u128 {
    let carry = ((mask as i128) >> 127) as u128;
    (mask << 1) ^ (carry & 0x87)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
        let byte =
            |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("digits"), 16).expect("hex");
        digits.chunks_exact(2).map(byte).collect()
    }

    /// Key, data unit number, plaintext and ciphertext of IEEE 1619, annex B: vectors 1 to 3, of two blocks.
    const SHORT: [(&str, u128, &str, &str); 3] = [
        (
            "0000000000000000000000000000000000000000000000000000000000000000",
            0,
            "0000000000000000000000000000000000000000000000000000000000000000",
            "917cf69ebd68b2ec9b9fe9a3eadda692cd43d2f59598ed858c02c2652fbf922e",
        ),
        (
            "1111111111111111111111111111111122222222222222222222222222222222",
            0x33_3333_3333,
            "4444444444444444444444444444444444444444444444444444444444444444",
            "c454185e6a16936e39334038acef838bfb186fff7480adc4289382ecd6d394f0",
        ),
        (
            "fffefdfcfbfaf9f8f7f6f5f4f3f2f1f022222222222222222222222222222222",
            0x33_3333_3333,
            "4444444444444444444444444444444444444444444444444444444444444444",
            "af85336b597afc1a900b2eb21ec949d292df4c047e0b21532186a5971a227a89",
        ),
    ];

    #[test]
    fn short_vectors_of_the_standard() {
        for (key, number, plain, cipher) in SHORT {
            let xts = Xts::new(&bytes(key)).expect("a key");
            let mut data = bytes(plain);
            xts.encrypt(number, &mut data);
            assert_eq!(data, bytes(cipher));
            xts.decrypt(number, &mut data);
            assert_eq!(data, bytes(plain));
        }
    }

    /// Checks vectors 4 and 10: a whole sector of counting bytes. The first and last blocks of the ciphertext
    /// depend on every mask between.
    #[test]
    fn sector_vectors_of_the_standard() {
        let short = "27182818284590452353602874713526 31415926535897932384626433832795";
        let long = "2718281828459045235360287471352662497757247093699959574966967627\
                    3141592653589793238462643383279502884197169399375105820974944592";
        let vectors = [
            (short, 0, "27a7479befa1d476489f308cd4cfa6e2", "0a282df920147beabe421ee5319d0568"),
            (long, 0xff, "1c3b3a102f770386e4836c99e370cf9b", "c4f36ffda9fcea70b9c6e693e148c151"),
        ];
        for (key, number, first, last) in vectors {
            let xts = Xts::new(&bytes(key)).expect("a key");
            let plain: Vec<u8> = (0..512).map(|n| n as u8).collect();
            let mut data = plain.clone();
            xts.encrypt(number, &mut data);
            assert_eq!((&data[..16], &data[496..]), (&bytes(first)[..], &bytes(last)[..]));
            xts.decrypt(number, &mut data);
            assert!(data == plain);
        }
    }
}
