//! The function `local-cache` against the model: power cuts at every moment, kills, and failures of both layers.

use super::loss::UNSEEN;
use super::rig::{BLOCK, Rig};
use super::{assert_mixed, live, live_with_failures};
use sluice_command::Operation;
use sluice_nvme::Status;
use sluice_sim::{Action, Tag, seeds};

const BACK: &[(&str, &str)] = &[("mode", "write-back"), ("dirty", "60%")];
const THROUGH: &[(&str, &str)] = &[("mode", "write-through")];

/// Runs load for a fixed number of steps. Returns false if the power fails.
fn run(rig: &mut Rig, steps: u64) -> bool {
    (0..steps).all(|_| match rig.random.below(3) {
        0 => {
            rig.submit();
            true
        }
        _ => rig.turn(),
    })
}

/// Lets time pass until the drive serves again after failures.
fn settle(rig: &mut Rig) {
    (rig.faults, rig.log_faults) = (0.0, 0.0);
    for _ in 0..1000 {
        rig.drain();
        let (good, failed) = (rig.good, rig.failed);
        rig.submit_at(Operation::Flush, 0, 0);
        rig.drain();
        if rig.good > good && rig.failed == failed {
            return;
        }
        rig.turn();
    }
    panic!("it does not serve again: {:?}", rig.tell("status"));
}

/// Returns a number of the status.
fn number(rig: &mut Rig, name: &str) -> u64 {
    let status = rig.tell("status").expect("it serves");
    let (_, rest) = status.split_once(&format!("\"{name}\":")).unwrap_or_else(|| panic!("{name}: {status}"));
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().expect("a number")
}

#[test]
fn a_cached_drive_is_what_was_written() {
    for mode in [BACK, THROUGH] {
        let (mut hits, mut back) = (0, 0);
        for seed in seeds(&[], 20) {
            let mut rig = Rig::local_cache(seed, mode);
            for _ in 0..4 {
                live(&mut rig, 500);
                rig.drain();
                rig.read_all();
            }
            assert_eq!(rig.failed, 0);
            hits += number(&mut rig, "hits");
            back += number(&mut rig, "written_back_bytes");
        }
        assert!(hits > 100, "{hits}");
        assert_eq!(back > 0, mode == BACK);
    }
}

#[test]
fn kills_and_power_cuts_lose_nothing() {
    for mode in [BACK, THROUGH] {
        for seed in seeds(&[], 30) {
            let mut rig = Rig::local_cache(seed, mode);
            for _ in 0..6 {
                live(&mut rig, 400);
                let cut = rig.random.one_in(2);
                rig.kill_daemon(cut);
                rig.read_all();
            }
            assert_eq!(rig.failed, 0);
        }
    }
}

/// Cuts the power at every write and flush of a run, of the drive and of the device, and reads everything after it.
#[test]
fn a_power_cut_at_every_write_and_flush() {
    for seed in seeds(&[], 1) {
        let mut whole = Rig::local_cache(seed, BACK);
        let before = whole.changes;
        run(&mut whole, 400);
        assert!(whole.changes > before + 100, "it has writes: {}", whole.changes);
        for at in before + 1..=whole.changes {
            let mut rig = Rig::local_cache(seed, BACK);
            rig.cut_change = Some(at);
            assert!(!run(&mut rig, 400), "the power fails at {at}");
            rig.cut_change = None;
            rig.kill_daemon(true);
            rig.read_all();
            run(&mut rig, 60);
            rig.kill_daemon(true);
            rig.read_all();
        }
    }
}

/// Runs the cache in both modes with these probabilities of failures.
fn survives_failures(faults: impl Fn(u32) -> [f64; 2] + Copy) {
    for mode in [BACK, THROUGH] {
        let run = |seed| live_with_failures(&mut Rig::local_cache(seed, mode), faults, settle);
        assert_mixed(seeds(&[], 20).map(run));
    }
}

/// Fails requests to the drive, each of which may be done in part.
#[test]
fn failures_of_the_drive_lose_nothing() {
    survives_failures(|_| [0.0, 0.02]);
}

/// Fails requests to the cache's device, and to the drive at the same time.
#[test]
fn failures_of_the_device_lose_nothing() {
    survives_failures(|round| [0.03, if round % 2 == 0 { 0.0 } else { 0.01 }]);
}

