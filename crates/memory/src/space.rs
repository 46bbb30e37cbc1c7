//! One client's DMA map: guest addresses to memory.

use crate::PAGE_SIZE;
use crate::file::{FileFacts, FileId, MapError};
use crate::list::SegmentList;
use crate::mapping::Mapping;
use crate::memory_file::MemoryFile;
use crate::pages::Pages;
use crate::remote::{Remote, Role};
use crate::removed::Removed;
use crate::segment::Segment;
use sluice_nvme::Status;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// Regions in one map; what a vfio-user server tells its client as `max_dma_maps`.
pub const MAX_REGIONS: usize = 65_535;

/// Files mapped for one map. A process may have some 65,000 mappings (vm.max_map_count), and they are
/// shared by all clients; a guest has one file for each memory device.
pub const MAX_FILES: usize = 256;

/// Bytes of files mapped for one map: more than any machine's memory, less than the address space.
pub const MAX_MAPPED_BYTES: u64 = 16 << 40;

/// What *we* are about to do with guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Data of a write command, a submission queue.
    Read,
    /// Data of a read command, a completion queue.
    Write,
}

/// What a region allows us to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permissions {
    pub read: bool,
    pub write: bool,
}

impl Permissions {
    pub const READ_WRITE: Permissions = Permissions { read: true, write: true };
    pub const READ_ONLY: Permissions = Permissions { read: true, write: false };
}

/// What is behind a region.
#[derive(Debug)]
pub enum Backing {
    /// A part of a file in memory, from `offset` on.
    File { fd: OwnedFd, offset: u64 },
    /// Nothing that could be reached.
    None,
    /// Memory that only the client reaches, and that it can be asked for: see [`StandIns`].
    Remote,
}

/// One client's DMA map: guest (I/O virtual) addresses to memory.
///
/// It belongs to one thread at a time; a second thread that translates for the same client has a
/// clone, which the front-end keeps up to date. Each file is mapped once and the regions are windows
/// into it, so that thousands of regions (a guest with a virtual IOMMU) are not thousands of mappings.
#[derive(Clone)]
pub struct Space {
    /// By first address; they do not overlap.
    regions: BTreeMap<u64, Region>,
    /// The window hit last, which is nearly always the one hit next.
    recent: Cell<Window>,
    /// Mappings that some region, or some queue memory, holds.
    files: Vec<(FileId, Weak<Mapping>)>,
    keeps_files: bool,
    /// What a PRP names.
    page_size: Cell<usize>,
    generation: u64,
    pub(crate) remote: Remote,
}

// SAFETY: the raw pointers in the windows point into mappings that the same space holds; those belong
// to the process, not to a thread.
unsafe impl Send for Space {}

/// What a translation needs of a region, small enough to be copied.
#[derive(Clone, Copy)]
struct Window {
    first: u64,
    /// Bytes from `first` on that may be accessed, by [`Access`]: bounds and permission in one compare.
    reach: [u64; 2],
    base: *mut u8,
    poisoned: &'static AtomicBool,
}

impl Window {
    const NOWHERE: Window = {
        static NEVER: AtomicBool = AtomicBool::new(false);
        Window { first: 0, reach: [0; 2], base: std::ptr::null_mut(), poisoned: &NEVER }
    };

    /// Where `iova` is, and how many bytes follow it in this window.
    #[inline]
    fn at(&self, iova: u64, access: Access) -> Option<(*mut u8, u64)> {
        let offset = iova.wrapping_sub(self.first);
        let reach = self.reach[access as usize];
        if offset >= reach || self.poisoned.load(Ordering::Relaxed) {
            return None;
        }
        Some((self.base.wrapping_add(offset as usize), reach - offset))
    }
}

/// A region as it was mapped.
#[derive(Clone)]
pub(crate) struct Region {
    window: Window,
    length: u64,
    mapping: Option<Arc<Mapping>>,
    /// What the client does for us if asked to.
    remote: Option<Permissions>,
}

