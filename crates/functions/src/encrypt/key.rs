//! Where the key comes from.

use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use zeroize::Zeroizing;

/// Bytes of the longest key, and one more to tell that there are more.
const LONGEST: usize = 64 + 1;

/// Reads a key file to its end: its raw bytes. `/dev/fd/N` is a descriptor that the process was given.
pub(super) fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, String> {
    let about = |what: String| format!("key file {}: {what}", path.display());
    let file = open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty())
        .map_err(|error| about(format!("cannot be opened: {error}")))?;
    let facts = fstat(&file).map_err(|error| about(error.to_string()))?;
    let others = facts.st_mode & 0o077;
    if FileType::from_raw_mode(facts.st_mode) == FileType::RegularFile && others != 0 {
        return Err(about(format!("others may use it (mode {:03o}): chmod 600 it", facts.st_mode & 0o777)));
    }
    // Larger than it gets: one that has to move leaves a copy behind.
    let mut key = Zeroizing::new(Vec::with_capacity(2 * LONGEST));
    let read = File::from(file).take(LONGEST as u64).read_to_end(&mut key);
    read.map_err(|error| about(format!("cannot be read: {error}")))?;
    match key.len() {
        32 | 64 => Ok(key),
        LONGEST => Err(about("it has more than 64 bytes; an AES-XTS key has 32 or 64".to_owned())),
        bytes => Err(about(format!("it has {bytes} bytes; an AES-XTS key has 32 or 64"))),
    }
}
