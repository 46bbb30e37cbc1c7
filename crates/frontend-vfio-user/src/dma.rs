//! DMA_MAP and DMA_UNMAP: the client's memory.

use super::client::Refusal;
use super::descriptor::Kind;
use rustix::io::fcntl_dupfd_cloexec;
use sluice_controller::{Controller, Subsystem};
use sluice_memory::{Backing, MapError, Permissions, Removed, Space};
use sluice_vfio_user::Errno;
use sluice_vfio_user::dma::{DmaMap, DmaUnmap};
use std::os::fd::{AsFd, OwnedFd};
use zerocopy::{FromBytes, IntoBytes};

/// Maps the region of a DMA_MAP. Takes the descriptor out of `fds` on success.
///
/// A region without a descriptor is reached through the client alone, with DMA_READ and DMA_WRITE. Returns
/// the begin of the region, and a flag. The flag is false for a writable region without a descriptor, which
/// may be guest memory. ROM and flash always come without a descriptor, and read-only.
pub(super) fn map(space: &mut Space, payload: &[u8], fds: &mut Vec<OwnedFd>) -> Result<(u64, bool), Refusal> {
    let (map, _) = DmaMap::read_from_prefix(payload).map_err(|_| Errno::INVAL)?;
    let known = map.flags & !(DmaMap::READ | DmaMap::WRITE) == 0;
    if (map.argsz as usize) < DmaMap::SIZE || !known || fds.len() > 1 {
        return Err(Errno::INVAL.into());
    }
    let permissions =
        Permissions { read: map.flags & DmaMap::READ != 0, write: map.flags & DmaMap::WRITE != 0 };
    let backing = match fds.first() {
        None => Backing::Remote,
        // A descriptor of no memory stays in `fds`, for a close that may block.
        Some(fd) if Kind::of(fd.as_fd()) != Kind::Memory => return Err(MapError::NotMemory.into()),
        // A copy is mapped. If the map is refused, the client's descriptor may be the last one of a large
        // memory. Closing that takes time, so the descriptor stays in `fds`, too.
        Some(fd) => Backing::File { fd: fcntl_dupfd_cloexec(fd, 0)?, offset: map.offset },
    };
    let reachable = matches!(backing, Backing::File { .. }) || !permissions.write;
    space.map(map.address, map.size, permissions, backing)?;
    // The mapping holds the memory now.
    fds.clear();
    Ok((map.address, reachable))
}

/// Removes the memory of a DMA_UNMAP from translation, and takes the queues in it out of service. Answer the
/// client, and release the memory, when no command in flight points into it.
pub(super) fn unmap(
    space: &mut Space,
    controller: &mut Controller,
    subsystem: &mut Subsystem,
    payload: &[u8],
    reply: &mut Vec<u8>,
) -> Result<Removed, Refusal> {
    let (unmap, _) = DmaUnmap::read_from_prefix(payload).map_err(|_| Errno::INVAL)?;
    if (unmap.argsz as usize) < DmaUnmap::SIZE {
        return Err(Errno::INVAL.into());
    }
    let removed = match unmap.flags {
        0 => space.unmap(unmap.address, unmap.size)?,
        DmaUnmap::ALL if unmap.address == 0 && unmap.size == 0 => space.unmap_all(),
        // Dirty pages are not tracked, and a bitmap of zeros would be wrong.
        DmaUnmap::GET_DIRTY_BITMAP => return Err(Errno::NOTSUP.into()),
        _ => return Err(Errno::INVAL.into()),
    };
    controller.forget_memory(subsystem, &removed);
    reply.extend_from_slice(DmaUnmap { argsz: DmaUnmap::SIZE as u32, ..unmap }.as_bytes());
    Ok(removed)
}
