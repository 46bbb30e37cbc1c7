//! Power cuts of the machine whose daemon serves a drive, under a verified load with and without FUA.
//!
//! A write that was acknowledged with FUA, or flushed, is there after the next start. Others are lost now and
//! then, so that the cuts test something.

use crate::blackout::Machine;
use crate::volatile::{Disk, LoopDevice};
use std::path::Path;

const SIZE: usize = 4 << 20;
const CUTS: u32 = 10;

fn drive(path: &Path) -> String {
    format!(
        "[[drive]]\nname = \"disk\"\n[[drive.namespace]]\ntarget = \"file\"\npath = \"{}\"\n",
        path.display()
    )
}

/// Properties of a load.
#[derive(Clone, Copy, Debug, Default)]
struct Mix {
    /// Whether the host switches the volatile write cache off.
    is_through: bool,
    /// Per cent of Write Zeroes.
    zeroes: u64,
}

/// Cuts the power again and again.
fn survives(disk: &Disk, path: &Path, mix: Mix, seed: u64) {
    let disks = [disk];
    let mut machine = Machine::start(&disks, &drive(path), seed);
    machine.device = (path != disk.path()).then(|| path.to_owned());
    (machine.load.is_through, machine.load.zeroes) = (mix.is_through, mix.zeroes);
    if mix.zeroes > 0 {
        machine.load.distance = 8;
    }
    let mut cuts = 0;
    // A device flushes everything for each write with FUA, so few writes are open at a cut.
    let must_lose = machine.device.is_none() && !mix.is_through && mix.zeroes == 0;
    while cuts < CUTS || must_lose && machine.goes_on(cuts, CUTS) {
        cuts += 1;
        machine.connect();
        machine.work(200);
        machine.cut();
        machine.connect();
        machine.settle();
        machine.load.is_in(&disk.durable()).expect("flushed data is durable");
        machine.disconnect();
    }
    let load = &machine.load;
    assert!(load.acknowledged > 200, "{}\n{}", load.acknowledged, machine.daemon.log());
    assert_eq!((load.failures.flushes, load.failures.others), (0, 0), "{}", machine.daemon.log());
    println!("{mix:?}: {} acknowledged, {} lost by {cuts} cuts", load.acknowledged, load.lost);
    assert!(load.lost == 0 || !mix.is_through, "only a write cache loses writes");
    assert!(load.lost > 0 || !must_lose, "the cuts take writes");
}

const WRITES: Mix = Mix { is_through: false, zeroes: 0 };
const THROUGH: Mix = Mix { is_through: true, zeroes: 0 };

#[test]
fn durable_writes_survive_power_cuts_on_a_file() {
    let Some(disk) = Disk::new(SIZE) else { return };
    survives(&disk, &disk.path(), WRITES, 1);
}

#[test]
fn all_writes_survive_power_cuts_with_the_write_cache_off() {
    let Some(disk) = Disk::new(SIZE) else { return };
    survives(&disk, &disk.path(), THROUGH, 2);
}

/// Checks ranges that the file system zeroes, several commands in one call, and then zeros that are written.
#[test]
fn durable_zeroes_survive_power_cuts() {
    for mix in [WRITES, THROUGH].map(|mix| Mix { zeroes: 50, ..mix }) {
        let Some(disk) = Disk::with_holes(SIZE) else { return };
        survives(&disk, &disk.path(), mix, 3);
        assert!(disk.longest_hole() > 4096, "commands are joined");
        let Some(disk) = Disk::new(SIZE) else { return };
        survives(&disk, &disk.path(), mix, 4);
    }
}

/// Checks direct I/O, and by larger sectors than blocks I/O through the page cache.
#[test]
fn durable_writes_survive_power_cuts_on_a_block_device() {
    for open in [LoopDevice::over, LoopDevice::of_4096] {
        for (number, mix) in [WRITES, THROUGH, Mix { zeroes: 50, ..WRITES }].into_iter().enumerate() {
            let Some(disk) = Disk::with_holes(SIZE) else { return };
            let Some(device) = open(&disk) else { return };
            survives(&disk, &device.path, mix, 5 + number as u64);
        }
    }
}
