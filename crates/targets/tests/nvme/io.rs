//! Data goes to the device and comes back, without a copy where memory can be shared.

use crate::rig::{BLOCK, Rig, SIZE, eventually, open, pattern};
use sluice_host::QueueLayout;
use sluice_host::entry;
use sluice_targets::NvmeConfig;

#[test]
fn what_is_written_is_on_the_device() {
    let rig = Rig::new();
    let (drive, control) = rig.drive("disk", &rig.config());
    let mut guest = drive.guest();
    let mut blocks = open(&mut guest);
    assert_eq!(blocks.identity().nsze, SIZE / BLOCK as u64);
    let data = pattern(1, 300 << 10);
    blocks.write(100, &data).expect("written");
    blocks.flush().expect("flushed");
    assert_eq!(rig.bytes()[100 * BLOCK..][..data.len()], data);
    let mut back = vec![0; data.len()];
    blocks.read(100, &mut back).expect("read");
    assert!(back == data);
    assert!(control.status().sent >= 5, "{:?}", control.status());
}

#[test]
fn a_drive_is_its_range_of_the_device() {
    let rig = Rig::new();
    let config = NvmeConfig { first_block: 1000, blocks: Some(2000), ..rig.config() };
    let (drive, _) = rig.drive("disk", &config);
    let mut guest = drive.guest();
    let mut blocks = open(&mut guest);
    assert_eq!(blocks.identity().nsze, 2000);
    let data = pattern(2, 2000 * BLOCK);
    blocks.write(0, &data).expect("written");
    let bytes = rig.bytes();
    assert_eq!(bytes[1000 * BLOCK..3000 * BLOCK], data);
    assert!(bytes[..1000 * BLOCK].iter().chain(&bytes[3000 * BLOCK..]).all(|byte| *byte == 0));
    blocks.write_zeroes(10, 20, false).expect("zeroed");
    blocks.deallocate(&[(100, 50), (1990, 10)]).expect("deallocated");
    let mut model = data;
    for (first, count) in [(10, 20), (100, 50), (1990, 10)] {
        model[first * BLOCK..][..count * BLOCK].fill(0);
    }
    let mut back = vec![1; model.len()];
    blocks.read(0, &mut back).expect("read");
    assert!(back == model);
    blocks.compare(0, &model[..64 << 10]).expect("the same");
    blocks.compare(0, &pattern(3, 512)).expect_err("not the same");
}

/// Checks that only the first commands are copied, before the guest's memory is mapped for the device.
#[test]
fn shared_memory_is_not_copied() {
    let rig = Rig::new();
    let (drive, control) = rig.drive("disk", &rig.config());
    let mut guest = drive.guest();
    let mut blocks = open(&mut guest);
    let data = pattern(4, BLOCK);
    eventually("the device sees the guest's memory", || {
        let before = control.status();
        blocks.write(0, &data).expect("written");
        let after = control.status();
        after.sent == before.sent + 1 && after.copied == before.copied
    });
    let before = control.status();
    let data = pattern(5, 1 << 20);
    blocks.write(7, &data).expect("written");
    let mut back = vec![0; data.len()];
    blocks.read(7, &mut back).expect("read");
    assert!(back == data);
    assert_eq!(control.status().copied, before.copied, "of {:?}", control.status());
}

/// Transfers data of any shape: SGLs that PRPs cannot describe are copied, all others are not.
#[test]
fn every_shape_of_data_arrives() {
    let rig = Rig::new();
    let (drive, control) = rig.drive("disk", &rig.config());
    let mut guest = drive.guest();
    let memory = guest.memory().allocate(2 << 20).expect("memory");
    let mut queue = guest.create_queue_pair(1, QueueLayout::default(), None).expect("a queue pair");
    let deadline = sluice_host::Deadline::after(crate::rig::LIMIT, "a command");
    let mut run = |entry, ranges: &[sluice_host::DmaRange]| {
        let cid = queue.submit_sgl(entry, ranges).expect("room");
        let completion = queue.wait(cid, &deadline, drop).expect("completed");
        assert!(completion.status().is_success(), "{:?}", completion.status());
    };
    // Offsets and lengths of the parts of each command.
    let shapes: [&[(usize, u32)]; 5] = [
        &[(0, 4096), (8192, 4096), (4096, 1024)],
        &[(100 << 10, 1 << 20)],
        &[(4, 12), (4096, 500)],
        &[(512, 3584), (8192, 512)],
        &[(13, 511), (9001, 1), (65_536, 200 << 10)],
    ];
    for (number, shape) in shapes.into_iter().enumerate() {
        let ranges: Vec<_> = shape.iter().map(|&(at, length)| memory.range(at, length)).collect();
        let bytes: u32 = shape.iter().map(|(_, length)| length).sum();
        let (blocks, slba) = (bytes.div_ceil(BLOCK as u32), 3000 * number as u64);
        let data = pattern(number as u64, bytes as usize);
        let mut done = 0;
        for &(at, length) in shape {
            memory.region().write(at, &data[done..done + length as usize]);
            done += length as usize;
        }
        run(entry::write(1, slba, blocks), &ranges);
        assert_eq!(rig.bytes()[slba as usize * BLOCK..][..data.len()], data, "shape {number}");
        for &(at, length) in shape {
            memory.region().write(at, &vec![0xee; length as usize]);
        }
        run(entry::read(1, slba, blocks), &ranges);
        let mut back = Vec::new();
        for &(at, length) in shape {
            let mut piece = vec![0; length as usize];
            memory.region().read(at, &mut piece);
            back.extend(piece);
        }
        assert!(back == data, "shape {number}");
    }
    let status = control.status();
    assert!(status.copied > 0 && status.copied < status.sent && status.losses == 0, "{status:?}");
}

/// Closes a drive and opens it again at once: the device is disconnected, and connected anew.
#[test]
fn a_range_is_free_when_its_drive_is_gone() {
    let rig = Rig::new();
    for round in 0..10 {
        let (drive, control) = rig.drive("disk", &rig.config());
        let mut guest = drive.guest();
        open(&mut guest).write(0, &pattern(round, BLOCK)).expect("written");
        assert!(control.status().connected);
    }
    let (_drive, _) = rig.drive("left", &NvmeConfig { blocks: Some(10), ..rig.config() });
    for _ in 0..10 {
        rig.drive("right", &NvmeConfig { first_block: 10, ..rig.config() });
    }
}
