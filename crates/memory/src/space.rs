//! DMA map of one client: guest addresses to memory.

use crate::PAGE_SIZE;
use crate::file::MapError;
use crate::list::SegmentList;
use crate::mapped_files::Files;
use crate::memory_file::MemoryFile;
use crate::pages::Pages;
use crate::populate::Unpopulated;
use crate::region::{Access, Permissions, Region, Window};
use crate::remote::{Remote, Role};
use crate::removed::Removed;
use crate::segment::Segment;
use sluice_nvme::Status;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

/// Regions in one map; a vfio-user server announces it to its client as `max_dma_maps`.
pub const MAX_REGIONS: usize = 65_535;

/// Memory behind a region.
#[derive(Debug)]
pub enum Backing {
    /// Part of a file in memory, from `offset` on.
    File { fd: OwnedFd, offset: u64 },
    /// No reachable memory.
    None,
    /// Memory that only the client reaches, by DMA messages: see [`BounceBuffers`](crate::BounceBuffers).
    Remote,
}

/// Region of a map, as a client has mapped it.
#[derive(Clone, Copy, Debug)]
pub struct MappedRegion<'a> {
    pub iova: u64,
    pub length: u64,
    pub permissions: Permissions,
    pub memory: RegionMemory<'a>,
}

/// Memory of a region.
#[derive(Clone, Copy, Debug)]
pub enum RegionMemory<'a> {
    /// Part of a file, whose descriptor is kept for the first files only.
    File { fd: Option<BorrowedFd<'a>>, offset: u64 },
    /// No reachable memory.
    None,
    /// Memory that only the client reaches.
    Remote,
}

/// DMA map of one client: guest (I/O virtual) addresses to memory.
///
/// The map belongs to one thread at a time; a second thread that translates for the same client has a clone,
/// which the front-end keeps up to date. Each file is mapped once and the regions are windows into it. So
/// thousands of regions (a guest with a virtual IOMMU) are not thousands of mappings.
#[derive(Clone)]
pub struct Space {
    /// Regions by first address; they do not overlap.
    regions: BTreeMap<u64, Region>,
    /// Window of the last hit, which is nearly always that of the next.
    recent: Cell<Window>,
    files: Files,
    /// Bytes of the page that a PRP names.
    page_size: Cell<usize>,
    generation: u64,
    pub(crate) remote: Remote,
}

// SAFETY: the raw pointers in the windows point into mappings that the same space holds; those belong to the
// process, not to a thread.
unsafe impl Send for Space {}

impl Space {
    pub fn new() -> Self {
        Space {
            regions: BTreeMap::new(),
            recent: Cell::new(Window::NOWHERE),
            files: Files::default(),
            page_size: Cell::new(PAGE_SIZE),
            generation: 0,
            remote: Remote::default(),
        }
    }

    /// Creates a space that keeps a descriptor of each file, for [`file_of`](Self::file_of).
    pub fn with_files() -> Self {
        Space { files: Files::with_descriptors(), ..Space::new() }
    }

    /// Limits the total size of the files behind all regions, whichever parts of them are mapped: pages of
    /// the files that this process touches first are charged to it.
    pub fn set_memory_limit(&mut self, bytes: u64) {
        self.files.set_limit(bytes);
    }

    /// Returns the bytes of a page that a PRP names: the client's choice for its controller, CC.MPS.
    #[inline]
    pub fn page_size(&self) -> usize {
        self.page_size.get()
    }

    /// Sets the bytes of a page that a PRP names: a power of two, and not less than [`PAGE_SIZE`].
    pub fn set_page_size(&self, bytes: usize) {
        debug_assert!(bytes.is_power_of_two() && bytes >= PAGE_SIZE);
        self.page_size.set(bytes);
    }