/// Compares the drive alone with the model, after orders that write all dirty data to it.
#[test]
fn an_order_brings_all_data_to_the_drive() {
    for seed in seeds(&[], 10) {
        let mut rig = Rig::local_cache(seed, BACK);
        for order in ["flush", "detach", "flush", "attach"] {
            live(&mut rig, 400);
            rig.drain();
            rig.tell(order).expect("the drive is there");
            rig.drain_all();
            if order != "attach" {
                assert_eq!(number(&mut rig, "dirty_bytes"), 0);
                rig.check_drive();
            }
        }
        rig.read_all();
        rig.kill_daemon(true);
        rig.read_all();
        assert_eq!(rig.failed, 0);
    }
}

/// Starts with the device of another drive, a blank one, and one that holds something else.
#[test]
fn a_wrong_device_is_refused() {
    let mut rig = Rig::local_cache(5, BACK);
    rig.submit_at(Operation::Flush, 0, 0);
    rig.drain();
    rig.up[0] = false;
    rig.submit_at(Operation::Write, 0, 32);
    rig.drain();
    assert!(number(&mut rig, "dirty_bytes") > 0);
    rig.end_daemon(false);
    rig.up[0] = true;
    let (data, device) = (rig.image(0), rig.image(1));
    let former = rig.exchange_storage(0, 99);
    assert!(!rig.serves(), "it is other storage");
    assert!(rig.tell("status").expect("a status").contains("of another drive"));
    assert!(rig.image(0) == data && rig.image(1) == device);
    rig.exchange_storage(0, former);
    rig.end_daemon(true);
    rig.disks[1].lock().write(0, &[7; 8192]);
    assert!(!rig.serves(), "it is something else");
    rig.end_daemon(true);
    rig.disks[1].lock().write(0, &device[..8192]);
    rig.disks[1].lock().write(8192, &[7; 8192]);
    assert!(!rig.serves(), "both copies of the table are damaged");
    rig.end_daemon(true);
    rig.disks[1].lock().write(0, &device);
    assert!(rig.serves());
    rig.read_all();
}

/// Loses the device in write-through mode: the drive has everything.
#[test]
fn write_through_needs_no_device() {
    for seed in seeds(&[], 10) {
        let mut rig = Rig::local_cache(seed, THROUGH);
        for _ in 0..4 {
            live(&mut rig, 400);
            let cut = rig.random.one_in(2);
            rig.end_daemon(cut);
            rig.disks[1].lock().write(0, &[0; 8192]);
            assert!(rig.serves(), "a blank device is a new cache");
            rig.read_all();
        }
        assert_eq!(rig.failed, 0);
    }
}

/// Opens with the other mode: dirty data of the former one is written back.
#[test]
fn another_mode_keeps_dirty_data() {
    for seed in seeds(&[], 10) {
        let mut rig = Rig::local_cache(seed, BACK);
        for mode in [THROUGH, BACK, THROUGH, BACK] {
            live(&mut rig, 300);
            rig.set_options(mode);
            let cut = rig.random.one_in(2);
            rig.kill_daemon(cut);
            rig.read_all();
        }
        assert_eq!(rig.failed, 0);
    }
}

/// Reads and writes of the cache go on while the drive does not answer.
#[test]
fn a_drive_that_is_away_leaves_the_cache() {
    let mut rig = Rig::local_cache(3, BACK);
    for first in [0, 32, 64, 96] {
        rig.submit_at(Operation::Write, first, 32);
        rig.drain();
    }
    rig.submit_at(Operation::Flush, 0, 0);
    rig.drain();
    rig.up[0] = false;
    let failed = rig.failed;
    for _ in 0..50 {
        let first = 32 * rig.random.below(4);
        let operation = if rig.random.one_in(2) { Operation::Read } else { Operation::Write };
        rig.submit_at(operation, first, 8);
        rig.submit_at(Operation::Flush, 0, 0);
        rig.drain();
    }
    // A Flush after a failed flush of the drive may fail once.
    assert!(rig.failed <= failed + 1, "{} failed", rig.failed - failed);
    assert!(rig.tell("flush").expect_err("the drive is away").contains("dirty bytes"));
    rig.up[0] = true;
    (0..100).for_each(|_| assert!(rig.turn()));
    rig.tell("flush").expect("the drive is back");
    rig.check_drive();
}

