//! Encrypt: AES-XTS with the same bytes on the device as dm-crypt's `aes-xts-plain64`.
//!
//! A write is encrypted in the command's private copy before it goes below; a read goes below first and is
//! decrypted after. Flush and Deallocate pass the function. Zeros are written encrypted, as dm-crypt does: no
//! content of the device reads as zeros by itself. For the same reason a deallocated block reads as arbitrary
//! data.

mod settings;

use super::service::{Item, NoOrder, Service};
use settings::Layout;
use sluice_command::Operation;
use sluice_crypt::{Given, Xts, ciphering};
use sluice_memory::Secret;
use sluice_nvme::Status;
use sluice_uif::{Answer, Call, Function, Interest, Io, Options, Properties};

/// Bytes of zeros that are encrypted and written at a time.
const ZEROES: u32 = 128 << 10;

/// Stage of a written part of a Write Zeroes. Cookie 0 is the end of the whole range.
const ZEROED: u8 = 1;

/// Function with its key. The key is on pages of its own, see [`Secret`].
#[derive(Debug)]
pub struct Encrypt {
    cipher: Secret<Xts>,
    layout: Layout,
}

impl Encrypt {
    /// Creates the function from its options.
    ///
    /// The key is in `key_file`, `credential` or `key_fd`. Either `sector_size` (512) and `large_sectors`
    /// (no) describe the layout; `large_sectors` is dm-crypt's `iv_large_sectors`: tweaks count sectors of
    /// their own size. Or `luks` names a header that has the layout and the key; the secret is a passphrase
    /// then.
    ///
    /// # Errors
    /// The options or the key are not valid. The text never has a byte of the key in it.
    pub fn new(options: &Options, given: &Given) -> Result<Self, String> {
        let (cipher, layout) = settings::open(options, given)?;
        Ok(Self { cipher, layout })
    }

    /// Encrypts data that belongs at `offset` bytes.
    fn encrypt(&self, offset: u64, data: &mut [u8]) {
        self.each_sector(offset, data, Xts::encrypt);
    }

    fn decrypt(&self, offset: u64, data: &mut [u8]) {
        self.each_sector(offset, data, Xts::decrypt);
    }

    fn each_sector(&self, offset: u64, data: &mut [u8], cipher: fn(&Xts, u128, &mut [u8])) {
        let sectors = data.chunks_exact_mut(self.layout.sector_size as usize);
        ciphering(|| {
            sectors.zip(self.layout.tweaks(offset)).for_each(|(s, tweak)| cipher(&self.cipher, tweak, s))
        });
    }

    /// Continues to write zeros at `offset`, as many as there is room for.
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

impl Service for Encrypt {
    const NAME: &'static str = "encrypt";
    const ABOUT: &'static str =
        "Encrypts the data in the format of dm-crypt, with a raw key or a LUKS2 header.";
    const OPTIONS: &'static [Item] = &[
        Item { name: "key_file", about: "File with the key or the passphrase." },
        Item { name: "credential", about: "Credential of systemd's with it, by name." },
        Item { name: "key_fd", about: "Number of an inherited descriptor with it." },
        Item { name: "luks", about: "File that begins with a LUKS2 header." },
        Item { name: "keyslot", about: "Only keyslot of the header to try." },
        Item { name: "data_offset", about: "Offset of the data behind the header, in bytes." },
        Item { name: "sector_size", about: "Bytes of a sector, `512` by default." },
        Item { name: "large_sectors", about: "`yes` for dm-crypt's `iv_large_sectors`." },
    ];

    const KEEPS_STATE: bool = false;

    type Order = NoOrder;

    fn make(options: &Options, given: &Given) -> Result<Box<dyn Function>, String> {
        Ok(Box::new(Self::new(options, given)?))
    }

    fn keeps_size(options: &Options) -> bool {
        // A LUKS header may contain the size of its data.
        options.get("luks").is_none()
    }
}

impl Function for Encrypt {
    fn properties(&self) -> Properties {
        let block_size = self.layout.block_size();
        let size = self.layout.size;
        Properties { block_size, scratch: ZEROES, transforms: true, size, ..Properties::NONE }
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
