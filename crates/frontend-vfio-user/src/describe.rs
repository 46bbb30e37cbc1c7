//! Queries of a client before it uses the device: device, regions, interrupts.

use super::interrupts;
use super::region;
use sluice_controller::DoorbellMode;
use sluice_nvme::register::DOORBELLS;
use sluice_vfio_user::Errno;
use sluice_vfio_user::device::{DeviceInfo, MmapArea, RegionInfo, SparseMmap, region as regions};
use sluice_vfio_user::irq::{self, IrqInfo};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// File that is sent with an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attachment {
    Nothing,
    Doorbells,
}

/// Answers DEVICE_GET_INFO.
pub(super) fn device_info(payload: &[u8], reply: &mut Vec<u8>) -> Result<(), Errno> {
    let asked: DeviceInfo = question(payload)?;
    check_room(asked.argsz, DeviceInfo::SIZE)?;
    let info = DeviceInfo {
        argsz: DeviceInfo::SIZE as u32,
        flags: DeviceInfo::RESET | DeviceInfo::PCI,
        num_regions: regions::COUNT,
        num_irqs: irq::index::COUNT,
    };
    reply.extend_from_slice(info.as_bytes());
    Ok(())
}

/// Answers DEVICE_GET_REGION_INFO. BAR0's doorbells can be mapped in one mode, which takes a capability and a
/// file descriptor.
///
/// A client whose `argsz` has no room for a capability gets an answer that offers no mapping, and the `argsz`
/// that is needed. A CAPS flag without capabilities is fatal to QEMU. An MMAP flag without them invites to
/// map all of BAR0.
pub(super) fn region_info(
    payload: &[u8],
    mode: DoorbellMode,
    reply: &mut Vec<u8>,
) -> Result<Attachment, Errno> {
    let asked: RegionInfo = question(payload)?;
    check_room(asked.argsz, RegionInfo::SIZE)?;
    if asked.index >= regions::COUNT {
        return Err(Errno::INVAL);
    }
    let size = region::size(asked.index);
    let flags = if size == 0 { 0 } else { RegionInfo::READ | RegionInfo::WRITE };
    let plain = RegionInfo {
        argsz: RegionInfo::SIZE as u32,
        flags,
        index: asked.index,
        size,
        ..RegionInfo::default()
    };
    if asked.index != regions::BAR0 || mode != DoorbellMode::Mapped {
        reply.extend_from_slice(plain.as_bytes());
        return Ok(Attachment::Nothing);
    }
    let with_capability = RegionInfo::SIZE + SparseMmap::SIZE;
    let info = RegionInfo { argsz: with_capability as u32, ..plain };
    if (asked.argsz as usize) < with_capability {
        reply.extend_from_slice(info.as_bytes());
        return Ok(Attachment::Nothing);
    }
    let flags = flags | RegionInfo::MMAP | RegionInfo::CAPS;
    let info = RegionInfo { flags, cap_offset: RegionInfo::SIZE as u32, ..info };
    let doorbells = MmapArea { offset: u64::from(DOORBELLS), size: region::PAGE };
    reply.extend_from_slice(info.as_bytes());
    reply.extend_from_slice(SparseMmap::new(doorbells).as_bytes());
    Ok(Attachment::Doorbells)
}

/// Query and answer of DEVICE_GET_REGION_IO_FDS: parts of a region with descriptors of their own, to which a
/// client writes instead of the socket.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RegionIoFds {
    argsz: u32,
    flags: u32,
    index: u32,
    count: u32,
}

/// Answers DEVICE_GET_REGION_IO_FDS: there are no such descriptors.
pub(super) fn region_io_fds(payload: &[u8], reply: &mut Vec<u8>) -> Result<(), Errno> {
    let asked: RegionIoFds = question(payload)?;
    check_room(asked.argsz, size_of::<RegionIoFds>())?;
    if asked.index >= regions::COUNT {
        return Err(Errno::INVAL);
    }
    let none = RegionIoFds { argsz: size_of::<RegionIoFds>() as u32, flags: 0, index: asked.index, count: 0 };
    reply.extend_from_slice(none.as_bytes());
    Ok(())
}

/// Answers DEVICE_GET_IRQ_INFO.
pub(super) fn irq_info(payload: &[u8], vectors: u16, reply: &mut Vec<u8>) -> Result<(), Errno> {
    let asked: IrqInfo = question(payload)?;
    check_room(asked.argsz, IrqInfo::SIZE)?;
    if asked.index >= irq::index::COUNT {
        return Err(Errno::INVAL);
    }
    reply.extend_from_slice(interrupts::info(asked.index, vectors).as_bytes());
    Ok(())
}

