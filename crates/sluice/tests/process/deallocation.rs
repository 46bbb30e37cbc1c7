//! Deallocations that take the file system long, and hosts that do not wait for their end.

use crate::comings::reset;
use crate::common::{Daemon, namespace, wait_for};
use crate::neighbour::Neighbour;
use sluice_host::{Controller, QueueLayout, entry};
use std::fs::{File, metadata};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

const MIB: u64 = 1 << 20;

/// Bytes of the image. ext4 takes 50 us and more for each of its 32768 extents: seconds.
const SIZE: u64 = 256 * MIB;

/// Writes every other 4 KiB of a file, so that the file system has an extent for each.
fn fragment(path: &Path) {
    let file = File::options().write(true).create(true).truncate(false).open(path).expect("a file");
    file.set_len(SIZE).expect("it can be sparse");
    for offset in (0..SIZE).step_by(8192) {
        file.write_all_at(&[0x5a; 4096], offset).expect("there is room");
    }
    file.sync_all().expect("it can be stored");
}

/// Returns the number of bytes that the file system has stored.
fn stored(path: &Path) -> u64 {
    metadata(path).expect("the file is there").blocks() * 512
}

/// Submits a Deallocate of everything, in one range, and waits until some of it is done.
fn begin(host: &mut Controller, path: &Path) {
    let before = stored(path);
    let mut queue = host.create_queue_pair(1, QueueLayout::default(), None).expect("a queue pair");
    let ranges = host.memory().allocate(4096).expect("memory");
    let blocks = (SIZE / 512) as u32;
    ranges.region().write(4, &blocks.to_le_bytes());
    queue.submit_prp(entry::deallocate(1, 1), ranges.range(0, 16)).expect("the queue is empty");
    queue.ring().expect("its doorbell is there");
    wait_for("the begin of a deallocation", || stored(path) < before);
}

/// Checks that a deallocation was not waited for. A reset or a new client that waited would have left nothing
/// of it.
fn is_unfinished(path: &Path) {
    let left = stored(path);
    assert!(left > SIZE / 16, "the deallocation was waited for: {left} bytes are left");
}

#[test]
fn a_reset_and_the_next_client_do_not_wait_for_a_long_deallocation() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("fragmented");
    fragment(&path);
    let drives = format!(
        "[[drive]]\nname = \"long\"\n[[drive.namespace]]\ntarget = \"file\"\npath = \"{}\"\n\
         [[drive]]\nname = \"other\"\n[[drive.namespace]]\ntarget = \"memory\"\nsize = \"16MiB\"\n",
        path.display()
    );
    let daemon = Daemon::start(&drives);
    let neighbour = Neighbour::on(&daemon, "other");
    let mut host = daemon.host("long");
    begin(&mut host, &path);
    reset(&mut host);
    is_unfinished(&path);
    neighbour.goes_on();
    let mut disk = namespace(&mut host, 1);
    disk.write(0, &[7; 4096]).expect("written");
    drop(disk);
    // The next deallocation is given up with its client.
    reset(&mut host);
    begin(&mut host, &path);
    drop(host);
    let mut host = daemon.host("long");
    is_unfinished(&path);
    neighbour.goes_on();
    // No deallocation that was given up goes on.
    let mut disk = namespace(&mut host, 1);
    disk.write(0, &[9; 4096]).expect("written");
    disk.write_zeroes(8, 8, false).expect("zeroed");
    let mut bytes = [0; 8192];
    disk.read(0, &mut bytes).expect("read");
    assert!(bytes[..4096].iter().all(|byte| *byte == 9) && bytes[4096..].iter().all(|byte| *byte == 0));
    neighbour.end();
}
