//! Tests of sleeping while the device is busy, without spinning and without missed completions.

use crate::rig::{Drive, LIMIT, Scratch, eventually, open, pattern, start_reactor};
use sluice_command::{Layer, StackBuilder};
use sluice_functions::{Delay, DelayConfig};
use sluice_host::{Mode, QueueLayout, entry};
use sluice_reactor::{Io, ReactorHandle};
use sluice_router::RouterBuilder;
use sluice_targets::{Address, Memory, NvmeConfig, PreparedNvme};
use std::time::Duration;

/// Waits until the reactor does nothing at all for a while.
fn sleeps(reactor: &ReactorHandle) {
    eventually("the reactor sleeps", || {
        let before = reactor.counters().turns;
        std::thread::sleep(Duration::from_millis(50));
        reactor.counters().turns == before
    });
}

#[test]
fn a_reactor_sleeps_until_the_device_answers() {
    let scratch = Scratch::new();
    let [below, above] = [start_reactor(), start_reactor()];
    // Reads take far longer than the reactor polls for.
    let router = |_, _: &Io| {
        let mut stack = StackBuilder::new();
        let memory = stack.add(Box::new(Memory::new(1 << 20).expect("memory")), &[]).expect("one layer");
        let delay = DelayConfig { read_ns: 2_000_000_000, write_ns: 0, flush_ns: 0, held_max: 1024 };
        stack.add(Box::new(Delay::new(delay)), &[memory]).expect("two layers");
        RouterBuilder::new(stack.build()).build()
    };
    let device = Drive::serve_router(&below, scratch.path().join("device"), 512, router);
    let address = Address::VfioUser(device.socket());
    let seed =
        PreparedNvme::open(&NvmeConfig { timeout: LIMIT, ..NvmeConfig::new(address, 1) }).expect("opened");
    let make = move |task, io: &Io| -> Box<dyn Layer> {
        Box::new(seed.build(task, io, 0).expect("room for a file"))
    };
    let drive = Drive::serve(&above, scratch.path().join("disk"), 512, make);
    sleeps(&above);
    let mut guest = drive.connect(Mode::Trapped);
    let data = pattern(1, 4096);
    let mut blocks = open(&mut guest);
    blocks.write(0, &data).expect("written");
    sleeps(&above);
    let mut back = vec![0; data.len()];
    let memory = guest.memory().allocate(4096).expect("memory");
    let mut queue = guest.create_queue_pair(2, QueueLayout::default(), None).expect("a queue pair");
    let cid = queue.submit_prp(entry::read(1, 0, 8), memory.range(0, 4096)).expect("room");
    queue.ring().expect("rung");
    // On a busy machine it may be done before it is seen.
    eventually("it is on the device", || {
        device.ask(|endpoint| {
            let controller = endpoint.device();
            controller.unfinished() == 1 || controller.subsystem.statistics().bytes_read > 0
        })
    });
    sleeps(&above);
    let deadline = sluice_host::Deadline::after(LIMIT, "the read");
    let completion = queue.wait(cid, &deadline, drop).expect("completed");
    assert!(completion.status().is_success());
    memory.region().read(0, &mut back);
    assert!(back == data);
    drop((queue, blocks, guest));
    sleeps(&above);
}
