//! Memory that only its client reaches: the ranges that a walk misses, and bounce buffers in their place.
//!
//! A region without a descriptor has no pointer, so every access to it fails on the fast path. Only then are
//! the *bounce buffers* searched: private memory that is used in place of the client's after the bytes were
//! copied, for as long as the buffers are set. Missing ranges are found by a *survey*: the walk is repeated,
//! and continues where it would have failed, as far as the lists that it needs are there.

use crate::PAGE_SIZE;
use crate::region::Access;
use crate::segment::Segment;
use crate::space::Space;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// Ranges that one survey records: as many as a command can have, and some lists. Further ones are found by
/// the next.
pub const MAX_MISSING: usize = crate::MAX_SEGMENTS + 64;

/// Use of bytes by a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// A part of a PRP list or an SGL; copied page by page.
    List,
    /// Data that a command takes from its host.
    Source,
    /// Destination of a command's data.
    Destination,
}

/// Bytes at a guest address that only the client reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissingRange {
    pub role: Role,
    pub address: u64,
    pub length: u32,
}

/// Bounce buffers by the ranges that they replace. A buffer has the same offset in its page as its range.
#[derive(Clone, Debug, Default)]
pub struct BounceBuffers(BTreeMap<(Role, u64), Segment>);

impl BounceBuffers {
    /// Sets a bounce buffer for a range.
    ///
    /// # Panics
    /// If the two are not equally long, or not at the same offset in their pages: walkers depend on that.
    pub fn insert(&mut self, missing: MissingRange, memory: Segment) {
        let is_congruent = memory.pointer().addr() % PAGE_SIZE == missing.address as usize % PAGE_SIZE;
        assert!(is_congruent && memory.len() == missing.length, "{memory:?} in place of {missing:?}");
        self.0.insert((missing.role, missing.address), memory);
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns the buffered address for a guest address, and how many bytes follow it.
    fn find(&self, role: Role, address: u64) -> Option<(*mut u8, u64)> {
        let (&(_, first), memory) = self.0.range((role, 0)..=(role, address)).next_back()?;
        let offset = address - first;
        let length = u64::from(memory.len());
        (offset < length).then(|| (memory.pointer().wrapping_add(offset as usize), length - offset))
    }
}

/// State of a [`Space`] for such memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Remote {
    bounce_buffers: RefCell<BounceBuffers>,
    /// Lengths by role and address.
    missing: RefCell<BTreeMap<(Role, u64), u32>>,
    surveys: Cell<bool>,
}

impl Remote {
    pub(crate) fn find(&self, role: Role, address: u64) -> Option<(*mut u8, u64)> {
        self.bounce_buffers.borrow().find(role, address)
    }

    /// Sets the bounce buffers from here on; returns the previous ones.
    pub(crate) fn use_bounce_buffers(&self, bounce_buffers: BounceBuffers) -> BounceBuffers {
        self.bounce_buffers.replace(bounce_buffers)
    }

    pub(crate) fn survey(&self, walk: impl FnOnce()) {
        self.surveys.set(true);
        walk();
        self.surveys.set(false);
    }

    pub(crate) fn has_missing(&self) -> bool {
        !self.missing.borrow().is_empty()
    }

    pub(crate) fn take_missing(&self) -> Vec<MissingRange> {
        let missing = self.missing.take().into_iter();
        missing.map(|((role, address), length)| MissingRange { role, address, length }).collect()
    }

    /// Handles `length` missing bytes, of which the region has `reach`. Returns how many of them a survey
    /// skips; none if the walk cannot continue.
    fn miss(&self, role: Role, address: u64, length: u64, reach: u64) -> Option<u64> {
        if !self.surveys.get() {
            return None;
        }
        let taken = length.min(reach).min(u64::from(u32::MAX - PAGE_SIZE as u32));
        if role == Role::List {
            // Regions are whole pages.
            let in_page = address % PAGE_SIZE as u64;
            let pages = (in_page + taken).next_multiple_of(PAGE_SIZE as u64);
            self.note(role, address - in_page, pages as u32);
            return None;
        }
        self.note(role, address, taken as u32);
        Some(taken)
    }

    fn note(&self, role: Role, address: u64, length: u32) {
        let mut missing = self.missing.borrow_mut();
        if let Some((&(_, first), held)) = missing.range_mut((role, 0)..=(role, address)).next_back()
            && address - first <= u64::from(*held)
        {
            // Inside the previous range, or right behind it.
            let reaches = address - first + u64::from(length);
            match u32::try_from(reaches) {
                Ok(reaches) => return *held = reaches.max(*held),
                Err(_) if first == address => return,
                Err(_) => {}
            }
        }
        if missing.len() < MAX_MISSING {
            missing.insert((role, address), length);
        }
    }
}

impl Space {
    /// Returns whether only the client reaches all of the memory of a queue: see
    /// [`ShadowMemory`](crate::ShadowMemory).
    pub fn is_remote(&self, iova: u64, length: usize, access: Access) -> bool {
        let role = if access == Access::Read { Role::Source } else { Role::Destination };
        let (mut iova, mut left) = (iova, length as u64);
        while left > 0 {
            let Some(reach) = self.remote_reach(role, iova) else { return false };
            if reach >= left {
                return true;
            }
            // A range at the top of the address space does not continue at its bottom.
            let Some(next) = iova.checked_add(reach) else { return false };
            (iova, left) = (next, left - reach);
        }
        false
    }

    /// Calls `walk` and records the ranges that it misses: memory that only the client reaches, without a
    /// bounce buffer. The ranges are returned by [`take_missing`](Space::take_missing); the walk's
    /// translations lack them.
    pub fn survey(&self, walk: impl FnOnce()) {
        self.remote.survey(walk);
    }

    pub fn has_missing(&self) -> bool {
        self.remote.has_missing()
    }

    /// Returns the ranges that surveys found missing since the last call, by role and address, at most
    /// [`MAX_MISSING`]. Adjacent ranges are merged.
    pub fn take_missing(&self) -> Vec<MissingRange> {
        self.remote.take_missing()
    }

    /// Uses these bounce buffers in place of memory that only the client reaches; returns the previous ones.
    /// The memory of a bounce buffer stays mapped until no translation to it is in use.
    pub fn use_bounce_buffers(&self, bounce_buffers: BounceBuffers) -> BounceBuffers {
        self.remote.use_bounce_buffers(bounce_buffers)
    }

    /// Returns how many of `left` bytes at `iova` a survey skips.
    #[cold]
    pub(crate) fn miss(&self, role: Role, iova: u64, left: u64) -> Option<u64> {
        self.remote.miss(role, iova, left, self.remote_reach(role, iova)?)
    }

    /// Returns how many bytes from `iova` on only the client reaches, in one region.
    fn remote_reach(&self, role: Role, iova: u64) -> Option<u64> {
        let (permissions, reach) = self.remote_at(iova)?;
        let may = if role == Role::Destination { permissions.write } else { permissions.read };
        may.then_some(reach)
    }
}
