//! Devices of the kernel in this process: each is opened once, for all ranges of it.

use super::super::confine::Partition;
use super::super::error::ErrorKind as NvmeErrorKind;
use super::GenericConfig;
use super::error::ErrorKind;
use super::sysfs::{Limits, SysfsDevice};
use crate::remote::NamespaceInfo;
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use sluice_handover::locks;
use sluice_memory::SharedRegion;
use sluice_nvme::PAGE_SIZE;
use sluice_nvme::identify::{IdentifyController, IdentifyNamespace};
use sluice_nvme::{Cns, opcode};
use sluice_reactor::{IDENTIFY_BYTES, NvmeCommand};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Commands of one drive on its device at most; further ones wait.
const COMMANDS_MAX: usize = 256;

/// A device in use.
#[derive(Debug)]
struct Device {
    number: u64,
    /// The character device, locked for this process.
    file: OwnedFd,
    taken: Mutex<Vec<Partition>>,
}

static DEVICES: Mutex<Vec<Weak<Device>>> = Mutex::new(Vec::new());

/// A range of a device, from the moment it is opened. Dropping it releases the range.
#[derive(Debug)]
pub(super) struct RangeHandle {
    device: Arc<Device>,
    /// The controller's device, if admin commands may pass.
    pub(super) controller: Option<File>,
    /// The block device, held against mounting if the drive has all of the namespace.
    _block_device: Option<File>,
    pub(super) range: Partition,
    pub(super) info: NamespaceInfo,
    /// Commands on the device at a time.
    pub(super) depth: usize,
    /// Set if the kernel may reconnect to the controller, which it does not report.
    pub(super) is_on_fabric: bool,
}

impl RangeHandle {
    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.device.file.as_fd()
    }
}

impl Drop for RangeHandle {
    fn drop(&mut self) {
        let mut taken = self.device.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.retain(|range| *range != self.range);
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // The last descriptor would release the lock, but the kernel may keep one a moment longer.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

/// Opens a range.
pub(super) fn open(config: &GenericConfig) -> Result<RangeHandle, ErrorKind> {
    let place = SysfsDevice::of(&config.path)?;
    let device = find(&place, &config.path)?;
    let nsid =
        sluice_reactor::namespace_id(device.file.as_fd()).map_err(ErrorKind::step("asked for its NSID"))?;
    let limits = place.limits();
    let info = info(&device.file, nsid, &limits)?;
    info.supports(&config.passthrough)?;
    let range = Partition::of(&info, nsid, config.first_block, config.blocks)?;
    let controller = match config.passthrough.admin.iter().next() {
        Some(_) => Some(open_file(&place.controller()?).map_err(ErrorKind::step("opened"))?),
        None => None,
    };
    // Beside a partial range, other programs may use the rest of the namespace.
    let has_all = range.blocks == (0..info.blocks);
    let block_device = if has_all { hold(&place.block_device())? } else { None };
    try_command(&device.file, &range)?;
    take(&device, &range)?;
    let depth = limits.commands.clamp(1, COMMANDS_MAX);
    let is_on_fabric = place.is_on_fabric();
    Ok(RangeHandle { device, controller, _block_device: block_device, range, info, depth, is_on_fabric })
}

/// Returns the device: one that is in use, or a new one, opened and locked.
fn find(place: &SysfsDevice, path: &Path) -> Result<Arc<Device>, ErrorKind> {
    let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
    devices.retain(|device| device.strong_count() > 0);
    if let Some(known) = devices.iter().filter_map(Weak::upgrade).find(|known| known.number == place.number) {
        return Ok(known);
    }
    let file = open_file(path).map_err(ErrorKind::step("opened"))?;
    let locked = locks::lock_when_released(|| match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(ErrorKind::Step("locked", error.into())),
    });
    if !locked? {
        return Err(ErrorKind::InUse);
    }
    let device = Device { number: place.number, file: file.into(), taken: Mutex::default() };
    let device = Arc::new(device);
    devices.push(Arc::downgrade(&device));
    Ok(device)
}

fn open_file(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).open(path)
}

/// Keeps the block device, if there is one, from being mounted. That needs an open descriptor: a device that
/// cannot be opened might be mounted.
fn hold(path: &Path) -> Result<Option<File>, ErrorKind> {
    let exclusive = OFlags::EXCL.bits().cast_signed();
    match File::options().read(true).custom_flags(exclusive).open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if Errno::from_io_error(&error) == Some(Errno::BUSY) => Err(ErrorKind::InUse),
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::NOENT | Errno::NXIO | Errno::NODEV) => Ok(None),
            _ => Err(ErrorKind::Step("kept from being mounted: its block device has to be readable", error)),
        },
    }
}

/// Returns the properties of the namespace, within the limits of the kernel.
fn info(file: &OwnedFd, nsid: u32, limits: &Limits) -> Result<NamespaceInfo, ErrorKind> {
    let controller: IdentifyController = zerocopy::transmute!(identify(file, Cns::CONTROLLER, 0)?);
    let namespace: IdentifyNamespace = zerocopy::transmute!(identify(file, Cns::NAMESPACE, nsid)?);
    let mut info = NamespaceInfo::of(nsid, &controller, &namespace)?;
    // Data that begins within a page has one segment more than it has pages.
    let by_segments = limits.segments.saturating_sub(1).max(1).saturating_mul(PAGE_SIZE);
    let most = info.transfer_max.min(limits.transfer).min(by_segments);
    info.transfer_max = (most - most % PAGE_SIZE).max(PAGE_SIZE);
    Ok(info)
}

fn identify(file: &OwnedFd, cns: Cns, nsid: u32) -> Result<[u8; IDENTIFY_BYTES], ErrorKind> {
    match sluice_reactor::identify(file.as_fd(), cns.0, nsid) {
        Ok(data) => Ok(*data),
        Err(error) => Err(error_of(error, ErrorKind::step("identified"))),
    }
}

/// Reads the first block in the way of all later commands.
fn try_command(file: &OwnedFd, range: &Partition) -> Result<(), ErrorKind> {
    let first = range.blocks.start;
    let command = NvmeCommand {
        opcode: opcode::io::READ,
        nsid: range.nsid,
        cdw10_15: [first as u32, (first >> 32) as u32, 0, 0, 0, 0],
        ..NvmeCommand::default()
    };
    let memory = SharedRegion::new("sluice-trial", PAGE_SIZE).map_err(ErrorKind::step("tried"))?;
    let data = memory.segment(0, 1 << range.block_shift);
    match sluice_reactor::try_nvme(file, &command, data) {
        // An unreadable block is an error of a later read, not of opening.
        Ok(status) if status >= 0 => Ok(()),
        Ok(refusal) => {
            let error = io::Error::from_raw_os_error(-refusal);
            Err(error_of(error, ErrorKind::NoCommands))
        }
        Err(error) => Err(ErrorKind::NoCommands(error)),
    }
}

fn error_of(error: io::Error, otherwise: impl Fn(io::Error) -> ErrorKind) -> ErrorKind {
    match error.kind() {
        io::ErrorKind::PermissionDenied => ErrorKind::NotAllowed(error),
        _ => otherwise(error),
    }
}

/// Records a range as taken.
fn take(device: &Device, range: &Partition) -> Result<(), ErrorKind> {
    let mut taken = device.taken.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(other) = taken.iter().find(|other| other.overlaps(range)) {
        let (first, blocks) = (other.blocks.start, other.blocks.end - other.blocks.start);
        return Err(NvmeErrorKind::Taken { first, blocks }.into());
    }
    taken.push(range.clone());
    Ok(())
}
