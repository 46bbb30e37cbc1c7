//! Files of the host's memory that are mapped for the device, and their device addresses.
//!
//! A file is mapped when a command first has data in it. Until then, and if the device refuses, data is
//! copied. A file is unmapped when the host has unmapped its last region, or is gone, and no command on the
//! device names it any more.

use super::iova_layout::Window;
use sluice_command::{Controllers, Origin};
use sluice_memory::{MemoryFile, Removed, Segment, Space};

/// Files mapped at once; a guest has one for each memory device. Data in further files is copied.
pub(super) const MAPPINGS_MAX: usize = 32;

/// A set of mappings, as bits by their number.
pub(super) type MappingSet = u32;

const _: () = assert!(MAPPINGS_MAX <= MappingSet::BITS as usize);

/// State of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MappingState {
    /// Requested from the admin thread.
    Requested,
    Mapped,
    /// Refused by the device.
    Refused,
    /// Revoked: unmapped as soon as no command names it and the admin thread has answered.
    Revoking {
        requested: bool,
    },
    /// Unmap requested from the admin thread.
    Unmapping,
    /// Unmapped for the device, and not needed here.
    Unused,
}

#[derive(Debug)]
struct DmaMapping {
    /// Address in this process, and length, bytes.
    address: usize,
    bytes: usize,
    iova: u64,
    state: MappingState,
    /// Commands on the device that name it.
    uses: u32,
    /// Set if a region of it was unmapped since the last review.
    region_removed: bool,
    file: MemoryFile,
    /// Controller whose host has the memory.
    of: u8,
}

/// A request for the admin thread.
#[derive(Debug)]
pub(super) enum MapRequest {
    Map {
        mapping: usize,
        file: MemoryFile,
        iova: u64,
    },
    Unmap {
        mapping: usize,
        bytes: u64,
        iova: u64,
    },
    /// Drop of a file, which may take time.
    Discard(MemoryFile),
}

/// The mappings of one target.
#[derive(Debug)]
pub(super) struct DmaMaps {
    window: Window,
    table: [Option<DmaMapping>; MAPPINGS_MAX],
    /// The mapping found last, which is nearly always the one found next.
    recent: usize,
    /// A segment without a mapping, and the controller whose host has it.
    missed: Option<(u8, Segment)>,
    /// Generation of the host's space at the last review, by controller.
    generations: [u64; Controllers::MAX],
    /// Set if some mapping may have a next step.
    needs_review: bool,
}

impl DmaMaps {
    pub(super) fn new(window: Window) -> Self {
        let table = [const { None }; MAPPINGS_MAX];
        Self {
            window,
            table,
            recent: 0,
            missed: None,
            generations: [0; Controllers::MAX],
            needs_review: false,
        }
    }

    /// Returns the device address of a segment, and its mapping; none if it is not mapped. `of` is the
    /// controller that the command came through.
    #[inline]
    pub(super) fn find(&mut self, segment: &Segment, of: u8) -> Option<(u64, usize)> {
        match self.look_in(self.recent, segment) {
            Some(iova) => Some((iova, self.recent)),
            None => self.search(segment, of),
        }
    }

    #[inline]
    fn look_in(&self, mapping: usize, segment: &Segment) -> Option<u64> {
        let mapping = self.table[mapping].as_ref().filter(|mapping| mapping.state == MappingState::Mapped)?;
        let offset = segment.pointer().addr().wrapping_sub(mapping.address);
        let fits = offset < mapping.bytes && segment.len() as usize <= mapping.bytes - offset;
        (fits && !segment.is_bit_bucket()).then(|| mapping.iova + offset as u64)
    }

    #[cold]
    fn search(&mut self, segment: &Segment, of: u8) -> Option<(u64, usize)> {
        for mapping in 0..MAPPINGS_MAX {
            if let Some(iova) = self.look_in(mapping, segment) {
                self.recent = mapping;
                return Some((iova, mapping));
            }
        }
        let known = self.table.iter().flatten().any(|mapping| mapping.file.contains(segment));
        if !known && !segment.is_bit_bucket() && of != Origin::SUBSYSTEM {
            self.missed = Some((of, *segment));
            self.needs_review = true;
        }
        None
    }

    /// Counts a command that names these mappings, before it is submitted.
    #[inline]
    pub(super) fn begin(&mut self, set: MappingSet) {
        each(set, |mapping| self.uses(mapping, 1));
    }

    /// Uncounts such a command, after the device has completed it.
    #[inline]
    pub(super) fn end(&mut self, set: MappingSet) {
        each(set, |mapping| self.uses(mapping, -1));
    }

    #[inline]
    fn uses(&mut self, mapping: usize, change: i32) {
        let Some(mapping) = &mut self.table[mapping] else { return };
        mapping.uses = mapping.uses.checked_add_signed(change).expect("as many ends as beginnings");
        self.needs_review |= mapping.state != MappingState::Mapped;
    }

    /// Marks the mappings of memory that the host has unmapped, for the next review.
    pub(super) fn forget(&mut self, removed: &Removed) {
        for mapping in self.table.iter_mut().flatten().filter(|mapping| removed.holds(&mapping.file)) {
            mapping.region_removed = true;
            self.needs_review = true;
        }
    }

    /// Returns whether removed memory is in a file that is being unmapped, or may have to be.
    pub(super) fn still_maps(&self, removed: &Removed) -> bool {
        let leaves = |mapping: &DmaMapping| {
            mapping.region_removed
                || matches!(mapping.state, MappingState::Revoking { .. } | MappingState::Unmapping)
        };
        self.table.iter().flatten().any(|mapping| leaves(mapping) && removed.holds(&mapping.file))
    }