impl Region {
    fn last(&self) -> u64 {
        self.window.first + (self.length - 1)
    }

    pub(crate) fn mapping(&self) -> Option<&Arc<Mapping>> {
        self.mapping.as_ref()
    }

    /// Where its memory is in this process; empty if it has none.
    pub(crate) fn host_range(&self) -> Range<usize> {
        match self.mapping {
            Some(_) => self.window.base.addr()..self.window.base.addr() + self.length as usize,
            None => 0..0,
        }
    }
}

impl Space {
    pub fn new() -> Self {
        Space {
            regions: BTreeMap::new(),
            recent: Cell::new(Window::NOWHERE),
            files: Vec::new(),
            keeps_files: false,
            page_size: Cell::new(PAGE_SIZE),
            generation: 0,
            remote: Remote::default(),
        }
    }

    /// A space that keeps a descriptor of each file, for [`file_of`](Self::file_of).
    pub fn with_files() -> Self {
        Space { keeps_files: true, ..Space::new() }
    }

    /// Bytes of a page that a PRP names: what the client chose for its controller, CC.MPS.
    #[inline]
    pub fn page_size(&self) -> usize {
        self.page_size.get()
    }

    /// `bytes` is a power of two, and not less than [`PAGE_SIZE`].
    pub fn set_page_size(&self, bytes: usize) {
        debug_assert!(bytes.is_power_of_two() && bytes >= PAGE_SIZE);
        self.page_size.set(bytes);
    }

