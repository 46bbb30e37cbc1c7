//! A real PCI device as a transport, by way of the kernel's VFIO driver.

mod sysfs;

use crate::{Error, PciTransport, Region, pci};
use sluice_memory::{MemoryFile, SharedRegion, VfioDevice, VfioError, VfioQuery};
use sluice_nvme::register::DOORBELLS;
use sluice_vfio_user::device::{RegionInfo, region};
use sluice_vfio_user::irq::{self, IrqInfo};
use std::io::ErrorKind;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use zerocopy::IntoBytes;

/// Bytes of the doorbell page, and the most vectors that are requested: one for each queue pair.
const DOORBELL_BYTES: usize = 0x1000;
const VECTORS_MAX: u32 = 128;

/// An NVMe controller at a PCI address. The process is its only driver: the kernel's is `vfio-pci`.
///
/// The device reaches mapped memory only. An IOMMU enforces it, and without one nothing is opened.
#[derive(Debug)]
pub struct Vfio {
    device: VfioDevice,
    /// Offset and size of BAR 0 and configuration space in the device's file.
    bar0: RegionSpan,
    config: RegionSpan,
    doorbells: Arc<SharedRegion>,
    /// Number of vectors; once they are enabled, the number that the kernel granted.
    vectors: Mutex<Vectors>,
    last_iova: u64,
    given_up: AtomicBool,
}

#[derive(Clone, Copy, Debug)]
struct RegionSpan {
    offset: u64,
    size: u64,
}

#[derive(Clone, Copy, Debug)]
struct Vectors {
    count: u32,
    on: bool,
}

impl Vfio {
    /// Opens the function at a PCI address such as `0000:00:04.0`, which is bound to `vfio-pci`.
    ///
    /// # Errors
    /// The error describes what has to be set up first.
    pub fn open(address: &str) -> Result<Self, Error> {
        let group = sysfs::group(address)?;
        let device = VfioDevice::open(&group, address).map_err(|error| setup_error(error, address))?;
        let bar0 = region_span(&device, region::BAR0)?;
        let config = region_span(&device, region::CONFIG)?;
        let end = u64::from(DOORBELLS) + DOORBELL_BYTES as u64;
        if bar0.size < end {
            return Err(Error::Unsupported("a device whose BAR 0 has no doorbells"));
        }
        let doorbells = device.map_registers(bar0.offset + u64::from(DOORBELLS), DOORBELL_BYTES)?;
        let count = msix_vectors(&device)?.min(VECTORS_MAX);
        let vectors = Mutex::new(Vectors { count, on: false });
        // A kernel that reports no range has all addresses.
        let last_iova = device.last_iova().unwrap_or(u64::MAX);
        let given_up = AtomicBool::new(false);
        let made =
            Self { device, bar0, config, doorbells: Arc::new(doorbells), vectors, last_iova, given_up };
        match pci::class(&made)? {
            pci::CLASS_NVME => Ok(made),
            _ => Err(Error::Setup(format!("{address} is not an NVMe controller"))),
        }
    }

    fn at(&self, region: Region, offset: u64, length: usize) -> Result<u64, Error> {
        if self.given_up.load(Ordering::Acquire) {
            return Err(Error::System(ErrorKind::NotConnected.into()));
        }
        let region_span = match region {
            Region::BAR0 => self.bar0,
            Region::CONFIG => self.config,
            _ => return Err(Error::Unsupported("another region than BAR 0 and configuration space")),
        };
        match offset.checked_add(length as u64) {
            Some(end) if end <= region_span.size => Ok(region_span.offset + offset),
            _ => Err(Error::Unsupported("an access beyond the region")),
        }
    }

    /// Enables all vectors, without eventfds: kernels before 6.5 add none later.
    fn turn_on(&self, vectors: &mut Vectors) -> Result<(), Error> {
        while !vectors.on && vectors.count > 0 {
            let nobody = vec![None; vectors.count as usize];
            match self.device.set_interrupts(irq::index::MSIX, 0, &nobody)? {
                None => vectors.on = true,
                Some(room) => vectors.count = room.min(vectors.count - 1),
            }
        }
        Ok(())
    }
}

/// Returns the offset and size of a region.
fn region_span(device: &VfioDevice, index: u32) -> Result<RegionSpan, Error> {
    let mut info = RegionInfo { argsz: RegionInfo::SIZE as u32, index, ..RegionInfo::default() };
    device.query(VfioQuery::Region, info.as_mut_bytes())?;
    Ok(RegionSpan { offset: info.offset, size: info.size })
}

