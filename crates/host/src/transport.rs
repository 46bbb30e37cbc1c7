//! What a host needs of a PCI function.

use crate::{Error, Peer};
use sluice_memory::{MemoryFile, SharedRegion};
use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// A region of a PCI function, numbered as VFIO does. Open, so that a test can ask for any.
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
/// The transport checks nothing for the caller: an access out of range goes to the device, and what the
/// device says comes back. All methods may be called from any thread and wait for the device, except
/// where it is said otherwise.
pub trait PciTransport: Debug + Send + Sync {
    /// Reads `data.len()` bytes of a region in one access.
    fn read(&self, region: Region, offset: u64, data: &mut [u8]) -> Result<(), Error>;

    /// Writes `data` to a region in one access and waits until it is done.
    fn write(&self, region: Region, offset: u64, data: &[u8]) -> Result<(), Error>;

    /// Writes four bytes of BAR0 without waiting until it is done: a doorbell.
    fn post(&self, offset: u64, value: u32) -> Result<(), Error>;

    /// BAR0 bytes 0x1000 to 0x1fff as memory, if the device lets them be mapped. A doorbell in it is a
    /// plain store, and [`PciTransport::post`] is not needed.
    fn doorbell_page(&self) -> Option<&Arc<SharedRegion>>;

    /// The last address that memory can be mapped at.
    fn last_iova(&self) -> u64 {
        u64::MAX
    }

    /// Lets the device read and write `memory` at `iova` and the following addresses.
    fn map(&self, memory: &SharedRegion, iova: u64) -> Result<(), Error>;

    /// The same for memory that is somebody else's: all of the file, as many whole pages as it has.
    fn map_file(&self, memory: &MemoryFile, iova: u64) -> Result<(), Error> {
        let _ = (memory, iova);
        Err(Error::Unsupported("lending the memory of others to this device"))
    }

    /// Takes back what was mapped or lent. When this returns the device does not touch it any more.
    fn unmap(&self, iova: u64, size: u64) -> Result<(), Error>;

    /// Number of MSI-X vectors.
    fn vectors(&self) -> u32;

    /// Makes the device signal `eventfd` for an MSI-X vector, or nothing.
    fn set_interrupt(&self, vector: u32, eventfd: Option<BorrowedFd<'_>>) -> Result<(), Error>;

    /// Takes all eventfds away.
    fn disable_interrupts(&self) -> Result<(), Error>;

    /// Resets the function.
    fn reset(&self) -> Result<(), Error>;

    /// A descriptor that reports a hang-up once the device is gone; none where that cannot be seen.
    fn presence(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// The process that is the device, which may outlive the connection to it; none where it is no process.
    fn peer(&self) -> Option<Arc<Peer>> {
        None
    }

    /// Gives the device up: every call fails from now on, one that another thread waits in, too. The
    /// device is told, where there is a connection to end, and lets go of all memory.
    fn hang_up(&self) {}

    /// True if a device that was given up ([`hang_up`](Self::hang_up)) cannot reach memory any more, whatever it does.
    /// Where it is not known, it is known when somebody can connect again, or when its [`peer`](Self::peer) has ended.
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
