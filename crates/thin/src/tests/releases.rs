//! Deallocations of extents that are on their way into the volume, or out of it.

use super::disk::SharedDisk;
use super::rig::Volume;
use super::rules::{DISK, Home, fill, open, pool, read, request, settle, write};
use crate::EXTENT;
use crate::book::Change;
use crate::committer::Committer;
use crate::layer::OnFull;
use crate::store::Store;
use sluice_command::{Controllers, Operation};
use sluice_functions::Random;
use sluice_nvme::Status;

fn allocated(home: &Home, name: &str) -> u64 {
    let usage = home.usage();
    usage.volumes.into_iter().find(|volume| volume.name == name).expect("it is there").allocated
}

#[test]
fn an_extent_that_is_being_copied_is_given_back_afterwards() {
    // The write waits for each step of the copy when the deallocation comes.
    for steps in 0..6 {
        let (disk, mut home) = pool();
        let mut volume = open(&mut home, &disk, "a");
        assert_eq!(write(&mut volume, &mut home, 0, 1), Some(Status::SUCCESS));
        drop(volume);
        while home.turn() > 0 {}
        home.clone_volume("b", "a").expect("it is closed");
        let mut volume = open(&mut home, &disk, "a");
        let late = volume.submit(request(Operation::Write, 8192, 512), &[2; 512]);
        let mut random = Random::new(1);
        for _ in 0..steps {
            home.turn();
            volume.poll();
            volume.execute(&mut random);
        }
        let given = volume.submit(request(Operation::Deallocate, 0, EXTENT), &[]);
        settle(&mut volume, &mut home);
        let ended = |place| volume.ended.iter().any(|it| it.0 == place && it.2 == Status::SUCCESS);
        assert!(ended(late) && ended(given), "{steps} steps");
        assert_eq!(read(&mut volume, &mut home, 4096), [0; 512], "{steps} steps");
        let bytes = read(&mut volume, &mut home, 8192);
        let is_left = bytes == [2; 512];
        assert!(is_left || bytes == [0; 512]);
        assert_eq!(allocated(&home, "a"), u64::from(is_left) * EXTENT, "{steps} steps");
    }
}

#[test]
fn a_second_deallocation_of_an_extent_ends_when_the_first_is_durable() {
    let (disk, mut home) = pool();
    let mut volume = open(&mut home, &disk, "a");
    assert_eq!(write(&mut volume, &mut home, 0, 1), Some(Status::SUCCESS));
    volume.submit(request(Operation::Deallocate, 0, EXTENT), &[]);
    volume.submit(request(Operation::Deallocate, 0, EXTENT), &[]);
    volume.poll();
    assert!(volume.ended.is_empty(), "the home has written nothing");
    settle(&mut volume, &mut home);
    assert_eq!(volume.ended.len(), 2);
    assert_eq!(allocated(&home, "a"), 0);
}

#[test]
fn a_deallocation_that_waits_for_a_full_pool_can_be_ended() {
    let (disk, mut home) = pool();
    let mut other = open(&mut home, &disk, "other");
    fill(&mut other, &mut home);
    let mut volume = Volume::open(&mut home, &disk, "a", 1 << 20, OnFull::Park).expect("it opens");
    assert_eq!(write(&mut volume, &mut home, 0, 4), None, "it waits");
    let given = volume.submit(request(Operation::Deallocate, 0, EXTENT), &[]);
    settle(&mut volume, &mut home);
    assert!(volume.ended.is_empty(), "both wait");
    let space = |home: &Home| (allocated(home, "a"), home.usage().free);
    assert_eq!(space(&home), (0, 0), "the pool is full");
    volume.end_waiting(Controllers::of_bits(u32::MAX), Status::ABORTED_SQ_DELETION);
    settle(&mut volume, &mut home);
    assert_eq!(volume.ended.len(), 2);
    let may_be = |it: &(usize, _, Status)| match it.2 {
        Status::ABORTED_SQ_DELETION => true,
        status => it.0 == given && status == Status::SUCCESS,
    };
    assert!(volume.ended.iter().all(may_be), "{:?}", volume.ended);
    assert_eq!(space(&home), (0, 0), "no extent was taken or given back");
    assert_eq!(read(&mut volume, &mut home, 4096), [0; 512]);
    assert_eq!(disk.lock().size(), DISK as u64);
}

/// Makes a pool whose volume `a` has all extents, and one more that is not there. Returns the bytes of those.
fn full_pool() -> (SharedDisk, Home, u64) {
    const SIZE: usize = 76 << 20;
    let disk = SharedDisk::new(SIZE, 4 << 20, 0xa5, Random::new(1));
    let (mut store, mut book) = Store::open(disk.clone(), SIZE as u64, 1).expect("it is made");
    let size = u64::from(book.extents()) * EXTENT;
    let create = Change::Create { volume: 0, name: "a".to_owned(), size: size + EXTENT };
    let map = |extent| Change::Map { volume: 0, logical: extent, physical: Some(extent) };
    for change in std::iter::once(create).chain((0..book.extents()).map(map)) {
        store.commit(&book, std::slice::from_ref(&change)).expect("it is written");
        book.apply(&change, |_| {}).expect("it fits");
    }
    drop(store);
    let home = Committer::open(disk.clone(), SIZE as u64, 1).expect("it opens");
    (disk, home, size)
}

#[test]
fn an_aborted_deallocation_waits_for_no_extent_that_its_later_steps_find_busy() {
    let (disk, mut home, size) = full_pool();
    assert!(size / EXTENT > 1024, "a Deallocate takes more than one step");
    let mut volume = Volume::open(&mut home, &disk, "a", size + EXTENT, OnFull::Park).expect("it opens");
    let late = volume.submit(request(Operation::Write, size, 512), &[4; 512]);
    let given = volume.submit(request(Operation::Deallocate, 0, size + EXTENT), &[]);
    volume.abort(given, Status::ABORT_REQUESTED);
    assert!(volume.ended.is_empty(), "no change is durable yet, and the write waits");
    settle(&mut volume, &mut home);
    let mut ended: Vec<_> = volume.ended.iter().map(|it| (it.0, it.2)).collect();
    ended.sort_by_key(|it| it.0 == late);
    assert_eq!(ended, [(given, Status::ABORT_REQUESTED), (late, Status::SUCCESS)]);
    assert_eq!(allocated(&home, "a"), EXTENT);
}