fn question<T: FromBytes>(payload: &[u8]) -> Result<T, Errno> {
    T::read_from_prefix(payload).map(|(asked, _)| asked).map_err(|_| Errno::INVAL)
}

/// Checks that the client has room for the smallest answer.
fn check_room(argsz: u32, size: usize) -> Result<(), Errno> {
    if (argsz as usize) < size { Err(Errno::INVAL) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_vfio_user::device::sparse_areas;

    fn ask(index: u32, argsz: u32, mode: DoorbellMode) -> Result<(Vec<u8>, Attachment), Errno> {
        let mut reply = Vec::new();
        let question = RegionInfo { argsz, index, ..RegionInfo::default() };
        let attachment = region_info(question.as_bytes(), mode, &mut reply)?;
        Ok((reply, attachment))
    }

    fn head(reply: &[u8]) -> RegionInfo {
        RegionInfo::read_from_prefix(reply).expect("long enough").0
    }

    #[test]
    fn a_trapped_bar_cannot_be_mapped() {
        let (reply, attachment) = ask(0, 4096, DoorbellMode::Trapped).expect("an answer");
        let info = head(&reply);
        assert_eq!((info.argsz, info.flags, info.size), (32, RegionInfo::READ | RegionInfo::WRITE, 0x4000));
        assert_eq!((reply.len(), attachment), (32, Attachment::Nothing));
    }

    #[test]
    fn a_mapped_bar_is_asked_for_twice() {
        let (reply, attachment) = ask(0, 32, DoorbellMode::Mapped).expect("an answer");
        let info = head(&reply);
        assert_eq!((info.argsz, info.flags, info.cap_offset), (64, RegionInfo::READ | RegionInfo::WRITE, 0));
        assert_eq!((reply.len(), attachment), (32, Attachment::Nothing));

        let (reply, attachment) = ask(0, info.argsz, DoorbellMode::Mapped).expect("an answer");
        assert_eq!((reply.len(), attachment), (64, Attachment::Doorbells));
        assert_eq!(head(&reply).flags & (RegionInfo::MMAP | RegionInfo::CAPS), 0xc);
        assert_eq!(sparse_areas(&reply), Some(vec![MmapArea { offset: 0x1000, size: 0x1000 }]));
    }

    #[test]
    fn nine_regions_of_which_two_are_there() {
        for index in 0..9 {
            let (reply, _) = ask(index, 32, DoorbellMode::Trapped).expect("an answer");
            let expected = match index {
                0 => 0x4000,
                7 => 4096,
                _ => 0,
            };
            assert_eq!((head(&reply).size, head(&reply).index), (expected, index));
            assert_eq!(head(&reply).flags == 0, expected == 0);
        }
        for index in [9, u32::MAX] {
            assert_eq!(ask(index, 32, DoorbellMode::Trapped), Err(Errno::INVAL));
        }
    }

    #[test]
    fn questions_without_room_for_an_answer() {
        assert_eq!(ask(0, 31, DoorbellMode::Mapped), Err(Errno::INVAL));
        let mut reply = Vec::new();
        assert_eq!(
            device_info(&[15, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &mut reply),
            Err(Errno::INVAL)
        );
        assert_eq!(device_info(&[16, 0, 0, 0], &mut reply), Err(Errno::INVAL));
        assert_eq!(irq_info(&[0; 16], 129, &mut reply), Err(Errno::INVAL));
        assert_eq!(region_io_fds(&[0; 16], &mut reply), Err(Errno::INVAL));
        assert!(reply.is_empty());
    }

    #[test]
    fn five_kinds_of_interrupts_of_which_two_are_there() {
        // INTx has an eventfd, is maskable and masks itself; MSI-X has eventfds.
        for (index, flags, count) in [(0, 7, 1), (1, 0, 0), (2, 1, 129), (3, 0, 0), (4, 0, 0)] {
            let mut reply = Vec::new();
            let asked = IrqInfo { argsz: 16, index, ..IrqInfo::default() };
            irq_info(asked.as_bytes(), 129, &mut reply).expect("an answer");
            let info = IrqInfo::read_from_bytes(&reply).expect("its size");
            assert_eq!((info.argsz, info.flags, info.index, info.count), (16, flags, index, count));
        }
    }
}
