//! Attributes in sysfs of the device that a file is, or lies on.

use std::fs;

use rustix::fs::{major, minor};

/// Reads an attribute of a block device by its number. For a partition, queue attributes come from its disk.
fn attribute(device: u64, name: &str) -> Option<String> {
    let at = format!("/sys/dev/block/{}:{}", major(device), minor(device));
    let read = |path: String| fs::read_to_string(path).ok();
    read(format!("{at}/{name}")).or_else(|| read(format!("{at}/../{name}"))).map(|it| it.trim().to_owned())
}

/// Returns the number of bytes that the device writes atomically, also beside other writes.
pub(super) fn physical_block(device: u64) -> Option<u32> {
    attribute(device, "queue/physical_block_size")?.parse().ok()
}

/// Returns whether the device has no volatile write cache. False if that is unknown.
pub(super) fn writes_through(device: u64) -> bool {
    attribute(device, "queue/write_cache").is_some_and(|it| it == "write through")
}

/// Returns whether the device is read-only. The kernel opens such a device for writing all the same.
pub(super) fn is_read_only(device: u64) -> bool {
    attribute(device, "ro").is_some_and(|it| it == "1")
}
