//! Clients that map as many files as they may, beside one that maps a few. In a process of its own, since the
//! mappings of all clients count.

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use sluice_memory::{Backing, FILES_IN_COMMON, FILES_OF_EACH, MAX_FILES, MapError, Permissions, Space};
use std::os::fd::OwnedFd;

const PAGE: u64 = 4096;

const BOTH: Permissions = Permissions { read: true, write: true };

fn file() -> OwnedFd {
    let fd = memfd_create("guest", MemfdFlags::CLOEXEC).expect("there is memory");
    ftruncate(&fd, PAGE).expect("there is memory");
    fd
}

/// Maps a file of its own as region `number`.
fn map(space: &mut Space, number: usize) -> Result<(), MapError> {
    space.map(number as u64 * PAGE, PAGE, BOTH, Backing::File { fd: file(), offset: 0 })
}

#[test]
fn clients_with_very_many_files_leave_every_other_its_share() {
    let greedy = |_| {
        let mut space = Space::new();
        let mapped = (0..MAX_FILES).take_while(|number| map(&mut space, *number).is_ok()).count();
        (space, mapped)
    };
    let clients = FILES_IN_COMMON / (MAX_FILES - FILES_OF_EACH) + 2;
    let mut all: Vec<(Space, usize)> = (0..clients).map(greedy).collect();
    assert_eq!(all[0].1, MAX_FILES, "the first is served in full");
    assert_eq!(all[clients - 1].1, FILES_OF_EACH, "the last has its share");
    let mut modest = Space::new();
    for number in 0..FILES_OF_EACH {
        assert_eq!(map(&mut modest, number), Ok(()));
    }
    assert_eq!(map(&mut modest, FILES_OF_EACH), Err(MapError::Crowded));
    // The places of a client that is gone are free for others.
    drop(all.swap_remove(0));
    assert_eq!(map(&mut modest, FILES_OF_EACH), Ok(()));
}
