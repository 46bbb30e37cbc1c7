//! Thin pools: volumes whose extents lie on one file or block device, and are allocated when they are first written.
//!
//! The device has metadata at its beginning, and extents behind it. A thread is the home of the
//! pool: it has the free extents and the map of each volume, and writes every change to a log. A volume is a
//! [layer](Thin) over the device, on the reactor of its drive, with its own copy of its map.
//!
//! # Order of writes
//!
//! A write to an extent that the volume does not have waits for these steps:
//!
//! 1. An extent is taken from the credit of the volume's port. It is free on the disk.
//! 2. Zeros are written over the whole extent.
//! 3. The device is flushed.
//! 4. The mapping is written to the log, with Force Unit Access.
//!
//! Then the write continues like one to an extent that was there before. So a mapping on the disk never leads to
//! bytes of another volume, whenever the power fails. Acknowledged allocations are durable, so Flush and Force Unit
//! Access need nothing but the same command of the device.
//!
//! An extent of a Deallocate reads as zeros at once. Its mapping is removed from the log when no earlier command of
//! the volume is under way on the extent. Only then the extent is free.
#![forbid(unsafe_code)]

mod block;
mod book;
#[cfg(feature = "by-hand")]
mod by_hand;
mod clones;
mod committer;
mod counting;
mod extents;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod layer;
mod layout;
mod map;
mod note;
mod pool;
mod storage;
mod store;
#[cfg(test)]
mod tests;

pub use book::{Change, EXTENTS_MAX, VOLUMES_MAX, VolumeUse};
#[cfg(feature = "by-hand")]
pub use by_hand::PoolByHand;
pub use layer::{OnFull, Thin, ThinPort};
pub use layout::{EXTENT, Layout};
pub use pool::{Error, PoolUse, ThinPool, VolumeControl};
pub use storage::{Device, Storage};
