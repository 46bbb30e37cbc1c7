//! Memory that the host and the device both see.

use crate::{Error, PciTransport};
use sluice_memory::SharedRegion;
use sluice_nvme::PAGE_SIZE;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A range of addresses as the device sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaRange {
    pub iova: u64,
    /// Length, bytes.
    pub length: u32,
}

/// An allocator of memory, each buffer at device addresses of its own.
#[derive(Debug)]
pub struct DmaAllocator {
    transport: Arc<dyn PciTransport>,
    next: AtomicU64,
}

impl DmaAllocator {
    /// First address. The address is above 4 GiB, so that a device that keeps only half of it fails.
    const FIRST_IOVA: u64 = 1 << 32;

    pub fn new(transport: Arc<dyn PciTransport>) -> Self {
        Self::above(transport, Self::FIRST_IOVA)
    }

    /// Creates an allocator of addresses from `first` on, a multiple of the page size. So memory of several
    /// owners are distinguishable by its addresses.
    pub fn above(transport: Arc<dyn PciTransport>, first: u64) -> Self {
        Self { transport, next: AtomicU64::new(first) }
    }

    /// Allocates at least `length` bytes of zeros, a whole number of pages.
    pub fn allocate(&self, length: usize) -> Result<DmaBuffer, Error> {
        let length = length.max(1).next_multiple_of(PAGE_SIZE);
        self.share(SharedRegion::new("sluice-host", length)?)
    }

    /// Maps existing memory for the device. Its length is a whole number of pages.
    pub fn share(&self, region: SharedRegion) -> Result<DmaBuffer, Error> {
        // The page between two buffers is unmapped, so a device that runs over the end of one fails.
        let step = (region.len() + PAGE_SIZE) as u64;
        let iova = self.next.fetch_add(step, Ordering::Relaxed);
        self.transport.map(&region, iova)?;
        Ok(DmaBuffer { region, iova, transport: self.transport.clone() })
    }
}

/// Memory that the device may read and write, for as long as this lives.
///
/// Dropping it takes the memory back from the device, and waits for that: the device has let go of it
/// when the transport has answered. Its file lives on in the device until then, so nothing is reused
/// under a device that writes late.
#[derive(Debug)]
pub struct DmaBuffer {
    region: SharedRegion,
    iova: u64,
    transport: Arc<dyn PciTransport>,
}

impl DmaBuffer {
    /// Returns the device address.
    pub fn iova(&self) -> u64 {
        self.iova
    }

    /// Returns the length, bytes.
    pub fn len(&self) -> usize {
        self.region.len()
    }

    /// Returns false: every buffer has a page at least.
    pub fn is_empty(&self) -> bool {
        self.region.is_empty()
    }

    pub fn region(&self) -> &SharedRegion {
        &self.region
    }

    /// Returns a part of the buffer, for the data pointer of a command.
    ///
    /// # Panics
    /// If the part does not lie inside.
    pub fn range(&self, offset: usize, length: u32) -> DmaRange {
        let end = offset.checked_add(length as usize);
        assert!(end.is_some_and(|end| end <= self.len()), "a range outside its buffer");
        DmaRange { iova: self.iova + offset as u64, length }
    }
}

impl Drop for DmaBuffer {
    fn drop(&mut self) {
        // A device that is gone has let go of it as well; there is nothing else to do about an error.
        let _ = self.transport.unmap(self.iova, self.region.len() as u64);
    }
}
