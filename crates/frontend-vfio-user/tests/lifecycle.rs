//! Resets and unmaps while commands are in flight, and clients that come and go.

mod rig;

use rig::driver::{DATA, Driver, is_ready};
use rig::{Peer, Rig, eventually};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, memfd_create};
use sluice_frontend_vfio_user::Listener;
use sluice_reactor::{Arm, Task};
use sluice_vfio_user::dma::DmaUnmap;
use sluice_vfio_user::{Command, Errno};
use std::os::fd::{AsFd, OwnedFd};
use zerocopy::IntoBytes;

fn memory(bytes: u64) -> OwnedFd {
    let fd = memfd_create("guest", MemfdFlags::CLOEXEC).expect("a memfd");
    rustix::fs::ftruncate(&fd, bytes).expect("room");
    fd
}

/// Sends a message that has to wait while a read is in flight. Checks that it and the next message wait, that
/// a neighbour does not, and that both are answered when the read is done.
fn waits_for_the_device(ask: impl FnOnce(&mut Peer) -> u16) {
    let rig = Rig::new();
    let neighbour = rig.neighbour();
    let (mut guest, mut other) = (rig.drive.guest(), neighbour.guest());
    let ram = memory(1 << 20);
    guest.map(0, 1 << 20, Some(ram.as_fd())).expect("mapped");
    rig.drive.hold_read(&mut guest, 0);
    let first = ask(&mut guest);
    let then = guest.send(Command::DEVICE_GET_INFO, [16u32, 0, 0, 0].as_bytes(), &[]);
    for _ in 0..20 {
        other.ping();
    }
    assert!(guest.is_waiting());
    rig.drive.release();
    guest.reply_to(first).expect("it is over");
    guest.reply_to(then).expect("and what was asked meanwhile is answered");
}

#[test]
fn an_unmap_waits_until_nothing_in_flight_points_there() {
    waits_for_the_device(|guest| {
        guest.send(
            Command::DMA_UNMAP,
            DmaUnmap { argsz: 24, flags: 0, address: 0, size: 1 << 20 }.as_bytes(),
            &[],
        )
    });
}

#[test]
fn so_does_an_unmap_of_everything() {
    waits_for_the_device(|guest| {
        guest.send(Command::DMA_UNMAP, DmaUnmap { argsz: 24, flags: 2, address: 0, size: 0 }.as_bytes(), &[])
    });
}

#[test]
fn a_device_reset_waits_for_commands_in_flight() {
    waits_for_the_device(|guest| guest.send(Command::DEVICE_RESET, &[], &[]));
}

/// Sends a REGION_WRITE to configuration space.
fn config_write(guest: &mut Peer, offset: u64, data: &[u8]) -> u16 {
    let access = sluice_vfio_user::region::RegionAccess { offset, region: 7, count: data.len() as u32 };
    guest.send(Command::REGION_WRITE, &[access.as_bytes(), data].concat(), &[])
}

#[test]
fn a_function_level_reset_waits_for_commands_in_flight() {
    waits_for_the_device(|guest| config_write(guest, 0x68, &0x8000u16.to_le_bytes()));
}

#[test]
fn so_does_the_end_of_d3hot() {
    waits_for_the_device(|guest| {
        let id = config_write(guest, 0x44, &[3]);
        guest.reply_to(id).expect("asleep");
        config_write(guest, 0x44, &[0])
    });
}

#[test]
fn resets_put_the_function_back() {
    let rig = Rig::new();
    let mut guest = rig.drive.guest();
    Driver::start(&mut guest, &[]);
    guest.write(7, 0x10, &0x8000_0000u64.to_le_bytes()).expect("BAR0");
    guest.write(7, 0x68, &0x8000u16.to_le_bytes()).expect("reset");
    assert_eq!(guest.read(7, 0x10, 8), Ok(vec![4, 0, 0, 0, 0, 0, 0, 0]));
    assert!(!is_ready(&mut guest));
    assert_eq!(rig.drive.status().counters.resets, 1);
}

#[test]
fn memory_comes_and_goes() {
    let rig = Rig::new();
    let mut guest = rig.drive.guest();
    let ram = memory(4 << 20);
    guest.map(0, 1 << 20, Some(ram.as_fd())).expect("mapped");
    guest.map(2 << 20, 1 << 20, Some(ram.as_fd())).expect("mapped");
    guest.map(4 << 20, 1 << 20, None).expect("a hole");
    assert_eq!(guest.map(0, 4096, Some(ram.as_fd())), Err(Errno::EXIST));
    assert_eq!(guest.unmap(0, 4096), Err(Errno::INVAL), "a part of a region");
    assert_eq!(guest.unmap(1 << 20, 1 << 20), Err(Errno::NOENT));
    guest.unmap(0, 1 << 20).expect("unmapped");
    guest.map(0, 2 << 20, Some(ram.as_fd())).expect("mapped otherwise");
    guest.unmap(4 << 20, 1 << 20).expect("the hole too");
    let all = DmaUnmap { argsz: 24, flags: DmaUnmap::ALL, address: 0, size: 0 };
    guest.call(Command::DMA_UNMAP, all.as_bytes()).expect("all of it");
    let status = rig.drive.status();
    assert_eq!((status.regions, status.counters.maps, status.counters.unmaps), (0, 4, 3));
}

