//! Hostile and broken clients.

mod rig;

use proptest::prelude::*;
use rig::{Peer, Rig, eventually};
use rustix::fs::{MemfdFlags, memfd_create};
use sluice_vfio_user::device::{DeviceInfo, RegionInfo};
use sluice_vfio_user::dma::{DmaMap, DmaUnmap};
use sluice_vfio_user::irq::{IrqInfo, IrqSet};
use sluice_vfio_user::region::RegionAccess;
use sluice_vfio_user::version::Version;
use sluice_vfio_user::{Command, Errno, Header};
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use zerocopy::IntoBytes;

fn memory(bytes: u64) -> OwnedFd {
    let fd = memfd_create("guest", MemfdFlags::CLOEXEC).expect("a memfd");
    rustix::fs::ftruncate(&fd, bytes).expect("room");
    fd
}

/// Returns well-formed messages of every kind, which tests then spoil.
fn good_messages() -> Vec<(Command, Vec<u8>)> {
    let info = DeviceInfo { argsz: 16, ..DeviceInfo::default() };
    let region = RegionInfo { argsz: 64, index: 0, ..RegionInfo::default() };
    let irq = IrqInfo { argsz: 16, index: 2, ..IrqInfo::default() };
    let set = IrqSet { argsz: 20, flags: 0x21, index: 2, start: 0, count: 1 };
    let access = RegionAccess { offset: 0, region: 0, count: 4 };
    let map = DmaMap { argsz: 32, flags: 3, offset: 0, address: 0x10_0000, size: 4096 };
    let unmap = DmaUnmap { argsz: 24, flags: 0, address: 0x10_0000, size: 4096 };
    vec![
        (Command::DEVICE_GET_INFO, info.as_bytes().to_vec()),
        (Command::DEVICE_GET_REGION_INFO, region.as_bytes().to_vec()),
        (Command::DEVICE_GET_REGION_IO_FDS, irq.as_bytes().to_vec()),
        (Command::DEVICE_GET_IRQ_INFO, irq.as_bytes().to_vec()),
        (Command::DEVICE_SET_IRQS, set.as_bytes().to_vec()),
        (Command::REGION_READ, access.as_bytes().to_vec()),
        (Command::REGION_WRITE, [access.as_bytes(), &[0; 4]].concat()),
        (Command::REGION_WRITE_MULTI, [&1u64.to_le_bytes(), access.as_bytes(), &[0; 8]].concat()),
        (Command::DMA_MAP, map.as_bytes().to_vec()),
        (Command::DMA_UNMAP, unmap.as_bytes().to_vec()),
    ]
}

#[test]
fn good_messages_are_good() {
    let rig = Rig::new();
    let mut guest = rig.drive.guest();
    for (command, payload) in good_messages() {
        guest.call(command, &payload).unwrap_or_else(|errno| panic!("{command:?}: {errno}"));
    }
}

#[test]
fn messages_that_end_too_early() {
    let rig = Rig::new();
    let mut guest = rig.drive.guest();
    for (command, payload) in good_messages() {
        for length in 0..payload.len() {
            assert_eq!(guest.call(command, &payload[..length]), Err(Errno::INVAL), "{command:?} {length}");
        }
    }
    guest.ping();
    assert_eq!(rig.drive.status().regions, 0);
}

