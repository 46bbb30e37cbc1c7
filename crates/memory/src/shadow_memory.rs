//! Private memory in place of the memory of a queue that only the client reaches.

use crate::PAGE_SIZE;
use crate::mapping::Mapping;
use crate::pages::Pages;
use crate::segment::Segment;
use crate::shared::SharedRegion;
use std::fmt;
use std::io;
use std::sync::Arc;

/// Memory that a queue is copied to, or from.
pub struct ShadowMemory {
    mapping: Arc<Mapping>,
    length: usize,
}

impl ShadowMemory {
    /// Creates memory of zeros.
    ///
    /// # Errors
    /// The operating system has no memory or descriptors for it.
    pub fn new(length: usize) -> io::Result<ShadowMemory> {
        let mapping = SharedRegion::new("sluice-queue", length)?.into_mapping();
        Ok(ShadowMemory { mapping: Arc::new(mapping), length })
    }

    /// Returns the memory in the form in which a controller uses a queue's.
    pub fn pages(&self) -> Pages {
        let mut pages = Pages::with_length(self.length);
        for offset in (0..self.length).step_by(PAGE_SIZE) {
            // SAFETY: a whole page of the mapping, which is as long as the length rounded up.
            unsafe { pages.push(self.mapping.base().wrapping_add(offset), &self.mapping) };
        }
        pages
    }

    /// Reads bytes.
    ///
    /// # Panics
    /// If the bytes do not lie inside; so does [`write`](Self::write).
    pub fn read(&self, offset: usize, destination: &mut [u8]) {
        self.all().slice(offset as u32, destination.len() as u32).read(destination);
    }

    pub fn write(&self, offset: usize, source: &[u8]) {
        self.all().slice(offset as u32, source.len() as u32).write(source);
    }

    fn all(&self) -> Segment {
        // SAFETY: the mapping is at least as long, and `self` holds it for as long as the segment is used.
        unsafe { Segment::new(self.mapping.base(), self.length as u32) }
    }
}

impl fmt::Debug for ShadowMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ShadowMemory({} bytes)", self.length)
    }
}
