//! The state of an array in its log: shape, members, the tail of the journal, and the stale regions.

use super::Geometry;
use super::ring::{Place, RING_MAX};
use crate::log::RECORD_BYTES;
use crate::set::REGION_MIN;
use crate::{MEMBERS_MAX, Members, UNSEEN};
use std::ops::Range;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Capacity of a record in changes.
pub(crate) const CHANGES_MAX: usize = RECORD_BYTES / size_of::<Change>();

/// Maximum number of regions of a member.
pub(crate) const REGIONS_MAX: u64 = 1 << 17;

/// Bit in the mask of a region whose parities are not computed yet. No array has so many members.
pub(crate) const UNSYNCED: Members = Members(1 << (MEMBERS_MAX - 1));

/// Most members of an array.
pub(crate) const ARRAY_MAX: usize = MEMBERS_MAX - 1;

/// First bytes of a state. A byte for each region follows: the mask of the members that are stale there.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct StateHead {
    /// Bytes of each member, of a chunk, and of a region.
    size: u64,
    chunk: u64,
    region_bytes: u64,
    ring_blocks: u64,
    tail_sequence: u64,
    tail_block: u64,
    /// Number of each member's storage, its low half first; zero for storage that has none.
    storage: [[u64; 2]; MEMBERS_MAX],
    members: u8,
    parities: u8,
    out: u8,
    /// 1 if Q is on the last member in all stripes.
    q_is_last: u8,
    reserved: [u8; 4],
}

/// Values of [`Change::kind`].
mod kind {
    pub(super) const MARK: u8 = 1;
    pub(super) const OUT: u8 = 2;
    pub(super) const TAIL: u8 = 3;
}

/// Change of the state, in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Change {
    kind: u8,
    /// New mask of the regions; all members that are out.
    members: u8,
    reserved: u16,
    /// First region; first block of the tail.
    first: u32,
    /// Number of regions; sequence number of the tail.
    value: u64,
}

impl Change {
    fn mark(regions: Range<usize>, members: Members) -> Self {
        let (first, value) = (regions.start as u32, regions.len() as u64);
        Self { kind: kind::MARK, members: members.0, reserved: 0, first, value }
    }

    pub(crate) fn out(members: Members) -> Self {
        Self { kind: kind::OUT, members: members.0, reserved: 0, first: 0, value: 0 }
    }

    pub(crate) fn tail(place: Place) -> Self {
        let (first, value) = (place.block as u32, place.sequence);
        Self { kind: kind::TAIL, members: 0, reserved: 0, first, value }
    }

    /// Merges `later` into this change, if both mark adjacent regions alike. Returns whether it did.
    fn join(&mut self, later: &Self) -> bool {
        let follows = (self.kind, later.kind) == (kind::MARK, kind::MARK)
            && self.members == later.members
            && u64::from(self.first) + self.value == u64::from(later.first);
        self.value += if follows { later.value } else { 0 };
        follows
    }
}

/// Part of each member.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Region {
    /// Members whose content here is not current.
    pub(crate) stale: Members,
    /// The same, as the log will have it. A member leaves it after a flush only.
    noted: Members,
    /// Whether the last blocks that a member lacked were written since the begin of the last flush.
    copied: bool,
    /// Whether a member was written since the begin of the last flush.
    recent: bool,
    /// Whether a member was written before that, and no flush has ended well since.
    flushing: bool,
}

/// State of an array.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) geometry: Geometry,
    pub(crate) size: u64,
    pub(crate) region_bytes: u64,
    pub(crate) ring_blocks: u64,
    pub(crate) tail: Place,
    pub(crate) storage: [u128; MEMBERS_MAX],
    pub(crate) members: Members,
    /// Members that an operator took out.
    pub(crate) out: Members,
    pub(crate) regions: Vec<Region>,
    /// Changes that the log does not have yet.
    pub(crate) pending: Vec<Change>,
    /// Count of changed masks.
    pub(crate) marks: u64,
    /// The same, when a member last left the mask of a region.
    cleared: [u64; MEMBERS_MAX],
}

impl State {
    /// Creates the state of an array whose regions all have this mask.
    pub(crate) fn new(
        geometry: Geometry,
        size: u64,
        region_bytes: u64,
        ring_blocks: u64,
        stale: Members,
    ) -> Self {
        let region = Region { stale, noted: stale, ..Region::default() };
        Self {
            geometry,
            size,
            region_bytes,
            ring_blocks,
            tail: Place::default(),
            storage: [0; MEMBERS_MAX],
            members: Members::first(geometry.members),
            out: Members::NONE,
            regions: vec![region; size.div_ceil(region_bytes) as usize],
            pending: Vec::new(),
            marks: 0,
            cleared: [0; MEMBERS_MAX],
        }
    }

