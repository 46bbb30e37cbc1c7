//! The vfio-user client as a transport.

mod client;
mod connect;
mod peer;
mod setup;

pub use client::{Client, Reply};
pub use peer::Peer;

use crate::{Error, PciTransport, Region};
use sluice_memory::{MemoryFile, SharedRegion};
use sluice_nvme::register::DOORBELLS;
use sluice_vfio_user::dma::{DmaMap, DmaUnmap};
use sluice_vfio_user::irq::{self, IrqSet};
use sluice_vfio_user::region::RegionAccess;
use sluice_vfio_user::{Command, MAX_DATA_TRANSFER};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

/// Way of doorbells to the server. A client chooses with its first message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Mapped: no capabilities are sent; the server lets the doorbell page be mapped and polls it.
    Mapped,
    /// Trapped: capabilities are sent, as virtual machine monitors do; every doorbell is a message, and the
    /// server may offer shadow doorbells.
    Trapped,
}

/// An NVMe controller behind a vfio-user socket.
///
/// All messages go through one socket behind one lock. With mapped doorbells only set-up needs the lock. With
/// trapped doorbells, shadow doorbells keep most submissions away from it.
#[derive(Debug)]
pub struct VfioUser {
    client: Mutex<Client>,
    /// The client's socket, to be watched and shut down while another thread waits with the client locked.
    socket: UnixStream,
    peer: Arc<Peer>,
    doorbells: Option<Arc<SharedRegion>>,
    vectors: u32,
}

impl VfioUser {
    /// Connects to the socket at `path`. The connection, and every later message, may take `timeout`.
    pub fn connect(path: &Path, mode: Mode, timeout: Duration) -> Result<Self, Error> {
        Self::over(connect::connect(path, timeout)?, mode, timeout)
    }

    /// Negotiates with the server over a connected socket.
    pub fn over(socket: UnixStream, mode: Mode, timeout: Duration) -> Result<Self, Error> {
        let copy = socket.try_clone()?;
        let mut client = Client::new(socket, timeout);
        setup::negotiate(&mut client, mode)?;
        setup::check_device(&mut client)?;
        let doorbells = match mode {
            Mode::Mapped => Some(Arc::new(setup::map_doorbells(&mut client)?)),
            Mode::Trapped => None,
        };
        let vectors = setup::msix_vectors(&mut client)?;
        // The server has just answered, so its process exists.
        let peer = Arc::new(Peer::of(&copy));
        Ok(Self { client: Mutex::new(client), socket: copy, peer, doorbells, vectors })
    }

    /// Returns the client underneath, for messages that a driver does not need.
    pub fn client(&self) -> MutexGuard<'_, Client> {
        // A client is consistent between two calls, even if the thread of the last one panicked.
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the server map `size` bytes of a file, from its beginning on.
    fn dma_map(&self, file: BorrowedFd<'_>, size: u64, writable: bool, iova: u64) -> Result<(), Error> {
        let map = DmaMap {
            argsz: DmaMap::SIZE as u32,
            flags: DmaMap::READ | if writable { DmaMap::WRITE } else { 0 },
            offset: 0,
            address: iova,
            size,
        };
        self.client().call(Command::DMA_MAP, map.as_bytes(), &[], &[file]).map(drop)
    }

    /// Sends one DEVICE_SET_IRQS for MSI-X.
    fn set_irqs(&self, data: u32, start: u32, count: u32, fds: &[BorrowedFd<'_>]) -> Result<(), Error> {
        let set = IrqSet {
            argsz: IrqSet::SIZE as u32,
            flags: data | IrqSet::ACTION_TRIGGER,
            index: irq::index::MSIX,
            start,
            count,
        };
        self.client().call(Command::DEVICE_SET_IRQS, set.as_bytes(), &[], fds).map(drop)
    }
}

impl PciTransport for VfioUser {
    fn read(&self, region: Region, offset: u64, data: &mut [u8]) -> Result<(), Error> {
        let access = access(region, offset, data.len())?;
        let reply = self.client().call(Command::REGION_READ, access.as_bytes(), &[], &[])?;
        match RegionAccess::read_from_prefix(&reply.payload) {
            Ok((answer, bytes)) if answer.count == access.count && bytes.len() == data.len() => {
                data.copy_from_slice(bytes);
                Ok(())
            }
            _ => Err(Error::Protocol("REGION_READ returned another number of bytes than was asked for")),
        }
    }

