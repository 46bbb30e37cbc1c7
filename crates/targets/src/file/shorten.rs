//! Cutting off the end of a file, in chunks that the kernel finishes soon.
//!
//! One call takes as long as the file has extents behind its new end, and all other I/O on the file waits for it.

use std::fs::File as OsFile;
use std::io;
use std::time::{Duration, Instant};

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

/// Bytes of the shortest and the longest chunk: 2048 extents of 8 KiB, as in a Deallocate.
pub(super) const BOUNDS: (u64, u64) = (64 << 10, 16 << 20);
/// A chunk that took longer is followed by a shorter one; one that took less than half, by a longer one.
pub(super) const LONG: Duration = Duration::from_millis(20);

/// Shortens the file from `size` to `wanted` bytes. Blocks.
///
/// # Errors
/// Returns an error of the file system. The file has any length between the two then.
pub(super) fn shorten(file: &OsFile, size: u64, wanted: u64) -> io::Result<()> {
    let (mut end, mut chunk) = (size, BOUNDS.0);
    while end > wanted && has_data(file, wanted)? {
        end = end.saturating_sub(chunk).max(wanted);
        let began = Instant::now();
        file.set_len(end)?;
        chunk = next(chunk, began.elapsed());
    }
    file.set_len(wanted)
}

/// Returns the length of the chunk after one that took so long, bytes.
pub(super) fn next(chunk: u64, took: Duration) -> u64 {
    let (shortest, longest) = BOUNDS;
    match took {
        took if took > LONG => (chunk / 2).max(shortest),
        took if took < LONG / 2 => (chunk * 2).min(longest),
        _ => chunk,
    }
}

/// Returns whether anything is stored from `offset` on; true where the file system cannot report that.
pub(super) fn has_data(file: &OsFile, offset: u64) -> io::Result<bool> {
    match seek(file, SeekFrom::Data(offset)) {
        Ok(_) | Err(Errno::INVAL) => Ok(true),
        Err(Errno::NXIO) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}