    /// Adds a region of `length` bytes at guest address `iova`. The mapping stays, and with it a copy of the
    /// descriptor for the first files.
    pub fn map(
        &mut self,
        iova: u64,
        length: u64,
        permissions: Permissions,
        backing: Backing,
    ) -> Result<(), MapError> {
        self.check(iova, length)?;
        let mut window = Window { first: iova, ..Window::NOWHERE };
        let mut mapping = None;
        let remote = matches!(backing, Backing::Remote).then_some(permissions);
        if let Backing::File { fd, offset } = backing {
            let file = self.files.mapping_of(fd, offset, length, permissions.write)?;
            window.reach = [permissions.read, permissions.write].map(|may| if may { length } else { 0 });
            window.base = file.base().wrapping_add(offset as usize);
            window.poisoned = file.poison();
            mapping = Some(file);
        }
        self.regions.insert(iova, Region { window, length, mapping, remote });
        self.changed();
        Ok(())
    }

    /// Removes the regions in the range from the map: one or several, each as a whole. Translation does not
    /// find them any more; the memory stays mapped until the result is dropped.
    pub fn unmap(&mut self, iova: u64, length: u64) -> Result<Removed, MapError> {
        let last = iova.checked_add(length.checked_sub(1).ok_or(MapError::Empty)?).ok_or(MapError::Wraps)?;
        let begins_before = self.regions.range(..iova).next_back().is_some_and(|(_, r)| r.last() >= iova);
        let ends_behind = self.regions.range(iova..=last).next_back().is_some_and(|(_, r)| r.last() > last);
        if begins_before || ends_behind {
            return Err(MapError::PartOfRegion);
        }
        let inside: Vec<u64> = self.regions.range(iova..=last).map(|(&first, _)| first).collect();
        if inside.is_empty() {
            return Err(MapError::NotMapped);
        }
        let regions = inside.iter().filter_map(|first| self.regions.remove(first)).collect();
        self.changed();
        Ok(Removed::new(regions))
    }

    /// Removes all regions from the map.
    pub fn unmap_all(&mut self) -> Removed {
        let regions = std::mem::take(&mut self.regions).into_values().collect();
        self.changed();
        Removed::new(regions)
    }

    /// Appends the memory of `length` bytes at `iova` to `out`; they may cross regions.
    ///
    /// # Errors
    /// DATA_TRANSFER_ERROR where there is no memory, no permission, or a poisoned file; `out` then holds the
    /// part before. INTERNAL_ERROR if `out` is full.
    #[inline]
    pub fn translate(
        &self,
        iova: u64,
        length: u32,
        access: Access,
        out: &mut SegmentList,
    ) -> Result<(), Status> {
        if let Some((pointer, left)) = self.recent.get().at(iova, access)
            && left >= u64::from(length)
        {
            // SAFETY: inside a region of the map, which stays mapped as promised in `segment`.
            let segment = unsafe { Segment::new(pointer, length) };
            return out.push(segment).map_err(Status::from);
        }
        self.translate_across(iova, length, access, out)
    }

    #[cold]
    fn translate_across(
        &self,
        iova: u64,
        length: u32,
        access: Access,
        out: &mut SegmentList,
    ) -> Result<(), Status> {
        let role = if access == Access::Read { Role::Source } else { Role::Destination };
        let push = |chunk| out.push(chunk).map_err(Status::from);
        self.for_each_chunk_in(iova, length as usize, access, role, push)
    }

    /// Returns the memory of a queue of `length` bytes at `iova`, which must be page-aligned. Memory that was
    /// requested with [`Access::Read`] must not be written.
    ///
    /// # Errors
    /// PRP_OFFSET_INVALID if `iova` is not aligned, DATA_TRANSFER_ERROR as [`translate`](Self::translate).
    pub fn queue(&self, iova: u64, length: usize, access: Access) -> Result<Pages, Status> {
        if !iova.is_multiple_of(PAGE_SIZE as u64) {
            return Err(Status::PRP_OFFSET_INVALID);
        }
        let mut pages = Pages::with_length(length);
        for offset in (0..length as u64).step_by(PAGE_SIZE) {
            let iova = iova.checked_add(offset).ok_or(Status::DATA_TRANSFER_ERROR)?;
            let region = self.region_at(iova).ok_or(Status::DATA_TRANSFER_ERROR)?;
            let (pointer, left) = region.window.at(iova, access).ok_or(Status::DATA_TRANSFER_ERROR)?;
            let mapping = region.mapping.as_ref().ok_or(Status::DATA_TRANSFER_ERROR)?;
            debug_assert!(left >= PAGE_SIZE as u64, "regions are whole pages");
            // SAFETY: a whole page, of the mapping that is kept with it.
            unsafe { pages.push(pointer, mapping) };
        }
        Ok(pages)
    }