    /// Adds a region of `length` bytes at guest address `iova`. The descriptor is closed, the mapping
    /// stays.
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
            let file = self.mapping_of(fd, offset, length, permissions.write)?;
            window.reach = [permissions.read, permissions.write].map(|may| if may { length } else { 0 });
            window.base = file.base().wrapping_add(offset as usize);
            window.poisoned = file.poison();
            mapping = Some(file);
        }
        self.regions.insert(iova, Region { window, length, mapping, remote });
        self.changed();
        Ok(())
    }

    /// Takes the regions in the range out of the map: one or several, each as a whole. They are gone
    /// from translation at once; the memory stays mapped until the answer is dropped.
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

    /// Empties the map.
    pub fn unmap_all(&mut self) -> Removed {
        let regions = std::mem::take(&mut self.regions).into_values().collect();
        self.changed();
        Removed::new(regions)
    }

    /// Appends the memory of `length` bytes at `iova` to `out`; they may cross regions.
    ///
    /// # Errors
    /// DATA_TRANSFER_ERROR where there is no memory, no permission, or a poisoned file; `out` then
    /// holds the part before. INTERNAL_ERROR if `out` is full.
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
        let push = |piece| out.push(piece).map_err(Status::from);
        self.for_each_piece_in(iova, length as usize, access, role, push)
    }

    /// The memory of a queue of `length` bytes at `iova`, which must be page-aligned. What was asked
    /// for with [`Access::Read`] must not be written.
    ///
    /// # Errors
    /// PRP_OFFSET_INVALID if it is not, DATA_TRANSFER_ERROR as [`translate`](Self::translate).
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

    /// Copies guest memory out; once, so that decisions can be made on the copy.
    pub fn read(&self, iova: u64, destination: &mut [u8]) -> Result<(), Status> {
        let mut rest = destination;
        self.for_each_piece(iova, rest.len(), Access::Read, |piece| {
            let (now, later) = std::mem::take(&mut rest).split_at_mut(piece.len() as usize);
            piece.read(now);
            rest = later;
            Ok(())
        })
    }

    /// Copies into guest memory.
    pub fn write(&self, iova: u64, source: &[u8]) -> Result<(), Status> {
        let mut rest = source;
        self.for_each_piece_in(iova, rest.len(), Access::Write, Role::Destination, |piece| {
            let (now, later) = rest.split_at(piece.len() as usize);
            piece.write(now);
            rest = later;
            Ok(())
        })
    }

    /// The file that a segment of this space is memory of. None if there is none, such as for memory of
    /// our own, or if the space keeps no descriptors.
    pub fn file_of(&self, segment: &Segment) -> Option<MemoryFile> {
        let mappings = self.files.iter().filter_map(|(_, mapping)| mapping.upgrade());
        mappings.filter_map(MemoryFile::new).find(|file| file.contains(segment))
    }

    /// True if a region is memory of the file.
    pub fn holds(&self, file: &MemoryFile) -> bool {
        let mut mappings = self.regions.values().filter_map(|region| region.mapping.as_ref());
        mappings.any(|mapping| file.is_of(mapping))
    }

    /// Changes with every map and unmap: what was derived from the map under another generation must
    /// be derived again.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// True if a client has taken away memory that a region of the map is in.
    pub fn poisoned(&self) -> bool {
        self.regions.values().any(|region| region.window.poisoned.load(Ordering::Relaxed))
    }

    /// Number of regions.
    pub fn len(&self) -> usize {
        self.regions.len()
    }

    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// True if every byte of `segment` is memory of a mapped region. Slow; for assertions.
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
    pub(crate) fn for_each_piece(
        &self,
        iova: u64,
        length: usize,
        access: Access,
        each: impl FnMut(Segment) -> Result<(), Status>,
    ) -> Result<(), Status> {
        self.for_each_piece_in(iova, length, access, Role::List, each)
    }

    /// The same for bytes in any role. A survey passes over data that is missing.
    fn for_each_piece_in(
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
                    // SAFETY: as in `translate`, or a stand-in, which whoever left it keeps mapped.
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

    /// Where `iova` is, and how many bytes follow it in its region.
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

    /// The region that `iova` is in if only the client reaches it: what may be done there, and the bytes that follow.
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

    /// All that can be wrong with a new region before its file is looked at.
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

    /// A mapping of the file that reaches as far as the region: one we have, or a new one of the
    /// whole file.
    fn mapping_of(
        &mut self,
        fd: OwnedFd,
        offset: u64,
        length: u64,
        write: bool,
    ) -> Result<Arc<Mapping>, MapError> {
        let file = FileFacts::of(fd.as_fd())?;
        if write && !file.id.writable {
            return Err(MapError::AccessDenied);
        }
        if !offset.is_multiple_of(PAGE_SIZE as u64) {
            return Err(MapError::Unaligned);
        }
        let end = offset.checked_add(length).filter(|&end| end <= file.size).ok_or(MapError::BeyondFile)?;
        self.files.retain(|(_, mapping)| mapping.strong_count() > 0);
        let mut held =
            self.files.iter().filter(|(id, _)| *id == file.id).filter_map(|(_, held)| held.upgrade());
        if let Some(found) = held.find(|found| found.length() as u64 >= end && !found.is_poisoned()) {
            return Ok(found);
        }
        self.map_file(&fd, &file)
    }

    fn map_file(&mut self, fd: &OwnedFd, file: &FileFacts) -> Result<Arc<Mapping>, MapError> {
        let mapped: u64 =
            self.files.iter().filter_map(|(_, held)| held.upgrade()).map(|m| m.length() as u64).sum();
        if self.files.len() >= MAX_FILES || file.size > MAX_MAPPED_BYTES - mapped.min(MAX_MAPPED_BYTES) {
            return Err(MapError::Limit);
        }
        let length = (file.size as usize).next_multiple_of(file.page_size);
        let mut mapping = Mapping::new(fd.as_fd(), 0, length, file.id.writable, file.page_size)?;
        if self.keeps_files {
            mapping.keep(fd.try_clone()?);
        }
        let mapping = Arc::new(mapping);
        self.files.push((file.id, Arc::downgrade(&mapping)));
        Ok(mapping)
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
