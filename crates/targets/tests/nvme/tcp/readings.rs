//! Tests with correct controllers that have another reading of the specification than Sluice's.

use super::fake::Fake;
use super::fake::odd::Reading;
use super::lone::Lone;
use crate::rig::{BLOCK, LIMIT, pattern};
use sluice_host::{Deadline, QueueLayout, entry};

const USUAL: Reading =
    Reading { mqes: 127, mpsmin: 0, mdts: 8, in_capsule: 8192, alignment: 4, piece: 4096, format: 0 };

/// Each at an end of what it may be.
const READINGS: &[Reading] = &[
    Reading { mqes: 1, mpsmin: 0, mdts: 1, in_capsule: 0, alignment: 128, piece: 512, format: 15 },
    Reading { mqes: 2, ..USUAL },
    Reading { mqes: 3, mdts: 1, piece: 1024, ..USUAL },
    Reading { mqes: u16::MAX, mdts: 0, piece: 1 << 20, ..USUAL },
    Reading { mpsmin: 4, mdts: 1, format: 7, ..USUAL },
    Reading { in_capsule: 512, alignment: 64, piece: 2048, ..USUAL },
    Reading { mqes: 31, in_capsule: 0, piece: 4096 - 512, ..USUAL },
];

/// Checks that written data is read back under every legal reading, and that the host keeps the controller's
/// limits.
#[test]
fn a_controller_may_read_the_specification_in_any_legal_way() {
    for reading in READINGS {
        let lone = Lone::new(Fake::reading(*reading), |config| config);
        let (_host, mut disk) = lone.disk();
        for (slba, bytes) in [(0, 512), (9, 8192), (100, 128 << 10), (1000, 1 << 20)] {
            let data = pattern(slba, bytes);
            disk.write(slba, &data).expect("written");
            let mut back = vec![0; bytes];
            disk.read(slba, &mut back).expect("read");
            assert!(back == data, "{bytes} bytes, {reading:?}");
        }
        disk.flush().expect("flushed");
        assert_eq!(lone.fake.judgement().0, [""; 0]);
        let status = lone.control.status();
        assert_eq!((status.losses, status.interrupted), (0, 0), "{reading:?}");
    }
}

/// Runs as many commands of a guest as possible: they wait for room in the queue, and use all of it.
#[test]
fn a_small_queue_of_a_controller_is_filled_and_not_overrun() {
    const COMMANDS: usize = 60;
    for mqes in [1, 2, 5] {
        let lone = Lone::new(Fake::reading(Reading { mqes, in_capsule: 0, ..USUAL }), |config| config);
        let mut host = lone.guest();
        let layout = QueueLayout { entries: 64, ..QueueLayout::default() };
        let mut queue = host.create_queue_pair(1, layout, None).expect("a queue pair");
        let memory = host.memory().allocate(COMMANDS * 4096).expect("memory");
        let (mut done, deadline) = (0, Deadline::after(LIMIT, "the commands"));
        for page in 0..COMMANDS {
            let range = memory.range(page * 4096, 4096);
            let blocks = (4096 / BLOCK) as u16;
            queue.submit_prp(entry::write(1, page as u64 * 8, blocks.into()), range).expect("room");
        }
        queue.ring().expect("rung");
        while done < COMMANDS {
            queue.reap(|completion| {
                assert!(completion.status().is_success());
                done += 1;
            });
            deadline.check().expect("in time");
        }
        let (faults, deepest) = lone.fake.judgement();
        assert_eq!((faults, deepest), (Vec::new(), mqes.into()), "{mqes}");
    }
}
