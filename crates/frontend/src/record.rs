//! Parts of front-ends' records for another process: descriptors, and the reasons why a record is not possible.

use sluice_command::record::{Reader, RecordError, Writer};
use sluice_controller::CannotHandOver;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// Reason why a front-end was not handed over.
#[derive(Debug)]
pub enum HandOverError {
    /// State that cannot be handed over, now or at all.
    Cannot(CannotHandOver),
    /// Record that cannot be read.
    Record(RecordError),
    Io(io::Error),
}

impl fmt::Display for HandOverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cannot(why) => why.fmt(f),
            Self::Record(error) => write!(f, "a record cannot be read: {error}"),
            Self::Io(error) => write!(f, "a descriptor cannot be handed over: {error}"),
        }
    }
}

impl std::error::Error for HandOverError {}

impl From<CannotHandOver> for HandOverError {
    fn from(why: CannotHandOver) -> Self {
        Self::Cannot(why)
    }
}

impl From<RecordError> for HandOverError {
    fn from(error: RecordError) -> Self {
        Self::Record(error)
    }
}

impl From<io::Error> for HandOverError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Descriptors that a record names, in the process that hands over.
#[derive(Debug, Default)]
pub struct Outgoing {
    fds: Vec<OwnedFd>,
    /// Index of each descriptor that is in the list.
    known: BTreeMap<RawFd, u32>,
    failed: Option<io::Error>,
}

impl Outgoing {
    /// Writes the name of a descriptor.
    pub fn put(&mut self, part: &mut Writer, fd: BorrowedFd<'_>) {
        let next = self.fds.len() as u32;
        let index = *self.known.entry(fd.as_raw_fd()).or_insert(next);
        if index == next {
            match fd.try_clone_to_owned() {
                Ok(copy) => self.fds.push(copy),
                Err(error) => self.failed = Some(error),
            }
        }
        part.put(index);
    }

    /// Returns the descriptors in their order.
    ///
    /// # Errors
    /// One could not be copied.
    pub fn finish(self) -> io::Result<Vec<OwnedFd>> {
        self.failed.map_or(Ok(self.fds), Err)
    }
}

/// Descriptors that a record names, in the process that takes over.
#[derive(Debug)]
pub struct Incoming(pub Vec<OwnedFd>);

impl Incoming {
    /// Returns a copy of the descriptor with the name that comes next.
    ///
    /// # Errors
    /// There is no such descriptor, or no room for a copy.
    pub fn take(&self, part: &mut Reader<'_>) -> Result<OwnedFd, HandOverError> {
        let fd = self.0.get(part.get::<u32>()? as usize).ok_or(RecordError::Invalid("descriptor"))?;
        Ok(fd.try_clone()?)
    }
}

/// Reads a list whose entries have descriptors.
///
/// # Errors
/// The list is longer than `most`, or an entry cannot be read.
pub fn list<T>(
    part: &mut Reader<'_>,
    most: usize,
    mut each: impl FnMut(&mut Reader<'_>) -> Result<T, HandOverError>,
) -> Result<Vec<T>, HandOverError> {
    let mut left = part.below(most as u32 + 1, "length")?;
    let mut entries = Vec::new();
    while left > 0 {
        entries.push(each(part)?);
        left -= 1;
    }
    Ok(entries)
}

/// Reads a value with a descriptor that may be absent.
///
/// # Errors
/// The value cannot be read.
pub fn option<T>(
    part: &mut Reader<'_>,
    get: impl FnOnce(&mut Reader<'_>) -> Result<T, HandOverError>,
) -> Result<Option<T>, HandOverError> {
    if part.get()? { get(part).map(Some) } else { Ok(None) }
}
