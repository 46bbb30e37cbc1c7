//! The kernel's VFIO driver: a PCI function in user space, confined by an IOMMU (vfio.h of Linux).
//!
//! The driver is in this crate because the device reaches memory by itself, and only this crate grants access
//! to memory. Groups and a type 1 IOMMU are used; a function without an IOMMU is not opened, since it could
//! reach everything.

use crate::shared::SharedRegion;
use crate::{MemoryFile, PAGE_SIZE};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Returns `_IO(';', 100 + n)`.
const fn request(number: u64) -> libc::c_ulong {
    0x3b << 8 | (100 + number)
}

const GET_API_VERSION: libc::c_ulong = request(0);
const CHECK_EXTENSION: libc::c_ulong = request(1);
const SET_IOMMU: libc::c_ulong = request(2);
const GROUP_GET_STATUS: libc::c_ulong = request(3);
const GROUP_SET_CONTAINER: libc::c_ulong = request(4);
const GROUP_GET_DEVICE_FD: libc::c_ulong = request(6);
const DEVICE_GET_REGION_INFO: libc::c_ulong = request(8);
const DEVICE_GET_IRQ_INFO: libc::c_ulong = request(9);
const DEVICE_SET_IRQS: libc::c_ulong = request(10);
const DEVICE_RESET: libc::c_ulong = request(11);
const IOMMU_GET_INFO: libc::c_ulong = request(12);
const IOMMU_MAP_DMA: libc::c_ulong = request(13);
const IOMMU_UNMAP_DMA: libc::c_ulong = request(14);

const API_VERSION: i32 = 0;
/// VFIO_TYPE1v2_IOMMU: an unmap covers whole mappings, never a part of one.
const TYPE1_V2: u64 = 3;

/// Reason for which a function cannot be opened.
#[derive(Debug)]
pub enum VfioError {
    /// There is no VFIO here, or a version that is not supported.
    NoVfio(io::Error),
    /// The group cannot be opened.
    Group(io::Error),
    /// Some function of the group has a driver of the kernel's, or none.
    NotViable,
    /// The kernel's IOMMU cannot be used in this way.
    NoIommu(io::Error),
    Device(io::Error),
}

/// Query about a function; its message and its answer begin with their size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VfioQuery {
    Region,
    Interrupts,
}

/// An open function. When it is dropped the kernel resets it and unmaps all memory.
#[derive(Debug)]
pub struct VfioDevice {
    // In this order: the kernel releases a group when its functions are closed.
    device: File,
    _group: OwnedFd,
    container: OwnedFd,
}

impl VfioDevice {
    /// Opens the function at a PCI address (`0000:00:04.0`), of the group at a path (`/dev/vfio/7`).
    pub fn open(group: &Path, address: &str) -> Result<Self, VfioError> {
        let open = |path: &Path| OpenOptions::new().read(true).write(true).open(path).map(OwnedFd::from);
        let container = open(Path::new("/dev/vfio/vfio")).map_err(VfioError::NoVfio)?;
        match plain(&container, GET_API_VERSION, 0).map_err(VfioError::NoVfio)? {
            API_VERSION => {}
            _ => return Err(VfioError::NoVfio(io::ErrorKind::Unsupported.into())),
        }
        if plain(&container, CHECK_EXTENSION, TYPE1_V2).map_err(VfioError::NoIommu)? == 0 {
            return Err(VfioError::NoIommu(io::ErrorKind::Unsupported.into()));
        }
        let group = open(group).map_err(VfioError::Group)?;
        check_viable(&group)?;
        join(&group, &container).map_err(VfioError::Group)?;
        plain(&container, SET_IOMMU, TYPE1_V2).map_err(VfioError::NoIommu)?;
        let device = File::from(device_of(&group, address).map_err(VfioError::Device)?);
        Ok(Self { device, _group: group, container })
    }

    /// Sends a query; `message` begins with its own size, as a u32.
    ///
    /// # Panics
    /// If it does not.
    pub fn query(&self, query: VfioQuery, message: &mut [u8]) -> io::Result<()> {
        let number = match query {
            VfioQuery::Region => DEVICE_GET_REGION_INFO,
            VfioQuery::Interrupts => DEVICE_GET_IRQ_INFO,
        };
        exchange(self.device.as_fd(), number, message).map(drop)
    }