/// Exchanges the storage below under the function, as a replaced target does: the cache is that of the new storage.
#[test]
fn a_cache_follows_storage_that_is_exchanged_under_the_function() {
    for seed in seeds(&[], 10) {
        let mut rig = Rig::local_cache(seed, BACK);
        for number in 0..3 {
            live(&mut rig, 300);
            rig.drain();
            rig.exchange_storage(0, 70 + number);
            assert!(rig.serves());
            rig.drain_all();
            live(&mut rig, 100);
            rig.kill_daemon(true);
            rig.read_all();
        }
        assert_eq!(rig.failed, 0);
    }
}

/// Cuts the power of a layer alone. A Flush fails for writes that are lost, nothing else is lost, and no read returns
/// data of another line.
fn lose_power(mode: &[(&str, &str)], layer: usize) {
    let mut failed = 0;
    for seed in seeds(&[], 60) {
        let mut rig = Rig::local_cache(seed, mode);
        for round in 0..6 {
            live(&mut rig, 400);
            rig.lose(layer, round % 2 == 0);
            live(&mut rig, 200);
            settle(&mut rig);
            rig.read_all();
            live(&mut rig, 200);
            let cut = rig.random.one_in(2);
            rig.kill_daemon(cut);
            rig.read_all();
        }
        failed += rig.failed;
    }
    assert!(failed > 20, "{failed}");
}

#[test]
fn a_loss_of_the_drive_in_write_back_mode() {
    lose_power(BACK, 0);
}

#[test]
fn a_loss_of_the_drive_in_write_through_mode() {
    lose_power(THROUGH, 0);
}

#[test]
fn a_loss_of_the_device_in_write_back_mode() {
    lose_power(BACK, 1);
}

#[test]
fn a_loss_of_the_device_in_write_through_mode() {
    lose_power(THROUGH, 1);
}

/// Cuts the power of both, with failures of both layers and a drive that is away for a while.
#[test]
fn losses_of_both_layers() {
    for mode in [BACK, THROUGH] {
        for seed in seeds(&[], 60) {
            let mut rig = Rig::local_cache(seed, mode);
            for round in 0..6 {
                (rig.faults, rig.log_faults) = if round % 2 == 0 { (0.0, 0.0) } else { (0.01, 0.01) };
                live(&mut rig, 300);
                rig.up[0] = !rig.random.one_in(4);
                let at_flush = rig.random.one_in(2);
                rig.lose(1, at_flush);
                live(&mut rig, 100);
                rig.up[0] = true;
                rig.lose(0, !at_flush);
                live(&mut rig, 100);
                if rig.random.one_in(2) {
                    settle(&mut rig);
                }
                (rig.faults, rig.log_faults) = (0.0, 0.0);
                let cut = rig.random.one_in(2);
                rig.kill_daemon(cut);
                rig.read_all();
            }
        }
    }
}

/// Puts dirty data into the cache at these blocks, which the drive does not get.
fn with_dirty(rig: &mut Rig, places: &[(u64, u64)]) {
    rig.submit_at(Operation::Flush, 0, 0);
    rig.drain_all();
    rig.up[0] = false;
    for (first, blocks) in places {
        rig.submit_at(Operation::Write, *first, *blocks);
        rig.drain();
    }
    rig.drain_all();
    assert!(number(rig, "dirty_bytes") > 0);
}

/// Starts before it is known whether the drive is the right one. Nothing is sent to it.
#[test]
fn an_unknown_drive_gets_no_dirty_data() {
    let mut rig = Rig::local_cache(5, BACK);
    with_dirty(&mut rig, &[(0, 32)]);
    rig.end_daemon(false);
    rig.up[0] = true;
    let data = rig.image(0);
    let former = rig.exchange_storage(0, UNSEEN);
    for (storage, why) in [(UNSEEN, "not known yet"), (99, "of another drive"), (UNSEEN, "not known yet")] {
        rig.exchange_storage(0, storage);
        assert!(!rig.serves(), "{why}");
        (0..20).for_each(|_| assert!(rig.turn()));
        assert!(rig.tell("status").expect("a status").contains(why));
        assert!(rig.image(0) == data, "{why}");
    }
    rig.exchange_storage(0, former);
    assert!(rig.serves());
    rig.read_all();
    rig.tell("flush").expect("the drive is there");
    rig.check_drive();
}

