//! XTS-AES (IEEE 1619-2018, 5.3) for whole blocks: sectors have no rest that would need stealing.

use aes::cipher::{BlockDecrypt, BlockEncrypt, KeyInit};
use aes::{Aes128, Aes256, Block};

/// Bytes of a block of AES.
const BLOCK: usize = 16;

/// Blocks that are ciphered together: as many as the processor's AES units keep busy.
const BATCH: usize = 8;

/// Both keys, expanded. Zeroed when dropped, by the cipher. In one piece: a box would be elsewhere than on
/// the pages of the secret.
#[allow(clippy::large_enum_variant)]
pub(super) enum Xts {
    Aes128(Aes128, Aes128),
    Aes256(Aes256, Aes256),
}

impl Xts {
    /// From both keys, one after the other, as dm-crypt takes them: 32 bytes or 64.
    pub(super) fn new(key: &[u8]) -> Option<Self> {
        let (data, tweak) = key.split_at_checked(key.len() / 2)?;
        match key.len() {
            32 => Some(Self::Aes128(Aes128::new_from_slice(data).ok()?, Aes128::new_from_slice(tweak).ok()?)),
            64 => Some(Self::Aes256(Aes256::new_from_slice(data).ok()?, Aes256::new_from_slice(tweak).ok()?)),
            _ => None,
        }
    }

    /// Encrypts a sector, whole blocks, under the number of its data unit.
    pub(super) fn encrypt(&self, number: u128, sector: &mut [u8]) {
        match self {
            Self::Aes128(data, tweak) => walk(|b| data.encrypt_blocks(b), tweak, number, sector),
            Self::Aes256(data, tweak) => walk(|b| data.encrypt_blocks(b), tweak, number, sector),
        }
    }

    pub(super) fn decrypt(&self, number: u128, sector: &mut [u8]) {
        match self {
            Self::Aes128(data, tweak) => walk(|b| data.decrypt_blocks(b), tweak, number, sector),
            Self::Aes256(data, tweak) => walk(|b| data.decrypt_blocks(b), tweak, number, sector),
        }
    }
}

/// Both directions: each block is masked, ciphered, and masked again.
fn walk(
    cipher: impl Fn(&mut [Block]),
    tweak_cipher: &impl BlockEncrypt<BlockSize = aes::cipher::consts::U16>,
    number: u128,
    sector: &mut [u8],
) {
    debug_assert!(sector.len().is_multiple_of(BLOCK), "a rest would stay as it is");
    let mut first = Block::from(number.to_le_bytes());
    tweak_cipher.encrypt_block(&mut first);
    let mut mask = u128::from_le_bytes(first.into());
    for batch in sector.chunks_mut(BATCH * BLOCK) {
        let (mut blocks, mut masks) = ([Block::default(); BATCH], [0u128; BATCH]);
        for (n, bytes) in batch.chunks_exact(BLOCK).enumerate() {
            masks[n] = mask;
            blocks[n] = masked(bytes, mask);
            mask = double(mask);
        }
        let count = batch.len() / BLOCK;
        cipher(&mut blocks[..count]);
        for (n, bytes) in batch.chunks_exact_mut(BLOCK).enumerate() {
            bytes.copy_from_slice(&masked(&blocks[n], masks[n]));
        }
    }
}

#[inline]
fn masked(bytes: &[u8], mask: u128) -> Block {
    let mut block = [0; BLOCK];
    block.copy_from_slice(bytes);
    Block::from((u128::from_le_bytes(block) ^ mask).to_le_bytes())
}

/// Times alpha in GF(2^128) with x^128 + x^7 + x^2 + x + 1 (5.2).
#[inline]
fn double(mask: u128) -> u128 {
    (mask << 1) ^ ((mask >> 127) * 0x87)
}