    /// Returns the regions of some rows.
    pub(crate) fn regions_of(&self, rows: &Range<u64>) -> Range<usize> {
        let end = (rows.end.div_ceil(self.region_bytes) as usize).min(self.regions.len());
        ((rows.start / self.region_bytes) as usize).min(end)..end
    }

    /// Returns the rows of a region.
    pub(crate) fn rows_of(&self, region: usize) -> Range<u64> {
        let start = region as u64 * self.region_bytes;
        start..(start + self.region_bytes).min(self.size)
    }

    /// Returns the members that are stale in some region.
    pub(crate) fn stale(&self) -> Members {
        self.regions.iter().fold(Members::NONE, |all, region| all.with(region.stale))
    }

    /// Returns the members that lack something in some region after a power cut.
    pub(crate) fn lacking(&self) -> Members {
        self.regions.iter().fold(Members::NONE, |all, region| all.with(region.stale).with(region.noted))
    }

    /// Returns the members that lack something in a log that has the first `safe_marks` changes of masks, and
    /// lack nothing any more.
    pub(crate) fn unsettled(&self, safe_marks: u64) -> Members {
        let members = (0..MEMBERS_MAX).filter(|member| self.cleared[*member] > safe_marks);
        members.fold(Members::NONE, |all, member| all.with(Members::one(member)))
    }

    /// Makes members stale in these regions.
    pub(crate) fn make_stale(&mut self, regions: Range<usize>, members: Members) {
        for number in regions {
            let region = &mut self.regions[number];
            region.stale = region.stale.with(members);
            self.note(number, self.regions[number].noted.with(members));
        }
    }

    /// Makes members stale in the regions that were written since the last good flush.
    pub(crate) fn make_recent_stale(&mut self, members: Members) {
        for number in 0..self.regions.len() {
            if self.regions[number].recent || self.regions[number].flushing {
                self.make_stale(number..number + 1, members);
            }
        }
    }

    /// Notes that members are written in these regions.
    pub(crate) fn touch(&mut self, regions: Range<usize>) {
        self.regions[regions].iter_mut().for_each(|region| region.recent = true);
    }

    /// Notes that members have all of a region, in memory only.
    pub(crate) fn is_copied(&mut self, number: usize, members: Members) {
        let region = &mut self.regions[number];
        region.stale = region.stale.without(members);
        (region.recent, region.copied) = (true, true);
    }

    pub(crate) fn begin_flush(&mut self) {
        for region in &mut self.regions {
            (region.flushing, region.recent) = (region.flushing | region.recent, false);
            region.copied = false;
        }
    }

    /// Ends a flush. After a good one, members have the regions that were rebuilt before its begin. Later writes there
    /// are in the journal.
    pub(crate) fn end_flush(&mut self, good: bool) {
        if !good {
            return;
        }
        for number in 0..self.regions.len() {
            let region = &mut self.regions[number];
            region.flushing = false;
            if !region.copied && region.noted != region.stale {
                self.note(number, self.regions[number].stale);
            }
        }
    }

    /// Returns whether a flush would make a region clean.
    pub(crate) fn is_settling(&self) -> bool {
        self.regions.iter().any(|region| region.noted != region.stale)
    }

    fn note(&mut self, number: usize, mask: Members) {
        let was = self.regions[number].noted;
        if was != mask {
            self.regions[number].noted = mask;
            self.marks += 1;
            was.without(mask).iter().for_each(|member| self.cleared[member] = self.marks);
            let change = Change::mark(number..number + 1, mask);
            if !self.pending.last_mut().is_some_and(|last| last.join(&change)) {
                self.pending.push(change);
            }
        }
    }

    /// Adds regions for larger members; their parities are not computed yet.
    pub(crate) fn grow(&mut self, size: u64) {
        if size > self.size && !self.size.is_multiple_of(self.region_bytes) {
            let last = self.regions.len() - 1;
            self.make_stale(last..last + 1, UNSYNCED);
        }
        let added = Region { stale: UNSYNCED, noted: UNSYNCED, ..Region::default() };
        self.regions.resize(size.div_ceil(self.region_bytes) as usize, added);
        self.size = size;
    }

    /// Gives the array another shape, with one member more or less behind the others. A member that is added has
    /// nothing. Returns it.
    pub(crate) fn reshape(&mut self, to: Geometry, storage: &[u128; MEMBERS_MAX]) -> Members {
        let was = std::mem::replace(&mut self.members, Members::first(to.members));
        let (added, gone) = (self.members.without(was), was.without(self.members));
        self.geometry = to;
        self.out = self.out.without(gone);
        for member in added.with(gone).iter() {
            self.storage[member] = 0;
        }
        self.note_storage_of(added, storage);
        for number in 0..self.regions.len() {
            let region = &mut self.regions[number];
            region.stale = region.stale.without(gone).with(added);
            self.note(number, self.regions[number].noted.without(gone).with(added));
        }
        added
    }