fn msix_vectors(device: &VfioDevice) -> Result<u32, Error> {
    let mut info = IrqInfo { argsz: IrqInfo::SIZE as u32, index: irq::index::MSIX, ..IrqInfo::default() };
    device.query(VfioQuery::Interrupts, info.as_mut_bytes())?;
    Ok(if info.flags & IrqInfo::EVENTFD == 0 { 0 } else { info.count })
}

fn setup_error(error: VfioError, address: &str) -> Error {
    Error::Setup(match error {
        VfioError::NoVfio(error) => {
            format!("/dev/vfio/vfio cannot be used ({error}): load the modules vfio-pci and vfio_iommu_type1")
        }
        VfioError::NoIommu(error) if error.kind() == ErrorKind::PermissionDenied => format!(
            "the IOMMU of this machine does not remap interrupts, and {address} could raise any: turn interrupt \
             remapping on in the firmware"
        ),
        VfioError::NoIommu(error) => format!(
            "the IOMMU cannot confine {address} ({error}): turn it on in the firmware and on the kernel's command \
             line (intel_iommu=on); without one the device could reach all memory, and is refused"
        ),
        VfioError::Group(error) => format!(
            "the VFIO group of {address} cannot be opened ({error}): see who uses it, and give the daemon's user its \
             file in /dev/vfio"
        ),
        VfioError::NotViable => {
            format!(
                "other functions in the IOMMU group of {address} have drivers: bind all of them to vfio-pci"
            )
        }
        VfioError::Device(error) => format!("{address} cannot be opened by VFIO: {error}"),
    })
}

impl PciTransport for Vfio {
    fn read(&self, region: Region, offset: u64, data: &mut [u8]) -> Result<(), Error> {
        let at = self.at(region, offset, data.len())?;
        Ok(self.device.read(at, data)?)
    }

    fn write(&self, region: Region, offset: u64, data: &[u8]) -> Result<(), Error> {
        let at = self.at(region, offset, data.len())?;
        Ok(self.device.write(at, data)?)
    }

    fn post(&self, offset: u64, value: u32) -> Result<(), Error> {
        self.write(Region::BAR0, offset, &value.to_le_bytes())
    }

    fn doorbell_page(&self) -> Option<&Arc<SharedRegion>> {
        Some(&self.doorbells)
    }

    fn last_iova(&self) -> u64 {
        self.last_iova
    }

    fn map(&self, memory: &SharedRegion, iova: u64) -> Result<(), Error> {
        Ok(self.device.map(memory, iova)?)
    }

    fn map_file(&self, memory: &MemoryFile, iova: u64) -> Result<(), Error> {
        self.device.map_file(memory, iova).map_err(not_pinned)
    }

    fn unmap(&self, iova: u64, size: u64) -> Result<(), Error> {
        Ok(self.device.unmap(iova, size)?)
    }

    fn vectors(&self) -> u32 {
        self.vectors.lock().unwrap_or_else(PoisonError::into_inner).count
    }

    fn set_interrupt(&self, vector: u32, eventfd: Option<BorrowedFd<'_>>) -> Result<(), Error> {
        let mut vectors = self.vectors.lock().unwrap_or_else(PoisonError::into_inner);
        self.turn_on(&mut vectors)?;
        if vector >= vectors.count {
            return Err(Error::Unsupported("more interrupt vectors than the machine has to give"));
        }
        self.device.set_interrupts(irq::index::MSIX, vector, &[eventfd])?;
        Ok(())
    }

    fn disable_interrupts(&self) -> Result<(), Error> {
        let mut vectors = self.vectors.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::take(&mut vectors.on) {
            self.device.clear_interrupts(irq::index::MSIX)?;
        }
        Ok(())
    }

    fn reset(&self) -> Result<(), Error> {
        Ok(self.device.reset()?)
    }

    fn is_cut_off(&self) -> bool {
        self.given_up.load(Ordering::Acquire)
    }

    /// Ends the device's access to memory with certainty: clears Bus Master Enable, and resets the device.
    fn hang_up(&self) {
        let before = pci::read16(self, pci::COMMAND);
        if let Ok(command) = before {
            let quiet = command & !pci::COMMAND_BUS_MASTER;
            let _ = self.write(Region::CONFIG, pci::COMMAND, &quiet.to_le_bytes());
        }
        if !self.given_up.swap(true, Ordering::AcqRel) {
            // Without a successful reset the device still is no bus master any more.
            let _ = self.device.reset();
        }
    }
}

/// Explains why memory cannot be mapped. Pinned memory counts as locked memory.
fn not_pinned(error: std::io::Error) -> Error {
    match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
        Some(rustix::io::Errno::NOMEM) => Error::Setup(
            "the kernel does not pin so much memory: raise the limit of locked memory (LimitMEMLOCK, ulimit -l)"
                .to_owned(),
        ),
        _ => Error::Unsupported("memory that the kernel does not pin"),
    }
}
