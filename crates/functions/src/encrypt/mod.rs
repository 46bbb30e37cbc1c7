//! Encrypt: AES-XTS, on the device the bytes that dm-crypt's `aes-xts-plain64` would write.
//!
//! A write is encrypted in the command's private copy before it goes below; a read goes below first and is
//! decrypted after. Flush and Deallocate pass it by. Zeros are written encrypted, as dm-crypt does it: what
//! stands below is never zeros to the host. For the same reason a deallocated block reads as something.

mod key;
mod xts;

use crate::encrypt::xts::Xts;
use sluice_command::Operation;
use sluice_memory::Secret;
use sluice_nvme::Status;
use sluice_uif::{Answer, Call, Function, Interest, Io, Options, Properties};

/// Bytes of zeros that are encrypted and written at a time.
const ZEROES: u32 = 128 << 10;

/// The stage of a part of a Write Zeroes that was written. Cookie 0 is where all of it ends.
const ZEROED: u8 = 1;

/// Bytes of what dm-crypt counts its plain64 sectors in, whatever the size it encrypts.
const SECTOR: u64 = 512;

/// What every option means.
const OPTIONS: [&str; 3] = ["key_file", "sector_size", "large_sectors"];

/// The function. The key is on pages of its own, see [`Secret`].
#[derive(Debug)]
pub struct Encrypt {
    cipher: Secret<Xts>,
    /// Bytes that are encrypted under one tweak: 512 or 4096.
    sector_size: usize,
    /// Bytes that the tweak counts.
    counted: u64,
}

impl Encrypt {
    /// From the options `key_file`, `sector_size` (512) and `large_sectors` (no), the last being dm-crypt's
    /// `iv_large_sectors`: tweaks count sectors of their own size. Opens the key file.
    ///
    /// # Errors
    /// In words, which never have a byte of the key in them.
    pub fn new(options: &Options) -> Result<Self, String> {
        if let Some(stranger) = options.stranger(&OPTIONS) {
            return Err(format!("encrypt knows no option `{stranger}`; it knows {}", OPTIONS.join(", ")));
        }
        let path = options.get("key_file").ok_or("encrypt needs the option key_file")?;
        let sector_size = match options.get("sector_size").unwrap_or("512") {
            "512" => 512,
            "4096" => 4096,
            other => return Err(format!("sector_size is 512 or 4096, not {other}")),
        };
        let counted = match options.get("large_sectors").unwrap_or("no") {
            "no" => SECTOR,
            "yes" => sector_size as u64,
            other => return Err(format!("large_sectors is yes or no, not {other}")),
        };
        let key = key::read(path.as_ref())?;
        let cipher =
            Xts::new(&key).ok_or_else(|| format!("the key has {} bytes, not 32 or 64", key.len()))?;
        let cipher = Secret::new(cipher).map_err(|error| format!("there is no memory for a key: {error}"))?;
        Ok(Self { cipher, sector_size, counted })
    }

    /// Encrypts data that belongs at `offset` bytes.
    fn encrypt(&self, offset: u64, data: &mut [u8]) {
        for (sector, tweak) in data.chunks_exact_mut(self.sector_size).zip(self.tweaks(offset)) {
            self.cipher.encrypt(tweak, sector);
        }
    }

    fn decrypt(&self, offset: u64, data: &mut [u8]) {
        for (sector, tweak) in data.chunks_exact_mut(self.sector_size).zip(self.tweaks(offset)) {
            self.cipher.decrypt(tweak, sector);
        }
    }

    fn tweaks(&self, offset: u64) -> impl Iterator<Item = u128> + use<> {
        (u128::from(offset / self.counted)..).step_by(self.sector_size / self.counted as usize)
    }

    /// Goes on to write zeros at `offset`, as many as there is room for.
    fn write_zeroes(&self, call: &mut Call<'_>, offset: u64) -> Answer {
        let left = call.cookie[0].saturating_sub(offset);
        let length = call.data.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let zeros = &mut call.data[..length];
        zeros.fill(0);
        self.encrypt(offset, zeros);
        (call.request.operation, call.request.deallocate) = (Operation::Write, false);
        (call.request.offset, call.request.length) = (offset, length as u64);
        Answer::ForwardAndReturn(ZEROED)
    }
}

impl Function for Encrypt {
    fn properties(&self) -> Properties {
        let block_size = self.sector_size as u32;
        Properties { block_size, scratch: ZEROES, transforms: true, ..Properties::NONE }
            .with(Operation::Read, Interest::After)
            .with(Operation::Write, Interest::Before)
            .with(Operation::WriteZeroes, Interest::Before)
    }

    fn submit(&mut self, call: &mut Call<'_>, _io: &mut Io<'_>) -> Answer {
        let offset = call.request.offset;
        match call.request.operation {
            Operation::Write => self.encrypt(offset, call.data),
            Operation::WriteZeroes => {
                call.cookie[0] = call.request.end();
                return self.write_zeroes(call, offset);
            }
            _ => {}
        }
        Answer::Forward
    }

    fn returned(&mut self, call: &mut Call<'_>, _io: &mut Io<'_>) -> Answer {
        if !call.status.is_success() {
            return Answer::Finish(call.status);
        }
        match (call.request.operation, call.stage) {
            (Operation::Read, _) => self.decrypt(call.request.offset, call.data),
            (_, ZEROED) if call.request.end() < call.cookie[0] => {
                let next = call.request.end();
                return self.write_zeroes(call, next);
            }
            _ => {}
        }
        Answer::Finish(Status::SUCCESS)
    }
}

#[cfg(test)]
mod tests;
