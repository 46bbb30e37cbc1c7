//! The block of a lease in its file or partition: read and written as a whole, past every cache.

use super::block::{BLOCK_BYTES, Claim, Content};
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Alignment of a buffer's address that direct I/O of every device accepts.
const ALIGNMENT: usize = 4096;

#[derive(Debug)]
pub(super) struct BlockFile {
    file: File,
    /// Room for a block at an aligned address.
    buffer: Vec<u8>,
}

impl BlockFile {
    /// Opens a file that exists. A new file would be on the wrong disk as a rule.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let open = |flags: OFlags| {
            let flags = flags | OFlags::DSYNC;
            OpenOptions::new().read(true).write(true).custom_flags(flags.bits().cast_signed()).open(path)
        };
        let file = match open(OFlags::DIRECT) {
            // The file system has no direct I/O, and so no second machine.
            Err(error) if error.kind() == ErrorKind::InvalidInput && path.is_file() => open(OFlags::empty()),
            opened => opened,
        }?;
        Ok(Self { file, buffer: vec![0; BLOCK_BYTES + ALIGNMENT] })
    }

    pub(super) fn read(&mut self) -> io::Result<Content> {
        let Self { file, buffer } = self;
        let block = aligned(buffer);
        file.read_exact_at(block, 0)?;
        Ok(Content::decode(block))
    }

    pub(super) fn write(&mut self, claim: &Claim) -> io::Result<()> {
        let Self { file, buffer } = self;
        let block = aligned(buffer);
        claim.encode(block);
        file.write_all_at(block, 0)
    }
}

fn aligned(buffer: &mut [u8]) -> &mut [u8] {
    let at = buffer.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
    &mut buffer[at..at + BLOCK_BYTES]
}
