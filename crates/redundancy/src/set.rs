//! The state of a set in the log: its members and regions, as bytes.

use crate::members::MEMBERS_MAX;
use crate::regions::Regions;
use crate::{Members, log::RECORD_BYTES};
use std::ops::Range;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Capacity of a record in changes.
pub(crate) const CHANGES_MAX: usize = RECORD_BYTES / size_of::<Change>();

/// Maximum number of regions of a drive.
pub(crate) const REGIONS_MAX: u64 = 1 << 20;

/// Limit of a generation. No set reaches it by losing members.
const GENERATION_MAX: u64 = 1 << 62;

/// Size of the smallest region, bytes.
pub(crate) const REGION_MIN: u64 = 4096;

/// First bytes of a state. A byte for each region follows, the mask of its members.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct StateHead {
    size: u64,
    region_bytes: u64,
    generations: [u64; MEMBERS_MAX],
    members: u8,
    out: u8,
    /// 1 if the numbers of the members' storage follow, before the regions.
    has_storage: u8,
    reserved: [u8; 5],
}

/// Number of storage that was not available when the set was opened, and may have a number.
pub const UNSEEN: u128 = u128::MAX;

/// Number of each member's storage, its low half first; zero for storage that has none.
type Storage = [[u64; 2]; MEMBERS_MAX];

/// Bytes before the masks, in a state that this version writes.
const HEAD_BYTES: usize = size_of::<StateHead>() + size_of::<Storage>();

/// Values of [`Change::kind`].
mod kind {
    pub(super) const MARK: u8 = 1;
    pub(super) const MEMBER: u8 = 2;
}

/// Change of the state, in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Change {
    kind: u8,
    /// New mask of the regions; or a member's number.
    members: u8,
    /// 1 if the member is out; zero for regions.
    flags: u16,
    first: u32,
    /// Number of regions; or a generation.
    value: u64,
}

impl Change {
    pub(crate) fn mark(regions: Range<usize>, members: Members) -> Self {
        let (first, value) = (regions.start as u32, regions.len() as u64);
        Self { kind: kind::MARK, members: members.0, flags: 0, first, value }
    }

    pub(crate) fn member(member: usize, generation: u64, out: bool) -> Self {
        let (members, flags) = (member as u8, u16::from(out));
        Self { kind: kind::MEMBER, members, flags, first: 0, value: generation }
    }

    /// Returns the regions that the change marks, and their mask.
    pub(crate) fn marks(&self) -> Option<(Range<usize>, Members)> {
        let end = usize::try_from(self.value).ok()?.checked_add(self.first as usize)?;
        (self.kind == kind::MARK).then_some((self.first as usize..end, Members(self.members)))
    }

    /// Merges `later` into this change, if both mark adjacent regions alike. Returns whether it did.
    pub(crate) fn join(&mut self, later: &Self) -> bool {
        let follows = self.kind == kind::MARK
            && later.kind == kind::MARK
            && self.members == later.members
            && u64::from(self.first) + self.value == u64::from(later.first);
        self.value += if follows { later.value } else { 0 };
        follows
    }
}

/// Set of members with their generations, and the regions in which they may differ.
///
/// A member is *newest* if no other has a higher generation. When a member is lost, the remaining members get
/// a higher generation. That is durable before any write that the lost member lacks is acknowledged. So an
/// outdated copy is never taken for a current one.
#[derive(Debug)]
pub(crate) struct Set {
    pub(crate) members: Members,
    pub(crate) generations: [u64; MEMBERS_MAX],
    /// Members that an operator took out; they stay out.
    pub(crate) out: Members,
    /// Number of each member's storage when the log was last opened; zero if it is unknown.
    pub(crate) storage: [u128; MEMBERS_MAX],
    pub(crate) regions: Regions,
}

impl Set {
    /// Creates a set in which nothing is established but that `source` is right.
    pub(crate) fn new(members: usize, size: u64, region_bytes: u64, source: usize) -> Self {
        let members = Members::first(members);
        let regions = Regions::new(size, region_bytes, members.without(Members::one(source)));
        let mut generations = [0; MEMBERS_MAX];
        generations[source] = 1;
        Self { members, generations, out: Members::NONE, storage: [0; MEMBERS_MAX], regions }
    }

    /// Returns the members whose storage differs from the log. Storage without a number, now or before, is
    /// taken for the same. [Unseen](UNSEEN) storage counts as different, because it may come back as other
    /// storage.
    pub(crate) fn replaced(&self, storage: &[u128; MEMBERS_MAX]) -> Members {
        let is_other = |member: &usize| {
            let (was, is) = (self.storage[*member], storage[*member]);
            was != 0 && is != 0 && was != is
        };
        let other = self.members.iter().filter(is_other);
        other.fold(Members::NONE, |all, member| all.with(Members::one(member)))
    }

