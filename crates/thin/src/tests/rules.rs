//! Rules of a pool, one by one.

use super::disk::SharedDisk;
use super::rig::Volume;
use crate::committer::Committer;
use crate::layer::OnFull;
use crate::{EXTENT, Error, PoolUse};
use sluice_command::{Operation, Request};
use sluice_functions::Random;
use sluice_nvme::Status;
use std::sync::mpsc::channel;
use std::time::Instant;

pub(super) const DISK: usize = 3 << 20;

pub(super) type Home = Committer<SharedDisk>;

pub(super) fn pool() -> (SharedDisk, Home) {
    let disk = SharedDisk::new(DISK, 1 << 20, 0xa5, Random::new(1));
    let home = Committer::open(disk.clone(), DISK as u64, 1).expect("it is made");
    (disk, home)
}

pub(super) fn open(home: &mut Home, disk: &SharedDisk, name: &str) -> Volume {
    Volume::open(home, disk, name, 64 << 20, OnFull::Fail).expect("it opens")
}

pub(super) fn request(operation: Operation, offset: u64, length: u64) -> Request {
    Request { operation, offset, length, ..Request::default() }
}

pub(super) fn write(volume: &mut Volume, home: &mut Home, extent: u64, byte: u8) -> Option<Status> {
    let request = request(Operation::Write, extent * EXTENT + 4096, 512);
    volume.run(home, request, &[byte; 512]).map(|(status, _)| status)
}

pub(super) fn read(volume: &mut Volume, home: &mut Home, offset: u64) -> Vec<u8> {
    let (status, data) = volume.run(home, request(Operation::Read, offset, 512), &[]).expect("it ends");
    assert_eq!(status, Status::SUCCESS);
    data
}

fn extents(home: &Home) -> u64 {
    home.usage().size / EXTENT
}

/// Returns the use with the exclusive extents, which are counted in pieces of two mappings.
fn counted(home: &mut Home) -> PoolUse {
    let (reply, answer) = channel();
    home.order_count(reply);
    let mappings: u64 = home.usage().volumes.iter().map(|volume| volume.allocated / EXTENT).sum();
    let pieces = (0..).take_while(|_| home.step_counts(2) > 0).count() as u64;
    assert!(pieces >= mappings / 2, "{pieces} pieces for {mappings} mappings");
    answer.try_recv().expect("it is over").expect("it is counted")
}

/// Writes to new extents until the pool is full; returns how many.
pub(super) fn fill(volume: &mut Volume, home: &mut Home) -> u64 {
    for extent in 0.. {
        match write(volume, home, extent, 7).expect("it ends") {
            Status::SUCCESS => {}
            status => {
                assert_eq!(status, Status::CAPACITY_EXCEEDED);
                return extent;
            }
        }
    }
    0
}

#[test]
fn the_rest_of_a_new_extent_is_zeros_and_an_unwritten_one_costs_no_io() {
    let (disk, mut home) = pool();
    let mut volume = open(&mut home, &disk, "a");
    let before = disk.lock().count;
    assert_eq!(read(&mut volume, &mut home, 9 * EXTENT), [0; 512]);
    assert_eq!(disk.lock().count, before);
    assert_eq!(write(&mut volume, &mut home, 2, 5), Some(Status::SUCCESS));
    assert_eq!(read(&mut volume, &mut home, 2 * EXTENT + 4096), [5; 512]);
    for offset in [0, 512, 4096 - 512, 4096 + 512, EXTENT - 512] {
        assert_eq!(read(&mut volume, &mut home, 2 * EXTENT + offset), [0; 512]);
    }
    assert_eq!(home.usage().volumes[0].allocated, EXTENT);
}

#[test]
fn a_full_pool_refuses_and_takes_again_what_a_deallocate_gave_back() {
    let (disk, mut home) = pool();
    let mut volume = open(&mut home, &disk, "a");
    assert_eq!(fill(&mut volume, &mut home), extents(&home));
    assert_eq!(home.usage().free + home.usage().credit, 0);
    // Extents that are there are written as before.
    assert_eq!(write(&mut volume, &mut home, 0, 9), Some(Status::SUCCESS));
    let given = request(Operation::Deallocate, 3 * EXTENT, 2 * EXTENT);
    assert_eq!(volume.run(&mut home, given, &[]).expect("it ends").0, Status::SUCCESS);
    assert_eq!(home.usage().free, 2 * EXTENT);
    assert_eq!(read(&mut volume, &mut home, 3 * EXTENT + 4096), [0; 512]);
    assert_eq!(write(&mut volume, &mut home, 100, 1), Some(Status::SUCCESS));
    assert_eq!(write(&mut volume, &mut home, 101, 1), Some(Status::SUCCESS));
    assert_eq!(write(&mut volume, &mut home, 102, 1), Some(Status::CAPACITY_EXCEEDED));
}

