//! Tests of all commands of a drive, over a network.

use super::rig::{Rig, SIZE, config};
use crate::model;
use crate::rig::{BLOCK, LIMIT, open, open_at, pattern};
use sluice_host::{Deadline, QueueLayout, entry};
use sluice_nvme::Status;
use sluice_targets::{Digests, NvmeTcpConfig, PreparedNvmeTcp};

const BOTH: Digests = Digests { header: true, data: true };

#[test]
fn random_commands_do_what_the_model_says() {
    for (seed, digests) in [(1, Digests::NONE), (2, BOTH), (3, Digests { header: false, data: true })] {
        let rig = Rig::new();
        let (drive, control) = rig.drive("disk", &NvmeTcpConfig { digests, ..config(rig.address) });
        let mut host = drive.guest();
        let lanes = model::run(&mut host, seed, 800);
        let mut disk = open_at(&mut host, 2);
        let mut slba = 0;
        for (number, lane) in lanes.iter().enumerate() {
            let mut there = vec![0; lane.len()];
            disk.read(slba, &mut there).expect("read");
            assert!(there == *lane, "{digests:?}, lane {number}");
            slba += (lane.len() / BLOCK) as u64;
        }
        let status = control.status();
        assert_eq!((status.sent, status.losses, status.interrupted), (status.completed, 0, 0));
    }
}

/// Checks that a drive is as large as the namespace, and that large transfers are not copied on this side.
#[test]
fn large_transfers_go_to_their_place() {
    let rig = Rig::new();
    let (drive, control) = rig.drive("disk", &config(rig.address));
    let mut host = drive.guest();
    let mut disk = open(&mut host);
    assert_eq!(disk.identity().nsze, SIZE / BLOCK as u64);
    let data = pattern(1, SIZE as usize);
    disk.write(0, &data).expect("written");
    disk.flush().expect("flushed");
    let mut back = vec![0; data.len()];
    disk.read(0, &mut back).expect("read");
    assert!(back == data);
    let status = control.status();
    assert_eq!(status.bytes, 2 * SIZE);
    assert!(status.bytes_copied * 4 < SIZE, "{status:?}");
}

#[test]
fn what_cannot_be_connected_to_says_why() {
    let rig = Rig::new();
    let good = config(rig.address);
    let why = |config: &NvmeTcpConfig| PreparedNvmeTcp::open(config).expect_err("refused").to_string();
    let absent = why(&NvmeTcpConfig { subnqn: "nqn.2026-11.example:no".to_owned(), ..good.clone() });
    assert!(absent.contains("there is no such subsystem; see what `sluice discover` lists"), "{absent}");
    let nobody = why(&NvmeTcpConfig { address: "127.0.0.1:1".to_owned(), ..good.clone() });
    assert!(nobody.contains("cannot be connected to") && nobody.contains("see that its server runs"));
    let namespace = why(&NvmeTcpConfig { nsid: 7, ..good.clone() });
    assert!(namespace.contains("there is no active namespace 7"), "{namespace}");
    let (drive, _) = rig.drive("disk", &good);
    let busy = why(&NvmeTcpConfig { hostid: [4; 16], ..good });
    assert!(busy.contains("it has a host already"), "{busy}");
    let mut host = drive.guest();
    let beyond = open(&mut host).read(SIZE / BLOCK as u64, &mut [0; BLOCK]).expect_err("beyond");
    assert!(beyond.status().is_some_and(|status| status.same_code(Status::LBA_OUT_OF_RANGE)));
}

/// Checks that commands beyond the queue depth wait for those in flight, and for nothing else.
#[test]
fn a_guest_may_have_more_commands_than_the_connection() {
    const COMMANDS: usize = 200;
    let rig = Rig::new();
    let (drive, control) = rig.drive("disk", &config(rig.address));
    let mut host = drive.guest();
    let layout = QueueLayout { entries: 256, ..QueueLayout::default() };
    let mut queue = host.create_queue_pair(1, layout, None).expect("a queue pair");
    let memory = host.memory().allocate(COMMANDS * 4096).expect("memory");
    let deadline = Deadline::after(LIMIT, "the commands");
    let (mut begun, mut done) = (0, 0);
    while done < 10 * COMMANDS {
        while begun < 10 * COMMANDS && begun - done < COMMANDS {
            let page = begun % COMMANDS;
            let range = memory.range(page * 4096, 4096);
            queue.submit_prp(entry::write(1, page as u64 * 8, 8), range).expect("room");
            begun += 1;
        }
        queue.ring().expect("rung");
        queue.reap(|completion| {
            assert!(completion.status().is_success());
            done += 1;
        });
        deadline.check().expect("in time");
    }
    assert_eq!(control.status().completed, 10 * COMMANDS as u64);
}
