//! The function `checksum` against the model, and against disks that return wrong data.

use super::rig::{BLOCK, Rig};
use super::{live, turns};
use sluice_command::Operation;
use sluice_sim::seeds;

#[test]
fn a_drive_with_checksums_is_what_was_written() {
    for seed in seeds(&[], 20) {
        let mut rig = Rig::checksum(seed);
        rig.atom = 4096;
        for _ in 0..4 {
            live(&mut rig, 400);
            match rig.random.below(3) {
                0 => rig.drain(),
                it => rig.kill_daemon(it == 1),
            }
            rig.read_all();
        }
        assert_eq!(rig.failed, 0);
    }
}

/// Tears blocks by power cuts: they are read with an error, and never in half.
#[test]
fn torn_blocks_are_never_read() {
    let (mut good, mut failed) = (0, 0);
    for seed in seeds(&[], 20) {
        let mut rig = Rig::checksum(seed);
        for _ in 0..4 {
            live(&mut rig, 400);
            rig.kill_daemon(true);
            for first in (0..rig.blocks()).step_by(8) {
                rig.submit_at(Operation::Read, first, 8);
                rig.drain();
            }
        }
        (good, failed) = (good + rig.good, failed + rig.failed);
    }
    assert!(failed > 0 && good > 50 * failed, "{good} were good, {failed} failed");
}

#[test]
fn wrong_data_is_an_error() {
    let mut rig = Rig::checksum(3);
    rig.submit_at(Operation::Write, 0, 64);
    rig.drain();
    // Old checksums are dropped on the disk.
    turns(&mut rig, 20);
    let image = rig.image(0);
    let at = (0..image.len() - 4096).step_by(512).find(|at| image[*at..*at + 8] == 2u64.to_le_bytes());
    let at = at.expect("the first block has the first tag") as u64;
    let block = |number: u64| image[(at + number * 4096) as usize..][..4096].to_vec();
    let mut read = |change: Option<(u64, Vec<u8>)>, number: u64| {
        let (good, failed) = (rig.good, rig.failed);
        if let Some((number, data)) = &change {
            rig.disks[0].lock().write(at + number * 4096, data);
        }
        rig.submit_at(Operation::Read, number * 8, 8);
        rig.drain();
        if let Some((number, _)) = &change {
            rig.disks[0].lock().write(at + number * 4096, &block(*number));
        }
        (rig.good - good, rig.failed - failed)
    };
    assert_eq!(read(None, 0), (1, 0));
    let mut flipped = block(1);
    flipped[4000] ^= 8;
    assert_eq!(read(Some((1, flipped)), 1), (0, 1), "a bit");
    assert_eq!(read(Some((2, block(3))), 2), (0, 1), "another block");
    assert_eq!(read(Some((4, vec![0; 4096])), 4), (0, 1), "a lost write");
    assert_eq!(read(Some((9, block(3))), 9), (0, 1), "a misdirected write");
    assert_eq!(read(None, 9), (1, 0));
    let metrics = rig.tell("metrics").expect("it has some");
    assert!(metrics.contains("mismatches_total 4"), "{metrics}");
    assert_eq!(rig.blocks(), 2 * 509 * 4096 / BLOCK);
}