    fn write(&self, region: Region, offset: u64, data: &[u8]) -> Result<(), Error> {
        let access = access(region, offset, data.len())?;
        let reply = self.client().call(Command::REGION_WRITE, access.as_bytes(), data, &[])?;
        match RegionAccess::read_from_prefix(&reply.payload) {
            Ok((answer, _)) if answer.count == access.count => Ok(()),
            _ => Err(Error::Protocol("REGION_WRITE took another number of bytes than it was given")),
        }
    }

    fn post(&self, offset: u64, value: u32) -> Result<(), Error> {
        let access = access(Region::BAR0, offset, size_of_val(&value))?;
        self.client().post(Command::REGION_WRITE, access.as_bytes(), value.as_bytes())
    }

    fn doorbell_page(&self) -> Option<&Arc<SharedRegion>> {
        self.doorbells.as_ref()
    }

    fn map(&self, memory: &SharedRegion, iova: u64) -> Result<(), Error> {
        self.dma_map(memory.fd(), memory.len() as u64, true, iova)
    }

    fn map_file(&self, memory: &MemoryFile, iova: u64) -> Result<(), Error> {
        // The unmap has the same length as the mapping here, to the byte.
        let bytes = u64::try_from(rustix::fs::fstat(memory.fd())?.st_size).unwrap_or(0);
        if bytes < memory.len() {
            return Err(Error::Unsupported("a file that ends inside a page, or was cut"));
        }
        self.dma_map(memory.fd(), memory.len(), memory.is_writable(), iova)
    }

    fn unmap(&self, iova: u64, size: u64) -> Result<(), Error> {
        let unmap = DmaUnmap { argsz: DmaUnmap::SIZE as u32, flags: 0, address: iova, size };
        self.client().call(Command::DMA_UNMAP, unmap.as_bytes(), &[], &[]).map(drop)
    }

    fn vectors(&self) -> u32 {
        self.vectors
    }

    fn set_interrupt(&self, vector: u32, eventfd: Option<BorrowedFd<'_>>) -> Result<(), Error> {
        self.set_irqs(IrqSet::DATA_EVENTFD, vector, 1, eventfd.as_slice())
    }

    fn disable_interrupts(&self) -> Result<(), Error> {
        self.set_irqs(IrqSet::DATA_NONE, 0, 0, &[])
    }

    fn reset(&self) -> Result<(), Error> {
        self.client().call(Command::DEVICE_RESET, &[], &[], &[]).map(drop)
    }

    fn presence(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn peer(&self) -> Option<Arc<Peer>> {
        Some(Arc::clone(&self.peer))
    }

    fn hang_up(&self) {
        // A shutdown fails if the server has hung up before, and then there is nothing to do.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

impl Drop for VfioUser {
    /// Ends the connection. Closing the descriptors is not enough: a child that this process is starting has
    /// copies of them until its exec, and the server would refuse the next client until then.
    fn drop(&mut self) {
        self.hang_up();
    }
}

/// The doorbell page of BAR0: two doorbells of four bytes for each of 512 queue pairs.
const DOORBELL_PAGE: std::ops::Range<u64> = DOORBELLS as u64..DOORBELLS as u64 + 0x1000;

/// Builds the structure of a region access, which is made in one message.
fn access(region: Region, offset: u64, count: usize) -> Result<RegionAccess, Error> {
    if count > MAX_DATA_TRANSFER {
        return Err(Error::Unsupported("a region access that does not fit one message"));
    }
    Ok(RegionAccess { offset, region: region.0, count: count as u32 })
}
