//! The storage of a pool's metadata.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Storage whose writes are durable when they return.
pub trait Storage: Send {
    /// Reads exactly these bytes.
    ///
    /// # Errors
    /// The bytes cannot be read.
    fn read(&mut self, at: u64, bytes: &mut [u8]) -> io::Result<()>;

    /// Writes all of these bytes durably.
    ///
    /// # Errors
    /// The bytes may be written, in part or as a whole.
    fn write(&mut self, at: u64, bytes: &[u8]) -> io::Result<()>;
}

/// File or block device.
#[derive(Debug)]
pub struct Device(pub File);

impl Storage for Device {
    fn read(&mut self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(bytes, at)
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, at)?;
        self.0.sync_data()
    }
}