#[test]
fn the_ends_of_a_deallocate_are_zeroed_and_stay() {
    let (disk, mut home) = pool();
    let mut volume = open(&mut home, &disk, "a");
    (0..3).for_each(|extent| assert_eq!(write(&mut volume, &mut home, extent, 3), Some(Status::SUCCESS)));
    let last = request(Operation::Write, 2 * EXTENT + 8192, 512);
    assert_eq!(volume.run(&mut home, last, &[6; 512]).expect("it ends").0, Status::SUCCESS);
    let given = request(Operation::Deallocate, 4096, 2 * EXTENT + 4096);
    assert_eq!(volume.run(&mut home, given, &[]).expect("it ends").0, Status::SUCCESS);
    assert_eq!(home.usage().volumes[0].allocated, 2 * EXTENT);
    for (offset, byte) in [(4096, 0), (EXTENT + 4096, 0), (2 * EXTENT + 4096, 0), (2 * EXTENT + 8192, 6)] {
        assert_eq!(read(&mut volume, &mut home, offset), [byte; 512]);
    }
}

#[test]
fn a_write_parks_in_a_full_pool_and_ends_when_the_pool_has_grown() {
    let (disk, mut home) = pool();
    let mut other = open(&mut home, &disk, "other");
    fill(&mut other, &mut home);
    let mut volume = Volume::open(&mut home, &disk, "a", 1 << 20, OnFull::Park).expect("it opens");
    assert_eq!(write(&mut volume, &mut home, 0, 4), None, "it waits");
    let given = request(Operation::Deallocate, 0, EXTENT);
    assert_eq!(other.run(&mut home, given, &[]).expect("it ends").0, Status::SUCCESS);
    let mut random = Random::new(1);
    for _ in 0..200 {
        while volume.execute(&mut random) {}
        home.turn();
        volume.poll();
    }
    assert_eq!(volume.ended.len(), 1);
    assert_eq!(volume.ended[0].2, Status::SUCCESS);
    assert_eq!(read(&mut volume, &mut home, 4096), [4; 512]);
}

#[test]
fn a_pool_that_is_opened_on_a_larger_device_has_more_extents() {
    let disk = SharedDisk::new(2 * DISK, 1 << 20, 0xa5, Random::new(1));
    let mut home = Committer::open(disk.clone(), DISK as u64, 1).expect("it is made");
    let mut volume = open(&mut home, &disk, "a");
    let few = fill(&mut volume, &mut home);
    home.grow(2 * DISK as u64).expect("it grows");
    assert_eq!(extents(&home), few + DISK as u64 / EXTENT);
    assert_eq!(write(&mut volume, &mut home, few, 8), Some(Status::SUCCESS));
    drop((volume, home));
    let mut home = Committer::open(disk.clone(), 2 * DISK as u64, 1).expect("it loads");
    let mut volume = open(&mut home, &disk, "a");
    assert_eq!(read(&mut volume, &mut home, few * EXTENT + 4096), [8; 512]);
    drop(volume);
    // A device that lost its end is refused, and not read as zeros.
    drop(home);
    let refused = Committer::open(disk, DISK as u64, 1).expect_err("extents are missing");
    assert!(refused.to_string().contains("the device is smaller than it was"), "{refused}");
}

#[test]
fn a_volume_has_one_user_and_is_deleted_without_any() {
    let (disk, mut home) = pool();
    let mut volume = open(&mut home, &disk, "a");
    assert_eq!(write(&mut volume, &mut home, 0, 1), Some(Status::SUCCESS));
    let again = Volume::open(&mut home, &disk, "a", 1 << 20, OnFull::Fail).err().expect("it is in use");
    assert_eq!(again.to_string(), "volume `a` is in use by another namespace");
    assert!(matches!(home.delete_volume("a"), Err(Error::InUse(_))));
    assert!(matches!(home.clone_volume("b", "a"), Err(Error::InUse(_))));
    assert!(matches!(home.delete_volume("c"), Err(Error::NoVolume(_))));
    drop(volume);
    while home.turn() > 0 {}
    home.delete_volume("a").expect("nobody uses it");
    let usage = home.usage();
    assert_eq!((usage.free, usage.users, usage.volumes.len()), (usage.size, 0, 0));
}

