//! The storage of a pool's metadata.

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Storage whose writes are durable after the next flush.
pub trait Storage: Send {
    /// Reads exactly these bytes.
    ///
    /// # Errors
    /// The bytes cannot be read.
    fn read(&mut self, at: u64, bytes: &mut [u8]) -> io::Result<()>;

    /// Writes all of these bytes.
    ///
    /// # Errors
    /// The bytes may be written, in part or as a whole.
    fn write(&mut self, at: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes all earlier writes durable.
    ///
    /// # Errors
    /// Earlier writes may be lost.
    fn flush(&mut self) -> io::Result<()>;

    /// Gives the first bytes their room, so that no later write to them fails for lack of it.
    ///
    /// # Errors
    /// There is too little room.
    fn reserve(&mut self, bytes: u64) -> io::Result<()>;
}

/// File or block device.
#[derive(Debug)]
pub struct Device(pub File);

impl Storage for Device {
    fn read(&mut self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(bytes, at)
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, at)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn reserve(&mut self, bytes: u64) -> io::Result<()> {
        if !self.0.metadata()?.is_file() {
            return Ok(());
        }
        match fallocate(&self.0, FallocateFlags::empty(), 0, bytes) {
            // The file system reserves nothing.
            Err(Errno::OPNOTSUPP) => Ok(()),
            reserved => Ok(reserved?),
        }
    }
}

/// Storage that is only read, by this function. Writes succeed and do nothing.
pub(crate) struct ReadOnly<R>(pub(crate) R);

impl<R: FnMut(u64, &mut [u8]) -> io::Result<()> + Send> Storage for ReadOnly<R> {
    fn read(&mut self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        (self.0)(at, bytes)
    }

    fn write(&mut self, _: u64, _: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn reserve(&mut self, _: u64) -> io::Result<()> {
        Ok(())
    }
}

/// Reads a file or block device. Bytes behind its end are zeros.
pub(crate) fn read_padded(file: &File, at: u64, bytes: &mut [u8]) -> io::Result<()> {
    let mut read = 0;
    while read < bytes.len() {
        match file.read_at(&mut bytes[read..], at + read as u64) {
            Ok(0) => break,
            Ok(count) => read += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes[read..].fill(0);
    Ok(())
}