/// Returns every field of every message, by its offset and size, with values that no client may send there.
fn spoiled_fields() -> Vec<(Command, usize, usize, Vec<u64>)> {
    let far = u64::MAX;
    vec![
        (Command::DEVICE_GET_INFO, 0, 4, vec![0, 15]),
        (Command::DEVICE_GET_REGION_INFO, 0, 4, vec![0, 31]),
        (Command::DEVICE_GET_REGION_INFO, 8, 4, vec![9, far]),
        (Command::DEVICE_GET_REGION_IO_FDS, 0, 4, vec![0, 15]),
        (Command::DEVICE_GET_REGION_IO_FDS, 8, 4, vec![9, far]),
        (Command::DEVICE_GET_IRQ_INFO, 0, 4, vec![0, 15]),
        (Command::DEVICE_GET_IRQ_INFO, 8, 4, vec![5, far]),
        (Command::DEVICE_SET_IRQS, 0, 4, vec![0, 19]),
        (Command::DEVICE_SET_IRQS, 4, 4, vec![0, 1, 0x20, 0x23, 0x31, 0x61, 0x29, 0x22, far]),
        (Command::DEVICE_SET_IRQS, 8, 4, vec![1, 3, 4, 5, far]),
        (Command::DEVICE_SET_IRQS, 12, 4, vec![129, far]),
        (Command::DEVICE_SET_IRQS, 16, 4, vec![130, far]),
        (Command::REGION_READ, 0, 8, vec![0x3ffd, 0x4000, far, far - 3]),
        (Command::REGION_READ, 8, 4, vec![1, 6, 8, 9, far]),
        (Command::REGION_READ, 12, 4, vec![0x4001, 0x1_0001, far]),
        (Command::REGION_WRITE, 0, 8, vec![0x3ffd, 0x4000, far, far - 3]),
        (Command::REGION_WRITE, 8, 4, vec![1, 6, 8, 9, far]),
        (Command::REGION_WRITE, 12, 4, vec![0, 3, 5, 8, far]),
        (Command::REGION_WRITE_MULTI, 0, 8, vec![0, 2, far]),
        (Command::REGION_WRITE_MULTI, 8, 8, vec![0x3ffd, 0x4000, far]),
        (Command::REGION_WRITE_MULTI, 16, 4, vec![1, 7, 9, far]),
        (Command::REGION_WRITE_MULTI, 20, 4, vec![9, far]),
        (Command::DMA_MAP, 0, 4, vec![0, 31]),
        (Command::DMA_MAP, 4, 4, vec![4, 7, far]),
        (Command::DMA_MAP, 16, 8, vec![1, 0xfff, far, far - 0xffe]),
        (Command::DMA_MAP, 24, 8, vec![0, 1, 4095, far, far - 0xffe]),
        (Command::DMA_UNMAP, 0, 4, vec![0, 23]),
        (Command::DMA_UNMAP, 4, 4, vec![2, 3, 4, far]),
        (Command::DMA_UNMAP, 8, 8, vec![0, 1, far]),
        (Command::DMA_UNMAP, 16, 8, vec![0, 1, far]),
    ]
}

#[test]
fn every_field_wrong_once() {
    let rig = Rig::new();
    let mut guest = rig.drive.guest();
    let good = good_messages();
    let spoiled = spoiled_fields();
    let mut refused = 0;
    for (command, offset, size, values) in spoiled {
        let (_, payload) = good.iter().find(|(c, _)| *c == command).expect("a message to spoil");
        for value in values {
            let mut payload = payload.clone();
            payload[offset..offset + size].copy_from_slice(&value.to_le_bytes()[..size]);
            let answer = guest.call(command, &payload);
            assert!(answer.is_err(), "{command:?} with {value:#x} at {offset}");
            refused += 1;
        }
    }
    guest.ping();
    let status = rig.drive.status();
    assert_eq!((status.regions, status.counters.refused), (0, refused));
}

#[test]
fn commands_that_we_do_not_know() {
    let rig = Rig::new();
    let mut guest = rig.drive.guest();
    for command in [0, 11, 12, 14, 16, 17, 18, 19, 999, u16::MAX] {
        assert_eq!(guest.call(Command(command), &[0; 64]), Err(Errno::NOTSUP), "{command}");
    }
    guest.ping();
}

#[test]
fn a_dirty_bitmap_is_not_promised() {
    let rig = Rig::new();
    let mut guest = rig.drive.guest();
    guest.map(0, 4096, None).expect("mapped");
    let unmap = DmaUnmap { argsz: 1024, flags: DmaUnmap::GET_DIRTY_BITMAP, address: 0, size: 4096 };
    assert_eq!(guest.call(Command::DMA_UNMAP, unmap.as_bytes()), Err(Errno::NOTSUP));
    assert_eq!(rig.drive.status().regions, 1);
}

#[test]
fn nothing_comes_before_version() {
    let rig = Rig::new();
    for (command, payload) in good_messages() {
        let mut guest = rig.drive.connect();
        assert_eq!(guest.call(command, &payload), Err(Errno::INVAL));
        guest.assert_disconnected();
    }
    rig.drive.guest().ping();
}