    /// Reads from the device's file, which contains every region at an offset.
    pub fn read(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.device.read_exact_at(data, offset)
    }

    pub fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.device.write_all_at(data, offset)
    }

    /// Maps a part of a region that allows it: registers, so that stores reach the device directly.
    pub fn map_registers(&self, offset: u64, length: usize) -> io::Result<SharedRegion> {
        SharedRegion::of_device(self.device.try_clone()?.into(), offset, length)
    }

    /// Lets the device read and write a region at `iova`.
    pub fn map(&self, region: &SharedRegion, iova: u64) -> io::Result<()> {
        let length = region.len().next_multiple_of(PAGE_SIZE);
        self.map_range(region.at(0, 0).addr(), length as u64, iova, true)
    }

    /// Lets the device access all of a file of a host's memory, and write it if the file is writable.
    pub fn map_file(&self, file: &MemoryFile, iova: u64) -> io::Result<()> {
        self.map_range(file.address(), file.len(), iova, file.is_writable())
    }

    /// Maps addresses for the device. The kernel pins the pages: the device reaches these and no others until
    /// they are unmapped, even if the mapping in this process is gone.
    fn map_range(&self, address: usize, length: u64, iova: u64, writable: bool) -> io::Result<()> {
        const READ: u32 = 1;
        const WRITE: u32 = 2;
        const SIZE: u32 = 32;
        let flags = if writable { READ | WRITE } else { READ };
        let mut message = Message::new(&[SIZE, flags], &[address as u64, iova, length]);
        exchange(self.container.as_fd(), IOMMU_MAP_DMA, message.bytes()).map(drop)
    }

    /// Unmaps memory at `iova`; the device does not reach it any more when this returns.
    pub fn unmap(&self, iova: u64, length: u64) -> io::Result<()> {
        let mut message = Message::new(&[24, 0], &[iova, length]);
        exchange(self.container.as_fd(), IOMMU_UNMAP_DMA, message.bytes()).map(drop)
    }

    /// Returns the last address at which memory can be mapped for the device, if the kernel reports it.
    pub fn last_iova(&self) -> Option<u64> {
        let mut answer = vec![0; 4096];
        answer[..4].copy_from_slice(&4096u32.to_ne_bytes());
        exchange(self.container.as_fd(), IOMMU_GET_INFO, &mut answer).ok()?;
        last_iova(&answer)
    }

    /// Has interrupts of one type, from `start` on, signal these eventfds, or nothing. Returns the possible
    /// number of interrupts, if that is smaller.
    pub fn set_interrupts(
        &self,
        index: u32,
        start: u32,
        eventfds: &[Option<BorrowedFd<'_>>],
    ) -> io::Result<Option<u32>> {
        const DATA_EVENTFD: u32 = 1 << 2;
        const ACTION_TRIGGER: u32 = 1 << 5;
        let size = 20 + 4 * eventfds.len() as u32;
        let head = [size, DATA_EVENTFD | ACTION_TRIGGER, index, start, eventfds.len() as u32];
        let fds = eventfds.iter().map(|fd| fd.map_or(-1, |fd| fd.as_raw_fd()));
        let mut message: Vec<u8> = head.iter().flat_map(|word| word.to_ne_bytes()).collect();
        message.extend(fds.flat_map(i32::to_ne_bytes));
        let room = exchange(self.device.as_fd(), DEVICE_SET_IRQS, &mut message)?;
        Ok((room > 0).then_some(room as u32))
    }

    /// Turns interrupts of one type off.
    pub fn clear_interrupts(&self, index: u32) -> io::Result<()> {
        const DATA_NONE: u32 = 1;
        const ACTION_TRIGGER: u32 = 1 << 5;
        let mut message = Message::new(&[20, DATA_NONE | ACTION_TRIGGER, index, 0, 0], &[]);
        exchange(self.device.as_fd(), DEVICE_SET_IRQS, message.bytes()).map(drop)
    }

    /// Resets the function.
    pub fn reset(&self) -> io::Result<()> {
        plain(&self.device, DEVICE_RESET, 0).map(drop)
    }
}

/// A message of 32-bit words and then 64-bit words, which VFIO lays out without gaps.
struct Message(Vec<u8>);

