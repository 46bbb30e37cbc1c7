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

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    const SIZE: u64 = 1 << 20;

    fn memory() -> OwnedFd {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).expect("a file in memory");
        ftruncate(&file, SIZE).expect("room");
        file
    }

    fn asked(argsz: u32, flags: u32) -> DmaMap {
        DmaMap { argsz, flags, offset: 0, address: 0x10_0000, size: SIZE }
    }

    #[test]
    fn a_map_has_its_size_known_flags_and_at_most_one_descriptor() {
        const BOTH: u32 = DmaMap::READ | DmaMap::WRITE;
        for (argsz, flags, fds, expected) in [
            (32, BOTH, 1, Ok(true)),
            (100, BOTH, 1, Ok(true)),
            (32, DmaMap::READ, 1, Ok(true)),
            (32, DmaMap::WRITE, 1, Ok(true)),
            // Without a descriptor, only the client reaches it. It may be guest memory if it is writable.
            (32, BOTH, 0, Ok(false)),
            (32, DmaMap::WRITE, 0, Ok(false)),
            (32, DmaMap::READ, 0, Ok(true)),
            (31, BOTH, 1, Err(Errno::INVAL)),
            (32, BOTH | 4, 1, Err(Errno::INVAL)),
            (32, 1 << 31, 1, Err(Errno::INVAL)),
            (32, BOTH, 2, Err(Errno::INVAL)),
        ] {
            let (mut space, mut files) = (Space::new(), (0..fds).map(|_| memory()).collect());
            let found = map(&mut space, asked(argsz, flags).as_bytes(), &mut files);
            let expected = expected.map(|is_reachable| (0x10_0000, is_reachable)).map_err(Refusal::from);
            assert_eq!(found, expected, "{argsz} {flags:#x} {fds}");
            assert_eq!(
                (space.len(), files.len()),
                (usize::from(found.is_ok()), if found.is_ok() { 0 } else { fds })
            );
        }
        let bytes = asked(32, BOTH);
        assert_eq!(
            map(&mut Space::new(), &bytes.as_bytes()[..31], &mut Vec::new()),
            Err(Errno::INVAL.into())
        );
    }

    #[test]
    fn a_descriptor_of_no_memory_is_left_to_be_closed() {
        let (reader, _writer) = rustix::pipe::pipe().expect("a pipe");
        let mut files = vec![reader];
        let found = map(&mut Space::new(), asked(32, DmaMap::READ).as_bytes(), &mut files);
        assert_eq!((found, files.len()), (Err(MapError::NotMemory.into()), 1));
    }
}
