//! Files of one DMA map, each of them mapped once.

use crate::PAGE_SIZE;
use crate::fault::MAX_MAPPINGS;
use crate::file::{FileId, FileInfo, MapError};
use crate::mapping::Mapping;
use crate::memory_file::MemoryFile;
use crate::segment::Segment;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};

/// Files mapped for one map. A process may have some 65,000 mappings (vm.max_map_count), and they are shared
/// by all clients; a guest has one file for each memory device.
pub const MAX_FILES: usize = 256;

/// Files mapped for one map, independent of the number of other clients' files.
pub const FILES_OF_EACH: usize = 16;

/// Files beyond these, mapped for all maps of the process together. The other half of its mappings is for
/// clients that have few.
pub const FILES_IN_COMMON: usize = MAX_MAPPINGS / 2;

/// Number of such files.
static IN_COMMON: AtomicUsize = AtomicUsize::new(0);

/// A place among the files that all clients share.
#[derive(Debug)]
pub(crate) struct SharedPlace(());

impl SharedPlace {
    fn take() -> Option<Self> {
        let one_more = |count: usize| (count < FILES_IN_COMMON).then_some(count + 1);
        IN_COMMON.fetch_update(Relaxed, Relaxed, one_more).ok().map(|_| Self(()))
    }
}

impl Drop for SharedPlace {
    fn drop(&mut self) {
        IN_COMMON.fetch_sub(1, Relaxed);
    }
}

/// Bytes of files mapped for one map: more than any machine's memory, less than the address space.
pub const MAX_MAPPED_BYTES: u64 = 16 << 40;

#[derive(Clone, Default)]
pub(crate) struct Files {
    /// Mappings that some region, or some queue memory, holds.
    held: Vec<(FileId, Weak<Mapping>)>,
    keeps_descriptors: bool,
    /// Bytes that the client's files may have together, each file counted once.
    limit: Option<u64>,
}

impl Files {
    /// Creates a table that keeps a descriptor of each file, for [`file_of`](Self::file_of).
    pub(crate) fn with_descriptors() -> Self {
        Self { keeps_descriptors: true, ..Self::default() }
    }

    /// Sets the bytes that all files may have together.
    pub(crate) fn set_limit(&mut self, bytes: u64) {
        self.limit = Some(bytes);
    }

    /// Returns the file whose memory a segment is.
    pub(crate) fn file_of(&self, segment: &Segment) -> Option<MemoryFile> {
        if !self.keeps_descriptors {
            return None;
        }
        let mappings = self.held.iter().filter_map(|(_, mapping)| mapping.upgrade());
        mappings.filter_map(MemoryFile::new).find(|file| file.contains(segment))
    }

    /// Returns a mapping of the file that reaches as far as the region: an existing one, or a new one of the
    /// whole file.
    pub(crate) fn mapping_of(
        &mut self,
        fd: OwnedFd,
        offset: u64,
        length: u64,
        write: bool,
    ) -> Result<Arc<Mapping>, MapError> {
        let file = FileInfo::of(fd.as_fd())?;
        if write && !file.id.writable {
            return Err(MapError::AccessDenied);
        }
        if !offset.is_multiple_of(PAGE_SIZE as u64) {
            return Err(MapError::Unaligned);
        }
        let end = offset.checked_add(length).filter(|&end| end <= file.size).ok_or(MapError::BeyondFile)?;
        self.held.retain(|(_, mapping)| mapping.strong_count() > 0);
        let mut held =
            self.held.iter().filter(|(id, _)| *id == file.id).filter_map(|(_, held)| held.upgrade());
        if let Some(found) = held.find(|found| found.length() as u64 >= end && !found.is_poisoned()) {
            return Ok(found);
        }
        self.map_file(&fd, &file)
    }

    fn map_file(&mut self, fd: &OwnedFd, file: &FileInfo) -> Result<Arc<Mapping>, MapError> {
        let mapped: u64 =
            self.held.iter().filter_map(|(_, held)| held.upgrade()).map(|m| m.length() as u64).sum();
        if self.held.len() >= MAX_FILES || file.size > MAX_MAPPED_BYTES - mapped.min(MAX_MAPPED_BYTES) {
            return Err(MapError::Limit);
        }
        if self.with(file) > self.limit.unwrap_or(MAX_MAPPED_BYTES) {
            return Err(MapError::TooMuchMemory);
        }
        let place = match self.held.len() < FILES_OF_EACH {
            true => None,
            false => Some(SharedPlace::take().ok_or(MapError::Crowded)?),
        };
        let length = (file.size as usize).next_multiple_of(file.page_size);
        let mut mapping = Mapping::new(fd.as_fd(), 0, length, file.id.writable, file.page_size)?;
        mapping.hold(place);
        // A successor of this process maps the first files of each client. Beyond these a client would take too
        // many descriptors.
        if self.keeps_descriptors || self.held.len() < FILES_OF_EACH {
            mapping.keep(fd.try_clone()?);
        }
        let mapping = Arc::new(mapping);
        self.held.push((file.id, Arc::downgrade(&mapping)));
        Ok(mapping)
    }

    /// Returns the bytes of all files, `file` among them. A file that is mapped several times, or has grown,
    /// counts once.
    fn with(&self, file: &FileInfo) -> u64 {
        let mut sizes: Vec<(FileId, u64)> = vec![(file.id.read_only(), file.size)];
        for (id, held) in &self.held {
            let Some(held) = held.upgrade() else { continue };
            let (id, size) = (id.read_only(), held.length() as u64);
            match sizes.iter_mut().find(|(known, _)| *known == id) {
                Some((_, known)) => *known = size.max(*known),
                None => sizes.push((id, size)),
            }
        }
        sizes.iter().fold(0, |sum, (_, size)| sum.saturating_add(*size))
    }
}