    /// Revokes all mappings of a controller's host.
    pub(super) fn revoke(&mut self, controller: u8) {
        self.table
            .iter_mut()
            .flatten()
            .filter(|mapping| mapping.of == controller)
            .for_each(DmaMapping::revoke);
        self.missed.take_if(|(of, _)| *of == controller);
        self.needs_review = true;
    }

    pub(super) fn has_some_of(&self, controller: u8) -> bool {
        self.table.iter().flatten().any(|mapping| mapping.of == controller)
    }

    /// Records the admin thread's answer to [`MapRequest::Map`].
    pub(super) fn mapped(&mut self, mapping: usize, is_mapped: bool) {
        let Some(mapping) = self.table.get_mut(mapping).and_then(Option::as_mut) else { return };
        mapping.state = match (mapping.state, is_mapped) {
            (MappingState::Requested, true) => MappingState::Mapped,
            (MappingState::Requested, false) => MappingState::Refused,
            (MappingState::Revoking { .. }, true) => MappingState::Revoking { requested: false },
            // The mapping does not exist, and needs no unmap.
            (MappingState::Revoking { .. }, false) => MappingState::Unused,
            (other, _) => other,
        };
        self.needs_review = true;
    }

    /// Records the admin thread's answer to [`MapRequest::Unmap`]; returns the file.
    pub(super) fn unmapped(&mut self, mapping: usize) -> Option<MemoryFile> {
        self.table.get_mut(mapping)?.take().map(|mapping| mapping.file)
    }

    /// Removes all mappings after the loss of the device. Returns their files, which take time to drop.
    pub(super) fn drop_all(&mut self) -> Vec<MemoryFile> {
        self.missed = None;
        self.table.iter_mut().filter_map(Option::take).map(|mapping| mapping.file).collect()
    }

    /// Calls `run` with each request for the admin thread that is due in a turn of this controller, whose
    /// host has this memory. Without `connected` there is no device to map more memory for.
    pub(super) fn requests(
        &mut self,
        controller: u8,
        space: &Space,
        connected: bool,
        mut run: impl FnMut(MapRequest),
    ) {
        let known = self.generations.get_mut(usize::from(controller));
        let is_new =
            known.is_some_and(|known| std::mem::replace(known, space.generation()) != space.generation());
        if !self.needs_review && !is_new {
            return;
        }
        for index in 0..MAPPINGS_MAX {
            self.review(index, controller, space, &mut run);
        }
        if let Some((_, segment)) = self.missed.take_if(|(of, _)| *of == controller)
            && connected
        {
            self.request_map(&segment, controller, space, &mut run);
        }
        // The remaining reviews belong to the turns of other controllers.
        self.needs_review =
            self.missed.is_some() || self.table.iter().flatten().any(|mapping| mapping.region_removed);
    }

    fn review(&mut self, index: usize, controller: u8, space: &Space, run: &mut impl FnMut(MapRequest)) {
        let Some(mapping) = &mut self.table[index] else { return };
        if mapping.of == controller
            && std::mem::take(&mut mapping.region_removed)
            && !space.holds(&mapping.file)
        {
            mapping.revoke();
        }
        match mapping.state {
            MappingState::Revoking { requested: false } if mapping.uses == 0 => {
                mapping.state = MappingState::Unmapping;
                run(MapRequest::Unmap { mapping: index, bytes: mapping.bytes as u64, iova: mapping.iova });
            }
            MappingState::Unused => {
                if let Some(mapping) = self.table[index].take() {
                    run(MapRequest::Discard(mapping.file));
                }
            }
            _ => {}
        }
    }

    fn request_map(
        &mut self,
        segment: &Segment,
        controller: u8,
        space: &Space,
        run: &mut impl FnMut(MapRequest),
    ) {
        let Some(free) = self.table.iter().position(Option::is_none) else { return };
        let Some(file) = space.file_of(segment) else { return };
        // A file whose region is gone by now is not mapped.
        if !space.holds(&file) {
            return run(MapRequest::Discard(file));
        }
        // A refused mapping has no addresses.
        let mapped = self.table.iter().flatten().filter(|mapping| mapping.bytes > 0);
        let taken = mapped.map(|mapping| mapping.iova..mapping.iova + mapping.bytes as u64);
        let place = self.window.place(file.len(), taken);
        self.table[free] = Some(DmaMapping {
            address: file.address(),
            bytes: if place.is_some() { file.len() as usize } else { 0 },
            iova: place.unwrap_or(self.window.own()),
            // A refusal is noted, too, lest every command request the mapping again.
            state: if place.is_some() { MappingState::Requested } else { MappingState::Refused },
            uses: 0,
            region_removed: false,
            file: file.clone(),
            of: controller,
        });
        if let Some(iova) = place {
            run(MapRequest::Map { mapping: free, file, iova });
        }
    }
}

impl DmaMapping {
    fn revoke(&mut self) {
        self.state = match self.state {
            MappingState::Requested => MappingState::Revoking { requested: true },
            MappingState::Mapped => MappingState::Revoking { requested: false },
            MappingState::Refused => MappingState::Unused,
            other => other,
        };
    }
}

/// Returns the set of one mapping.
#[inline]
pub(super) fn only(mapping: usize) -> MappingSet {
    1 << mapping
}

#[inline]
fn each(mut set: MappingSet, mut run: impl FnMut(usize)) {
    while set != 0 {
        run(set.trailing_zeros() as usize);
        set &= set - 1;
    }
}
