//! Deallocations of extents that are on their way into the volume, or out of it.

use super::rig::Volume;
use super::rules::{DISK, Home, fill, open, pool, read, request, settle, write};
use crate::EXTENT;
use crate::layer::OnFull;
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