    /// Copies guest memory out once, so that decisions can be made on the copy.
    pub fn read(&self, iova: u64, destination: &mut [u8]) -> Result<(), Status> {
        let mut rest = destination;
        self.for_each_chunk(iova, rest.len(), Access::Read, |chunk| {
            let (now, later) = std::mem::take(&mut rest).split_at_mut(chunk.len() as usize);
            chunk.read(now);
            rest = later;
            Ok(())
        })
    }

    /// Copies into guest memory.
    pub fn write(&self, iova: u64, source: &[u8]) -> Result<(), Status> {
        let mut rest = source;
        self.for_each_chunk_in(iova, rest.len(), Access::Write, Role::Destination, |chunk| {
            let (now, later) = rest.split_at(chunk.len() as usize);
            chunk.write(now);
            rest = later;
            Ok(())
        })
    }

    /// Returns the file whose memory a segment of this space is. None if there is none, such as for private
    /// memory, or if the space keeps no descriptors.
    pub fn file_of(&self, segment: &Segment) -> Option<MemoryFile> {
        self.files.file_of(segment)
    }

    /// Returns the memory of the region at `iova`, for a thread that populates it. None if the process has no memory there.
    pub fn unpopulated(&self, iova: u64) -> Option<Unpopulated> {
        let region = self.region_at(iova)?;
        let mapping = region.mapping()?;
        let offset = region.window.base.addr() - mapping.base().addr();
        Some(Unpopulated::new(mapping, offset, region.length as usize))
    }