#[test]
fn clones_share_extents_until_one_of_them_is_written() {
    let (disk, mut home) = pool();
    let mut volume = open(&mut home, &disk, "a");
    (0..3).for_each(|extent| assert_eq!(write(&mut volume, &mut home, extent, 1), Some(Status::SUCCESS)));
    drop(volume);
    while home.turn() > 0 {}
    for number in 0..200 {
        home.clone_volume(&format!("clone {number}"), "a").expect("it is closed");
    }
    let usage = counted(&mut home);
    assert_eq!(usage.size - usage.free, 3 * EXTENT);
    assert_eq!((usage.volumes[9].allocated, usage.volumes[9].exclusive), (3 * EXTENT, Some(0)));
    // A write, zeros and the end of a deallocation reach no other volume.
    let (mut source, mut clone) = (open(&mut home, &disk, "a"), open(&mut home, &disk, "clone 7"));
    let zeros = request(Operation::WriteZeroes, EXTENT + 4096, 512);
    let given = request(Operation::Deallocate, 2 * EXTENT + 4096, EXTENT);
    assert_eq!(write(&mut clone, &mut home, 0, 2), Some(Status::SUCCESS));
    assert_eq!(clone.run(&mut home, zeros, &[]).expect("it ends").0, Status::SUCCESS);
    assert_eq!(clone.run(&mut home, given, &[]).expect("it ends").0, Status::SUCCESS);
    for (extent, byte) in [(0, 2), (1, 0), (2, 0)] {
        assert_eq!(read(&mut clone, &mut home, extent * EXTENT + 4096), [byte; 512]);
        assert_eq!(read(&mut source, &mut home, extent * EXTENT + 4096), [1; 512]);
    }
    let usage = counted(&mut home);
    let of = |name: &str| usage.volumes.iter().find(|it| it.name == name).expect("it is there").clone();
    assert_eq!((of("clone 7").exclusive, of("a").exclusive), (Some(3 * EXTENT), Some(0)));
    assert_eq!(usage.size - usage.free - usage.credit, 6 * EXTENT);
    drop((source, clone));
    drop(home);
    let mut home = Committer::open(disk.clone(), DISK as u64, 1).expect("it loads");
    let mut clone = open(&mut home, &disk, "clone 7");
    assert_eq!(read(&mut clone, &mut home, 4096), [2; 512]);
}

#[test]
fn an_extent_is_not_free_while_an_earlier_command_is_on_it() {
    let (disk, mut home) = pool();
    let mut volume = open(&mut home, &disk, "a");
    assert_eq!(write(&mut volume, &mut home, 0, 1), Some(Status::SUCCESS));
    let read = volume.submit(request(Operation::Read, 4096, 512), &[]);
    let given = volume.submit(request(Operation::Deallocate, 0, EXTENT), &[]);
    for _ in 0..100 {
        home.turn();
        volume.poll();
    }
    assert!(volume.ended.is_empty(), "the device has the read");
    assert_eq!(home.usage().volumes[0].allocated, EXTENT);
    assert!(volume.execute(&mut Random::new(1)));
    for _ in 0..100 {
        home.turn();
        volume.poll();
    }
    let ended: Vec<usize> = volume.ended.iter().map(|(place, ..)| *place).collect();
    assert_eq!(ended, [read, given]);
    assert_eq!(volume.data(read, 512), [1; 512]);
    assert_eq!(home.usage().volumes[0].allocated, 0);
}

/// Runs the commands of a volume with its home, without the time of a command.
pub(super) fn settle(volume: &mut Volume, home: &mut Home) {
    let mut random = Random::new(1);
    for _ in 0..100 {
        while volume.execute(&mut random) {}
        home.turn();
        volume.poll();
    }
}

