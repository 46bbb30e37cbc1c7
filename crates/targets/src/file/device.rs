//! What the kernel says about the device that a file is, or lies on.

use std::fs;

use rustix::fs::{major, minor};

/// An attribute of a block device, by its number. A partition has the ones of its queue from its disk.
fn attribute(device: u64, name: &str) -> Option<String> {
    let at = format!("/sys/dev/block/{}:{}", major(device), minor(device));
    let read = |path: String| fs::read_to_string(path).ok();
    read(format!("{at}/{name}")).or_else(|| read(format!("{at}/../{name}"))).map(|it| it.trim().to_owned())
}

/// Bytes that the device writes at once: never a part of them, whatever else is written at the same time.
pub(super) fn physical_block(device: u64) -> Option<u32> {
    attribute(device, "queue/physical_block_size")?.parse().ok()
}

/// True if the device is known to have no cache that a power cut empties.
pub(super) fn writes_through(device: u64) -> bool {
    attribute(device, "queue/write_cache").is_some_and(|it| it == "write through")
}

/// True if the device is known to take no writes. The kernel opens it for them all the same.
pub(super) fn is_read_only(device: u64) -> bool {
    attribute(device, "ro").is_some_and(|it| it == "1")
}