    /// Returns the regions in ascending order, for a process that maps the same memory.
    pub fn regions(&self) -> impl ExactSizeIterator<Item = MappedRegion<'_>> {
        self.regions.values().map(|region| {
            let Window { first, reach, base, .. } = region.window;
            let [read, write] = reach.map(|bytes| bytes > 0);
            let memory = match (&region.mapping, region.remote) {
                (Some(mapping), _) => RegionMemory::File {
                    fd: mapping.file(),
                    offset: (base.addr() - mapping.base().addr()) as u64,
                },
                (None, Some(_)) => RegionMemory::Remote,
                (None, None) => RegionMemory::None,
            };
            let permissions = region.remote.unwrap_or(Permissions { read, write });
            MappedRegion { iova: first, length: region.length, permissions, memory }
        })
    }

    /// Returns whether a region is memory of the file.
    pub fn holds(&self, file: &MemoryFile) -> bool {
        let mut mappings = self.regions.values().filter_map(|region| region.mapping.as_ref());
        mappings.any(|mapping| file.is_of(mapping))
    }

    /// Returns the same map without memory that only the client reaches: for a thread that cannot send DMA
    /// messages.
    pub fn shared_part(&self) -> Self {
        let mut part = self.clone();
        part.regions.values_mut().for_each(|region| region.remote = None);
        part
    }

    /// Returns whether a writable region is reached by the client alone.
    pub fn has_remote_memory(&self) -> bool {
        self.regions.values().any(|region| region.remote.is_some_and(|may| may.write))
    }

    /// Returns a number that changes with every map and unmap. Values that were derived from the map under
    /// another generation must be derived again.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns whether a client has removed memory that a region of the map is in.
    pub fn poisoned(&self) -> bool {
        self.regions.values().any(|region| region.window.poisoned.load(Ordering::Relaxed))
    }

    /// Returns the number of regions.
    pub fn len(&self) -> usize {
        self.regions.len()
    }

    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// Returns whether every byte of `segment` is memory of a mapped region. Slow; for assertions.
    pub fn contains(&self, segment: &Segment) -> bool {
        let wanted = segment.range();
        let mut covered = wanted.start;
        while covered < wanted.end {
            let mut held = self.regions.values().map(Region::host_range);
            match held.find(|range| range.contains(&covered)) {
                Some(range) => covered = range.end,
                None => return false,
            }
        }
        true
    }

    /// Calls `each` with the memory of `length` bytes of a list at `iova`, in order, region by region.
    pub(crate) fn for_each_chunk(
        &self,
        iova: u64,
        length: usize,
        access: Access,
        each: impl FnMut(Segment) -> Result<(), Status>,
    ) -> Result<(), Status> {
        self.for_each_chunk_in(iova, length, access, Role::List, each)
    }

    /// Calls `each` as [`for_each_chunk`](Self::for_each_chunk) does, for bytes in any role. A survey skips
    /// missing data.
    fn for_each_chunk_in(
        &self,
        mut iova: u64,
        length: usize,
        access: Access,
        role: Role,
        mut each: impl FnMut(Segment) -> Result<(), Status>,
    ) -> Result<(), Status> {
        let mut left = length as u64;
        while left > 0 {
            let taken = match self.find(iova, access).or_else(|| self.remote.find(role, iova)) {
                Some((pointer, reach)) => {
                    let taken = left.min(reach).min(u64::from(u32::MAX));
                    // SAFETY: as in `translate`, or a bounce buffer, which its owner keeps mapped.
                    each(unsafe { Segment::new(pointer, taken as u32) })?;
                    taken
                }
                None => self.miss(role, iova, left).ok_or(Status::DATA_TRANSFER_ERROR)?,
            };
            left -= taken;
            iova = match iova.checked_add(taken) {
                Some(next) => next,
                None if left == 0 => break,
                None => return Err(Status::DATA_TRANSFER_ERROR),
            };
        }
        Ok(())
    }

    /// Returns the address of `iova` in this process, and how many bytes follow it in its region.
    #[inline]
    pub(crate) fn find(&self, iova: u64, access: Access) -> Option<(*mut u8, u64)> {
        match self.recent.get().at(iova, access) {
            None => self.find_in_regions(iova, access),
            found => found,
        }
    }

    #[cold]
    fn find_in_regions(&self, iova: u64, access: Access) -> Option<(*mut u8, u64)> {
        let window = self.region_at(iova)?.window;
        let found = window.at(iova, access)?;
        self.recent.set(window);
        Some(found)
    }

    /// Returns the permissions of the region that `iova` is in, and the bytes that follow, if only the client
    /// reaches it.
    pub(crate) fn remote_at(&self, iova: u64) -> Option<(Permissions, u64)> {
        let region = self.region_at(iova)?;
        Some((region.remote?, region.length - (iova - region.window.first)))
    }

    fn region_at(&self, iova: u64) -> Option<&Region> {
        let (_, region) = self.regions.range(..=iova).next_back()?;
        (region.last() >= iova).then_some(region)
    }

    fn changed(&mut self) {
        self.recent.set(Window::NOWHERE);
        self.generation += 1;
    }

    /// Checks a new region before its file is examined.
    fn check(&self, iova: u64, length: u64) -> Result<(), MapError> {
        let last = iova.checked_add(length.checked_sub(1).ok_or(MapError::Empty)?).ok_or(MapError::Wraps)?;
        if !(iova | length).is_multiple_of(PAGE_SIZE as u64) {
            return Err(MapError::Unaligned);
        }
        if self.regions.len() >= MAX_REGIONS {
            return Err(MapError::Limit);
        }
        match self.regions.range(..=last).next_back() {
            Some((_, region)) if region.last() >= iova => Err(MapError::Overlaps),
            _ => Ok(()),
        }
    }
}

impl Default for Space {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let regions = self.regions.values().map(|region| (region.window.first, region.length));
        f.write_str("Space ")?;
        f.debug_map().entries(regions).finish()
    }
}