#[test]
fn a_clone_of_a_volume_in_use_has_the_writes_of_before_and_none_of_later() {
    let (disk, mut home) = pool();
    let mut volume = open(&mut home, &disk, "a");
    (0..2).for_each(|extent| assert_eq!(write(&mut volume, &mut home, extent, 1), Some(Status::SUCCESS)));
    // One write is with the device when the clone is ordered, and one comes later.
    let early = volume.submit(request(Operation::Write, 4096, 512), &[2; 512]);
    let (reply, answer) = channel();
    home.order_clone("b".to_owned(), "a".to_owned(), Instant::now(), reply);
    volume.poll();
    let late = volume.submit(request(Operation::Write, EXTENT + 4096, 512), &[3; 512]);
    for _ in 0..100 {
        home.turn();
        volume.poll();
    }
    assert!(answer.try_recv().is_err() && volume.ended.is_empty(), "the device has a write");
    // Reads do not wait.
    let place = volume.submit(request(Operation::Read, EXTENT + 4096, 512), &[]);
    assert!(
        (0..9).any(|_| volume.execute(&mut Random::new(2)) && volume.ended.iter().any(|it| it.0 == place))
    );
    settle(&mut volume, &mut home);
    assert!(matches!(answer.try_recv(), Ok(Ok(()))));
    let mut ended: Vec<usize> = volume.ended.iter().map(|it| it.0).filter(|it| *it != place).collect();
    ended.sort_unstable();
    assert_eq!(ended, [early.min(late), early.max(late)]);
    let mut clone = open(&mut home, &disk, "b");
    for (extent, [own, cloned]) in [(0, [2, 2]), (1, [3, 1])] {
        assert_eq!(read(&mut volume, &mut home, extent * EXTENT + 4096), [own; 512]);
        assert_eq!(read(&mut clone, &mut home, extent * EXTENT + 4096), [cloned; 512]);
    }
    // A second one of the same volume.
    let (reply, answer) = channel();
    home.order_clone("c".to_owned(), "a".to_owned(), Instant::now(), reply.clone());
    home.order_clone("b".to_owned(), "a".to_owned(), Instant::now(), reply);
    settle(&mut volume, &mut home);
    assert!(matches!(answer.try_recv(), Ok(Ok(()))));
    assert!(matches!(answer.try_recv(), Ok(Err(Error::Impossible(_)))), "there is such a volume");
    assert_eq!(write(&mut volume, &mut home, 9, 1), Some(Status::SUCCESS), "it goes on");
}

#[test]
fn a_clone_is_given_up_while_a_command_does_not_end() {
    let (disk, mut home) = pool();
    let mut volume = open(&mut home, &disk, "a");
    assert_eq!(write(&mut volume, &mut home, 0, 1), Some(Status::SUCCESS));
    volume.submit(request(Operation::Write, 4096, 512), &[2; 512]);
    let (reply, answer) = channel();
    let now = Instant::now();
    home.order_clone("b".to_owned(), "a".to_owned(), now, reply.clone());
    volume.poll();
    volume.submit(request(Operation::Write, 8192, 512), &[3; 512]);
    assert_eq!(home.look_at_clones(now), 0);
    let until = home.deadline().expect("it waits");
    assert_eq!(home.look_at_clones(until), 1);
    assert!(matches!(answer.try_recv(), Ok(Err(Error::Busy(_)))));
    assert_eq!(home.deadline(), None);
    // The later write goes to the device, although the earlier one is still there.
    volume.poll();
    let mut random = Random::new(1);
    assert!(volume.execute(&mut random) && volume.execute(&mut random));
    assert_eq!(volume.ended.len(), 2);
    // The user of the volume goes while the next one waits.
    home.order_clone("b".to_owned(), "a".to_owned(), now, reply);
    drop(volume);
    while home.turn() > 0 {}
    assert_eq!(home.look_at_clones(now), 1);
    assert!(matches!(answer.try_recv(), Ok(Ok(()))));
}

#[test]
fn an_extent_that_the_device_does_not_write_is_left_out() {
    let (disk, mut home) = pool();
    let mut volume = open(&mut home, &disk, "a");
    assert_eq!(write(&mut volume, &mut home, 0, 1), Some(Status::SUCCESS));
    let data_at = home.layout().data_at();
    // The extents that are taken next, which are more than the layer has in advance.
    disk.lock().bad = data_at + 3 * EXTENT..data_at + 5 * EXTENT;
    let count = fill(&mut volume, &mut home);
    assert_eq!(count, extents(&home) - 2, "all others are used");
    let usage = home.usage();
    assert_eq!((usage.bad, usage.free + usage.credit), (2 * EXTENT, 0));
    assert_eq!(disk.lock().refused, 2, "each is tried once");
    for extent in 1..count {
        assert_eq!(read(&mut volume, &mut home, extent * EXTENT + 4096), [7; 512]);
    }
    // The next opening tries them again.
    drop((volume, home));
    let home = Committer::open(disk.clone(), DISK as u64, 1).expect("it loads");
    assert_eq!((home.usage().bad, home.usage().free), (0, 2 * EXTENT));
}

#[test]
fn no_extent_is_bad_on_a_device_that_writes_none() {
    let (disk, mut home) = pool();
    let mut volume = open(&mut home, &disk, "a");
    let data_at = home.layout().data_at();
    disk.lock().bad = data_at..DISK as u64;
    assert_eq!(write(&mut volume, &mut home, 0, 1), Some(Status::WRITE_FAULT));
    assert_eq!(disk.lock().refused, 4, "it is not tried for ever");
    disk.lock().bad = 0..0;
    assert_eq!(fill(&mut volume, &mut home), extents(&home));
    assert_eq!(home.usage().bad, 0);
}
