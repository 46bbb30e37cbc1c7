//! Interface of a PCI function for a host.

use crate::{Error, Peer};
use sluice_memory::{MemoryFile, SharedRegion};
use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// A region of a PCI function, numbered as in VFIO. Open, so that a test can use any number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region(pub u32);

impl Region {
    /// Controller properties and doorbells.
    pub const BAR0: Region = Region(sluice_vfio_user::device::region::BAR0);
    /// PCI configuration space.
    pub const CONFIG: Region = Region(sluice_vfio_user::device::region::CONFIG);
}

/// A PCI function as its driver sees it. Offsets and sizes are in bytes.
///
/// The transport checks nothing for the caller: an access out of range goes to the device, and the device's
/// answer is returned. All methods may be called from any thread, and wait for the device unless documented
/// otherwise.
pub trait PciTransport: Debug + Send + Sync {
    /// Reads `data.len()` bytes of a region in one access.
    fn read(&self, region: Region, offset: u64, data: &mut [u8]) -> Result<(), Error>;

    /// Writes `data` to a region in one access and waits until it is done.
    fn write(&self, region: Region, offset: u64, data: &[u8]) -> Result<(), Error>;

    /// Writes four bytes of BAR0 without waiting until it is done: a doorbell.
    fn post(&self, offset: u64, value: u32) -> Result<(), Error>;

    /// Returns BAR0 bytes 0x1000 to 0x1fff as memory, if the device lets them be mapped. A doorbell in it is
    /// a plain store, and [`PciTransport::post`] is not needed.
    fn doorbell_page(&self) -> Option<&Arc<SharedRegion>>;

    /// Returns the last address that memory can be mapped at.
    fn last_iova(&self) -> u64 {
        u64::MAX
    }

    /// Lets the device read and write `memory` at `iova` and the following addresses.
    fn map(&self, memory: &SharedRegion, iova: u64) -> Result<(), Error>;

    /// Maps a file of another process's memory: all of it, in whole pages.
    fn map_file(&self, memory: &MemoryFile, iova: u64) -> Result<(), Error> {
        let _ = (memory, iova);
        Err(Error::Unsupported("lending the memory of others to this device"))
    }

    /// Unmaps memory or a file. After the return the device does not access it any more.
    fn unmap(&self, iova: u64, size: u64) -> Result<(), Error>;

    /// Returns the number of MSI-X vectors.
    fn vectors(&self) -> u32;

    /// Makes the device signal `eventfd` for an MSI-X vector, or nothing.
    fn set_interrupt(&self, vector: u32, eventfd: Option<BorrowedFd<'_>>) -> Result<(), Error>;

    /// Takes all eventfds away.
    fn disable_interrupts(&self) -> Result<(), Error>;

    /// Resets the function.
    fn reset(&self) -> Result<(), Error>;

    /// Returns a descriptor that reports a hang-up once the device is gone; none if the transport has none.
    fn presence(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Returns the process of the device, which may outlive the connection to it; none if the device is no
    /// process.
    fn peer(&self) -> Option<Arc<Peer>> {
        None
    }

    /// Gives the device up: every call fails from now on, a call of another thread in progress, too. If there
    /// is a connection, its end makes the device unmap all memory.
    fn hang_up(&self) {}

    /// Returns whether a device that was given up ([`hang_up`](Self::hang_up)) certainly cannot reach memory
    /// any more. Otherwise a successful new connection, or the end of its [`peer`](Self::peer), is the proof.
    fn is_cut_off(&self) -> bool {
        false
    }

    fn read32(&self, region: Region, offset: u64) -> Result<u32, Error> {
        let mut bytes = [0; 4];
        self.read(region, offset, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn read64(&self, region: Region, offset: u64) -> Result<u64, Error> {
        let mut bytes = [0; 8];
        self.read(region, offset, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn write32(&self, region: Region, offset: u64, value: u32) -> Result<(), Error> {
        self.write(region, offset, &value.to_le_bytes())
    }

    fn write64(&self, region: Region, offset: u64, value: u64) -> Result<(), Error> {
        self.write(region, offset, &value.to_le_bytes())
    }
}
