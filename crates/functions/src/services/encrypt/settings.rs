//! Options of encryption: the source of the key, and the layout and numbers of sectors.

use super::Encrypt;
use crate::services::service::check_options;
use crate::store::parse_bytes;
use rustix::fs::OFlags;
use sluice_crypt::luks::{Header, Limits, Segment};
use sluice_crypt::{Given, SecretBytes, Source, Xts, sealed};
use sluice_memory::Secret;
use sluice_uif::Options;
use std::fs::File;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};

/// Bytes of the sectors that dm-crypt's plain64 counts, whatever size it encrypts.
const SECTOR: u64 = 512;

/// Layout of an encrypted disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Bytes that are encrypted under one tweak: a power of two, 512 to 4096.
    pub(super) sector_size: u64,
    /// Bytes for which the tweak grows by one.
    counted: u64,
    /// Tweak of the first sector.
    first: u64,
    /// Bytes of the disk; zero for all there are.
    pub(super) size: u64,
}

impl From<Segment> for Layout {
    fn from(segment: Segment) -> Self {
        let (sector_size, size) = (segment.sector_size.into(), segment.size.unwrap_or(0));
        Self { sector_size, counted: SECTOR, first: segment.iv_tweak, size }
    }
}

impl Layout {
    /// Returns the tweaks of the sectors from `offset` bytes on. They are numbers of 64 bits, which wrap.
    pub(super) fn tweaks(self, offset: u64) -> impl Iterator<Item = u128> + use<> {
        let step = self.sector_size / self.counted;
        let first = (offset / self.counted).wrapping_add(self.first);
        (0u64..).map(move |n| first.wrapping_add(n.wrapping_mul(step)).into())
    }

    /// Returns the smallest unit of a request: whole sectors, of a size that a drive can have.
    pub(super) fn block_size(self) -> u32 {
        if self.sector_size == SECTOR { 512 } else { 4096 }
    }
}

/// Opens the key. It is nowhere else than in the result afterwards.
pub(super) fn open(options: &Options, given: &Given) -> Result<(Secret<Xts>, Layout), String> {
    check_options::<Encrypt>(options)?;
    let [key_file, credential, key_fd] = ["key_file", "credential", "key_fd"].map(|key| options.get(key));
    let secret = Source::of(key_file, credential, key_fd)?.read(given)?;
    let (key, layout) = match options.get("luks") {
        Some(path) => unlock(path, &secret, options).map_err(|what| format!("{path}: {what}"))?,
        None => (secret, layout(options)?),
    };
    let cipher = sealed(|| Xts::new(&key).map(Secret::new));
    match cipher {
        Some(Ok(cipher)) => Ok((cipher, layout)),
        Some(Err(error)) => Err(format!("there is no memory for a key: {error}")),
        None => Err(format!("the key has {} bytes; an AES-XTS key has 32 or 64", key.len())),
    }
}

fn layout(options: &Options) -> Result<Layout, String> {
    if let Some(key) = ["keyslot", "data_offset"].into_iter().find(|key| options.get(key).is_some()) {
        return Err(format!("{key} is an option beside luks"));
    }
    let sector_size = match options.get("sector_size").unwrap_or("512") {
        "512" => 512,
        "1024" => 1024,
        "2048" => 2048,
        "4096" => 4096,
        other => return Err(format!("sector_size is 512, 1024, 2048 or 4096, not {other}")),
    };
    let counted = match options.get("large_sectors").unwrap_or("no") {
        "no" => SECTOR,
        "yes" => sector_size,
        other => return Err(format!("large_sectors is yes or no, not {other}")),
    };
    Ok(Layout { sector_size, counted, first: 0, size: 0 })
}

/// Checks that the data begins where the header has it: otherwise writes would overwrite the header.
fn check_place(segment: Segment, options: &Options) -> Result<(), String> {
    let moved = options.get("data_offset").unwrap_or("0");
    let bytes = parse_bytes(moved);
    if bytes.ok_or_else(|| format!("data_offset is a number of bytes, or like 16MiB, not {moved}"))?
        == segment.offset
    {
        return Ok(());
    }
    let offset = segment.offset;
    let size = segment.size.map_or_else(String::new, |size| format!(", size = {size}"));
    Err(format!(
        "its data begins at byte {offset}, not {moved}: add the option data_offset = \"{offset}\", and below this \
         function {{ kind = \"range\", from = {offset}{size} }}"
    ))
}

/// Opens a file or a block device with a header. Never blocks on any other kind of file.
pub(super) fn open_header(path: &str) -> Result<File, String> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path);
    let file = file.map_err(|error| format!("cannot be opened: {error}"))?;
    let kind = file.metadata().map_err(|error| error.to_string())?.file_type();
    match kind.is_file() || kind.is_block_device() {
        true => Ok(file),
        false => Err("it is neither a file nor a block device".to_owned()),
    }
}

/// Returns the key in a LUKS2 header, by the passphrase.
fn unlock(path: &str, passphrase: &[u8], options: &Options) -> Result<(SecretBytes, Layout), String> {
    if let Some(own) = ["sector_size", "large_sectors"].into_iter().find(|key| options.get(key).is_some()) {
        return Err(format!("the LUKS header has {own}: leave it out"));
    }
    let keyslot = match options.get("keyslot").map(str::parse) {
        None => None,
        Some(Ok(number)) => Some(number),
        Some(Err(_)) => return Err("keyslot is a number".to_owned()),
    };
    let mut file = open_header(path)?;
    let header = Header::read(&mut file)?;
    let segment = header.segment();
    check_place(segment, options)?;
    let key = header.unlock(&mut file, passphrase, keyslot, &Limits::default())?;
    Ok((key, segment.into()))
}