#[test]
fn versions_that_cannot_be_agreed_to() {
    let rig = Rig::new();
    let version = |major, minor| Version { major, minor }.as_bytes().to_vec();
    let text = |text: &[u8]| [&version(0, 0)[..], text].concat();
    for payload in
        [vec![], vec![0; 3], version(1, 0), version(u16::MAX, 0), text(b"{"), text(&[b'['; 60_000])]
    {
        let mut guest = rig.drive.connect();
        assert!(guest.call(Command::VERSION, &payload).is_err());
        guest.assert_disconnected();
    }
    let mut guest = rig.drive.connect();
    guest.call(Command::VERSION, &version(0, u16::MAX)).expect("a newer minor version is no obstacle");
    assert_eq!(guest.call(Command::VERSION, &version(0, 0)), Err(Errno::INVAL), "once is enough");
    guest.ping();
}

#[test]
fn what_is_not_a_command_ends_the_connection() {
    let rig = Rig::new();
    for flags in [1, 2, 15, 0x31] {
        let guest = rig.drive.guest();
        let Peer { mut connection, .. } = guest;
        let header = Header { flags, ..Header::command(1, Command::DMA_READ) };
        connection.send(header, &[], &[], &[]).expect("sent");
        eventually("the server ends it", || connection.receive().is_err());
    }
    rig.drive.guest().ping();
}

#[test]
fn sizes_that_cannot_be() {
    let rig = Rig::new();
    for size in [0u32, 15, 1 << 20, u32::MAX] {
        let mut guest = rig.drive.guest();
        let header = Header { size, ..Header::command(1, Command::DEVICE_RESET) };
        let mut socket: &UnixStream = guest.connection.socket();
        socket.write_all(header.as_bytes()).expect("written");
        guest.assert_disconnected();
    }
    rig.drive.guest().ping();
}

#[test]
fn half_a_message_keeps_nobody_waiting() {
    let rig = Rig::new();
    let neighbour = rig.neighbour();
    let guest = rig.drive.guest();
    let header = Header { size: 4096, ..Header::command(1, Command::DMA_MAP) };
    let mut socket: &UnixStream = guest.connection.socket();
    socket.write_all(&header.as_bytes()[..9]).expect("written");
    neighbour.guest().ping();
    socket.write_all(&header.as_bytes()[9..]).expect("written");
    socket.write_all(&[0; 100]).expect("written");
    neighbour.guest().ping();
    assert!(rig.drive.status().connected);
    drop(guest);
    rig.drive.guest().ping();
}

#[test]
fn memory_that_is_none() {
    let rig = Rig::new();
    let mut guest = rig.drive.guest();
    let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
    let eventfd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("an eventfd");
    let null = std::fs::File::open("/dev/null").expect("there is one");
    let directory = std::fs::File::open("/").expect("there is one");
    let (socket, _other) = UnixStream::pair().expect("a pair");
    let itself = std::fs::File::open("/proc/self/exe").expect("there is one");
    let strangers: [BorrowedFd<'_>; 7] = [
        reader.as_fd(),
        writer.as_fd(),
        eventfd.as_fd(),
        null.as_fd(),
        directory.as_fd(),
        socket.as_fd(),
        itself.as_fd(),
    ];
    for stranger in strangers {
        assert!(guest.map(0, 4096, Some(stranger)).is_err());
    }
    let small = memory(4096);
    assert_eq!(guest.map(0, 8192, Some(small.as_fd())), Err(Errno::INVAL), "more than the file has");
    let map = DmaMap { argsz: 32, flags: 3, offset: u64::MAX - 4095, address: 0, size: 4096 };
    assert!(guest.call_with(Command::DMA_MAP, map.as_bytes(), &[small.as_fd()]).is_err());
    let two = [small.as_fd(), small.as_fd()];
    let map = DmaMap { argsz: 32, flags: 3, offset: 0, address: 0, size: 4096 };
    assert!(guest.call_with(Command::DMA_MAP, map.as_bytes(), &two).is_err());
    assert_eq!(rig.drive.status().regions, 0);
    guest.map(0, 4096, Some(small.as_fd())).expect("this one is good");
}

