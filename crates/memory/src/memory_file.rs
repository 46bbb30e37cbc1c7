//! Files of a host's memory, for mapping them to another device.

use crate::mapping::Mapping;
use crate::segment::Segment;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// A file behind regions of a [`Space`](crate::Space): its descriptor, and its address here. The file stays
/// mapped for as long as this value lives, so that no other memory gets its addresses. Dropping the last one
/// may take milliseconds.
#[derive(Clone)]
pub struct MemoryFile {
    mapping: Arc<Mapping>,
}

impl MemoryFile {
    /// Returns none if the space keeps no descriptors.
    pub(crate) fn new(mapping: Arc<Mapping>) -> Option<MemoryFile> {
        mapping.file().is_some().then_some(MemoryFile { mapping })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.mapping.file().expect("there is no other way to make one")
    }

    /// Returns the mapped bytes, from the beginning of the file on.
    pub fn len(&self) -> u64 {
        self.mapping.length() as u64
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the address of the file's first byte in this process.
    pub fn address(&self) -> usize {
        self.mapping.base().addr()
    }

    /// Returns false if a device may only read the file.
    pub fn is_writable(&self) -> bool {
        self.mapping.is_writable()
    }

    /// Returns whether all of a segment is memory of this file.
    pub fn contains(&self, segment: &Segment) -> bool {
        let (held, wanted) = (self.address()..self.address() + self.mapping.length(), segment.range());
        !segment.is_bit_bucket() && held.start <= wanted.start && wanted.end <= held.end
    }

    pub(crate) fn is_of(&self, mapping: &Arc<Mapping>) -> bool {
        Arc::ptr_eq(&self.mapping, mapping)
    }
}

impl fmt::Debug for MemoryFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryFile({} bytes)", self.len())
    }
}
