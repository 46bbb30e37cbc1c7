//! Files and block devices with labels at their end.

use crate::copies::{Copies, Found};
use crate::label::{Copy, LABEL_BYTES, Label, UNIT};
use rustix::fs::{FlockOperation, OFlags, SeekFrom, flock, seek};
use rustix::io::Errno;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Bytes at the end of a device that its label takes.
pub const AREA_BYTES: u64 = 1 << 20;

/// Distance between the two copies, bytes. The second copy is far from the first, and from the last blocks of
/// the device, which tools for partitions overwrite.
const APART: u64 = AREA_BYTES / 2;

/// Time for which a lock may outlive the process that had it: the kernel closes the files of an io_uring later.
const RELEASE: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_millis(10);

/// An open file or block device.
#[derive(Debug)]
pub struct Device {
    path: PathBuf,
    file: File,
    is_block: bool,
}

/// Failure of an access to a device.
#[derive(Debug)]
pub enum Error {
    /// The system call in these words failed.
    Io(PathBuf, &'static str, io::Error),
    /// A daemon or another program has the device.
    InUse(PathBuf),
    /// The path leads to neither a file nor a block device.
    NotStorage(PathBuf),
    /// A block device has no free bytes at its end.
    NoRoom { path: PathBuf, bytes: u64, data_bytes: u64 },
    /// The bytes at the end of a block device are in use.
    NotBlank(PathBuf),
    /// No label can have the member's size, or the chunk of its set.
    Impossible(PathBuf),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(path, what, error) => write!(f, "cannot {what} {}: {error}", path.display()),
            Self::InUse(path) => write!(f, "{} is in use by a drive or another program", path.display()),
            Self::NotStorage(path) => write!(f, "{} is neither a file nor a block device", path.display()),
            Self::NoRoom { path, bytes, data_bytes } => write!(
                f,
                "{} has {bytes} bytes, and needs {} for {data_bytes} bytes of data and its label",
                path.display(),
                needed(*data_bytes)
            ),
            Self::NotBlank(path) => {
                write!(f, "{} has bytes other than zero where its label would be", path.display())
            }
            Self::Impossible(path) => {
                write!(f, "{} cannot have a label with its size and the chunk of its set", path.display())
            }
        }
    }
}

impl std::error::Error for Error {}

impl Error {
    /// Returns the remedy, if there is one.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Io(..) => return None,
            Self::InUse(_) => "stop the daemon or delete its drive first".to_owned(),
            Self::NotStorage(_) => "only files and block devices have labels".to_owned(),
            Self::NoRoom { path, data_bytes, .. } => format!(
                "make the device longer (`lvextend`), or copy it to one of {} bytes or more, and set size = \"{data_bytes}B\" for {}",
                needed(*data_bytes),
                path.display()
            ),
            Self::Impossible(_) => {
                "nothing was written; a member needs a size, and a chunk is a multiple of 4KiB".to_owned()
            }
            Self::NotBlank(path) => format!(
                "if they are of no use, zero the last {AREA_BYTES} bytes: `blkdiscard -z -o $(($(blockdev --getsize64 {path}) - {AREA_BYTES})) {path}`",
                path = path.display()
            ),
        })
    }
}

/// Returns the bytes of a device with so much data and a label.
fn needed(data_bytes: u64) -> u64 {
    data_bytes.next_multiple_of(UNIT).saturating_add(AREA_BYTES)
}