#[test]
fn thousands_of_maps_as_with_a_virtual_iommu() {
    let rig = Rig::new();
    let mut guest = rig.drive.guest();
    let ram = memory(8 << 20);
    for page in 0..2048 {
        guest.map(page * 8192, 4096, Some(ram.as_fd())).expect("mapped");
    }
    assert_eq!(rig.drive.status().regions, 2048);
    for page in 0..2048 {
        guest.unmap(page * 8192, 4096).expect("unmapped");
    }
}

#[test]
fn the_next_client_waits_until_the_last_one_is_out() {
    let rig = Rig::new();
    let mut guest = rig.drive.guest();
    let ram = memory(1 << 20);
    guest.map(0, 1 << 20, Some(ram.as_fd())).expect("mapped");
    rig.drive.hold_read(&mut guest, 0);
    // The client is gone before this unmap is answered.
    guest.send(
        Command::DMA_UNMAP,
        DmaUnmap { argsz: 24, flags: 0, address: 0, size: 1 << 20 }.as_bytes(),
        &[],
    );
    drop(guest);
    let mut next = rig.drive.connect();
    let id = next.send(Command::VERSION, &[0; 4], &[]);
    for _ in 0..20 {
        rig.drive.wake();
    }
    assert!(next.is_waiting());
    rig.drive.release();
    next.reply_to(id).expect("its turn");
    assert_eq!(rig.drive.status().regions, 0);
    assert!(!is_ready(&mut next));
}

#[test]
fn a_client_can_go_at_any_point() {
    let rig = Rig::new();
    let ram = memory(1 << 20);
    let steps: [fn(&mut Peer); 6] = [
        |_| (),
        |guest| {
            guest.negotiate(b"");
        },
        |guest| drop(guest.region_info(0, 64)),
        |guest| guest.write(0, 0x14, &[1, 0, 0, 0]).expect("enabled"),
        |guest| guest.post_write(0, 0x1000, &[1, 0, 0, 0]),
        |guest| {
            guest.send(Command::DEVICE_RESET, &[], &[]);
        },
    ];
    for last in 0..=steps.len() {
        let mut guest = rig.drive.connect();
        for step in &steps[..last] {
            step(&mut guest);
        }
        if last > 1 {
            let _ = guest.send(Command::DMA_MAP, &[0; 32], &[ram.as_fd()]);
        }
    }
    // One more client finds the same state as the first one.
    let mut guest = rig.drive.guest();
    guest.ping();
    assert_eq!(rig.drive.status().regions, 0);
    assert_eq!(rig.drive.status().counters.clients, steps.len() as u64 + 2);
}

#[test]
fn one_client_at_a_time() {
    let rig = Rig::new();
    let mut guest = rig.drive.guest();
    Driver::start(&mut guest, &[]);
    for _ in 0..9 {
        let mut other = rig.drive.connect();
        assert_eq!(other.call(Command::VERSION, &[0; 4]), Err(Errno::BUSY));
        other.assert_disconnected();
        guest.ping();
    }
    // A client that sends no message is soon disconnected.
    rig.drive.connect().assert_disconnected();
    guest.ping();
    assert_eq!(rig.drive.status().counters.turned_away, 10);
    assert!(is_ready(&mut guest), "it was not reset");
}

#[test]
fn a_client_that_has_hung_up_does_not_keep_others_out() {
    let rig = Rig::new();
    let mut guest = rig.drive.guest();
    // The session waits for the read, so the end of the connection is not read.
    rig.drive.hold_read(&mut guest, DATA);
    guest.send(Command::DEVICE_RESET, &[], &[]);
    rustix::net::shutdown(&guest, rustix::net::Shutdown::Both).expect("hung up");
    let mut next = rig.drive.connect();
    eventually("the first is given up", || !rig.drive.status().connected);
    rig.drive.release();
    next.negotiate(b"");
}

#[test]
fn a_client_that_never_reads_is_disconnected() {
    let rig = Rig::new();
    let neighbour = rig.neighbour();
    let guest = rig.drive.guest();
    let access = sluice_vfio_user::region::RegionAccess { offset: 0, region: 7, count: 4096 };
    let header = sluice_vfio_user::Header::command(1, Command::REGION_READ);
    let mut connection = guest.connection;
    let mut end = None;
    eventually("the server has had enough", || {
        end = connection.send(header, access.as_bytes(), &[], &[]).err();
        end.is_some()
    });
    // The server has disconnected the client, and has not merely stopped reading.
    assert_eq!(end, Some(sluice_vfio_user::Error::Closed));
    neighbour.guest().ping();
    let mut guest = rig.drive.connect();
    guest.negotiate(b"");
}

