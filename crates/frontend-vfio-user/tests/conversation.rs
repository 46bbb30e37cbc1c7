//! Messages of real clients, in their order.

mod rig;

use rig::driver::Driver;
use rig::{Peer, Rig, eventually};
use rustix::fs::{MemfdFlags, memfd_create};
use sluice_controller::DoorbellMode;
use sluice_frontend_vfio_user::DoorbellPolicy;
use sluice_memory::SharedRegion;
use sluice_nvme::opcode::admin;
use sluice_nvme::{SubmissionEntry, register};
use sluice_vfio_user::device::{DeviceInfo, MmapArea, RegionInfo, sparse_areas};
use sluice_vfio_user::irq::IrqInfo;
use sluice_vfio_user::region::{RegionAccess, WriteMulti};
use sluice_vfio_user::{Command, Errno};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use zerocopy::{FromBytes, IntoBytes};

fn memory(bytes: u64) -> OwnedFd {
    let fd = memfd_create("guest", MemfdFlags::CLOEXEC).expect("a memfd");
    rustix::fs::ftruncate(&fd, bytes).expect("room");
    fd
}

#[test]
fn as_a_virtual_machine_monitor() {
    let rig = Rig::new();
    let mut guest = rig.drive.connect();
    let theirs = guest.negotiate(
        b"{\"capabilities\":{\"pgsizes\":4096,\"max_msg_fds\":16,\"max_dma_maps\":65535,\
          \"max_data_xfer_size\":1048576,\"migration\":{\"pgsize\":4096},\"write_multiple\":true}}\0",
    );
    assert_eq!((theirs.max_msg_fds, theirs.max_dma_maps, theirs.write_multiple), (16, 65535, false));

    let ram = memory(4 << 20);
    guest.map(0, 0xa0000, Some(ram.as_fd())).expect("RAM");
    guest.map(0xc0000, 0x20000, None).expect("a ROM, which has no descriptor");

    let info = DeviceInfo { argsz: 16, ..DeviceInfo::default() };
    let reply = guest.call(Command::DEVICE_GET_INFO, info.as_bytes()).expect("an answer");
    let info = DeviceInfo::read_from_bytes(&reply).expect("its size");
    assert_eq!((info.flags, info.num_regions, info.num_irqs), (3, 9, 5));

    for index in [0, 1, 2, 3, 4, 5, 7] {
        let (info, _, fds) = guest.region_info(index, 32);
        assert_eq!(info.flags & (RegionInfo::MMAP | RegionInfo::CAPS), 0);
        assert!(fds.is_empty());
    }
    assert_eq!(guest.read(7, 0, 4096).expect("all of it").len(), 4096);
    for index in [3, 2] {
        let info = IrqInfo { argsz: 16, index, ..IrqInfo::default() };
        guest.call(Command::DEVICE_GET_IRQ_INFO, info.as_bytes()).expect("an answer");
    }
    guest.call(Command::DEVICE_RESET, &[]).expect("reset");
    assert_eq!(rig.drive.mode(), DoorbellMode::Trapped);

    guest.post_write(0, 0x1000, &7u32.to_le_bytes());
    guest.post_write(0, 0x1014, &9u32.to_le_bytes());
    guest.ping();

    let status = rig.drive.status();
    assert!(status.connected);
    assert_eq!((status.doorbells, status.regions), (Some(DoorbellMode::Trapped), 2));
    assert_eq!((status.counters.doorbells, status.counters.resets, status.counters.refused), (2, 1, 0));
}

fn map_doorbells(host: &mut Peer) -> SharedRegion {
    let (info, payload, fds) = host.region_info(0, 32);
    assert_eq!((info.argsz, info.flags & RegionInfo::CAPS, payload.len()), (64, 0, 32));
    assert!(fds.is_empty());
    let (info, payload, mut fds) = host.region_info(0, info.argsz);
    assert_eq!(sparse_areas(&payload), Some(vec![MmapArea { offset: 0x1000, size: 0x1000 }]));
    let fd = fds.pop().expect("a descriptor");
    assert!(fds.is_empty());
    SharedRegion::from_fd(fd, info.offset + 0x1000, 0x1000).expect("mapped")
}

#[test]
fn as_a_host_that_polls() {
    let rig = Rig::new();
    let mut host = rig.drive.connect();
    host.negotiate(b"");
    let doorbells = map_doorbells(&mut host);
    assert_eq!(rig.drive.mode(), DoorbellMode::Mapped);
    let mut rings = Driver::start(&mut host, &[]).rings;
    for _ in 1..20 {
        let entry = SubmissionEntry { opcode: admin::KEEP_ALIVE, ..SubmissionEntry::default() };
        doorbells.atomic_u32(0).store(rings.push(0, entry), Ordering::Release);
        eventually("the doorbell is seen", || rings.pop(0).is_some());
        doorbells.atomic_u32(4).store(rings.head(0), Ordering::Release);
    }
    assert_eq!(rig.drive.status().counters.doorbells, 0);
    // The registers are still read over the socket.
    assert_eq!(host.read(0, register::CC.into(), 4), Ok(vec![1, 0, 0x46, 0]));
}