    /// Returns the members whose storage differs from the log. Storage without a number is taken for the
    /// same, and [unseen](UNSEEN) storage for other storage.
    pub(crate) fn replaced(&self, storage: &[u128; MEMBERS_MAX]) -> Members {
        let is_other = |member: &usize| {
            let (was, is) = (self.storage[*member], storage[*member]);
            was != 0 && is != 0 && was != is
        };
        let other = self.members.iter().filter(is_other);
        other.fold(Members::NONE, |all, member| all.with(Members::one(member)))
    }

    /// Notes the storage of all members.
    pub(crate) fn note_storage(&mut self, storage: &[u128; MEMBERS_MAX]) {
        self.note_storage_of(self.members, storage);
    }

    fn note_storage_of(&mut self, members: Members, storage: &[u128; MEMBERS_MAX]) {
        for member in members.iter().filter(|member| ![0, UNSEEN].contains(&storage[*member])) {
            self.storage[member] = storage[member];
        }
    }

    pub(crate) fn write(&self, bytes: &mut Vec<u8>) {
        let head = StateHead {
            size: self.size,
            chunk: self.geometry.chunk,
            region_bytes: self.region_bytes,
            ring_blocks: self.ring_blocks,
            tail_sequence: self.tail.sequence,
            tail_block: self.tail.block,
            storage: self.storage.map(|id| [id as u64, (id >> 64) as u64]),
            members: self.geometry.members as u8,
            parities: self.geometry.parities as u8,
            out: self.out.0,
            q_is_last: self.geometry.q_is_last.into(),
            reserved: [0; 4],
        };
        bytes.extend_from_slice(head.as_bytes());
        bytes.extend(self.regions.iter().map(|region| region.noted.0));
    }

    /// Reads a state; none if there cannot be such an array.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let (head, masks) = StateHead::read_from_prefix(bytes).ok()?;
        let (members, parities) = (usize::from(head.members), usize::from(head.parities));
        let geometry = match (head.q_is_last, parities) {
            (0, _) => Geometry::new(members, parities, head.chunk).ok()?,
            (1, 2) => Geometry::new(members.checked_sub(1)?, 1, head.chunk).ok()?.with_q()?,
            _ => return None,
        };
        let tail = Place { sequence: head.tail_sequence, block: head.tail_block };
        let is_right = geometry.members <= ARRAY_MAX
            && head.region_bytes.is_power_of_two()
            && head.region_bytes >= REGION_MIN
            && masks.len() as u64 <= REGIONS_MAX
            && head.size.div_ceil(head.region_bytes) == masks.len() as u64
            && head.ring_blocks <= RING_MAX
            && tail.block < head.ring_blocks;
        if !is_right {
            return None;
        }
        let mut state = Self::new(geometry, head.size, head.region_bytes, head.ring_blocks, Members::NONE);
        (state.tail, state.out) = (tail, Members(head.out).and(state.members));
        state.storage = head.storage.map(|[low, high]| u128::from(high) << 64 | u128::from(low));
        let all = state.members.with(UNSYNCED);
        for (region, mask) in state.regions.iter_mut().zip(masks) {
            (region.stale, region.noted) = (Members(*mask).and(all), Members(*mask).and(all));
        }
        Some(state)
    }

    /// Applies the changes of a record. Returns false if one is invalid.
    pub(crate) fn replay(&mut self, record: &[u8]) -> bool {
        let chunks = record.chunks(size_of::<Change>());
        chunks.map(Change::read_from_bytes).all(|change| change.is_ok_and(|change| self.redo(&change)))
    }

    fn redo(&mut self, change: &Change) -> bool {
        let first = change.first as usize;
        match change.kind {
            kind::MARK => {
                let end = usize::try_from(change.value).ok().and_then(|count| first.checked_add(count));
                let regions = end.and_then(|end| self.regions.get_mut(first..end));
                let mask = Members(change.members).and(self.members.with(UNSYNCED));
                let Some(regions) = regions else { return false };
                regions.iter_mut().for_each(|region| (region.stale, region.noted) = (mask, mask));
            }
            kind::OUT => self.out = Members(change.members).and(self.members),
            kind::TAIL if u64::from(change.first) < self.ring_blocks => {
                self.tail = Place { sequence: change.value, block: change.first.into() };
            }
            _ => return false,
        }
        true
    }

    /// Returns the bytes of changes, for a record.
    pub(crate) fn bytes_of(changes: &[Change]) -> &[u8] {
        changes.as_bytes()
    }
}