#[test]
fn slow_readers_are_not_those_who_never_read() {
    let rig = Rig::new();
    let mut guest = rig.drive.guest();
    let access = sluice_vfio_user::region::RegionAccess { offset: 0, region: 7, count: 4096 };
    // The replies are more than the socket holds, and less than the server buffers.
    let ids: Vec<u16> = (0..100).map(|_| guest.send(Command::REGION_READ, access.as_bytes(), &[])).collect();
    for _ in 0..20 {
        rig.drive.wake();
    }
    for id in ids {
        guest.reply_to(id).expect("answered");
    }
    guest.ping();
}

#[test]
fn a_flood_does_not_starve_a_neighbour() {
    let rig = Rig::new();
    let neighbour = rig.neighbour();
    let (mut flood, mut other) = (rig.drive.guest(), neighbour.guest());
    let flooding = std::thread::spawn(move || {
        for value in 0..100_000u32 {
            while flood.connection.has_unsent() {
                flood.connection.flush().expect("the server reads");
            }
            flood.post_write(0, 0x1000, &value.to_le_bytes());
        }
        flood.connection.flush().expect("the server reads");
        flood.ping();
    });
    for _ in 0..1000 {
        other.ping();
    }
    flooding.join().expect("the flood was taken");
    assert_eq!(rig.drive.status().counters.doorbells, 100_000);
}

#[test]
fn draining_waits_for_commands_in_flight() {
    let rig = Rig::new();
    let mut guest = rig.drive.guest();
    let eventfd = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
    guest.set_irqs(0x24, 2, 1..2, &[eventfd.as_fd()]).expect("MSI-X vector 1");
    let mut driver = rig.drive.hold_read(&mut guest, DATA);
    rig.drive.on_endpoint(|endpoint, now_ns| endpoint.drain(now_ns));
    // The client is still served, but no command is taken and no other client is let in.
    driver.submit_read(&mut guest, 1, DATA);
    guest.ping();
    assert_eq!(rig.drive.gate().taken, 1);
    assert!(!rig.drive.directory.join("cntrl").exists());
    assert!(!rig.drive.on_endpoint(|endpoint, _| endpoint.is_drained()));
    let sleeps = rig.drive.on_endpoint(|endpoint, now_ns| {
        let armed = endpoint.arm(now_ns);
        endpoint.disarm();
        matches!(armed, Arm::Asleep { until } if until.is_none_or(|at_ns| at_ns > now_ns))
    });
    assert!(sleeps, "the end of the command wakes the endpoint");
    rig.drive.release();
    guest.assert_disconnected();
    // The last completion was posted and signalled before the disconnection.
    assert!(driver.rings.pop(1).is_some_and(|completion| completion.status().is_success()));
    assert!(driver.rings.pop(1).is_none());
    assert_eq!(rustix::io::read(&eventfd, &mut [0; 8][..]), Ok(8));
    eventually("drained", || rig.drive.on_endpoint(|endpoint, _| endpoint.is_drained()));
    rig.drive.remove();
    // The directory is free again.
    Listener::bind(&rig.drive.directory, 0o600).expect("bound");
}

#[test]
fn draining_does_not_wait_for_an_eventfd_that_takes_nothing() {
    let rig = Rig::new();
    let mut guest = rig.drive.guest();
    // The eventfd is full, and blocks.
    let eventfd = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
    rustix::io::write(&eventfd, &(u64::MAX - 1).to_ne_bytes()).expect("room");
    guest.set_irqs(0x24, 2, 0..1, &[eventfd.as_fd()]).expect("MSI-X vector 0");
    Driver::start(&mut guest, &[]).complete(&mut guest, &[0]);
    rig.drive.on_endpoint(|endpoint, now_ns| endpoint.drain(now_ns));
    guest.assert_disconnected();
    eventually("drained", || rig.drive.on_endpoint(|endpoint, _| endpoint.is_drained()));
}

#[test]
fn draining_without_a_client_is_done_at_once() {
    let rig = Rig::new();
    let drained = rig.drive.on_endpoint(|endpoint, now_ns| {
        endpoint.drain(now_ns);
        endpoint.is_drained()
    });
    assert!(drained);
    rig.drive.remove();
}

#[test]
fn a_drive_that_is_removed_takes_its_socket_and_its_client_along() {
    let rig = Rig::new();
    let mut guest = rig.drive.guest();
    rig.drive.remove();
    guest.assert_disconnected();
    eventually("the socket is gone", || !rig.drive.directory.join("cntrl").exists());
}

#[test]
fn an_idle_endpoint_is_not_looked_at() {
    let rig = Rig::new();
    let mut guest = rig.drive.guest();
    guest.ping();
    let turns = || rig.drive.gate().turns;
    // The endpoint sleeps once its turns no longer grow while mail keeps the reactor itself awake.
    eventually("it sleeps", || {
        let before = turns();
        for _ in 0..50 {
            rig.reactor.call(|_| ()).expect("the reactor runs");
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
        turns() == before
    });
    guest.ping();
}
