//! The first messages of a connection.

use super::{Client, DOORBELL_PAGE, Mode};
use crate::Error;
use sluice_memory::SharedRegion;
use sluice_vfio_user::Command;
use sluice_vfio_user::device::{DeviceInfo, MmapArea, RegionInfo, region, sparse_areas};
use sluice_vfio_user::irq::{self, IrqInfo};
use sluice_vfio_user::version::{self, Capabilities, Version};
use std::os::fd::OwnedFd;
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of a region reply that are requested at most. There is room for a dozen capabilities; a server that
/// claims more is not queried again.
const MAX_REGION_INFO: u32 = 4096;

/// Agrees on a version.
pub(super) fn negotiate(client: &mut Client, mode: Mode) -> Result<(), Error> {
    let capabilities = match mode {
        Mode::Mapped => Vec::new(),
        Mode::Trapped => Capabilities::ours().to_json(),
    };
    let reply = client.call(Command::VERSION, Version::OURS.as_bytes(), &capabilities, &[])?;
    let (version, _) = version::parse(&reply.payload)
        .map_err(|_| Error::Protocol("the VERSION reply cannot be understood"))?;
    if version.major != Version::OURS.major || version.minor > Version::OURS.minor {
        return Err(Error::Protocol("the server answers with a version that was not offered"));
    }
    Ok(())
}

/// Makes sure that there is a PCI function with a BAR 0 and a configuration space.
pub(super) fn check_device(client: &mut Client) -> Result<(), Error> {
    let question = DeviceInfo { argsz: DeviceInfo::SIZE as u32, ..DeviceInfo::default() };
    let reply = client.call(Command::DEVICE_GET_INFO, question.as_bytes(), &[], &[])?;
    match DeviceInfo::read_from_prefix(&reply.payload) {
        Ok((info, _)) if info.flags & DeviceInfo::PCI == 0 => {
            Err(Error::Unsupported("a device that is not a PCI device"))
        }
        Ok((info, _)) if info.num_regions > region::CONFIG => Ok(()),
        _ => Err(Error::Protocol("the device has no configuration space")),
    }
}

/// Returns the number of MSI-X vectors that can have an eventfd.
pub(super) fn msix_vectors(client: &mut Client) -> Result<u32, Error> {
    let question = IrqInfo { argsz: IrqInfo::SIZE as u32, index: irq::index::MSIX, ..IrqInfo::default() };
    let reply = client.call(Command::DEVICE_GET_IRQ_INFO, question.as_bytes(), &[], &[])?;
    let (info, _) = IrqInfo::read_from_prefix(&reply.payload)
        .map_err(|_| Error::Protocol("the DEVICE_GET_IRQ_INFO reply is too short"))?;
    Ok(if info.flags & IrqInfo::EVENTFD == 0 { 0 } else { info.count })
}

/// Maps the doorbell page of BAR 0.
pub(super) fn map_doorbells(client: &mut Client) -> Result<SharedRegion, Error> {
    let (info, areas, fd) = bar0(client)?;
    let fd = fd.ok_or(Error::Unsupported("the server does not let its doorbells be mapped"))?;
    // Only memory has seals: any other file might be on a file system of the server's own, which never
    // answers when a page of it is touched.
    rustix::fs::fcntl_get_seals(&fd).map_err(|_| {
        Error::Unsupported("the server's doorbells are in a file that is not in memory (memfd, tmpfs)")
    })?;
    if !areas.iter().any(covers_doorbells) {
        return Err(Error::Unsupported("the server does not let all of its doorbell page be mapped"));
    }
    let offset = info.offset.checked_add(DOORBELL_PAGE.start).ok_or(Error::Protocol("BAR 0 is nowhere"))?;
    let length = (DOORBELL_PAGE.end - DOORBELL_PAGE.start) as usize;
    Ok(SharedRegion::from_fd(fd, offset, length)?)
}

fn covers_doorbells(area: &MmapArea) -> bool {
    let end = area.offset.checked_add(area.size);
    area.offset <= DOORBELL_PAGE.start && end.is_some_and(|end| end >= DOORBELL_PAGE.end)
}

/// Queries BAR 0; once more if the reply has capabilities for which there was no room. Returns the areas that
/// can be mapped, and their file.
fn bar0(client: &mut Client) -> Result<(RegionInfo, Vec<MmapArea>, Option<OwnedFd>), Error> {
    const SHORT: Error = Error::Protocol("the DEVICE_GET_REGION_INFO reply contradicts itself");
    let mut room = RegionInfo::SIZE as u32;
    loop {
        let question = RegionInfo { argsz: room, index: region::BAR0, ..RegionInfo::default() };
        let reply = client.call(Command::DEVICE_GET_REGION_INFO, question.as_bytes(), &[], &[])?;
        let (info, _) = RegionInfo::read_from_prefix(&reply.payload).map_err(|_| SHORT)?;
        if info.argsz > room && info.argsz <= MAX_REGION_INFO {
            room = info.argsz;
            continue;
        }
        let mut areas = sparse_areas(&reply.payload).ok_or(SHORT)?;
        if info.flags & RegionInfo::MMAP == 0 {
            areas.clear();
        } else if info.flags & RegionInfo::CAPS == 0 {
            areas.push(MmapArea { offset: 0, size: info.size });
        }
        return Ok((info, areas, reply.fds.into_iter().next()));
    }
}