#[test]
fn a_policy_overrides_what_the_client_says() {
    let rig = Rig::with_doorbells(DoorbellPolicy::Mapped);
    map_doorbells(&mut rig.drive.guest());
    let rig = Rig::with_doorbells(DoorbellPolicy::Trapped);
    let mut host = rig.drive.connect();
    host.negotiate(b"");
    assert_eq!(host.region_info(0, 4096).0.flags & RegionInfo::MMAP, 0);
}

#[test]
fn a_client_without_descriptors_cannot_map() {
    let rig = Rig::with_doorbells(DoorbellPolicy::Mapped);
    let mut guest = rig.drive.connect();
    guest.negotiate(b"{\"capabilities\":{\"max_msg_fds\":0}}\0");
    let (info, _, fds) = guest.region_info(0, 4096);
    assert_eq!((info.flags & RegionInfo::MMAP, fds.len()), (0, 0));
}

#[test]
fn the_mode_is_fixed_before_the_device_is_used() {
    let rig = Rig::new();
    let mut host = rig.drive.connect();
    host.negotiate(b"");
    host.write(0, 0x14, &[1, 0, 0, 0]).expect("a register");
    assert_eq!(host.region_info(0, 4096).0.flags & RegionInfo::MMAP, 0);
    assert_eq!(rig.drive.mode(), DoorbellMode::Trapped);
}

#[test]
fn registers_of_any_width_and_across_pages() {
    let rig = Rig::new();
    let mut guest = rig.drive.guest();
    let address = [0, 0x10, 2, 3, 4, 5, 6, 7];
    guest.write(0, register::ASQ.into(), &address).expect("a register of eight bytes");
    assert_eq!(rig.drive.registers(register::ASQ, 8), address);
    for (offset, count) in [(0, 1), (10, 2), (8, 4), (0x28, 8), (0x2a, 3), (0, 64)] {
        let expected = rig.drive.registers(offset, count as usize);
        assert_ne!(expected, vec![0; count as usize]);
        assert_eq!(guest.read(0, offset.into(), count), Ok(expected), "{count} at {offset:#x}");
    }
    let mut driver = Driver::start(&mut guest, &[]);
    driver.complete_unseen(&mut guest, &[0, 0, 0]);
    guest.write(0, 0xffc, &[1, 1, 1, 1, 5, 0, 0, 0, 3, 0, 0, 0]).expect("a register and two doorbells");
    assert_eq!([rig.drive.doorbell(0), rig.drive.doorbell(4)], [5, 3]);
    assert_eq!(guest.read(0, 0xff8, 16), Ok(vec![0; 16]), "neither can be read");
}

#[test]
fn doorbells_are_written_as_a_whole() {
    let rig = Rig::new();
    let mut guest = rig.drive.guest();
    Driver::start(&mut guest, &[]);
    for (offset, length) in [(0x1001, 4), (0x1002, 2), (0x1000, 1), (0x1000, 3)] {
        guest.write(0, offset, &vec![1; length]).expect("ignored");
    }
    assert_eq!((rig.drive.status().counters.doorbells, rig.drive.doorbell(0)), (0, 0));
    assert_eq!(guest.read(0, 0x1000, 8), Ok(vec![0; 8]));
}

#[test]
fn the_msix_table_is_kept_for_the_client() {
    let rig = Rig::new();
    let mut guest = rig.drive.guest();
    let masked = [0, 0, 0, 1u32].as_bytes().to_vec();
    assert_eq!(guest.read(0, 0x2000 + 128 * 16, 16), Ok(masked.clone()));
    let entry: Vec<u8> = (1..17).collect();
    guest.write(0, 0x2010, &entry).expect("an entry");
    assert_eq!(guest.read(0, 0x2010, 16), Ok(entry));
    // The page has nothing behind the table.
    guest.write(0, 0x2800, &[0xff; 0x800]).expect("the end of the page");
    assert_eq!(guest.read(0, 0x2810, 0x7f0), Ok(vec![0; 0x7f0]));
    guest.call(Command::DEVICE_RESET, &[]).expect("reset");
    assert_eq!(guest.read(0, 0x2010, 16), Ok(masked));
}

