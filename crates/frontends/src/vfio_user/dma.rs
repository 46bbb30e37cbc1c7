//! DMA_MAP and DMA_UNMAP: the client's memory comes and goes.

use super::client::Refusal;
use super::descriptor::Kind;
use super::device::Device;
use rustix::io::fcntl_dupfd_cloexec;
use sluice_memory::{Backing, MapError, Permissions, Removed, Space};
use sluice_vfio_user::Errno;
use sluice_vfio_user::dma::{DmaMap, DmaUnmap};
use std::os::fd::{AsFd, OwnedFd};
use zerocopy::{FromBytes, IntoBytes};

/// Maps what a DMA_MAP says. Takes the descriptor out of `fds` if it did.
///
/// A region without a descriptor is one that the client has to be asked for, with DMA_READ and DMA_WRITE. Returns
/// where the region begins, and false for such a one if the client offers it to be written, as it would memory: ROM and flash always come so.
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
        // What is not memory stays in `fds`, where it is let go of with care.
        Some(fd) if Kind::of(fd.as_fd()) != Kind::Memory => return Err(MapError::NotMemory.into()),
        // A copy: should the map be refused, the client's may be the last descriptor of a large memory,
        // which takes its time to close and so stays in `fds` too.
        Some(fd) => Backing::File { fd: fcntl_dupfd_cloexec(fd, 0)?, offset: map.offset },
    };
    let reachable = matches!(backing, Backing::File { .. }) || !permissions.write;
    space.map(map.address, map.size, permissions, backing)?;
    // The mapping holds the memory now.
    fds.clear();
    Ok((map.address, reachable))
}

/// Takes what a DMA_UNMAP says out of translation, and the queues over it out of service. The client may
/// be answered, and the memory released, when nothing in flight points into it.
pub(super) fn unmap(
    space: &mut Space,
    device: &mut dyn Device,
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
        // Nobody keeps account of dirty pages, and a bitmap of zeros would be a lie.
        DmaUnmap::GET_DIRTY_BITMAP => return Err(Errno::NOTSUP.into()),
        _ => return Err(Errno::INVAL.into()),
    };
    device.forget_memory(&removed);
    reply.extend_from_slice(DmaUnmap { argsz: DmaUnmap::SIZE as u32, ..unmap }.as_bytes());
    Ok(removed)
}