impl Message {
    fn new(words: &[u32], longs: &[u64]) -> Self {
        let words = words.iter().flat_map(|word| word.to_ne_bytes());
        Self(words.chain(longs.iter().flat_map(|long| long.to_ne_bytes())).collect())
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

fn check_viable(group: &OwnedFd) -> Result<(), VfioError> {
    const VIABLE: u32 = 1;
    let mut status = Message::new(&[8, 0], &[]);
    exchange(group.as_fd(), GROUP_GET_STATUS, status.bytes()).map_err(VfioError::Group)?;
    let flags = u32::from_ne_bytes([status.0[4], status.0[5], status.0[6], status.0[7]]);
    if flags & VIABLE == 0 { Err(VfioError::NotViable) } else { Ok(()) }
}

fn join(group: &OwnedFd, container: &OwnedFd) -> io::Result<()> {
    let fd = container.as_raw_fd();
    // SAFETY: the kernel reads one int, which outlives the call.
    answer(unsafe { libc::ioctl(group.as_raw_fd(), GROUP_SET_CONTAINER, &raw const fd) }).map(drop)
}

fn device_of(group: &OwnedFd, address: &str) -> io::Result<OwnedFd> {
    let name = std::ffi::CString::new(address)?;
    // SAFETY: the kernel reads a string, which outlives the call.
    let fd = answer(unsafe { libc::ioctl(group.as_raw_fd(), GROUP_GET_DEVICE_FD, name.as_ptr()) })?;
    // SAFETY: the kernel has just made it, for this call.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sends a request whose argument is a number.
fn plain(file: &impl AsFd, number: libc::c_ulong, argument: u64) -> io::Result<i32> {
    // SAFETY: these requests take a plain number; none is an address.
    answer(unsafe { libc::ioctl(file.as_fd().as_raw_fd(), number, argument) })
}

/// Sends a request whose argument is a structure that begins with its size.
fn exchange(file: BorrowedFd<'_>, number: libc::c_ulong, message: &mut [u8]) -> io::Result<i32> {
    let size = message.first_chunk().map(|size| u32::from_ne_bytes(*size));
    assert_eq!(size, u32::try_from(message.len()).ok(), "a message that begins with its size");
    // SAFETY: the kernel reads and writes as many bytes as the structure's size, if that is large enough for
    // the request.
    answer(unsafe { libc::ioctl(file.as_raw_fd(), number, message.as_mut_ptr()) })
}

fn answer(returned: libc::c_int) -> io::Result<i32> {
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(returned) }
}

/// Returns the end of the last range in an IOMMU's description. The description's capabilities are a chain,
/// each with its kind and the offset of the next one.
fn last_iova(info: &[u8]) -> Option<u64> {
    const CAPABILITIES: u32 = 1 << 1;
    const RANGES: u16 = 1;
    let u32_at = |at: usize| info.get(at..at + 4).map(|b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
    if u32_at(4)? & CAPABILITIES == 0 {
        return None;
    }
    let mut at = u32_at(16)? as usize;
    // Each offset is larger than the one before, so that a chain has an end.
    while at != 0 {
        let next = u32_at(at + 4)? as usize;
        if u32_at(at)? as u16 == RANGES {
            let last = (u32_at(at + 8)? as usize).checked_sub(1)?;
            let end = info.get(at + 16 + last * 16 + 8..)?.first_chunk()?;
            return Some(u64::from_ne_bytes(*end));
        }
        if next <= at {
            return None;
        }
        at = next;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_range_ends_the_address_space() {
        // argsz, flags, page sizes, capability offset, padding; one other capability, then two ranges.
        let mut info = Message::new(&[0, 3], &[1 << 12]).0;
        info.extend(Message::new(&[24, 0, 9, 40, 0, 0], &[]).0);
        info.extend(Message::new(&[1 | 1 << 16, 0, 2, 0], &[0, 0xfedf_ffff, 0xfef0_0000, (1 << 39) - 1]).0);
        assert_eq!(last_iova(&info), Some((1 << 39) - 1));
        for length in 0..info.len() {
            assert_eq!(last_iova(&info[..length]), None, "{length}");
        }
        info[4] = 1;
        assert_eq!(last_iova(&info), None);
    }

    #[test]
    fn what_is_not_there_cannot_be_opened() {
        assert!(VfioDevice::open(Path::new("/nonexistent/7"), "0000:00:04.0").is_err());
    }
}