#[test]
fn several_writes_in_one_message() {
    let rig = Rig::new();
    let mut guest = rig.drive.guest();
    let mut driver = Driver::start(&mut guest, &[1]);
    driver.complete_unseen(&mut guest, &[1; 6]);
    let before = rig.drive.status().counters.doorbells;
    let rung = || rig.drive.status().counters.doorbells - before;
    let write = |offset: u64, region: u32, count: u32| {
        [RegionAccess { offset, region, count }.as_bytes(), &[7, 0, 0, 0, 6, 0, 0, 0]].concat()
    };
    let payload = |writes: &[Vec<u8>]| {
        [WriteMulti { count: writes.len() as u64 }.as_bytes(), &writes.concat()].concat()
    };
    let good = payload(&[write(0x1000, 0, 4), write(0x1008, 0, 8)]);
    assert_eq!(guest.call(Command::REGION_WRITE_MULTI, &good), Ok(2u64.to_le_bytes().to_vec()));
    assert_eq!([0, 8, 12].map(|offset| rig.drive.doorbell(offset)), [7, 7, 6]);
    assert_eq!(rung(), 3);
    for bad in [write(0x4000, 0, 4), write(0x1000, 0, 9), write(0x68, 7, 4), write(0, 1, 4)] {
        let bad = payload(&[write(0x1000, 0, 4), bad]);
        assert_eq!(guest.call(Command::REGION_WRITE_MULTI, &bad), Err(Errno::INVAL));
    }
    let many = |count| payload(&vec![write(0x1000, 0, 4); count]);
    assert_eq!(guest.call(Command::REGION_WRITE_MULTI, &many(33)), Err(Errno::INVAL));
    assert_eq!(rung(), 3, "one bad write spoils all, and so does one too many");
    assert_eq!(guest.call(Command::REGION_WRITE_MULTI, &many(32)), Ok(32u64.to_le_bytes().to_vec()));
    assert_eq!(rung(), 35);
}

#[test]
fn there_are_no_descriptors_for_parts_of_regions() {
    let rig = Rig::new();
    let question = [16u32, 0, 0, 0];
    let reply = rig.drive.guest().call(Command::DEVICE_GET_REGION_IO_FDS, question.as_bytes());
    assert_eq!(reply, Ok(question.as_bytes().to_vec()));
}

#[test]
fn a_posted_message_is_never_answered() {
    let rig = Rig::new();
    let mut guest = rig.drive.guest();
    guest.post(Command::DEVICE_RESET, &[]);
    guest.post(Command::DMA_MAP, &[]);
    guest.post(Command(999), &[]);
    guest.post(Command::REGION_READ, RegionAccess { offset: 0, region: 0, count: 4 }.as_bytes());
    // The first reply is that to this message.
    guest.ping();
    assert_eq!(rig.drive.status().counters.resets, 1);
}

#[test]
fn an_independent_client() {
    let rig = Rig::new();
    let mut client = vfio_user::Client::new(&rig.drive.directory.join("cntrl")).expect("connected");
    let bar = client.region(0).expect("BAR0");
    assert_eq!((bar.size, bar.sparse_areas.len()), (0x4000, 0));
    assert_eq!(client.region(7).expect("configuration space").size, 4096);

    let ram = memory(1 << 20);
    let fd = std::os::fd::AsRawFd::as_raw_fd(&ram);
    client.dma_map(0, 0x10_0000, 1 << 20, fd).expect("mapped");
    assert_eq!(rig.drive.status().regions, 1);

    let mut class = [0; 4];
    client.region_read(7, 8, &mut class).expect("read");
    assert_eq!(class, [1, 2, 8, 1]);
    client.region_write(0, 0x1000, &3u32.to_le_bytes()).expect("written");
    assert_eq!(rig.drive.status().counters.doorbells, 1);
    assert_eq!(client.get_irq_info(2).expect("MSI-X").count, 129);

    let eventfd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("an eventfd");
    let raw = std::os::fd::AsRawFd::as_raw_fd(&eventfd);
    client.set_irqs(2, 0x24, 0, 1, &[raw]).expect("wired");
    // The first entry is zeros: a command without effect, which completes with an error.
    client.region_write(0, register::AQA.into(), &[15, 0, 15, 0]).expect("written");
    client.region_write(0, register::ASQ.into(), &0x10_0000u64.to_le_bytes()).expect("written");
    client.region_write(0, register::ACQ.into(), &0x10_1000u64.to_le_bytes()).expect("written");
    client.region_write(0, register::CC.into(), &[1, 0, 0x46, 0]).expect("written");
    client.region_write(0, 0x1000, &1u32.to_le_bytes()).expect("written");
    let mut count = [0; 8];
    assert_eq!(rustix::io::read(&eventfd, &mut count), Ok(8));
    client.reset().expect("reset");
    client.dma_unmap(0x10_0000, 1 << 20).expect("unmapped");
    assert_eq!(rig.drive.status().regions, 0);
    client.shutdown().expect("shut down");
    eventually("the client is gone", || !rig.drive.status().connected);
}

#[test]
fn an_independent_client_that_maps() {
    let rig = Rig::with_doorbells(DoorbellPolicy::Mapped);
    let client = vfio_user::Client::new(&rig.drive.directory.join("cntrl")).expect("connected");
    let bar = client.region(0).expect("BAR0");
    let areas: Vec<_> = bar.sparse_areas.iter().map(|area| (area.offset, area.size)).collect();
    assert_eq!(areas, [(0x1000, 0x1000)]);
    let file = bar.file_offset.as_ref().expect("a descriptor");
    assert_eq!(file.start(), 0);
}