/// Makes the drive smaller in use: the end is dropped, and is not there when it is as large again.
#[test]
fn the_end_of_a_drive_that_shrinks_is_dropped() {
    let mut rig = Rig::local_cache(3, BACK);
    let blocks = rig.blocks;
    with_dirty(&mut rig, &[(0, 32), (blocks - 32, 32), (blocks - 80, 32)]);
    rig.blocks = blocks - 64;
    rig.disks[0].lock().resize(rig.blocks * BLOCK);
    rig.up[0] = true;
    assert!(rig.serves());
    rig.tell("flush").expect("nothing is behind the end");
    rig.check_drive();
    rig.read_all();
    rig.drain_all();
    rig.blocks = blocks;
    rig.disks[0].lock().resize(blocks * BLOCK);
    let zeros = rig.model.begin(Action::Write { first: blocks - 64, tags: vec![Tag::ZERO; 64], fua: true });
    rig.model.end(zeros, true);
    assert!(rig.serves());
    rig.read_all();
    rig.kill_daemon(true);
    rig.read_all();
}

/// Starts with a drive that is smaller than its dirty data: the refusal has the size.
#[test]
fn a_drive_that_is_too_small_is_refused() {
    let mut rig = Rig::local_cache(3, BACK);
    let blocks = rig.blocks;
    with_dirty(&mut rig, &[(0, 32), (blocks - 32, 32)]);
    rig.end_daemon(false);
    rig.up[0] = true;
    rig.disks[0].lock().resize((blocks - 64) * BLOCK);
    assert!(!rig.serves());
    let status = rig.tell("status").expect("a status");
    assert!(status.contains(&format!("up to byte {}", blocks * BLOCK)), "{status}");
    rig.disks[0].lock().resize(blocks * BLOCK);
    assert!(rig.serves());
    rig.read_all();
}

/// Gives the drive blocks of 4096 bytes: dirty sectors that are no whole blocks are refused in words.
#[test]
fn larger_blocks_need_whole_dirty_blocks() {
    for (first, is_whole) in [(8, true), (9, false)] {
        for is_live in [true, false] {
            let mut rig = Rig::local_cache(3, BACK);
            with_dirty(&mut rig, &[(first, 8)]);
            if !is_live {
                rig.end_daemon(false);
            }
            rig.up[0] = true;
            rig.block_size = 4096;
            assert_eq!(rig.serves(), is_whole);
            if is_whole {
                rig.tell("flush").expect("it can be written");
                rig.check_drive();
                continue;
            }
            assert!(rig.tell("status").expect("a status").contains("smaller blocks"));
            rig.block_size = BLOCK;
            assert!(rig.serves());
            rig.tell("flush").expect("it can be written");
            rig.check_drive();
        }
    }
}

/// Refuses the layers in use. Commands under way end, and the next start serves again.
#[test]
fn commands_under_way_end_after_a_refusal() {
    for seed in seeds(&[], 20) {
        let mut rig = Rig::local_cache(seed, BACK);
        for _ in 0..3 {
            live(&mut rig, 300);
            rig.submit_at(Operation::Read, 0, 128);
            let is_busy = !rig.is_idle();
            rig.block_size = 8192;
            rig.show_layers();
            assert!(!is_busy || rig.ready == Some(Status::SUCCESS), "the layer returns commands to it");
            rig.drain();
            rig.block_size = BLOCK;
            assert!(rig.serves());
            settle(&mut rig);
            rig.read_all();
        }
    }
}

/// Detaches under load: the order is answered, and the drive has everything then and later.
#[test]
fn a_detach_ends_under_load() {
    for seed in seeds(&[], 20) {
        let mut rig = Rig::local_cache(seed, BACK);
        live(&mut rig, 400);
        rig.tell_while("detach", Rig::submit).expect("the drive is there");
        for _ in 0..3 {
            live(&mut rig, 100);
            rig.drain();
            rig.check_drive();
        }
        let hits = number(&mut rig, "hits");
        rig.read_all();
        assert_eq!((number(&mut rig, "hits"), rig.failed), (hits, 0), "caching has stopped");
    }
}