#[test]
fn superfluous_descriptors_are_closed() {
    let rig = Rig::new();
    let mut guest = rig.drive.guest();
    let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
    let payload = DeviceInfo { argsz: 16, ..DeviceInfo::default() };
    guest.call_with(Command::DEVICE_GET_INFO, payload.as_bytes(), &[writer.as_fd()]).expect("answered");
    drop(writer);
    // The end of the pipe is read once the last writer is closed.
    assert_eq!(rustix::io::read(&reader, &mut [0; 1][..]), Ok(0));
}

#[test]
fn too_many_descriptors_end_the_connection() {
    let rig = Rig::new();
    let mut guest = rig.drive.guest();
    let (reader, _writer) = rustix::pipe::pipe().expect("a pipe");
    let fds = vec![reader.as_fd(); 16];
    for _ in 0..4 {
        assert_eq!(guest.call_with(Command(999), &[], &fds).map(|_| ()), Err(Errno::NOTSUP));
    }
    guest.send(Command(999), &[], &fds[..1]);
    guest.assert_disconnected();
    rig.drive.guest().ping();
}

/// Generates messages of any content with valid framing.
fn messages() -> impl Strategy<Value = Vec<(Header, Vec<u8>, u8)>> {
    let small = prop_oneof![0u32..40, Just(4096), any::<u32>()];
    let words = prop::collection::vec(small, 0..16);
    let command = prop_oneof![8 => 0u16..20, 1 => any::<u16>()];
    let flags = prop_oneof![20 => Just(0u32), 4 => Just(Header::NO_REPLY), 1 => any::<u32>()];
    let one = (any::<u16>(), command, flags, words, 0u8..3).prop_map(|(id, command, flags, words, fds)| {
        let header = Header { flags, ..Header::command(id, Command(command)) };
        (header, words.as_bytes().to_vec(), fds)
    });
    prop::collection::vec(one, 1..40)
}

/// Server with a correct client on one drive, and a broken one on the other.
struct Asylum {
    rig: Rig,
    _neighbour: rig::Drive,
    bystander: Peer,
}

impl Asylum {
    fn new() -> Self {
        let rig = Rig::new();
        let neighbour = rig.neighbour();
        let bystander = neighbour.guest();
        Self { rig, _neighbour: neighbour, bystander }
    }

    /// Checks that the other client is still served, and that the next client is served, too.
    fn check(&mut self) {
        self.bystander.ping();
        let mut guest = self.rig.drive.guest();
        guest.ping();
        assert_eq!(self.rig.drive.status().regions, 0);
    }
}

#[test]
fn messages_of_any_kind_hurt_nobody() {
    let mut asylum = Asylum::new();
    let (reader, _writer) = rustix::pipe::pipe().expect("a pipe");
    let ram = memory(1 << 20);
    let fds = [ram.as_fd(), reader.as_fd()];
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(300));
    let strategy = (any::<bool>(), messages());
    let asylum = std::cell::RefCell::new(&mut asylum);
    let result = runner.run(&strategy, |(negotiates, messages)| {
        let mut asylum = asylum.borrow_mut();
        let mut guest = asylum.rig.drive.connect();
        if negotiates {
            guest.negotiate(b"{}\0");
        }
        for (header, payload, count) in messages {
            let fds = &fds[..usize::from(count).min(fds.len())];
            // The send fails once the server has disconnected the client, as it may.
            let _ = guest.connection.send(header, &payload, &[], fds);
            let _ = guest.connection.receive();
        }
        drop(guest);
        asylum.check();
        Ok(())
    });
    result.expect("nobody was hurt");
}

#[test]
fn bytes_of_any_kind_hurt_nobody() {
    let mut asylum = Asylum::new();
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(200));
    let asylum = std::cell::RefCell::new(&mut asylum);
    let result = runner.run(&prop::collection::vec(any::<u8>(), 0..200), |bytes| {
        let mut asylum = asylum.borrow_mut();
        let guest = asylum.rig.drive.guest();
        let mut socket: &UnixStream = guest.connection.socket();
        let _ = socket.write_all(&bytes);
        drop(guest);
        asylum.check();
        Ok(())
    });
    result.expect("nobody was hurt");
}
