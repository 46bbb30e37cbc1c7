//! Memory of the guest that comes and goes.

use crate::rig::{BLOCK, LIMIT, Rig, eventually, open, pattern};
use sluice_host::{Deadline, DmaBuffer, QueueLayout, entry};

/// Maps buffers, uses them a few times and unmaps them, while other commands continue. Once the guest's unmap
/// is answered, the memory is unmapped for the device, too.
#[test]
fn memory_may_go_at_any_time() {
    let rig = Rig::new();
    let (drive, control) = rig.drive("disk", &rig.config());
    let device_regions = || rig.device.ask(|endpoint| endpoint.status().regions);
    let before = device_regions();
    let mut guest = drive.guest();
    let mut queue = guest.create_queue_pair(1, QueueLayout::default(), None).expect("a queue pair");
    let deadline = Deadline::after(LIMIT, "a command");
    let mut buffers: Vec<DmaBuffer> = Vec::new();
    let mut random = 88_172_645_463_325_252u64;
    for step in 0..100u64 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        if buffers.len() < 3 || (random.is_multiple_of(3) && buffers.len() < 12) {
            buffers.push(guest.memory().allocate(16 << 10).expect("memory"));
        } else if random.is_multiple_of(5) {
            // The answer comes when no command and no device has it any more.
            drop(buffers.swap_remove(random as usize % buffers.len()));
        }
        let slba = random % 1000 * 8;
        let data = pattern(step, 8 << 10);
        let (from, to) = (&buffers[step as usize % buffers.len()], &buffers[random as usize % buffers.len()]);
        from.region().write(0, &data);
        for (command, buffer) in [(entry::write(1, slba, 16), from), (entry::read(1, slba, 16), to)] {
            let cid = queue.submit_prp(command, buffer.range(0, 8 << 10)).expect("room");
            let completion = queue.wait(cid, &deadline, drop).expect("completed");
            assert!(completion.status().is_success(), "{:?}", completion.status());
        }
        let mut back = vec![0; data.len()];
        to.region().read(0, &mut back);
        assert!(back == data, "step {step}");
    }
    let status = control.status();
    assert!(status.copied < status.sent, "some of it was shared: {status:?}");
    drop(buffers);
    drop(queue);
    drop(guest);
    eventually("the device has given the guest's memory back", || device_regions() == before);
    assert_eq!(control.status().losses, 0);
}

/// Unmaps memory that commands on the device name: the guest gets the answer after the commands.
#[test]
fn an_unmap_waits_for_the_device() {
    let rig = Rig::new();
    let (drive, control) = rig.drive("disk", &rig.config());
    let mut guest = drive.guest();
    let mut queue = guest.create_queue_pair(1, QueueLayout::default(), None).expect("a queue pair");
    let deadline = Deadline::after(LIMIT, "a command");
    for round in 0..50u64 {
        let buffer = guest.memory().allocate(1 << 20).expect("memory");
        let data = pattern(round, 1 << 20);
        buffer.region().write(0, &data);
        let count = 1 << 20 >> 15;
        for piece in 0..count {
            let range = buffer.range(piece << 15, 32 << 10);
            queue.submit_prp(entry::write(1, (piece << 15) as u64 / BLOCK as u64, 64), range).expect("room");
        }
        queue.ring().expect("rung");
        let taken = 32 * round;
        eventually("one is taken", || {
            drive.ask(move |endpoint| {
                let controller = endpoint.device();
                u64::from(controller.in_flight()) + controller.subsystem.statistics().commands > taken
            })
        });
        drop(buffer);
        while queue.in_flight() > 0 {
            // Commands that were not fetched before the unmap fail for lack of memory.
            queue.reap(drop);
            queue.ring().expect("rung");
            deadline.check().expect("in time");
        }
    }
    let mut blocks_queue = guest.create_queue_pair(2, QueueLayout::default(), None).expect("a queue pair");
    let page = guest.memory().allocate(4096).expect("memory");
    let cid = blocks_queue.submit_prp(entry::read(1, 0, 8), page.range(0, 4096)).expect("room");
    assert!(blocks_queue.wait(cid, &deadline, drop).expect("completed").status().is_success());
    assert_eq!(control.status().losses, 0);
}

/// Runs one guest after another: none leaves a mapping at the device.
#[test]
fn guests_come_and_go() {
    let rig = Rig::new();
    let (drive, control) = rig.drive("disk", &rig.config());
    let device_regions = || rig.device.ask(|endpoint| endpoint.status().regions);
    let before = device_regions();
    for round in 0..10 {
        let mut guest = drive.guest();
        let mut blocks = open(&mut guest);
        for _ in 0..20 {
            blocks.write(0, &pattern(round, 4096)).expect("written");
        }
        drop(blocks);
        drop(guest);
        eventually("its memory is back", || device_regions() == before);
    }
    assert_eq!(control.status().losses, 0);
}
