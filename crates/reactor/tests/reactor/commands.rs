//! NVMe commands, as far as they can be observed without a device.

use std::fs::File;
use std::os::fd::OwnedFd;

use sluice_memory::SharedRegion;
use sluice_reactor::{NvmeCommand, NvmeQueue, try_nvme};

use crate::probe::{ASLEEP, add, asleep, eventually, reactor, with};

/// Opens a file that takes every command and does nothing (Linux 6.15), or supports none.
fn null() -> OwnedFd {
    File::options().read(true).write(true).open("/dev/null").expect("it is there").into()
}

#[test]
fn every_command_has_one_answer_and_wakes_a_reactor_that_sleeps() {
    let reactor = reactor();
    let (id, memory) = add(&reactor, ASLEEP);
    asleep(&reactor);
    // Far more than the ring has entries.
    with(&reactor, id, |probe| {
        let device = probe.io.register_nvme(null()).expect("a ring for commands");
        let region = SharedRegion::new("data", 8192).expect("memory");
        let two = [region.segment(4096, 512), region.segment(0, 512)];
        for token in 0..1000u64 {
            let segments = &two[..token as usize % 3];
            let command = NvmeCommand::default();
            probe.io.nvme((&device, NvmeQueue::Io), &command, segments, probe.id, token);
        }
        // The device is dropped while all commands wait to be submitted: they use it nevertheless.
        probe.holds.push(Box::new(region));
    });
    eventually("all are answered", || memory.events.lock().expect("not poisoned").len() == 1000);
    for token in 0..1000 {
        let answer = memory.event(token).expect("one for each");
        assert!(answer == 0 || answer == -libc::EOPNOTSUPP, "{answer}");
    }
    assert_eq!(with(&reactor, id, |probe| probe.io.in_flight(probe.id)), 0);
    reactor.stop();
}

#[test]
fn a_trial_fails_for_a_file_that_takes_no_commands() {
    let region = SharedRegion::new("data", 4096).expect("memory");
    let memfd = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).expect("a memfd");
    let answer =
        try_nvme(&memfd, &NvmeCommand::default(), region.segment(0, 512)).expect("a ring for commands");
    assert_eq!(answer, -libc::EOPNOTSUPP);
    let error = sluice_reactor::namespace_id(std::os::fd::AsFd::as_fd(&memfd)).expect_err("it has none");
    assert_eq!(error.raw_os_error(), Some(libc::ENOTTY));
}