    /// Notes the numbers of the members' storage.
    pub(crate) fn note_storage(&mut self, storage: &[u128; MEMBERS_MAX]) {
        for (noted, is) in self.storage.iter_mut().zip(storage).filter(|(_, is)| ![0, UNSEEN].contains(*is)) {
            *noted = *is;
        }
    }

    /// Returns the members with the highest generation.
    pub(crate) fn newest(&self) -> Members {
        let highest = self.highest();
        let newest = self.members.iter().filter(|member| self.generations[*member] == highest);
        newest.fold(Members::NONE, |all, member| all.with(Members::one(member)))
    }

    pub(crate) fn highest(&self) -> u64 {
        self.members.iter().map(|member| self.generations[member]).max().unwrap_or_default()
    }

    pub(crate) fn write(&self, state: &mut Vec<u8>) {
        let head = StateHead {
            size: self.regions.size(),
            region_bytes: self.regions.region_bytes(),
            generations: self.generations,
            members: self.members.0,
            out: self.out.0,
            has_storage: 1,
            reserved: [0; 5],
        };
        state.extend_from_slice(head.as_bytes());
        let storage: Storage = self.storage.map(|id| [id as u64, (id >> 64) as u64]);
        state.extend_from_slice(storage.as_bytes());
        state.extend(self.regions.list.iter().map(|region| region.wanted.0));
    }

    /// Returns the size in bytes of the state of a set with so many regions.
    pub(crate) fn state_bytes(regions: u64) -> u64 {
        HEAD_BYTES as u64 + regions
    }

    /// Returns the masks in a state that this version wrote.
    pub(crate) fn masks(state: &[u8]) -> &[u8] {
        &state[HEAD_BYTES..]
    }

    /// Reads the set of a state; none if there cannot be such a set.
    pub(crate) fn read(state: &[u8]) -> Option<Self> {
        let (head, rest) = StateHead::read_from_prefix(state).ok()?;
        let (storage, masks) = match head.has_storage {
            0 => (Storage::default(), rest),
            _ => Storage::read_from_prefix(rest).ok()?,
        };
        let storage = storage.map(|[low, high]| u128::from(high) << 64 | u128::from(low));
        let members = Members(head.members);
        let right = head.region_bytes >= REGION_MIN
            && head.region_bytes.is_power_of_two()
            && masks.len() as u64 <= REGIONS_MAX
            && head.size.div_ceil(head.region_bytes) == masks.len() as u64
            && members == Members::first(members.iter().count())
            && members.covers(Members(head.out))
            && head.generations.iter().all(|generation| *generation <= GENERATION_MAX)
            && !members.is_empty();
        if !right {
            return None;
        }
        let mut regions = Regions::new(head.size, head.region_bytes, Members::NONE);
        for (region, mask) in regions.list.iter_mut().zip(masks) {
            let mask = Members(*mask).and(members);
            (region.durable, region.wanted, region.stale) = (mask, mask, mask);
        }
        regions.make_stale(0..0, members);
        Some(Self { members, generations: head.generations, out: Members(head.out), storage, regions })
    }

    /// Applies the changes of a record. Returns false if one is invalid.
    pub(crate) fn replay(&mut self, record: &[u8]) -> bool {
        let chunks = record.chunks(size_of::<Change>());
        chunks.map(Change::read_from_bytes).all(|change| change.is_ok_and(|change| self.redo(&change)))
    }

    fn redo(&mut self, change: &Change) -> bool {
        if let Some((regions, mask)) = change.marks() {
            let Some(regions) = self.regions.list.get_mut(regions) else { return false };
            let mask = mask.and(self.members);
            for region in regions {
                (region.durable, region.wanted, region.stale) = (mask, mask, mask);
            }
            return true;
        }
        let member = usize::from(change.members);
        let known =
            change.kind == kind::MEMBER && self.members.contains(member) && change.value <= GENERATION_MAX;
        if known {
            self.generations[member] = change.value;
            self.out = self.out.without(Members::one(member));
            self.out = self.out.with(if change.flags == 0 { Members::NONE } else { Members::one(member) });
        }
        known
    }

    /// Returns the bytes of changes, for a record.
    pub(crate) fn bytes_of(changes: &[Change]) -> &[u8] {
        changes.as_bytes()
    }
}
