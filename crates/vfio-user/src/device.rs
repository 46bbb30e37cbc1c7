//! DEVICE_GET_INFO and DEVICE_GET_REGION_INFO: the regions of the device.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Indices of the regions of a PCI device.
pub mod region {
    pub const BAR0: u32 = 0;
    pub const BAR1: u32 = 1;
    pub const BAR2: u32 = 2;
    pub const BAR3: u32 = 3;
    pub const BAR4: u32 = 4;
    pub const BAR5: u32 = 5;
    pub const ROM: u32 = 6;
    pub const CONFIG: u32 = 7;
    pub const VGA: u32 = 8;
    /// Number of regions; DEVICE_GET_INFO's `num_regions`.
    pub const COUNT: u32 = 9;
}

/// Payload of DEVICE_GET_INFO, in the command and in the reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DeviceInfo {
    /// Size of this structure in bytes.
    pub argsz: u32,
    /// Flags [`DeviceInfo::RESET`] and [`DeviceInfo::PCI`].
    pub flags: u32,
    pub num_regions: u32,
    pub num_irqs: u32,
}

impl DeviceInfo {
    pub const SIZE: usize = 16;
    /// Flag of a device that supports DEVICE_RESET.
    pub const RESET: u32 = 1;
    pub const PCI: u32 = 1 << 1;
}

/// Payload of DEVICE_GET_REGION_INFO, in the command and in the reply; a chain of capabilities may follow in
/// the reply. A client whose `argsz` is too small for them receives the reply without them, with the `argsz`
/// that is needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RegionInfo {
    /// Size in bytes: in a command that of the room for a reply, in a reply that of the structure with
    /// capabilities.
    pub argsz: u32,
    /// Flags [`RegionInfo::READ`] and the following.
    pub flags: u32,
    /// Index, one of [`region`].
    pub index: u32,
    /// Offset of the first capability from the beginning of this structure; zero for none.
    pub cap_offset: u32,
    /// Size of the region in bytes.
    pub size: u64,
    /// Offset in bytes of the region in the file that comes with the reply.
    pub offset: u64,
}

impl RegionInfo {
    pub const SIZE: usize = 32;
    pub const READ: u32 = 1;
    pub const WRITE: u32 = 1 << 1;
    /// Flag of a region of which all, or the areas in the sparse-mmap capability, can be mapped: a file
    /// descriptor comes with the reply.
    pub const MMAP: u32 = 1 << 2;
    /// Flag for capabilities behind the structure. A client relies on `cap_offset` when the flag is set.
    pub const CAPS: u32 = 1 << 3;
}

/// Header of every capability of a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CapabilityHeader {
    pub id: u16,
    pub version: u16,
    /// Offset of the next capability from the beginning of the [`RegionInfo`]; zero for none.
    pub next: u32,
}

impl CapabilityHeader {
    pub const SIZE: usize = 8;
    pub const SPARSE_MMAP: u16 = 1;
}

/// A part of a region that can be mapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MmapArea {
    /// Offset in bytes from the beginning of the region.
    pub offset: u64,
    /// Size in bytes.
    pub size: u64,
}

impl MmapArea {
    pub const SIZE: usize = 16;
}

/// The sparse-mmap capability with one area, the only form that this crate sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SparseMmap {
    pub header: CapabilityHeader,
    pub area_count: u32,
    pub reserved: u32,
    pub area: MmapArea,
}

impl SparseMmap {
    pub const SIZE: usize = 32;

    /// Creates the only capability of a region, by which `area` of it can be mapped.
    pub fn new(area: MmapArea) -> Self {
        let header = CapabilityHeader { id: CapabilityHeader::SPARSE_MMAP, version: 1, next: 0 };
        Self { header, area_count: 1, reserved: 0, area }
    }
}

/// The most capabilities that are read in one reply, so that a loop in the chain ends.
const MAX_CAPABILITIES: usize = 8;

/// Returns the areas that can be mapped, from the payload of a reply: empty without the capability. `None` if
/// the reply contradicts itself.
pub fn sparse_areas(payload: &[u8]) -> Option<Vec<MmapArea>> {
    let (info, _) = RegionInfo::read_from_prefix(payload).ok()?;
    if info.flags & RegionInfo::CAPS == 0 {
        return Some(Vec::new());
    }
    let mut offset = info.cap_offset;
    for _ in 0..MAX_CAPABILITIES {
        if offset == 0 {
            return Some(Vec::new());
        }
        let capability = payload.get(offset as usize..)?;
        let (header, body) = CapabilityHeader::read_from_prefix(capability).ok()?;
        if header.id == CapabilityHeader::SPARSE_MMAP {
            return areas(body);
        }
        offset = header.next;
    }
    None
}

/// Returns the areas in the body of a sparse-mmap capability: a count, four reserved bytes, the areas.
fn areas(body: &[u8]) -> Option<Vec<MmapArea>> {
    let (count, rest) = u32::read_from_prefix(body).ok()?;
    let bytes = rest.get(size_of::<u32>()..)?.get(..(count as usize).checked_mul(MmapArea::SIZE)?)?;
    bytes.chunks_exact(MmapArea::SIZE).map(|area| MmapArea::read_from_bytes(area).ok()).collect()
}

const _: () = assert!(size_of::<DeviceInfo>() == DeviceInfo::SIZE);
const _: () = assert!(size_of::<RegionInfo>() == RegionInfo::SIZE);
const _: () = assert!(size_of::<CapabilityHeader>() == CapabilityHeader::SIZE);
const _: () = assert!(size_of::<MmapArea>() == MmapArea::SIZE);
const _: () = assert!(size_of::<SparseMmap>() == SparseMmap::SIZE);

#[cfg(test)]
mod tests {
    use super::*;

    const AREA: MmapArea = MmapArea { offset: 0x1000, size: 0x1000 };

    fn answer(flags: u32, cap_offset: u32, rest: &[u8]) -> Vec<u8> {
        let info = RegionInfo { flags, cap_offset, ..RegionInfo::default() };
        [info.as_bytes(), rest].concat()
    }

    #[test]
    fn one_area_survives_the_wire() {
        let payload = answer(RegionInfo::CAPS, RegionInfo::SIZE as u32, SparseMmap::new(AREA).as_bytes());
        assert_eq!(sparse_areas(&payload), Some(vec![AREA]));
    }

    #[test]
    fn the_chain_is_followed_past_other_capabilities() {
        let other = CapabilityHeader { id: 2, version: 1, next: 48 };
        let rest = [other.as_bytes(), &[0; 8], SparseMmap::new(AREA).as_bytes()].concat();
        assert_eq!(sparse_areas(&answer(RegionInfo::CAPS, 32, &rest)), Some(vec![AREA]));
    }

    #[test]
    fn no_capability_is_no_area() {
        assert_eq!(sparse_areas(&answer(0, 0, &[])), Some(vec![]));
        assert_eq!(sparse_areas(&answer(RegionInfo::CAPS, 0, &[])), Some(vec![]));
    }

    #[test]
    fn a_chain_that_contradicts_itself_is_refused() {
        let round = CapabilityHeader { id: 2, version: 1, next: 32 };
        assert_eq!(sparse_areas(&answer(RegionInfo::CAPS, 32, round.as_bytes())), None);
        assert_eq!(sparse_areas(&answer(RegionInfo::CAPS, 4096, &[])), None);
        let many = SparseMmap { area_count: u32::MAX, ..SparseMmap::new(AREA) };
        assert_eq!(sparse_areas(&answer(RegionInfo::CAPS, 32, many.as_bytes())), None);
        assert_eq!(sparse_areas(&[0; 31]), None);
    }
}
