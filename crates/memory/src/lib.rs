//! Guest memory: the only place that turns a guest address into a pointer.
//!
//! - [`Space`] is one client's DMA map; it translates guest addresses to [`Segment`]s.
//! - [`MemoryFile`] is one of the files behind it, for mapping it to another device.
//! - [`walk_prp`] and [`walk_sgl`] turn a command's data pointer into a [`SegmentList`].
//! - [`BounceBuffers`] are memory in place of memory that only the client reaches, [`ShadowMemory`] is that for a queue.
//! - [`Pages`] is queue memory, page by page, with the few accesses a queue needs.
//! - [`doorbell`] keeps a device from sleeping through a shadow doorbell.
//! - [`SharedRegion`] and [`SharedArray`] are shared memory of this process, [`Arena`] is private memory.
//! - [`Secret`] is for keys.
//! - [`VfioDevice`] is a PCI device that memory is mapped to.
//! - [`Buffers`] is shared memory whose parts two parties hand to and fro, [`Extents`] allocates them.
//! - [`fault`] keeps the process alive when a client truncates a mapped file, [`limits`] when a file may not grow.
//!
//! Guest memory is hostile and shared: it changes at any time. So nothing here ever forms a reference to it.
//! It is copied (`copy`), or read and written through atomics, and every decision is made on the copy.
//!
//! Every pointer rests on one promise, written down in [`segment`]: memory stays mapped for as long as a
//! segment of it is in use.

// Pointers into shared memory, mmap and a signal handler: this crate contains them, so that no other crate
// needs them. Every block states what makes it sound.
#![allow(unsafe_code)]

#[cfg(not(target_pointer_width = "64"))]
compile_error!("guest addresses are 64 bits wide, and so must pointers be");

mod arena;
mod buffers;
mod copy;
pub mod doorbell;
mod extents;
pub mod fault;
mod file;
pub mod limits;
mod list;
pub mod machine;
mod mapped_files;
mod mapping;
mod memory_file;
mod pages;
mod populate;
mod prp;
mod region;
mod remote;
mod removed;
mod secret;
pub mod segment;
mod sgl;
mod shadow_memory;
mod shared;
mod space;
mod vfio;

pub use arena::Arena;
pub use buffers::{Buffers, Window};
pub use extents::{Extent, Extents};
pub use list::{MAX_SEGMENTS, OutOfRange, SegmentList, TooManySegments};
pub use mapped_files::{FILES_IN_COMMON, FILES_OF_EACH, MAX_FILES, MAX_MAPPED_BYTES};
pub use memory_file::MemoryFile;
pub use pages::Pages;
pub use populate::Unpopulated;
pub use prp::walk_prp;
pub use region::{Access, Permissions};
pub use remote::{BounceBuffers, MAX_MISSING, MissingRange, Role};
pub use removed::Removed;
pub use secret::Secret;
pub use segment::Segment;
pub use sgl::{MAX_SGL_DESCRIPTORS, MAX_SGL_SEGMENTS, walk_sgl};
pub use shadow_memory::ShadowMemory;
pub use shared::{SharedArray, SharedRecord, SharedRegion};
pub use space::{Backing, MAX_REGIONS, MappedRegion, RegionMemory, Space};
pub use vfio::{VfioDevice, VfioError, VfioQuery};

pub use file::MapError;

/// The granularity of a DMA map and of [`Pages`]: regions begin and end on it.
pub const PAGE_SIZE: usize = sluice_nvme::PAGE_SIZE;
