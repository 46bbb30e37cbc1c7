//! REGION_READ, REGION_WRITE and REGION_WRITE_MULTI: register accesses that are not mapped.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Payload of REGION_READ and REGION_WRITE. The data of a write follows, as does the data of the reply to a
/// read; the reply to either repeats this structure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RegionAccess {
    /// Offset in bytes from the beginning of the region.
    pub offset: u64,
    /// Region, one of [`crate::device::region`].
    pub region: u32,
    /// Number of bytes.
    pub count: u32,
}

impl RegionAccess {
    pub const SIZE: usize = 16;

    /// Parses a REGION_WRITE payload: the access and exactly the bytes that it announces.
    pub fn parse_write(payload: &[u8]) -> Option<(RegionAccess, &[u8])> {
        let (access, data) = RegionAccess::read_from_prefix(payload).ok()?;
        (data.len() == access.count as usize).then_some((access, data))
    }
}

/// Begin of REGION_WRITE_MULTI's payload: the number of writes; [`MultiWrite`] structures follow. The reply
/// repeats the number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct WriteMulti {
    pub count: u64,
}

impl WriteMulti {
    pub const SIZE: usize = 8;

    /// Returns the writes of a REGION_WRITE_MULTI payload, in order, if it holds exactly the announced
    /// number.
    pub fn parse(payload: &[u8]) -> Option<&[MultiWrite]> {
        let (multi, rest) = WriteMulti::read_from_prefix(payload).ok()?;
        let writes = <[MultiWrite]>::ref_from_bytes(rest).ok()?;
        (writes.len() as u64 == multi.count).then_some(writes)
    }
}

/// A write of at most eight bytes.
///
/// Made of bytes, since it is read in place in a message, where it is not aligned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MultiWrite {
    access: [u8; RegionAccess::SIZE],
    data: [u8; 8],
}

impl MultiWrite {
    pub const SIZE: usize = 24;

    pub fn access(&self) -> RegionAccess {
        zerocopy::transmute!(self.access)
    }

    /// Returns the bytes to write; `None` if more are announced than there is room for.
    pub fn data(&self) -> Option<&[u8]> {
        self.data.get(..self.access().count as usize)
    }
}

const _: () = assert!(size_of::<RegionAccess>() == RegionAccess::SIZE);
const _: () = assert!(size_of::<WriteMulti>() == WriteMulti::SIZE);
const _: () = assert!(size_of::<MultiWrite>() == MultiWrite::SIZE);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_carries_exactly_what_it_announces() {
        let access = RegionAccess { offset: 0x1000, region: 0, count: 4 };
        let payload = [access.as_bytes(), &[1, 2, 3, 4]].concat();
        assert_eq!(RegionAccess::parse_write(&payload), Some((access, &[1, 2, 3, 4][..])));
        assert_eq!(RegionAccess::parse_write(&payload[..19]), None);
        assert_eq!(RegionAccess::parse_write(&[&payload[..], &[5]].concat()), None);
        assert_eq!(RegionAccess::parse_write(&payload[..15]), None);
    }

    #[test]
    fn several_writes() {
        let one = |count: u32| {
            let access = RegionAccess { offset: 8, region: 2, count };
            [access.as_bytes(), &[9; 8]].concat()
        };
        let payload = [&2u64.to_le_bytes()[..], &one(8), &one(9)].concat();
        let writes = WriteMulti::parse(&payload).expect("valid");
        assert_eq!(writes[0].access(), RegionAccess { offset: 8, region: 2, count: 8 });
        assert_eq!(writes[0].data(), Some(&[9; 8][..]));
        assert_eq!(writes[1].data(), None);
        assert_eq!(WriteMulti::parse(&payload[..payload.len() - 1]), None);
        assert_eq!(WriteMulti::parse(&payload[..32]), None);
        assert_eq!(WriteMulti::parse(&u64::MAX.to_le_bytes()), None);
    }
}