impl Device {
    /// Opens a device for reading, also while it is in use.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::open_with(path, false, OFlags::NONBLOCK)
    }

    /// Opens a device that this process has locked already, to write its label.
    pub fn open_owned(path: &Path) -> Result<Self, Error> {
        Self::open_with(path, true, OFlags::NONBLOCK)
    }

    /// Opens a device to write its label, and locks it as a drive does. Blocks for a second if it is in use.
    pub fn claim(path: &Path) -> Result<Self, Error> {
        let device = Self::open_with(path, true, OFlags::NONBLOCK | OFlags::EXCL)?;
        let until = Instant::now() + RELEASE;
        loop {
            match flock(&device.file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(device),
                Err(Errno::WOULDBLOCK) if Instant::now() < until => sleep(RETRY),
                Err(Errno::WOULDBLOCK) => return Err(Error::InUse(path.to_owned())),
                Err(error) => return Err(Error::Io(path.to_owned(), "lock", error.into())),
            }
        }
    }

    fn open_with(path: &Path, writes: bool, flags: OFlags) -> Result<Self, Error> {
        // The kind is determined before the open, which has side effects on tapes.
        let meta = path.metadata().map_err(|error| Error::Io(path.to_owned(), "examine", error))?;
        let is_block = meta.file_type().is_block_device();
        if !is_block && !meta.is_file() {
            return Err(Error::NotStorage(path.to_owned()));
        }
        let flags = if is_block { flags } else { flags.difference(OFlags::EXCL) };
        let mut options = File::options();
        options.read(true).write(writes).custom_flags(flags.bits().cast_signed());
        match options.open(path) {
            Ok(file) => Ok(Self { path: path.to_owned(), file, is_block }),
            Err(error) if error.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => {
                Err(Error::InUse(path.to_owned()))
            }
            Err(error) => Err(Error::Io(path.to_owned(), "open", error)),
        }
    }

    /// Treats a file as a block device, which keeps its length.
    #[cfg(test)]
    pub(crate) fn into_block(self) -> Self {
        Self { is_block: true, ..self }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the length of the device.
    pub fn bytes(&self) -> Result<u64, Error> {
        seek(&self.file, SeekFrom::End(0)).map_err(|error| self.failed("measure", error.into()))
    }

    /// Returns whether the device is a file without any data.
    pub fn is_hole(&self) -> bool {
        !self.is_block && seek(&self.file, SeekFrom::Data(0)) == Err(Errno::NXIO)
    }

    /// Reads both copies of the label. A device without room for them has none.
    pub fn copies(&self) -> Result<Copies, Error> {
        let Some(start) = area(self.bytes()?) else { return Ok(Copies([Copy::Blank, Copy::Blank])) };
        let read = |offset| {
            let mut bytes = vec![0; LABEL_BYTES];
            let read = self.file.read_exact_at(&mut bytes, offset);
            read.map(|()| Label::decode(&bytes)).map_err(|error| self.failed("read the label of", error))
        };
        Ok(Copies([read(start)?, read(start + APART)?]))
    }

    /// Reads the label. A label that was made for a device of another length is of no use here.
    pub fn found(&self) -> Result<Found, Error> {
        let bytes = self.bytes()?;
        Ok(match self.copies()?.found() {
            Found::Label(label) if label.device_bytes != bytes / UNIT * UNIT => Found::Missing,
            Found::Missing if !self.is_block => self.unfinished(bytes)?,
            found => found,
        })
    }

    /// Reads the label of a file whose [extension](Self::extend) was interrupted: it ends with the first copy.
    fn unfinished(&self, bytes: u64) -> Result<Found, Error> {
        let Some(start) = bytes.checked_sub(LABEL_BYTES as u64) else { return Ok(Found::Missing) };
        let mut copy = vec![0; LABEL_BYTES];
        let read = self.file.read_exact_at(&mut copy, start);
        read.map_err(|error| self.failed("read the label of", error))?;
        Ok(match Label::decode(&copy) {
            Copy::Valid(label) if area(label.device_bytes) == Some(start) => Found::Label(label),
            // The bytes must not count as data.
            Copy::Broken => Found::Damaged,
            _ => Found::Missing,
        })
    }

    /// Returns the length of the device without the first copy of an interrupted label.
    pub fn own_bytes(&self) -> Result<u64, Error> {
        let bytes = self.bytes()?;
        Ok(match self.found()? {
            Found::Label(label) if !self.is_block && label.device_bytes > bytes => {
                area(label.device_bytes).unwrap_or(bytes)
            }
            _ => bytes,
        })
    }

    /// Returns the length that the device has with a label behind `data_bytes` of data. A file will grow; no
    /// byte of it is moved. A block device must have free bytes.
    pub fn labelled_bytes(&self, data_bytes: u64) -> Result<u64, Error> {
        let bytes = self.own_bytes()?;
        if self.is_block { self.find_room(bytes, data_bytes) } else { Ok(needed(bytes.max(data_bytes))) }
    }

    /// Gives a file the length again that it had before [`store`](Self::store), because it got no label.
    pub(crate) fn give_back_room(&self, bytes: u64) {
        if !self.is_block {
            // The failure of the label is reported.
            drop(self.file.set_len(bytes));
        }
    }

    /// Checks that a label has room, without changing anything.
    pub fn has_room(&self, data_bytes: u64) -> Result<(), Error> {
        if self.is_block { self.find_room(self.bytes()?, data_bytes).map(drop) } else { Ok(()) }
    }

    fn find_room(&self, bytes: u64, data_bytes: u64) -> Result<u64, Error> {
        let Some(start) = area(bytes).filter(|start| *start >= data_bytes) else {
            return Err(Error::NoRoom { path: self.path.clone(), bytes, data_bytes });
        };
        // A label of an earlier attempt may be there.
        if self.copies()?.found() != Found::Missing {
            return Ok(bytes);
        }
        let mut area = vec![0; AREA_BYTES as usize];
        self.file.read_exact_at(&mut area, start).map_err(|error| self.failed("read", error))?;
        match area.iter().all(|byte| *byte == 0) {
            true => Ok(bytes),
            false => Err(Error::NotBlank(self.path.clone())),
        }
    }

    /// Stores a label durably. At each moment one copy is whole, the former one or the new one. A file grows to
    /// the length of the label.
    pub fn store(&self, label: &Label) -> Result<(), Error> {
        let Some(start) = area(label.device_bytes) else {
            let (bytes, data_bytes) = (label.device_bytes, label.data_bytes);
            return Err(Error::NoRoom { path: self.path.clone(), bytes, data_bytes });
        };
        if self.bytes()? < label.device_bytes {
            self.extend(label, start)?;
        }
        let first = self.copies()?.newest().map_or(0, |newest| 1 - newest);
        for copy in [first, 1 - first] {
            let offset = start + copy as u64 * APART;
            let written = self.file.write_all_at(&label.encode(), offset);
            written.map_err(|error| self.failed("write the label of", error))?;
            self.file.sync_data().map_err(|error| self.failed("sync the label of", error))?;
        }
        Ok(())
    }

    /// Makes a file longer for its label. The first copy comes with the first new byte, so that an interruption
    /// does not leave a longer file without a label, of which the new bytes would count as data.
    fn extend(&self, label: &Label, start: u64) -> Result<(), Error> {
        let written = self.file.write_all_at(&label.encode(), start);
        written.map_err(|error| self.failed("write the label of", error))?;
        self.file.sync_all().map_err(|error| self.failed("sync the label of", error))?;
        self.file.set_len(label.device_bytes).map_err(|error| self.failed("grow", error))
    }

    /// Removes the label durably. A file has its former length again, by one step that cannot be interrupted.
    ///
    /// # Errors
    /// The device cannot be written.
    pub fn forget(&self) -> Result<(), Error> {
        let (bytes, found) = (self.bytes()?, self.found()?);
        // The label of a file may be unfinished. Then its place does not follow from the length.
        let start = match &found {
            Found::Label(label) => area(label.device_bytes),
            _ => area(bytes),
        };
        let Some(start) = start else { return Ok(()) };
        if self.is_block {
            for offset in [start, start + APART] {
                let written = self.file.write_all_at(&[0; LABEL_BYTES], offset);
                written.map_err(|error| self.failed("write the label of", error))?;
            }
        } else {
            let former = match found {
                Found::Label(label) if self.is_blank(label.data_bytes, start)? => label.data_bytes,
                _ => start,
            };
            self.file.set_len(former).map_err(|error| self.failed("shorten", error))?;
        }
        self.file.sync_all().map_err(|error| self.failed("sync", error))
    }

    /// Returns whether less than a block lies between data and label, and is zero.
    fn is_blank(&self, data_end: u64, start: u64) -> Result<bool, Error> {
        let Some(bytes) = start.checked_sub(data_end).filter(|bytes| *bytes < UNIT) else { return Ok(false) };
        let mut between = vec![0; bytes as usize];
        let read = self.file.read_exact_at(&mut between, data_end);
        read.map_err(|error| self.failed("read", error))?;
        Ok(between.iter().all(|byte| *byte == 0))
    }

    fn failed(&self, what: &'static str, error: io::Error) -> Error {
        Error::Io(self.path.clone(), what, error)
    }
}

/// Returns the first byte of the area of a label, on a device of this length.
fn area(bytes: u64) -> Option<u64> {
    (bytes / UNIT * UNIT).checked_sub(AREA_BYTES)
}
